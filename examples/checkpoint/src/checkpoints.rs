//! A directory of checkpoints.

use std::any::Any;
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Map, Value};

use crate::checkpoint::{Checkpoint, Wrong};
use crate::digest::Digest;
use crate::disk::{Disk, Lock, Named, RealDisk};
use crate::manifest::{self, Manifest, Written, is_save_id};
use crate::plan::{Plan, PlannedFile};
use crate::pool::Pool;
use crate::save::{Base, Save};
use crate::{Error, Layout, Result};

/// How a directory of checkpoints is used.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many complete checkpoints are kept: older ones are removed after a commit. At least 1.
    pub keep: usize,
    /// Whether files that equal those of the checkpoint before are linked, and not written again.
    pub incremental: bool,
    /// How many blocks are written or read at the same time, by a thread each.
    pub queue_depth: usize,
    /// The storage.
    pub disk: Arc<dyn Disk>,
}

impl Default for Options {
    fn default() -> Self {
        Self { keep: 3, incremental: false, queue_depth: 8, disk: Arc::new(RealDisk::default()) }
    }
}

/// A directory of checkpoints: `step-000000000010/`, `step-000000000020/` and so on.
///
/// Any number of processes may use the same one. A step is filled by the saves of one id, and becomes a checkpoint when one
/// of them commits it.
#[derive(Debug)]
pub struct Checkpoints {
    dir: PathBuf,
    options: Options,
    pool: Arc<Pool>,
    /// What tells others that a step is being filled.
    alive: Mutex<BTreeMap<u64, Arc<dyn Any + Send + Sync>>>,
    /// Files that turned out to be damaged: no later save builds on them.
    damaged: Arc<Mutex<HashSet<PathBuf>>>,
}

/// One step of a directory of checkpoints.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The step.
    pub step: u64,
    /// The size of its files in bytes.
    pub size: u64,
    /// How much of that is shared with the checkpoint before, in bytes.
    pub linked: u64,
    /// Why it cannot be loaded; `None` for a complete checkpoint.
    pub incomplete: Option<String>,
}

/// What a commit did.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The step.
    pub step: u64,
    /// The size of its files in bytes.
    pub size: u64,
    /// How much of that was linked, and not written again, in bytes.
    pub linked: u64,
    /// Older steps that were removed.
    pub removed: Vec<u64>,
    /// What was in the way of removing others. The checkpoint is complete all the same.
    pub left: Option<Error>,
}

impl Checkpoints {
    /// Opens a directory to read from it: nothing in it is changed before the first [`Checkpoints::begin`].
    ///
    /// # Errors
    /// [`Error::Io`] where it cannot be listed; [`Error::Invalid`] for options that make no sense.
    pub fn open(dir: impl Into<PathBuf>, options: Options) -> Result<Self> {
        let dir = dir.into();
        if options.keep == 0 || options.queue_depth == 0 {
            let why = format!("keep {}, queue depth {}: at least 1", options.keep, options.queue_depth);
            return Err(Error::invalid("options", why));
        }
        options.disk.list(&dir).map_err(Error::io("list", &dir))?;
        let pool = Pool::new(options.queue_depth).map_err(Error::io("start threads for", &dir))?;
        let (alive, damaged) = Default::default();
        Ok(Self { dir, options, pool: Arc::new(pool), alive, damaged })
    }

    /// Opens a directory to write to it, and makes it first where it is not there.
    ///
    /// # Errors
    /// As for [`Checkpoints::open`]; [`Error::Io`] where it cannot be made, or nothing can be written in it.
    pub fn create(dir: impl Into<PathBuf>, options: Options) -> Result<Self> {
        let dir = dir.into();
        make_dir(&*options.disk, &dir)?;
        let this = Self::open(dir, options)?;
        drop(this.lock()?);
        Ok(this)
    }

    /// Where it is.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Every step that is there, oldest first.
    ///
    /// # Errors
    /// [`Error::Io`] where the directory cannot be listed.
    pub fn list(&self) -> Result<Vec<Listed>> {
        let listed = self.steps()?.into_iter().map(|step| match self.inspect(step) {
            Ok(manifest) => {
                let linked = manifest.files.iter().filter(|file| file.linked).map(|file| file.size).sum();
                Listed { step, size: manifest.size(), linked, incomplete: None }
            }
            Err(why) => Listed { step, size: self.size_of(step), linked: 0, incomplete: Some(why) },
        });
        Ok(listed.collect())
    }

    /// The newest complete checkpoint, opened.
    ///
    /// # Errors
    /// [`Error::Io`] where the directory cannot be listed.
    pub fn latest(&self) -> Result<Option<Checkpoint>> {
        Ok(self.newest()?.map(|manifest| self.opened(manifest)))
    }

