//! No size limit that a user can see.

use transom_transport::{Atomic, Host};

use crate::pattern;
use crate::world::{World, memory};

const GIB: u64 = 1 << 30;

pub async fn a_region_of_5_gib_is_usable_to_its_last_byte(world: World) {
    let size = 5 * GIB;
    let host = Host::builder(size as usize).sparse(true).build().unwrap();
    let region = world.owner.register(host, 1).unwrap();
    let target = world.open(&region).await;
    assert_eq!(target.size(), size);
    let edges = [1 << 31, 1 << 32, (1 << 31) + 4096, size - 100, size - 1, 0, 1, 4095];
    let mut version = 0;
    for offset in edges.into_iter().flat_map(|edge| [edge - u64::from(edge > 0), edge, edge + 1]) {
        let most = (size - offset).min(100) as usize;
        for len in [1, 8, 100] {
            let len = len.min(most);
            version += 1;
            let bytes = pattern::bytes(len, version);
            target.put(offset, &bytes).await.unwrap();
            target.flush().await.unwrap();
            let mut seen = vec![0; len];
            region.read(offset as usize, &mut seen).unwrap();
            assert!(seen == bytes, "{len} bytes at {offset}");
            let got = target.get(offset, len).await.unwrap();
            assert!(got == bytes, "get {len} bytes at {offset}");
        }
    }
    for offset in [1 << 31, 1 << 32, size - 8] {
        region.store(offset as usize, 5).unwrap();
        assert_eq!(target.atomic(Atomic::Add, 8, offset, 2, 0).await.unwrap(), 5);
        assert_eq!(region.load(offset as usize).unwrap(), 7);
    }
    for offset in [size, size + 1, size - 7] {
        target.put(offset, &[0; 8]).await.unwrap_err();
    }
}

pub async fn a_put_across_2_and_4_gib_is_whole(world: World) {
    let region =
        world.owner.register(Host::builder(5 * GIB as usize).sparse(true).build().unwrap(), 0).unwrap();
    let target = world.open(&region).await;
    let source = memory(&world.initiator, pattern::bytes(3 << 20, 1));
    for edge in [1_u64 << 31, 1 << 32] {
        let offset = edge - (1 << 20) - 1;
        target.put_from(offset, source.all()).await.unwrap().await.unwrap();
        let mut seen = vec![0; source.size()];
        region.read(offset as usize, &mut seen).unwrap();
        assert_eq!(pattern::differs(&seen, 1), None, "across {edge}");
        let got = target.get(offset, source.size()).await.unwrap();
        assert_eq!(pattern::differs(&got, 1), None, "across {edge}");
    }
}

/// In its long form one put and one get of 5 GiB, which is 10 GiB of memory; else of 40 MiB.
pub async fn one_put_and_one_get_of_a_whole_region(world: World) {
    let size = if crate::is_long() { 5 * GIB as usize } else { (40 << 20) + 5 };
    let sparse = || Host::builder(size).sparse(true).build().unwrap();
    let region = world.owner.register(sparse(), 1).unwrap();
    let source = world.initiator.register(sparse(), 0).unwrap();
    let target = world.open(&region).await;
    let places = [0, 1 << 20, size / 2 - 1, size - 4096];
    let check = |region: &transom_transport::MemoryRegion, version: u64| {
        for (index, at) in places.into_iter().enumerate() {
            let mut seen = vec![0; 4096];
            region.read(at, &mut seen).unwrap();
            assert_eq!(pattern::differs(&seen, version + index as u64), None, "at {at} of {size}");
        }
    };
    let write = |region: &transom_transport::MemoryRegion, version: u64| {
        for (index, at) in places.into_iter().enumerate() {
            region.write(at, &pattern::bytes(4096, version + index as u64)).unwrap();
        }
    };
    write(&source, 10);
    target.put_signal_from(0, source.all(), 0, 1).await.unwrap().await.unwrap();
    assert_eq!(region.signal(0).unwrap(), 1);
    check(&region, 10);
    write(&region, 20);
    target.get_into(0, source.all()).await.unwrap().await.unwrap();
    check(&source, 20);
}
