//! The arithmetic of accumulate: two runs of elements at any alignment, by raw pointers only.
//!
//! The loops are written once, vectorised by the compiler, and compiled twice: for every machine of the architecture,
//! and for x86-64 with AVX2 and F16C, which is found out at run time. f16 has a loop of its own there.

use super::{Dtype, Reduce, bf16, f16};
use crate::copy::copy;

/// Reduces `count` elements of `from` into `into`, element by element, without any lock.
///
/// Integers wrap. Of a number and a NaN, [`Reduce::Min`] and [`Reduce::Max`] keep the number; -0 is less than +0. f16 and
/// bf16 are added in f32 and rounded to nearest, ties to even. Sums, and lesser and greater numbers, do not depend on
/// which operand is which, to the bit (but for the payload of a NaN).
///
/// # Safety
/// - `into` is valid for reads and writes of `count * dtype.size()` bytes, `from` for reads of as many;
/// - they do not overlap; any alignment is allowed;
/// - nobody else writes `into` through this function at the same time (the caller holds the stripe's lock).
#[inline]
pub unsafe fn reduce(dtype: Dtype, operation: Reduce, into: *mut u8, from: *const u8, count: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
        // SAFETY: the caller's promise, and both features were just found.
        return unsafe { x86::reduce(dtype, operation, into, from, count) };
    }
    // SAFETY: the caller's promise.
    unsafe { any_machine(dtype, operation, into, from, count) }
}

/// Reduces with what every machine of this architecture has.
///
/// # Safety
/// As for [`reduce`].
#[inline(never)]
pub(super) unsafe fn any_machine(
    dtype: Dtype,
    operation: Reduce,
    into: *mut u8,
    from: *const u8,
    count: usize,
) {
    // SAFETY: the caller's promise.
    unsafe { plain(dtype, operation, into, from, count) }
}

/// Reduces in the instructions of whoever calls it: it and all below it are inlined into a caller's target features.
///
/// # Safety
/// As for [`reduce`].
#[inline(always)]
unsafe fn plain(dtype: Dtype, operation: Reduce, into: *mut u8, from: *const u8, count: usize) {
    // SAFETY: the caller's promise; each type has the size of `dtype`.
    unsafe {
        match dtype {
            Dtype::F32 => numbers::<f32>(operation, into, from, count),
            Dtype::F64 => numbers::<f64>(operation, into, from, count),
            Dtype::F16 => numbers::<f16>(operation, into, from, count),
            Dtype::Bf16 => numbers::<bf16>(operation, into, from, count),
            Dtype::I32 => numbers::<i32>(operation, into, from, count),
            Dtype::I64 => numbers::<i64>(operation, into, from, count),
            Dtype::U32 => numbers::<u32>(operation, into, from, count),
            Dtype::U64 => numbers::<u64>(operation, into, from, count),
        }
    }
}

/// Reduces elements of one type.
///
/// # Safety
/// As for [`reduce`], with `T` for `dtype`.
#[inline(always)]
unsafe fn numbers<T: Number>(operation: Reduce, into: *mut u8, from: *const u8, count: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match operation {
            Reduce::Sum => sums::<T>(into, from, count),
            Reduce::Min => each(into, from, count, T::lesser),
            Reduce::Max => each(into, from, count, T::greater),
            Reduce::Replace => copy(into, from, count * size_of::<T>()),
        }
    }
}

/// Replaces each element of `into` by what `op` makes of it and its counterpart.
///
/// # Safety
/// As for [`reduce`], with `T` for `dtype`.
#[inline(always)]
unsafe fn each<T: Number>(into: *mut u8, from: *const u8, count: usize, op: impl Fn(T, T) -> T) {
    let (into, from) = (into.cast::<T>(), from.cast::<T>());
    for at in 0..count {
        // SAFETY: `at < count`, and the caller vouches for so many elements; alignment is not needed; every pattern of
        // bits is a `T`.
        unsafe {
            let into = into.add(at);
            into.write_unaligned(op(into.read_unaligned(), from.add(at).read_unaligned()));
        }
    }
}

