//! `transom perf`: how fast each transport is, beside what could be written by hand on the same machine, in the same
//! run, at the same addresses.
//!
//! Two processes, one on each of two cores where that is allowed. Each test interleaves batches of ours and of its
//! baselines, between two probes of where the machine has put the cores. Our side is plugged in through
//! [`subject::Subject`].

mod baseline;
mod batch;
mod cases;
mod options;
mod ours;
mod pair;
mod pin;
mod plot;
mod probe;
mod rank;
mod report;
mod subject;

use std::io::Write;
use std::process::{Command, Stdio};

pub(crate) use options::Options;
use transom_registry::{Error, Result};

use baseline::memory::Private;
use baseline::plain::Plain;
use cases::Case;
use options::Test;
use pair::{Cores, Family, Pair, Plan};
use report::{Row, Table};
use subject::{Ours, Setup, Subject};

const PAGE: usize = 4096;

/// Measures, and prints to `out`.
pub(crate) fn run(options: &Options, out: impl Write) -> Result<()> {
    if options.transport.iter().any(|name| name == "local") {
        let why = "perf measures between two processes, and local is within one (take shm or tcp)";
        return Err(Error::Unusable { transport: "local".into(), why: why.into() });
    }
    let cores = Cores::find()?;
    let mut table = Table::new(out, options.json);
    if options.rows {
        rank::die_with_parent()?;
        return measure_all(options, &cores, &mut |row| table.text(&report::to_json(&row)?));
    }
    table.begin(&heading(options, &cores))?;
    let mut rows = Vec::new();
    if options.runs > 1 {
        rows = repeat(options.runs)?;
        rows.iter().try_for_each(|row| table.row(row))?;
    } else {
        measure_all(options, &cores, &mut |row| {
            table.row(&row)?;
            rows.push(row);
            Ok(())
        })?;
    }
    if let Some(file) = &options.plot {
        std::fs::write(file, plot::svg(&rows))
            .map_err(|e| Error::io(format!("write {}", file.display()), e))?;
    }
    Ok(())
}

/// The second rank's whole life.
pub(crate) fn serve(self_check: bool) -> Result<()> {
    if self_check { rank::serve::<Plain>() } else { rank::serve::<Ours>() }
}

fn heading(options: &Options, cores: &Cores) -> String {
    let place = match cores.pinned {
        Some([first, second]) => format!("pinned to cores {first} and {second}"),
        None => format!("not pinned, {} cores allowed", cores.all.len()),
    };
    let runs = match options.runs {
        1 => String::new(),
        n => format!(", medians over {n} processes"),
    };
    let misaligned = match options.misalign {
        0 => String::new(),
        n => format!(", {n} bytes beside a page"),
    };
    let wait = match options.wait {
        baseline::Wait::Spin => "spinning",
        baseline::Wait::Sleep => "sleeping",
    };
    format!("2 ranks, {place}, {wait}{misaligned}{runs}; goodness 1 is the baseline, more is better")
}

/// Starts this program again `runs` times, one after the other, and takes medians row by row.
fn repeat(runs: u16) -> Result<Vec<Row>> {
    let program = std::env::current_exe().map_err(|e| Error::io("find this program", e))?;
    let mut all: Vec<Vec<Row>> = Vec::new();
    for run in 1..=runs {
        let output = Command::new(&program)
            .args(std::env::args_os().skip(1))
            .args(["--rows", "--runs", "1"])
            .stderr(Stdio::inherit())
            .output()
            .map_err(|e| Error::io("start a run", e))?;
        if !output.status.success() {
            return Err(Error::invalid("perf", format!("run {run} of {runs} failed: {}", output.status)));
        }
        let rows = String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(serde_json::from_str)
            .collect::<Result<Vec<Row>, _>>()
            .map_err(|e| Error::Malformed { what: "the output of a run", why: e.to_string() })?;
        all.push(rows);
    }
    // Without ours each row is one way; with it, the same row of every run is the same test.
    let rows = all.iter().map(Vec::len).min().unwrap_or(0);
    Ok((0..rows).filter_map(|i| Row::merge(&all.iter().map(|run| &run[i]).collect::<Vec<_>>())).collect())
}

