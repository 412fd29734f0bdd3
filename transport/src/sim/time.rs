//! The simulation's clock: it moves when nobody has anything left to do.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::clock::Virtual;

/// The clock of one fabric, in time since it was made.
#[derive(Debug)]
pub(super) struct Time {
    base: Instant,
    state: Mutex<State>,
    /// For the timers that are made of it.
    me: std::sync::Weak<Self>,
}

#[derive(Debug, Default)]
struct State {
    now: Duration,
    next: u64,
    timers: BTreeMap<(Duration, u64), Waker>,
}

impl Time {
    pub(super) fn new() -> Arc<Self> {
        Arc::new_cyclic(|me| Self { base: Instant::now(), state: Mutex::default(), me: me.clone() })
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.state.lock().now
    }

    /// When the next timer is due.
    pub(super) fn next_timer(&self) -> Option<Duration> {
        self.state.lock().timers.keys().next().map(|(at, _)| *at)
    }

    /// Moves to `to`, never back.
    pub(super) fn advance(&self, to: Duration) {
        let mut state = self.state.lock();
        state.now = state.now.max(to);
    }

    /// Wakes who waits for a time that has come.
    pub(super) fn wake_due(&self) {
        let mut state = self.state.lock();
        let now = state.now;
        let later = state.timers.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut state.timers, later);
        drop(state);
        for waker in due.into_values() {
            waker.wake();
        }
    }

    /// A future that is ready after this time.
    pub(super) fn pass(&self, time: Duration) -> Timer {
        Timer { time: self.me.clone(), until: self.elapsed() + time, id: None }
    }
}

impl Virtual for Time {
    fn now(&self) -> Instant {
        self.base + self.elapsed()
    }

    fn sleep(&self, until: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let until = until.saturating_duration_since(self.base);
        Box::pin(Timer { time: self.me.clone(), until, id: None })
    }
}

/// Ready when its time has come; takes itself off when it is dropped.
#[derive(Debug)]
pub(super) struct Timer {
    time: std::sync::Weak<Time>,
    until: Duration,
    id: Option<u64>,
}

impl Future for Timer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        // A clock that is gone never moves again.
        let Some(time) = self.time.upgrade() else { return Poll::Pending };
        let mut state = time.state.lock();
        if state.now >= self.until {
            return Poll::Ready(());
        }
        let id = *self.id.get_or_insert_with(|| {
            state.next += 1;
            state.next
        });
        state.timers.insert((self.until, id), cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let (Some(time), Some(id)) = (self.time.upgrade(), self.id) {
            time.state.lock().timers.remove(&(self.until, id));
        }
    }
}
