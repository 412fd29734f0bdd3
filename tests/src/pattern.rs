//! Bytes that say which version they are, and random numbers from a seed.

use std::sync::OnceLock;

const PERIOD: usize = 1 << 16;

/// Random numbers that a seed repeats (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The numbers of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.any() % end
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn table() -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut random = Random::new(1);
        (0..2 * PERIOD / 8).flat_map(|_| random.any().to_le_bytes()).collect()
    })
}

/// The pieces of the pattern of a version: whole copies and comparisons of memory, fast without optimisation too.
fn pieces(size: usize, version: u64) -> impl Iterator<Item = (usize, &'static [u8])> {
    (0..size.div_ceil(PERIOD)).map(move |index| {
        let at = index * PERIOD;
        let start = mix(version.wrapping_mul(31).wrapping_add(index as u64)) as usize % PERIOD;
        (at, &table()[start..start + PERIOD.min(size - at)])
    })
}

/// Writes the pattern of a version.
pub fn fill(bytes: &mut [u8], version: u64) {
    for (at, piece) in pieces(bytes.len(), version) {
        bytes[at..at + piece.len()].copy_from_slice(piece);
    }
}

/// The pattern of a version.
#[must_use]
pub fn bytes(size: usize, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; size];
    fill(&mut bytes, version);
    bytes
}

/// Where `bytes` first differ from the pattern of a version.
#[must_use]
pub fn differs(bytes: &[u8], version: u64) -> Option<usize> {
    pieces(bytes.len(), version).find_map(|(at, piece)| {
        let part = &bytes[at..at + piece.len()];
        (part != piece).then(|| at + part.iter().zip(piece).position(|(a, b)| a != b).unwrap_or(0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_versions_differ_from_their_first_word_on() {
        for size in [8, 9, 4096, PERIOD + 1] {
            for version in 0..100 {
                let bytes = bytes(size, version);
                assert_eq!(differs(&bytes, version), None);
                assert!(differs(&bytes, version + 1).is_some_and(|at| at < 8));
            }
        }
    }
}
