//! Saves and loads, on disks that do as they are told.

#![allow(clippy::unwrap_used, reason = "a test fails that way")]

mod common;

use std::path::Path;
use std::sync::Arc;

use common::memory::MemoryDisk;
use common::*;
use proptest::prelude::*;
use transom_checkpoint::disk::RealDisk;
use transom_checkpoint::{Checkpoints, Dtype, Error, Layout, Options, Part, Plan};

fn memory() -> (MemoryDisk, Checkpoints) {
    let disk = MemoryDisk::new(Path::new("/c"));
    let checkpoints = Checkpoints::create("/c", options(Arc::new(disk.clone()))).unwrap();
    (disk, checkpoints)
}

#[test]
fn a_state_comes_back_for_every_number_of_shards_saved_and_loaded_on_a_real_disk() {
    let layout = layout();
    for disk in [RealDisk::default(), RealDisk::buffered()] {
        let dir = TempDir::new();
        let to = Checkpoints::create(&dir.0, options(Arc::new(disk))).unwrap();
        for saved in 1..5 {
            let (step, state) = (saved as u64 * 10, state(&layout, saved as u64));
            let committed = save(&to, (step, "a"), &layout, &state, saved).unwrap();
            let checkpoint = to.latest().unwrap().unwrap();
            assert_eq!((checkpoint.step(), checkpoint.save()), (step, "a"));
            assert_eq!((checkpoint.layout(), checkpoint.user()), (&layout, &user(step)));
            assert_eq!((checkpoint.size(), committed.linked), (committed.size, 0));
            for loaded in 1..5 {
                assert!(load(&checkpoint, loaded).unwrap() == state, "{saved} saved, {loaded} load");
            }
            assert!(to.verify(step).unwrap().is_empty());
        }
    }
}

#[test]
fn registered_memory_is_loaded_into_and_any_rows_can_be_asked_for() {
    let (_, to) = memory();
    let (layout, state) = (layout(), state(&layout(), 3));
    save(&to, (1, "a"), &layout, &state, 2).unwrap();
    let checkpoint = to.checkpoint(1).unwrap();
    for (unverified, rows) in
        [(false, 0..101), (false, 33..77), (true, 50..51), (true, 0..101), (false, 9..9)]
    {
        let part = Part { tensor: 0, rows };
        let size = layout.size(&part);
        let region = region(size + 1);
        // At an odd address.
        let target = region.slice(1..1 + size).unwrap();
        let parts = [(part.clone(), target.clone().into())];
        if unverified { checkpoint.load_unverified(parts) } else { checkpoint.load(parts) }.unwrap();
        let mut seen = vec![0; size];
        target.read(0, &mut seen).unwrap();
        assert!(seen == bytes(&layout, &state, &part), "{part:?}");
    }
}

