//! Signals: who sees one sees everything that was put before it, and none is ever lost.

use std::time::Duration;

use transom_transport::{Context, Error, MemoryRegion, Outcome};

use crate::pattern::{self, Random};
use crate::world::{SOON, Target, World, both, contents, memory, reason, together};

const SHORT: Duration = Duration::from_millis(20);

/// Puts of one round: slots of one size, the last of which carries the signal.
const SLOTS: usize = 4;

async fn send(target: &Target, from: &MemoryRegion, size: usize, round: u64) {
    let answer = |slot: usize| round * 16 + slot as u64;
    for slot in 0..SLOTS {
        let bytes = pattern::bytes(size, answer(slot));
        let offset = (slot * size) as u64;
        let last = slot + 1 == SLOTS;
        match (slot + round as usize) % 2 {
            0 if last => target.put_signal(offset, &bytes, 0, 1).await.unwrap(),
            0 => target.put(offset, &bytes).await.unwrap(),
            _ => {
                from.write(slot * size, &bytes).unwrap();
                let slice = from.slice(slot * size..(slot + 1) * size).unwrap();
                if last {
                    drop(target.put_signal_from(offset, slice, 0, 1).await.unwrap());
                } else {
                    drop(target.put_from(offset, slice).await.unwrap());
                }
            }
        }
    }
}

async fn receive(context: &Context, region: &MemoryRegion, size: usize, round: u64, count: u64) {
    let signal = context.signals(region).signal(0).unwrap();
    assert_eq!(signal.wait_at_least_async(count, SOON).await.unwrap(), count);
    let bytes = contents(region);
    for slot in 0..SLOTS {
        let part = &bytes[slot * size..(slot + 1) * size];
        let wrong = pattern::differs(part, round * 16 + slot as u64);
        assert_eq!(wrong, None, "round {round}: slot {slot} of {size} bytes after its signal");
    }
}

/// Both directions at once, all sizes from 1 byte to 1 MiB: each side answers a signal with the next round.
pub async fn who_sees_a_signal_sees_every_put_before_it(world: World) {
    const SIZES: [(usize, u64); 9] = [
        (1, 60),
        (7, 40),
        (8, 60),
        (64, 40),
        (509, 40),
        (4096, 40),
        (65_537, 20),
        (300_001, 6),
        (1 << 20, 4),
    ];
    let factor = if crate::is_long() { 500 } else { 1 };
    let most = SLOTS << 20;
    let here = world.region(most, 1);
    let there = world.initiator.register(transom_transport::Host::new(most).unwrap(), 1).unwrap();
    let to_here = world.open(&here).await;
    let to_there = world.try_open(&world.owner, &world.remote(&there)).await.unwrap();
    let from_here = memory(&world.owner, vec![0; most]);
    let from_there = memory(&world.initiator, vec![0; most]);
    let (mut count, mut version) = (0, 0);
    for (size, rounds) in SIZES {
        let (here_first, there_first) = (count, version);
        let ping = async {
            for round in 0..rounds * factor {
                send(&to_here, &from_there, size, there_first + round).await;
                receive(&world.initiator, &there, size, there_first + round, here_first + round + 1).await;
            }
        };
        let pong = async {
            for round in 0..rounds * factor {
                receive(&world.owner, &here, size, there_first + round, here_first + round + 1).await;
                send(&to_there, &from_here, size, there_first + round).await;
            }
        };
        both(ping, pong).await;
        count += rounds * factor;
        version += rounds * factor;
        // The next size writes where slices of dropped requests were read.
        to_here.flush().await.unwrap();
        to_there.flush().await.unwrap();
    }
}

pub async fn a_bare_signal_and_an_empty_put_signal_carry_every_put_before_them(world: World) {
    let region = world.region(1 << 20, 1);
    let target = world.open(&region).await;
    let signal = world.signal(&region, 0);
    let empty = memory(&world.initiator, vec![0]).slice(0..0).unwrap();
    for round in 1..=60 {
        target.put(0, &pattern::bytes(1 << 20, round)).await.unwrap();
        match round % 3 {
            0 => target.signal(0, 1).await.unwrap(),
            1 => target.put_signal(1 << 20, &[], 0, 1).await.unwrap(),
            _ => drop(target.put_signal_from(0, empty.clone(), 0, 1).await.unwrap()),
        }
        assert_eq!(signal.wait_at_least_async(round, SOON).await.unwrap(), round);
        assert_eq!(pattern::differs(&contents(&region), round), None, "round {round}");
    }
}

