//! Protocols over shared words, written once over a trait so that loom runs the very lines that processes run.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A shared 64-bit word.
pub trait Word64 {
    /// Loads it.
    fn load(&self, order: Ordering) -> u64;
    /// Adds, wrapping, and returns what was there.
    fn fetch_add(&self, add: u64, order: Ordering) -> u64;
    /// Stores `new` if it is `current`.
    ///
    /// # Errors
    /// What was there instead.
    fn compare_exchange(&self, current: u64, new: u64, ok: Ordering, err: Ordering) -> Result<u64, u64>;
    /// Stores.
    fn store(&self, value: u64, order: Ordering);
}

/// A shared 32-bit word.
pub trait Word32 {
    /// Loads it.
    fn load(&self, order: Ordering) -> u32;
    /// Stores.
    fn store(&self, value: u32, order: Ordering);
    /// Stores and returns what was there.
    fn swap(&self, value: u32, order: Ordering) -> u32;
}

macro_rules! words {
    ($w64:ty, $w32:ty) => {
        impl Word64 for $w64 {
            #[inline(always)]
            fn load(&self, order: Ordering) -> u64 {
                <$w64>::load(self, order)
            }
            #[inline(always)]
            fn fetch_add(&self, add: u64, order: Ordering) -> u64 {
                <$w64>::fetch_add(self, add, order)
            }
            #[inline(always)]
            fn compare_exchange(
                &self,
                current: u64,
                new: u64,
                ok: Ordering,
                err: Ordering,
            ) -> Result<u64, u64> {
                <$w64>::compare_exchange(self, current, new, ok, err)
            }
            #[inline(always)]
            fn store(&self, value: u64, order: Ordering) {
                <$w64>::store(self, value, order)
            }
        }
        impl Word32 for $w32 {
            #[inline(always)]
            fn load(&self, order: Ordering) -> u32 {
                <$w32>::load(self, order)
            }
            #[inline(always)]
            fn store(&self, value: u32, order: Ordering) {
                <$w32>::store(self, value, order)
            }
            #[inline(always)]
            fn swap(&self, value: u32, order: Ordering) -> u32 {
                <$w32>::swap(self, value, order)
            }
        }
    };
}
words!(AtomicU64, AtomicU32);
#[cfg(transom_loom)]
words!(loom::sync::atomic::AtomicU64, loom::sync::atomic::AtomicU32);

/// Adds to a signal. `true` when a sleeper asked to be woken: the caller rings its bell, once for all who saw the flag.
///
/// The add and the look at the flag are both sequentially consistent, as are [`arm`] and the look at the signal behind
/// it: one of the two sides sees the other, so no wake-up is lost (a store-buffering litmus test; on x86 the locked add
/// is the barrier and the look a plain load).
#[inline(always)]
#[must_use]
pub fn signal_add(signal: &impl Word64, asleep: &impl Word32, add: u64) -> bool {
    signal.fetch_add(add, Ordering::SeqCst);
    asleep.load(Ordering::SeqCst) != 0 && asleep.swap(0, Ordering::SeqCst) != 0
}

/// Says that somebody is about to sleep: after this, look at the signals once more, then sleep on the bell.
#[inline]
pub fn arm(asleep: &impl Word32) {
    asleep.swap(1, Ordering::SeqCst);
}

/// The bit of a lock word that says: the last holder died in the middle.
pub const TORN: u64 = 1 << 63;

/// Tries to take a lock word for `owner` (not zero, below [`TORN`]). `Ok(true)`: taken, and the last holder died in the
/// middle; it is told once, here.
///
/// # Errors
/// The word as it was: its holder.
#[inline]
pub fn try_lock(lock: &impl Word64, owner: u64) -> Result<bool, u64> {
    match lock.compare_exchange(0, owner, Ordering::Acquire, Ordering::Relaxed) {
        Ok(_) => Ok(false),
        Err(TORN) => lock.compare_exchange(TORN, owner, Ordering::Acquire, Ordering::Relaxed).map(|_| true),
        Err(held) => Err(held),
    }
}

/// Gives a lock word back.
#[inline]
pub fn unlock(lock: &impl Word64) {
    lock.store(0, Ordering::Release);
}

/// Takes a lock from a holder that is proven dead, and marks what it guards as torn. `true` if it held it.
pub fn break_lock(lock: &impl Word64, dead: u64) -> bool {
    lock.compare_exchange(dead, TORN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}
