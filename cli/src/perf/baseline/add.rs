//! A plain vector loop that adds numbers into memory and protects nothing.

use std::sync::atomic::{Ordering, compiler_fence};

use transom_registry::{Error, Result};

use super::memory::{Source, Span};

/// Adds the first `len` numbers of the source to the target, `count` times.
pub(crate) fn add(
    target: Span<'_>,
    offset: usize,
    source: &mut Source<'_>,
    len: usize,
    count: u64,
) -> Result<()> {
    let to = numbers(target, offset, len)?;
    let from = source.floats(len)?.as_ptr();
    let (to, from, len) = std::hint::black_box((to, from, len));
    for _ in 0..count {
        // SAFETY: both ranges hold `len` numbers, checked above, and belong to different mappings.
        unsafe { add_best(to, from, len) };
        compiler_fence(Ordering::SeqCst);
    }
    Ok(())
}

/// Adds `values` to the target once.
pub(crate) fn add_once(target: Span<'_>, offset: usize, values: &[f32]) -> Result<()> {
    let to = numbers(target, offset, values.len())?;
    // SAFETY: the target was checked above; the values are not in it.
    unsafe { add_best(to, values.as_ptr(), values.len()) };
    Ok(())
}

fn numbers(target: Span<'_>, offset: usize, len: usize) -> Result<*mut f32> {
    let to = target.at(offset, len * 4)?.cast::<f32>();
    if to.is_aligned() {
        Ok(to)
    } else {
        Err(Error::Misaligned { operation: "accumulate", offset: offset as u64, align: 4 })
    }
}

/// # Safety
/// Both pointers are valid for `len` numbers, and the ranges do not overlap.
#[inline]
unsafe fn add_best(to: *mut f32, from: *const f32, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        // SAFETY: the caller's promise; the machine has AVX2.
        return unsafe { add_avx2(to, from, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { add_plain(to, from, len) }
}

/// # Safety
/// Both pointers are valid for `len` numbers, and the ranges do not overlap.
unsafe fn add_plain(to: *mut f32, from: *const f32, len: usize) {
    for i in 0..len {
        // SAFETY: `i < len`, the caller's promise.
        unsafe { *to.add(i) += *from.add(i) };
    }
}

/// # Safety
/// As [`add_plain`], and the machine has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn add_avx2(to: *mut f32, from: *const f32, len: usize) {
    use std::arch::x86_64::{_mm256_add_ps, _mm256_loadu_ps, _mm256_storeu_ps};
    let mut i = 0;
    while len - i >= 32 {
        for k in [0, 8, 16, 24] {
            // SAFETY: 32 numbers are left at `i`.
            unsafe {
                let sum = _mm256_add_ps(_mm256_loadu_ps(to.add(i + k)), _mm256_loadu_ps(from.add(i + k)));
                _mm256_storeu_ps(to.add(i + k), sum);
            }
        }
        i += 32;
    }
    // SAFETY: `i <= len`.
    unsafe { add_plain(to.add(i), from.add(i), len - i) };
}

#[cfg(test)]
mod tests {
    use super::super::memory::Mapping;
    use super::*;

    #[test]
    fn every_number_is_added_once_a_pass() {
        let (window, buffer) = (Mapping::alone(4096).unwrap(), Mapping::alone(4096).unwrap());
        // SAFETY: the buffer is used by this test only.
        let mut source = unsafe { Source::new(buffer.span()) };
        source.fill_ones(4096).unwrap();
        add(window.span(), 4, &mut source, 101, 3).unwrap();
        let at = window.span().at(0, 4096).unwrap().cast::<f32>();
        // SAFETY: 1,024 numbers of a mapping that only this test uses.
        let seen = unsafe { std::slice::from_raw_parts(at, 1024) };
        assert!(seen[1..102].iter().all(|&x| x == 3.0));
        assert!(seen[0] == 0.0 && seen[102..].iter().all(|&x| x == 0.0));
    }
}
