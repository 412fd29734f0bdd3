//! What the receiver replies, to the offer and at the end: yes with some bytes, or no with the reason.

use transom::{Error, Result};

const YES: u32 = 1;
const NO: u32 = 2;
/// Bytes before the body: what it is, and its length.
const FIXED: usize = 8;

/// A reply of the receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    /// It agrees; to the offer of a file with bytes in it, with the descriptor of where to put them.
    Yes(Vec<u8>),
    /// It does not, for this reason: one line without control characters.
    No(String),
}

fn malformed(why: impl Into<String>) -> Error {
    Error::Malformed { what: "reply", why: why.into() }
}

impl Reply {
    /// No, because of this error.
    pub(super) fn no(error: &Error) -> Self {
        Self::No(error.to_string().chars().map(|c| if c.is_control() { '?' } else { c }).collect())
    }

    /// Its form in a place of this size. A reason that is too long is cut.
    ///
    /// # Errors
    /// [`Error::Malformed`] when the bytes of a yes do not fit.
    pub(super) fn to_bytes(&self, size: usize) -> Result<Vec<u8>> {
        let room = size.saturating_sub(FIXED);
        let (kind, body) = match self {
            Self::Yes(body) if body.len() > room => {
                return Err(malformed(format!("{} bytes do not fit into {room}", body.len())));
            }
            Self::Yes(body) => (YES, body.as_slice()),
            Self::No(why) => {
                let fits = (0..=room.min(why.len())).rev().find(|at| why.is_char_boundary(*at));
                (NO, &why.as_bytes()[..fits.unwrap_or(0)])
            }
        };
        let mut out = Vec::with_capacity(FIXED + body.len());
        out.extend(kind.to_le_bytes());
        out.extend((body.len() as u32).to_le_bytes());
        out.extend(body);
        Ok(out)
    }

    /// Reads that form from all of its place.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let cut = || malformed("it is cut short");
        let (kind, rest) = bytes.split_first_chunk::<4>().ok_or_else(cut)?;
        let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
        let body = rest.get(..u32::from_le_bytes(*length) as usize).ok_or_else(cut)?;
        match u32::from_le_bytes(*kind) {
            YES => Ok(Self::Yes(body.to_vec())),
            NO => {
                let why = std::str::from_utf8(body).map_err(|_| malformed("its reason is not text"))?;
                if why.chars().any(char::is_control) {
                    return Err(malformed("its reason has a control character in it"));
                }
                Ok(Self::No(why.to_owned()))
            }
            other => Err(malformed(format!("kind {other} is not known"))),
        }
    }

    /// What it agreed to.
    ///
    /// # Errors
    /// [`Error::Refused`] with its reason.
    pub(super) fn agreed(self) -> Result<Vec<u8>> {
        match self {
            Self::Yes(body) => Ok(body),
            Self::No(why) => Err(Error::refused(Error::invalid("receive", why))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_comes_back_the_same() {
        for reply in [Reply::Yes(Vec::new()), Reply::Yes(vec![0, 255, 10]), Reply::No("disk full".into())] {
            let mut place = reply.to_bytes(64).unwrap();
            place.resize(64, 0);
            assert_eq!(Reply::from_bytes(&place).unwrap(), reply);
        }
    }

    #[test]
    fn long_reasons_are_cut_between_characters_and_long_bytes_are_refused() {
        let cut = Reply::No("ü".repeat(100)).to_bytes(FIXED + 9).unwrap();
        assert_eq!(Reply::from_bytes(&cut).unwrap(), Reply::No("üüüü".into()));
        assert!(Reply::Yes(vec![0; 10]).to_bytes(FIXED + 9).is_err());
    }

    #[test]
    fn no_reason_can_drive_the_terminal() {
        let error = Error::invalid("x", "a\u{1b}[2J\nb");
        let Reply::No(why) = Reply::no(&error) else { panic!("it is a no") };
        assert_eq!(why, "x: a?[2J?b");
        let sent = Reply::No("a\u{1b}b".into()).to_bytes(64).unwrap();
        assert!(Reply::from_bytes(&sent).is_err());
    }

    #[test]
    fn garbage_is_refused() {
        for bad in
            [&b""[..], &[1, 0, 0], &[0; 64], &[3, 0, 0, 0, 0, 0, 0, 0], &[1, 0, 0, 0, 1, 0, 0, 0], &[255; 64]]
        {
            assert!(Reply::from_bytes(bad).is_err(), "{bad:?}");
        }
    }
}
