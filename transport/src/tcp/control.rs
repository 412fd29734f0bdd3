//! What is inside the small payloads: lists of parts, attachments, refusals.
#![forbid(unsafe_code)]

use std::time::Duration;

use transom_registry::{
    Access, Cause, Error, Failure, Incarnation, Kind, Outcome, RemoteRegion, Result, Stale,
};

use super::frame::PART;

/// Most bytes of the text of a refusal.
const MOST_TEXT: usize = 512;

fn malformed(what: &'static str, why: impl Into<String>) -> Error {
    Error::Malformed { what, why: why.into() }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Adds parts in their wire form.
pub(crate) fn encode_parts(parts: &[(u64, u64)], out: &mut Vec<u8>) {
    for (offset, size) in parts {
        out.extend(offset.to_le_bytes());
        out.extend(size.to_le_bytes());
    }
}

/// Reads the parts that these bytes are, and the sum of their sizes.
///
/// # Errors
/// [`Error::Malformed`] for a broken part or a sum of more than 2^62 bytes.
pub(crate) fn decode_parts(bytes: &[u8]) -> Result<(Vec<(u64, u64)>, u64)> {
    let (parts, rest) = bytes.as_chunks::<{ PART as usize }>();
    if !rest.is_empty() {
        return Err(malformed("list", format!("{} bytes are no whole number of parts", bytes.len())));
    }
    let mut total = 0_u64;
    let parts: Vec<_> = parts.iter().map(|part| (word(part, 0), word(part, 8))).collect();
    for (_, size) in &parts {
        total = total
            .checked_add(*size)
            .filter(|t| *t <= 1 << 62)
            .ok_or_else(|| malformed("list", "its parts are more than 2^62 bytes"))?;
    }
    Ok((parts, total))
}

/// What a peer wants a handle to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attach {
    slot: u32,
    generation: u32,
    epoch: u64,
    offset: u64,
    size: u64,
    incarnation: Incarnation,
    access: Access,
}

impl Attach {
    /// Its size on the wire.
    pub(crate) const SIZE: usize = 4 + 4 + 8 + 8 + 8 + 8 + 1;

    /// What this descriptor asks for.
    pub(crate) fn new(region: &RemoteRegion) -> Self {
        Self {
            slot: region.slot,
            generation: region.generation,
            epoch: region.epoch,
            offset: region.offset,
            size: region.size,
            incarnation: region.incarnation,
            access: region.access,
        }
    }

    /// The descriptor, as far as the owner needs it.
    pub(crate) fn region(&self) -> RemoteRegion {
        RemoteRegion {
            incarnation: self.incarnation,
            slot: self.slot,
            generation: self.generation,
            epoch: self.epoch,
            offset: self.offset,
            size: self.size,
            kind: Kind::Host,
            access: self.access,
            signals: 0,
            addresses: Vec::new(),
        }
    }

    /// Its wire form.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::SIZE);
        out.extend(self.slot.to_le_bytes());
        out.extend(self.generation.to_le_bytes());
        out.extend(self.epoch.to_le_bytes());
        out.extend(self.offset.to_le_bytes());
        out.extend(self.size.to_le_bytes());
        out.extend(self.incarnation.as_u64().to_le_bytes());
        out.push(self.access.bits());
        out
    }

    /// Reads the wire form.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        const WHAT: &str = "attach";
        if bytes.len() != Self::SIZE {
            return Err(malformed(WHAT, format!("{} bytes are not {}", bytes.len(), Self::SIZE)));
        }
        let names = word(bytes, 0);
        Ok(Self {
            slot: names as u32,
            generation: (names >> 32) as u32,
            epoch: word(bytes, 8),
            offset: word(bytes, 16),
            size: word(bytes, 24),
            incarnation: Incarnation::from_u64(word(bytes, 32))
                .ok_or_else(|| malformed(WHAT, "its incarnation is 0"))?,
            access: Access::from_bits(bytes[40])
                .ok_or_else(|| malformed(WHAT, format!("rights {:#x} are not known", bytes[40])))?,
        })
    }
}

/// Why a target refused an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    code: Code,
    /// Rights needed and granted, or which part is stale.
    bytes: [u8; 2],
    words: [u64; 3],
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Code {
    OutOfRange = 1,
    Access,
    Stale,
    Misaligned,
    Invalid,
    Torn,
    Expired,
    Earlier,
    Unusable,
    Limit,
}

