//! Who waits, drives: polling, sleeping, and being woken.
//!
//! One thread at a time holds the *seat*: it polls the transports, delivers what completed, and looks whose wait is over.
//! A thread that waits first spins, driving, for about as long as a sleep costs; then it sleeps on the descriptors
//! itself if the seat is free, else it parks until the seat holder wakes it. When nobody waits, the *driver* thread
//! sleeps on them, so that operations complete and incoming ones are applied without any call.

pub(crate) mod alive;
mod driver;
mod mode;
mod page;
mod seat;
mod sleeper;
mod waiting;

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

pub use alive::Alive;
pub(crate) use driver::Driver;
pub use mode::{ProgressMode, VARIABLE};
pub use page::Page;
use parking_lot::RwLock;
use seat::{ParkedThread, Seat};
use sleeper::Sleeper;
use transom_registry::exposed::Bell;
use transom_registry::{Error, Result, word};
pub(crate) use waiting::{Condition, Waiting};

use crate::backend::Transport;
use crate::clock::Clock;
use crate::token::Completion;

/// How a blocking wait passes the time before it sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Spins for tens of microseconds where cores suffice, else for one, then sleeps.
    Adaptive,
    /// Never sleeps.
    Spin,
    /// Sleeps at once.
    Sleep,
}

/// Drives a context's transports and wakes who waits.
pub struct Progress {
    seat: Seat<Vec<Completion>, ParkedThread>,
    transports: RwLock<Vec<Arc<dyn Transport>>>,
    sleeper: Sleeper,
    page: Arc<Page>,
    waiting: Waiting,
    spin: Duration,
    wait: AtomicU32,
    mode: ProgressMode,
    default_timeout: Duration,
    clock: Clock,
    closed: AtomicBool,
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl Progress {
    /// `local_ranks`: how many ranks share this host's cores; when they are more than the cores, waits spin for about a
    /// microsecond only.
    pub(crate) fn new(
        page: Arc<Page>,
        local_ranks: usize,
        default_timeout: Duration,
        clock: Clock,
        mode: ProgressMode,
    ) -> Result<Arc<Self>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = if local_ranks <= cores { Duration::from_micros(50) } else { Duration::from_micros(1) };
        let sleeper = Sleeper::new(page.bell_fd())?;
        Ok(Arc::new(Self {
            seat: Seat::new(Vec::new()),
            transports: RwLock::default(),
            sleeper,
            page,
            waiting: Waiting::default(),
            spin,
            wait: AtomicU32::new(0),
            mode,
            default_timeout,
            clock,
            closed: AtomicBool::new(false),
        }))
    }

