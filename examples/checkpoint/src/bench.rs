//! How fast checkpoints become durable and are loaded, beside what the disk can do at all: in turns, in the same directory,
//! with the same bytes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{Advice, OFlags};
use serde_json::Map;
use transom::{Context, MemoryRegion, Slice};

use crate::disk::{ALIGN, Aligned, Disk, RealDisk};
use crate::{BLOCK, Checkpoint, Checkpoints, Dtype, Error, Layout, Options, Part, Plan, Result, Tensor};

/// Ours and the raw figures of one thing, a pair for each turn, in bytes per second.
#[derive(Clone, Debug, Default)]
pub struct Beside {
    /// What checkpoints reach.
    pub ours: Vec<f64>,
    /// What the disk reaches.
    pub raw: Vec<f64>,
}

impl Beside {
    /// The median of ours.
    #[must_use]
    pub fn ours(&self) -> f64 {
        median(&self.ours)
    }

    /// The median of the raw figures.
    #[must_use]
    pub fn raw(&self) -> f64 {
        median(&self.raw)
    }

    /// The median of the ratios, turn by turn: 1 is equal, more is better.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        let ratios: Vec<f64> = self.ours.iter().zip(&self.raw).map(|(ours, raw)| ours / raw).collect();
        median(&ratios)
    }
}

fn median(of: &[f64]) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => sorted[len / 2],
        len => (sorted[len / 2 - 1] + sorted[len / 2]) / 2.0,
    }
}

/// A bench of a disk.
#[derive(Debug)]
pub struct Bench {
    dir: PathBuf,
    layout: Layout,
    plan: Plan,
    memory: MemoryRegion,
    queue_depth: usize,
    turn: u64,
}

impl Bench {
    /// Prepares a state of about so many bytes, in memory, and a directory inside of `dir`, which is removed again at the end.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Window`].
    pub fn new(context: &Context, dir: impl Into<PathBuf>, size: usize, queue_depth: usize) -> Result<Self> {
        let dir = dir.into().join(format!("bench-{}", std::process::id()));
        let layout = layout(size);
        let plan = Plan::new(&layout, &layout.shard(0, 1), BLOCK)?;
        let memory = context.allocate(plan.blocks().count() * BLOCK, 0)?;
        // Nothing that a disk could make smaller.
        let mut word = 0x9e37_79b9_7f4a_7c15_u64;
        let mut bytes = vec![0; BLOCK];
        for block in 0..memory.size() / BLOCK {
            for chunk in bytes.chunks_exact_mut(8) {
                word ^= word << 13;
                word ^= word >> 7;
                word ^= word << 17;
                chunk.copy_from_slice(&word.to_le_bytes());
            }
            memory.write(block * BLOCK, &bytes)?;
        }
        std::fs::create_dir_all(&dir).map_err(Error::io("make", &dir))?;
        Ok(Self { dir, layout, plan, memory, queue_depth, turn: 0 })
    }

    /// The size of the state in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.plan.size()
    }

    fn options(&self) -> Options {
        Options { keep: usize::MAX, queue_depth: self.queue_depth, ..Options::default() }
    }

    /// Durable bytes per second of a save, from its beginning to the end of the commit, beside the disk's limit: as many
    /// bytes to one file with room for them, with direct I/O, as many blocks at once, and a sync.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn durable(&mut self, turns: usize) -> Result<Beside> {
        let mut beside = Beside::default();
        for turn in 0..turns {
            for ours in [turn % 2 == 0, turn % 2 == 1] {
                if ours {
                    let took = self.save()?.0;
                    self.clear()?;
                    beside.ours.push(self.size() as f64 / took.as_secs_f64());
                } else {
                    beside.raw.push(self.size() as f64 / self.raw_write()?.as_secs_f64());
                }
                settle(&self.dir)?;
            }
        }
        Ok(beside)
    }

    /// Bytes per second that the disk takes at most: see [`Bench::durable`].
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn limit(&self, turns: usize) -> Result<Vec<f64>> {
        (0..turns)
            .map(|_| {
                let rate = self.size() as f64 / self.raw_write()?.as_secs_f64();
                settle(&self.dir).map(|()| rate)
            })
            .collect()
    }

    /// Saves once; how long it took until all was durable, and what is there now.
    fn save(&mut self) -> Result<(Duration, Checkpoint)> {
        let to = Checkpoints::create(&self.dir, self.options())?;
        self.turn += 1;
        let begun = Instant::now();
        let save = to.begin(self.turn, "bench", self.plan.clone())?;
        for (slot, block) in self.plan.blocks().enumerate() {
            let from = self.memory.slice(slot * BLOCK..slot * BLOCK + block.size)?;
            save.write(block.file, block.index, from, |_| {});
        }
        to.commit(&self.layout, &Map::new(), vec![save.finish()?])?;
        let took = begun.elapsed();
        Ok((took, to.checkpoint(self.turn)?))
    }

    fn raw_write(&self) -> Result<Duration> {
        let path = self.dir.join("raw");
        let file = RealDisk::default().create(&path, self.size()).map_err(Error::io("create", &path))?;
        let blocks: Vec<Slice> = (0..self.memory.size() / BLOCK)
            .map(|at| self.memory.slice(at * BLOCK..(at + 1) * BLOCK))
            .collect::<std::result::Result<_, _>>()?;
        let begun = Instant::now();
        in_parallel(blocks.len(), self.queue_depth, |at| {
            file.write_slice(&blocks[at], (at * BLOCK) as u64).map_err(Error::io("write", &path)).map(|_| ())
        })?;
        file.sync().map_err(Error::io("sync", &path))?;
        let took = begun.elapsed();
        drop(file);
        std::fs::remove_file(&path).map_err(Error::io("remove", &path))?;
        Ok(took)
    }

    /// Bytes per second of loading a checkpoint, with its digests compared or not, beside reading its files with as many
    /// threads. Cold: the pages of the files were dropped before, each time.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn load(&mut self, turns: usize, cold: bool, verify: bool) -> Result<Beside> {
        let (_, checkpoint) = self.save()?;
        let files: Vec<PathBuf> = checkpoint.files().map(|name| checkpoint.dir().join(name)).collect();
        let parts = self.layout.shard(0, 1);
        let reads = reads(&files)?;
        // Both read into the same memory: where it lies makes more of a difference than what reads.
        let mut memory = Aligned::new(checkpoint.size() as usize + files.len() * BLOCK);
        memory.bytes_mut().fill(1);
        let mut beside = Beside::default();
        // Where it is to be warm, the first turn warms it.
        for turn in 0..turns + 1 {
            for ours in [turn % 2 == 0, turn % 2 == 1] {
                if cold {
                    drop_pages(&files)?;
                }
                let begun = Instant::now();
                if ours {
                    load(&checkpoint, &parts, memory.bytes_mut(), verify)?;
                } else {
                    raw_read(&reads, memory.bytes_mut(), self.queue_depth, cold)?;
                }
                let rate = checkpoint.size() as f64 / begun.elapsed().as_secs_f64();
                if turn > 0 {
                    if ours { &mut beside.ours } else { &mut beside.raw }.push(rate);
                }
            }
        }
        self.clear()?;
        Ok(beside)
    }

    fn clear(&self) -> Result<()> {
        std::fs::remove_dir_all(&self.dir).map_err(Error::io("remove", &self.dir))?;
        std::fs::create_dir(&self.dir).map_err(Error::io("make", &self.dir))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // What stays is told by its name.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn load(from: &Checkpoint, parts: &[Part], mut memory: &mut [u8], verify: bool) -> Result<()> {
    let mut targets = Vec::new();
    for part in parts {
        let size = from.layout().size(part);
        let (target, rest) = memory.split_at_mut(size.next_multiple_of(ALIGN));
        targets.push((part.clone(), (&mut target[..size]).into()));
        memory = rest;
    }
    if verify { from.load(targets) } else { from.load_unverified(targets) }
}

