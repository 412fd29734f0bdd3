//! The header of a data frame: 64 bytes, little-endian, with a checksum of its own.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0..2 | magic | `0x5774` |
//! | 2 | version | [`VERSION`] |
//! | 3 | opcode | [`Opcode`] |
//! | 4..6 | flags | [`Flags`] |
//! | 6..8 | reserved | 0 |
//! | 8..16 | sequence | counts every frame of this direction, from 1 |
//! | 16..24 | ack | every frame of the other direction up to this one was applied |
//! | 24..28 | handle | what the target gave for a grant when it was attached |
//! | 28..32 | count | a signal, or how many, or how wide: each opcode says |
//! | 32..40 | offset | in bytes, from the grant's first one |
//! | 40..48 | size | payload bytes that follow (of a `Get`: bytes wanted, nothing follows) |
//! | 48..56 | operand | each opcode says |
//! | 56..60 | payload checksum | CRC32C, 0 without the flag |
//! | 60..64 | header checksum | CRC32C of what is before, started from the session's [`Key`] |
//!
//! The checksums find accidents, not attackers: who may change bytes on the way can also mend a CRC. The key sees to
//! it that bytes of another session never parse.

#![forbid(unsafe_code)]

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

use transom_registry::{Error, Result};

use super::control::MAX_LIST;
use crate::Secret;

/// Bytes of a header.
pub const HEADER: usize = 64;
/// The version of the frame layout.
pub const VERSION: u8 = 1;
/// The most payload bytes of a frame that carries data, and the most that one `Get` may ask for: 16 MiB.
pub const MAX_DATA: u64 = 16 << 20;
/// The most payload bytes of any other frame: 64 KiB.
pub const MAX_CONTROL: u64 = 64 << 10;

const MAGIC: u16 = u16::from_le_bytes(*b"tW");
const WHAT: &str = "frame header";

/// What a frame asks for or answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// Write the payload at `offset`.
    Put = 1,
    /// Write the payload in parts: a list, then the bytes of its parts one after the other.
    PutList = 2,
    /// Read `size` bytes at `offset`; no payload.
    Get = 3,
    /// Read the parts in the payload.
    GetList = 4,
    /// Bytes that a get asked for; `operand` is the sequence of the get, `offset` where they start in its answer.
    Data = 5,
    /// An atomic at `offset`, with `operand`; `count` says which and how wide, a second operand is in the payload.
    Atomic = 6,
    /// The former value in the payload or in `offset`; `operand` is the sequence of the atomic.
    AtomicReply = 7,
    /// Accumulate the payload at `offset`; `count` says which operation on what elements.
    Accumulate = 8,
    /// Add `operand` to signal `count`, after everything before it; no payload.
    Signal = 9,
    /// Carries nothing but `ack`; no payload.
    Ack = 10,
    /// A request was rejected; nothing of it was written.
    Refused = 11,
    /// Asks for a handle for a grant.
    Attach = 12,
    /// Gives it.
    Attached = 13,
    /// Gives a handle back; no payload.
    Detach = 14,
    /// Asks for a sign of life.
    Ping = 15,
    /// Gives one, with the `operand` of the ping.
    Pong = 16,
    /// The sender closes in good order, and sends nothing after this.
    Goodbye = 17,
    /// The first frame on a new connection of an old pair: go on after `ack`.
    Resume = 18,
}

impl Opcode {
    /// Every opcode.
    pub const ALL: [Self; 18] = [
        Self::Put,
        Self::PutList,
        Self::Get,
        Self::GetList,
        Self::Data,
        Self::Atomic,
        Self::AtomicReply,
        Self::Accumulate,
        Self::Signal,
        Self::Ack,
        Self::Refused,
        Self::Attach,
        Self::Attached,
        Self::Detach,
        Self::Ping,
        Self::Pong,
        Self::Goodbye,
        Self::Resume,
    ];