    /// The context is closed: waits of its own end, and no timer of its driver is looked at any more.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.clock.stop();
    }

    /// Refuses what only an open context can do.
    pub(crate) fn check_open(&self, operation: &'static str) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) {
            Err(Error::Closed { operation, what: "context" })
        } else {
            Ok(())
        }
    }

    /// The clock of the context.
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// How blocking waits pass the time.
    pub fn set_wait(&self, wait: Wait) {
        self.wait.store(wait as u32, Ordering::Relaxed);
    }

    pub(crate) fn default_timeout(&self) -> Duration {
        self.default_timeout
    }

    pub(crate) fn add_transport(&self, transport: Arc<dyn Transport>) -> Result<()> {
        if let Some(fd) = transport.event_fd() {
            self.sleeper.add(fd)?;
        }
        self.transports.write().push(transport);
        Ok(())
    }

    pub(crate) fn transports(&self) -> Vec<Arc<dyn Transport>> {
        self.transports.read().clone()
    }

    /// Whether any transport has to be polled at the moment.
    pub(crate) fn is_polled(&self) -> bool {
        // In a forked child what comes in is the parent's.
        !crate::fork::is_child() && self.transports.read().iter().any(|transport| transport.needs_poll())
    }

    /// Waits for `over` in the cheapest way: spinning, driving where there is something to drive, for as long as a sleep
    /// costs. `false`: it is not over.
    pub(crate) fn spin(&self, timeout: Duration, mut over: impl FnMut() -> bool) -> bool {
        if over() {
            return true;
        }
        if self.spin_time().is_zero() {
            // Who sleeps polls on its way.
            return false;
        }
        let polled = self.is_polled();
        let _driving = polled.then(|| Driving::begin(self));
        let since = Instant::now();
        let spin = self.spin_time().min(timeout);
        let mut round = 0_u32;
        loop {
            if over() {
                return true;
            }
            if polled {
                self.poll();
            }
            std::hint::spin_loop();
            round = round.wrapping_add(1);
            if round.is_multiple_of(if polled { 8 } else { 64 }) && since.elapsed() >= spin {
                return over();
            }
        }
    }

    /// Polls every transport once, if nobody else does at this moment, and delivers what completed. Returns whether there
    /// was work.
    pub fn poll(&self) -> bool {
        self.is_polled() && self.try_poll().unwrap_or(false)
    }

    /// `None`: somebody else has the seat.
    fn try_poll(&self) -> Option<bool> {
        let mut seat = self.seat.take()?;
        let work = self.poll_seated(&mut seat);
        let done = std::mem::take(&mut *seat);
        drop(seat);
        Some(self.deliver(done, work))
    }

    /// Drives as a call does that waits for nothing: not where only `poll` and waits are to.
    pub(crate) fn drive_in_passing(&self) {
        if self.mode != ProgressMode::Manual {
            self.poll();
        }
    }

    /// Drives as a call does that begins something: only where nobody else would.
    pub(crate) fn drive_in_begin(&self) {
        if self.mode == ProgressMode::Inline {
            self.poll();
        }
    }

    fn poll_seated(&self, done: &mut Vec<Completion>) -> usize {
        self.transports.read().iter().map(|transport| transport.poll(done)).sum()
    }

    /// Has the descriptors become readable again when there is work.
    fn arm(&self) {
        for transport in self.transports.read().iter() {
            // What cannot be armed is looked at with the next tick.
            let _ = transport.arm();
        }
    }

    /// Outside of the seat: wakers run here, and last drops of regions.
    fn deliver(&self, done: Vec<Completion>, work: usize) -> bool {
        let any = work > 0 || !done.is_empty();
        for completion in done {
            completion.deliver();
        }
        if any {
            self.waiting.scan();
        }
        any
    }

    /// Looks whose wait is over, and asks for the bell while there are others.
    pub(crate) fn scan(&self) {
        if self.waiting.scan() {
            word::arm(self.page.asleep());
            self.waiting.scan();
        }
    }

    /// Everything that there is to do now: what the driver does when it is woken.
    pub(crate) fn drive(&self) {
        self.page.hush();
        word::disarm(self.page.asleep());
        while self.is_polled() {
            match self.try_poll() {
                Some(true) => {}
                Some(false) => break,
                // Who has the seat may have looked before the bell was rung, which is silent now: ring it again, for
                // whoever sleeps on it in the seat, or for us when the seat is free.
                None => {
                    self.page.ring();
                    std::thread::yield_now();
                    break;
                }
            }
        }
        self.scan();
    }

    /// Registers a wait for signals: `waker` is woken when `condition` may be over.
    pub(crate) fn wait_for(&self, id: Option<u64>, condition: &Arc<dyn Condition>, waker: &Waker) -> u64 {
        let id = self.waiting.add(id, condition, waker);
        word::arm(self.page.asleep());
        id
    }

    pub(crate) fn stop_waiting(&self, id: u64) {
        self.waiting.remove(id);
    }

    /// Waits for a future, driving, at most `timeout`. `None`: it is not ready.
    ///
    /// # Errors
    /// [`Error::Blocking`] under a virtual clock; [`Error::Forked`].
    pub fn block_on<F: Future>(
        &self,
        operation: &'static str,
        timeout: Duration,
        future: F,
    ) -> Result<Option<F::Output>> {
        let mut future = std::pin::pin!(future);
        let me = ThreadWaker::current(&self.page);
        let waker = Waker::from(me.clone());
        let mut task = TaskContext::from_waker(&waker);
        if let Poll::Ready(output) = future.as_mut().poll(&mut task) {
            return Ok(Some(output));
        }
        self.check_may_block(operation)?;
        let driving = Driving::begin(self);
        let since = Instant::now();
        let spin = self.spin_time().min(timeout);
        let mut round = 0_u32;
        while !spin.is_zero() {
            if let Poll::Ready(output) = future.as_mut().poll(&mut task) {
                return Ok(Some(output));
            }
            std::hint::spin_loop();
            round = round.wrapping_add(1);
            // Futures of requests mostly drive by themselves; others, like attachments, rely on whoever waits.
            let in_time = round.is_multiple_of(16);
            if in_time || self.mode == ProgressMode::Manual {
                self.poll();
            }
            if in_time && since.elapsed() >= spin {
                break;
            }
        }
        loop {
            let Some(left) = timeout.checked_sub(since.elapsed()) else {
                return Ok(match future.as_mut().poll(&mut task) {
                    Poll::Ready(output) => Some(output),
                    Poll::Pending => None,
                });
            };
            let mut output = None;
            driving.slept.set(true);
            self.sleep_once(&me, left, || match future.as_mut().poll(&mut task) {
                Poll::Ready(ready) => {
                    output = Some(ready);
                    true
                }
                Poll::Pending => false,
            });
            if output.is_some() {
                return Ok(output);
            }
            if let Poll::Ready(output) = future.as_mut().poll(&mut task) {
                return Ok(Some(output));
            }
        }
    }

    /// Waits until `ready` gives something, driving, at most `timeout`. Nobody needs to wake this one: it looks again
    /// after every event and at least every millisecond.
    ///
    /// # Errors
    /// As for [`Progress::block_on`].
    pub(crate) fn block_until<T>(
        &self,
        operation: &'static str,
        timeout: Duration,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>> {
        if let Some(found) = ready() {
            return Ok(Some(found));
        }
        self.check_may_block(operation)?;
        let me = ThreadWaker::current(&self.page);
        let driving = Driving::begin(self);
        let since = Instant::now();
        let spin = self.spin_time();
        loop {
            self.poll();
            if let Some(found) = ready() {
                return Ok(Some(found));
            }
            let waited = since.elapsed();
            let Some(left) = timeout.checked_sub(waited) else { return Ok(None) };
            if waited < spin {
                std::hint::spin_loop();
            } else {
                driving.slept.set(true);
                self.sleep_once(&me, left.min(Duration::from_millis(1)), || false);
            }
        }
    }

    /// Refuses to block under a virtual clock, and in a fork.
    pub(crate) fn check_may_block(&self, operation: &'static str) -> Result<()> {
        crate::fork::check(operation)?;
        if self.clock().is_virtual() { Err(Error::Blocking { operation }) } else { Ok(()) }
    }

    fn wait_mode(&self) -> Wait {
        match self.wait.load(Ordering::Relaxed) {
            1 => Wait::Spin,
            2 => Wait::Sleep,
            _ => Wait::Adaptive,
        }
    }

    /// How long a wait spins before it sleeps.
    pub(crate) fn spin_time(&self) -> Duration {
        match self.wait_mode() {
            Wait::Adaptive => self.spin,
            Wait::Spin => Duration::MAX,
            Wait::Sleep => Duration::ZERO,
        }
    }

    /// Sleeps once: on the descriptors if the seat is free, else parked. `look` is asked once more after everything is
    /// armed, so that nothing that came in between is slept through.
    fn sleep_once(&self, me: &Arc<ThreadWaker>, at_most: Duration, mut look: impl FnMut() -> bool) {
        let Some(mut seat) = self.seat.take() else {
            self.seat.park(ParkedThread(me.thread.clone()), || {
                if !me.woken.swap(false, Ordering::SeqCst) {
                    // Bounded, since a wait with a deadline is.
                    std::thread::park_timeout(at_most);
                }
            });
            return;
        };
        me.on_descriptors.store(true, Ordering::SeqCst);
        let quiet = self.transports.read().iter().all(|transport| transport.arm().unwrap_or(false));
        let work = self.poll_seated(&mut seat);
        if quiet && work == 0 && seat.is_empty() && !me.woken.swap(false, Ordering::SeqCst) && !look() {
            if self.sleeper.sleep(at_most) {
                self.page.hush();
            }
            // What we apply is seen by the scan below: we need not ring for ourselves.
            word::disarm(self.page.asleep());
        }
        me.on_descriptors.store(false, Ordering::SeqCst);
        let work = work + self.poll_seated(&mut seat);
        let done = std::mem::take(&mut *seat);
        drop(seat);
        self.deliver(done, work);
        self.scan();
    }
}

