//! What it takes by hand to connect: a socket, a round trip, and on one host the peer's memory, mapped.

use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recvmsg, sendmsg, socket_with,
};
use transom_registry::{Error, Result};

use super::memory::Mapping;
use super::socket::Wire;
use super::{LIMIT, Wait, silent};

/// A message may carry this many bytes.
const MESSAGE: usize = 64 << 10;

/// Sends one message, with a descriptor if there is one.
pub(crate) fn send(socket: BorrowedFd<'_>, message: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = fd.into_iter().collect();
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    sendmsg(socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL)
        .map_err(|e| Error::io("send to the other rank", e))?;
    Ok(())
}

/// Receives one message and the descriptor that came with it; `None` when the other side has closed.
pub(crate) fn receive(socket: BorrowedFd<'_>) -> Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut message = vec![0; MESSAGE];
    let got = loop {
        let mut parts = [IoSliceMut::new(&mut message)];
        match recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(got) => break got.bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            Err(e) => return Err(Error::io("receive from the other rank", e)),
        }
    };
    let mut fd = None;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = part {
            fd = fds.into_iter().next().or(fd);
        }
    }
    message.truncate(got);
    Ok(if got == 0 { None } else { Some((message, fd)) })
}

/// Waits until something can be read, at most for `limit`.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, limit: Duration) -> Result<()> {
    let began = Instant::now();
    loop {
        let left = limit.saturating_sub(began.elapsed());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Err(silent("wait for the other rank", began.elapsed())),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Error::io("poll", e)),
        }
    }
}

/// Where the answering side listens.
#[derive(Debug)]
pub(crate) enum Door {
    /// A unix socket; the answer carries a memory file.
    Unix(OwnedFd),
    /// A TCP socket.
    Tcp(TcpListener),
}

impl Door {
    /// Listens on a unix socket of this name, which has no place in the file system and so leaves nothing behind.
    pub(crate) fn unix(name: &str) -> Result<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|e| Error::io("make a unix socket", e))?;
        bind(&socket, &unix_address(name)?).map_err(|e| Error::io("bind a unix socket", e))?;
        listen(&socket, 16).map_err(|e| Error::io("listen on a unix socket", e))?;
        Ok(Self::Unix(socket))
    }

    /// Listens on loopback.
    pub(crate) fn tcp() -> Result<Self> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|e| Error::io("listen on loopback", e))?;
        Ok(Self::Tcp(listener))
    }

    /// The port, where there is one.
    pub(crate) fn port(&self) -> Result<u16> {
        match self {
            Self::Unix(_) => Ok(0),
            Self::Tcp(listener) => {
                Ok(listener.local_addr().map_err(|e| Error::io("read a socket's port", e))?.port())
            }
        }
    }

    /// Accepts a TCP connection.
    pub(crate) fn accept(&self) -> Result<TcpStream> {
        match self {
            Self::Unix(_) => Err(Error::invalid("accept", "this is a unix socket")),
            Self::Tcp(listener) => {
                wait_readable(listener.as_fd(), LIMIT)?;
                Ok(listener.accept().map_err(|e| Error::io("accept on loopback", e))?.0)
            }
        }
    }

    /// Answers `count` connections, one after the other: hands over the memory, or one byte, and waits for the end.
    pub(crate) fn answer(&self, memory: BorrowedFd<'_>, count: u64) -> Result<()> {
        for _ in 0..count {
            match self {
                Self::Unix(socket) => {
                    wait_readable(socket.as_fd(), LIMIT)?;
                    let peer = accept_with(socket, SocketFlags::CLOEXEC)
                        .map_err(|e| Error::io("accept on a unix socket", e))?;
                    wait_readable(peer.as_fd(), LIMIT)?;
                    receive(peer.as_fd())?;
                    send(peer.as_fd(), &[1], Some(memory))?;
                    wait_readable(peer.as_fd(), LIMIT)?;
                }
                Self::Tcp(_) => {
                    let wire = Wire::new(self.accept()?, Wait::Sleep, false)?;
                    wire.wait_for_nod()?;
                    wire.nod()?;
                    wire.wait_for_end()?;
                }
            }
        }
        Ok(())
    }
}

/// Connects to a unix door, gets the peer's memory and maps `size` bytes of it; returns how long that took.
pub(crate) fn connect_unix(name: &str, offset: usize, size: usize) -> Result<Duration> {
    let address = unix_address(name)?;
    let began = Instant::now();
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|e| Error::io("make a unix socket", e))?;
    connect(&socket, &address).map_err(|e| Error::io("connect a unix socket", e))?;
    send(socket.as_fd(), &[1], None)?;
    wait_readable(socket.as_fd(), LIMIT)?;
    let fd = receive(socket.as_fd())?.and_then(|(_, fd)| fd);
    let fd = fd.ok_or_else(|| Error::Malformed { what: "the answer", why: "it carries no memory".into() })?;
    let mapping = Mapping::file(fd.as_fd(), offset, size)?;
    let took = began.elapsed();
    drop(mapping);
    Ok(took)
}

/// Connects to a TCP door and makes one round trip; returns how long that took.
pub(crate) fn connect_tcp(port: u16) -> Result<Duration> {
    let began = Instant::now();
    let stream =
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(|e| Error::io("connect on loopback", e))?;
    let wire = Wire::new(stream, Wait::Sleep, false)?;
    wire.nod()?;
    wire.wait_for_nod()?;
    Ok(began.elapsed())
}

/// A name for a unix door that no other run has.
pub(crate) fn unused_name() -> Result<String> {
    let mut random = [0; 8];
    getrandom::fill(&mut random)
        .map_err(|e| Error::invalid("perf", format!("the system gives no random bytes: {e}")))?;
    Ok(format!("transom-perf-{:016x}", u64::from_ne_bytes(random)))
}

fn unix_address(name: &str) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(|e| Error::io("name a unix socket", e))
}
