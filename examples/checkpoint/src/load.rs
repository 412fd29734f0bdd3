//! Complete checkpoints, and shards out of them.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;
use serde_json::{Map, Value};
use transom::Slice;

use crate::digest::Digest;
use crate::disk::{Disk, Named};
use crate::manifest::{FileEntry, Manifest};
use crate::{Error, Layout, Part, Result};

/// A complete checkpoint.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    manifest: Arc<Manifest>,
    queue_depth: usize,
}

/// Where the bytes of a part go.
#[derive(Debug)]
pub enum Into<'a> {
    /// Registered memory.
    Slice(Slice),
    /// Any memory.
    Bytes(&'a mut [u8]),
}

/// A block, or a header, that is not what was written.
#[derive(Clone, Debug)]
pub struct Wrong {
    /// The name of the file in the checkpoint's directory.
    pub file: String,
    /// The block's number; `None` for the header, and for a file as a whole.
    pub block: Option<usize>,
    /// What was found.
    pub error: Error,
}

impl Checkpoint {
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: PathBuf, manifest: Manifest, queue_depth: usize) -> Self {
        Self { disk, dir, manifest: Arc::new(manifest), queue_depth }
    }

    /// Its step.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.manifest.step
    }

    /// The id of the save that made it.
    #[must_use]
    pub fn save(&self) -> &str {
        &self.manifest.save
    }

    /// Its tensors.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.manifest.layout
    }

    /// What was given to the commit.
    #[must_use]
    pub fn user(&self) -> &Map<String, Value> {
        &self.manifest.user
    }

    /// The size of its files in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.manifest.size()
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}
