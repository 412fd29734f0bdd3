//! Parts of a state, out of files that hold other parts of it.

use std::fmt;
use std::ops::Range;
use std::sync::OnceLock;
use std::thread;

use parking_lot::Mutex;
use transom::Slice;

use crate::digest::{Digest, Hasher};
use crate::disk::{ALIGN, Aligned, Named};
use crate::{Error, Layout, Part, Result};

/// Where the bytes of a part go: row after row.
#[derive(Debug)]
pub enum Target<'a> {
    /// To registered memory.
    Slice(Slice),
    /// To any memory.
    Bytes(&'a mut [u8]),
}

impl From<Slice> for Target<'_> {
    fn from(slice: Slice) -> Self {
        Self::Slice(slice)
    }
}

impl<'a> From<&'a mut [u8]> for Target<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> Target<'a> {
    fn size(&self) -> usize {
        match self {
            Self::Slice(slice) => slice.size(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }

    /// The first `at` bytes, and the others.
    fn split(self, at: usize) -> Result<(Self, Self)> {
        Ok(match self {
            Self::Slice(slice) => (slice.slice(0..at)?.into(), slice.slice(at..slice.size())?.into()),
            Self::Bytes(bytes) => {
                let (first, rest) = bytes.split_at_mut(at);
                (first.into(), rest.into())
            }
        })
    }

    fn write(&mut self, at: usize, from: &[u8]) -> Result<()> {
        match self {
            Self::Slice(slice) => slice.write(at, from)?,
            Self::Bytes(bytes) => bytes[at..at + from.len()].copy_from_slice(from),
        }
        Ok(())
    }

    fn is_aligned(&self) -> bool {
        let address = match self {
            Self::Slice(slice) => slice.as_ptr().addr(),
            Self::Bytes(bytes) => bytes.as_ptr().addr(),
        };
        address.is_multiple_of(ALIGN)
    }

    /// Reads all of it straight from the disk, and digests it. It begins at a multiple of [`ALIGN`].
    fn fill_uncached(&mut self, from: &Named, offset: u64, digest: &mut Option<Hasher>) -> Result<usize> {
        match self {
            Self::Slice(slice) => {
                let got = from.read_slice_uncached(slice, offset)?;
                if let Some(digest) = digest {
                    digest.update_slice(&slice.slice(0..got)?)?;
                }
                Ok(got)
            }
            Self::Bytes(bytes) => {
                let got = from.read_uncached(bytes, offset)?;
                if let Some(digest) = digest {
                    digest.update(&bytes[..got]);
                }
                Ok(got)
            }
        }
    }

    /// Reads a range of it from a file, and digests it.
    fn fill(
        &mut self,
        range: Range<usize>,
        from: &Named,
        offset: u64,
        digest: &mut Option<Hasher>,
    ) -> Result<usize> {
        match self {
            Self::Slice(slice) => {
                let slice = slice.slice(range)?;
                let got = from.read_slice(&slice, offset)?;
                if let Some(digest) = digest {
                    digest.update_slice(&slice.slice(0..got)?)?;
                }
                Ok(got)
            }
            Self::Bytes(bytes) => {
                let bytes = &mut bytes[range];
                let got = from.read(bytes, offset)?;
                if let Some(digest) = digest {
                    digest.update(&bytes[..got]);
                }
                Ok(got)
            }
        }
    }
}

/// A file that holds parts of a state.
pub(crate) struct Stored<'a> {
    pub(crate) file: Named,
    /// Where its data begin.
    pub(crate) start: u64,
    pub(crate) size: u64,
    /// What it holds, and where behind `start`.
    pub(crate) parts: Vec<(Part, u64)>,
    pub(crate) block_size: usize,
    /// Of its blocks, where they are to be compared.
    pub(crate) digests: Option<&'a [Digest]>,
    /// Whether memory has none of it, as far as the first look at it tells.
    pub(crate) uncached: OnceLock<bool>,
}

/// What is done at once: a block of a file, and where its bytes go.
struct Task<'a> {
    file: usize,
    block: usize,
    /// Which bytes of the block go where, in their order.
    pieces: Vec<(Range<usize>, Target<'a>)>,
}

/// How much is read and digested at once: what stays in a nearby cache.
const CHUNK: usize = 256 << 10;

