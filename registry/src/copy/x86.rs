//! x86-64: SSE2 for small sizes, the widest useful vectors of this machine for the rest, and between the first cache and
//! main memory `rep movsb` where that is known to be the fastest.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Up to here a copy is a ladder of overlapping moves.
const SMALL: usize = 256;

/// From here non-temporal stores are worth the fence that ends them.
const STREAM_PART: usize = 16 << 10;

/// From here, where source and target together leave the first cache, [`MOVSB`] is used.
pub(super) const MOVSB_FROM: usize = 28 << 10;

/// What this machine can do: a bit for each of the following, 0 before it was looked up.
static MACHINE: AtomicU8 = AtomicU8::new(0);
const KNOWN: u8 = 1;
/// It has AVX2.
const AVX2: u8 = 2;
/// It has AVX-512 that does not slow the clock: with VBMI2, so Ice Lake, Zen 4 and later.
const AVX512: u8 = 4;
/// Its `rep movsb` moves whole lines, past the first cache at 1.3 times the speed of vector loops, as long as source and
/// target lie alike in their lines: measured on AMD's family 1Ah (Zen 5). Before that AMD's was slower than a loop (33
/// against 38 GB/s on Zen 3), though FSRM is announced. Intel tells to use it where FSRM is, and C libraries do.
const MOVSB: u8 = 8;

#[inline(always)]
fn machine() -> u8 {
    match MACHINE.load(Relaxed) {
        0 => look(),
        known => known,
    }
}

/// Looks up what the machine can do. Threads that do so at once find the same.
#[cold]
fn look() -> u8 {
    let mut found = KNOWN;
    if is_x86_feature_detected!("avx2") {
        found |= AVX2;
    }
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("avx512vbmi2") {
        found |= AVX512;
    }
    if is_movsb_fast() {
        found |= MOVSB;
    }
    MACHINE.store(found, Relaxed);
    found
}

#[allow(unused_unsafe, reason = "cpuid was unsafe to call in the oldest Rust that this builds with")]
fn is_movsb_fast() -> bool {
    const FSRM: u32 = 1 << 4;
    // SAFETY: every x86-64 processor has cpuid; the leaf is asked for only where it is.
    let (vendor, version, features) = unsafe {
        let vendor = __cpuid(0);
        if vendor.eax < 7 {
            return false;
        }
        (vendor, __cpuid(1).eax, __cpuid_count(7, 0))
    };
    let family = match (version >> 8) & 0xf {
        0xf => 0xf + ((version >> 20) & 0xff),
        family => family,
    };
    let named = |name: &[u8; 12]| {
        let word = |at: usize| u32::from_le_bytes([name[at], name[at + 1], name[at + 2], name[at + 3]]);
        (vendor.ebx, vendor.edx, vendor.ecx) == (word(0), word(4), word(8))
    };
    features.edx & FSRM != 0 && (named(b"GenuineIntel") || named(b"AuthenticAMD") && family >= 0x1a)
}

/// Copies `size` bytes, past the caches if `stream` and large enough.
///
/// # Safety
/// As for [`super::copy`].
#[inline(never)]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, size: usize, stream: bool) {
    // SAFETY: the caller's promise, and what the machine has was found.
    unsafe { copy_as(machine, to, from, size, stream) }
}

/// Copies as a machine with these abilities does; they are asked for where they matter.
///
/// # Safety
/// As for [`super::copy`]; this machine has them.
#[inline(always)]
unsafe fn copy_as(machine: impl FnOnce() -> u8, to: *mut u8, from: *const u8, size: usize, stream: bool) {
    // SAFETY: every move lies within `size` bytes by the bound of its arm, and the caller vouches for those; what a
    // function needs the machine has.
    unsafe {
        if size > SMALL {
            return large(machine(), to, from, size, stream);
        }
        if size > 16 {
            return match size {
                17..=32 => ends(to, from, size, 16, move16),
                33..=64 => ends(to, from, size, 32, move32),
                65..=128 => ends(to, from, size, 64, move64),
                _ if machine() & AVX512 != 0 => ends(to, from, size, 128, move128),
                _ => {
                    move64(to, from);
                    move64(to.add(64), from.add(64));
                    move64(to.add(size - 128), from.add(size - 128));
                    move64(to.add(size - 64), from.add(size - 64));
                }
            };
        }
        match size {
            0 => {}
            1 => move1(to, from),
            2 => move2(to, from),
            4 => move4(to, from),
            8 => move8(to, from),
            16 => move16(to, from),
            3 => ends(to, from, size, 2, move2),
            5..8 => ends(to, from, size, 4, move4),
            _ => ends(to, from, size, 8, move8),
        }
    }
}

