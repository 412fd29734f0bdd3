//! The protocol of the staging window, on threads and on the simulated network: what is drained is what was staged, of one
//! step, whatever the ring's size is and whoever fails.

#![allow(clippy::unwrap_used, reason = "a test fails that way")]

use std::sync::Arc;
use std::time::Duration;

use transom::{MemoryRegion, Secret, Store, Team};
use transom_checkpoint::{Dtype, Event, Inbox, Layout, Note, Part, Roles, Saver, Staging, Tensor, Told};
use transom_transport::sim::{Adversary, Fabric};

const BLOCK: usize = 8192;
const LONG: Duration = Duration::from_secs(60);

fn layout() -> Layout {
    let tensor =
        |name: &str, dtype, shape: &[usize]| Tensor { name: name.into(), dtype, shape: shape.to_vec() };
    Layout {
        tensors: vec![
            tensor("wide", Dtype::F32, &[301, 300]),
            tensor("odd", Dtype::U8, &[4099]),
            tensor("scalar", Dtype::F64, &[]),
            tensor("narrow", Dtype::BF16, &[7, 3]),
        ],
    }
}

fn byte(step: u64, part: &Part, at: usize) -> u8 {
    (step as usize * 131 + part.tensor * 17 + part.rows.start * 7 + at + at / 251) as u8
}

fn fill(layout: &Layout, part: &Part, step: u64) -> Vec<u8> {
    (0..layout.size(part)).map(|at| byte(step, part, at)).collect()
}

fn note_of(step: u64) -> Note {
    Note::from_iter([("note".to_string(), format!("of {step}").into())])
}

/// The blocks of a trainer's shard, as they are expected to arrive.
fn expected(layout: &Layout, trainer: u32, trainers: u32, step: u64) -> Vec<u8> {
    let shard = layout.shard(trainer as usize, trainers as usize);
    let plan = transom_checkpoint::Plan::new(layout, &shard, BLOCK).unwrap();
    let parts: Vec<_> = shard.iter().map(|part| fill(layout, part, step)).collect();
    let mut all = Vec::new();
    for block in plan.blocks() {
        for piece in block.pieces() {
            all.extend_from_slice(&parts[piece.part][piece.bytes]);
        }
    }
    all
}

/// Steps that were whole, with their bytes, until the trainer ended.
fn drain(staging: &Staging, layout: &Layout, trainer: u32) -> Vec<(u64, Vec<u8>)> {
    let mut inbox = Inbox::new(staging, layout, trainer).unwrap();
    let (mut steps, mut open) = (Vec::new(), None);
    loop {
        let (event, end) = inbox.next(LONG).unwrap();
        match event {
            Event::Begin { step, note } => {
                assert_eq!(note, note_of(step));
                open = Some((step, Vec::new()));
            }
            Event::Block { bytes, last, .. } => {
                let (_, all) = open.as_mut().unwrap();
                let mut got = vec![0; bytes.size()];
                bytes.read(0, &mut got).unwrap();
                all.extend_from_slice(&got);
                if last {
                    steps.push(open.take().unwrap());
                }
            }
            Event::End => return steps,
        }
        inbox.free(end).unwrap();
    }
}

fn team(transport: &str, store: &Store, rank: u32, size: u32) -> Team {
    let builder = Team::builder().store(store.clone()).rank(rank).size(size).transports(transport);
    builder.secret(Secret::from_bytes([3; 32])).timeout(Duration::from_secs(20)).build().unwrap()
}

