//! What the payloads of control frames mean: lists of parts, refusals, and asking for a handle.
//!
//! Decoders look at bytes that are there already, and allocate at most as much as came.

#![forbid(unsafe_code)]

use transom_registry::{Access, Error, Result, Stale};

use crate::wire::{Fields, put_text};

/// The most parts of one list in a frame.
pub const MAX_PARTS: usize = 4096;
/// Bytes of a part.
pub const PART: usize = 16;
/// The largest list, in bytes: its length and its parts.
pub const MAX_LIST: usize = 4 + MAX_PARTS * PART;
/// The longest text in a refusal, in bytes.
pub const MAX_TEXT: usize = 512;

/// One range of bytes of a transfer in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// In bytes, from the grant's first one.
    pub offset: u64,
    /// In bytes.
    pub size: u64,
}

/// A list of parts as it came, checked once, and read in place.
///
/// Its sizes, and each offset plus size, are known not to overflow; whether they are within the grant is not.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    parts: &'a [[u8; PART]],
    total: u64,
}

impl<'a> Parts<'a> {
    /// How many bytes the list takes that starts with these, the four included; so that a receiver can read the list
    /// first and place the data after it directly.
    ///
    /// # Errors
    /// [`Error::Malformed`] for more than [`MAX_PARTS`].
    pub fn needed(count: [u8; 4]) -> Result<usize> {
        let count = u32::from_le_bytes(count);
        match usize::try_from(count) {
            Ok(count) if count <= MAX_PARTS => Ok(4 + count * PART),
            _ => Err(malformed(format!("{count} parts, the limit is {MAX_PARTS}"))),
        }
    }

    /// The list that these bytes start with, and what follows it.
    ///
    /// # Errors
    /// [`Error::Malformed`] for too many parts, for fewer bytes than its parts need, and for sizes that overflow.
    pub fn split(payload: &'a [u8]) -> Result<(Self, &'a [u8])> {
        let mut fields = Fields::new(LIST, payload);
        let size = Self::needed(fields.array()?)?;
        let (parts, _) = fields.bytes(size - 4)?.as_chunks();
        let mut total = 0u64;
        for (i, part) in parts.iter().map(part).enumerate() {
            if part.offset.checked_add(part.size).is_none() {
                return Err(malformed(format!(
                    "part {i}: offset {} + size {} overflows",
                    part.offset, part.size
                )));
            }
            total = total
                .checked_add(part.size)
                .ok_or_else(|| malformed(format!("the sizes of the first {} parts overflow", i + 1)))?;
        }
        Ok((Self { parts, total }, fields.bytes(fields.left())?))
    }

    /// The list that these bytes are, and nothing else.
    ///
    /// # Errors
    /// As [`split`](Self::split), and when something follows.
    pub fn decode(payload: &'a [u8]) -> Result<Self> {
        match Self::split(payload)? {
            (parts, []) => Ok(parts),
            (_, more) => Err(malformed(format!("{} bytes follow its end", more.len()))),
        }
    }

    /// Appends a list to a payload.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than [`MAX_PARTS`]; nothing was appended.
    pub fn encode(parts: &[Part], into: &mut Vec<u8>) -> Result<()> {
        let count = match u32::try_from(parts.len()) {
            Ok(count) if parts.len() <= MAX_PARTS => count,
            _ => return Err(Error::invalid(LIST, format!("{} parts, at most {MAX_PARTS} fit", parts.len()))),
        };
        into.reserve(4 + parts.len() * PART);
        into.extend_from_slice(&count.to_le_bytes());
        for part in parts {
            into.extend_from_slice(&part.offset.to_le_bytes());
            into.extend_from_slice(&part.size.to_le_bytes());
        }
        Ok(())
    }

    /// How many parts.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The sum of their sizes, in bytes.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// The parts, in the order in which they were sent.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Part> + Clone + use<'a> {
        self.parts.iter().map(part)
    }
}