#[test]
fn parts_that_are_not_there_and_targets_of_another_size_are_refused() {
    let (_, to) = memory();
    save(&to, (1, "a"), &layout(), &state(&layout(), 3), 1).unwrap();
    let checkpoint = to.checkpoint(1).unwrap();
    for (tensor, rows, size) in [(0, 0..102, 36720), (7, 0..1, 4), (0, 0..1, 359), (1, 0..7, 29)] {
        let mut target = vec![0; size];
        let error = checkpoint.load([(Part { tensor, rows }, target.as_mut_slice().into())]).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
}

#[test]
fn only_the_last_checkpoints_are_kept_and_list_tells_each() {
    let (disk, to) = memory();
    let layout = layout();
    let mut removed = Vec::new();
    for step in 1..=6 {
        removed.extend(save(&to, (step, "a"), &layout, &state(&layout, step), 2).unwrap().removed);
    }
    assert_eq!(removed, [1, 2, 3]);
    let listed = to.list().unwrap();
    assert_eq!(listed.iter().map(|one| one.step).collect::<Vec<_>>(), [4, 5, 6]);
    assert!(listed.iter().all(|one| one.incomplete.is_none() && one.size > 40_000));
    assert!(disk.content().keys().all(|path| !path.starts_with("/c/step-000000000001")));
}

#[test]
fn a_complete_step_is_never_written_over_and_leftovers_are_removed() {
    let (disk, to) = memory();
    let (layout, one) = (layout(), state(&layout(), 1));
    save(&to, (1, "a"), &layout, &one, 1).unwrap();
    let plan = Plan::new(&layout, &layout.shard(0, 1), BLOCK).unwrap();
    assert!(matches!(to.begin(1, "b", plan.clone()), Err(Error::Exists { step: 1 })));

    // Somebody writes step 2 and is not heard of again: its files are there, its locks are not.
    let written = write(&to, (2, "lost"), &layout, &one, &layout.shard(0, 1), BLOCK).unwrap();
    let (disk, left) = (disk.fork(), disk.content());
    assert!(left.keys().any(|path| path.starts_with("/c/step-000000000002")));
    let to = Checkpoints::create("/c", options(Arc::new(disk.clone()))).unwrap();
    assert_eq!(
        to.list().unwrap()[1].incomplete.as_deref(),
        Some("it has no manifest: the save has not ended")
    );
    assert_eq!(to.latest().unwrap().unwrap().step(), 1);
    save(&to, (2, "again"), &layout, &state(&layout, 2), 1).unwrap();
    assert!(load(&to.checkpoint(2).unwrap(), 1).unwrap() == state(&layout, 2));
    assert!(matches!(to.commit(&layout, &user(2), vec![written]), Err(Error::Exists { step: 2 })));

    write(&to, (3, "lost"), &layout, &one, &layout.shard(0, 1), BLOCK).unwrap();
    let disk = disk.fork();
    let to = Checkpoints::create("/c", options(Arc::new(disk.clone()))).unwrap();
    drop(to.begin(4, "b", plan).unwrap());
    assert_eq!(to.list().unwrap().len(), 3, "step 3 is gone, 4 has begun");
}

#[test]
fn a_step_that_another_writer_fills_is_left_alone_and_both_fill_one() {
    let (disk, first) = memory();
    let second = Checkpoints::open("/c", options(Arc::new(disk.clone()))).unwrap();
    let (layout, state) = (layout(), state(&layout(), 1));
    let shards = [layout.shard(0, 2), layout.shard(1, 2)];
    let one = write(&first, (1, "a"), &layout, &state, &shards[0], BLOCK).unwrap();
    // The second is at a later step already, and removes leftovers, which the first one's are not.
    let plan = Plan::new(&layout, &shards[1], BLOCK).unwrap();
    let later = second.begin(2, "b", plan.clone()).unwrap();
    assert!(second.begin(1, "other", plan).unwrap_err().to_string().contains("under another id"));
    let two = write(&second, (1, "a"), &layout, &state, &shards[1], BLOCK).unwrap();
    let two = transom_checkpoint::Written::from_bytes(&two.to_bytes()).unwrap();
    first.commit(&layout, &user(1), vec![one, two]).unwrap();
    assert!(load(&first.checkpoint(1).unwrap(), 3).unwrap() == state);
    drop(later);
    first.abandon(2).unwrap();
    assert_eq!(first.list().unwrap().len(), 2, "the second one still has step 2");
    second.abandon(2).unwrap();
    assert_eq!(first.list().unwrap().len(), 1);
}

#[test]
fn a_save_that_is_dropped_leaves_no_file_and_no_write_behind_it() {
    let (disk, to) = memory();
    let layout = layout();
    let before = disk.content();
    let plan = Plan::new(&layout, &layout.shard(0, 1), BLOCK).unwrap();
    let save = to.begin(1, "a", plan.clone()).unwrap();
    let (done, written) = std::sync::mpsc::channel();
    for block in plan.blocks().take(4) {
        let done = done.clone();
        let from = region(BLOCK).slice(0..block.size).unwrap();
        save.write(block.file, block.index, from, move |result| done.send(result).unwrap());
    }
    // Some are on the disk, the others on their way.
    written.recv().unwrap().unwrap();
    drop(save);
    let left = |name: &Path| name.extension().is_some_and(|extension| extension == "safetensors");
    assert!(!disk.content().keys().any(|path| left(path)), "its files are gone");
    to.abandon(1).unwrap();
    assert_eq!(disk.content(), before);
}

#[test]
fn blocks_that_are_missing_twice_wrong_or_unknown_fail_the_save() {
    let (_, to) = memory();
    let layout = layout();
    let plan = Plan::new(&layout, &layout.shard(0, 1), BLOCK).unwrap();
    let wrong = |step, blocks: &[(usize, usize, usize)]| {
        let save = to.begin(step, "a", plan.clone()).unwrap();
        for &(file, block, size) in blocks {
            save.write(file, block, region(BLOCK).slice(0..size).unwrap(), |_| {});
        }
        save.finish().unwrap_err().to_string()
    };
    assert!(wrong(1, &[]).contains("were not written"));
    assert!(wrong(2, &[(0, 0, BLOCK), (0, 0, BLOCK)]).contains("came twice"));
    assert!(wrong(3, &[(0, 0, 4096)]).contains("expected 8192"));
    assert!(wrong(4, &[(0, 99, BLOCK)]).contains("block 99 of file 0, which has 5"));
    assert!(wrong(5, &[(99, 0, BLOCK)]).contains("file 99"));
}

#[test]
fn a_commit_takes_only_what_goes_together_and_is_the_whole_state() {
    let (_, to) = memory();
    let (layout, state) = (layout(), state(&layout(), 1));
    let shard = |step, id, shard, shards| {
        write(&to, (step, id), &layout, &state, &layout.shard(shard, shards), BLOCK).unwrap()
    };
    let refused = |written| to.commit(&layout, &user(1), written).unwrap_err().to_string();
    let (half, third, whole) = (shard(1, "a", 0, 2), shard(2, "a", 2, 3), shard(3, "a", 0, 1));
    assert!(refused(vec![]).contains("nothing was written"));
    assert!(refused(vec![half.clone()]).contains("rows 50..101 of embedding/weight are in no file"));
    assert!(refused(vec![half.clone(), third]).contains("do not go with"));
    assert!(refused(vec![whole.clone(), whole.clone()]).contains("is there twice"));
    let mut other = layout.clone();
    other.tensors[0].shape = vec![101, 91];
    assert!(to.commit(&other, &user(1), vec![whole.clone()]).is_err());
    to.commit(&layout, &user(3), vec![whole]).unwrap();
    assert_eq!(to.latest().unwrap().unwrap().step(), 3);
}

#[test]
fn a_directory_that_cannot_be_written_is_told_at_the_start() {
    let error = Checkpoints::create("/proc/transom", Options::default()).unwrap_err().to_string();
    assert!(error.contains("/proc/transom"), "{error}");
    let dir = TempDir::new();
    let file = dir.0.join("file");
    std::fs::write(&file, b"").unwrap();
    let error = Checkpoints::create(&file, Options::default()).unwrap_err().to_string();
    assert!(error.contains("Not a directory"), "{error}");
    let error = Checkpoints::open(dir.0.join("none"), Options::default()).unwrap_err().to_string();
    assert!(error.contains("none"), "{error}");
}

#[test]
fn files_have_plain_names_and_headers_that_the_format_s_own_library_reads() {
    let (disk, to) = memory();
    let (layout, state) = (layout(), state(&layout(), 9));
    save(&to, (1, "a"), &layout, &state, 2).unwrap();
    let mut tensors = 0;
    for (path, bytes) in disk.content() {
        let name = path.file_name().unwrap().to_str().unwrap();
        if !name.ends_with(".safetensors") {
            continue;
        }
        assert!(path.parent().unwrap().ends_with("step-000000000001"), "{path:?}");
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)), "{name}");
        let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        for (name, view) in read.tensors() {
            let of = layout.tensors.iter().find(|tensor| tensor.name == name).unwrap();
            assert_eq!(
                (view.dtype(), &view.shape()[view.shape().len().min(1)..]),
                (of.dtype, &of.shape[of.shape.len().min(1)..])
            );
            assert!(
                view.data()
                    .as_ptr()
                    .addr()
                    .wrapping_sub(bytes.as_ptr().addr())
                    .is_multiple_of(of.dtype.bitsize() / 8)
            );
            tensors += 1;
        }
        let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert!(start.is_multiple_of(4096));
    }
    assert_eq!(tensors, layout.shard(0, 2).len() + layout.shard(1, 2).len());
}

