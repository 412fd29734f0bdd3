//! Who keeps what alive, and what is told of what is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use transom_transport::{Cause, Context, Error, Foreign, Host, MemoryRegion, Outcome};

use crate::pattern;
use crate::world::{SOON, World, contents, memory};

/// Tells when the memory that it owns is free.
#[derive(Debug)]
struct Guard {
    freed: Arc<AtomicUsize>,
    bytes: Box<[u64]>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Who still writes here writes into what the test then reports.
        self.bytes.fill(0);
        self.freed.fetch_add(1, Ordering::SeqCst);
    }
}

fn guarded(context: &Context, words: usize, freed: &Arc<AtomicUsize>) -> MemoryRegion {
    let mut bytes = vec![0_u64; words].into_boxed_slice();
    let at = std::ptr::NonNull::from(&mut *bytes).cast();
    let guard = Guard { freed: freed.clone(), bytes };
    // SAFETY: the guard owns the words, which do not move with it, and only looks at them when it is dropped.
    let memory = unsafe { Foreign::new(at, words * 8, guard) }.unwrap();
    context.register(memory, 1).unwrap()
}

pub async fn everything_may_be_dropped_in_any_order_while_a_transfer_runs(world: World) {
    let freed = Arc::new(AtomicUsize::new(0));
    let mut expected = 0;
    for order in 0..24_usize {
        for get in [false, true] {
            let region = guarded(&world.owner, 64 << 10, &freed);
            let source = guarded(&world.initiator, 64 << 10, &freed);
            expected += 2;
            let target = world.open(&region).await;
            let mut request = Some(match get {
                true => target.get_into(0, source.all()).await.unwrap(),
                false => target.put_from(0, source.all()).await.unwrap(),
            });
            let (mut region, mut source, mut target) = (Some(region), Some(source), Some(target));
            let mut left = vec![0, 1, 2, 3];
            let mut number = order;
            while !left.is_empty() {
                let what = left.remove(number % left.len());
                number /= left.len() + 1;
                match what {
                    0 => drop(request.take()),
                    1 => drop(source.take()),
                    2 => drop(region.take()),
                    _ => drop(target.take()),
                }
            }
        }
    }
    let is_free = || freed.load(Ordering::SeqCst) == expected;
    world.eventually("all memory is free again", is_free).await;
}

pub async fn a_dropped_request_leaves_its_memory_whole_until_the_transfer_ends(world: World) {
    let region = world.region(4 << 20, 1);
    let target = world.open(&region).await;
    let signal = world.signal(&region, 0);
    for round in 1..=10 {
        let source = memory(&world.initiator, pattern::bytes(4 << 20, round));
        drop(target.put_signal_from(0, source.all(), 0, 1).await.unwrap());
        drop(source);
        // What the allocator gives out next may be the same place, if it was freed too early.
        let other = vec![0xff_u8; 4 << 20];
        signal.wait_at_least_async(round, SOON).await.unwrap();
        assert_eq!(pattern::differs(&contents(&region), round), None, "round {round}");
        drop(other);
    }
    target.flush().await.unwrap();
}

pub async fn memory_and_its_owner_live_until_the_peer_lets_go_and_no_longer(world: World) {
    let freed = Arc::new(AtomicUsize::new(0));
    let region = guarded(&world.owner, 512, &freed);
    let target = world.open(&region).await;
    target.put(0, &[1; 8]).await.unwrap();
    target.flush().await.unwrap();
    drop(region);
    let _ = target.put(0, &[2; 8]).await;
    let _ = target.flush().await;
    drop(target);
    world.eventually("the memory is free", || freed.load(Ordering::SeqCst) == 1).await;
}

pub async fn sixty_four_regions_are_kept_apart(world: World) {
    let regions: Vec<_> = (0..64).map(|i| world.region(1000 + i, 1)).collect();
    let mut targets = Vec::new();
    for region in &regions {
        targets.push(world.open(region).await);
    }
    for (i, target) in targets.iter().enumerate() {
        target.put_signal(0, &pattern::bytes(1000 + i, i as u64), 0, i as u64).await.unwrap();
    }
    for target in &targets {
        target.flush().await.unwrap();
    }
    for (i, region) in regions.iter().enumerate() {
        assert_eq!(pattern::differs(&contents(region), i as u64), None, "region {i}");
        assert_eq!(region.signal(0).unwrap(), i as u64);
    }
    for (i, target) in targets.iter().enumerate().rev() {
        target.put(1000 + i as u64, &[1]).await.unwrap_err();
    }
}

pub async fn a_closed_region_says_so_and_the_others_go_on(world: World) {
    let region = world.region(64, 1);
    let target = world.open(&region).await;
    let other = world.open(&region).await;
    target.put(0, &[1; 64]).await.unwrap();
    target.flush().await.unwrap();
    if world.initiator.clock().is_virtual() {
        // Its last flush may have to wait.
        let _ = target.close();
    } else {
        target.close().unwrap();
    }
    let slice = memory(&world.initiator, vec![2; 8]).all();
    let closed = [
        target.put(0, &[2; 8]).await,
        target.put(0, &[]).await,
        target.put_signal(0, &[2; 8], 0, 1).await,
        target.signal(0, 1).await,
        target.put_from(0, slice.clone()).await.map(drop),
        target.get_into(0, slice).await.map(drop),
        target.atomic(transom_transport::Atomic::Add, 8, 0, 1, 0).await.map(drop),
        target.fence(),
        target.flush().await,
        target.clone().flush().await,
    ];
    for error in closed {
        assert!(matches!(error, Err(Error::Closed { .. })), "{error:?}");
    }
    target.close().unwrap();
    assert!(target.explain().contains("closed"), "{}", target.explain());
    assert_eq!(contents(&region), [1; 64]);
    assert_eq!(region.signal(0).unwrap(), 0);
    other.put(0, &[3; 64]).await.unwrap();
    other.flush().await.unwrap();
    assert_eq!(contents(&region), [3; 64]);
}

