//! Mapping what a peer sent descriptors of.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use transom_registry::element::{Dtype, Reduce};
use transom_registry::exposed::{Exposed, Locker, Parts};
use transom_registry::header::{Header, Layout};
use transom_registry::{Access, Error, Kind, Mapped, RemoteRegion, Result};

use crate::progress::Page;

/// What an owner told of the region that a descriptor names.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told {
    /// Size of the whole region, of which the descriptor may name a part.
    pub(super) region_size: u64,
    /// How many signals the whole region has.
    pub(super) signals: u32,
}

impl Told {
    /// The layout of the region's library memory.
    fn layout(self) -> Result<Layout> {
        match usize::try_from(self.region_size) {
            Ok(size) if size <= 1 << 62 && self.signals <= transom_registry::MOST_SIGNALS => {
                Ok(Layout::new(size, self.signals))
            }
            _ => Err(Error::Malformed {
                what: "attached region",
                why: format!("{} bytes with {} signals", self.region_size, self.signals),
            }),
        }
    }
}

/// Maps the library's memory beside a peer's region.
pub(super) fn header(fd: OwnedFd, told: Told, access: Access) -> Result<Header> {
    let layout = told.layout()?;
    Header::map(Mapped::new(fd, 0, layout.size(), marks(access), true)?, layout)
}

/// Maps the range that the descriptor names.
///
/// A region in a file cannot be sealed: whoever truncates the file while it is mapped ends the processes that touch it.
pub(super) fn exposed(
    region: &RemoteRegion,
    told: Told,
    file_offset: u64,
    writable: bool,
    data: OwnedFd,
    header: Header,
    page: Arc<Page>,
) -> Result<Exposed> {
    let layout = told.layout()?;
    let past = |_| Error::OutOfRange {
        operation: "attach",
        offset: region.offset,
        size: region.size,
        limit: told.region_size,
    };
    if region.offset.checked_add(region.size).is_none_or(|end| end > told.region_size) {
        return Err(past(()));
    }
    let size = usize::try_from(region.size).map_err(|_| past(()))?;
    let start = usize::try_from(region.offset).map_err(|_| past(()))?;
    let (base, keep): (NonNull<u8>, Arc<dyn Any + Send + Sync>) = if size == 0 {
        (NonNull::dangling(), Arc::new(()))
    } else {
        let from = file_offset.checked_add(region.offset).ok_or_else(|| past(()))?;
        let (mapped, inner) = map_around(data, from, size, writable, region.kind != Kind::File)?;
        // SAFETY: the mapping is `inner + size` bytes large.
        (unsafe { mapped.as_ptr().add(inner) }, Arc::new(mapped))
    };
    // SAFETY: the range is inside the mapping that `keep` holds, writable if that is; it is memory of another process (or
    // of another context of this one, which makes no references into exposed memory); the layout is the whole region's.
    Ok(unsafe {
        Exposed::new(Parts {
            base,
            size,
            kind: region.kind,
            writable,
            start,
            layout,
            header: Some(header),
            bell: page,
            keep,
        })
    })
}

/// Maps `size` bytes at `from`, which need not be at a page; returns where in the mapping they begin.
fn map_around(fd: OwnedFd, from: u64, size: usize, writable: bool, sealed: bool) -> Result<(Mapped, usize)> {
    let mut align = rustix::param::page_size() as u64;
    let again = fd.try_clone().map_err(|e| Error::io("copy a descriptor", e))?;
    let map = |fd: OwnedFd, align: u64| {
        let inner = (from % align) as usize;
        Ok((Mapped::new(fd, from - inner as u64, size.saturating_add(inner), writable, sealed)?, inner))
    };
    match map(fd, align) {
        // Huge pages: the mapping says which.
        Err(Error::Misaligned { align: needed, .. }) if needed > align => {
            align = needed;
            map(again, align)
        }
        other => other,
    }
}

/// Whether these rights need memory that can be written.
pub(super) fn writes(access: Access) -> bool {
    (access & (Access::WRITE | Access::ATOMIC)) != Access::NONE
}

/// Whether these rights need library memory that can be written: signals, or locks.
pub(super) fn marks(access: Access) -> bool {
    (access & (Access::SIGNAL | Access::ATOMIC)) != Access::NONE
}

/// Reduces operands that came over the socket into memory of ours.
pub(super) fn accumulate(
    exposed: &Exposed,
    dtype: Dtype,
    reduce: Reduce,
    offset: u64,
    operands: &[u8],
    by: Locker,
) -> Result<()> {
    // SAFETY: a reference is valid, and nobody holds one into exposed memory: no overlap.
    unsafe { exposed.accumulate(dtype, reduce, offset, operands.as_ptr(), operands.len(), by) }
}

/// The lock word of a stripe, where its owner keeps it: for tests of holders that die.
#[cfg(test)]
pub(super) fn lock_word(header: &Header, stripe: usize) -> &std::sync::atomic::AtomicU64 {
    const FIRST: usize = 128;
    assert!(FIRST + stripe * 8 < header.layout().size());
    let first = std::ptr::from_ref(header.state()).cast::<u8>().cast_mut();
    // SAFETY: inside of the header, whose locks begin on its second line, and touched through atomics only.
    unsafe { std::sync::atomic::AtomicU64::from_ptr(first.add(FIRST + stripe * 8).cast()) }
}

/// Foreign memory of a test, aligned for atomics, leaked; the guard goes with it.
#[cfg(test)]
pub(super) fn foreign(size: usize, guard: impl Any + Send + Sync) -> transom_registry::Foreign {
    let words = Box::leak(vec![0_u64; size.div_ceil(8)].into_boxed_slice());
    let at = NonNull::from(words).cast();
    // SAFETY: leaked, so valid for ever, and nobody has a reference to it from here on.
    unsafe { transom_registry::Foreign::new(at, size, guard) }.unwrap()
}
