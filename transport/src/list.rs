//! Transfers of many parts.
#![forbid(unsafe_code)]

use transom_registry::{Error, Result};

/// Most bytes of a list, and the furthest that it reaches on either side.
const MOST: u64 = 1 << 62;

/// A transfer of many parts: (offset, size) pairs in a peer's region, and on this side either consecutive bytes, or a place
/// for each part. Built once, checked once, replayed without allocation on memory that is mapped.
///
/// Parts of a put that overlap at the target are written in no order: which of them stays is left open. Parts that overlap
/// on this side can be put, and not be gotten.
///
/// # Examples
/// ```
/// use transom_transport::List;
/// let list = List::new([(0, 256), (4096, 256)])?;
/// assert_eq!((list.len(), list.size(), list.end(), list.own_end()), (2, 512, 4352, 512));
/// // The same parts there, other places here: (offset there, offset here, size).
/// let list = List::scattered([(0, 8192, 256), (4096, 0, 256)])?;
/// assert_eq!((list.len(), list.size(), list.end(), list.own_end()), (2, 512, 4352, 8448));
/// assert!(List::new([(u64::MAX, 2)]).is_err());
/// # Ok::<(), transom_transport::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    parts: Box<[(u64, u64)]>,
    /// Where each part is on this side; `None`: one after the other.
    places: Option<Box<[u64]>>,
    size: u64,
    end: u64,
    own_end: u64,
    /// Two places that overlap, if any do.
    overlap: Option<(u64, u64)>,
}

/// What is to be posted as one operation of a scattered list.
pub(crate) enum Batch<'a> {
    /// Parts whose places follow each other: from this offset, so many bytes.
    Run(&'a [(u64, u64)], u64, u64),
    /// Small parts, and the (offset, size) pairs of their places: so many bytes.
    Staged(&'a [(u64, u64)], &'a [(u64, u64)], u64),
}

impl List {
    /// A list of these (offset, size) pairs, in bytes; consecutive bytes on this side. Parts of size 0 are left out.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when a part or their sum is more than 2^62 bytes.
    pub fn new(parts: impl IntoIterator<Item = (u64, u64)>) -> Result<Self> {
        let parts: Box<[(u64, u64)]> = parts.into_iter().filter(|(_, size)| *size > 0).collect();
        let (size, end) = measure(parts.iter().copied())?;
        Ok(Self { parts, places: None, size, end, own_end: size, overlap: None })
    }

    /// A list of these (offset there, offset here, size) triples, in bytes: offsets here are in the bytes or the slice that
    /// the transfer is given. Parts of size 0 are left out.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when a part on either side, or their sum, is more than 2^62 bytes.
    pub fn scattered(parts: impl IntoIterator<Item = (u64, u64, u64)>) -> Result<Self> {
        let all = parts.into_iter().filter(|(_, _, size)| *size > 0);
        let (parts, places): (Vec<_>, Vec<_>) = all.map(|(there, here, size)| ((there, size), here)).unzip();
        let (size, end) = measure(parts.iter().copied())?;
        let own = || places.iter().zip(&parts).map(|(&here, &(_, size))| (here, size));
        let (_, own_end) = measure(own())?;
        let mut sorted: Vec<_> = own().collect();
        sorted.sort_unstable();
        let overlap =
            sorted.windows(2).find(|two| two[0].0 + two[0].1 > two[1].0).map(|two| (two[0].0, two[1].0));
        Ok(Self { parts: parts.into(), places: Some(places.into()), size, end, own_end, overlap })
    }

    /// How many parts it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The bytes of all parts together.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The end of the part that reaches furthest: what the region must have.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// What this side must have: its size, or, scattered, the end of the place that reaches furthest.
    #[must_use]
    pub fn own_end(&self) -> u64 {
        self.own_end
    }

    /// Its (offset, size) pairs in the peer's region.
    #[must_use]
    pub fn parts(&self) -> &[(u64, u64)] {
        &self.parts
    }

    /// Where each part is on this side; `None` when they are one after the other.
    #[must_use]
    pub fn places(&self) -> Option<&[u64]> {
        self.places.as_deref()
    }

