//! What a checkpoint consists of: the file that is written last.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::digest::Digest;
use crate::disk::ALIGN;
use crate::{Error, Layout, Part, Result};

/// The name of the manifest of a complete checkpoint.
pub(crate) const NAME: &str = "manifest.json";

/// The largest manifest that is read.
pub(crate) const LARGEST: u64 = 256 << 20;

const VERSION: u32 = 1;
const BEFORE: &str = "{\"checksum\":\"";
const BETWEEN: &str = "\",\"manifest\":";
const AFTER: &str = "}\n";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) version: u32,
    pub(crate) step: u64,
    pub(crate) save: String,
    pub(crate) block_size: usize,
    pub(crate) user: Map<String, Value>,
    pub(crate) layout: Layout,
    pub(crate) files: Vec<FileEntry>,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    pub(crate) name: String,
    /// All of it, in bytes.
    pub(crate) size: u64,
    pub(crate) header_size: u64,
    /// The digest of the header, then those of the blocks, digested.
    pub(crate) digest: Digest,
    pub(crate) header: Digest,
    pub(crate) blocks: Vec<Digest>,
    /// Whether it is the same file as in the checkpoint before.
    pub(crate) linked: bool,
    /// In the order of their bytes, without gaps.
    pub(crate) parts: Vec<Part>,
}

/// The files that one writer has made for one shard: durable, and not yet a checkpoint. Goes to whoever commits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    pub(crate) step: u64,
    pub(crate) save: String,
    pub(crate) block_size: usize,
    pub(crate) files: Vec<FileEntry>,
}

impl Written {
    /// The step that it belongs to.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The save that it belongs to.
    #[must_use]
    pub fn save(&self) -> &str {
        &self.save
    }

    /// The size of its files in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// How much of that was linked, and not written again, in bytes.
    #[must_use]
    pub fn linked(&self) -> u64 {
        self.files.iter().filter(|file| file.linked).map(|file| file.size).sum()
    }

    /// As text, for another process.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        encode(self)
    }

    /// What another process has sent. Whether it fits the layout is checked when it is committed.
    ///
    /// # Errors
    /// [`Error::Invalid`] for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        decode(bytes).map_err(|why| Error::invalid("message of a writer", why))
    }
}

/// Keeps the text, and its digest in front of it.
fn encode(what: &impl Serialize) -> Vec<u8> {
    // Maps with text keys, numbers and texts: nothing that JSON cannot say.
    let body = serde_json::to_string(what).unwrap_or_default();
    format!("{BEFORE}{}{BETWEEN}{body}{AFTER}", Digest::of(body.as_bytes())).into_bytes()
}

