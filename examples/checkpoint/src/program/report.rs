//! The table at the end.

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use transom::Rank;
use transom_checkpoint::{Role, Roles};

use super::job::Place;
use super::trainer::{Course, Seen};
use crate::Failed;

/// What a writer saw.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct Wrote {
    /// Of each checkpoint: its step, the bytes written, the bytes linked, and the seconds from the first staged byte until it
    /// was durable.
    pub(crate) checkpoints: Vec<(u64, u64, u64, f64)>,
    /// Steps without a checkpoint, and why.
    pub(crate) abandoned: Vec<(u64, String)>,
    /// Bytes a second that the disk takes at most, as often as it was measured.
    pub(crate) raw: Vec<f64>,
}

/// Where a rank tells what it saw.
pub(crate) fn key(rank: Rank) -> String {
    format!("checkpoint/report/{rank}")
}

/// What all ranks told that have not failed, by what they do.
pub(crate) fn collect(place: &Place) -> Result<Vec<(Role, Vec<u8>)>, Failed> {
    let mut all = Vec::new();
    for rank in 0..place.team.size() {
        loop {
            match place.team.store().get(&key(rank), Duration::from_millis(200)) {
                Ok(told) => all.push((place.roles.role(rank), told)),
                Err(transom::Error::Expired { .. }) if place.team.failure(rank).is_none() => continue,
                Err(transom::Error::Expired { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            break;
        }
    }
    Ok(all)
}

/// The median, or 0 of nothing.
pub(crate) fn median(of: &[f64]) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// What all ranks of a job saw, for people.
pub(crate) fn table(
    roles: Roles,
    transports: &str,
    course: Course,
    seen: &[Seen],
    wrote: &[Wrote],
) -> String {
    let all =
        |of: fn(&Seen) -> &Vec<f64>| seen.iter().flat_map(|s| of(s).iter().copied()).collect::<Vec<f64>>();
    let state: usize = seen.iter().map(|s| s.shard).sum();
    let mut out = String::new();
    let mut line = |what: &str, figure: String, more: String| {
        let _ = writeln!(out, "{what:<38} {figure:>11}   {more}");
    };
    line(
        "state",
        format!("{:.0} MB", state as f64 / 1e6),
        format!(
            "{}, {}, {} over {transports}; steps {} to {}, a checkpoint every {}",
            many(roles.trainers, "trainer"),
            many(roles.writers, "writer"),
            many(roles.standbys, "standby"),
            course.from + 1,
            course.steps,
            course.every
        ),
    );
    if let Some(first) = seen.first() {
        if let Some(accuracy) = first.accuracy {
            let loss = first.first_loss.zip(first.last_loss).map(|(a, b)| format!("loss {a:.3} -> {b:.3}"));
            line(
                "accuracy on digits not trained on",
                format!("{:.1} %", accuracy * 100.0),
                loss.unwrap_or_default(),
            );
        }
        let (quiet, busy) = (all(|s| &s.quiet), all(|s| &s.busy));
        line("a step, no checkpoint under way", ms(median(&quiet)), format!("median of {}", quiet.len()));
        let ratio = median(&busy) / median(&quiet);
        let more = if busy.is_empty() {
            String::new()
        } else {
            format!("median of {}, {ratio:.2} of that", busy.len())
        };
        line("a step, one under way", ms(median(&busy)), more);
    }
    let exchange = all(|s| &s.exchange);
    if !exchange.is_empty() {
        line("  of which gradients and weights travel", ms(median(&exchange)), String::new());
    }
    let (blocked, copies, waited) = (all(|s| &s.blocked), all(|s| &s.copies), all(|s| &s.synchronous));
    let worst = blocked.iter().copied().fold(0.0, f64::max);
    line(
        "a trainer is blocked by a save",
        ms(median(&blocked)),
        format!("median of {}, worst {}", blocked.len(), ms(worst)),
    );
    if !copies.is_empty() && !blocked.is_empty() {
        let speed = median(&copies) / median(&blocked);
        line(
            "  beside a copy of its shard in memory",
            ms(median(&copies)),
            format!("{speed:.2} of that copy's speed"),
        );
        let times = median(&waited) / median(&blocked);
        line("  beside a save that is waited for", ms(median(&waited)), format!("{times:.1} times shorter"));
    }
    let written: Vec<_> = wrote.iter().flat_map(|w| w.checkpoints.iter().copied()).collect();
    let rates: Vec<f64> = written
        .iter()
        .filter(|(_, bytes, ..)| *bytes > 0)
        .map(|(_, bytes, _, s)| *bytes as f64 / s)
        .collect();
    line("to disk, durable", gbs(median(&rates)), format!("median of {} checkpoints", rates.len()));
    let raw: Vec<f64> = wrote.iter().flat_map(|w| w.raw.iter().copied()).collect();
    if !raw.is_empty() {
        line(
            "  beside the disk's own limit",
            gbs(median(&raw)),
            format!("{:.2} of it", median(&rates) / median(&raw)),
        );
    }
    let linked: u64 = written.iter().map(|(_, _, linked, _)| linked).sum();
    if linked > 0 {
        line("unchanged, linked", format!("{:.0} MB", linked as f64 / 1e6), String::new());
    }
    let digest = seen.iter().fold(0_u64, |all, s| all.rotate_left(1) ^ s.digest);
    line("digest of the state", format!("{:08x}", digest >> 32), "the same bits give the same".into());
    for (step, why) in wrote.iter().flat_map(|w| &w.abandoned) {
        let _ = writeln!(out, "no checkpoint of step {step}: {why}");
    }
    out
}

fn many(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

pub(crate) fn ms(seconds: f64) -> String {
    format!("{:.1} ms", seconds * 1e3)
}

fn gbs(bytes: f64) -> String {
    format!("{:.2} GB/s", bytes / 1e9)
}
