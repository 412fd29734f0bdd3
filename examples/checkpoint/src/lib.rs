//! Checkpoints that do not stop training: trainers put their shards into a writer's staging window and go on; the writer
//! drains them to safetensors files.
//!
//! - [`Staging`], [`Saver`], [`Writer`]: the window between trainers and writers, and its ends
//! - [`Layout`]: the tensors of a state, and which rows of each belong to which shard
//! - [`Plan`]: the files that a shard becomes, and their blocks
//! - [`Checkpoints`], [`Save`]: a directory of checkpoints, and a shard on its way there
//! - [`Checkpoint`]: a complete one, from which any shard is loaded
//! - [`Model`]: a model file as the state

#![forbid(unsafe_code)]

pub mod bench;
mod checkpoint;
mod checkpoints;
mod digest;
pub mod disk;
mod error;
mod header;
mod layout;
mod load;
mod manifest;
mod model;
mod plan;
mod pool;
mod save;
mod staging;
mod writer;

pub use checkpoint::{Checkpoint, Wrong};
pub use checkpoints::{Checkpoints, Committed, Listed, Options};
pub use digest::Digest;
pub use error::{Error, Result};
pub use header::fuzz_header;
pub use layout::{Layout, Part, Tensor};
pub use load::Target;
pub use manifest::{Written, fuzz_manifest};
pub use model::Model;
pub use plan::{BLOCK, Block, Piece, Plan};
pub use safetensors::Dtype;
pub use save::Save;
pub use staging::{Event, Inbox, Note, Role, Roles, Saver, Staged, Staging, Told};
pub use writer::{Report, Writer};
