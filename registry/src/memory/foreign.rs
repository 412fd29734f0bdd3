//! Host memory that somebody else allocated.

use std::any::Any;
use std::ptr::NonNull;

use super::{Kind, Memory};
use crate::{Error, Result};

/// Host memory that somebody else allocated, kept alive by an owner for as long as it is used.
///
/// Other processes cannot map it: they reach it by copies through the kernel or through a transport.
///
/// # Examples
/// ```
/// use transom_registry::{Foreign, Memory};
///
/// let memory = Foreign::from_vec(vec![7; 4096])?;
/// assert_eq!(memory.size(), 4096);
/// # Ok::<(), transom_registry::Error>(())
/// ```
#[derive(Debug)]
pub struct Foreign {
    ptr: NonNull<u8>,
    size: usize,
    read_only: bool,
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: whoever made the value promised that the bytes may be used from any thread, and the owner is Send and Sync.
unsafe impl Send for Foreign {}
// SAFETY: as above; no method changes the value through a shared reference.
unsafe impl Sync for Foreign {}

impl Foreign {
    /// Takes `size` bytes at `ptr` that live as long as `owner`, which is dropped with the value.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a size of 0, and for a range that does not fit into the address space.
    ///
    /// # Safety
    /// Until `owner` is dropped:
    /// - all `size` bytes at `ptr` are initialised, and may be read and written from any thread;
    /// - they stay at this address: `owner` neither moves nor frees them by being moved itself;
    /// - no Rust reference to them exists, not even inside `owner` (a `Box` counts as one, see [`Foreign::from_box`]);
    /// - whoever else uses them does so through raw pointers, and expects that peers change them at any time.
    pub unsafe fn new(ptr: NonNull<u8>, size: usize, owner: impl Any + Send + Sync) -> Result<Self> {
        Self::checked(ptr, size, false, Box::new(owner))
    }

    /// Takes `size` bytes at `ptr` that are only read.
    ///
    /// # Errors
    /// As [`Foreign::new`].
    ///
    /// # Safety
    /// As [`Foreign::new`], with one difference: the bytes need not be writable. Shared references to them may exist
    /// only where nobody changes the bytes.
    pub unsafe fn read_only(ptr: NonNull<u8>, size: usize, owner: impl Any + Send + Sync) -> Result<Self> {
        Self::checked(ptr, size, true, Box::new(owner))
    }

    /// Takes the bytes of a vector: without a copy, unless it has room to spare.
    ///
    /// They are not handed out again. Their address has no alignment that could be relied on.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty vector.
    pub fn from_vec(bytes: Vec<u8>) -> Result<Self> {
        Self::from_box(bytes.into_boxed_slice())
    }

    /// Takes the bytes of a box, without a copy.
    ///
    /// They are not handed out again. Their address has no alignment that could be relied on.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty box.
    pub fn from_box(bytes: Box<[u8]>) -> Result<Self> {
        let size = bytes.len();
        let owner = Bytes(NonNull::from(Box::leak(bytes)));
        Self::checked(owner.0.cast(), size, false, Box::new(owner))
    }

    fn checked(
        ptr: NonNull<u8>,
        size: usize,
        read_only: bool,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Self> {
        if size == 0 {
            return Err(Error::invalid("use foreign memory", "size is 0, expected 1 byte or more"));
        }
        if size > isize::MAX as usize || ptr.addr().checked_add(size).is_none() {
            let why = format!("{size} bytes at {ptr:p} do not fit into the address space");
            return Err(Error::invalid("use foreign memory", why));
        }
        Ok(Self { ptr, size, read_only, _owner: owner })
    }
}

/// Owns bytes without being a reference to them, as a `Box` would be.
#[derive(Debug)]
struct Bytes(NonNull<[u8]>);

// SAFETY: it owns plain bytes, which any thread may free.
unsafe impl Send for Bytes {}
// SAFETY: it gives no access to the bytes.
unsafe impl Sync for Bytes {}

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a box of the same type, in `from_box`, and is freed only here.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

// SAFETY: whoever made the value promised that its bytes stay at this address, valid and without references, until the
// owner is dropped, which is when the value is; the size is checked not to be zero.
unsafe impl Memory for Foreign {
    fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    fn size(&self) -> usize {
        self.size
    }

    fn kind(&self) -> Kind {
        Kind::Foreign
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Debug)]
    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn bytes_of_a_vector_keep_their_address_and_their_values() {
        let bytes: Vec<u8> = (0..=255).collect();
        let address = bytes.as_ptr();
        let memory = Foreign::from_vec(bytes).unwrap();
        assert_eq!(memory.as_ptr().as_ptr().cast_const(), address);
        assert_eq!((memory.size(), memory.kind(), memory.is_read_only()), (256, Kind::Foreign, false));
        assert!(memory.share().is_none());
        let memory = std::thread::spawn(move || memory).join().unwrap();
        // SAFETY: byte 200 of 256, owned by `memory`, which nobody else uses.
        assert_eq!(unsafe { memory.as_ptr().add(200).read_volatile() }, 200);
    }

    #[test]
    fn an_owner_is_dropped_with_the_memory_and_also_when_it_is_refused() {
        let drops = Arc::new(AtomicUsize::new(0));
        let mut byte = 5u8;
        let ptr = NonNull::from(&mut byte);
        // SAFETY: `byte` outlives `memory` and is not used while it lives.
        let memory = unsafe { Foreign::read_only(ptr, 1, Counted(drops.clone())) }.unwrap();
        assert!(memory.is_read_only());
        assert_eq!(drops.load(Ordering::Relaxed), 0);
        drop(memory);
        assert_eq!(drops.load(Ordering::Relaxed), 1);
        for size in [0, isize::MAX as usize + 1, usize::MAX] {
            // SAFETY: the size is refused before anything else happens.
            let refused = unsafe { Foreign::new(ptr, size, Counted(drops.clone())) };
            assert!(matches!(refused, Err(Error::Invalid { .. })), "{size}: {refused:?}");
        }
        assert_eq!(drops.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn empty_vectors_and_boxes_are_refused() {
        assert!(matches!(Foreign::from_vec(Vec::new()), Err(Error::Invalid { .. })));
        assert!(matches!(Foreign::from_box(Box::new([])), Err(Error::Invalid { .. })));
    }
}
