//! Power cuts: every prefix of what a save does to the disk, and of what was not synced whatever the disk may have kept.

#![allow(clippy::unwrap_used, reason = "a test fails that way")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::memory::{Kept, MemoryDisk, Op};
use common::*;
use transom_checkpoint::{Checkpoints, Layout, Options};

fn open(disk: &MemoryDisk, incremental: bool) -> Checkpoints {
    let options = Options { keep: 1, incremental, ..options(Arc::new(disk.clone())) };
    Checkpoints::create(root(), options).unwrap()
}

fn root() -> PathBuf {
    "/c".into()
}

/// A sequence of numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Goes through all power cuts during the step from one state to the next; `commit` tells from which operation on the new
/// one has to be there.
fn cuts(
    from: &MemoryDisk,
    log: &[Op],
    committed: usize,
    layout: &Layout,
    states: &[State],
    incremental: bool,
) {
    let tries = if std::env::var_os("TRANSOM_LONG").is_some() { 200 } else { 12 };
    let (mut old, mut new) = (0, 0);
    for cut in 0..=log.len() {
        for attempt in 0..tries {
            let mut random = Random(cut as u64 * 1000 + attempt);
            let keep = |op: &Op| match (attempt, op) {
                (0, _) => Kept::Nothing,
                (1, _) => Kept::Whole,
                // Names first, bytes first, and any mixture.
                (2, Op::Names { .. }) | (3, Op::Write { .. } | Op::SetSize { .. }) => Kept::Whole,
                (2 | 3, _) => Kept::Nothing,
                (_, Op::Write { bytes, .. }) if random.below(3) == 0 => {
                    Kept::First(random.below(bytes.len() as u64 / 512 + 1) as usize * 512)
                }
                _ if random.below(2) == 0 => Kept::Nothing,
                _ => Kept::Whole,
            };
            let disk = from.after_power_cut(&log[..cut], keep);
            let told = format!("cut {cut} of {}, attempt {attempt}", log.len());
            let checkpoints = open(&disk, incremental);
            let checkpoint = checkpoints.latest().unwrap().unwrap_or_else(|| panic!("{told}: no checkpoint"));
            let step = checkpoint.step();
            assert!(step == 1 || step == 2, "{told}: step {step}");
            if cut >= committed {
                assert_eq!(step, 2, "{told}: it was promised");
            }
            let loaded = load(&checkpoint, 1).unwrap_or_else(|error| panic!("{told}: {error}"));
            assert!(loaded == states[step as usize - 1], "{told}: step {step} is not what was saved");
            *if step == 1 { &mut old } else { &mut new } += 1;
            // Life goes on, whatever was left.
            if attempt < 4 || cut % 16 == 0 {
                let next = if step == 1 { 2 } else { 3 };
                save(&checkpoints, (next, "later"), layout, &states[2], 1)
                    .unwrap_or_else(|e| panic!("{told}: {e}"));
                assert!(load(&checkpoints.latest().unwrap().unwrap(), 2).unwrap() == states[2], "{told}");
                let names = checkpoints.list().unwrap();
                assert!(names.len() == 1 && names[0].step == next, "{told}: {names:?} is left");
            }
        }
    }
    assert!(old > 0 && new > 0, "both were seen: {old} {new}");
}

fn power_cuts(states: &[State; 3], incremental: bool) {
    let layout = layout();
    let disk = MemoryDisk::new(&root());
    let to = open(&disk, incremental);
    save(&to, (1, "a"), &layout, &states[0], 2).unwrap();
    disk.settle();
    let before = disk.fork();
    // Two writers, and the older checkpoint is removed at the end.
    let committed = save(&to, (2, "b"), &layout, &states[1], 2).unwrap();
    assert_eq!(committed.removed, [1]);
    assert_eq!(committed.linked > 0, incremental);
    let log = disk.log();
    // With the first sync of a directory after the rename, the new one is promised.
    let named = |op: &Op| matches!(op, Op::Names { changes, .. } if changes.len() == 2);
    let renamed = log.iter().position(named).unwrap();
    let committed =
        renamed + log[renamed..].iter().position(|op| matches!(op, Op::SyncDir { .. })).unwrap() + 1;
    assert!(log.len() > committed + 3 && committed > 20, "{committed} of {}", log.len());
    cuts(&before, &log, committed, &layout, states, incremental);
}

#[test]
fn after_a_power_cut_at_any_moment_there_is_the_old_checkpoint_or_the_new_one_whole() {
    let layout = layout();
    power_cuts(&[state(&layout, 1), state(&layout, 2), state(&layout, 3)], false);
}

#[test]
fn the_same_when_files_are_linked_or_begin_as_copies() {
    let layout = layout();
    let first = state(&layout, 1);
    let mut second = first.clone();
    // The first shard of the large tensor changes in its last block, and the second one not at all.
    second[0][49 * 360 + 5] ^= 1;
    second[1][6] ^= 1;
    let mut third = second.clone();
    third[4][9] ^= 1;
    power_cuts(&[first, second, third], true);
}

#[test]
fn a_power_cut_during_the_very_first_save_leaves_nothing_that_looks_like_a_checkpoint() {
    let (layout, states) = (layout(), [state(&layout(), 1)]);
    let disk = MemoryDisk::new(Path::new("/c"));
    let to = open(&disk, false);
    disk.settle();
    let before = disk.fork();
    save(&to, (1, "a"), &layout, &states[0], 1).unwrap();
    let log = disk.log();
    for cut in 0..log.len() {
        for kept in [Kept::Nothing, Kept::Whole, Kept::First(512)] {
            let disk = before.after_power_cut(&log[..cut], |_| kept);
            if let Some(checkpoint) = open(&disk, false).latest().unwrap() {
                assert!(load(&checkpoint, 1).unwrap() == states[0], "cut {cut}");
            }
        }
    }
}
