//! The `transom` command: parses what it is asked for, and hands it to the module that does it.

#![expect(clippy::print_stderr, reason = "a command tells its user what went wrong")]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod perf;

#[derive(Debug, Parser)]
#[command(name = "transom", version, about = "Registered memory windows into other processes: the command")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure the transports beside what could be written by hand on this machine
    Perf(perf::Options),
    /// The second rank of `perf`, which starts it itself
    #[command(hide = true)]
    PerfRank {
        #[arg(long)]
        self_check: bool,
    },
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Perf(options) => perf::run(&options, std::io::stdout().lock()),
        Command::PerfRank { self_check } => perf::serve(self_check),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("transom: {error}");
            ExitCode::FAILURE
        }
    }
}