/// Adds each element of `from` to its counterpart.
///
/// Numbers of one vector are loaded, added and stored before the next ones: that is a sixth faster, in the first cache,
/// than the four loads, four additions and four stores that the compiler makes of a plain loop.
///
/// # Safety
/// As for [`each`].
#[inline(always)]
unsafe fn sums<T: Number>(into: *mut u8, from: *const u8, count: usize) {
    const VECTOR: usize = 8;
    const BLOCK: usize = 4 * VECTOR;
    // What is added in another type is vectorised better as a plain loop.
    let whole = if size_of::<T>() < 4 { 0 } else { count - count % BLOCK };
    for at in (0..whole).step_by(BLOCK) {
        for at in [at, at + VECTOR, at + 2 * VECTOR, at + 3 * VECTOR] {
            // SAFETY: `at + VECTOR <= count`, and the caller vouches for so many elements; alignment is not needed; every
            // pattern of bits is a `T`.
            unsafe {
                let into = into.cast::<T>().add(at).cast::<[T; VECTOR]>();
                let mut sums = into.read_unaligned();
                let others = from.cast::<T>().add(at).cast::<[T; VECTOR]>().read_unaligned();
                for (sum, other) in sums.iter_mut().zip(others) {
                    *sum = sum.sum(other);
                }
                into.write_unaligned(sums);
            }
        }
    }
    let done = whole * size_of::<T>();
    // SAFETY: `whole <= count`, and the rest follows it.
    unsafe { each(into.add(done), from.add(done), count - whole, T::sum) }
}

/// What reduce does with two elements, without a branch, so that the compiler can do many at once.
trait Number: Copy {
    /// Their sum.
    fn sum(self, other: Self) -> Self;
    /// The lesser; of a number and a NaN, the number.
    fn lesser(self, other: Self) -> Self;
    /// The greater; of a number and a NaN, the number.
    fn greater(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($type:ty),+) => {$(
        impl Number for $type {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn lesser(self, other: Self) -> Self {
                if other < self { other } else { self }
            }
            #[inline(always)]
            fn greater(self, other: Self) -> Self {
                if other > self { other } else { self }
            }
        }
    )+};
}

integers!(i32, i64, u32, u64);

/// Floats that are compared and added in another type. Equal floats differ at most in the sign of a zero: the lesser has
/// the sign if either has, the greater only if both have.
macro_rules! floats {
    ($($type:ty: $wide:path, $narrow:path);+ $(;)?) => {$(
        impl Number for $type {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                $narrow($wide(self) + $wide(other))
            }
            #[inline(always)]
            fn lesser(self, other: Self) -> Self {
                let (a, b) = ($wide(self), $wide(other));
                let unequal = if (b < a) | (a != a) { other } else { self };
                if a == b { Self::from_bits(self.to_bits() | other.to_bits()) } else { unequal }
            }
            #[inline(always)]
            fn greater(self, other: Self) -> Self {
                let (a, b) = ($wide(self), $wide(other));
                let unequal = if (b > a) | (a != a) { other } else { self };
                if a == b { Self::from_bits(self.to_bits() & other.to_bits()) } else { unequal }
            }
        }
    )+};
}

floats! {
    f32: std::convert::identity, std::convert::identity;
    f64: std::convert::identity, std::convert::identity;
    f16: f16::to_f32, f16::from_f32;
    bf16: widen, narrow;
}

/// The f32 with these upper bits.
#[inline(always)]
fn widen(number: bf16) -> f32 {
    f32::from_bits(u32::from(number.to_bits()) << 16)
}

