//! Operations in flight, and what waits for them.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use transom_registry::{Error, Result};

use crate::late::Late;
use crate::progress::Progress;
use crate::sync::Mutex;

/// The slot that a transport completes and a request looks at.
pub(crate) struct Flight {
    operation: &'static str,
    /// Who is told of a failure that nobody asks for.
    late: Arc<Late>,
    state: Mutex<State>,
}

struct State {
    /// How many parts are still on their way: a large operation is split.
    parts: usize,
    result: Result<u64>,
    waker: Option<Waker>,
    /// The request was dropped.
    abandoned: bool,
    /// The outcome was seen.
    told: bool,
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flight").field("operation", &self.operation).finish_non_exhaustive()
    }
}

impl Flight {
    /// A flight of `parts` parts, each of which is completed once.
    pub(crate) fn new(operation: &'static str, parts: usize, late: &Arc<Late>) -> Arc<Self> {
        let state = State { parts, result: Ok(0), waker: None, abandoned: false, told: false };
        Arc::new(Self { operation, late: late.clone(), state: Mutex::new(state) })
    }

    /// Adds a part that will be completed too.
    pub(crate) fn add_part(&self) {
        self.state.lock().parts += 1;
    }

    fn abandon(&self) {
        let mut state = self.state.lock();
        state.abandoned = true;
        let failed = if state.parts == 0 && !state.told { state.result.clone().err() } else { None };
        drop(state);
        if let Some(error) = failed {
            self.late.record(error);
        }
    }

    pub(crate) fn operation(&self) -> &'static str {
        self.operation
    }

    /// Completes one part, and wakes who waits.
    pub(crate) fn complete(&self, result: Result<u64>) {
        if let Some(waker) = self.settle(result) {
            waker.wake();
        }
    }

    /// Completes one part; gives back who is to be woken. The flight's outcome is the worst of its parts: the first error
    /// stays.
    pub(crate) fn settle(&self, result: Result<u64>) -> Option<Waker> {
        let mut state = self.state.lock();
        state.parts = state.parts.saturating_sub(1);
        match result {
            Ok(value) => {
                if let Ok(kept) = &mut state.result {
                    *kept = value;
                }
            }
            Err(error) => {
                if state.result.is_ok() {
                    state.result = Err(error);
                }
            }
        }
        let over = state.parts == 0;
        let waker = if over { state.waker.take() } else { None };
        let failed = if over && state.abandoned { state.result.clone().err() } else { None };
        drop(state);
        if let Some(error) = failed {
            self.late.record(error);
        }
        waker
    }

    fn is_over(&self) -> bool {
        self.state.lock().parts == 0
    }

    pub(crate) fn result(&self) -> Option<Result<u64>> {
        let mut state = self.state.lock();
        if state.parts > 0 {
            return None;
        }
        state.told = true;
        Some(state.result.clone())
    }

    fn poll(&self, waker: &Waker) -> Poll<Result<u64>> {
        let mut state = self.state.lock();
        if state.parts == 0 {
            state.told = true;
            return Poll::Ready(state.result.clone());
        }
        match &mut state.waker {
            Some(old) => old.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        Poll::Pending
    }
}

/// An operation in flight: await it, or [`wait`](Request::wait).
///
/// It resolves when the operation is delivered (puts), when the bytes are in the slice (gets), or with the value that
/// was there before (atomics; 0 for all others).
///
/// # Cancel safety
/// Dropping a request does not end the operation: its slices stay alive until the transfer has stopped, and a failure is
/// told at the next flush of that region. Dropping the future and awaiting the request again loses nothing.
#[must_use = "a dropped request tells of failures only at the next flush"]
pub struct Request {
    flight: Arc<Flight>,
    progress: Arc<Progress>,
    rank: Option<u32>,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("operation", &self.flight.operation)
            .field("done", &self.flight.is_over())
            .finish_non_exhaustive()
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.flight.abandon();
    }
}

impl Request {
    pub(crate) fn new(flight: Arc<Flight>, progress: Arc<Progress>) -> Self {
        Self { flight, progress, rank: None }
    }

    /// The same request, whose errors name this rank.
    pub fn at_rank(mut self, rank: u32) -> Self {
        self.rank = Some(rank);
        self
    }