    /// The opcode with this number, if there is one.
    #[must_use]
    pub const fn from_u8(number: u8) -> Option<Self> {
        if 1 <= number && number as usize <= Self::ALL.len() {
            Some(Self::ALL[number as usize - 1])
        } else {
            None
        }
    }

    /// The largest `size` that a frame with this opcode may say.
    #[must_use]
    pub const fn max_size(self) -> u64 {
        match self {
            Self::Put | Self::PutList | Self::Get | Self::Data | Self::Accumulate => MAX_DATA,
            Self::GetList => MAX_LIST as u64,
            Self::Signal | Self::Ack | Self::Detach => 0,
            _ => MAX_CONTROL,
        }
    }

    /// The flags that a frame with this opcode may have.
    #[must_use]
    pub const fn flags(self) -> Flags {
        match self {
            Self::Put | Self::PutList => Flags(15),
            _ => Flags(15 & !Flags::SIGNAL.0),
        }
    }
}

/// What else a frame says, as bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(u16);

impl Flags {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Also add `operand` to signal `count` when the payload was applied. Puts only.
    pub const SIGNAL: Self = Self(1);
    /// The payload checksum is there.
    pub const CRC: Self = Self(2);
    /// The last frame of its operation.
    pub const LAST: Self = Self(4);
    /// The sender waits for the acknowledgement of this frame: do not hold it back.
    pub const ACK_NOW: Self = Self(8);

    const NAMES: [(Self, &'static str); 4] =
        [(Self::SIGNAL, "signal"), (Self::CRC, "crc"), (Self::LAST, "last"), (Self::ACK_NOW, "ack now")];

    /// Whether every bit of `other` is set.
    #[inline]
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// As they are on the wire.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// From the wire; `None` when an unknown bit is set.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Option<Self> {
        if bits & !15 == 0 { Some(Self(bits)) } else { None }
    }
}

impl BitOr for Flags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> =
            Self::NAMES.iter().filter(|(flag, _)| self.contains(*flag)).map(|(_, n)| *n).collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join("+"))
    }
}

/// What a session starts its header checksums from, one per direction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(u32);

impl Key {
    /// The key of one direction, from that direction's session key.
    #[must_use]
    pub fn new(session: &Secret) -> Self {
        let [a, b, c, d, ..] = *session.derive("frame header").as_bytes();
        Self(u32::from_le_bytes([a, b, c, d]))
    }

    /// A key with this number, for tests and benchmarks.
    #[must_use]
    pub const fn from_u32(number: u32) -> Self {
        Self(number)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A frame without its payload. See the [module](self) for what each field means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What it asks for or answers.
    pub opcode: Opcode,
    /// What else it says.
    pub flags: Flags,
    /// Its number in this direction, from 1.
    pub sequence: u64,
    /// The last frame of the other direction that was applied, with all before it; 0 before the first.
    pub ack: u64,
    /// The target's handle of the grant.
    pub handle: u32,
    /// A signal, a number of things, a width.
    pub count: u32,
    /// In bytes, from the grant's first one.
    pub offset: u64,
    /// Payload bytes that follow; of a get the bytes wanted.
    pub size: u64,
    /// A value.
    pub operand: u64,
    /// CRC32C of the payload; 0 without [`Flags::CRC`].
    pub payload_crc: u32,
}

impl Header {
    /// A header with every number 0 but the sequence.
    #[must_use]
    pub const fn new(opcode: Opcode, sequence: u64) -> Self {
        Self {
            opcode,
            flags: Flags::NONE,
            sequence,
            ack: 0,
            handle: 0,
            count: 0,
            offset: 0,
            size: 0,
            operand: 0,
            payload_crc: 0,
        }
    }

    /// How many bytes of payload follow this header.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> u64 {
        match self.opcode {
            Opcode::Get => 0,
            _ => self.size,
        }
    }

