//! A connection to one process, over whichever transports reach it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use transom_registry::{Error, Failure, Incarnation, RemoteRegion, Result};

use crate::backend::{Attached, Endpoint, Transport};
use crate::context::Inner as Context;
use crate::region::{PeerRegion, Shared};
use crate::route::Routes;

/// A process that this one has connected to. Its regions are opened by their descriptors.
///
/// A handle: clones are the same peer. Which transport reaches a region is found by trying, best first: see
/// [`PeerRegion::explain`].
#[derive(Clone)]
pub struct Peer(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) context: Arc<Context>,
    incarnation: Incarnation,
    addresses: Mutex<Vec<String>>,
    endpoints: Mutex<Vec<Arc<dyn Endpoint>>>,
    failure: OnceLock<Arc<Failure>>,
    regions: Mutex<Vec<Weak<Shared>>>,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("incarnation", &self.0.incarnation)
            .field("failure", &self.0.failure.get())
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // In a forked child the connections are the parent's.
        if crate::fork::is_child() {
            return;
        }
        for endpoint in self.endpoints.lock().drain(..) {
            endpoint.close();
        }
    }
}

impl Peer {
    pub(crate) fn new(context: Arc<Context>, incarnation: Incarnation, addresses: Vec<String>) -> Self {
        Self(Arc::new(Inner {
            context,
            incarnation,
            addresses: Mutex::new(addresses),
            endpoints: Mutex::default(),
            failure: OnceLock::new(),
            regions: Mutex::default(),
        }))
    }

