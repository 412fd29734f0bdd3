//! How an operation in flight gets back to who waits for it.

use std::sync::Arc;
use std::task::Waker;

use transom_registry::{Cause, Error, Failure, Outcome, Result, Slice};

use crate::late::Late;
use crate::request::Flight;

/// Whoever waits for an operation: completed once, by the transport that carries it. Dropped uncompleted, the operation
/// counts as in doubt.
#[derive(Debug)]
pub struct Token(Option<Waits>, Option<Slice>, Option<Box<Scatter>>);

/// Where bytes go that were received one after the other.
#[derive(Debug)]
pub(crate) struct Scatter {
    /// Where they were received.
    pub(crate) from: Slice,
    /// The (offset, size) pairs in this slice that they are for, each inside of it.
    pub(crate) places: Box<[(u64, u64)]>,
    pub(crate) into: Slice,
}

impl Scatter {
    fn run(&self) -> Result<()> {
        let mut bytes = Vec::new();
        let mut at = 0;
        for &(place, size) in &self.places {
            bytes.resize(size as usize, 0);
            self.from.read(at, &mut bytes)?;
            self.into.write(place as usize, &bytes)?;
            at += size as usize;
        }
        Ok(())
    }
}

#[derive(Debug)]
enum Waits {
    /// Somebody holds a request.
    Flight(Arc<Flight>),
    /// Nobody does: failures are told at the next flush.
    Late(Arc<Late>, &'static str),
}

impl Token {
    pub(crate) fn flight(flight: Arc<Flight>) -> Self {
        Self(Some(Waits::Flight(flight)), None, None)
    }

    pub(crate) fn late(late: Arc<Late>, operation: &'static str) -> Self {
        Self(Some(Waits::Late(late, operation)), None, None)
    }

    /// The same token; what was received is scattered before its outcome is known.
    pub(crate) fn scatter(mut self, scatter: Scatter) -> Self {
        self.2 = Some(Box::new(scatter));
        self
    }

    /// The same token, which keeps this slice until it is completed: so that it is dropped where wakers run.
    #[must_use]
    pub fn keep(mut self, slice: Slice) -> Self {
        self.1 = Some(slice);
        self
    }

    /// The operation's name in errors.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        match &self.0 {
            Some(Waits::Flight(flight)) => flight.operation(),
            Some(Waits::Late(_, operation)) => operation,
            None => "operation",
        }
    }

    /// Gives the outcome.
    pub fn complete(mut self, result: Result<u64>) {
        self.end(result);
    }

    /// Ends an operation that its peer's failure ended.
    pub fn fail(self, outcome: Outcome, failure: &Arc<Failure>) {
        let operation = self.operation();
        self.complete(Err(Error::failed(operation, outcome, failure.clone())));
    }

    /// Takes the token back: nothing was begun.
    pub(crate) fn cancel(mut self) {
        self.0 = None;
    }

    fn end(&mut self, result: Result<u64>) {
        if let Some(waker) = self.settle(result) {
            waker.wake();
        }
    }

    /// Makes the outcome known; gives back who is to be woken.
    fn settle(&mut self, result: Result<u64>) -> Option<Waker> {
        match self.0.take() {
            Some(Waits::Flight(flight)) => {
                let scattered = self.2.as_ref().map_or(Ok(()), |scatter| scatter.run());
                flight.settle(result.and_then(|value| scattered.map(|()| value)))
            }
            Some(Waits::Late(late, _)) => {
                if let Err(error) = result {
                    late.record(error);
                }
                None
            }
            None => None,
        }
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if self.0.is_some() {
            let operation = self.operation();
            let failure = Failure::new(None, Cause::ConnectionLost, "the transport gave the operation up");
            self.end(Err(Error::failed(operation, Outcome::InDoubt, failure)));
        }
    }
}

/// An operation that has ended, on its way to who waits for it.
#[derive(Debug)]
pub struct Completion {
    waker: Option<Waker>,
    _slices: (Option<Slice>, Option<Box<Scatter>>),
}

impl Completion {
    /// The operation has ended with this outcome, or the value of an atomic: known from here on. Transports make these in
    /// the order of their operations, where no other thread can find an operation gone whose outcome is not known yet:
    /// a flush that it overtakes would not tell of it.
    #[must_use]
    pub fn new(mut token: Token, result: Result<u64>) -> Self {
        let waker = token.settle(result);
        Self { waker, _slices: (token.1.take(), token.2.take()) }
    }

    /// Wakes who waits. Wakers run, and slices are dropped, here: outside of the driver's seat.
    pub fn deliver(self) {
        if let Some(waker) = self.waker {
            waker.wake();
        }
    }
}
