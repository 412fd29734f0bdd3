use proptest::prelude::*;

use super::*;

/// Reduces with `routine` at these odd addresses, and checks that no byte outside is touched.
fn reduced<T: Element>(
    routine: unsafe fn(Dtype, Reduce, *mut u8, *const u8, usize),
    operation: Reduce,
    into: &[T],
    from: &[T],
    (into_phase, from_phase): (usize, usize),
) -> Vec<T> {
    let size = size_of_val(into);
    let mut target = vec![0xa5_u8; size + 128];
    let mut source = vec![0x5a_u8; size + 64];
    let begin = 64 + into_phase;
    target[begin..begin + size].copy_from_slice(as_bytes(into));
    source[from_phase..from_phase + size].copy_from_slice(as_bytes(from));
    // SAFETY: `size` bytes follow both, in different vectors.
    unsafe {
        routine(T::DTYPE, operation, target[begin..].as_mut_ptr(), source[from_phase..].as_ptr(), into.len());
    }
    assert!(target[..begin].iter().chain(&target[begin + size..]).all(|byte| *byte == 0xa5));
    let mut result = into.to_vec();
    as_bytes_mut(&mut result).copy_from_slice(&target[begin..begin + size]);
    result
}

/// One element of a type made of 64 random bits, and what the operation should make of two.
trait Model: Element {
    fn random(bits: u64) -> Self;
    fn model(operation: Reduce, a: Self, b: Self) -> Self;
    /// Bits, all NaN being one.
    fn key(self) -> u64;
}

macro_rules! integer_models {
    ($($type:ty),+) => {$(
        impl Model for $type {
            fn random(bits: u64) -> Self {
                bits as Self
            }
            fn model(operation: Reduce, a: Self, b: Self) -> Self {
                match operation {
                    Reduce::Sum => a.wrapping_add(b),
                    Reduce::Min => a.min(b),
                    Reduce::Max => a.max(b),
                    Reduce::Replace => b,
                }
            }
            fn key(self) -> u64 {
                self as u64
            }
        }
    )+};
}

integer_models!(i32, i64, u32, u64);

/// Floats are picked from the interesting ones as often as at random.
macro_rules! float_models {
    ($($type:ty, $bits:ty, $sum:expr);+ $(;)?) => {$(
        impl Model for $type {
            fn random(bits: u64) -> Self {
                let few = [
                    <$type>::NAN, <$type>::INFINITY, <$type>::NEG_INFINITY, <$type>::MAX, <$type>::MIN,
                    <$type>::MIN_POSITIVE, <$type>::EPSILON, <$type>::from_bits(0), <$type>::from_bits(1),
                    <$type>::from_bits(1 << (<$bits>::BITS - 1)),
                ];
                match bits as usize % 20 {
                    which if which < few.len() => few[which],
                    _ => <$type>::from_bits((bits >> 8) as $bits),
                }
            }
            fn model(operation: Reduce, a: Self, b: Self) -> Self {
                match operation {
                    Reduce::Sum => $sum(a, b),
                    Reduce::Replace => b,
                    _ if a.is_nan() => b,
                    _ if b.is_nan() => a,
                    Reduce::Min if b.total_cmp(&a).is_lt() => b,
                    Reduce::Max if b.total_cmp(&a).is_gt() => b,
                    Reduce::Min | Reduce::Max => a,
                }
            }
            fn key(self) -> u64 {
                if self.is_nan() { u64::MAX } else { u64::from(self.to_bits()) }
            }
        }
    )+};
}

float_models! {
    f32, u32, |a: f32, b: f32| a + b;
    f64, u64, |a: f64, b: f64| a + b;
    f16, u16, |a: f16, b: f16| f16::from_f64(a.to_f64() + b.to_f64());
    bf16, u16, |a: bf16, b: bf16| bf16::from_f64(a.to_f64() + b.to_f64());
}

