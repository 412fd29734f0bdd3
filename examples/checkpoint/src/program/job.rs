//! The ranks of a job: started by this program itself, or by a launcher.

use std::path::Path;
use std::process::ExitCode;

use transom::{Team, environment};
use transom_checkpoint::{Layout, Role, Roles, Staging};
use transom_cli::launch;

use super::options;
use crate::Failed;

/// Starts this program again as the ranks of a job on this host, with the arguments that it has itself, and waits for them.
/// A directory that was not among those is added.
pub(crate) fn start(job: &options::Job, directory: Option<&Path>) -> Result<ExitCode, Failed> {
    let program = std::env::current_exe().map_err(|e| Failed(format!("cannot find this program: {e}")))?;
    let mut program: Vec<_> =
        std::iter::once(program.into_os_string()).chain(std::env::args_os().skip(1)).collect();
    if let Some(directory) = directory {
        program.extend(["--dir".into(), directory.as_os_str().to_owned()]);
    }
    // A rank that fails ends neither the others nor the job: who can go on without it does.
    let ranks = job.roles().ranks();
    Ok(launch::Job { ranks, transports: job.transport.clone(), keep_going: true, raw: true, program }
        .run()?)
}

/// Whether this process is a rank.
pub(crate) fn is_rank() -> Result<bool, Failed> {
    Ok(environment::is_rank()?)
}

/// A rank's place in the job.
pub(crate) struct Place {
    pub(crate) team: Team,
    /// The trainers among themselves; `None` on the others.
    pub(crate) trainers: Option<Team>,
    pub(crate) roles: Roles,
}

impl Place {
    /// Meets the other ranks.
    pub(crate) fn find(job: &options::Job) -> Result<Self, Failed> {
        let roles = job.roles();
        let mut builder = Team::builder_from_env()?;
        if let Some(transport) = &job.transport {
            builder = builder.transports(transport);
        }
        let team = builder.build()?;
        if team.size() != roles.ranks() {
            return Err(Failed(format!(
                "{} ranks were started, and {} trainers, {} writers and {} standbys were asked for: start {} ranks",
                team.size(),
                roles.trainers,
                roles.writers,
                roles.standbys,
                roles.ranks()
            )));
        }
        let trains = matches!(roles.role(team.rank()), Role::Trainer(_));
        let trainers = team.split(trains.then_some(0), team.rank())?;
        Ok(Self { team, trainers, roles })
    }

    /// Makes the staging window: so large that a whole shard fits, or what was asked for.
    pub(crate) fn stage(&self, job: &options::Job, layout: &Layout, block: usize) -> Result<Staging, Failed> {
        let ring = match job.staging {
            Some(mib) => mib << 20,
            None => Staging::ring_for(layout, self.roles, block)?,
        };
        Ok(Staging::build(&self.team, self.roles, ring, block)?)
    }
}
