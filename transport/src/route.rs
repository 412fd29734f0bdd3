//! The way to mapped memory that a put takes inside the call: one line of pointers and sizes, checked by one compare; and
//! beside it a second line with what accumulates need besides.
//!
//! A route lives in memory that a forked child finds zero, and a size of zero means: not mapped, closed, revoked or dead.
//! So the compare that checks the range checks all of that too, and a cold function sorts out which it was.

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use transom_registry::element::{self, Dtype, Reduce};
use transom_registry::exposed::Exposed;
use transom_registry::header::{SIGNAL_STRIDE, State, lock_owner};
use transom_registry::{Access, Incarnation, Result, copy, word};

use crate::fork::{BLOCK, Blocks};

/// One route: a line for everything but accumulates, and a second one for those.
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
    stripes: Locks,
}

const _: () = assert!(size_of::<Line>() == BLOCK);

/// The second line of a route: how the accumulate locks of its memory are found and taken.
#[repr(C, align(64))]
struct Locks {
    /// Size in bytes of what may be accumulated into; 0 for nothing.
    size: AtomicU64,
    /// The lock of the region's first stripe.
    first: AtomicPtr<AtomicU64>,
    /// Where in its region the memory begins.
    start: AtomicU64,
    /// The binary logarithm of a stripe's size.
    shift: AtomicU32,
    /// What this process writes into a lock that it holds.
    owner: AtomicU64,
}

