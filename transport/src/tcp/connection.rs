//! One connection: operations go out, operations of the peer are applied, and its silence is noticed.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::epoll::{self, EventData, EventFlags};
use tokio::sync::oneshot;
use transom_registry::{Cause, Error, Failure, Incarnation, Outcome, RemoteRegion, Result, Slice};

use super::control::{Attach, encode_parts};
use super::flights::{Expects, Flights};
use super::frame::{self, Header, Opcode, flag};
use super::receive::{End, Incoming, Sender, Turn};
use super::send::{From, Lane, Parts, Queue, Transfer};
use super::serve::{Reply, Sink, Target};
use super::socket::Socket;
use crate::backend::{Action, Attached, Endpoint, Host, Op, Pending, Posted, Source};
use crate::handshake::Session;
use crate::token::{Completion, Token};

/// Most bytes of borrowed sources that wait to be sent.
const MOST_COPIED: usize = 1 << 20;
/// Registered memory of at most this size is copied at once.
const SMALL: usize = 16 << 10;
/// Most bytes of a list in one operation.
const MOST_LIST: usize = 16 << 20;
/// Bytes of a get that a queue with room takes.
const MOST_PIECE: u64 = 1 << 20;
/// Applied requests that are acknowledged without being asked for.
const MOST_OWED: u64 = 64;
/// Received bytes that are acknowledged without being asked for.
const MOST_OWED_BYTES: usize = 1 << 20;
/// Replies that wait to be sent, beyond which the peer breaks its own limits.
const MOST_REPLIES: usize = 1 << 17;
/// How often something is sent at least.
const PING: Duration = Duration::from_millis(250);
/// How long a peer may say nothing.
const SILENCE: Duration = Duration::from_secs(2);
/// How recently the kernel of a frozen process has acknowledged something,
const RECENT: Duration = Duration::from_millis(1000);
/// or how long, in milliseconds, it went on to do so after the process fell silent: of a stopped process with a full
/// window it is asked after 0.2, 0.6 and 1.4 s only, and it does not answer twice within half a second.
const OUTLIVED: u64 = 600;
/// How often in a row something is sent again, unanswered, to a host that hears nothing.
const AGAIN: u8 = 3;

/// What a connection needs of its transport.
#[derive(Debug)]
pub(crate) struct Around {
    pub(crate) host: Host,
    pub(crate) epoll: OwnedFd,
    pub(crate) began: Instant,
    /// A connection has failed and waits to be taken away.
    pub(crate) fallen: AtomicBool,
}

/// A connection to one process.
#[derive(Debug)]
pub(crate) struct Connection {
    around: Arc<Around>,
    socket: Arc<Socket>,
    /// What its events are known by.
    id: u64,
    peer: Incarnation,
    /// The address of the other end, for messages.
    remote: String,
    out: Mutex<Out>,
    incoming: Mutex<Incoming>,
    failure: OnceLock<Arc<Failure>>,
    /// When bytes came last, in milliseconds, as far as ticks have looked.
    heard: AtomicU64,
    /// Bytes came since the last tick.
    fresh: AtomicBool,
    /// Something waits to be written.
    unsent: AtomicBool,
}

#[derive(Debug)]
struct Out {
    queue: Queue,
    flights: Flights,
    /// Endpoints that use it.
    uses: usize,
    said_idle: bool,
    peer_idle: bool,
    /// Whether the epoll has the socket.
    watched: bool,
    /// Whether it looks for room to write.
    armed: bool,
    acked: u64,
    received: usize,
    /// Ticks since writing failed.
    broken: u32,
    last_write: u64,
    last_use: u64,
    over: Option<Arc<Failure>>,
    /// The last request whose acknowledgement was asked for.
    asked: u64,
    /// Who waits for room.
    waiting: Vec<Waker>,
}

impl Out {
    fn interest(&self) -> EventFlags {
        if self.armed { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN }
    }
}

/// What a failed connection leaves behind.
#[derive(Debug)]
pub(crate) struct Remains {
    pub(crate) failure: Arc<Failure>,
    /// Nobody is to be told: both sides had no use for it.
    pub(crate) quiet: bool,
    pub(crate) grants: Vec<transom_registry::Grant>,
}

