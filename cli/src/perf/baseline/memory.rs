//! Memory for the baselines: mappings, checked views of them, and the private buffer that puts are read from.

use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use transom_registry::{Error, Result};

/// A memory file of `size` bytes that other processes can map.
pub(crate) fn memory_file(size: usize) -> Result<OwnedFd> {
    let fd = memfd_create("transom-perf", MemfdFlags::CLOEXEC)
        .map_err(|e| Error::io("create a memory file", e))?;
    ftruncate(&fd, size as u64).map_err(|e| Error::io(format!("size a memory file to {size} bytes"), e))?;
    Ok(fd)
}

/// Mapped, populated, shared memory; unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; all access goes through raw pointers or atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `size` bytes of a file from `offset`, a multiple of the page size.
    pub(crate) fn file(fd: BorrowedFd<'_>, offset: usize, size: usize) -> Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses the address, so no existing mapping is touched.
        let base = unsafe {
            mmap(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, flags, fd, offset as u64)
        };
        Self::checked(base, size)
    }

    /// Maps `size` bytes that no other process sees, of the same kind of pages as a memory file has.
    pub(crate) fn alone(size: usize) -> Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses the address, so no existing mapping is touched.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, flags) };
        Self::checked(base, size)
    }

    fn checked(base: rustix::io::Result<*mut core::ffi::c_void>, size: usize) -> Result<Self> {
        let base = base.map_err(|e| Error::io(format!("map {size} bytes"), e))?;
        match NonNull::new(base.cast()) {
            Some(base) => Ok(Self { base, size }),
            None => Err(Error::invalid("map", "the kernel gave address 0")),
        }
    }

    /// All of it.
    pub(crate) fn span(&self) -> Span<'_> {
        // SAFETY: the mapping is live and writable for as long as `self` is borrowed.
        unsafe { Span::new(self.base, self.size) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this range was mapped by `file` or `alone`, and spans borrow `self`, so that none is left. An error
        // would leave the range mapped, which harms nobody.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.size) };
    }
}

/// A view of memory that another process may write at any time: raw pointers only, bounds checked once per batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span<'a> {
    base: NonNull<u8>,
    size: usize,
    life: PhantomData<&'a Mapping>,
}

// SAFETY: a view is an address of a mapping of the whole process; every access through it is `unsafe` or atomic.
unsafe impl Send for Span<'_> {}
// SAFETY: as above.
unsafe impl Sync for Span<'_> {}

impl<'a> Span<'a> {
    /// Makes a view of `size` bytes at `base`.
    ///
    /// # Safety
    /// - `base` is valid for reads and writes of `size` bytes for all of `'a`;
    /// - no Rust reference to these bytes is used by other code during `'a`, except atomics.
    pub(crate) unsafe fn new(base: NonNull<u8>, size: usize) -> Self {
        Self { base, size, life: PhantomData }
    }

    /// Its size in bytes.
    pub(crate) fn size(self) -> usize {
        self.size
    }

    /// Its first byte.
    #[inline]
    pub(crate) fn start(self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Its part from `offset` on.
    pub(crate) fn part(self, offset: usize, size: usize) -> Result<Self> {
        let base = self.at(offset, size)?;
        // SAFETY: `at` returns a pointer inside this view, which is not null.
        Ok(Self { base: unsafe { NonNull::new_unchecked(base) }, size, life: PhantomData })
    }

    /// The address of `offset`, from where `size` bytes are inside the view.
    pub(crate) fn at(self, offset: usize, size: usize) -> Result<*mut u8> {
        if size > self.size || offset > self.size - size {
            return Err(Error::OutOfRange {
                operation: "baseline",
                offset: offset as u64,
                size: size as u64,
                limit: self.size as u64,
            });
        }
        // SAFETY: the offset is inside the view.
        Ok(unsafe { self.base.as_ptr().add(offset) })
    }

    /// The 64-bit word at `offset`.
    pub(crate) fn word(self, offset: usize) -> Result<&'a AtomicU64> {
        let at = self.aligned(offset, 8)?;
        // SAFETY: valid for `'a` (`new`), inside the view, aligned; other processes reach it with atomics only, or
        // with plain stores of whole words, which this machine does not tear.
        Ok(unsafe { AtomicU64::from_ptr(at.cast()) })
    }

    /// The 32-bit word at `offset`.
    pub(crate) fn half_word(self, offset: usize) -> Result<&'a AtomicU32> {
        let at = self.aligned(offset, 4)?;
        // SAFETY: as in `word`.
        Ok(unsafe { AtomicU32::from_ptr(at.cast()) })
    }

    fn aligned(self, offset: usize, size: usize) -> Result<*mut u8> {
        let at = self.at(offset, size)?;
        if !(at as usize).is_multiple_of(size) {
            return Err(Error::Misaligned {
                operation: "baseline",
                offset: offset as u64,
                align: size as u64,
            });
        }
        Ok(at)
    }
}

/// The private buffer of a rank: what puts are read from and gets are written to. No other process writes it.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    span: Span<'a>,
}

