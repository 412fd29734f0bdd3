//! Digests of blocks and files: XXH3, 128 bits.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use transom::Slice;
use twox_hash::{XxHash3_128, xxhash3_128};

use crate::Result;

/// 128 bits of XXH3. It tells damage, not malice.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(u128);

impl Digest {
    /// Of some bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(XxHash3_128::oneshot(bytes))
    }

    /// Of registered memory: bytes that nobody writes meanwhile.
    pub(crate) fn of_slice(slice: &Slice) -> Result<Self> {
        let mut hasher = Hasher::new();
        hasher.update_slice(slice)?;
        Ok(hasher.digest())
    }

    /// Of a file: its header, then the digests of its blocks.
    pub(crate) fn of_file(header: Self, blocks: &[Self]) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(&header.0.to_le_bytes());
        for block in blocks {
            hasher.update(&block.0.to_le_bytes());
        }
        hasher.digest()
    }
}

/// A digest of bytes that come one after the other.
pub(crate) struct Hasher {
    state: xxhash3_128::Hasher,
    /// For registered memory, which no reference is made to.
    chunk: Vec<u8>,
}

/// How much registered memory is copied and looked at at once: what stays in a near cache.
const CHUNK: usize = 64 << 10;

impl Hasher {
    pub(crate) fn new() -> Self {
        Self { state: xxhash3_128::Hasher::new(), chunk: Vec::new() }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.state.write(bytes);
    }

    pub(crate) fn update_slice(&mut self, slice: &Slice) -> Result<()> {
        self.chunk.resize(CHUNK.min(slice.size()).max(self.chunk.len()), 0);
        let mut at = 0;
        while at < slice.size() {
            let piece = CHUNK.min(slice.size() - at);
            let piece = &mut self.chunk[..piece];
            slice.read(at, piece)?;
            self.state.write(piece);
            at += piece.len();
        }
        Ok(())
    }

    pub(crate) fn digest(&self) -> Digest {
        Digest(self.state.finish_128())
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
