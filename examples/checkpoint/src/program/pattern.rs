//! Bytes that say which step, which tensor and which place they belong to: a mix of two saves is seen.

use transom_checkpoint::{Dtype, Layout, Part, Tensor};

/// A state of about `size` bytes: tensors that have files of their own, and small ones that share one.
pub(crate) fn layout(size: u64) -> Layout {
    let tensor =
        |name: &str, dtype, shape: &[usize]| Tensor { name: name.into(), dtype, shape: shape.to_vec() };
    let rows = (size as usize / 4 / 1000 / 4).max(1);
    Layout {
        tensors: vec![
            tensor("frozen", Dtype::F32, &[rows, 1000]),
            tensor("first", Dtype::F32, &[rows, 1000]),
            tensor("second", Dtype::BF16, &[2 * rows, 10, 100]),
            tensor("third", Dtype::F64, &[rows, 500]),
            tensor("scale", Dtype::F32, &[]),
            tensor("odd", Dtype::U8, &[4099]),
        ],
    }
}

/// Fills the bytes of a part of a state as it is at a step. The first tensor is the same at every step.
pub(crate) fn fill(layout: &Layout, part: &Part, step: u64, bytes: &mut [u8]) {
    let step = if part.tensor == 0 { 0 } else { step };
    let first = part.rows.start * layout.tensors[part.tensor].row_size();
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = byte_at(part.tensor as u64, step, (first + at) as u64);
    }
}

fn byte_at(tensor: u64, step: u64, at: u64) -> u8 {
    let word = ((at / 8) ^ (tensor << 48) ^ (step << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word ^ (word >> 29)).to_le_bytes()[(at % 8) as usize]
}
