//! Batches of ours and of the baselines in rotated order, and what they say: medians, tenths, and the ratio per batch.

use transom_registry::Result;

use super::probe;

/// Batches that are run and forgotten.
pub(crate) const WARM_UPS: usize = 4;
/// How often a test is run at most when the placement moves under it.
pub(crate) const ATTEMPTS: usize = 3;

/// What a figure is, and which way is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Nanoseconds for one operation.
    Nanos,
    /// Microseconds for one operation.
    Micros,
    /// Milliseconds for one operation.
    Millis,
    /// Gigabytes (10^9 bytes) a second.
    Rate,
}

impl Unit {
    /// As it is printed.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nanos => "ns",
            Self::Micros => "us",
            Self::Millis => "ms",
            Self::Rate => "GB/s",
        }
    }

    /// The figure of a batch that took `nanos` for `count` operations of `size` bytes.
    pub(crate) fn figure(self, nanos: f64, count: u64, size: usize) -> f64 {
        let each = nanos / count as f64;
        match self {
            Self::Nanos => each,
            Self::Micros => each / 1e3,
            Self::Millis => each / 1e6,
            Self::Rate => size as f64 / each,
        }
    }

    /// How good `ours` is beside `baseline`: 1 is equal, more is better. `None` where that is no number.
    pub(crate) fn goodness(self, ours: f64, baseline: f64) -> Option<f64> {
        let ratio = if self == Self::Rate { ours / baseline } else { baseline / ours };
        ratio.is_finite().then_some(ratio)
    }
}

/// One way to do a test: a name, and a function that runs one batch and returns its time in nanoseconds.
pub(crate) struct Variant<'a> {
    /// Its name.
    pub(crate) name: &'static str,
    /// Runs one batch.
    pub(crate) run: Box<dyn FnMut() -> Result<f64> + 'a>,
}

impl std::fmt::Debug for Variant<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Variant").field(&self.name).finish()
    }
}

/// Ours and its baselines, and what a batch of each holds.
#[derive(Debug)]
pub(crate) struct Contest<'a> {
    /// Ours, where it takes part.
    pub(crate) ours: Option<Variant<'a>>,
    /// Each row of the report, with the ways of which the best is its baseline.
    pub(crate) rows: Vec<Vec<Variant<'a>>>,
    /// What the figures are.
    pub(crate) unit: Unit,
    /// Operations in a batch.
    pub(crate) count: u64,
    /// Bytes of an operation.
    pub(crate) size: usize,
    /// Batches, the warm-ups not counted.
    pub(crate) batches: usize,
    /// Batches that are run before and forgotten.
    pub(crate) warm_ups: usize,
}

/// The figures of one variant, batch by batch.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    /// Its name.
    pub(crate) name: &'static str,
    /// A figure for each batch.
    pub(crate) figures: Vec<f64>,
}

/// What a contest said.
#[derive(Debug, Clone)]
pub(crate) struct Samples {
    /// Ours, where it took part.
    pub(crate) ours: Option<Series>,
    /// The baselines, row by row.
    pub(crate) rows: Vec<Vec<Series>>,
    /// The probe before and after, in nanoseconds.
    pub(crate) probe: [f64; 2],
}

impl Contest<'_> {
    /// Runs all batches, each variant once in each batch, the first one of a batch being the next one each time.
    pub(crate) fn run(&mut self) -> Result<Samples> {
        let (unit, count, size) = (self.unit, self.count, self.size);
        let mut all: Vec<&mut Variant<'_>> =
            self.ours.iter_mut().chain(self.rows.iter_mut().flatten()).collect();
        let mut figures = vec![Vec::with_capacity(self.batches); all.len()];
        let variants = all.len();
        for batch in 0..self.warm_ups + self.batches {
            for turn in 0..variants {
                let which = (batch + turn) % variants;
                let nanos = (all[which].run)()?;
                if batch >= self.warm_ups {
                    figures[which].push(unit.figure(nanos, count, size));
                }
            }
        }
        let mut figures = figures.into_iter();
        let mut series =
            |v: &Variant<'_>| Series { name: v.name, figures: figures.next().unwrap_or_default() };
        let ours = self.ours.as_ref().map(&mut series);
        let rows = self.rows.iter().map(|row| row.iter().map(&mut series).collect()).collect();
        Ok(Samples { ours, rows, probe: [0.0; 2] })
    }

    /// Runs between two probes, again when the placement moved in between, and keeps the attempt that moved least.
    pub(crate) fn steady(&mut self, mut probe: impl FnMut() -> Result<f64>) -> Result<Samples> {
        let mut before = probe()?;
        let mut best: Option<(f64, Samples)> = None;
        for _ in 0..ATTEMPTS {
            let mut samples = self.run()?;
            let after = probe()?;
            samples.probe = [before, after];
            let by = (before / after).max(after / before);
            let moved = probe::moved(before, after);
            if best.as_ref().is_none_or(|(least, _)| by < *least) {
                best = Some((by, samples));
            }
            if !moved {
                break;
            }
            before = after;
        }
        match best {
            Some((_, samples)) => Ok(samples),
            None => self.run(),
        }
    }
}

