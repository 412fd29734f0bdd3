//! The program: what it is asked for, the ranks of a job, and what it prints.

mod baseline;
mod bench;
mod crash;
mod job;
mod list;
mod options;
mod pattern;
mod report;
mod soak;
mod state;
mod trainer;
mod training;
mod writer;

use std::process::ExitCode;

use clap::Parser as _;

use self::options::{Cli, Command};
use crate::Failed;

/// Does what the arguments say.
pub(crate) fn run() -> Result<ExitCode, Failed> {
    let cli = Cli::parse();
    match cli.command {
        None => training::run(&cli.train),
        Some(Command::Ls { dir }) => list::ls(&dir),
        Some(Command::Verify { dir, step }) => list::verify(&dir, step),
        Some(Command::Bench(options)) => bench::run(&options),
        Some(Command::Pattern(options)) => soak::run(&options),
    }
}

/// Tells the user what happens, beside what was asked for.
#[expect(clippy::print_stderr, reason = "a program tells its user what happens")]
pub(crate) fn say(what: &str) {
    eprintln!("checkpoint: {what}");
}

/// Prints what was asked for.
#[expect(clippy::print_stdout, reason = "a program prints what it was asked for")]
fn print(what: &str) {
    print!("{what}");
}
