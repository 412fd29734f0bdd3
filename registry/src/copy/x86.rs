//! x86-64: SSE2 for small sizes, the widest useful vectors of this machine for the rest.

use std::arch::asm;

/// Up to here a copy is a ladder of overlapping moves.
const SMALL: usize = 256;

/// From here non-temporal stores are worth the fence that ends them.
const STREAM_PART: usize = 16 << 10;

/// Copies `size` bytes, past the caches if `stream` and large enough.
///
/// # Safety
/// As for [`super::copy`].
#[inline(never)]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, size: usize, stream: bool) {
    // SAFETY: every move lies within `size` bytes by the bound of its arm, and the caller vouches for those; AVX2 was
    // found before its functions are called; the vector loops get more than `SMALL` bytes.
    unsafe {
        match size {
            0 => {}
            1 => move1(to, from),
            2 => move2(to, from),
            4 => move4(to, from),
            8 => move8(to, from),
            16 => move16(to, from),
            3 => ends(to, from, size, 2, move2),
            5..8 => ends(to, from, size, 4, move4),
            9..16 => ends(to, from, size, 8, move8),
            17..=32 => ends(to, from, size, 16, move16),
            33..=64 => ends(to, from, size, 32, move32),
            65..=128 => ends(to, from, size, 64, move64),
            129..=SMALL => {
                move64(to, from);
                move64(to.add(64), from.add(64));
                move64(to.add(size - 128), from.add(size - 128));
                move64(to.add(size - 64), from.add(size - 64));
            }
            _ => {
                let stream = stream && size >= STREAM_PART;
                match (is_x86_feature_detected!("avx2"), stream) {
                    (true, false) => avx2(to, from, size),
                    (true, true) => avx2_stream(to, from, size),
                    (false, false) => sse2(to, from, size),
                    (false, true) => sse2_stream(to, from, size),
                }
            }
        }
    }
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

/// Defines a loop of four aligned vector stores between an unaligned head (one vector) and an unaligned tail (four).
macro_rules! wide {
    ($name:ident, $feature:literal, $width:literal, $register:literal, $load:literal, $unaligned:literal,
     $store:literal, [$($ahead:literal),*], [$($end:literal),*]) => {
        #[doc = concat!("Copies more than ", stringify!($width), " * 5 bytes with `", $store, "`.")]
        ///
        /// # Safety
        /// As for [`super::copy`]; the machine has the target feature, and `size >= 5 * ` the width.
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