    /// The (offset, size) pairs on this side.
    pub(crate) fn own_parts(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut at = 0;
        self.parts.iter().enumerate().map(move |(index, &(_, size))| {
            let packed = at;
            at += size;
            (self.places.as_ref().map_or(packed, |places| places[index]), size)
        })
    }

    /// Refuses a list that cannot be gotten.
    pub(crate) fn check_into(&self, operation: &'static str) -> Result<()> {
        match self.overlap {
            None => Ok(()),
            Some((a, b)) => {
                let why = format!("the places at {a} and {b} overlap: which bytes would stay is left open");
                Err(Error::invalid(operation, why))
            }
        }
    }

    /// Cuts the list into pieces of at most `bytes` bytes and `count` parts and hands each to `f` with the position of
    /// its first byte among all, and its size. A part that is larger than a piece is cut.
    pub(crate) fn pieces(
        &self,
        bytes: u64,
        count: usize,
        f: impl FnMut(&[(u64, u64)], u64, u64) -> Result<()>,
    ) -> Result<()> {
        pieces(&self.parts, bytes, count, f)
    }

    /// Cuts a scattered list into operations of at most `bytes` bytes and `count` parts: runs of parts whose places follow
    /// each other, where they are `direct` bytes or more, and the small ones together.
    pub(crate) fn batches(
        &self,
        direct: u64,
        bytes: u64,
        count: usize,
        mut f: impl FnMut(Batch<'_>) -> Result<()>,
    ) -> Result<()> {
        let own: Vec<(u64, u64)> = self.own_parts().collect();
        let (mut parts, mut places, mut staged) = (Vec::new(), Vec::new(), 0);
        let mut rest = 0;
        while rest < own.len() {
            let (first, start) = (rest, own[rest].0);
            let mut size = 0;
            while rest < own.len() && own[rest].0 == start + size {
                size += own[rest].1;
                rest += 1;
            }
            if size >= direct {
                pieces(&self.parts[first..rest], bytes, count, |parts, at, size| {
                    f(Batch::Run(parts, start + at, size))
                })?;
                continue;
            }
            for (part, place) in self.parts[first..rest].iter().zip(&own[first..rest]) {
                if staged + part.1 > bytes || parts.len() == count {
                    f(Batch::Staged(&parts, &places, staged))?;
                    parts.clear();
                    places.clear();
                    staged = 0;
                }
                parts.push(*part);
                places.push(*place);
                staged += part.1;
            }
        }
        if parts.is_empty() { Ok(()) } else { f(Batch::Staged(&parts, &places, staged)) }
    }
}

/// The sum and the furthest end of (offset, size) pairs.
fn measure(parts: impl Iterator<Item = (u64, u64)>) -> Result<(u64, u64)> {
    let (mut total, mut end) = (0_u64, 0);
    for (offset, size) in parts {
        let fits = offset
            .checked_add(size)
            .filter(|e| *e <= MOST)
            .zip(total.checked_add(size).filter(|t| *t <= MOST));
        let Some((part_end, sum)) = fits else {
            return Err(Error::OutOfRange { operation: "list", offset, size, limit: MOST });
        };
        total = sum;
        end = end.max(part_end);
    }
    Ok((total, end))
}

fn pieces(
    parts: &[(u64, u64)],
    bytes: u64,
    count: usize,
    mut f: impl FnMut(&[(u64, u64)], u64, u64) -> Result<()>,
) -> Result<()> {
    let mut piece: Vec<(u64, u64)> = Vec::new();
    let (mut at, mut size) = (0, 0);
    for &(mut offset, mut left) in parts {
        while left > 0 {
            if size == bytes || piece.len() == count {
                f(&piece, at, size)?;
                at += size;
                size = 0;
                piece.clear();
            }
            let take = left.min(bytes - size);
            piece.push((offset, take));
            offset += take;
            left -= take;
            size += take;
        }
    }
    if piece.is_empty() { Ok(()) } else { f(&piece, at, size) }
}

/// Whether any range of one side overlaps any of the other; ranges of one side may overlap each other.
pub(crate) fn overlap(
    a: impl Iterator<Item = (u64, u64)>,
    b: impl Iterator<Item = (u64, u64)>,
) -> Option<(u64, u64)> {
    let mut all: Vec<(u64, u64, usize)> = a.map(|(at, size)| (at, size, 0)).collect();
    all.extend(b.map(|(at, size)| (at, size, 1)));
    all.sort_unstable();
    // The range of each side that reaches furthest so far: where it begins, and its end.
    let mut furthest = [(0, 0); 2];
    for (at, size, side) in all {
        let (begin, end) = furthest[1 - side];
        if at < end && size > 0 {
            return Some(if side == 1 { (begin, at) } else { (at, begin) });
        }
        if at + size > furthest[side].1 {
            furthest[side] = (at, at + size);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn flat(parts: &[(u64, u64)]) -> Vec<u64> {
        parts.iter().flat_map(|&(o, s)| o..o + s).collect()
    }

    proptest! {
        #[test]
        fn pieces_are_the_list_again(
            parts in prop::collection::vec((0..10_000_u64, 0..100_u64), 0..40), bytes in 1..200_u64, count in 1..10_usize,
        ) {
            let list = List::new(parts.clone()).unwrap();
            let mut seen = Vec::new();
            list.pieces(bytes, count, |piece, at, size| {
                assert_eq!(at, seen.len() as u64);
                assert!(size <= bytes && piece.len() <= count && size > 0);
                assert_eq!(size, piece.iter().map(|p| p.1).sum::<u64>());
                seen.extend(flat(piece));
                Ok(())
            }).unwrap();
            prop_assert_eq!(seen, flat(&parts));
        }

        #[test]
        fn batches_pair_every_byte_there_with_its_byte_here(
            parts in prop::collection::vec((0..10_000_u64, 0..300_u64, 0..100_u64), 0..40),
            direct in 1..300_u64, more in 0..200_u64, count in 1..10_usize,
        ) {
            let bytes = direct + more;
            let list = List::scattered(parts.clone()).unwrap();
            let mut seen = Vec::new();
            list.batches(direct, bytes, count, |batch| {
                let (parts, own, size) = match batch {
                    Batch::Run(parts, at, size) => (parts, vec![(at, size)], size),
                    Batch::Staged(parts, places, size) => (parts, places.to_vec(), size),
                };
                assert!(size <= bytes && parts.len() <= count && size > 0);
                assert_eq!(size, own.iter().map(|p| p.1).sum::<u64>());
                seen.extend(flat(parts).into_iter().zip(flat(&own)));
                Ok(())
            }).unwrap();
            let mut wanted: Vec<(u64, u64)> =
                parts.iter().flat_map(|&(there, here, size)| (there..there + size).zip(here..here + size)).collect();
            prop_assert_eq!(list.size(), wanted.len() as u64);
            prop_assert_eq!(list.end(), wanted.iter().map(|w| w.0 + 1).max().unwrap_or(0));
            prop_assert_eq!(list.own_end(), wanted.iter().map(|w| w.1 + 1).max().unwrap_or(0));
            seen.sort_unstable();
            wanted.sort_unstable();
            prop_assert_eq!(seen, wanted);
        }

        #[test]
        fn overlaps_are_those_of_the_bytes(
            a in prop::collection::vec((0..300_u64, 0..9_u64), 0..20), b in prop::collection::vec((0..300_u64, 0..9_u64), 0..20),
        ) {
            let shared = flat(&a).iter().any(|byte| flat(&b).contains(byte));
            prop_assert_eq!(overlap(a.iter().copied(), b.iter().copied()).is_some(), shared);
            // Places of a scattered list among themselves.
            let list = List::scattered(a.iter().map(|&(here, size)| (0, here, size))).unwrap();
            let mut bytes = flat(&a);
            bytes.sort_unstable();
            let twice = bytes.windows(2).any(|two| two[0] == two[1]);
            prop_assert_eq!(list.check_into("get").is_err(), twice);
        }
    }

    #[test]
    fn parts_that_reach_too_far_on_either_side_are_refused() {
        for bad in [(u64::MAX, 0, 1), (0, u64::MAX, 1), (0, (1 << 62) - 1, 2), (0, 0, (1 << 62) + 1)] {
            assert!(matches!(List::scattered([bad]), Err(Error::OutOfRange { .. })), "{bad:?}");
        }
        assert!(List::scattered([(0, 1, 0)]).unwrap().is_empty());
    }
}
