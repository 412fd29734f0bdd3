//! A disk that fails at its n-th call.

use std::any::Any;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use transom::Slice;
use transom_checkpoint::disk::{Disk, DiskFile, Lock};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An input or output error, once.
    Once,
    /// Every call from there on is refused, until the fault is lifted: the disk is full.
    Full,
    /// A short count, and then the disk is full.
    ShortThenFull,
    /// A short count, and nothing else.
    Short,
}

#[derive(Clone, Debug)]
pub(crate) struct FaultyDisk {
    disk: Arc<dyn Disk>,
    plan: Arc<Plan>,
}

#[derive(Debug)]
struct Plan {
    fault: Fault,
    /// The call that fails; 0 for none.
    at: AtomicU64,
    calls: AtomicU64,
}

impl FaultyDisk {
    pub(crate) fn new(disk: Arc<dyn Disk>, fault: Fault, at: u64) -> Self {
        Self { disk, plan: Arc::new(Plan { fault, at: AtomicU64::new(at), calls: AtomicU64::new(0) }) }
    }

    pub(crate) fn lift(&self) {
        self.plan.at.store(0, Ordering::SeqCst);
    }

    pub(crate) fn calls(&self) -> u64 {
        self.plan.calls.load(Ordering::SeqCst)
    }

    fn call(&self) -> io::Result<()> {
        self.plan.call(false).map(|_| ())
    }
}

impl Plan {
    /// Counts a call that changes the disk: an error, or whether it is to be short.
    fn call(&self, counts: bool) -> io::Result<bool> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let at = self.at.load(Ordering::SeqCst);
        let eio = || Err(io::Error::from_raw_os_error(5));
        let full = || Err(io::Error::from_raw_os_error(28));
        match self.fault {
            _ if at == 0 || call < at => Ok(false),
            Fault::Once | Fault::Short if call > at => Ok(false),
            Fault::Once => eio(),
            Fault::Full => full(),
            Fault::ShortThenFull if call > at => full(),
            // What has no count cannot be short.
            Fault::ShortThenFull | Fault::Short => Ok(counts),
        }
    }
}

#[derive(Debug)]
struct FaultyFile(Arc<dyn DiskFile>, Arc<Plan>);

impl Disk for FaultyDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.call()?;
        self.disk.create_dir(path)
    }

    fn create(&self, path: &Path, size: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.call()?;
        Ok(Arc::new(FaultyFile(self.disk.create(path, size)?, self.plan.clone())))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(FaultyFile(self.disk.open(path)?, self.plan.clone())))
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        self.disk.size(path)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call()?;
        self.disk.link(from, to)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call()?;
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        // A full disk can be emptied.
        if self.plan.fault == Fault::Once {
            self.call()?;
        }
        self.disk.remove(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        if self.plan.fault == Fault::Once {
            self.call()?;
        }
        self.disk.remove_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.call()?;
        self.disk.sync_dir(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.disk.list(path)
    }

    fn try_lock(&self, path: &Path, lock: Lock) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        self.call()?;
        self.disk.try_lock(path, lock)
    }
}

impl DiskFile for FaultyFile {
    fn write_slice(&self, from: &Slice, offset: u64) -> io::Result<usize> {
        let short = self.1.call(true)?;
        let size = if short { short_of(from.size()) } else { from.size() };
        // The last page is cut in the middle: what was written of it is written again.
        self.0.write_slice(&from.slice(0..size.next_multiple_of(self.align())).unwrap(), offset)?;
        Ok(size)
    }

    fn write(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        let short = self.1.call(true)?;
        let size = if short { short_of(from.len()) } else { from.len() };
        self.0.write(&from[..size.next_multiple_of(self.align())], offset)?;
        Ok(size)
    }

    fn read_slice(&self, into: &Slice, offset: u64) -> io::Result<usize> {
        self.0.read_slice(into, offset)
    }

    fn read(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        // Reads are always short: callers have to go on.
        let size = into.len().div_ceil(2);
        self.0.read(&mut into[..size], offset)
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.1.call(false)?;
        self.0.set_size(size)
    }

    fn sync(&self) -> io::Result<()> {
        self.1.call(false)?;
        self.0.sync()
    }

    fn align(&self) -> usize {
        self.0.align()
    }
}

/// More than half of it.
fn short_of(size: usize) -> usize {
    size / 2 + 7.min(size / 2)
}