    /// Its bytes.
    #[inline]
    #[must_use]
    pub fn encode(&self, key: Key) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        out[2] = VERSION;
        out[3] = self.opcode as u8;
        out[4..6].copy_from_slice(&self.flags.0.to_le_bytes());
        out[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        out[16..24].copy_from_slice(&self.ack.to_le_bytes());
        out[24..28].copy_from_slice(&self.handle.to_le_bytes());
        out[28..32].copy_from_slice(&self.count.to_le_bytes());
        out[32..40].copy_from_slice(&self.offset.to_le_bytes());
        out[40..48].copy_from_slice(&self.size.to_le_bytes());
        out[48..56].copy_from_slice(&self.operand.to_le_bytes());
        out[56..60].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32c::crc32c_append(key.0, &out[..60]);
        out[60..64].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The header that these bytes are, if they are one of this session and break no limit.
    ///
    /// # Errors
    /// [`Error::Malformed`]; the connection cannot be used any more, because nobody knows where the next frame starts.
    #[inline]
    pub fn decode(bytes: &[u8; HEADER], key: Key) -> Result<Self> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if u16_at(0) != MAGIC {
            return Err(malformed(format!("it starts with \"{}\"", bytes[..16].escape_ascii())));
        }
        if bytes[2] != VERSION {
            return Err(malformed(format!(
                "it has version {}, this side speaks version {VERSION}",
                bytes[2]
            )));
        }
        let crc = crc32c::crc32c_append(key.0, &bytes[..60]);
        if crc != u32_at(60) {
            return Err(malformed("its checksum is wrong: bytes changed on the way".to_owned()));
        }
        if u16_at(6) != 0 {
            return Err(malformed(format!("the reserved bits are {:#06x}, not 0", u16_at(6))));
        }
        let header = Self {
            opcode: Opcode::from_u8(bytes[3]).ok_or_else(|| unknown("opcode", bytes[3].into()))?,
            flags: Flags::from_bits(u16_at(4)).ok_or_else(|| unknown("flags", u16_at(4)))?,
            sequence: u64_at(8),
            ack: u64_at(16),
            handle: u32_at(24),
            count: u32_at(28),
            offset: u64_at(32),
            size: u64_at(40),
            operand: u64_at(48),
            payload_crc: u32_at(56),
        };
        header.valid()?;
        Ok(header)
    }

    /// Compares the checksum of the payload that came with the one that was announced, where one was.
    ///
    /// # Errors
    /// [`Error::Malformed`] when bytes changed on the way; the frame must not be acknowledged.
    #[inline]
    pub fn check_payload(&self, crc: u32) -> Result<()> {
        if self.flags.contains(Flags::CRC) && crc != self.payload_crc {
            return Err(Error::Malformed {
                what: "frame payload",
                why: format!(
                    "its checksum is {crc:#010x}, the header of frame {} says {:#010x}: bytes changed on the way",
                    self.sequence, self.payload_crc
                ),
            });
        }
        Ok(())
    }

    #[inline]
    fn valid(&self) -> Result<()> {
        let Self { opcode, flags, .. } = *self;
        if self.size > opcode.max_size() {
            return Err(malformed(format!(
                "{opcode:?} of {} bytes, the limit is {}",
                self.size,
                opcode.max_size()
            )));
        }
        if !opcode.flags().contains(flags) {
            return Err(malformed(format!("{opcode:?} with the flags {flags:?}")));
        }
        if self.sequence == 0 {
            return Err(malformed("the sequence is 0, frames count from 1".to_owned()));
        }
        if self.payload_crc != 0 && !flags.contains(Flags::CRC) {
            return Err(malformed("a payload checksum without its flag".to_owned()));
        }
        Ok(())
    }
}

#[cold]
fn unknown(what: &str, value: u16) -> Error {
    malformed(format!(
        "unknown {what} {value:#x} in a frame of version {VERSION}, this side speaks version {VERSION}"
    ))
}

