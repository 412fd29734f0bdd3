//! `checkpoint bench`: what saving and loading cost, without training.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use transom::{Context, Team};
use transom_checkpoint::bench::{self, Beside};
use transom_checkpoint::{BLOCK, Checkpoints, Note, Role, Saver};

use super::baseline::Copy;
use super::crash::Crash;
use super::job::{self, Place};
use super::options::Bench;
use super::report::{self, median, ms};
use super::state::{Fixed, State};
use super::training::Directory;
use super::{pattern, print, writer};
use crate::Failed;

/// The save after which memory is flat.
const SETTLED: u64 = 3;

/// Measures the disk alone, then starts a job that measures saves; or is one rank of it.
pub(crate) fn run(options: &Bench) -> Result<ExitCode, Failed> {
    if job::is_rank()? {
        return rank(options).map(|()| ExitCode::SUCCESS);
    }
    let directory = Directory::make(&options.keeping)?;
    let mut disk = bench::Bench::new(&context()?, directory.path(), (options.size << 20) as usize, 8)?;
    let turns = options.repeat as usize;
    let mut out = format!("a state of {:.0} MB\n", disk.size() as f64 / 1e6);
    row(&mut out, "save, durable", &disk.durable(turns)?, "the disk's own limit");
    row(&mut out, "load, cold", &disk.load(turns, true, true)?, "a plain read");
    row(&mut out, "load, warm", &disk.load(turns, false, true)?, "a plain read");
    row(&mut out, "load, warm, no digest compared", &disk.load(turns, false, false)?, "a plain read");
    print(&out);
    drop(disk);
    job::start(&options.job, directory.made())
}

fn row(out: &mut String, what: &str, figures: &Beside, raw: &str) {
    let (ours, limit) = (figures.ours() / 1e9, figures.raw() / 1e9);
    let ratio = figures.ratio();
    let _ = writeln!(out, "{what:<38} {ours:>6.2} GB/s   beside {raw}: {limit:.2} GB/s, {ratio:.2} of it");
}

fn context() -> Result<Context, Failed> {
    Ok(Context::builder().transports("local").build()?)
}

/// What the disk of a directory takes at most, in bytes per second, as often as it is asked.
pub(crate) fn limit(directory: &Path, size: usize, turns: usize) -> Result<Vec<f64>, Failed> {
    Ok(bench::Bench::new(&context()?, directory, size, 8)?.limit(turns)?)
}

/// What a rank saw.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Seen {
    blocked: Vec<f64>,
    copies: Vec<f64>,
    /// Resident bytes after the save when it should have settled, and after the last.
    resident: [u64; 2],
}

fn rank(options: &Bench) -> Result<(), Failed> {
    let directory =
        options.keeping.dir.as_deref().ok_or_else(|| Failed("no directory was named: --dir".into()))?;
    let directory = directory.join("job");
    let layout = pattern::layout(options.size << 20);
    let place = Place::find(&options.job)?;
    let staging = place.stage(&options.job, &layout, BLOCK)?;
    let mut seen = Seen::default();
    match (place.roles.role(place.team.rank()), &place.trainers) {
        (Role::Trainer(number), Some(trainers)) => {
            let state = Fixed::pattern(layout.clone(), number as usize, trainers.size() as usize);
            let mut saver = Saver::new(&staging, &layout)?;
            save(&mut seen, &state, &mut saver, trainers, options.saves)?;
            saver.end()?;
        }
        _ => {
            let checkpoints = Checkpoints::create(&directory, options.keeping.options())?;
            let resident = parking_lot::Mutex::new([0; 2]);
            writer::write(&staging, &layout, &checkpoints, &Crash::default(), &|step| {
                resident.lock()[usize::from(step > SETTLED)] = resident_bytes();
            })?;
            seen.resident = resident.into_inner();
        }
    }
    place.team.store().set(&report::key(place.team.rank()), &serde_json::to_vec(&seen)?)?;
    if place.team.rank() == 0 {
        print(&table(&place, options.saves)?);
    }
    Ok(())
}

/// Saves again and again; before each save, all trainers copy their shard at once.
fn save(
    seen: &mut Seen,
    state: &Fixed,
    saver: &mut Saver,
    trainers: &Team,
    saves: u64,
) -> Result<(), Failed> {
    let parts = state.parts()?;
    let mut copy = Copy::new(&parts);
    for step in 1..=saves {
        trainers.barrier()?;
        let copied = copy.run(&parts).as_secs_f64();
        trainers.barrier()?;
        let staged = saver.save(step, &Note::new(), |part| parts[part])?;
        if step > SETTLED {
            seen.copies.push(copied);
            seen.blocked.push(staged.blocked.as_secs_f64());
        }
        saver.wait_durable(step, Duration::from_secs(60))?;
        seen.resident[usize::from(step > SETTLED)] = resident_bytes();
    }
    Ok(())
}

/// The memory of this process that is in use now, shared memory included.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

fn table(place: &Place, saves: u64) -> Result<String, Failed> {
    let told = report::collect(place)?;
    let all: Vec<(Role, Seen)> = told
        .into_iter()
        .map(|(role, told)| Ok((role, serde_json::from_slice(&told)?)))
        .collect::<Result<_, Failed>>()?;
    let figures =
        |of: fn(&Seen) -> &Vec<f64>| all.iter().flat_map(|(_, s)| of(s).iter().copied()).collect::<Vec<_>>();
    let (blocked, copies) = (figures(|s| &s.blocked), figures(|s| &s.copies));
    let mut out = String::new();
    let worst = blocked.iter().copied().fold(0.0, f64::max);
    let ratio = median(&copies) / median(&blocked);
    let _ = writeln!(
        out,
        "{:<38} {:>11}   worst {}; beside a copy of its shard, in all trainers at once: {}, {ratio:.2} of its speed",
        "a trainer is blocked by a save",
        ms(median(&blocked)),
        ms(worst),
        ms(median(&copies)),
    );
    for (role, seen) in all.iter().filter(|(_, seen)| seen.resident[1] > 0) {
        let name = match role {
            Role::Trainer(number) => format!("memory of trainer {number}"),
            Role::Writer(number) => format!("memory of writer {number}"),
        };
        let [settled, last] = seen.resident.map(|bytes| bytes as f64 / 1e6);
        let _ = writeln!(
            out,
            "{name:<38} {last:>8.1} MB   after save {saves}; {settled:.1} MB after save {SETTLED}"
        );
    }
    Ok(out)
}
