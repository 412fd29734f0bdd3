use std::time::Duration;

use super::*;
use crate::{Atomic, Dtype, Error, List, Outcome, Reduce};

#[test]
fn puts_and_gets_of_many_sizes_arrive_as_they_went() {
    for specs in ["tcp:127.0.0.1:0", "tcp:127.0.0.1:0,crc=off", "tcp:127.0.0.1:0,protect=mac"] {
        let secret = Secret::random().unwrap();
        let (owner, user) = (context(&secret, specs), context(&secret, specs));
        let region = owner.allocate(8 << 20, 1).unwrap();
        let own = user.allocate(8 << 20, 0).unwrap();
        let part = open(&user, &region);
        assert!(part.explain().starts_with("tcp"), "{}", part.explain());
        let sizes =
            [0, 1, 7, 8, 63, 4096, 16_319, 16_320, 16_321, 65_537, 262_144, 262_145, 524_289, 5_000_003];
        for (round, size) in sizes.into_iter().enumerate() {
            let sent = pattern(size, round);
            part.put(round as u64, &sent).unwrap();
            part.flush().unwrap();
            assert_eq!(bytes(&region, round, size), sent, "put of {size}");
            let mut got = vec![0; size];
            part.get(round as u64, &mut got).unwrap();
            assert!(got == sent, "get of {size}");
            let sent = pattern(size, round + 100);
            own.write(3, &sent).unwrap();
            part.put_from(5, own.slice(3..3 + size).unwrap()).unwrap().wait().unwrap();
            assert!(bytes(&region, 5, size) == sent, "put_from of {size}");
            part.get_into(5, own.slice(11..11 + size).unwrap()).unwrap().wait().unwrap();
            assert!(bytes(&own, 11, size) == sent, "get_into of {size}");
        }
    }
}

#[test]
fn both_sides_at_once_put_and_get_more_than_any_buffer_holds() {
    const SIZE: usize = 48 << 20;
    let (a, b) = pair();
    let regions = [&a, &b].map(|c| c.allocate(2 * SIZE, 0).unwrap());
    let sources = [&a, &b].map(|c| c.allocate(SIZE, 0).unwrap());
    for (at, source) in sources.iter().enumerate() {
        source.write(0, &pattern(SIZE, at)).unwrap();
        regions[at].write(SIZE, &pattern(SIZE, at + 2)).unwrap();
    }
    let into = [&a, &b].map(|c| c.allocate(SIZE, 0).unwrap());
    let parts = [open(&a, &regions[1]), open(&b, &regions[0])];
    std::thread::scope(|scope| {
        for at in 0..2 {
            let (part, source, into) = (&parts[at], &sources[at], &into[at]);
            scope.spawn(move || {
                let put = part.put_from(0, source.all()).unwrap();
                let get = part.get_into(SIZE as u64, into.all()).unwrap();
                get.wait().unwrap();
                put.wait().unwrap();
            });
        }
    });
    for at in 0..2 {
        assert!(bytes(&regions[1 - at], 0, SIZE) == pattern(SIZE, at), "put {at}");
        assert!(bytes(&into[at], 0, SIZE) == pattern(SIZE, 3 - at), "get {at}");
    }
}

#[test]
fn lists_of_few_and_many_parts_scatter_and_gather() {
    let (owner, user) = pair();
    let region = owner.allocate(4 << 20, 0).unwrap();
    let own = user.allocate(4 << 20, 0).unwrap();
    let part = open(&user, &region);
    let shapes: [Vec<(u64, u64)>; 5] = [
        vec![],
        vec![(3, 5), (100, 1)],
        (0..10_000).map(|i| (i * 64 + 1, 33)).collect(),
        (0..3).map(|i| (i * 1_000_000, 700_001)).collect(),
        vec![(0, 8), (64, 0), (128, 300_000), (3 << 20, 16)],
    ];
    for (round, shape) in shapes.into_iter().enumerate() {
        let list = List::new(shape.clone()).unwrap();
        let size = list.size() as usize;
        let expected = |sent: &[u8]| {
            let mut at = 0;
            for (offset, size) in &shape {
                let size = *size as usize;
                assert!(
                    bytes(&region, *offset as usize, size) == sent[at..at + size],
                    "round {round} at {offset}"
                );
                at += size;
            }
        };
        let sent = pattern(size, round);
        part.put_list(&list, &sent).unwrap();
        part.flush().unwrap();
        expected(&sent);
        let mut got = vec![0; size];
        part.get_list(&list, &mut got).unwrap();
        assert!(got == sent, "round {round}");
        let sent = pattern(size, round + 50);
        own.write(0, &sent).unwrap();
        part.put_list_from(&list, own.slice(0..size).unwrap()).unwrap().wait().unwrap();
        expected(&sent);
        part.get_list_into(&list, own.slice(9..9 + size).unwrap()).unwrap().wait().unwrap();
        assert!(bytes(&own, 9, size) == sent, "round {round}");
    }
}

