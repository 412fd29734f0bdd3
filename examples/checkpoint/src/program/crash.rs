//! Kills ranks on purpose, as kill -9 does.

use transom_checkpoint::{Report, Role, Staging};

use super::options::{Train, Victim};

/// Whom to kill, and when.
#[derive(Debug, Default)]
pub(crate) struct Crash(Option<(u64, Victim)>);

impl Crash {
    pub(crate) fn from_options(options: &Train) -> Self {
        Self(options.crash_at_step.map(|step| (step, options.crash)))
    }

    /// A trainer has staged half of its shard of a step.
    pub(crate) fn in_save(&self, step: u64, staging: &Staging) {
        let trainer = staging.roles().role(staging.team().rank());
        match self.0 {
            Some((at, Victim::Trainer)) if at == step && trainer == Role::Trainer(0) => kill(),
            Some((at, Victim::Job)) if at == step => kill(),
            _ => {}
        }
    }

    /// A writer has come so far.
    pub(crate) fn at_report(&self, report: &Report, staging: &Staging) {
        let writer = staging.roles().role(staging.team().rank());
        match (report, self.0) {
            (Report::Begun { step, .. }, Some((at, Victim::Writer)))
                if at == *step && writer == Role::Writer(0) =>
            {
                kill();
            }
            _ => {}
        }
    }
}

/// As nobody can catch.
pub(crate) fn kill() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
}
