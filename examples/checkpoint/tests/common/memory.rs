//! A file system in memory that notes everything that is done to it, and what may be left of that after a power cut.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use transom::Slice;
use transom_checkpoint::disk::{Disk, DiskFile, Lock};

/// What was done, in the order in which it was done.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Write {
        file: u64,
        offset: usize,
        bytes: Vec<u8>,
    },
    SetSize {
        file: u64,
        size: usize,
    },
    Sync {
        file: u64,
    },
    /// A change of names: those of a rename happen together or not at all.
    Names {
        dir: PathBuf,
        changes: Vec<(String, Option<Entry>)>,
    },
    SyncDir {
        dir: PathBuf,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    File(u64),
    Dir,
}

#[derive(Clone, Debug, Default)]
struct World {
    files: BTreeMap<u64, Vec<u8>>,
    dirs: BTreeMap<PathBuf, BTreeMap<String, Entry>>,
    next: u64,
    log: Vec<Op>,
    /// Who holds locks: file, whether alone, and a number for the guard.
    locks: BTreeSet<(u64, bool, u64)>,
}

#[derive(Clone, Debug)]
pub(crate) struct MemoryDisk(Arc<Mutex<World>>);

/// Files on it want writes that are multiples of this.
pub(crate) const ALIGN: usize = 4096;

fn gone() -> io::Error {
    io::ErrorKind::NotFound.into()
}

fn split(path: &Path) -> (PathBuf, String) {
    (path.parent().unwrap().into(), path.file_name().unwrap().to_str().unwrap().into())
}

impl World {
    fn entry(&self, path: &Path) -> io::Result<Entry> {
        let (dir, name) = split(path);
        self.dirs.get(&dir).and_then(|dir| dir.get(&name)).cloned().ok_or_else(gone)
    }

    fn file(&self, path: &Path) -> io::Result<u64> {
        match self.entry(path)? {
            Entry::File(file) => Ok(file),
            Entry::Dir => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Write { file, offset, bytes } => {
                let data = self.files.entry(*file).or_default();
                data.resize(data.len().max(offset + bytes.len()), 0);
                data[*offset..offset + bytes.len()].copy_from_slice(bytes);
            }
            Op::SetSize { file, size } => self.files.entry(*file).or_default().resize(*size, 0),
            Op::Names { dir, changes } => {
                for (name, entry) in changes {
                    match entry {
                        Some(entry) => {
                            if *entry == Entry::Dir {
                                self.dirs.entry(dir.join(name)).or_default();
                            }
                            self.dirs.entry(dir.clone()).or_default().insert(name.clone(), entry.clone());
                        }
                        None => {
                            let old = self.dirs.entry(dir.clone()).or_default().remove(name);
                            if old == Some(Entry::Dir) {
                                self.dirs.remove(&dir.join(name));
                            }
                        }
                    }
                }
            }
            Op::Sync { .. } | Op::SyncDir { .. } => {}
        }
    }

    fn run(&mut self, op: Op) {
        self.apply(&op);
        self.log.push(op);
    }

    fn names(&mut self, path: &Path, entry: Option<Entry>) {
        let (dir, name) = split(path);
        self.run(Op::Names { dir, changes: vec![(name, entry)] });
    }
}

impl MemoryDisk {
    /// A file system with one directory.
    pub(crate) fn new(root: &Path) -> Self {
        let world = World { dirs: BTreeMap::from([(root.into(), BTreeMap::new())]), ..World::default() };
        Self(Arc::new(Mutex::new(world)))
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    /// Forgets what was done so far: all of it is durable.
    pub(crate) fn settle(&self) {
        self.world().log.clear();
    }

    pub(crate) fn log(&self) -> Vec<Op> {
        self.world().log.clone()
    }

    /// A copy that nobody has locked, with the same content.
    pub(crate) fn fork(&self) -> Self {
        let world = self.world();
        let locks = BTreeSet::new();
        Self(Arc::new(Mutex::new(World { log: Vec::new(), locks, ..world.clone() })))
    }

    /// What may be there after these operations and a power cut: all that was synced, and of the rest whatever `keep` says,
    /// op by op: not at all, whole, or the first so many bytes.
    pub(crate) fn after_power_cut(&self, log: &[Op], mut keep: impl FnMut(&Op) -> Kept) -> Self {
        let after = self.fork();
        for (at, op) in log.iter().enumerate() {
            let durable = log[at..].iter().any(|later| match (op, later) {
                (Op::Write { file, .. } | Op::SetSize { file, .. }, Op::Sync { file: synced }) => {
                    file == synced
                }
                (Op::Names { dir, .. }, Op::SyncDir { dir: synced }) => dir == synced,
                _ => false,
            });
            let kept = if durable { Kept::Whole } else { keep(op) };
            let mut world = after.world();
            match (kept, op) {
                (Kept::Nothing, _) => {}
                (Kept::First(size), Op::Write { file, offset, bytes }) => {
                    let bytes = bytes[..size.min(bytes.len())].to_vec();
                    world.apply(&Op::Write { file: *file, offset: *offset, bytes });
                }
                _ => world.apply(op),
            }
        }
        let mut world = after.world();
        // Names whose directory was lost are lost with it; a file without its bytes is empty.
        let lost: Vec<PathBuf> = world
            .dirs
            .keys()
            .filter(|dir| dir.parent().is_some_and(|parent| world.dirs.contains_key(parent)))
            .filter(|dir| world.entry(dir).ok() != Some(Entry::Dir))
            .cloned()
            .collect();
        lost.iter().for_each(|dir| drop(world.dirs.remove(dir)));
        let files: Vec<u64> = world
            .dirs
            .values()
            .flat_map(BTreeMap::values)
            .filter_map(|entry| if let Entry::File(file) = entry { Some(*file) } else { None })
            .collect();
        for file in files {
            world.files.entry(file).or_default();
        }
        world.next = self.world().next.max(log.len() as u64) + 1_000_000;
        drop(world);
        after
    }

    /// All files and their bytes.
    pub(crate) fn content(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let world = self.world();
        let mut content = BTreeMap::new();
        for (dir, names) in &world.dirs {
            for (name, entry) in names {
                if let Entry::File(file) = entry {
                    content.insert(dir.join(name), world.files[file].clone());
                }
            }
        }
        content
    }

    /// Changes the bytes of a file, behind everybody's back.
    pub(crate) fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut world = self.world();
        let file = world.file(path).unwrap();
        change(world.files.get_mut(&file).unwrap());
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kept {
    Nothing,
    Whole,
    First(usize),
}

impl Disk for MemoryDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        if world.dirs.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if !world.dirs.contains_key(path.parent().unwrap()) {
            return Err(gone());
        }
        world.names(path, Some(Entry::Dir));
        Ok(())
    }

