//! A transport whose n-th call fails, for every n: exactly one outcome for each operation, no signal before a lost put,
//! and nothing hangs.

#![allow(clippy::unwrap_used, reason = "a case fails by a panic that says where")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use transom_tests::carrier::Carrier;
use transom_tests::countdown::{Countdown, Mode, Plan};
use transom_tests::fabric::{self, Fabric};
use transom_tests::pattern;
use transom_tests::world::{Target, World, contents, memory};
use transom_transport::{
    Atomic, Context, Dtype, Error, List, MemoryRegion, Outcome, Reduce, Request, Result,
};

/// The plans of the contexts that are being opened: a specification is text, so it names a plan by its number.
static PLANS: Mutex<BTreeMap<u64, Arc<Plan>>> = Mutex::new(BTreeMap::new());

/// Contexts whose transport is registered under a name of its own and follows a plan.
struct Planned(Arc<Plan>);

impl Planned {
    fn context(plan: Arc<Plan>) -> Context {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        fabric::register(
            "countdown",
            Arc::new(|number, host| {
                let number: u64 = number.parse().map_err(|_| Error::Config {
                    name: "countdown".into(),
                    value: number.into(),
                    why: "the number of a plan is expected".into(),
                })?;
                let plan = PLANS.lock().remove(&number).unwrap();
                Ok(Countdown::wrap(Carrier::open("countdown", host), plan))
            }),
        );
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        PLANS.lock().insert(number, plan);
        let spec = format!("countdown:{number}");
        Context::builder().transports(&spec).timeout(Duration::from_secs(10)).build().unwrap()
    }
}

impl Fabric for Planned {
    fn transport(&self) -> &str {
        "countdown"
    }

    fn contexts(&self, count: usize) -> Vec<Context> {
        // The second one, which initiates, follows the plan.
        let never = || Plan::new(0, Mode::NotApplied);
        (0..count).map(|i| Self::context(if i == 1 { self.0.clone() } else { never() })).collect()
    }

    fn run<F: Future>(&self, case: F) -> F::Output {
        fabric::Real::new("countdown").run(case)
    }
}

const SLOT: usize = 1 << 20;

/// What the initiator knows of an operation after it ended or was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Done for certain.
    Done,
    /// The call succeeded; a flush tells.
    Accepted,
    /// Ended by an error with this outcome.
    Ended(Outcome),
}

/// The operations in the order of their issue, each with slots of its own.
struct Script {
    target: Target,
    region: MemoryRegion,
    known: Vec<(&'static str, Vec<usize>, Known)>,
}

impl Script {
    fn note(&mut self, name: &'static str, slots: &[usize], done: Result<Known>) {
        let known = done.unwrap_or_else(|error| {
            let outcome = error.outcome();
            Known::Ended(outcome.unwrap_or_else(|| panic!("{name} has no outcome: {error:?}")))
        });
        assert_ne!(known, Known::Ended(Outcome::Done), "{name}");
        self.known.push((name, slots.to_vec(), known));
    }

    fn is_there(&self, slot: usize) -> bool {
        let mut bytes = vec![0; size_of_slot(slot)];
        self.region.read(slot * SLOT, &mut bytes).unwrap();
        let there = pattern::differs(&bytes, slot as u64).is_none();
        assert!(there || slot == 12 || bytes.iter().all(|b| *b == 0), "slot {slot} is whole or untouched");
        there
    }

    /// What is known is so.
    fn check(&self, flushed: bool) {
        for (name, slots, known) in &self.known {
            for &slot in slots {
                let there = self.is_there(slot);
                match known {
                    Known::Done => assert!(there, "{name} was done: {:?}", self.known),
                    Known::Accepted => assert!(there || !flushed, "{name} was flushed: {:?}", self.known),
                    Known::Ended(Outcome::NotApplied | Outcome::Refused) => {
                        assert!(!there, "{name} was not applied: {:?}", self.known);
                    }
                    Known::Ended(_) => {}
                }
            }
        }
    }

