//! Ranks that are killed and ranks that are stopped, in the middle of everything.

#![expect(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use transom::{Error, Foreign, MemoryRegion, Outcome, Rank, Reduce, Result, Team, Window};
use transom_tests::process::{self, Me};
use transom_tests::ranks::{Processes, builder_of};

/// Makes a test of each function on each transport that processes have.
macro_rules! on_every_transport {
    ($($name:ident)*) => {
        mod shm {
            $(#[test] fn $name() { super::$name(concat!("shm::", stringify!($name)), "shm"); })*
        }
        mod tcp {
            $(#[test] fn $name() { super::$name(concat!("tcp::", stringify!($name)), "tcp:127.0.0.1:0"); })*
        }
    };
}

on_every_transport! {
    a_killed_rank_ends_every_call_to_it_and_no_other
    a_stopped_rank_holds_no_call_past_its_deadline
    a_waiter_fails_with_its_last_producer_and_what_arrived_wins
    the_memory_of_a_dead_rank_is_read_or_not_touched
    a_rank_that_dies_between_the_steps_of_a_split_is_told
    a_death_that_another_rank_met_first_is_told_as_a_death
}

const SURVIVOR: usize = 0;
const VICTIM: Rank = 1;
const THIRD: usize = 2;

/// One operation in a loop, in a window of its own.
type Step = fn(&Team, &Window, &MemoryRegion) -> Result<()>;

/// Every operation that has a target.
const STEPS: [(&str, Step); 8] = [
    ("put", |_, window, _| window.put(VICTIM, 0, &[1; 4096])),
    ("large put", |_, window, source| {
        let bytes = vec![2; source.size()];
        window.put(VICTIM, 0, &bytes)
    }),
    ("get", |_, window, _| window.get(VICTIM, 0, &mut [0; 4096])),
    ("put_from", |team, window, source| {
        window.put_from(VICTIM, 0, source.all())?.wait_timeout(team.timeout()).map(drop)
    }),
    ("put_signal", |_, window, _| window.put_signal(VICTIM, 0, &[3; 8], 0, 1)),
    ("fetch_add", |_, window, _| window.fetch_add(VICTIM, 0, 1).map(drop)),
    ("accumulate", |_, window, _| window.accumulate(VICTIM, 0, &[1.0_f32; 20_000], Reduce::Sum)),
    ("flush", |_, window, _| {
        window.put(VICTIM, 0, &[1])?;
        window.flush(VICTIM)
    }),
];
const SIZE: usize = 4 << 20;
/// Windows of the team: one for each step, the waits, and the third rank.
const WINDOWS: usize = STEPS.len() + 2;

/// How a loop ended.
struct Report {
    name: String,
    error: Error,
    /// How long the last call took.
    took: Duration,
}

impl Report {
    /// In one line, for the test.
    fn line(&self) -> String {
        let cause = self.error.root().map(|failure| format!("{:?}", failure.cause));
        let outcome = self.error.outcome().map(|outcome| format!("{outcome:?}"));
        let expired = if matches!(self.error, Error::Expired { .. }) { "expired" } else { "ended" };
        format!(
            "{}|{expired}|{}|{}|{}|{}",
            self.name,
            outcome.unwrap_or_default(),
            cause.unwrap_or_default(),
            self.took.as_micros(),
            self.error,
        )
    }
}

/// Repeats a call until it fails, or until it is told to stop.
fn repeat(name: &str, stop: &AtomicBool, mut call: impl FnMut() -> Result<()>) -> Option<Report> {
    while !stop.load(Ordering::Relaxed) {
        let since = Instant::now();
        if let Err(error) = call() {
            return Some(Report { name: name.to_owned(), error, took: since.elapsed() });
        }
    }
    None
}

/// What all ranks do together: barriers, and windows that come and go.
fn collectives(team: &Team, split: &Team, stop: &AtomicBool) -> Vec<Option<Report>> {
    std::thread::scope(|scope| {
        let barrier = scope.spawn(|| repeat("barrier", stop, || team.barrier()));
        let allocate = repeat("allocate", stop, || {
            let window = Window::allocate(split, 4096)?;
            split.barrier()?;
            drop(window);
            Ok(())
        });
        vec![barrier.join().unwrap(), allocate]
    })
}

/// The ranks of the first two tests.
fn busy(mut me: Me, timeout: Duration) {
    me.say("up");
    assert_eq!(me.hear(), "meet");
    let team = builder_of(&me).timeout(timeout).build().unwrap();
    let windows: Vec<Window> = (0..WINDOWS).map(|_| Window::allocate(&team, SIZE).unwrap()).collect();
    let of_third = &windows[WINDOWS - 1];
    // The barriers inside of allocate are those of another team.
    let split = team.split(Some(0), team.rank()).unwrap().unwrap();
    let (stop, stop_traffic) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| match me.rank() as usize {
        SURVIVOR => {
            let mut loops = Vec::new();
            for (index, (name, step)) in STEPS.iter().enumerate() {
                let (team, window, stop) = (&team, &windows[index], &stop);
                loops.push(scope.spawn(move || {
                    let source =
                        team.context().register(Foreign::from_vec(vec![5; SIZE]).unwrap(), 0).unwrap();
                    repeat(name, stop, || step(team, window, &source))
                }));
            }
            let waits = &windows[STEPS.len()];
            let waiter = scope.spawn(|| {
                let signals = waits.signals_from(&[VICTIM]).unwrap();
                repeat("signal wait", &stop, || signals.wait_all(&[(7, 1)], team.timeout()))
            });
            let all = scope.spawn(|| collectives(&team, &split, &stop));
            me.say("busy");
            stop.store(me.hear() == "stop", Ordering::Relaxed);
            let mut reports: Vec<_> = loops.into_iter().map(|l| l.join().unwrap()).collect();
            reports.push(waiter.join().unwrap());
            reports.extend(all.join().unwrap());
            reports.iter().flatten().for_each(|report| me.say(&report.line()));
            // To the third rank everything works.
            check(&team, of_third, THIRD as Rank);
            me.say("well");
            assert_eq!(me.hear(), "leave");
        }
        THIRD => {
            let all = scope.spawn(|| collectives(&team, &split, &stop));
            let traffic = scope.spawn(|| {
                repeat("third", &stop_traffic, || {
                    of_third.put(SURVIVOR as Rank, 0, &[1; 100_000])?;
                    of_third.flush(SURVIVOR as Rank)?;
                    of_third.fetch_add(SURVIVOR as Rank, 1 << 20, 1).map(drop)
                })
            });
            me.say("busy");
            stop.store(me.hear() == "stop", Ordering::Relaxed);
            all.join().unwrap().iter().flatten().for_each(|report| me.say(&report.line()));
            stop_traffic.store(true, Ordering::Relaxed);
            if let Some(report) = traffic.join().unwrap() {
                panic!("rank 2 and rank 0 live: {}", report.line());
            }
            check(&team, of_third, SURVIVOR as Rank);
            me.say("well");
            assert_eq!(me.hear(), "leave");
        }
        _ => {
            scope.spawn(|| collectives(&team, &split, &stop));
            me.say("busy");
            // It is killed, or stopped and killed.
            let _ = me.hear_within(Duration::from_secs(600));
        }
    });
}

fn check(team: &Team, window: &Window, rank: Rank) {
    let me = u64::from(team.rank());
    window.put(rank, 2 << 20, &[me as u8 + 1; 1000]).unwrap();
    window.flush(rank).unwrap();
    let mut there = [0; 1000];
    window.get(rank, 2 << 20, &mut there).unwrap();
    assert_eq!(there, [me as u8 + 1; 1000]);
    let before = window.fetch_add(rank, 3 << 20, 2).unwrap();
    assert_eq!(window.fetch_add(rank, 3 << 20, 2).unwrap(), before + 2);
}

/// The lines of a rank up to "well", cut into their fields.
fn reports(rank: &mut process::Rank) -> Vec<Vec<String>> {
    let mut lines = Vec::new();
    loop {
        match rank.hear() {
            line if line == "well" => return lines,
            line => lines.push(line.splitn(6, '|').map(str::to_owned).collect()),
        }
    }
}

fn start(test: &str, transport: &str) -> Processes {
    let mut job = Processes::start(test, transport, 3);
    for word in ["up", "busy"] {
        assert_eq!(job.ranks.hear(), [word; 3]);
        if word == "up" {
            job.ranks.say("meet");
        }
    }
    job
}

fn a_killed_rank_ends_every_call_to_it_and_no_other(test: &str, transport: &str) {
    if let Some(me) = process::rank() {
        return busy(me, Duration::from_secs(20));
    }
    let mut job = start(test, transport);
    job.ranks[VICTIM as usize].kill();
    // Nobody stops the loops: each ends by an error.
    job.ranks[SURVIVOR].say("end");
    job.ranks[THIRD].say("end");
    let survivor = reports(&mut job.ranks[SURVIVOR]);
    let third = reports(&mut job.ranks[THIRD]);
    assert_eq!((survivor.len(), third.len()), (STEPS.len() + 3, 2), "{survivor:?} {third:?}");
    for report in survivor.iter().chain(&third) {
        let [name, how, outcome, cause, took, text] = report.as_slice() else { panic!("{report:?}") };
        assert_eq!(how, "ended", "{name} was told before its deadline: {text}");
        assert!(["NotApplied", "InDoubt"].contains(&outcome.as_str()), "{name}: {outcome}, {text}");
        let causes = ["Exited", "Signaled", "ConnectionLost", "Earlier"];
        let texts = ["the process ended", "the process was killed", "the connection was lost"];
        // Another rank's words are no failure of this one, but say the same.
        let right = causes.iter().any(|c| cause.starts_with(c))
            || (name == "allocate" && texts.iter().any(|t| text.contains(t)));
        assert!(right, "{name}: {cause}, {text}");
        assert!(text.contains("rank 1"), "{name}: {text}");
        assert!(took.parse::<u64>().unwrap() < 10_000_000, "{name}: {took} us, {text}");
    }
    job.ranks[SURVIVOR].say("leave");
    job.ranks[THIRD].say("leave");
    job.ranks[SURVIVOR].ends_well();
    job.ranks[THIRD].ends_well();
}

fn a_stopped_rank_holds_no_call_past_its_deadline(test: &str, transport: &str) {
    // Shorter than the time after which a rank is called frozen, so that deadlines are what ends the calls.
    const DEADLINE: Duration = Duration::from_millis(1500);
    if let Some(me) = process::rank() {
        return busy(me, DEADLINE);
    }
    let mut job = start(test, transport);
    job.ranks[VICTIM as usize].stop();
    for rank in [SURVIVOR, THIRD] {
        // Those that wait end by themselves; those that shared memory lets through are told to stop.
        job.ranks[rank].say("stop");
        for report in reports(&mut job.ranks[rank]) {
            let [name, _, _, cause, took, text] = report.as_slice() else { panic!("{report:?}") };
            // Ten times what is promised: the machine is shared.
            let promised = DEADLINE.max(Duration::from_millis(10)) / 100;
            let took = Duration::from_micros(took.parse().unwrap());
            assert!(
                took < DEADLINE + 10 * promised.max(Duration::from_millis(50)),
                "{name}: {took:?}, {text}"
            );
            assert!(cause.is_empty() || cause == "Frozen" || cause == "Earlier", "{name}: {cause}, {text}");
            // Which barrier it stands in decides whom a rank waits for.
            let known = ["barrier", "allocate"].contains(&name.as_str()) || text.contains("rank 1");
            assert!(known || name == "signal wait" && text.contains("signal 7 is 0"), "{name}: {text}");
        }
    }
    for rank in [SURVIVOR, THIRD] {
        job.ranks[rank].say("leave");
    }
    // It goes on, and nothing that it finds ends it badly.
    job.ranks[VICTIM as usize].go_on();
    job.ranks[SURVIVOR].ends_well();
    job.ranks[THIRD].ends_well();
    assert!(job.ranks[VICTIM as usize].wait(Duration::ZERO).is_none(), "it lives");
}

fn a_waiter_fails_with_its_last_producer_and_what_arrived_wins(test: &str, transport: &str) {
    if let Some(mut me) = process::rank() {
        let team = builder_of(&me).build().unwrap();
        let window = Window::allocate(&team, 4096).unwrap();
        if me.rank() != 0 {
            window.put_signal(0, 0, &[9; 8], me.rank(), 1).unwrap();
            window.flush(0).unwrap();
            me.say("ready");
            let _ = me.hear();
            return;
        }
        let both = window.signals_from(&[1, 2]).unwrap();
        both.wait_all(&[(1, 1), (2, 1)], team.timeout()).unwrap();
        me.say("ready");
        assert_eq!(me.hear(), "one is dead");
        let short = Duration::from_millis(100);
        let failed = window.signals_from(&[1]).unwrap().wait_any(&[(9, 1)], team.timeout()).unwrap_err();
        assert!(failed.root().is_some() && failed.to_string().contains("rank 1"), "{failed}");
        assert!(team.failure(1).is_some() && team.failure(2).is_none());
        let expired = both.wait_any(&[(9, 1)], short).unwrap_err();
        assert!(matches!(expired, Error::Expired { outcome: None, .. }), "rank 2 may still come: {expired}");
        me.say("one is missed");
        let since = Instant::now();
        let failed = both.wait_any(&[(9, 1)], team.timeout()).unwrap_err();
        assert!(failed.root().is_some(), "not expired: {failed}");
        assert!(since.elapsed() < team.timeout() / 2);
        let failed = window.signal(9).unwrap().wait_at_least(1, team.timeout()).unwrap_err();
        assert!(failed.root().is_some(), "all others are dead: {failed}");
        // What they sent before counts.
        both.wait_all(&[(1, 1), (2, 1)], team.timeout()).unwrap();
        assert_eq!(window.signal(1).unwrap().wait_at_least(1, team.timeout()).unwrap(), 1);
        assert_eq!(both.wait_any(&[(9, 1), (2, 1)], team.timeout()).unwrap(), 1);
        assert_eq!(window.local().load(0).unwrap(), u64::from_le_bytes([9; 8]));
        me.say("done");
        return;
    }
    let mut job = Processes::start(test, transport, 3);
    assert_eq!(job.ranks.hear(), ["ready"; 3]);
    job.ranks[1].kill();
    job.ranks[0].say("one is dead");
    assert_eq!(job.ranks[0].hear(), "one is missed");
    job.ranks[2].kill();
    assert_eq!(job.ranks[0].hear(), "done");
    job.ranks[0].ends_well();
}

fn the_memory_of_a_dead_rank_is_read_or_not_touched(test: &str, transport: &str) {
    if let Some(mut me) = process::rank() {
        let team = builder_of(&me).build().unwrap();
        let window = Window::allocate(&team, 1 << 20).unwrap();
        window.local().write(5, &[me.rank() as u8 + 7; 1000]).unwrap();
        team.barrier().unwrap();
        me.say("ready");
        let _ = me.hear();
        let mapped = window.part(1).unwrap().mapped();
        let mut there = [0; 1000];
        // Until it is known, operations on shared memory succeed; never are other bytes seen.
        while team.failure(1).is_none() {
            match window.get(1, 5, &mut there) {
                Ok(()) => assert_eq!(there, [8; 1000]),
                Err(error) => assert!(error.root().is_some(), "{error}"),
            }
        }
        for result in [
            window.get(1, 5, &mut there),
            window.put(1, 5, &[0; 100]),
            window.fetch_add(1, 0, 1).map(drop),
            window.put_signal(1, 0, &[], 0, 1),
        ] {
            let error = result.unwrap_err();
            assert_eq!(error.outcome(), Some(Outcome::NotApplied), "{error}");
            assert!(error.to_string().starts_with("rank 1: "), "{error}");
        }
        // No bus error: the mapping is kept by whoever has it.
        if let Some(mapped) = mapped {
            mapped.read(5, &mut there).unwrap();
            assert_eq!(there, [8; 1000]);
        }
        drop(window);
        me.say("done");
        return;
    }
    let mut job = Processes::start(test, transport, 2);
    assert_eq!(job.ranks.hear(), ["ready"; 2]);
    job.ranks[1].kill();
    job.ranks[0].say("dead");
    assert_eq!(job.ranks[0].hear(), "done");
    job.ranks[0].ends_well();
}

/// The lock of a stripe: held by a stopped process it is waited for and its holder is named; of a dead one it is told
/// once.
#[test]
fn a_lock_of_a_stopped_rank_is_not_stolen_and_that_of_a_dead_one_is_told_once() {
    const ELEMENTS: usize = 1 << 20;
    const TEST: &str = "a_lock_of_a_stopped_rank_is_not_stolen_and_that_of_a_dead_one_is_told_once";
    if let Some(mut me) = process::rank() {
        let team = builder_of(&me).timeout(Duration::from_millis(1000)).build().unwrap();
        let window = Window::allocate(&team, 8 * ELEMENTS).unwrap();
        team.barrier().unwrap();
        let ones = vec![1_u64; ELEMENTS];
        if me.rank() == 1 {
            me.say(&team.context().incarnation().to_string());
            loop {
                window.accumulate(2, 0, &ones, Reduce::Sum).unwrap();
            }
        }
        me.say("ready");
        loop {
            match me.hear().as_str() {
                "sum" => match window.accumulate(2, 0, &ones, Reduce::Sum) {
                    Ok(()) => me.say("done"),
                    Err(error) => me.say(&format!("{:?} {error}", error.outcome())),
                },
                "end" => return,
                word => panic!("{word}"),
            }
        }
    }
    let mut job = Processes::start(TEST, "shm", 3);
    let holder = job.ranks.hear()[1].clone();
    // Nearly always inside of a stripe; and if not, again.
    let mut tries = 0;
    let told = loop {
        job.ranks[1].stop();
        job.ranks[0].say("sum");
        match job.ranks[0].hear() {
            line if line == "done" => job.ranks[1].go_on(),
            line => break line,
        }
        tries += 1;
        assert!(tries < 100, "it is never stopped inside of a stripe");
    };
    assert!(told.starts_with("Some(InDoubt)"), "{told}");
    assert!(
        told.contains("accumulate with rank 2") && told.contains("rank 1"),
        "the holder is named: {told}"
    );
    assert!(told.contains(&holder[1..]), "{told} names {holder}");
    job.ranks[1].kill();
    let mut told = Vec::new();
    for _ in 0..3 {
        for rank in [0, 2] {
            job.ranks[rank].say("sum");
            match job.ranks[rank].hear() {
                line if line == "done" => {}
                line => told.push(line),
            }
        }
    }
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("InDoubt") && told[0].contains("by a process that died"), "{told:?}");
    job.ranks[0].say("end");
    job.ranks[2].say("end");
    job.ranks[0].ends_well();
    job.ranks[2].ends_well();
}