#[test]
fn what_is_drained_is_what_was_staged_on_every_transport_with_rings_large_and_small() {
    for transport in ["local", "shm", "tcp:127.0.0.1:0"] {
        for (roles, ring) in [
            (Roles { trainers: 1, writers: 1, standbys: 0 }, 2 * (BLOCK + 4096) as u64),
            (Roles { trainers: 3, writers: 2, standbys: 1 }, 40_000),
            (Roles { trainers: 2, writers: 1, standbys: 1 }, 1 << 21),
        ] {
            let (layout, store) = (layout(), Store::in_process());
            std::thread::scope(|scope| {
                for rank in 0..roles.ranks() {
                    let (layout, store) = (&layout, &store);
                    scope.spawn(move || {
                        let team = team(transport, store, rank, roles.ranks());
                        let staging = Staging::build(&team, roles, ring, BLOCK).unwrap();
                        if rank < roles.trainers {
                            let mut saver = Saver::new(&staging, layout).unwrap();
                            for step in 1..=6_u64 {
                                let shard = layout.shard(rank as usize, roles.trainers as usize);
                                let mut parts: Vec<_> =
                                    shard.iter().map(|part| fill(layout, part, step)).collect();
                                let staged = saver.save(step, &note_of(step), |part| &parts[part]).unwrap();
                                assert_eq!(staged.writer, roles.trainers + rank % roles.writers);
                                assert!(staged.lost.is_empty());
                                // The bytes are the trainer's again.
                                parts.iter_mut().for_each(|part| part.fill(0xee));
                            }
                            saver.end().unwrap();
                        } else {
                            let drained: Vec<_> = std::thread::scope(|scope| {
                                let drains: Vec<_> = staging
                                    .trainers()
                                    .into_iter()
                                    .map(|t| {
                                        (
                                            t,
                                            scope.spawn({
                                                let staging = &staging;
                                                move || drain(staging, layout, t)
                                            }),
                                        )
                                    })
                                    .collect();
                                drains.into_iter().map(|(t, drain)| (t, drain.join().unwrap())).collect()
                            });
                            for (trainer, steps) in drained {
                                if rank >= roles.trainers + roles.writers {
                                    assert!(steps.is_empty(), "a standby was needed");
                                    continue;
                                }
                                assert_eq!(
                                    steps.iter().map(|(s, _)| *s).collect::<Vec<_>>(),
                                    [1, 2, 3, 4, 5, 6]
                                );
                                for (step, bytes) in steps {
                                    assert!(
                                        bytes == expected(layout, trainer, roles.trainers, step),
                                        "{step}"
                                    );
                                }
                            }
                        }
                    });
                }
            });
        }
    }
}

/// Registered memory with a trainer's parts as they are at a step.
fn register(
    team: &Team,
    layout: &Layout,
    shard: &[Part],
    step: u64,
) -> (MemoryRegion, Vec<std::ops::Range<usize>>) {
    let mut places = Vec::new();
    let mut all = Vec::new();
    for part in shard {
        let bytes = fill(layout, part, step);
        places.push(all.len()..all.len() + bytes.len());
        all.extend_from_slice(&bytes);
    }
    let region = team.context().allocate(all.len(), 0).unwrap();
    region.write(0, &all).unwrap();
    (region, places)
}

/// A trainer and a writer of a simulated job. The writer may be killed when it has seen so many blocks: the standby then
/// drains what comes.
async fn simulated(
    fabric: Fabric,
    store: Store,
    roles: Roles,
    rank: u32,
    layout: Arc<Layout>,
    kill_after: Option<usize>,
) -> Vec<(u64, Vec<u8>)> {
    let context = fabric.open().unwrap();
    let builder = Team::builder().store(store).rank(rank).size(roles.ranks()).context(context);
    let team = builder.timeout(Duration::from_secs(30)).build_async().await.unwrap();
    let staging = Staging::build_async(&team, roles, 40_000, BLOCK).await.unwrap();
    if rank < roles.trainers {
        let mut saver = Saver::new(&staging, &layout).unwrap();
        let shard = layout.shard(rank as usize, roles.trainers as usize);
        let mut lost = 0;
        for step in 1..=5_u64 {
            let (region, places) = register(&team, &layout, &shard, step);
            let part = |part: usize| region.slice(places[part].clone()).unwrap();
            let staged = saver.save_async(step, &note_of(step), part).await.unwrap();
            lost += staged.lost.len();
            // The bytes are the trainer's again.
            region.write(0, &vec![0xee; region.size()]).unwrap();
        }
        assert_eq!(lost, usize::from(kill_after.is_some()));
        saver.end_async().await.unwrap();
        return Vec::new();
    }
    let mut steps = Vec::new();
    let mut seen = 0;
    for trainer in staging.trainers() {
        let mut inbox = Inbox::new(&staging, &layout, trainer).unwrap();
        let mut open = None;
        loop {
            let (event, end) = inbox.next_async(LONG).await.unwrap();
            match event {
                Event::Begin { step, note } => {
                    assert_eq!(note, note_of(step));
                    open = Some((step, Vec::new()));
                }
                Event::Block { bytes, last, .. } => {
                    seen += 1;
                    if kill_after.is_some_and(|after| seen > after) && rank == roles.trainers {
                        fabric.kill(team.context().incarnation());
                        return steps;
                    }
                    let (_, all) = open.as_mut().unwrap();
                    let mut got = vec![0; bytes.size()];
                    bytes.read(0, &mut got).unwrap();
                    all.extend_from_slice(&got);
                    if last {
                        steps.push(open.take().unwrap());
                    }
                }
                Event::End => break,
            }
            inbox.free_async(end).await.unwrap();
        }
    }
    steps
}

