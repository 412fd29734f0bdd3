//! The tensors of a state, and which rows of each belong to which shard.

use std::ops::Range;

use safetensors::Dtype;
use serde::{Deserialize, Serialize};

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

impl Layout {
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
