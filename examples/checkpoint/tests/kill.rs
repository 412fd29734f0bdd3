//! Ranks are killed with -9 at every point of a save, and whole jobs at any moment: what can be loaded is whole, of one step,
//! and nothing that was told to be durable is lost.
//!
//! `TRANSOM_LONG=1` kills at every point of more saves, and more jobs.

#![allow(clippy::unwrap_used, reason = "a test fails that way")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use transom_checkpoint::{Checkpoints, Options, Target};

#[path = "../src/program/pattern.rs"]
mod pattern;

const PROGRAM: &str = env!("CARGO_BIN_EXE_checkpoint");
const SIZE: u64 = 6 << 10;

/// How a job went.
struct Went {
    /// The newest step that a trainer was told to be durable.
    durable: u64,
    /// Where a rank was killed.
    killed: Option<String>,
    code: Option<i32>,
}

/// A launcher; its ranks end with it.
struct Launcher(Child);

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("transom-kill-{}-{number}", std::process::id())))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a job of two trainers, a writer and a standby. Kills one rank at one of its points, or all of them after a while.
fn job(dir: &Path, saves: u64, options: &[&str], kill: Option<(u32, u64)>, after: Option<Duration>) -> Went {
    let mut command = Command::new(PROGRAM);
    command.arg("pattern").arg("--dir").arg(dir);
    command.args(["--saves", &saves.to_string()]).args(options);
    if !options.contains(&"--size") {
        command.args(["--size", &SIZE.to_string()]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some((rank, point)) = kill {
        command.env("TRANSOM_CHECKPOINT_KILL", format!("{rank}:{point}"));
    }
    let mut launcher = Launcher(command.spawn().unwrap());
    let (stdout, stderr) = (launcher.0.stdout.take().unwrap(), launcher.0.stderr.take().unwrap());
    let told = std::thread::spawn(move || {
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        lines.filter_map(|line| line.strip_prefix("durable ")?.parse().ok()).max().unwrap_or(0)
    });
    let said =
        std::thread::spawn(move || BufReader::new(stderr).lines().map_while(Result::ok).collect::<Vec<_>>());
    let began = Instant::now();
    let mut ended = None;
    while ended.is_none() {
        assert!(began.elapsed() < Duration::from_secs(60), "the job hangs");
        if after.is_some_and(|after| began.elapsed() >= after) {
            // Its ranks are killed with it.
            launcher.0.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
        ended = launcher.0.try_wait().unwrap();
    }
    let (durable, said) = (told.join().unwrap(), said.join().unwrap());
    let killed =
        said.iter().find_map(|line| line.strip_prefix("checkpoint: killed at: ")).map(str::to_string);
    assert!(!said.iter().any(|line| line.contains("panicked")), "{said:#?}");
    Went { durable, killed, code: ended.unwrap().code() }
}

/// Whatever is complete is whole and of its own step. Returns the newest.
fn check(dir: &Path, what: &str) -> u64 {
    check_sized(dir, SIZE, what)
}

fn check_sized(dir: &Path, size: u64, what: &str) -> u64 {
    if !dir.exists() {
        return 0;
    }
    let checkpoints = Checkpoints::open(dir, Options::default()).unwrap();
    let layout = pattern::layout(size << 10);
    let mut newest = 0;
    for listed in checkpoints.list().unwrap().iter().filter(|listed| listed.incomplete.is_none()) {
        newest = listed.step;
        assert!(checkpoints.verify(listed.step).unwrap().is_empty(), "{what}: step {}", listed.step);
        let checkpoint = checkpoints.checkpoint(listed.step).unwrap();
        // As another number of trainers would.
        for part in (0..3).flat_map(|shard| layout.shard(shard, 3)) {
            let (mut got, mut expected) = (vec![0; layout.size(&part)], vec![0; layout.size(&part)]);
            checkpoint.load([(part.clone(), Target::Bytes(&mut got))]).unwrap();
            pattern::fill(&layout, &part, listed.step, &mut expected);
            assert!(got == expected, "{what}: step {} holds other bytes in {part:?}", listed.step);
        }
    }
    let latest = checkpoints.latest().unwrap().map_or(0, |latest| latest.step());
    assert_eq!(latest, newest, "{what}");
    newest
}

fn saves() -> u64 {
    if std::env::var_os("TRANSOM_LONG").is_some() { 12 } else { 3 }
}

/// Kills one rank at each of its points in turn.
fn walk(rank: u32, options: &[&str]) {
    let saves = saves();
    let mut points = 0;
    loop {
        let dir = Directory::new();
        let went = job(&dir.0, saves, options, Some((rank, points + 1)), None);
        let size = options
            .iter()
            .position(|option| *option == "--size")
            .map_or(SIZE, |at| options[at + 1].parse().unwrap());
        let newest = check_sized(&dir.0, size, went.killed.as_deref().unwrap_or("nothing was killed"));
        let Some(killed) = went.killed else {
            assert_eq!((went.code, newest), (Some(0), saves), "nobody was killed");
            break;
        };
        points += 1;
        assert!(newest >= went.durable, "{killed}: {} was durable, {newest} is there", went.durable);
        if rank == 2 {
            // The standby has taken over: all that the writer can take with it are saves that were on their way.
            assert_eq!(went.code, Some(128 + 9), "{killed}: the others went on to the end");
        }
    }
    assert!(points >= saves * 5, "only {points} points of rank {rank}");
}

#[test]
fn a_writer_that_is_killed_at_any_point_leaves_old_checkpoints_or_new_ones() {
    walk(2, &[]);
}

#[test]
fn a_writer_that_links_what_has_not_changed_is_no_exception() {
    walk(2, &["--incremental", "--keep", "1"]);
}

#[test]
fn a_trainer_that_is_killed_at_any_point_leaves_old_checkpoints_or_new_ones() {
    walk(0, &[]);
    walk(1, &["--transport", "tcp:127.0.0.1:0"]);
}

#[test]
fn a_trainer_that_is_killed_while_its_first_blocks_are_on_their_way_to_the_disk_stops_nobody() {
    walk(0, &["--size", "24576", "--staging", "9"]);
}

#[test]
fn one_of_two_writers_that_is_killed_at_any_point_leaves_old_checkpoints_or_new_ones() {
    walk(3, &["--writers", "2"]);
}

#[test]
fn a_job_that_is_killed_at_any_moment_leaves_old_checkpoints_or_new_ones() {
    let began = Instant::now();
    let whole = Directory::new();
    assert_eq!(job(&whole.0, saves(), &[], None, None).code, Some(0));
    let takes = began.elapsed();
    let runs = if std::env::var_os("TRANSOM_LONG").is_some() { 500 } else { 25 };
    for run in 0..runs {
        let dir = Directory::new();
        let after = takes * run / runs;
        let went = job(&dir.0, saves(), &[], None, Some(after));
        let newest = check(&dir.0, &format!("killed after {after:?}"));
        assert!(newest >= went.durable, "{} was durable, {newest} is there", went.durable);
    }
}

#[test]
fn a_block_is_not_overwritten_before_the_disk_has_it() {
    let dir = Directory::new();
    let (size, saves) = (48 << 10, 6);
    let went = job(&dir.0, saves, &["--size", &size.to_string(), "--staging", "9"], None, None);
    assert_eq!(went.code, Some(0));
    assert_eq!(check_sized(&dir.0, size, "small staging"), saves);
}

/// The process of a rank of a launcher's job.
fn rank_of(launcher: u32, rank: u32) -> rustix::process::Pid {
    let wanted = format!("TRANSOM_RANK={rank}");
    let tasks = std::fs::read_dir(format!("/proc/{launcher}/task")).unwrap();
    let children = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("children")).unwrap());
    let children: Vec<i32> = children
        .flat_map(|all| all.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
        .collect();
    let is_it = |pid: &i32| {
        let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        variables.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    rustix::process::Pid::from_raw(children.into_iter().find(is_it).unwrap()).unwrap()
}

#[test]
fn a_writer_that_stops_is_given_up_and_harms_nothing_when_it_comes_back() {
    let dir = Directory::new();
    let (saves, size) = (60, SIZE.to_string());
    let mut command = Command::new(PROGRAM);
    command.args([
        "pattern",
        "--dir",
        dir.0.to_str().unwrap(),
        "--size",
        &size,
        "--saves",
        &saves.to_string(),
    ]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut launcher = Launcher(command.spawn().unwrap());
    let lines = BufReader::new(launcher.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let (told, durable) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let steps = lines.filter_map(|line| line.strip_prefix("durable ")?.parse::<u64>().ok());
        steps.for_each(|step| {
            // Nobody listens any more once the test has failed.
            let _ = told.send(step);
        });
    });
    let limit = Duration::from_secs(60);
    let mut newest = 0;
    while newest < 3 {
        newest = durable.recv_timeout(limit).unwrap();
    }
    let writer = rank_of(launcher.0.id(), 2);
    rustix::process::kill_process(writer, rustix::process::Signal::STOP).unwrap();
    // It is given up after 2.5 s, and the standby goes on. Not so where it stopped with the directory's lock in its hands:
    // that is waited for, until it comes back.
    let enough = newest + 20;
    while newest < enough
        && let Ok(step) = durable.recv_timeout(Duration::from_secs(5))
    {
        newest = step;
    }
    rustix::process::kill_process(writer, rustix::process::Signal::CONT).unwrap();
    while durable.recv_timeout(limit).is_ok() {}
    assert!(launcher.0.wait().unwrap().success());
    assert_eq!(check(&dir.0, "a writer that came back"), saves);
}
