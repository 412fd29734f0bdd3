//! Accumulates: every type, every reduction, element by element, exact when two write at once.

use half::{bf16, f16};
use transom_transport::{Access, Dtype, Error, PeerRegion, Reduce};

use crate::pattern::Random;
use crate::world::{World, contents, memory, reason, together};

/// What one element becomes, computed one at a time.
fn element(dtype: Dtype, reduce: Reduce, was: &[u8], operand: &[u8]) -> Vec<u8> {
    macro_rules! integer {
        ($t:ty) => {{
            let (a, b) = (
                <$t>::from_le_bytes(was.try_into().unwrap()),
                <$t>::from_le_bytes(operand.try_into().unwrap()),
            );
            let made = match reduce {
                Reduce::Sum => a.wrapping_add(b),
                Reduce::Min => a.min(b),
                Reduce::Max => a.max(b),
                Reduce::Replace => b,
                other => panic!("{other:?} has no model"),
            };
            made.to_le_bytes().to_vec()
        }};
    }
    macro_rules! float {
        ($t:ty, $wide:ty, $to:expr, $from:expr) => {{
            let (a, b) = (
                <$t>::from_le_bytes(was.try_into().unwrap()),
                <$t>::from_le_bytes(operand.try_into().unwrap()),
            );
            if reduce == Reduce::Replace {
                return b.to_le_bytes().to_vec();
            }
            let (wide_a, wide_b): ($wide, $wide) = ($to(a), $to(b));
            let made = match reduce {
                Reduce::Sum => wide_a + wide_b,
                Reduce::Min => wide_a.min(wide_b),
                Reduce::Max => wide_a.max(wide_b),
                other => panic!("{other:?} has no model"),
            };
            let made: $t = $from(made);
            made.to_le_bytes().to_vec()
        }};
    }
    match dtype {
        Dtype::F32 => float!(f32, f32, |x| x, |x| x),
        Dtype::F64 => float!(f64, f64, |x| x, |x| x),
        Dtype::F16 => float!(f16, f32, f16::to_f32, f16::from_f32),
        Dtype::Bf16 => float!(bf16, f32, bf16::to_f32, bf16::from_f32),
        Dtype::I32 => integer!(i32),
        Dtype::I64 => integer!(i64),
        Dtype::U32 => integer!(u32),
        Dtype::U64 => integer!(u64),
        other => panic!("{other} has no model"),
    }
}

fn is_nan(dtype: Dtype, bytes: &[u8]) -> bool {
    match dtype {
        Dtype::F32 => f32::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
        Dtype::F64 => f64::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
        Dtype::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
        Dtype::Bf16 => bf16::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
        _ => false,
    }
}

fn random_element(dtype: Dtype, random: &mut Random) -> Vec<u8> {
    let number = match random.below(8) {
        0 => f64::NAN,
        1 => f64::INFINITY,
        2 => f64::NEG_INFINITY,
        3 => 65504.0,
        4 => -1e30,
        // Never zero: the sign of the lesser of two zeros is nobody's promise.
        _ => (random.below(20_000) as f64 + 0.5) / 7.0 * if random.below(2) == 0 { 1.0 } else { -1.0 },
    };
    match dtype {
        Dtype::F32 => (number as f32).to_le_bytes().to_vec(),
        Dtype::F64 => number.to_le_bytes().to_vec(),
        Dtype::F16 => f16::from_f64(number).to_le_bytes().to_vec(),
        Dtype::Bf16 => bf16::from_f64(number).to_le_bytes().to_vec(),
        _ => {
            let bits = if random.below(4) == 0 { random.below(3).wrapping_sub(1) } else { random.any() };
            bits.to_le_bytes()[..dtype.size()].to_vec()
        }
    }
}

pub async fn every_type_and_reduction_makes_what_the_scalar_model_makes(world: World) {
    const SIZE: usize = 64 << 10;
    let region = world.region(SIZE, 0);
    let target = world.open(&region).await;
    let mut random = Random::new(77);
    for dtype in Dtype::ALL {
        let width = dtype.size();
        for reduce in Reduce::ALL {
            // Odd counts, across stripes, and places that are aligned to the element only.
            for (at, count) in
                [(0, 0), (0, 1), (1, 2), (3, 3), (5, 7), (0, 64), (1, 65), (4096 / width - 1, 2), (7, 3000)]
            {
                let offset = at * width;
                let size = count * width;
                let fresh = |random: &mut Random| -> Vec<u8> {
                    (0..SIZE / width).flat_map(|_| random_element(dtype, random)).collect()
                };
                let was = if count > 100 || at == 0 { fresh(&mut random) } else { contents(&region) };
                region.write(0, &was).unwrap();
                let mut from = vec![0];
                from.extend((0..count).flat_map(|_| random_element(dtype, &mut random)));
                if count % 2 == 0 {
                    // One byte into the vector: the operands have no alignment.
                    target.accumulate(offset as u64, &from[1..], dtype, reduce).await.unwrap();
                    target.flush().await.unwrap();
                } else {
                    let source = memory(&world.initiator, from.clone());
                    let slice = source.slice(1..1 + size).unwrap();
                    target.accumulate_from(offset as u64, slice, dtype, reduce).await.unwrap().await.unwrap();
                }
                let now = contents(&region);
                assert!(now[..offset] == was[..offset], "{dtype} {reduce:?}: before {offset}");
                assert!(
                    now[offset + size..] == was[offset + size..],
                    "{dtype} {reduce:?}: after {offset} + {size}"
                );
                for i in 0..count {
                    let range = offset + i * width..offset + (i + 1) * width;
                    let operand = &from[1 + i * width..1 + (i + 1) * width];
                    let made = element(dtype, reduce, &was[range.clone()], operand);
                    let seen = &now[range.clone()];
                    let same = seen == made || is_nan(dtype, seen) && is_nan(dtype, &made);
                    assert!(
                        same,
                        "{dtype} {reduce:?} {count} at {offset}: element {i} of {:02x?} and {operand:02x?} is \
                         {seen:02x?}, not {made:02x?}",
                        &was[range]
                    );
                }
            }
        }
    }
}

