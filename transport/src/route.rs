//! The way to mapped memory that a put takes inside the call: one line of pointers and sizes, checked by one compare.
//!
//! A route lives in memory that a forked child finds zero, and a size of zero means: not mapped, closed, revoked or dead.
//! So the compare that checks the range checks all of that too, and a cold function sorts out which it was.

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use transom_registry::exposed::Exposed;
use transom_registry::header::{SIGNAL_STRIDE, State};
use transom_registry::{Access, Result, copy, word};

use crate::fork::Blocks;

/// One line.
#[repr(C, align(64))]
struct Line {
    base: AtomicPtr<u8>,
    /// The state word of the region, in its owner's library memory.
    gone: AtomicPtr<AtomicU32>,
    /// Size in bytes for each right; 0 without it.
    write: AtomicU64,
    read: AtomicU64,
    atomic: AtomicU64,
    /// The first signal, and how many there are.
    signals: AtomicPtr<u8>,
    signal_count: AtomicU64,
    /// The owner's flag that somebody sleeps.
    asleep: AtomicPtr<AtomicU32>,
}

/// A table of routes. What they lead to is kept by whoever opened them, at least as long as the table.
#[derive(Debug)]
pub struct Routes {
    blocks: Blocks,
    count: usize,
    /// What the lines point into, kept until the table goes: an operation of another thread may still be inside.
    keep: parking_lot::Mutex<Vec<Exposed>>,
}

impl Routes {
    /// A table of `count` closed routes.
    ///
    /// # Errors
    /// [`Error::Io`](transom_registry::Error::Io) when no memory can be mapped.
    pub fn new(count: usize) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { blocks: Blocks::new(count)?, count, keep: parking_lot::Mutex::default() }))
    }

    /// How many routes there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The route with this index; `None` when there is none.
    #[inline(always)]
    #[must_use]
    pub fn at(&self, index: usize) -> Option<Route<'_>> {
        // SAFETY: inside the blocks, aligned to 64, zero bytes are a valid line, and it is touched through atomics only.
        (index < self.count)
            .then(|| Route(unsafe { self.blocks.as_ptr().cast::<Line>().add(index).as_ref() }))
    }

    /// Opens a route to mapped memory, with these rights. A route is opened once.
    pub(crate) fn open(&self, index: usize, to: &Exposed, access: Access) -> Result<()> {
        let Some(Route(line)) = self.at(index) else { return Ok(()) };
        let header = to.header()?;
        line.base.store(to.as_ptr(), Ordering::Relaxed);
        line.gone.store(std::ptr::from_ref(header.state()).cast_mut(), Ordering::Relaxed);
        line.asleep.store(std::ptr::from_ref(to.bell().asleep()).cast_mut(), Ordering::Relaxed);
        if access.contains(Access::SIGNAL)
            && let Some(first) = header.signal(0)
        {
            line.signals.store(std::ptr::from_ref(first).cast_mut().cast(), Ordering::Relaxed);
            line.signal_count.store(header.signals().into(), Ordering::Relaxed);
        }
        self.keep.lock().push(to.clone());
        let size = to.size() as u64;
        for (right, word) in
            [(Access::READ, &line.read), (Access::WRITE, &line.write), (Access::ATOMIC, &line.atomic)]
        {
            if access.contains(right) {
                word.store(size, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Closes a route: operations that begin from now on do not take it.
    pub(crate) fn close(&self, index: usize) {
        if let Some(Route(line)) = self.at(index) {
            for word in [&line.read, &line.write, &line.atomic, &line.signal_count] {
                word.store(0, Ordering::Release);
            }
        }
    }
}

/// A route. Each operation returns whether it was done; if it was not, the slow way finds out why.
#[derive(Clone, Copy)]
pub struct Route<'a>(&'a Line);

impl std::fmt::Debug for Route<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Route({} bytes)", self.0.write.load(Ordering::Relaxed))
    }
}

/// Whether `size` bytes at `offset` are inside `limit`, and at least one; a limit of 0 takes nothing.
#[inline(always)]
fn inside(offset: u64, size: u64, limit: u64) -> bool {
    size.wrapping_sub(1) < limit && offset <= limit - size
}

impl<'a> Route<'a> {
    #[inline(always)]
    fn is_live(self) -> bool {
        // SAFETY: a route with a size was opened: its state word is kept mapped by the table.
        unsafe { &*self.0.gone.load(Ordering::Relaxed) }.load(Ordering::Relaxed) == State::Live as u32
    }

    #[inline(always)]
    fn address(self, offset: u64) -> *mut u8 {
        self.0.base.load(Ordering::Relaxed).wrapping_add(offset as usize)
    }

