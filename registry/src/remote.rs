//! What a peer needs to reach a region.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Access, Error, Incarnation, Kind, Result};

/// What a peer needs to reach a region: who owns it, which of its lives, how large it is, the rights, and where the
/// owner can be reached. It is no secret and no key: keys go over the first authenticated connection.
///
/// Its text form can be pasted by a person: `to_string` and `parse`.
///
/// # Examples
/// ```
/// use transom_registry::RemoteRegion;
/// let error = "transom1-AAAA".parse::<RemoteRegion>().unwrap_err();
/// assert!(error.to_string().starts_with("remote region is malformed"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteRegion {
    /// The life of the process that owns it.
    pub incarnation: Incarnation,
    /// Its place in the owner's table.
    pub slot: u32,
    /// How often that place was taken.
    pub generation: u32,
    /// The team's epoch, 0 outside of teams.
    pub epoch: u64,
    /// Where in the region the exported range begins, in bytes.
    pub offset: u64,
    /// Size of the exported range, in bytes.
    pub size: u64,
    /// What memory it is.
    pub kind: Kind,
    /// The rights.
    pub access: Access,
    /// How many signals it has for the peer.
    pub signals: u32,
    /// Where the owner can be reached, best first: `shm:PATH`, `tcp:HOST:PORT`.
    pub addresses: Vec<String>,
}

const PREFIX: &str = "transom1-";
const MOST_ADDRESSES: usize = 8;
const LONGEST_ADDRESS: usize = 255;
/// Bytes before the addresses.
const FIXED: usize = 8 + 4 + 4 + 8 + 8 + 8 + 1 + 1 + 4 + 1;

fn malformed(why: impl Into<String>) -> Error {
    Error::Malformed { what: "remote region", why: why.into() }
}

/// CRC-32 (IEEE 802.3), so that a slip of the pen is found; the descriptor is short, and this is not on any data path.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg()))
    })
}

impl Kind {
    fn as_u8(self) -> u8 {
        match self {
            Self::Host => 1,
            Self::File => 2,
            Self::Foreign => 3,
            Self::Device => 4,
        }
    }

    fn from_u8(number: u8) -> Option<Self> {
        [Self::Host, Self::File, Self::Foreign, Self::Device].into_iter().find(|k| k.as_u8() == number)
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or_else(|| malformed("it is cut short"))?;
        self.0 = tail;
        Ok(*head)
    }
    fn u8(&mut self) -> Result<u8> {
        Ok(self.take::<1>()?[0])
    }
    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take()?))
    }
    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take()?))
    }
}

impl RemoteRegion {
    /// Its compact binary form: fixed little-endian fields, the addresses, a CRC-32.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out =
            Vec::with_capacity(FIXED + self.addresses.iter().map(|a| a.len() + 1).sum::<usize>() + 4);
        out.extend(self.incarnation.as_u64().to_le_bytes());
        out.extend(self.slot.to_le_bytes());
        out.extend(self.generation.to_le_bytes());
        out.extend(self.epoch.to_le_bytes());
        out.extend(self.offset.to_le_bytes());
        out.extend(self.size.to_le_bytes());
        out.push(self.kind.as_u8());
        out.push(self.access.bits());
        out.extend(self.signals.to_le_bytes());
        let addresses: Vec<&String> =
            self.addresses.iter().filter(|a| a.len() <= LONGEST_ADDRESS).take(MOST_ADDRESSES).collect();
        out.push(addresses.len() as u8);
        for address in addresses {
            out.push(address.len() as u8);
            out.extend(address.as_bytes());
        }
        out.extend(crc32(&out).to_le_bytes());
        out
    }

    /// Reads the binary form.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let (body, crc) = bytes.split_last_chunk::<4>().ok_or_else(|| malformed("it is cut short"))?;
        if crc32(body) != u32::from_le_bytes(*crc) {
            return Err(malformed("its checksum is wrong (copy all of it)"));
        }
        let mut read = Reader(body);
        let incarnation =
            Incarnation::from_u64(read.u64()?).ok_or_else(|| malformed("its incarnation is 0"))?;
        let (slot, generation) = (read.u32()?, read.u32()?);
        let (epoch, offset, size) = (read.u64()?, read.u64()?, read.u64()?);
        if offset.checked_add(size).is_none_or(|end| end > 1 << 62) {
            return Err(malformed(format!("offset {offset} + size {size} is no range")));
        }
        let kind = read.u8()?;
        let kind = Kind::from_u8(kind).ok_or_else(|| malformed(format!("kind {kind} is not known")))?;
        let access = read.u8()?;
        let access = Access::from_bits(access)
            .ok_or_else(|| malformed(format!("rights {access:#x} are not known")))?;
        let signals = read.u32()?;
        let count = usize::from(read.u8()?);
        if count > MOST_ADDRESSES {
            return Err(malformed(format!("{count} addresses are more than {MOST_ADDRESSES}")));
        }
        let mut addresses = Vec::with_capacity(count);
        for _ in 0..count {
            let size = usize::from(read.u8()?);
            let (address, rest) =
                read.0.split_at_checked(size).ok_or_else(|| malformed("it is cut short"))?;
            read.0 = rest;
            let address = std::str::from_utf8(address).map_err(|_| malformed("an address is not text"))?;
            addresses.push(address.to_owned());
        }
        if !read.0.is_empty() {
            return Err(malformed(format!("{} bytes too many", read.0.len())));
        }
        Ok(Self { incarnation, slot, generation, epoch, offset, size, kind, access, signals, addresses })
    }
}

