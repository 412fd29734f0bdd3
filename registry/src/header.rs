//! The library's own memory beside a region: its state, its signals and its accumulate locks.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::memory::{Host, Mapped, Memory, Shared};
use crate::{Incarnation, Result, word};

/// Size of a line that is nobody else's: two cache lines, since processors fetch them in pairs.
const LINE: usize = 128;
/// Bytes from one signal to the next.
pub const SIGNAL_STRIDE: usize = LINE;
const SMALLEST_STRIPE: usize = 4096;
const MOST_STRIPES: usize = 1 << 20;

/// What a region's state word says to initiators that map it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// It can be used.
    Live = 0,
    /// Its owner dropped it.
    Gone = 1,
    /// Its owner is dead.
    Dead = 2,
}

/// Which lines of the library's memory are what; a function of the region's size and its number of signals alone, so
/// that both sides compute the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    signals: u32,
    stripe: usize,
    stripes: usize,
}

impl Layout {
    /// The layout for a region of `size` bytes with `signals` signals.
    #[must_use]
    pub fn new(size: usize, signals: u32) -> Self {
        let stripe = size.div_ceil(MOST_STRIPES).next_power_of_two().max(SMALLEST_STRIPE);
        Self { signals, stripe, stripes: size.div_ceil(stripe) }
    }

    /// Bytes of library memory.
    #[must_use]
    pub fn size(&self) -> usize {
        self.signal_offset(self.signals)
    }

    /// Bytes of the region that one accumulate lock guards.
    #[must_use]
    pub fn stripe(&self) -> usize {
        self.stripe
    }

    /// How many signals there are.
    #[must_use]
    pub fn signals(&self) -> u32 {
        self.signals
    }

    fn lock_offset(&self, stripe: usize) -> usize {
        LINE + stripe * 8
    }

    fn signal_offset(&self, id: u32) -> usize {
        (LINE + self.stripes * 8).next_multiple_of(LINE) + id as usize * LINE
    }
}

#[derive(Debug)]
enum Backing {
    Own(Host),
    Mapped(#[expect(dead_code, reason = "keeps the words mapped")] Mapped),
}

/// The words of one region: made by its owner, mapped by same-host peers.
#[derive(Debug, Clone)]
pub struct Header {
    base: NonNull<u8>,
    layout: Layout,
    backing: Arc<Backing>,
}

// SAFETY: the words are only touched through atomics, and the backing keeps them mapped.
unsafe impl Send for Header {}
// SAFETY: as above.
unsafe impl Sync for Header {}

impl Header {
    /// New library memory, all zero: live, every lock free, every signal 0.
    ///
    /// # Errors
    /// As for [`Host`].
    pub fn create(layout: Layout) -> Result<Self> {
        // The locks of a large region are many and mostly never touched.
        let host = Host::builder(layout.size()).sparse(true).build()?;
        Ok(Self { base: host.as_ptr(), layout, backing: Arc::new(Backing::Own(host)) })
    }

    /// Library memory of a same-host peer.
    ///
    /// # Errors
    /// [`Error::Malformed`](crate::Error::Malformed) when the mapping is smaller than the layout says.
    pub fn map(mapped: Mapped, layout: Layout) -> Result<Self> {
        if mapped.size() < layout.size() {
            return Err(crate::Error::Malformed {
                what: "library memory of a peer",
                why: format!("{} bytes where {} are needed", mapped.size(), layout.size()),
            });
        }
        Ok(Self { base: mapped.as_ptr(), layout, backing: Arc::new(Backing::Mapped(mapped)) })
    }

    /// A descriptor of it for same-host peers; `None` on the peer's side.
    #[must_use]
    pub fn share(&self) -> Option<Shared<'_>> {
        match &*self.backing {
            Backing::Own(host) => host.share(),
            Backing::Mapped(_) => None,
        }
    }

    /// Its layout.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset + 8 <= self.layout.size() && offset.is_multiple_of(8));
        // SAFETY: inside the mapping (`create` and `map` made it at least `layout.size()` large, and callers index
        // within the layout), aligned, and only ever touched through atomics.
        unsafe { self.base.add(offset).cast().as_ref() }
    }

    /// The state word, which initiators read before each operation.
    #[inline]
    #[must_use]
    pub fn state(&self) -> &AtomicU32 {
        // SAFETY: as in `word`; offset 0 is inside every layout.
        unsafe { self.base.cast().as_ref() }
    }

    /// Says that the region is gone, or that its owner is dead. Never goes back to live.
    pub fn end(&self, state: State) {
        let _ = self.state().compare_exchange(
            State::Live as u32,
            state as u32,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }

    /// How many signals there are.
    #[must_use]
    pub fn signals(&self) -> u32 {
        self.layout.signals
    }

    /// The signal with this number, if there is one.
    #[inline]
    #[must_use]
    pub fn signal(&self, id: u32) -> Option<&AtomicU64> {
        if id < self.layout.signals { Some(self.word(self.layout.signal_offset(id))) } else { None }
    }

    /// The lock of a stripe; `stripe` is below the number of stripes.
    pub(crate) fn lock(&self, stripe: usize) -> &AtomicU64 {
        assert!(stripe < self.layout.stripes, "stripe {stripe} of {}", self.layout.stripes);
        self.word(self.layout.lock_offset(stripe))
    }

    /// The locks of all stripes, in order; `None` when one of the region's first `size` bytes has none.
    pub(crate) fn locks(&self, size: usize) -> Option<NonNull<AtomicU64>> {
        let enough = self.layout.stripes > 0 && size.div_ceil(self.layout.stripe) <= self.layout.stripes;
        enough.then(|| NonNull::from(self.lock(0)))
    }

    /// Breaks every lock that the dead holder left, and marks its stripes as torn. Returns how many.
    pub fn break_locks(&self, dead: Incarnation) -> usize {
        let dead = lock_owner(dead);
        (0..self.layout.stripes).filter(|&stripe| word::break_lock(self.lock(stripe), dead)).count()
    }
}

/// The word by which a process holds accumulate locks: never zero, never with the torn bit.
#[must_use]
pub fn lock_owner(incarnation: Incarnation) -> u64 {
    (incarnation.as_u64() & !word::TORN).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_layout_never_share_a_line_that_they_should_not() {
        for (size, signals) in [(1, 0), (1, 1), (4096, 3), (4097, 64), (5 << 30, 64), (1 << 40, 1)] {
            let layout = Layout::new(size, signals);
            assert!(layout.stripes * layout.stripe >= size);
            assert!(layout.stripes <= MOST_STRIPES);
            assert!(layout.lock_offset(layout.stripes) <= layout.signal_offset(0));
            assert_eq!(layout.signal_offset(0) % LINE, 0);
            assert_eq!(layout.size(), layout.signal_offset(0) + signals as usize * LINE);
        }
    }

    #[test]
    fn a_dead_holders_lock_is_broken_and_told_once() {
        let header = Header::create(Layout::new(8192, 0)).unwrap();
        let (dead, alive) = (Incarnation::from_u64(5).unwrap(), Incarnation::from_u64(6).unwrap());
        assert_eq!(word::try_lock(header.lock(1), lock_owner(dead)), Ok(false));
        assert_eq!(word::try_lock(header.lock(1), lock_owner(alive)), Err(lock_owner(dead)));
        assert_eq!(header.break_locks(alive), 0);
        assert_eq!(header.break_locks(dead), 1);
        assert_eq!(word::try_lock(header.lock(1), lock_owner(alive)), Ok(true));
        word::unlock(header.lock(1));
        assert_eq!(word::try_lock(header.lock(1), lock_owner(alive)), Ok(false));
    }
}
