//! Everything that is done to storage goes through [`Disk`] and [`DiskFile`], so that tests can watch it and make it fail.

mod aligned;
mod real;

use std::any::Any;
use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use transom::Slice;

pub(crate) use aligned::Aligned;
pub use real::RealDisk;

use crate::{Error, Result};

/// Direct I/O wants addresses, sizes and offsets that are multiples of this, on every disk that is in use.
pub const ALIGN: usize = 4096;

/// A file system, as far as checkpoints need one.
///
/// # What is promised
/// As on Linux: bytes are durable after [`DiskFile::sync`], names after [`Disk::sync_dir`] of their directory, and not
/// before; what was done since may be there, in any order, whole or in part, after a power cut.
pub trait Disk: Debug + Send + Sync {
    /// Makes a directory; one that is there already is an error of kind `AlreadyExists`.
    ///
    /// # Errors
    /// What the operating system says, here and below.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes a file that is not there yet, open for reading and writing, with room for `size` bytes.
    ///
    /// # Errors
    /// As above; kind `AlreadyExists` for a file that is there.
    fn create(&self, path: &Path, size: u64) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a file for reading.
    ///
    /// # Errors
    /// As above.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// The size of a file in bytes.
    ///
    /// # Errors
    /// As above.
    fn size(&self, path: &Path) -> io::Result<u64>;
    /// Gives a file a second name, which is not there yet.
    ///
    /// # Errors
    /// As above.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Renames a file, over what has the new name.
    ///
    /// # Errors
    /// As above.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// As above.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    ///
    /// # Errors
    /// As above.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// As above.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// The names in a directory, in any order.
    ///
    /// # Errors
    /// As above.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Takes a lock on a file, which is made if it is not there, without waiting: `None` while others hold it in a way
    /// that excludes this. It is given back when the guard is dropped, and when the process ends, however it ends.
    ///
    /// # Errors
    /// As above.
    fn try_lock(&self, path: &Path, lock: Lock) -> io::Result<Option<Box<dyn Any + Send + Sync>>>;
}

/// How a file is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Together with others that hold it so.
    Shared,
    /// Alone.
    Exclusive,
}

/// An open file. Counts may be short, as in the operating system's calls: callers go on where one ended.
pub trait DiskFile: Debug + Send + Sync {
    /// Writes from registered memory, at an offset.
    ///
    /// # Errors
    /// What the operating system says, here and below.
    fn write_slice(&self, from: &Slice, offset: u64) -> io::Result<usize>;
    /// Writes bytes, at an offset.
    ///
    /// # Errors
    /// As above.
    fn write(&self, from: &[u8], offset: u64) -> io::Result<usize>;
    /// Reads into registered memory, from an offset.
    ///
    /// # Errors
    /// As above.
    fn read_slice(&self, into: &Slice, offset: u64) -> io::Result<usize>;
    /// Reads bytes, from an offset.
    ///
    /// # Errors
    /// As above.
    fn read(&self, into: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Whether reading these bytes would find them in memory, as far as that is told quickly.
    fn is_cached(&self, offset: u64, size: usize) -> bool {
        let _ = (offset, size);
        true
    }
    /// As [`DiskFile::read`], for bytes that are not in memory and will not be read again soon. Address, size and offset are
    /// multiples of [`ALIGN`].
    ///
    /// # Errors
    /// As above.
    fn read_uncached(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read(into, offset)
    }
    /// The same into registered memory.
    ///
    /// # Errors
    /// As above.
    fn read_slice_uncached(&self, into: &Slice, offset: u64) -> io::Result<usize> {
        self.read_slice(into, offset)
    }
    /// Sets the size, in bytes.
    ///
    /// # Errors
    /// As above.
    fn set_size(&self, size: u64) -> io::Result<()>;
    /// Makes all that was written durable, and the size with it.
    ///
    /// # Errors
    /// As above.
    fn sync(&self) -> io::Result<()>;
    /// What addresses, sizes and offsets of writes have to be multiples of: 1 for a file that takes any.
    fn align(&self) -> usize;
}

/// A file with its name, whose reads and writes are whole, and whose errors say where.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
}

impl Named {
    pub(crate) fn create(disk: &dyn Disk, path: PathBuf, size: u64) -> Result<Self> {
        let file = disk.create(&path, size).map_err(Error::io("create", &path))?;
        Ok(Self { file, path })
    }

