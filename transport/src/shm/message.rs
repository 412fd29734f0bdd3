//! The messages of the control socket: fixed little-endian fields, every length checked, nothing allocated beyond it.

use transom_registry::element::{Atomic, Dtype, Reduce};
use transom_registry::{Access, Error, Outcome, RemoteRegion, Result, Stale};

/// Most bytes of operands in one [`Message::Accumulate`].
pub(super) const OPERANDS: usize = 32 << 10;
/// Most bytes of any other message.
const CONTROL: usize = 4 << 10;
/// Most bytes of a message.
pub(super) const MOST: usize = OPERANDS + 64;
/// Most bytes of a text.
const TEXT: usize = 1024;

pub(super) fn malformed(why: impl Into<String>) -> Error {
    Error::Malformed { what: "shm message", why: why.into() }
}

/// How a peer gets at a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// By mapping the first descriptor; the second one is the header.
    Mapped {
        /// Where in the file the whole memory begins.
        file_offset: u64,
        /// Whether the exported range may be mapped for writing.
        writable: bool,
    },
    /// By the kernel's copy between processes; the one descriptor is the header.
    Copied {
        /// Where the exported range begins in the owner's address space.
        address: u64,
        /// Where the owner keeps these bytes, so that the peer can tell that it reaches the right process.
        nonce_address: u64,
        /// The bytes.
        nonce: [u8; 16],
    },
}

/// Why an owner refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    Stale {
        what: Stale,
        held: u64,
        current: u64,
    },
    Access {
        needed: Access,
        granted: Access,
    },
    OutOfRange {
        offset: u64,
        size: u64,
        limit: u64,
    },
    Misaligned {
        offset: u64,
        align: u64,
    },
    Torn {
        offset: u64,
        size: u64,
    },
    /// The operation is half done.
    InDoubt(String),
    /// This transport does not do for it.
    Unusable(String),
    Other(String),
}

impl Fault {
    pub(super) fn of(error: &Error) -> Self {
        match *error {
            Error::Stale { what, held, current, .. } => Self::Stale { what, held, current },
            Error::Access { needed, granted, .. } => Self::Access { needed, granted },
            Error::OutOfRange { offset, size, limit, .. } => Self::OutOfRange { offset, size, limit },
            Error::Misaligned { offset, align, .. } => Self::Misaligned { offset, align },
            Error::Torn { offset, size, .. } => Self::Torn { offset, size },
            Error::Unusable { ref why, .. } => Self::Unusable(short(why)),
            Error::Invalid { ref why, .. } => Self::Other(short(why)),
            ref other if other.outcome() == Some(Outcome::InDoubt) => {
                Self::InDoubt(short(&other.to_string()))
            }
            ref other => Self::Other(short(&other.to_string())),
        }
    }

    /// The error of an attach.
    pub(super) fn of_attach(self) -> Error {
        match self {
            Self::Unusable(why) | Self::Other(why) | Self::InDoubt(why) => {
                Error::Unusable { transport: "shm".into(), why: format!("the owner cannot share it: {why}") }
            }
            other => other.plain("attach"),
        }
    }

    /// The error of an operation that the owner executes.
    pub(super) fn of_operation(self, operation: &'static str) -> Error {
        match self {
            Self::Torn { .. } | Self::InDoubt(_) | Self::Stale { .. } => self.plain(operation),
            other => Error::refused(other.plain(operation)),
        }
    }

    fn plain(self, operation: &'static str) -> Error {
        match self {
            Self::Stale { what, held, current } => Error::Stale { operation, what, held, current },
            Self::Access { needed, granted } => Error::Access { operation, needed, granted },
            Self::OutOfRange { offset, size, limit } => Error::OutOfRange { operation, offset, size, limit },
            Self::Misaligned { offset, align } => Error::Misaligned { operation, offset, align },
            Self::Torn { offset, size } => Error::Torn { operation, offset, size },
            Self::InDoubt(why) => Error::Expired {
                operation,
                rank: None,
                after: std::time::Duration::ZERO,
                detail: why,
                outcome: Some(Outcome::InDoubt),
            },
            Self::Unusable(why) | Self::Other(why) => Error::Invalid { operation, why },
        }
    }
}

