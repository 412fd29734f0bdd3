//! Prints the speed of the C library's copy, of ours, and of ours told to stream, by size and alignment.
//!
//! `cargo run --release -p transom-registry --example copy`: a few seconds on an idle machine. Each batch runs every
//! variant, in an order that rotates; the first four batches only warm up; figures are medians in GB/s (10^9 bytes).

#![expect(clippy::print_stdout, reason = "it is what an example is for")]

use std::time::Instant;

use transom_registry::copy::{copy, copy_part};

const SIZES: [usize; 13] = [
    64,
    100,
    256,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    8 << 20,
    16 << 20,
    64 << 20,
];
const WARM_UPS: usize = 4;
const BATCHES: usize = 21;

/// Bytes per batch of one variant, at least one copy.
const BATCH: usize = 4 << 20;

type Variant = (&'static str, unsafe fn(*mut u8, *const u8, usize));

const VARIANTS: [Variant; 3] = [("libc", by_libc), ("ours", copy), ("stream", by_stream)];

unsafe fn by_libc(to: *mut u8, from: *const u8, size: usize) {
    // SAFETY: the caller's promise.
    unsafe { libc::memcpy(to.cast(), from.cast(), size) };
}

unsafe fn by_stream(to: *mut u8, from: *const u8, size: usize) {
    // SAFETY: the caller's promise.
    unsafe { copy_part(to, from, size, usize::MAX) };
}

fn main() {
    let largest = SIZES[SIZES.len() - 1];
    let from = vec![1_u8; largest + 4096];
    let mut to = vec![2_u8; largest + 8192];
    let source = from.as_ptr().align_offset(4096);
    let target = to.as_ptr().align_offset(4096);

    print!("{:>10} {:>8}", "bytes", "target");
    for (name, _) in VARIANTS {
        print!(" {name:>8}");
    }
    println!("  GB/s");
    for size in SIZES {
        for shift in [0, 16] {
            let mut rates = vec![Vec::new(); VARIANTS.len()];
            let times = (BATCH / size).max(1);
            for batch in 0..WARM_UPS + BATCHES {
                for turn in 0..VARIANTS.len() {
                    let which = (turn + batch) % VARIANTS.len();
                    let (source, target) = (&from[source..][..size], &mut to[target + shift..][..size]);
                    let begun = Instant::now();
                    for _ in 0..times {
                        let (to, from) = std::hint::black_box((target.as_mut_ptr(), source.as_ptr()));
                        // SAFETY: both slices have `size` bytes and belong to different vectors.
                        unsafe { VARIANTS[which].1(to, from, size) };
                    }
                    let seconds = begun.elapsed().as_secs_f64();
                    if batch >= WARM_UPS {
                        rates[which].push((size * times) as f64 / seconds / 1e9);
                    }
                }
            }
            print!("{size:>10} {:>8}", if shift == 0 { "aligned" } else { "+16" });
            for rates in &mut rates {
                rates.sort_by(f64::total_cmp);
                print!(" {:>8.1}", rates[rates.len() / 2]);
            }
            println!();
        }
    }
}
