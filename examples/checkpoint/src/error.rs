//! The one error of the library: what was tried, on which file, where in it, and why it failed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use transom::Rank;

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something failed. Cloning is cheap: one failure of the disk is told to everybody whom it concerns.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an action on a file or directory.
    #[error("{action} {}{}: {source}", path.display(), at(*offset))]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Where in it, in bytes.
        offset: Option<u64>,
        /// What the operating system said.
        source: Arc<io::Error>,
    },
    /// Bytes on the disk are not those that were written.
    #[error("{}: {what}: {why}", path.display())]
    Corrupt {
        /// In which file.
        path: PathBuf,
        /// Which part of it: a block by its number, the header, the manifest.
        what: String,
        /// What was found, and what was expected.
        why: String,
    },
    /// A checkpoint that cannot be loaded, because it is not complete.
    #[error("step {step} is not complete: {why}")]
    Incomplete {
        /// Its step.
        step: u64,
        /// What is missing.
        why: String,
    },
    /// The step has a complete checkpoint already, which is never written over.
    #[error("step {step} has a complete checkpoint already (remove it, or save at another step)")]
    Exists {
        /// The step.
        step: u64,
    },
    /// The save ended before this was done: it was dropped, or an earlier error ended it.
    #[error("the save of step {step} has ended")]
    Ended {
        /// Its step.
        step: u64,
    },
    /// A model file that cannot be the state.
    #[error("{} cannot be used as a model: {why}", path.display())]
    Model {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// An argument that makes no sense.
    #[error("{what}: {why}")]
    Invalid {
        /// Which argument, or which message.
        what: &'static str,
        /// Its value, and what is expected.
        why: String,
    },
    /// A message in the staging window that nobody of this job sends.
    #[error("the staging window is out of step: {0}")]
    Protocol(String),
    /// Every writer that could have taken the shard of a step has failed.
    #[error("no writer is left for step {step} (start the job with more standbys){}", told(.lost))]
    NoWriter {
        /// The step.
        step: u64,
        /// The writers that failed during this save, and how.
        lost: Vec<(Rank, Arc<transom::Error>)>,
    },
    /// There will be no checkpoint of a step: its writer has told why.
    #[error("there will be no checkpoint of step {step}: its writer says why")]
    Abandoned {
        /// The step.
        step: u64,
    },
    /// The writer of a shard failed before the checkpoint of its step was durable.
    #[error(
        "the writer, rank {writer}, is lost before step {step} was durable (save it again: the next writer takes over)"
    )]
    WriterLost {
        /// The writer.
        writer: Rank,
        /// The step.
        step: u64,
    },
    /// A save was given up because the next one began before all of its blocks had come.
    #[error("step {step} is given up: the save of step {by} began before all of its blocks had come")]
    Superseded {
        /// The step that was given up.
        step: u64,
        /// The step that began.
        by: u64,
    },
    /// A trainer failed, or went elsewhere, before its shard of a step was whole.
    #[error("step {step} is given up: the shard of trainer {trainer} will not come")]
    TrainerLost {
        /// The trainer.
        trainer: u32,
        /// The step.
        step: u64,
    },
    /// A trainer's shard of a step did not come within the team's deadline.
    #[error("step {step} is given up: the shard of trainer {trainer} did not come in time")]
    ShardMissing {
        /// The trainer.
        trainer: u32,
        /// The step.
        step: u64,
    },
    /// An error of the windows, or of registered memory.
    #[error(transparent)]
    Window(#[from] Arc<transom::Error>),
}

fn at(offset: Option<u64>) -> String {
    offset.map_or_else(String::new, |offset| format!(" at offset {offset}"))
}

fn told(lost: &[(Rank, Arc<transom::Error>)]) -> String {
    lost.iter().map(|(rank, error)| format!("; rank {rank}: {error}")).collect()
}

impl Error {
    /// Whether a wait came to its deadline.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        matches!(self, Self::Window(error) if matches!(**error, transom::Error::Expired { .. }))
    }

    /// Whether a rank failed.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Window(error) if matches!(**error, transom::Error::Failed { .. }))
    }

    pub(crate) fn invalid(what: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid { what, why: why.into() }
    }

    pub(crate) fn corrupt(path: impl Into<PathBuf>, what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Corrupt { path: path.into(), what: what.into(), why: why.into() }
    }

    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, offset: None, source: Arc::new(source) }
    }

    pub(crate) fn io_at(action: &'static str, path: &Path, offset: u64) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, offset: Some(offset), source: Arc::new(source) }
    }
}

impl From<transom::Error> for Error {
    fn from(error: transom::Error) -> Self {
        Self::Window(Arc::new(error))
    }
}