    fn name(&self, result: Result<u64>) -> Result<u64> {
        match self.rank {
            Some(rank) => result.map_err(|e| e.at_rank(rank)),
            None => result,
        }
    }

    /// Whether it has ended, well or not.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.progress.drive_in_passing();
        self.flight.is_over()
    }

    /// Waits under the context's default deadline.
    ///
    /// # Errors
    /// The operation's; [`Error::Expired`] at the deadline: wait again, or drop it.
    pub fn wait(&self) -> Result<u64> {
        self.wait_timeout(self.progress.default_timeout())
    }

    /// Waits at most this long.
    ///
    /// # Errors
    /// As for [`Request::wait`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<u64> {
        let waited = self.progress.block_on(
            self.flight.operation,
            timeout,
            Landing { flight: &self.flight, progress: &self.progress },
        )?;
        match waited {
            Some(result) => self.name(result),
            None => self.name(Err(Error::Expired {
                operation: self.flight.operation,
                rank: None,
                after: timeout,
                detail: "the request can be awaited again".into(),
                outcome: None,
            })),
        }
    }
}

impl Future for Request {
    type Output = Result<u64>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let landing = Landing { flight: &self.flight, progress: &self.progress };
        std::pin::pin!(landing).poll(cx).map(|result| self.name(result))
    }
}

/// The flight as a future that drives the transports when it is looked at.
struct Landing<'a> {
    flight: &'a Arc<Flight>,
    progress: &'a Progress,
}

impl Future for Landing<'_> {
    type Output = Result<u64>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        if let Some(result) = self.flight.result() {
            return Poll::Ready(result);
        }
        self.progress.drive_in_passing();
        self.flight.poll(cx.waker())
    }
}

#[cfg(all(test, not(transom_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_flight_of_parts_ends_with_its_last_part_and_keeps_the_first_error() {
        let late = Arc::new(Late::default());
        let flight = Flight::new("put", 3, &late);
        flight.complete(Ok(0));
        assert!(flight.result().is_none());
        flight.complete(Err(Error::invalid("put", "first")));
        flight.complete(Err(Error::invalid("put", "second")));
        assert!(flight.result().unwrap().unwrap_err().to_string().contains("first"));
    }
    #[test]
    fn a_failure_that_nobody_asked_for_is_told_late_and_only_then() {
        for asked in [false, true] {
            for dropped_first in [false, true] {
                let late = Arc::new(Late::default());
                let flight = Flight::new("put", 1, &late);
                if dropped_first && !asked {
                    flight.abandon();
                }
                flight.complete(Err(Error::invalid("put", "lost")));
                if asked {
                    flight.result().unwrap().unwrap_err();
                }
                flight.abandon();
                assert_eq!(late.take().is_some(), !asked);
            }
        }
    }
}

#[cfg(all(test, transom_loom))]
mod loom_tests {
    use super::*;

    #[test]
    fn loom_a_request_is_woken_by_its_last_part_and_a_dropped_one_is_told_late() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let late = Arc::new(Late::default());
            let flight = Flight::new("put", 2, &late);
            let parts: Vec<_> = [Ok(1), Err(Error::invalid("put", "lost"))]
                .into_iter()
                .map(|result| {
                    let flight = flight.clone();
                    loom::thread::spawn(move || flight.complete(result))
                })
                .collect();
            // Polled once, then dropped: the failure must not get lost between the two.
            let waker = std::task::Waker::noop();
            let seen = flight.poll(waker).is_ready();
            flight.abandon();
            for part in parts {
                part.join().unwrap();
            }
            assert_eq!(late.take().is_some(), !seen);
        });
    }

    #[test]
    fn loom_who_awaits_a_request_is_woken() {
        loom::model(|| {
            let late = Arc::new(Late::default());
            let flight = Flight::new("put", 1, &late);
            let other = flight.clone();
            let part = loom::thread::spawn(move || other.complete(Ok(7)));
            // A lost wake-up is a deadlock, which loom reports.
            let result = loom::future::block_on(std::future::poll_fn(|cx| flight.poll(cx.waker())));
            assert_eq!(result.unwrap(), 7);
            part.join().unwrap();
        });
    }
}
