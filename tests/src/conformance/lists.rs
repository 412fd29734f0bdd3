//! Lists: many parts in one transfer, checked once, all or none.

use transom_transport::{Error, List, MemoryRegion};

use crate::pattern::{self, Random};
use crate::world::{Target, World, contents, memory};

/// Parts that do not overlap, in any order, with gaps, and their sum.
fn random_parts(random: &mut Random, end: u64, most: u64) -> (Vec<(u64, u64)>, usize) {
    let mut parts = Vec::new();
    let mut at = 0;
    loop {
        at += random.below(most);
        let size = random.below(most);
        if at + size > end {
            break;
        }
        parts.push((at, size));
        at += size;
    }
    for i in (1..parts.len()).rev() {
        parts.swap(i, random.below(i as u64 + 1) as usize);
    }
    let total = parts.iter().map(|part| part.1).sum::<u64>() as usize;
    (parts, total)
}

fn scatter(model: &mut [u8], parts: &[(u64, u64)], from: &[u8]) {
    let mut at = 0;
    for &(offset, size) in parts {
        let (offset, size) = (offset as usize, size as usize);
        model[offset..offset + size].copy_from_slice(&from[at..at + size]);
        at += size;
    }
}

fn gather(model: &[u8], parts: &[(u64, u64)]) -> Vec<u8> {
    parts
        .iter()
        .flat_map(|&(offset, size)| model[offset as usize..(offset + size) as usize].to_vec())
        .collect()
}

async fn get_list(world: &World, target: &Target, list: &List) -> Vec<u8> {
    let into = memory(&world.initiator, vec![0xee; list.size() as usize + 1]);
    let slice = into.slice(0..list.size() as usize).unwrap();
    target.get_list_into(list, slice).await.unwrap().await.unwrap();
    let mut bytes = contents(&into);
    assert_eq!(bytes.pop(), Some(0xee), "nothing past the end is written");
    bytes
}

pub async fn random_lists_are_what_the_model_scatters_and_gathers(world: World) {
    const END: usize = 100_000;
    let region = world.region(END, 0);
    let target = world.open(&region).await;
    let mut random = Random::new(41);
    let mut model = vec![0; END];
    for round in 0..60 {
        let most = [4, 60, 3000, 60_000][round % 4];
        // A few thousand parts at most: the largest list has a case of its own.
        let end = (END as u64).min(most * 2500);
        let (parts, total) = random_parts(&mut random, end, most);
        let list = List::new(parts.clone()).unwrap();
        assert_eq!(list.size(), total as u64);
        let from = pattern::bytes(total, random.any());
        if round % 2 == 0 {
            target.put_list(&list, &from).await.unwrap();
            target.flush().await.unwrap();
        } else {
            let source = memory(&world.initiator, [&from[..], &[0]].concat());
            let slice = source.slice(0..total).unwrap();
            target.put_list_from(&list, slice).await.unwrap().await.unwrap();
        }
        scatter(&mut model, &parts, &from);
        assert!(contents(&region) == model, "round {round}: {} parts", parts.len());
        let (parts, _) = random_parts(&mut random, end, most);
        let got = get_list(&world, &target, &List::new(parts.clone()).unwrap()).await;
        assert!(got == gather(&model, &parts), "round {round}: get {} parts", parts.len());
    }
}

pub async fn fifteen_thousand_parts_are_one_transfer_that_can_be_replayed(world: World) {
    const COUNT: u64 = 15_000;
    const SIZE: u64 = 256;
    let region = world.region((COUNT * SIZE * 2) as usize, 0);
    let target = world.open(&region).await;
    let parts: Vec<_> = (0..COUNT).map(|i| ((COUNT - 1 - i) * SIZE * 2, SIZE)).collect();
    let list = List::new(parts.clone()).unwrap();
    let source = memory(&world.initiator, vec![0; list.size() as usize]);
    let mut model = vec![0; region.size()];
    for version in 0..4 {
        let bytes = pattern::bytes(list.size() as usize, version);
        if version % 2 == 0 {
            source.write(0, &bytes).unwrap();
            target.put_list_from(&list, source.all()).await.unwrap().await.unwrap();
        } else {
            target.put_list(&list, &bytes).await.unwrap();
            target.flush().await.unwrap();
        }
        scatter(&mut model, &parts, &bytes);
        assert!(contents(&region) == model, "version {version}");
        let got = get_list(&world, &target, &list).await;
        assert_eq!(pattern::differs(&got, version), None);
    }
}

