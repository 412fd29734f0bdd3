//! Raw sockets: a framed ping-pong, a stream with and without a checksum on both sides, and one writev loop.

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Instant;

use transom_registry::{Error, Result};

use super::copy::Segment;
use super::memory::Span;
use super::{LIMIT, Spin, Wait, silent, wrong_payload};

/// What goes in front of each payload of the ping-pong, in bytes.
pub(crate) const HEADER: usize = 32;
/// What one call sends of a stream, in bytes.
pub(crate) const CHUNK: usize = 256 << 10;
/// How many parts one call may have.
const PARTS: usize = 1024;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Out,
    In,
}

/// A connected socket, polled or slept on.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    wait: Wait,
    yields: bool,
}

impl Wire {
    /// Takes a connected socket.
    pub(crate) fn new(stream: TcpStream, wait: Wait, yields: bool) -> Result<Self> {
        stream.set_nodelay(true).map_err(|e| Error::io("set TCP_NODELAY", e))?;
        stream.set_read_timeout(Some(LIMIT)).map_err(|e| Error::io("set a receive timeout", e))?;
        stream.set_write_timeout(Some(LIMIT)).map_err(|e| Error::io("set a send timeout", e))?;
        Ok(Self { stream, wait, yields })
    }

    /// Sends frames of `out` payload bytes and waits for frames of `back`, `rounds` times.
    pub(crate) fn drive(&self, rounds: u64, out: usize, back: usize) -> Result<()> {
        let (mut sent, mut seen) = (vec![0; HEADER + out], vec![0; HEADER + back]);
        for i in 1..=rounds {
            sent[..8].copy_from_slice(&i.to_ne_bytes());
            self.send(&mut sent)?;
            self.receive(&mut seen)?;
            check(&seen, i)?;
        }
        Ok(())
    }

    /// Waits for frames of `out` payload bytes and answers with frames of `back`, `rounds` times.
    pub(crate) fn answer(&self, rounds: u64, out: usize, back: usize) -> Result<()> {
        let (mut seen, mut sent) = (vec![0; HEADER + out], vec![0; HEADER + back]);
        for i in 1..=rounds {
            self.receive(&mut seen)?;
            check(&seen, i)?;
            sent[..8].copy_from_slice(&i.to_ne_bytes());
            self.send(&mut sent)?;
        }
        Ok(())
    }

    /// Sends all of `memory` `count` times in pieces of at most [`CHUNK`], each followed by its checksum if asked for.
    pub(crate) fn stream_out(&self, memory: Span<'_>, count: u64, checked: bool) -> Result<()> {
        for _ in 0..count {
            let mut done = 0;
            while done < memory.size() {
                let size = CHUNK.min(memory.size() - done);
                let at = memory.at(done, size)?;
                let crc = if checked {
                    // SAFETY: `size` bytes inside the view, which nobody writes while they are sent.
                    crc_fast::crc32_iscsi(unsafe { std::slice::from_raw_parts(at, size) })
                } else {
                    0
                };
                let mut tail = crc.to_le_bytes();
                let mut parts = [part(at, size), part(tail.as_mut_ptr(), if checked { 4 } else { 0 })];
                // SAFETY: both parts are live for the call, the first as checked above.
                unsafe { self.all(Way::Out, &mut parts)? };
                done += size;
            }
        }
        Ok(())
    }

    /// Receives what [`stream_out`](Self::stream_out) sends straight into `memory`; the checksum is computed over
    /// each piece while it is hot.
    pub(crate) fn stream_in(&self, memory: Span<'_>, count: u64, checked: bool) -> Result<()> {
        for _ in 0..count {
            let mut done = 0;
            while done < memory.size() {
                let size = CHUNK.min(memory.size() - done);
                self.piece_in(memory.at(done, size)?, size, checked)?;
                done += size;
            }
        }
        Ok(())
    }

