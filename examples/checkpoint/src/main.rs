//! The program `checkpoint`: trains, and saves without stopping; lists, verifies and measures checkpoints.

#![forbid(unsafe_code)]

mod program;
mod train;

use std::fmt;
use std::process::ExitCode;

fn main() -> ExitCode {
    match program::run() {
        Ok(code) => code,
        Err(failed) => {
            program::say(&failed.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Why the program ends, for its user.
#[derive(Debug)]
pub(crate) struct Failed(String);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: std::error::Error> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}