    fn create(&self, path: &Path, size: u64) -> io::Result<Arc<dyn DiskFile>> {
        let mut world = self.world();
        if world.entry(path).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if !world.dirs.contains_key(path.parent().unwrap()) {
            return Err(gone());
        }
        let file = world.next;
        world.next += 1;
        world.files.insert(file, Vec::new());
        world.names(path, Some(Entry::File(file)));
        let align = if size > 0 { ALIGN } else { 1 };
        Ok(Arc::new(MemoryFile { disk: self.clone(), file, align }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.world().file(path)?;
        Ok(Arc::new(MemoryFile { disk: self.clone(), file, align: 1 }))
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        let world = self.world();
        Ok(world.files[&world.file(path)?].len() as u64)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = self.world();
        let file = world.file(from)?;
        if world.entry(to).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        world.names(to, Some(Entry::File(file)));
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = self.world();
        let file = world.file(from)?;
        let ((dir, old), (to, new)) = (split(from), split(to));
        assert_eq!(dir, to, "only within a directory");
        world.run(Op::Names { dir, changes: vec![(old, None), (new, Some(Entry::File(file)))] });
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.file(path)?;
        world.names(path, None);
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        match world.dirs.get(path) {
            None => Err(gone()),
            Some(names) if !names.is_empty() => Err(io::ErrorKind::DirectoryNotEmpty.into()),
            Some(_) => {
                world.names(path, None);
                Ok(())
            }
        }
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        if !world.dirs.contains_key(path) {
            return Err(gone());
        }
        world.run(Op::SyncDir { dir: path.into() });
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.world().dirs.get(path).map(|names| names.keys().cloned().collect()).ok_or_else(gone)
    }

    fn try_lock(&self, path: &Path, lock: Lock) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        if self.world().entry(path).is_err() {
            self.create(path, 0)?;
        }
        let mut world = self.world();
        let file = world.file(path)?;
        let alone = lock == Lock::Exclusive;
        if world.locks.iter().any(|held| held.0 == file && (alone || held.1)) {
            return Ok(None);
        }
        let held = (file, alone, world.next);
        world.next += 1;
        world.locks.insert(held);
        Ok(Some(Box::new(Guard(self.clone(), held))))
    }
}

struct Guard(MemoryDisk, (u64, bool, u64));

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.world().locks.remove(&self.1);
    }
}

#[derive(Debug)]
struct MemoryFile {
    disk: MemoryDisk,
    file: u64,
    align: usize,
}

impl DiskFile for MemoryFile {
    fn write_slice(&self, from: &Slice, offset: u64) -> io::Result<usize> {
        assert!(from.as_ptr().addr().is_multiple_of(self.align), "an address at {:p}", from.as_ptr());
        let mut bytes = vec![0; from.size()];
        from.read(0, &mut bytes).unwrap();
        self.put(&bytes, offset)
    }

    fn write(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        assert!(from.as_ptr().addr().is_multiple_of(self.align), "an address at {:p}", from.as_ptr());
        self.put(from, offset)
    }

    fn read_slice(&self, into: &Slice, offset: u64) -> io::Result<usize> {
        let mut bytes = vec![0; into.size()];
        let count = self.read(&mut bytes, offset)?;
        into.write(0, &bytes[..count]).unwrap();
        Ok(count)
    }

    fn read(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let world = self.disk.world();
        let data = &world.files[&self.file];
        let data = &data[(offset as usize).min(data.len())..];
        let count = data.len().min(into.len());
        into[..count].copy_from_slice(&data[..count]);
        Ok(count)
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.disk.world().run(Op::SetSize { file: self.file, size: size as usize });
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.world().run(Op::Sync { file: self.file });
        Ok(())
    }

    fn align(&self) -> usize {
        self.align
    }
}

impl MemoryFile {
    fn put(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let whole = bytes.len().is_multiple_of(self.align) && offset.is_multiple_of(self.align as u64);
        assert!(whole, "{} bytes at {offset}", bytes.len());
        let op = Op::Write { file: self.file, offset: offset as usize, bytes: bytes.to_vec() };
        self.disk.world().run(op);
        Ok(bytes.len())
    }
}
