//! Checkpoints that do not stop training: trainers put their shards into a writer's staging window and go on; the writer
//! drains them to safetensors files.
//!
//! A trainer and a writer, which are threads here and processes elsewhere:
//! ```
//! use std::time::Duration;
//!
//! use transom::{Store, Team};
//! use transom_checkpoint::*;
//!
//! # fn main() -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # let dir = std::env::temp_dir().join(format!("transom-checkpoint-doc-{}", std::process::id()));
//! let layout = Layout { tensors: vec![Tensor { name: "w".into(), dtype: Dtype::F32, shape: vec![256, 1024] }] };
//! let roles = Roles { trainers: 1, writers: 1, standbys: 0 };
//! let store = Store::in_process();
//! let team = |rank| Team::builder().store(store.clone()).rank(rank).size(2).build();
//!
//! std::thread::scope(|scope| {
//!     let writer = scope.spawn(|| {
//!         let staging = Staging::build(&team(1)?, roles, Staging::ring_for(&layout, roles, BLOCK)?, BLOCK)?;
//!         let checkpoints = Checkpoints::create(&dir, Options::default())?;
//!         Writer::new(&staging, &layout, &checkpoints)?.run(|report| println!("{report:?}"))
//!     });
//!     let staging = Staging::build(&team(0)?, roles, Staging::ring_for(&layout, roles, BLOCK)?, BLOCK)?;
//!     let mut saver = Saver::new(&staging, &layout)?;
//!     let mut state = vec![7; 1 << 20];
//!     saver.save(10, &Note::new(), |_part| &state)?;
//!     state.fill(8); // It is ours again: the checkpoint has the sevens.
//!     saver.wait_durable(10, Duration::from_secs(30))?;
//!     saver.end()?;
//!     writer.join().expect("no panic")
//! })?;
//!
//! let newest = Checkpoints::open(&dir, Options::default())?.latest()?.expect("there is one");
//! let mut rows = vec![0; 4096];
//! newest.load([(Part { tensor: 0, rows: 255..256 }, rows.as_mut_slice().into())])?;
//! assert_eq!((newest.step(), rows), (10, vec![7; 4096]));
//! # std::fs::remove_dir_all(&dir)?;
//! # Ok(())
//! # }
//! ```
//!
//! - [`Staging`], [`Roles`]: the window between trainers and writers, and who is what
//! - [`Saver`]: the trainer's end; [`Writer`]: the writer's
//! - [`Layout`]: the tensors of a state, and which rows of each belong to which shard
//! - [`Checkpoints`], [`Checkpoint`]: a directory of them, and one, from which any shard is loaded
//! - [`Plan`], [`Save`], [`Inbox`]: what the writer is made of, for one of your own
//! - [`Model`]: a model file as the state; [`disk`]: what storage has to do
//! - `docs/checkpoint.md` in the repository: the protocol, the files, and what is promised

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
