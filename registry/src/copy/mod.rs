//! The one routine by which bytes enter and leave exposed memory.

/// Copies `size` bytes.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `size` bytes; they do not overlap.
#[inline]
pub unsafe fn copy(to: *mut u8, from: *const u8, size: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, size) }
}

/// Copies `size` bytes that are part of a transfer of `total` bytes.
///
/// # Safety
/// As for [`copy`].
#[inline]
pub unsafe fn copy_part(to: *mut u8, from: *const u8, size: usize, total: usize) {
    let _ = total;
    // SAFETY: the caller's promise.
    unsafe { copy(to, from, size) }
}
