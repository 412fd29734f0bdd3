//! Fence, flush, requests, and failures that are told late.

use std::time::Duration;

use transom_transport::{Access, Atomic, Dtype, Error, Outcome, Reduce};

use crate::pattern;
use crate::world::{World, contents, memory, reason, together};

pub async fn flush_covers_everything_begun_before_it(world: World) {
    let region = world.region(1 << 20, 1);
    let target = world.open(&region).await;
    let source = memory(&world.initiator, vec![0; 1 << 20]);
    let back = memory(&world.initiator, vec![0; 1 << 16]);
    for round in 0..20 {
        source.write(0, &pattern::bytes(1 << 20, round)).unwrap();
        // Requests are dropped: only the flush tells.
        drop(target.put_from(0, source.slice(0..500_000).unwrap()).await.unwrap());
        target.put(500_000, &pattern::bytes(1 << 20, round)[500_000..]).await.unwrap();
        drop(target.begin_atomic(Atomic::Add, 8, 0, 0, 0).await.unwrap());
        target.fence().unwrap();
        drop(target.get_into(0, back.all()).await.unwrap());
        target.signal(0, 1).await.unwrap();
        target.flush().await.unwrap();
        assert_eq!(pattern::differs(&contents(&region), round), None, "puts of round {round}");
        assert!(contents(&back) == pattern::bytes(1 << 20, round)[..1 << 16], "get of round {round}");
        assert_eq!(region.signal(0).unwrap(), round + 1);
    }
}

pub async fn flush_of_one_handle_covers_its_clones(world: World) {
    let region = world.region(4096, 0);
    let target = world.open(&region).await;
    let clone = target.clone();
    for round in 0..100 {
        clone.put(0, &pattern::bytes(4096, round)).await.unwrap();
        target.flush().await.unwrap();
        assert_eq!(pattern::differs(&contents(&region), round), None);
    }
}

pub async fn flush_and_fence_with_nothing_to_do_succeed_again_and_again(world: World) {
    let region = world.region(64, 0);
    let target = world.open(&region).await;
    for _ in 0..100 {
        target.fence().unwrap();
        target.flush().await.unwrap();
    }
    let flushes = together((0..20).map(|_| target.flush())).await;
    assert!(flushes.into_iter().all(|flush| flush.is_ok()));
}

pub async fn a_flush_that_is_dropped_ends_nothing(world: World) {
    let region = world.region(1 << 20, 0);
    let target = world.open(&region).await;
    for round in 0..20 {
        target.put(0, &pattern::bytes(1 << 20, round)).await.unwrap();
        let flush = target.flush();
        let _ = world.initiator.clock().timeout(Duration::ZERO, flush).await;
        target.flush().await.unwrap();
        assert_eq!(pattern::differs(&contents(&region), round), None);
    }
}

pub async fn a_request_tells_its_outcome_as_often_as_it_is_asked(world: World) {
    let region = world.region(4096, 0);
    region.store(0, 5).unwrap();
    let target = world.open(&region).await;
    let mut request = target.begin_atomic(Atomic::Add, 8, 0, 1, 0).await.unwrap();
    // The future of a borrow, dropped unfinished or not, takes nothing away.
    let _ = world.initiator.clock().timeout(Duration::ZERO, &mut request).await;
    assert_eq!((&mut request).await.unwrap(), 5);
    assert!(request.is_done());
    assert_eq!((&mut request).await.unwrap(), 5);
    assert_eq!(request.wait().unwrap(), 5, "a wait for what is over does not block");
    assert_eq!(request.wait_timeout(Duration::ZERO).unwrap(), 5);
    assert_eq!(region.load(0).unwrap(), 6, "it was done once");

    let source = memory(&world.initiator, pattern::bytes(4096, 2));
    let request = target.put_from(0, source.all()).await.unwrap();
    world.eventually("the put is done", || request.is_done()).await;
    assert_eq!(pattern::differs(&contents(&region), 2), None, "done is delivered");
}

