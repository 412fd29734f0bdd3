//! Checkpoints that do not stop training: trainers put their shards into a writer's staging window and go on; the writer
//! drains them to safetensors files.
//!
//! - [`Layout`]: the tensors of a state, and which rows of each belong to which shard

#![forbid(unsafe_code)]

mod layout;

pub use layout::{Layout, Part, Tensor};
pub use safetensors::Dtype;
