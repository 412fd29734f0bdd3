//! Plain copies in the place of our side, on shared memory: what the harness itself adds to or takes from a figure.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use transom_registry::{Error, Result};

use super::connect::wait_readable;
use super::copy::Segment;
use super::memory::{Mapping, Shared, Source, Span, memory_file};
use super::{Spin, Wait};
use crate::perf::subject::{Setup, Subject};

/// Words per rank on the page of signals; the last one holds the rank's process number.
const SIGNALS: usize = 8;
const LINE: usize = 128;
/// From this size on copies go past the cache.
#[cfg(target_arch = "x86_64")]
const LARGE: usize = 4 << 20;

/// A window of two ranks that checks bounds and nothing else. It only spins.
#[derive(Debug)]
pub(crate) struct Plain {
    shared: Shared,
    signals: Mapping,
    own: Mapping,
    rank: usize,
    invitation: String,
    yields: bool,
}

impl Plain {
    fn signal(&self, rank: usize, signal: usize) -> Result<&std::sync::atomic::AtomicU64> {
        self.signals.span().word((rank * SIGNALS + signal) * LINE)
    }

    fn peer(&self) -> Result<Span<'_>> {
        self.shared.part(1 - self.rank).ok_or_else(|| Error::invalid("plain", "there is no part"))
    }

    fn open_file(invitation: &str) -> Result<OwnedFd> {
        let file = OpenOptions::new().read(true).write(true).open(invitation);
        Ok(file.map_err(|e| Error::io(format!("open {invitation}"), e))?.into())
    }

    /// # Safety
    /// Both are valid for `size` bytes and do not overlap.
    #[inline]
    unsafe fn copy(to: *mut u8, from: *const u8, size: usize) {
        // SAFETY: the caller's promise; `stream` only where the machine has it.
        unsafe {
            match size {
                8 => to.cast::<u64>().write_unaligned(from.cast::<u64>().read_unaligned()),
                #[cfg(target_arch = "x86_64")]
                LARGE.. if std::is_x86_feature_detected!("avx2") => super::copy::stream(to, from, size),
                _ => std::ptr::copy_nonoverlapping(from, to, size),
            }
        }
    }
}

impl Subject for Plain {
    type Meeting = OwnedFd;
    type List = Vec<Segment>;

    fn meet(setup: &Setup) -> Result<(OwnedFd, String)> {
        if setup.wait == Wait::Sleep {
            return Err(Error::invalid("perf", "--self-check only spins"));
        }
        let fd = memory_file(Shared::file_size([setup.size; 2]) + 2 * SIGNALS * LINE)?;
        let invitation = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
        Ok((fd, invitation))
    }

    fn open(setup: &Setup, invitation: &str) -> Result<Self> {
        let fd = Self::open_file(invitation)?;
        let shared = Shared::map(&fd, [setup.size; 2])?;
        let signals = Mapping::file(fd.as_fd(), Shared::file_size([setup.size; 2]), 2 * SIGNALS * LINE)?;
        let (rank, invitation) = (setup.rank as usize, invitation.to_owned());
        // Only the rank that measures has a buffer.
        let own = Mapping::alone(if rank == 0 { setup.size } else { 1 })?;
        let yields = std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2);
        let plain = Self { shared, signals, own, rank, invitation, yields };
        let id = getpid().as_raw_nonzero().get() as u64;
        plain.signal(rank, SIGNALS - 1)?.store(id, Ordering::Release);
        Ok(plain)
    }

    fn target(&self) -> Option<Span<'_>> {
        self.shared.part(1 - self.rank)
    }

    fn local(&self) -> Span<'_> {
        self.shared.part(self.rank).unwrap_or(self.signals.span())
    }

    fn source(&self) -> Option<Source<'_>> {
        // SAFETY: no other process has this mapping; the harness asks once, and `post`, which reads it, is never called
        // while a slice of it is borrowed.
        Some(unsafe { Source::new(self.own.span()) })
    }

    #[inline]
    fn put(&self, _: u32, offset: u64, bytes: &[u8]) -> Result<()> {
        let to = self.peer()?.at(offset as usize, bytes.len())?;
        // SAFETY: checked by `at`; the slice is not in the window.
        unsafe { Self::copy(to, bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    #[inline]
    fn get(&self, _: u32, offset: u64, into: &mut [u8]) -> Result<()> {
        let from = self.peer()?.at(offset as usize, into.len())?;
        // SAFETY: checked by `at`; the slice is not in the window.
        unsafe { Self::copy(into.as_mut_ptr(), from, into.len()) };
        Ok(())
    }

    #[inline]
    fn flush(&self, _: u32) -> Result<()> {
        fence(Ordering::SeqCst);
        Ok(())
    }

    #[inline]
    fn put_signal(&self, rank: u32, offset: u64, bytes: &[u8], signal: u32) -> Result<()> {
        self.put(rank, offset, bytes)?;
        self.signal(1 - self.rank, signal as usize)?.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    #[inline]
    fn wait_signal(&self, signal: u32, value: u64) -> Result<()> {
        let word = self.signal(self.rank, signal as usize)?;
        let mut spin = Spin::new(self.yields);
        while word.load(Ordering::Acquire) < value {
            spin.pause()?;
        }
        Ok(())
    }

    #[inline]
    fn load(&self, offset: u64) -> Result<u64> {
        Ok(self.local().word(offset as usize)?.load(Ordering::Relaxed))
    }

    #[inline]
    fn fetch_add(&self, _: u32, offset: u64, value: u64) -> Result<u64> {
        Ok(self.peer()?.word(offset as usize)?.fetch_add(value, Ordering::SeqCst))
    }

    fn accumulate(&self, _: u32, offset: u64, values: &[f32]) -> Result<()> {
        super::add::add_once(self.peer()?, offset as usize, values)
    }

    fn list(&self, _: u32, segments: &[Segment]) -> Result<Vec<Segment>> {
        for segment in segments {
            self.peer()?.at(segment.to, segment.size)?;
            self.own.span().at(segment.from, segment.size)?;
        }
        Ok(segments.to_vec())
    }

    fn post(&self, list: &Vec<Segment>) -> Result<()> {
        let (to, from) = (self.peer()?.start(), self.own.span().start());
        for segment in list {
            // SAFETY: every segment was checked by `list`, against mappings that have not changed since.
            unsafe {
                std::ptr::copy_nonoverlapping(from.add(segment.from), to.add(segment.to), segment.size)
            };
        }
        Ok(())
    }

    fn reconnect(&self, _: u32) -> Result<()> {
        let fd = Self::open_file(&self.invitation)?;
        Mapping::file(fd.as_fd(), 0, self.own.span().size()).map(drop)
    }

    fn wait_failure(&self, _: u32, limit: Duration) -> Result<()> {
        let id = self.signal(1 - self.rank, SIGNALS - 1)?.load(Ordering::Acquire);
        let id = Pid::from_raw(id as i32).ok_or_else(|| Error::invalid("plain", "the peer has not come"))?;
        let pidfd = pidfd_open(id, PidfdFlags::empty()).map_err(|e| Error::io("watch the peer", e))?;
        wait_readable(pidfd.as_fd(), limit)
    }
}
