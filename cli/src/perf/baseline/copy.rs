//! One thread copies: libc's memcpy, and a plain loop of non-temporal stores.

use std::sync::atomic::{Ordering, compiler_fence, fence};

use transom_registry::Result;

use super::memory::{Source, Span};

/// A way to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copy {
    /// libc's memcpy.
    Libc,
    /// 32-byte stores past the cache.
    #[cfg(target_arch = "x86_64")]
    Stream,
}

impl Copy {
    /// The ways that this machine has, each with its name.
    pub(crate) fn all() -> Vec<(&'static str, Self)> {
        let all = vec![
            ("memcpy", Self::Libc),
            #[cfg(target_arch = "x86_64")]
            ("nt copy", Self::Stream),
        ];
        all.into_iter().filter(|(_, copy)| copy.runs_here()).collect()
    }

    fn runs_here(self) -> bool {
        match self {
            Self::Libc => true,
            #[cfg(target_arch = "x86_64")]
            Self::Stream => std::is_x86_feature_detected!("avx2"),
        }
    }

    /// Copies the source to `offset` of the target `count` times, with a new first word each time.
    pub(crate) fn put(
        self,
        target: Span<'_>,
        offset: usize,
        source: &mut Source<'_>,
        size: usize,
        count: u64,
        fenced: bool,
    ) -> Result<()> {
        let to = target.at(offset, size)?;
        let from = source.bytes(0, size)?.as_ptr();
        // SAFETY: both ranges were checked above and belong to different mappings.
        unsafe { self.repeat(to, from, size, count, fenced, |i| source.refresh(i)) };
        Ok(())
    }

    /// Copies from `offset` of the target into the source buffer `count` times.
    pub(crate) fn get(
        self,
        target: Span<'_>,
        offset: usize,
        source: &mut Source<'_>,
        size: usize,
        count: u64,
        fenced: bool,
    ) -> Result<()> {
        let from = target.at(offset, size)?;
        let to = source.bytes_mut(0, size)?.as_mut_ptr();
        // SAFETY: both ranges were checked above and belong to different mappings.
        unsafe { self.repeat(to, from, size, count, fenced, |_| {}) };
        Ok(())
    }

    /// # Safety
    /// `to` and `from` are valid for `size` bytes and do not overlap.
    unsafe fn repeat(
        self,
        to: *mut u8,
        from: *const u8,
        size: usize,
        count: u64,
        fenced: bool,
        mut before: impl FnMut(u64),
    ) {
        let (to, from, size) = std::hint::black_box((to, from, size));
        for i in 0..count {
            before(i);
            match self {
                // SAFETY: the caller's promise.
                Self::Libc => unsafe {
                    libc::memcpy(to.cast(), from.cast(), size);
                },
                // SAFETY: the caller's promise; `all` offers it only where the machine has AVX2.
                #[cfg(target_arch = "x86_64")]
                Self::Stream => unsafe { stream(to, from, size) },
            }
            if fenced {
                fence(Ordering::SeqCst);
            } else {
                compiler_fence(Ordering::SeqCst);
            }
        }
    }
}

/// Copies with non-temporal stores.
///
/// # Safety
/// `to` and `from` are valid for `size` bytes and do not overlap; the machine has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn stream(to: *mut u8, from: *const u8, size: usize) {
    use std::arch::x86_64::{
        __m256i, _MM_HINT_NTA, _mm_prefetch, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256,
    };
    let head = to.align_offset(32).min(size);
    // SAFETY: `head <= size`.
    unsafe { std::ptr::copy_nonoverlapping(from, to, head) };
    let mut done = head;
    let ahead = if size > 2 << 20 { 512 } else { 0 };
    while size - done >= 128 {
        // SAFETY: 128 bytes are left at `done`; `to + done` is a multiple of 32; a prefetch may point anywhere.
        unsafe {
            let (to, from) = (to.add(done).cast::<__m256i>(), from.add(done).cast::<__m256i>());
            if ahead > 0 {
                let next = from.cast::<i8>().wrapping_add(ahead);
                _mm_prefetch::<_MM_HINT_NTA>(next);
                _mm_prefetch::<_MM_HINT_NTA>(next.wrapping_add(64));
            }
            let (a, b) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
            let (c, d) = (_mm256_loadu_si256(from.add(2)), _mm256_loadu_si256(from.add(3)));
            _mm256_stream_si256(to, a);
            _mm256_stream_si256(to.add(1), b);
            _mm256_stream_si256(to.add(2), c);
            _mm256_stream_si256(to.add(3), d);
        }
        done += 128;
    }
    // SAFETY: `done <= size`; a fence has no preconditions, and is unsafe to older compilers.
    unsafe {
        std::ptr::copy_nonoverlapping(from.add(done), to.add(done), size - done);
        _mm_sfence();
    }
}