fn decode<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T, String> {
    if bytes.len() as u64 > LARGEST {
        return Err(format!("{} bytes, at most {LARGEST} are read", bytes.len()));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let (checksum, body) = text
        .strip_prefix(BEFORE)
        .and_then(|rest| rest.split_at_checked(32))
        .and_then(|(checksum, rest)| Some((checksum, rest.strip_prefix(BETWEEN)?.strip_suffix(AFTER)?)))
        .ok_or("it is cut off, or not one of ours")?;
    let found = Digest::of(body.as_bytes()).to_string();
    if found != checksum {
        return Err(format!("its checksum is {found}, expected {checksum:?}"));
    }
    serde_json::from_str(body).map_err(|error| error.to_string())
}

impl Manifest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let manifest: Self = decode(bytes)?;
        manifest.check()?;
        Ok(manifest)
    }

    pub(crate) fn size(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// Checks that the files hold each row of each tensor once, and that nothing said of them contradicts itself.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.version != VERSION {
            return Err(format!("it is of version {}, this program reads {VERSION}", self.version));
        }
        if !is_save_id(&self.save) {
            return Err(format!("save {:.80?}", self.save));
        }
        if self.block_size == 0 || !self.block_size.is_multiple_of(ALIGN) {
            return Err(format!("block size {}", self.block_size));
        }
        self.layout.check().map_err(|error| error.to_string())?;
        let mut names = HashSet::new();
        let mut held: Vec<(usize, usize, usize)> = Vec::new();
        for file in &self.files {
            file.check(&self.layout, self.block_size)
                .map_err(|why| format!("file {:.150?}: {why}", file.name))?;
            if !names.insert(&file.name) {
                return Err(format!("file {:?} is there twice", file.name));
            }
            held.extend(file.parts.iter().map(|part| (part.tensor, part.rows.start, part.rows.end)));
        }
        held.sort_unstable();
        let mut held = held.into_iter().peekable();
        for (tensor, of) in self.layout.tensors.iter().enumerate() {
            let mut rows = 0;
            while let Some((_, start, end)) = held.next_if(|part| part.0 == tensor) {
                if start != rows {
                    let what = if start < rows { "twice" } else { "in no file" };
                    return Err(format!(
                        "rows {}..{} of {} are {what}",
                        start.min(rows),
                        start.max(rows),
                        of.name
                    ));
                }
                rows = end;
            }
            if rows != of.rows() {
                return Err(format!("rows {rows}..{} of {} are in no file", of.rows(), of.name));
            }
        }
        Ok(())
    }

    pub(crate) fn new(layout: &Layout, user: &Map<String, Value>, written: Vec<Written>) -> Result<Self> {
        let wrong = |why: String| Error::invalid("commit", why);
        let first = written.first().ok_or_else(|| wrong("nothing was written".into()))?;
        let mut manifest = Self {
            version: VERSION,
            step: first.step,
            save: first.save.clone(),
            block_size: first.block_size,
            user: user.clone(),
            layout: layout.clone(),
            files: Vec::new(),
        };
        for mut one in written {
            if (one.step, &one.save, one.block_size) != (manifest.step, &manifest.save, manifest.block_size) {
                return Err(wrong(format!(
                    "step {}, save {}, blocks of {} bytes do not go with step {}, save {}, blocks of {}",
                    one.step, one.save, one.block_size, manifest.step, manifest.save, manifest.block_size
                )));
            }
            manifest.files.append(&mut one.files);
        }
        manifest.check().map_err(wrong)?;
        Ok(manifest)
    }
}

impl FileEntry {
    fn check(&self, layout: &Layout, block_size: usize) -> Result<(), String> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if !self.name.bytes().all(plain)
            || !self.name.ends_with(".safetensors")
            || self.name.starts_with('.')
            || self.name.len() > 250
        {
            return Err("not a name that is used here".into());
        }
        let mut data = 0_u64;
        for part in &self.parts {
            let rows = layout.tensors.get(part.tensor).ok_or("it holds a tensor that is not there")?.rows();
            if part.rows.start > part.rows.end || part.rows.end > rows {
                return Err(format!("it holds rows {:?} of {rows}", part.rows));
            }
            data = data.checked_add(layout.size(part) as u64).ok_or("its size is too large")?;
        }
        if self.header_size == 0
            || !self.header_size.is_multiple_of(ALIGN as u64)
            || self.header_size.checked_add(data) != Some(self.size)
        {
            return Err(format!(
                "{} bytes with a header of {} do not hold {data} bytes of data",
                self.size, self.header_size
            ));
        }
        if self.blocks.len() as u64 != data.div_ceil(block_size as u64) {
            return Err(format!("{} blocks for {data} bytes", self.blocks.len()));
        }
        if self.digest != Digest::of_file(self.header, &self.blocks) {
            return Err(format!("its digest {} is not that of its blocks", self.digest));
        }
        Ok(())
    }
}

/// Whether a text can be the name of a save: 1 to 64 letters, digits, `.`, `_` and `-`.
pub(crate) fn is_save_id(id: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=64).contains(&id.len()) && id.bytes().all(plain)
}

/// Manifests and messages of writers: any bytes are taken or refused.
#[doc(hidden)]
pub fn fuzz_manifest(bytes: &[u8]) {
    // Also past the checksum, which no fuzzer guesses.
    let inner = serde_json::from_slice::<Manifest>(bytes).ok().filter(|manifest| manifest.check().is_ok());
    for manifest in Manifest::decode(bytes).into_iter().chain(inner) {
        let again = Manifest::decode(&manifest.encode());
        assert!(again.is_ok_and(|again| (again.layout, again.files) == (manifest.layout, manifest.files)));
    }
    let _ = Written::from_bytes(bytes);
}
