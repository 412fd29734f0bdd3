//! The header of a frame: 64 bytes, little-endian. Its MAC was checked before anything in it is believed.
#![forbid(unsafe_code)]

use transom_registry::{Error, Result};

/// Size of a header in bytes.
pub(crate) const SIZE: usize = 64;
/// Where in it the MAC is: the last 8 bytes.
pub(crate) const TAG: usize = 56;
/// Most payload bytes of a frame.
pub(crate) const MOST_PAYLOAD: u64 = 16 << 20;
/// Most payload bytes of an accumulate: it is staged whole.
pub(crate) const MOST_ACCUMULATE: u64 = 64 << 10;
/// Most parts of a list in one frame.
pub(crate) const MOST_PARTS: u64 = 4096;
/// Bytes of a part on the wire.
pub(crate) const PART: u64 = 16;

/// Bits of [`Header::flags`].
pub(crate) mod flag {
    /// Adds `operand` to signal `count` once the frame is applied.
    pub(crate) const SIGNAL: u16 = 1;
    /// `check` is that of the payload.
    pub(crate) const CHECK: u16 = 2;
    /// The last frame of its operation.
    pub(crate) const LAST: u16 = 4;
    /// Somebody waits for the acknowledgement.
    pub(crate) const ACK_NOW: u16 = 8;
    /// Nobody awaits the operation: when it is refused, so is what follows on the handle.
    pub(crate) const SILENT: u16 = 16;
}

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Opcode {
    /// Writes the payload at `offset`.
    Put = 1,
    /// Writes parts: `offset` of them stand before the bytes.
    PutList,
    /// Asks for `operand` bytes at `offset`.
    Get,
    /// Asks for parts: `offset` of them are the payload.
    GetList,
    /// Bytes of an answered get, at `offset` of all of them.
    Data,
    /// A fetching atomic: `count` is what and its width, the payload the second operand.
    Atomic,
    /// What was there: `operand`.
    AtomicReply,
    /// Reduces the payload at `offset`: `count` is type and reduction.
    Accumulate,
    /// Nothing but the signal.
    Signal,
    /// Wants to be acknowledged.
    Flush,
    /// Carries an acknowledgement.
    Ack,
    /// An operation was refused: why is the payload.
    Refused,
    /// Asks for a handle.
    Attach,
    /// The handle.
    Attached,
    /// Gives a handle back.
    Detach,
    /// Still here.
    Ping,
    /// `count` 0: the context is closed; 1: this side needs the connection no longer.
    Goodbye,
    /// Ends the refusing on a handle.
    Resume,
}

impl Opcode {
    const ALL: [Self; 18] = [
        Self::Put,
        Self::PutList,
        Self::Get,
        Self::GetList,
        Self::Data,
        Self::Atomic,
        Self::AtomicReply,
        Self::Accumulate,
        Self::Signal,
        Self::Flush,
        Self::Ack,
        Self::Refused,
        Self::Attach,
        Self::Attached,
        Self::Detach,
        Self::Ping,
        Self::Goodbye,
        Self::Resume,
    ];

    /// Whether the frame is numbered, applied in order and acknowledged.
    pub(crate) fn is_request(self) -> bool {
        !self.is_reply() && !matches!(self, Self::Ack | Self::Ping | Self::Goodbye)
    }

    /// Whether the frame answers a request, whose number it carries.
    pub(crate) fn is_reply(self) -> bool {
        matches!(self, Self::Data | Self::AtomicReply | Self::Refused | Self::Attached)
    }

    fn flags(self) -> u16 {
        use flag::{ACK_NOW, CHECK, LAST, SIGNAL, SILENT};
        match self {
            Self::Put | Self::PutList => SIGNAL | CHECK | LAST | ACK_NOW | SILENT,
            Self::Signal => SIGNAL | LAST | ACK_NOW | SILENT,
            Self::GetList | Self::Atomic | Self::Accumulate | Self::Attach => CHECK | LAST | ACK_NOW | SILENT,
            Self::Get | Self::Flush | Self::Detach | Self::Resume => LAST | ACK_NOW | SILENT,
            Self::Data | Self::Refused => CHECK | LAST,
            Self::AtomicReply | Self::Attached => LAST,
            Self::Ack | Self::Ping | Self::Goodbye => 0,
        }
    }

