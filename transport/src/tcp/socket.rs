//! A plain socket, set up for short latency and early notice, and what the kernel knows of its other end.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags};
use transom_registry::{Error, Result};

/// How long the other side's kernel may acknowledge nothing new. Longer than its silence is waited for: the kernel counts
/// from the first loss of many, and would end a lossy connection on which bytes move.
const STUCK: Duration = Duration::from_secs(10);

/// A connected socket that never blocks.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

/// What the kernel knows of the other side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heard {
    /// How long ago its kernel acknowledged something.
    pub(crate) ack: Duration,
    /// How often in a row the oldest that it has not acknowledged was sent again.
    pub(crate) again: u8,
}

impl Socket {
    /// Sets a connected socket up.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn new(stream: std::net::TcpStream) -> Result<Self> {
        let fail = |e| Error::io("set up a connection", e);
        let socket = socket2::Socket::from(stream);
        socket.set_nonblocking(true).map_err(fail)?;
        socket.set_tcp_nodelay(true).map_err(fail)?;
        socket.set_tcp_user_timeout(Some(STUCK)).map_err(fail)?;
        // Few packets on their way are sent again every 0.2 s, instead of ever more rarely: lost twice is no silence.
        // A kernel that does not know it does without.
        let _ = socket.set_tcp_thin_linear_timeouts(true);
        let second = Duration::from_secs(1);
        let keepalive = socket2::TcpKeepalive::new().with_time(second).with_interval(second).with_retries(1);
        socket.set_tcp_keepalive(&keepalive).map_err(fail)?;
        Ok(Self(socket.into()))
    }

    /// Sends what fits of these parts.
    ///
    /// # Errors
    /// The system call's.
    pub(crate) fn send(&self, parts: [&[u8]; 3]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let parts = parts.map(io::IoSlice::new);
        loop {
            let sent = rustix::net::sendmsg(
                &self.0,
                &parts,
                &mut rustix::net::SendAncillaryBuffer::default(),
                flags,
            );
            match sent {
                Err(rustix::io::Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    /// Sends what fits of these bytes.
    ///
    /// # Errors
    /// The system call's.
    pub(crate) fn send_bytes(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(rustix::io::retry_on_intr(|| rustix::net::send(&self.0, bytes, flags))?)
    }

    /// Receives what is there. 0: the end.
    ///
    /// # Errors
    /// The system call's.
    pub(crate) fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        let (_, got) =
            rustix::io::retry_on_intr(|| rustix::net::recv(&self.0, &mut *into, RecvFlags::DONTWAIT))?;
        Ok(got)
    }

    /// Whether anything waits to be received, the end among it.
    pub(crate) fn has_input(&self) -> bool {
        let peek = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let peeked = rustix::net::recv(&self.0, &mut [0_u8][..], peek);
        !matches!(peeked, Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR))
    }

    /// What the kernel knows of the other side.
    pub(crate) fn heard(&self) -> Option<Heard> {
        // SAFETY: plain numbers, for which zeros are values.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut size = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: `info` is valid for writes of `size` bytes for the length of the call.
        let done = unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &mut size,
            )
        };
        (done == 0).then(|| Heard {
            ack: Duration::from_millis(info.tcpi_last_ack_recv.into()),
            again: info.tcpi_retransmits,
        })
    }

    /// Ends both directions; the descriptor stays until it is dropped.
    pub(crate) fn shut(&self) {
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
