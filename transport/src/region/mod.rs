//! One region of one peer: the contract of puts, gets, signals, atomics and their completion.

mod atomics;
mod checks;
mod flush;
mod lists;
mod post;
mod slices;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::task::Poll;
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use transom_registry::element::{self, Atomic, Dtype, Element, Reduce};
use transom_registry::exposed::{Exposed, Locker};
use transom_registry::header::State;
use transom_registry::{Access, Cause, Error, Failure, Outcome, RemoteRegion, Result, Slice, Stale};

use crate::backend::{Action, Attached, Endpoint, Op, Posted, Source};
use crate::late::Late;
use crate::list::List;
use crate::peer::Peer;
use crate::request::{Flight, Request};
use crate::route::{Route, Routes};
use crate::token::Token;

/// Most parts of a list in one operation of a transport.
pub(crate) const MOST_PARTS: usize = 4096;
/// Bytes that a get into borrowed memory has on their way at once, and in one piece.
const BOUNCE: usize = 1 << 20;
const BOUNCES: usize = 4;

/// One region of one peer: put, get, signal, atomics, accumulate, fence and flush, addressed by byte offset.
///
/// Order and completion are per region of a peer. Puts may land in any order, and the bytes of one in any order, until a
/// [`fence`](Self::fence), a signal or a [`flush`](Self::flush) says otherwise. Borrowed forms return when the buffer may
/// be reused; `_from` and `_into` forms take registered memory, keep it alive, and return a [`Request`].
///
/// Every blocking call returns within the context's deadline, or the one set by
/// [`with_timeout`](Self::with_timeout): one for the whole call, however many pieces it has.
#[derive(Clone)]
pub struct PeerRegion {
    shared: Arc<Shared>,
    timeout: Duration,
}

/// What the handles of one opened region share, and its peer's failure ends.
pub(crate) struct Shared {
    peer: Peer,
    remote: RemoteRegion,
    late: Arc<Late>,
    way: RwLock<Way>,
    transport: String,
    mapped: bool,
    tried: Vec<String>,
    routes: Arc<Routes>,
    index: usize,
}

#[derive(Clone)]
enum Way {
    /// Inside the call, by the mapping; the endpoint is kept for its key.
    Mapped(Exposed, Arc<dyn Endpoint>, u64),
    /// By the endpoint, with this key.
    Posted(Arc<dyn Endpoint>, u64),
    Closed,
}

impl Shared {
    pub(crate) fn close_route(&self) {
        self.routes.close(self.index);
    }

    /// Ends the use of the region and gives its key back.
    pub(crate) fn close(&self) {
        self.close_route();
        let way = std::mem::replace(&mut *self.way.write(), Way::Closed);
        if let Way::Mapped(_, endpoint, key) | Way::Posted(endpoint, key) = way {
            endpoint.detach(key);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if crate::fork::is_child() {
            return;
        }
        self.close_route();
        if let Way::Mapped(_, endpoint, key) | Way::Posted(endpoint, key) = &*self.way.read() {
            endpoint.detach(*key);
        }
    }
}

impl fmt::Debug for PeerRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerRegion")
            .field("peer", &self.shared.peer.incarnation())
            .field("size", &self.size())
            .field("transport", &self.shared.transport)
            .field("mapped", &self.shared.mapped)
            .finish_non_exhaustive()
    }
}

impl PeerRegion {
    pub(crate) fn new(
        peer: &Peer,
        remote: &RemoteRegion,
        endpoint: Arc<dyn Endpoint>,
        attached: Attached,
        tried: Vec<String>,
        routes: &Arc<Routes>,
        index: usize,
    ) -> Result<Self> {
        let transport = endpoint.transport().to_owned();
        let mapped = attached.mapped.is_some();
        let way = match attached.mapped {
            Some(exposed) => {
                if exposed.size() as u64 != remote.size {
                    return Err(Error::Malformed {
                        what: "attached region",
                        why: format!("it has {} bytes, the descriptor says {}", exposed.size(), remote.size),
                    });
                }
                if exposed.kind() != transom_registry::Kind::Device {
                    routes.open(index, &exposed, remote.access, peer.0.context.incarnation())?;
                }
                Way::Mapped(exposed, endpoint, attached.key)
            }
            None => Way::Posted(endpoint, attached.key),
        };
        let shared = Shared {
            peer: peer.clone(),
            remote: remote.clone(),
            late: Arc::default(),
            way: RwLock::new(way),
            transport,
            mapped,
            tried,
            routes: routes.clone(),
            index,
        };
        Ok(Self { shared: Arc::new(shared), timeout: peer.0.context.timeout() })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The same region with another deadline for its blocking calls.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.shared.remote.size
    }