    /// No signal is seen before a put that was accepted earlier.
    fn check_signals(&self) {
        for (signal, by) in [(0, "put_signal"), (1, "signal")] {
            if self.region.signal(signal).unwrap() == 0 {
                continue;
            }
            for (name, slots, known) in self.known.iter().take_while(|(name, ..)| *name != by) {
                let lost = *known == Known::Accepted && slots.iter().any(|slot| !self.is_there(*slot));
                assert!(!lost, "{by} overtook {name}: {:?}", self.known);
            }
        }
    }
}

fn size_of_slot(slot: usize) -> usize {
    // One is larger than any piece of a borrowed put.
    if slot == 12 { 700_000 } else { 1000 }
}

async fn done(request: Result<Request>) -> Result<Known> {
    request?.await.map(|_| Known::Done)
}

fn accepted(done: Result<()>) -> Result<Known> {
    done.map(|()| Known::Accepted)
}

async fn every_outcome_is_right(world: World, plan: Arc<Plan>) {
    let region = world.region(16 * SLOT, 3);
    // Connecting and opening fail cleanly, and can be tried again.
    let mut tries = 0;
    let target = loop {
        match world.try_open(&world.initiator, &world.remote(&region)).await {
            Ok(target) => break target,
            Err(error) => assert_eq!(error.outcome(), Some(Outcome::NotApplied), "{error:?}"),
        }
        tries += 1;
        assert!(tries < 10, "one failure is not ten");
    };
    let mut script = Script { target: target.clone(), region: region.clone(), known: Vec::new() };
    let of = |slot: usize| pattern::bytes(size_of_slot(slot), slot as u64);
    let source = |slots: &[usize]| {
        let bytes: Vec<u8> = slots.iter().flat_map(|slot| of(*slot)).collect();
        memory(&world.initiator, bytes).all()
    };
    let at = |slot: usize| (slot * SLOT) as u64;
    let list = |slots: [usize; 2]| List::new(slots.map(|slot| (at(slot), 1000))).unwrap();
    let t = &target;
    let replace = (Dtype::U64, Reduce::Replace);

    script.note("put", &[0], accepted(t.put(at(0), &of(0)).await));
    script.note("put_from", &[1], done(t.put_from(at(1), source(&[1])).await).await);
    script.note("put_signal", &[2], accepted(t.put_signal(at(2), &of(2), 0, 1).await));
    script.note("get_into", &[], done(t.get_into(0, source(&[3])).await).await);
    script.note("put_signal_from", &[3], done(t.put_signal_from(at(3), source(&[3]), 2, 1).await).await);
    script.note("atomic", &[], done(t.begin_atomic(Atomic::Add, 8, at(4), 7, 0).await).await);
    script.note("accumulate", &[5], accepted(t.accumulate(at(5), &of(5), replace.0, replace.1).await));
    let accumulate = t.accumulate_from(at(6), source(&[6]), replace.0, replace.1).await;
    script.note("accumulate_from", &[6], done(accumulate).await);
    script.note("put_list", &[7, 8], accepted(t.put_list(&list([7, 8]), &[of(7), of(8)].concat()).await));
    let put_list = t.put_list_from(&list([9, 10]), source(&[9, 10])).await;
    script.note("put_list_from", &[9, 10], done(put_list).await);
    script.note("get_list_into", &[], done(t.get_list_into(&list([0, 1]), source(&[0, 1])).await).await);
    script.note("large put", &[12], accepted(t.put(at(12), &of(12)).await));
    // Nobody asks for these two: the flush tells.
    script.note("dropped put_from", &[13], t.put_from(at(13), source(&[13])).await.map(|_| Known::Accepted));
    script.note("signal", &[], accepted(t.signal(1, 1).await));
    t.fence().ok();

    // A flush fails at most as often as something did; each failure is told once.
    let first = script.target.flush().await;
    script.check_signals();
    script.check(first.is_ok());
    let mut failures = u64::from(first.is_err());
    while let Err(error) = target.flush().await {
        assert!(error.outcome().is_some(), "{error:?}");
        failures += 1;
        assert!(failures < 5, "one failure is told for ever: {error:?}");
    }
    script.check_signals();
    script.check(false);

    // Everything works again.
    let word = at(4) as usize;
    let value = region.load(word).unwrap();
    assert!(value == 0 || value == 7);
    let mut tries = 0;
    loop {
        let again = async {
            t.put_signal(at(14), &of(14), 2, 10).await?;
            t.flush().await
        };
        match again.await {
            Ok(()) => break,
            // The call may be one of these; its failure is told, and then it is over.
            Err(error) => assert!(error.outcome().is_some(), "{error:?}"),
        }
        let _ = t.flush().await;
        tries += 1;
        assert!(tries < 5, "it never works again");
    }
    assert!(script.is_there(14));
    assert!(region.signal(2).unwrap() >= 10);
    assert_eq!(contents(&region)[11 * SLOT..12 * SLOT].iter().find(|b| **b != 0), None);
    drop(plan);
}

/// One operation of many is lost: it is told once, those behind it are not applied until it was told.
async fn one_put_is_lost(world: World, plan: Arc<Plan>) {
    let region = world.region(4096, 1);
    let target = world.open(&region).await;
    let mut outcomes = Vec::new();
    for i in 0..10_u8 {
        let put = target.put_signal(u64::from(i) * 8, &[i + 1; 8], 0, 1).await;
        outcomes.push(put.map_err(|error| (error.outcome(), error.to_string())));
    }
    assert!(plan.is_over());
    let lost = outcomes.iter().position(|outcome| outcome.is_err()).unwrap() - 1;
    for outcome in &outcomes[lost + 1..] {
        let (outcome, text) = outcome.as_ref().unwrap_err();
        assert_eq!(*outcome, Some(Outcome::NotApplied));
        assert!(text.contains("flush"), "it says what to do: {text}");
    }
    let request = target.put_from(0, memory(&world.initiator, vec![9; 8]).all()).await;
    assert_eq!(request.unwrap_err().outcome(), Some(Outcome::NotApplied));
    let Err(Error::Failed(told)) = target.flush().await else { panic!("the flush tells") };
    assert_eq!((told.operation, told.outcome, told.count), ("put_signal", Outcome::InDoubt, 1));
    target.flush().await.unwrap();
    let bytes = contents(&region);
    for i in 0..10 {
        let expected = if i < lost { i as u8 + 1 } else { 0 };
        assert_eq!(bytes[i * 8..i * 8 + 8], [expected; 8], "put {i}, {lost} was lost");
    }
    assert_eq!(region.signal(0).unwrap(), lost as u64);
    target.put_signal(0, &[7; 8], 0, 1).await.unwrap();
    target.flush().await.unwrap();
    assert_eq!(region.signal(0).unwrap(), lost as u64 + 1);
}

#[test]
fn a_lost_put_is_told_once_and_holds_up_what_follows_until_then() {
    // Connecting and opening are the first two calls.
    for at in 3..10 {
        let plan = Plan::new(at, Mode::GivenUp);
        let planned = Planned(plan.clone());
        planned.run(one_put_is_lost(World::of(&planned), plan));
    }
}

fn for_every_call(mode: Mode) {
    let mut calls = 0;
    for at in 1.. {
        let plan = Plan::new(at, mode);
        let planned = Planned(plan.clone());
        let world = World::of(&planned);
        planned.run(every_outcome_is_right(world, plan.clone()));
        if !plan.is_over() {
            break;
        }
        calls += 1;
    }
    assert!(calls > 20, "{calls} calls failed in turn");
}

#[test]
fn a_call_that_is_not_applied_is_told_and_no_signal_overtakes_it() {
    for_every_call(Mode::NotApplied);
}

#[test]
fn a_call_that_is_in_doubt_is_told_and_no_signal_overtakes_it() {
    for_every_call(Mode::InDoubt);
}

#[test]
fn a_call_that_its_transport_gave_up_is_told_and_no_signal_overtakes_it() {
    for_every_call(Mode::GivenUp);
}

#[test]
fn a_queue_that_is_full_for_a_while_loses_nothing() {
    for_every_call(Mode::Full);
}

#[test]
fn a_name_that_is_taken_or_no_name_is_not_registered() {
    for name in ["local", "shm", "tcp", "", "Upper", "a b", "x:y", &"x".repeat(33)] {
        let error = transom_transport::register_transport(name, transom_tests::carrier::opener("taken"));
        assert!(matches!(error, Err(Error::Config { .. })), "{name}: {error:?}");
    }
    let context = Planned::context(Plan::new(0, Mode::Full));
    assert!(transom_transport::transport_names().iter().any(|name| name == "countdown"));
    let again = transom_transport::register_transport("countdown", transom_tests::carrier::opener("again"));
    assert!(matches!(again, Err(Error::Config { .. })), "{again:?}");
    assert!(context.addresses().iter().any(|address| address.starts_with("countdown:")));
    let error = Context::builder().transports("countdown:none").build().unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
}
