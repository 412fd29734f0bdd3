//! What trainers and writers say to each other: a header of fixed layout, and a payload behind it.

use crate::Error;

/// A message's header takes a page of its own, so that payloads are aligned for direct I/O.
pub(super) const PAGE: usize = 4096;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A save begins; the payload is what the trainer wants kept with it. An unfinished one before it is given up.
    Begin,
    /// A block of the save; its number is in the header.
    Block,
    /// The trainer will send nothing more.
    End,
}

/// The first bytes of a message, little-endian: magic, kind, index, size, step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// The number of the block among those of the shard, from 0.
    pub(super) index: u32,
    /// The size of the payload in bytes.
    pub(super) size: u32,
    /// The step whose save it belongs to.
    pub(super) step: u64,
}

const MAGIC: u32 = u32::from_le_bytes(*b"tck1");

impl Header {
    pub(super) const SIZE: usize = 24;

    pub(super) fn to_bytes(self) -> [u8; Self::SIZE] {
        let kind: u32 = match self.kind {
            Kind::Begin => 1,
            Kind::Block => 2,
            Kind::End => 3,
        };
        let mut bytes = [0; Self::SIZE];
        for (at, word) in [MAGIC, kind, self.index, self.size].into_iter().enumerate() {
            bytes[at * 4..at * 4 + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[16..].copy_from_slice(&self.step.to_le_bytes());
        bytes
    }

    /// Reads one, whose payload may be of `most` bytes.
    pub(super) fn from_bytes(bytes: &[u8; Self::SIZE], most: u64) -> Result<Self, Error> {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at * 4 + i]));
        let kind = match (word(0), word(1)) {
            (MAGIC, 1) => Kind::Begin,
            (MAGIC, 2) => Kind::Block,
            (MAGIC, 3) => Kind::End,
            (magic, kind) => {
                return Err(Error::Protocol(format!(
                    "a message begins with {magic:#x} {kind}, which is none of ours"
                )));
            }
        };
        let size = word(3);
        if u64::from(size) > most {
            return Err(Error::Protocol(format!("a message of {size} bytes, and {most} is the most")));
        }
        let step = u64::from_le_bytes(std::array::from_fn(|i| bytes[16 + i]));
        Ok(Self { kind, index: word(2), size, step })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_back_and_anything_else_is_refused() {
        let header = Header { kind: Kind::Block, index: 7, size: 4096, step: 1 << 40 };
        assert_eq!(Header::from_bytes(&header.to_bytes(), 4096).unwrap(), header);
        assert!(Header::from_bytes(&header.to_bytes(), 4095).is_err());
        let mut other = header.to_bytes();
        other[0] ^= 1;
        assert!(Header::from_bytes(&other, 4096).is_err());
        assert!(Header::from_bytes(&[0; Header::SIZE], 4096).is_err());
        let mut kind = header.to_bytes();
        kind[4] = 4;
        assert!(Header::from_bytes(&kind, 4096).is_err());
    }
}
