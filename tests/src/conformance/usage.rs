//! What regions cost their process. Each case runs in a process of its own, which it measures.

use std::sync::Arc;

use transom_registry::Memory;
use transom_transport::{Foreign, Host};

use crate::usage;
use crate::world::World;

pub async fn registering_ten_thousand_regions_again_and_again_stays_flat(world: World) {
    const COUNT: usize = 10_000;
    const SIZE: usize = 200_000;
    let rounds = if crate::is_long() { 100 } else { 20 };
    // Nobody touches these pages.
    let block = Arc::new(Host::builder(COUNT * SIZE).sparse(true).build().unwrap());
    let at = block.as_ptr();
    let mut flat = None;
    let mut slots = 0;
    for round in 0..rounds {
        let regions: Vec<_> = (0..COUNT)
            .map(|i| {
                // SAFETY: a part of the block, apart from the others, which the block keeps mapped.
                let memory = unsafe { Foreign::new(at.add(i * SIZE), SIZE, block.clone()) }.unwrap();
                world.owner.register(memory, 1).unwrap()
            })
            .collect();
        for region in regions.iter().step_by(100) {
            slots = slots.max(world.remote(region).slot);
        }
        assert!((slots as usize) < COUNT, "slots are used again");
        if round == 0 {
            let target = world.open(&regions[COUNT / 2]).await;
            target.put_signal(0, &[1; 8], 0, 1).await.unwrap();
            target.flush().await.unwrap();
        }
        drop(regions);
        let used = (usage::resident(), usage::descriptors(), usage::mappings());
        match flat {
            None if round == 1 => flat = Some(used),
            None => {}
            Some((resident, descriptors, mappings)) => {
                assert!(used.0 < resident + (64 << 20), "round {round}: {} bytes after {resident}", used.0);
                assert!(used.1 <= descriptors, "round {round}: {} descriptors after {descriptors}", used.1);
                assert!(used.2 <= mappings + 16, "round {round}: {} mappings after {mappings}", used.2);
            }
        }
    }
}

pub async fn opening_and_dropping_regions_leaves_nothing_open(world: World) {
    let mut flat = None;
    for round in 0..300 {
        let region = world.region(8192, 1);
        let target = world.open(&region).await;
        target.put_signal(0, &[1; 64], 0, 1).await.unwrap();
        target.flush().await.unwrap();
        if round % 2 == 0 {
            drop(target);
            drop(region);
        } else {
            drop(region);
            drop(target);
        }
        if round == 50 {
            flat = Some((usage::descriptors(), usage::mappings()));
        }
    }
    let (descriptors, mappings) = flat.unwrap();
    let is_flat = || usage::descriptors() <= descriptors + 2 && usage::mappings() <= mappings + 16;
    world.eventually("descriptors and mappings are as many as before", is_flat).await;
}
