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

/// Copies as this machine does, and as those that lack some of what it has.
#[cfg(all(target_arch = "x86_64", not(any(miri, transom_loom))))]
fn agrees_on_every_machine(size: usize, to_phase: usize, from_phase: usize) {
    for machine in super::x86::machines() {
        for stream in [false, true] {
            // SAFETY: `agrees` passes buffers of `size` bytes.
            agrees(size, to_phase, from_phase, |to, from, size| unsafe {
                super::x86::copy_by(machine, to, from, size, stream);
            });
        }
    }
}

#[test]
#[cfg(all(target_arch = "x86_64", not(any(miri, transom_loom))))]
fn lesser_machines_copy_the_same() {
    for size in (0..70).chain(120..600) {
        for phase in (0..64).step_by(9) {
            agrees_on_every_machine(size, phase, (phase * 5 + size) % 64);
            agrees_on_every_machine(size, phase, phase);
        }
    }
}

#[test]
#[cfg(all(target_arch = "x86_64", not(any(miri, transom_loom))))]
fn copies_on_both_sides_of_the_switch_to_movsb_are_exact_whether_lines_lie_alike_or_not() {
    use super::x86::MOVSB_FROM;
    for size in [MOVSB_FROM - 65, MOVSB_FROM - 1, MOVSB_FROM, MOVSB_FROM + 1, MOVSB_FROM + 63, 2 * MOVSB_FROM]
    {
        for (to, from) in [(0, 0), (1, 1), (63, 63), (32, 32), (0, 1), (16, 0), (0, 32), (63, 0)] {
            agrees_on_every_machine(size, to, from);
        }
    }
}

#[test]
#[cfg(all(target_arch = "x86_64", not(any(miri, transom_loom))))]
fn movsb_copies_exactly_wherever_it_is_slow_too() {
    for size in 64..300 {
        for phase in (0..64).step_by(5) {
            // SAFETY: `agrees` passes buffers of `size` bytes, at least 64; all x86-64 has the instruction.
            agrees(size, phase, (phase * 5 + size) % 64, |to, from, size| unsafe {
                super::x86::movsb(to, from, size);
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