#[test]
fn atomics_of_two_peers_and_the_owner_lose_no_count() {
    const ROUNDS: u64 = 2_000;
    let secret = Secret::random().unwrap();
    let contexts = [(); 3].map(|()| context(&secret, "tcp:127.0.0.1:0"));
    let region = contexts[0].allocate(4096, 0).unwrap();
    let parts = [open(&contexts[1], &region), open(&contexts[2], &region)];
    std::thread::scope(|scope| {
        for part in &parts {
            scope.spawn(|| (0..ROUNDS).for_each(|_| assert!(part.fetch_add(8, 1).unwrap() < 3 * ROUNDS)));
        }
        scope.spawn(|| (0..ROUNDS).for_each(|_| assert!(region.fetch_add(8, 1).unwrap() < 3 * ROUNDS)));
    });
    assert_eq!(region.load(8).unwrap(), 3 * ROUNDS);
    let part = &parts[0];
    assert_eq!(part.swap(16, 7).unwrap(), 0);
    assert_eq!(part.compare_swap(16, 8, 9).unwrap(), 7);
    assert_eq!(part.compare_swap(16, 7, 9).unwrap(), 7);
    assert_eq!(part.atomic(Atomic::Max, 4, 20, 5, 0).unwrap(), 0);
    assert_eq!(region.load(16).unwrap(), 5 << 32 | 9);
    let own = contexts[1].allocate(64, 0).unwrap();
    let got = part.get_into(16, own.slice(0..8).unwrap()).unwrap();
    assert_eq!(part.fetch_add(16, 1).unwrap(), 5 << 32 | 9, "behind a get");
    got.wait().unwrap();
}

#[test]
fn accumulates_of_two_peers_lose_nothing() {
    const ROUNDS: i64 = 40;
    const ELEMENTS: usize = 40_000;
    let secret = Secret::random().unwrap();
    let contexts = [(); 3].map(|()| context(&secret, "tcp:127.0.0.1:0"));
    let region = contexts[0].allocate(ELEMENTS * 8, 0).unwrap();
    std::thread::scope(|scope| {
        for user in &contexts[1..] {
            let part = open(user, &region);
            scope.spawn(move || {
                let ones: Vec<u8> = (0..ELEMENTS).flat_map(|_| 1_i64.to_le_bytes()).collect();
                let own = user.allocate(ELEMENTS * 8, 0).unwrap();
                own.write(0, &ones).unwrap();
                for _ in 0..ROUNDS {
                    part.accumulate_bytes(0, &ones, Dtype::I64, Reduce::Sum).unwrap();
                    part.accumulate_from(0, own.all(), Dtype::I64, Reduce::Sum).unwrap().wait().unwrap();
                }
                part.flush().unwrap();
            });
        }
    });
    for at in [0, 1, ELEMENTS / 2, ELEMENTS - 1] {
        assert_eq!(region.load(at * 8).unwrap(), 4 * ROUNDS as u64, "element {at}");
    }
}

#[test]
fn whoever_sees_the_signal_sees_the_bytes_and_every_earlier_put() {
    const ROUNDS: u64 = 10_000;
    let (owner, user) = pair();
    let there = owner.allocate(1 << 20, 1).unwrap();
    let back = user.allocate(1 << 20, 1).unwrap();
    let (to, fro) = (open(&user, &there), open(&owner, &back));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let signals = owner.signals(&there);
            for round in 1..=ROUNDS {
                signals.signal(0).unwrap().wait_at_least(round, PATIENCE).unwrap();
                assert_eq!(there.load(0).unwrap(), round, "payload");
                assert_eq!(there.load(4096 + (round % 7) as usize * 8).unwrap(), round, "earlier put");
                fro.put_signal(8, &round.to_le_bytes(), 0, 1).unwrap();
            }
        });
        let signals = user.signals(&back);
        for round in 1..=ROUNDS {
            to.put(4096 + round % 7 * 8, &round.to_le_bytes()).unwrap();
            to.put_signal(0, &round.to_le_bytes(), 0, 1).unwrap();
            signals.signal(0).unwrap().wait_at_least(round, PATIENCE).unwrap();
            assert_eq!(back.load(8).unwrap(), round);
        }
    });
}