/// However long the kernel takes to tear its memory down.
#[test]
fn the_death_of_a_large_rank_is_told_before_its_memory_is_gone() {
    const TEST: &str = "the_death_of_a_large_rank_is_told_before_its_memory_is_gone";
    // Ten times what is promised.
    const MOST: Duration = Duration::from_millis(500);
    if let Some(mut me) = process::rank() {
        let team = builder_of(&me).build().unwrap();
        let window = Window::allocate(&team, 4096).unwrap();
        team.barrier().unwrap();
        let touched = (me.rank() == 1).then(|| vec![1_u8; 1 << 30]);
        me.say("ready");
        if touched.is_some() {
            let _ = me.hear_within(Duration::from_secs(600));
            return;
        }
        let error = window.signal(0).unwrap().wait_at_least(1, team.timeout()).unwrap_err();
        me.say("told");
        assert!(error.root().is_some() && error.to_string().contains("rank 1"), "{error}");
        return;
    }
    let mut job = Processes::start(TEST, "shm", 2);
    assert_eq!(job.ranks.hear(), ["ready"; 2]);
    let since = Instant::now();
    job.ranks[1].kill_now();
    assert_eq!(job.ranks[0].hear(), "told");
    let told = since.elapsed();
    assert!(told < MOST, "told after {told:?}");
    job.ranks[1].wait(process::PATIENCE).unwrap();
    job.ranks[0].ends_well();
}

