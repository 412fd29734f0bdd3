//! Atomics, accumulates, and single words.

use super::*;

impl Window {
    /// Adds to the 64-bit word at `offset` of a rank's part and returns what was there.
    ///
    /// # Errors
    /// As for [`PeerRegion::fetch_add`]; [`Error::NoSuchRank`].
    #[inline]
    pub fn fetch_add(&self, rank: Rank, offset: u64, add: u64) -> Result<u64> {
        match self.route(rank).and_then(|route| route.word64(offset)) {
            Some(word) => Ok(word.fetch_add(add, std::sync::atomic::Ordering::SeqCst)),
            None => self.atomic(rank, Atomic::Add, 8, offset, add, 0),
        }
    }

    /// Stores `value` in the 64-bit word at `offset` of a rank's part and returns what was there.
    ///
    /// # Errors
    /// As for [`Window::fetch_add`].
    pub fn swap(&self, rank: Rank, offset: u64, value: u64) -> Result<u64> {
        self.atomic(rank, Atomic::Swap, 8, offset, value, 0)
    }

    /// Stores `value` in the 64-bit word at `offset` if it is `expected`, and returns what was there.
    ///
    /// # Errors
    /// As for [`Window::fetch_add`].
    pub fn compare_swap(&self, rank: Rank, offset: u64, expected: u64, value: u64) -> Result<u64> {
        self.atomic(rank, Atomic::CompareSwap, 8, offset, value, expected)
    }

    /// Any fetching atomic on a word of 4 or 8 bytes: see [`PeerRegion::atomic`].
    ///
    /// # Errors
    /// As there; [`Error::NoSuchRank`].
    pub fn atomic(
        &self,
        rank: Rank,
        atomic: Atomic,
        width: u8,
        offset: u64,
        operand: u64,
        compare: u64,
    ) -> Result<u64> {
        self.tell(rank, self.find("atomic", rank)?.atomic(atomic, width, offset, operand, compare))
    }

    /// The async form of [`Window::atomic`].
    ///
    /// # Errors
    /// As there.
    pub fn atomic_request(
        &self,
        rank: Rank,
        atomic: Atomic,
        width: u8,
        offset: u64,
        operand: u64,
        compare: u64,
    ) -> Result<Request> {
        self.request("atomic", rank, |part| part.atomic_request(atomic, width, offset, operand, compare))
    }

    /// Reduces elements into those at `offset` of a rank's part, each atomically against every other accumulate on the
    /// window.
    ///
    /// # Errors
    /// As for [`PeerRegion::accumulate`]; [`Error::NoSuchRank`].
    #[inline]
    pub fn accumulate<T: Element>(&self, rank: Rank, offset: u64, from: &[T], reduce: Reduce) -> Result<()> {
        let from = element::as_bytes(from);
        match self.route(rank).map_or(0, |route| route.accumulate(T::DTYPE, reduce, offset, from)) {
            done if done > 0 && done == from.len() => Ok(()),
            done => self.accumulate_rest(rank, offset, from, T::DTYPE, reduce, done),
        }
    }

    #[cold]
    #[inline(never)]
    fn accumulate_rest(
        &self,
        rank: Rank,
        offset: u64,
        from: &[u8],
        dtype: Dtype,
        reduce: Reduce,
        done: usize,
    ) -> Result<()> {
        let part = self.find("accumulate", rank)?;
        self.tell(rank, part.accumulate_rest(offset, from, dtype, reduce, done))
    }

    /// As [`Window::accumulate`], from registered memory.
    ///
    /// # Errors
    /// As there.
    pub fn accumulate_from(
        &self,
        rank: Rank,
        offset: u64,
        from: Slice,
        dtype: Dtype,
        reduce: Reduce,
    ) -> Result<Request> {
        self.request("accumulate", rank, |part| part.accumulate_from(offset, from, dtype, reduce))
    }

    /// The 64-bit word at `offset` (a multiple of 8) of a rank's part, resolved once: its operations cost a store, or a
    /// locked instruction, and one look at whether the rank lives.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::OutOfRange`], [`Error::Misaligned`].
    pub fn at(&self, rank: Rank, offset: u64) -> Result<Slot<'_>> {
        const OPERATION: &str = "at";
        let part = self.find(OPERATION, rank)?;
        let limit = part.size();
        if limit < 8 || offset > limit - 8 {
            return Err(Error::OutOfRange { operation: OPERATION, offset, size: 8, limit });
        }
        if !offset.is_multiple_of(8) {
            return Err(Error::Misaligned { operation: OPERATION, offset, align: 8 });
        }
        let word = self.route(rank).and_then(|route| route.slot(offset));
        Ok(Slot { window: self, rank, offset, word })
    }
}

/// A 64-bit word of a rank's part, resolved once by [`Window::at`].
#[derive(Debug, Clone, Copy)]
pub struct Slot<'a> {
    window: &'a Window,
    rank: Rank,
    offset: u64,
    word: Option<transom_transport::route::Slot<'a>>,
}

impl Slot<'_> {
    /// Writes the word.
    ///
    /// # Errors
    /// As for [`Window::put`].
    #[inline(always)]
    pub fn put(&self, value: u64) -> Result<()> {
        match self.word.and_then(|word| word.put()) {
            Some(word) => {
                word.store(value, std::sync::atomic::Ordering::Relaxed);
                Ok(())
            }
            None => self.window.put_slow(self.rank, self.offset, &value.to_le_bytes()),
        }
    }

    /// Waits until what was put is delivered.
    ///
    /// # Errors
    /// As for [`Window::flush`].
    #[inline(always)]
    pub fn flush(&self) -> Result<()> {
        if self.word.is_some_and(|word| word.flush()) { Ok(()) } else { self.window.flush_slow(self.rank) }
    }

    /// Adds to the word and returns what was there.
    ///
    /// # Errors
    /// As for [`Window::fetch_add`].
    #[inline(always)]
    pub fn fetch_add(&self, add: u64) -> Result<u64> {
        match self.word.and_then(|word| word.atomic()) {
            Some(word) => Ok(word.fetch_add(add, std::sync::atomic::Ordering::SeqCst)),
            None => self.window.fetch_add(self.rank, self.offset, add),
        }
    }
}