    fn piece_in(&self, at: *mut u8, size: usize, checked: bool) -> Result<()> {
        let mut tail = [0u8; 4];
        let end = size + if checked { 4 } else { 0 };
        let (mut done, mut crc) = (0, crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi));
        while done < end {
            let body = done.min(size);
            // SAFETY: `body <= size`, and `at` is valid for `size` bytes (the caller checked); the tail is 4 bytes.
            let mut parts = unsafe {
                [
                    part(at.add(body), size - body),
                    part(tail.as_mut_ptr().add(done - body), end - size - (done - body)),
                ]
            };
            // SAFETY: as above.
            let got = unsafe { self.some(Way::In, &mut parts)? };
            if checked && done < size {
                // SAFETY: these bytes were just received, and only this thread writes them.
                let fresh = unsafe { std::slice::from_raw_parts(at.add(done), got.min(size - done)) };
                crc.update(fresh);
            }
            done += got;
        }
        let crc = crc.finalize() as u32;
        if checked && u32::from_le_bytes(tail) != crc {
            return Err(Error::Malformed {
                what: "a piece of a stream",
                why: format!("its checksum is {crc:08x}, not {:08x}", u32::from_le_bytes(tail)),
            });
        }
        Ok(())
    }

    /// Sends every segment of `memory`, in writev calls of many parts, `count` times.
    pub(crate) fn segments_out(&self, memory: Span<'_>, list: &[Segment], count: u64) -> Result<()> {
        self.segments(Way::Out, memory, list, count, |s| s.from)
    }

    /// Receives every segment to its place in `memory`, `count` times.
    pub(crate) fn segments_in(&self, memory: Span<'_>, list: &[Segment], count: u64) -> Result<()> {
        self.segments(Way::In, memory, list, count, |s| s.to)
    }

    fn segments(
        &self,
        way: Way,
        memory: Span<'_>,
        list: &[Segment],
        count: u64,
        place: impl Fn(&Segment) -> usize,
    ) -> Result<()> {
        let mut parts = Vec::with_capacity(PARTS);
        for _ in 0..count {
            for some in list.chunks(PARTS) {
                parts.clear();
                for segment in some {
                    parts.push(part(memory.at(place(segment), segment.size)?, segment.size));
                }
                // SAFETY: every part is inside the view, checked above.
                unsafe { self.all(way, &mut parts)? };
            }
        }
        Ok(())
    }

    /// Sends one byte: everything before it was applied, or this side is ready.
    pub(crate) fn nod(&self) -> Result<()> {
        self.send(&mut [1])
    }

    /// Waits for one byte.
    pub(crate) fn wait_for_nod(&self) -> Result<()> {
        self.receive(&mut [0])
    }

    /// Waits until the other side has closed or is gone.
    pub(crate) fn wait_for_end(&self) -> Result<()> {
        match self.receive(&mut [0]) {
            Err(Error::Failed(_) | Error::Io { .. }) => Ok(()),
            Err(e) => Err(e),
            Ok(()) => {
                Err(Error::Malformed { what: "the stream", why: "a byte came instead of its end".into() })
            }
        }
    }

    fn send(&self, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: the part is the slice.
        unsafe { self.all(Way::Out, &mut [part(bytes.as_mut_ptr(), bytes.len())]) }
    }

    fn receive(&self, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: the part is the slice.
        unsafe { self.all(Way::In, &mut [part(bytes.as_mut_ptr(), bytes.len())]) }
    }

    /// Moves all bytes of the parts.
    ///
    /// # Safety
    /// Every part is valid for its size: for reads (out) or for writes (in).
    unsafe fn all(&self, way: Way, mut parts: &mut [libc::iovec]) -> Result<()> {
        loop {
            while let [first, ..] = parts
                && first.iov_len == 0
            {
                parts = &mut parts[1..];
            }
            if parts.is_empty() {
                return Ok(());
            }
            // SAFETY: the caller's promise; parts only shrink.
            let mut moved = unsafe { self.some(way, parts)? };
            for part in parts.iter_mut() {
                let here = moved.min(part.iov_len);
                // SAFETY: `here` is inside the part.
                part.iov_base = unsafe { part.iov_base.byte_add(here) };
                part.iov_len -= here;
                moved -= here;
                if moved == 0 {
                    break;
                }
            }
        }
    }

    /// Moves at least one byte.
    ///
    /// # Safety
    /// As [`all`](Self::all).
    unsafe fn some(&self, way: Way, parts: &mut [libc::iovec]) -> Result<usize> {
        // SAFETY: all zeroes is a valid header: no name, no parts, no control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len() as _;
        let flags = libc::MSG_NOSIGNAL | if self.wait == Wait::Spin { libc::MSG_DONTWAIT } else { 0 };
        let fd = self.stream.as_raw_fd();
        let mut spin = Spin::new(self.yields);
        let began = if self.wait == Wait::Sleep { Some(Instant::now()) } else { None };
        loop {
            // SAFETY: the header points at `parts`, whose memory is valid (the caller's promise).
            let moved = unsafe {
                match way {
                    Way::Out => libc::sendmsg(fd, &raw const message, flags),
                    Way::In => libc::recvmsg(fd, &raw mut message, flags),
                }
            };
            match moved {
                1.. => return Ok(moved as usize),
                0 => return Err(ended()),
                _ => {}
            }
            let error = std::io::Error::last_os_error();
            match error.kind() {
                std::io::ErrorKind::Interrupted => {}
                std::io::ErrorKind::WouldBlock => match began {
                    Some(began) => return Err(silent("raw socket", began.elapsed())),
                    None => spin.pause()?,
                },
                _ => return Err(Error::io("use a raw socket", error)),
            }
        }
    }
}