#[test]
fn layouts_and_shards_that_make_no_sense_are_refused() {
    let one = |tensors| Layout { tensors };
    let f32 = |name: &str, shape: &[usize]| tensor(name, Dtype::F32, shape);
    let long = "x".repeat(1025);
    for (layout, why) in [
        (one(vec![f32("a", &[1]), f32("a", &[2])]), "twice"),
        (one(vec![f32("", &[1])]), "1 to 1024"),
        (one(vec![f32(&long, &[1])]), "1 to 1024"),
        (one(vec![f32("__metadata__", &[1])]), "__metadata__"),
        (one(vec![f32("a", &[usize::MAX, usize::MAX])]), "2^48 bits"),
        (one(vec![f32("a", &[0, usize::MAX])]), "2^48 bits"),
        (one(vec![tensor("a", Dtype::F4, &[4, 3])]), "rows of 12 bits"),
    ] {
        let error = Plan::new(&layout, &[], BLOCK).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let layout = layout();
    let part = |tensor, rows| Part { tensor, rows };
    for shard in [vec![part(9, 0..1)], vec![part(0, 0..102)], vec![part(1, 0..1), part(1, 1..2)]] {
        assert!(Plan::new(&layout, &shard, BLOCK).is_err(), "{shard:?}");
    }
    assert!(Plan::new(&layout, &[], 4097).is_err());
    assert!(Plan::new(&layout, &[], 0).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_state_comes_back_for_any_numbers_of_shards(
        shapes in prop::collection::vec((0..4_usize, prop::collection::vec(0..60_usize, 0..3)), 1..6),
        saved in 1..5_usize,
        loaded in 1..6_usize,
        seed: u64,
        pages in 1..4_usize,
    ) {
        let dtypes = [Dtype::U8, Dtype::F16, Dtype::F32, Dtype::F64];
        let tensors = shapes.iter().enumerate();
        let layout = Layout {
            tensors: tensors.map(|(at, (dtype, shape))| tensor(&format!("t/{at}"), dtypes[*dtype], shape)).collect(),
        };
        let state = state(&layout, seed);
        let (_, to) = memory();
        let written = (0..saved).map(|shard| {
            write(&to, (5, "p"), &layout, &state, &layout.shard(shard, saved), pages * 4096).unwrap()
        });
        to.commit(&layout, &user(5), written.collect()).unwrap();
        let checkpoint = to.latest().unwrap().unwrap();
        prop_assert!(load(&checkpoint, loaded).unwrap() == state);
        prop_assert!(to.verify(5).unwrap().is_empty());
    }

    #[test]
    fn the_blocks_of_a_plan_hold_each_byte_of_a_shard_once(
        rows in prop::collection::vec((0..50_usize, 0..300_usize), 0..6),
        shards in 1..4_usize,
        shard in 0..4_usize,
    ) {
        let tensors = rows.iter().enumerate();
        let layout = Layout {
            tensors: tensors.map(|(at, (rows, row))| tensor(&format!("{at}"), Dtype::U8, &[*rows, *row])).collect(),
        };
        let shard = layout.shard(shard % shards, shards);
        let plan = Plan::new(&layout, &shard, 4096).unwrap();
        let mut next = vec![0; shard.len()];
        for block in plan.blocks() {
            let mut size = 0;
            for piece in block.pieces() {
                prop_assert_eq!(piece.bytes.start, next[piece.part]);
                prop_assert!(!piece.bytes.is_empty());
                next[piece.part] = piece.bytes.end;
                size += piece.bytes.len();
            }
            prop_assert_eq!(size, block.size);
        }
        let sizes: Vec<usize> = shard.iter().map(|part| layout.size(part)).collect();
        prop_assert_eq!(next, sizes);
    }
}