fn short(text: &str) -> String {
    let mut end = text.len().min(TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// One message. Those with an `id` are answered by [`Message::Done`] or [`Message::Refused`] with the same, or by
/// [`Message::Attached`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    /// A side's control page and its bell: the first message of each, with two descriptors.
    Page,
    Attach {
        id: u64,
        region: RemoteRegion,
    },
    Attached {
        id: u64,
        key: u64,
        region_size: u64,
        signals: u32,
        how: How,
    },
    Refused {
        id: u64,
        fault: Fault,
    },
    Done {
        id: u64,
        value: u64,
    },
    Detach {
        key: u64,
    },
    Atomic {
        id: u64,
        key: u64,
        silent: bool,
        offset: u64,
        atomic: Atomic,
        width: u8,
        operand: u64,
        compare: u64,
    },
    Accumulate {
        id: u64,
        key: u64,
        silent: bool,
        offset: u64,
        dtype: Dtype,
        reduce: Reduce,
        operands: Vec<u8>,
    },
    Signal {
        id: u64,
        key: u64,
        silent: bool,
        signal: u32,
        add: u64,
    },
    Flush {
        id: u64,
        key: u64,
    },
    Resume {
        id: u64,
        key: u64,
    },
    /// The sender lets go of everything.
    Bye,
}

impl Message {
    /// Most bytes of a body of this kind.
    pub(super) fn most(kind: u8) -> usize {
        if kind == 8 { MOST } else { CONTROL }
    }

    /// How many descriptors travel with it.
    pub(super) fn fds(&self) -> usize {
        match self {
            Self::Page | Self::Attached { how: How::Mapped { .. }, .. } => 2,
            Self::Attached { .. } => 1,
            _ => 0,
        }
    }

    /// The number of an operation that somebody awaits.
    pub(super) fn operation(&self) -> Option<u64> {
        match self {
            Self::Atomic { id, .. }
            | Self::Accumulate { id, .. }
            | Self::Signal { id, .. }
            | Self::Flush { id, .. }
            | Self::Resume { id, .. } => Some(*id),
            _ => None,
        }
    }

    /// Appends the body and returns the kind.
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> u8 {
        match self {
            Self::Page => 1,
            Self::Attach { id, region } => {
                // The addresses are how we came here.
                let region = RemoteRegion { addresses: Vec::new(), ..region.clone() };
                put(out, &[*id]);
                out.extend(region.to_bytes());
                2
            }
            Self::Attached { id, key, region_size, signals, how } => {
                put(out, &[*id, *key, *region_size, u64::from(*signals)]);
                match how {
                    How::Mapped { file_offset, writable } => {
                        out.push(1);
                        put(out, &[*file_offset]);
                        out.push(u8::from(*writable));
                    }
                    How::Copied { address, nonce_address, nonce } => {
                        out.push(2);
                        put(out, &[*address, *nonce_address]);
                        out.extend(nonce);
                    }
                }
                3
            }
            Self::Refused { id, fault } => {
                put(out, &[*id]);
                fault.encode(out);
                4
            }
            Self::Done { id, value } => {
                put(out, &[*id, *value]);
                5
            }
            Self::Detach { key } => {
                put(out, &[*key]);
                6
            }
            Self::Atomic { id, key, silent, offset, atomic, width, operand, compare } => {
                put(out, &[*id, *key, *offset, *operand, *compare]);
                out.extend([u8::from(*silent), *atomic as u8, *width]);
                7
            }
            Self::Accumulate { id, key, silent, offset, dtype, reduce, operands } => {
                put(out, &[*id, *key, *offset]);
                out.extend([u8::from(*silent), *dtype as u8, *reduce as u8]);
                out.extend(operands);
                8
            }
            Self::Signal { id, key, silent, signal, add } => {
                put(out, &[*id, *key, u64::from(*signal), *add]);
                out.push(u8::from(*silent));
                9
            }
            Self::Flush { id, key } => {
                put(out, &[*id, *key]);
                10
            }
            Self::Resume { id, key } => {
                put(out, &[*id, *key]);
                11
            }
            Self::Bye => 12,
        }
    }

    /// Reads a body of this kind.
    pub(super) fn decode(kind: u8, body: &[u8]) -> Result<Self> {
        let mut read = Reader(body);
        let message = match kind {
            1 => Self::Page,
            2 => {
                let id = read.u64()?;
                Self::Attach { id, region: RemoteRegion::from_bytes(std::mem::take(&mut read.0))? }
            }
            3 => Self::Attached {
                id: read.u64()?,
                key: read.u64()?,
                region_size: read.u64()?,
                signals: read.small()?,
                how: match read.u8()? {
                    1 => How::Mapped { file_offset: read.u64()?, writable: read.bool()? },
                    2 => {
                        How::Copied { address: read.u64()?, nonce_address: read.u64()?, nonce: read.take()? }
                    }
                    other => return Err(malformed(format!("way {other} is not known"))),
                },
            },
            4 => Self::Refused { id: read.u64()?, fault: Fault::decode(&mut read)? },
            5 => Self::Done { id: read.u64()?, value: read.u64()? },
            6 => Self::Detach { key: read.u64()? },
            7 => {
                let [id, key, offset, operand, compare] = read.u64s()?;
                let silent = read.bool()?;
                let atomic = known("atomic", read.u8()?, Atomic::from_u8)?;
                Self::Atomic { id, key, silent, offset, atomic, width: read.u8()?, operand, compare }
            }
            8 => {
                let [id, key, offset] = read.u64s()?;
                let silent = read.bool()?;
                let dtype = known("element type", read.u8()?, Dtype::from_u8)?;
                let reduce = known("reduction", read.u8()?, Reduce::from_u8)?;
                let operands = std::mem::take(&mut read.0);
                if operands.len() > OPERANDS {
                    return Err(malformed(format!("{} bytes of operands are too many", operands.len())));
                }
                Self::Accumulate { id, key, silent, offset, dtype, reduce, operands: operands.to_vec() }
            }
            9 => {
                let [id, key] = read.u64s()?;
                let signal = read.small()?;
                Self::Signal { id, key, signal, add: read.u64()?, silent: read.bool()? }
            }
            10 => Self::Flush { id: read.u64()?, key: read.u64()? },
            11 => Self::Resume { id: read.u64()?, key: read.u64()? },
            12 => Self::Bye,
            _ => return Err(malformed(format!("kind {kind} is not known"))),
        };
        if read.0.is_empty() {
            Ok(message)
        } else {
            Err(malformed(format!("{} bytes too many at its end", read.0.len())))
        }
    }
}

impl Fault {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Stale { what, held, current } => {
                let what = match what {
                    Stale::Incarnation => 1,
                    Stale::Generation => 2,
                    Stale::Epoch => 3,
                };
                out.extend([1, what]);
                put(out, &[*held, *current]);
            }
            Self::Access { needed, granted } => out.extend([2, needed.bits(), granted.bits()]),
            Self::OutOfRange { offset, size, limit } => {
                out.push(3);
                put(out, &[*offset, *size, *limit]);
            }
            Self::Misaligned { offset, align } => {
                out.push(4);
                put(out, &[*offset, *align]);
            }
            Self::Torn { offset, size } => {
                out.push(5);
                put(out, &[*offset, *size]);
            }
            Self::InDoubt(text) => put_text(out, 6, text),
            Self::Unusable(text) => put_text(out, 7, text),
            Self::Other(text) => put_text(out, 8, text),
        }
    }

    fn decode(read: &mut Reader<'_>) -> Result<Self> {
        Ok(match read.u8()? {
            1 => {
                let what = match read.u8()? {
                    1 => Stale::Incarnation,
                    2 => Stale::Generation,
                    3 => Stale::Epoch,
                    other => return Err(malformed(format!("stale part {other} is not known"))),
                };
                Self::Stale { what, held: read.u64()?, current: read.u64()? }
            }
            2 => Self::Access {
                needed: known("set of rights", read.u8()?, Access::from_bits)?,
                granted: known("set of rights", read.u8()?, Access::from_bits)?,
            },
            3 => Self::OutOfRange { offset: read.u64()?, size: read.u64()?, limit: read.u64()? },
            4 => Self::Misaligned { offset: read.u64()?, align: read.u64()? },
            5 => Self::Torn { offset: read.u64()?, size: read.u64()? },
            6 => Self::InDoubt(read.text()?),
            7 => Self::Unusable(read.text()?),
            8 => Self::Other(read.text()?),
            other => return Err(malformed(format!("fault {other} is not known"))),
        })
    }
}

