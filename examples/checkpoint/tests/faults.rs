//! The disk fails at its n-th call, for every n.

#![allow(clippy::unwrap_used, reason = "a test fails that way")]

mod common;

use std::path::Path;
use std::sync::Arc;

use common::faulty::{Fault, FaultyDisk};
use common::memory::MemoryDisk;
use common::*;
use transom_checkpoint::{Checkpoints, Error, Options};

fn with_fault(fault: Fault, incremental: bool) {
    let layout = layout();
    let states = [state(&layout, 1), state(&layout, 2), state(&layout, 3)];
    let (mut failed, mut at) = (0, 1);
    loop {
        let memory = MemoryDisk::new(Path::new("/c"));
        let good = Checkpoints::create("/c", options(Arc::new(memory.clone()))).unwrap();
        save(&good, (1, "a"), &layout, &states[0], 2).unwrap();
        let kept: Vec<_> = memory.content().into_iter().collect();
        drop(good);

        let faulty = FaultyDisk::new(Arc::new(memory.clone()), fault, at);
        let options = Options { incremental, keep: 1, ..options(Arc::new(faulty.clone())) };
        let to = Checkpoints::open("/c", options).unwrap();
        let mut second = states[1].clone();
        if incremental {
            second[0].clone_from(&states[0][0]);
            second[0][40_000 % (101 * 360)] ^= 1;
        }
        let result = save(&to, (2, "b"), &layout, &second, 2);
        let through = faulty.calls() < at;
        faulty.lift();
        let told = format!("{fault:?} at call {at}");
        match result {
            Err(error) => {
                failed += 1;
                let text = error.to_string();
                assert!(!through, "{told}: {text}");
                let Error::Io { path, .. } = &error else { panic!("{told}: {text}") };
                assert!(path.starts_with("/c"), "{told}: {text}");
                if text.contains("write") {
                    assert!(text.contains("at offset"), "{told}: {text}");
                }
                // The old one is as it was, and is the newest.
                let now = memory.content();
                assert!(kept.iter().all(|(path, bytes)| now.get(path) == Some(bytes)), "{told}");
                let latest = to.latest().unwrap().unwrap();
                assert!(latest.step() == 1 && load(&latest, 1).unwrap() == states[0], "{told}");
            }
            Ok(committed) => {
                let latest = to.latest().unwrap().unwrap();
                assert!(latest.step() == 2 && load(&latest, 1).unwrap() == second, "{told}");
                assert!(committed.left.is_none() || !through, "{told}");
            }
        }
        // A later save works, and nothing is left of what failed.
        save(&to, (3, "c"), &layout, &states[2], 1).unwrap_or_else(|error| panic!("{told}: {error}"));
        let latest = to.latest().unwrap().unwrap();
        assert!(latest.step() == 3 && load(&latest, 2).unwrap() == states[2], "{told}");
        let listed = to.list().unwrap();
        assert_eq!(listed.len(), 1, "{told}: {listed:?}");
        if through {
            break;
        }
        at += 1;
    }
    let expected = if fault == Fault::Short { 0 } else { 30 };
    assert!(at > 40 && failed >= expected, "{failed} of {at} failed");
    assert!(fault != Fault::Short || failed == 0, "{failed} short writes were not continued");
}

#[test]
fn an_error_at_any_call_is_told_and_the_old_checkpoint_stays() {
    with_fault(Fault::Once, false);
    with_fault(Fault::Once, true);
}

#[test]
fn a_disk_that_is_full_from_any_call_on_is_told_and_the_old_checkpoint_stays() {
    with_fault(Fault::Full, false);
    with_fault(Fault::Full, true);
}

#[test]
fn short_writes_are_continued_and_told_where_the_disk_is_full_behind_them() {
    with_fault(Fault::Short, false);
    with_fault(Fault::ShortThenFull, false);
}
