//! The program, as a user runs it: training, crash and resume; a model file; lists and errors.

#![allow(clippy::unwrap_used, reason = "a test fails that way")]

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering};

struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("transom-program-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_string()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_checkpoint")).args(arguments).output().unwrap()
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{}", err(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A small training run of 12 steps with a checkpoint every 3.
fn train(dir: &str, more: &[&str]) -> Output {
    let small = ["--dir", dir, "--width", "64", "--steps", "12", "--every", "3"];
    run(&[&small, more].concat())
}

fn digest(output: &Output) -> String {
    let out = out(output);
    let line = out.lines().find(|line| line.starts_with("digest of the state")).unwrap();
    line.split_whitespace().nth(4).unwrap().to_string()
}

#[test]
fn a_run_that_crashed_and_was_resumed_ends_with_the_bits_of_one_that_did_not() {
    let dir = Directory::new();
    let straight = train(&dir.file("straight"), &[]);
    let crashed = train(&dir.file("crashed"), &["--crash-at-step", "9", "--crash", "job"]);
    assert_eq!(crashed.status.code(), Some(128 + 9), "{}", err(&crashed));
    let resumed = train(&dir.file("crashed"), &["--resume"]);
    assert!(out(&resumed).contains("steps 7 to 12"), "{}", out(&resumed));
    assert_eq!(digest(&resumed), digest(&straight));
    // The digest can differ.
    let other = train(&dir.file("other"), &["--seed", "2"]);
    assert_ne!(digest(&other), digest(&straight));
}

#[test]
fn a_run_goes_on_without_its_writer_and_with_other_numbers_of_trainers() {
    let dir = Directory::new();
    let lost = train(&dir.file("a"), &["--crash-at-step", "6"]);
    assert_eq!(lost.status.code(), Some(128 + 9));
    assert!(err(&lost).contains("rank 3 writes from now on"), "{}", err(&lost));
    let table = String::from_utf8_lossy(&lost.stdout).into_owned();
    assert!(table.contains("a trainer is blocked by a save"), "{table}");
    let listed = out(&run(&["ls", &dir.file("a")]));
    assert!(listed.lines().any(|line| line.contains("12 ") && line.ends_with("complete")), "{listed}");

    let args = ["--dir", &dir.file("a"), "--width", "64", "--steps", "15", "--every", "3", "--resume"];
    for more in [["--trainers", "3"], ["--transport", "tcp:127.0.0.1:0"]] {
        let resumed = run(&[&args[..], &more].concat());
        assert!(out(&resumed).contains(" to 15"), "{}", out(&resumed));
    }
}

#[test]
fn a_run_without_any_writer_left_goes_on_to_its_end() {
    let dir = Directory::new();
    for at in ["6", "12"] {
        let lost = train(&dir.file(at), &["--standbys", "0", "--crash-at-step", at]);
        let (table, told) = (String::from_utf8_lossy(&lost.stdout).into_owned(), err(&lost));
        assert!(table.contains("accuracy on digits"), "{table}{told}");
        assert!(told.contains("no writer is left"), "{told}");
    }
}

#[test]
fn two_writers_and_small_staging_save_the_same_bits() {
    let dir = Directory::new();
    let plain = train(&dir.file("plain"), &[]);
    let more = ["--writers", "2", "--staging", "9", "--incremental"];
    let other = train(&dir.file("other"), &more);
    assert_eq!(digest(&plain), digest(&other));
    for name in ["plain", "other"] {
        let verified = out(&run(&["verify", &dir.file(name)]));
        assert_eq!(verified.lines().count(), 3, "{verified}");
    }
}

#[test]
fn a_model_file_is_saved_and_what_is_none_is_refused_at_the_start() {
    let dir = Directory::new();
    let model = dir.file("model.safetensors");
    let weights: Vec<u8> = (0..3 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let view =
        |bytes, shape| safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape, bytes).unwrap();
    let tensors = [("w", view(&weights, vec![768, 1024])), ("b", view(&weights[..28], vec![7]))];
    safetensors::serialize_to_file(tensors, None, model.as_ref()).unwrap();
    let args = ["--model", &model, "--dir", &dir.file("saved"), "--steps", "4", "--every", "2"];
    let table = out(&run(&args));
    assert!(table.contains("to disk, durable"), "{table}");
    assert_eq!(out(&run(&["verify", &dir.file("saved")])).lines().count(), 2);

    let broken = dir.file("broken.safetensors");
    std::fs::write(&broken, b"not a model at all, whatever its name says").unwrap();
    let refused = run(&["--model", &broken]);
    assert!(!refused.status.success());
    assert!(err(&refused).contains("broken.safetensors"), "{}", err(&refused));
    assert!(!err(&refused).contains("rank"), "no rank was started: {}", err(&refused));
}

#[test]
fn a_directory_that_cannot_be_used_is_told_at_the_start() {
    let dir = Directory::new();
    let file = dir.file("file");
    std::fs::write(&file, b"").unwrap();
    for refused in [train(&format!("{file}/below"), &[]), train(&dir.file("empty"), &["--resume"])] {
        assert!(!refused.status.success());
        assert!(!err(&refused).contains("rank"), "{}", err(&refused));
    }
    out(&train(&dir.file("used"), &[]));
    let again = train(&dir.file("used"), &[]);
    assert!(err(&again).contains("holds checkpoints up to step 12"), "{}", err(&again));
}

#[test]
fn what_is_damaged_is_found_and_named() {
    let dir = Directory::new();
    out(&train(&dir.file("a"), &[]));
    let step = PathBuf::from(dir.file("a")).join("step-000000000009");
    let file = std::fs::read_dir(&step).unwrap().map(|entry| entry.unwrap().path());
    let file = file.filter(|path| path.extension().is_some_and(|e| e == "safetensors")).min().unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 4;
    std::fs::write(&file, bytes).unwrap();
    let verified = run(&["verify", &dir.file("a")]);
    assert!(!verified.status.success());
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(err(&verified).contains(name) && err(&verified).contains("block 0"), "{}", err(&verified));
}

#[test]
fn a_full_disk_costs_checkpoints_and_not_the_training() {
    let dir = Directory::new();
    let at = dir.file("small");
    std::fs::create_dir(&at).unwrap();
    // A disk of its own, as large as one checkpoint and a half.
    let script = format!(
        "mount -t tmpfs -o size=5400k none {at} && {} --dir {at} --width 512 --steps 12 --every 4; code=$?; {0} ls {at}; exit $code",
        env!("CARGO_BIN_EXE_checkpoint")
    );
    let full = Command::new("unshare").args(["-m", "sh", "-c", &script]).output().unwrap();
    let (out, err) = (out(&full), err(&full));
    assert!(out.contains("accuracy on digits"), "{out}{err}");
    assert!(
        err.contains("no checkpoint of step 8: create ") && err.contains("No space left on device"),
        "{err}"
    );
    assert!(out.contains("no checkpoint of step 12: "), "{out}");
    assert_eq!(out.lines().filter(|line| line.ends_with(" complete")).count(), 1, "{out}");
}
