//! What a C programmer would write by hand: the loops that ours are measured beside.
//!
//! They take the very addresses, sizes and cores that ours use. Each function runs one batch, loop included; checks
//! are made once, before the loop.

pub(crate) mod add;
pub(crate) mod atomic;
pub(crate) mod connect;
pub(crate) mod copy;
pub(crate) mod line;
pub(crate) mod memory;
pub(crate) mod plain;
pub(crate) mod socket;
pub(crate) mod store;

use std::time::{Duration, Instant};

use transom_registry::{Error, Result};

/// No wait of the harness is longer than this.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// How one side waits for the other.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Wait {
    /// Looks again and again.
    #[default]
    Spin,
    /// Sleeps in the kernel until it is woken.
    Sleep,
}

/// A bounded wait that looks again and again, and gives its core away between looks where ranks share one.
#[derive(Debug)]
pub(crate) struct Spin {
    looks: u64,
    yields: bool,
    began: Option<Instant>,
}

impl Spin {
    /// Starts to wait.
    #[inline]
    pub(crate) fn new(yields: bool) -> Self {
        Self { looks: 0, yields, began: None }
    }

    /// Pauses between two looks.
    ///
    /// # Errors
    /// After [`LIMIT`].
    #[inline]
    pub(crate) fn pause(&mut self) -> Result<()> {
        std::hint::spin_loop();
        self.looks += 1;
        // After so many looks the other rank is not running: whoever has its core may want this one.
        if self.yields || (self.looks > 4096 && self.looks.is_multiple_of(64)) {
            std::thread::yield_now();
        }
        // The clock costs as much as a few looks: it is read rarely.
        if self.looks.is_multiple_of(4096) { self.check() } else { Ok(()) }
    }

    #[cold]
    fn check(&mut self) -> Result<()> {
        let after = self.began.get_or_insert_with(Instant::now).elapsed();
        if after > LIMIT { Err(silent("wait", after)) } else { Ok(()) }
    }
}

/// The error of a wait that saw nothing come.
pub(crate) fn silent(operation: &'static str, after: Duration) -> Error {
    Error::Expired { operation, rank: None, after, detail: "the other rank is silent".into(), outcome: None }
}

/// The error of a payload that is not the one that was sent.
#[cold]
pub(crate) fn wrong_payload(seen: u64, expected: u64) -> Error {
    Error::Malformed { what: "the payload", why: format!("it is {seen}, not {expected}") }
}
