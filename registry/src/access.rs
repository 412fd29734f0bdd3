use std::fmt;
use std::ops::{BitAnd, BitOr};

use serde::{Deserialize, Serialize};

/// What a peer may do with a region: any of read, write, atomic and signal, each granted by itself. The default is
/// none.
///
/// # Examples
/// ```
/// use transom_registry::Access;
/// let rights = Access::READ | Access::SIGNAL;
/// assert!(rights.contains(Access::READ) && !rights.contains(Access::WRITE));
/// assert_eq!(rights.to_string(), "read+signal");
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Access(u8);

impl Access {
    /// No right at all.
    pub const NONE: Self = Self(0);
    /// Gets.
    pub const READ: Self = Self(1);
    /// Puts.
    pub const WRITE: Self = Self(2);
    /// Atomics and accumulates.
    pub const ATOMIC: Self = Self(4);
    /// Adding to signals.
    pub const SIGNAL: Self = Self(8);
    /// Every right.
    pub const ALL: Self = Self(15);

    const NAMES: [(Self, &'static str); 4] =
        [(Self::READ, "read"), (Self::WRITE, "write"), (Self::ATOMIC, "atomic"), (Self::SIGNAL, "signal")];

    /// Whether every right of `other` is in `self`.
    #[inline]
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The rights as bits: read 1, write 2, atomic 4, signal 8.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The rights that `bits` stand for, or `None` when an unknown bit is set.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        if bits & !Self::ALL.0 == 0 { Some(Self(bits)) } else { None }
    }
}

impl BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for Access {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (right, name) in Self::NAMES {
            if self.contains(right) {
                if !first {
                    f.write_str("+")?;
                }
                f.write_str(name)?;
                first = false;
            }
        }
        if first { f.write_str("none") } else { Ok(()) }
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
