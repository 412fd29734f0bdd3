//! What a transport is: the traits that backends implement.
//!
//! Who must uphold what:
//!
//! - [`Peer`](crate::Peer) and [`PeerRegion`](crate::PeerRegion), above, check bounds, rights, alignment and liveness once, and give
//!   each operation exactly one outcome. A backend may trust that, for its *initiator's* side.
//! - A backend's *target* side trusts nothing that comes over a wire: it looks operations up in the
//!   [`Registry`] by the grant that it gave at [`Endpoint::attach`], and checks each.
//! - Operations of one endpoint on one key are applied in the order of posting as far as [`Action::Signal`], the signal
//!   of an [`Op`] and [`Action::Flush`] are concerned: a signal is added after everything before it is delivered.
//! - A token is completed once, with the outcome; after that the backend never touches the operation's slices again. A
//!   token that is dropped instead counts as in doubt.
//! - Nothing here blocks. `poll` may be called by any thread, by one at a time.
//! - [`Source::Borrowed`] bytes are read inside `post` only.

use std::fmt::Debug;
use std::future::Future;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use transom_registry::element::{Atomic, Dtype, Reduce};
use transom_registry::exposed::{Bell, Exposed};
use transom_registry::{Failure, Incarnation, Registry, RemoteRegion, Result, Slice};

use crate::secret::Secret;
use crate::token::{Completion, Token};

/// A future that a backend gives out; dropping it gives up what it stands for.
pub type Pending<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// What a transport can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// Puts and gets on memory that can be shared finish inside the call: [`Attached::mapped`] is there.
    pub mapped: bool,
    /// It reaches processes of other hosts.
    pub remote: bool,
    /// It has to be polled for incoming operations to be applied and for outgoing ones to complete.
    pub polled: bool,
}

/// What a transport is opened with.
#[derive(Clone)]
pub struct Host {
    /// Who this process is, and what it has registered.
    pub registry: Arc<Registry>,
    /// The job's secret, which both sides of a connection prove.
    pub secret: Secret,
    /// How the process is woken.
    pub bell: Arc<dyn Bell>,
    /// Where the transport runs its control tasks; `None` under a virtual clock.
    pub tasks: Option<tokio::runtime::Handle>,
    /// Tells of a peer that failed or left, also outside of any operation.
    pub lost: Arc<dyn Fn(Incarnation, Arc<Failure>) + Send + Sync>,
    /// The control page and its descriptors, for transports that share memory with their peers.
    pub page: Arc<crate::progress::Page>,
    /// Whether its peers connect to it about when it connects to them, as the members of a team do: where one connection
    /// serves both ways, the one with the lower incarnation makes it.
    pub mutual: bool,
    /// Gets `poll` called soon; under a virtual clock, where no thread does that, at once.
    pub kick: Arc<dyn Fn() + Send + Sync>,
}

impl Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("registry", &self.registry).finish_non_exhaustive()
    }
}

/// A way to move bytes.
pub trait Transport: Debug + Send + Sync {
    /// Its name, as in its specification and in its addresses.
    fn name(&self) -> &str;

    /// What it can do.
    fn caps(&self) -> Caps;

    /// Where peers reach this process through it: `NAME:...`, best first. Empty when they cannot.
    fn addresses(&self) -> Vec<String>;

    /// Connects to the process with this identity at one of its addresses (of this transport).
    ///
    /// An incarnation of `None` takes whoever answers there. An existing connection may be given again.
    fn connect(
        &self,
        address: &str,
        peer: Option<Incarnation>,
        deadline: Instant,
    ) -> Pending<Arc<dyn Endpoint>>;

    /// Whether it has to be polled at the moment: no, when it has no connection.
    fn needs_poll(&self) -> bool {
        self.caps().polled
    }

    /// Moves whatever can be moved, and hands over what completed. Never blocks. Returns how much there was to do.
    fn poll(&self, done: &mut Vec<Completion>) -> usize;

    /// A descriptor that becomes readable when `poll` has work: for the sleeper.
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Asks for the descriptor to become readable at the next event. `false`: work is there already, poll again.
    ///
    /// # Errors
    /// [`Error::Io`](transom_registry::Error::Io).
    fn arm(&self) -> Result<bool> {
        Ok(true)
    }

    /// Somebody polls all the time until the next `arm`: the descriptor need not become readable until then. For
    /// transports to whom watching costs something with each message.
    fn disarm(&self) {}

    /// Does what is due by time: heartbeats, checks of who lives. Returns when it wants to be called next.
    fn tick(&self, now: Instant) -> Option<Instant> {
        let _ = now;
        None
    }

    /// Says goodbye to all peers and stops taking connections.
    fn close(&self) {}
}

/// A key to a peer's region.
#[derive(Debug)]
pub struct Attached {
    /// What operations name the region by.
    pub key: u64,
    /// The region itself, when it could be mapped: then operations on it never come to [`Endpoint::post`].
    pub mapped: Option<Exposed>,
}