/// Copies more than [`SMALL`] bytes.
///
/// # Safety
/// As for [`copy_as`].
#[inline(always)]
unsafe fn large(machine: u8, to: *mut u8, from: *const u8, size: usize, stream: bool) {
    let alike = (to.addr() ^ from.addr()).is_multiple_of(64);
    // SAFETY: the caller's promise; what a function needs the machine has, and it gets at least five of its
    // widest vectors.
    unsafe {
        match stream && size >= STREAM_PART {
            true if machine & AVX2 != 0 => avx2_stream(to, from, size),
            true => sse2_stream(to, from, size),
            false if machine & MOVSB != 0 && alike && size >= MOVSB_FROM => movsb(to, from, size),
            false if machine & AVX512 != 0 && size <= 512 => {
                move128(to, from);
                move128(to.add(128), from.add(128));
                move128(to.add(size - 256), from.add(size - 256));
                move128(to.add(size - 128), from.add(size - 128));
            }
            false if machine & AVX512 != 0 => avx512(to, from, size),
            false if machine & AVX2 != 0 => avx2(to, from, size),
            false => sse2(to, from, size),
        }
    }
}

/// The abilities of this machine, and of those that lack some of them.
#[cfg(test)]
pub(super) fn machines() -> impl Iterator<Item = u8> {
    (KNOWN..=KNOWN | AVX2 | AVX512 | MOVSB).filter(|lesser| lesser & machine() == *lesser)
}

/// Copies as one of [`machines`] does.
///
/// # Safety
/// As for [`super::copy`].
#[cfg(test)]
pub(super) unsafe fn copy_by(machine: u8, to: *mut u8, from: *const u8, size: usize, stream: bool) {
    // SAFETY: the caller's promise; none of them has what this machine lacks.
    unsafe { copy_as(|| machine, to, from, size, stream) }
}

/// Moves the first and the last `width` bytes of `size`; they overlap.
///
/// # Safety
/// As for [`super::copy`]; `width <= size <= 2 * width`, and `step` moves `width` bytes.
#[inline(always)]
unsafe fn ends(to: *mut u8, from: *const u8, size: usize, width: usize, step: unsafe fn(*mut u8, *const u8)) {
    let last = size - width;
    // SAFETY: `last + width == size`.
    unsafe {
        step(to, from);
        step(to.add(last), from.add(last));
    }
}

/// Defines a move of a fixed number of bytes: loads first, then stores.
macro_rules! fixed {
    ($name:ident, $bytes:literal, $class:ident, [$($register:ident),+], [$($line:literal),+ $(,)?]) => {
        #[doc = concat!("Moves ", $bytes, " bytes.")]
        ///
        /// # Safety
        /// As for [`super::copy`], for this many bytes.
        #[inline(always)]
        pub(super) unsafe fn $name(to: *mut u8, from: *const u8) {
            // SAFETY: it reads these bytes at `from` and writes them at `to`, which the caller vouches for; no stack,
            // no flags.
            unsafe {
                asm!(
                    $($line,)+
                    to = in(reg) to,
                    from = in(reg) from,
                    $($register = out($class) _,)+
                    options(nostack, preserves_flags)
                );
            }
        }
    };
}

fixed!(move1, 1, reg_byte, [a], ["mov {a}, byte ptr [{from}]", "mov byte ptr [{to}], {a}"]);
fixed!(move2, 2, reg, [a], ["movzx {a:e}, word ptr [{from}]", "mov word ptr [{to}], {a:x}"]);
fixed!(move4, 4, reg, [a], ["mov {a:e}, dword ptr [{from}]", "mov dword ptr [{to}], {a:e}"]);
fixed!(move8, 8, reg, [a], ["mov {a}, qword ptr [{from}]", "mov qword ptr [{to}], {a}"]);
fixed!(move16, 16, xmm_reg, [a], ["movdqu {a}, [{from}]", "movdqu [{to}], {a}"]);
fixed!(
    move32,
    32,
    xmm_reg,
    [a, b],
    ["movdqu {a}, [{from}]", "movdqu {b}, [{from} + 16]", "movdqu [{to}], {a}", "movdqu [{to} + 16], {b}"]
);
fixed!(
    move64,
    64,
    xmm_reg,
    [a, b, c, d],
    [
        "movdqu {a}, [{from}]",
        "movdqu {b}, [{from} + 16]",
        "movdqu {c}, [{from} + 32]",
        "movdqu {d}, [{from} + 48]",
        "movdqu [{to}], {a}",
        "movdqu [{to} + 16], {b}",
        "movdqu [{to} + 32], {c}",
        "movdqu [{to} + 48], {d}",
    ]
);

/// Moves 128 bytes by registers that leave the upper halves of the others clean.
///
/// # Safety
/// As for [`super::copy`], for this many bytes; the machine has AVX-512.
#[inline(always)]
unsafe fn move128(to: *mut u8, from: *const u8) {
    // SAFETY: it reads these bytes at `from` and writes them at `to`, which the caller vouches for; no stack, no flags.
    unsafe {
        asm!(
            "vmovdqu64 zmm16, [{from}]",
            "vmovdqu64 zmm17, [{from} + 64]",
            "vmovdqu64 [{to}], zmm16",
            "vmovdqu64 [{to} + 64], zmm17",
            to = in(reg) to,
            from = in(reg) from,
            out("xmm16") _,
            out("xmm17") _,
            options(nostack, preserves_flags)
        );
    }
}

