//! What the sender offers: a name, a size and a checksum.

use transom::{Error, Result};

/// Size of an offer in bytes: version, name length, size, checksum, a reserved word, and room for the name.
pub(super) const SIZE: usize = 24 + ROOM;
/// Longest name in bytes.
pub(super) const LONGEST_NAME: usize = 255;
const ROOM: usize = LONGEST_NAME + 1;
const VERSION: u32 = 1;

/// A file that the sender would like to put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Offer {
    /// Its base name, which [`check_name`] has passed.
    pub(super) name: String,
    /// Its size in bytes.
    pub(super) size: u64,
    /// CRC-32C of all of it.
    pub(super) checksum: u32,
}

fn malformed(why: impl Into<String>) -> Error {
    Error::Malformed { what: "offer", why: why.into() }
}

/// Refuses what is not the plain name of a file in the receiver's directory.
///
/// # Errors
/// [`Error::Invalid`].
pub(super) fn check_name(name: &str) -> Result<()> {
    // These turn the rest of a line around: a name that shows as another.
    let turns =
        |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}');
    let why = if name.is_empty() {
        "it is empty".to_owned()
    } else if name.len() > LONGEST_NAME {
        format!("{} bytes are more than {LONGEST_NAME}", name.len())
    } else if name == "." || name == ".." {
        "it is a directory".to_owned()
    } else if name.contains('/') {
        "it has a '/' in it".to_owned()
    } else if name.chars().any(|c| c.is_control() || turns(c)) {
        "it has a control character in it".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::invalid("name a file", format!("{name:?} is no file name: {why}")))
}

impl Offer {
    /// Its fixed form.
    pub(super) fn to_bytes(&self) -> [u8; SIZE] {
        let mut out = [0; SIZE];
        out[..4].copy_from_slice(&VERSION.to_le_bytes());
        out[4..8].copy_from_slice(&(self.name.len() as u32).to_le_bytes());
        out[8..16].copy_from_slice(&self.size.to_le_bytes());
        out[16..20].copy_from_slice(&self.checksum.to_le_bytes());
        // A longer name never passes `check_name`: cut here, it does not pass at the other side.
        let length = self.name.len().min(ROOM);
        out[24..24 + length].copy_from_slice(&self.name.as_bytes()[..length]);
        out
    }

    /// Reads the fixed form.
    ///
    /// # Errors
    /// [`Error::Malformed`]; [`Error::Invalid`] for its name.
    pub(super) fn from_bytes(bytes: &[u8; SIZE]) -> Result<Self> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if word(0) != VERSION {
            return Err(malformed(format!(
                "its version is {}, this one knows {VERSION} (use the same transom at both ends)",
                word(0)
            )));
        }
        let length = word(4) as usize;
        if length > LONGEST_NAME {
            return Err(malformed(format!("a name of {length} bytes is longer than {LONGEST_NAME}")));
        }
        if word(20) != 0 || bytes[24 + length..].iter().any(|b| *b != 0) {
            return Err(malformed("what is reserved is not 0"));
        }
        let size = u64::from(word(8)) | u64::from(word(12)) << 32;
        let checksum = word(16);
        if size == 0 && checksum != 0 {
            return Err(malformed("an empty file has the checksum 0"));
        }
        let name =
            std::str::from_utf8(&bytes[24..24 + length]).map_err(|_| malformed("the name is not UTF-8"))?;
        check_name(name)?;
        Ok(Self { name: name.to_owned(), size, checksum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(name: &str) -> Offer {
        Offer { name: name.into(), size: u64::MAX - 7, checksum: 0x8000_0001 }
    }

    #[test]
    fn an_offer_comes_back_the_same() {
        for name in ["a", "data.bin", "..a", "übung 1", &"x".repeat(LONGEST_NAME)] {
            assert_eq!(Offer::from_bytes(&offer(name).to_bytes()).unwrap(), offer(name));
        }
    }

    #[test]
    fn names_that_leave_the_directory_or_deceive_the_eye_are_refused() {
        let long = "x".repeat(LONGEST_NAME + 1);
        for name in
            ["", ".", "..", "a/b", "/etc/passwd", "../a", "a\0b", "a\nb", "\u{1b}[2J", "a\u{9b}", &long]
        {
            assert!(check_name(name).is_err(), "{name:?}");
            assert!(Offer::from_bytes(&offer(name).to_bytes()).is_err(), "{name:?}");
        }
        assert!(check_name("photo\u{202e}gpj.exe").is_err());
    }

    #[test]
    fn every_field_is_checked() {
        let good = offer("name").to_bytes();
        for at in [0, 1, 3, 5, 7, 20, 23, 28, SIZE - 1] {
            let mut bad = good;
            bad[at] = 0xff;
            assert!(Offer::from_bytes(&bad).is_err(), "byte {at}");
        }
        let mut not_text = good;
        not_text[24] = 0xff;
        assert!(Offer::from_bytes(&not_text).is_err());
        let mut empty = good;
        empty[8..16].fill(0);
        assert!(Offer::from_bytes(&empty).unwrap_err().to_string().contains("empty file"));
        assert!(Offer::from_bytes(&[0; SIZE]).is_err());
        assert!(Offer::from_bytes(&[0xff; SIZE]).is_err());
    }
}
