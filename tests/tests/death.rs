//! Ranks that are killed and ranks that are stopped, in the middle of everything.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use transom::{Cause, Error, Foreign, MemoryRegion, Outcome, Rank, Reduce, Result, Team, Window};
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
    what_a_dead_rank_held_is_told_or_read
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
    let _ = (test, transport);
}

fn a_waiter_fails_with_its_last_producer_and_what_arrived_wins(test: &str, transport: &str) {
    let _ = (test, transport);
}

fn what_a_dead_rank_held_is_told_or_read(test: &str, transport: &str) {
    let _ = (test, transport);
}

#[allow(dead_code)]
fn unused(_: Cause, _: Outcome) {}