/// While it lives, this thread drives and the driver thread does not.
struct Driving<'a> {
    progress: &'a Progress,
    slept: Cell<bool>,
}

impl<'a> Driving<'a> {
    fn begin(progress: &'a Progress) -> Self {
        // Who sleeps at once would only have them armed again.
        let disarm = || {
            if progress.spin_time() > Duration::ZERO {
                progress.transports.read().iter().for_each(|transport| transport.disarm());
            }
        };
        match progress.mode {
            ProgressMode::Thread => progress.sleeper.begin_driving(disarm),
            ProgressMode::Inline | ProgressMode::Manual => progress.sleeper.begin_driving_alone(disarm),
        }
        Self { progress, slept: Cell::new(false) }
    }
}

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        let progress = self.progress;
        // Who spins waits again soon, most of the time; who slept does not mind the call.
        match progress.mode {
            ProgressMode::Thread => {
                let soon = self.slept.get() || !progress.waiting.is_empty() || !progress.is_polled();
                progress.sleeper.end_driving(soon, || progress.arm());
            }
            ProgressMode::Inline | ProgressMode::Manual => progress.sleeper.end_driving_alone(),
        }
        progress.seat.wake_one();
    }
}

/// Wakes a thread that waits, wherever it sleeps.
struct ThreadWaker {
    thread: Thread,
    woken: AtomicBool,
    /// It sleeps on the descriptors: only the bell wakes it.
    on_descriptors: AtomicBool,
    page: Arc<Page>,
}

impl ThreadWaker {
    fn current(page: &Arc<Page>) -> Arc<Self> {
        Arc::new(Self {
            thread: std::thread::current(),
            woken: AtomicBool::new(false),
            on_descriptors: AtomicBool::new(false),
            page: page.clone(),
        })
    }
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        if self.on_descriptors.load(Ordering::SeqCst) {
            self.page.ring();
        } else {
            self.thread.unpark();
        }
    }
}
