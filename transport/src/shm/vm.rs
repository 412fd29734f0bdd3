//! Copies between the address spaces of two processes of this host, by the kernel.

use std::sync::Arc;

use rustix::io::Errno;
use transom_registry::{Cause, Error, Failure, Incarnation, Outcome, Result, Slice};

use super::socket::unusable;
use crate::backend::Source;

/// Most ranges in one call (`IOV_MAX`).
const MOST_RANGES: usize = 1024;
/// Most bytes in one call: the kernel takes a little less than 2 GiB.
const MOST_BYTES: u64 = 1 << 30;

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// From here to the other process.
    Put,
    /// From the other process to here.
    Get,
}

/// A range of another process's memory that was reached once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reach {
    peer: Incarnation,
    pid: i32,
    address: u64,
    size: u64,
}

/// What an owner told of a range that it keeps for us.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// Where the range begins in its address space.
    pub(super) address: u64,
    /// Its size in bytes.
    pub(super) size: u64,
    /// Where these bytes are.
    pub(super) nonce_address: u64,
    /// Bytes that only the right process has there.
    pub(super) nonce: [u8; 16],
}

impl Reach {
    /// Proves that the kernel copies between us and the owner, and that `pid` is the owner and no other process.
    ///
    /// # Errors
    /// [`Error::Unusable`], so that another transport is tried.
    pub(super) fn prove(peer: Incarnation, pid: Option<i32>, place: Place) -> Result<Self> {
        let pid =
            pid.ok_or_else(|| unusable("the owner is in a process namespace that is not seen from here"))?;
        let refused = |errno: Errno| {
            unusable(format!(
                "process_vm_readv of process {pid}: {} (another user or container, or kernel.yama.ptrace_scope is \
                 not 0: memory that transom allocates needs neither)",
                std::io::Error::from_raw_os_error(errno.raw_os_error())
            ))
        };
        let seen: [u8; 16] = peek(pid, place.nonce_address).map_err(refused)?;
        if seen != place.nonce {
            return Err(unusable(format!(
                "process {pid} is not the owner, as seen from this process namespace"
            )));
        }
        if place.size > 0 {
            peek::<1>(pid, place.address).map_err(refused)?;
        }
        if place.address.checked_add(place.size).is_none_or(|end| end > 1 << 62) {
            return Err(unusable(format!("{} bytes at {:#x} are no range", place.size, place.address)));
        }
        Ok(Self { peer, pid, address: place.address, size: place.size })
    }

    /// Writes consecutive bytes of the source to these (offset, size) parts.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Failed`] with what the kernel says.
    pub(super) fn put(&self, operation: &'static str, parts: &[(u64, u64)], from: &Source<'_>) -> Result<()> {
        let (local, size) = match from {
            Source::Borrowed(bytes) => (bytes.as_ptr().cast_mut(), bytes.len()),
            Source::Owned(slice) => (slice.as_ptr(), slice.size()),
        };
        let ranges = self.ranges(operation, parts, size)?;
        // SAFETY: the source is valid for `size` bytes, which are only read; the ranges are inside the region that the
        // owner keeps for as long as we hold its key, into which no references exist.
        let done = unsafe { copy(self.pid, Way::Put, ranges, local, size) };
        done.map_err(|(errno, moved)| self.failed(operation, errno, moved))
    }

    /// Reads these (offset, size) parts into consecutive bytes of the slice.
    ///
    /// # Errors
    /// As for [`Reach::put`].
    pub(super) fn get(&self, operation: &'static str, parts: &[(u64, u64)], into: &Slice) -> Result<()> {
        let ranges = self.ranges(operation, parts, into.size())?;
        // SAFETY: the slice is valid for its size, and exposed: no reference to its bytes exists. The ranges are as in
        // `put`, and only read. That the slice can be written was checked above, else the kernel refuses.
        let done = unsafe { copy(self.pid, Way::Get, ranges, into.as_ptr(), into.size()) };
        done.map_err(|(errno, moved)| self.failed(operation, errno, moved))
    }

    fn ranges<'a>(
        &self,
        operation: &'static str,
        parts: &'a [(u64, u64)],
        size: usize,
    ) -> Result<impl Iterator<Item = (u64, u64)> + use<'a>> {
        let mut total = 0_u64;
        for &(offset, size) in parts {
            if size > self.size || offset > self.size - size {
                return Err(Error::OutOfRange { operation, offset, size, limit: self.size });
            }
            total = total.saturating_add(size);
        }
        if total != size as u64 {
            return Err(Error::invalid(operation, format!("{size} bytes are given for parts of {total}")));
        }
        let address = self.address;
        Ok(parts.iter().map(move |&(offset, size)| (address + offset, size)))
    }

    fn failed(&self, operation: &'static str, errno: Errno, moved: u64) -> Error {
        let observed =
            format!("the kernel's copy to or from process {} stopped after {moved} bytes", self.pid);
        let cause = match errno {
            Errno::SRCH => Cause::Exited(None),
            other => Cause::LocalIo(other.raw_os_error()),
        };
        let outcome = if moved == 0 { Outcome::NotApplied } else { Outcome::InDoubt };
        let failure: Arc<Failure> = Failure::new(Some(self.peer), cause, observed);
        Error::failed(operation, outcome, failure)
    }
}

