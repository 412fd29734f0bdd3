//! Eight bytes stored or loaded, and a full fence.

use std::hint::black_box;
use std::sync::atomic::{Ordering, fence};

use transom_registry::Result;

use super::memory::Span;

/// Which full fence; the cheapest of the machine is the baseline.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fence {
    /// The one that the compiler emits.
    Language,
    /// A locked operation on the stack, whatever the compiler would emit.
    #[cfg(target_arch = "x86_64")]
    Locked,
}

/// Stores `count` values to `offset`, each followed by a full fence.
pub(crate) fn store_fence(target: Span<'_>, offset: usize, count: u64, kind: Fence) -> Result<()> {
    let at = black_box(target.at(offset, 8)?).cast::<u64>();
    match kind {
        Fence::Language => {
            for value in 0..count {
                // SAFETY: eight bytes inside the view, checked above; the view outlives the call.
                unsafe { at.write_unaligned(value) };
                fence(Ordering::SeqCst);
            }
        }
        #[cfg(target_arch = "x86_64")]
        Fence::Locked => {
            for value in 0..count {
                // SAFETY: as above.
                unsafe { at.write_unaligned(value) };
                locked();
            }
        }
    }
    Ok(())
}

/// Loads `count` values from `offset`, each followed by a full fence, and adds them up.
pub(crate) fn load_fence(target: Span<'_>, offset: usize, count: u64, kind: Fence) -> Result<u64> {
    let at = black_box(target.at(offset, 8)?).cast::<u64>();
    let mut sum = 0u64;
    match kind {
        Fence::Language => {
            for _ in 0..count {
                // SAFETY: eight bytes inside the view, checked above; the view outlives the call.
                sum = sum.wrapping_add(unsafe { at.read_unaligned() });
                fence(Ordering::SeqCst);
            }
        }
        #[cfg(target_arch = "x86_64")]
        Fence::Locked => {
            for _ in 0..count {
                // SAFETY: as above.
                sum = sum.wrapping_add(unsafe { at.read_unaligned() });
                locked();
            }
        }
    }
    Ok(black_box(sum))
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn locked() {
    // SAFETY: or-ing 0 changes no byte; the word is in this thread's own stack page or the red zone below it.
    unsafe { std::arch::asm!("lock or dword ptr [rsp - 64], 0") };
}