/// How much is read at once past the page cache: enough for the disk, and still in a cache when it is digested.
const UNCACHED: usize = 1 << 20;

/// Fills parts of a state from these files, with so many threads.
pub(crate) fn load<'a>(
    layout: &Layout,
    files: &[Stored<'_>],
    parts: Vec<(Part, Target<'a>)>,
    threads: usize,
) -> Result<()> {
    let tasks = tasks(layout, files, parts)?;
    let threads = threads.min(tasks.len());
    each(tasks, threads, |task, buffer| {
        let stored = &files[task.file];
        stored.read_block(task.block, task.pieces, buffer)
    })
}

/// Does something for each of these, with so many threads; after the first failure nothing more is begun.
pub(crate) fn each<T: Send>(
    items: Vec<T>,
    threads: usize,
    work: impl Fn(T, &mut Aligned) -> Result<()> + Sync,
) -> Result<()> {
    let items = Mutex::new(items.into_iter());
    let failure = Mutex::new(None);
    let work_through = || {
        let mut buffer = Aligned::new(CHUNK);
        loop {
            let Some(item) = items.lock().next() else { return };
            if let Err(error) = work(item, &mut buffer) {
                failure.lock().get_or_insert(error);
            }
            if failure.lock().is_some() {
                return;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work_through);
        }
        work_through();
    });
    failure.into_inner().map_or(Ok(()), Err)
}