/// An operation after the region is gone: told at once where it can be seen at once, else by its request or the flush.
pub async fn a_lost_put_is_told_once_and_its_signal_does_not_overtake_it(world: World) {
    let region = world.region(4096, 1);
    let target = world.open(&region).await;
    target.put(0, &[1; 64]).await.unwrap();
    target.flush().await.unwrap();
    drop(region);
    let mut accepted = 0;
    for _ in 0..5 {
        let put = target.put_signal(0, &[2; 64], 0, 1).await;
        accepted += u64::from(put.is_ok());
        if let Err(error) = put {
            assert_ne!(error.outcome(), Some(Outcome::Done), "{error:?}");
            assert_ne!(error.outcome(), None, "{error:?}");
        }
    }
    let told = target.flush().await;
    if accepted > 0 {
        let error = told.unwrap_err();
        if let Error::Failed(failed) = &error {
            assert_eq!(failed.count, accepted, "{error}");
        }
        assert!(matches!(error.outcome(), Some(Outcome::Refused | Outcome::NotApplied)), "{error:?}");
    }
    let again = target.flush().await;
    assert!(again.is_ok(), "a failure is told once: {again:?}");
    let source = memory(&world.initiator, vec![3; 64]);
    let asked = async { target.put_from(0, source.all()).await?.await };
    let error = asked.await.unwrap_err();
    assert!(matches!(reason(&error), Error::Stale { .. }), "{error:?}");
    // It was asked for, so it is not told again.
    target.flush().await.unwrap();
}

/// Only the target sees that an element of a part lies between two of the region: it refuses the accumulate, and what was
/// sent behind it too, until a flush has told.
pub async fn what_follows_an_operation_that_the_target_refused_waits_for_the_flush(world: World) {
    let region = world.region(8192, 1);
    let remote = region.export(4..8188, Access::ALL).unwrap();
    let target = world.try_open(&world.initiator, &remote).await.unwrap();
    let mut signalled = 0;
    for round in 1..=50_u8 {
        let refused = target.accumulate(0, &[1; 4096], Dtype::U64, Reduce::Sum).await;
        let mut accepted = 0;
        for i in 0..5 {
            let put = target.put_signal(4096 + i * 8, &[round; 8], 0, 1).await;
            accepted += u64::from(put.is_ok());
            if let Err(error) = put {
                assert_eq!(error.outcome(), Some(Outcome::NotApplied), "{error:?}");
            }
        }
        let told = target.flush().await;
        if refused.is_ok() {
            let error = told.unwrap_err();
            assert!(matches!(reason(&error), Error::Misaligned { .. }), "the first is told: {error:?}");
            let bytes = contents(&region);
            assert_eq!(region.signal(0).unwrap(), signalled, "no signal overtakes what was refused");
            // Puts are not ordered among themselves: what was sent behind may have landed before.
            assert!(bytes[4100..4140].iter().all(|b| *b == round - 1 || *b == round));
        } else {
            told.unwrap();
            signalled += accepted;
            assert_eq!(region.signal(0).unwrap(), signalled);
        }
        target.put_signal(4096, &[round; 40], 0, 1).await.unwrap();
        target.flush().await.unwrap();
        signalled += 1;
        assert_eq!(region.signal(0).unwrap(), signalled);
        assert_eq!(contents(&region)[4100..4140], [round; 40]);
        assert!(contents(&region)[..4100].iter().all(|b| *b == 0));
    }
}

pub async fn regions_fail_each_for_itself(world: World) {
    let (lost, kept) = (world.region(64, 0), world.region(64, 1));
    let (to_lost, to_kept) = (world.open(&lost).await, world.open(&kept).await);
    drop(lost);
    let _ = to_lost.put(0, &[1; 8]).await;
    to_kept.put_signal(0, &[7; 64], 0, 1).await.unwrap();
    let _ = to_lost.flush().await;
    to_kept.flush().await.unwrap();
    assert_eq!(contents(&kept), [7; 64]);
    assert_eq!(kept.signal(0).unwrap(), 1);
}
