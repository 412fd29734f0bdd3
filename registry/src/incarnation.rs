use std::fmt;

use serde::{Deserialize, Serialize};

/// One life of one process's context: random, never zero, and never used again. A restarted process has another one,
/// so that whatever was meant for its former life is refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(u64);

impl Incarnation {
    /// A new, random incarnation.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) when the kernel gives no random bytes.
    pub fn random() -> crate::Result<Self> {
        let mut bytes = [0; 8];
        loop {
            getrandom::fill(&mut bytes).map_err(|e| {
                crate::Error::io(
                    "read random bytes",
                    std::io::Error::from_raw_os_error(e.raw_os_error().unwrap_or(0)),
                )
            })?;
            if let Some(incarnation) = Self::from_u64(u64::from_le_bytes(bytes)) {
                return Ok(incarnation);
            }
        }
    }

    /// The incarnation with this number, or `None` for zero.
    #[must_use]
    pub const fn from_u64(number: u64) -> Option<Self> {
        if number == 0 { None } else { Some(Self(number)) }
    }

    /// Its number.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