pub async fn typed_elements_are_reduced_as_their_type(world: World) {
    let region = world.region(16, 0);
    let target = world.open(&region).await;
    for _ in 0..3 {
        let call = || PeerRegion::accumulate(&target, 4, &[1.5_f32, -2.0], Reduce::Sum);
        target.patiently(call).await.unwrap();
    }
    target.flush().await.unwrap();
    let bytes = contents(&region);
    let value = |at: usize| f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!([value(0), value(4), value(8), value(12)], [0.0, 4.5, -6.0, 0.0]);
}

pub async fn two_who_accumulate_at_once_lose_nothing(world: World) {
    const ROUNDS: usize = 60;
    for dtype in [Dtype::I64, Dtype::F32] {
        let count = 10_000 / dtype.size();
        let region = world.region(12_000, 0);
        let remote = world.remote(&region);
        let first = world.try_open(&world.initiator, &remote).await.unwrap();
        let second = world.try_open(&world.second, &remote).await.unwrap();
        let one =
            if dtype == Dtype::F32 { 1_f32.to_le_bytes().to_vec() } else { 1_i64.to_le_bytes().to_vec() };
        // Ranges that overlap in part, over several stripes.
        together([(&first, 0), (&second, 200 * dtype.size())].map(|(target, offset)| {
            let from = one.repeat(count);
            async move {
                for _ in 0..ROUNDS {
                    target.accumulate(offset as u64, &from, dtype, Reduce::Sum).await.unwrap();
                }
                target.flush().await.unwrap();
            }
        }))
        .await;
        let bytes = contents(&region);
        for (i, element) in bytes.chunks_exact(dtype.size()).enumerate() {
            let expected = ROUNDS * (usize::from(i < count) + usize::from((200..200 + count).contains(&i)));
            let value = match dtype {
                Dtype::F32 => f32::from_le_bytes(element.try_into().unwrap()) as usize,
                _ => i64::from_le_bytes(element.try_into().unwrap()) as usize,
            };
            assert_eq!(value, expected, "{dtype} element {i}");
        }
    }
}

/// A part that begins between elements: an accumulate there is right or refused, over the edge of a stripe too.
pub async fn a_part_that_begins_between_elements_is_reduced_right_or_refused(world: World) {
    let region = world.region(16 << 10, 0);
    let remote = region.export(4..(16 << 10) - 4, Access::ALL).unwrap();
    let target = world.try_open(&world.initiator, &remote).await.unwrap();
    let from: Vec<u8> = (0..1000_u64).flat_map(|i| (i << 32 | i).to_le_bytes()).collect();
    let done = async {
        target.accumulate(0, &from, Dtype::U64, Reduce::Sum).await?;
        target.flush().await
    };
    match done.await {
        Ok(()) => assert!(contents(&region)[4..8004] == from, "what was accumulated onto zeros"),
        Err(error) => {
            assert!(matches!(reason(&error), Error::Misaligned { .. }), "{error:?}");
            assert!(contents(&region).iter().all(|b| *b == 0));
        }
    }
}

pub async fn accumulates_out_of_place_are_refused_whole(world: World) {
    let region = world.region(64, 0);
    let target = world.open(&region).await;
    let slice = memory(&world.initiator, vec![1; 128]);
    let mut refused = Vec::new();
    for (dtype, offset, size) in
        [(Dtype::F32, 2, 8), (Dtype::F64, 4, 8), (Dtype::F16, 1, 2), (Dtype::U64, 1, 8)]
    {
        let slice = slice.slice(0..size).unwrap();
        refused.push(target.accumulate(offset, &vec![1; size], dtype, Reduce::Sum).await);
        refused.push(target.accumulate_from(offset, slice, dtype, Reduce::Sum).await.map(drop));
    }
    assert!(refused.iter().all(|r| matches!(r, Err(Error::Misaligned { .. }))), "{refused:?}");
    let mut refused = Vec::new();
    for (dtype, size) in [(Dtype::F32, 3), (Dtype::F64, 12), (Dtype::Bf16, 1), (Dtype::I32, 63)] {
        let slice = slice.slice(0..size).unwrap();
        refused.push(target.accumulate(0, &vec![1; size], dtype, Reduce::Max).await);
        refused.push(target.accumulate_from(0, slice, dtype, Reduce::Max).await.map(drop));
    }
    assert!(refused.iter().all(|r| matches!(r, Err(Error::Invalid { .. }))), "{refused:?}");
    let mut refused = Vec::new();
    for (offset, size) in [(0, 72), (64, 8), (56, 16), (u64::MAX - 7, 8), (1 << 40, 8)] {
        let slice = slice.slice(0..size).unwrap();
        refused.push(target.accumulate(offset, &vec![1; size], Dtype::U64, Reduce::Replace).await);
        refused.push(target.accumulate_from(offset, slice, Dtype::U64, Reduce::Replace).await.map(drop));
    }
    assert!(refused.iter().all(|r| matches!(r, Err(Error::OutOfRange { .. }))), "{refused:?}");
    target.flush().await.unwrap();
    assert_eq!(contents(&region), [0; 64]);
    // Nothing is a whole number of elements.
    target.accumulate(64, &[], Dtype::U64, Reduce::Sum).await.unwrap();
    let none = slice.slice(0..0).unwrap();
    target.accumulate_from(64, none, Dtype::F16, Reduce::Sum).await.unwrap().await.unwrap();
}
