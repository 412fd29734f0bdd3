//! `checkpoint ls` and `checkpoint verify`.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use transom_checkpoint::{Checkpoints, Options};

use super::{print, say};
use crate::Failed;

/// Lists the checkpoints of a directory.
pub(crate) fn ls(directory: &Path) -> Result<ExitCode, Failed> {
    let mut out = format!("{:>12}  {:>12}  {}\n", "step", "bytes", "state");
    for entry in Checkpoints::open(directory, Options::default())?.list()? {
        let state = entry.incomplete.map_or_else(|| "complete".into(), |why| format!("not complete: {why}"));
        let _ = writeln!(out, "{:>12}  {:>12}  {state}", entry.step, entry.size);
    }
    print(&out);
    Ok(ExitCode::SUCCESS)
}

/// Reads every block of every checkpoint, or of one.
pub(crate) fn verify(directory: &Path, step: Option<u64>) -> Result<ExitCode, Failed> {
    let checkpoints = Checkpoints::open(directory, Options::default())?;
    let mut good = true;
    for entry in checkpoints.list()?.iter().filter(|entry| step.is_none_or(|step| entry.step == step)) {
        match checkpoints.verify(entry.step) {
            Ok(wrong) if wrong.is_empty() => {
                print(&format!("step {}: every block is as it was written\n", entry.step));
            }
            Ok(wrong) => {
                good = false;
                wrong.iter().for_each(|wrong| say(&format!("step {}: {}", entry.step, wrong.error)));
            }
            Err(error) => {
                good = false;
                say(&error.to_string());
            }
        }
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
