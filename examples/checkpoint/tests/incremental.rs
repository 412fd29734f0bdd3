//! Files that have not changed are linked, and those that begin to differ are written whole.

#![allow(clippy::unwrap_used, reason = "a test fails that way")]

mod common;

use std::path::Path;
use std::sync::Arc;

use common::memory::{MemoryDisk, Op};
use common::*;
use transom_checkpoint::{Checkpoints, Error, Options};

fn incremental(disk: &MemoryDisk) -> Checkpoints {
    let options = Options { incremental: true, keep: 2, ..options(Arc::new(disk.clone())) };
    Checkpoints::create("/c", options).unwrap()
}

fn written(disk: &MemoryDisk) -> usize {
    let size = |op: &Op| if let Op::Write { bytes, .. } = op { bytes.len() } else { 0 };
    disk.log().iter().map(size).sum()
}

#[test]
fn what_has_not_changed_is_linked_for_ever_and_costs_a_manifest() {
    let disk = MemoryDisk::new(Path::new("/c"));
    let to = incremental(&disk);
    let (layout, state) = (layout(), state(&layout(), 1));
    let first = save(&to, (1, "a"), &layout, &state, 2).unwrap();
    assert_eq!(first.linked, 0);
    for step in 2..6 {
        disk.settle();
        let again = save(&to, (step, "a"), &layout, &state, 2).unwrap();
        assert_eq!((again.linked, again.size), (first.size, first.size));
        assert!(written(&disk) < 8192, "{} bytes were written", written(&disk));
        assert!(load(&to.latest().unwrap().unwrap(), 3).unwrap() == state);
        assert!(to.verify(step).unwrap().is_empty());
    }
    assert_eq!(to.list().unwrap().iter().map(|one| one.step).collect::<Vec<_>>(), [4, 5]);
}

#[test]
fn a_change_of_any_one_byte_is_saved_and_the_older_checkpoint_keeps_its_own() {
    let disk = MemoryDisk::new(Path::new("/c"));
    let to = incremental(&disk);
    let layout = layout();
    let mut now = state(&layout, 1);
    save(&to, (1, "a"), &layout, &now, 2).unwrap();
    let mut step = 1;
    for at in (0..layout.tensors[0].size()).step_by(3500) {
        let before = now.clone();
        now[0][at] ^= 0x40;
        step += 1;
        let committed = save(&to, (step, "a"), &layout, &now, 2).unwrap();
        assert!(committed.linked > 0 && committed.linked < committed.size, "one file of several is new");
        assert!(load(&to.checkpoint(step).unwrap(), 1).unwrap() == now, "byte {at}");
        assert!(load(&to.checkpoint(step - 1).unwrap(), 1).unwrap() == before, "byte {at}");
        assert!(to.verify(step).unwrap().is_empty());
    }
    assert!(step > 10);
}

#[test]
fn other_shards_and_other_blocks_are_written_anew() {
    let disk = MemoryDisk::new(Path::new("/c"));
    let to = incremental(&disk);
    let (layout, state) = (layout(), state(&layout(), 1));
    save(&to, (1, "a"), &layout, &state, 2).unwrap();
    let committed = save(&to, (2, "a"), &layout, &state, 3).unwrap();
    assert!(load(&to.checkpoint(2).unwrap(), 2).unwrap() == state);
    // A file of all rows of a tensor may be the same one.
    assert!(committed.linked < committed.size / 2);
    save(&to, (3, "a"), &layout, &state, 1).unwrap();
    let shard = layout.shard(0, 1);
    let written = write(&to, (4, "a"), &layout, &state, &shard, 4096).unwrap();
    assert_eq!(written.linked(), 0, "digests of other blocks say nothing");
    to.commit(&layout, &user(4), vec![written]).unwrap();
    assert!(load(&to.checkpoint(4).unwrap(), 1).unwrap() == state);
}

#[test]
fn a_damaged_older_file_is_told_when_its_bytes_are_needed_and_never_built_on_again() {
    let disk = MemoryDisk::new(Path::new("/c"));
    let to = incremental(&disk);
    let layout = layout();
    let mut now = state(&layout, 1);
    save(&to, (1, "a"), &layout, &now, 1).unwrap();
    let path = Path::new("/c/step-000000000001/00000-0-101-embedding_weight.safetensors");
    disk.damage(path, |bytes| bytes[4096 + 10] ^= 1);
    // The last block is new: the first one would have to come from the older file.
    *now[0].last_mut().unwrap() ^= 1;
    let error = save(&to, (2, "a"), &layout, &now, 1).unwrap_err();
    let Error::Corrupt { path: named, what, .. } = &error else { panic!("{error}") };
    assert_eq!((named.as_path(), what.as_str()), (path, "block 0"));
    save(&to, (3, "a"), &layout, &now, 1).unwrap();
    assert!(load(&to.latest().unwrap().unwrap(), 2).unwrap() == now);
}
