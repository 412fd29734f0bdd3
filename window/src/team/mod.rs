//! An ordered set of ranks that meet in a store.

mod barrier;
mod builder;
mod loss;
mod meeting;
mod split;

use std::fmt;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use transom_registry::header::lock_owner;
use transom_registry::{Access, Cause, Error, Failure, Host, MemoryRegion, Outcome, RemoteRegion, Result};
use transom_transport::{Context, PeerRegion, Producers, ProgressMode, Secret, Signals, Wait};

pub use builder::TeamBuilder;
use meeting::Meet;
pub(crate) use meeting::missing_ranks;

use crate::Rank;
use crate::environment::{MOST_RANKS, Meeting, Place, STORE};
use crate::store::{Store, StoreServer};

/// How much later than its deadline a call that meets in the store ends at the latest: the store says what is missing
/// before that, unless it does not answer at all.
const LATEST: Duration = Duration::from_millis(500);

/// An ordered set of ranks with an epoch.
///
/// A handle: clones are the same team.
///
/// # Examples
/// Two ranks as threads of one process:
/// ```
/// use transom::{Store, Team, Window};
///
/// let store = Store::in_process();
/// let ranks: Vec<_> = (0..2)
///     .map(|rank| {
///         let store = store.clone();
///         std::thread::spawn(move || -> transom::Result<()> {
///             let team = Team::builder().store(store).rank(rank).size(2).transports("local").build()?;
///             let window = Window::allocate(&team, 4096)?;
///             if team.rank() == 0 {
///                 window.put_signal(1, 0, b"hello", 0, 1)?;
///             } else {
///                 window.signal(0)?.wait_at_least(1, team.timeout())?;
///                 let mut seen = [0; 5];
///                 window.local().read(0, &mut seen)?;
///                 assert_eq!(&seen, b"hello");
///             }
///             window.close()
///         })
///     })
///     .collect();
/// for rank in ranks {
///     rank.join().unwrap()?;
/// }
/// # Ok::<(), transom::Error>(())
/// ```
#[derive(Clone)]
pub struct Team(Arc<Inner>);

struct Inner {
    context: Context,
    store: Store,
    rank: Rank,
    size: u32,
    epoch: u64,
    timeout: Duration,
    control: MemoryRegion,
    signals: Signals,
    members: Vec<RemoteRegion>,
    /// Where the launcher tells how ranks end, and which rank of the launch each member is.
    launch: Option<(Store, Vec<Rank>)>,
    links: Vec<Mutex<Option<PeerRegion>>>,
    barriers: tokio::sync::Mutex<u64>,
    /// Collective calls are numbered, so that each meets under a name of its own.
    windows: AtomicU64,
    splits: AtomicU64,
    /// The store's server, when this rank keeps it.
    _server: Option<Arc<StoreServer>>,
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Team")
            .field("rank", &self.rank())
            .field("size", &self.size())
            .field("epoch", &self.epoch())
            .finish_non_exhaustive()
    }
}

impl Team {
    /// This process's rank.
    #[inline]
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.0.rank
    }

    /// How many ranks there are.
    #[inline]
    #[must_use]
    pub fn size(&self) -> u32 {
        self.0.size
    }

    /// How often its members have changed: 1 for a team that was just built.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.0.epoch
    }

    /// The deadline of its blocking calls.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.0.timeout
    }

    /// Its context.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Its part of the store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// Checks a rank.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`].
    pub fn check_rank(&self, operation: &'static str, rank: Rank) -> Result<()> {
        if rank < self.size() {
            Ok(())
        } else {
            Err(Error::NoSuchRank { operation, rank, size: self.size() })
        }
    }

    /// The number of the next collective window.
    pub(crate) fn next_window(&self) -> u64 {
        self.0.windows.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits for a call of ours that keeps its deadline by itself.
    pub(crate) fn block_on<F: Future>(&self, operation: &'static str, call: F) -> Result<F::Output> {
        self.0.context.block_on(operation, self.timeout() + LATEST, call)
    }

    /// When a call that begins now has to be over.
    pub(crate) fn until(&self) -> Instant {
        self.0.context.clock().now() + self.timeout()
    }

    /// What is left until then.
    pub(crate) fn left(&self, until: Instant) -> Duration {
        until.saturating_duration_since(self.0.context.clock().now())
    }

    /// A step with one rank, which has to be over by then.
    pub(crate) async fn within<T>(
        &self,
        until: Instant,
        operation: &'static str,
        rank: Rank,
        step: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.0.context.clock().timeout(self.left(until), step).await.unwrap_or_else(|| {
            Err(Error::Expired {
                operation,
                rank: Some(rank),
                after: self.timeout(),
                detail: "it does not answer".into(),
                outcome: None,
            })
        })
    }

    /// Which way each rank is reached by the team's own signals, as far as it was needed.
    #[must_use]
    pub fn explain(&self) -> String {
        let mut out = format!("rank {} of {}, epoch {}", self.rank(), self.size(), self.epoch());
        for (rank, link) in self.0.links.iter().enumerate() {
            if let Some(link) = link.lock().as_ref() {
                out.push_str(&format!("\nrank {rank}: {}", link.explain()));
            }
        }
        for (name, error) in self.0.context.unusable() {
            out.push_str(&format!("\n{name}: {error}"));
        }
        out
    }

    /// The memory of its own signals.
    #[must_use]
    pub fn control(&self) -> &MemoryRegion {
        &self.0.control
    }
}
