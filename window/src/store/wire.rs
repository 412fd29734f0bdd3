//! The frames between a store's client and its server.
//!
//! A frame is a length (u32, of what follows), an opcode (u8), the number of the request (u64) and a body. All numbers
//! are little-endian. Each frame has one encoding; a byte too many, a bad key or a flag that is neither 0 nor 1 is
//! malformed. Nothing is allocated for a length before it has been checked.

use std::sync::Arc;

use transom_registry::{Error, Result};

use super::Call;
use super::key::{self, LARGEST_VALUE, LONGEST_KEY};
use super::rules::Refusal;

/// The largest length of a frame: a value, and room for a key beside it.
pub(super) const LARGEST_FRAME: usize = LARGEST_VALUE + 1024;
/// Bytes of the length in front of each frame.
pub(super) const PREFIX: usize = 4;
/// The most missing keys that an answer names.
pub(super) const MOST_NAMED: usize = 64;
const HEADER: usize = 1 + 8;

/// What a client asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    /// Do this.
    Call(Call),
    /// The get with this number has waited long enough: say what is missing and forget it.
    Cancel,
}

/// What a server answers. A get is answered by one `Value` for each of its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    Done,
    Value(Arc<[u8]>),
    Absent,
    Number(i64),
    Deleted(bool),
    Missing { count: u32, first: Vec<u32> },
    Refused(Refusal),
}

/// The size that a key takes in a frame.
pub(super) fn key_size(key: &str) -> usize {
    2 + key.len()
}

/// The room that a get has for its keys.
pub(super) const ROOM_FOR_KEYS: usize = LARGEST_FRAME - HEADER - 4;

/// The length of the frame that these four bytes begin.
pub(super) fn length(prefix: [u8; PREFIX]) -> Result<usize> {
    let length = u32::from_le_bytes(prefix) as usize;
    if (HEADER..=LARGEST_FRAME).contains(&length) {
        return Ok(length);
    }
    Err(malformed(format!("a frame of {length} bytes, {HEADER} to {LARGEST_FRAME} are possible")))
}

impl Request {
    /// Adds its frame to `out`.
    pub(super) fn encode(&self, id: u64, out: &mut Vec<u8>) {
        let opcode = match self {
            Self::Call(Call::Set { .. }) => 1,
            Self::Call(Call::Get { .. }) => 2,
            Self::Call(Call::TryGet { .. }) => 3,
            Self::Call(Call::Add { .. }) => 4,
            Self::Call(Call::CompareSet { .. }) => 5,
            Self::Call(Call::Delete { .. }) => 6,
            Self::Cancel => 7,
        };
        frame(out, opcode, id, |out| match self {
            Self::Call(Call::Set { key, value }) => {
                put_key(out, key);
                put_value(out, value);
            }
            Self::Call(Call::Get { keys }) => {
                put_u32(out, keys.len());
                keys.iter().for_each(|key| put_key(out, key));
            }
            Self::Call(Call::TryGet { key } | Call::Delete { key }) => put_key(out, key),
            Self::Call(Call::Add { key, delta }) => {
                put_key(out, key);
                out.extend_from_slice(&delta.to_le_bytes());
            }
            Self::Call(Call::CompareSet { key, expected, new }) => {
                put_key(out, key);
                out.push(u8::from(expected.is_some()));
                if let Some(expected) = expected {
                    put_value(out, expected);
                }
                put_value(out, new);
            }
            Self::Cancel => {}
        });
    }

    /// Reads what follows the length.
    pub(super) fn decode(frame: &[u8]) -> Result<(u64, Self)> {
        let mut rest = Rest(frame);
        let opcode = rest.u8()?;
        let id = rest.u64()?;
        let request = match opcode {
            1 => Self::Call(Call::Set { key: rest.key()?, value: rest.value()?.to_vec() }),
            2 => {
                let count = rest.u32()? as usize;
                if count == 0 || count > rest.0.len() / key_size("k") {
                    return Err(malformed(format!("{count} keys in {} bytes", rest.0.len())));
                }
                let keys = (0..count).map(|_| rest.key()).collect::<Result<_>>()?;
                Self::Call(Call::Get { keys })
            }
            3 => Self::Call(Call::TryGet { key: rest.key()? }),
            4 => Self::Call(Call::Add { key: rest.key()?, delta: rest.u64()? as i64 }),
            5 => {
                let key = rest.key()?;
                let expected = if rest.flag()? { Some(rest.value()?.to_vec()) } else { None };
                Self::Call(Call::CompareSet { key, expected, new: rest.value()?.to_vec() })
            }
            6 => Self::Call(Call::Delete { key: rest.key()? }),
            7 => Self::Cancel,
            _ => return Err(malformed(format!("request opcode {opcode}"))),
        };
        rest.end()?;
        Ok((id, request))
    }
}

