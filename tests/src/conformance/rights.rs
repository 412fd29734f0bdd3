//! Rights: each operation needs its own, and no descriptor gives more than was exported.

use transom_transport::{Access, Atomic, Dtype, Error, Foreign, List, Outcome, Reduce, RemoteRegion};

use crate::world::{Target, World, contents, memory, reason};

const FILL: u8 = 0x5a;

/// Every operation, with the rights that it needs.
async fn operations(world: &World, target: &Target) -> Vec<(&'static str, Access, Result<(), Error>)> {
    let slice = memory(&world.initiator, vec![1; 8]).all();
    let list = List::new([(0, 4), (32, 4)]).unwrap();
    let with_signal = Access::WRITE | Access::SIGNAL;
    let ended = async |request: Result<transom_transport::Request, Error>| request?.await.map(drop);
    vec![
        ("put", Access::WRITE, target.put(0, &[1; 8]).await),
        ("put_from", Access::WRITE, ended(target.put_from(0, slice.clone()).await).await),
        ("put_list", Access::WRITE, target.put_list(&list, &[1; 8]).await),
        ("put_list_from", Access::WRITE, ended(target.put_list_from(&list, slice.clone()).await).await),
        ("put_signal", with_signal, target.put_signal(0, &[1; 8], 0, 1).await),
        ("put_signal of nothing", with_signal, target.put_signal(0, &[], 0, 1).await),
        ("put_signal_from", with_signal, ended(target.put_signal_from(0, slice.clone(), 0, 1).await).await),
        ("signal", Access::SIGNAL, target.signal(0, 1).await),
        ("get_into", Access::READ, ended(target.get_into(0, slice.clone()).await).await),
        ("get_list_into", Access::READ, ended(target.get_list_into(&list, slice.clone()).await).await),
        ("fetch_add", Access::ATOMIC, target.atomic(Atomic::Add, 8, 0, 1, 0).await.map(drop)),
        ("compare_swap", Access::ATOMIC, target.atomic(Atomic::CompareSwap, 4, 4, 1, 0).await.map(drop)),
        ("accumulate", Access::ATOMIC, target.accumulate(0, &[1; 8], Dtype::U64, Reduce::Sum).await),
        (
            "accumulate_from",
            Access::ATOMIC,
            ended(target.accumulate_from(0, slice.clone(), Dtype::U64, Reduce::Sum).await).await,
        ),
    ]
}

pub async fn each_operation_needs_its_right_and_changes_nothing_without_it(world: World) {
    let rights = [Access::READ, Access::WRITE, Access::ATOMIC, Access::SIGNAL];
    for bits in 0..=Access::ALL.bits() {
        let granted = Access::from_bits(bits).unwrap();
        let region = world.region(64, 1);
        region.write(0, &[FILL; 64]).unwrap();
        let remote = region.remote(granted).unwrap();
        let target = world.try_open(&world.initiator, &remote).await.unwrap();
        for (name, needed, done) in operations(&world, &target).await {
            if granted.contains(needed) {
                done.unwrap_or_else(|error| panic!("{name} with {granted}: {error}"));
                continue;
            }
            let error = done.expect_err(name);
            let Error::Access { granted: told, .. } = reason(&error) else { panic!("{name}: {error:?}") };
            assert_eq!(*told, granted, "{name}");
            assert_ne!(error.outcome(), Some(Outcome::InDoubt), "{name}");
        }
        target.flush().await.unwrap();
        target.fence().unwrap();
        if !granted.contains(Access::WRITE) && !granted.contains(Access::ATOMIC) {
            assert_eq!(contents(&region), [FILL; 64], "{granted}");
        }
        if !granted.contains(Access::SIGNAL) {
            assert_eq!(region.signal(0).unwrap(), 0, "{granted}");
        }
        assert!(rights.iter().any(|right| granted.contains(*right)) || bits == 0);
    }
}

pub async fn one_export_gives_nothing_to_another(world: World) {
    let region = world.region(64, 1);
    let reads = world.try_open(&world.initiator, &region.remote(Access::READ).unwrap()).await.unwrap();
    let writes = world.try_open(&world.initiator, &region.remote(Access::WRITE).unwrap()).await.unwrap();
    writes.put(0, &[3; 64]).await.unwrap();
    writes.flush().await.unwrap();
    assert_eq!(reads.get(0, 64).await.unwrap(), [3; 64]);
    let error = reads.put(0, &[4; 64]).await.unwrap_err();
    assert!(matches!(error, Error::Access { .. }), "{error:?}");
    let error = writes.get(0, 64).await.unwrap_err();
    assert!(matches!(error, Error::Access { .. }), "{error:?}");
    // Two exports do not add up to a third.
    let mut both = region.remote(Access::READ).unwrap();
    both.access = Access::READ | Access::WRITE;
    refused(&world, &both).await;
    assert_eq!(contents(&region), [3; 64]);
}

async fn refused(world: &World, remote: &RemoteRegion) {
    let error = world.try_open(&world.initiator, remote).await.expect_err("it was not exported");
    let fits = matches!(reason(&error), Error::Access { .. } | Error::OutOfRange { .. });
    assert!(fits, "{remote:?}: {error:?}");
}

