//! Time, as a context sees it: the machine's, or a simulation's.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

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
    Machine(tokio::runtime::Handle),
    /// A simulation's.
    Virtual(Arc<dyn Virtual>),
}

impl Clock {
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

    /// A future that is ready after this time.
    pub fn sleep(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        match self {
            Self::Machine(tasks) => {
                let _entered = tasks.enter();
                Box::pin(tokio::time::sleep(time))
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
