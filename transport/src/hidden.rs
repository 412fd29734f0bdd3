//! Memory for keys: pages of their own that are in no core dump, wiped when a key goes; and wiping what a computation
//! with keys leaves on the stack.

use std::hint::black_box;
use std::ptr::NonNull;

use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use zeroize::Zeroize;

/// Size of a key in bytes.
pub(crate) const SIZE: usize = 32;
const PAGE: usize = 4096;
/// The stack that one computation with keys may use.
const STACK: usize = 32 << 10;

/// A key in hidden memory; wiped when it is dropped.
pub(crate) struct Hidden(NonNull<[u8; SIZE]>);

// SAFETY: it owns its bytes, as a box does.
unsafe impl Send for Hidden {}
// SAFETY: as above: shared, they are only read.
unsafe impl Sync for Hidden {}

/// Places for keys that nobody has. Pages are never given back.
static FREE: Mutex<Vec<Hidden>> = Mutex::new(Vec::new());

/// A page of zeros that no core dump has. Where the kernel refuses, ordinary memory: a program works without it.
fn page() -> NonNull<[u8; SIZE]> {
    let flags = MapFlags::PRIVATE;
    // SAFETY: a new private anonymous mapping touches nothing that exists.
    let at = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, flags)
    };
    match at.ok().and_then(NonNull::new) {
        Some(at) => {
            // SAFETY: the page was mapped just now; that it is left out of dumps changes none of its bytes.
            let _ = unsafe { rustix::mm::madvise(at.as_ptr(), PAGE, Advice::LinuxDontDump) };
            at.cast()
        }
        None => NonNull::from(Box::leak(Box::new([[0; SIZE]; PAGE / SIZE]))).cast(),
    }
}

impl Hidden {
    /// A key of zeros.
    pub(crate) fn new() -> Self {
        let mut free = FREE.lock();
        if let Some(hidden) = free.pop() {
            return hidden;
        }
        let page = page();
        // SAFETY: each place is inside the page, which is never given back, and is handed out once.
        free.extend((1..PAGE / SIZE).map(|i| Self(unsafe { page.add(i) })));
        Self(page)
    }

    pub(crate) fn get(&self) -> &[u8; SIZE] {
        // SAFETY: valid for ever, and whoever could write holds this value alone.
        unsafe { self.0.as_ref() }
    }

    pub(crate) fn get_mut(&mut self) -> &mut [u8; SIZE] {
        // SAFETY: as above.
        unsafe { self.0.as_mut() }
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        self.get_mut().zeroize();
        FREE.lock().push(Self(self.0));
    }
}

/// Runs a computation with keys, and wipes the stack that it has used.
#[inline(never)]
pub(crate) fn scrubbed<T>(f: impl FnOnce() -> T) -> T {
    let out = run(f);
    wipe();
    out
}

#[inline(never)]
fn run<T>(f: impl FnOnce() -> T) -> T {
    f()
}

#[inline(never)]
fn wipe() {
    let mut stack = [0_u8; STACK];
    stack.zeroize();
    black_box(&stack);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flags of the mapping that holds an address, as the kernel tells them.
    fn flags(address: usize) -> String {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in smaps.lines() {
            if let Some((from, to)) = line.split(' ').next().and_then(|range| range.split_once('-'))
                && let (Ok(from), Ok(to)) = (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16))
            {
                inside = (from..to).contains(&address);
            }
            if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| inside) {
                return flags.to_owned();
            }
        }
        panic!("{address:x} is not mapped");
    }

    #[test]
    fn keys_lie_in_pages_that_no_dump_has_apart_from_each_other() {
        let mut keys: Vec<Hidden> = (0..300).map(|_| Hidden::new()).collect();
        for (number, key) in keys.iter_mut().enumerate() {
            assert_eq!(key.get(), &[0; SIZE]);
            *key.get_mut() = [number as u8; SIZE];
        }
        for (number, key) in keys.iter().enumerate() {
            assert_eq!(key.get(), &[number as u8; SIZE]);
            let flags = flags(key.0.as_ptr().addr());
            assert!(flags.split(' ').any(|flag| flag == "dd"), "{flags}");
        }
        assert!(!flags(Box::new(7).as_ref() as *const i32 as usize).contains("dd"), "the test can see it");
    }

    #[test]
    fn a_key_is_wiped_when_it_goes() {
        let mut key = Hidden::new();
        *key.get_mut() = [9; SIZE];
        let place = key.0;
        // Nobody else is given the place meanwhile: another test may be, and then it is not ours to look at.
        let free = {
            drop(key);
            let free = FREE.lock();
            free.iter().find(|free| free.0 == place).map(|free| *free.get())
        };
        assert!(free.is_none_or(|bytes| bytes == [0; SIZE]));
    }
}