    /// Its descriptor.
    #[must_use]
    pub fn remote(&self) -> &RemoteRegion {
        &self.shared.remote
    }

    /// Its bytes, where they are mapped into this process.
    #[must_use]
    pub fn mapped(&self) -> Option<Exposed> {
        match &*self.shared.way.read() {
            Way::Mapped(exposed, ..) => Some(exposed.clone()),
            _ => None,
        }
    }

    /// Its peer.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.shared.peer
    }

    /// Which way it is reached, and why the better ones are not taken.
    #[must_use]
    pub fn explain(&self) -> String {
        let shared = &self.shared;
        let how = if shared.mapped { " (mapped: inside the call)" } else { "" };
        let state = match (shared.peer.failure(), &*shared.way.read()) {
            (Some(failure), _) => format!(", failed: {failure}"),
            (None, Way::Closed) => ", closed".into(),
            _ => String::new(),
        };
        let not = if shared.tried.is_empty() {
            String::new()
        } else {
            format!("; not {}", shared.tried.join("; not "))
        };
        format!("{}{how}{state}{not}", shared.transport)
    }

    #[inline(always)]
    fn route(&self) -> Option<Route<'_>> {
        self.shared.routes.at(self.shared.index)
    }

    /// Writes `from` at `offset`. Returns when `from` may be reused; a failure after that is told by the next flush.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Access`], [`Error::Stale`], [`Error::Failed`], [`Error::Closed`];
    /// [`Error::Expired`] when the transport takes nothing until the deadline: its outcome says whether a part was sent.
    #[inline]
    pub fn put(&self, offset: u64, from: &[u8]) -> Result<()> {
        if self.route().is_some_and(|route| route.put(offset, from)) {
            Ok(())
        } else {
            self.put_slow(offset, from, None)
        }
    }

    /// Writes `from` at `offset`, then adds to a signal: whoever sees the signal sees these bytes and every earlier put to
    /// this region. `from` may be empty.
    ///
    /// # Errors
    /// As for [`PeerRegion::put`]; [`Error::Invalid`] when there is no such signal.
    #[inline]
    pub fn put_signal(&self, offset: u64, from: &[u8], signal: u32, add: u64) -> Result<()> {
        if let Some(route) = self.route()
            && route.has_signal(signal)
            && route.put(offset, from)
        {
            return self.signal(signal, add);
        }
        self.put_slow(offset, from, Some((signal, add)))
    }

    /// Reads into `into` from `offset`. Returns when the bytes are there.
    ///
    /// # Errors
    /// As for [`PeerRegion::put`].
    #[inline]
    pub fn get(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        if self.route().is_some_and(|route| route.get(offset, into)) {
            Ok(())
        } else {
            self.get_slow(offset, into)
        }
    }

    /// Adds to a signal, after everything before it on this region is delivered.
    ///
    /// # Errors
    /// As for [`PeerRegion::put`]; [`Error::Invalid`] when there is no such signal.
    #[inline]
    pub fn signal(&self, signal: u32, add: u64) -> Result<()> {
        match self.route().and_then(|route| route.signal(signal, add)) {
            Some(false) => Ok(()),
            Some(true) => {
                self.ring();
                Ok(())
            }
            None => self.signal_slow(signal, add),
        }
    }

    /// Wakes who sleeps at the other side, after a signal was added by the route.
    #[cold]
    #[doc(hidden)]
    pub fn ring(&self) {
        if let Way::Mapped(exposed, ..) = &*self.shared.way.read() {
            exposed.bell().ring();
        }
    }

    #[cold]
    #[inline(never)]
    fn put_slow(&self, offset: u64, from: &[u8], signal: Option<(u32, u64)>) -> Result<()> {
        let operation = if signal.is_some() { "put_signal" } else { "put" };
        let way = self.way(operation, Access::WRITE)?;
        self.check_range(operation, offset, from.len() as u64)?;
        self.check_signal(operation, signal)?;
        match way {
            Way::Mapped(exposed, ..) => {
                exposed.write(offset, from)?;
                add_signal(&exposed, signal)
            }
            Way::Posted(endpoint, key) if from.is_empty() => match signal {
                Some(_) => self.post_signal(&endpoint, key, signal),
                None => Ok(()),
            },
            Way::Posted(endpoint, key) => self.pieces(operation, &endpoint, from, |at, piece, last| Op {
                key,
                offset: offset + at,
                action: Action::Put(Source::Borrowed(piece)),
                signal: if last { signal } else { None },
                silent: true,
            }),
            Way::Closed => Err(closed(operation)),
        }
    }

    #[cold]
    #[inline(never)]
    fn signal_slow(&self, signal: u32, add: u64) -> Result<()> {
        const OPERATION: &str = "signal";
        let way = self.way(OPERATION, Access::SIGNAL)?;
        self.check_signal(OPERATION, Some((signal, add)))?;
        match way {
            Way::Mapped(exposed, ..) => add_signal(&exposed, Some((signal, add))),
            Way::Posted(endpoint, key) => self.post_signal(&endpoint, key, Some((signal, add))),
            Way::Closed => Err(closed(OPERATION)),
        }
    }

    fn post_signal(&self, endpoint: &Arc<dyn Endpoint>, key: u64, signal: Option<(u32, u64)>) -> Result<()> {
        let token = Token::late(self.shared.late.clone(), "signal");
        self.post(endpoint, "signal", token, None, || Op {
            key,
            offset: 0,
            action: Action::Signal,
            signal,
            silent: true,
        })
    }

    #[cold]
    #[inline(never)]
    fn get_slow(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        const OPERATION: &str = "get";
        let way = self.way(OPERATION, Access::READ)?;
        self.check_range(OPERATION, offset, into.len() as u64)?;
        match way {
            Way::Mapped(exposed, ..) => exposed.read(offset, into),
            Way::Posted(..) => {
                self.may_wait(OPERATION)?;
                self.get_bounced(offset, into)
            }
            Way::Closed => Err(closed(OPERATION)),
        }
    }
}

