//! The `transom` command: parses what it is asked for, and hands it to the module that does it.

#![expect(clippy::print_stderr, reason = "a command tells its user what went wrong")]

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use transom_cli::launch::Job;

mod info;
mod perf;
mod transfer;

#[derive(Debug, Parser)]
#[command(name = "transom", version, about = "Registered memory windows into other processes: the command")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Launch(Launch),
    Info(info::Options),
    /// Make the secret of a job that runs on several hosts: a file that only you can read
    Secret {
        /// The file, which must not be there yet; each rank names its copy in TRANSOM_SECRET_FILE
        file: std::path::PathBuf,
    },
    Recv(transfer::RecvOptions),
    Send(transfer::SendOptions),
    /// Measure the transports beside what could be written by hand on this machine
    Perf(perf::Options),
    /// The second rank of `perf`, which starts it itself
    #[command(hide = true)]
    PerfRank {
        #[arg(long)]
        self_check: bool,
    },
}

/// Start the ranks of a job on this host
#[derive(Debug, Args)]
struct Launch {
    /// How many ranks
    #[arg(short = 'n', long = "ranks", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    ranks: u32,
    /// The transports that they may use, best first: sets TRANSOM_TRANSPORTS
    #[arg(long)]
    transports: Option<String>,
    /// Let the others go on when one fails
    #[arg(long)]
    keep_going: bool,
    /// Pass output through as it is, without the rank before each line
    #[arg(long)]
    raw: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

impl From<Launch> for Job {
    fn from(options: Launch) -> Self {
        let Launch { ranks, transports, keep_going, raw, program } = options;
        Self { ranks, transports, keep_going, raw, program }
    }
}

fn main() -> ExitCode {
    let done: Result<ExitCode, Box<dyn std::error::Error>> = match Cli::parse().command {
        Command::Launch(options) => Job::from(options).run().map_err(Into::into),
        Command::Info(options) => info::run(&options).map(print).map_err(Into::into),
        Command::Secret { file } => transom::Secret::random()
            .and_then(|secret| secret.write_file(file))
            .map(|()| ExitCode::SUCCESS)
            .map_err(Into::into),
        Command::Recv(options) => transfer::run_recv(&options).map_err(Into::into),
        Command::Send(options) => transfer::run_send(&options).map_err(Into::into),
        Command::Perf(options) => {
            perf::run(&options, std::io::stdout().lock()).map(|()| ExitCode::SUCCESS).map_err(Into::into)
        }
        Command::PerfRank { self_check } => {
            perf::serve(self_check).map(|()| ExitCode::SUCCESS).map_err(Into::into)
        }
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("transom: {error}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "a command prints what it was asked for")]
fn print(text: String) -> ExitCode {
    print!("{text}");
    ExitCode::SUCCESS
}
