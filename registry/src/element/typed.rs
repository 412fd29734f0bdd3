//! Elements as Rust types.

use super::{Dtype, bf16, f16};

mod sealed {
    /// Keeps `Element` to the types below: plain numbers without padding, for which every bit pattern is a value.
    pub trait Sealed {}
}

/// A Rust type that is an element.
pub trait Element: Copy + Send + Sync + 'static + sealed::Sealed {
    /// Its type, as peers name it.
    const DTYPE: Dtype;
}

macro_rules! elements {
    ($($rust:ty: $dtype:ident),+ $(,)?) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: Dtype = Dtype::$dtype;
        }
        const _: () = assert!(size_of::<$rust>() == Dtype::$dtype.size());
    )+};
}

elements!(f32: F32, f64: F64, f16: F16, bf16: Bf16, i32: I32, i64: I64, u32: U32, u64: U64);

/// The bytes of these elements.
#[must_use]
pub fn as_bytes<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: the same bytes for the same borrow; an element has no padding (`sealed::Sealed`), a byte no alignment.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

/// The bytes of these elements, to be written.
#[must_use]
pub fn as_bytes_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `as_bytes`, and whatever is written is a value of `T` (`sealed::Sealed`).
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size_of_val(elements)) }
}