pub async fn ten_thousand_adds_of_four_senders_are_all_counted(world: World) {
    const EACH: u64 = 2500;
    let region = world.region(64, 2);
    let remote = world.remote(&region);
    let mut targets = Vec::new();
    for context in [&world.initiator, &world.second, &world.initiator, &world.second] {
        targets.push(world.try_open(context, &remote).await.unwrap());
    }
    let adds = together(targets.iter().map(|target| async move {
        for i in 0..EACH {
            if i % 2 == 0 {
                target.signal(0, 1).await.unwrap();
            } else {
                target.put_signal(i % 8 * 8, &i.to_le_bytes(), 0, 1).await.unwrap();
            }
        }
    }));
    let signal = world.signal(&region, 0);
    let seen = async {
        // One count after the other, as they come.
        let mut seen = 0;
        while seen < 4 * EACH {
            let now = signal.wait_at_least_async(seen + 1, SOON).await.unwrap();
            assert!(now > seen, "a signal never falls");
            seen = now;
        }
    };
    both(adds, seen).await;
    for target in &targets {
        target.flush().await.unwrap();
    }
    assert_eq!(signal.value(), 4 * EACH);
    assert_eq!(region.signal(1).unwrap(), 0, "no other signal is touched");
}

pub async fn any_and_all_waits_answer_what_is_there(world: World) {
    let region = world.region(64, 4);
    let target = world.open(&region).await;
    let signals = world.owner.signals(&region);
    assert_eq!(signals.wait_any_async(&[(3, 0)], SHORT).await.unwrap(), 0, "0 is there from the start");
    target.signal(2, 5).await.unwrap();
    assert_eq!(signals.wait_any_async(&[(0, 1), (1, 1), (2, 5)], SOON).await.unwrap(), 2);
    let error = signals.wait_any_async(&[(0, 1), (2, 6)], SHORT).await.unwrap_err();
    assert!(matches!(error, Error::Expired { outcome: None, .. }), "{error:?}");
    let error = signals.wait_all_async(&[(2, 5), (1, 1)], SHORT).await.unwrap_err();
    assert!(error.to_string().contains("signal 1 is 0, waiting for 1"), "{error}");
    let all = [(0, 1), (1, 2), (2, 3), (3, 4)];
    let (waited, ()) = both(signals.wait_all_async(&all, SOON), async {
        for (id, add) in [(3, 4), (0, 1), (1, 1), (1, 1)] {
            target.signal(id, add).await.unwrap();
        }
    })
    .await;
    waited.unwrap();
    assert_eq!([0, 1, 2, 3].map(|id| region.signal(id).unwrap()), [1, 2, 5, 4]);
    for wanted in [&[][..], &[(4, 0)], &[(0, 0), (u32::MAX, 0)]] {
        let error = signals.wait_any_async(wanted, SOON).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    }
}

pub async fn an_expired_wait_takes_its_time_and_nothing_else(world: World) {
    let region = world.region(64, 1);
    let target = world.open(&region).await;
    let signal = world.signal(&region, 0);
    target.signal(0, 3).await.unwrap();
    signal.wait_at_least_async(3, SOON).await.unwrap();
    let clock = world.owner.clock().clone();
    for _ in 0..3 {
        let since = clock.now();
        let error = signal.wait_at_least_async(4, SHORT).await.unwrap_err();
        assert!(clock.now() - since >= SHORT, "not before its deadline");
        assert!(matches!(error, Error::Expired { outcome: None, .. }), "{error:?}");
        assert_eq!(error.outcome(), None, "an expired wait ends nothing");
        assert_eq!(signal.value(), 3);
    }
    let error = signal.wait_at_least_async(4, Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, Error::Expired { .. }), "{error:?}");
    let (waited, sent) = both(signal.wait_at_least_async(4, SOON), target.signal(0, 1)).await;
    sent.unwrap();
    assert_eq!(waited.unwrap(), 4);
    assert_eq!(signal.wait_at_least_async(1, Duration::ZERO).await.unwrap(), 4, "what is there is there");
}

pub async fn a_wait_that_is_dropped_loses_no_count(world: World) {
    let region = world.region(64, 1);
    let target = world.open(&region).await;
    let signal = world.signal(&region, 0);
    for round in 1..=50 {
        // Waited for, given up before it came, waited for again.
        let gone = signal.wait_at_least_async(round, SOON);
        let gave_up = world.owner.clock().timeout(Duration::ZERO, gone).await;
        assert!(gave_up.is_none());
        target.signal(0, 1).await.unwrap();
        assert_eq!(signal.wait_at_least_async(round, SOON).await.unwrap(), round);
    }
}

