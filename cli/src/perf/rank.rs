//! The second rank: a process that this one starts from its own program, that does what it is told over a socket, and
//! that never outlives this one.

use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use rustix::process::{
    Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, set_parent_process_death_signal,
};
use serde::{Deserialize, Serialize};
use transom_registry::{Cause, Error, Failure, Outcome, Result};

use super::baseline::LIMIT;
use super::baseline::connect::{Door, receive, send, wait_readable};
use super::baseline::copy::segments;
use super::baseline::line::Line;
use super::baseline::memory::{Shared, Span};
use super::baseline::socket::Wire;
use super::subject::{Setup, Subject};
use super::{cases, pin, probe};

/// Exchanges that are played and not timed, until both ranks are awake.
pub(crate) const WAKE: u64 = 16;

/// What rank 0 tells rank 1 to do. All sizes and offsets are bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Takes the memory that comes along.
    Start { setup: Setup, parts: [usize; 2], cores: Vec<usize>, yields: bool },
    /// Stays on a core.
    Pin(usize),
    /// Plays the other side of a probe.
    Probe,
    /// Plays the other side of the line ping-pong.
    Line { rounds: u64, offset: usize, size: usize },
    /// Connects a raw socket to this port.
    Dial(u16),
    /// Answers frames on the raw socket.
    Frames { rounds: u64, out: usize, back: usize },
    /// Receives a stream into its part.
    Take { offset: usize, size: usize, count: u64, checked: bool },
    /// Sends its part as a stream.
    Give { offset: usize, size: usize, count: u64, checked: bool },
    /// Receives segments into its part.
    Gather { segments: usize, size: usize, count: u64 },
    /// Listens: on a unix socket of this name, or on TCP.
    Listen(Option<String>),
    /// Answers so many connections.
    Visits(u64),
    /// Opens our side.
    Join(String),
    /// Answers put_signals, counted from the first one ever.
    Pong { from: u64, rounds: u64, offset: u64, size: usize },
    /// Says that it is there, then waits for a signal, and so drives the transport.
    Attend { until: u64 },
}

/// What rank 1 says when it is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Answer {
    Done,
    Port(u16),
    Failed(String),
}

/// The other process. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Partner {
    process: Child,
    pidfd: OwnedFd,
    control: OwnedFd,
}

impl Partner {
    /// Starts it.
    pub(crate) fn start(self_check: bool) -> Result<Self> {
        let (control, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|e| Error::io("make a socket pair", e))?;
        let program = std::env::current_exe().map_err(|e| Error::io("find this program", e))?;
        let mut command = Command::new(program);
        command.arg("perf-rank").stdin(Stdio::from(theirs)).stdout(Stdio::null());
        if self_check {
            command.arg("--self-check");
        }
        let mut process = command.spawn().map_err(|e| Error::io("start the second rank", e))?;
        match pidfd_open(Pid::from_child(&process), PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Self { process, pidfd, control }),
            Err(e) => {
                let _ = process.kill();
                let _ = process.wait();
                Err(Error::io("watch the second rank", e))
            }
        }
    }

    /// Gives an order. [`finish`](Self::finish) must follow.
    pub(crate) fn order(&self, order: &Order) -> Result<()> {
        self.order_with(order, None)
    }

    /// Gives an order with a descriptor.
    pub(crate) fn order_with(&self, order: &Order, fd: Option<BorrowedFd<'_>>) -> Result<()> {
        send(self.control.as_fd(), super::report::to_json(order)?.as_bytes(), fd)
    }

    /// Waits until an order is done; returns the port if there is one.
    pub(crate) fn finish(&self) -> Result<u16> {
        wait_readable(self.control.as_fd(), LIMIT + Duration::from_secs(5))?;
        match receive(self.control.as_fd())? {
            None => {
                let failure =
                    Failure::new(None, Cause::Exited(None), "the second rank of perf closed its socket");
                Err(Error::failed("perf", Outcome::InDoubt, failure).at_rank(1))
            }
            Some((text, _)) => match parse(&text)? {
                Answer::Done => Ok(0),
                Answer::Port(port) => Ok(port),
                Answer::Failed(why) => Err(Error::invalid("rank 1", why)),
            },
        }
    }

    /// Gives an order and waits until it is done.
    pub(crate) fn ask(&self, order: &Order) -> Result<u16> {
        self.order(order)?;
        self.finish()
    }

    /// Kills it, and does not wait.
    pub(crate) fn kill(&self) -> Result<()> {
        pidfd_send_signal(&self.pidfd, Signal::KILL).map_err(|e| Error::io("kill the second rank", e))
    }

    /// Readable when it is dead.
    pub(crate) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        // It leaves by itself when it waits for an order, and is killed when it does not.
        let _ = shutdown(&self.control, Shutdown::Both);
        let _ = wait_readable(self.pidfd.as_fd(), Duration::from_secs(2));
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Dies when the process that started this one does.
pub(crate) fn die_with_parent() -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|e| Error::io("ask to die with the parent", e))
}

