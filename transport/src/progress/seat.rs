//! The seat: one thread at a time polls the transports, and it is never empty while somebody waits.
//!
//! Two rules make that so, and a model of them runs under loom: whoever gets up wakes one of those who parked, and so does
//! whoever stops waiting, since it may have been woken to sit down.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;

use crate::sync::{AtomicUsize, Mutex, fence};

/// Somebody who parked.
pub(crate) trait Parked: PartialEq {
    /// Wakes it; a wake that comes before it sleeps is kept for it.
    fn wake(&self);
}

/// A thread that sleeps by `park`.
#[derive(Debug, Clone)]
pub(crate) struct ParkedThread(pub(crate) std::thread::Thread);

impl PartialEq for ParkedThread {
    fn eq(&self, other: &Self) -> bool {
        self.0.id() == other.0.id()
    }
}

impl Parked for ParkedThread {
    fn wake(&self) {
        self.0.unpark();
    }
}

/// The seat, with what belongs to whoever has it, and the list of those who wait for it.
#[derive(Debug)]
pub(crate) struct Seat<T, P> {
    chair: Mutex<T>,
    parked: Mutex<Vec<P>>,
    count: AtomicUsize,
}

impl<T, P: Parked> Seat<T, P> {
    pub(crate) fn new(what: T) -> Self {
        Self { chair: Mutex::new(what), parked: Mutex::new(Vec::new()), count: AtomicUsize::new(0) }
    }

    /// Sits down, if the seat is free.
    #[inline]
    pub(crate) fn take(&self) -> Option<Seated<'_, T, P>> {
        Some(Seated { guard: Some(self.chair.try_lock()?), seat: self })
    }

    /// Parks by `sleep` until it is woken, unless the seat is free.
    pub(crate) fn park(&self, me: P, sleep: impl FnOnce())
    where
        P: Clone,
    {
        let mut parked = self.parked.lock();
        parked.push(me.clone());
        self.count.store(parked.len(), Ordering::SeqCst);
        drop(parked);
        // Pairs with the fence of whoever gets up: it sees us, or we see that the seat is free.
        fence(Ordering::SeqCst);
        let free = self.chair.try_lock().is_some();
        if !free {
            sleep();
        }
        let mut parked = self.parked.lock();
        parked.retain(|other| *other != me);
        self.count.store(parked.len(), Ordering::SeqCst);
    }

    /// Wakes one who parked.
    #[inline]
    pub(crate) fn wake_one(&self) {
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) > 0 {
            self.wake_one_now();
        }
    }

    #[cold]
    fn wake_one_now(&self) {
        let mut parked = self.parked.lock();
        let one = parked.pop();
        self.count.store(parked.len(), Ordering::SeqCst);
        drop(parked);
        if let Some(one) = one {
            one.wake();
        }
    }
}

#[cfg(not(transom_loom))]
type Guard<'a, T> = parking_lot::MutexGuard<'a, T>;
#[cfg(transom_loom)]
type Guard<'a, T> = loom::sync::MutexGuard<'a, T>;

/// Having the seat; dropping it gets up and wakes one who parked.
pub(crate) struct Seated<'a, T, P: Parked> {
    guard: Option<Guard<'a, T>>,
    seat: &'a Seat<T, P>,
}

impl<T, P: Parked> Deref for Seated<'_, T, P> {
    type Target = T;
    fn deref(&self) -> &T {
        match &self.guard {
            Some(guard) => guard,
            None => unreachable!("held until it is dropped"),
        }
    }
}

impl<T, P: Parked> DerefMut for Seated<'_, T, P> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.guard {
            Some(guard) => guard,
            None => unreachable!("held until it is dropped"),
        }
    }
}

impl<T, P: Parked> Drop for Seated<'_, T, P> {
    fn drop(&mut self) {
        self.guard = None;
        self.seat.wake_one();
    }
}

#[cfg(all(test, transom_loom))]
mod loom_tests {
    use loom::sync::atomic::{AtomicBool, AtomicUsize};
    use loom::sync::{Arc, Notify};
    use loom::thread;

    use super::*;

    /// A waiter of the model.
    struct Waiter {
        number: usize,
        done: AtomicBool,
        notify: Notify,
    }

    #[derive(Clone)]
    struct Handle(Arc<Waiter>);

    impl PartialEq for Handle {
        fn eq(&self, other: &Self) -> bool {
            self.0.number == other.0.number
        }
    }

    impl Parked for Handle {
        fn wake(&self) {
            self.0.notify.notify();
        }
    }

    /// What comes from outside, and is only found by whoever has the seat: which waiter each event is for.
    struct Outside {
        next: AtomicUsize,
        order: [usize; 2],
    }

    /// Polls once: takes one event, if there is one, and ends that waiter's wait.
    fn poll(outside: &Outside, waiters: &[Handle]) {
        let next = outside.next.load(Ordering::Relaxed);
        if let Some(&number) = outside.order.get(next) {
            outside.next.store(next + 1, Ordering::Relaxed);
            waiters[number].0.done.store(true, Ordering::Release);
            waiters[number].wake();
        }
    }

    fn wait(me: usize, seat: &Seat<(), Handle>, outside: &Outside, waiters: &[Handle]) {
        while !waiters[me].0.done.load(Ordering::Acquire) {
            match seat.take() {
                Some(seated) => {
                    poll(outside, waiters);
                    drop(seated);
                }
                None => seat.park(waiters[me].clone(), || waiters[me].0.notify.wait()),
            }
        }
        // Leaving.
        seat.wake_one();
    }

    fn run(order: [usize; 2]) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let seat = Arc::new(Seat::new(()));
            let outside = Arc::new(Outside { next: AtomicUsize::new(0), order });
            let waiter = |number| {
                Handle(Arc::new(Waiter { number, done: AtomicBool::new(false), notify: Notify::new() }))
            };
            let waiters = [waiter(0), waiter(1)];
            let other = {
                let (seat, outside, waiters) = (seat.clone(), outside.clone(), waiters.clone());
                thread::spawn(move || wait(1, &seat, &outside, &waiters))
            };
            // A lost wake-up leaves a waiter asleep for ever, which loom reports as a deadlock.
            wait(0, &seat, &outside, &waiters);
            other.join().unwrap();
        });
    }

    #[test]
    fn loom_the_seat_is_never_empty_while_somebody_waits() {
        run([0, 1]);
        run([1, 0]);
    }
}