fn closed(operation: &'static str) -> Error {
    Error::Closed { operation, what: "region" }
}

fn add_signal(exposed: &Exposed, signal: Option<(u32, u64)>) -> Result<()> {
    signal.map_or(Ok(()), |(id, add)| exposed.signal_add(id, add))
}

/// Refuses two ranges (address, size) that overlap.
fn check_apart(operation: &'static str, a: (usize, usize), b: (usize, usize)) -> Result<()> {
    if a.0 < b.0 + b.1 && b.0 < a.0 + a.1 {
        return Err(Error::invalid(operation, "source and target overlap"));
    }
    Ok(())
}

fn check_writable(operation: &'static str, into: &Slice) -> Result<()> {
    if into.region().exposed().is_writable() {
        Ok(())
    } else {
        Err(Error::Access { operation, needed: Access::WRITE, granted: Access::READ })
    }
}

/// A borrowed call that ends after a part of it was sent is in doubt as a whole.
fn partly(error: Error, sent: bool) -> Error {
    match error {
        Error::Expired { operation, rank, after, detail, .. } if sent => {
            Error::Expired { operation, rank, after, detail, outcome: Some(Outcome::InDoubt) }
        }
        Error::Failed(mut failed) if sent => {
            failed.outcome = Outcome::InDoubt;
            Error::Failed(failed)
        }
        other => other,
    }
}
