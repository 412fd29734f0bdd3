//! The one place where the kernel writes into exposed memory, and where it is read without a copy.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use transom_registry::Result;
use transom_registry::element::{Dtype, Reduce};
use transom_registry::exposed::{Exposed, Locker};

use super::protect::Sum;

/// Receives straight into `size` bytes of exposed memory at `offset`, and what comes after those into `behind`. Never
/// waits. Returns how many bytes came in all; 0 is the end of the stream.
///
/// # Errors
/// The system call's; `InvalidInput` for a range that is not there or cannot be written.
pub(crate) fn receive(
    socket: impl AsFd,
    exposed: &Exposed,
    offset: u64,
    size: usize,
    behind: &mut [u8],
) -> io::Result<usize> {
    let base = place(exposed, offset, size, true)?;
    let mut parts = [
        libc::iovec { iov_base: base.cast(), iov_len: size },
        libc::iovec { iov_base: behind.as_mut_ptr().cast(), iov_len: behind.len() },
    ];
    // SAFETY: a message header of zeros is one without name, control data and parts.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    // SAFETY: both parts are valid for writes for the length of the call: the first is inside the exposed range, as
    // checked by `place`, whose memory `exposed` keeps; the second is a slice of ours. The message is ours too.
    let got = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Continues a sum over exposed memory. Bytes that somebody changes meanwhile give a wrong sum, and nothing worse.
///
/// # Errors
/// `InvalidInput` for a range that is not there.
pub(crate) fn sum(sum: &mut Sum, exposed: &Exposed, offset: u64, size: usize) -> io::Result<()> {
    let base = place(exposed, offset, size, false)?;
    // SAFETY: inside the exposed range, as checked by `place`; the bytes are plain loads of the checksum or the MAC, and
    // nothing but the sum depends on them.
    sum.add(unsafe { std::slice::from_raw_parts(base, size) });
    Ok(())
}

fn place(exposed: &Exposed, offset: u64, size: usize, write: bool) -> io::Result<*mut u8> {
    let limit = exposed.size() as u64;
    let host = exposed.kind() != transom_registry::Kind::Device && (!write || exposed.is_writable());
    if !host || size as u64 > limit || offset > limit - size as u64 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: inside the range, as checked above.
    Ok(unsafe { exposed.as_ptr().add(offset as usize) })
}

/// Reduces received bytes into exposed memory.
///
/// # Errors
/// As for [`Exposed::accumulate`].
pub(crate) fn accumulate(
    exposed: &Exposed,
    dtype: Dtype,
    reduce: Reduce,
    offset: u64,
    bytes: &[u8],
    by: Locker,
) -> Result<()> {
    // SAFETY: a slice is valid for reads, and no reference into exposed memory exists: they do not overlap.
    unsafe { exposed.accumulate(dtype, reduce, offset, bytes.as_ptr(), bytes.len(), by) }
}
