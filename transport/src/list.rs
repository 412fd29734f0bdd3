//! Transfers of many parts.

use transom_registry::{Error, Result};

/// A transfer of many parts: (offset, size) pairs in a peer's region, and consecutive bytes on this side. Built once,
/// checked once, replayed without allocation.
///
/// # Examples
/// ```
/// use transom_transport::List;
/// let list = List::new([(0, 256), (4096, 256)])?;
/// assert_eq!((list.len(), list.size(), list.end()), (2, 512, 4352));
/// assert!(List::new([(u64::MAX, 2)]).is_err());
/// # Ok::<(), transom_transport::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    parts: Box<[(u64, u64)]>,
    size: u64,
    end: u64,
}

impl List {
    /// A list of these (offset, size) pairs, in bytes. Parts of size 0 are left out.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when a part or their sum is more than 2^62 bytes.
    pub fn new(parts: impl IntoIterator<Item = (u64, u64)>) -> Result<Self> {
        const MOST: u64 = 1 << 62;
        let parts: Box<[(u64, u64)]> = parts.into_iter().filter(|(_, size)| *size > 0).collect();
        let (mut total, mut end) = (0_u64, 0);
        for &(offset, size) in &parts {
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
        Ok(Self { parts, size: total, end })
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

    /// Its (offset, size) pairs.
    #[must_use]
    pub fn parts(&self) -> &[(u64, u64)] {
        &self.parts
    }

    /// Cuts the list into pieces of at most `bytes` bytes and `count` parts and hands each to `f` with the position of
    /// its first byte on this side. A part that is larger than a piece is cut.
    pub(crate) fn pieces(
        &self,
        bytes: u64,
        count: usize,
        mut f: impl FnMut(&[(u64, u64)], u64, u64) -> Result<()>,
    ) -> Result<()> {
        let mut piece: Vec<(u64, u64)> = Vec::new();
        let (mut at, mut size) = (0, 0);
        for &(mut offset, mut left) in &self.parts {
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
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_are_the_list_again(
            parts in prop::collection::vec((0..10_000_u64, 0..100_u64), 0..40), bytes in 1..200_u64, count in 1..10_usize,
        ) {
            let list = List::new(parts.clone()).unwrap();
            let flat = |parts: &[(u64, u64)]| parts.iter().flat_map(|&(o, s)| o..o + s).collect::<Vec<_>>();
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
    }
}