fn part(bytes: &[u8; PART]) -> Part {
    let both = u128::from_le_bytes(*bytes);
    #[expect(clippy::cast_possible_truncation, reason = "each takes its half")]
    Part { offset: both as u64, size: (both >> 64) as u64 }
}

/// Asks for a handle for a range of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attach {
    /// The region's slot at its owner.
    pub slot: u32,
    /// The region's generation.
    pub generation: u32,
    /// The team's epoch; 0 outside of a team.
    pub epoch: u64,
    /// The first byte of the range.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
    /// The rights that are wanted.
    pub access: Access,
}

impl Attach {
    /// Bytes of its payload.
    pub const SIZE: usize = 33;

    /// Its payload.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        out[0..4].copy_from_slice(&self.slot.to_le_bytes());
        out[4..8].copy_from_slice(&self.generation.to_le_bytes());
        out[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        out[16..24].copy_from_slice(&self.offset.to_le_bytes());
        out[24..32].copy_from_slice(&self.size.to_le_bytes());
        out[32] = self.access.bits();
        out
    }

    /// From its payload.
    ///
    /// # Errors
    /// [`Error::Malformed`] for another size, unknown rights, and a range that overflows.
    pub fn decode(payload: &[u8]) -> Result<Self> {
        let mut fields = Fields::new("attach", payload);
        let attach = Self {
            slot: fields.u32()?,
            generation: fields.u32()?,
            epoch: fields.u64()?,
            offset: fields.u64()?,
            size: fields.u64()?,
            access: access(&mut fields)?,
        };
        if attach.offset.checked_add(attach.size).is_none() {
            return Err(
                fields.malformed(format!("offset {} + size {} overflows", attach.offset, attach.size))
            );
        }
        fields.end()?;
        Ok(attach)
    }
}

/// Gives a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attached {
    /// What the header of each operation on the range carries from now on.
    pub handle: u32,
    /// What the owner says of it, as bits; unknown ones are kept and mean nothing.
    pub flags: u32,
}

impl Attached {
    /// Bytes of its payload.
    pub const SIZE: usize = 8;

    /// Its payload.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        out[0..4].copy_from_slice(&self.handle.to_le_bytes());
        out[4..8].copy_from_slice(&self.flags.to_le_bytes());
        out
    }

    /// From its payload.
    ///
    /// # Errors
    /// [`Error::Malformed`] for another size.
    pub fn decode(payload: &[u8]) -> Result<Self> {
        let mut fields = Fields::new("attached", payload);
        let attached = Self { handle: fields.u32()?, flags: fields.u32()? };
        fields.end()?;
        Ok(attached)
    }
}

/// Says that a request was rejected, and why.
#[derive(Debug, Clone)]
pub struct Refused {
    /// The sequence of the frame that was rejected.
    pub sequence: u64,
    /// Why. What has no code of its own travels as text and comes out as [`Error::Invalid`].
    pub why: Error,
}

impl Refused {
    /// The error for whoever asked.
    ///
    /// A torn accumulate stays what it is, because something was written; all others become [`Error::Refused`].
    #[must_use]
    pub fn into_error(self) -> Error {
        match self.why {
            torn @ Error::Torn { .. } => torn,
            why => Error::Refused { rank: None, why: Box::new(why) },
        }
    }