/// A segment of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Offset in the source, in bytes.
    pub(crate) from: usize,
    /// Offset in the target, in bytes.
    pub(crate) to: usize,
    /// Size in bytes.
    pub(crate) size: usize,
}

/// `count` segments of `size` bytes: in order in the source, scattered in the target, each on its own place. Both sides
/// compute the same ones.
pub(crate) fn segments(count: usize, size: usize) -> Vec<Segment> {
    // A stride of a prime number of places visits each place once.
    let stride = (count / 2 + 1..).find(|&s| gcd(s, count) == 1).unwrap_or(1);
    (0..count).map(|i| Segment { from: i * size, to: (i * stride % count) * size * 2, size }).collect()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Copies every segment with a plain copy, `count` times.
pub(crate) fn copy_segments(
    target: Span<'_>,
    source: &mut Source<'_>,
    list: &[Segment],
    count: u64,
) -> Result<()> {
    for segment in list {
        target.at(segment.to, segment.size)?;
        source.bytes(segment.from, segment.size)?;
    }
    let (to, from) = std::hint::black_box((target.at(0, 0)?, source.span().at(0, 0)?));
    for i in 0..count {
        source.refresh(i);
        for segment in list {
            // SAFETY: every segment was checked above; source and target are different mappings.
            unsafe {
                std::ptr::copy_nonoverlapping(from.add(segment.from), to.add(segment.to), segment.size);
            }
        }
        fence(Ordering::SeqCst);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::memory::Mapping;
    use super::*;

    #[test]
    fn every_way_copies_every_byte_and_none_beside_it() {
        let window = Mapping::alone(1 << 16).unwrap();
        let buffer = Mapping::alone(1 << 16).unwrap();
        // SAFETY: the buffer is used by this test only.
        let mut source = unsafe { Source::new(buffer.span()) };
        for (i, byte) in source.bytes_mut(0, 1 << 16).unwrap().iter_mut().enumerate() {
            *byte = (i * 7 + 1) as u8 | 1;
        }
        for (name, copy) in Copy::all() {
            for (offset, size) in [(0, 0), (0, 8), (1, 31), (3, 127), (16, 4096), (33, 40_000)] {
                let all = window.span().at(0, 1 << 16).unwrap();
                // SAFETY: the whole window, which only this test uses.
                unsafe { all.write_bytes(0, 1 << 16) };
                copy.put(window.span(), offset, &mut source, size, 3, false).unwrap();
                // SAFETY: as above; nothing writes while the slice lives.
                let seen = unsafe { std::slice::from_raw_parts(all, 1 << 16) };
                assert_eq!(&seen[offset..offset + size], source.bytes(0, size).unwrap(), "{name} {size}");
                assert!(
                    seen[..offset].iter().chain(&seen[offset + size..]).all(|&b| b == 0),
                    "{name} {size}"
                );
            }
        }
    }

    #[test]
    fn segments_never_overlap_and_fill_their_places() {
        for count in [1, 2, 3, 100, 15_000] {
            let mut places: Vec<_> = segments(count, 256).iter().map(|s| s.to).collect();
            places.sort_unstable();
            assert!(places.windows(2).all(|w| w[1] - w[0] == 512), "{count}");
            assert_eq!(places[0], 0);
        }
    }
}