impl Code {
    const ALL: [Self; 10] = [
        Self::OutOfRange,
        Self::Access,
        Self::Stale,
        Self::Misaligned,
        Self::Invalid,
        Self::Torn,
        Self::Expired,
        Self::Earlier,
        Self::Unusable,
        Self::Limit,
    ];
}

const STALE: [Stale; 3] = [Stale::Incarnation, Stale::Generation, Stale::Epoch];

impl Refusal {
    /// Bytes before the text.
    pub(crate) const FIXED: usize = 3 + 3 * 8;
    /// Most bytes of all of it.
    pub(crate) const MOST: usize = Self::FIXED + MOST_TEXT;

    /// What is told of this error.
    pub(crate) fn new(error: &Error) -> Self {
        let (code, bytes, words, text) = match error {
            Error::OutOfRange { offset, size, limit, .. } => {
                (Code::OutOfRange, [0; 2], [*offset, *size, *limit], String::new())
            }
            Error::Misaligned { offset, align, .. } => {
                (Code::Misaligned, [0; 2], [*offset, *align, 0], String::new())
            }
            Error::Access { needed, granted, .. } => {
                (Code::Access, [needed.bits(), granted.bits()], [0; 3], String::new())
            }
            Error::Stale { what, held, current, .. } => {
                let what = STALE.iter().position(|s| s == what).unwrap_or_default() as u8;
                (Code::Stale, [what, 0], [*held, *current, 0], String::new())
            }
            Error::Torn { offset, size, .. } => (Code::Torn, [0; 2], [*offset, *size, 0], String::new()),
            Error::Expired { after, detail, .. } => {
                (Code::Expired, [0; 2], [after.as_millis() as u64, 0, 0], detail.clone())
            }
            Error::Unusable { why, .. } => (Code::Unusable, [0; 2], [0; 3], why.clone()),
            Error::Limit { what, .. } => (Code::Limit, [0; 2], [0; 3], what.clone()),
            Error::Failed(failed) if failed.failure.cause == Cause::Earlier => {
                (Code::Earlier, [0; 2], [0; 3], failed.failure.observed.clone())
            }
            Error::Invalid { why, .. } => (Code::Invalid, [0; 2], [0; 3], why.clone()),
            other => (Code::Invalid, [0; 2], [0; 3], other.to_string()),
        };
        let mut text = text;
        if text.len() > MOST_TEXT {
            let cut = (0..=MOST_TEXT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
            text.truncate(cut);
        }
        Self { code, bytes, words, text }
    }

    /// The error, as the initiator of this operation sees it.
    pub(crate) fn error(&self, operation: &'static str) -> Error {
        let [a, b, c] = self.words;
        let access = |at: usize| Access::from_bits(self.bytes[at]).unwrap_or_default();
        match self.code {
            Code::OutOfRange => Error::OutOfRange { operation, offset: a, size: b, limit: c },
            Code::Misaligned => Error::Misaligned { operation, offset: a, align: b },
            Code::Access => Error::Access { operation, needed: access(0), granted: access(1) },
            Code::Stale => Error::Stale {
                operation,
                what: STALE.get(usize::from(self.bytes[0])).copied().unwrap_or(Stale::Generation),
                held: a,
                current: b,
            },
            Code::Torn => Error::Torn { operation, offset: a, size: b },
            Code::Expired => Error::Expired {
                operation,
                rank: None,
                after: Duration::from_millis(a),
                detail: format!("at the target: {}", self.text),
                outcome: Some(Outcome::InDoubt),
            },
            Code::Earlier => {
                Error::failed(operation, Outcome::NotApplied, Failure::new(None, Cause::Earlier, &self.text))
            }
            Code::Unusable => Error::Unusable { transport: "tcp".into(), why: self.text.clone() },
            Code::Limit => Error::Limit { what: self.text.clone(), next: "at the target".into() },
            Code::Invalid => Error::Invalid { operation, why: self.text.clone() },
        }
    }

    /// The outcome of an operation that was refused so.
    pub(crate) fn outcome(&self, operation: &'static str) -> Error {
        let error = self.error(operation);
        match self.code {
            Code::Torn | Code::Expired | Code::Earlier => error,
            _ => Error::refused(error),
        }
    }

    /// Its wire form.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::FIXED + self.text.len());
        out.push(self.code as u8);
        out.extend(self.bytes);
        for word in self.words {
            out.extend(word.to_le_bytes());
        }
        out.extend(self.text.as_bytes());
        out
    }

