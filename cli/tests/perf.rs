//! `transom perf` as its users run it: as a process, on a machine that may have one core or many.

#![expect(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

const NAMES: [&str; 11] = [
    "test",
    "transport",
    "size",
    "ranks",
    "unit",
    "median",
    "p10",
    "p90",
    "baseline",
    "baseline_median",
    "goodness",
];

/// The ranks of every run spin on the same two cores: one run at a time.
static ONE_RUN: Mutex<()> = Mutex::new(());

fn perf(arguments: &str) -> Vec<serde_json::Map<String, serde_json::Value>> {
    let _turn = ONE_RUN.lock().unwrap_or_else(PoisonError::into_inner);
    let output = Command::new(env!("CARGO_BIN_EXE_transom"))
        .args(["perf", "--json", "--quick", "--batches", "2"])
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_test_has_a_baseline_on_shm_and_tcp_and_json_has_exactly_the_promised_names() {
    let rows = perf("--baseline-only --size 8 --size 4K");
    for transport in ["shm", "tcp"] {
        for test in [
            "put_flush",
            "put_signal",
            "put_bandwidth",
            "get_flush",
            "get_bandwidth",
            "fetch_add",
            "accumulate",
            "post_list",
            "connect",
            "detect",
        ] {
            assert!(
                rows.iter().any(|r| r["test"] == test && r["transport"] == transport),
                "{test} {transport}"
            );
        }
    }
    for row in &rows {
        let names: Vec<&str> = row.keys().map(String::as_str).collect();
        assert_eq!(names.len(), NAMES.len());
        assert!(NAMES.iter().all(|name| names.contains(name)), "{names:?}");
        assert!(row["baseline_median"].as_f64().unwrap() > 0.0, "{row:?}");
        assert!(row["goodness"].is_null() && row["median"].is_null());
        assert_eq!(row["ranks"], 2);
    }
}

#[test]
fn plain_copies_in_our_place_pass_every_test_and_have_a_goodness() {
    let rows = perf("--self-check --size 8 --size 4K --misalign 16");
    assert_eq!(rows.len(), 7 * 2 + 3);
    assert!(rows.iter().all(|row| row["goodness"].as_f64().unwrap() > 0.0), "{rows:?}");
}

#[test]
fn several_runs_are_merged_and_drawn() {
    let file = std::env::temp_dir().join(format!("transom-perf-{}.svg", std::process::id()));
    let rows = perf(&format!("--self-check --runs 2 --test fetch_add --plot {}", file.display()));
    let drawing = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(rows.len(), 1);
    assert!(drawing.contains("fetch_add shm"), "{drawing}");
}

#[test]
fn sleeping_ranks_wake_each_other() {
    let rows = perf("--baseline-only --wait sleep --test put_signal --test put_flush --size 8");
    assert!(rows.iter().any(|row| row["baseline"] == "futex ping-pong" && row["unit"] == "us"));
    assert!(rows.iter().any(|row| row["baseline"] == "sleeping ping-pong"));
}

#[test]
fn the_second_rank_dies_when_perf_is_killed() {
    let _turn = ONE_RUN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut perf = Command::new(env!("CARGO_BIN_EXE_transom"))
        .args(["perf", "--baseline-only", "--json", "--test", "put_signal", "--transport", "shm"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The first row is out: both ranks are in the middle of it.
    let mut first = [0];
    perf.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", perf.id())).unwrap();
    let second = Pid::from_raw(children.split_whitespace().next().unwrap().parse().unwrap()).unwrap();
    let second = pidfd_open(second, PidfdFlags::empty()).unwrap();
    perf.kill().unwrap();
    perf.wait().unwrap();
    let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&second, PollFlags::IN)], Some(&limit)).unwrap(), 1);
}

#[test]
fn a_transport_without_baselines_is_named_and_nothing_waits() {
    let began = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_transom"))
        .args(["perf", "--baseline-only", "--transport", "verbs:mlx5_0"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("transport verbs:mlx5_0 is not usable"));
    assert!(began.elapsed() < Duration::from_secs(20), "it waited for something");
}
