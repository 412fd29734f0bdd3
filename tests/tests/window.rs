//! Teams and windows between threads: every call, every transport, teams of several sizes.

#![expect(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use transom::store::Store;
use transom::{
    Access, Atomic, Context, Error, Foreign, Host, List, MemoryRegion, Outcome, Rank, Reduce, Result, Stale,
    Team, Window,
};
use transom_tests::pattern;
use transom_tests::ranks::{self, Only, TIMEOUT, each, secret, threads};
use transom_tests::world::reason;

const SIZES: [u32; 4] = [1, 2, 3, 5];

/// Makes a test of each function on each transport.
macro_rules! on_every_transport {
    ($($name:ident)*) => {
        mod local {
            $(#[test] fn $name() { super::$name("local"); })*
        }
        mod shm {
            $(#[test] fn $name() { super::$name("shm"); })*
        }
        mod tcp {
            $(#[test] fn $name() { super::$name("tcp:127.0.0.1:0"); })*
        }
    };
}

on_every_transport! {
    every_rank_reaches_every_part_of_another_size
    all_forms_move_the_same_bytes
    a_slot_is_the_word
    a_window_over_a_region_of_its_own_keeps_its_signals
    windows_of_one_team_share_nothing
    a_signal_of_the_wanted_rank_is_seen_with_its_payload
    atomics_of_all_ranks_at_once_lose_nothing
    accumulates_of_all_ranks_at_once_are_exact
    flush_all_delivers_to_every_rank
    a_rank_that_does_not_exist_is_told_by_every_call
    fewer_rights_are_refused_and_touch_nothing
    a_window_that_is_only_read_is_sealed_and_its_signals_are_not
    a_part_of_size_zero_is_told_to_every_rank_at_once
    close_waits_for_every_rank
    a_drop_is_not_collective_and_the_others_are_told
    a_window_is_dropped_under_traffic
    a_late_joiner_opens_what_was_published
    a_barrier_is_left_by_nobody_before_all_came
    a_split_makes_teams_in_the_order_of_the_keys
    explain_names_the_transport_of_every_rank
}

fn read(region: &MemoryRegion, offset: usize, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    region.read(offset, &mut bytes).unwrap();
    bytes
}

/// Memory of the team's context with these bytes.
fn memory(team: &Team, bytes: Vec<u8>) -> MemoryRegion {
    team.context().register(Foreign::from_vec(bytes).unwrap(), 0).unwrap()
}

fn every_rank_reaches_every_part_of_another_size(transport: &str) {
    for size in SIZES {
        threads(transport, size, |team| {
            let me = team.rank();
            let of = |rank: Rank| (4096 + 1001 * rank) as usize;
            let window = Window::allocate(&team, of(me)).unwrap();
            let slot = 800 / size as usize;
            for rank in 0..size {
                assert_eq!(window.size(rank).unwrap(), of(rank) as u64);
                let version = u64::from(me * 10 + rank);
                window.put(rank, u64::from(me) * slot as u64, &pattern::bytes(slot, version)).unwrap();
                // Its last byte too, by one rank.
                if (rank + 1) % size == me {
                    window.put(rank, of(rank) as u64 - 1, &[rank as u8 + 1]).unwrap();
                    let past = window.put(rank, of(rank) as u64, &[1]).unwrap_err();
                    assert!(matches!(past, Error::OutOfRange { .. }), "{past}");
                }
            }
            window.flush_all().unwrap();
            team.barrier().unwrap();
            for rank in 0..size {
                let mine = read(window.local(), rank as usize * slot, slot);
                assert_eq!(pattern::differs(&mine, u64::from(rank * 10 + me)), None, "from {rank} at {me}");
                // And by a get from everywhere, the own part too.
                for part in 0..size {
                    let mut there = vec![0; slot];
                    window.get(part, u64::from(rank) * slot as u64, &mut there).unwrap();
                    assert_eq!(
                        pattern::differs(&there, u64::from(rank * 10 + part)),
                        None,
                        "{rank} at {part}"
                    );
                }
            }
            assert_eq!(read(window.local(), of(me) - 1, 1), [me as u8 + 1]);
            window.close().unwrap();
        });
    }
}

fn all_forms_move_the_same_bytes(transport: &str) {
    const SIZE: usize = 3 << 20;
    threads(transport, 3, |team| {
        let (me, next) = (team.rank(), (team.rank() + 1) % 3);
        let window = Window::allocate(&team, SIZE).unwrap();
        let forms: [(&str, &dyn Fn(u64)); 5] = [
            ("put", &|version| window.put(next, 0, &pattern::bytes(SIZE, version)).unwrap()),
            ("put_from", &|version| {
                let from = memory(&team, pattern::bytes(SIZE, version)).all();
                window.put_from(next, 0, from).unwrap().wait().unwrap();
            }),
            ("put_signal_from", &|version| {
                let from = memory(&team, pattern::bytes(SIZE, version)).all();
                window.put_signal_from(next, 0, from, 3, 2).unwrap().wait().unwrap();
            }),
            ("put_list", &|version| {
                // Every other piece first.
                let bytes = pattern::bytes(SIZE, version);
                for odd in [1, 0] {
                    let pieces = || (0..96_usize).filter(|i| i % 2 == odd).map(|i| i * (SIZE / 96));
                    let list = List::new(pieces().map(|at| (at as u64, SIZE as u64 / 96))).unwrap();
                    let from: Vec<u8> = pieces().flat_map(|at| bytes[at..at + SIZE / 96].to_vec()).collect();
                    window.put_list(next, &list, &from).unwrap();
                }
            }),
            ("put_list_from", &|version| {
                let list = List::new([(0, 5), (5, 0), (5, SIZE as u64 - 5)]).unwrap();
                let from = memory(&team, pattern::bytes(SIZE, version)).all();
                window.put_list_from(next, &list, from).unwrap().wait().unwrap();
            }),
        ];
        for (version, (name, put)) in forms.iter().enumerate() {
            let version = 100 * u64::from(me) + version as u64;
            put(version);
            window.flush(next).unwrap();
            team.barrier().unwrap();
            let before = 100 * u64::from((me + 2) % 3) + version % 100;
            assert_eq!(pattern::differs(&read(window.local(), 0, SIZE), before), None, "{name}");
            let into = memory(&team, vec![0; SIZE]);
            let got: [(&str, Vec<u8>); 4] = [
                ("get", {
                    let mut bytes = vec![0; SIZE];
                    window.get(next, 0, &mut bytes).unwrap();
                    bytes
                }),
                ("get_into", {
                    window.get_into(next, 0, into.all()).unwrap().wait().unwrap();
                    read(&into, 0, SIZE)
                }),
                ("get_list", {
                    let mut bytes = vec![0; SIZE];
                    let list = List::new([(0, 7), (7, SIZE as u64 - 7)]).unwrap();
                    window.get_list(next, &list, &mut bytes).unwrap();
                    bytes
                }),
                ("get_list_into", {
                    into.write(0, &vec![0; SIZE]).unwrap();
                    let list = List::new([(0, SIZE as u64 - 1), (SIZE as u64 - 1, 1)]).unwrap();
                    window.get_list_into(next, &list, into.all()).unwrap().wait().unwrap();
                    read(&into, 0, SIZE)
                }),
            ];
            for (get, bytes) in got {
                assert_eq!(pattern::differs(&bytes, version), None, "{name}, {get}");
            }
            team.barrier().unwrap();
        }
        assert_eq!(window.signal(3).unwrap().value(), 2);
        window.close().unwrap();
    });
}

fn a_slot_is_the_word(transport: &str) {
    threads(transport, 2, |team| {
        let (me, other) = (team.rank(), 1 - team.rank());
        let window = Window::allocate(&team, 64).unwrap();
        let slot = window.at(other, 8 * u64::from(me)).unwrap();
        for value in 1..=1000 {
            slot.put(value).unwrap();
            slot.flush().unwrap();
            assert_eq!(slot.fetch_add(1).unwrap(), value);
        }
        for (offset, misaligned) in [(57, false), (64, false), (u64::MAX, false), (4, true)] {
            let error = window.at(other, offset).unwrap_err();
            assert_eq!(matches!(error, Error::Misaligned { .. }), misaligned, "{error}");
            assert_eq!(matches!(error, Error::OutOfRange { .. }), !misaligned, "{error}");
        }
        team.barrier().unwrap();
        assert_eq!(window.local().load(8 * other as usize).unwrap(), 1001);
        window.close().unwrap();
    });
}

fn a_window_over_a_region_of_its_own_keeps_its_signals(transport: &str) {
    threads(transport, 3, |team| {
        let (me, next) = (team.rank(), (team.rank() + 1) % 3);
        let region = team.context().register(Host::new(10_000).unwrap(), 2 + me).unwrap();
        region.write(5000, &[me as u8; 16]).unwrap();
        let window = Window::create(&team, &region).unwrap();
        let mut there = [0; 16];
        window.get(next, 5000, &mut there).unwrap();
        assert_eq!(there, [next as u8; 16], "what was in the region before is there");
        // As many signals as the target's part has.
        window.put_signal(next, 0, b"x", 1 + next, 1).unwrap();
        let error = window.put_signal(next, 0, b"y", 2 + next, 1).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        window.signal(1 + me).unwrap().wait_at_least(1, TIMEOUT).unwrap();
        assert!(window.signal(2 + me).is_err());
        assert_eq!(read(&region, 0, 1), b"x", "it is the region itself");
        window.close().unwrap();
        assert_eq!(read(&region, 0, 1), b"x", "and it outlives the window");
    });
}

fn windows_of_one_team_share_nothing(transport: &str) {
    threads(transport, 3, |team| {
        let (me, next) = (team.rank(), (team.rank() + 1) % 3);
        let windows: Vec<Window> =
            (0..6).map(|index| Window::builder(&team).size(64 + index).signals(2).build().unwrap()).collect();
        for (index, window) in windows.iter().enumerate() {
            assert_eq!(window.size(next).unwrap(), 64 + index as u64);
            window.put_signal(next, 0, &[index as u8 + 1], 0, index as u64 + 1).unwrap();
        }
        for (index, window) in windows.iter().enumerate().rev() {
            let value = window.signal(0).unwrap().wait_at_least(index as u64 + 1, TIMEOUT).unwrap();
            assert_eq!(value, index as u64 + 1);
            assert_eq!(read(window.local(), 0, 1), [index as u8 + 1]);
            assert_eq!(window.signal(1).unwrap().value(), 0);
        }
        // Those that stay work when others were closed, in any order.
        team.barrier().unwrap();
        for (index, window) in windows.into_iter().enumerate() {
            window.put(next, 1, &[me as u8]).unwrap();
            if index % 2 == 0 {
                window.close().unwrap();
            } else {
                window.flush_all().unwrap();
                team.barrier().unwrap();
            }
        }
    });
}

fn a_signal_of_the_wanted_rank_is_seen_with_its_payload(transport: &str) {
    for size in [1, 2, 5] {
        threads(transport, size, |team| {
            let me = team.rank();
            let window = Window::allocate(&team, 8 * size as usize).unwrap();
            let wanted: Vec<_> = (0..size).map(|rank| (rank, 1)).collect();
            for round in 1..=50_u64 {
                for rank in 0..size {
                    window.put_signal(rank, 8 * u64::from(me), &round.to_le_bytes(), me, 1).unwrap();
                }
                let round_of: Vec<_> = wanted.iter().map(|(rank, _)| (*rank, round)).collect();
                let first = window.signals().wait_any(&round_of, TIMEOUT).unwrap();
                assert!(window.local().load(8 * first).unwrap() >= round);
                window.signals().wait_all(&round_of, TIMEOUT).unwrap();
                for rank in 0..size as usize {
                    assert!(window.local().load(8 * rank).unwrap() >= round, "from {rank}");
                }
            }
            // A signal alone, and one with nothing before it.
            let next = (me + 1) % size;
            window.send_signal(next, 40, 3).unwrap();
            window.put_signal(next, 0, &[], 41, 4).unwrap();
            let all: Vec<Rank> = (0..size).collect();
            let from = window.signals_from(&all).unwrap();
            from.wait_all(&[(40, 3), (41, 4)], TIMEOUT).unwrap();
            let short = Duration::from_millis(20);
            let expired = from.wait_any(&[(40, 4), (41, 5)], short).unwrap_err();
            assert!(matches!(&expired, Error::Expired { outcome: None, .. }), "{expired}");
            assert!(expired.to_string().contains("signal 40 is 3, waiting for 4"), "{expired}");
            assert!(window.signals().wait_any(&[], short).is_err());
            assert!(window.signals_from(&[]).is_err());
            assert!(matches!(window.signals_from(&[size]), Err(Error::NoSuchRank { .. })));
            window.close().unwrap();
        });
    }
}

fn atomics_of_all_ranks_at_once_lose_nothing(transport: &str) {
    const ROUNDS: u64 = 200;
    for size in [1, 2, 5] {
        let ranks = u64::from(size);
        threads(transport, size, |team| {
            let me = u64::from(team.rank());
            let window = Window::allocate(&team, 256).unwrap();
            let target = size - 1;
            let mut seen = Vec::new();
            for round in 0..ROUNDS {
                seen.push(window.fetch_add(target, 0, 1).unwrap());
                window.atomic(target, Atomic::Add, 4, 8, 3, 0).unwrap();
                window.atomic(target, Atomic::Max, 8, 16, me * 1000 + round, 0).unwrap();
                window.atomic(target, Atomic::Xor, 8, 24, 1 << me, 0).unwrap();
                window.atomic(target, Atomic::Or, 8, 32, 1 << me, 0).unwrap();
                // A counter by compare-and-swap.
                let mut current = 0;
                loop {
                    let was = window.compare_swap(target, 40, current, current + 1).unwrap();
                    if was == current {
                        break;
                    }
                    current = was;
                }
            }
            assert!(seen.is_sorted_by(|a, b| a < b), "each sees its own in order");
            let request = window.atomic_request(target, Atomic::Add, 8, 48, 7, 0).unwrap();
            request.wait().unwrap();
            team.barrier().unwrap();
            if team.rank() == target {
                let part = window.local();
                assert_eq!(part.load(0).unwrap(), ranks * ROUNDS);
                assert_eq!(part.load(8).unwrap(), 3 * ranks * ROUNDS);
                assert_eq!(part.load(16).unwrap(), (ranks - 1) * 1000 + ROUNDS - 1);
                assert_eq!(part.load(24).unwrap(), 0, "an even number of times");
                assert_eq!(part.load(32).unwrap(), (1 << ranks) - 1);
                assert_eq!(part.load(40).unwrap(), ranks * ROUNDS);
                assert_eq!(part.load(48).unwrap(), 7 * ranks);
            }
            // Each with its result, on words of its own, at the next rank.
            let next = (team.rank() + 1) % size;
            let mut value = 0xf0;
            window.swap(next, 64, value).unwrap();
            for atomic in [Atomic::Add, Atomic::And, Atomic::Or, Atomic::Xor, Atomic::Min, Atomic::Max] {
                assert_eq!(window.atomic(next, atomic, 8, 64, 0x3c, 0).unwrap(), value, "{atomic:?}");
                value = match atomic {
                    Atomic::Add => value + 0x3c,
                    Atomic::And => value & 0x3c,
                    Atomic::Or => value | 0x3c,
                    Atomic::Xor => value ^ 0x3c,
                    Atomic::Min => value.min(0x3c),
                    _ => value.max(0x3c),
                };
            }
            assert_eq!(window.swap(next, 64, 1).unwrap(), value);
            window.close().unwrap();
            seen
        })
        .into_iter()
        .flatten()
        .fold(vec![false; (ranks * ROUNDS) as usize], |mut taken, value| {
            assert!(!std::mem::replace(&mut taken[value as usize], true), "{value} was returned twice");
            taken
        });
    }
}

fn accumulates_of_all_ranks_at_once_are_exact(transport: &str) {
    const ELEMENTS: usize = 30_000;
    for size in [1, 2, 5] {
        threads(transport, size, |team| {
            let me = team.rank();
            let window = Window::allocate(&team, 8 * ELEMENTS * 4).unwrap();
            let at = |index: usize| (index * 8 * ELEMENTS) as u64;
            let reals: Vec<f32> = (0..ELEMENTS).map(|i| (i % 100) as f32 + me as f32).collect();
            let whole: Vec<i64> = (0..ELEMENTS as i64).map(|i| i - i64::from(me)).collect();
            let highest: Vec<u32> = (0..ELEMENTS as u32).map(|i| i * (me + 1) % 1009).collect();
            let rounds = 4;
            for _ in 0..rounds {
                for rank in 0..size {
                    window.accumulate(rank, at(0), &reals, Reduce::Sum).unwrap();
                    window.accumulate(rank, at(1), &whole, Reduce::Sum).unwrap();
                    window.accumulate(rank, at(2), &highest, Reduce::Max).unwrap();
                }
            }
            let from = memory(&team, vec![me as u8 + 1; 800]);
            let request = window.accumulate_from(
                (me + 1) % size,
                at(3),
                from.all(),
                transom::Dtype::U64,
                Reduce::Replace,
            );
            request.unwrap().wait().unwrap();
            window.flush_all().unwrap();
            team.barrier().unwrap();
            let (n, before) = (rounds * size, (me + size - 1) % size);
            let bytes = read(window.local(), 0, 8 * ELEMENTS * 4);
            let of_all: u32 = (0..size).sum();
            for i in 0..ELEMENTS {
                let word = |start: u64, width: usize| &bytes[start as usize + i * width..][..width];
                let real = f32::from_le_bytes(word(at(0), 4).try_into().unwrap());
                assert_eq!(real, ((i % 100) as u32 * n + rounds * of_all) as f32, "f32 {i}");
                let whole = i64::from_le_bytes(word(at(1), 8).try_into().unwrap());
                assert_eq!(whole, i as i64 * i64::from(n) - i64::from(rounds * of_all), "i64 {i}");
                let most = (0..size).map(|rank| i as u32 * (rank + 1) % 1009).max().unwrap();
                assert_eq!(u32::from_le_bytes(word(at(2), 4).try_into().unwrap()), most, "u32 {i}");
            }
            assert!(bytes[at(3) as usize..][..800].iter().all(|b| *b == before as u8 + 1));
            window.close().unwrap();
        });
    }
}

fn flush_all_delivers_to_every_rank(transport: &str) {
    threads(transport, 5, |team| {
        let window = Window::allocate(&team, 4096).unwrap();
        let me = u64::from(team.rank());
        for round in 1..=20_u64 {
            for rank in 0..5 {
                window.put(rank, me * 8, &round.to_le_bytes()).unwrap();
                window.fence(rank).unwrap();
                window.put(rank, 1024 + me * 8, &round.to_le_bytes()).unwrap();
            }
            window.flush_all().unwrap();
            for rank in 0..5 {
                let mut there = [0; 8];
                window.get(rank, 1024 + me * 8, &mut there).unwrap();
                assert_eq!(u64::from_le_bytes(there), round);
            }
        }
        window.close().unwrap();
    });
}

fn a_rank_that_does_not_exist_is_told_by_every_call(transport: &str) {
    threads(transport, 2, |team| {
        let window = Window::allocate(&team, 4096).unwrap();
        let slice = || memory(&team, vec![0; 8]).all();
        let list = List::new([(0, 8)]).unwrap();
        for rank in [2, 3, u32::MAX] {
            let errors: [(&str, Result<()>); 17] = [
                ("put", window.put(rank, 0, &[0])),
                ("get", window.get(rank, 0, &mut [0])),
                ("put_signal", window.put_signal(rank, 0, &[0], 0, 1)),
                ("send_signal", window.send_signal(rank, 0, 1)),
                ("fence", window.fence(rank)),
                ("flush", window.flush(rank)),
                ("put_from", window.put_from(rank, 0, slice()).map(drop)),
                ("get_into", window.get_into(rank, 0, slice()).map(drop)),
                ("put_list", window.put_list(rank, &list, &[0; 8])),
                ("get_list", window.get_list(rank, &list, &mut [0; 8])),
                ("fetch_add", window.fetch_add(rank, 0, 1).map(drop)),
                ("swap", window.swap(rank, 0, 1).map(drop)),
                ("compare_swap", window.compare_swap(rank, 0, 1, 2).map(drop)),
                ("accumulate", window.accumulate(rank, 0, &[1_u32], Reduce::Sum)),
                ("at", window.at(rank, 0).map(drop)),
                ("size", window.size(rank).map(drop)),
                ("part", window.part(rank).map(drop)),
            ];
            for (name, result) in errors {
                let error = result.unwrap_err();
                let right = matches!(error, Error::NoSuchRank { rank: r, size: 2, .. } if r == rank);
                assert!(right, "{name}: {error:?}");
                assert_eq!(error.outcome(), Some(Outcome::NotApplied));
            }
        }
        assert!(team.failure(7).is_none());
        window.close().unwrap();
    });
}

fn fewer_rights_are_refused_and_touch_nothing(transport: &str) {
    threads(transport, 2, |team| {
        let other = 1 - team.rank();
        let rights = [
            Access::READ,
            Access::WRITE,
            Access::ATOMIC,
            Access::SIGNAL,
            Access::READ | Access::SIGNAL,
            Access::NONE,
        ];
        for right in rights {
            let window = Window::builder(&team).size(64).access(right).build().unwrap();
            window.local().write(0, &[9; 64]).unwrap();
            team.barrier().unwrap();
            let results: [(Access, Result<()>); 7] = [
                (Access::READ, window.get(other, 0, &mut [0; 8])),
                (Access::READ, window.get_list(other, &List::new([(0, 4)]).unwrap(), &mut [0; 4])),
                (Access::WRITE, window.put(other, 0, &[9; 8])),
                (Access::WRITE | Access::SIGNAL, window.put_signal(other, 0, &[9; 8], 0, 1)),
                (Access::SIGNAL, window.send_signal(other, 1, 1)),
                (Access::ATOMIC, window.fetch_add(other, 0, 0).map(drop)),
                (Access::ATOMIC, window.accumulate(other, 0, &[0_u8 as u32], Reduce::Sum)),
            ];
            for (needed, result) in results {
                let allowed = right.contains(needed);
                assert_eq!(result.is_ok(), allowed, "{needed} with {right}: {result:?}");
                if let Err(error) = result {
                    assert!(matches!(reason(&error), Error::Access { .. }), "{error}");
                }
            }
            window.flush_all().unwrap();
            team.barrier().unwrap();
            assert_eq!(read(window.local(), 0, 64), [9; 64]);
            window.close().unwrap();
        }
    });
}

fn a_part_of_size_zero_is_told_to_every_rank_at_once(transport: &str) {
    let since = Instant::now();
    threads(transport, 3, |team| {
        let error = Window::allocate(&team, if team.rank() == 1 { 0 } else { 4096 }).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("size is 0"), "{text}");
        assert!(team.rank() == 1 || text.contains("rank 1"), "{text}");
        // The team is none the worse for it.
        let window = Window::allocate(&team, 64).unwrap();
        window.put((team.rank() + 1) % 3, 0, &[1]).unwrap();
        window.close().unwrap();
    });
    assert!(since.elapsed() < TIMEOUT / 2, "nobody waits for a deadline");
}

fn close_waits_for_every_rank(transport: &str) {
    let slowest_came = AtomicBool::new(false);
    threads(transport, 3, |team| {
        let window = Window::allocate(&team, 64).unwrap();
        if team.rank() == 2 {
            // Long enough for the others to be wrong.
            for _ in 0..200 {
                for rank in 0..3 {
                    window.put(rank, 0, &[1; 64]).unwrap();
                    window.flush(rank).unwrap();
                }
            }
            slowest_came.store(true, Ordering::SeqCst);
        }
        window.close().unwrap();
        assert!(slowest_came.load(Ordering::SeqCst), "rank {} left before rank 2 came", team.rank());
    });
}

/// Whether an error says that the region is no more.
fn is_gone(error: &Error) -> bool {
    matches!(reason(error), Error::Stale { what: Stale::Generation, .. })
        || error.root().is_some_and(|failure| failure.to_string().contains("generation"))
}

fn a_drop_is_not_collective_and_the_others_are_told(transport: &str) {
    threads(transport, 3, |team| {
        let window = Window::allocate(&team, 4096).unwrap();
        team.barrier().unwrap();
        if team.rank() == 0 {
            let since = Instant::now();
            drop(window);
            assert!(since.elapsed() < Duration::from_secs(1), "a drop waits for nobody");
            team.barrier().unwrap();
            team.barrier().unwrap();
            return;
        }
        team.barrier().unwrap();
        let other = 3 - team.rank();
        let told = window.put(0, 0, &[1; 100]).and_then(|()| window.flush(0)).unwrap_err();
        assert!(is_gone(&told), "{told}");
        // The other parts are whole.
        window.put(other, 0, &[7; 100]).unwrap();
        window.flush(other).unwrap();
        let mut there = [0; 100];
        window.get(other, 0, &mut there).unwrap();
        assert_eq!(there, [7; 100]);
        assert!(is_gone(&window.get(0, 0, &mut there).unwrap_err()));
        assert!(is_gone(&window.fetch_add(0, 0, 1).unwrap_err()));
        team.barrier().unwrap();
    });
}

fn a_window_is_dropped_under_traffic(transport: &str) {
    for _ in 0..5 {
        threads(transport, 3, |team| {
            let window = Window::allocate(&team, 1 << 20).unwrap();
            let me = team.rank();
            let bytes = vec![me as u8 + 1; 1 << 20];
            if me == 0 {
                // Both others have begun.
                window.signals().wait_all(&[(1, 3), (2, 3)], TIMEOUT).unwrap();
                drop(window);
            } else {
                let error = loop {
                    let result = window
                        .put_signal(0, 0, &bytes, me, 1)
                        .and_then(|()| window.get(0, 0, &mut [0; 4096]))
                        .and_then(|()| window.flush(0));
                    if let Err(error) = result {
                        break error;
                    }
                };
                assert!(error.outcome().is_some(), "{error:?}");
                // Where nobody awaits a put, the flush is told.
                let flushed = if is_gone(&error) { Err(error.clone()) } else { window.flush(0) };
                let told = flushed.is_err_and(|told| is_gone(&told));
                assert!(told, "nobody says that the region is gone: {error:?}");
                // To the one that stays.
                window.put(3 - me, 0, &bytes).unwrap();
                window.flush(3 - me).unwrap();
            }
            team.barrier().unwrap();
        });
    }
}

fn a_window_that_is_only_read_is_sealed_and_its_signals_are_not(transport: &str) {
    threads(transport, 2, |team| {
        for access in [Access::READ | Access::SIGNAL, Access::READ, Access::READ | Access::WRITE] {
            let (me, other) = (team.rank(), 1 - team.rank());
            let window = Window::builder(&team).size(4096).signals(1).access(access).build().unwrap();
            window.local().write(8, &[me as u8 + 1; 8]).unwrap();
            window.local().fetch_add(16, 3).unwrap();
            team.barrier().unwrap();
            let mut there = [0; 8];
            window.get(other, 8, &mut there).unwrap();
            assert_eq!(there, [other as u8 + 1; 8]);
            let memory = window.local().memory().clone();
            let sealed = !access.contains(Access::WRITE);
            let seals = rustix::fs::fcntl_get_seals(memory.share().unwrap().fd).unwrap();
            assert_eq!(seals.contains(rustix::fs::SealFlags::FUTURE_WRITE), sealed, "{access}");
            if access.contains(Access::SIGNAL) {
                window.send_signal(other, 0, 1).unwrap();
                window.signal(0).unwrap().wait_at_least(1, TIMEOUT).unwrap();
            }
            for raised in [Access::WRITE, Access::ATOMIC, Access::ALL] {
                let export = window.local().remote(raised);
                assert_eq!(export.is_err(), sealed, "{access}: {raised}");
            }
            team.barrier().unwrap();
        }
    });
}

fn a_late_joiner_opens_what_was_published(transport: &str) {
    let store = Only::store(transport);
    let late = |part: u8| {
        let context =
            Context::builder().transports(transport).secret(secret()).timeout(TIMEOUT).build().unwrap();
        let opened = Window::open_published(&context, &store, "weights", 1, TIMEOUT).unwrap();
        let mut there = [0; 4];
        opened.get(100, &mut there).unwrap();
        assert_eq!(there, [part; 4]);
        let refused = opened.put(0, &[1]).and_then(|()| opened.flush()).unwrap_err();
        assert!(matches!(reason(&refused), Error::Access { .. }), "{refused}");
        (context, opened)
    };
    each(2, |rank| {
        let team = ranks::builder(transport, &store, rank, 2).build().unwrap();
        let window = Window::allocate(&team, 4096).unwrap();
        window.local().write(100, &[rank as u8 + 7; 4]).unwrap();
        window.publish(&store, "weights", Access::READ).unwrap();
        if rank == 0 {
            // A reader outside of the team.
            let (_context, opened) = late(8);
            team.barrier().unwrap();
            window.close().unwrap();
            team.barrier().unwrap();
            let gone = opened.get(0, &mut [0; 4]).unwrap_err();
            assert!(is_gone(&gone) || gone.root().is_some(), "{gone}");
            let context = Context::builder().transports(transport).secret(secret()).build().unwrap();
            let short = Duration::from_millis(30);
            let missing = Window::open_published(&context, &store, "nothing", 1, short).unwrap_err();
            assert!(matches!(&missing, Error::Expired { .. }), "{missing}");
            let stale = Window::open_published(&context, &store, "weights", 1, TIMEOUT).unwrap_err();
            assert!(is_gone(&stale), "{stale}");
        } else {
            team.barrier().unwrap();
            window.close().unwrap();
            team.barrier().unwrap();
        }
        team.barrier().unwrap();
    });
}

fn a_barrier_is_left_by_nobody_before_all_came(transport: &str) {
    for size in SIZES {
        let came: Vec<AtomicU64> = (0..size).map(|_| AtomicU64::new(0)).collect();
        let rounds = if size == 2 { 1000 } else { 200 };
        threads(transport, size, |team| {
            for round in 1..=rounds {
                came[team.rank() as usize].store(round, Ordering::SeqCst);
                team.barrier().unwrap();
                for (rank, came) in came.iter().enumerate() {
                    let came = came.load(Ordering::SeqCst);
                    assert!(came >= round, "rank {rank} is at {came}, rank {} at {round}", team.rank());
                }
            }
        });
    }
}

fn a_split_makes_teams_in_the_order_of_the_keys(transport: &str) {
    threads(transport, 5, |team| {
        let me = team.rank();
        // The even ones in reverse order, the odd ones in theirs; then nobody of rank 4.
        let colors = team.split(Some(me % 2), if me % 2 == 0 { 10 - me } else { 0 }).unwrap().unwrap();
        let (rank, size) = [(2, 3), (0, 2), (1, 3), (1, 2), (0, 3)][me as usize];
        assert_eq!((colors.rank(), colors.size()), (rank, size));
        let window = Window::allocate(&colors, 64).unwrap();
        for to in 0..size {
            window.put(to, 8 * u64::from(rank), &u64::from(me).to_le_bytes()).unwrap();
        }
        window.flush_all().unwrap();
        colors.barrier().unwrap();
        let seen: Vec<_> = (0..size as usize).map(|i| window.local().load(8 * i).unwrap()).collect();
        assert_eq!(seen, if me % 2 == 0 { vec![4, 2, 0] } else { vec![1, 3] });
        window.close().unwrap();
        let some = team.split((me != 4).then_some(7), 0).unwrap();
        assert_eq!(some.is_none(), me == 4);
        if let Some(some) = some {
            assert_eq!((some.rank(), some.size()), (me, 4));
            some.barrier().unwrap();
            // A team of one.
            let alone = some.split(Some(me), 0).unwrap().unwrap();
            assert_eq!((alone.rank(), alone.size()), (0, 1));
            Window::allocate(&alone, 8).unwrap().close().unwrap();
        }
        team.barrier().unwrap();
    });
}

fn explain_names_the_transport_of_every_rank(transport: &str) {
    let name = transport.split(':').next().unwrap();
    threads(transport, 3, |team| {
        let window = Window::allocate(&team, 64).unwrap();
        let text = window.explain();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        for (rank, line) in lines.iter().enumerate() {
            assert!(line.starts_with(&format!("rank {rank}: {name}")), "{text}");
        }
        assert!(team.explain().starts_with(&format!("rank {} of 3, epoch 1", team.rank())));
        window.close().unwrap();
    });
}

#[test]
fn a_team_of_one_needs_no_store() {
    let team = Team::builder().rank(0).size(1).transports("local").secret(secret()).build().unwrap();
    let window = Window::allocate(&team, 64).unwrap();
    window.put_signal(0, 0, b"me", 0, 1).unwrap();
    assert_eq!(window.signal(0).unwrap().wait_at_least(1, TIMEOUT).unwrap(), 1);
    assert_eq!(read(window.local(), 0, 2), b"me");
    team.barrier().unwrap();
    window.close().unwrap();
}

#[test]
fn ranks_that_disagree_are_told_and_missing_ones_are_named() {
    let store = Store::in_process();
    let builder = |name: &str, rank, size| ranks::builder("local", &store, rank, size).name(name);
    // A wrong size.
    let errors = each(2, |rank| builder("size", rank, 2 + rank).timeout(Duration::from_secs(2)).build());
    let text = errors.into_iter().next().unwrap().unwrap_err().to_string();
    assert!(text.contains("rank 1 says that the team has 3 ranks, rank 0 says 2"), "{text}");
    // One rank twice.
    let second = std::sync::Barrier::new(2);
    let results = each(3, |index| match index {
        2 => {
            second.wait();
            builder("twice", 0, 2).build().map(drop)
        }
        0 => {
            let prepared = builder("twice", 0, 2);
            let context = Context::builder().transports("local").secret(secret()).build().unwrap();
            let team = context.block_on("test", TIMEOUT, async {
                let mut build = std::pin::pin!(prepared.build_async());
                let mut told = false;
                std::future::poll_fn(|cx| {
                    let polled = build.as_mut().poll(cx);
                    // Its place is taken once the other rank could see it.
                    if !told && store.try_get("team/twice/rank/0").unwrap().is_some() {
                        told = true;
                        second.wait();
                    }
                    if polled.is_pending() {
                        cx.waker().wake_by_ref();
                    }
                    polled
                })
                .await
            });
            team.unwrap().map(drop)
        }
        _ => {
            // Only when the second one was refused, so that it is there while all meet.
            builder("twice", 1, 2).build().map(drop)
        }
    });
    assert!(results[0].is_ok() && results[1].is_ok(), "{results:?}");
    let text = results[2].as_ref().unwrap_err().to_string();
    assert!(text.contains("rank 0 is taken by another process"), "{text}");
    // Missing ones.
    let short = Duration::from_millis(200);
    let since = Instant::now();
    let results = each(5, |rank| match rank {
        1 | 3 => Ok(()),
        rank => builder("missing", rank, 5).timeout(short).build().map(drop),
    });
    assert!(since.elapsed() < Duration::from_secs(10));
    for rank in [0, 2, 4] {
        let error = results[rank].as_ref().unwrap_err();
        assert!(matches!(error, Error::Expired { outcome: None, .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("rank/1") && text.contains("rank/3") && !text.contains("rank/2"), "{text}");
    }
    for (rank, size) in [(2, 2), (0, 0), (0, 1 << 21)] {
        let error = builder("bad", rank, size).build().unwrap_err();
        assert!(matches!(error, Error::Invalid { .. } | Error::NoSuchRank { .. }), "{error}");
    }
}

#[test]
fn a_rank_that_cannot_take_part_in_a_window_is_named_at_the_others() {
    // More than there is.
    threads("shm", 2, |team| {
        let size = if team.rank() == 0 { usize::MAX / 4 } else { 64 };
        let since = Instant::now();
        let error = Window::allocate(&team, size).unwrap_err();
        assert!(since.elapsed() < TIMEOUT / 2);
        match team.rank() {
            0 => assert!(matches!(error, Error::TooLarge { .. }), "{error}"),
            _ => assert!(error.to_string().contains("rank 0 could not: "), "{error}"),
        }
    });
}
