//! aarch64: the C library's copy, which is vectorised and indifferent to alignment there.

/// Moves 8 bytes.
///
/// # Safety
/// As for [`super::copy`], for 8 bytes.
#[inline(always)]
pub(super) unsafe fn move8(to: *mut u8, from: *const u8) {
    // SAFETY: the caller's promise; any alignment.
    unsafe { to.cast::<u64>().write_unaligned(from.cast::<u64>().read_unaligned()) }
}

/// Copies `size` bytes; there is no store worth using for `_stream`.
///
/// # Safety
/// As for [`super::copy`].
#[inline(never)]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, size: usize, _stream: bool) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, size) }
}