fn part(base: *mut u8, size: usize) -> libc::iovec {
    libc::iovec { iov_base: base.cast(), iov_len: size }
}

#[cold]
fn ended() -> Error {
    use transom_registry::{Cause, Failure, Outcome};
    let failure = Failure::new(None, Cause::ConnectionLost, "the raw socket was closed");
    Error::failed("raw socket", Outcome::InDoubt, failure)
}

fn check(frame: &[u8], expected: u64) -> Result<()> {
    let mut word = [0; 8];
    word.copy_from_slice(&frame[..8]);
    let seen = u64::from_ne_bytes(word);
    if seen == expected { Ok(()) } else { Err(wrong_payload(seen, expected)) }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::super::copy::segments;
    use super::super::memory::{Mapping, Source};
    use super::*;

    fn pair(wait: Wait) -> (Wire, Wire) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (two, _) = listener.accept().unwrap();
        (Wire::new(one, wait, true).unwrap(), Wire::new(two, wait, true).unwrap())
    }

    fn filled(size: usize) -> Mapping {
        let mapping = Mapping::alone(size).unwrap();
        // SAFETY: nobody else has this mapping yet.
        let mut source = unsafe { Source::new(mapping.span()) };
        for (i, byte) in source.bytes_mut(0, size).unwrap().iter_mut().enumerate() {
            *byte = (i % 251) as u8;
        }
        mapping
    }

    fn bytes(mapping: &Mapping) -> Vec<u8> {
        // SAFETY: no transfer is running when the test asks.
        unsafe { Source::new(mapping.span()) }.bytes(0, mapping.span().size()).unwrap().to_vec()
    }

    #[test]
    fn streams_and_frames_arrive_whole_both_when_polled_and_when_slept_on() {
        for wait in [Wait::Spin, Wait::Sleep] {
            for checked in [false, true] {
                let (one, two) = pair(wait);
                let (from, to) = (filled(CHUNK * 2 + 4096), Mapping::alone(CHUNK * 2 + 4096).unwrap());
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        two.answer(5, 8, 100).unwrap();
                        two.stream_in(to.span(), 2, checked).unwrap();
                        two.nod().unwrap();
                    });
                    one.drive(5, 8, 100).unwrap();
                    one.stream_out(from.span(), 2, checked).unwrap();
                    one.wait_for_nod().unwrap();
                });
                assert_eq!(bytes(&from), bytes(&to));
                drop(one);
                two.wait_for_end().unwrap();
            }
        }
    }

    #[test]
    fn segments_arrive_at_their_places() {
        let (one, two) = pair(Wait::Spin);
        let list = segments(3000, 64);
        let size = 3000 * 64 * 2;
        let (from, to) = (filled(size), Mapping::alone(size).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| two.segments_in(to.span(), &list, 1).unwrap());
            one.segments_out(from.span(), &list, 1).unwrap();
        });
        let (from, to) = (bytes(&from), bytes(&to));
        for s in &list {
            assert_eq!(from[s.from..s.from + s.size], to[s.to..s.to + s.size]);
        }
    }
}
