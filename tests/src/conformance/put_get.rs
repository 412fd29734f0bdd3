//! Puts and gets: the bytes that were meant, where they were meant, and no others.

use transom_transport::{Access, Error, File, Foreign, Host, MemoryRegion};

use crate::pattern::{self, Random};
use crate::world::{World, contents, memory};

const SIZES: [usize; 12] =
    [0, 1, 7, 8, 63, 64, 4095, 4096, 4097, (64 << 10) + 1, (256 << 10) + 1, (1 << 20) + 3];
const OFFSETS: [usize; 6] = [0, 1, 7, 64, 4093, 4096];
const LARGEST: usize = (1 << 20) + 3 + 4096;
/// What surrounds the bytes that are written.
const FILL: u8 = 0xa5;

/// Fails when anything but the pattern at `offset` differs from the fill.
fn check_only(region: &MemoryRegion, offset: usize, size: usize, version: u64) {
    let bytes = contents(region);
    assert_eq!(pattern::differs(&bytes[offset..offset + size], version), None, "{size} bytes at {offset}");
    let untouched = |part: &[u8]| part.iter().all(|b| *b == FILL);
    assert!(untouched(&bytes[..offset]), "nothing before {offset} is written");
    assert!(untouched(&bytes[offset + size..]), "nothing after {offset} + {size} is written");
}

pub async fn borrowed_bytes_arrive_whole_and_nothing_beside_them(world: World) {
    let region = world.region(LARGEST + 8, 0);
    let target = world.open(&region).await;
    for (version, (size, offset)) in
        SIZES.iter().flat_map(|size| OFFSETS.map(|offset| (*size, offset))).enumerate()
    {
        region.write(0, &vec![FILL; region.size()]).unwrap();
        let mut bytes = pattern::bytes(size, version as u64);
        target.put(offset as u64, &bytes).await.unwrap();
        // The buffer is ours again.
        bytes.fill(0);
        target.flush().await.unwrap();
        check_only(&region, offset, size, version as u64);
        let got = target.get(offset as u64, size).await.unwrap();
        assert_eq!(pattern::differs(&got, version as u64), None, "get {size} bytes at {offset}");
    }
}

pub async fn registered_bytes_arrive_whole_and_nothing_beside_them(world: World) {
    let region = world.region(LARGEST + 8, 0);
    let target = world.open(&region).await;
    let source = world.initiator.register(Host::new(LARGEST + 8).unwrap(), 0).unwrap();
    for (version, (size, offset)) in
        SIZES.iter().flat_map(|size| OFFSETS.map(|offset| (*size, offset))).enumerate()
    {
        region.write(0, &vec![FILL; region.size()]).unwrap();
        // An offset of another alignment on this side.
        let from = OFFSETS[(version + 1) % OFFSETS.len()];
        source.write(from, &pattern::bytes(size, version as u64)).unwrap();
        let slice = source.slice(from..from + size).unwrap();
        assert_eq!(target.put_from(offset as u64, slice).await.unwrap().await.unwrap(), 0);
        check_only(&region, offset, size, version as u64);

        source.write(0, &vec![FILL; source.size()]).unwrap();
        let slice = source.slice(from..from + size).unwrap();
        assert_eq!(target.get_into(offset as u64, slice).await.unwrap().await.unwrap(), 0);
        check_only(&source, from, size, version as u64);
    }
}

pub async fn a_slice_of_a_slice_is_sent_from_its_own_place(world: World) {
    let region = world.region(4096, 0);
    let target = world.open(&region).await;
    let source = memory(&world.initiator, pattern::bytes(1000, 1));
    let slice = source.slice(100..900).unwrap().slice(50..150).unwrap();
    target.put_from(7, slice.clone()).await.unwrap().await.unwrap();
    assert_eq!(contents(&region)[7..107], contents(&source)[150..250]);
    target.get_into(0, slice).await.unwrap().await.unwrap();
    assert_eq!(contents(&source)[150..157], [0; 7]);
}