    /// Least and most payload bytes, given the number of parts.
    fn sizes(self, parts: u64) -> (u64, u64) {
        match self {
            Self::Put | Self::Data => (0, MOST_PAYLOAD),
            Self::PutList => (parts * PART, MOST_PAYLOAD),
            Self::GetList => (parts * PART, parts * PART),
            Self::Atomic => (8, 8),
            Self::Accumulate => (0, MOST_ACCUMULATE),
            Self::Refused => (super::control::Refusal::FIXED as u64, super::control::Refusal::MOST as u64),
            Self::Attach => (super::control::Attach::SIZE as u64, super::control::Attach::SIZE as u64),
            _ => (0, 0),
        }
    }
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// What the frame is.
    pub(crate) opcode: Opcode,
    /// See [`flag`].
    pub(crate) flags: u16,
    /// A request's number, from 1 on; a reply's request; else 0.
    pub(crate) sequence: u64,
    /// How many of the other side's requests are applied.
    pub(crate) ack: u64,
    /// The region.
    pub(crate) handle: u32,
    /// A signal, or as the opcode says.
    pub(crate) count: u32,
    /// Where in the region, or as the opcode says.
    pub(crate) offset: u64,
    /// Payload bytes that follow.
    pub(crate) size: u64,
    /// As the opcode says.
    pub(crate) operand: u64,
    /// The check of the payload, with [`flag::CHECK`].
    pub(crate) check: u64,
}

fn malformed(why: impl Into<String>) -> Error {
    Error::Malformed { what: "frame", why: why.into() }
}

impl Header {
    /// A header with nothing in it.
    pub(crate) fn new(opcode: Opcode) -> Self {
        Self {
            opcode,
            flags: 0,
            sequence: 0,
            ack: 0,
            handle: 0,
            count: 0,
            offset: 0,
            size: 0,
            operand: 0,
            check: 0,
        }
    }

    /// Whether a flag is set.
    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Its wire form, with no MAC yet.
    pub(crate) fn encode(&self) -> [u8; SIZE] {
        let mut out = [0; SIZE];
        out[0] = self.opcode as u8;
        out[2..4].copy_from_slice(&self.flags.to_le_bytes());
        // Larger ones are none that a frame can have.
        out[4..8].copy_from_slice(&u32::try_from(self.size).unwrap_or(u32::MAX).to_le_bytes());
        out[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        out[16..24].copy_from_slice(&self.ack.to_le_bytes());
        out[24..28].copy_from_slice(&self.handle.to_le_bytes());
        out[28..32].copy_from_slice(&self.count.to_le_bytes());
        out[32..40].copy_from_slice(&self.offset.to_le_bytes());
        out[40..48].copy_from_slice(&self.operand.to_le_bytes());
        out[48..TAG].copy_from_slice(&self.check.to_le_bytes());
        out
    }

    /// Bytes of the payload that follows this header, which is one of ours.
    pub(crate) fn size_of(bytes: &[u8; SIZE]) -> usize {
        u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]) as usize
    }

    /// Reads the wire form.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub(crate) fn decode(bytes: &[u8; SIZE]) -> Result<Self> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let opcode = *Opcode::ALL
            .get(usize::from(bytes[0]).wrapping_sub(1))
            .ok_or_else(|| malformed(format!("opcode {} is not known", bytes[0])))?;
        let header = Self {
            opcode,
            flags: u16_at(2),
            sequence: u64_at(8),
            ack: u64_at(16),
            handle: u32_at(24),
            count: u32_at(28),
            offset: u64_at(32),
            size: u32_at(4).into(),
            operand: u64_at(40),
            check: u64_at(48),
        };
        if bytes[1] != 0 {
            return Err(malformed(format!("reserved bits {:#04x} are set", bytes[1])));
        }
        header.check()?;
        Ok(header)
    }

    fn check(&self) -> Result<()> {
        let Self { opcode, flags, size, .. } = *self;
        if flags & !opcode.flags() != 0 {
            return Err(malformed(format!("flags {flags:#x} do not go with {opcode:?}")));
        }
        if opcode == Opcode::Signal && flags & flag::SIGNAL == 0 {
            return Err(malformed("a signal frame signals nothing"));
        }
        let is_list = matches!(opcode, Opcode::PutList | Opcode::GetList);
        if is_list && self.offset > MOST_PARTS {
            return Err(malformed(format!("{} parts are more than {MOST_PARTS}", self.offset)));
        }
        let (least, most) = opcode.sizes(if is_list { self.offset } else { 0 });
        if size < least || size > most {
            return Err(malformed(format!(
                "a payload of {size} bytes is not in {least} to {most} for {opcode:?}"
            )));
        }
        if flags & flag::CHECK == 0 && self.check != 0 {
            return Err(malformed("a check of a payload where none is"));
        }
        let numbered = opcode.is_request() || opcode.is_reply();
        if numbered != (self.sequence != 0) {
            return Err(malformed(format!("number {} does not go with {opcode:?}", self.sequence)));
        }
        Ok(())
    }
}