pub async fn a_hundred_waits_for_one_signal_all_end(world: World) {
    let region = world.region(64, 1);
    let target = world.open(&region).await;
    let signal = world.signal(&region, 0);
    let waits = together((0..100).map(|i| signal.wait_at_least_async(1 + i % 10, SOON)));
    let (waited, ()) = both(waits, async {
        for _ in 0..10 {
            target.signal(0, 1).await.unwrap();
        }
    })
    .await;
    assert!(waited.into_iter().all(|value| value.is_ok()));
}

pub async fn adding_nothing_changes_nothing_and_large_adds_are_exact(world: World) {
    let region = world.region(64, 1);
    let target = world.open(&region).await;
    let signal = world.signal(&region, 0);
    let mut sum = 0;
    for add in [0, 1, 0, u64::from(u32::MAX), 1 << 32, 0, 1 << 40, (1 << 48) + 1, 1 << 62] {
        sum += add;
        target.signal(0, add).await.unwrap();
        target.put_signal(0, &[1], 0, 0).await.unwrap();
        target.flush().await.unwrap();
        assert_eq!(signal.value(), sum);
    }
}

pub async fn a_thousand_signals_are_a_thousand_counters(world: World) {
    const COUNT: u32 = 1000;
    let region = world.region(64, COUNT);
    let target = world.open(&region).await;
    let mut random = Random::new(5);
    let mut model = vec![0; COUNT as usize];
    for _ in 0..5000 {
        let (id, add) = (random.below(COUNT.into()) as u32, random.below(1 << 20));
        target.signal(id, add).await.unwrap();
        model[id as usize] += add;
    }
    target.flush().await.unwrap();
    for (id, sum) in model.into_iter().enumerate() {
        assert_eq!(region.signal(id as u32).unwrap(), sum, "signal {id}");
    }
}

pub async fn a_signal_that_does_not_exist_is_refused_before_its_put(world: World) {
    let region = world.region(64, 3);
    let target = world.open(&region).await;
    let slice = memory(&world.initiator, vec![1; 8]).all();
    for id in [3, 4, 1 << 20, u32::MAX] {
        let refused = [
            target.signal(id, 1).await,
            target.put_signal(0, &[1; 8], id, 1).await,
            target.put_signal(0, &[], id, 1).await,
            target.put_signal_from(0, slice.clone(), id, 1).await.map(drop),
        ];
        for error in refused {
            assert!(matches!(error, Err(Error::Invalid { .. })), "{error:?}");
            assert_eq!(error.unwrap_err().outcome(), Some(Outcome::NotApplied));
        }
    }
    world.owner.signals(&region).signal(3).unwrap_err();
    target.flush().await.unwrap();
    assert_eq!(contents(&region), [0; 64]);
    assert_eq!([0, 1, 2].map(|id| region.signal(id).unwrap()), [0; 3]);
    // A region without signals has none.
    let bare = world.region(64, 0);
    let error = world.open(&bare).await.signal(0, 1).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
}

pub async fn an_add_that_would_wrap_is_refused_and_changes_nothing(world: World) {
    let region = world.region(64, 2);
    let target = world.open(&region).await;
    let most = u64::MAX - 5;
    target.signal(0, most).await.unwrap();
    target.flush().await.unwrap();
    for add in [6, 1 << 40, u64::MAX] {
        let refused = match target.signal(0, add).await {
            Ok(()) => target.flush().await.unwrap_err(),
            Err(error) => error,
        };
        assert!(matches!(reason(&refused), Error::Invalid { .. }), "{add}: {refused:?}");
        assert_eq!(world.signal(&region, 0).value(), most, "{add}");
    }
    let late = match target.put_signal(8, &[7; 8], 0, 6).await {
        Ok(()) => target.flush().await,
        error => error,
    };
    assert!(late.is_err() && world.signal(&region, 0).value() == most, "{late:?}");
    target.put_signal(0, &[1], 0, 5).await.unwrap();
    target.signal(1, 1).await.unwrap();
    target.flush().await.unwrap();
    assert_eq!(world.signal(&region, 0).value(), u64::MAX);
    assert_eq!(world.signal(&region, 1).value(), 1);
}
