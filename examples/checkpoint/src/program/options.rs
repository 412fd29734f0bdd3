//! What the program is asked for.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use transom_checkpoint::Roles;

/// Checkpoints that do not stop training
///
/// Without a command it trains a network on handwritten digits and saves its state every few steps.
#[derive(Debug, Parser)]
#[command(name = "checkpoint", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) train: Train,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the checkpoints of a directory: step, size, complete or not, and why not
    Ls {
        /// The directory
        dir: PathBuf,
    },
    /// Read every block of every checkpoint of a directory and compare it with its digest
    Verify {
        /// The directory
        dir: PathBuf,
        /// Only the checkpoint of this step
        #[arg(long)]
        step: Option<u64>,
    },
    /// Measure, without training: how long a save blocks, bytes to disk, load, memory over many saves
    Bench(Bench),
    /// Save a pattern again and again: what tests kill
    #[command(hide = true)]
    Pattern(Pattern),
}

/// Who takes part, and how they reach each other.
#[derive(Debug, Clone, Args)]
pub(crate) struct Job {
    /// Ranks that train, each with a shard of the state
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) trainers: u32,
    /// Ranks that write, each for a part of the shards
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) writers: u32,
    /// Ranks that wait to take the place of a writer that fails
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=64))]
    pub(crate) standbys: u32,
    /// The transports that they may use, best first: shm, tcp, tcp:ADDRESS:PORT; by default TRANSOM_TRANSPORTS
    #[arg(long)]
    pub(crate) transport: Option<String>,
    /// Memory for staging in MiB, for each trainer; by default its whole shard fits
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(crate) staging: Option<u64>,
}

impl Job {
    pub(crate) fn roles(&self) -> Roles {
        Roles { trainers: self.trainers, writers: self.writers, standbys: self.standbys }
    }
}

/// Where checkpoints are kept.
#[derive(Debug, Clone, Args)]
pub(crate) struct Keeping {
    /// The directory of the checkpoints; by default one for this run, removed at its end
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
    /// How many checkpoints to keep
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keep: u32,
    /// Link what has not changed since the last checkpoint instead of writing it again
    #[arg(long)]
    pub(crate) incremental: bool,
}

impl Keeping {
    pub(crate) fn options(&self) -> transom_checkpoint::Options {
        transom_checkpoint::Options {
            keep: self.keep as usize,
            incremental: self.incremental,
            ..Default::default()
        }
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Train {
    #[command(flatten)]
    pub(crate) job: Job,
    #[command(flatten)]
    pub(crate) keeping: Keeping,
    /// Steps to train in all
    #[arg(long, default_value_t = 150)]
    pub(crate) steps: u64,
    /// Steps from one checkpoint to the next
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) every: u64,
    /// Width of the hidden layers: 4096 make a state of 205 MB
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(10..=16384))]
    pub(crate) width: u32,
    /// What the weights and the batches are drawn from
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Go on from the newest complete checkpoint of the directory
    #[arg(long, requires = "dir")]
    pub(crate) resume: bool,
    /// Take this model file as the state, instead of training: each step changes nothing but its number
    #[arg(long, value_name = "FILE.safetensors")]
    pub(crate) model: Option<PathBuf>,
    /// Kill a rank, as kill -9 does, at the save of this step
    #[arg(long, value_name = "STEP")]
    pub(crate) crash_at_step: Option<u64>,
    /// Which rank to kill
    #[arg(long, value_name = "WHO", default_value = "writer", requires = "crash_at_step")]
    pub(crate) crash: Victim,
}

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Victim {
    /// The writer of trainer 0: the standby takes over
    Writer,
    /// Trainer 0: the job ends
    Trainer,
    /// Every rank at once
    Job,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) job: Job,
    #[command(flatten)]
    pub(crate) keeping: Keeping,
    /// Size of the state in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(crate) size: u64,
    /// Saves for the memory test
    #[arg(long, default_value_t = 100)]
    pub(crate) saves: u64,
    /// Repetitions of the other tests
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repeat: u32,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Pattern {
    #[command(flatten)]
    pub(crate) job: Job,
    #[command(flatten)]
    pub(crate) keeping: Keeping,
    /// Size of the state in KiB
    #[arg(long, default_value_t = 6 << 10)]
    pub(crate) size: u64,
    /// How many saves
    #[arg(long, default_value_t = 4)]
    pub(crate) saves: u64,
}
