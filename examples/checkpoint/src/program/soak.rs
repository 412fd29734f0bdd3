//! `checkpoint pattern`: saves whose every byte says which one it belongs to, for tests that kill ranks in the middle.

use std::process::ExitCode;
use std::sync::Arc;

use transom_checkpoint::{BLOCK, Checkpoints, Note, Options, Role, Saver};

use super::crash::{self, Watched};
use super::job::{self, Place};
use super::options::Pattern;
use super::state::{Fixed, State};
use super::training::Directory;
use super::{pattern, print, writer};
use crate::Failed;

/// Runs the job, or one rank of it.
pub(crate) fn run(options: &Pattern) -> Result<ExitCode, Failed> {
    if !job::is_rank()? {
        let directory = Directory::make(&options.keeping)?;
        return job::start(&options.job, directory.made());
    }
    let directory =
        options.keeping.dir.as_deref().ok_or_else(|| Failed("no directory was named: --dir".into()))?;
    let layout = pattern::layout(options.size << 10);
    let place = Place::find(&options.job)?;
    let staging = place.stage(&options.job, &layout, BLOCK)?;
    match (place.roles.role(place.team.rank()), &place.trainers) {
        (Role::Trainer(number), Some(trainers)) => {
            let mut state = Fixed::pattern(layout.clone(), number as usize, trainers.size() as usize);
            let mut saver = Saver::new(&staging, &layout)?;
            let mut told = None;
            for step in 1..=options.saves {
                state.step()?;
                let parts = state.parts()?;
                crash::point(&format_args!("save of step {step}"));
                saver.save(step, &Note::new(), |part| {
                    crash::point(&format_args!("part {part} of step {step}"));
                    parts[part]
                })?;
                crash::point(&format_args!("step {step} is staged"));
                // As training would: nobody is a step ahead of the others.
                trainers.barrier()?;
                tell(&saver, &mut told)?;
            }
            // A save may be lost with its writer: then this is told by nobody.
            let _ = saver.wait_durable(options.saves, std::time::Duration::from_secs(2));
            tell(&saver, &mut told)?;
            saver.end()?;
        }
        _ => {
            let options = Options { disk: Arc::new(Watched::default()), ..options.keeping.options() };
            let checkpoints = Checkpoints::create(directory, options)?;
            writer::write(&staging, &layout, &checkpoints, &crash::Crash::default(), &|_| {})?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Tells which step is durable, when that is another one than before.
fn tell(saver: &Saver, told: &mut Option<u64>) -> Result<(), Failed> {
    let durable = saver.durable()?;
    if let Some(step) = durable.filter(|_| durable > *told) {
        *told = durable;
        print(&format!("durable {step}\n"));
    }
    Ok(())
}
