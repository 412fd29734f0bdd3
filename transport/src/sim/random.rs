//! Chance from a seed: the same numbers every time.

use std::ops::Range;
use std::time::Duration;

/// A small generator (splitmix64): good enough to disturb, and never for secrets.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 when `end` is 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    /// Whether something of this probability happens.
    pub(super) fn chance(&mut self, probability: f64) -> bool {
        // Drawn in any case, so that two adversaries differ only where they differ.
        let drawn = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        drawn < probability
    }

    /// A time in the range; its start when it is empty.
    pub(super) fn time(&mut self, range: &Range<Duration>) -> Duration {
        let span = range.end.saturating_sub(range.start).as_nanos().min(usize::MAX as u128) as usize;
        range.start + Duration::from_nanos(self.below(span) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_its_numbers_again_and_they_stay_in_range() {
        let (mut a, mut b) = (Random::new(7), Random::new(7));
        let range = Duration::from_micros(3)..Duration::from_micros(9);
        for _ in 0..1000 {
            assert_eq!(a.next(), b.next());
            assert!(a.below(5) < 5 && b.below(5) < 5);
            assert!(range.contains(&a.time(&range)) && range.contains(&b.time(&range)));
        }
        assert!(!a.chance(0.0) && a.chance(1.0));
        assert_eq!(a.below(0), 0);
        assert_eq!(a.time(&(range.start..range.start)), range.start);
    }
}
