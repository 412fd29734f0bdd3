//! One error for the whole SDK: what failed, on which rank, why, what is known of the bytes, and what to do next.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::{Access, Incarnation};

/// The result of everything in the SDK that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is known of an operation that has ended: exactly one of these, for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Delivered: the bytes are in the target's memory.
    Done,
    /// No byte was written, and none will be.
    NotApplied,
    /// The connection or the peer went while the operation was in flight: any part of the bytes may be there.
    InDoubt,
    /// The target rejected it: nothing was written.
    Refused,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "done",
            Self::NotApplied => "not applied",
            Self::InDoubt => "in doubt",
            Self::Refused => "refused",
        })
    }
}

/// Which part of an identity is old.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stale {
    /// The process was restarted, or another one answers at its address.
    Incarnation,
    /// The region was freed, and perhaps another one took its place.
    Generation,
    /// The team changed its members since.
    Epoch,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Incarnation => "incarnation",
            Self::Generation => "generation",
            Self::Epoch => "epoch",
        })
    }
}

/// Why a peer, or the way to it, failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The process ended; its exit code where it is known.
    Exited(Option<i32>),
    /// The process was ended by this signal.
    Signaled(i32),
    /// The process exists, but it stopped moving (SIGSTOP, a core dump, a swap storm).
    Frozen,
    /// Nothing came back from its host.
    HostUnreachable,
    /// The connection was lost, and nobody has said why.
    ConnectionLost,
    /// It said goodbye: the context was closed in good order.
    Left,
    /// It broke the protocol, or bytes changed on their way.
    ProtocolError(String),
    /// It could not prove the job secret.
    AuthFailed,
    /// A limit was reached.
    ResourceLimit(String),
    /// An operating system error here.
    LocalIo(i32),
    /// The team was revoked.
    Revoked,
    /// An earlier operation without a request failed and was not reported yet.
    Earlier,
    /// The target refused a part of an operation after others were written; its reason.
    Refused(String),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(None) => f.write_str("the process ended"),
            Self::Exited(Some(code)) => write!(f, "the process exited with code {code}"),
            Self::Signaled(signal) => write!(f, "the process was killed by signal {signal}"),
            Self::Frozen => f.write_str("the process is frozen"),
            Self::HostUnreachable => f.write_str("the host is unreachable"),
            Self::ConnectionLost => f.write_str("the connection was lost"),
            Self::Left => f.write_str("it closed its context"),
            Self::ProtocolError(what) => write!(f, "protocol error: {what}"),
            Self::AuthFailed => f.write_str("authentication failed"),
            Self::ResourceLimit(what) => write!(f, "limit reached: {what}"),
            Self::LocalIo(errno) => write!(f, "{}", std::io::Error::from_raw_os_error(*errno)),
            Self::Revoked => f.write_str("the team was revoked"),
            Self::Earlier => f.write_str("an earlier operation failed"),
            Self::Refused(why) => write!(f, "the target refused the rest: {why}"),
        }
    }
}

/// One failure of one peer, told once and pointed at by every error that follows from it.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The peer's incarnation, where it is known.
    pub incarnation: Option<Incarnation>,
    /// Why.
    pub cause: Cause,
    /// What was seen, by whom, after how long.
    pub observed: String,
    /// When it was seen (wall clock).
    pub at: SystemTime,
}

impl Failure {
    /// A failure seen now.
    #[must_use]
    pub fn new(incarnation: Option<Incarnation>, cause: Cause, observed: impl Into<String>) -> Arc<Self> {
        Arc::new(Self { incarnation, cause, observed: observed.into(), at: SystemTime::now() })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.cause)?;
        if let Some(incarnation) = self.incarnation {
            write!(f, " (incarnation {incarnation})")?;
        }
        if !self.observed.is_empty() {
            write!(f, ": {}", self.observed)?;
        }
        Ok(())
    }
}