impl Connection {
    pub(crate) fn new(
        around: &Arc<Around>,
        stream: std::net::TcpStream,
        session: &Session,
        peer: Incarnation,
        id: u64,
        crc: bool,
    ) -> Result<Arc<Self>> {
        let remote = stream.peer_addr().map_or_else(|_| "?".into(), |a| a.to_string());
        let socket = Arc::new(Socket::new(stream)?);
        let word = |key: &[u8; 32]| u32::from_le_bytes([key[0], key[1], key[2], key[3]]);
        let out = Out {
            queue: Queue::new(socket.clone(), word(&session.send_key), crc),
            flights: Flights::default(),
            uses: 0,
            said_idle: false,
            peer_idle: false,
            watched: false,
            armed: false,
            acked: 0,
            received: 0,
            broken: 0,
            last_write: 0,
            last_use: 0,
            over: None,
            asked: 0,
            waiting: Vec::new(),
        };
        let connection = Arc::new(Self {
            around: around.clone(),
            socket,
            id,
            peer,
            remote,
            out: Mutex::new(out),
            incoming: Mutex::new(Incoming::new(
                word(&session.receive_key),
                Target::new(&around.host.registry),
            )),
            failure: OnceLock::new(),
            heard: AtomicU64::new(0),
            fresh: AtomicBool::new(false),
            unsent: AtomicBool::new(false),
        });
        connection.hear();
        Ok(connection)
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn peer(&self) -> Incarnation {
        self.peer
    }

    pub(crate) fn failure(&self) -> Option<&Arc<Failure>> {
        self.failure.get()
    }

    /// A new endpoint of it, if it can be used.
    pub(crate) fn take_up(self: &Arc<Self>) -> Option<Link> {
        let mut out = self.out.lock();
        if out.over.is_some() || out.said_idle || self.failure.get().is_some() {
            return None;
        }
        out.uses += 1;
        Some(Link { connection: self.clone(), closed: AtomicBool::new(false) })
    }

    fn now(&self) -> u64 {
        self.around.began.elapsed().as_millis() as u64
    }

    fn hear(&self) {
        self.heard.store(self.now(), Ordering::Relaxed);
    }

    /// Ends the connection; who waits is told at the next poll.
    pub(crate) fn fail(&self, cause: Cause, observed: impl Into<String>) {
        let observed = format!("{} (tcp to {})", observed.into(), self.remote);
        if self.failure.set(Failure::new(Some(self.peer), cause, observed)).is_ok() {
            self.around.fallen.store(true, Ordering::Release);
            (self.around.host.kick)();
        }
    }

    /// Moves what can be moved. Returns how much there was to do.
    pub(crate) fn poll(&self, done: &mut Vec<Completion>) -> usize {
        if self.failure.get().is_some() {
            return 0;
        }
        let mut incoming = self.incoming.lock();
        let mut turn = Turn::default();
        let result = incoming.turn(&self.socket, &mut Told { connection: self }, &mut turn);
        let dropped = incoming.target.dropped();
        drop(incoming);
        let mut moved = turn.moved;
        if turn.moved > 0 || self.unsent.load(Ordering::Relaxed) {
            if turn.moved > 0 {
                self.fresh.store(true, Ordering::Relaxed);
            }
            let mut out = self.out.lock();
            if turn.ack > out.queue.last() {
                let wrong = format!("it acknowledges request {} of {}", turn.ack, out.queue.last());
                drop(out);
                self.fail(Cause::ProtocolError(wrong), "");
                return moved + 1;
            }
            moved += self.settle(&mut out, &turn, done);
            let woken = if out.has_room() && out.flights.has_room_for_get(MOST_PIECE) {
                std::mem::take(&mut out.waiting)
            } else {
                Vec::new()
            };
            drop(out);
            woken.into_iter().for_each(Waker::wake);
        }
        if !dropped.is_empty()
            && let Some(tasks) = &self.around.host.tasks
        {
            tasks.spawn(async move { drop(dropped) });
        }
        if let Err(end) = result {
            self.ended(end);
            moved += 1;
        }
        moved
    }

    /// After a turn: acknowledgements of both sides, and what waits to be written.
    fn settle(&self, out: &mut Out, turn: &Turn, done: &mut Vec<Completion>) -> usize {
        let before = done.len();
        out.acked = out.acked.max(turn.ack);
        let mut unwanted = Vec::new();
        let acked = out.acked;
        out.flights.acknowledge(acked, done, &mut unwanted);
        for handle in unwanted {
            out.queue.frame(Lane::Requests, Header { handle, ..Header::new(Opcode::Detach) }, [&[], &[]]);
        }
        if turn.moved > 0 {
            out.queue.set_applied(turn.applied);
            out.received += turn.moved;
            if turn.ack_now || out.queue.owed() >= MOST_OWED || out.received >= MOST_OWED_BYTES {
                out.received = 0;
                out.queue.acknowledge();
            }
        }
        let mut moved = done.len() - before;
        if !out.queue.is_empty() {
            moved += out.queue.flush();
        }
        self.watch(out);
        if out.said_idle && out.peer_idle && out.flights.is_empty() && out.queue.is_empty() {
            self.fail(Cause::ConnectionLost, "neither side needed it any longer");
        }
        moved
    }

    /// Has the epoll look for room to write as long as something waits.
    fn watch(&self, out: &mut Out) {
        let wanted = !out.queue.is_empty();
        self.unsent.store(wanted, Ordering::Relaxed);
        if wanted != out.armed {
            out.armed = wanted;
            if out.watched {
                // The descriptors are ours and open: it cannot fail.
                let _ = epoll::modify(
                    &self.around.epoll,
                    &self.socket,
                    EventData::new_u64(self.id),
                    out.interest(),
                );
            }
        }
    }

    /// Puts the socket into the epoll, or takes it off. Off it, what arrives wakes nobody, and costs the sender nothing
    /// for waking: for as long as somebody polls all the time.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn set_watched(&self, watched: bool) -> Result<()> {
        let mut out = self.out.lock();
        if out.watched == watched || watched && out.over.is_some() {
            return Ok(());
        }
        out.watched = watched;
        if watched {
            epoll::add(&self.around.epoll, &self.socket, EventData::new_u64(self.id), out.interest())
        } else {
            epoll::delete(&self.around.epoll, self.socket.as_fd())
        }
        .map_err(|e| Error::io("watch a connection", e))
    }

