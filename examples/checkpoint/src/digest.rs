//! Digests of blocks and files: XXH3, 128 bits.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use transom::Slice;
use xxhash_rust::xxh3::Xxh3;

use crate::Result;

/// 128 bits of XXH3. It tells damage, not malice.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(u128);

/// How much of a slice is looked at once: what stays in the nearest cache.
const CHUNK: usize = 16 << 10;

impl Digest {
    /// Of some bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(xxhash_rust::xxh3::xxh3_128(bytes))
    }

    /// Of registered memory: bytes that nobody writes meanwhile.
    pub(crate) fn of_slice(slice: &Slice) -> Result<Self> {
        let mut hasher = Xxh3::new();
        Self::update(&mut hasher, slice)?;
        Ok(hasher.into())
    }

    /// Goes on with registered memory.
    pub(crate) fn update(hasher: &mut Xxh3, slice: &Slice) -> Result<()> {
        let mut chunk = [0; CHUNK];
        let mut at = 0;
        while at < slice.size() {
            let piece = &mut chunk[..CHUNK.min(slice.size() - at)];
            slice.read(at, piece)?;
            hasher.update(piece);
            at += piece.len();
        }
        Ok(())
    }

    /// Of a file: its header, then the digests of its blocks.
    pub(crate) fn of_file(header: Self, blocks: &[Self]) -> Self {
        let mut hasher = Xxh3::new();
        hasher.update(&header.0.to_le_bytes());
        for block in blocks {
            hasher.update(&block.0.to_le_bytes());
        }
        hasher.into()
    }
}

impl From<Xxh3> for Digest {
    fn from(hasher: Xxh3) -> Self {
        Self(hasher.digest128())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        match u128::from_str_radix(&text, 16) {
            Ok(value) if digits => Ok(Self(value)),
            _ => Err(D::Error::custom("a digest is 32 hexadecimal digits")),
        }
    }
}