/// An operation that ended because its peer, or the way to it, failed.
#[derive(Debug, Clone)]
pub struct Failed {
    /// The operation's name.
    pub operation: &'static str,
    /// The rank it was meant for, where there is a team.
    pub rank: Option<u32>,
    /// What is known of its bytes.
    pub outcome: Outcome,
    /// The root failure, shared by all of its consequences.
    pub failure: Arc<Failure>,
    /// How many operations without a request failed on this rank since the last report, this one included.
    pub count: u64,
}

/// Everything that can go wrong, in one enum.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An offset and a size that do not fit.
    #[error("{operation}: offset {offset} + size {size} is outside the {limit} bytes that are there")]
    OutOfRange {
        /// The operation.
        operation: &'static str,
        /// Offset asked for, in bytes.
        offset: u64,
        /// Size asked for, in bytes.
        size: u64,
        /// What there is, in bytes.
        limit: u64,
    },
    /// An offset that is not a multiple of what the operation needs.
    #[error("{operation}: offset {offset} is not a multiple of {align}")]
    Misaligned {
        /// The operation.
        operation: &'static str,
        /// Offset asked for, in bytes.
        offset: u64,
        /// Alignment that it needs, in bytes.
        align: u64,
    },
    /// A right that was not granted.
    #[error("{operation}: needs the right to {needed}, the region grants {granted}")]
    Access {
        /// The operation.
        operation: &'static str,
        /// What it needs.
        needed: Access,
        /// What there is.
        granted: Access,
    },
    /// An argument that makes no sense; says which and why.
    #[error("{operation}: {why}")]
    Invalid {
        /// The operation.
        operation: &'static str,
        /// Which argument, its value, and what is expected.
        why: String,
    },
    /// A rank that the team does not have.
    #[error("{operation}: rank {rank} does not exist, the team has {size} ranks (0 to {})", size.saturating_sub(1))]
    NoSuchRank {
        /// The operation.
        operation: &'static str,
        /// Rank asked for.
        rank: u32,
        /// Ranks that there are.
        size: u32,
    },
    /// More memory than there is.
    #[error("{requested} bytes of memory are too large: {available} bytes are available ({limit})")]
    TooLarge {
        /// Bytes asked for.
        requested: u64,
        /// Bytes that are there.
        available: u64,
        /// Which limit said so.
        limit: String,
    },
    /// A limit of the operating system or of the library; says which and how to raise it.
    #[error("limit reached: {what} ({next})")]
    Limit {
        /// Which limit, with its value.
        what: String,
        /// What to do.
        next: String,
    },
    /// A descriptor of a former life.
    #[error(
        "{operation}: stale {what}: the descriptor says {held:x}, the target says {current:x} (get a new descriptor)"
    )]
    Stale {
        /// The operation.
        operation: &'static str,
        /// Which part is old.
        what: Stale,
        /// What the descriptor says.
        held: u64,
        /// What the target says; 0 when the target has nothing there.
        current: u64,
    },
    /// The target rejected the operation: nothing was written.
    #[error("{}refused by the target{}: {why}", at_rank(*rank), first_of(*count))]
    Refused {
        /// The rank that refused, where there is a team.
        rank: Option<u32>,
        /// Its reason.
        why: Box<Error>,
        /// How many operations without a request failed there since the last report, this one included.
        count: u64,
    },
    /// A deadline passed. The operation may still end: a request can be awaited again.
    #[error("{operation}{}: no answer after {} ms{}", on_rank(*rank), after.as_millis(), detail_of(detail))]
    Expired {
        /// The operation.
        operation: &'static str,
        /// The rank that it was meant for, where there is one.
        rank: Option<u32>,
        /// How long was waited.
        after: Duration,
        /// What is missing.
        detail: String,
        /// Set when the operation ended with this: a borrowed call cannot be awaited again.
        outcome: Option<Outcome>,
    },
    /// The peer, or the way to it, failed.
    #[error("{}", describe(.0))]
    Failed(Box<Failed>),
    /// A transport that cannot be used here; says why and what to do.
    #[error("transport {transport} is not usable: {why}")]
    Unusable {
        /// Its name.
        transport: String,
        /// Why, and the next step.
        why: String,
    },
    /// No way to a peer was found; says what was tried.
    #[error("no transport reaches {peer}: {tried}")]
    Unreachable {
        /// Who.
        peer: String,
        /// Each transport and why it did not do.
        tried: String,
    },
    /// A thing that was closed before.
    #[error("{operation}: the {what} is closed")]
    Closed {
        /// The operation.
        operation: &'static str,
        /// What is closed.
        what: &'static str,
    },
    /// The process is a fork of the one that opened the context.
    #[error(
        "{operation}: this process is a fork of the one that opened the context (open a new context after fork)"
    )]
    Forked {
        /// The operation.
        operation: &'static str,
    },
    /// Simulated ranks that wait for nothing that could still come.
    #[error("simulation: deadlock: {waiting}")]
    Deadlock {
        /// Who waits, since when, and what happened last.
        waiting: String,
    },
    /// A blocking call on a thread that runs simulated ranks.
    #[error("{operation}: a blocking wait on a simulated rank would stop all ranks (use the async form)")]
    Blocking {
        /// The operation.
        operation: &'static str,
    },
    /// The other side did not prove the job secret, or belongs to another job.
    #[error("authentication with {peer} failed: {why}")]
    Auth {
        /// Who.
        peer: String,
        /// What is known; never more than an attacker may learn.
        why: String,
    },
    /// Bytes that are not what the format says.
    #[error("{what} is malformed: {why}")]
    Malformed {
        /// What was read.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A value in the environment or in a specification that cannot be used.
    #[error("{name}={value:?}: {why}")]
    Config {
        /// The variable or the option.
        name: String,
        /// Its value.
        value: String,
        /// What is expected.
        why: String,
    },
    /// A stripe of an accumulate was left half done by a rank that died; told once.
    #[error("{operation}: bytes {offset} to {} were being accumulated by a process that died: in doubt", offset.saturating_add(*size))]
    Torn {
        /// The operation.
        operation: &'static str,
        /// First byte of the stripe.
        offset: u64,
        /// Its size in bytes.
        size: u64,
    },
    /// The first of several operations without a request that ended in errors since the last report.
    #[error("{first}{}", first_of(*count))]
    FirstOf {
        /// Its error, which is neither [`Error::Failed`] nor [`Error::Refused`]: those count by themselves.
        first: Box<Error>,
        /// How many there were, this one included.
        count: u64,
    },
    /// The operating system refused.
    #[error("cannot {action}: {}", std::io::Error::from_raw_os_error(*errno))]
    Io {
        /// What was tried.
        action: String,
        /// Its error number.
        errno: i32,
    },
}