    /// Copies bytes there.
    #[inline(always)]
    #[must_use]
    pub fn put(self, offset: u64, from: &[u8]) -> bool {
        let size = from.len();
        if !inside(offset, size as u64, self.0.write.load(Ordering::Acquire)) || !self.is_live() {
            return false;
        }
        // SAFETY: inside the mapping that the table keeps; no reference into exposed memory exists, so `from` is apart.
        unsafe { copy::copy(self.address(offset), from.as_ptr(), size) };
        true
    }

    /// Copies bytes from there.
    #[inline(always)]
    #[must_use]
    pub fn get(self, offset: u64, into: &mut [u8]) -> bool {
        let size = into.len();
        if !inside(offset, size as u64, self.0.read.load(Ordering::Acquire)) || !self.is_live() {
            return false;
        }
        // SAFETY: as in `put`.
        unsafe { copy::copy(into.as_mut_ptr(), self.address(offset), size) };
        true
    }

    /// The 64-bit word there, for an atomic.
    #[inline(always)]
    #[must_use]
    pub fn word64(self, offset: u64) -> Option<&'a AtomicU64> {
        if !inside(offset, 8, self.0.atomic.load(Ordering::Acquire)) || !self.is_live() {
            return None;
        }
        let at = self.address(offset);
        if !at.addr().is_multiple_of(8) || !offset.is_multiple_of(8) {
            return None;
        }
        // SAFETY: inside the mapping that the table keeps, aligned; typed accesses to exposed memory are atomic.
        Some(unsafe { AtomicU64::from_ptr(at.cast()) })
    }

    /// Whether a signal can be added to by this route.
    #[inline(always)]
    #[must_use]
    pub fn has_signal(self, id: u32) -> bool {
        u64::from(id) < self.0.signal_count.load(Ordering::Acquire) && self.is_live()
    }

    /// Adds to a signal, after everything that this thread did before. `None`: not done. `Some(true)`: the owner sleeps,
    /// ring its bell.
    #[inline(always)]
    #[must_use]
    pub fn signal(self, id: u32, add: u64) -> Option<bool> {
        if !self.has_signal(id) {
            return None;
        }
        let at = self.0.signals.load(Ordering::Relaxed).wrapping_add(id as usize * SIGNAL_STRIDE);
        // SAFETY: `id` is below the count, and the words are kept mapped by the table.
        let signal = unsafe { AtomicU64::from_ptr(at.cast()) };
        // SAFETY: the flag lives in the owner's control page, kept mapped by the table through the bell.
        let asleep = unsafe { &*self.0.asleep.load(Ordering::Relaxed) };
        Some(word::signal_add(signal, asleep, add))
    }

    /// The 64-bit word at `offset`, a multiple of 8 inside the region, resolved. `None`: not mapped, or not aligned.
    #[must_use]
    pub fn slot(self, offset: u64) -> Option<Slot<'a>> {
        let size = self.0.write.load(Ordering::Acquire).max(self.0.atomic.load(Ordering::Acquire));
        let at = self.address(offset);
        if !inside(offset, 8, size) || !at.addr().is_multiple_of(8) {
            return None;
        }
        // SAFETY: inside the mapping that the table keeps, aligned; typed accesses to exposed memory are atomic.
        Some(Slot { route: self, word: unsafe { AtomicU64::from_ptr(at.cast()) } })
    }

    /// Makes everything that this thread did on the route delivered, and what it does after it later.
    #[inline(always)]
    #[must_use]
    pub fn flush(self) -> bool {
        let open = self.0.write.load(Ordering::Relaxed) | self.0.read.load(Ordering::Relaxed);
        fence(Ordering::SeqCst);
        open != 0
    }
}

/// A word by a route, resolved once: what is left to check is whether the route is still open.
#[derive(Debug, Clone, Copy)]
pub struct Slot<'a> {
    route: Route<'a>,
    word: &'a AtomicU64,
}

impl<'a> Slot<'a> {
    /// The word, if it may be put to now.
    #[inline(always)]
    #[must_use]
    pub fn put(self) -> Option<&'a AtomicU64> {
        (self.route.0.write.load(Ordering::Relaxed) != 0 && self.route.is_live()).then_some(self.word)
    }

    /// The word, if atomics may go to it now.
    #[inline(always)]
    #[must_use]
    pub fn atomic(self) -> Option<&'a AtomicU64> {
        (self.route.0.atomic.load(Ordering::Relaxed) != 0 && self.route.is_live()).then_some(self.word)
    }

    /// As [`Route::flush`].
    #[inline(always)]
    #[must_use]
    pub fn flush(self) -> bool {
        self.route.flush()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_one_compare_is_the_long_check(offset: u64, size: u64, limit in 0..=1_u64 << 47, small in 0..100_u64) {
            for (offset, size, limit) in [(offset, size, limit), (offset % 100, size % 100, small), (limit, size % 3, limit)] {
                let long = size > 0 && offset.checked_add(size).is_some_and(|end| end <= limit);
                prop_assert_eq!(inside(offset, size, limit), long);
            }
        }
    }
}
