//! Integer atomics: one domain with the owner's own, exact, and nothing beside the word.

use transom_transport::{Atomic, Error, PeerRegion};

use crate::pattern::Random;
use crate::world::{World, contents, together};

fn model(atomic: Atomic, width: u8, was: u64, operand: u64, compare: u64) -> u64 {
    let mask = if width == 4 { u32::MAX.into() } else { u64::MAX };
    mask & match atomic {
        Atomic::Add => was.wrapping_add(operand),
        Atomic::Swap => operand,
        Atomic::CompareSwap if was == compare => operand,
        Atomic::CompareSwap => was,
        Atomic::And => was & operand,
        Atomic::Or => was | operand,
        Atomic::Xor => was ^ operand,
        Atomic::Min => was.min(operand),
        Atomic::Max => was.max(operand),
        other => panic!("{other:?} has no model"),
    }
}

pub async fn every_atomic_returns_what_was_there_and_leaves_what_the_model_has(world: World) {
    let region = world.region(64, 0);
    let target = world.open(&region).await;
    let mut random = Random::new(23);
    let mut words = [0_u64; 8];
    for round in 0..1000 {
        let atomic = Atomic::ALL[random.below(8) as usize];
        let index = random.below(8) as usize;
        // Few distinct values, so that compare-swap hits, and the extremes.
        let value = |random: &mut Random, most: u64| match random.below(4) {
            0 => most,
            1 => random.below(3),
            _ => random.any() & most,
        };
        if round % 2 == 0 {
            let (operand, mut compare) = (value(&mut random, u64::MAX), value(&mut random, u64::MAX));
            if random.below(2) == 0 {
                compare = words[index];
            }
            let was = target.atomic(atomic, 8, index as u64 * 8, operand, compare).await.unwrap();
            assert_eq!(was, words[index], "{atomic:?} u64");
            words[index] = model(atomic, 8, was, operand, compare);
        } else {
            let most = u64::from(u32::MAX);
            let high = random.below(2);
            let shift = 32 * high;
            let before = (words[index] >> shift) & most;
            let (operand, mut compare) = (value(&mut random, most), value(&mut random, most));
            if random.below(2) == 0 {
                compare = before;
            }
            let offset = index as u64 * 8 + 4 * high;
            let was = target.atomic(atomic, 4, offset, operand, compare).await.unwrap();
            assert_eq!(was, before, "{atomic:?} u32");
            words[index] =
                words[index] & !(most << shift) | (model(atomic, 4, was, operand, compare) << shift);
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(contents(&region), bytes, "{atomic:?} in round {round}");
    }
}

pub async fn fetch_adds_of_everybody_return_each_number_once(world: World) {
    const EACH: u64 = 800;
    let region = world.region(64, 0);
    let remote = world.remote(&region);
    let first = world.try_open(&world.initiator, &remote).await.unwrap();
    let second = world.try_open(&world.second, &remote).await.unwrap();
    let again = world.try_open(&world.second, &remote).await.unwrap();
    let mut seen = together([&first, &second, &again].map(|target| {
        let region = &region;
        async move {
            let mut seen = Vec::new();
            for _ in 0..EACH / 8 {
                // Several in flight, and the owner's own between them.
                let mut requests = Vec::new();
                for _ in 0..8 {
                    requests.push(target.begin_atomic(Atomic::Add, 8, 8, 1, 0).await.unwrap());
                }
                seen.push(region.fetch_add(8, 1).unwrap());
                for request in requests {
                    seen.push(request.await.unwrap());
                }
            }
            seen
        }
    }))
    .await
    .concat();
    seen.sort_unstable();
    let all = 3 * EACH + 3 * EACH / 8;
    assert_eq!(seen, (0..all).collect::<Vec<_>>());
    assert_eq!(region.load(8).unwrap(), all);
}

pub async fn a_compare_swap_has_one_winner(world: World) {
    let region = world.region(8, 0);
    let remote = world.remote(&region);
    let mut targets = Vec::new();
    for context in [&world.initiator, &world.second, &world.second, &world.initiator] {
        targets.push(world.try_open(context, &remote).await.unwrap());
    }
    for round in 0..200_u64 {
        let expected = region.load(0).unwrap();
        let was = together(targets.iter().enumerate().map(|(i, target)| async move {
            let mine = (round + 1) * 10 + i as u64;
            (mine, target.atomic(Atomic::CompareSwap, 8, 0, mine, expected).await.unwrap())
        }))
        .await;
        let winners: Vec<_> = was.iter().filter(|(_, was)| *was == expected).collect();
        assert_eq!(winners.len(), 1, "{was:?}");
        assert_eq!(region.load(0).unwrap(), winners[0].0);
        assert!(was.iter().all(|(_, was)| *was == expected || *was == winners[0].0), "{was:?}");
    }
}

pub async fn atomics_out_of_place_or_of_no_known_width_are_refused(world: World) {
    let region = world.region(64, 0);
    let target = world.open(&region).await;
    for (width, offset) in [(8, 1), (8, 4), (8, 63), (4, 1), (4, 2), (4, 63)] {
        for atomic in Atomic::ALL {
            let error = target.atomic(atomic, width, offset, 1, 0).await.unwrap_err();
            assert!(matches!(error, Error::Misaligned { .. }), "{width} bytes at {offset}: {error:?}");
        }
    }
    for (width, offset) in [(8, 64), (4, 64), (8, 1 << 32), (8, u64::MAX - 7), (4, u64::MAX - 3)] {
        let error = target.atomic(Atomic::Add, width, offset, 1, 0).await.unwrap_err();
        assert!(matches!(error, Error::OutOfRange { .. }), "{width} bytes at {offset}: {error:?}");
    }
    for (width, operand, compare) in
        [(0, 1, 0), (1, 1, 0), (2, 1, 0), (16, 1, 0), (4, 1 << 32, 0), (4, 0, 1 << 32)]
    {
        let error = target.atomic(Atomic::CompareSwap, width, 0, operand, compare).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{width} bytes: {error:?}");
    }
    target.flush().await.unwrap();
    assert_eq!(contents(&region), [0; 64]);
}

/// A part of a region that begins between two words has no aligned words at aligned offsets.
pub async fn atomics_in_a_part_that_begins_between_words_are_refused_by_either_side(world: World) {
    let region = world.region(64, 0);
    let remote = region.export(4..60, transom_transport::Access::ALL).unwrap();
    let target = world.try_open(&world.initiator, &remote).await.unwrap();
    let error = target.atomic(Atomic::Add, 8, 0, 1, 0).await.unwrap_err();
    assert!(matches!(crate::world::reason(&error), Error::Misaligned { .. }), "{error:?}");
    assert_eq!(target.atomic(Atomic::Add, 4, 0, 1, 0).await.unwrap(), 0);
    assert_eq!(contents(&region)[..8], [0, 0, 0, 0, 1, 0, 0, 0]);
}

pub async fn atomics_see_the_puts_before_a_fence_and_flush_covers_them(world: World) {
    let region = world.region(64, 0);
    let target = world.open(&region).await;
    for round in 0..200_u64 {
        target.put(8, &round.to_le_bytes()).await.unwrap();
        target.fence().unwrap();
        assert_eq!(target.atomic(Atomic::Add, 8, 8, 5, 0).await.unwrap(), round);
        drop(target.begin_atomic(Atomic::Add, 8, 16, 1, 0).await.unwrap());
        PeerRegion::flush_async(&target).await.unwrap();
        assert_eq!(region.load(16).unwrap(), round + 1);
    }
}