/// The whole life of the second rank: does what it is told on its standard input until that ends.
pub(crate) fn serve<S: Subject>() -> Result<()> {
    die_with_parent()?;
    let control = std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map_err(|e| Error::io("take the control socket from standard input", e))?;
    let mut rank: Option<Rank<S>> = None;
    while let Some((text, fd)) = receive(control.as_fd())? {
        let answer = match parse(&text).and_then(|order| obey(&mut rank, order, fd)) {
            Ok(answer) => answer,
            Err(e) => Answer::Failed(e.to_string()),
        };
        send(control.as_fd(), super::report::to_json(&answer)?.as_bytes(), None)?;
    }
    Ok(())
}

/// What the second rank has.
struct Rank<S> {
    subject: Option<S>,
    setup: Setup,
    memory: OwnedFd,
    shared: Shared,
    wire: Option<Wire>,
    door: Option<Door>,
    yields: bool,
}

fn obey<S: Subject>(rank: &mut Option<Rank<S>>, order: Order, fd: Option<OwnedFd>) -> Result<Answer> {
    if let Order::Start { setup, parts, cores, yields } = order {
        let memory =
            fd.ok_or_else(|| Error::Malformed { what: "an order", why: "it carries no memory".into() })?;
        pin::unpin(&cores)?;
        let shared = Shared::map(&memory, parts)?;
        *rank = Some(Rank { subject: None, setup, memory, shared, wire: None, door: None, yields });
        return Ok(Answer::Done);
    }
    match rank {
        Some(rank) => rank.obey(order),
        None => Err(Error::invalid("perf-rank", "the first order is not to start")),
    }
}

impl<S: Subject> Rank<S> {
    fn obey(&mut self, order: Order) -> Result<Answer> {
        match order {
            Order::Start { .. } => return Err(Error::invalid("perf-rank", "it has started")),
            Order::Pin(core) => pin::pin(core)?,
            Order::Probe => {
                probe::play(self.shared.board()?, 1, self.yields)?;
            }
            Order::Line { rounds, offset, size } => {
                let target = self.subject.as_ref().and_then(S::target).or(self.shared.part(0));
                let target =
                    target.ok_or_else(|| Error::invalid("perf-rank", "rank 0 has no mapped part"))?;
                let (out, into) = (target.part(offset, size)?, self.local()?.part(offset, size)?);
                Line::new(self.shared.board()?, 1, out, into, self.setup.wait, self.yields)?
                    .answer(rounds)?;
            }
            Order::Dial(port) => {
                let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
                    .map_err(|e| Error::io(format!("connect to port {port} on loopback"), e))?;
                self.wire = Some(Wire::new(stream, self.setup.wait, self.yields)?);
            }
            Order::Frames { rounds, out, back } => {
                self.wire()?.answer(WAKE, out, back)?;
                self.wire()?.answer(rounds, out, back)?;
            }
            Order::Take { offset, size, count, checked } => {
                let (wire, memory) = (self.wire()?, self.local()?.part(offset, size)?);
                wire.nod()?;
                wire.stream_in(memory, count, checked)?;
                wire.nod()?;
            }
            Order::Give { offset, size, count, checked } => {
                let (wire, memory) = (self.wire()?, self.local()?.part(offset, size)?);
                wire.wait_for_nod()?;
                wire.stream_out(memory, count, checked)?;
            }
            Order::Gather { segments: number, size, count } => {
                let (wire, list) = (self.wire()?, segments(number, size));
                wire.nod()?;
                wire.segments_in(self.local()?, &list, count)?;
                wire.nod()?;
            }
            Order::Listen(name) => {
                let door = match name {
                    Some(name) => Door::unix(&name)?,
                    None => Door::tcp()?,
                };
                let port = door.port()?;
                self.door = Some(door);
                return Ok(Answer::Port(port));
            }
            Order::Visits(count) => {
                let door =
                    self.door.as_ref().ok_or_else(|| Error::invalid("perf-rank", "it does not listen"))?;
                door.answer(self.memory.as_fd(), count)?;
            }
            Order::Join(invitation) => self.subject = Some(S::open(&self.setup, &invitation)?),
            Order::Pong { from, rounds, offset, size } => {
                cases::pong(self.subject()?, from, rounds, offset, size)?;
            }
            Order::Attend { until } => cases::attend(self.subject()?, until)?,
        }
        Ok(Answer::Done)
    }

    fn subject(&self) -> Result<&S> {
        self.subject.as_ref().ok_or_else(|| Error::invalid("perf-rank", "our side is not open"))
    }

    fn wire(&self) -> Result<&Wire> {
        self.wire.as_ref().ok_or_else(|| Error::invalid("perf-rank", "there is no raw socket"))
    }

    /// The part that rank 0 writes to.
    fn local(&self) -> Result<Span<'_>> {
        let local = self.subject.as_ref().map(S::local).or(self.shared.part(1));
        local.ok_or_else(|| Error::invalid("perf-rank", "there is no local part"))
    }
}

fn parse<T: serde::de::DeserializeOwned>(text: &[u8]) -> Result<T> {
    serde_json::from_slice(text)
        .map_err(|e| Error::Malformed { what: "a message between the ranks", why: e.to_string() })
}
