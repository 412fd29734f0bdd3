//! Bytes that are not what was written are found, and named.

#![allow(clippy::unwrap_used, reason = "a test fails that way")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::memory::MemoryDisk;
use common::*;
use transom_checkpoint::{Checkpoints, Error, Wrong};

/// Two checkpoints of the same step and state size by two jobs, and one at another step.
fn saved() -> (MemoryDisk, Checkpoints) {
    let disk = MemoryDisk::new(Path::new("/c"));
    let to = Checkpoints::create("/c", options(Arc::new(disk.clone()))).unwrap();
    for step in [1, 2] {
        save(&to, (step, "a"), &layout(), &state(&layout(), step), 2).unwrap();
    }
    (disk, to)
}

const STEP: &str = "/c/step-000000000002";

fn large() -> PathBuf {
    Path::new(STEP).join("00000-0-50-embedding_weight.safetensors")
}

fn found(to: &Checkpoints) -> Vec<(String, Option<usize>)> {
    let wrong = to.verify(2).unwrap();
    let told = |wrong: &Wrong| {
        let text = wrong.error.to_string();
        assert!(text.contains(&wrong.file), "{text}");
        wrong.block.iter().for_each(|block| assert!(text.contains(&format!("block {block}")), "{text}"));
        (wrong.file.clone(), wrong.block)
    };
    wrong.iter().map(told).collect()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().into()
}

#[test]
fn a_flipped_bit_anywhere_in_a_file_is_found_and_its_block_named() {
    let (disk, to) = saved();
    assert_eq!(found(&to), []);
    let files: Vec<_> = disk
        .content()
        .into_iter()
        .filter(|(path, _)| path.starts_with(STEP) && name(path).ends_with(".safetensors"))
        .collect();
    assert!(files.len() >= 4);
    for (path, bytes) in files {
        // Each byte near a border of header and blocks, and some in between.
        let near =
            |at: usize| at % 4096 < 2 || at % 4096 > 4093 || at.is_multiple_of(331) || at + 1 == bytes.len();
        for at in (0..bytes.len()).filter(|&at| near(at)) {
            let flip = |bytes: &mut Vec<u8>| bytes[at] ^= 1 << (at % 8);
            disk.damage(&path, flip);
            let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let block = at.checked_sub(header).map(|at| at / BLOCK);
            assert_eq!(found(&to), [(name(&path), block)], "byte {at}");
            if let Some(block) = block {
                let error = load(&to.checkpoint(2).unwrap(), 1).unwrap_err();
                let Error::Corrupt { path: named, what, .. } = &error else { panic!("{error}") };
                assert_eq!((named, what), (&path, &format!("block {block}")));
            }
            disk.damage(&path, flip);
        }
    }
    assert_eq!(found(&to), []);
}

#[test]
fn swapped_blocks_are_both_found_and_so_is_a_block_of_another_file() {
    let (disk, to) = saved();
    disk.damage(&large(), |bytes| {
        let (first, rest) = bytes[4096..].split_at_mut(BLOCK);
        first.swap_with_slice(&mut rest[..BLOCK]);
    });
    assert_eq!(found(&to), [(name(&large()), Some(0)), (name(&large()), Some(1))]);
    let (disk, to) = saved();
    let other = disk.content()[Path::new("/c/step-000000000001").join(name(&large())).as_path()].clone();
    disk.damage(&large(), |bytes| bytes[4096..][..BLOCK].copy_from_slice(&other[4096..][..BLOCK]));
    assert_eq!(found(&to), [(name(&large()), Some(0))]);
    assert!(load(&to.checkpoint(1).unwrap(), 1).is_ok());
}

