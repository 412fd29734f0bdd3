//! What is printed: a table for people, or one JSON object a line.

use std::io::Write;

use serde::{Deserialize, Serialize};
use transom_registry::{Error, Result};

use super::batch::{Samples, Series, Summary, Unit, best};
use super::probe;

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) test: String,
    pub(crate) transport: String,
    pub(crate) size: usize,
    pub(crate) ranks: u32,
    pub(crate) unit: String,
    /// Ours; nothing when only baselines were measured.
    pub(crate) ours: Option<Summary>,
    /// What ours was measured beside; nothing for transports that have no baseline.
    pub(crate) baseline: Option<String>,
    pub(crate) baseline_figures: Option<Summary>,
    /// 1 is equal, more is better.
    pub(crate) goodness: Option<Summary>,
    /// The line ping-pong before and after, in nanoseconds.
    pub(crate) probe: [f64; 2],
}

/// What a program reads: exactly these names.
#[derive(Debug, Serialize)]
struct Line<'a> {
    test: &'a str,
    transport: &'a str,
    size: usize,
    ranks: u32,
    unit: &'a str,
    median: Option<f64>,
    p10: Option<f64>,
    p90: Option<f64>,
    baseline: Option<&'a str>,
    baseline_median: Option<f64>,
    goodness: Option<f64>,
}

impl Row {
    /// The rows of one test: one for each baseline that ours has, or, without ours, one for each way of each.
    pub(crate) fn of(test: &str, transport: &str, size: usize, unit: Unit, samples: &Samples) -> Vec<Self> {
        let row = |baseline: Option<&Series>| Self {
            test: test.into(),
            transport: transport.into(),
            size,
            ranks: 2,
            unit: unit.name().into(),
            ours: samples.ours.as_ref().and_then(Series::summary),
            baseline: baseline.map(|b| b.name.to_owned()),
            baseline_figures: baseline.and_then(Series::summary),
            goodness: baseline.and_then(|b| samples.ours.as_ref()?.beside(b, unit)),
            probe: samples.probe,
        };
        match &samples.ours {
            None => samples.rows.iter().flatten().map(|b| row(Some(b))).collect(),
            Some(_) if samples.rows.is_empty() => vec![row(None)],
            Some(_) => samples.rows.iter().map(|ways| row(best(ways, unit))).collect(),
        }
    }

    /// The medians over the same row of several runs.
    pub(crate) fn merge(runs: &[&Self]) -> Option<Self> {
        let first = *runs.first()?;
        let mut names: Vec<&str> = runs.iter().filter_map(|r| r.baseline.as_deref()).collect();
        names.sort_unstable();
        names.dedup();
        let over = |pick: &dyn Fn(&Self) -> Option<f64>| Summary::of(runs.iter().filter_map(|r| pick(r)));
        let figures = |pick: &dyn Fn(&Self) -> Option<Summary>| {
            Some(Summary {
                median: over(&|r| pick(r).map(|s| s.median))?.median,
                p10: over(&|r| pick(r).map(|s| s.p10))?.median,
                p90: over(&|r| pick(r).map(|s| s.p90))?.median,
            })
        };
        Some(Self {
            baseline: if names.is_empty() { None } else { Some(names.join(" or ")) },
            ours: figures(&|r| r.ours),
            baseline_figures: figures(&|r| r.baseline_figures),
            // Between processes the ratio moves more than within one: its spread is that of the runs.
            goodness: over(&|r| r.goodness.map(|g| g.median)),
            probe: [0, 1].map(|i| over(&|r| Some(r.probe[i])).map_or(0.0, |s| s.median)),
            ..first.clone()
        })
    }

    /// One JSON object.
    pub(crate) fn json(&self) -> Result<String> {
        let of = |summary: Option<Summary>, pick: fn(Summary) -> f64| summary.map(pick).and_then(figure);
        to_json(&Line {
            test: &self.test,
            transport: &self.transport,
            size: self.size,
            ranks: self.ranks,
            unit: &self.unit,
            median: of(self.ours, |s| s.median),
            p10: of(self.ours, |s| s.p10),
            p90: of(self.ours, |s| s.p90),
            baseline: self.baseline.as_deref(),
            baseline_median: of(self.baseline_figures, |s| s.median),
            goodness: of(self.goodness, |s| s.median),
        })
    }
}

/// Any value as JSON text.
pub(crate) fn to_json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::Malformed { what: "a JSON line", why: e.to_string() })
}

/// Four significant digits, or nothing where there is no number.
fn figure(value: f64) -> Option<f64> {
    if value == 0.0 {
        return Some(0.0);
    }
    let digits = 3 - value.abs().log10().floor() as i32;
    let scale = 10f64.powi(digits);
    let rounded = (value * scale).round() / scale;
    rounded.is_finite().then_some(rounded)
}

/// The table for people, written row by row.
#[derive(Debug)]
pub(crate) struct Table<W> {
    out: W,
    json: bool,
}

impl<W: Write> Table<W> {
    /// Writes to `out`.
    pub(crate) fn new(out: W, json: bool) -> Self {
        Self { out, json }
    }