/// The middle of some figures and how far they spread.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Summary {
    /// Half are below.
    pub(crate) median: f64,
    /// A tenth are below.
    pub(crate) p10: f64,
    /// A tenth are above.
    pub(crate) p90: f64,
}

impl Summary {
    /// Of the figures that are numbers; `None` where there are none.
    pub(crate) fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.into_iter().filter(|f| f.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        let at = |part: f64| {
            let place = part * last as f64;
            let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            low + (high - low) * place.fract()
        };
        Some(Self { median: at(0.5), p10: at(0.1), p90: at(0.9) })
    }
}

impl Series {
    /// Its summary.
    pub(crate) fn summary(&self) -> Option<Summary> {
        Summary::of(self.figures.iter().copied())
    }

    /// How good it is beside `baseline`, batch by batch.
    pub(crate) fn beside(&self, baseline: &Self, unit: Unit) -> Option<Summary> {
        Summary::of(self.figures.iter().zip(&baseline.figures).filter_map(|(&o, &b)| unit.goodness(o, b)))
    }
}

/// The series with the best median. The choice is made once, not per batch: the best of each batch would be better than
/// any of them is.
pub(crate) fn best(row: &[Series], unit: Unit) -> Option<&Series> {
    row.iter().filter(|s| s.summary().is_some()).max_by(|a, b| {
        let median = |s: &Series| s.summary().map_or(0.0, |s| s.median);
        let order = median(a).total_cmp(&median(b));
        if unit == Unit::Rate { order } else { order.reverse() }
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn contest<'a>(log: &'a RefCell<String>, batches: usize) -> Contest<'a> {
        let variant = |name: &'static str, nanos: f64| Variant {
            name,
            run: Box::new(move || {
                log.borrow_mut().push_str(name);
                Ok(nanos)
            }),
        };
        Contest {
            ours: Some(variant("o", 200.0)),
            rows: vec![vec![variant("a", 100.0), variant("b", 50.0)]],
            unit: Unit::Nanos,
            count: 10,
            size: 8,
            batches,
            warm_ups: 1,
        }
    }

    #[test]
    fn the_order_rotates_and_warm_ups_are_forgotten() {
        let log = RefCell::new(String::new());
        let samples = contest(&log, 3).run().unwrap();
        assert_eq!(*log.borrow(), "oababoboaoab");
        assert_eq!(samples.ours.unwrap().figures, [20.0; 3]);
        assert_eq!(samples.rows[0][1].figures, [5.0; 3]);
    }

    #[test]
    fn a_test_is_repeated_at_most_three_times_and_the_steadiest_attempt_is_kept() {
        let log = RefCell::new(String::new());
        let mut probes = [50.0, 100.0, 220.0, 500.0, 1.0].into_iter();
        let samples = contest(&log, 1).steady(|| Ok(probes.next().unwrap())).unwrap();
        assert_eq!(samples.probe, [50.0, 100.0]);
        assert_eq!(log.borrow().len(), 3 * 2 * 3);
        let mut probes = [50.0, 100.0, 101.0].into_iter();
        let samples = contest(&log, 1).steady(|| Ok(probes.next().unwrap())).unwrap();
        assert_eq!(samples.probe, [100.0, 101.0]);
    }

    #[test]
    fn the_best_baseline_is_the_fastest_and_goodness_counts_upwards() {
        let log = RefCell::new(String::new());
        let samples = contest(&log, 3).run().unwrap();
        let base = best(&samples.rows[0], Unit::Nanos).unwrap();
        assert_eq!(base.name, "b");
        let good = samples.ours.unwrap().beside(base, Unit::Nanos).unwrap();
        assert_eq!(good.median, 0.25);
        assert_eq!(best(&samples.rows[0], Unit::Rate).unwrap().name, "a");
        assert_eq!(Unit::Rate.goodness(2.0, 1.0), Some(2.0));
        assert_eq!(Unit::Rate.goodness(2.0, 0.0), None);
    }

    #[test]
    fn tenths_are_interpolated_and_what_is_no_number_is_left_out() {
        let summary = Summary::of((0..=10).map(f64::from).chain([f64::NAN])).unwrap();
        assert_eq!((summary.p10, summary.median, summary.p90), (1.0, 5.0, 9.0));
        assert_eq!(Summary::of([f64::NAN]), None);
        assert_eq!(Unit::Rate.figure(1000.0, 2, 500), 1.0);
    }
}
