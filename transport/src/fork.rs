//! Telling a forked child from its parent with one load, and memory that a child finds empty.

use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use transom_registry::{Error, Result};

/// Size and alignment of a block: two lines, since processors fetch them in pairs.
pub(crate) const BLOCK: usize = 128;
const PAGE: usize = 4096;

fn map(size: usize) -> Result<NonNull<u8>> {
    // SAFETY: a new private anonymous mapping touches nothing that exists.
    let at = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            size,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }
    .map_err(|e| Error::io(format!("map {size} bytes"), e))?;
    // SAFETY: the range was mapped just now, and only its inheritance changes.
    unsafe { rustix::mm::madvise(at, size, Advice::LinuxWipeOnFork) }
        .map_err(|e| Error::io("mark memory to be wiped on fork (needs linux 4.14)", e))?;
    NonNull::new(at.cast()).ok_or_else(|| Error::invalid("map", "the kernel mapped address 0"))
}

struct Shared(NonNull<u8>);
// SAFETY: the memory is never unmapped, and touched through atomics only.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

static PARENT: OnceLock<Option<Shared>> = OnceLock::new();

fn parent() -> Option<&'static AtomicU64> {
    let page = PARENT.get_or_init(|| {
        let page = map(PAGE).ok()?;
        // SAFETY: mapped just now, aligned, never unmapped.
        unsafe { page.cast::<AtomicU64>().as_ref() }.store(1, Ordering::Release);
        Some(Shared(page))
    });
    // SAFETY: as above.
    page.as_ref().map(|page| unsafe { page.0.cast::<AtomicU64>().as_ref() })
}

/// Marks this process as one that opened a context.
pub(crate) fn mark() {
    let _ = parent();
}

/// Whether this process is a fork of one that opened a context.
#[inline]
pub(crate) fn is_child() -> bool {
    parent().is_some_and(|word| word.load(Ordering::Relaxed) == 0)
}

/// Refuses a call in a forked child.
pub(crate) fn check(operation: &'static str) -> Result<()> {
    if is_child() { Err(Error::Forked { operation }) } else { Ok(()) }
}

/// Blocks of 128 zero bytes that a forked child finds zero again.
#[derive(Debug)]
pub(crate) struct Blocks {
    at: NonNull<u8>,
    count: usize,
}

// SAFETY: what is in the blocks is touched through atomics only.
unsafe impl Send for Blocks {}
// SAFETY: as above.
unsafe impl Sync for Blocks {}

/// Single blocks that were given back, and pages that are cut into single blocks.
static SINGLE: Mutex<Vec<Single>> = Mutex::new(Vec::new());
struct Single(NonNull<u8>);
// SAFETY: a free block belongs to nobody.
unsafe impl Send for Single {}

impl Blocks {
    /// `count` neighbouring blocks, all zero.
    pub(crate) fn new(count: usize) -> Result<Self> {
        if count != 1 {
            return Ok(Self { at: map((count.max(1) * BLOCK).next_multiple_of(PAGE))?, count });
        }
        let mut single = SINGLE.lock();
        if single.is_empty() {
            let page = map(PAGE)?;
            // SAFETY: each block is inside the page.
            single.extend((0..PAGE / BLOCK).map(|i| Single(unsafe { page.add(i * BLOCK) })));
        }
        match single.pop() {
            Some(block) => Ok(Self { at: block.0, count }),
            None => Err(Error::invalid("map", "no block is free")),
        }
    }

    /// The first block.
    pub(crate) fn as_ptr(&self) -> NonNull<u8> {
        self.at
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        if self.count == 1 {
            // SAFETY: the block is ours, 128 bytes large, and nobody has it any more.
            unsafe { self.at.write_bytes(0, BLOCK) };
            SINGLE.lock().push(Single(self.at));
        } else {
            let size = (self.count.max(1) * BLOCK).next_multiple_of(PAGE);
            // SAFETY: mapped by `new` with this size, and nobody has it any more.
            let _ = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), size) };
        }
    }
}
