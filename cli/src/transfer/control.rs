//! The control region: 4 KiB of the receiver's memory, by which the two sides agree.
//!
//! The sender claims it, puts its offer there and adds to signals; the receiver writes its replies there, which the
//! sender gets. Words are 64 bits, little-endian; a reply is written before its word is set.

/// Size of the region in bytes.
pub(super) const SIZE: usize = 4096;

/// The word that the first sender takes with its incarnation; 0 until then.
pub(super) const CLAIM: usize = 0;
/// The word that tells how many bytes the receiver has checked.
pub(super) const CHECKED: usize = 8;
/// Where the offer is.
pub(super) const OFFER: usize = 64;

/// Signal: the offer is there.
pub(super) const OFFERED: u32 = 0;
/// Signal: its value is how many bytes are delivered.
pub(super) const DELIVERED: u32 = 1;
/// Signal: every byte is delivered.
pub(super) const COMPLETE: u32 = 2;
/// Signal: the sender knows how it ended.
pub(super) const KNOWN: u32 = 3;
/// Signal: the sender has given up.
pub(super) const GIVEN_UP: u32 = 4;
/// How many signals there are.
pub(super) const SIGNALS: u32 = 5;

/// Where a reply of the receiver is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// The word that is 1 once the reply is there.
    pub(super) word: usize,
    /// Where its bytes begin.
    pub(super) at: usize,
    /// How many there are.
    pub(super) size: usize,
}

/// The reply to the offer: where to put the file, or why not.
pub(super) const ANSWER: Place = Place { word: 16, at: 512, size: 2560 };
/// The reply to all of the bytes: kept, or why not.
pub(super) const VERDICT: Place = Place { word: 24, at: 3072, size: 1024 };

#[cfg(test)]
mod tests {
    use super::super::offer;
    use super::*;

    #[test]
    fn nothing_overlaps() {
        let parts = [
            (CLAIM, 8),
            (CHECKED, 8),
            (ANSWER.word, 8),
            (VERDICT.word, 8),
            (OFFER, offer::SIZE),
            (ANSWER.at, ANSWER.size),
            (VERDICT.at, VERDICT.size),
        ];
        for pair in parts.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
        }
        const { assert!(VERDICT.at + VERDICT.size <= SIZE) };
        assert!(parts[..4].iter().all(|(at, _)| at.is_multiple_of(8)));
    }
}
