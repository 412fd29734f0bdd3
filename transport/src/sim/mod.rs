//! The transport `sim`: an adversary. Ranks are tasks on one thread, time is virtual, and a seed decides every order that
//! the contract leaves open.
//!
//! Puts land slice by slice in any order, and those of different keys in any order among each other; the last byte comes
//! late; queues are full; acknowledgements get lost; ranks are killed or stop moving. What holds here for many seeds rests
//! on the contract and not on luck. The same seed gives the same run: [`Fabric::fingerprint`] says so.
//!
//! Nothing may block: calls that would wait are [`Error::Blocking`](crate::Error::Blocking), and so are calls that meet
//! a full queue, with nothing applied: await [`PeerRegion::ready`](crate::PeerRegion::ready) and call again.
//!
//! | file | what |
//! |---|---|
//! | `lane.rs` | the order of one key |
//! | `world.rs` | ranks, events, faults |
//! | `run.rs`, `time.rs` | tasks and the clock |
//! | `transport.rs` | the traits of [`backend`](crate::backend) |

#![forbid(unsafe_code)]

mod lane;
mod random;
mod run;
#[cfg(test)]
mod tests;
mod time;
mod transport;
mod world;

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use transom_registry::{Incarnation, Result};

use self::time::Time;
use self::transport::Sim;
use self::world::{State, World};
use crate::clock::Clock;
use crate::context::{Context, ContextBuilder};
use crate::secret::Secret;

/// How much is made of what the contract leaves open.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Adversary {
    /// Whether what is not ordered comes in any order; else first in, first out.
    pub reorder: bool,
    /// Whether the last byte of every other put comes later than the rest.
    pub late_last_byte: bool,
    /// Most slices of one operation, each of which travels alone.
    pub slices: usize,
    /// Probability that an operation meets a full queue.
    pub full_queue: f64,
    /// How long one way of a message takes.
    pub latency: Range<Duration>,
    /// Probability that an acknowledgement is lost, and comes again much later.
    pub drop_ack: f64,
    /// How long it takes a peer to see that a rank was killed.
    pub detection: Range<Duration>,
    /// Most steps of one [`Fabric::run`].
    pub most_steps: u64,
}

impl Adversary {
    /// A network that does nothing odd.
    #[must_use]
    pub fn calm() -> Self {
        Self {
            reorder: false,
            late_last_byte: false,
            slices: 1,
            full_queue: 0.0,
            latency: Duration::from_micros(1)..Duration::from_micros(2),
            drop_ack: 0.0,
            detection: Duration::from_millis(1)..Duration::from_millis(2),
            most_steps: 10_000_000,
        }
    }

    /// A network that does everything that it may.
    #[must_use]
    pub fn wild() -> Self {
        Self {
            reorder: true,
            late_last_byte: true,
            slices: 6,
            full_queue: 0.1,
            latency: Duration::from_micros(1)..Duration::from_micros(100),
            drop_ack: 0.1,
            detection: Duration::from_millis(1)..Duration::from_millis(600),
            most_steps: 10_000_000,
        }
    }
}

/// A simulated network and its time. A handle: clones are the same fabric.
///
/// # Examples
/// ```
/// use transom_transport::sim::{Adversary, Fabric};
/// use transom_transport::Access;
///
/// let fabric = Fabric::new(7, Adversary::wild());
/// let (owner, other) = (fabric.open()?, fabric.open()?);
/// let region = owner.allocate(4096, 1)?;
/// let remote = region.remote(Access::ALL)?;
/// let source = other.allocate(5, 0)?;
/// source.write(0, b"hello")?;
///
/// let program = async {
///     let part = other.connect_async(&remote).await?.open_async(&remote).await?;
///     part.ready().await?;
///     part.put_signal_from(16, source.all(), 0, 1)?.await?;
///     owner.signals(&region).signal(0)?.wait_at_least_async(1, std::time::Duration::from_secs(1)).await
/// };
/// assert_eq!(fabric.run(vec![Box::pin(program)])?.remove(0)?, 1);
/// # Ok::<(), transom_transport::Error>(())
/// ```
#[derive(Clone)]
pub struct Fabric(Arc<Inner>);