impl Reply {
    /// Adds its frame to `out`.
    pub(super) fn encode(&self, id: u64, out: &mut Vec<u8>) {
        let opcode = match self {
            Self::Done => 1,
            Self::Value(_) => 2,
            Self::Absent => 3,
            Self::Number(_) => 4,
            Self::Deleted(_) => 5,
            Self::Missing { .. } => 6,
            Self::Refused(_) => 7,
        };
        frame(out, opcode, id, |out| match self {
            Self::Done | Self::Absent => {}
            Self::Value(value) => put_value(out, value),
            Self::Number(number) => out.extend_from_slice(&number.to_le_bytes()),
            Self::Deleted(deleted) => out.push(u8::from(*deleted)),
            Self::Missing { count, first } => {
                out.extend_from_slice(&count.to_le_bytes());
                out.push(first.len() as u8);
                first.iter().for_each(|position| out.extend_from_slice(&position.to_le_bytes()));
            }
            Self::Refused(refusal) => out.push(*refusal as u8),
        });
    }

    /// Reads what follows the length.
    pub(super) fn decode(frame: &[u8]) -> Result<(u64, Self)> {
        let mut rest = Rest(frame);
        let opcode = rest.u8()?;
        let id = rest.u64()?;
        let reply = match opcode {
            1 => Self::Done,
            2 => Self::Value(rest.value()?.into()),
            3 => Self::Absent,
            4 => Self::Number(rest.u64()? as i64),
            5 => Self::Deleted(rest.flag()?),
            6 => {
                let count = rest.u32()?;
                let named = usize::from(rest.u8()?);
                if named > MOST_NAMED || named > count as usize {
                    return Err(malformed(format!("{named} names of {count} missing keys")));
                }
                Self::Missing { count, first: (0..named).map(|_| rest.u32()).collect::<Result<_>>()? }
            }
            7 => {
                let code = rest.u8()?;
                let refusal = Refusal::ALL.into_iter().find(|refusal| *refusal as u8 == code);
                Self::Refused(refusal.ok_or_else(|| malformed(format!("refusal code {code}")))?)
            }
            _ => return Err(malformed(format!("reply opcode {opcode}"))),
        };
        rest.end()?;
        Ok((id, reply))
    }
}

fn malformed(why: String) -> Error {
    Error::Malformed { what: "store frame", why }
}

fn frame(out: &mut Vec<u8>, opcode: u8, id: u64, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX]);
    out.push(opcode);
    out.extend_from_slice(&id.to_le_bytes());
    body(out);
    let length = (out.len() - start - PREFIX) as u32;
    out[start..start + PREFIX].copy_from_slice(&length.to_le_bytes());
}

fn put_u32(out: &mut Vec<u8>, number: usize) {
    out.extend_from_slice(&(number as u32).to_le_bytes());
}

fn put_key(out: &mut Vec<u8>, key: &str) {
    out.extend_from_slice(&(key.len() as u16).to_le_bytes());
    out.extend_from_slice(key.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &[u8]) {
    put_u32(out, value.len());
    out.extend_from_slice(value);
}

/// The part of a frame that was not read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, size: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self
            .0
            .split_at_checked(size)
            .ok_or_else(|| malformed(format!("{size} bytes expected, {} are left", self.0.len())))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn flag(&mut self) -> Result<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(malformed(format!("a flag of {other}"))),
        }
    }

    fn key(&mut self) -> Result<String> {
        let size = usize::from(u16::from_le_bytes(self.array()?));
        if size > LONGEST_KEY {
            return Err(malformed(format!("a key of {size} bytes")));
        }
        let bytes = self.take(size)?;
        if let Some(why) = key::fault(bytes) {
            return Err(malformed(format!("a key of {size} bytes: {why}")));
        }
        // A key without fault is ASCII.
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    fn value(&mut self) -> Result<&'a [u8]> {
        let size = self.u32()? as usize;
        if size > LARGEST_VALUE {
            return Err(malformed(format!("a value of {size} bytes")));
        }
        self.take(size)
    }

    fn end(&self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(malformed(format!("{} bytes too many", self.0.len()))) }
    }
}