    /// Reads the wire form.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        const WHAT: &str = "refusal";
        if !(Self::FIXED..=Self::MOST).contains(&bytes.len()) {
            return Err(malformed(WHAT, format!("{} bytes", bytes.len())));
        }
        let code = *Code::ALL
            .get(usize::from(bytes[0]).wrapping_sub(1))
            .ok_or_else(|| malformed(WHAT, format!("code {} is not known", bytes[0])))?;
        let text =
            std::str::from_utf8(&bytes[Self::FIXED..]).map_err(|_| malformed(WHAT, "it is not text"))?;
        Ok(Self {
            code,
            bytes: [bytes[1], bytes[2]],
            words: [word(bytes, 3), word(bytes, 11), word(bytes, 19)],
            text: text.to_owned(),
        })
    }
}

/// Decodes arbitrary bytes, for the fuzzer.
#[doc(hidden)]
pub fn fuzz_control(bytes: &[u8]) {
    if let Ok(refusal) = Refusal::decode(bytes) {
        let _ = refusal.outcome("put").to_string();
        assert_eq!(refusal.encode(), bytes);
    }
    if let Ok(attach) = Attach::decode(bytes) {
        assert_eq!(attach.encode(), bytes);
        let _ = attach.region();
    }
    if let Ok((parts, _)) = decode_parts(bytes) {
        let mut out = Vec::new();
        encode_parts(&parts, &mut out);
        assert_eq!(out, bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_come_back_as_they_went(parts in prop::collection::vec((any::<u64>(), 0..1_u64 << 40), 0..100)) {
            let mut bytes = Vec::new();
            encode_parts(&parts, &mut bytes);
            let (back, total) = decode_parts(&bytes).unwrap();
            prop_assert_eq!(total, parts.iter().map(|p| p.1).sum::<u64>());
            prop_assert_eq!(back, parts);
        }

        #[test]
        fn garbage_never_panics(bytes: Vec<u8>) {
            fuzz_control(&bytes);
        }

        #[test]
        fn texts_of_any_size_are_cut_at_the_limit(text in "\\PC{0,400}") {
            let refusal = Refusal::new(&Error::invalid("put", text.repeat(3)));
            prop_assert!(refusal.encode().len() <= Refusal::MOST);
            prop_assert_eq!(Refusal::decode(&refusal.encode()).unwrap(), refusal);
        }
    }

    #[test]
    fn refusals_say_the_same_on_both_sides() {
        let errors = [
            Error::OutOfRange { operation: "put", offset: 1, size: u64::MAX, limit: 3 },
            Error::Access { operation: "put", needed: Access::WRITE, granted: Access::READ | Access::SIGNAL },
            Error::Stale { operation: "put", what: Stale::Epoch, held: 4, current: 5 },
            Error::Stale { operation: "put", what: Stale::Incarnation, held: 4, current: 5 },
            Error::Misaligned { operation: "put", offset: 3, align: 8 },
            Error::invalid("put", "signal 3 does not exist"),
            Error::Torn { operation: "put", offset: 4096, size: 4096 },
        ];
        for error in errors {
            let back = Refusal::decode(&Refusal::new(&error).encode()).unwrap();
            assert_eq!(back.error("put").to_string(), error.to_string());
        }
        let late = Error::failed("put", Outcome::NotApplied, Failure::new(None, Cause::Earlier, "lost"));
        let back = Refusal::decode(&Refusal::new(&late).encode()).unwrap().outcome("signal");
        assert_eq!(back.outcome(), Some(Outcome::NotApplied));
    }

    #[test]
    fn sums_that_overflow_are_refused() {
        for parts in [vec![(0, u64::MAX), (0, 2)], vec![(0, 1 << 63)], vec![(0, 1 << 62), (0, 1)]] {
            let mut bytes = Vec::new();
            encode_parts(&parts, &mut bytes);
            assert!(decode_parts(&bytes).is_err());
        }
        assert!(decode_parts(&[0; 15]).is_err());
    }
}
