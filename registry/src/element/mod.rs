//! Elements: the types that accumulate and collectives know, and what can be done with two of them.

mod reduce;
#[cfg(test)]
mod tests;
mod typed;

pub use half::{bf16, f16};
pub use reduce::reduce;
pub use typed::{Element, as_bytes, as_bytes_mut};

use std::fmt;

use serde::{Deserialize, Serialize};

/// The type of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
#[non_exhaustive]
pub enum Dtype {
    /// 32-bit float.
    F32 = 1,
    /// 64-bit float.
    F64 = 2,
    /// 16-bit float, IEEE 754.
    F16 = 3,
    /// 16-bit float with the exponent of f32.
    Bf16 = 4,
    /// Signed 32-bit integer.
    I32 = 5,
    /// Signed 64-bit integer.
    I64 = 6,
    /// Unsigned 32-bit integer.
    U32 = 7,
    /// Unsigned 64-bit integer.
    U64 = 8,
}

impl Dtype {
    /// Every type, in the order of its number.
    pub const ALL: [Self; 8] =
        [Self::F32, Self::F64, Self::F16, Self::Bf16, Self::I32, Self::I64, Self::U32, Self::U64];

    /// Size of one element in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }

    /// The type with this number.
    #[must_use]
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|d| *d as u8 == number)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U32 => "u32",
            Self::U64 => "u64",
        })
    }
}

/// What accumulate makes of the target's element and the operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
#[non_exhaustive]
pub enum Reduce {
    /// Their sum; integers wrap.
    Sum = 1,
    /// The lesser; of a number and a NaN, the number.
    Min = 2,
    /// The greater; of a number and a NaN, the number.
    Max = 3,
    /// The operand.
    Replace = 4,
}

impl Reduce {
    /// Every operation, in the order of its number.
    pub const ALL: [Self; 4] = [Self::Sum, Self::Min, Self::Max, Self::Replace];

    /// The operation with this number.
    #[must_use]
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|r| *r as u8 == number)
    }
}

/// A fetching integer atomic on a word of 4 or 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
#[non_exhaustive]
pub enum Atomic {
    /// Adds, wrapping.
    Add = 1,
    /// Stores.
    Swap = 2,
    /// Stores if the word equals a second operand.
    CompareSwap = 3,
    /// Bitwise and.
    And = 4,
    /// Bitwise or.
    Or = 5,
    /// Bitwise exclusive or.
    Xor = 6,
    /// The lesser, unsigned.
    Min = 7,
    /// The greater, unsigned.
    Max = 8,
}

impl Atomic {
    /// Every operation, in the order of its number.
    pub const ALL: [Self; 8] =
        [Self::Add, Self::Swap, Self::CompareSwap, Self::And, Self::Or, Self::Xor, Self::Min, Self::Max];

    /// The operation with this number.
    #[must_use]
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|a| *a as u8 == number)
    }
}
