//! The operating system's files.

use std::any::Any;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Advice, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};
use transom::Slice;

use super::{ALIGN, Disk, DiskFile, Lock};

/// The operating system's file system: files are written with direct I/O where it has that, and buffered elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct RealDisk {
    direct: bool,
}

impl Default for RealDisk {
    fn default() -> Self {
        Self { direct: true }
    }
}

impl RealDisk {
    /// Writes all files through the page cache.
    #[must_use]
    pub fn buffered() -> Self {
        Self { direct: false }
    }
}

#[derive(Debug)]
struct RealFile {
    /// Direct, where that is wanted and possible, if it is written.
    file: File,
    align: usize,
    /// The same file with direct I/O, if it is read and the file system has that.
    uncached: Option<File>,
}

fn open(path: &Path, flags: OFlags) -> Result<File, Errno> {
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
    rustix::io::retry_on_intr(|| rustix::fs::open(path, flags | OFlags::CLOEXEC, mode)).map(File::from)
}

impl Disk for RealDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        std::fs::create_dir(path)
    }

    fn create(&self, path: &Path, size: u64) -> io::Result<Arc<dyn DiskFile>> {
        let file = open(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)?;
        if size > 0 {
            // With the blocks and the size there beforehand, writes at several places go on at the same time, and a full disk
            // is told at once.
            let room = size.next_multiple_of(ALIGN as u64);
            match rustix::io::retry_on_intr(|| rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, room))
            {
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        // Small files and file systems that have no direct I/O are written through the page cache.
        let direct = self.direct
            && size > 0
            && rustix::fs::fcntl_getfl(&file)
                .and_then(|flags| rustix::fs::fcntl_setfl(&file, flags | OFlags::DIRECT))
                .is_ok();
        Ok(Arc::new(RealFile { file, align: if direct { ALIGN } else { 1 }, uncached: None }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = open(path, OFlags::RDONLY)?;
        // Looking for a page must not read others; reads are large anyway.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
        let uncached = if self.direct { open(path, OFlags::RDONLY | OFlags::DIRECT).ok() } else { None };
        Ok(Arc::new(RealFile { file, align: 1, uncached }))
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        let metadata = std::fs::metadata(path)?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file"));
        }
        Ok(metadata.len())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::hard_link(from, to)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        // Names that are no text are not ours.
        std::fs::read_dir(path)?
            .map(|entry| Ok(entry?.file_name().into_string().ok()))
            .filter_map(Result::transpose)
            .collect()
    }

    fn try_lock(&self, path: &Path, lock: Lock) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        let file = open(path, OFlags::RDWR | OFlags::CREATE)?;
        let operation = match lock {
            Lock::Shared => FlockOperation::NonBlockingLockShared,
            Lock::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        match rustix::io::retry_on_intr(|| rustix::fs::flock(&file, operation)) {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl DiskFile for RealFile {
    fn write_slice(&self, from: &Slice, offset: u64) -> io::Result<usize> {
        from.write_at(&self.file, offset)
    }

    fn write(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        retry(|| self.file.write_at(from, offset))
    }

    fn read_slice(&self, into: &Slice, offset: u64) -> io::Result<usize> {
        into.read_at(&self.file, offset)
    }

    fn read(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        retry(|| self.file.read_at(into, offset))
    }

    fn is_cached(&self, offset: u64, size: usize) -> bool {
        // The first byte and the last stand for all.
        let cached = |offset| {
            let mut byte = [0];
            let into = &mut [IoSliceMut::new(&mut byte)];
            rustix::io::preadv2(&self.file, into, offset, ReadWriteFlags::NOWAIT).is_ok_and(|count| count > 0)
        };
        self.uncached.is_none() || (cached(offset) && cached(offset + size.saturating_sub(1) as u64))
    }

    fn read_uncached(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let Some(file) = &self.uncached else { return self.read(into, offset) };
        match retry(|| file.read_at(into, offset)) {
            // Not every file system wants what this one was told.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => self.read(into, offset),
            other => other,
        }
    }

    fn read_slice_uncached(&self, into: &Slice, offset: u64) -> io::Result<usize> {
        let Some(file) = &self.uncached else { return self.read_slice(into, offset) };
        match into.read_at(file, offset) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => self.read_slice(into, offset),
            other => other,
        }
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        retry(|| self.file.set_len(size))
    }

    fn sync(&self) -> io::Result<()> {
        retry(|| self.file.sync_all())
    }

    fn align(&self) -> usize {
        self.align
    }
}

fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}
