//! Which files a shard becomes, and which block of which file each of its bytes is in.

use std::collections::HashSet;
use std::ops::Range;

use serde_json::{Value, json};

use crate::{Error, Layout, Part, Result};

/// The usual size of a block: what is staged, digested and written at once.
pub const BLOCK: usize = 4 << 20;

/// The files of one shard, and their blocks: a fixed function of layout, shard and block size, so that who fills the blocks
/// and who writes them agree without a word.
///
/// Each file is a safetensors file. Parts of at least a quarter of a block have one of their own, and smaller ones share one:
/// with the usual [`BLOCK`], that is at 1 MiB. A file's data are blocks of one size; the last one is shorter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub(crate) block_size: usize,
    pub(crate) files: Vec<PlannedFile>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedFile {
    pub(crate) name: String,
    /// The file's first bytes, a multiple of a page: size of the text, text, spaces.
    pub(crate) header: Vec<u8>,
    /// In the order of their bytes.
    pub(crate) parts: Vec<PlannedPart>,
    pub(crate) data_size: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedPart {
    /// Its place in the shard.
    pub(crate) part: usize,
    pub(crate) what: Part,
    /// Where its bytes begin behind the header.
    pub(crate) start: u64,
    pub(crate) size: usize,
}

/// One block of one file.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// The file's number in the plan.
    pub file: usize,
    /// The block's number in the file.
    pub index: usize,
    /// Its size in bytes.
    pub size: usize,
    start: u64,
    parts: &'a [PlannedPart],
}

/// Some bytes of one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The part's place in the shard.
    pub part: usize,
    /// Which of its bytes.
    pub bytes: Range<usize>,
}

impl Block<'_> {
    /// What fills the block, one piece after the other.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> {
        let (start, end) = (self.start, self.start + self.size as u64);
        let first = self.parts.partition_point(|part| part.start + part.size as u64 <= start);
        self.parts[first..].iter().take_while(move |part| part.start < end).filter(|part| part.size > 0).map(
            move |part| Piece {
                part: part.part,
                bytes: start.saturating_sub(part.start) as usize
                    ..(end - part.start).min(part.size as u64) as usize,
            },
        )
    }
}

impl Plan {
    /// The files of a shard.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a layout that [`Layout::check`] refuses, a shard that names what the layout does not have,
    /// or one tensor twice, and a block size that is no multiple of 4096.
    pub fn new(layout: &Layout, shard: &[Part], block_size: usize) -> Result<Self> {
        layout.check()?;
        if block_size == 0 || !block_size.is_multiple_of(crate::disk::ALIGN) {
            let why = format!("{block_size}, expected a multiple of {}", crate::disk::ALIGN);
            return Err(Error::invalid("block size", why));
        }
        check_shard(layout, shard)?;
        let (own, mut shared): (Vec<usize>, Vec<usize>) =
            (0..shard.len()).partition(|&part| layout.size(&shard[part]) >= block_size / 4);
        // Wide elements first: every tensor then begins at a multiple of its element's size.
        shared.sort_by_key(|&part| std::cmp::Reverse(layout.tensors[shard[part].tensor].dtype.bitsize()));
        let mut files: Vec<_> = own
            .into_iter()
            .map(|part| PlannedFile::new(layout, shard, file_name(layout, &shard[part]), &[part]))
            .collect();
        if let Some(first) = shared.iter().min() {
            let name = format!("small-{}.safetensors", place(&shard[*first]));
            files.push(PlannedFile::new(layout, shard, name, &shared));
        }
        Ok(Self { block_size, files })
    }

    /// The size of all blocks but the last of each file, in bytes.
    #[must_use]
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// The names of the files, in order.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &str> {
        self.files.iter().map(|file| file.name.as_str())
    }

    /// All blocks, in the order in which they are best written.
    pub fn blocks(&self) -> impl Iterator<Item = Block<'_>> {
        let size = self.block_size as u64;
        self.files.iter().enumerate().flat_map(move |(file, planned)| {
            (0..planned.data_size.div_ceil(size)).map(move |index| Block {
                file,
                index: index as usize,
                size: (planned.data_size - index * size).min(size) as usize,
                start: index * size,
                parts: &planned.parts,
            })
        })
    }

    /// The size of the shard in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.files.iter().map(|file| file.data_size).sum()
    }
}

fn check_shard(layout: &Layout, shard: &[Part]) -> Result<()> {
    let mut seen = HashSet::new();
    for part in shard {
        let Some(tensor) = layout.tensors.get(part.tensor) else {
            let why = format!("tensor {} of {}", part.tensor, layout.tensors.len());
            return Err(Error::invalid("shard", why));
        };
        if part.rows.start > part.rows.end || part.rows.end > tensor.rows() {
            let why = format!("rows {:?} of {}, which has {}", part.rows, tensor.name, tensor.rows());
            return Err(Error::invalid("shard", why));
        }
        if !seen.insert(part.tensor) {
            return Err(Error::invalid("shard", format!("two parts of {}", tensor.name)));
        }
    }
    Ok(())
}

/// What tells the files of one save apart: parts of a save do not overlap.
fn place(part: &Part) -> String {
    format!("{:05}-{}-{}", part.tensor, part.rows.start, part.rows.end)
}

/// Letters of a tensor's name that a file's name shows: the rest are told apart by the tensor's number.
fn file_name(layout: &Layout, part: &Part) -> String {
    let shown = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '_' };
    let shown: String = layout.tensors[part.tensor].name.chars().take(100).map(shown).collect();
    format!("{}-{shown}.safetensors", place(part))
}

impl PlannedFile {
    fn new(layout: &Layout, shard: &[Part], name: String, parts: &[usize]) -> Self {
        let mut start = 0;
        let parts: Vec<_> = parts
            .iter()
            .map(|&part| {
                let size = layout.size(&shard[part]);
                let planned = PlannedPart { part, what: shard[part].clone(), start, size };
                start += size as u64;
                planned
            })
            .collect();
        let header = header(layout, &parts);
        Self { name, header, parts, data_size: start }
    }
}

/// The header of a safetensors file that has these parts: nothing in it changes from save to save.
fn header(layout: &Layout, parts: &[PlannedPart]) -> Vec<u8> {
    let mut text = serde_json::Map::new();
    let mut rows = serde_json::Map::new();
    for part in parts {
        let tensor = &layout.tensors[part.what.tensor];
        let mut shape = tensor.shape.clone();
        if let Some(first) = shape.first_mut() {
            *first = part.what.rows.len();
        }
        let held = json!({"rows": [part.what.rows.start, part.what.rows.end], "shape": tensor.shape});
        rows.insert(tensor.name.clone(), held);
        let offsets = [part.start, part.start + part.size as u64];
        let entry = json!({"dtype": tensor.dtype, "shape": shape, "data_offsets": offsets});
        text.insert(tensor.name.clone(), entry);
    }
    // Metadata are texts.
    text.insert("__metadata__".into(), json!({"transom": Value::Object(rows).to_string()}));
    let text = Value::Object(text).to_string();
    let whole = (8 + text.len()).next_multiple_of(crate::disk::ALIGN);
    let mut header = Vec::with_capacity(whole);
    header.extend_from_slice(&((whole - 8) as u64).to_le_bytes());
    header.extend_from_slice(text.as_bytes());
    header.resize(whole, b' ');
    header
}