struct Inner {
    id: u64,
    time: Arc<Time>,
    world: Mutex<World>,
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric")
            .field("id", &self.0.id)
            .field("elapsed", &self.elapsed())
            .finish_non_exhaustive()
    }
}

impl Fabric {
    /// A fabric without ranks, whose every chance comes from the seed.
    #[must_use]
    pub fn new(seed: u64, adversary: Adversary) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let time = Time::new();
        let world = Mutex::new(World::new(seed, adversary, time.clone()));
        Self(Arc::new(Inner { id: NEXT.fetch_add(1, Ordering::Relaxed), time, world }))
    }

    /// Begins to build a context of the fabric: its transport is `sim` and no other, its clock the fabric's. Ranks count
    /// in the order in which their contexts are built.
    #[must_use]
    pub fn context(&self) -> ContextBuilder {
        let fabric = self.clone();
        Context::builder()
            .clock(self.clock())
            .secret(Secret::from_bytes([0; 32]))
            .only_transport(Box::new(move |host| Ok(Sim::open(&fabric, host))))
    }

    /// Opens a context of the fabric.
    ///
    /// # Errors
    /// As for [`ContextBuilder::build`].
    pub fn open(&self) -> Result<Context> {
        self.context().build()
    }

    /// Its clock.
    #[must_use]
    pub fn clock(&self) -> Clock {
        Clock::Virtual(self.0.time.clone())
    }

    /// How much of its time has passed.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.time.elapsed()
    }

    /// Runs tasks, on this thread, until all have ended, and returns what they gave. Tasks that can go on come first, in
    /// any order; then what is under way arrives, one event at a time; time moves when nothing else can.
    ///
    /// # Errors
    /// [`Error::Deadlock`](crate::Error::Deadlock) when tasks wait and nothing is under way;
    /// [`Error::Limit`](crate::Error::Limit) after [`Adversary::most_steps`]. The tasks are dropped then.
    pub fn run<'a, T>(&self, tasks: Vec<Pin<Box<dyn Future<Output = T> + 'a>>>) -> Result<Vec<T>> {
        run::run(self, tasks)
    }

    /// The program of one rank: it stops while the rank is frozen, and is dropped, with `None`, when the rank is killed.
    ///
    /// # Cancel safety
    /// That of `program`.
    pub async fn while_alive<F: Future>(&self, incarnation: Incarnation, program: F) -> Option<F::Output> {
        let mut program = Box::pin(program);
        std::future::poll_fn(|cx| {
            {
                let mut world = self.0.world.lock();
                if let Some(rank) = world.find(incarnation) {
                    world.watch(rank, cx.waker());
                    match world.state(rank) {
                        State::Alive | State::Left(_) => {}
                        State::Frozen(_) => return Poll::Pending,
                        State::Dead(_) => return Poll::Ready(None),
                    }
                }
            }
            program.as_mut().poll(cx).map(Some)
        })
        .await
    }

    /// Kills a rank: nothing of it moves any more. Its peers see it after a while, each for itself. What they had under
    /// way to it is in doubt then; what had not left is not applied.
    pub fn kill(&self, incarnation: Incarnation) {
        self.fault(incarnation, World::kill);
    }

    /// Stops a rank: nothing of it moves until [`Fabric::thaw`]. After 2.5 s its peers hold it for failed, and it never
    /// comes back.
    pub fn freeze(&self, incarnation: Incarnation) {
        self.fault(incarnation, |world, rank| {
            world.freeze(rank);
            Vec::new()
        });
    }

    /// Lets a rank go on that was frozen for less than 2.5 s.
    pub fn thaw(&self, incarnation: Incarnation) {
        self.fault(incarnation, World::thaw);
    }

    fn fault(&self, incarnation: Incarnation, fault: impl FnOnce(&mut World, usize) -> Vec<Waker>) {
        let wake = {
            let mut world = self.0.world.lock();
            match world.find(incarnation) {
                Some(rank) => fault(&mut world, rank),
                None => Vec::new(),
            }
        };
        wake.into_iter().for_each(Waker::wake);
    }

    /// A number that two runs share only when everything in them happened in the same order at the same time.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.0.world.lock().fingerprint()
    }

    /// The last steps, a line each: the time, what happened, and its numbers (key, operation, part; or ranks).
    #[must_use]
    pub fn trace(&self) -> Vec<String> {
        self.0.world.lock().trace()
    }
}