    fn ended(&self, end: End) {
        match end {
            End::Closed => {
                self.fail(Cause::ConnectionLost, "the stream ended without a goodbye: the process died")
            }
            End::Left => self.fail(Cause::Left, "it said goodbye"),
            End::Broken(why) => self.fail(Cause::ProtocolError(why), "the connection was closed"),
            End::Io(errno) if errno == rustix::io::Errno::TIMEDOUT.raw_os_error() => self.fail_silent(),
            End::Io(errno) => {
                let error = std::io::Error::from_raw_os_error(errno);
                let cause = match error.kind() {
                    std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe => {
                        Cause::ConnectionLost
                    }
                    std::io::ErrorKind::HostUnreachable | std::io::ErrorKind::NetworkUnreachable => {
                        Cause::HostUnreachable
                    }
                    _ => Cause::LocalIo(errno),
                };
                self.fail(cause, error.to_string());
            }
        }
    }

    /// Nothing came for too long: whether the process or its host is silent, its kernel's acknowledgements tell.
    fn fail_silent(&self) {
        let silent = self.now().saturating_sub(self.heard.load(Ordering::Relaxed));
        let observed = format!("nothing came for {silent} ms");
        let Some(heard) = self.socket.heard() else { return self.fail(Cause::HostUnreachable, observed) };
        let kernel = heard.ack.as_millis() as u64;
        let observed = format!("{observed}, its kernel acknowledged {kernel} ms ago");
        let answers = heard.ack < RECENT || silent.saturating_sub(kernel) >= OUTLIVED;
        // What it answers to must be what we sent: it may send its own again and again because it hears nothing.
        let frozen = answers && heard.again < AGAIN;
        self.fail(if frozen { Cause::Frozen } else { Cause::HostUnreachable }, observed);
    }

