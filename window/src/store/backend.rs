use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use transom_registry::Result;

use super::Deadline;

/// What keeps the keys and values of a [`Store`](super::Store): the one trait to implement for another kind of store.
///
/// Who calls it has checked keys and values. Calls come from many threads at once.
pub trait Backend: Debug + Send + Sync {
    /// Does one call and gives its answer, at the latest at the deadline.
    ///
    /// The future runs on the process's control thread, inside a tokio runtime with timers and sockets. It must not
    /// block that thread (`tokio::task::spawn_blocking` is there for it), and it may be dropped at any await.
    ///
    /// # Errors
    /// [`Deadline::expired`] with the missing keys when a `Get` is not satisfied in time; whatever else fails.
    fn call(
        self: Arc<Self>,
        call: Call,
        deadline: Deadline,
    ) -> Pin<Box<dyn Future<Output = Result<Answer>> + Send>>;
}

/// One call on a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Sets a key; answered by [`Answer::Done`].
    Set {
        /// Which key.
        key: String,
        /// Its new value.
        value: Vec<u8>,
    },
    /// Waits until all keys are set; answered by [`Answer::Values`] in the same order.
    Get {
        /// Which keys, at least one.
        keys: Vec<String>,
    },
    /// Looks a key up; answered by [`Answer::Value`].
    TryGet {
        /// Which key.
        key: String,
    },
    /// Adds to a number in decimal text; answered by [`Answer::Number`], the number after it.
    Add {
        /// Which key; zero when it is not set.
        key: String,
        /// How much.
        delta: i64,
    },
    /// Sets a key when its value is the expected one; answered by [`Answer::Value`], the value that is there after it.
    CompareSet {
        /// Which key.
        key: String,
        /// The value that it must have; `None`: it must not be set.
        expected: Option<Vec<u8>>,
        /// Its new value.
        new: Vec<u8>,
    },
    /// Deletes a key; answered by [`Answer::Deleted`].
    Delete {
        /// Which key.
        key: String,
    },
}

impl Call {
    /// Its name in errors.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        match self {
            Self::Set { .. } => "store set",
            Self::Get { .. } => "store get",
            Self::TryGet { .. } => "store try_get",
            Self::Add { .. } => "store add",
            Self::CompareSet { .. } => "store compare_set",
            Self::Delete { .. } => "store delete",
        }
    }

    /// Its key; the first one when there are several.
    #[must_use]
    pub fn key(&self) -> &str {
        self.keys().first().map_or("", String::as_str)
    }

    /// Its keys: more than one only in a get.
    #[must_use]
    pub fn keys(&self) -> &[String] {
        match self {
            Self::Get { keys } => keys,
            Self::Set { key, .. }
            | Self::TryGet { key }
            | Self::Add { key, .. }
            | Self::CompareSet { key, .. }
            | Self::Delete { key } => std::slice::from_ref(key),
        }
    }

    /// Whether it can change the store.
    #[must_use]
    pub fn changes(&self) -> bool {
        !matches!(self, Self::Get { .. } | Self::TryGet { .. })
    }
}

/// The answer to a [`Call`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Done,
    /// The values of all keys that were asked for.
    Values(Vec<Vec<u8>>),
    /// The value of the key, or `None` when it is not set.
    Value(Option<Vec<u8>>),
    /// The number after an add.
    Number(i64),
    /// Whether there was something to delete.
    Deleted(bool),
}