impl fmt::Display for RemoteRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        f.write_str(&data_encoding::BASE64URL_NOPAD.encode(&self.to_bytes()))
    }
}

impl FromStr for RemoteRegion {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        let body =
            text.strip_prefix(PREFIX).ok_or_else(|| malformed(format!("it does not begin with {PREFIX}")))?;
        if body.len() > 8192 {
            return Err(malformed(format!("{} characters are too many", body.len())));
        }
        let bytes = data_encoding::BASE64URL_NOPAD
            .decode(body.as_bytes())
            .map_err(|e| malformed(format!("character {} is not of its alphabet", e.position)))?;
        Self::from_bytes(&bytes)
    }
}

/// Decodes arbitrary bytes, for the fuzzer.
#[doc(hidden)]
pub fn fuzz_remote_region(bytes: &[u8]) {
    if let Ok(region) = RemoteRegion::from_bytes(bytes) {
        assert_eq!(RemoteRegion::from_bytes(&region.to_bytes()).ok(), Some(region));
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = text.parse::<RemoteRegion>();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn any_region()(
            incarnation in 1..u64::MAX, slot: u32, generation: u32, epoch: u64,
            offset in 0..1_u64 << 61, size in 0..1_u64 << 61, kind in 1..=4_u8, access in 0..16_u8, signals: u32,
            addresses in prop::collection::vec("[a-z]{1,5}:[ -~]{0,60}", 0..8),
        ) -> RemoteRegion {
            RemoteRegion {
                incarnation: Incarnation::from_u64(incarnation).unwrap(), slot, generation, epoch, offset, size,
                kind: Kind::from_u8(kind).unwrap(), access: Access::from_bits(access).unwrap(), signals, addresses,
            }
        }
    }

    proptest! {
        #[test]
        fn text_and_serde_forms_give_the_same_region_back(region in any_region()) {
            prop_assert_eq!(&region.to_string().parse::<RemoteRegion>().unwrap(), &region);
            let json = serde_json::to_string(&region).unwrap();
            prop_assert_eq!(serde_json::from_str::<RemoteRegion>(&json).unwrap(), region);
        }

        #[test]
        fn no_single_flipped_bit_is_taken(region in any_region(), at: prop::sample::Index, bit in 0..8_u32) {
            let mut bytes = region.to_bytes();
            let at = at.index(bytes.len());
            bytes[at] ^= 1_u8 << bit;
            prop_assert!(RemoteRegion::from_bytes(&bytes).is_err());
        }

        #[test]
        fn garbage_never_panics(bytes: Vec<u8>, text: String) {
            fuzz_remote_region(&bytes);
            let _ = text.parse::<RemoteRegion>();
        }
    }
}
