use proptest::prelude::*;

use super::{STREAM, copy, copy_part, portable};

const GUARD: usize = 64;

/// Copies with `routine` between buffers at the given phases of 64 bytes, and compares with a plain copy, guards and all.
fn agrees(size: usize, to_phase: usize, from_phase: usize, routine: impl Fn(*mut u8, *const u8, usize)) {
    let from: Vec<u8> = (0..size + 2 * GUARD).map(|i| (i * 31 + i / 251) as u8 | 1).collect();
    let mut to = vec![0_u8; size + 4 * GUARD];
    let mut expected = to.clone();

    let begin = |address: usize, phase: usize| (phase + GUARD - address % GUARD) % GUARD;
    let source = begin(from.as_ptr().addr(), from_phase);
    let target = GUARD + begin(to.as_ptr().addr(), to_phase);
    expected[target..target + size].copy_from_slice(&from[source..source + size]);
    routine(to[target..].as_mut_ptr(), from[source..].as_ptr(), size);
    assert!(to == expected, "{size} bytes to phase {to_phase} from phase {from_phase}");
}

fn ours(to: *mut u8, from: *const u8, size: usize) {
    // SAFETY: `agrees` passes buffers of `size` bytes.
    unsafe { copy(to, from, size) }
}

fn streamed(to: *mut u8, from: *const u8, size: usize) {
    // SAFETY: `agrees` passes buffers of `size` bytes.
    unsafe { copy_part(to, from, size, usize::MAX) }
}

fn by_atomics(to: *mut u8, from: *const u8, size: usize) {
    // SAFETY: `agrees` passes buffers of `size` bytes.
    unsafe { portable::copy(to, from, size, false) }
}

#[test]
#[cfg_attr(miri, ignore = "too many sizes")]
fn every_size_to_600_is_copied_exactly_at_every_phase_of_the_target() {
    for size in 0..600 {
        for phase in 0..64 {
            agrees(size, phase, (phase * 7 + size) % 64, ours);
        }
    }
}

#[test]
#[cfg(all(target_arch = "x86_64", not(any(miri, transom_loom))))]
fn machines_without_avx2_copy_the_same() {
    for size in 257..600 {
        for phase in 0..64 {
            // SAFETY: `agrees` passes buffers of `size` bytes; all x86-64 has SSE2.
            agrees(size, phase, (phase * 5 + size) % 64, |to, from, size| unsafe {
                super::x86::sse2(to, from, size);
            });
            // SAFETY: as above.
            agrees(size, phase, (phase * 5 + size) % 64, |to, from, size| unsafe {
                super::x86::sse2_stream(to, from, size);
            });
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "too large")]
fn copies_on_both_sides_of_the_stream_threshold_are_exact() {
    for size in [STREAM - 129, STREAM - 1, STREAM, STREAM + 1, STREAM + 4097] {
        for (to, from) in [(0, 0), (16, 0), (0, 16), (1, 0), (63, 31)] {
            agrees(size, to, from, ours);
        }
    }
}

#[test]
fn atomics_copy_the_same() {
    for size in 0..100 {
        for phase in 0..16 {
            agrees(size, phase, 0, by_atomics);
            agrees(size, phase, phase, by_atomics);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: if cfg!(miri) { 4 } else { 256 }, ..ProptestConfig::default() })]

    #[test]
    fn any_size_at_any_phases_is_copied_exactly(
        size in 0_usize..600, to in 0_usize..64, from in 0_usize..64,
    ) {
        agrees(size, to, from, ours);
        agrees(size, to, from, by_atomics);
    }

    #[test]
    fn a_part_of_a_large_transfer_is_copied_exactly(
        size in 0_usize..40_000, to in 0_usize..64, from in 0_usize..64,
    ) {
        agrees(size, to, from, streamed);
    }
}
