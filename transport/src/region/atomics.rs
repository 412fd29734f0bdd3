//! Atomics and accumulates: executed by the processor where the region is mapped, else by its owner.

use super::*;

impl PeerRegion {
    /// Adds to the 64-bit word at `offset` (a multiple of 8) and returns what was there.
    ///
    /// # Errors
    /// As for [`PeerRegion::put`]; [`Error::Misaligned`].
    #[inline]
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64> {
        match self.route().and_then(|route| route.word64(offset)) {
            Some(word) => Ok(word.fetch_add(add, Ordering::SeqCst)),
            None => self.atomic(Atomic::Add, 8, offset, add, 0),
        }
    }

    /// Stores `value` in the 64-bit word at `offset` and returns what was there.
    ///
    /// # Errors
    /// As for [`PeerRegion::fetch_add`].
    #[inline]
    pub fn swap(&self, offset: u64, value: u64) -> Result<u64> {
        self.atomic(Atomic::Swap, 8, offset, value, 0)
    }

    /// Stores `value` in the 64-bit word at `offset` if it is `expected`, and returns what was there.
    ///
    /// # Errors
    /// As for [`PeerRegion::fetch_add`].
    #[inline]
    pub fn compare_swap(&self, offset: u64, expected: u64, value: u64) -> Result<u64> {
        match self.route().and_then(|route| route.word64(offset)) {
            Some(word) => Ok(word
                .compare_exchange(expected, value, Ordering::SeqCst, Ordering::SeqCst)
                .unwrap_or_else(|current| current)),
            None => self.atomic(Atomic::CompareSwap, 8, offset, value, expected),
        }
    }

    /// Any fetching atomic on a word of `width` (4 or 8) bytes at `offset`, a multiple of the width. `compare` is for
    /// [`Atomic::CompareSwap`]. Returns what was there.
    ///
    /// # Errors
    /// As for [`PeerRegion::put`]; [`Error::Misaligned`]; [`Error::Invalid`] for another width.
    pub fn atomic(&self, atomic: Atomic, width: u8, offset: u64, operand: u64, compare: u64) -> Result<u64> {
        self.may_wait("atomic")?;
        self.wait(self.atomic_request(atomic, width, offset, operand, compare)?, None)
    }

    /// The async form of [`PeerRegion::atomic`]: the request resolves with what was there.
    ///
    /// # Errors
    /// As there.
    pub fn atomic_request(
        &self,
        atomic: Atomic,
        width: u8,
        offset: u64,
        operand: u64,
        compare: u64,
    ) -> Result<Request> {
        const OPERATION: &str = "atomic";
        let way = self.way(OPERATION, Access::ATOMIC)?;
        if width != 4 && width != 8 {
            return Err(Error::invalid(
                OPERATION,
                format!("words of {width} bytes are not known, 4 and 8 are"),
            ));
        }
        if width == 4 && (operand > u32::MAX.into() || compare > u32::MAX.into()) {
            return Err(Error::invalid(OPERATION, format!("operand {operand:#x} does not fit in 4 bytes")));
        }
        if !offset.is_multiple_of(width.into()) {
            return Err(Error::Misaligned { operation: OPERATION, offset, align: width.into() });
        }
        self.check_range(OPERATION, offset, width.into())?;
        match way {
            Way::Mapped(exposed, ..) => {
                self.resolved(OPERATION, exposed.atomic(atomic, width, offset, operand, compare))
            }
            Way::Posted(endpoint, key) => self.request(&endpoint, OPERATION, || Op {
                key,
                offset,
                action: Action::Atomic { atomic, width, operand, compare },
                signal: None,
                silent: false,
            }),
            Way::Closed => Err(closed(OPERATION)),
        }
    }

    /// Reduces elements into those at `offset` (a multiple of their size): each element atomically against every other
    /// accumulate on the window. Returns when `from` may be reused.
    ///
    /// # Errors
    /// As for [`PeerRegion::put`]; [`Error::Misaligned`]; [`Error::Torn`] when a part was left half done by a process that
    /// died: this operation is complete, what was there before is in doubt.
    #[inline]
    pub fn accumulate<T: Element>(&self, offset: u64, from: &[T], reduce: Reduce) -> Result<()> {
        self.accumulate_bytes(offset, element::as_bytes(from), T::DTYPE, reduce)
    }

