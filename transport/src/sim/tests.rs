use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use transom_registry::element::{Dtype, Reduce};
use transom_registry::{Access, Cause, Error, MemoryRegion, Outcome, RemoteRegion, Result};

use super::{Adversary, Fabric};
use crate::{Context, List, Peer, PeerRegion, Producers};

type Program<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

const WAIT: Duration = Duration::from_secs(20);
const BLOCK: usize = 256;
const ROUNDS: u64 = 4;
const COUNTER: u64 = 0;
const SUMS: u64 = 64;
const BLOCKS: u64 = 128;

/// Calls again, once there is room, while the queue is full.
async fn post<T>(part: &PeerRegion, mut call: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(Error::Blocking { .. }) => part.ready().await?,
            other => return other,
        }
    }
}

async fn open(context: &Context, remote: &RemoteRegion) -> Result<(Peer, PeerRegion)> {
    let peer = context.connect_async(remote).await?;
    let part = peer.open_async(remote).await?;
    Ok((peer, part))
}

fn alone<T>(fabric: &Fabric, program: impl Future<Output = T>) -> T {
    fabric.run(vec![Box::pin(program) as Program<'_, T>]).unwrap().remove(0)
}

struct Rank {
    context: Context,
    region: MemoryRegion,
    remote: RemoteRegion,
}

fn ranks(fabric: &Fabric, count: usize, size: usize, signals: u32) -> Vec<Rank> {
    let make = |_| {
        let context = fabric.open().unwrap();
        let region = context.allocate(size, signals).unwrap();
        let remote = region.remote(Access::ALL).unwrap();
        Rank { context, region, remote }
    };
    (0..count).map(make).collect()
}

fn seen(region: &MemoryRegion, at: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    region.read(at as usize, &mut bytes).unwrap();
    bytes
}

/// What one rank does in the large test: writes to every other in rounds, each answered, and checks what it is sent.
/// Returns the values of its fetching atomics.
async fn everything(ranks: &[Rank], me: usize) -> Result<Vec<u64>> {
    let count = ranks.len();
    let Rank { context, region, .. } = &ranks[me];
    let signals = context.signals(region);
    let mut parts = Vec::new();
    for rank in ranks {
        parts.push(open(context, &rank.remote).await?.1);
    }
    let source = context.allocate(2 * BLOCK, 0)?;
    let target = context.allocate(BLOCK, 0)?;
    let block = |from: usize, which: u64| BLOCKS + (from as u64 * 3 + which) * BLOCK as u64;
    let mut counts = Vec::new();
    for round in 1..=ROUNDS {
        let fill = |from: usize| (from as u8 + 1) * 16 + round as u8;
        source.write(0, &[fill(me); 2 * BLOCK])?;
        for (to, part) in parts.iter().enumerate().filter(|(to, _)| *to != me) {
            let bytes = [fill(me); BLOCK];
            post(part, || part.put(block(me, 0), &bytes)).await?;
            let owned = post(part, || part.put_from(block(me, 1), source.slice(0..BLOCK)?)).await?;
            if (to + round as usize).is_multiple_of(2) {
                post(part, || part.put_signal(block(me, 2), &bytes, me as u32, 1)).await?;
            } else {
                post(part, || part.put(block(me, 2), &bytes)).await?;
                post(part, || part.signal(me as u32, 1)).await?;
            }
            owned.await?;
        }
        // Whoever sees the signal sees everything before it.
        for from in (0..count).filter(|from| *from != me) {
            signals.signal(from as u32)?.wait_at_least_async(round, WAIT).await?;
            for which in 0..3 {
                let bytes = seen(region, block(from, which), BLOCK);
                assert!(bytes.iter().all(|b| *b == fill(from)), "block {which} of {from}: {bytes:?}");
            }
            let part = &parts[from];
            post(part, || part.signal((count + me) as u32, 1)).await?;
        }
        for from in (0..count).filter(|from| *from != me) {
            signals.signal((count + from) as u32)?.wait_at_least_async(round, WAIT).await?;
        }
        let zero = &parts[0];
        let add = post(zero, || zero.atomic_request(crate::Atomic::Add, 8, COUNTER, 1, 0)).await?;
        counts.push(add.await?);
        post(zero, || zero.accumulate::<u64>(SUMS, &[1, round, 3], Reduce::Sum)).await?;
        // Flushed is delivered: seen in the memory itself, and by a get.
        let to = (me + 1) % count;
        let part = &parts[to];
        let bytes = [round as u8; 2 * BLOCK];
        let at = block(count, 0) + (me * 2 * BLOCK) as u64;
        post(part, || part.put(at, &bytes[..BLOCK + 1])).await?;
        let early = post(part, || part.get_into(at, target.slice(0..7)?)).await?;
        part.flush_async().await?;
        assert!(early.is_done(), "a flush covers gets");
        assert_eq!(seen(&ranks[to].region, at, BLOCK + 1), bytes[..BLOCK + 1]);
        post(part, || part.get_into(at + 1, target.all())).await?.await?;
        assert_eq!(seen(&target, 0, BLOCK), bytes[..BLOCK]);
        // Lists too, over what the put has left.
        let list = List::new([(at, 3), (at + 100, 9), (at + 50, 4)])?;
        post(part, || part.put_list(&list, &[77; 16])).await?;
        part.fence()?;
        post(part, || part.get_list_into(&list, target.slice(8..24)?)).await?.await?;
        assert_eq!(seen(&target, 7, 18), [&[round as u8][..], &[77; 16], &[round as u8]].concat());
        // A fence orders what would not be.
        post(part, || part.put(at, &bytes[..9])).await?;
        part.fence()?;
        post(part, || part.put(at, &[99; 9])).await?;
        part.flush_async().await?;
        assert_eq!(seen(&ranks[to].region, at, 9), [99; 9]);
    }
    let ones = context.allocate(24, 0)?;
    ones.write(0, &[1_u64.to_ne_bytes(); 3].concat())?;
    let zero = &parts[0];
    post(zero, || zero.accumulate_from(SUMS, ones.all(), Dtype::U64, Reduce::Sum)).await?.await?;
    for part in &parts {
        part.flush_async().await?;
    }
    Ok(counts)
}

fn run_everything(seed: u64, adversary: Adversary) -> u64 {
    let fabric = Fabric::new(seed, adversary);
    let count = 2 + seed as usize % 3;
    let size = BLOCKS as usize + BLOCK * (3 * count + 2 * count);
    let ranks = ranks(&fabric, count, size, 2 * count as u32);
    let programs: Vec<Program<'_, Result<Vec<u64>>>> =
        (0..count).map(|me| Box::pin(everything(&ranks, me)) as _).collect();
    let results = fabric.run(programs).unwrap();
    let mut counts = BTreeSet::new();
    let mut total = 0;
    for result in results {
        let result = result.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        total += result.len();
        counts.extend(result);
    }
    assert!(counts.iter().copied().eq(0..total as u64), "seed {seed}: {counts:?}");
    let n = count as u64;
    let sums = [n * ROUNDS, n * (1..=ROUNDS).sum::<u64>(), n * 3 * ROUNDS].map(|sum| sum + n);
    for (index, sum) in sums.into_iter().enumerate() {
        assert_eq!(ranks[0].region.load(SUMS as usize + 8 * index).unwrap(), sum, "seed {seed}");
    }
    fabric.fingerprint()
}

#[test]
fn for_every_seed_the_contract_holds() {
    for seed in 0..200 {
        run_everything(seed, Adversary::wild());
    }
    run_everything(1, Adversary::calm());
}

#[test]
fn a_seed_replays_its_run_and_another_one_does_not() {
    let mut prints = BTreeSet::new();
    for seed in 0..8 {
        let print = run_everything(seed, Adversary::wild());
        assert_eq!(print, run_everything(seed, Adversary::wild()));
        prints.insert(print);
    }
    assert_eq!(prints.len(), 8);
}

/// What a rank sees that polls a byte of the second of two puts instead of waiting for a signal: whether something of the
/// first one was missing, and of the second one.
fn impatient(seed: u64, polled: u64, adversary: Adversary) -> (bool, bool) {
    let fabric = Fabric::new(seed, adversary);
    let ranks = ranks(&fabric, 2, 512, 1);
    let writer = async {
        let (_peer, part) = open(&ranks[0].context, &ranks[1].remote).await?;
        post(&part, || part.put(0, &[1; 256])).await?;
        post(&part, || part.put(256, &[2; 256])).await?;
        part.flush_async().await?;
        Ok::<_, Error>((false, false))
    };
    let reader = async {
        let clock = fabric.clock();
        while seen(&ranks[1].region, 256 + polled, 1) != [2] {
            clock.sleep(Duration::from_nanos(100)).await;
        }
        let (first, second) = (seen(&ranks[1].region, 0, 256), seen(&ranks[1].region, 256, 256));
        Ok((first != [1; 256], second != [2; 256]))
    };
    let programs: Vec<Program<'_, Result<(bool, bool)>>> = vec![Box::pin(writer), Box::pin(reader)];
    fabric.run(programs).unwrap().remove(1).unwrap()
}

#[test]
fn who_polls_the_payload_instead_of_waiting_is_caught() {
    for polled in [0, 100, 255] {
        let odd: Vec<_> = (0..100).map(|seed| impatient(seed, polled, Adversary::wild())).collect();
        let missing = odd.iter().filter(|(missing, _)| *missing).count();
        let torn = odd.iter().filter(|(_, torn)| *torn).count();
        assert!(missing > 20 && torn > 20, "byte {polled}: {missing} {torn}");
        assert_eq!(impatient(1, polled, Adversary::calm()), (false, false));
    }
}

#[test]
fn without_a_fence_two_puts_to_one_place_land_in_any_order() {
    let mut last = BTreeSet::new();
    for seed in 0..50 {
        let fabric = Fabric::new(seed, Adversary::wild());
        let ranks = ranks(&fabric, 2, 64, 0);
        let program = async {
            let (_peer, part) = open(&ranks[0].context, &ranks[1].remote).await?;
            post(&part, || part.put(0, &[1])).await?;
            post(&part, || part.put(0, &[2])).await?;
            part.flush_async().await
        };
        alone(&fabric, program).unwrap();
        last.insert(seen(&ranks[1].region, 0, 1)[0]);
    }
    assert_eq!(last, BTreeSet::from([1, 2]));
}

#[test]
fn after_a_kill_every_operation_has_one_outcome_and_every_wait_ends() {
    let mut told = BTreeSet::new();
    for seed in 0..200 {
        let fabric = Fabric::new(seed, Adversary::wild());
        let ranks = ranks(&fabric, 2, 4096, 1);
        let dead = ranks[1].context.incarnation();
        let source = ranks[0].context.allocate(4096, 0).unwrap();
        source.write(0, &[7; 4096]).unwrap();
        let survivor = async {
            let (peer, part) = open(&ranks[0].context, &ranks[1].remote).await.unwrap();
            let mut requests = Vec::new();
            for at in 0..32 {
                let from = source.slice(at * 128..at * 128 + 128).unwrap();
                match post(&part, || part.put_from(at as u64 * 128, from.clone())).await {
                    Ok(request) => requests.push((at, request)),
                    Err(error) => assert_eq!(error.outcome(), Some(Outcome::NotApplied), "{error}"),
                }
                if at % 8 == 7 {
                    part.fence().ok();
                }
                fabric.0.time.pass(Duration::from_micros(20)).await;
            }
            let producers: Producers = Arc::new({
                let peer = peer.clone();
                move || peer.failure()
            });
            let signals = ranks[0].context.signals(&ranks[0].region).with_producers(producers);
            let waited = signals.signal(0).unwrap().wait_at_least_async(2, WAIT).await.unwrap_err();
            assert_eq!(waited.root().unwrap().cause, Cause::Signaled(9), "{waited}");
            let mut outcomes = BTreeSet::new();
            for (at, request) in requests {
                let there = seen(&ranks[1].region, at as u64 * 128, 128);
                match request.await {
                    Ok(_) => {
                        assert_eq!(there, [7; 128]);
                        outcomes.insert("done");
                    }
                    Err(error) => match error.outcome().unwrap() {
                        Outcome::NotApplied => {
                            assert_eq!(there, [0; 128], "{error}");
                            outcomes.insert("not applied");
                        }
                        Outcome::InDoubt => {
                            outcomes.insert(if there == [7; 128] { "in doubt, there" } else { "in doubt" });
                        }
                        other => panic!("{other}: {error}"),
                    },
                }
            }
            let late = part.put(0, &[1]).unwrap_err();
            assert_eq!(
                (late.outcome(), &late.root().unwrap().cause),
                (Some(Outcome::NotApplied), &Cause::Signaled(9))
            );
            let flushed = part.flush_async().await.unwrap_err();
            assert_eq!(flushed.root().unwrap().incarnation, Some(dead));
            Some(outcomes)
        };
        let victim = fabric.while_alive(dead, std::future::pending());
        let killer = async {
            fabric.0.time.pass(Duration::from_micros(300 + 3 * seed)).await;
            fabric.kill(dead);
            None
        };
        let programs: Vec<Program<'_, Option<BTreeSet<&str>>>> =
            vec![Box::pin(survivor), Box::pin(victim), Box::pin(killer)];
        let results = fabric.run(programs).unwrap();
        assert!(results[1].is_none());
        told.extend(results[0].clone().unwrap());
    }
    assert_eq!(told, BTreeSet::from(["done", "in doubt", "in doubt, there", "not applied"]));
}

#[test]
fn a_frozen_rank_is_told_after_its_time_and_a_thawed_one_goes_on() {
    for (stopped_for, fails) in [(2400, false), (2600, true)] {
        let fabric = Fabric::new(3, Adversary::wild());
        let ranks = ranks(&fabric, 2, 64, 1);
        let frozen = ranks[1].context.incarnation();
        let writer = async {
            let (_peer, part) = open(&ranks[0].context, &ranks[1].remote).await?;
            fabric.freeze(frozen);
            post(&part, || part.put_signal(0, &[1; 8], 0, 1)).await?;
            part.flush_async().await?;
            Ok::<_, Error>(None)
        };
        let reader = async {
            let signals = ranks[1].context.signals(&ranks[1].region);
            let reads = async { signals.signal(0).unwrap().wait_at_least_async(1, WAIT).await };
            Ok(fabric.while_alive(frozen, reads).await.map(Result::unwrap))
        };
        let thawer = async {
            fabric.0.time.pass(Duration::from_millis(stopped_for)).await;
            fabric.thaw(frozen);
            Ok(None)
        };
        let programs: Vec<Program<'_, Result<Option<u64>>>> =
            vec![Box::pin(writer), Box::pin(reader), Box::pin(thawer)];
        let results = fabric.run(programs).unwrap();
        if fails {
            let error = results[0].as_ref().unwrap_err();
            assert_eq!(error.root().unwrap().cause, Cause::Frozen, "{error}");
            assert!(results[1].as_ref().unwrap().is_none());
        } else {
            results[0].as_ref().unwrap();
            assert_eq!(*results[1].as_ref().unwrap(), Some(1));
        }
    }
}

#[test]
fn a_region_that_was_freed_refuses_and_no_signal_passes() {
    for seed in 0..50 {
        let fabric = Fabric::new(seed, Adversary::wild());
        let mut ranks = ranks(&fabric, 2, 1024, 1);
        let Rank { context: owner, region, remote } = ranks.remove(1);
        let exposed = region.exposed().clone();
        let region = std::cell::RefCell::new(Some(region));
        let program = async {
            let (_peer, part) = open(&ranks[0].context, &remote).await?;
            post(&part, || part.put(0, &[1; 64])).await?;
            part.flush_async().await?;
            region.borrow_mut().take();
            post(&part, || part.put_signal(64, &[2; 64], 0, 1)).await?;
            let flushed = part.flush_async().await.unwrap_err();
            assert_eq!(flushed.outcome(), Some(Outcome::Refused), "{flushed}");
            let mut after = [0; 128];
            exposed.read(0, &mut after)?;
            assert_eq!((&after[..64], &after[64..]), (&[1; 64][..], &[0; 64][..]));
            assert_eq!(exposed.signal(0)?.load(std::sync::atomic::Ordering::SeqCst), 0);
            Ok::<_, Error>(())
        };
        alone(&fabric, program).unwrap();
        drop(owner);
    }
}

#[test]
fn a_call_that_would_block_is_an_error_and_begins_nothing() {
    let fabric = Fabric::new(1, Adversary::wild());
    let ranks = ranks(&fabric, 2, 64, 1);
    let program = async {
        let (_peer, part) = open(&ranks[0].context, &ranks[1].remote).await?;
        let blocking = |result: Result<()>| matches!(result, Err(Error::Blocking { .. }));
        assert!(blocking(part.fetch_add(0, 1).map(drop)));
        assert!(blocking(part.get(0, &mut [0; 8])));
        assert!(blocking(part.flush()));
        assert!(blocking(ranks[1].context.connect(&ranks[0].remote).map(drop)));
        let signals = ranks[0].context.signals(&ranks[0].region);
        assert!(blocking(signals.signal(0)?.wait_at_least(1, WAIT).map(drop)));
        part.flush_async().await?;
        assert_eq!(ranks[1].region.load(0)?, 0);
        Ok::<_, Error>(())
    };
    alone(&fabric, program).unwrap();
}

#[test]
fn a_full_queue_takes_nothing_of_a_call_or_all_of_it() {
    let size = 1 << 20;
    let (mut full, mut taken) = (0, 0);
    for seed in 0..20 {
        let fabric = Fabric::new(seed, Adversary { full_queue: 0.5, ..Adversary::wild() });
        let ranks = ranks(&fabric, 2, size, 0);
        let bytes = vec![1; size];
        let program = async {
            let (_peer, part) = open(&ranks[0].context, &ranks[1].remote).await?;
            let put = part.put(0, &bytes);
            part.flush_async().await?;
            let there = seen(&ranks[1].region, 0, size);
            match put {
                Ok(()) => {
                    assert!(there == bytes);
                    Ok(true)
                }
                Err(Error::Blocking { .. }) => {
                    assert!(there.iter().all(|b| *b == 0));
                    Ok(false)
                }
                Err(error) => Err(error),
            }
        };
        let put = alone(&fabric, program).unwrap();
        *(if put { &mut taken } else { &mut full }) += 1;
    }
    assert!(full > 0 && taken > 0, "{full} {taken}");
}

#[test]
fn a_deadlock_is_named_and_so_is_a_run_without_end() {
    let fabric = Fabric::new(1, Adversary { most_steps: 5000, ..Adversary::wild() });
    let stuck: Vec<Program<'_, ()>> = vec![Box::pin(async {}), Box::pin(std::future::pending())];
    let error = fabric.run(stuck).unwrap_err();
    assert!(matches!(error, Error::Deadlock { .. }), "{error}");
    assert!(error.to_string().contains("tasks 1 of 2 wait after 0 ns"), "{error}");
    let endless = async {
        loop {
            fabric.clock().sleep(Duration::from_micros(1)).await;
        }
    };
    let endless: Vec<Program<'_, std::convert::Infallible>> = vec![Box::pin(endless)];
    let error = fabric.run(endless).unwrap_err();
    assert!(matches!(error, Error::Limit { .. }), "{error}");
}

#[test]
fn a_rank_that_closes_its_context_is_told_as_left_and_an_address_elsewhere_is_not_reached() {
    let fabric = Fabric::new(5, Adversary::wild());
    let ranks = ranks(&fabric, 2, 64, 0);
    let elsewhere = Fabric::new(5, Adversary::wild()).open().unwrap();
    let program = async {
        let error = elsewhere.connect_async(&ranks[1].remote).await.unwrap_err();
        assert!(error.to_string().contains("another fabric"), "{error}");
        let (peer, part) = open(&ranks[0].context, &ranks[1].remote).await?;
        ranks[1].context.close();
        fabric.clock().sleep(Duration::from_millis(1)).await;
        assert_eq!(peer.failure().unwrap().cause, Cause::Left);
        assert_eq!(part.put(0, &[1]).unwrap_err().outcome(), Some(Outcome::NotApplied));
        let error = ranks[0].context.connect_async(&ranks[1].remote).await.unwrap_err();
        assert!(
            matches!(&error, Error::Failed(f) if f.failure.cause == Cause::Left),
            "the known reason: {error}"
        );
        Ok::<_, Error>(())
    };
    alone(&fabric, program).unwrap();
}

#[test]
fn after_a_refused_silent_operation_everything_is_refused_until_it_was_told() {
    use super::lane::{Lane, Next};
    use super::random::Random;
    use crate::backend::{Action, Op, Source};
    use crate::late::Late;
    use crate::token::Token;

    let fabric = Fabric::new(1, Adversary::calm());
    let ranks = ranks(&fabric, 2, 64, 1);
    let grant = fabric.0.world.lock().host(1).registry.grant(&ranks[1].remote).unwrap();
    let late = Arc::new(Late::default());
    let mut random = Random::new(1);
    let mut lane = Lane::new(0, grant);
    let mut post = |lane: &mut Lane, offset, action: Action<'_>, signal, silent| {
        let token = Token::late(late.clone(), "put");
        let op = Op { key: 1, offset, action, signal, silent };
        lane.post(op, token, &mut random, &Adversary::calm());
    };
    post(&mut lane, 1000, Action::Put(Source::Borrowed(&[1; 8])), None, true);
    post(&mut lane, 0, Action::Put(Source::Borrowed(&[2; 8])), Some((0, 1)), true);
    post(&mut lane, 0, Action::Resume, None, false);
    post(&mut lane, 8, Action::Put(Source::Borrowed(&[3; 8])), Some((0, 5)), true);
    let by = transom_registry::exposed::Locker {
        incarnation: ranks[0].context.incarnation(),
        patience: Duration::from_secs(1),
    };
    let mut outcomes = Vec::new();
    loop {
        let next = lane.step();
        if next.is_empty() {
            break;
        }
        for next in next {
            match next {
                Next::Depart(op) => {
                    for part in 0..lane.depart(op).len() {
                        lane.arrive(op, part, by);
                    }
                }
                Next::Add(op) => lane.add(op),
                Next::Land(op) => {
                    let (token, result) = lane.land(op).unwrap();
                    outcomes.push((op, result.clone().err().and_then(|e| e.outcome())));
                    token.complete(result);
                }
            }
        }
    }
    outcomes.sort_by_key(|(op, _)| *op);
    let expected = [(1, Some(Outcome::Refused)), (2, Some(Outcome::NotApplied)), (3, None), (4, None)];
    assert_eq!(outcomes, expected);
    assert_eq!(seen(&ranks[1].region, 0, 16), [[0; 8], [3; 8]].concat());
    assert_eq!(ranks[1].region.signal(0).unwrap(), 5);
}

#[test]
fn nothing_is_left_of_a_fabric_whose_ranks_are_gone() {
    let fabric = Fabric::new(9, Adversary::wild());
    let ranks = ranks(&fabric, 3, 4096, 6);
    let program = async {
        let (_peer, part) = open(&ranks[0].context, &ranks[1].remote).await?;
        let request = post(&part, || part.put_from(0, ranks[0].region.all())).await?;
        fabric.kill(ranks[1].context.incarnation());
        drop(request);
        Ok::<_, Error>(())
    };
    alone(&fabric, program).unwrap();
    drop(ranks);
    assert_eq!(Arc::strong_count(&fabric.0), 1);
}