pub async fn every_kind_of_memory_is_source_and_target(world: World) {
    const SIZE: usize = 300_000;
    let folder = std::env::temp_dir();
    let unique = format!("transom-{}-{}", std::process::id(), world.owner.incarnation());
    let paths = [0, 1].map(|i| folder.join(format!("{unique}-{i}")));
    let of = |context: &transom_transport::Context, path| {
        [
            context.register(Host::new(SIZE).unwrap(), 1).unwrap(),
            context.register(Host::builder(SIZE).sparse(true).build().unwrap(), 1).unwrap(),
            context.register(Foreign::from_vec(vec![0; SIZE]).unwrap(), 1).unwrap(),
            context.register(File::create(path, SIZE).unwrap(), 1).unwrap(),
        ]
    };
    let (targets, sources) = (of(&world.owner, &paths[0]), of(&world.initiator, &paths[1]));
    for path in &paths {
        std::fs::remove_file(path).unwrap();
    }
    let mut version = 0;
    for region in &targets {
        let target = world.open(region).await;
        for source in &sources {
            version += 1;
            source.write(0, &pattern::bytes(SIZE, version)).unwrap();
            target.put_signal_from(0, source.all(), 0, 1).await.unwrap().await.unwrap();
            assert_eq!(pattern::differs(&contents(region), version), None, "{:?}", region.kind());
            source.write(0, &vec![0; SIZE]).unwrap();
            target.get_into(0, source.all()).await.unwrap().await.unwrap();
            assert_eq!(pattern::differs(&contents(source), version), None, "{:?}", region.kind());
        }
        assert_eq!(region.signal(0).unwrap(), sources.len() as u64);
        // Atomics reach memory that cannot be mapped too.
        region.store(8, 41).unwrap();
        let add = transom_transport::Atomic::Add;
        assert_eq!(target.atomic(add, 8, 8, 1, 0).await.unwrap(), 41, "{:?}", region.kind());
        assert_eq!(region.load(8).unwrap(), 42);
    }
}

pub async fn what_follows_a_fence_lands_after_what_came_before(world: World) {
    let region = world.region(1 << 16, 0);
    let target = world.open(&region).await;
    let mut random = Random::new(3);
    for round in 0..50_u64 {
        let mut model = contents(&region);
        for _ in 0..10 {
            let size = 1 + random.below(20_000) as usize;
            let offset = random.below((region.size() - size) as u64) as usize;
            let bytes = pattern::bytes(size, random.any());
            target.put(offset as u64, &bytes).await.unwrap();
            model[offset..offset + size].copy_from_slice(&bytes);
            target.fence().unwrap();
        }
        // A get behind a fence sees the puts before it.
        let offset = random.below(1 << 15) as usize;
        let got = target.get(offset as u64, 1 << 15).await.unwrap();
        assert!(got == model[offset..offset + (1 << 15)], "round {round}: the get behind the fence");
        target.flush().await.unwrap();
        assert!(contents(&region) == model, "round {round}");
    }
}

pub async fn many_more_requests_than_a_queue_holds_all_arrive(world: World) {
    const COUNT: usize = 4096;
    const SIZE: usize = 509;
    let region = world.region(COUNT * SIZE, 0);
    let target = world.open(&region).await;
    let source = memory(&world.initiator, pattern::bytes(COUNT * SIZE, 9));
    let back = memory(&world.initiator, vec![0; COUNT * SIZE]);
    let part = |region: &MemoryRegion, i: usize| region.slice(i * SIZE..(i + 1) * SIZE).unwrap();
    let mut requests = Vec::new();
    for i in 0..COUNT {
        requests.push(target.put_from((i * SIZE) as u64, part(&source, i)).await.unwrap());
    }
    // Not in the order of their posting.
    for request in requests.into_iter().rev() {
        request.await.unwrap();
    }
    assert_eq!(pattern::differs(&contents(&region), 9), None);
    let mut requests = Vec::new();
    for i in 0..COUNT {
        requests.push(target.get_into((i * SIZE) as u64, part(&back, i)).await.unwrap());
    }
    for request in requests {
        request.await.unwrap();
    }
    assert_eq!(pattern::differs(&contents(&back), 9), None);
}

