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
    /// What makes two sequentially consistent accesses of different words ordered, where the accesses themselves do not:
    /// under loom, which takes them for acquire and release.
    #[inline(always)]
    fn model_fence() {}
}

macro_rules! words {
    ($w64:ty, $w32:ty $(, $fence:path)?) => {
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
            $(fn model_fence() {
                $fence(Ordering::SeqCst);
            })?
        }
    };
}
words!(AtomicU64, AtomicU32);
#[cfg(transom_loom)]
words!(loom::sync::atomic::AtomicU64, loom::sync::atomic::AtomicU32, loom::sync::atomic::fence);

/// Adds to a signal. `Some(true)` when a sleeper asked to be woken: the caller rings its bell, once for all who saw the flag.
/// `None`: the counter has no room for it, and is as it was; meanwhile it could be seen lower, never higher.
///
/// The add and the look at the flag are both sequentially consistent, as are [`arm`] and the look at the signal behind
/// it: one of the two sides sees the other, so no wake-up is lost (a store-buffering litmus test; on x86 the locked add
/// is the barrier and the look a plain load).
#[inline(always)]
#[must_use]
pub fn signal_add<W: Word32>(signal: &impl Word64, asleep: &W, add: u64) -> Option<bool> {
    let before = signal.fetch_add(add, Ordering::SeqCst);
    W::model_fence();
    if before.checked_add(add).is_none() {
        signal.fetch_add(add.wrapping_neg(), Ordering::SeqCst);
        return None;
    }
    Some(asleep.load(Ordering::SeqCst) != 0 && asleep.swap(0, Ordering::SeqCst) != 0)
}

/// Says that somebody is about to sleep: after this, look at the signals once more, then sleep on the bell.
#[inline]
pub fn arm<W: Word32>(asleep: &W) {
    asleep.swap(1, Ordering::SeqCst);
    W::model_fence();
}

/// Says that somebody is awake and will look at every signal that is waited for before it sleeps again, arming anew where
/// one is still to come: until then nobody needs to ring.
#[inline]
pub fn disarm<W: Word32>(asleep: &W) {
    asleep.swap(0, Ordering::SeqCst);
    W::model_fence();
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

#[cfg(all(test, transom_loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, AtomicU64};
    use loom::thread;

    use super::*;

    /// All interleavings with at most three preemptions: what bugs of this kind need, in bounded time.
    fn model(run: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(run);
    }

    #[test]
    fn loom_a_sleeper_is_woken_and_sees_the_payload() {
        model(|| {
            let signal = Arc::new(AtomicU64::new(0));
            let asleep = Arc::new(AtomicU32::new(0));
            let payload = Arc::new(AtomicU64::new(0));
            let bell = Arc::new(loom::sync::Notify::new());
            let signaller = {
                let (signal, asleep, payload, bell) =
                    (signal.clone(), asleep.clone(), payload.clone(), bell.clone());
                thread::spawn(move || {
                    payload.store(7, Ordering::Relaxed);
                    if signal_add(&*signal, &*asleep, 1) == Some(true) {
                        bell.notify();
                    }
                })
            };
            // A lost wake-up is a deadlock, which loom reports.
            while signal.load(Ordering::Acquire) == 0 {
                arm(&*asleep);
                if signal.load(Ordering::Acquire) == 0 {
                    bell.wait();
                }
            }
            assert_eq!(payload.load(Ordering::Relaxed), 7);
            signaller.join().unwrap();
        });
    }

    #[test]
    fn loom_two_signallers_ring_and_no_count_is_lost() {
        model(|| {
            let signal = Arc::new(AtomicU64::new(0));
            let asleep = Arc::new(AtomicU32::new(0));
            let bell = Arc::new(loom::sync::Notify::new());
            let signallers: Vec<_> = (0..2)
                .map(|_| {
                    let (signal, asleep, bell) = (signal.clone(), asleep.clone(), bell.clone());
                    thread::spawn(move || {
                        if signal_add(&*signal, &*asleep, 1) == Some(true) {
                            bell.notify();
                        }
                    })
                })
                .collect();
            while signal.load(Ordering::Acquire) < 2 {
                arm(&*asleep);
                if signal.load(Ordering::Acquire) < 2 {
                    bell.wait();
                }
            }
            for signaller in signallers {
                signaller.join().unwrap();
            }
            assert_eq!(signal.load(Ordering::Relaxed), 2);
        });
    }

    #[test]
    fn loom_whoever_is_awake_may_disarm_and_nobody_sleeps_for_ever() {
        model(|| {
            let signal = Arc::new(AtomicU64::new(0));
            let asleep = Arc::new(AtomicU32::new(0));
            let bell = Arc::new(loom::sync::Notify::new());
            let waits = Arc::new(loom::sync::Mutex::new(false));
            let signaller = {
                let (signal, asleep, bell) = (signal.clone(), asleep.clone(), bell.clone());
                thread::spawn(move || {
                    if signal_add(&*signal, &*asleep, 1) == Some(true) {
                        bell.notify();
                    }
                })
            };
            let awake = {
                let (signal, asleep, bell, waits) =
                    (signal.clone(), asleep.clone(), bell.clone(), waits.clone());
                thread::spawn(move || {
                    let left = || {
                        let waits = waits.lock().unwrap();
                        let over = signal.load(Ordering::SeqCst) > 0;
                        if *waits && over {
                            bell.notify();
                        }
                        *waits && !over
                    };
                    disarm(&*asleep);
                    if left() {
                        arm(&*asleep);
                        left();
                    }
                })
            };
            *waits.lock().unwrap() = true;
            arm(&*asleep);
            if signal.load(Ordering::Acquire) == 0 {
                bell.wait();
            }
            signaller.join().unwrap();
            awake.join().unwrap();
        });
    }

    #[test]
    fn loom_a_lock_excludes_and_a_dead_holders_stripe_is_told_once() {
        model(|| {
            let lock = Arc::new(AtomicU64::new(9));
            let guarded = Arc::new(AtomicU64::new(0));
            let takers: Vec<_> = (1..3)
                .map(|me| {
                    let (lock, guarded) = (lock.clone(), guarded.clone());
                    thread::spawn(move || {
                        // Bounded: a model cannot wait for ever.
                        for _ in 0..2 {
                            if let Ok(torn) = try_lock(&*lock, me) {
                                let seen = guarded.load(Ordering::Relaxed);
                                guarded.store(seen + 1, Ordering::Relaxed);
                                unlock(&*lock);
                                return torn;
                            }
                            thread::yield_now();
                        }
                        false
                    })
                })
                .collect();
            // Holder 9 is dead: who proves it breaks its lock; another dead one held nothing.
            assert!(!break_lock(&*lock, 8));
            assert!(break_lock(&*lock, 9));
            let told = takers.into_iter().map(|t| t.join().unwrap()).filter(|torn| *torn).count() as u64;
            let taken = guarded.load(Ordering::Acquire);
            assert_eq!(told, taken.min(1), "of {taken} who took it");
        });
    }
}