/// The peer of a context that was closed or dropped is told that it left, within the deadline.
async fn leaves(world: World, leave: impl FnOnce(Context)) {
    let region = world.region(64, 1);
    let target = world.open(&region).await;
    target.put(0, &[1; 8]).await.unwrap();
    target.flush().await.unwrap();
    let World { owner, initiator, .. } = world;
    leave(owner);
    let clock = initiator.clock().clone();
    let since = clock.now();
    let error = loop {
        let told = match target.put(0, &[2; 8]).await {
            Ok(()) => target.flush().await,
            error => error,
        };
        match told {
            Err(error) => break error,
            Ok(()) => assert!(clock.now() - since < SOON, "nobody tells that the owner left"),
        }
        clock.sleep(Duration::from_millis(1)).await;
    };
    let root = error.root().unwrap_or_else(|| panic!("{error:?}")).clone();
    assert_eq!(root.cause, Cause::Left, "{error}");
    assert_eq!(root.incarnation, Some(target.remote().incarnation));
    let error = target.put(0, &[2; 8]).await.unwrap_err();
    assert_eq!(error.outcome(), Some(Outcome::NotApplied), "{error:?}");
    assert!(target.peer().failure().is_some());
    assert!(target.explain().contains("failed"), "{}", target.explain());
    // Its region is memory of its own still.
    let mut bytes = [0; 8];
    region.read(0, &mut bytes).unwrap();
    // A peer that left is not found again.
    let remote = target.remote().clone();
    let again = async { initiator.connect_async(&remote).await?.open_async(&remote).await };
    again.await.unwrap_err();
}

pub async fn a_dropped_context_is_told_as_left(world: World) {
    leaves(world, drop).await;
}

pub async fn a_closed_context_is_told_as_left(world: World) {
    leaves(world, |owner| {
        owner.close();
        owner.close();
    })
    .await;
}

pub async fn a_context_that_was_closed_refuses_every_call(world: World) {
    let region = world.region(64, 1);
    let target = world.open(&region).await;
    let remote = world.only(&world.remote(&region));
    let own = memory(&world.initiator, vec![7; 8]);
    let peer = target.peer().clone();
    world.initiator.close();
    let put = match target.put(0, &[2; 8]).await {
        Ok(()) => target.flush().await,
        error => error,
    };
    let refused = [
        put,
        target.flush().await,
        target.fence(),
        target.signal(0, 1).await,
        target.put_from(0, own.all()).await.map(drop),
        target.get_into(0, own.all()).await.map(drop),
        target.atomic(transom_transport::Atomic::Add, 8, 0, 1, 0).await.map(drop),
        peer.open_async(&remote).await.map(drop),
        world.initiator.connect_async(&remote).await.map(drop),
    ];
    for error in refused {
        assert!(matches!(error, Err(Error::Closed { .. })), "{error:?}");
    }
    // No wait of a closed context can end well, and none hangs or panics.
    let short = Duration::from_millis(10);
    let receives = world.initiator.register(Host::new(64).unwrap(), 1).unwrap();
    let signals = world.initiator.signals(&receives);
    let error = signals.wait_any_async(&[(0, 1)], short).await.unwrap_err();
    assert!(matches!(error, Error::Closed { .. } | Error::Expired { .. }), "{error:?}");
    assert_eq!(contents(&region), [0; 64]);
    assert_eq!(region.signal(0).unwrap(), 0);
    assert_eq!(contents(&own), [7; 8]);
}

pub async fn a_wait_that_runs_when_its_context_is_closed_ends(world: World) {
    let region = world.region(64, 1);
    let signal = world.signal(&region, 0);
    let wait = signal.wait_at_least_async(1, Duration::from_secs(5));
    let clock = world.initiator.clock().clone();
    let (waited, ()) = crate::world::both(wait, async {
        clock.sleep(Duration::from_millis(5)).await;
        world.owner.close();
    })
    .await;
    let error = waited.unwrap_err();
    assert!(matches!(error, Error::Closed { .. } | Error::Expired { .. }), "{error:?}");
}

pub async fn contexts_come_and_go_and_the_owner_keeps_serving(world: World) {
    let region = world.region(64, 1);
    let remote = world.remote(&region);
    let first = world.try_open(&world.initiator, &remote).await.unwrap();
    let next = world.try_open(&world.second, &remote).await.unwrap();
    let World { owner, initiator, second, .. } = world;
    let mut count = 0;
    for (context, target) in [(initiator, first), (second, next)] {
        count += 1;
        target.put_signal(0, &[count as u8; 64], 0, 1).await.unwrap();
        target.flush().await.unwrap();
        drop((context, target));
        assert_eq!(region.signal(0).unwrap(), count);
        assert_eq!(contents(&region), [count as u8; 64]);
    }
    drop(owner);
}
