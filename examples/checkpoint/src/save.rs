//! One shard on its way to the disk.

use std::any::Any;
use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use transom::Slice;

use crate::digest::Digest;
use crate::disk::{Aligned, Disk, Named};
use crate::manifest::{FileEntry, Written};
use crate::plan::Plan;
use crate::pool::Pool;
use crate::{Error, Part, Result};

/// A shard that is being written. Blocks may be given in any order and from any thread; each is digested and written by one
/// of the writer threads. A file becomes durable as soon as its last block is there.
///
/// Dropped before [`Save::finish`], it waits for the writes that have begun and removes what they wrote.
#[derive(Debug)]
pub struct Save {
    inner: Arc<Inner>,
    pool: Arc<Pool>,
    /// What tells others that this save is alive: given back when no job of it is left.
    _alive: Arc<dyn Any + Send + Sync>,
}

#[derive(Debug)]
struct Inner {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    step: u64,
    save: String,
    plan: Plan,
    files: Vec<Mutex<File>>,
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Progress {
    /// Jobs that were queued and have not ended.
    pending: usize,
    ended: bool,
    failure: Option<Error>,
}

/// A file of the save.
#[derive(Debug)]
struct File {
    /// Digests of the blocks that came.
    blocks: Vec<Option<Digest>>,
    /// How many blocks have not come, or are not on the disk yet.
    missing: usize,
    /// The same file in an older checkpoint. While all blocks that come equal its blocks, nothing is written.
    base: Option<Base>,
    new: Option<Named>,
    /// Whether its name is in the directory.
    made: bool,
    entry: Option<FileEntry>,
}

/// A file of an older checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Base {
    pub(crate) file: Named,
    pub(crate) entry: FileEntry,
    /// Where to note that it is damaged.
    pub(crate) damaged: Arc<Mutex<HashSet<PathBuf>>>,
}

impl Save {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        pool: Arc<Pool>,
        dir: PathBuf,
        (step, save): (u64, String),
        plan: Plan,
        bases: Vec<Option<Base>>,
        alive: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        let files = plan.files.iter().zip(bases).map(|(file, base)| {
            let blocks = file.data_size.div_ceil(plan.block_size as u64) as usize;
            Mutex::new(File {
                blocks: vec![None; blocks],
                missing: blocks,
                base,
                new: None,
                made: false,
                entry: None,
            })
        });
        let files = files.collect();
        let (progress, changed) = Default::default();
        let parent = dir.parent().map(Path::to_path_buf);
        let inner = Inner { disk, dir, step, save, plan, files, progress, changed };
        let save = Self { inner: Arc::new(inner), pool, _alive: alive };
        // The name of the step becomes durable while its bytes are written.
        save.queue(move |inner| {
            let Some(parent) = parent else { return Ok(()) };
            inner.disk.sync_dir(&parent).map_err(Error::io("sync", &parent))
        });
        save
    }

    /// Its step.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.inner.step
    }

    /// Which files and blocks it consists of.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.inner.plan
    }

    /// Queues a block: the slice is as large as the plan says, and nobody writes to it until `done` is called, by one of the
    /// writer threads. Then the slice may be filled with something else; only [`Save::finish`] makes it durable.
    ///
    /// After the first failure all further blocks fail, with that failure.
    pub fn write(
        &self,
        file: usize,
        block: usize,
        from: Slice,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        self.queue(move |inner| {
            let written = inner.running().and_then(|()| inner.write(file, block, &from));
            drop(from);
            // First the failure is known, then its block is told: who hears of it finds the save failed.
            if let Err(error) = &written {
                inner.fail(error);
            }
            done(written.as_ref().map(|_| ()).map_err(Clone::clone));
            let copies = written?;
            for &copy in &copies {
                inner.running()?;
                inner.copy(file, copy)?;
            }
            inner.landed(file, 1 + copies.len())
        });
    }

    /// Waits until every file is durable, and tells what there is now: as long as the disk takes. The names of the files
    /// become durable with the commit.
    ///
    /// # Errors
    /// The first failure; [`Error::Invalid`] where blocks are missing. Then what was written is removed.
    pub fn finish(self) -> Result<Written> {
        let inner = &self.inner;
        for file in 0..inner.files.len() {
            // A file without blocks has nothing that would complete it.
            if inner.files[file].lock().blocks.is_empty() {
                self.queue(move |inner| inner.landed(file, 0));
            }
        }
        inner.wait();
        if let Some(failure) = &inner.progress.lock().failure {
            return Err(failure.clone());
        }
        let mut files = Vec::new();
        for (file, name) in inner.files.iter().zip(inner.plan.files()) {
            let file = file.lock();
            let Some(entry) = file.entry.clone() else {
                let count = file.blocks.iter().filter(|block| block.is_none()).count();
                let why = format!("{count} of {} blocks of {name} were not written", file.blocks.len());
                return Err(Error::invalid("save", why));
            };
            files.push(entry);
        }
        // From here on the files are not this save's to remove.
        inner.files.iter().for_each(|file| file.lock().made = false);
        Ok(Written { step: inner.step, save: inner.save.clone(), block_size: inner.plan.block_size, files })
    }

    fn queue(&self, job: impl FnOnce(&Inner) -> Result<()> + Send + 'static) {
        self.inner.progress.lock().pending += 1;
        let job = Queued(self.inner.clone(), Some(job));
        self.pool.submit(move || job.run());
    }
}