    pub(crate) fn open(disk: &dyn Disk, path: PathBuf) -> Result<Self> {
        let file = disk.open(&path).map_err(Error::io("open", &path))?;
        Ok(Self { file, path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn set_size(&self, size: u64) -> Result<()> {
        self.file.set_size(size).map_err(Error::io_at("set the size of", &self.path, size))
    }

    pub(crate) fn sync(&self) -> Result<()> {
        self.file.sync().map_err(Error::io("sync", &self.path))
    }

    /// Writes a slice from `offset` on, and up to the next multiple of the alignment zeros behind it: the caller sets the
    /// size of the file when all is written. Slices at odd addresses are copied first.
    pub(crate) fn write_slice(&self, from: &Slice, offset: u64) -> Result<()> {
        let align = self.file.align();
        let straight = from.as_ptr().addr().is_multiple_of(align);
        let whole = if straight { from.size() - from.size() % align } else { 0 };
        let mut done = 0;
        while done < whole {
            let rest = from.slice(done..whole)?;
            done += self.step("write", offset, done, rest.size(), |at| self.file.write_slice(&rest, at))?;
        }
        let mut scratch =
            Aligned::new(if whole == from.size() { 0 } else { (from.size() - whole).min(BOUNCE) });
        while done < from.size() {
            let piece = (from.size() - done).min(BOUNCE);
            from.read(done, &mut scratch.bytes_mut()[..piece])?;
            self.write_padded(&mut scratch, piece, offset + done as u64)?;
            done += piece;
        }
        Ok(())
    }

    /// Writes the first `size` bytes of an aligned buffer, as [`Named::write_slice`] does.
    pub(crate) fn write_padded(&self, from: &mut Aligned, size: usize, offset: u64) -> Result<()> {
        let whole = size.next_multiple_of(self.file.align());
        from.bytes_mut()[size..whole].fill(0);
        let mut done = 0;
        while done < whole {
            let rest = &from.bytes()[done..whole];
            done += self.step("write", offset, done, rest.len(), |at| self.file.write(rest, at))?;
        }
        Ok(())
    }

    /// Writes bytes from the beginning on, to a file that takes any.
    pub(crate) fn write_all(&self, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            done +=
                self.step("write", 0, done, bytes.len() - done, |at| self.file.write(&bytes[done..], at))?;
        }
        Ok(())
    }

    /// Reads until `into` is full or the file ends, and returns how much came.
    pub(crate) fn read(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            match self.file.read(&mut into[done..], at).map_err(Error::io_at("read", &self.path, at))? {
                0 => break,
                count => done += count,
            }
        }
        Ok(done)
    }

    /// Whether a range is to be read by [`Named::read_uncached`]: it begins at a multiple of [`ALIGN`], and memory does not
    /// have it.
    pub(crate) fn is_uncached(&self, offset: u64, size: usize) -> bool {
        offset.is_multiple_of(ALIGN as u64) && !self.file.is_cached(offset, size)
    }

    /// As [`Named::read`], straight from the disk: to memory that begins at a multiple of [`ALIGN`].
    pub(crate) fn read_uncached(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let whole = into.len() - into.len() % ALIGN;
        let mut done = 0;
        while done < whole {
            let at = offset + done as u64;
            let rest = &mut into[done..whole];
            let count = self.file.read_uncached(rest, at).map_err(Error::io_at("read", &self.path, at))?;
            done += count;
            // The file ends, or what comes next is no longer aligned.
            if count == 0 || !count.is_multiple_of(ALIGN) {
                break;
            }
        }
        Ok(done + self.read(&mut into[done..], offset + done as u64)?)
    }

    /// As [`Named::read`], into registered memory.
    pub(crate) fn read_slice(&self, into: &Slice, offset: u64) -> Result<usize> {
        let mut done = 0;
        while done < into.size() {
            let (rest, at) = (into.slice(done..into.size())?, offset + done as u64);
            match self.file.read_slice(&rest, at).map_err(Error::io_at("read", &self.path, at))? {
                0 => break,
                count => done += count,
            }
        }
        Ok(done)
    }

    /// As [`Named::read_slice`], straight from the disk: to memory that begins at a multiple of [`ALIGN`].
    pub(crate) fn read_slice_uncached(&self, into: &Slice, offset: u64) -> Result<usize> {
        let whole = into.size() - into.size() % ALIGN;
        let mut done = 0;
        while done < whole {
            let (rest, at) = (into.slice(done..whole)?, offset + done as u64);
            let count =
                self.file.read_slice_uncached(&rest, at).map_err(Error::io_at("read", &self.path, at))?;
            done += count;
            // The file ends, or what comes next is no longer aligned.
            if count == 0 || !count.is_multiple_of(ALIGN) {
                break;
            }
        }
        Ok(done + self.read_slice(&into.slice(done..into.size())?, offset + done as u64)?)
    }

    /// One write, and how far it brought us: a short one ends at the last multiple of the alignment, from where the next
    /// one starts.
    fn step(
        &self,
        action: &'static str,
        offset: u64,
        done: usize,
        asked: usize,
        call: impl Fn(u64) -> io::Result<usize>,
    ) -> Result<usize> {
        let at = offset + done as u64;
        let mut count = 0;
        // What does not reach the next multiple is written again, and not for ever.
        for _ in 0..3 {
            count = call(at).map_err(Error::io_at(action, &self.path, at))?.min(asked);
            let kept = count - count % self.file.align();
            if kept > 0 {
                return Ok(kept);
            }
        }
        let why = format!("took {count} of {asked} bytes");
        Err(Error::io_at(action, &self.path, at)(io::Error::new(io::ErrorKind::WriteZero, why)))
    }
}

/// How much is copied at once, where memory is not aligned.
const BOUNCE: usize = 1 << 20;