impl Error {
    /// An operating system error with what was tried.
    #[must_use]
    pub fn io(action: impl Into<String>, error: impl Into<std::io::Error>) -> Self {
        Self::Io { action: action.into(), errno: error.into().raw_os_error().unwrap_or(0) }
    }

    /// An argument that makes no sense.
    #[must_use]
    pub fn invalid(operation: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid { operation, why: why.into() }
    }

    /// An operation that failed with its peer.
    #[must_use]
    pub fn failed(operation: &'static str, outcome: Outcome, failure: Arc<Failure>) -> Self {
        Self::Failed(Box::new(Failed { operation, rank: None, outcome, failure, count: 1 }))
    }

    /// An operation that the target rejected for this reason.
    #[must_use]
    pub fn refused(why: Self) -> Self {
        Self::Refused { rank: None, why: Box::new(why), count: 1 }
    }

    /// The same error, as the first of so many operations that failed without a request.
    #[must_use]
    pub fn first_of(mut self, operations: u64) -> Self {
        match &mut self {
            Self::Failed(failed) => failed.count = operations,
            Self::Refused { count, .. } => *count = operations,
            _ if operations > 1 => return Self::FirstOf { first: Box::new(self), count: operations },
            _ => {}
        }
        self
    }

    /// The same error, told of this rank.
    #[must_use]
    pub fn at_rank(mut self, rank: u32) -> Self {
        match &mut self {
            Self::Failed(failed) => failed.rank = Some(rank),
            Self::Expired { rank: r, .. } | Self::Refused { rank: r, .. } => *r = Some(rank),
            Self::FirstOf { first, .. } => **first = (**first).clone().at_rank(rank),
            Self::Unreachable { peer, .. } => *peer = format!("rank {rank} ({peer})"),
            _ => {}
        }
        self
    }