/// Places on this side for parts: apart from each other, mostly in an order of their own, some of them following each other.
fn random_places(random: &mut Random, parts: &[(u64, u64)]) -> (Vec<(u64, u64, u64)>, usize) {
    let mut order: Vec<usize> = (0..parts.len()).collect();
    for i in (1..order.len()).rev() {
        if random.below(2) == 0 {
            order.swap(i, random.below(i as u64 + 1) as usize);
        }
    }
    let mut places = vec![0; parts.len()];
    let mut at = 0;
    for index in order {
        at += if random.below(2) == 0 { 0 } else { random.below(40) };
        places[index] = at;
        at += parts[index].1;
    }
    let all = parts.iter().zip(&places).map(|(&(there, size), &here)| (there, here, size));
    (all.collect(), at as usize)
}

pub async fn lists_that_are_scattered_on_both_sides_move_each_part_to_its_place(world: World) {
    const END: usize = 600_000;
    let region = world.region(END, 0);
    let target = world.open(&region).await;
    let mut random = Random::new(43);
    let mut model = vec![0; END];
    for round in 0..24 {
        // Small ones go together, large ones by themselves.
        let most = [8, 300, 9000, 300_000][round % 4];
        let (parts, _) = random_parts(&mut random, (END as u64).min(most * 1500), most);
        let (all, end) = random_places(&mut random, &parts);
        let list = List::scattered(all.clone()).unwrap();
        let from = pattern::bytes(end + 3, random.any());
        for &(there, here, size) in &all {
            let (there, here, size) = (there as usize, here as usize, size as usize);
            model[there..there + size].copy_from_slice(&from[here..here + size]);
        }
        if round % 2 == 0 {
            target.put_list(&list, &from).await.unwrap();
            target.flush().await.unwrap();
        } else {
            let source = memory(&world.initiator, [&[0; 5], &from[..]].concat());
            let slice = source.slice(5..5 + from.len()).unwrap();
            target.put_list_from(&list, slice).await.unwrap().await.unwrap();
        }
        assert!(contents(&region) == model, "round {round}: {} parts", parts.len());
        // Back to places of their own; what is between them is not touched.
        let (all, end) = random_places(&mut random, &parts);
        let list = List::scattered(all.clone()).unwrap();
        let into = memory(&world.initiator, vec![0xee; end + 7]);
        target.get_list_into(&list, into.slice(2..end + 6).unwrap()).await.unwrap().await.unwrap();
        let mut wanted = vec![0xee; end + 7];
        for &(there, here, size) in &all {
            let (there, here, size) = (there as usize, 2 + here as usize, size as usize);
            wanted[here..here + size].copy_from_slice(&model[there..there + size]);
        }
        assert!(contents(&into) == wanted, "round {round}: get {} parts", parts.len());
    }
}

pub async fn places_that_do_not_fit_or_overlap_are_refused_whole(world: World) {
    let region = world.region(4096, 0);
    region.write(0, &pattern::bytes(4096, 1)).unwrap();
    let target = world.open(&region).await;
    let bytes = memory(&world.initiator, vec![1; 100]);
    let outside = List::scattered([(0, 8, 8), (64, 93, 8)]).unwrap();
    for error in [
        target.put_list(&outside, &[1; 100]).await.unwrap_err(),
        target.put_list_from(&outside, bytes.all()).await.unwrap_err(),
        target.get_list_into(&outside, bytes.all()).await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    }
    assert_eq!(pattern::differs(&contents(&region), 1), None, "nothing was put");
    // The same bytes may be put twice, and two may not be gotten to one place.
    let twice = List::scattered([(0, 8, 8), (64, 12, 8)]).unwrap();
    let error = target.get_list_into(&twice, bytes.all()).await.unwrap_err();
    assert!(error.to_string().contains("8 and 12 overlap"), "{error}");
    assert_eq!(contents(&bytes), [1; 100], "nothing was gotten");
    target.put_list_from(&twice, bytes.all()).await.unwrap().await.unwrap();
    assert_eq!((&contents(&region)[..8], &contents(&region)[64..72]), (&[1; 8][..], &[1; 8][..]));
}

pub async fn parts_larger_than_any_frame_are_whole(world: World) {
    let region = world.region(6 << 20, 0);
    let target = world.open(&region).await;
    let parts = vec![(3 << 20, 2_500_001), (0, 1), (7, 2_000_003), ((6 << 20) - 1, 1)];
    let list = List::new(parts.clone()).unwrap();
    let from = pattern::bytes(list.size() as usize, 6);
    let mut model = vec![0; region.size()];
    target.put_list(&list, &from).await.unwrap();
    target.flush().await.unwrap();
    scatter(&mut model, &parts, &from);
    assert!(contents(&region) == model);
    assert!(get_list(&world, &target, &list).await == from);
}