    /// The complete checkpoint of a step, opened.
    ///
    /// # Errors
    /// [`Error::Incomplete`].
    pub fn checkpoint(&self, step: u64) -> Result<Checkpoint> {
        let manifest = self.inspect(step).map_err(|why| Error::Incomplete { step, why })?;
        Ok(self.opened(manifest))
    }

    /// Reads everything that a step's manifest names, and compares each block with its digest. What is wrong, in the order of
    /// files and blocks; nothing when all is as it was written.
    ///
    /// # Errors
    /// [`Error::Incomplete`] when there is no manifest that could be compared with, or it is another save's.
    pub fn verify(&self, step: u64) -> Result<Vec<Wrong>> {
        let manifest = self.manifest(step).map_err(|why| Error::Incomplete { step, why })?;
        Ok(self.opened(manifest).verify())
    }

    fn opened(&self, manifest: Manifest) -> Checkpoint {
        let dir = self.step_dir(manifest.step);
        Checkpoint::new(self.options.disk.clone(), dir, manifest, self.options.queue_depth)
    }

    /// Begins to write a shard of a step. All saves of one attempt at a step, in whatever process, have the same id, and no
    /// other attempt ever has it.
    ///
    /// What an attempt with another id has left in that step, or in any other, is removed, unless somebody is still filling
    /// it.
    ///
    /// # Errors
    /// [`Error::Exists`] when the step has a complete checkpoint; [`Error::Io`]; [`Error::Invalid`] for an id that is no 1
    /// to 64 letters, digits, `.`, `_` and `-`, and where somebody fills the step under another id.
    pub fn begin(&self, step: u64, id: &str, plan: Plan) -> Result<Save> {
        if !is_save_id(id) {
            return Err(Error::invalid(
                "id of a save",
                format!("{id:.80?}, expected 1 to 64 plain characters"),
            ));
        }
        let alive = {
            let _lock = self.lock()?;
            for other in self.steps()?.into_iter().filter(|&other| other != step) {
                // What cannot be removed now is in nobody's way.
                let _ = self.remove_leftover(other);
            }
            self.join(step, id)?
        };
        let older = if self.options.incremental { self.newest()? } else { None };
        let base = |file: &PlannedFile| self.base(older.as_ref()?, file, plan.block_size());
        let bases: Vec<_> = plan.files.iter().map(base).collect();
        Ok(Save::new(
            self.options.disk.clone(),
            self.pool.clone(),
            self.step_dir(step),
            (step, id.to_string()),
            plan,
            bases,
            alive,
        ))
    }

    /// Makes a checkpoint of what was written for a step: the manifest is written last, and everything is durable when this
    /// returns. Then older checkpoints are removed, beyond those that are kept.
    ///
    /// # Errors
    /// [`Error::Invalid`] when what was written does not go together, or does not hold each row of each tensor once;
    /// [`Error::Exists`]; [`Error::Io`]. After an error the step is not complete, and older checkpoints are as they were.
    pub fn commit(
        &self,
        layout: &Layout,
        user: &Map<String, Value>,
        written: Vec<Written>,
    ) -> Result<Committed> {
        let manifest = Manifest::new(layout, user, written)?;
        let (step, disk, dir) = (manifest.step, &self.options.disk, self.step_dir(manifest.step));
        let _lock = self.lock()?;
        if self.inspect(step).is_ok() {
            return Err(Error::Exists { step });
        }
        self.check_files(&manifest).map_err(|why| Error::Incomplete { step, why })?;
        let (name, unfinished) = (dir.join(manifest::NAME), dir.join(UNFINISHED));
        let done = (|| {
            remove_if_there(&**disk, &unfinished)?;
            let bytes = manifest.encode();
            let file = Named::create(&**disk, unfinished.clone(), 0)?;
            file.write_all(&bytes)?;
            file.sync()?;
            disk.rename(&unfinished, &name).map_err(Error::io("rename", &unfinished))?;
            // With this the manifest is durable, and so are the names of the files; that of the step was before.
            disk.sync_dir(&dir).map_err(Error::io("sync", &dir))
        })();
        if let Err(error) = done {
            // It may or may not be durable: then it is better not to be there at all.
            let _ = disk.remove(&name);
            let _ = disk.remove(&unfinished);
            return Err(error);
        }
        self.alive.lock().remove(&step);
        let linked = manifest.files.iter().filter(|file| file.linked).map(|file| file.size).sum();
        let mut committed =
            Committed { step, size: manifest.size(), linked, removed: Vec::new(), left: None };
        committed.left = self.retain(&mut committed.removed).err();
        Ok(committed)
    }