#[test]
fn files_that_are_cut_off_grown_or_gone_make_a_step_incomplete_and_are_named() {
    for cut in [0, 100, 4096, 4097, 4096 + BLOCK - 1, 4096 + BLOCK] {
        let (disk, to) = saved();
        disk.damage(&large(), |bytes| bytes.truncate(cut));
        let why = to.list().unwrap()[1].incomplete.clone().unwrap();
        assert!(
            why.contains(&name(&large())) && why.contains(&format!("{cut} bytes, expected 22096")),
            "{why}"
        );
        assert_eq!(to.latest().unwrap().unwrap().step(), 1);
        let first = (cut >= 4096).then(|| (cut - 4096) / BLOCK);
        assert_eq!(found(&to)[0], (name(&large()), first), "{cut}");
    }
    let (disk, to) = saved();
    disk.damage(&large(), |bytes| bytes.push(0));
    assert!(to.list().unwrap()[1].incomplete.is_some());
    assert_eq!(found(&to), [(name(&large()), None)]);
    let (disk, to) = saved();
    transom_checkpoint::disk::Disk::remove(&disk, &large()).unwrap();
    assert!(to.list().unwrap()[1].incomplete.as_ref().unwrap().contains(&name(&large())));
    assert_eq!(found(&to), [(name(&large()), None)]);
    assert_eq!(to.latest().unwrap().unwrap().step(), 1);
}

#[test]
fn the_manifest_of_another_save_is_told() {
    let manifest = |of: &MemoryDisk, step: u64| {
        of.content()[Path::new(&format!("/c/step-{step:012}/manifest.json"))].clone()
    };
    let incomplete = |to: &Checkpoints| {
        let why = to.list().unwrap()[1].incomplete.clone().unwrap();
        assert!(matches!(to.verify(2), Err(Error::Incomplete { step: 2, .. })));
        assert!(matches!(to.checkpoint(2), Err(Error::Incomplete { step: 2, .. })));
        assert_eq!(to.latest().unwrap().unwrap().step(), 1);
        why
    };
    let path = Path::new(STEP).join("manifest.json");
    let (disk, to) = saved();
    let other = manifest(&disk, 1);
    disk.damage(&path, |bytes| *bytes = other);
    assert_eq!(incomplete(&to), "its manifest is that of step 1");

    // Of the same step, of another job.
    let elsewhere = MemoryDisk::new(Path::new("/c"));
    let job = Checkpoints::create("/c", options(Arc::new(elsewhere.clone()))).unwrap();
    save(&job, (2, "b"), &layout(), &state(&layout(), 9), 2).unwrap();
    let other = manifest(&elsewhere, 2);
    disk.damage(&path, |bytes| *bytes = other.clone());
    assert_eq!(incomplete(&to), "its manifest is that of save b, its files are of save a");

    // Where nothing says whose files they are, the digests do.
    transom_checkpoint::disk::Disk::remove(&disk, &Path::new(STEP).join("save-a")).unwrap();
    let wrong = found(&to);
    assert!(wrong.len() > 5 && wrong.iter().all(|(_, block)| block.is_some()), "{wrong:?}");
    assert!(matches!(load(&to.checkpoint(2).unwrap(), 1), Err(Error::Corrupt { .. })));
}

#[test]
fn a_damaged_manifest_is_never_taken_for_one() {
    let (disk, to) = saved();
    let path = Path::new(STEP).join("manifest.json");
    let whole = disk.content()[&path].clone();
    for at in (0..whole.len()).step_by(7) {
        disk.damage(&path, |bytes| bytes[at] ^= 4);
        assert!(
            to.list().unwrap()[1].incomplete.as_ref().unwrap().starts_with("its manifest: "),
            "byte {at}"
        );
        assert_eq!(to.latest().unwrap().unwrap().step(), 1);
        disk.damage(&path, |bytes| bytes.truncate(at));
        assert!(
            to.list().unwrap()[1].incomplete.as_ref().unwrap().starts_with("its manifest: "),
            "{at} bytes"
        );
        disk.damage(&path, |bytes| bytes.clone_from(&whole));
    }
    assert!(to.list().unwrap()[1].incomplete.is_none());
}
