//! `checkpoint bench`: figures without training.

use std::path::Path;
use std::process::ExitCode;

use super::options::Bench;
use crate::Failed;

pub(crate) fn run(options: &Bench) -> Result<ExitCode, Failed> {
    let _ = options;
    Err(Failed("not yet".into()))
}

/// Bytes a second that the disk of a directory takes.
pub(crate) fn raw_limit(directory: &Path, size: usize, repeat: u32) -> Result<Vec<f64>, Failed> {
    let _ = (directory, size, repeat);
    Ok(Vec::new())
}
