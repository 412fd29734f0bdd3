//! The official Python package reads every file back. `TRANSOM_PYTHON` names a Python that has safetensors, numpy and xxhash;
//! where it is not set, the program `python3` is asked for them, and the test says that it was left out.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails that way, or says what it left out"
)]

mod common;

use std::process::Command;
use std::sync::Arc;

use common::*;
use transom_checkpoint::disk::RealDisk;
use transom_checkpoint::{Checkpoints, Options};

#[test]
fn the_official_python_package_reads_every_file_back() {
    let named = std::env::var_os("TRANSOM_PYTHON");
    let python = named.clone().unwrap_or("python3".into());
    let has = Command::new(&python).args(["-c", "import safetensors, numpy, xxhash"]).output();
    if named.is_none() && !has.is_ok_and(|output| output.status.success()) {
        println!("left out: TRANSOM_PYTHON is not set, and python3 lacks safetensors, numpy or xxhash");
        return;
    }
    let dir = TempDir::new();
    let options = Options { incremental: true, ..options(Arc::new(RealDisk::default())) };
    let to = Checkpoints::create(&dir.0, options).unwrap();
    let layout = layout();
    let mut state = state(&layout, 5);
    save(&to, (1, "a"), &layout, &state, 2).unwrap();
    state[0][20_000] ^= 1;
    assert!(save(&to, (2, "a"), &layout, &state, 2).unwrap().linked > 0);
    save(&to, (3, "a"), &layout, &state, 3).unwrap();

    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/readback.py");
    let read = || Command::new(&python).arg(script).arg(&dir.0).output().unwrap();
    let output = read();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 3);

    // The script can fail.
    let file = to.checkpoint(3).unwrap();
    let path = file.dir().join(file.files().next().unwrap());
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[5000] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert!(!read().status.success());
}