/// The victim takes part in the first step of a split by hand, and dies before the second.
fn a_rank_that_dies_between_the_steps_of_a_split_is_told(test: &str, transport: &str) {
    if let Some(mut me) = process::rank() {
        let team = builder_of(&me).build().unwrap();
        team.barrier().unwrap();
        if me.rank() == VICTIM {
            team.store().prefix("split/0").set("1", b"0 1").unwrap();
            me.say("half way");
            let _ = me.hear();
            unreachable!("it is killed");
        }
        me.say("ready");
        assert_eq!(me.hear(), "split");
        let since = Instant::now();
        let error = team.split(Some(0), me.rank()).unwrap_err();
        assert!(error.root().is_some() && error.to_string().contains("rank 1"), "{error}");
        assert!(since.elapsed() < team.timeout() / 2, "it is told before the deadline: {error}");
        me.say("told");
        let _ = me.hear();
        return;
    }
    let mut job = Processes::start(test, transport, 3);
    for rank in 0..3 {
        assert_eq!(job.ranks[rank].hear(), if rank == VICTIM as usize { "half way" } else { "ready" });
    }
    for rank in [SURVIVOR, THIRD] {
        job.ranks[rank].say("split");
    }
    job.ranks[VICTIM as usize].kill();
    for rank in [SURVIVOR, THIRD] {
        assert_eq!(job.ranks[rank].hear(), "told");
    }
    for rank in [SURVIVOR, THIRD] {
        job.ranks[rank].say("leave");
        job.ranks[rank].ends_well();
    }
}