    /// Does what is due by time.
    pub(crate) fn tick(&self, late: bool) {
        if self.failure.get().is_some() {
            return;
        }
        let now = self.now();
        let since = |then: u64| Duration::from_millis(now.saturating_sub(then));
        if self.fresh.swap(false, Ordering::Relaxed) || late {
            self.hear();
        }
        let mut out = self.out.lock();
        if out.queue.take_wrote() {
            out.last_write = now;
            out.last_use = now;
        }
        if let Some(errno) = out.queue.broken() {
            // Reading tells more about the end, and comes first; an error of writing alone counts after a while.
            out.broken += 1;
            if out.broken > 5 {
                drop(out);
                self.ended(End::Io(errno));
                return;
            }
        }
        // Where no thread drives, what was begun still says that we live.
        if !out.queue.is_empty() {
            out.queue.flush();
        }
        if out.queue.is_empty() {
            if out.queue.owed() > 0 {
                out.queue.acknowledge();
            } else if since(out.last_write) >= PING {
                out.last_write = now;
                out.queue.frame(Lane::Replies, Header::new(Opcode::Ping), [&[], &[]]);
            }
            if since(out.last_use) >= SILENCE {
                out.queue.shrink();
            }
            self.watch(&mut out);
        }
        drop(out);
        if since(self.heard.load(Ordering::Relaxed)) >= SILENCE {
            // What waits here to be received is our own delay.
            if self.socket.has_input() { self.hear() } else { self.fail_silent() }
        }
    }

    /// Says goodbye for good and ends.
    pub(crate) fn leave(&self) {
        let mut out = self.out.lock();
        if out.over.is_none() && self.failure.get().is_none() {
            out.queue.flush();
            out.queue.frame(Lane::Replies, Header::new(Opcode::Goodbye), [&[], &[]]);
        }
        drop(out);
        self.fail(Cause::ConnectionLost, "this context was closed");
    }

    /// Takes a failed connection apart.
    pub(crate) fn bury(&self, done: &mut Vec<Completion>) -> Option<Remains> {
        let failure = self.failure.get()?.clone();
        let mut incoming = self.incoming.lock();
        let mut out = self.out.lock();
        if out.over.is_some() {
            return None;
        }
        out.over = Some(failure.clone());
        let begun = out.queue.begun();
        out.flights.fail(begun, &failure, done);
        out.queue.clear();
        let quiet = out.said_idle && out.peer_idle;
        let woken = std::mem::take(&mut out.waiting);
        let _ = epoll::delete(&self.around.epoll, self.socket.as_fd());
        self.socket.shut();
        drop(out);
        woken.into_iter().for_each(Waker::wake);
        Some(Remains { failure, quiet, grants: incoming.target.take() })
    }

    fn release(&self) {
        let mut out = self.out.lock();
        out.uses = out.uses.saturating_sub(1);
        self.part(&mut out);
    }

    /// Says that this side needs the connection no longer, if so.
    fn part(&self, out: &mut Out) {
        if out.uses == 0 && !out.said_idle && out.over.is_none() {
            out.said_idle = true;
            out.queue.say_goodbye();
            out.queue.flush();
            self.watch(out);
            if out.peer_idle {
                (self.around.host.kick)();
            }
        }
    }

    fn post(&self, op: Op<'_>, token: Token) -> Posted {
        let mut out = self.out.lock();
        if let Some(failure) = out.over.as_ref().or(self.failure.get()) {
            let error = Error::failed(token.operation(), Outcome::NotApplied, failure.clone());
            return Posted::Done(token, Err(error));
        }
        let posted = out.post(op, token);
        self.watch(&mut out);
        posted
    }
}

/// What a turn tells, on its way into the connection's outgoing half.
struct Told<'a> {
    connection: &'a Connection,
}

impl Sender for Told<'_> {
    fn data(&mut self, header: &Header) -> Result<Sink> {
        let (slice, at) = self.connection.out.lock().flights.data(header)?;
        let offset = slice.offset() as u64 + at;
        Ok(Sink::Memory(slice.region().exposed().clone(), offset))
    }

    fn answer(&mut self, header: &Header, payload: &[u8]) -> Result<()> {
        self.connection.out.lock().flights.answer(header, payload)
    }

    fn reply(&mut self, applied: u64, reply: Reply) -> Result<()> {
        let mut out = self.connection.out.lock();
        out.queue.set_applied(applied);
        if out.queue.replies() > MOST_REPLIES {
            return Err(Error::Malformed {
                what: "stream",
                why: format!("more than {MOST_REPLIES} requests wait for an answer"),
            });
        }
        match reply {
            Reply::None => {}
            Reply::Frame(header, payload) => {
                out.queue.frame(Lane::Replies, header, [&payload, &[]]);
            }
            Reply::Data(transfer) => {
                out.queue.transfer(Lane::Replies, transfer);
            }
        }
        Ok(())
    }

    fn idle(&mut self) {
        let mut out = self.connection.out.lock();
        out.peer_idle = true;
        self.connection.part(&mut out);
    }
}