/// A job that counts as ended also when it panics.
struct Queued<F>(Arc<Inner>, Option<F>);

impl<F: FnOnce(&Inner) -> Result<()>> Queued<F> {
    fn run(mut self) {
        if let Some(job) = self.1.take()
            && let Err(error) = job(&self.0)
        {
            self.0.fail(&error);
        }
    }
}

impl<F> Drop for Queued<F> {
    fn drop(&mut self) {
        self.0.progress.lock().pending -= 1;
        self.0.changed.notify_all();
    }
}

impl Drop for Save {
    fn drop(&mut self) {
        self.inner.progress.lock().ended = true;
        self.inner.wait();
        for (file, name) in self.inner.files.iter().zip(self.inner.plan.files()) {
            let mut file = file.lock();
            file.new = None;
            if file.made {
                // Best effort: what stays is no part of a checkpoint, and the next save removes it.
                let _ = self.inner.disk.remove(&self.inner.dir.join(name));
            }
        }
    }
}

impl Inner {
    fn wait(&self) {
        let mut progress = self.progress.lock();
        self.changed.wait_while(&mut progress, |progress| progress.pending > 0);
    }

    fn running(&self) -> Result<()> {
        let progress = self.progress.lock();
        match &progress.failure {
            Some(failure) => Err(failure.clone()),
            None if progress.ended => Err(Error::Ended { step: self.step }),
            None => Ok(()),
        }
    }

    fn fail(&self, error: &Error) {
        self.progress.lock().failure.get_or_insert_with(|| error.clone());
    }

    /// Where a block begins in its file, and its size.
    fn place(&self, file: usize, block: usize) -> (u64, usize) {
        let planned = &self.plan.files[file];
        let start = block as u64 * self.plan.block_size as u64;
        let size = (planned.data_size - start).min(self.plan.block_size as u64);
        (planned.header.len() as u64 + start, size as usize)
    }

    /// Writes a block, if it is not the older file's. The blocks that were left to the older file until now, and are no
    /// longer: to be copied.
    fn write(&self, file: usize, block: usize, from: &Slice) -> Result<Vec<usize>> {
        let wrong = |why: String| Err(Error::invalid("block", why));
        let count = self.files.get(file).map_or(0, |file| file.lock().blocks.len());
        if block >= count {
            return wrong(format!("block {block} of file {file}, which has {count}"));
        }
        let (offset, size) = self.place(file, block);
        if from.size() != size {
            return wrong(format!("{} bytes for block {block} of file {file}, expected {size}", from.size()));
        }
        let digest = Digest::of_slice(from)?;
        let mut state = self.files[file].lock();
        if state.blocks[block].is_some() {
            return wrong(format!("block {block} of file {file} came twice"));
        }
        let same = state.base.as_ref().is_some_and(|base| base.entry.blocks[block] == digest);
        if state.new.is_none() && same {
            state.blocks[block] = Some(digest);
            return Ok(Vec::new());
        }
        let mut copies = Vec::new();
        if state.new.is_none() {
            copies = (0..count).filter(|&block| state.blocks[block].is_some()).collect();
            self.create(file, &mut state)?;
            state.missing += copies.len();
        }
        state.blocks[block] = Some(digest);
        let new = state.new.clone();
        drop(state);
        new.map_or(Ok(()), |new| new.write_slice(from, offset))?;
        Ok(copies)
    }

