//! A model file as a state.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::disk::{Disk, Named};
use crate::header::{self, Header};
use crate::load::{self, Stored, Target};
use crate::plan::BLOCK;
use crate::{Error, Layout, Part, Result};

/// A safetensors file of anybody's, whose tensors are the state.
#[derive(Clone, Debug)]
pub struct Model {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    header: Header,
    size: u64,
}

impl Model {
    /// Opens a file and checks what its header says of it.
    ///
    /// # Errors
    /// [`Error::Model`] says what is wrong with it; [`Error::Io`].
    pub fn open(path: impl Into<PathBuf>, disk: Arc<dyn Disk>) -> Result<Self> {
        let path = path.into();
        let wrong = |why: String| Error::Model { path: path.clone(), why };
        let size = disk.size(&path).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => wrong(error.to_string()),
            _ => Error::io("open", &path)(error),
        })?;
        let file = Named::open(&*disk, path.clone())?;
        let mut first = [0; 8];
        if file.read(&mut first, 0)? < first.len() {
            return Err(wrong(format!("it has {size} bytes, a safetensors file has more than 8")));
        }
        let text = header::text_size(first, size).map_err(wrong)?;
        let mut bytes = vec![0; text as usize];
        if file.read(&mut bytes, 8)? < bytes.len() {
            return Err(wrong("it became shorter".into()));
        }
        let header = Header::parse(&bytes, size).map_err(wrong)?;
        if header.layout.tensors.iter().all(|tensor| tensor.size() == 0) {
            return Err(wrong("it has no tensors".into()));
        }
        Ok(Self { disk, path, header, size })
    }

    /// Its tensors, in the order of their bytes.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.header.layout
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Loads parts: each target is as large as its part.
    ///
    /// # Errors
    /// As for [`Checkpoint::load`](crate::Checkpoint::load), but that nobody has digests of the file.
    pub fn load<'a>(&self, parts: impl IntoIterator<Item = (Part, Target<'a>)>) -> Result<()> {
        let mut at = 0;
        let held = self.layout().tensors.iter().enumerate().map(|(tensor, of)| {
            let start = at;
            at += of.size() as u64;
            (Part { tensor, rows: 0..of.rows() }, start)
        });
        let stored = Stored {
            parts: held.collect(),
            file: Named::open(&*self.disk, self.path.clone())?,
            start: self.header.start,
            size: self.size - self.header.start,
            block_size: BLOCK,
            digests: None,
            uncached: OnceLock::new(),
        };
        load::load(self.layout(), &[stored], parts.into_iter().collect(), 8)
    }
}