/// The nearest bf16, of two the even one; a NaN stays one and becomes quiet.
#[inline(always)]
fn narrow(number: f32) -> bf16 {
    let bits = number.to_bits();
    let nearest = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet = (bits >> 16) | 0x40;
    bf16::from_bits(if number.is_nan() { quiet } else { nearest } as u16)
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use std::arch::x86_64::{
        __m128i, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_cvtph_ps,
        _mm256_cvtps_ph, _mm256_loadu_ps, _mm256_storeu_ps,
    };

    use super::{Dtype, Number, Reduce, bf16, copy, each, f16, sums};

    const LANES: usize = 8;

    /// Reduces with AVX2 and F16C. Inlined, so that a caller who knows the type and the operation calls its loop at once.
    ///
    /// # Safety
    /// As for [`super::reduce`]; the machine has both.
    #[inline(always)]
    pub(super) unsafe fn reduce(
        dtype: Dtype,
        operation: Reduce,
        into: *mut u8,
        from: *const u8,
        count: usize,
    ) {
        // SAFETY: the caller's promise; each type has the size of `dtype`.
        unsafe {
            match (dtype, operation) {
                (_, Reduce::Replace) => copy(into, from, count * dtype.size()),
                (Dtype::F32, _) => numbers::<f32>(operation, into, from, count),
                (Dtype::F64, _) => numbers::<f64>(operation, into, from, count),
                (Dtype::F16, _) => halves(operation, into, from, count),
                (Dtype::Bf16, _) => numbers::<bf16>(operation, into, from, count),
                (Dtype::I32, _) => numbers::<i32>(operation, into, from, count),
                (Dtype::I64, _) => numbers::<i64>(operation, into, from, count),
                (Dtype::U32, _) => numbers::<u32>(operation, into, from, count),
                (Dtype::U64, _) => numbers::<u64>(operation, into, from, count),
            }
        }
    }

    /// Reduces elements of one type.
    ///
    /// # Safety
    /// As for [`reduce`], with `T` for `dtype`.
    #[inline(always)]
    unsafe fn numbers<T: Number>(operation: Reduce, into: *mut u8, from: *const u8, count: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match operation {
                Reduce::Sum => added::<T>(into, from, count),
                Reduce::Min => lesser::<T>(into, from, count),
                Reduce::Max => greater::<T>(into, from, count),
                Reduce::Replace => copy(into, from, count * size_of::<T>()),
            }
        }
    }

    macro_rules! loops {
        ($($name:ident: |$into:ident, $from:ident, $count:ident| $loop:expr),+ $(,)?) => {$(
            #[doc = concat!("Makes each element of `into` the ", stringify!($name), " one of the two.")]
            ///
            /// # Safety
            /// As for [`reduce`], with `T` for `dtype`.
            #[target_feature(enable = "avx2")]
            unsafe fn $name<T: Number>($into: *mut u8, $from: *const u8, $count: usize) {
                // SAFETY: the caller's promise.
                unsafe { $loop }
            }
        )+};
    }

    loops! {
        added: |into, from, count| sums::<T>(into, from, count),
        lesser: |into, from, count| each(into, from, count, T::lesser),
        greater: |into, from, count| each(into, from, count, T::greater),
    }

    /// Reduces f16.
    ///
    /// # Safety
    /// As for [`reduce`], with f16 for `dtype`.
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn halves(operation: Reduce, into: *mut u8, from: *const u8, count: usize) {
        let whole = count - count % LANES;
        let done = whole * size_of::<f16>();
        // SAFETY: the caller's promise; `whole <= count`, and the rest follows it.
        unsafe {
            match operation {
                Reduce::Sum => f16s(into, from, whole, f32::sum),
                Reduce::Min => f16s(into, from, whole, f32::lesser),
                Reduce::Max => f16s(into, from, whole, f32::greater),
                Reduce::Replace => return copy(into, from, count * size_of::<f16>()),
            }
            numbers::<f16>(operation, into.add(done), from.add(done), count - whole);
        }
    }

    /// Reduces f16 in f32, eight at a time.
    ///
    /// # Safety
    /// As for [`super::reduce`]; `count` is a multiple of eight.
    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn f16s(into: *mut u8, from: *const u8, count: usize, op: impl Fn(f32, f32) -> f32) {
        for at in (0..count).step_by(LANES) {
            let (mut a, mut b) = ([0_f32; LANES], [0_f32; LANES]);
            // SAFETY: eight elements of two bytes lie at `at` on both sides, at any alignment; `a` and `b` hold eight.
            unsafe {
                let into = into.add(at * 2).cast::<__m128i>();
                let from = from.add(at * 2).cast::<__m128i>();
                _mm256_storeu_ps(a.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(into)));
                _mm256_storeu_ps(b.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(from)));
                for (a, b) in a.iter_mut().zip(b) {
                    *a = op(*a, b);
                }
                let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(a.as_ptr()));
                _mm_storeu_si128(into, halves);
            }
        }
    }
}