/// Decodes arbitrary bytes, for the fuzzer: as if the MAC had been right.
#[doc(hidden)]
pub fn fuzz_frame(bytes: &[u8]) {
    if let Some((head, _)) = bytes.split_first_chunk::<SIZE>()
        && let Ok(header) = Header::decode(head)
    {
        assert_eq!(header.encode()[..TAG], head[..TAG]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::protect::Seal;
    use super::*;

    fn any_header() -> impl Strategy<Value = Header> {
        let numbers = (1..u64::MAX, any::<u64>(), any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>());
        (prop::sample::select(Opcode::ALL.to_vec()), any::<u16>(), numbers, any::<u64>(), any::<u64>())
            .prop_map(|(opcode, flags, (sequence, ack, handle, count, offset, operand), check, size)| {
                let mut header = Header { ack, handle, count, operand, ..Header::new(opcode) };
                header.flags = flags & opcode.flags();
                if opcode == Opcode::Signal {
                    header.flags |= flag::SIGNAL;
                }
                if opcode.is_request() || opcode.is_reply() {
                    header.sequence = sequence;
                }
                let list = matches!(opcode, Opcode::PutList | Opcode::GetList);
                header.offset = if list { offset % (MOST_PARTS + 1) } else { offset };
                let (least, most) = opcode.sizes(if list { header.offset } else { 0 });
                header.size = least + size % (most - least + 1);
                if header.has(flag::CHECK) {
                    header.check = check;
                }
                header
            })
    }

    proptest! {
        #[test]
        fn headers_come_back_as_they_went(header in any_header()) {
            prop_assert_eq!(Header::decode(&header.encode()).unwrap(), header);
        }

        #[test]
        fn no_single_flipped_bit_of_a_header_is_taken(header in any_header(), key: [u8; 32]) {
            let seal = Seal::new(&key);
            let mut good = header.encode();
            seal.seal(&mut good);
            prop_assert!(seal.check(&good).is_ok());
            for bit in 0..SIZE * 8 {
                let mut bad = good;
                bad[bit / 8] ^= 1 << (bit % 8);
                prop_assert!(seal.check(&bad).is_err(), "bit {}", bit);
            }
        }

        #[test]
        fn a_header_under_another_key_or_number_is_not_taken(
            header in any_header(), key: [u8; 32], other: [u8; 32],
        ) {
            prop_assume!(key != other);
            let mut seal = Seal::new(&key);
            let mut head = header.encode();
            seal.seal(&mut head);
            prop_assert!(Seal::new(&other).check(&head).is_err());
            seal.advance();
            prop_assert!(seal.check(&head).is_err());
        }

        #[test]
        fn garbage_never_panics(bytes: Vec<u8>) {
            fuzz_frame(&bytes);
        }
    }

    #[test]
    fn lengths_out_of_their_limits_are_refused() {
        for opcode in Opcode::ALL {
            let parts = if matches!(opcode, Opcode::PutList | Opcode::GetList) { 3 } else { 0 };
            let (least, most) = opcode.sizes(parts);
            let mut header = Header { offset: parts, ..Header::new(opcode) };
            header.sequence = u64::from(opcode.is_request() || opcode.is_reply());
            if opcode == Opcode::Signal {
                header.flags = flag::SIGNAL;
            }
            for size in [0, least.wrapping_sub(1), least, most, most + 1, 1 << 31, 1 << 32, 1 << 63, u64::MAX]
            {
                let good = (least..=most).contains(&size);
                header.size = size;
                assert_eq!(Header::decode(&header.encode()).is_ok(), good, "{opcode:?} {size}");
            }
        }
    }
}
