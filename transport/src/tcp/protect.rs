//! How frames are protected: a MAC over each header, and a check of each payload that the header carries.
//!
//! Each direction has keys of its own, made from what the handshake has agreed on. The MAC of a header covers all of it,
//! the payload's check among it, and the number of the frame on its connection: what was changed, left out, repeated,
//! moved or sent back is not taken. Headers have SipHash-2-4, which needs no unique numbers and is the fastest for so few
//! bytes; payloads have a CRC-32C, or keyed BLAKE3.
#![forbid(unsafe_code)]

use std::fmt;

use crc_fast::{CrcAlgorithm, Digest};
use siphasher::sip::SipHasher24;
use transom_registry::{Error, Result};

use super::frame::{Header, SIZE, TAG, flag};

/// What of a frame is proven to come from the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Level {
    /// Headers; payloads have a checksum.
    Auth = 1,
    /// Headers and payloads.
    Mac,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auth => "auth",
            Self::Mac => "mac",
        })
    }
}

impl Level {
    /// How a hello says it.
    pub(crate) fn feature(self) -> u32 {
        self as u32
    }

    /// Whether the peer, whose hello says this, has the same.
    ///
    /// # Errors
    /// [`Error::Unusable`], with both.
    pub(crate) fn agree(self, feature: u32) -> Result<()> {
        if feature == self.feature() {
            return Ok(());
        }
        let known = [Self::Auth, Self::Mac].into_iter().find(|level| level.feature() == feature);
        let theirs = known.map_or_else(|| format!("level {feature}"), |level| level.to_string());
        Err(Error::Unusable {
            transport: "tcp".into(),
            why: format!(
                "the peer has protect={theirs}, we have protect={self} (name the same on both sides)"
            ),
        })
    }
}

/// Seals the headers of one direction in the order in which they are written, or checks them in that order.
pub(crate) struct Seal {
    hasher: SipHasher24,
    next: u64,
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seal(***, {})", self.next)
    }
}

impl Seal {
    /// `key` is that of the direction.
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        let key = blake3::derive_key("transom tcp: headers of frames", key);
        let mut short = [0; 16];
        short.copy_from_slice(&key[..16]);
        Self { hasher: SipHasher24::new_with_key(&short), next: 0 }
    }

    /// The frame's number takes the place of the MAC in what that covers.
    fn tag(&self, head: &[u8; SIZE]) -> u64 {
        let mut whole = *head;
        whole[TAG..].copy_from_slice(&self.next.to_le_bytes());
        self.hasher.hash(&whole)
    }

    /// Writes the MAC of the next frame into its header.
    pub(crate) fn seal(&self, head: &mut [u8; SIZE]) {
        let tag = self.tag(head);
        head[TAG..].copy_from_slice(&tag.to_le_bytes());
    }

    /// Whether this is the next frame's header. The MACs are compared as one word, which takes the same time always.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub(crate) fn check(&self, head: &[u8; SIZE]) -> Result<()> {
        let mut tag = [0; SIZE - TAG];
        tag.copy_from_slice(&head[TAG..]);
        if self.tag(head) == u64::from_le_bytes(tag) {
            return Ok(());
        }
        let why = format!("the MAC of the header of frame {} is wrong", self.next);
        Err(Error::Malformed { what: "frame", why })
    }

    /// The frame has been taken, or a byte of it has been written.
    pub(crate) fn advance(&mut self) {
        self.next += 1;
    }
}

/// How the payloads of one direction are checked.
#[derive(Clone)]
pub(crate) enum Check {
    /// Not at all.
    None,
    /// CRC-32C.
    Crc,
    /// Keyed BLAKE3, the first 8 bytes of it.
    Mac([u8; 32]),
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Crc => "Crc",
            Self::Mac(_) => "Mac(***)",
        })
    }
}

impl Check {
    /// That of a level; `key` is that of the direction.
    pub(crate) fn new(level: Level, key: &[u8; 32]) -> Self {
        match level {
            Level::Auth => Self::Crc,
            Level::Mac => Self::Mac(blake3::derive_key("transom tcp: payloads of frames", key)),
        }
    }

    /// Begins the sum of a payload.
    pub(crate) fn begin(&self) -> Sum {
        match self {
            Self::None => Sum::None,
            Self::Crc => Sum::Crc(Digest::new(CrcAlgorithm::Crc32Iscsi)),
            Self::Mac(key) => Sum::Mac(Box::new(blake3::Hasher::new_keyed(key))),
        }
    }

    /// Begins the sum of a payload that came with this header.
    ///
    /// # Errors
    /// [`Error::Malformed`] for one without the MAC that it has to have.
    pub(crate) fn expect(&self, header: &Header) -> Result<Sum> {
        if header.has(flag::CHECK) {
            return Ok(self.begin());
        }
        if matches!(self, Self::Mac(_)) && header.size > 0 {
            let why = format!("the {} bytes of {:?} have no MAC", header.size, header.opcode);
            return Err(Error::Malformed { what: "frame", why });
        }
        Ok(Sum::None)
    }
}

/// The sum of a payload, as far as it has come.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "the large one is the common one, and stays where it was made")]
pub(crate) enum Sum {
    None,
    Crc(Digest),
    Mac(Box<blake3::Hasher>),
}

impl Sum {
    /// Goes on over these bytes.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        match self {
            Self::None => {}
            Self::Crc(digest) => digest.update(bytes),
            Self::Mac(hasher) => {
                hasher.update(bytes);
            }
        }
    }

    fn value(&self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Crc(digest) => Some(digest.finalize()),
            Self::Mac(hasher) => hasher.finalize().as_bytes().first_chunk().copied().map(u64::from_le_bytes),
        }
    }

    /// Puts a payload's size and sum into its header.
    pub(crate) fn seal(&self, header: &mut Header, size: u64) {
        header.size = size;
        if let Some(value) = self.value()
            && size > 0
        {
            header.flags |= flag::CHECK;
            header.check = value;
        }
    }

    /// Whether the payload is the one that was sent with this header.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub(crate) fn check(&self, header: &Header) -> Result<()> {
        if self.value().is_none_or(|value| value == header.check) {
            return Ok(());
        }
        let what = if matches!(self, Self::Mac(_)) { "MAC" } else { "checksum" };
        let why = format!("the {what} of the {} bytes of {:?} is wrong", header.size, header.opcode);
        Err(Error::Malformed { what: "frame", why })
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::Opcode;
    use super::*;

    #[test]
    fn a_payload_without_its_mac_is_refused_where_there_has_to_be_one() {
        let header = Header { size: 1, ..Header::new(Opcode::Put) };
        assert!(Check::new(Level::Auth, &[1; 32]).expect(&header).is_ok());
        assert!(Check::new(Level::Mac, &[1; 32]).expect(&header).is_err());
        assert!(Check::new(Level::Mac, &[1; 32]).expect(&Header::new(Opcode::Ping)).is_ok());
    }

    #[test]
    fn each_key_gives_other_macs_of_a_payload_whatever_the_pieces_it_came_in() {
        let bytes = vec![5; 100_000];
        let value = |key: u8, piece: usize| {
            let mut sum = Check::new(Level::Mac, &[key; 32]).begin();
            bytes.chunks(piece).for_each(|piece| sum.add(piece));
            sum.value()
        };
        assert_eq!(value(1, 100_000), value(1, 777));
        assert_ne!(value(1, 777), value(2, 777));
    }
}
