//! Bytes that say which step, which tensor and which place they belong to: a mix of two saves is seen.

use transom_checkpoint::{Layout, Part};

/// Fills the bytes of a part of a state as it is at a step. The first tensor is the same at every step.
pub(crate) fn fill(layout: &Layout, part: &Part, step: u64, bytes: &mut [u8]) {
    let step = if part.tensor == 0 { 0 } else { step };
    let first = part.rows.start * layout.tensors[part.tensor].row_size();
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = byte_at(part.tensor as u64, step, (first + at) as u64);
    }
}

fn byte_at(tensor: u64, step: u64, at: u64) -> u8 {
    let word = (at / 8 ^ tensor << 48 ^ step << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word ^ word >> 29).to_le_bytes()[(at % 8) as usize]
}
