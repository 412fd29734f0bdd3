//! The header of a safetensors file, as somebody else may have written it.

use std::fmt;

use safetensors::Dtype;
use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, Visitor};

use crate::{Layout, Tensor};

/// The largest text of a header that is read: as in the format's own library.
pub(crate) const LARGEST: u64 = 100_000_000;

/// What a header says: the tensors in the order of their bytes, which follow each other without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) layout: Layout,
    /// Where the data begin in the file.
    pub(crate) start: u64,
}

#[derive(Deserialize)]
struct Entry {
    dtype: Dtype,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

/// The tensors as they are written: the same name may be there twice.
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// The size of the text, from the first 8 bytes of a file of `file_size` bytes.
pub(crate) fn text_size(first: [u8; 8], file_size: u64) -> Result<u64, String> {
    let size = u64::from_le_bytes(first);
    if size > LARGEST {
        return Err(format!(
            "its first 8 bytes say that the header has {size} bytes, at most {LARGEST} are read"
        ));
    }
    if size > file_size.saturating_sub(8) {
        return Err(format!("its header has {size} bytes, the file {file_size}"));
    }
    Ok(size)
}

impl Header {
    /// Reads the text of a header, of a file of `file_size` bytes.
    pub(crate) fn parse(text: &[u8], file_size: u64) -> Result<Self, String> {
        let text = std::str::from_utf8(text).map_err(|error| format!("its header is no text: {error}"))?;
        if !text.starts_with('{') {
            return Err("its header does not begin with {".into());
        }
        let Entries(mut entries) =
            serde_json::from_str(text).map_err(|error| format!("its header cannot be read: {error}"))?;
        let start = 8 + text.len() as u64;
        let data = file_size
            .checked_sub(start)
            .ok_or_else(|| format!("its header has {} bytes, the file {file_size}", text.len()))?;
        entries.sort_by_key(|(_, entry)| entry.data_offsets);
        let mut layout = Layout::default();
        let mut end = 0;
        let mut before = String::new();
        for (name, entry) in entries {
            let (from, to) = entry.data_offsets;
            let wrong = |why: String| Err(format!("tensor {name:.100?}, bytes {from} to {to}: {why}"));
            if from > to || to > data {
                return wrong(format!("the file has {data} bytes of data"));
            }
            if from < end {
                return wrong(format!("they overlap those of {before:.100?}"));
            }
            if from > end {
                return wrong(format!("the {} bytes before them belong to no tensor", from - end));
            }
            let tensor = Tensor { name: name.clone(), dtype: entry.dtype, shape: entry.shape };
            let bits = tensor.shape.iter().try_fold(tensor.dtype.bitsize() as u64, |bits, &dimension| {
                bits.checked_mul(dimension as u64)
            });
            if bits != (to - from).checked_mul(8) {
                let (shape, dtype) = (&tensor.shape, tensor.dtype);
                return wrong(format!("shape {shape:?} of {dtype:?} does not have that size"));
            }
            layout.tensors.push(tensor);
            end = to;
            before = name;
        }
        if end != data {
            return Err(format!("the last {} bytes of data belong to no tensor", data - end));
        }
        layout.check().map_err(|error| error.to_string())?;
        Ok(Self { layout, start })
    }
}

/// Headers of safetensors files: any bytes are taken or refused.
#[doc(hidden)]
pub fn fuzz_header(bytes: &[u8]) {
    let Some((first, text)) = bytes.split_first_chunk::<8>() else { return };
    let size = u64::from_le_bytes(*first);
    if let Ok(header) = Header::parse(text, size) {
        let sum = header.layout.tensors.iter().map(|tensor| tensor.size() as u64).sum::<u64>();
        assert_eq!(header.start + sum, size);
    }
}
