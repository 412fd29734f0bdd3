//! States, and how they are saved and loaded, for all tests.
#![allow(clippy::unwrap_used, reason = "a test fails that way")]
#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod faulty;
pub(crate) mod memory;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, mpsc};

use serde_json::{Map, json};
use transom::{Context, MemoryRegion};
use transom_checkpoint::disk::Disk;
use transom_checkpoint::{
    Checkpoint, Checkpoints, Committed, Dtype, Layout, Options, Part, Plan, Result, Tensor, Written,
};

/// Blocks of the tests: small, so that there are many.
pub(crate) const BLOCK: usize = 8192;

pub(crate) static CONTEXT: LazyLock<Context> =
    LazyLock::new(|| Context::builder().transports("local").build().unwrap());

pub(crate) fn region(size: usize) -> MemoryRegion {
    CONTEXT.allocate(size.max(1), 0).unwrap()
}

/// A directory that is removed with its guard.
pub(crate) struct TempDir(pub(crate) PathBuf);

impl TempDir {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("transom-checkpoint-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn tensor(name: &str, dtype: Dtype, shape: &[usize]) -> Tensor {
    Tensor { name: name.into(), dtype, shape: shape.to_vec() }
}

/// Own files of one and several blocks, a shared one, a scalar, a tensor with fewer rows than shards, and an empty one.
pub(crate) fn layout() -> Layout {
    Layout {
        tensors: vec![
            tensor("embedding/weight", Dtype::F32, &[101, 90]),
            tensor("bias", Dtype::F32, &[7]),
            tensor("flags", Dtype::U8, &[2, 3]),
            tensor("step count", Dtype::I64, &[]),
            tensor("head.weight", Dtype::BF16, &[64, 33]),
            tensor("nothing", Dtype::F16, &[4, 0]),
            tensor("../../etc/passwd", Dtype::F64, &[1, 5]),
        ],
    }
}

/// The bytes of all tensors.
pub(crate) type State = Vec<Vec<u8>>;

/// A state that looks like no other of another seed.
pub(crate) fn state(layout: &Layout, seed: u64) -> State {
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        (word >> 32) as u8
    };
    layout.tensors.iter().map(|tensor| (0..tensor.size()).map(|_| next()).collect()).collect()
}

pub(crate) fn bytes<'a>(layout: &Layout, state: &'a State, part: &Part) -> &'a [u8] {
    let row = layout.tensors[part.tensor].row_size();
    &state[part.tensor][part.rows.start * row..part.rows.end * row]
}

pub(crate) fn options(disk: Arc<dyn Disk>) -> Options {
    Options { queue_depth: 3, disk, ..Options::default() }
}

/// Writes one shard of a state.
pub(crate) fn write(
    to: &Checkpoints,
    (step, id): (u64, &str),
    layout: &Layout,
    state: &State,
    shard: &[Part],
    block_size: usize,
) -> Result<Written> {
    let plan = Plan::new(layout, shard, block_size)?;
    let save = to.begin(step, id, plan.clone())?;
    let (done, results) = mpsc::channel();
    let mut blocks = 0;
    let staging = region(plan.blocks().count() * block_size);
    for (slot, block) in plan.blocks().enumerate() {
        let slot = staging.slice(slot * block_size..slot * block_size + block.size).unwrap();
        let mut at = 0;
        for piece in block.pieces() {
            slot.write(at, &bytes(layout, state, &shard[piece.part])[piece.bytes.clone()]).unwrap();
            at += piece.bytes.len();
        }
        assert_eq!(at, block.size);
        let done = done.clone();
        save.write(block.file, block.index, slot, move |result| done.send(result).unwrap());
        blocks += 1;
    }
    drop(done);
    assert_eq!(results.iter().count(), blocks, "each block is told once");
    save.finish()
}

/// Saves a state, cut into so many shards.
pub(crate) fn save(
    to: &Checkpoints,
    (step, id): (u64, &str),
    layout: &Layout,
    state: &State,
    shards: usize,
) -> Result<Committed> {
    let written = (0..shards)
        .map(|shard| write(to, (step, id), layout, state, &layout.shard(shard, shards), BLOCK))
        .collect::<Result<_>>();
    let committed = written.and_then(|written| to.commit(layout, &user(step), written));
    if committed.is_err() {
        let _ = to.abandon(step);
    }
    committed
}

pub(crate) fn user(step: u64) -> Map<String, serde_json::Value> {
    let value = json!({"seed": 7, "trained": step});
    value.as_object().unwrap().clone()
}

/// Loads all of a checkpoint, cut into so many shards.
pub(crate) fn load(from: &Checkpoint, shards: usize) -> Result<State> {
    let layout = from.layout();
    let mut state: State = layout.tensors.iter().map(|tensor| vec![0xee; tensor.size()]).collect();
    for shard in 0..shards {
        let mut targets = Vec::new();
        for (part, tensor) in layout.shard(shard, shards).into_iter().map(|part| (part.clone(), part.tensor))
        {
            targets.push((tensor, part));
        }
        let mut rest: Vec<&mut [u8]> = state.iter_mut().map(Vec::as_mut_slice).collect();
        let mut parts = Vec::new();
        for (tensor, part) in targets {
            let row = layout.tensors[tensor].row_size();
            let target = std::mem::take(&mut rest[tensor]);
            let target = &mut target[part.rows.start * row..part.rows.end * row];
            parts.push((part, target.into()));
        }
        from.load(parts)?;
    }
    Ok(state)
}
