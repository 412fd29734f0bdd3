//! Incarnation, generation, epoch: what is old is refused, says which of the three it is, and touches nothing.

use transom_transport::{Access, Error, Incarnation, RemoteRegion, Stale};

use crate::world::{World, contents, memory, reason};

fn stale(error: &Error) -> Option<Stale> {
    match reason(error) {
        Error::Stale { what, .. } => Some(*what),
        _ => None,
    }
}

pub async fn an_old_generation_is_refused_and_the_new_region_stays_as_it_is(world: World) {
    let region = world.region(4096, 1);
    let old = world.remote(&region);
    let target = world.open(&region).await;
    target.put_signal(0, &[1; 8], 0, 1).await.unwrap();
    target.flush().await.unwrap();
    drop(region);
    let new = world.region(4096, 1);
    let now = world.remote(&new);
    assert_ne!((old.slot, old.generation), (now.slot, now.generation));
    let source = memory(&world.initiator, vec![9; 64]);
    let refused = [
        async { target.put_from(0, source.all()).await?.await }.await,
        async { target.put_signal_from(0, source.all(), 0, 1).await?.await }.await,
        async { target.get_into(0, source.all()).await?.await }.await,
        target.atomic(transom_transport::Atomic::Add, 8, 0, 1, 0).await,
    ];
    for error in refused {
        assert_eq!(stale(error.as_ref().unwrap_err()), Some(Stale::Generation), "{error:?}");
    }
    let told = match target.put(0, &[9; 64]).await {
        Ok(()) => target.flush().await,
        error => error,
    };
    assert_eq!(stale(told.as_ref().unwrap_err()), Some(Stale::Generation), "{told:?}");
    let error = world.try_open(&world.initiator, &old).await.unwrap_err();
    assert_eq!(stale(&error), Some(Stale::Generation), "{error:?}");
    assert_eq!(contents(&new), [0; 4096]);
    assert_eq!(new.signal(0).unwrap(), 0);
    assert_eq!(contents(&source), [9; 64]);
    // The same peer, a new descriptor.
    let target = world.open(&new).await;
    target.put(0, &[5; 8]).await.unwrap();
    target.flush().await.unwrap();
    assert_eq!(contents(&new)[..8], [5; 8]);
}

pub async fn a_region_ends_with_its_last_handle_and_slice(world: World) {
    let region = world.region(64, 0);
    let remote = world.remote(&region);
    let (clone, slice) = (region.clone(), region.slice(0..1).unwrap());
    drop(region);
    world.try_open(&world.initiator, &remote).await.unwrap();
    drop(clone);
    world.try_open(&world.initiator, &remote).await.unwrap();
    drop(slice);
    let error = world.try_open(&world.initiator, &remote).await.unwrap_err();
    assert_eq!(stale(&error), Some(Stale::Generation), "{error:?}");
}

pub async fn slots_and_generations_that_never_were_are_refused(world: World) {
    let region = world.region(64, 0);
    let given = world.remote(&region);
    let wrong = [
        RemoteRegion { slot: given.slot + 1, ..given.clone() },
        RemoteRegion { slot: u32::MAX, ..given.clone() },
        RemoteRegion { generation: given.generation + 1, ..given.clone() },
        RemoteRegion { generation: given.generation - 1, ..given.clone() },
        RemoteRegion { generation: u32::MAX, ..given.clone() },
    ];
    for remote in wrong {
        let error = world.try_open(&world.initiator, &remote).await.unwrap_err();
        assert_eq!(stale(&error), Some(Stale::Generation), "{remote:?}: {error:?}");
    }
}

pub async fn another_epoch_is_refused_and_its_own_is_not(world: World) {
    let region = world.region(64, 1);
    let first = region.export_for_epoch(0..64, Access::ALL, 1).unwrap();
    let target = world.try_open(&world.initiator, &first).await.unwrap();
    target.put(0, &[1; 8]).await.unwrap();
    target.flush().await.unwrap();
    for epoch in [0, 2, u64::MAX] {
        let error =
            world.try_open(&world.initiator, &RemoteRegion { epoch, ..first.clone() }).await.unwrap_err();
        assert_eq!(stale(&error), Some(Stale::Epoch), "epoch {epoch}: {error:?}");
    }
    let second = region.export_for_epoch(0..64, Access::ALL, 2).unwrap();
    let target = world.try_open(&world.initiator, &second).await.unwrap();
    target.put(0, &[2; 8]).await.unwrap();
    target.flush().await.unwrap();
    assert_eq!(contents(&region)[..8], [2; 8]);
}

pub async fn another_incarnation_is_refused(world: World) {
    let region = world.region(64, 0);
    let given = world.remote(&region);
    let other = Incarnation::from_u64(given.incarnation.as_u64() ^ 1).unwrap();
    let wrong = RemoteRegion { incarnation: other, ..given.clone() };
    // Nobody else answers where this one listens.
    let error = world.try_open(&world.initiator, &wrong).await.unwrap_err();
    let fits = stale(&error) == Some(Stale::Incarnation) || matches!(error, Error::Unreachable { .. });
    assert!(fits, "{error:?}");
    // A peer that is known opens nothing of another life.
    let only = world.only(&given);
    let peer = world.initiator.connect_async(&only).await.unwrap();
    let error = peer.open_async(&RemoteRegion { incarnation: other, ..only.clone() }).await.unwrap_err();
    assert_eq!(stale(&error), Some(Stale::Incarnation), "{error:?}");
    peer.open_async(&only).await.unwrap();
}

pub async fn a_descriptor_survives_being_pasted(world: World) {
    let region = world.region(4096, 2);
    let given = region.export(128..2048, Access::READ | Access::WRITE).unwrap();
    let text = given.to_string();
    assert!(text.chars().all(|c| c.is_ascii_graphic()), "{text}");
    for pasted in [text.clone(), format!("  {text}\n"), format!("\t{text}\r\n")] {
        let read: RemoteRegion = pasted.parse().unwrap();
        assert_eq!(read, given);
        let target = world.try_open(&world.initiator, &read).await.unwrap();
        target.put(0, &[7; 16]).await.unwrap();
        target.flush().await.unwrap();
        assert_eq!(contents(&region)[128..144], [7; 16]);
    }
    assert_eq!(RemoteRegion::from_bytes(&given.to_bytes()).unwrap(), given);
    for at in 0..text.len() {
        let mut wrong = text.clone().into_bytes();
        wrong[at] = if wrong[at] == b'A' { b'B' } else { b'A' };
        let wrong = String::from_utf8(wrong).unwrap();
        let error = wrong.parse::<RemoteRegion>().unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{wrong}: {error:?}");
        text[..at].parse::<RemoteRegion>().unwrap_err();
    }
}