/// A connection to one process.
pub trait Endpoint: Debug + Send + Sync {
    /// Who is at the other end.
    fn peer(&self) -> Incarnation;

    /// Which transport it belongs to.
    fn transport(&self) -> &str;

    /// Gets a key to a region of the peer; the peer checks generation, epoch and rights.
    ///
    /// Fails with [`Error::Unusable`](transom_registry::Error::Unusable) when this transport cannot reach that kind of
    /// memory: then the next one is tried.
    fn attach(&self, region: &RemoteRegion, deadline: Instant) -> Pending<Attached>;

    /// Gives a key back. Operations posted before still end.
    fn detach(&self, key: u64);

    /// Begins an operation.
    fn post(&self, op: Op<'_>, token: Token) -> Posted;

    /// Orders: what was posted on this key before is delivered before anything that is posted on it from now on.
    /// Nothing to do where that is always so.
    fn fence(&self, key: u64) {
        let _ = key;
    }

    /// Whether the next operation is taken. If not, `waker` is woken once when that may have changed.
    ///
    /// Transports that say [`Posted::Full`] under a virtual clock have to answer: nobody can wait there by trying again.
    fn room(&self, waker: &Waker) -> bool {
        let _ = waker;
        true
    }

    /// Why the connection is over, if it is.
    fn failure(&self) -> Option<Arc<Failure>>;

    /// Closes the connection: what is in flight is in doubt.
    fn close(&self);
}

/// What became of a post.
#[derive(Debug)]
#[must_use]
pub enum Posted {
    /// It has ended already, with this value (atomics: what was there before; else 0).
    Done(Token, Result<u64>),
    /// Its token comes back from `poll`. The source was consumed, if it was borrowed.
    Pending,
    /// The queue is full: nothing was taken, try again after a poll.
    Full(Token),
}

/// Where the bytes of an operation come from.
#[derive(Debug, Clone)]
pub enum Source<'a> {
    /// The caller's, for the length of `post` only; at most [`Source::MOST_BORROWED`] bytes.
    Borrowed(&'a [u8]),
    /// Registered memory, kept alive by the operation.
    Owned(Slice),
}

impl Source<'_> {
    /// Most borrowed bytes of one operation: larger ones are split above.
    pub const MOST_BORROWED: usize = 256 << 10;

    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Self::Borrowed(bytes) => bytes.len(),
            Self::Owned(slice) => slice.size(),
        }
    }
}

/// One operation on a peer's region.
#[derive(Debug)]
pub struct Op<'a> {
    /// The region, as [`Attached::key`].
    pub key: u64,
    /// Where in it, in bytes.
    pub offset: u64,
    /// What to do.
    pub action: Action<'a>,
    /// A signal to add to once everything before it and the action are delivered: its number and how much.
    pub signal: Option<(u32, u64)>,
    /// Nobody awaits this one: when the target refuses it, it refuses what follows on the key too, until
    /// [`Action::Resume`]. So no signal overtakes a lost put.
    pub silent: bool,
}

/// What an operation does.
#[derive(Debug)]
pub enum Action<'a> {
    /// Writes.
    Put(Source<'a>),
    /// Reads into registered memory.
    Get(Slice),
    /// Writes parts: consecutive bytes of the source go to these (offset, size) pairs.
    PutList(&'a [(u64, u64)], Source<'a>),
    /// Reads parts: these (offset, size) pairs go to consecutive bytes of the slice.
    GetList(&'a [(u64, u64)], Slice),
    /// A fetching atomic on a word of 4 or 8 bytes; its value is what was there.
    Atomic {
        /// Which.
        atomic: Atomic,
        /// Bytes of the word.
        width: u8,
        /// First operand.
        operand: u64,
        /// What compare-swap compares with.
        compare: u64,
    },
    /// Reduces elements into the region.
    Accumulate {
        /// Their type.
        dtype: Dtype,
        /// What is made of them.
        reduce: Reduce,
        /// The operands.
        source: Source<'a>,
    },
    /// Nothing but the signal.
    Signal,
    /// Completes when everything posted before it is delivered.
    Flush,
    /// Ends the refusing that a silent operation's failure began.
    Resume,
}

impl Action<'_> {
    /// The operation's name in errors.
    #[must_use]
    pub fn name(&self, signal: bool) -> &'static str {
        match self {
            Self::Put(_) if signal => "put_signal",
            Self::Put(_) => "put",
            Self::Get(_) => "get",
            Self::PutList(..) => "put_list",
            Self::GetList(..) => "get_list",
            Self::Atomic { .. } => "atomic",
            Self::Accumulate { .. } => "accumulate",
            Self::Signal => "signal",
            Self::Flush => "flush",
            Self::Resume => "resume",
        }
    }
}
