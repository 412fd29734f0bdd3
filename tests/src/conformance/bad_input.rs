//! Arguments that make no sense: typed errors, nothing touched, everything goes on.

use std::time::Duration;

use transom_transport::{Access, Error, Foreign, Host, RemoteRegion};

use crate::world::{World, contents, memory};

/// Source and target in the same bytes of one process.
pub async fn overlapping_source_and_target_are_refused(world: World) {
    let region = world.region(4096, 1);
    region.write(0, &crate::pattern::bytes(4096, 1)).unwrap();
    let remote = world.remote(&region);
    let own = world.owner.connect_async(&remote).await.unwrap().open_async(&remote).await.unwrap();
    for (from, to, size) in [(0, 0, 8), (0, 7, 8), (100, 50, 100), (0, 2000, 2001), (3000, 2999, 2)] {
        let slice = region.slice(from..from + size).unwrap();
        let to = to as u64;
        let refused = [
            own.put_from(to, slice.clone()).map(drop),
            own.put_signal_from(to, slice.clone(), 0, 1).map(drop),
            own.get_into(to, slice).map(drop),
        ];
        for error in refused {
            assert!(matches!(error, Err(Error::Invalid { .. })), "{from}..+{size} to {to}: {error:?}");
        }
    }
    let slice = region.slice(0..16).unwrap();
    let (dtype, sum) = (transom_transport::Dtype::U64, transom_transport::Reduce::Sum);
    let error = own.accumulate_from(8, slice.clone(), dtype, sum).unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    assert_eq!(crate::pattern::differs(&contents(&region), 1), None);
    assert_eq!(region.signal(0).unwrap(), 0);
    // Neighbours do not overlap, and nothing overlaps nothing.
    own.ready().await.unwrap();
    own.put_from(16, slice.clone()).unwrap().await.unwrap();
    own.ready().await.unwrap();
    own.put_from(0, region.slice(0..0).unwrap()).unwrap().await.unwrap();
    assert_eq!(contents(&region)[16..32], contents(&region)[..16]);
}

pub async fn descriptors_without_a_way_are_unreachable_and_say_what_was_tried(world: World) {
    let region = world.region(64, 0);
    let given = world.only(&world.remote(&region));
    let name = world.transport();
    let nonsense = ["", ":", "-", "nonsense", "nonsense:1", "\u{0}", &"x".repeat(255)];
    let named = nonsense.map(|text| format!("{name}:{text}"));
    let none = RemoteRegion { addresses: vec![], ..given.clone() };
    let mut wrong = vec![none];
    for address in nonsense.iter().map(ToString::to_string).chain(named) {
        wrong.push(RemoteRegion { addresses: vec![address], ..given.clone() });
    }
    for remote in wrong {
        let error = world.initiator.connect_async(&remote).await.unwrap_err();
        let fits = matches!(error, Error::Unreachable { .. } | Error::Stale { .. });
        assert!(fits, "{:?}: {error:?}", remote.addresses);
    }
    // A good address behind a bad one is found.
    let mut addresses = vec![format!("{name}:nonsense")];
    addresses.extend(given.addresses.clone());
    let remote = RemoteRegion { addresses, ..given };
    world.try_open(&world.initiator, &remote).await.unwrap();
}

pub async fn nonsense_at_registration_is_refused(world: World) {
    for signals in [(1 << 20) + 1, u32::MAX] {
        let error = world.owner.register(Host::new(64).unwrap(), signals).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{signals}: {error:?}");
    }
    let region = world.owner.register(Host::new(64).unwrap(), 1 << 20).unwrap();
    let target = world.open(&region).await;
    target.signal((1 << 20) - 1, 3).await.unwrap();
    target.flush().await.unwrap();
    assert_eq!(region.signal((1 << 20) - 1).unwrap(), 3);
    Foreign::from_vec(vec![]).unwrap_err();
    Host::new(0).unwrap_err();
    for range in [0..65, 64..65, usize::MAX..usize::MAX] {
        region.slice(range.clone()).unwrap_err();
        region.export(range, Access::READ).unwrap_err();
    }
    #[expect(clippy::reversed_empty_ranges, reason = "this is what is refused")]
    region.slice(3..2).unwrap_err();
    for offset in [1, 57, 64, usize::MAX - 7, usize::MAX] {
        region.load(offset).unwrap_err();
        region.store(offset, 1).unwrap_err();
        region.fetch_add(offset, 1).unwrap_err();
        region.read(offset, &mut [0; 64]).unwrap_err();
        region.write(offset, &[0; 64]).unwrap_err();
    }
}

/// Calls that must wait are errors where waiting would stop the clock.
pub async fn calls_that_would_block_say_so_under_a_virtual_clock(world: World) {
    let region = world.region(64, 1);
    let signal = world.signal(&region, 0);
    let short = Duration::from_millis(1);
    let error = signal.wait_at_least(1, short).unwrap_err();
    if world.owner.clock().is_virtual() {
        assert!(matches!(error, Error::Blocking { .. }), "{error:?}");
    } else {
        assert!(matches!(error, Error::Expired { .. }), "{error:?}");
    }
}

pub async fn an_error_leaves_the_region_in_order(world: World) {
    let region = world.region(64, 1);
    let target = world.open(&region).await;
    let slice = memory(&world.initiator, vec![9; 65]).all();
    for round in 1..=50_u8 {
        target.put(60, &[1; 8]).await.unwrap_err();
        target.put_signal(0, &[1], 7, 1).await.unwrap_err();
        target.get_into(0, slice.clone()).await.unwrap_err();
        target.atomic(transom_transport::Atomic::Add, 8, 3, 1, 0).await.unwrap_err();
        target.put_signal(0, &[round; 64], 0, 1).await.unwrap();
        target.flush().await.unwrap();
        assert_eq!(contents(&region), [round; 64]);
        assert_eq!(region.signal(0).unwrap(), round.into());
    }
}
