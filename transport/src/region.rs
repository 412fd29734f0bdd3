//! One region of one peer: the contract of puts, gets, signals, atomics and their completion.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::task::Poll;
use std::time::Duration;

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
/// [`with_timeout`](Self::with_timeout).
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

    /// Orders: everything before it on this region is delivered before anything after it. Never waits.
    ///
    /// # Errors
    /// [`Error::Failed`], [`Error::Closed`], [`Error::Forked`].
    #[inline]
    pub fn fence(&self) -> Result<()> {
        if self.route().is_some_and(Route::flush) {
            return Ok(());
        }
        if let Way::Posted(endpoint, key) = self.way("fence", Access::NONE)? {
            endpoint.fence(key);
        }
        Ok(())
    }

    /// Waits until the way to the peer takes another operation: at once, unless its queue is full.
    ///
    /// For async code under a virtual clock, where a call that meets a full queue is [`Error::Blocking`] with nothing
    /// applied: await this, and call again.
    ///
    /// # Errors
    /// [`Error::Failed`], [`Error::Closed`], [`Error::Forked`]; [`Error::Expired`] when it stays full until the deadline.
    ///
    /// # Cancel safety
    /// Dropping the future ends the wait, and nothing else.
    pub async fn ready(&self) -> Result<()> {
        const OPERATION: &str = "ready";
        let Way::Posted(endpoint, _) = self.way(OPERATION, Access::NONE)? else { return Ok(()) };
        let room =
            std::future::poll_fn(
                |cx| {
                    if endpoint.room(cx.waker()) { Poll::Ready(()) } else { Poll::Pending }
                },
            );
        match self.shared.peer.0.context.clock().timeout(self.timeout, room).await {
            Some(()) => self.way(OPERATION, Access::NONE).map(drop),
            None => Err(Error::Expired {
                operation: OPERATION,
                rank: None,
                after: self.timeout,
                detail: "the queue to the peer stayed full".into(),
                outcome: None,
            }),
        }
    }

    /// Waits until everything that was begun on this region before, by any thread, is delivered.
    ///
    /// # Errors
    /// The first late failure since the last flush, with the count; [`Error::Failed`]; [`Error::Expired`]: flush again.
    #[inline]
    pub fn flush(&self) -> Result<()> {
        if self.route().is_some_and(Route::flush) { Ok(()) } else { self.flush_slow() }
    }

    /// Adds to the 64-bit word at `offset` (a multiple of 8) and returns what was there.
    ///
    /// # Errors
    /// As for [`PeerRegion::put`]; [`Error::Misaligned`].
    #[inline]
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64> {
        match self.route().and_then(|route| route.word64(offset)) {
            Some(word) => Ok(word.fetch_add(add, Ordering::SeqCst)),
            None => self.atomic(Atomic::Add, 8, offset, add, 0),
        }
    }

    /// Stores `value` in the 64-bit word at `offset` and returns what was there.
    ///
    /// # Errors
    /// As for [`PeerRegion::fetch_add`].
    #[inline]
    pub fn swap(&self, offset: u64, value: u64) -> Result<u64> {
        self.atomic(Atomic::Swap, 8, offset, value, 0)
    }

    /// Stores `value` in the 64-bit word at `offset` if it is `expected`, and returns what was there.
    ///
    /// # Errors
    /// As for [`PeerRegion::fetch_add`].
    #[inline]
    pub fn compare_swap(&self, offset: u64, expected: u64, value: u64) -> Result<u64> {
        match self.route().and_then(|route| route.word64(offset)) {
            Some(word) => Ok(word
                .compare_exchange(expected, value, Ordering::SeqCst, Ordering::SeqCst)
                .unwrap_or_else(|current| current)),
            None => self.atomic(Atomic::CompareSwap, 8, offset, value, expected),
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

    /// Any fetching atomic on a word of `width` (4 or 8) bytes at `offset`, a multiple of the width. `compare` is for
    /// [`Atomic::CompareSwap`]. Returns what was there.
    ///
    /// # Errors
    /// As for [`PeerRegion::put`]; [`Error::Misaligned`]; [`Error::Invalid`] for another width.
    pub fn atomic(&self, atomic: Atomic, width: u8, offset: u64, operand: u64, compare: u64) -> Result<u64> {
        self.may_wait("atomic")?;
        self.wait(self.atomic_request(atomic, width, offset, operand, compare)?)
    }

    /// The async form of [`PeerRegion::atomic`]: the request resolves with what was there.
    ///
    /// # Errors
    /// As there.
    pub fn atomic_request(
        &self,
        atomic: Atomic,
        width: u8,
        offset: u64,
        operand: u64,
        compare: u64,
    ) -> Result<Request> {
        const OPERATION: &str = "atomic";
        let way = self.way(OPERATION, Access::ATOMIC)?;
        if width != 4 && width != 8 {
            return Err(Error::invalid(
                OPERATION,
                format!("words of {width} bytes are not known, 4 and 8 are"),
            ));
        }
        if width == 4 && (operand > u32::MAX.into() || compare > u32::MAX.into()) {
            return Err(Error::invalid(OPERATION, format!("operand {operand:#x} does not fit in 4 bytes")));
        }
        if !offset.is_multiple_of(width.into()) {
            return Err(Error::Misaligned { operation: OPERATION, offset, align: width.into() });
        }
        self.check_range(OPERATION, offset, width.into())?;
        match way {
            Way::Mapped(exposed, ..) => {
                self.resolved(OPERATION, exposed.atomic(atomic, width, offset, operand, compare))
            }
            Way::Posted(endpoint, key) => self.request(&endpoint, OPERATION, || Op {
                key,
                offset,
                action: Action::Atomic { atomic, width, operand, compare },
                signal: None,
                silent: false,
            }),
            Way::Closed => Err(closed(OPERATION)),
        }
    }

    /// Reduces elements into those at `offset` (a multiple of their size): each element atomically against every other
    /// accumulate on the window. Returns when `from` may be reused.
    ///
    /// # Errors
    /// As for [`PeerRegion::put`]; [`Error::Misaligned`]; [`Error::Torn`] when a part was left half done by a process that
    /// died: this operation is complete, what was there before is in doubt.
    #[inline]
    pub fn accumulate<T: Element>(&self, offset: u64, from: &[T], reduce: Reduce) -> Result<()> {
        self.accumulate_bytes(offset, element::as_bytes(from), T::DTYPE, reduce)
    }

    /// As [`PeerRegion::accumulate`], with the elements as bytes.
    ///
    /// # Errors
    /// As there; [`Error::Invalid`] when `from` is no whole number of elements.
    #[inline]
    pub fn accumulate_bytes(&self, offset: u64, from: &[u8], dtype: Dtype, reduce: Reduce) -> Result<()> {
        match self.route().map_or(0, |route| route.accumulate(dtype, reduce, offset, from)) {
            done if done > 0 && done == from.len() => Ok(()),
            done => self.accumulate_rest(offset, from, dtype, reduce, done),
        }
    }

    /// Does what an accumulate by the route left to do, having done `done` bytes.
    ///
    /// # Errors
    /// As for [`PeerRegion::accumulate_bytes`].
    #[cold]
    #[inline(never)]
    #[doc(hidden)]
    pub fn accumulate_rest(
        &self,
        offset: u64,
        from: &[u8],
        dtype: Dtype,
        reduce: Reduce,
        done: usize,
    ) -> Result<()> {
        const OPERATION: &str = "accumulate";
        // Begun, so it is ended, whatever has become of the region since: an operation is done or is not.
        if done > 0
            && let Some(exposed) = self.shared.routes.kept(self.shared.index)
        {
            let (offset, rest) = (offset + done as u64, from.get(done..).unwrap_or_default());
            return exposed.accumulate_bytes(dtype, reduce, offset, rest, self.locker());
        }
        let way = self.way(OPERATION, Access::ATOMIC)?;
        self.check_elements(offset, from.len(), dtype)?;
        if from.is_empty() {
            return Ok(());
        }
        match way {
            Way::Mapped(exposed, ..) => {
                // SAFETY: `from` is valid, and apart from exposed memory, into which no reference exists.
                unsafe { exposed.accumulate(dtype, reduce, offset, from.as_ptr(), from.len(), self.locker()) }
            }
            Way::Posted(endpoint, key) => self.pieces(OPERATION, &endpoint, from, |at, piece, _| Op {
                key,
                offset: offset + at,
                action: Action::Accumulate { dtype, reduce, source: Source::Borrowed(piece) },
                signal: None,
                silent: true,
            }),
            Way::Closed => Err(closed(OPERATION)),
        }
    }

    /// As [`PeerRegion::accumulate`], from registered memory: the request resolves when it is delivered.
    ///
    /// # Errors
    /// As there.
    pub fn accumulate_from(&self, offset: u64, from: Slice, dtype: Dtype, reduce: Reduce) -> Result<Request> {
        const OPERATION: &str = "accumulate";
        let way = self.way(OPERATION, Access::ATOMIC)?;
        self.check_elements(offset, from.size(), dtype)?;
        self.check_not_own(OPERATION, &from, &[(offset, from.size() as u64)])?;
        match way {
            Way::Mapped(exposed, ..) => {
                self.check_apart(OPERATION, &exposed, offset, &from)?;
                // SAFETY: the slice is valid, and apart from the target, as checked above.
                let done = unsafe {
                    exposed.accumulate(dtype, reduce, offset, from.as_ptr(), from.size(), self.locker())
                };
                self.resolved(OPERATION, done.map(|()| 0))
            }
            Way::Posted(..) if from.size() == 0 => self.resolved(OPERATION, Ok(0)),
            Way::Posted(endpoint, key) => self.request(&endpoint, OPERATION, || Op {
                key,
                offset,
                action: Action::Accumulate { dtype, reduce, source: Source::Owned(from.clone()) },
                signal: None,
                silent: false,
            }),
            Way::Closed => Err(closed(OPERATION)),
        }
    }

    /// Writes registered memory at `offset` without a copy on this side. The request resolves when it is delivered.
    ///
    /// # Errors
    /// As for [`PeerRegion::put`]; [`Error::Invalid`] when source and target overlap.
    pub fn put_from(&self, offset: u64, from: Slice) -> Result<Request> {
        self.put_slice(offset, from, None)
    }

    /// As [`PeerRegion::put_from`], then adds to a signal, as [`PeerRegion::put_signal`].
    ///
    /// # Errors
    /// As there.
    pub fn put_signal_from(&self, offset: u64, from: Slice, signal: u32, add: u64) -> Result<Request> {
        self.put_slice(offset, from, Some((signal, add)))
    }

    fn put_slice(&self, offset: u64, from: Slice, signal: Option<(u32, u64)>) -> Result<Request> {
        let operation = if signal.is_some() { "put_signal" } else { "put" };
        let way = self.way(operation, Access::WRITE)?;
        self.check_range(operation, offset, from.size() as u64)?;
        self.check_signal(operation, signal)?;
        self.check_not_own(operation, &from, &[(offset, from.size() as u64)])?;
        match way {
            Way::Mapped(exposed, ..) => {
                self.check_apart(operation, &exposed, offset, &from)?;
                // SAFETY: the slice is valid, and apart from the target, as checked above.
                let done = unsafe { exposed.write_from(offset, from.as_ptr(), from.size(), from.size()) };
                let done = done.and_then(|()| add_signal(&exposed, signal));
                self.resolved(operation, done.map(|()| 0))
            }
            Way::Posted(_, _) if from.size() == 0 && signal.is_none() => self.resolved(operation, Ok(0)),
            Way::Posted(endpoint, key) => self.request(&endpoint, operation, || Op {
                key,
                offset,
                action: if from.size() == 0 {
                    Action::Signal
                } else {
                    Action::Put(Source::Owned(from.clone()))
                },
                signal,
                silent: false,
            }),
            Way::Closed => Err(closed(operation)),
        }
    }

    /// Reads from `offset` into registered memory. The request resolves when the bytes are there.
    ///
    /// # Errors
    /// As for [`PeerRegion::put_from`].
    pub fn get_into(&self, offset: u64, into: Slice) -> Result<Request> {
        const OPERATION: &str = "get";
        let way = self.way(OPERATION, Access::READ)?;
        self.check_range(OPERATION, offset, into.size() as u64)?;
        check_writable(OPERATION, &into)?;
        self.check_not_own(OPERATION, &into, &[(offset, into.size() as u64)])?;
        match way {
            Way::Mapped(exposed, ..) => {
                self.check_apart(OPERATION, &exposed, offset, &into)?;
                // SAFETY: the slice is valid for writes (checked), and apart from the source, as checked above.
                let done = unsafe { exposed.read_into(offset, into.as_ptr(), into.size(), into.size()) };
                self.resolved(OPERATION, done.map(|()| 0))
            }
            Way::Posted(..) if into.size() == 0 => self.resolved(OPERATION, Ok(0)),
            Way::Posted(endpoint, key) => self.request(&endpoint, OPERATION, || Op {
                key,
                offset,
                action: Action::Get(into.clone()),
                signal: None,
                silent: false,
            }),
            Way::Closed => Err(closed(OPERATION)),
        }
    }

    /// Writes consecutive bytes of `from` to the parts of a list. Returns when `from` may be reused.
    ///
    /// # Errors
    /// As for [`PeerRegion::put`]; [`Error::Invalid`] when `from` has not the size of the list.
    pub fn put_list(&self, list: &List, from: &[u8]) -> Result<()> {
        const OPERATION: &str = "put_list";
        let way = self.way(OPERATION, Access::WRITE)?;
        self.check_list(OPERATION, list, from.len())?;
        match way {
            Way::Mapped(exposed, ..) => {
                // SAFETY: a list knows its end and its size, and `from` has this size (checked); it is valid, and apart from
                // exposed memory, into which no reference exists.
                unsafe { exposed.write_parts(list.parts(), list.end(), from.as_ptr(), from.len()) }
            }
            Way::Posted(endpoint, key) => {
                let mut sent = false;
                list.pieces(Source::MOST_BORROWED as u64, MOST_PARTS, |parts, at, size| {
                    let bytes = &from[at as usize..(at + size) as usize];
                    let token = Token::late(self.shared.late.clone(), OPERATION);
                    let posted = self.post(&endpoint, OPERATION, token, || Op {
                        key,
                        offset: 0,
                        action: Action::PutList(parts, Source::Borrowed(bytes)),
                        signal: None,
                        silent: true,
                    });
                    let result = posted.map_err(|e| partly(e, sent));
                    sent = true;
                    result
                })
            }
            Way::Closed => Err(closed(OPERATION)),
        }
    }

    /// As [`PeerRegion::put_list`], from registered memory: the request resolves when all parts are delivered.
    ///
    /// # Errors
    /// As there.
    pub fn put_list_from(&self, list: &List, from: Slice) -> Result<Request> {
        const OPERATION: &str = "put_list";
        let way = self.way(OPERATION, Access::WRITE)?;
        self.check_list(OPERATION, list, from.size())?;
        self.check_not_own(OPERATION, &from, list.parts())?;
        match way {
            Way::Mapped(exposed, ..) => {
                self.check_list_apart(OPERATION, &exposed, list, &from)?;
                // SAFETY: a list knows its end and its size, and the slice has this size and is apart (checked).
                let done =
                    unsafe { exposed.write_parts(list.parts(), list.end(), from.as_ptr(), from.size()) };
                self.resolved(OPERATION, done.map(|()| 0))
            }
            Way::Posted(endpoint, key) => {
                self.list_request(OPERATION, &endpoint, list, &from, |parts, slice| Op {
                    key,
                    offset: 0,
                    action: Action::PutList(parts, Source::Owned(slice)),
                    signal: None,
                    silent: false,
                })
            }
            Way::Closed => Err(closed(OPERATION)),
        }
    }

    /// Reads the parts of a list into consecutive bytes of `into`. Returns when the bytes are there.
    ///
    /// # Errors
    /// As for [`PeerRegion::get`]; [`Error::Invalid`] when `into` has not the size of the list.
    pub fn get_list(&self, list: &List, into: &mut [u8]) -> Result<()> {
        const OPERATION: &str = "get_list";
        let way = self.way(OPERATION, Access::READ)?;
        self.check_list(OPERATION, list, into.len())?;
        match way {
            Way::Mapped(exposed, ..) => {
                // SAFETY: as in `put_list`.
                unsafe { exposed.read_parts(list.parts(), list.end(), into.as_mut_ptr(), into.len()) }
            }
            Way::Posted(..) => {
                self.may_wait(OPERATION)?;
                let bounce = self.shared.peer.0.context.bounce(into.len())?;
                let slice = bounce.slice(0..into.len())?;
                self.wait(self.get_list_into(list, slice.clone())?)?;
                slice.read(0, into)?;
                self.shared.peer.0.context.give_bounce(bounce);
                Ok(())
            }
            Way::Closed => Err(closed(OPERATION)),
        }
    }

    /// As [`PeerRegion::get_list`], into registered memory: the request resolves when the bytes are there.
    ///
    /// # Errors
    /// As there.
    pub fn get_list_into(&self, list: &List, into: Slice) -> Result<Request> {
        const OPERATION: &str = "get_list";
        let way = self.way(OPERATION, Access::READ)?;
        self.check_list(OPERATION, list, into.size())?;
        check_writable(OPERATION, &into)?;
        self.check_not_own(OPERATION, &into, list.parts())?;
        match way {
            Way::Mapped(exposed, ..) => {
                self.check_list_apart(OPERATION, &exposed, list, &into)?;
                // SAFETY: as in `put_list_from`, and the slice may be written (checked).
                let done =
                    unsafe { exposed.read_parts(list.parts(), list.end(), into.as_ptr(), into.size()) };
                self.resolved(OPERATION, done.map(|()| 0))
            }
            Way::Posted(endpoint, key) => {
                self.list_request(OPERATION, &endpoint, list, &into, |parts, slice| Op {
                    key,
                    offset: 0,
                    action: Action::GetList(parts, slice),
                    signal: None,
                    silent: false,
                })
            }
            Way::Closed => Err(closed(OPERATION)),
        }
    }

    /// The async form of [`PeerRegion::flush`], under the same deadline.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// Dropping the future ends the wait, and nothing else.
    pub async fn flush_async(&self) -> Result<()> {
        let request = match self.begin_flush()? {
            Some(request) => request,
            None => return Ok(()),
        };
        let waited = self.shared.peer.0.context.clock().timeout(self.timeout, request).await;
        self.end_flush(waited)
    }

    /// Ends the use of the region: flushes, then gives the key back. Later calls are [`Error::Closed`].
    ///
    /// # Errors
    /// As for [`PeerRegion::flush`]; the region is closed in any case.
    pub fn close(&self) -> Result<()> {
        crate::fork::check("close")?;
        let flushed =
            if matches!(*self.shared.way.read(), Way::Closed) { return Ok(()) } else { self.flush() };
        self.shared.close();
        flushed
    }

    // What the calls above share.

    /// The way, after everything that does not depend on the operation was checked.
    fn way(&self, operation: &'static str, needed: Access) -> Result<Way> {
        crate::fork::check(operation)?;
        let way = self.shared.way.read().clone();
        if matches!(way, Way::Closed) {
            return Err(closed(operation));
        }
        if let Some(failure) = self.shared.peer.failure() {
            return Err(Error::failed(operation, Outcome::NotApplied, failure));
        }
        self.shared.late.check(operation)?;
        let granted = self.shared.remote.access;
        if !granted.contains(needed) {
            return Err(Error::Access { operation, needed, granted });
        }
        if let Way::Mapped(exposed, ..) = &way {
            let state = exposed.header()?.state().load(Ordering::Acquire);
            if state == State::Gone as u32 {
                return Err(Error::Stale {
                    operation,
                    what: Stale::Generation,
                    held: self.shared.remote.generation.into(),
                    current: 0,
                });
            }
            if state != State::Live as u32 {
                let failure = Failure::new(
                    Some(self.shared.peer.incarnation()),
                    Cause::Exited(None),
                    "its region is marked dead",
                );
                return Err(Error::failed(operation, Outcome::NotApplied, failure));
            }
        }
        Ok(way)
    }

    fn check_range(&self, operation: &'static str, offset: u64, size: u64) -> Result<()> {
        let limit = self.size();
        if size <= limit && offset <= limit - size {
            Ok(())
        } else {
            Err(Error::OutOfRange { operation, offset, size, limit })
        }
    }

    fn check_signal(&self, operation: &'static str, signal: Option<(u32, u64)>) -> Result<()> {
        let Some((id, _)) = signal else { return Ok(()) };
        let remote = &self.shared.remote;
        if !remote.access.contains(Access::SIGNAL) {
            return Err(Error::Access { operation, needed: Access::SIGNAL, granted: remote.access });
        }
        if id >= remote.signals {
            return Err(Error::invalid(
                operation,
                format!("signal {id} does not exist, the region has {}", remote.signals),
            ));
        }
        Ok(())
    }

    fn check_elements(&self, offset: u64, size: usize, dtype: Dtype) -> Result<()> {
        const OPERATION: &str = "accumulate";
        self.check_range(OPERATION, offset, size as u64)?;
        let width = dtype.size();
        if !offset.is_multiple_of(width as u64) {
            return Err(Error::Misaligned { operation: OPERATION, offset, align: width as u64 });
        }
        if !size.is_multiple_of(width) {
            return Err(Error::invalid(
                OPERATION,
                format!("{size} bytes are not a whole number of {dtype} elements"),
            ));
        }
        Ok(())
    }

    fn check_list(&self, operation: &'static str, list: &List, size: usize) -> Result<()> {
        self.check_range(operation, 0, list.end())?;
        if list.size() != size as u64 {
            return Err(Error::invalid(
                operation,
                format!("{size} bytes are given for a list of {}", list.size()),
            ));
        }
        Ok(())
    }

    /// Refuses an operation on a region of our own whose two sides overlap in it, over any transport.
    fn check_not_own(&self, operation: &'static str, slice: &Slice, parts: &[(u64, u64)]) -> Result<()> {
        let remote = &self.shared.remote;
        if !slice.region().is_named_by(remote) {
            return Ok(());
        }
        for &(offset, size) in parts {
            let theirs = (remote.offset as usize + offset as usize, size as usize);
            check_apart(operation, (slice.offset(), slice.size()), theirs)?;
        }
        Ok(())
    }

    /// Refuses an operation whose two sides overlap in other ways: seen where both are in this address space.
    fn check_apart(
        &self,
        operation: &'static str,
        target: &Exposed,
        offset: u64,
        slice: &Slice,
    ) -> Result<()> {
        let theirs = target.as_ptr().addr() + offset as usize;
        check_apart(operation, (slice.as_ptr().addr(), slice.size()), (theirs, slice.size()))
    }

    /// As [`check_apart`](Self::check_apart), for each part of a list: before the first byte moves.
    fn check_list_apart(
        &self,
        operation: &'static str,
        target: &Exposed,
        list: &List,
        slice: &Slice,
    ) -> Result<()> {
        let (ours, theirs) = (slice.as_ptr().addr(), target.as_ptr().addr());
        // Mostly the whole of one is apart from the whole of the other.
        if check_apart(operation, (ours, slice.size()), (theirs, list.end() as usize)).is_ok() {
            return Ok(());
        }
        for &(offset, size) in list.parts() {
            check_apart(operation, (ours, slice.size()), (theirs + offset as usize, size as usize))?;
        }
        Ok(())
    }

    fn locker(&self) -> Locker {
        Locker { incarnation: self.shared.peer.0.context.incarnation(), patience: self.timeout }
    }

    /// Refuses to begin what would be waited for where nothing may block.
    fn may_wait(&self, operation: &'static str) -> Result<()> {
        if self.shared.mapped {
            return Ok(());
        }
        self.shared.peer.0.context.progress.check_may_block(operation)
    }

    fn wait(&self, request: Request) -> Result<u64> {
        match request.wait_timeout(self.timeout) {
            Err(Error::Expired { operation, rank, after, .. }) => Err(Error::Expired {
                operation,
                rank,
                after,
                detail: "a borrowed call cannot be awaited again".into(),
                outcome: Some(Outcome::InDoubt),
            }),
            other => other,
        }
    }

    /// A request for an operation that ended inside the call. A failure is told at once, so that none is late.
    fn resolved(&self, operation: &'static str, result: Result<u64>) -> Result<Request> {
        let flight = Flight::new(operation, 1, &self.shared.late);
        flight.complete(Ok(result?));
        Ok(Request::new(flight, self.shared.peer.0.context.progress.clone()))
    }

    /// Posts one operation whose outcome a request tells.
    fn request<'a>(
        &self,
        endpoint: &Arc<dyn Endpoint>,
        operation: &'static str,
        make: impl FnMut() -> Op<'a>,
    ) -> Result<Request> {
        let flight = Flight::new(operation, 1, &self.shared.late);
        self.post_flight(endpoint, &flight, make)?;
        Ok(Request::new(flight, self.shared.peer.0.context.progress.clone()))
    }

    fn post_flight<'a>(
        &self,
        endpoint: &Arc<dyn Endpoint>,
        flight: &Arc<Flight>,
        mut make: impl FnMut() -> Op<'a>,
    ) -> Result<()> {
        let operation = flight.operation();
        let mut token = Some(Token::flight(flight.clone()));
        let posted = self.until_posted(operation, || match endpoint.post(make(), token.take()?) {
            Posted::Done(token, result) => {
                token.complete(result);
                Some(Ok(()))
            }
            Posted::Pending => Some(Ok(())),
            Posted::Full(back) => {
                token = Some(back);
                None
            }
        });
        if let Some(token) = token {
            token.cancel();
        }
        posted
    }

    /// Posts one operation that nobody awaits.
    fn post<'a>(
        &self,
        endpoint: &Arc<dyn Endpoint>,
        operation: &'static str,
        token: Token,
        mut make: impl FnMut() -> Op<'a>,
    ) -> Result<()> {
        let mut token = Some(token);
        let posted = self.until_posted(operation, || match endpoint.post(make(), token.take()?) {
            Posted::Done(token, result) => {
                token.cancel();
                Some(result.map(drop))
            }
            Posted::Pending => Some(Ok(())),
            Posted::Full(back) => {
                token = Some(back);
                None
            }
        });
        if let Some(token) = token {
            token.cancel();
        }
        posted
    }

    fn until_posted(&self, operation: &'static str, post: impl FnMut() -> Option<Result<()>>) -> Result<()> {
        let progress = &self.shared.peer.0.context.progress;
        match progress.block_until(operation, self.timeout, post)? {
            Some(result) => result,
            None => Err(Error::Expired {
                operation,
                rank: None,
                after: self.timeout,
                detail: "the queue to the peer stayed full".into(),
                outcome: Some(Outcome::NotApplied),
            }),
        }
    }

    /// Posts borrowed bytes in pieces that nobody awaits.
    fn pieces<'a>(
        &self,
        operation: &'static str,
        endpoint: &Arc<dyn Endpoint>,
        from: &'a [u8],
        mut make: impl FnMut(u64, &'a [u8], bool) -> Op<'a>,
    ) -> Result<()> {
        let count = from.len().div_ceil(Source::MOST_BORROWED);
        for (index, piece) in from.chunks(Source::MOST_BORROWED).enumerate() {
            let at = (index * Source::MOST_BORROWED) as u64;
            let token = Token::late(self.shared.late.clone(), operation);
            self.post(endpoint, operation, token, || make(at, piece, index + 1 == count))
                .map_err(|e| partly(e, index > 0))?;
        }
        Ok(())
    }

    fn list_request(
        &self,
        operation: &'static str,
        endpoint: &Arc<dyn Endpoint>,
        list: &List,
        slice: &Slice,
        make: impl Fn(&[(u64, u64)], Slice) -> Op<'_>,
    ) -> Result<Request> {
        // One part of the flight is ours, until every piece is posted.
        let flight = Flight::new(operation, 1, &self.shared.late);
        let mut begun = false;
        let posted = list.pieces(BOUNCE as u64, MOST_PARTS, |parts, at, size| {
            let piece = slice.slice(at as usize..(at + size) as usize)?;
            flight.add_part();
            self.post_flight(endpoint, &flight, || make(parts, piece.clone())).inspect_err(|e| {
                flight.complete(Err(e.clone()));
            })?;
            begun = true;
            Ok(())
        });
        // Nothing was begun: the call says so, and no request does.
        if !begun && let Err(error) = posted {
            return Err(error);
        }
        flight.complete(posted.map(|()| 0));
        Ok(Request::new(flight, self.shared.peer.0.context.progress.clone()))
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
        self.post(endpoint, "signal", token, || Op {
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

    /// A get through memory of ours, so that a reply that comes after the deadline finds no buffer of the caller's.
    fn get_bounced(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let context = &self.shared.peer.0.context;
        let mut flying = std::collections::VecDeque::with_capacity(BOUNCES);
        let mut chunks = into.chunks_mut(BOUNCE);
        let mut at = offset;
        loop {
            if flying.len() < BOUNCES
                && let Some(chunk) = chunks.next()
            {
                let bounce = context.bounce(chunk.len())?;
                let request = self.get_into(at, bounce.slice(0..chunk.len())?)?;
                at += chunk.len() as u64;
                flying.push_back((request, bounce, chunk));
                continue;
            }
            let Some((request, bounce, chunk)) = flying.pop_front() else { return Ok(()) };
            self.wait(request)?;
            bounce.read(0, chunk)?;
            context.give_bounce(bounce);
        }
    }

    #[cold]
    #[inline(never)]
    fn flush_slow(&self) -> Result<()> {
        self.may_wait("flush")?;
        let Some(request) = self.begin_flush()? else { return Ok(()) };
        let context = &self.shared.peer.0.context;
        let waited = context.progress.block_on("flush", self.timeout, request)?;
        self.end_flush(waited)
    }

    /// `None`: all is delivered already.
    fn begin_flush(&self) -> Result<Option<Request>> {
        const OPERATION: &str = "flush";
        crate::fork::check(OPERATION)?;
        let way = self.shared.way.read().clone();
        match way {
            Way::Closed => Err(closed(OPERATION)),
            Way::Mapped(..) => {
                fence(Ordering::SeqCst);
                match self.shared.peer.failure() {
                    Some(failure) => Err(self
                        .shared
                        .late
                        .take()
                        .unwrap_or_else(|| Error::failed(OPERATION, Outcome::InDoubt, failure))),
                    None => self.shared.late.take().map_or(Ok(None), Err),
                }
            }
            Way::Posted(endpoint, key) => {
                if let Some(failure) = self.shared.peer.failure() {
                    return Err(self
                        .shared
                        .late
                        .take()
                        .unwrap_or_else(|| Error::failed(OPERATION, Outcome::InDoubt, failure)));
                }
                self.request(&endpoint, OPERATION, || Op {
                    key,
                    offset: 0,
                    action: Action::Flush,
                    signal: None,
                    silent: false,
                })
                .map(Some)
            }
        }
    }

    fn end_flush(&self, waited: Option<Result<u64>>) -> Result<()> {
        let Some(flushed) = waited else {
            self.shared.peer.0.context.progress.check_open("flush")?;
            return Err(Error::Expired {
                operation: "flush",
                rank: None,
                after: self.timeout,
                detail: "not everything is delivered; flush again".into(),
                outcome: None,
            });
        };
        let Some(first) = self.shared.late.take() else { return flushed.map(drop) };
        // Told: the target may take operations again.
        if let Way::Posted(endpoint, key) = &*self.shared.way.read()
            && endpoint.failure().is_none()
        {
            let token = Token::late(self.shared.late.clone(), "resume");
            let op = Op { key: *key, offset: 0, action: Action::Resume, signal: None, silent: false };
            match endpoint.post(op, token) {
                Posted::Done(token, result) => token.complete(result),
                Posted::Pending => {}
                // The next flush finds the refusals, and tries again.
                Posted::Full(token) => token.cancel(),
            }
        }
        Err(first)
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