/// A table of routes. What they lead to is kept by whoever opened them, at least as long as the table.
#[derive(Debug)]
pub struct Routes {
    blocks: Blocks,
    count: usize,
    /// What the lines point into, kept until the table goes: an operation of another thread may still be inside.
    keep: parking_lot::Mutex<Vec<(usize, Exposed)>>,
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
        // SAFETY: inside the blocks, aligned to 128, zero bytes are a valid line, and it is touched through atomics only.
        (index < self.count)
            .then(|| Route(unsafe { self.blocks.as_ptr().cast::<Line>().add(index).as_ref() }))
    }

    /// Opens a route to mapped memory, with these rights, for the process `me`. A route is opened once.
    pub(crate) fn open(&self, index: usize, to: &Exposed, access: Access, me: Incarnation) -> Result<()> {
        let Some(Route(line)) = self.at(index) else { return Ok(()) };
        let header = to.header()?;
        let stripes = to.stripes()?;
        if let Some(stripes) = stripes {
            line.stripes.first.store(stripes.locks.as_ptr(), Ordering::Relaxed);
            line.stripes.start.store(stripes.start, Ordering::Relaxed);
            line.stripes.shift.store(stripes.shift, Ordering::Relaxed);
            line.stripes.owner.store(lock_owner(me), Ordering::Relaxed);
        }
        line.base.store(to.as_ptr(), Ordering::Relaxed);
        line.gone.store(std::ptr::from_ref(header.state()).cast_mut(), Ordering::Relaxed);
        line.asleep.store(std::ptr::from_ref(to.bell().asleep()).cast_mut(), Ordering::Relaxed);
        if access.contains(Access::SIGNAL)
            && let Some(first) = header.signal(0)
        {
            line.signals.store(std::ptr::from_ref(first).cast_mut().cast(), Ordering::Relaxed);
            line.signal_count.store(header.signals().into(), Ordering::Relaxed);
        }
        self.keep.lock().push((index, to.clone()));
        let size = to.size() as u64;
        for (right, word) in
            [(Access::READ, &line.read), (Access::WRITE, &line.write), (Access::ATOMIC, &line.atomic)]
        {
            if access.contains(right) {
                word.store(size, Ordering::Release);
            }
        }
        if access.contains(Access::ATOMIC) && to.is_writable() && stripes.is_some() {
            line.stripes.size.store(size, Ordering::Release);
        }
        Ok(())
    }

    /// The memory that a route led to, closed since or not.
    pub(crate) fn kept(&self, index: usize) -> Option<Exposed> {
        self.keep.lock().iter().find(|(at, _)| *at == index).map(|(_, exposed)| exposed.clone())
    }

    /// Closes a route: operations that begin from now on do not take it.
    pub(crate) fn close(&self, index: usize) {
        if let Some(Route(line)) = self.at(index) {
            for word in [&line.read, &line.write, &line.atomic, &line.stripes.size, &line.signal_count] {
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

    /// Reduces elements into those there, stripe after stripe in address order, under the lock of each, as
    /// [`Exposed::accumulate`] does. Returns how many bytes are done: it ends before the first stripe whose lock is not
    /// free, or is torn, and 0 is also the answer to everything that is not allowed. The slow way does the rest.
    #[inline]
    #[must_use]
    pub fn accumulate(self, dtype: Dtype, reduce: Reduce, offset: u64, from: &[u8]) -> usize {
        let (size, stripes) = (from.len(), &self.0.stripes);
        if !inside(offset, size as u64, stripes.size.load(Ordering::Acquire)) || !self.is_live() {
            return 0;
        }
        let first = stripes.start.load(Ordering::Relaxed) + offset;
        // Widths are powers of two: no element is cut by the end of the bytes or of a stripe.
        if (size as u64 | offset | first) & (dtype.size() as u64 - 1) != 0 {
            return 0;
        }
        let shift = stripes.shift.load(Ordering::Relaxed);
        // Mostly one stripe: nothing but the lock and the size is needed after the loop over its elements.
        let elements = (dtype, reduce);
        if size as u64 <= (((first >> shift) + 1) << shift) - first {
            // SAFETY: inside the mapping that the table keeps, one stripe, and `from` is apart from exposed memory.
            let done = unsafe {
                self.one_stripe(elements, first >> shift, self.address(offset), from.as_ptr(), size)
            };
            return if done { size } else { 0 };
        }
        self.each_stripe(elements, (first, shift), offset, from)
    }

    /// Several stripes of an accumulate, all of them allowed: `first` is its place in its region.
    #[inline(never)]
    fn each_stripe(
        self,
        elements: (Dtype, Reduce),
        (first, shift): (u64, u32),
        offset: u64,
        from: &[u8],
    ) -> usize {
        let mut done = 0;
        while done < from.len() {
            let stripe = (first + done as u64) >> shift;
            let end = ((((stripe + 1) << shift) - first) as usize).min(from.len());
            let (into, operand) = (self.address(offset + done as u64), from.as_ptr().wrapping_add(done));
            // SAFETY: as in `accumulate`, `end` being no further than the stripe, and than `from`.
            if !unsafe { self.one_stripe(elements, stripe, into, operand, end - done) } {
                break;
            }
            done = end;
        }
        done
    }

    /// Reduces elements of one stripe if its lock is free.
    ///
    /// # Safety
    /// The stripes are known; `into` leads to `size` bytes of this stripe, `from` to as many apart from exposed memory.
    #[inline(always)]
    unsafe fn one_stripe(
        self,
        (dtype, reduce): (Dtype, Reduce),
        stripe: u64,
        into: *mut u8,
        from: *const u8,
        size: usize,
    ) -> bool {
        let Locks { first, owner, .. } = &self.0.stripes;
        let lock = first.load(Ordering::Relaxed).wrapping_add(stripe as usize);
        // SAFETY: every byte of the mapping has a lock (found when the route was opened), kept mapped by the table, and
        // only ever touched through atomics.
        let lock = unsafe { AtomicU64::from_ptr(lock.cast()) };
        let owner = owner.load(Ordering::Relaxed);
        if lock.compare_exchange(0, owner, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        // SAFETY: the caller's promise; the stripe's lock is held.
        unsafe { element::reduce(dtype, reduce, into, from, size / dtype.size()) };
        word::unlock(lock);
        true
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
        word::signal_add(signal, asleep, add)
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
    use std::time::Duration;

    use proptest::prelude::*;
    use transom_registry::exposed::Locker;
    use transom_registry::{Error, MemoryRegion, Outcome};

    use super::*;
    use crate::{Context, Peer, PeerRegion};

    const STRIPE: usize = 4096;
    const SIZE: usize = 5 * STRIPE;

    proptest! {
        #[test]
        fn the_one_compare_is_the_long_check(offset: u64, size: u64, limit in 0..=1_u64 << 47, small in 0..100_u64) {
            for (offset, size, limit) in [(offset, size, limit), (offset % 100, size % 100, small), (limit, size % 3, limit)] {
                let long = size > 0 && offset.checked_add(size).is_some_and(|end| end <= limit);
                prop_assert_eq!(inside(offset, size, limit), long);
            }
        }
    }

    /// A region of one context, opened by another one in this process, and a route to it.
    struct Two {
        _owner: Context,
        other: Context,
        region: MemoryRegion,
        _peer: Peer,
        part: PeerRegion,
        routes: Arc<Routes>,
    }

    impl Two {
        fn with(access: Access) -> Self {
            let context = || Context::builder().transports("local").build().unwrap();
            let (owner, other) = (context(), context());
            let region = owner.allocate(SIZE, 1).unwrap();
            let remote = region.remote(access).unwrap();
            let peer = other.connect(&remote).unwrap();
            let part = peer.open(&remote).unwrap();
            let routes = Routes::new(2).unwrap();
            routes.open(1, region.exposed(), access, other.incarnation()).unwrap();
            Self { _owner: owner, other, region, _peer: peer, part, routes }
        }

        fn route(&self) -> Route<'_> {
            self.routes.at(1).unwrap()
        }

        fn lock(&self, stripe: usize) -> &AtomicU64 {
            let first = self.region.exposed().stripes().unwrap().unwrap().locks;
            // SAFETY: the region has five stripes, and keeps their locks mapped; they are only touched through atomics.
            unsafe { first.add(stripe).as_ref() }
        }

        fn numbers(&self) -> Vec<u64> {
            let mut bytes = vec![0; SIZE];
            self.region.read(0, &mut bytes).unwrap();
            bytes.as_chunks::<8>().0.iter().map(|number| u64::from_ne_bytes(*number)).collect()
        }
    }

    fn ones(count: usize) -> Vec<u8> {
        1_u64.to_ne_bytes().repeat(count)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 60, ..ProptestConfig::default() })]

        #[test]
        fn accumulates_by_the_route_do_what_exposed_memory_does_or_nothing(
            operations in prop::collection::vec(
                (0..8_usize, 0..4_usize, 0..5_usize, -40..40_i64, prop_oneof![0..80_usize, 4000..4200_usize, 0..SIZE]),
                1..8,
            ),
            fill: u8,
        ) {
            let (two, model) = (Two::with(Access::ALL), Two::with(Access::ALL));
            let locker = Locker { incarnation: two.other.incarnation(), patience: Duration::from_secs(30) };
            let from: Vec<u8> = (0..SIZE).map(|i| (i * 7 + i / 13) as u8 ^ fill).collect();
            for (dtype, reduce, stripe, beside, size) in operations {
                let (dtype, reduce) = (Dtype::ALL[dtype], Reduce::ALL[reduce]);
                // Around the edges of stripes, and mostly whole elements.
                let offset = (stripe * STRIPE) as i64 + beside * if fill % 4 == 0 { 1 } else { 8 };
                let size = if fill % 4 == 1 { size } else { size / 8 * 8 };
                let (offset, from) = (offset.max(0) as u64, &from[..size]);
                let expected = model.region.exposed().accumulate_bytes(dtype, reduce, offset, from, locker);
                let done = two.route().accumulate(dtype, reduce, offset, from);
                prop_assert_eq!(done, if expected.is_ok() { size } else { 0 }, "{:?}", expected);
            }
            prop_assert!(two.numbers() == model.numbers());
            prop_assert!((0..5).all(|stripe| two.lock(stripe).load(Ordering::Relaxed) == 0));
        }
    }

    #[test]
    fn sums_by_the_route_are_those_of_the_scalar_model_at_every_count_and_place() {
        let two = Two::with(Access::ALL);
        let mut model = vec![0_f32; SIZE / 4];
        for count in (0..140).chain([1000, 1023, 1024, 1025, 2100]) {
            let values: Vec<f32> = (0..count).map(|i| (i * 3 + count) as f32).collect();
            let at = (count * 37) % (SIZE / 4 - 2100);
            two.part.accumulate(at as u64 * 4, &values, Reduce::Sum).unwrap();
            model[at..].iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
        let mut bytes = vec![0; SIZE];
        two.region.read(0, &mut bytes).unwrap();
        assert!(bytes == element::as_bytes(&model));
    }

    #[test]
    fn two_threads_by_the_route_lose_nothing() {
        const ROUNDS: u64 = 2000;
        let two = Two::with(Access::ALL);
        let from = vec![1_u64; 600];
        std::thread::scope(|scope| {
            for offset in [0, 1600] {
                let (part, from) = (two.part.clone(), &from);
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        part.accumulate(offset, from, Reduce::Sum).unwrap();
                    }
                });
            }
        });
        for (at, sum) in two.numbers().into_iter().enumerate() {
            assert_eq!(sum, ROUNDS * (u64::from(at < 600) + u64::from((200..800).contains(&at))), "{at}");
        }
    }

    #[test]
    fn a_torn_stripe_is_left_to_the_slow_way_which_tells_it_once_and_does_the_rest_once() {
        let two = Two::with(Access::ALL);
        for torn in 0..5 {
            two.lock(torn).store(word::TORN, Ordering::Relaxed);
            let told = two.part.accumulate_bytes(0, &ones(SIZE / 8), Dtype::U64, Reduce::Sum);
            let Err(Error::Torn { offset, size, .. }) = told else { panic!("{told:?}") };
            assert_eq!((offset, size), ((torn * STRIPE) as u64, STRIPE as u64));
            two.part.accumulate_bytes(0, &ones(SIZE / 8), Dtype::U64, Reduce::Sum).unwrap();
            assert!(two.numbers().iter().all(|sum| *sum == 2 * (torn as u64 + 1)), "torn {torn}");
        }
        two.lock(2).store(word::TORN, Ordering::Relaxed);
        let done = two.route().accumulate(Dtype::U64, Reduce::Sum, 8, &ones(SIZE / 8 - 1));
        assert_eq!(done, 2 * STRIPE - 8, "the route stops before the torn stripe");
        assert_eq!(two.lock(2).load(Ordering::Relaxed), word::TORN);
        assert_eq!(two.lock(1).load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_held_stripe_is_waited_for_by_the_slow_way_and_the_others_are_not_done_twice() {
        let two = Two::with(Access::ALL);
        two.lock(3).store(9, Ordering::Relaxed);
        assert_eq!(two.route().accumulate(Dtype::U64, Reduce::Sum, 3 * STRIPE as u64, &ones(1)), 0);
        let late = two.part.clone().with_timeout(Duration::ZERO);
        let expired = late.accumulate_bytes(0, &ones(SIZE / 8), Dtype::U64, Reduce::Sum);
        assert!(
            matches!(expired, Err(Error::Expired { outcome: Some(Outcome::InDoubt), .. })),
            "{expired:?}"
        );
        let done: Vec<u64> = (0..SIZE / 8).map(|at| u64::from(at < 3 * STRIPE / 8)).collect();
        assert!(two.numbers() == done);
        std::thread::scope(|scope| {
            let waits =
                scope.spawn(|| two.part.accumulate_bytes(0, &ones(SIZE / 8), Dtype::U64, Reduce::Sum));
            // Until it stands before the held stripe.
            while two.numbers()[3 * STRIPE / 8 - 1] < 2 {
                std::thread::yield_now();
            }
            // What is begun is ended, though the region is closed meanwhile.
            two.part.close().unwrap();
            word::unlock(two.lock(3));
            waits.join().unwrap().unwrap();
        });
        assert!(two.numbers().iter().zip(done).all(|(sum, before)| *sum == before + 1));
    }

    #[test]
    fn a_route_without_the_right_or_closed_or_to_a_dead_owner_takes_no_accumulate() {
        let from = ones(4);
        let one = |two: &Two| two.route().accumulate(Dtype::U64, Reduce::Sum, 0, &from);
        let refused = |two: &Two| two.part.accumulate_bytes(0, &from, Dtype::U64, Reduce::Sum).unwrap_err();

        let two = Two::with(Access::READ | Access::WRITE | Access::SIGNAL);
        assert_eq!(one(&two), 0);
        assert!(matches!(refused(&two), Error::Access { needed: Access::ATOMIC, .. }));

        let two = Two::with(Access::ALL);
        assert_eq!(one(&two), 32);
        two.routes.close(1);
        assert_eq!(one(&two), 0);
        two.part.close().unwrap();
        assert!(matches!(refused(&two), Error::Closed { .. }));
        assert_eq!(two.numbers()[..5], [1, 1, 1, 1, 0]);

        for state in [State::Dead, State::Gone] {
            let two = Two::with(Access::ALL);
            two.region.exposed().header().unwrap().end(state);
            assert_eq!(one(&two), 0);
            let error = refused(&two);
            assert!(matches!(error, Error::Failed(_) | Error::Stale { .. }), "{error:?}");
            assert_eq!(two.numbers()[0], 0);
        }
    }
}