pub async fn random_puts_and_gets_leave_what_a_model_has(world: World) {
    const SIZE: usize = 200_000;
    let region = world.region(SIZE, 0);
    let target = world.open(&region).await;
    let mut random = Random::new(17);
    let mut model = vec![0; SIZE];
    for _ in 0..300 {
        let size = (random.any() >> (40 + random.below(24))) as usize % SIZE;
        let offset = random.below((SIZE - size + 1) as u64) as usize;
        match random.below(3) {
            0 => {
                let bytes = pattern::bytes(size, random.any());
                target.put(offset as u64, &bytes).await.unwrap();
                model[offset..offset + size].copy_from_slice(&bytes);
            }
            1 => {
                let bytes = pattern::bytes(size.max(1), random.any());
                let source = memory(&world.initiator, bytes.clone());
                let slice = source.slice(0..size).unwrap();
                target.put_from(offset as u64, slice).await.unwrap().await.unwrap();
                model[offset..offset + size].copy_from_slice(&bytes[..size]);
            }
            _ => {
                let got = target.get(offset as u64, size).await.unwrap();
                assert!(got == model[offset..offset + size], "get {size} bytes at {offset}");
            }
        }
        // No order unless asked for.
        target.fence().unwrap();
    }
    target.flush().await.unwrap();
    assert!(contents(&region) == model);
}

pub async fn operations_of_no_bytes_succeed_up_to_the_end_and_not_behind_it(world: World) {
    let region = world.region(100, 1);
    region.write(0, &[FILL; 100]).unwrap();
    let target = world.open(&region).await;
    let empty = memory(&world.initiator, vec![1]).slice(1..1).unwrap();
    for offset in [0, 1, 99, 100] {
        target.put(offset, &[]).await.unwrap();
        target.put_from(offset, empty.clone()).await.unwrap().await.unwrap();
        target.get_into(offset, empty.clone()).await.unwrap().await.unwrap();
        target.put_signal(offset, &[], 0, 1).await.unwrap();
        target.put_signal_from(offset, empty.clone(), 0, 1).await.unwrap().await.unwrap();
    }
    for offset in [101, 1 << 32, u64::MAX] {
        let refused = [
            target.put(offset, &[]).await,
            target.put_signal(offset, &[], 0, 1).await,
            target.put_from(offset, empty.clone()).await.map(drop),
            target.get_into(offset, empty.clone()).await.map(drop),
        ];
        for error in refused {
            assert!(matches!(error, Err(Error::OutOfRange { .. })), "{offset}: {error:?}");
        }
    }
    target.flush().await.unwrap();
    assert_eq!(contents(&region), [FILL; 100]);
    assert_eq!(region.signal(0).unwrap(), 8);
}

pub async fn what_reaches_over_the_end_is_refused_whole(world: World) {
    const SIZE: usize = 8192;
    let region = world.region(SIZE, 1);
    region.write(0, &[FILL; SIZE]).unwrap();
    // Behind the exported part there is memory that must stay.
    let part = world.only(&region.export(0..4096, Access::ALL).unwrap());
    let target = world.try_open(&world.initiator, &part).await.unwrap();
    let bytes = memory(&world.initiator, vec![1; 5000]);
    let cases = [
        (4096, 1),
        (4095, 2),
        (0, 4097),
        (4000, 97),
        (1 << 32, 1),
        (u64::MAX, 1),
        (u64::MAX - 7, 8),
        (u64::MAX - 7, 9),
    ];
    for (offset, size) in cases {
        let slice = bytes.slice(0..size).unwrap();
        let from = vec![1; size];
        let refused = [
            target.put(offset, &from).await,
            target.put_signal(offset, &from, 0, 1).await,
            target.put_from(offset, slice.clone()).await.map(drop),
            target.put_signal_from(offset, slice.clone(), 0, 1).await.map(drop),
            target.get_into(offset, slice).await.map(drop),
        ];
        for error in refused {
            let Err(Error::OutOfRange { offset: at, size: of, limit, .. }) = &error else {
                panic!("{offset} + {size}: {error:?}")
            };
            assert_eq!((*at, *of, *limit), (offset, size as u64, 4096));
        }
    }
    target.flush().await.unwrap();
    assert_eq!(contents(&region), [FILL; SIZE]);
    assert_eq!(contents(&bytes), vec![1; 5000]);
    assert_eq!(region.signal(0).unwrap(), 0);
    // It is in order still.
    target.put(4088, &[7; 8]).await.unwrap();
    target.flush().await.unwrap();
    assert_eq!(contents(&region)[4088..4096], [7; 8]);
}
