//! One connection: operations go out, operations of the peer are applied, and its end is noticed.
#![forbid(unsafe_code)]

mod link;
mod posting;
mod silence;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Instant;

pub(crate) use link::Link;
use parking_lot::Mutex;
use rustix::event::epoll::{self, EventData, EventFlags};
use transom_registry::{Cause, Error, Failure, Incarnation, Outcome, Result};

use super::flights::Flights;
use super::frame::{Header, Opcode};
use super::protect::{Check, Level, Seal};
use super::receive::{End, Incoming, Sender, Turn};
use super::send::{Lane, Queue};
use super::serve::{Reply, Sink, Target};
use super::socket::Socket;
use crate::backend::{Host, Op, Posted};
use crate::handshake::Session;
use crate::token::{Completion, Token};

/// Applied requests that are acknowledged without being asked for.
const MOST_OWED: u64 = 64;
/// Received bytes that are acknowledged without being asked for.
const MOST_OWED_BYTES: usize = 1 << 20;
/// Replies that wait to be sent, beyond which the peer breaks its own limits.
const MOST_REPLIES: usize = 1 << 17;

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
        level: Level,
    ) -> Result<Arc<Self>> {
        let remote = stream.peer_addr().map_or_else(|_| "?".into(), |a| a.to_string());
        let socket = Arc::new(Socket::new(stream)?);
        let (ours, theirs) = (&session.send_key, &session.receive_key);
        let check = if crc { Check::new(level, ours) } else { Check::None };
        let out = Out {
            queue: Queue::new(socket.clone(), Seal::new(ours), check),
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
                Seal::new(theirs),
                Check::new(level, theirs),
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
        Some(Link::new(self.clone()))
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
            let woken = if out.has_room() { std::mem::take(&mut out.waiting) } else { Vec::new() };
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
