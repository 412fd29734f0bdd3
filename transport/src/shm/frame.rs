//! Frames on the control socket: 8 bytes of prefix, a body, and at most eight descriptors that travel with them.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use rustix::process::{Resource, getrlimit};
use tokio::io::Interest;
use tokio::net::UnixStream;
use transom_registry::{Error, Result};

use super::message::{MOST, Message, malformed};

/// Most descriptors that travel with a frame.
const MOST_FDS: usize = 8;
/// Bytes before the body: its size (4), its kind, the number of descriptors, two zeros.
const PREFIX: usize = 8;

/// Sends a message and descriptors with it.
///
/// # Cancel safety
/// None: the stream is of no use after a half-sent frame.
pub(super) async fn send(stream: &UnixStream, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<()> {
    if fds.len() > MOST_FDS {
        return Err(malformed(format!("{} descriptors are more than {MOST_FDS}", fds.len())));
    }
    let mut frame = vec![0; PREFIX];
    let kind = message.encode(&mut frame);
    let size = frame.len() - PREFIX;
    let announced = u32::try_from(size).ok().filter(|_| size <= MOST);
    let announced = announced.ok_or_else(|| malformed(format!("{size} bytes are more than {MOST}")))?;
    frame[..4].copy_from_slice(&announced.to_le_bytes());
    frame[4] = kind;
    frame[5] = fds.len() as u8;
    let mut sent = 0;
    while sent < frame.len() {
        // The descriptors go with the first byte.
        let fds = if sent == 0 { fds } else { &[] };
        sent += stream
            .async_io(Interest::WRITABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
                let mut ancillary = SendAncillaryBuffer::new(&mut space);
                if !fds.is_empty() {
                    ancillary.push(SendAncillaryMessage::ScmRights(fds));
                }
                let bytes = [IoSlice::new(&frame[sent..])];
                Ok(rustix::net::sendmsg(stream, &bytes, &mut ancillary, SendFlags::NOSIGNAL)?)
            })
            .await
            .map_err(|e| Error::io("send on the control socket", e))?;
    }
    Ok(())
}

/// Receives the next message and its descriptors, which are closed on exec. `None`: the other side hung up. No
/// descriptors, where some belong to the message, when this process may not open that many.
///
/// # Cancel safety
/// None: the stream is of no use after a half-read frame.
pub(super) async fn receive(stream: &UnixStream) -> Result<Option<(Message, Vec<OwnedFd>)>> {
    let mut fds = Received::default();
    let mut prefix = [0; PREFIX];
    if !fill(stream, &mut prefix, &mut fds).await? {
        return Ok(None);
    }
    let size = u32::from_le_bytes([prefix[0], prefix[1], prefix[2], prefix[3]]) as usize;
    let (kind, count) = (prefix[4], usize::from(prefix[5]));
    if size > MOST || size > Message::most(kind) {
        return Err(malformed(format!("{size} bytes are more than a message of kind {kind} has")));
    }
    if prefix[6..] != [0, 0] {
        return Err(malformed("its reserved bytes are not zero"));
    }
    let mut body = vec![0; size];
    if !fill(stream, &mut body, &mut fds).await? && size > 0 {
        return Err(malformed("it is cut short"));
    }
    let message = Message::decode(kind, &body)?;
    let Received { mut fds, cut } = fds;
    if cut && count == message.fds() && fds.len() < count {
        // Those that came are of no use without the others.
        fds.clear();
        return Ok(Some((message, fds)));
    }
    if fds.len() != count || count != message.fds() {
        return Err(malformed(format!(
            "{} descriptors came with it, it announced {count}, {} belong to it",
            fds.len(),
            message.fds()
        )));
    }
    Ok(Some((message, fds)))
}

/// The descriptors that came so far.
#[derive(Default)]
struct Received {
    fds: Vec<OwnedFd>,
    /// The kernel closed some on their way, for this process may not have more.
    cut: bool,
}

/// Fills a buffer. `false`: the other side hung up before the first byte.
async fn fill(stream: &UnixStream, buffer: &mut [u8], received: &mut Received) -> Result<bool> {
    let mut done = 0;
    while done < buffer.len() {
        let got = stream
            .async_io(Interest::READABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
                let mut ancillary = RecvAncillaryBuffer::new(&mut space);
                let mut bytes = [IoSliceMut::new(&mut buffer[done..])];
                let got = rustix::net::recvmsg(stream, &mut bytes, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
                for message in ancillary.drain() {
                    if let RecvAncillaryMessage::ScmRights(fds) = message {
                        received.fds.extend(fds);
                    }
                }
                // The kernel closed what did not fit: into our room for the largest message, or under our limit.
                let cut = got.flags.contains(ReturnFlags::CTRUNC);
                received.cut |= cut;
                if received.fds.len() > MOST_FDS || (cut && received.fds.len() == MOST_FDS) {
                    return Ok(None);
                }
                Ok(Some(got.bytes))
            })
            .await;
        match got {
            Ok(None) => return Err(malformed(format!("more than {MOST_FDS} descriptors came with it"))),
            Ok(Some(0)) if done == 0 => return Ok(false),
            Ok(Some(0)) => return Err(malformed("it is cut short")),
            Ok(Some(got)) => done += got,
            Err(e) if done == 0 && e.kind() == std::io::ErrorKind::ConnectionReset => return Ok(false),
            Err(e) => return Err(Error::io("receive on the control socket", e)),
        }
    }
    Ok(true)
}

/// The one descriptor, or the two, of a message.
///
/// # Errors
/// [`Error::Limit`] when they could not be received.
pub(super) fn exactly<const N: usize>(fds: Vec<OwnedFd>) -> Result<[OwnedFd; N]> {
    if fds.is_empty() {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.map_or_else(|| "unlimited".into(), |limit| limit.to_string());
        return Err(Error::Limit {
            what: format!("cannot receive {N} descriptors from a peer: {limit} open files (RLIMIT_NOFILE)"),
            next: "raise it with ulimit -n".into(),
        });
    }
    fds.try_into()
        .map_err(|fds: Vec<_>| malformed(format!("{} descriptors where {N} are expected", fds.len())))
}

/// Borrows descriptors for [`send`].
pub(super) fn borrow(fds: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    fds.iter().map(AsFd::as_fd).collect()
}