    /// Makes the file and writes its header.
    fn create(&self, file: usize, state: &mut File) -> Result<()> {
        let planned = &self.plan.files[file];
        let path = self.dir.join(&planned.name);
        let new = Named::create(&*self.disk, path, planned.header.len() as u64 + planned.data_size);
        // A file that there was no room for may be there all the same; one that was there is not this save's.
        state.made |=
            !matches!(&new, Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists);
        let written = new.and_then(|new| {
            let mut header = Aligned::new(planned.header.len());
            header.bytes_mut().copy_from_slice(&planned.header);
            new.write_padded(&mut header, planned.header.len(), 0)?;
            Ok(new)
        });
        // Told while the file is locked: the next one finds a file that is there, and that is not what is to be known.
        state.new = Some(written.inspect_err(|error| self.fail(error))?);
        Ok(())
    }

    /// Copies a block from the older file.
    fn copy(&self, file: usize, block: usize) -> Result<()> {
        let state = self.files[file].lock();
        let (Some(base), Some(new)) = (state.base.clone(), state.new.clone()) else { return Ok(()) };
        drop(state);
        let (offset, size) = self.place(file, block);
        let mut buffer = Aligned::new(size);
        let got = base.file.read(&mut buffer.bytes_mut()[..size], offset)?;
        let found = Digest::of(&buffer.bytes()[..got]);
        let expected = base.entry.blocks[block];
        if got != size || found != expected {
            base.damaged.lock().insert(base.file.path().to_path_buf());
            let why = format!("{got} bytes with digest {found}, expected {size} with {expected}");
            return Err(Error::corrupt(base.file.path(), format!("block {block}"), why));
        }
        new.write_padded(&mut buffer, size, offset)
    }

    /// Notes that blocks are on the disk. With the last one the file is completed.
    fn landed(&self, file: usize, blocks: usize) -> Result<()> {
        let mut state = self.files[file].lock();
        state.missing -= blocks;
        if state.missing > 0 || state.entry.is_some() {
            return Ok(());
        }
        let linked = state.new.is_none() && self.link(file, &mut state)?;
        if !linked {
            if state.new.is_none() {
                self.create(file, &mut state)?;
                let blocks = state.blocks.len();
                drop(state);
                (0..blocks).try_for_each(|block| self.copy(file, block))?;
                state = self.files[file].lock();
            }
            let new = state.new.take();
            // The lock is not held while the disk works.
            drop(state);
            if let Some(new) = new {
                let planned = &self.plan.files[file];
                new.set_size(planned.header.len() as u64 + planned.data_size)?;
                new.sync()?;
            }
            state = self.files[file].lock();
        }
        state.entry = Some(self.entry(file, &state.blocks, linked));
        Ok(())
    }

    /// Links the older file, if all blocks are its blocks. Where it cannot be linked it is copied.
    fn link(&self, file: usize, state: &mut File) -> Result<bool> {
        let Some(base) = &state.base else { return Ok(false) };
        let to = self.dir.join(&self.plan.files[file].name);
        state.made = self.disk.link(base.file.path(), &to).is_ok();
        Ok(state.made)
    }

    fn entry(&self, file: usize, blocks: &[Option<Digest>], linked: bool) -> FileEntry {
        let planned = &self.plan.files[file];
        let blocks: Vec<Digest> = blocks.iter().copied().flatten().collect();
        let header = Digest::of(&planned.header);
        let parts: Vec<Part> = planned.parts.iter().map(|part| part.what.clone()).collect();
        FileEntry {
            name: planned.name.clone(),
            size: planned.header.len() as u64 + planned.data_size,
            header_size: planned.header.len() as u64,
            digest: Digest::of_file(header, &blocks),
            header,
            blocks,
            linked,
            parts,
        }
    }
}
