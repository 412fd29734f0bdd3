//! Time, as a context sees it: the machine's, or a simulation's.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use parking_lot::RwLock;

/// A clock that a simulation moves.
pub trait Virtual: fmt::Debug + Send + Sync {
    /// Its time.
    fn now(&self) -> Instant;
    /// A future that is ready at `until`.
    fn sleep(&self, until: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// Where a context gets its time from.
#[derive(Debug, Clone)]
pub enum Clock {
    /// The machine's monotonic clock; timers run in the driver.
    Machine(Timers),
    /// A simulation's.
    Virtual(Arc<dyn Virtual>),
}

/// Timers of a driver, which may end before those who wait for them.
#[derive(Debug, Clone)]
pub struct Timers {
    tasks: tokio::runtime::Handle,
    /// A timer must not be looked at once the driver has ended: held for reading while one is.
    stopped: Arc<RwLock<bool>>,
}

impl Timers {
    pub(crate) fn new(tasks: tokio::runtime::Handle) -> Self {
        Self { tasks, stopped: Arc::default() }
    }

    /// No timer is looked at from now on.
    fn stop(&self) {
        *self.stopped.write() = true;
    }
}

struct Timer {
    sleep: Pin<Box<tokio::time::Sleep>>,
    stopped: Arc<RwLock<bool>>,
}

impl Future for Timer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<()> {
        let stopped = self.stopped.clone();
        let stopped = stopped.read();
        if *stopped { Poll::Ready(()) } else { self.sleep.as_mut().poll(cx) }
    }
}

impl Clock {
    /// Ends its timers: those who sleep are woken. Called before the driver ends.
    pub(crate) fn stop(&self) {
        if let Self::Machine(timers) = self {
            timers.stop();
        }
    }

    /// Whether a thread that blocks would stop this clock.
    #[must_use]
    pub fn is_virtual(&self) -> bool {
        matches!(self, Self::Virtual(_))
    }

    /// Its time.
    #[must_use]
    pub fn now(&self) -> Instant {
        match self {
            Self::Machine(_) => Instant::now(),
            Self::Virtual(clock) => clock.now(),
        }
    }

    /// A future that is ready after this time, or when the context is closed.
    pub fn sleep(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        match self {
            Self::Machine(timers) => {
                let _entered = timers.tasks.enter();
                let sleep = Box::pin(tokio::time::sleep(time));
                Box::pin(Timer { sleep, stopped: timers.stopped.clone() })
            }
            Self::Virtual(clock) => {
                // A century is as good as for ever.
                let century = Duration::from_secs(100 * 365 * 86_400);
                clock.sleep(clock.now() + time.min(century))
            }
        }
    }

    /// Awaits `future` at most this long. `None`: it is not ready.
    ///
    /// # Cancel safety
    /// That of `future`.
    pub async fn timeout<F: Future>(&self, time: Duration, future: F) -> Option<F::Output> {
        let mut future = std::pin::pin!(future);
        let mut timer = None;
        std::future::poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            // The timer is made only when the future is not ready at once.
            let timer = timer.get_or_insert_with(|| self.sleep(time));
            timer.as_mut().poll(cx).map(|()| None)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_end_with_their_driver_and_never_panic() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let clock = Clock::Machine(Timers::new(runtime.handle().clone()));
        let long = Duration::from_secs(3600);
        let mut task = std::task::Context::from_waker(std::task::Waker::noop());
        let (mut looked_at, mut fresh) = (clock.sleep(long), clock.sleep(long));
        assert!(looked_at.as_mut().poll(&mut task).is_pending());
        clock.stop();
        runtime.shutdown_background();
        assert!(looked_at.as_mut().poll(&mut task).is_ready());
        assert!(fresh.as_mut().poll(&mut task).is_ready());
        assert!(clock.sleep(long).as_mut().poll(&mut task).is_ready());
        let mut timeout = std::pin::pin!(clock.timeout(long, std::future::pending::<()>()));
        assert!(matches!(timeout.as_mut().poll(&mut task), Poll::Ready(None)));
    }
}
