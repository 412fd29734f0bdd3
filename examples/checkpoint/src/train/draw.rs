//! Random numbers that depend on what they are for, and not on what was drawn before: every trainer draws the same.

use twox_hash::XxHash3_64;

/// What a number is drawn for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stream {
    /// The examples of a step.
    Batch(u64),
    /// The weights that a tensor begins with.
    Weights(u64),
}

/// The number with this index in a stream.
pub(crate) fn draw(seed: u64, stream: Stream, index: u64) -> u64 {
    let (kind, number): (u64, u64) = match stream {
        Stream::Batch(step) => (0, step),
        Stream::Weights(tensor) => (1, tensor),
    };
    let mut bytes = [0; 24];
    for (into, word) in bytes.chunks_exact_mut(8).zip([kind, number, index]) {
        into.copy_from_slice(&word.to_le_bytes());
    }
    XxHash3_64::oneshot_with_seed(seed, &bytes)
}

/// As [`draw`], evenly from -1 to 1.
pub(crate) fn draw_even(seed: u64, stream: Stream, index: u64) -> f32 {
    // 24 bits: all that a f32 holds of them.
    let bits = (draw(seed, stream, index) >> 40) as f32;
    bits / (1 << 23) as f32 - 1.0
}