    /// Gives up on a step: what its saves have written is removed, unless it is complete, or another process still fills it.
    ///
    /// # Errors
    /// [`Error::Io`] where it cannot be removed.
    pub fn abandon(&self, step: u64) -> Result<()> {
        self.alive.lock().remove(&step);
        let _lock = self.lock()?;
        self.remove_leftover(step).map(|_| ())
    }

    /// Removes complete checkpoints beyond those that are kept, with what is damaged and older.
    fn retain(&self, removed: &mut Vec<u64>) -> Result<()> {
        let mut kept = 0;
        for step in self.steps()?.into_iter().rev() {
            if kept < self.options.keep {
                kept += usize::from(self.inspect(step).is_ok());
            } else if self.has_manifest(step) {
                self.remove_step(step)?;
                removed.push(step);
            }
        }
        Ok(())
    }

    /// Takes part in a step, which is made first where it is not there.
    fn join(&self, step: u64, id: &str) -> Result<Arc<dyn Any + Send + Sync>> {
        let (disk, dir) = (&self.options.disk, self.step_dir(step));
        let marker = format!("{MARKER}{id}");
        match disk.create_dir(&dir) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if self.inspect(step).is_ok() {
                    return Err(Error::Exists { step });
                }
                let names = disk.list(&dir).map_err(Error::io("list", &dir))?;
                if !names.contains(&marker) || self.has_manifest(step) {
                    if self.is_alive(step)? {
                        let why = format!("somebody is filling step {step} under another id than {id}");
                        return Err(Error::invalid("begin", why));
                    }
                    self.remove_step(step)?;
                    disk.create_dir(&dir).map_err(Error::io("make", &dir))?;
                }
            }
            Err(error) => return Err(Error::io("make", &dir)(error)),
        }
        let mut alive = self.alive.lock();
        if let Some(alive) = alive.get(&step) {
            return Ok(alive.clone());
        }
        let marker = dir.join(marker);
        let lock = disk.try_lock(&marker, Lock::Shared).map_err(Error::io("lock", &marker))?;
        // Only who has the directory's lock takes a marker alone, and that is us.
        let lock: Arc<dyn Any + Send + Sync> =
            Arc::from(lock.ok_or_else(|| Error::invalid("begin", format!("step {step} is being removed")))?);
        alive.insert(step, lock.clone());
        Ok(lock)
    }

    /// Removes a step that has no manifest and that nobody fills.
    fn remove_leftover(&self, step: u64) -> Result<bool> {
        if self.has_manifest(step) {
            // Another process has completed it.
            self.alive.lock().remove(&step);
            return Ok(false);
        }
        let leftover = !self.is_alive(step)?;
        if leftover {
            self.remove_step(step)?;
        }
        Ok(leftover)
    }

    /// Whether some process takes part in a step, this one included.
    fn is_alive(&self, step: u64) -> Result<bool> {
        let (disk, dir) = (&self.options.disk, self.step_dir(step));
        let names = disk.list(&dir).map_err(Error::io("list", &dir))?;
        for marker in names.iter().filter(|name| name.starts_with(MARKER)) {
            let marker = dir.join(marker);
            if disk.try_lock(&marker, Lock::Exclusive).map_err(Error::io("lock", &marker))?.is_none() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes a step. Its manifest goes first: without it the rest is nothing, and with it files that are gone are missed.
    fn remove_step(&self, step: u64) -> Result<()> {
        let (disk, dir) = (&self.options.disk, self.step_dir(step));
        let names = disk.list(&dir).map_err(Error::io("list", &dir))?;
        remove_if_there(&**disk, &dir.join(manifest::NAME))?;
        for name in names {
            remove_if_there(&**disk, &dir.join(name))?;
        }
        disk.remove_dir(&dir).map_err(Error::io("remove", &dir))
    }

    /// The file of an older checkpoint that a new one may be a repetition of.
    fn base(&self, older: &Manifest, file: &PlannedFile, block_size: usize) -> Option<Base> {
        let entry = older.files.iter().find(|entry| entry.name == file.name)?;
        let path = self.step_dir(older.step).join(&entry.name);
        let usable = entry.header == Digest::of(&file.header)
            && entry.size == file.header.len() as u64 + file.data_size
            && older.block_size == block_size
            && !self.damaged.lock().contains(&path);
        if !usable {
            return None;
        }
        let file = Named::open(&*self.options.disk, path).ok()?;
        Some(Base { file, entry: entry.clone(), damaged: self.damaged.clone() })
    }

    fn newest(&self) -> Result<Option<Manifest>> {
        Ok(self.steps()?.into_iter().rev().find_map(|step| self.inspect(step).ok()))
    }

    /// The manifest of a complete checkpoint, or why the step is none.
    fn inspect(&self, step: u64) -> Result<Manifest, String> {
        let manifest = self.manifest(step)?;
        self.check_files(&manifest)?;
        Ok(manifest)
    }

    /// The manifest of a step, if it is whole and belongs there.
    fn manifest(&self, step: u64) -> Result<Manifest, String> {
        let (disk, dir) = (&self.options.disk, self.step_dir(step));
        let path = dir.join(manifest::NAME);
        let size = disk.size(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => "it has no manifest: the save has not ended".to_string(),
            _ => format!("its manifest: {error}"),
        })?;
        if size > manifest::LARGEST {
            return Err(format!("its manifest has {size} bytes, at most {} are read", manifest::LARGEST));
        }
        let file = Named::open(&**disk, path).map_err(|error| error.to_string())?;
        let mut bytes = vec![0; size as usize];
        let got = file.read(&mut bytes, 0).map_err(|error| error.to_string())?;
        let manifest = Manifest::decode(&bytes[..got]).map_err(|why| format!("its manifest: {why}"))?;
        if manifest.step != step {
            return Err(format!("its manifest is that of step {}", manifest.step));
        }
        let names = disk.list(&dir).map_err(|error| error.to_string())?;
        let marker = format!("{MARKER}{}", manifest.save);
        if let Some(other) = names.iter().find(|name| name.starts_with(MARKER) && **name != marker) {
            let other = &other[MARKER.len()..];
            return Err(format!(
                "its manifest is that of save {}, its files are of save {other}",
                manifest.save
            ));
        }
        Ok(manifest)
    }

    /// Whether all files are there, as large as they have to be.
    fn check_files(&self, manifest: &Manifest) -> Result<(), String> {
        let dir = self.step_dir(manifest.step);
        for file in &manifest.files {
            match self.options.disk.size(&dir.join(&file.name)) {
                Ok(size) if size == file.size => {}
                Ok(size) => return Err(format!("{} has {size} bytes, expected {}", file.name, file.size)),
                Err(error) => return Err(format!("{}: {error}", file.name)),
            }
        }
        Ok(())
    }

    fn has_manifest(&self, step: u64) -> bool {
        self.options.disk.size(&self.step_dir(step).join(manifest::NAME)).is_ok()
    }

    /// What an incomplete step takes, as far as that can be told.
    fn size_of(&self, step: u64) -> u64 {
        let dir = self.step_dir(step);
        let names = self.options.disk.list(&dir).unwrap_or_default();
        names.iter().filter_map(|name| self.options.disk.size(&dir.join(name)).ok()).sum()
    }

    /// The steps that have a directory, in order.
    fn steps(&self) -> Result<Vec<u64>> {
        let names = self.options.disk.list(&self.dir).map_err(Error::io("list", &self.dir))?;
        let mut steps: Vec<u64> = names
            .iter()
            .filter_map(|name| {
                let step = name.strip_prefix(STEP)?.parse().ok()?;
                (step_name(step) == *name).then_some(step)
            })
            .collect();
        steps.sort_unstable();
        Ok(steps)
    }

    fn step_dir(&self, step: u64) -> PathBuf {
        self.dir.join(step_name(step))
    }

    /// Keeps others from making and removing steps meanwhile.
    fn lock(&self) -> Result<Box<dyn Any + Send + Sync>> {
        let path = self.dir.join(LOCK);
        let begun = Instant::now();
        loop {
            if let Some(lock) =
                self.options.disk.try_lock(&path, Lock::Exclusive).map_err(Error::io("lock", &path))?
            {
                return Ok(lock);
            }
            if begun.elapsed() > LOCK_DEADLINE {
                let why = format!("{}: another process has had it for {LOCK_DEADLINE:?}", path.display());
                return Err(Error::invalid("lock", why));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

const STEP: &str = "step-";
/// The file whose lock says that somebody is filling the step, with the id of the save behind.
const MARKER: &str = "save-";
const UNFINISHED: &str = "manifest.json.tmp";
const LOCK: &str = ".lock";
/// How long another process may take to make or remove steps.
const LOCK_DEADLINE: Duration = Duration::from_secs(30);

fn step_name(step: u64) -> String {
    format!("{STEP}{step:012}")
}

fn make_dir(disk: &dyn Disk, dir: &Path) -> Result<()> {
    match disk.create_dir(dir) {
        Ok(()) => {
            let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new("."));
            disk.sync_dir(parent).map_err(Error::io("sync", parent))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(Error::io("make", dir)(error)),
    }
}

fn remove_if_there(disk: &dyn Disk, path: &Path) -> Result<()> {
    match disk.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", path)(error)),
        _ => Ok(()),
    }
}