fn measure_all(options: &Options, cores: &Cores, emit: &mut dyn FnMut(Row) -> Result<()>) -> Result<()> {
    for transport in options.transports() {
        if options.self_check {
            measure::<Plain>(options, cores, &transport, emit)?;
        } else {
            measure::<Ours>(options, cores, &transport, emit)?;
        }
    }
    Ok(())
}

fn measure<S: Subject>(
    options: &Options,
    cores: &Cores,
    transport: &str,
    emit: &mut dyn FnMut(Row) -> Result<()>,
) -> Result<()> {
    let family = Family::of(transport);
    if options.baseline_only && family == Family::Other {
        let why = "it has no baselines (leave --baseline-only out)".to_owned();
        return Err(Error::Unusable { transport: transport.into(), why });
    }
    // A window of its own for `connect`: its size is part of what is measured.
    let (alone, together): (Vec<Test>, Vec<Test>) =
        options.tests().into_iter().partition(|&t| t == Test::Connect);
    for tests in [together, alone] {
        if !tests.is_empty() {
            measure_tests::<S>(options, cores, transport, family, &tests, emit)?;
        }
    }
    Ok(())
}

fn measure_tests<S: Subject>(
    options: &Options,
    cores: &Cores,
    transport: &str,
    family: Family,
    tests: &[Test],
    emit: &mut dyn FnMut(Row) -> Result<()>,
) -> Result<()> {
    let available = available_memory();
    let misalign = usize::from(options.misalign);
    let sizes = |test: Test| options.sizes(test, available).into_iter().map(move |size| (test, size));
    let all: Vec<(Test, usize)> = tests.iter().flat_map(|&test| sizes(test)).collect();
    let room = |filter: fn(Test) -> bool| {
        let most = all.iter().filter(|(test, _)| filter(*test)).map(|(test, size)| test.span(*size)).max();
        (most.unwrap_or(0) + misalign).next_multiple_of(PAGE).max(PAGE)
    };
    let window = room(|_| true);
    if window.saturating_mul(3) > available {
        let limit = "a third of the memory that is free".to_owned();
        let (requested, available) = (window as u64, available as u64 / 3);
        return Err(Error::TooLarge { requested, available, limit });
    }
    let ours = !options.baseline_only;
    let parts = match tests {
        [Test::Connect] => [PAGE, window],
        _ if ours => [0, 0],
        _ => [room(|test| test == Test::PutSignal), window],
    };
    let setup = Setup { transport: transport.into(), rank: 0, size: window, wait: options.wait };
    let self_check = options.self_check;
    let pair = Pair::<S>::start(Plan { setup, family, cores: cores.clone(), ours, self_check, parts })?;
    let mut private;
    let mut source = match pair.subject.as_ref().and_then(S::source) {
        Some(source) => source,
        None => {
            private = Private::new(window)?;
            private.source()
        }
    };
    source.fill_ones(source.span().size().min(window))?;
    let source = std::cell::RefCell::new(source);
    for (test, size) in all {
        let case = Case { pair: &pair, source: &source, test, size, misalign, quick: options.quick };
        let mut contest = case.contest()?;
        if let Some(batches) = options.batches {
            contest.batches = usize::from(batches).max(1);
            contest.warm_ups = contest.warm_ups.min(1);
        }
        let samples = contest.steady(|| pair.probe())?;
        let unit = contest.unit;
        drop(contest);
        for row in Row::of(test.name(), transport, size, unit, &samples) {
            emit(row)?;
        }
    }
    Ok(())
}

/// Bytes of memory that can be used without swapping; a guess of 1 GiB where the system does not say.
fn available_memory() -> usize {
    std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
            line.split_whitespace().nth(1)?.parse::<usize>().ok()
        })
        .map_or(1 << 30, |kib| kib << 10)
}