#[cold]
fn malformed(why: String) -> Error {
    Error::Malformed { what: WHAT, why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: Key = Key::from_u32(0x1234_5678);

    fn any_header() -> impl Strategy<Value = Header> {
        let small =
            (0..Opcode::ALL.len(), any::<u16>(), 1..=u64::MAX, any::<u64>(), any::<u32>(), any::<u32>());
        (small, any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>()).prop_map(
            |((opcode, flags, sequence, ack, handle, count), offset, size, operand, crc)| {
                let opcode = Opcode::ALL[opcode];
                let flags = Flags(flags & opcode.flags().0);
                let size = size % (opcode.max_size() + 1);
                let payload_crc = if flags.contains(Flags::CRC) { crc } else { 0 };
                Header { opcode, flags, sequence, ack, handle, count, offset, size, operand, payload_crc }
            },
        )
    }

    /// A header whose checksum is right, whatever is in it.
    fn signed(mut bytes: [u8; HEADER], at: usize, value: &[u8]) -> [u8; HEADER] {
        bytes[at..at + value.len()].copy_from_slice(value);
        let crc = crc32c::crc32c_append(KEY.0, &bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn why(bytes: &[u8; HEADER]) -> String {
        Header::decode(bytes, KEY).unwrap_err().to_string()
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(header in any_header(), key in any::<u32>()) {
            let key = Key::from_u32(key);
            prop_assert_eq!(Header::decode(&header.encode(key), key).unwrap(), header);
        }

        #[test]
        fn a_header_of_another_session_is_refused(header in any_header(), a in any::<u32>(), b in any::<u32>()) {
            prop_assume!(a != b);
            prop_assert!(Header::decode(&header.encode(Key::from_u32(a)), Key::from_u32(b)).is_err());
        }

        #[test]
        fn any_bytes_give_a_header_that_says_the_same_or_an_error(bytes in any::<[u8; 32]>(), more in any::<[u8; 24]>()) {
            let mut all = Header::new(Opcode::Put, 1).encode(KEY);
            all[3..35].copy_from_slice(&bytes);
            all[35..59].copy_from_slice(&more);
            let all = signed(all, 6, &[0, 0]);
            if let Ok(header) = Header::decode(&all, KEY) {
                prop_assert_eq!(header.encode(KEY), all);
            }
        }
    }

    #[test]
    fn every_flip_of_one_or_two_neighbouring_bits_is_refused() {
        let mut header = Header::new(Opcode::Put, 0x0102_0304_0506_0708);
        header.flags = Flags::SIGNAL | Flags::CRC | Flags::LAST;
        header.size = 4096;
        header.payload_crc = 0xdead_beef;
        let good = header.encode(KEY);
        for bit in 0..8 * HEADER {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&bytes, KEY).is_err(), "bit {bit}");
            let next = (bit + 1) % (8 * HEADER);
            bytes[next / 8] ^= 1 << (next % 8);
            assert!(Header::decode(&bytes, KEY).is_err(), "bits {bit} and {next}");
        }
    }

    #[test]
    fn every_field_lies_where_the_table_says() {
        let header = Header {
            opcode: Opcode::Signal,
            flags: Flags::CRC | Flags::ACK_NOW,
            sequence: 0x0807_0605_0403_0201,
            ack: 0x1817_1615_1413_1211,
            handle: 0x2423_2221,
            count: 0x3433_3231,
            offset: 0x4847_4645_4443_4241,
            size: 0,
            operand: 0x6867_6665_6463_6261,
            payload_crc: 0x7473_7271,
        };
        let bytes = header.encode(KEY);
        assert_eq!(bytes[..8], [b't', b'W', 1, 9, 0x0a, 0, 0, 0]);
        assert_eq!(bytes[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[16..24], [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
        assert_eq!(bytes[24..28], [0x21, 0x22, 0x23, 0x24]);
        assert_eq!(bytes[28..32], [0x31, 0x32, 0x33, 0x34]);
        assert_eq!(bytes[32..40], [0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48]);
        assert_eq!(bytes[40..48], [0; 8]);
        assert_eq!(bytes[48..56], [0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68]);
        assert_eq!(bytes[56..60], [0x71, 0x72, 0x73, 0x74]);
    }

    #[test]
    fn sizes_are_limited_per_opcode() {
        for opcode in Opcode::ALL {
            let good = Header::new(opcode, 1).encode(KEY);
            let max = opcode.max_size();
            for size in [0, max, max + 1, 1 << 31, 1 << 32, 1 << 63, u64::MAX] {
                let result = Header::decode(&signed(good, 40, &size.to_le_bytes()), KEY);
                assert_eq!(result.is_ok(), size <= max, "{opcode:?} of {size} bytes");
                if let Ok(header) = result {
                    assert!(header.payload() <= max);
                }
            }
        }
        let mut get = Header::new(Opcode::Get, 1);
        get.size = MAX_DATA;
        assert_eq!(get.payload(), 0);
    }

    #[test]
    fn unknown_versions_opcodes_flags_and_reserved_bits_are_named() {
        let good = Header::new(Opcode::Put, 1).encode(KEY);
        for version in (0..=255).filter(|v| *v != VERSION) {
            let why = why(&signed(good, 2, &[version]));
            assert!(why.contains(&format!("version {version},")) && why.contains("version 1"), "{why}");
        }
        for opcode in (0..=255).filter(|o| !(1..=18).contains(o)) {
            assert!(why(&signed(good, 3, &[opcode])).contains(&format!("unknown opcode {opcode:#x} ")));
        }
        for bit in 4..16 {
            assert!(why(&signed(good, 4, &(1u16 << bit).to_le_bytes())).contains("unknown flags"), "{bit}");
        }
        for bit in 0..16 {
            assert!(why(&signed(good, 6, &(1u16 << bit).to_le_bytes())).contains("reserved"), "{bit}");
        }
        assert!(why(&signed(good, 8, &[0; 8])).contains("sequence"));
        assert!(why(&signed(good, 56, &[1])).contains("without its flag"));
        assert!(
            why(b"GET / HTTP/1.1\r\nHost: a\r\nAccept: text/html\r\nAccept-Encoding: gzi").contains("GET /")
        );
    }

    #[test]
    fn only_puts_may_carry_a_signal() {
        for opcode in Opcode::ALL {
            let good = Header::new(opcode, 1).encode(KEY);
            let result = Header::decode(&signed(good, 4, &[1]), KEY);
            assert_eq!(result.is_ok(), matches!(opcode, Opcode::Put | Opcode::PutList), "{opcode:?}");
        }
    }

    #[test]
    fn opcodes_keep_their_numbers() {
        for (i, opcode) in Opcode::ALL.into_iter().enumerate() {
            assert_eq!(opcode as usize, i + 1);
            assert_eq!(Opcode::from_u8(opcode as u8), Some(opcode));
        }
        assert_eq!(Opcode::from_u8(0), None);
        assert_eq!(Opcode::from_u8(19), None);
    }

    #[test]
    fn a_payload_checksum_is_compared_only_where_it_was_announced() {
        let mut header = Header::new(Opcode::Put, 1);
        header.check_payload(5).unwrap();
        header.flags = Flags::CRC;
        header.payload_crc = 5;
        header.check_payload(5).unwrap();
        assert!(header.check_payload(4).is_err());
    }

    #[test]
    fn the_two_directions_of_a_session_have_their_own_keys() {
        let secret = Secret::from_bytes([3; 32]);
        assert_eq!(Key::new(&secret), Key::new(&secret));
        assert_ne!(Key::new(&secret), Key::new(&secret.derive("other")));
        assert_eq!(format!("{KEY:?}"), "***");
    }
}