/// Copies between consecutive bytes at `local` and these (address, size) ranges of the process `pid`, in any number of
/// calls. The ranges' sizes sum up to at most `size`.
///
/// # Errors
/// The kernel's error, and how many bytes were copied before it.
///
/// # Safety
/// - `local` is valid for `size` bytes: for reads with [`Way::Put`], for writes with [`Way::Get`];
/// - no Rust reference exists to the local bytes when they are written;
/// - the ranges are exposed memory of the other process.
unsafe fn copy(
    pid: i32,
    way: Way,
    ranges: impl Iterator<Item = (u64, u64)>,
    local: *mut u8,
    size: usize,
) -> Result<(), (Errno, u64)> {
    let mut done = 0_u64;
    let mut ranges = ranges.filter(|(_, size)| *size > 0);
    let mut rest: Option<(u64, u64)> = None;
    let mut batch: Vec<libc::iovec> = Vec::new();
    loop {
        batch.clear();
        let mut bytes = 0_u64;
        while batch.len() < MOST_RANGES && bytes < MOST_BYTES {
            let Some((address, left)) = rest.take().or_else(|| ranges.next()) else { break };
            let take = left.min(MOST_BYTES - bytes);
            batch.push(libc::iovec { iov_base: address as *mut libc::c_void, iov_len: take as usize });
            bytes += take;
            if take < left {
                rest = Some((address + take, left - take));
            }
        }
        if batch.is_empty() {
            return Ok(());
        }
        if done + bytes > size as u64 {
            return Err((Errno::INVAL, done));
        }
        let mut from = 0;
        while from < batch.len() {
            let want: usize = batch[from..].iter().map(|r| r.iov_len).sum();
            let here = libc::iovec { iov_base: local.wrapping_add(done as usize).cast(), iov_len: want };
            let call = match way {
                Way::Put => libc::process_vm_writev,
                Way::Get => libc::process_vm_readv,
            };
            // SAFETY: the local range is inside `local` (`done + want` is at most `size`, checked above); the remote
            // one is another address space's (the caller's promise), where the kernel checks every page.
            let moved = unsafe {
                call(pid, &raw const here, 1, batch[from..].as_ptr(), (batch.len() - from) as _, 0)
            };
            let Ok(moved) = usize::try_from(moved) else {
                match Errno::from_io_error(&std::io::Error::last_os_error()) {
                    Some(Errno::INTR) => continue,
                    errno => return Err((errno.unwrap_or(Errno::IO), done)),
                }
            };
            if moved == 0 {
                return Err((Errno::FAULT, done));
            }
            done += moved as u64;
            // A call may stop inside of any range: go on behind what was moved.
            let mut left = moved;
            while left > 0 && from < batch.len() {
                let range = &mut batch[from];
                if left >= range.iov_len {
                    left -= range.iov_len;
                    from += 1;
                } else {
                    range.iov_base = range.iov_base.cast::<u8>().wrapping_add(left).cast();
                    range.iov_len -= left;
                    left = 0;
                }
            }
        }
    }
}

/// Reads a few bytes of the process `pid`.
///
/// # Errors
/// The kernel's.
fn peek<const N: usize>(pid: i32, address: u64) -> Result<[u8; N], Errno> {
    let mut bytes = [0; N];
    // SAFETY: the local range is the whole array; reading changes nothing in the other process.
    unsafe { copy(pid, Way::Get, std::iter::once((address, N as u64)), bytes.as_mut_ptr(), N) }
        .map_err(|(errno, _)| errno)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn me() -> i32 {
        std::process::id() as i32
    }

    #[test]
    fn thousands_of_ranges_are_copied_in_batches_both_ways() {
        const PARTS: usize = 3000;
        let mut there = vec![0_u8; PARTS * 8];
        let base = there.as_mut_ptr();
        let mut here: Vec<u8> = (0..PARTS * 3).map(|i| i as u8).collect();
        let ranges =
            || (0..PARTS).rev().map(|i| (base.wrapping_add(i * 8).addr() as u64, (i % 2 * 6) as u64));
        // SAFETY: both vectors are larger than what is copied, and not touched meanwhile.
        unsafe { copy(me(), Way::Put, ranges(), here.as_mut_ptr(), here.len()) }.unwrap();
        let mut back = vec![0_u8; PARTS * 3];
        // SAFETY: as above.
        unsafe { copy(me(), Way::Get, ranges(), back.as_mut_ptr(), back.len()) }.unwrap();
        assert_eq!(here, back);
        assert_eq!(there[PARTS * 8 - 8..PARTS * 8 - 2], [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn memory_that_is_not_there_is_an_error_with_what_was_copied() {
        let mut there = [0_u8; 8];
        let ranges = [(there.as_mut_ptr().addr() as u64, 8), (8, 8)];
        let mut here = [1_u8; 16];
        // SAFETY: both arrays are as large as what is copied; nothing is at address 8.
        let failed = unsafe { copy(me(), Way::Put, ranges.into_iter(), here.as_mut_ptr(), 16) };
        assert_eq!(failed, Err((Errno::FAULT, 8)));
        assert_eq!(peek::<1>(me(), 8), Err(Errno::FAULT));
        assert_eq!(peek::<8>(me(), there.as_ptr().addr() as u64), Ok([1; 8]));
    }

    #[test]
    fn more_than_was_promised_is_not_copied() {
        let there = [0_u8; 8];
        let mut here = [0_u8; 4];
        let ranges = std::iter::once((there.as_ptr().addr() as u64, 8));
        // SAFETY: refused before anything is copied.
        let refused = unsafe { copy(me(), Way::Get, ranges, here.as_mut_ptr(), 4) };
        assert_eq!(refused, Err((Errno::INVAL, 0)));
    }
}