/// Copies at least 64 bytes by the processor's own routine, the target aligned to a line.
///
/// # Safety
/// As for [`super::copy`]; `size >= 64`.
pub(super) unsafe fn movsb(to: *mut u8, from: *const u8, size: usize) {
    let skip = to.addr().wrapping_neg() % 64;
    // SAFETY: `skip < 64 <= size`; it reads and writes within `size` bytes; the direction flag is clear, as the ABI says.
    unsafe {
        move64(to, from);
        asm!(
            "rep movsb",
            inout("rcx") size - skip => _,
            inout("rdi") to.add(skip) => _,
            inout("rsi") from.add(skip) => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Defines a loop of four aligned vector stores between an unaligned head (one vector) and an unaligned tail (four).
macro_rules! wide {
    ($name:ident, $feature:literal, $width:literal, $register:literal, $load:literal, $unaligned:literal,
     $store:literal, [$($ahead:literal),*], [$($end:literal),*]) => {
        #[doc = concat!("Copies more than ", stringify!($width), " * 5 bytes with `", $store, "`.")]
        ///
        /// # Safety
        /// As for [`super::copy`]; the machine has these instructions, and `size >= 5 * ` the width.
        #[target_feature(enable = $feature)]
        pub(super) unsafe fn $name(to: *mut u8, from: *const u8, size: usize) {
            let skip = $width - to.addr() % $width;
            // SAFETY: `skip <= $width`, so head, aligned blocks and tail all begin and end within `size` bytes: a block
            // begins no later than the tail, which is as long. Prefetches cannot fault. No stack; every
            // vector register is declared lost.
            unsafe {
                let tail = size - 4 * $width;
                asm!(
                    concat!($load, " ", $register, "0, [{from}]"),
                    concat!($unaligned, " [{to}], ", $register, "0"),
                    "add {to}, {skip}",
                    "add {from}, {skip}",
                    ".p2align 5",
                    "2:",
                    $($ahead,)*
                    concat!($load, " ", $register, "0, [{from}]"),
                    concat!($load, " ", $register, "1, [{from} + {w}]"),
                    concat!($load, " ", $register, "2, [{from} + 2 * {w}]"),
                    concat!($load, " ", $register, "3, [{from} + 3 * {w}]"),
                    concat!($store, " [{to}], ", $register, "0"),
                    concat!($store, " [{to} + {w}], ", $register, "1"),
                    concat!($store, " [{to} + 2 * {w}], ", $register, "2"),
                    concat!($store, " [{to} + 3 * {w}], ", $register, "3"),
                    "add {from}, 4 * {w}",
                    "add {to}, 4 * {w}",
                    "cmp {to}, {tail}",
                    "jb 2b",
                    concat!($load, " ", $register, "0, [{tail_from}]"),
                    concat!($load, " ", $register, "1, [{tail_from} + {w}]"),
                    concat!($load, " ", $register, "2, [{tail_from} + 2 * {w}]"),
                    concat!($load, " ", $register, "3, [{tail_from} + 3 * {w}]"),
                    concat!($unaligned, " [{tail}], ", $register, "0"),
                    concat!($unaligned, " [{tail} + {w}], ", $register, "1"),
                    concat!($unaligned, " [{tail} + 2 * {w}], ", $register, "2"),
                    concat!($unaligned, " [{tail} + 3 * {w}], ", $register, "3"),
                    $($end,)*
                    w = const $width,
                    skip = in(reg) skip,
                    to = inout(reg) to => _,
                    from = inout(reg) from => _,
                    tail = in(reg) to.add(tail),
                    tail_from = in(reg) from.add(tail),
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                    out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                    out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                    out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                    options(nostack)
                );
            }
        }
    };
}

wide!(sse2, "sse2", 16, "xmm", "movdqu", "movdqu", "movdqa", [], []);
wide!(
    sse2_stream,
    "sse2",
    16,
    "xmm",
    "movdqu",
    "movdqu",
    "movntdq",
    ["prefetchnta [{from} + 512]"],
    ["sfence"]
);
wide!(avx2, "avx2", 32, "ymm", "vmovdqu", "vmovdqu", "vmovdqa", [], ["vzeroupper"]);
wide!(
    avx2_stream,
    "avx2",
    32,
    "ymm",
    "vmovdqu",
    "vmovdqu",
    "vmovntdq",
    ["prefetchnta [{from} + 512]", "prefetchnta [{from} + 576]"],
    ["sfence", "vzeroupper"]
);
wide!(avx512, "avx2", 64, "zmm", "vmovdqu64", "vmovdqu64", "vmovdqa64", [], ["vzeroupper"]);
