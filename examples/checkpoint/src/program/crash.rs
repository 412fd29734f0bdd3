//! Kills ranks on purpose, as kill -9 does.

use std::any::Any;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use transom::environment;
use transom_checkpoint::disk::{Disk, DiskFile, Lock, RealDisk};
use transom_checkpoint::{Report, Role, Staging};

use super::options::{Train, Victim};

/// Whom to kill, and when.
#[derive(Debug, Default)]
pub(crate) struct Crash(Option<(u64, Victim)>);

impl Crash {
    pub(crate) fn from_options(options: &Train) -> Self {
        Self(options.crash_at_step.map(|step| (step, options.crash)))
    }

    /// Whether somebody is killed at the save of this step.
    pub(crate) fn strikes(&self, step: u64) -> bool {
        self.0.is_some_and(|(at, _)| at == step)
    }

    /// A trainer has staged half of its shard of a step.
    pub(crate) fn in_save(&self, step: u64, staging: &Staging) {
        let trainer = staging.roles().role(staging.team().rank());
        match self.0 {
            Some((at, Victim::Trainer)) if at == step && trainer == Role::Trainer(0) => kill(),
            Some((at, Victim::Job)) if at == step => kill(),
            _ => {}
        }
    }

    /// A writer has come so far.
    pub(crate) fn at_report(&self, report: &Report, staging: &Staging) {
        let writer = staging.roles().role(staging.team().rank());
        match (report, self.0) {
            _ if self.0.is_none() => point(&format_args!("{report:?}")),
            (Report::Begun { step, .. }, Some((at, Victim::Writer)))
                if at == *step && writer == Role::Writer(0) =>
            {
                kill();
            }
            _ => {}
        }
    }
}

/// As nobody can catch.
pub(crate) fn kill() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
}

/// Says which rank to kill at which of the points that it comes by: `RANK:NUMBER`, from 1.
pub(crate) const KILL: &str = "TRANSOM_CHECKPOINT_KILL";

/// A point where a rank may be killed.
pub(crate) fn point(name: &dyn fmt::Display) {
    static AT: OnceLock<Option<u64>> = OnceLock::new();
    static PASSED: AtomicU64 = AtomicU64::new(0);
    let at = AT.get_or_init(|| {
        let (rank, number) =
            std::env::var(KILL).ok()?.split_once(':').map(|(r, n)| (r.to_string(), n.parse().ok()))?;
        (std::env::var(environment::RANK).ok()? == rank).then_some(number?)
    });
    if at.is_some_and(|at| PASSED.fetch_add(1, Ordering::SeqCst) + 1 == at) {
        super::say(&format!("killed at: {name}"));
        kill();
    }
}

/// The disk, with a point before everything that is done to it.
#[derive(Debug, Default)]
pub(crate) struct Watched(RealDisk);

impl Disk for Watched {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        point(&format_args!("make {}", path.display()));
        self.0.create_dir(path)
    }

    fn create(&self, path: &Path, size: u64) -> io::Result<Arc<dyn DiskFile>> {
        point(&format_args!("create {}", path.display()));
        Ok(Arc::new(WatchedFile(self.0.create(path, size)?, path.display().to_string())))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.0.open(path)
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        self.0.size(path)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        point(&format_args!("link {}", to.display()));
        self.0.link(from, to)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        point(&format_args!("rename {}", from.display()));
        self.0.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        point(&format_args!("remove {}", path.display()));
        self.0.remove(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        point(&format_args!("remove {}", path.display()));
        self.0.remove_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        point(&format_args!("sync {}", path.display()));
        self.0.sync_dir(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.0.list(path)
    }

    fn try_lock(&self, path: &Path, lock: Lock) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        self.0.try_lock(path, lock)
    }
}

#[derive(Debug)]
struct WatchedFile(Arc<dyn DiskFile>, String);

impl DiskFile for WatchedFile {
    fn write_slice(&self, from: &transom::Slice, offset: u64) -> io::Result<usize> {
        point(&format_args!("write {} at {offset}", self.1));
        self.0.write_slice(from, offset)
    }

    fn write(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        point(&format_args!("write {} at {offset}", self.1));
        self.0.write(from, offset)
    }

    fn read_slice(&self, into: &transom::Slice, offset: u64) -> io::Result<usize> {
        self.0.read_slice(into, offset)
    }

    fn read(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read(into, offset)
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        point(&format_args!("set the size of {}", self.1));
        self.0.set_size(size)
    }

    fn sync(&self) -> io::Result<()> {
        point(&format_args!("sync {}", self.1));
        self.0.sync()
    }

    fn align(&self) -> usize {
        self.0.align()
    }
}