pub async fn lists_order_like_puts_before_a_signal(world: World) {
    let region = world.region(200_000, 1);
    let target = world.open(&region).await;
    let signal = world.signal(&region, 0);
    let parts: Vec<_> = (0..200).map(|i| (i * 1000, 999)).collect();
    let list = List::new(parts.clone()).unwrap();
    for round in 1..=20 {
        target.put_list(&list, &pattern::bytes(list.size() as usize, round)).await.unwrap();
        target.signal(0, 1).await.unwrap();
        signal.wait_at_least_async(round, crate::world::SOON).await.unwrap();
        assert_eq!(pattern::differs(&gather(&contents(&region), &parts), round), None, "round {round}");
    }
}

pub async fn empty_lists_succeed_and_touch_nothing(world: World) {
    let region = world.region(64, 0);
    let target = world.open(&region).await;
    let none = memory(&world.initiator, vec![0]).slice(0..0).unwrap();
    for list in [List::new([]).unwrap(), List::new([(0, 0), (1 << 40, 0)]).unwrap()] {
        assert!(list.is_empty());
        target.put_list(&list, &[]).await.unwrap();
        target.put_list_from(&list, none.clone()).await.unwrap().await.unwrap();
        target.get_list_into(&list, none.clone()).await.unwrap().await.unwrap();
    }
    target.flush().await.unwrap();
    assert_eq!(contents(&region), [0; 64]);
}

pub async fn a_list_with_one_part_out_of_place_is_refused_whole(world: World) {
    let region = world.region(8192, 0);
    let part = region.export(0..4096, transom_transport::Access::ALL).unwrap();
    let target = world.try_open(&world.initiator, &part).await.unwrap();
    let bytes = memory(&world.initiator, vec![1; 1 << 13]);
    let refuse = async |parts: Vec<(u64, u64)>, size: usize| -> Vec<Error> {
        let list = List::new(parts).unwrap();
        let slice = bytes.slice(0..size).unwrap();
        vec![
            target.put_list(&list, &vec![1; size]).await.unwrap_err(),
            target.put_list_from(&list, slice.clone()).await.unwrap_err(),
            target.get_list_into(&list, slice).await.unwrap_err(),
        ]
    };
    for bad in [(4096, 1), (4095, 2), (0, 4097), (1 << 40, 8), ((1 << 62) - 8, 8)] {
        for at in 0..3 {
            let mut parts = vec![(0, 8), (64, 8)];
            parts.insert(at, bad);
            for error in refuse(parts, 16 + bad.1 as usize).await {
                assert!(matches!(error, Error::OutOfRange { .. }), "{bad:?}: {error:?}");
            }
        }
    }
    for size in [0, 15, 17, 4096] {
        for error in refuse(vec![(0, 8), (64, 8)], size).await {
            assert!(matches!(error, Error::Invalid { .. }), "{size} bytes for 16: {error:?}");
        }
    }
    target.flush().await.unwrap();
    assert!(contents(&region).iter().all(|b| *b == 0));
    assert!(contents(&bytes).iter().all(|b| *b == 1));
    for parts in [
        [(u64::MAX, 1), (0, 1)],
        [(1 << 62, 1), (0, 0)],
        [(0, 1 << 62), (0, 1)],
        [(u64::MAX, u64::MAX), (0, 0)],
    ] {
        let error = List::new(parts).unwrap_err();
        assert!(matches!(error, Error::OutOfRange { .. }), "{parts:?}: {error:?}");
    }
}

/// Both sides in one region of one process: seen before the first byte moves.
pub async fn a_list_that_overlaps_its_own_memory_is_refused_whole(world: World) {
    let region: MemoryRegion = world.region(4096, 0);
    region.write(0, &pattern::bytes(4096, 1)).unwrap();
    let remote = world.remote(&region);
    let own = world.owner.connect_async(&remote).await.unwrap().open_async(&remote).await.unwrap();
    // The first parts are apart; the last is not.
    let list = List::new([(2000, 100), (3000, 100), (250, 100)]).unwrap();
    let slice = region.slice(0..300).unwrap();
    let refused =
        [own.put_list_from(&list, slice.clone()).map(drop), own.get_list_into(&list, slice).map(drop)];
    for error in refused {
        assert!(matches!(error, Err(Error::Invalid { .. })), "{error:?}");
    }
    assert_eq!(pattern::differs(&contents(&region), 1), None, "nothing was moved");
    // The places decide, and not what lies between them.
    for (places, apart) in [([0, 200], true), ([0, 1999], false), ([2099, 300], false)] {
        let list = List::scattered([(2000, places[0], 100), (3000, places[1], 100)]).unwrap();
        let put = own.put_list_from(&list, region.all());
        assert_eq!(put.is_ok(), apart, "{places:?}: {put:?}");
        if let Ok(put) = put {
            put.await.unwrap();
        }
        let got = own.get_list_into(&list, region.all());
        assert_eq!(got.is_ok(), apart, "{places:?}: {got:?}");
    }
}