    /// Its payload.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        out.extend_from_slice(&self.sequence.to_le_bytes());
        let mut start = |code: u8, operation: &str, numbers: &[u64]| {
            out.extend_from_slice(&[code, operation_number(operation)]);
            for number in numbers {
                out.extend_from_slice(&number.to_le_bytes());
            }
        };
        match &self.why {
            Error::OutOfRange { operation, offset, size, limit } => {
                start(OUT_OF_RANGE, operation, &[*offset, *size, *limit]);
            }
            Error::Access { operation, needed, granted } => {
                start(ACCESS, operation, &[]);
                out.extend_from_slice(&[needed.bits(), granted.bits()]);
            }
            Error::Stale { operation, what, held, current } => {
                start(STALE, operation, &[*held, *current]);
                out.push(match what {
                    Stale::Incarnation => 0,
                    Stale::Generation => 1,
                    Stale::Epoch => 2,
                });
            }
            Error::Misaligned { operation, offset, align } => {
                start(MISALIGNED, operation, &[*offset, *align])
            }
            Error::Torn { operation, offset, size } => start(TORN, operation, &[*offset, *size]),
            Error::Invalid { operation, why } => {
                start(TEXT, operation, &[]);
                put_text(&mut out, short(why));
            }
            other => {
                start(TEXT, "", &[]);
                put_text(&mut out, short(&other.to_string()));
            }
        }
        out
    }

    /// From its payload.
    ///
    /// # Errors
    /// [`Error::Malformed`] for an unknown code, a text that is too long or not UTF-8, and another size than the code
    /// asks for.
    pub fn decode(payload: &[u8]) -> Result<Self> {
        let mut fields = Fields::new("refusal", payload);
        let sequence = fields.u64()?;
        let code = fields.u8()?;
        let operation = operation_name(fields.u8()?);
        let why = match code {
            OUT_OF_RANGE => Error::OutOfRange {
                operation,
                offset: fields.u64()?,
                size: fields.u64()?,
                limit: fields.u64()?,
            },
            ACCESS => {
                Error::Access { operation, needed: access(&mut fields)?, granted: access(&mut fields)? }
            }
            STALE => {
                let (held, current) = (fields.u64()?, fields.u64()?);
                let what = match fields.u8()? {
                    0 => Stale::Incarnation,
                    1 => Stale::Generation,
                    2 => Stale::Epoch,
                    other => return Err(fields.malformed(format!("unknown part {other} of an identity"))),
                };
                Error::Stale { operation, what, held, current }
            }
            MISALIGNED => Error::Misaligned { operation, offset: fields.u64()?, align: fields.u64()? },
            TORN => {
                let (offset, size) = (fields.u64()?, fields.u64()?);
                if offset.checked_add(size).is_none() {
                    return Err(fields.malformed(format!("offset {offset} + size {size} overflows")));
                }
                Error::Torn { operation, offset, size }
            }
            TEXT => Error::invalid(operation, fields.text(MAX_TEXT)?),
            other => return Err(fields.malformed(format!("unknown code {other}"))),
        };
        fields.end()?;
        Ok(Self { sequence, why })
    }
}

const LIST: &str = "list";

const OUT_OF_RANGE: u8 = 1;
const ACCESS: u8 = 2;
const STALE: u8 = 3;
const MISALIGNED: u8 = 4;
const TORN: u8 = 5;
const TEXT: u8 = 6;

/// Operations that a refusal can name; the place in the list is the number on the wire, so only append. Names that are
/// not here, and numbers of a newer list, become the first.
const OPERATIONS: [&str; 19] = [
    "operation",
    "put",
    "put_from",
    "put_list",
    "put_signal",
    "get",
    "get_into",
    "get_list",
    "signal",
    "atomic",
    "fetch_add",
    "swap",
    "compare_swap",
    "accumulate",
    "attach",
    "detach",
    "flush",
    "fence",
    "list",
];

fn operation_number(name: &str) -> u8 {
    OPERATIONS.iter().position(|n| *n == name).and_then(|i| u8::try_from(i).ok()).unwrap_or(0)
}

fn operation_name(number: u8) -> &'static str {
    OPERATIONS.get(usize::from(number)).unwrap_or(&OPERATIONS[0])
}

fn access(fields: &mut Fields<'_>) -> Result<Access> {
    let bits = fields.u8()?;
    Access::from_bits(bits).ok_or_else(|| fields.malformed(format!("unknown rights {bits:#04x}")))
}

/// As much of a text as fits, cut between two characters.
fn short(text: &str) -> &str {
    let end = (0..=text.len().min(MAX_TEXT)).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

fn malformed(why: String) -> Error {
    Error::Malformed { what: LIST, why }
}

#[cfg(test)]
mod tests;
