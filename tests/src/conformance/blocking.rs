//! The forms that block, for transports in real time.

use std::time::{Duration, Instant};

use transom_transport::{Atomic, Error, List, Wait};

use crate::pattern;
use crate::world::{SOON, World, contents, memory};

const SIZES: [usize; 11] = [0, 1, 7, 8, 63, 64, 4095, 4097, (64 << 10) + 1, (1 << 20) + 3, (5 << 20) + 1];

pub fn borrowed_puts_and_gets_come_back_at_every_size(world: World) {
    let region = world.region(6 << 20, 0);
    let target = world.open_now(&world.initiator, &region);
    let mut buffer = vec![0; 6 << 20];
    for (version, size) in SIZES.into_iter().enumerate() {
        for offset in [0, 1, 4095] {
            let bytes = &mut buffer[offset..offset + size];
            pattern::fill(bytes, version as u64);
            target.put(offset as u64, bytes).unwrap();
            bytes.fill(0);
            target.flush().unwrap();
            target.get(offset as u64, bytes).unwrap();
            assert_eq!(pattern::differs(bytes, version as u64), None, "{size} bytes at {offset}");
        }
    }
}

/// The bytes of a buffer beside those that a get was asked for.
pub fn a_borrowed_get_writes_its_buffer_and_no_more(world: World) {
    let region = world.region(1 << 16, 0);
    region.write(0, &pattern::bytes(1 << 16, 1)).unwrap();
    let target = world.open_now(&world.initiator, &region);
    let mut buffer = vec![0xee; 3000];
    for size in [0, 1, 63, 64, 1000] {
        buffer.fill(0xee);
        target.get(100, &mut buffer[1000..1000 + size]).unwrap();
        assert!(buffer[1000..1000 + size] == pattern::bytes(1 << 16, 1)[100..100 + size]);
        assert!(buffer[..1000].iter().chain(&buffer[1000 + size..]).all(|b| *b == 0xee));
    }
    let mut one = [0xee];
    target.get(1 << 16, &mut one).unwrap_err();
    assert_eq!(one, [0xee]);
}

pub fn blocking_atomics_return_what_was_there(world: World) {
    let region = world.region(64, 0);
    let target = world.open_now(&world.initiator, &region);
    assert_eq!(target.fetch_add(8, 5).unwrap(), 0);
    assert_eq!(target.fetch_add(8, u64::MAX).unwrap(), 5, "it wraps");
    assert_eq!(target.swap(8, 100).unwrap(), 4);
    assert_eq!(target.compare_swap(8, 99, 1).unwrap(), 100);
    assert_eq!(target.compare_swap(8, 100, 1).unwrap(), 100);
    assert_eq!(target.atomic(Atomic::Max, 4, 12, 7, 0).unwrap(), 0);
    assert_eq!(region.load(8).unwrap(), 1 | 7 << 32);
    for offset in [1, 4, 7, 60] {
        let error = target.fetch_add(offset, 1).unwrap_err();
        assert!(matches!(error, Error::Misaligned { .. } | Error::OutOfRange { .. }), "{error:?}");
        target.compare_swap(offset, 0, 1).unwrap_err();
        target.swap(offset, 1).unwrap_err();
    }
}

pub fn borrowed_lists_are_scattered_and_gathered(world: World) {
    let region = world.region(1 << 20, 0);
    let target = world.open_now(&world.initiator, &region);
    let list = List::new((0..1000).rev().map(|i| (i * 1000, 777))).unwrap();
    let from = pattern::bytes(list.size() as usize, 1);
    target.put_list(&list, &from).unwrap();
    target.flush().unwrap();
    let mut into = vec![0; from.len()];
    target.get_list(&list, &mut into).unwrap();
    assert!(into == from);
    target.get_list(&list, &mut into[1..]).unwrap_err();
    target.get_list(&List::new([]).unwrap(), &mut []).unwrap();
}

pub fn a_request_can_be_waited_for_in_every_way(world: World) {
    let region = world.region(4 << 20, 0);
    let target = world.open_now(&world.initiator, &region);
    let source = memory(&world.initiator, pattern::bytes(4 << 20, 3));
    for _ in 0..10 {
        let request = target.put_from(0, source.all()).unwrap();
        match request.wait_timeout(Duration::ZERO) {
            Ok(0) => {}
            Err(Error::Expired { outcome: None, .. }) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(request.wait().unwrap(), 0, "an expired request can be awaited again");
        assert!(request.is_done());
        assert_eq!(request.wait().unwrap(), 0, "and again");
        assert_eq!(request.wait_timeout(Duration::ZERO).unwrap(), 0);
    }
    assert_eq!(pattern::differs(&contents(&region), 3), None);
}

pub fn a_signal_wait_sleeps_until_it_is_woken(world: World) {
    let region = world.region(64, 2);
    let target = world.open_now(&world.initiator, &region);
    let signals = world.owner.signals(&region);
    for wait in [Wait::Adaptive, Wait::Sleep, Wait::Spin] {
        world.owner.set_wait(wait);
        let base = signals.signal(0).unwrap().value();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 1..=20 {
                    // Long enough asleep for the wait to be past its spinning, now and then.
                    if i % 10 == 0 {
                        std::thread::park_timeout(Duration::from_millis(2));
                    }
                    target.put_signal(0, &(base + i).to_le_bytes(), 0, 1).unwrap();
                    target.signal(1, 1).unwrap();
                }
                target.flush().unwrap();
            });
            for i in 1..=20 {
                let seen = signals.signal(0).unwrap().wait_at_least(base + i, SOON).unwrap();
                assert!(seen >= base + i);
                assert!(region.load(0).unwrap() >= base + i);
                signals.wait_all(&[(0, base + i), (1, base + i)], SOON).unwrap();
            }
        });
    }
}

pub fn a_blocking_wait_expires_at_its_deadline(world: World) {
    let region = world.region(64, 1);
    let signal = world.signal(&region, 0);
    for wait in [Wait::Adaptive, Wait::Sleep, Wait::Spin] {
        world.owner.set_wait(wait);
        for time in [Duration::ZERO, Duration::from_micros(10), Duration::from_millis(30)] {
            let since = Instant::now();
            let error = signal.wait_at_least(1, time).unwrap_err();
            assert!(since.elapsed() >= time, "{wait:?} {time:?}");
            assert!(matches!(error, Error::Expired { outcome: None, .. }), "{error:?}");
        }
    }
}

/// The world's own calls from inside its callbacks and from a runtime's thread.
pub fn blocking_calls_work_on_a_thread_of_a_runtime(world: World) {
    let region = world.region(64, 1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let target = world.open_now(&world.initiator, &region);
        target.put_signal(0, &[1; 64], 0, 1).unwrap();
        target.flush().unwrap();
        let mut bytes = [0; 64];
        target.get(0, &mut bytes).unwrap();
        assert_eq!(bytes, [1; 64]);
        assert_eq!(world.signal(&region, 0).wait_at_least(1, SOON).unwrap(), 1);
    });
}