/// Feeds bytes to the decoders of the store's frames, as a fuzzer does: whatever they accept, they write the same way.
#[doc(hidden)]
pub fn fuzz_store_request(bytes: &[u8]) {
    let Some((prefix, frame)) = bytes.split_first_chunk::<PREFIX>() else { return };
    let fits = length(*prefix).is_ok_and(|length| length == frame.len());
    let mut again = Vec::new();
    if let Ok((id, request)) = Request::decode(frame) {
        request.encode(id, &mut again);
        assert_eq!(&again[PREFIX..], frame, "one encoding for a request");
        assert!(!fits || again == bytes, "one length for a request");
    }
    again.clear();
    if let Ok((id, reply)) = Reply::decode(frame) {
        reply.encode(id, &mut again);
        assert_eq!(&again[PREFIX..], frame, "one encoding for a reply");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_key() -> impl Strategy<Value = String> {
        prop::collection::vec(0x21_u8..0x7f, 1..=LONGEST_KEY)
            .prop_map(|bytes| String::from_utf8(bytes).unwrap())
            .prop_filter("a good key", |key| key::fault(key.as_bytes()).is_none())
    }

    fn any_value() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..300)
    }

    fn any_request() -> impl Strategy<Value = Request> {
        prop_oneof![
            (any_key(), any_value()).prop_map(|(key, value)| Request::Call(Call::Set { key, value })),
            prop::collection::vec(any_key(), 1..5).prop_map(|keys| Request::Call(Call::Get { keys })),
            any_key().prop_map(|key| Request::Call(Call::TryGet { key })),
            (any_key(), any::<i64>()).prop_map(|(key, delta)| Request::Call(Call::Add { key, delta })),
            (any_key(), prop::option::of(any_value()), any_value())
                .prop_map(|(key, expected, new)| Request::Call(Call::CompareSet { key, expected, new })),
            any_key().prop_map(|key| Request::Call(Call::Delete { key })),
            Just(Request::Cancel),
        ]
    }

    fn any_reply() -> impl Strategy<Value = Reply> {
        prop_oneof![
            Just(Reply::Done),
            any_value().prop_map(|value| Reply::Value(value.into())),
            Just(Reply::Absent),
            any::<i64>().prop_map(Reply::Number),
            any::<bool>().prop_map(Reply::Deleted),
            prop::collection::vec(any::<u32>(), 0..=MOST_NAMED)
                .prop_map(|first| Reply::Missing { count: first.len() as u32 + 3, first }),
            (0..Refusal::ALL.len()).prop_map(|n| Reply::Refused(Refusal::ALL[n])),
        ]
    }

    proptest! {
        #[test]
        fn a_request_comes_back_as_it_was_and_no_part_of_it_does(request in any_request(), id: u64) {
            let mut bytes = Vec::new();
            request.encode(id, &mut bytes);
            let size = length(*bytes.first_chunk().unwrap()).unwrap();
            prop_assert_eq!(size, bytes.len() - PREFIX);
            prop_assert_eq!(Request::decode(&bytes[PREFIX..]).unwrap(), (id, request));
            for cut in PREFIX..bytes.len() {
                prop_assert!(Request::decode(&bytes[PREFIX..cut]).is_err());
            }
            bytes.push(0);
            prop_assert!(Request::decode(&bytes[PREFIX..]).is_err());
        }

        #[test]
        fn a_reply_comes_back_as_it_was_and_no_part_of_it_does(reply in any_reply(), id: u64) {
            let mut bytes = Vec::new();
            reply.encode(id, &mut bytes);
            prop_assert_eq!(length(*bytes.first_chunk().unwrap()).unwrap(), bytes.len() - PREFIX);
            prop_assert_eq!(Reply::decode(&bytes[PREFIX..]).unwrap(), (id, reply));
            for cut in PREFIX..bytes.len() {
                prop_assert!(Reply::decode(&bytes[PREFIX..cut]).is_err());
            }
        }

        #[test]
        fn garbage_is_an_error_or_has_one_encoding(mut bytes in prop::collection::vec(any::<u8>(), 0..600), opcode in 0_u8..9) {
            fuzz_store_request(&bytes);
            if let Some(byte) = bytes.get_mut(PREFIX) {
                *byte = opcode;
            }
            fuzz_store_request(&bytes);
        }

        #[test]
        fn one_changed_byte_is_an_error_or_has_one_encoding(request in any_request(), at: prop::sample::Index, to: u8) {
            let mut bytes = Vec::new();
            request.encode(1, &mut bytes);
            let at = at.index(bytes.len());
            bytes[at] = to;
            fuzz_store_request(&bytes);
        }
    }

    #[test]
    fn lengths_and_counts_over_their_limits_are_refused_before_anything_is_allocated() {
        assert!(length((LARGEST_FRAME as u32).to_le_bytes()).is_ok());
        for bad in [0, 8, LARGEST_FRAME as u32 + 1, u32::MAX] {
            assert!(length(bad.to_le_bytes()).is_err(), "{bad}");
        }
        let mut get = vec![2];
        get.extend_from_slice(&[0; 8]);
        get.extend_from_slice(&u32::MAX.to_le_bytes());
        assert!(Request::decode(&get).is_err());
        let mut value = vec![2];
        value.extend_from_slice(&[0; 8]);
        value.extend_from_slice(&(LARGEST_VALUE as u32 + 1).to_le_bytes());
        value.resize(LARGEST_VALUE + 100, 0);
        assert!(Reply::decode(&value).is_err());
    }

    #[test]
    fn the_largest_calls_fit_in_a_frame() {
        let key = "k".repeat(LONGEST_KEY);
        let set = Call::Set { key: key.clone(), value: vec![1; LARGEST_VALUE] };
        let half = vec![1; LARGEST_VALUE / 2];
        let compare_set = Call::CompareSet { key, expected: Some(half.clone()), new: half };
        for call in [set, compare_set] {
            let mut bytes = Vec::new();
            let request = Request::Call(call);
            request.encode(u64::MAX, &mut bytes);
            assert!(length(*bytes.first_chunk().unwrap()).is_ok());
            assert_eq!(Request::decode(&bytes[PREFIX..]).unwrap(), (u64::MAX, request));
        }
    }
}