#[test]
fn a_signal_follows_large_puts_from_memory_and_a_signal_alone_counts() {
    let (owner, user) = pair();
    let region = owner.allocate(4 << 20, 2).unwrap();
    let own = user.allocate(4 << 20, 0).unwrap();
    let part = open(&user, &region);
    let signals = owner.signals(&region);
    for round in 1..20_u64 {
        own.write(0, &pattern(4 << 20, round as usize)).unwrap();
        let put = part.put_signal_from(0, own.all(), 1, 1).unwrap();
        signals.signal(1).unwrap().wait_at_least(round, PATIENCE).unwrap();
        assert!(bytes(&region, 0, 4 << 20) == pattern(4 << 20, round as usize));
        put.wait().unwrap();
        part.signal(0, 3).unwrap();
        part.put_signal(0, &[], 0, 1).unwrap();
    }
    signals.signal(0).unwrap().wait_at_least(19 * 4, PATIENCE).unwrap();
}

#[test]
fn a_dropped_request_still_ends_and_keeps_its_memory() {
    let (owner, user) = pair();
    let region = owner.allocate(16 << 20, 0).unwrap();
    let part = open(&user, &region);
    for round in 0..5 {
        let own = user.allocate(16 << 20, 0).unwrap();
        own.write(0, &pattern(16 << 20, round)).unwrap();
        drop(part.put_from(0, own.all()).unwrap());
        drop(part.get_into(0, own.all()).unwrap());
        drop(own);
        part.flush().unwrap();
        assert!(bytes(&region, 0, 16 << 20) == pattern(16 << 20, round), "round {round}");
    }
}

#[test]
fn the_last_handle_of_a_peer_ends_the_connection_after_everything_is_delivered() {
    let (owner, user) = pair();
    let region = owner.allocate(8 << 20, 1).unwrap();
    for round in 1..=10_u64 {
        let own = user.allocate(8 << 20, 0).unwrap();
        own.write(0, &pattern(8 << 20, round as usize)).unwrap();
        let part = open(&user, &region);
        drop(part.put_signal_from(0, own.all(), 0, 1).unwrap());
        drop(part);
        owner.signals(&region).signal(0).unwrap().wait_at_least(round, PATIENCE).unwrap();
        assert!(bytes(&region, 0, 8 << 20) == pattern(8 << 20, round as usize));
    }
}

#[test]
fn a_freed_region_is_stale_and_no_signal_overtakes_a_lost_put() {
    let (owner, user) = pair();
    let (freed, kept) = (owner.allocate(4096, 1).unwrap(), owner.allocate(4096, 1).unwrap());
    let (lost, other) = (open(&user, &freed), open(&user, &kept));
    lost.put_signal(0, b"first", 0, 1).unwrap();
    lost.flush().unwrap();
    drop(freed);
    lost.put(0, b"second").unwrap();
    let error = lost.flush().unwrap_err();
    assert_eq!(error.outcome(), Some(Outcome::Refused), "{error}");
    assert!(error.to_string().contains("stale generation"), "{error}");
    let mut into = [0; 8];
    let error = lost.get(0, &mut into).unwrap_err();
    assert!(matches!(&error, Error::Refused { why, .. } if matches!(**why, Error::Stale { .. })), "{error}");
    other.put_signal(0, b"still here", 0, 1).unwrap();
    other.flush().unwrap();
    assert_eq!(bytes(&kept, 0, 10), b"still here");
    let remote = remote(&kept, Access::ALL);
    drop(kept);
    let error = user.connect(&remote).unwrap().open(&remote).unwrap_err();
    assert!(matches!(error, Error::Stale { .. }), "{error}");
}

