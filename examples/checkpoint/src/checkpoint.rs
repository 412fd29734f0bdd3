//! A complete checkpoint.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde_json::{Map, Value};

use crate::digest::Digest;
use crate::disk::{Disk, Named};
use crate::load::{self, Stored, Target};
use crate::manifest::{FileEntry, Manifest};
use crate::{Error, Layout, Part, Result};

/// A complete checkpoint, of which any part can be loaded.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    manifest: Arc<Manifest>,
    queue_depth: usize,
}

/// Something in a checkpoint that is not what was written.
#[derive(Clone, Debug)]
pub struct Wrong {
    /// The name of the file in the checkpoint's directory.
    pub file: String,
    /// The block's number; `None` where the file as a whole or its header is wrong.
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

    /// The names of its files.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &str> {
        self.manifest.files.iter().map(|file| file.name.as_str())
    }

    /// Loads parts: each target is as large as its part. The parts need not be those that were saved; any rows of any tensor
    /// may be asked for. Every block that is read is compared with its digest.
    ///
    /// # Errors
    /// [`Error::Corrupt`] names the file and block that is not what was written; [`Error::Io`]; [`Error::Invalid`] for parts
    /// that are not in the layout, and targets of another size. After an error the targets may hold anything.
    pub fn load<'a>(&self, parts: impl IntoIterator<Item = (Part, Target<'a>)>) -> Result<()> {
        self.load_with(parts, true)
    }

    /// As [`Checkpoint::load`], and compares nothing: for files that were verified before.
    ///
    /// # Errors
    /// As for [`Checkpoint::load`].
    pub fn load_unverified<'a>(&self, parts: impl IntoIterator<Item = (Part, Target<'a>)>) -> Result<()> {
        self.load_with(parts, false)
    }

    fn load_with<'a>(&self, parts: impl IntoIterator<Item = (Part, Target<'a>)>, verify: bool) -> Result<()> {
        let parts: Vec<_> = parts.into_iter().collect();
        let wanted = |file: &&FileEntry| {
            let overlaps = |held: &Part, part: &Part| {
                held.tensor == part.tensor
                    && held.rows.start < part.rows.end
                    && part.rows.start < held.rows.end
            };
            file.parts.iter().any(|held| parts.iter().any(|(part, _)| overlaps(held, part)))
        };
        let files = self.manifest.files.iter().filter(wanted).map(|file| self.stored(file, verify));
        let files = files.collect::<Result<Vec<_>>>()?;
        load::load(self.layout(), &files, parts, self.queue_depth)
    }

    fn stored<'a>(&'a self, entry: &'a FileEntry, verify: bool) -> Result<Stored<'a>> {
        let mut at = 0;
        let parts = entry.parts.iter().map(|part| {
            let start = at;
            at += self.layout().size(part) as u64;
            (part.clone(), start)
        });
        Ok(Stored {
            file: Named::open(&*self.disk, self.dir.join(&entry.name))?,
            start: entry.header_size,
            size: entry.size - entry.header_size,
            parts: parts.collect(),
            block_size: self.manifest.block_size,
            digests: verify.then_some(&entry.blocks),
            uncached: OnceLock::new(),
        })
    }

    /// Reads everything and compares it with the digests.
    pub(crate) fn verify(&self) -> Vec<Wrong> {
        let wrong = Mutex::new(Vec::new());
        let found = |file: &FileEntry, block, error| {
            wrong.lock().push(Wrong { file: file.name.clone(), block, error });
        };
        let mut stored = Vec::new();
        for file in &self.manifest.files {
            match self.verify_file(file) {
                Ok(one) => stored.push((file, one)),
                Err(error) => found(file, None, error),
            }
        }
        let blocks = stored.iter().flat_map(|one| (0..one.0.blocks.len()).map(move |block| (one, block)));
        // What is wrong is noted, and the rest looked at all the same.
        let _ = load::each(blocks.collect(), self.queue_depth, |((file, stored), block), buffer| {
            if let Err(error) = stored.verify_block(block, buffer) {
                found(file, Some(block), error);
            }
            Ok(())
        });
        let mut wrong = wrong.into_inner();
        wrong.sort_by(|a, b| (&a.file, a.block).cmp(&(&b.file, b.block)));
        wrong
    }

    /// Checks size and header of a file.
    fn verify_file<'a>(&'a self, entry: &'a FileEntry) -> Result<Stored<'a>> {
        let stored = self.stored(entry, true)?;
        let path = stored.file.path();
        let mut header = vec![0; entry.header_size as usize];
        let got = stored.file.read(&mut header, 0)?;
        let digest = Digest::of(&header[..got]);
        if digest != entry.header {
            let why = format!("its digest is {digest}, expected {}", entry.header);
            return Err(Error::corrupt(path, "header", why));
        }
        let size = self.disk.size(path).map_err(Error::io("read the size of", path))?;
        if size > entry.size {
            return Err(Error::corrupt(path, "size", format!("{size} bytes, expected {}", entry.size)));
        }
        // Where it is too short, the blocks that are missing tell it.
        Ok(stored)
    }
}
