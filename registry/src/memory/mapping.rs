//! A shared mapping that unmaps itself.

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// A range of addresses that shows a range of a descriptor, until it is dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    ptr: NonNull<u8>,
    size: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; this type only tells its address and unmaps it once.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method changes the value through a shared reference.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `size` bytes (not zero, whole pages of what `fd` is made of) from `offset` on, shared.
    ///
    /// Mapping is safe: it takes addresses that nothing uses, and hands out no reference. Whether the bytes can be
    /// touched is up to the caller: they have to lie inside the file.
    pub(super) fn new(fd: BorrowedFd<'_>, offset: u64, size: usize, writable: bool) -> Result<Self, Errno> {
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        Self::with_flags(fd, offset, size, prot, MapFlags::SHARED)
    }

    /// Maps `size` bytes from the beginning, for reading and writing, with every page present.
    ///
    /// Before Linux 5.14 the kernel does not say whether it found all the pages.
    pub(super) fn populated(fd: BorrowedFd<'_>, size: usize) -> Result<Self, Errno> {
        let mapping = Self::new(fd, 0, size, true)?;
        // SAFETY: the range is this mapping, whole; populating changes no byte.
        match unsafe { rustix::mm::madvise(mapping.start(), size, Advice::LinuxPopulateWrite) } {
            Ok(()) => Ok(mapping),
            Err(Errno::INVAL) => {
                drop(mapping);
                let flags = MapFlags::SHARED | MapFlags::POPULATE;
                Self::with_flags(fd, 0, size, ProtFlags::READ | ProtFlags::WRITE, flags)
            }
            Err(errno) => Err(errno),
        }
    }

    fn with_flags(
        fd: BorrowedFd<'_>,
        offset: u64,
        size: usize,
        prot: ProtFlags,
        flags: MapFlags,
    ) -> Result<Self, Errno> {
        // SAFETY: no address is asked for and MAP_FIXED is not set, so the kernel takes addresses that are free.
        let ptr = unsafe { rustix::mm::mmap(std::ptr::null_mut(), size, prot, flags, fd, offset) }?;
        let ptr = NonNull::new(ptr.cast::<u8>()).ok_or(Errno::NOMEM)?;
        Ok(Self { ptr, size })
    }

    /// Writes `size` bytes from `offset` on back to the file and waits for it. `offset` is a multiple of the page
    /// size, and the range lies in the mapping.
    pub(super) fn sync(&self, offset: usize, size: usize) -> Result<(), Errno> {
        debug_assert!(offset <= self.size && size <= self.size - offset);
        // SAFETY: the range lies in this mapping; writing back changes no byte.
        unsafe {
            rustix::mm::msync(
                self.start().cast::<u8>().add(offset).cast(),
                size,
                rustix::mm::MsyncFlags::SYNC,
            )
        }
    }

    pub(super) fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    fn start(&self) -> *mut c_void {
        self.ptr.as_ptr().cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` with this size, and whoever kept the address keeps this value too.
        // It can only fail when splitting a mapping, which unmapping the whole of it does not.
        let _ = unsafe { rustix::mm::munmap(self.start(), self.size) };
    }
}
