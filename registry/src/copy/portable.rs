//! Relaxed atomics only: what the vector code means, in a form that Miri and loom can follow.
//!
//! The source may come from a shared slice, and an atomic load needs a `&AtomicU8`: under Miri that takes tree borrows
//! (`MIRIFLAGS=-Zmiri-tree-borrows`), for which a read through one is a read.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

const WORD: usize = size_of::<u64>();

/// Moves 8 bytes.
///
/// # Safety
/// As for [`super::copy`], for 8 bytes.
#[cfg_attr(not(any(miri, transom_loom)), expect(dead_code, reason = "tests compare the rest only"))]
pub(super) unsafe fn move8(to: *mut u8, from: *const u8) {
    // SAFETY: the caller's promise.
    unsafe { copy(to, from, WORD, false) }
}

/// Copies `size` bytes: words where both sides are aligned at once, else bytes.
///
/// # Safety
/// As for [`super::copy`].
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, size: usize, _stream: bool) {
    let mut at = 0;
    while at < size {
        // SAFETY: `at` is below `size`, and a word is moved only where it fits and both its places are aligned. The
        // source is only loaded from.
        unsafe {
            let (to, from) = (to.add(at), from.add(at));
            if size - at >= WORD && to.addr() % WORD == 0 && from.addr() % WORD == 0 {
                let word = AtomicU64::from_ptr(from.cast_mut().cast()).load(Relaxed);
                AtomicU64::from_ptr(to.cast()).store(word, Relaxed);
                at += WORD;
            } else {
                let byte = AtomicU8::from_ptr(from.cast_mut()).load(Relaxed);
                AtomicU8::from_ptr(to).store(byte, Relaxed);
                at += 1;
            }
        }
    }
}