    /// As [`PeerRegion::accumulate`], with the elements as bytes.
    ///
    /// # Errors
    /// As there; [`Error::Invalid`] when `from` is no whole number of elements.
    #[inline]
    pub fn accumulate_bytes(&self, offset: u64, from: &[u8], dtype: Dtype, reduce: Reduce) -> Result<()> {
        match self.route().map_or(0, |route| route.accumulate(dtype, reduce, offset, from)) {
            done if done > 0 && done == from.len() => Ok(()),
            done => self.accumulate_rest(offset, from, dtype, reduce, done),
        }
    }

    /// Does what an accumulate by the route left to do, having done `done` bytes.
    ///
    /// # Errors
    /// As for [`PeerRegion::accumulate_bytes`].
    #[cold]
    #[inline(never)]
    #[doc(hidden)]
    pub fn accumulate_rest(
        &self,
        offset: u64,
        from: &[u8],
        dtype: Dtype,
        reduce: Reduce,
        done: usize,
    ) -> Result<()> {
        const OPERATION: &str = "accumulate";
        // Begun, so it is ended, whatever has become of the region since: an operation is done or is not.
        if done > 0
            && let Some(exposed) = self.shared.routes.kept(self.shared.index)
        {
            let (offset, rest) = (offset + done as u64, from.get(done..).unwrap_or_default());
            return exposed.accumulate_bytes(dtype, reduce, offset, rest, self.locker());
        }
        let way = self.way(OPERATION, Access::ATOMIC)?;
        self.check_elements(offset, from.len(), dtype)?;
        if from.is_empty() {
            return Ok(());
        }
        match way {
            Way::Mapped(exposed, ..) => {
                // SAFETY: `from` is valid, and apart from exposed memory, into which no reference exists.
                unsafe { exposed.accumulate(dtype, reduce, offset, from.as_ptr(), from.len(), self.locker()) }
            }
            Way::Posted(endpoint, key) => self.pieces(OPERATION, &endpoint, from, |at, piece, _| Op {
                key,
                offset: offset + at,
                action: Action::Accumulate { dtype, reduce, source: Source::Borrowed(piece) },
                signal: None,
                silent: true,
            }),
            Way::Closed => Err(closed(OPERATION)),
        }
    }

    /// As [`PeerRegion::accumulate`], from registered memory: the request resolves when it is delivered.
    ///
    /// # Errors
    /// As there.
    pub fn accumulate_from(&self, offset: u64, from: Slice, dtype: Dtype, reduce: Reduce) -> Result<Request> {
        const OPERATION: &str = "accumulate";
        let way = self.way(OPERATION, Access::ATOMIC)?;
        self.check_elements(offset, from.size(), dtype)?;
        self.check_not_own(OPERATION, &from, &[(offset, from.size() as u64)])?;
        match way {
            Way::Mapped(exposed, ..) => {
                self.check_apart(OPERATION, &exposed, offset, &from)?;
                // SAFETY: the slice is valid, and apart from the target, as checked above.
                let done = unsafe {
                    exposed.accumulate(dtype, reduce, offset, from.as_ptr(), from.size(), self.locker())
                };
                self.resolved(OPERATION, done.map(|()| 0))
            }
            Way::Posted(..) if from.size() == 0 => self.resolved(OPERATION, Ok(0)),
            Way::Posted(endpoint, key) => self.request(&endpoint, OPERATION, || Op {
                key,
                offset,
                action: Action::Accumulate { dtype, reduce, source: Source::Owned(from.clone()) },
                signal: None,
                silent: false,
            }),
            Way::Closed => Err(closed(OPERATION)),
        }
    }

    pub(super) fn check_elements(&self, offset: u64, size: usize, dtype: Dtype) -> Result<()> {
        const OPERATION: &str = "accumulate";
        self.check_range(OPERATION, offset, size as u64)?;
        let width = dtype.size();
        if !offset.is_multiple_of(width as u64) {
            return Err(Error::Misaligned { operation: OPERATION, offset, align: width as u64 });
        }
        if !size.is_multiple_of(width) {
            return Err(Error::invalid(
                OPERATION,
                format!("{size} bytes are not a whole number of {dtype} elements"),
            ));
        }
        Ok(())
    }

    pub(super) fn locker(&self) -> Locker {
        Locker { incarnation: self.shared.peer.0.context.incarnation(), patience: self.timeout }
    }
}
