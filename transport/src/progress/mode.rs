//! Who makes progress when nobody waits.
#![forbid(unsafe_code)]

use transom_registry::{Error, Result};

/// The variable that names the mode of a context that names none.
pub const VARIABLE: &str = "TRANSOM_PROGRESS";

/// Who drives the transports when no thread waits in a call.
///
/// Memory that is mapped needs no driving: its puts, gets, atomics and signals are complete, and applied, when the call
/// returns, in every mode. What is carried (`tcp`, memory that cannot be mapped, transports of a program's own) is
/// applied, acknowledged and completed by whoever drives.
///
/// Without a driver a process gives up the promise that an issued operation completes, and an incoming one is applied,
/// with no further call on either side. What it gains: between its calls no thread of the library touches the cores or
/// the memory that it computes with. It does not give up being known: in every mode one thread holds the alive lock,
/// counts the heartbeat, says on connections that the process lives, and makes and answers connections. So death, freezing
/// and leaving are told apart as ever. But:
///
/// - a peer's flush of what is carried, and its opening of a region over `tcp`, wait until this process drives, under the
///   peer's deadlines;
/// - a failure of a `tcp` peer is seen when this process drives next;
/// - a `tcp` peer that has more to send than the kernel's buffers hold, and gets rid of nothing for 10 s, takes this
///   process for frozen: drive more often than that;
/// - futures of requests are woken by whoever drives: an executor that only sleeps is not enough. Futures of signals are
///   woken within 20 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProgressMode {
    /// A thread of the library's, asleep on its descriptors: nothing else is needed.
    #[default]
    Thread,
    /// Calls do: waits, flushes, futures and [`Request::is_done`](crate::Request::is_done) when they are asked, what
    /// begins a carried operation, and [`Context::poll`](crate::Context::poll).
    Inline,
    /// Only calls that block, and [`Context::poll`](crate::Context::poll).
    Manual,
}

impl ProgressMode {
    /// The mode that the environment names; [`ProgressMode::Thread`] where it names none.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn from_env() -> Result<Self> {
        let Some(value) = std::env::var_os(VARIABLE) else { return Ok(Self::default()) };
        match value.to_str() {
            Some("thread") => Ok(Self::Thread),
            Some("inline") => Ok(Self::Inline),
            Some("manual") => Ok(Self::Manual),
            _ => Err(Error::Config {
                name: VARIABLE.into(),
                value: value.to_string_lossy().into_owned(),
                why: "thread, inline or manual is expected".into(),
            }),
        }
    }
}