pub async fn rights_and_ranges_cannot_be_raised_by_editing_a_descriptor(world: World) {
    let region = world.region(8192, 2);
    region.write(0, &[FILL; 8192]).unwrap();
    let given = region.export(1024..2048, Access::READ).unwrap();
    for bits in 0..=Access::ALL.bits() {
        let mut edited = given.clone();
        edited.access = Access::from_bits(bits).unwrap();
        if given.access.contains(edited.access) {
            world.try_open(&world.initiator, &edited).await.unwrap();
        } else {
            refused(&world, &edited).await;
        }
    }
    for (offset, size) in [
        (0, 8192),
        (0, 1024),
        (1023, 1024),
        (1024, 1025),
        (1025, 1024),
        (2048, 1),
        (1 << 40, 1),
        (0, 1 << 40),
    ] {
        let edited = RemoteRegion { offset, size, ..given.clone() };
        refused(&world, &edited).await;
    }
    // Less than was given is no more than was given.
    let less = RemoteRegion { offset: 1500, size: 8, ..given };
    let target = world.try_open(&world.initiator, &less).await.unwrap();
    assert_eq!(target.get(0, 8).await.unwrap(), [FILL; 8]);
    target.get(1, 8).await.unwrap_err();
}

pub async fn signals_cannot_be_made_by_editing_a_descriptor(world: World) {
    let region = world.region(64, 1);
    let mut edited = world.remote(&region);
    edited.signals = 1000;
    // Refused when it is opened, when it is used, or when it is flushed.
    if let Ok(target) = world.try_open(&world.initiator, &edited).await {
        let told = match target.put_signal(0, &[1; 8], 999, 1).await {
            Ok(()) => target.flush().await,
            error => error,
        };
        told.unwrap_err();
    }
    assert_eq!(region.signal(0).unwrap(), 0);
    // The owner is in order.
    let target = world.open(&region).await;
    target.put_signal(0, &[2; 8], 0, 1).await.unwrap();
    target.flush().await.unwrap();
    assert_eq!((region.signal(0).unwrap(), contents(&region)[0]), (1, 2));
}

pub async fn a_part_is_a_region_of_its_own_and_its_edges_hold(world: World) {
    let region = world.region(8192, 1);
    region.write(0, &[FILL; 8192]).unwrap();
    let remote = region.export(1001..3001, Access::ALL).unwrap();
    let target = world.try_open(&world.initiator, &remote).await.unwrap();
    assert_eq!(target.size(), 2000);
    target.put(0, &[1; 2000]).await.unwrap();
    target.flush().await.unwrap();
    let bytes = contents(&region);
    assert!(bytes[..1001].iter().chain(&bytes[3001..]).all(|b| *b == FILL), "nothing outside is written");
    assert!(bytes[1001..3001].iter().all(|b| *b == 1), "its offsets begin at 0");
    for (offset, size) in [(0, 2001), (1999, 2), (2000, 1), (u64::MAX - 1000, 1)] {
        let error = target.put(offset, &vec![2; size]).await.unwrap_err();
        assert!(matches!(error, Error::OutOfRange { limit: 2000, .. }), "{error:?}");
        target.get(offset, size).await.unwrap_err();
    }
    // Nothing of it is a part too.
    let none = region.export(4000..4000, Access::ALL).unwrap();
    let none = world.try_open(&world.initiator, &none).await.unwrap();
    none.put(0, &[]).await.unwrap();
    none.put(0, &[1]).await.unwrap_err();
    none.put_signal(0, &[], 0, 1).await.unwrap();
    none.flush().await.unwrap();
    assert_eq!(region.signal(0).unwrap(), 1);
    for range in [0..8193, 8192..8193, usize::MAX..usize::MAX] {
        let error = region.export(range.clone(), Access::READ).unwrap_err();
        assert!(matches!(error, Error::OutOfRange { .. }), "{range:?}: {error:?}");
    }
}

pub async fn memory_that_is_only_read_is_never_written(world: World) {
    #[repr(align(8))]
    struct Aligned([u8; 4096]);
    static ALIGNED: Aligned = Aligned([FILL; 4096]);
    const BYTES: &[u8; 4096] = &ALIGNED.0;
    let read_only = || {
        // SAFETY: a constant lives and never changes; it is only read.
        unsafe { Foreign::read_only(std::ptr::NonNull::from(BYTES).cast(), BYTES.len(), ()) }.unwrap()
    };
    let region = world.owner.register(read_only(), 1).unwrap();
    for access in [Access::WRITE, Access::ATOMIC, Access::ALL, Access::READ | Access::ATOMIC] {
        let error = region.remote(access).unwrap_err();
        assert!(matches!(error, Error::Access { .. }), "{access}: {error:?}");
    }
    let remote = region.remote(Access::READ | Access::SIGNAL).unwrap();
    let target = world.try_open(&world.initiator, &remote).await.unwrap();
    assert_eq!(target.get(100, 200).await.unwrap(), [FILL; 200]);
    target.signal(0, 1).await.unwrap();
    target.put(0, &[0; 8]).await.unwrap_err();
    target.atomic(Atomic::Add, 8, 0, 1, 0).await.unwrap_err();
    target.accumulate(0, &[0; 8], Dtype::U64, Reduce::Sum).await.unwrap_err();
    target.flush().await.unwrap();
    assert_eq!(region.signal(0).unwrap(), 1);
    region.write(0, &[0]).unwrap_err();
    region.store(0, 1).unwrap_err();
    region.fetch_add(0, 1).unwrap_err();
    assert_eq!(region.load(0).unwrap(), u64::from_ne_bytes([FILL; 8]));

    // As a source it serves; gets into it do not.
    let source = world.initiator.register(read_only(), 0).unwrap();
    let other = world.region(4096, 0);
    let target = world.open(&other).await;
    target.put_from(0, source.all()).await.unwrap().await.unwrap();
    assert_eq!(contents(&other), *BYTES);
    let list = List::new([(0, 4096)]).unwrap();
    let refused = [
        target.get_into(0, source.all()).await.map(drop),
        target.get_list_into(&list, source.all()).await.map(drop),
    ];
    for error in refused {
        assert!(matches!(error, Err(Error::Access { .. })), "{error:?}");
    }
}