/// Cuts what is wanted at the borders of files and blocks.
fn tasks<'a>(layout: &Layout, files: &[Stored<'_>], parts: Vec<(Part, Target<'a>)>) -> Result<Vec<Task<'a>>> {
    let mut pieces: Vec<(usize, Range<u64>, Target<'a>)> = Vec::new();
    let mut held: Vec<(usize, usize, u64, &Part)> = files
        .iter()
        .enumerate()
        .flat_map(|(file, stored)| stored.parts.iter().map(move |(part, at)| (part.tensor, file, *at, part)))
        .collect();
    held.sort_by_key(|&(tensor, .., part)| (tensor, part.rows.start));
    for (part, mut target) in parts {
        let of = layout.tensors.get(part.tensor);
        if of.is_none_or(|of| part.rows.start > part.rows.end || part.rows.end > of.rows()) {
            return Err(Error::invalid("load", format!("{part:?} is not in the layout")));
        }
        let (size, expected) = (target.size(), layout.size(&part));
        if size != expected {
            return Err(Error::invalid("load", format!("{size} bytes for {part:?}, which has {expected}")));
        }
        let row = layout.tensors[part.tensor].row_size();
        let first = held.partition_point(|held| (held.0, held.3.rows.end) <= (part.tensor, part.rows.start));
        let mut next = part.rows.start;
        for &(tensor, file, at, of) in &held[first..] {
            if tensor != part.tensor || next == part.rows.end {
                break;
            }
            let rows = next.max(of.rows.start)..part.rows.end.min(of.rows.end);
            if rows.is_empty() {
                continue;
            }
            let (mine, rest) = target.split(rows.len() * row)?;
            target = rest;
            next = rows.end;
            let start = at + ((rows.start - of.rows.start) * row) as u64;
            pieces.push((file, start..start + mine.size() as u64, mine));
        }
        if target.size() != 0 {
            return Err(Error::invalid(
                "load",
                format!("rows {next}..{} of {part:?} are in no file", part.rows.end),
            ));
        }
    }
    pieces.sort_by_key(|(file, range, _)| (*file, range.start));
    let mut tasks: Vec<Task<'a>> = Vec::new();
    for (file, mut range, mut target) in pieces {
        let size = files[file].block_size as u64;
        while !range.is_empty() {
            let block = range.start / size;
            let end = range.end.min((block + 1) * size);
            let (mine, rest) = target.split((end - range.start) as usize)?;
            let within = (range.start - block * size) as usize..(end - block * size) as usize;
            target = rest;
            range.start = end;
            let block = block as usize;
            match tasks.last_mut() {
                Some(task) if (task.file, task.block) == (file, block) => task.pieces.push((within, mine)),
                _ => tasks.push(Task { file, block, pieces: vec![(within, mine)] }),
            }
        }
    }
    Ok(tasks)
}

impl Stored<'_> {
    fn block(&self, block: usize) -> (u64, usize) {
        let start = block as u64 * self.block_size as u64;
        (self.start + start, self.size.saturating_sub(start).min(self.block_size as u64) as usize)
    }

    fn read_block(
        &self,
        block: usize,
        mut pieces: Vec<(Range<usize>, Target<'_>)>,
        buffer: &mut Aligned,
    ) -> Result<()> {
        let (offset, size) = self.block(block);
        let mut digest = self.digests.map(|_| Hasher::new());
        // Where all of the block is read anyway, and memory does not have it, it comes straight from the disk.
        let all = digest.is_some() || pieces.iter().map(|(within, _)| within.len()).sum::<usize>() == size;
        if all
            && offset.is_multiple_of(ALIGN as u64)
            && *self.uncached.get_or_init(|| self.file.is_uncached(offset, size))
        {
            // Where a piece is alone in the block, and lies well, it is read to its place.
            if let [(within, target)] = &mut pieces[..]
                && *within == (0..size)
                && target.is_aligned()
            {
                let got = target.fill_uncached(&self.file, offset, &mut digest)?;
                self.whole(block, got, size)?;
                return self.compare(block, digest);
            }
            for at in (0..size).step_by(UNCACHED) {
                let chunk = at..size.min(at + UNCACHED);
                buffer.grow(chunk.len());
                let into = &mut buffer.bytes_mut()[..chunk.len()];
                let got = self.file.read_uncached(into, offset + at as u64)?;
                self.whole(block, got, chunk.len())?;
                scatter(&mut pieces, chunk.clone(), &buffer.bytes()[..chunk.len()], &mut digest)?;
            }
            return self.compare(block, digest);
        }
        // Where a piece is alone in what is read, its bytes go there without a stop.
        let alone = pieces.len() == 1 && pieces[0].0 == (0..size);
        if digest.is_none() || alone {
            for (within, target) in &mut pieces {
                let mut done = 0;
                while done < within.len() {
                    let end = within.len().min(done + CHUNK);
                    let at = offset + (within.start + done) as u64;
                    let got = target.fill(done..end, &self.file, at, &mut digest)?;
                    self.whole(block, got, end - done)?;
                    done = end;
                }
            }
            return self.compare(block, digest);
        }
        for at in (0..size).step_by(CHUNK) {
            let chunk = at..size.min(at + CHUNK);
            let bytes = &mut buffer.bytes_mut()[..chunk.len()];
            let got = self.file.read(bytes, offset + at as u64)?;
            self.whole(block, got, bytes.len())?;
            scatter(&mut pieces, chunk, bytes, &mut digest)?;
        }
        self.compare(block, digest)
    }

    /// Reads a block and compares its digest.
    pub(crate) fn verify_block(&self, block: usize, buffer: &mut Aligned) -> Result<()> {
        self.read_block(block, Vec::new(), buffer)
    }

    fn whole(&self, block: usize, got: usize, expected: usize) -> Result<()> {
        if got == expected {
            return Ok(());
        }
        let why = format!("the file ends {} bytes before the end of what is read", expected - got);
        Err(Error::corrupt(self.file.path(), format!("block {block}"), why))
    }

    fn compare(&self, block: usize, digest: Option<Hasher>) -> Result<()> {
        let (Some(digest), Some(digests)) = (digest, self.digests) else { return Ok(()) };
        let found = digest.digest();
        match digests.get(block) {
            Some(expected) if *expected == found => Ok(()),
            expected => {
                let expected = expected.map_or("none".into(), Digest::to_string);
                let why = format!("its digest is {found}, expected {expected}");
                Err(Error::corrupt(self.file.path(), format!("block {block}"), why))
            }
        }
    }
}

/// Digests a range of a block, and puts it where it belongs.
fn scatter(
    pieces: &mut [(Range<usize>, Target<'_>)],
    chunk: Range<usize>,
    bytes: &[u8],
    digest: &mut Option<Hasher>,
) -> Result<()> {
    if let Some(digest) = digest {
        digest.update(bytes);
    }
    for (within, target) in pieces {
        let common = within.start.max(chunk.start)..within.end.min(chunk.end);
        if !common.is_empty() {
            let from = &bytes[common.start - chunk.start..common.end - chunk.start];
            target.write(common.start - within.start, from)?;
        }
    }
    Ok(())
}

impl fmt::Debug for Stored<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stored").field("file", &self.file).finish_non_exhaustive()
    }
}