#[test]
fn after_a_refusal_everything_is_refused_until_it_is_told_and_then_nothing() {
    let (owner, user) = pair();
    let region = owner.allocate(4096, 1).unwrap();
    // The descriptor promises rights that the owner takes back for the export of a smaller part.
    let export = region.export(0..64, Access::READ | Access::WRITE | Access::SIGNAL).unwrap();
    let mut asked = export;
    asked.addresses.retain(|a| a.starts_with("tcp:"));
    let part = user.connect(&asked).unwrap().open(&asked).unwrap();
    let endpoint = crate::tcp::tests::faults::endpoint(&user, &owner);
    let key = endpoint.attach(&asked, std::time::Instant::now() + PATIENCE);
    let key = user.block_on("attach", PATIENCE, key).unwrap().unwrap().key;
    let seen = faults::Outcomes::default();
    let put = |offset, signal| faults::put(&*endpoint, key, offset, signal, &seen);
    put(0, Some((0, 1)));
    put(60, None);
    put(0, Some((0, 100)));
    put(0, None);
    part.put_signal(8, b"ok", 0, 10).unwrap();
    part.flush().unwrap();
    let told: Vec<_> = seen.take(&user, 4);
    assert!(told[0].is_none(), "{told:?}");
    assert!(told[1].as_ref().unwrap().contains("outside"), "{told:?}");
    assert!(told[2].as_ref().unwrap().contains("an earlier operation failed"), "{told:?}");
    assert!(told[3].is_some(), "{told:?}");
    assert_eq!(region.signal(0).unwrap(), 11, "the other handle is not touched");
    faults::resume(&*endpoint, key, &seen);
    put(0, Some((0, 1000)));
    assert_eq!(seen.take(&user, 2), [None, None]);
    assert_eq!(region.signal(0).unwrap(), 1011);
}

#[test]
fn rights_that_were_not_granted_are_refused_by_the_target_too() {
    let (owner, user) = pair();
    let region = owner.allocate(4096, 1).unwrap();
    let mut asked = remote(&region, Access::READ);
    let endpoint = faults::endpoint(&user, &owner);
    let deadline = std::time::Instant::now() + PATIENCE;
    let attach = |asked: &RemoteRegion| {
        user.block_on("attach", PATIENCE, endpoint.attach(asked, deadline)).unwrap().map(|a| a.key)
    };
    let key = attach(&asked).unwrap();
    let seen = faults::Outcomes::default();
    faults::put(&*endpoint, key, 0, None, &seen);
    assert!(seen.take(&user, 1)[0].as_ref().unwrap().contains("needs the right to write"));
    asked.access = Access::ALL;
    assert!(matches!(attach(&asked), Err(Error::Access { .. })));
    asked.access = Access::READ;
    asked.epoch = 9;
    assert!(matches!(attach(&asked), Err(Error::Stale { .. })));
    asked.epoch = 0;
    asked.size = 8192;
    assert!(attach(&asked).is_err());
    // A handle that was never given.
    faults::put(&*endpoint, 77, 0, None, &seen);
    assert!(seen.take(&user, 1)[0].as_ref().unwrap().contains("handle 77 does not exist"));
    assert_eq!(bytes(&region, 0, 16), [0; 16]);
}

#[test]
fn many_connections_of_one_context_are_all_served() {
    let secret = Secret::random().unwrap();
    let owner = context(&secret, "tcp:127.0.0.1:0");
    let region = owner.allocate(4096, 1).unwrap();
    let users: Vec<_> = (0..12).map(|_| context(&secret, "tcp:127.0.0.1:0")).collect();
    let parts: Vec<_> = users.iter().map(|user| open(user, &region)).collect();
    std::thread::scope(|scope| {
        for part in &parts {
            scope.spawn(|| {
                for _ in 0..200 {
                    part.fetch_add(0, 1).unwrap();
                    part.signal(0, 1).unwrap();
                }
            });
        }
    });
    owner.signals(&region).signal(0).unwrap().wait_at_least(12 * 200, Duration::from_secs(20)).unwrap();
    assert_eq!(region.load(0).unwrap(), 12 * 200);
}

#[test]
fn bytes_that_change_while_they_are_sent_arrive_mixed_and_close_nothing() {
    const SIZE: usize = 4 << 20;
    let (owner, user) = pair();
    let region = owner.allocate(SIZE, 1).unwrap();
    let own = user.allocate(2 * SIZE, 0).unwrap();
    let part = open(&user, &region);
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                round += 1;
                region.write(0, &pattern(SIZE, round)).unwrap();
            }
        });
        let gets = (0..20).try_for_each(|_| {
            part.get_into(0, own.slice(0..SIZE).unwrap())?.wait()?;
            part.get(0, &mut [0; 9000])
        });
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        gets.unwrap();
    });
    over.store(false, std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                round += 1;
                own.write(0, &pattern(SIZE, round)).unwrap();
            }
        });
        let puts = (0..20).try_for_each(|_| part.put_from(0, own.slice(0..SIZE).unwrap())?.wait().map(drop));
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        puts.unwrap();
    });
}
