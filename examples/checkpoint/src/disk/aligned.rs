//! A buffer that begins at a page, without unsafe code.

use super::ALIGN;

/// Bytes whose address is a multiple of [`ALIGN`], and whose number is rounded up to one.
#[derive(Debug)]
pub(crate) struct Aligned {
    whole: Vec<u8>,
    start: usize,
    size: usize,
}

impl Aligned {
    pub(crate) fn new(size: usize) -> Self {
        let size = size.next_multiple_of(ALIGN);
        let whole = vec![0; if size == 0 { 0 } else { size + ALIGN }];
        // A vector of this length is never moved, so its address stays.
        let start = whole.as_ptr().align_offset(ALIGN).min(whole.len() - size);
        Self { whole, start, size }
    }

    /// Makes it at least so large; what was in it is lost when it grows.
    pub(crate) fn grow(&mut self, size: usize) {
        if size > self.size {
            *self = Self::new(size);
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.whole[self.start..self.start + self.size]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.whole[self.start..self.start + self.size]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_begin_at_a_page_and_have_whole_pages() {
        for (size, whole) in [(0, 0), (1, 4096), (4096, 4096), (5000, 8192), (1 << 20, 1 << 20)] {
            let mut buffer = Aligned::new(size);
            assert_eq!((buffer.bytes().len(), buffer.bytes_mut().len()), (whole, whole));
            assert!(size == 0 || buffer.bytes().as_ptr().addr().is_multiple_of(ALIGN));
        }
    }
}
