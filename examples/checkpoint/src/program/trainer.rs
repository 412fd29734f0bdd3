//! A trainer: steps, and a save every few of them.

use std::hash::Hasher;
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Deserialize, Serialize};
use transom::Team;
use transom_checkpoint::{Error, Layout, Note, Saver, Staging};

use super::crash::Crash;
use super::state::State;
use super::{baseline, say};
use crate::Failed;

/// What a trainer saw.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// The size of its shard in bytes.
    pub(crate) shard: usize,
    /// Seconds of each step during which no checkpoint was under way; without the save.
    pub(crate) quiet: Vec<f64>,
    /// The same of each step during which one was.
    pub(crate) busy: Vec<f64>,
    /// How much of each step the trainers spent on each other's gradients and weights, in seconds.
    pub(crate) exchange: Vec<f64>,
    /// How long each save blocked, in seconds.
    pub(crate) blocked: Vec<f64>,
    /// How long copies of the shard took that all trainers made at once, in seconds.
    pub(crate) copies: Vec<f64>,
    /// How long synchronous saves of the shard took, in seconds.
    pub(crate) synchronous: Vec<f64>,
    pub(crate) first_loss: Option<f64>,
    pub(crate) last_loss: Option<f64>,
    pub(crate) accuracy: Option<f32>,
    /// A hash of its shard at the end: equal bits, equal digest.
    pub(crate) digest: u64,
}

/// From where to where to train.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Course {
    /// The step of the state at the beginning.
    pub(crate) from: u64,
    pub(crate) steps: u64,
    pub(crate) every: u64,
}

/// Trains to the end of the course, and waits until the last checkpoint is durable.
pub(crate) fn train(
    state: &mut dyn State,
    saver: &mut Saver,
    staging: &Staging,
    course: Course,
    crash: &Crash,
) -> Result<Seen, Failed> {
    let rank = staging.team().rank();
    let bar = progress(rank == 0, course);
    let mut seen = Seen { shard: state.parts()?.iter().map(|part| part.len()).sum(), ..Seen::default() };
    let mut last = None;
    for step in course.from + 1..=course.steps {
        let under_way = last.is_some_and(|last| saver.durable().is_ok_and(|durable| durable < Some(last)));
        let since = Instant::now();
        let done = state.step()?;
        let took = since.elapsed().as_secs_f64();
        let loss = done.map(|done| done.loss);
        seen.exchange.extend(done.map(|done| done.exchange.as_secs_f64()));
        if under_way {
            seen.busy.push(took)
        } else {
            seen.quiet.push(took)
        }
        seen.first_loss = seen.first_loss.or(loss);
        seen.last_loss = loss;
        if step % course.every == 0 {
            if crash.strikes(step) {
                // So that there is something to go on from.
                let _ = last.map(|last| saver.wait_durable(last, staging.team().timeout()));
            }
            if save(step, state, saver, staging, crash, &bar, &mut seen)? {
                last = Some(step);
            }
        }
        if let Some(loss) = loss {
            bar.set_message(format!("loss {loss:.4}"));
        }
        bar.set_position(step);
    }
    if let Some(last) = last {
        bar.set_message("waiting for the last checkpoint");
        wait(last, state, saver, staging, course, &bar, &mut seen)?;
    }
    bar.finish_and_clear();
    seen.accuracy = state.accuracy()?;
    let mut hash = twox_hash::XxHash3_64::new();
    state.parts()?.iter().for_each(|part| hash.write(part));
    seen.digest = hash.finish();
    Ok(seen)
}

/// Stages the state of a step. `false` where nobody takes it: the training goes on without.
fn save(
    step: u64,
    state: &dyn State,
    saver: &mut Saver,
    staging: &Staging,
    crash: &Crash,
    bar: &ProgressBar,
    seen: &mut Seen,
) -> Result<bool, Failed> {
    let rank = staging.team().rank();
    let parts = state.parts()?;
    let saved = saver.save(step, &Note::new(), |part| {
        if part == parts.len() / 2 {
            crash.in_save(step, staging);
        }
        parts[part]
    });
    let staged = match saved {
        Ok(staged) => staged,
        Err(error) if matches!(error, Error::NoWriter { .. }) || error.is_expired() => {
            bar.suspend(|| say(&format!("trainer {rank}: step {step} is not saved: {error}")));
            return Ok(false);
        }
        Err(error) => return Err(error.into()),
    };
    seen.blocked.push(staged.blocked.as_secs_f64());
    for (writer, error) in &staged.lost {
        bar.suspend(|| say(&format!("trainer {rank}: the writer, rank {writer}, is lost: {error}")));
        bar.suspend(|| say(&format!("trainer {rank}: rank {} writes from now on", staged.writer)));
    }
    Ok(true)
}

/// Waits until the last checkpoint is durable. If its writer is lost and the state is still that of its step, it is saved
/// again.
fn wait(
    last: u64,
    state: &dyn State,
    saver: &mut Saver,
    staging: &Staging,
    course: Course,
    bar: &ProgressBar,
    seen: &mut Seen,
) -> Result<(), Failed> {
    loop {
        match saver.wait_durable(last, staging.team().timeout()) {
            Ok(_) => return Ok(()),
            Err(error @ Error::WriterLost { .. }) => {
                bar.suspend(|| say(&format!("trainer {}: {error}", staging.team().rank())));
                if last < course.steps || !save(last, state, saver, staging, &Crash::default(), bar, seen)? {
                    return Ok(());
                }
            }
            // Why there is no checkpoint, the writer has told.
            Err(Error::Abandoned { .. } | Error::NoWriter { .. }) => return Ok(()),
            Err(error) if error.is_expired() => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Measures what saves are compared with: all trainers at once.
pub(crate) fn compare(
    seen: &mut Seen,
    state: &dyn State,
    layout: &Layout,
    trainers: &Team,
    directory: &Path,
) -> Result<(), Failed> {
    let parts = state.parts()?;
    let mut copy = baseline::Copy::new(&parts);
    for _ in 0..7 {
        trainers.barrier()?;
        seen.copies.push(copy.run(&parts).as_secs_f64());
    }
    for _ in 0..3 {
        trainers.barrier()?;
        let shard = layout.shard(trainers.rank() as usize, trainers.size() as usize);
        let file = directory.join(format!("synchronous-{}.safetensors", trainers.rank()));
        let took = baseline::synchronous_save(layout, &shard, &parts, &file);
        // Whatever came of it.
        let _ = std::fs::remove_file(&file);
        match took {
            Ok(took) => seen.synchronous.push(took.as_secs_f64()),
            Err(error) => {
                say(&format!("trainer {}: nothing to compare saves with: {error}", trainers.rank()))
            }
        }
    }
    trainers.barrier()?;
    Ok(())
}

fn progress(shown: bool, course: Course) -> ProgressBar {
    let target = if shown && std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(course.steps), target).with_position(course.from);
    if let Ok(style) = ProgressStyle::with_template("step {pos:>4} of {len} [{bar:40}] {eta:>4} left  {msg}")
    {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