impl<'a> Source<'a> {
    /// Takes private memory as the buffer.
    ///
    /// # Safety
    /// For all of `'a`, no other process writes these bytes, and nobody else in this one holds a reference to them.
    pub(crate) unsafe fn new(span: Span<'a>) -> Self {
        Self { span }
    }

    /// The whole buffer as a view, for baselines.
    pub(crate) fn span(&self) -> Span<'a> {
        self.span
    }

    /// `size` bytes from `offset`.
    pub(crate) fn bytes(&self, offset: usize, size: usize) -> Result<&[u8]> {
        let at = self.span.at(offset, size)?;
        // SAFETY: inside the view; private (`new`), and borrowed for as long as `self` is.
        Ok(unsafe { std::slice::from_raw_parts(at, size) })
    }

    /// `size` bytes from `offset`, to be written.
    pub(crate) fn bytes_mut(&mut self, offset: usize, size: usize) -> Result<&mut [u8]> {
        let at = self.span.at(offset, size)?;
        // SAFETY: as in `bytes`, and borrowed mutably.
        Ok(unsafe { std::slice::from_raw_parts_mut(at, size) })
    }

    /// The first `count` numbers of the buffer.
    pub(crate) fn floats(&self, count: usize) -> Result<&[f32]> {
        let at = self.span.aligned(0, 4).and(self.span.at(0, count * 4))?;
        // SAFETY: inside the view and aligned; private (`new`); every bit pattern is a number.
        Ok(unsafe { std::slice::from_raw_parts(at.cast(), count) })
    }

    /// Fills the first `size` bytes with the number 1, so that sums stay ordinary.
    pub(crate) fn fill_ones(&mut self, size: usize) -> Result<()> {
        for four in self.bytes_mut(0, size)?.chunks_exact_mut(4) {
            four.copy_from_slice(&1f32.to_ne_bytes());
        }
        Ok(())
    }

    /// Writes `value` over the first bytes of the buffer, so that each operation carries a new payload.
    #[inline]
    pub(crate) fn refresh(&mut self, value: u64) {
        if self.span.size >= 8 {
            // SAFETY: inside the view; private (`new`), and borrowed mutably.
            unsafe { self.span.base.as_ptr().cast::<u64>().write_unaligned(value) };
        }
    }
}

/// Memory for the buffer of a rank, where ours has none.
#[derive(Debug)]
pub(crate) struct Private(Mapping);

impl Private {
    /// Maps `size` bytes.
    pub(crate) fn new(size: usize) -> Result<Self> {
        Mapping::alone(size).map(Self)
    }

    /// The buffer.
    pub(crate) fn source(&mut self) -> Source<'_> {
        // SAFETY: no other process has this mapping, and it is borrowed mutably for as long as the buffer lives.
        unsafe { Source::new(self.0.span()) }
    }
}

/// The board of two ranks: one page with the words that they play ping-pong on, each on its own pair of lines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Board<'a>(Span<'a>);

impl<'a> Board<'a> {
    /// Its size in bytes.
    pub(crate) const SIZE: usize = 4096;

    /// Takes the first page of a shared mapping.
    pub(crate) fn new(span: Span<'a>) -> Result<Self> {
        span.part(0, Self::SIZE).map(Self)
    }

    /// The word of the probe that `rank` writes.
    pub(crate) fn probe(self, rank: usize) -> Result<&'a AtomicU64> {
        self.0.word(256 * rank)
    }

    /// The flag that `rank` writes behind its payload.
    pub(crate) fn flag(self, rank: usize) -> Result<&'a AtomicU64> {
        self.0.word(1024 + 256 * rank)
    }

    /// The word that `rank` sleeps on.
    pub(crate) fn bed(self, rank: usize) -> Result<&'a AtomicU32> {
        self.0.half_word(2048 + 256 * rank)
    }
}

/// A memory file with the board and one part for each rank, mapped.
#[derive(Debug)]
pub(crate) struct Shared {
    board: Mapping,
    parts: Option<[Mapping; 2]>,
}

impl Shared {
    /// The size of the file for parts of these sizes, in bytes; both are multiples of the page size.
    pub(crate) fn file_size(parts: [usize; 2]) -> usize {
        Board::SIZE + parts[0] + parts[1]
    }

    /// Maps the file; parts of size 0 are left out.
    pub(crate) fn map(fd: &OwnedFd, parts: [usize; 2]) -> Result<Self> {
        let board = Mapping::file(fd.as_fd(), 0, Board::SIZE)?;
        let parts = if parts[0] == 0 {
            None
        } else {
            let first = Mapping::file(fd.as_fd(), Board::SIZE, parts[0])?;
            Some([first, Mapping::file(fd.as_fd(), Board::SIZE + parts[0], parts[1])?])
        };
        Ok(Self { board, parts })
    }

    /// The board.
    pub(crate) fn board(&self) -> Result<Board<'_>> {
        Board::new(self.board.span())
    }

    /// The part of `rank`, where there are parts.
    pub(crate) fn part(&self, rank: usize) -> Option<Span<'_>> {
        Some(self.parts.as_ref()?.get(rank)?.span())
    }
}
