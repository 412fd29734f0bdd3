//! `lock xadd` on a line that stays in this core's cache.

use std::hint::black_box;
use std::sync::atomic::Ordering;

use transom_registry::Result;

use super::memory::Span;

/// Adds 1 to the word at `offset`, `count` times, and adds the results up.
pub(crate) fn fetch_add(target: Span<'_>, offset: usize, count: u64) -> Result<u64> {
    let word = black_box(target.word(offset)?);
    let mut sum = 0u64;
    for _ in 0..count {
        sum = sum.wrapping_add(word.fetch_add(1, Ordering::SeqCst));
    }
    Ok(black_box(sum))
}