fn agrees<T: Model>(pairs: &[(u64, u64)], phases: (usize, usize)) {
    let into: Vec<T> = pairs.iter().map(|pair| T::random(pair.0)).collect();
    let from: Vec<T> = pairs.iter().map(|pair| T::random(pair.1)).collect();
    for operation in Reduce::ALL {
        for routine in [reduce, reduce::any_machine] {
            let got = reduced(routine, operation, &into, &from, phases);
            for (at, got) in got.into_iter().enumerate() {
                let (a, b) = (into[at], from[at]);
                let expected = T::model(operation, a, b);
                assert_eq!(
                    got.key(),
                    expected.key(),
                    "{} {operation:?} of {:x} and {:x}, element {at}",
                    T::DTYPE,
                    a.key(),
                    b.key()
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: if cfg!(miri) { 2 } else { 128 },
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_type_and_operation_agrees_with_its_scalar_model_at_odd_addresses(
        pairs in proptest::collection::vec(any::<(u64, u64)>(), 0..200),
        phases in (0_usize..16, 0_usize..16),
    ) {
        agrees::<f32>(&pairs, phases);
        agrees::<f64>(&pairs, phases);
        agrees::<f16>(&pairs, phases);
        agrees::<bf16>(&pairs, phases);
        agrees::<i32>(&pairs, phases);
        agrees::<i64>(&pairs, phases);
        agrees::<u32>(&pairs, phases);
        agrees::<u64>(&pairs, phases);
    }
}

/// Sums two columns of 16-bit floats with both routines, long enough for the vector loops.
fn sums<T: Model>(a: u64, b: u64, from_bits: impl Fn(u64) -> T) -> u64 {
    let (into, from) = (vec![from_bits(a); 19], vec![from_bits(b); 19]);
    let fast = reduced(reduce, Reduce::Sum, &into, &from, (1, 3));
    let slow = reduced(reduce::any_machine, Reduce::Sum, &into, &from, (0, 0));
    assert!(fast.iter().chain(&slow).all(|sum| sum.key() == fast[0].key()));
    fast[0].key()
}

#[test]
fn sixteen_bit_sums_round_to_nearest_and_ties_to_even() {
    let half = |bits: u64| f16::from_bits(bits as u16);
    // 2048 + 1 is a tie between 2048 and 2050, 2050 + 1 one between 2050 and 2052; 2048 + 1.001 is above the tie.
    assert_eq!(sums(0x6800, 0x3c00, half), 0x6800);
    assert_eq!(sums(0x6801, 0x3c00, half), 0x6802);
    assert_eq!(sums(0x6800, 0x3c01, half), 0x6801);
    // The greatest number, and half a step more: infinity.
    assert_eq!(sums(0x7bff, 0x4c00, half), 0x7c00);

    let brain = |bits: u64| bf16::from_bits(bits as u16);
    // 256 + 1 is a tie between 256 and 258, 258 + 1 one between 258 and 260.
    assert_eq!(sums(0x4380, 0x3f80, brain), 0x4380);
    assert_eq!(sums(0x4381, 0x3f80, brain), 0x4382);
    assert_eq!(sums(0x4380, 0x3f81, brain), 0x4381);
    assert_eq!(sums(0x7f7f, 0x7f7f, brain), 0x7f80);
}

#[test]
fn a_nan_with_only_low_bits_stays_a_nan_as_bf16() {
    let got = reduced(reduce, Reduce::Sum, &[bf16::from_bits(0x7f81)], &[bf16::from_bits(0)], (1, 1));
    assert!(got[0].is_nan());
    let got = reduced(reduce, Reduce::Sum, &[bf16::INFINITY; 40], &[bf16::NEG_INFINITY; 40], (1, 1));
    assert!(got.iter().all(|number| number.is_nan()));
}

#[test]
fn bytes_of_elements_are_those_of_their_numbers() {
    let mut numbers = [1_u32, 0x0403_0201];
    assert_eq!(as_bytes(&numbers), [1, 0, 0, 0, 1, 2, 3, 4]);
    as_bytes_mut(&mut numbers)[0] = 7;
    assert_eq!(numbers[0], 7);
    assert!(as_bytes::<f16>(&[]).is_empty());
}