impl Out {
    /// Whether any operation but a large get is taken.
    fn has_room(&self) -> bool {
        self.flights.has_room() && self.queue.copied() + Source::MOST_BORROWED <= MOST_COPIED
    }

    fn post(&mut self, op: Op<'_>, token: Token) -> Posted {
        let operation = token.operation();
        let too_large =
            |size: usize| Error::invalid(operation, format!("a list of {size} bytes is too large"));
        let device = |slice: &Slice| slice.region().kind() == transom_registry::Kind::Device;
        let source = match &op.action {
            Action::Put(source) | Action::PutList(_, source) | Action::Accumulate { source, .. } => {
                Some(source)
            }
            _ => None,
        };
        let (slice, borrowed) = match (source, &op.action) {
            (Some(Source::Owned(slice)), _) | (None, Action::Get(slice) | Action::GetList(_, slice)) => {
                (Some(slice), 0)
            }
            (Some(Source::Borrowed(bytes)), _) => (None, bytes.len()),
            _ => (None, 0),
        };
        if slice.is_some_and(device) {
            let error = Error::invalid(operation, "tcp cannot reach a device's memory");
            return Posted::Done(token, Err(error));
        }
        let room = match &op.action {
            Action::Get(slice) | Action::GetList(_, slice) => {
                self.flights.has_room_for_get(slice.size() as u64)
            }
            _ => self.flights.has_room(),
        };
        let copied = self.queue.copied();
        if !room || copied >= MOST_COPIED || borrowed > 0 && copied + borrowed > MOST_COPIED {
            return Posted::Full(token);
        }
        let key = op.key as u32;
        let awaited = if op.silent { flag::SILENT } else { flag::ACK_NOW };
        let mut header = Header { handle: key, offset: op.offset, ..Header::new(Opcode::Put) };
        header.flags = flag::LAST | awaited;
        if matches!(op.action, Action::Put(_)) && op.signal.is_none() && self.flights.is_empty() {
            // A lone put is often flushed next: asked for now, its acknowledgement is on its way by then.
            header.flags |= flag::ACK_NOW;
        }
        let signalled = |mut header: Header| {
            if let Some((id, add)) = op.signal {
                header.flags |= flag::SIGNAL;
                header.count = id;
                header.operand = add;
            }
            header
        };
        let flying = match op.action {
            Action::Flush => {
                if self.flights.is_empty() {
                    return Posted::Done(token, Ok(0));
                }
                let last = self.queue.last();
                if self.asked == last {
                    self.flights.add(last, last, Expects::Ack(Some(token)));
                    return Posted::Pending;
                }
                header.opcode = Opcode::Flush;
                header.flags = flag::ACK_NOW;
                (self.whole(header, &[]), Expects::Ack(Some(token)))
            }
            Action::Resume => {
                header.opcode = Opcode::Resume;
                (self.whole(header, &[]), Expects::Ack(Some(token)))
            }
            Action::Signal if op.signal.is_none() => return Posted::Done(token, Ok(0)),
            Action::Signal => {
                header.opcode = Opcode::Signal;
                (self.whole(signalled(header), &[]), Expects::Ack(Some(token)))
            }
            Action::Put(source) => {
                let (sent, token) = self.bytes(signalled(header), source, token);
                (sent, Expects::Ack(Some(token)))
            }
            Action::PutList(parts, source) => {
                if source.size() > MOST_LIST {
                    return Posted::Done(token, Err(too_large(source.size())));
                }
                header.opcode = Opcode::PutList;
                let (sent, token) = self.list(signalled(header), parts, source, token);
                (sent, Expects::Ack(Some(token)))
            }
            Action::Accumulate { dtype, reduce, source } => {
                header.opcode = Opcode::Accumulate;
                header.count = u32::from(dtype as u8) | u32::from(reduce as u8) << 8;
                let (sent, token) = self.bytes(header, source, token);
                (sent, Expects::Ack(Some(token)))
            }
            Action::Get(slice) => {
                header.opcode = Opcode::Get;
                header.operand = slice.size() as u64;
                (self.whole(header, &[]), Expects::Data(token, slice, 0))
            }
            Action::GetList(parts, slice) => {
                if parts.len() as u64 > frame::MOST_PARTS {
                    return Posted::Done(token, Err(too_large(slice.size())));
                }
                header.opcode = Opcode::GetList;
                header.offset = parts.len() as u64;
                let table = table(parts, op.offset);
                (self.whole(header, &table), Expects::Data(token, slice, 0))
            }
            Action::Atomic { atomic, width, operand, compare } => {
                header.opcode = Opcode::Atomic;
                header.count = u32::from(atomic as u8) | u32::from(width) << 8;
                header.operand = operand;
                (self.whole(header, &compare.to_le_bytes()), Expects::Value(token))
            }
        };
        let ((first, last), expects) = flying;
        let carries = matches!(expects, Expects::Ack(_)) && header.opcode != Opcode::Accumulate;
        self.flights.add(first, last, expects);
        if header.has(flag::ACK_NOW) {
            self.asked = last;
        }
        if op.signal.is_some() && !carries {
            // These frames carry no signal: it follows in one of its own.
            header = Header { handle: key, ..Header::new(Opcode::Signal) };
            header.flags = flag::LAST | awaited;
            let (first, last) = self.whole(signalled(header), &[]);
            self.flights.add(first, last, Expects::Ack(None));
            if awaited == flag::ACK_NOW {
                self.asked = last;
            }
        }
        Posted::Pending
    }

