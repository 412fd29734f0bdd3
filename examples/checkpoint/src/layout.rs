//! The tensors of a state, and which rows of each belong to which shard.

use std::collections::HashSet;
use std::ops::Range;

use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// One named tensor of a state, row-major.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// Its name, unique in the layout.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape; empty for a scalar.
    pub shape: Vec<usize>,
}

impl Tensor {
    /// How many rows it has: its first dimension, 1 for a scalar.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// The size of one row in bytes.
    pub fn row_size(&self) -> usize {
        self.shape.iter().skip(1).product::<usize>() * self.dtype.bitsize() / 8
    }

    /// The size of all of it in bytes.
    pub fn size(&self) -> usize {
        self.rows() * self.row_size()
    }
}

/// Some rows of one tensor: what a shard holds of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The tensor's place in the layout.
    pub tensor: usize,
    /// The rows.
    pub rows: Range<usize>,
}

/// The tensors of a state, in order. Every process of a job makes the same one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The tensors.
    pub tensors: Vec<Tensor>,
}

/// The longest dimension and the most bits of a tensor: nothing that is computed from them overflows.
const MOST: u64 = 1 << 48;

impl Layout {
    /// Checks that sizes can be computed: what comes from a file or a peer may say anything.
    ///
    /// # Errors
    /// [`Error::Invalid`] for names that are empty, longer than 1024 bytes, reserved or there twice, for tensors larger than
    /// 2^48 bits, and for rows that are not whole bytes.
    pub fn check(&self) -> Result<()> {
        let mut names = HashSet::new();
        for tensor in &self.tensors {
            let name = &tensor.name;
            let wrong = |why: &str| Err(Error::invalid("layout", format!("tensor {name:.100?}: {why}")));
            if name.is_empty() || name.len() > 1024 || name == "__metadata__" {
                return wrong("a name has 1 to 1024 bytes and is not __metadata__");
            }
            if !names.insert(name) {
                return wrong("it is there twice");
            }
            let element = tensor.dtype.bitsize() as u64;
            // Dimensions of 0 do not excuse the others.
            let bits = tensor.shape.iter().try_fold(element, |bits, &dimension| {
                bits.checked_mul((dimension as u64).max(1)).filter(|&bits| bits <= MOST)
            });
            let Some(bits) = bits else {
                return wrong(&format!("shape {:?} has more than 2^48 bits", tensor.shape));
            };
            let row = bits / (tensor.rows() as u64).max(1);
            if !row.is_multiple_of(8) {
                return wrong(&format!("rows of {row} bits are not whole bytes"));
            }
        }
        Ok(())
    }

    /// The parts that shard `shard` of `shards` holds: of each tensor the rows from `rows * shard / shards` to
    /// `rows * (shard + 1) / shards`, and nothing of a tensor with too few rows to go round.
    pub fn shard(&self, shard: usize, shards: usize) -> Vec<Part> {
        self.tensors
            .iter()
            .enumerate()
            .map(|(tensor, of)| Part {
                tensor,
                rows: of.rows() * shard / shards..of.rows() * (shard + 1) / shards,
            })
            .filter(|part| !part.rows.is_empty())
            .collect()
    }

    /// The size of a part in bytes.
    pub fn size(&self, part: &Part) -> usize {
        part.rows.len() * self.tensors[part.tensor].row_size()
    }
}