    /// What is known of the operation's bytes; `None` for the answer of a wait, which ends nothing.
    #[must_use]
    pub fn outcome(&self) -> Option<Outcome> {
        match self {
            Self::Failed(failed) => Some(failed.outcome),
            Self::Expired { outcome, .. } => *outcome,
            Self::Refused { .. } => Some(Outcome::Refused),
            Self::Torn { .. } => Some(Outcome::InDoubt),
            Self::FirstOf { first, .. } => first.outcome(),
            _ => Some(Outcome::NotApplied),
        }
    }

    /// The peer failure that this error follows from, if there is one.
    #[must_use]
    pub fn root(&self) -> Option<&Arc<Failure>> {
        match self {
            Self::Failed(failed) => Some(&failed.failure),
            Self::FirstOf { first, .. } => first.root(),
            _ => None,
        }
    }
}

fn at_rank(rank: Option<u32>) -> String {
    rank.map(|r| format!("rank {r}: ")).unwrap_or_default()
}

fn on_rank(rank: Option<u32>) -> String {
    rank.map(|r| format!(" with rank {r}")).unwrap_or_default()
}

fn detail_of(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(" ({detail})") }
}

fn first_of(count: u64) -> String {
    if count > 1 { format!(", the first of {count} operations") } else { String::new() }
}

fn describe(failed: &Failed) -> String {
    let rank = at_rank(failed.rank);
    let more = first_of(failed.count);
    format!("{rank}{} {}{more}: {}", failed.operation, failed.outcome, failed.failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_lower_case_and_carry_numbers_and_the_rank() {
        let failure =
            Failure::new(Incarnation::from_u64(7), Cause::Signaled(9), "its alive lock was released");
        let error = Error::failed("put", Outcome::InDoubt, failure).at_rank(3);
        assert_eq!(
            error.to_string(),
            "rank 3: put in doubt: the process was killed by signal 9 (incarnation 0000000000000007): \
             its alive lock was released"
        );
        assert_eq!(error.outcome(), Some(Outcome::InDoubt));
        let error = Error::OutOfRange { operation: "get", offset: u64::MAX, size: 8, limit: 64 };
        assert_eq!(
            error.to_string(),
            "get: offset 18446744073709551615 + size 8 is outside the 64 bytes that are there"
        );
        let error = Error::NoSuchRank { operation: "put", rank: 4, size: 4 };
        assert_eq!(error.to_string(), "put: rank 4 does not exist, the team has 4 ranks (0 to 3)");
    }

    #[test]
    fn numbers_that_a_peer_made_up_are_shown_and_never_overflow() {
        let torn = Error::Torn { operation: "put", offset: u64::MAX, size: 8 };
        assert!(torn.to_string().contains(&u64::MAX.to_string()), "{torn}");
    }

    #[test]
    fn a_wait_that_expired_has_no_outcome() {
        let error = Error::Expired {
            operation: "signal wait",
            rank: None,
            after: Duration::from_millis(12),
            detail: "signal 3 is 4, waiting for 5".into(),
            outcome: None,
        };
        assert_eq!(error.outcome(), None);
        assert_eq!(error.to_string(), "signal wait: no answer after 12 ms (signal 3 is 4, waiting for 5)");
    }
}