/// A rank says that it cannot reach the victim before anybody else has seen that death.
fn a_death_that_another_rank_met_first_is_told_as_a_death(test: &str, transport: &str) {
    if let Some(mut me) = process::rank() {
        let team = builder_of(&me).build().unwrap();
        team.barrier().unwrap();
        if me.rank() as usize != SURVIVOR {
            // What ranks write at the first step of the team's first window: what it has, or of whose trouble it tells.
            let said: &[u8] = if me.rank() == VICTIM { b"\x01" } else { b"\x02no transport reaches rank 1" };
            team.store().prefix("window/0").set(&me.rank().to_string(), said).unwrap();
            me.say("ready");
            let _ = me.hear();
            return;
        }
        me.say("ready");
        assert_eq!(me.hear(), "build");
        me.say("building");
        let error = Window::allocate(&team, 4096).unwrap_err();
        assert!(error.root().is_some() && error.to_string().contains("rank 1"), "{error}");
        me.say("told");
        let _ = me.hear();
        return;
    }
    let mut job = Processes::start(test, transport, 3);
    assert_eq!(job.ranks.hear(), ["ready"; 3]);
    job.ranks[SURVIVOR].say("build");
    assert_eq!(job.ranks[SURVIVOR].hear(), "building");
    // By then it has read what the third says. Were it slower, it would find the death known, which proves less.
    std::thread::sleep(Duration::from_millis(150));
    job.ranks[VICTIM as usize].kill();
    assert_eq!(job.ranks[SURVIVOR].hear(), "told");
    for rank in [SURVIVOR, THIRD] {
        job.ranks[rank].say("leave");
        job.ranks[rank].ends_well();
    }
}