    /// Sends one frame.
    fn whole(&mut self, header: Header, payload: &[u8]) -> (u64, u64) {
        let sequence = self.queue.frame(Lane::Requests, header, [payload, &[]]);
        (sequence, sequence)
    }

    /// Sends the bytes of a put or an accumulate. The token keeps a slice that is still needed.
    fn bytes(&mut self, header: Header, source: Source<'_>, token: Token) -> ((u64, u64), Token) {
        match source {
            Source::Borrowed(bytes) => (self.pieces(header, bytes), token),
            Source::Owned(slice) if slice.size() <= SMALL => {
                let mut bytes = vec![0; slice.size()];
                let _ = slice.read(0, &mut bytes);
                (self.pieces(header, &bytes), token.keep(slice))
            }
            Source::Owned(slice) => {
                let from = From::Range(slice.region().exposed().clone(), slice.offset() as u64);
                let transfer = Transfer { header, from, left: slice.size() as u64 };
                (self.queue_transfer(transfer), token.keep(slice))
            }
        }
    }

    fn pieces(&mut self, header: Header, bytes: &[u8]) -> (u64, u64) {
        let most = if header.opcode == Opcode::Accumulate {
            frame::MOST_ACCUMULATE as usize
        } else {
            frame::MOST_PAYLOAD as usize
        };
        let (mut first, mut last) = (0, 0);
        let mut rest = bytes;
        while first == 0 || !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(most));
            let mut header = Header { offset: header.offset + (bytes.len() - rest.len()) as u64, ..header };
            if !later.is_empty() {
                header.flags &= !(flag::LAST | flag::SIGNAL | flag::ACK_NOW);
            }
            last = self.queue.frame(Lane::Requests, header, [now, &[]]);
            first = if first == 0 { last } else { first };
            rest = later;
        }
        (first, last)
    }

    fn list(
        &mut self,
        header: Header,
        parts: &[(u64, u64)],
        source: Source<'_>,
        token: Token,
    ) -> ((u64, u64), Token) {
        let moved = |parts: &[(u64, u64)]| parts.iter().map(|p| (p.0 + header.offset, p.1)).collect();
        match source {
            Source::Borrowed(bytes) => {
                // Cut where a frame would have too many parts or bytes.
                let (mut first, mut last, mut at) = (0, 0, 0);
                let mut walk = Parts::new(moved(parts));
                while first == 0 || at < bytes.len() {
                    let (table, size) = walk.frame((bytes.len() - at) as u64);
                    let size = if table.is_empty() { bytes.len() - at } else { size as usize };
                    let end = at + size;
                    let mut header = Header { offset: table.len() as u64, ..header };
                    if end < bytes.len() {
                        header.flags &= !(flag::LAST | flag::SIGNAL | flag::ACK_NOW);
                    }
                    let mut wire = Vec::with_capacity(table.len() * frame::PART as usize);
                    encode_parts(&table, &mut wire);
                    last = self.queue.frame(Lane::Requests, header, [&wire, &bytes[at..end]]);
                    first = if first == 0 { last } else { first };
                    at = end;
                }
                ((first, last), token)
            }
            Source::Owned(slice) => {
                let exposed = slice.region().exposed().clone();
                let from = From::List(exposed, slice.offset() as u64, Parts::new(moved(parts)));
                let transfer = Transfer { header, from, left: slice.size() as u64 };
                (self.queue_transfer(transfer), token.keep(slice))
            }
        }
    }

    fn queue_transfer(&mut self, transfer: Transfer) -> (u64, u64) {
        let numbers = self.queue.transfer(Lane::Requests, transfer);
        self.queue.flush();
        numbers
    }
}