    /// Says how it is measured, and names the columns.
    pub(crate) fn begin(&mut self, how: &str) -> Result<()> {
        if self.json {
            return Ok(());
        }
        self.text(how)?;
        self.text(&format!(
            "{:<14}{:<6}{:>8} {:<5}{:>9} {:>17}  {:<24}{:>9} {:>17} {:>9} {:>11}  probe, ns",
            "test",
            "via",
            "size",
            "unit",
            "ours",
            "p10..p90",
            "baseline",
            "median",
            "p10..p90",
            "goodness",
            "p10..p90"
        ))
    }

    /// Writes a row.
    pub(crate) fn row(&mut self, row: &Row) -> Result<()> {
        if self.json {
            let text = row.json()?;
            return self.text(&text);
        }
        let median = |s: Option<Summary>| s.map_or("-".into(), |s| short(s.median));
        let spread =
            |s: Option<Summary>| s.map_or(String::new(), |s| format!("{}..{}", short(s.p10), short(s.p90)));
        let [before, after] = row.probe;
        let moved = if probe::moved(before, after) { " moved" } else { "" };
        self.text(&format!(
            "{:<14}{:<6}{:>8} {:<5}{:>9} {:>17}  {:<24}{:>9} {:>17} {:>9} {:>11}  {:.0}-{:.0}{moved}",
            row.test,
            row.transport,
            size_text(row.size),
            row.unit,
            median(row.ours),
            spread(row.ours),
            row.baseline.as_deref().unwrap_or("none"),
            median(row.baseline_figures),
            spread(row.baseline_figures),
            row.goodness.map_or("-".into(), |g| format!("{:.2}", g.median)),
            row.goodness.map_or(String::new(), |g| format!("{:.2}..{:.2}", g.p10, g.p90)),
            before,
            after,
        ))
    }

    /// Writes a line.
    pub(crate) fn text(&mut self, text: &str) -> Result<()> {
        writeln!(self.out, "{}", text.trim_end())
            .and_then(|()| self.out.flush())
            .map_err(|e| Error::io("print the report", e))
    }
}

fn short(value: f64) -> String {
    match value.abs() {
        0.0..10.0 => format!("{value:.2}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// A size as people write it.
pub(crate) fn size_text(size: usize) -> String {
    for (shift, unit) in [(30, "G"), (20, "M"), (10, "K")] {
        if size >= 1 << shift && size.is_multiple_of(1 << shift) {
            return format!("{}{unit}", size >> shift);
        }
    }
    size.to_string()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn row(test: &str, size: usize, goodness: f64) -> Row {
        let summary = |x: f64| Summary { median: x, p10: x * 0.9, p90: x * 1.1 };
        Row {
            test: test.into(),
            transport: "shm".into(),
            size,
            ranks: 2,
            unit: "ns".into(),
            ours: Some(summary(2.0)),
            baseline: Some("store + fence".into()),
            baseline_figures: Some(summary(2.0 * goodness)),
            goodness: Some(summary(goodness)),
            probe: [60.0, 61.0],
        }
    }

    #[test]
    fn json_has_exactly_the_promised_names_and_never_a_value_that_is_no_number() {
        let mut row = row("put_flush", 8, 0.9123456);
        let text = row.json().unwrap();
        assert_eq!(
            text,
            r#"{"test":"put_flush","transport":"shm","size":8,"ranks":2,"unit":"ns","median":2.0,"p10":1.8,"p90":2.2,"baseline":"store + fence","baseline_median":1.825,"goodness":0.9123}"#
        );
        row.goodness = Some(Summary { median: f64::NAN, p10: f64::NAN, p90: f64::INFINITY });
        row.ours = None;
        let text = row.json().unwrap();
        assert!(text.contains(r#""median":null"#) && text.contains(r#""goodness":null"#), "{text}");
    }

    #[test]
    fn runs_are_merged_by_their_medians() {
        let runs = [row("a", 8, 0.8), row("a", 8, 1.2), row("a", 8, 1.0)];
        let merged = Row::merge(&runs.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(merged.goodness.unwrap().median, 1.0);
        assert_eq!(merged.baseline_figures.unwrap().median, 2.0);
        assert_eq!(merged.baseline.as_deref(), Some("store + fence"));
    }

    #[test]
    fn without_ours_every_way_of_every_baseline_has_a_row() {
        let series = |name| Series { name, figures: vec![1.0, 2.0, 3.0] };
        let rows = vec![vec![series("memcpy"), series("nt copy")], vec![series("other")]];
        let mut samples = Samples { ours: None, rows, probe: [60.0; 2] };
        assert_eq!(Row::of("t", "shm", 8, Unit::Rate, &samples).len(), 3);
        samples.ours = Some(series("ours"));
        let rows = Row::of("t", "shm", 8, Unit::Rate, &samples);
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].goodness.unwrap().median, 1.0);
    }

    #[test]
    fn the_table_has_one_line_a_row_and_marks_what_moved() {
        let mut out = Vec::new();
        let mut table = Table::new(&mut out, false);
        table.begin("two ranks").unwrap();
        table.row(&row("put_flush", 65_536, 1.0)).unwrap();
        table.row(&Row { probe: [60.0, 200.0], goodness: None, ..row("x", 8, 1.0) }).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 4);
        assert!(text.contains("64K") && text.lines().nth(3).unwrap().ends_with("60-200 moved"), "{text}");
    }
}