fn put(out: &mut Vec<u8>, words: &[u64]) {
    out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

fn put_text(out: &mut Vec<u8>, kind: u8, text: &str) {
    let text = short(text);
    out.push(kind);
    out.extend((text.len() as u16).to_le_bytes());
    out.extend(text.as_bytes());
}

fn known<T>(what: &str, number: u8, from: impl Fn(u8) -> Option<T>) -> Result<T> {
    from(number).ok_or_else(|| malformed(format!("{what} {number} is not known")))
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

    fn bool(&mut self) -> Result<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(malformed(format!("{other} is neither yes nor no"))),
        }
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    fn u64s<const N: usize>(&mut self) -> Result<[u64; N]> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.u64()?;
        }
        Ok(words)
    }

    /// A word that is below 2^32.
    fn small(&mut self) -> Result<u32> {
        let word = self.u64()?;
        u32::try_from(word).map_err(|_| malformed(format!("{word} is too large a number")))
    }

    fn text(&mut self) -> Result<String> {
        let size = usize::from(u16::from_le_bytes(self.take()?));
        if size > TEXT {
            return Err(malformed(format!("a text of {size} bytes is too long")));
        }
        let (text, rest) = self.0.split_at_checked(size).ok_or_else(|| malformed("it is cut short"))?;
        self.0 = rest;
        Ok(std::str::from_utf8(text).map_err(|_| malformed("a text is not text"))?.to_owned())
    }
}

