//! A thin wrapper over another transport, whose n-th call fails: for every n.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use transom_transport::backend::{Attached, Caps, Endpoint, Op, Pending, Posted, Transport};
use transom_transport::token::{Completion, Token};
use transom_transport::{Cause, Error, Failure, Incarnation, Outcome, RemoteRegion, Result};

/// How the call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// At once: nothing was applied.
    NotApplied,
    /// At once: any part may have been applied, and none was.
    InDoubt,
    /// Its token is dropped: the transport gave it up.
    GivenUp,
    /// The queue says that it is full, for this call and the next ones.
    Full,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::NotApplied, Self::InDoubt, Self::GivenUp, Self::Full];
}

/// Which call fails, and how. Shared by the wrapper and its connections.
#[derive(Debug)]
pub struct Plan {
    /// Counted from 1; 0 fails none.
    at: u64,
    mode: Mode,
    calls: AtomicU64,
}

impl Plan {
    /// The call with this number fails in this way.
    #[must_use]
    pub fn new(at: u64, mode: Mode) -> Arc<Self> {
        Arc::new(Self { at, mode, calls: AtomicU64::new(0) })
    }

    /// Whether the call has come.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.calls.load(Ordering::Relaxed) >= self.at
    }

    fn fails(&self) -> Option<Mode> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        // A full queue stays full for a while.
        let last = if self.mode == Mode::Full { self.at + 5 } else { self.at };
        (self.at > 0 && call >= self.at && call <= last).then_some(self.mode)
    }

    fn check(&self, operation: &'static str) -> Result<()> {
        match self.fails() {
            Some(_) => Err(Error::failed(operation, Outcome::NotApplied, injected())),
            None => Ok(()),
        }
    }
}

fn injected() -> Arc<Failure> {
    Failure::new(None, Cause::ConnectionLost, "the test made it fail")
}

/// The wrapper.
#[derive(Debug)]
pub struct Countdown {
    inner: Arc<dyn Transport>,
    plan: Arc<Plan>,
}

impl Countdown {
    /// Wraps a transport.
    pub fn wrap(inner: Arc<dyn Transport>, plan: Arc<Plan>) -> Arc<dyn Transport> {
        Arc::new(Self { inner, plan })
    }
}

impl Transport for Countdown {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    fn addresses(&self) -> Vec<String> {
        self.inner.addresses()
    }

    fn connect(
        &self,
        address: &str,
        peer: Option<Incarnation>,
        deadline: Instant,
    ) -> Pending<Arc<dyn Endpoint>> {
        if let Err(error) = self.plan.check("connect") {
            return Box::pin(std::future::ready(Err(error)));
        }
        let connecting = self.inner.connect(address, peer, deadline);
        let plan = self.plan.clone();
        Box::pin(async move {
            let inner = connecting.await?;
            Ok(Arc::new(Connection { inner, plan }) as Arc<dyn Endpoint>)
        })
    }

    fn needs_poll(&self) -> bool {
        self.inner.needs_poll()
    }

    fn poll(&self, done: &mut Vec<Completion>) -> usize {
        self.inner.poll(done)
    }

    fn event_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.inner.event_fd()
    }

    fn arm(&self) -> Result<bool> {
        self.inner.arm()
    }

    fn tick(&self, now: Instant) -> Option<Instant> {
        self.inner.tick(now)
    }

    fn close(&self) {
        self.inner.close();
    }
}

#[derive(Debug)]
struct Connection {
    inner: Arc<dyn Endpoint>,
    plan: Arc<Plan>,
}

impl Endpoint for Connection {
    fn peer(&self) -> Incarnation {
        self.inner.peer()
    }

    fn transport(&self) -> &str {
        self.inner.transport()
    }

    fn attach(&self, region: &RemoteRegion, deadline: Instant) -> Pending<Attached> {
        match self.plan.check("open") {
            Ok(()) => self.inner.attach(region, deadline),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn detach(&self, key: u64) {
        self.inner.detach(key);
    }

    fn post(&self, op: Op<'_>, token: Token) -> Posted {
        let error = |outcome| Err(Error::failed(token.operation(), outcome, injected()));
        match self.plan.fails() {
            None => self.inner.post(op, token),
            Some(Mode::NotApplied) => {
                let error = error(Outcome::NotApplied);
                Posted::Done(token, error)
            }
            Some(Mode::InDoubt) => {
                let error = error(Outcome::InDoubt);
                Posted::Done(token, error)
            }
            Some(Mode::GivenUp) => Posted::Pending,
            Some(Mode::Full) => Posted::Full(token),
        }
    }

    fn failure(&self) -> Option<Arc<Failure>> {
        self.inner.failure()
    }

    fn close(&self) {
        self.inner.close();
    }
}