    /// Which life of which process it is.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.0.incarnation
    }

    /// Why it, or the way to it, failed; `None` while it lives.
    #[must_use]
    pub fn failure(&self) -> Option<Arc<Failure>> {
        if let Some(failure) = self.0.failure.get() {
            return Some(failure.clone());
        }
        // Operations may have ended before the context was told: from the first that tells, none goes on.
        let endpoints = self.0.endpoints.lock();
        let first = endpoints.first()?.failure()?;
        let all = endpoints.iter().all(|endpoint| endpoint.failure().is_some());
        drop(endpoints);
        if !all {
            return None;
        }
        self.fail(&first);
        Some(first)
    }

    /// Opens a region of the peer. Returns when it can be reached.
    ///
    /// # Errors
    /// [`Error::Stale`] for another incarnation, a freed region or another epoch; [`Error::Access`] for rights that were
    /// not granted; [`Error::Unreachable`] with what was tried; [`Error::Expired`]; [`Error::Failed`] when the peer
    /// failed before.
    pub fn open(&self, region: &RemoteRegion) -> Result<PeerRegion> {
        self.0.context.block("open", self.0.context.timeout(), self.open_async(region))?
    }

    /// The async form of [`Peer::open`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// Dropping the future gives the attempt up; a connection that was made stays for the next one.
    pub async fn open_async(&self, region: &RemoteRegion) -> Result<PeerRegion> {
        self.open_in(region, &Routes::new(1)?, 0).await
    }

    /// As [`Peer::open_async`], with the route in a table of the caller's: a window's, one for each rank.
    ///
    /// # Errors
    /// As for [`Peer::open`].
    pub async fn open_in(
        &self,
        region: &RemoteRegion,
        routes: &Arc<Routes>,
        index: usize,
    ) -> Result<PeerRegion> {
        const OPERATION: &str = "open";
        crate::fork::check(OPERATION)?;
        self.0.context.progress.check_open(OPERATION)?;
        if region.incarnation != self.0.incarnation {
            return Err(Error::Stale {
                operation: OPERATION,
                what: transom_registry::Stale::Incarnation,
                held: region.incarnation.as_u64(),
                current: self.0.incarnation.as_u64(),
            });
        }
        if let Some(failure) = self.failure() {
            return Err(Error::failed(OPERATION, transom_registry::Outcome::NotApplied, failure));
        }
        let deadline = self.0.context.clock().now() + self.0.context.timeout();
        let mut tried = Vec::new();
        for transport in self.0.context.progress.transports() {
            let endpoint = match self.endpoint(&transport, &region.addresses, deadline).await {
                Ok(Some(endpoint)) => endpoint,
                Ok(None) => continue,
                Err(error) if is_final(&error) => return Err(error),
                Err(error) => {
                    tried.push(format!("{}: {error}", transport.name()));
                    continue;
                }
            };
            match self.attach(&endpoint, region, deadline).await {
                Ok(attached) => {
                    let opened = PeerRegion::new(self, region, endpoint, attached, tried, routes, index)?;
                    let mut regions = self.0.regions.lock();
                    regions.retain(|r| r.strong_count() > 0);
                    regions.push(Arc::downgrade(opened.shared()));
                    drop(regions);
                    // Who failed in between has told only the regions that it saw.
                    if self.failure().is_some() {
                        opened.shared().close_route();
                    }
                    if let Err(closed) = self.0.context.progress.check_open(OPERATION) {
                        opened.shared().close();
                        return Err(closed);
                    }
                    return Ok(opened);
                }
                Err(error @ (Error::Unusable { .. } | Error::Expired { .. } | Error::Io { .. })) => {
                    tried.push(format!("{}: {error}", transport.name()));
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Unreachable {
            peer: format!("incarnation {}", self.0.incarnation),
            tried: tried.join("; "),
        })
    }

    async fn attach(
        &self,
        endpoint: &Arc<dyn Endpoint>,
        region: &RemoteRegion,
        deadline: Instant,
    ) -> Result<Attached> {
        let clock = self.0.context.clock();
        let left = deadline.saturating_duration_since(clock.now());
        clock.timeout(left, endpoint.attach(region, deadline)).await.unwrap_or_else(|| {
            Err(Error::Expired {
                operation: "open",
                rank: None,
                after: self.0.context.timeout(),
                detail: "the peer does not answer".into(),
                outcome: None,
            })
        })
    }

    /// The endpoint on this transport, connected if there is none yet. `None`: the peer has no address on it.
    async fn endpoint(
        &self,
        transport: &Arc<dyn Transport>,
        addresses: &[String],
        deadline: Instant,
    ) -> Result<Option<Arc<dyn Endpoint>>> {
        let existing = |inner: &Inner| {
            inner
                .endpoints
                .lock()
                .iter()
                .find(|e| e.transport() == transport.name() && e.failure().is_none())
                .cloned()
        };
        if let Some(endpoint) = existing(&self.0) {
            return Ok(Some(endpoint));
        }
        let mut all = addresses.to_vec();
        all.extend(self.0.addresses.lock().iter().filter(|a| !addresses.contains(a)).cloned());
        let endpoint = connect(&self.0.context, transport, &all, Some(self.0.incarnation), deadline).await?;
        if let Some(endpoint) = &endpoint {
            self.adopt(endpoint.clone());
        }
        Ok(endpoint)
    }

    pub(crate) fn adopt(&self, endpoint: Arc<dyn Endpoint>) {
        self.0.endpoints.lock().push(endpoint);
    }

    /// The context is closed: the use of every region of the peer ends.
    pub(crate) fn close(&self) {
        let regions: Vec<_> = self.0.regions.lock().iter().filter_map(Weak::upgrade).collect();
        for region in regions {
            region.close();
        }
    }

    /// The peer failed: everything to it ends.
    pub(crate) fn fail(&self, failure: &Arc<Failure>) {
        if self.0.failure.set(failure.clone()).is_err() {
            return;
        }
        let regions: Vec<_> = self.0.regions.lock().iter().filter_map(Weak::upgrade).collect();
        for region in regions {
            region.close_route();
        }
    }
}

/// Whether an error says enough to try no other transport.
fn is_final(error: &Error) -> bool {
    matches!(error, Error::Stale { .. } | Error::Auth { .. })
}

/// How long an address is waited for before the next is tried beside it.
const HEAD_START: Duration = Duration::from_millis(250);

/// Connects over one transport to the first of the peer's addresses on it that answers. `None`: it has none.
///
/// Each address has all of the time. The next one is begun when the one before it has failed, or says nothing for a while:
/// a dead first address costs a moment and no share of the deadline.
pub(crate) async fn connect(
    context: &Context,
    transport: &Arc<dyn Transport>,
    addresses: &[String],
    incarnation: Option<Incarnation>,
    deadline: Instant,
) -> Result<Option<Arc<dyn Endpoint>>> {
    let is_own = |a: &&String| a.split_once(':').is_some_and(|(name, _)| name == transport.name());
    let mut own = addresses.iter().filter(is_own);
    let clock = context.clock();
    let left = deadline.saturating_duration_since(clock.now());
    let (mut attempts, mut silent) = (Vec::new(), String::new());
    let (mut last, mut definite, mut pause) = (None, None, None);
    let any = std::future::poll_fn(|cx| {
        loop {
            let waited = pause.as_mut().is_none_or(|pause: &mut Pin<Box<dyn Future<Output = ()> + Send>>| {
                pause.as_mut().poll(cx).is_ready()
            });
            let mut begun = false;
            if (attempts.is_empty() || waited)
                && let Some(address) = own.next()
            {
                attempts.push((address, transport.connect(address, incarnation, deadline)));
                let time = clock.sleep(HEAD_START);
                pause = Some(time);
                begun = true;
            }
            let mut found = None;
            let before = attempts.len();
            attempts.retain_mut(|(_, attempt)| match attempt.as_mut().poll(cx) {
                Poll::Ready(Ok(endpoint)) => {
                    found.get_or_insert(endpoint);
                    false
                }
                Poll::Ready(Err(error)) => {
                    // Somebody else is there. The address may be one that several hosts have: the peer may be at another.
                    let kept = if is_final(&error) { &mut definite } else { &mut last };
                    kept.get_or_insert(error);
                    false
                }
                Poll::Pending => true,
            });
            if found.is_some() {
                return Poll::Ready(found);
            }
            let failed = attempts.len() < before;
            if failed {
                pause = None;
            }
            if attempts.is_empty() && !begun && !failed {
                return Poll::Ready(None);
            }
            if !begun && !failed {
                silent = attempts.iter().map(|(address, _)| address.as_str()).collect::<Vec<_>>().join(", ");
                return Poll::Pending;
            }
        }
    });
    match clock.timeout(left, any).await {
        Some(Some(endpoint)) => return Ok(Some(endpoint)),
        Some(None) => {}
        None => last = last.or_else(|| Some(expired(left, &silent))),
    }
    match definite.or(last) {
        Some(error) => Err(error),
        None => Ok(None),
    }
}

fn expired(after: Duration, address: &str) -> Error {
    Error::Expired {
        operation: "connect",
        rank: None,
        after,
        detail: format!("{address} does not answer"),
        outcome: None,
    }
}