/// Decodes arbitrary bytes, for the fuzzer: the first is the kind.
#[doc(hidden)]
pub fn fuzz_shm_message(bytes: &[u8]) {
    let Some((&kind, body)) = bytes.split_first() else { return };
    if let Ok(message) = Message::decode(kind, body) {
        let mut again = Vec::new();
        let kind = message.encode(&mut again);
        assert_eq!(Message::decode(kind, &again).ok(), Some(without_addresses(message)));
    }
}

fn without_addresses(message: Message) -> Message {
    match message {
        Message::Attach { id, region } => {
            Message::Attach { id, region: RemoteRegion { addresses: Vec::new(), ..region } }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use transom_registry::{Incarnation, Kind};

    use super::*;

    fn samples() -> Vec<Message> {
        let region = RemoteRegion {
            incarnation: Incarnation::from_u64(5).unwrap(),
            slot: 1,
            generation: 2,
            epoch: 3,
            offset: 4096,
            size: 8192,
            kind: Kind::Host,
            access: Access::ALL,
            signals: 4,
            addresses: Vec::new(),
        };
        let faults = [
            Fault::Stale { what: Stale::Epoch, held: 1, current: 2 },
            Fault::Access { needed: Access::WRITE, granted: Access::READ },
            Fault::OutOfRange { offset: 1, size: u64::MAX, limit: 3 },
            Fault::Misaligned { offset: 1, align: 8 },
            Fault::Torn { offset: 0, size: 4096 },
            Fault::InDoubt("a".into()),
            Fault::Unusable(String::new()),
            Fault::Other("ü".repeat(TEXT / 2)),
        ];
        let mut all = vec![
            Message::Page,
            Message::Attach { id: 1, region },
            Message::Attached {
                id: 1,
                key: 2,
                region_size: 3,
                signals: 4,
                how: How::Mapped { file_offset: 4096, writable: true },
            },
            Message::Attached {
                id: 1,
                key: 2,
                region_size: 3,
                signals: 4,
                how: How::Copied { address: 5, nonce_address: 6, nonce: [7; 16] },
            },
            Message::Done { id: 1, value: u64::MAX },
            Message::Detach { key: 1 },
            Message::Atomic {
                id: 1,
                key: 2,
                silent: false,
                offset: 8,
                atomic: Atomic::CompareSwap,
                width: 8,
                operand: 1,
                compare: 2,
            },
            Message::Accumulate {
                id: 1,
                key: 2,
                silent: true,
                offset: 4,
                dtype: Dtype::F32,
                reduce: Reduce::Sum,
                operands: vec![1; OPERANDS],
            },
            Message::Signal { id: 1, key: 2, silent: true, signal: 3, add: 4 },
            Message::Flush { id: 1, key: 2 },
            Message::Resume { id: 1, key: 2 },
            Message::Bye,
        ];
        all.extend(faults.into_iter().map(|fault| Message::Refused { id: 9, fault }));
        all
    }

    #[test]
    fn every_message_comes_back_and_fits_its_limit() {
        for message in samples() {
            let mut body = Vec::new();
            let kind = message.encode(&mut body);
            assert!(body.len() <= Message::most(kind) && body.len() <= MOST, "{message:?}");
            assert_eq!(Message::decode(kind, &body).unwrap(), message);
        }
    }

    #[test]
    fn bytes_cut_off_and_bytes_too_many_are_refused() {
        for message in samples() {
            let mut body = Vec::new();
            let kind = message.encode(&mut body);
            if kind == 8 {
                continue;
            }
            for end in 0..body.len() {
                assert!(Message::decode(kind, &body[..end]).is_err(), "{message:?} cut at {end}");
            }
            body.push(0);
            assert!(Message::decode(kind, &body).is_err(), "{message:?}");
        }
        assert!(Message::decode(8, &vec![0; MOST]).is_err());
        for kind in [0, 13, 255] {
            assert!(Message::decode(kind, &[]).is_err());
        }
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let fault = Fault::of(&Error::invalid("x", format!("a{}", "ü".repeat(TEXT))));
        let Fault::Other(text) = &fault else { panic!("{fault:?}") };
        assert_eq!(text.len(), TEXT - 1);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(kind in 0..16_u8, body: Vec<u8>) {
            let mut bytes = vec![kind];
            bytes.extend(body);
            fuzz_shm_message(&bytes);
        }

        #[test]
        fn a_changed_byte_never_panics(which in 0..20_usize, at: prop::sample::Index, byte: u8) {
            let all = samples();
            let mut body = Vec::new();
            let kind = all[which % all.len()].encode(&mut body);
            if !body.is_empty() {
                let at = at.index(body.len());
                body[at] = byte;
            }
            body.insert(0, kind);
            fuzz_shm_message(&body);
        }
    }
}