/// A piece of a file.
struct Read {
    path: PathBuf,
    offset: u64,
    size: usize,
}

fn reads(files: &[PathBuf]) -> Result<Vec<Read>> {
    let mut reads = Vec::new();
    for path in files {
        let size = std::fs::metadata(path).map_err(Error::io("open", path))?.len();
        for offset in (0..size).step_by(BLOCK) {
            let size = (size - offset).min(BLOCK as u64) as usize;
            reads.push(Read { path: path.clone(), offset, size });
        }
    }
    Ok(reads)
}

fn raw_read(reads: &[Read], memory: &mut [u8], threads: usize, direct: bool) -> Result<()> {
    let flags = if direct { OFlags::DIRECT } else { OFlags::empty() } | OFlags::RDONLY | OFlags::CLOEXEC;
    let mut files: Vec<(&Path, File)> = Vec::new();
    for read in reads {
        if files.last().is_none_or(|(path, _)| *path != read.path) {
            let file = rustix::fs::open(&read.path, flags, rustix::fs::Mode::empty())
                .map_err(|errno| Error::io("open", &read.path)(errno.into()))?;
            files.push((&read.path, file.into()));
        }
    }
    let mut places = Vec::new();
    let mut memory = memory;
    for read in reads {
        let (place, rest) = memory.split_at_mut(read.size.next_multiple_of(ALIGN));
        places.push(Mutex::new(place));
        memory = rest;
    }
    in_parallel(reads.len(), threads, |at| {
        let read = &reads[at];
        let Some((_, file)) = files.iter().find(|(path, _)| *path == read.path) else { return Ok(()) };
        let mut into = places[at].lock();
        file.read_at(&mut into, read.offset).map_err(Error::io_at("read", &read.path, read.offset))?;
        Ok(())
    })
}

/// Does something for each number below `count`, with so many threads.
fn in_parallel(count: usize, threads: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    let work_through = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return;
            }
            if let Err(error) = work(at) {
                failure.lock().get_or_insert(error);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work_through);
        }
    });
    failure.into_inner().map_or(Ok(()), Err)
}

/// Weights and two moments, mostly in a few large tensors, and some small ones.
fn layout(size: usize) -> Layout {
    let rows = (size / 3 / (1024 * 4)).max(4);
    let tensors = ["weight", "first moment", "second moment"].into_iter().flat_map(|of| {
        let tensor = |name: &str, shape: &[usize]| Tensor {
            name: format!("{name}.{of}"),
            dtype: Dtype::F32,
            shape: shape.to_vec(),
        };
        let (wide, other) = (rows * 3 / 4, rows - rows * 3 / 4);
        [tensor("embedding", &[wide, 1024]), tensor("hidden", &[other, 1024]), tensor("bias", &[1024])]
    });
    Layout { tensors: tensors.collect() }
}

/// Lets the disk finish what others, and removals, have left to it.
fn settle(dir: &Path) -> Result<()> {
    let open = File::open(dir).map_err(Error::io("open", dir))?;
    rustix::fs::syncfs(open).map_err(|errno| Error::io("sync", dir)(errno.into()))
}

fn drop_pages(files: &[PathBuf]) -> Result<()> {
    for path in files {
        let file = File::open(path).map_err(Error::io("open", path))?;
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)
            .map_err(|errno| Error::io("drop the pages of", path)(errno.into()))?;
    }
    Ok(())
}
