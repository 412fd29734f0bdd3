//! The one routine by which bytes enter and leave exposed memory.
//!
//! A peer may write the same bytes at the same time, so a copy must not be an access that the compiler is free to
//! reason about: on x86-64 every load and store is an instruction of its own in inline assembly, under Miri and loom a
//! relaxed atomic. A race then gives stale or mixed bytes and nothing worse. One aligned element of 1, 2, 4 or 8 bytes
//! is moved by one load and one store, so it is never torn.
//!
//! Ranges of size: up to 256 bytes a few overlapping moves, above that aligned vector stores, and from [`STREAM`] bytes a
//! transfer non-temporal ones, which do not read what they overwrite. Between what the first cache holds and those, some
//! x86-64 processors have `rep movsb` instead, where both sides lie alike in their lines. No alignment is slow.
//! On aarch64 this is the `memcpy` of the C library.

#[cfg(any(miri, transom_loom, test))]
mod portable;

#[cfg(all(target_arch = "x86_64", not(any(miri, transom_loom))))]
mod x86;
#[cfg(all(target_arch = "x86_64", not(any(miri, transom_loom))))]
use x86 as form;

#[cfg(all(target_arch = "aarch64", not(any(miri, transom_loom))))]
mod aarch64;
#[cfg(all(target_arch = "aarch64", not(any(miri, transom_loom))))]
use aarch64 as form;

#[cfg(any(miri, transom_loom))]
use portable as form;

#[cfg(test)]
mod tests;

/// Bytes of a transfer from which its copies bypass the caches.
pub const STREAM: usize = 4 << 20;

/// Copies `size` bytes.
///
/// # Safety
/// - `from` is valid for reads and `to` for writes of `size` bytes, at any alignment;
/// - they do not overlap;
/// - others may access the bytes at the same time only through this routine, atomics, or another process.
#[inline]
pub unsafe fn copy(to: *mut u8, from: *const u8, size: usize) {
    // SAFETY: the caller's promise.
    unsafe { copy_part(to, from, size, size) }
}

/// Copies `size` bytes that are part of a transfer of `total` bytes: the total decides whether the copy bypasses the
/// caches. With a `total` of `usize::MAX` it does whenever `size` is worth a fence (16 KiB).
///
/// Streamed bytes are visible to others, in program order with later stores, when the call returns.
///
/// # Safety
/// As for [`copy`].
#[inline]
pub unsafe fn copy_part(to: *mut u8, from: *const u8, size: usize, total: usize) {
    // SAFETY: the caller's promise; the first branch has a size of 8.
    unsafe {
        if size == 8 {
            form::move8(to, from);
        } else {
            form::copy(to, from, size, total >= STREAM);
        }
    }
}
