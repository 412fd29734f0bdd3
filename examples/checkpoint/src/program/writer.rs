//! A writer or a standby: drains, and keeps account.

use parking_lot::Mutex;
use transom_checkpoint::{Checkpoints, Layout, Report, Staging, Writer};

use super::crash::Crash;
use super::report::Wrote;
use super::say;
use crate::Failed;

/// Drains until every trainer has ended. `committed_step` is told the step of each checkpoint.
pub(crate) fn write(
    staging: &Staging,
    layout: &Layout,
    checkpoints: &Checkpoints,
    crash: &Crash,
    committed_step: &(dyn Fn(u64) + Sync),
) -> Result<Wrote, Failed> {
    // Training comes first: what is staged can wait.
    let _ = rustix::process::nice(10);
    let rank = staging.team().rank();
    let wrote = Mutex::new(Wrote::default());
    Writer::new(staging, layout, checkpoints)?.run(|report| {
        crash.at_report(&report, staging);
        match report {
            Report::Committed { step, committed, took } => {
                let (written, linked) = (committed.size - committed.linked, committed.linked);
                committed_step(step);
                wrote.lock().checkpoints.push((step, written, linked, took.as_secs_f64()));
            }
            Report::Abandoned { step, error } => {
                say(&format!("writer, rank {rank}: no checkpoint of step {step}: {error}"));
                wrote.lock().abandoned.push((step, error.to_string()));
            }
            Report::TrainerLost { trainer, error } => {
                say(&format!("writer, rank {rank}: trainer {trainer} is lost: {error}"));
            }
            _ => {}
        }
    })?;
    Ok(wrote.into_inner())
}
