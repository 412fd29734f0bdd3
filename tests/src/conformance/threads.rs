//! Many threads at once, in real time.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use transom_transport::{Dtype, Reduce};

use crate::pattern;
use crate::world::{SOON, World, contents, memory};

pub fn eight_threads_on_one_region_lose_nothing(world: World) {
    const THREADS: usize = 8;
    const PART: usize = 40_000;
    const ROUNDS: u64 = 60;
    let region = world.region(THREADS * PART + 64, 1);
    let counter = (THREADS * PART) as u64;
    let target = world.open_now(&world.initiator, &region);
    let numbers: Vec<u64> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|i| {
                let (target, context) = (&target, &world.initiator);
                scope.spawn(move || {
                    let offset = (i * PART) as u64;
                    let source = memory(context, vec![0; PART]);
                    let mut numbers = Vec::new();
                    let mut back = vec![0; PART];
                    for round in 0..ROUNDS {
                        let version = round * 100 + i as u64;
                        if round % 2 == 0 {
                            target.put(offset, &pattern::bytes(PART, version)).unwrap();
                        } else {
                            source.write(0, &pattern::bytes(PART, version)).unwrap();
                            target.put_from(offset, source.all()).unwrap().wait().unwrap();
                        }
                        numbers.push(target.fetch_add(counter, 1).unwrap());
                        target.signal(0, 1).unwrap();
                        target.fence().unwrap();
                        target.get(offset, &mut back).unwrap();
                        assert_eq!(pattern::differs(&back, version), None, "thread {i} round {round}");
                    }
                    target.flush().unwrap();
                    numbers
                })
            })
            .collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    let all = THREADS as u64 * ROUNDS;
    assert_eq!(region.load(counter as usize).unwrap(), all);
    assert_eq!(numbers.iter().copied().collect::<HashSet<_>>(), (0..all).collect());
    assert_eq!(region.signal(0).unwrap(), all);
    let bytes = contents(&region);
    for i in 0..THREADS {
        let part = &bytes[i * PART..(i + 1) * PART];
        assert_eq!(pattern::differs(part, (ROUNDS - 1) * 100 + i as u64), None, "part {i}");
    }
}

/// Writers and readers on threads of their own, so that memory order is tried and not only told.
pub fn who_sees_a_signal_on_another_thread_sees_every_put_before_it(world: World) {
    let rounds = if crate::is_long() { 200_000 } else { 400 };
    let sizes = [1, 8, 100, 4096, 70_000];
    let regions = [world.region(2 * 70_000, 2), world.initiator.allocate(2 * 70_000, 2).unwrap()];
    let targets = [world.open_now(&world.initiator, &regions[0]), world.open_now(&world.owner, &regions[1])];
    let contexts = [&world.owner, &world.initiator];
    thread::scope(|scope| {
        for side in 0..2 {
            let (regions, targets) = (&regions, &targets);
            let (region, target) = (&regions[side], &targets[side]);
            scope.spawn(move || {
                let acknowledged = contexts[1 - side].signals(&regions[1 - side]).signal(1).unwrap();
                for round in 1..=rounds {
                    let size = sizes[round as usize % sizes.len()];
                    target.put(0, &pattern::bytes(size, 2 * round)).unwrap();
                    target.put_signal(70_000, &pattern::bytes(size, 2 * round + 1), 0, 1).unwrap();
                    // The other side reads now, and says when the bytes may be written again.
                    acknowledged.wait_at_least(round, SOON).unwrap();
                }
            });
            scope.spawn(move || {
                let signal = contexts[side].signals(region).signal(0).unwrap();
                let mut bytes = vec![0; 70_000];
                for round in 1..=rounds {
                    if round % 2 == 0 {
                        signal.wait_at_least(round, SOON).unwrap();
                    } else {
                        let since = std::time::Instant::now();
                        while signal.value() < round {
                            thread::yield_now();
                            assert!(since.elapsed() < SOON, "the signal comes without a wait too");
                        }
                    }
                    let size = sizes[round as usize % sizes.len()];
                    for (at, version) in [(0, 2 * round), (70_000, 2 * round + 1)] {
                        region.read(at, &mut bytes[..size]).unwrap();
                        assert_eq!(
                            pattern::differs(&bytes[..size], version),
                            None,
                            "round {round}: {size} at {at}"
                        );
                    }
                    targets[1 - side].signal(1, 1).unwrap();
                }
            });
        }
    });
}

pub fn adds_of_four_threads_to_a_signal_are_all_counted(world: World) {
    let region = world.region(64, 1);
    let targets = [&world.initiator, &world.second].map(|context| world.open_now(context, &region));
    let each = 2500;
    thread::scope(|scope| {
        for i in 0..4 {
            let target = &targets[i % 2];
            scope.spawn(move || {
                for _ in 0..each {
                    target.signal(0, 1).unwrap();
                }
                target.flush().unwrap();
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                let signal = world.signal(&region, 0);
                let mut seen = 0;
                while seen < 4 * each {
                    let now = signal.wait_at_least(seen + 1, SOON).unwrap();
                    assert!(now > seen);
                    seen = now;
                }
            });
        }
    });
    assert_eq!(region.signal(0).unwrap(), 4 * each);
}

pub fn accumulates_of_threads_and_contexts_are_exact(world: World) {
    const COUNT: usize = 5000;
    const ROUNDS: usize = 30;
    let region = world.region(COUNT * 8, 0);
    let targets =
        [&world.initiator, &world.second, &world.owner].map(|context| world.open_now(context, &region));
    thread::scope(|scope| {
        for target in targets.iter().chain(&targets[..1]) {
            scope.spawn(|| {
                let ones: Vec<u8> = 1_u64.to_le_bytes().repeat(COUNT);
                for _ in 0..ROUNDS {
                    target.accumulate_bytes(0, &ones, Dtype::U64, Reduce::Sum).unwrap();
                }
                target.flush().unwrap();
            });
        }
    });
    for (i, element) in contents(&region).chunks_exact(8).enumerate() {
        assert_eq!(u64::from_le_bytes(element.try_into().unwrap()), 4 * ROUNDS as u64, "element {i}");
    }
}

pub fn threads_that_open_and_drop_one_region_do_not_disturb_each_other(world: World) {
    let region = world.region(8 * 64, 1);
    let stop = AtomicBool::new(false);
    let steady = world.open_now(&world.initiator, &region);
    thread::scope(|scope| {
        let openers: Vec<_> = (0..4_u8)
            .map(|i| {
                let (world, region) = (&world, &region);
                scope.spawn(move || {
                    let context = if i % 2 == 0 { &world.initiator } else { &world.second };
                    for round in 0..50 {
                        let target = world.open_now(context, region);
                        target.put_signal(u64::from(i) * 64, &[i + round; 64], 0, 1).unwrap();
                        target.flush().unwrap();
                        let mut back = [0; 64];
                        target.get(u64::from(i) * 64, &mut back).unwrap();
                        assert_eq!(back, [i + round; 64]);
                        if round % 2 == 0 {
                            target.close().unwrap();
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut i = 0;
            while !stop.load(Ordering::Acquire) {
                assert_eq!(steady.fetch_add(7 * 64, 1).unwrap(), i);
                i += 1;
            }
        });
        let joined: Vec<_> = openers.into_iter().map(|opener| opener.join()).collect();
        stop.store(true, Ordering::Release);
        assert!(joined.into_iter().all(|joined| joined.is_ok()));
    });
    assert_eq!(region.signal(0).unwrap(), 200);
}
