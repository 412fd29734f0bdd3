//! What a save is compared with: a plain copy, and a save that is waited for.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use safetensors::tensor::TensorView;
use transom_checkpoint::{Layout, Part};

use crate::Failed;

/// Copies of a shard into memory that is there already.
pub(crate) struct Copy {
    into: Vec<Vec<u8>>,
}

impl Copy {
    pub(crate) fn new(parts: &[&[u8]]) -> Self {
        Self { into: parts.iter().map(|part| part.to_vec()).collect() }
    }

    pub(crate) fn run(&mut self, parts: &[&[u8]]) -> Duration {
        let since = Instant::now();
        for (into, from) in self.into.iter_mut().zip(parts) {
            into.copy_from_slice(from);
        }
        std::hint::black_box(&mut self.into);
        since.elapsed()
    }
}

/// Writes a shard to a safetensors file, and returns when it is durable.
pub(crate) fn synchronous_save(
    layout: &Layout,
    shard: &[Part],
    parts: &[&[u8]],
    file: &Path,
) -> Result<Duration, Failed> {
    let since = Instant::now();
    let told = |what: &str, e: &dyn std::fmt::Display| Failed(format!("{what} {}: {e}", file.display()));
    let mut views = HashMap::new();
    for (part, bytes) in shard.iter().zip(parts) {
        let tensor = &layout.tensors[part.tensor];
        let mut shape = tensor.shape.clone();
        if let Some(rows) = shape.first_mut() {
            *rows = part.rows.len();
        }
        let view = TensorView::new(tensor.dtype, shape, bytes).map_err(|e| told("save to", &e))?;
        views.insert(tensor.name.as_str(), view);
    }
    safetensors::serialize_to_file(views, None, file).map_err(|e| told("save to", &e))?;
    std::fs::File::open(file).and_then(|f| f.sync_all()).map_err(|e| told("sync", &e))?;
    Ok(since.elapsed())
}