fn simulate(seed: u64, kill_after: Option<usize>) -> Vec<Vec<(u64, Vec<u8>)>> {
    let fabric = Fabric::new(seed, Adversary::wild());
    let roles = Roles { trainers: 1, writers: 1, standbys: 1 };
    let (store, layout) = (Store::in_process(), Arc::new(layout()));
    let tasks = (0..roles.ranks())
        .map(|rank| -> std::pin::Pin<Box<dyn Future<Output = _>>> {
            Box::pin(simulated(fabric.clone(), store.clone(), roles, rank, layout.clone(), kill_after))
        })
        .collect();
    fabric.run(tasks).unwrap()
}

fn seeds() -> u64 {
    std::env::var("TRANSOM_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(3)
}

#[test]
fn whatever_a_network_may_do_each_step_arrives_whole() {
    for seed in 0..seeds() {
        let drained = simulate(seed, None);
        assert_eq!(drained[1].len(), 5, "seed {seed}");
        for (step, bytes) in &drained[1] {
            assert!(*bytes == expected(&layout(), 0, 1, *step), "seed {seed}, step {step}");
        }
        assert!(drained[2].is_empty());
    }
}

#[test]
fn a_writer_that_dies_loses_no_step_that_had_not_left_its_trainer() {
    let blocks = expected(&layout(), 0, 1, 1).len().div_ceil(BLOCK);
    for seed in 0..seeds() {
        let drained = simulate(seed, Some(blocks + 3 + seed as usize % blocks));
        let steps: Vec<u64> = drained[1].iter().chain(&drained[2]).map(|(step, _)| *step).collect();
        // The one that it had may be gone with it: the trainer had gone on.
        assert!(drained[2].iter().all(|(step, _)| *step >= 2), "seed {seed}: {steps:?}");
        assert!(steps.ends_with(&[4, 5]), "seed {seed}: {steps:?}");
        for (step, bytes) in drained[1].iter().chain(&drained[2]) {
            assert!(*bytes == expected(&layout(), 0, 1, *step), "seed {seed}, step {step}");
        }
    }
}

#[test]
fn a_note_that_is_larger_than_a_block_is_refused_and_step_zero_is_a_step() {
    let (layout, store) = (layout(), Store::in_process());
    let roles = Roles { trainers: 1, writers: 1, standbys: 0 };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let staging = Staging::build(&team("shm", &store, 1, 2), roles, 1 << 20, BLOCK).unwrap();
            assert_eq!(drain(&staging, &layout, 0).iter().map(|(step, _)| *step).collect::<Vec<_>>(), [0]);
            staging.tell(0, Told::Durable, 0).unwrap();
            staging.team().barrier().unwrap();
        });
        let staging = Staging::build(&team("shm", &store, 0, 2), roles, 1 << 20, BLOCK).unwrap();
        let mut saver = Saver::new(&staging, &layout).unwrap();
        let parts: Vec<_> = layout.shard(0, 1).iter().map(|part| fill(&layout, part, 0)).collect();
        let large = Note::from_iter([("note".to_string(), "x".repeat(BLOCK).into())]);
        let refused = saver.save(0, &large, |part| &parts[part]).unwrap_err();
        assert!(refused.to_string().contains(&BLOCK.to_string()), "{refused}");
        saver.save(0, &note_of(0), |part| &parts[part]).unwrap();
        assert_eq!(saver.durable().unwrap(), None);
        assert!(saver.wait_durable(0, Duration::from_millis(1)).unwrap_err().is_expired());
        saver.end().unwrap();
        staging.team().barrier().unwrap();
    });
}