fn table(parts: &[(u64, u64)], offset: u64) -> Vec<u8> {
    let moved: Vec<_> = parts.iter().map(|p| (p.0 + offset, p.1)).collect();
    let mut wire = Vec::with_capacity(parts.len() * frame::PART as usize);
    encode_parts(&moved, &mut wire);
    wire
}

/// One user of a connection.
#[derive(Debug)]
pub(crate) struct Link {
    connection: Arc<Connection>,
    closed: AtomicBool,
}

impl Link {
    fn let_go(&self) {
        // A fork shares the stream, and must not end it for its parent.
        if !self.closed.swap(true, Ordering::AcqRel) && !crate::fork::is_child() {
            self.connection.release();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Endpoint for Link {
    fn peer(&self) -> Incarnation {
        self.connection.peer
    }

    fn transport(&self) -> &str {
        "tcp"
    }

    fn attach(&self, region: &RemoteRegion, _: Instant) -> Pending<Attached> {
        let (sender, receiver) = oneshot::channel();
        let mut out = self.connection.out.lock();
        if let Some(failure) = out.over.as_ref().or(self.connection.failure.get()) {
            let error = Error::failed("open", Outcome::NotApplied, failure.clone());
            return Box::pin(std::future::ready(Err(error)));
        }
        let mut header = Header::new(Opcode::Attach);
        header.flags = flag::LAST | flag::ACK_NOW;
        let (first, last) = out.whole(header, &Attach::new(region).encode());
        out.flights.add(first, last, Expects::Handle(sender));
        self.connection.watch(&mut out);
        drop(out);
        let connection = self.connection.clone();
        Box::pin(async move {
            match receiver.await {
                Ok(handle) => Ok(Attached { key: handle?.into(), mapped: None }),
                Err(_) => {
                    let failure = connection.failure.get().cloned();
                    let failure = failure.unwrap_or_else(|| {
                        Failure::new(Some(connection.peer), Cause::ConnectionLost, "the answer was lost")
                    });
                    Err(Error::failed("open", Outcome::NotApplied, failure))
                }
            }
        })
    }

    fn detach(&self, key: u64) {
        if crate::fork::is_child() {
            return;
        }
        let mut out = self.connection.out.lock();
        if out.over.is_none() {
            let header = Header { handle: key as u32, ..Header::new(Opcode::Detach) };
            out.whole(header, &[]);
            self.connection.watch(&mut out);
        }
    }

    fn post(&self, op: Op<'_>, token: Token) -> Posted {
        self.connection.post(op, token)
    }

    fn room(&self, waker: &Waker) -> bool {
        let mut out = self.connection.out.lock();
        let room = out.has_room() && out.flights.has_room_for_get(MOST_PIECE) || out.over.is_some();
        if !room {
            out.waiting.push(waker.clone());
        }
        room
    }

    fn failure(&self) -> Option<Arc<Failure>> {
        self.connection.failure.get().cloned()
    }

    fn close(&self) {
        self.let_go();
    }
}
