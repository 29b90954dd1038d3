//! Storage formats: how a tensor's numbers lie in memory, and how a tile of them is widened.

use half::{bf16, f16};

/// How a tensor's numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an `f32`.
    Bf16,
}

impl Format {
    /// The name that plans, logs and screens use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// Bytes of `count` numbers.
    #[must_use]
    pub fn bytes(self, count: usize) -> usize {
        match self {
            Self::F32 => count * 4,
            Self::F16 | Self::Bf16 => count * 2,
        }
    }

    /// The numbers as `f32`, when they lie there so already.
    ///
    /// # Panics
    /// When `bytes` is no whole number of aligned floats.
    #[must_use]
    pub fn as_f32(self, bytes: &[u8]) -> Option<&[f32]> {
        (self == Self::F32).then(|| bytemuck::cast_slice(bytes))
    }

    /// Widens all numbers of `bytes` into `out`. Exact for every format here.
    ///
    /// # Panics
    /// When `bytes` doesn't hold `out.len()` aligned numbers.
    pub fn widen(self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len(), self.bytes(out.len()), "tile and source differ");
        match self {
            Self::F32 => out.copy_from_slice(bytemuck::cast_slice(bytes)),
            Self::F16 => widen_with(bytemuck::cast_slice(bytes), out, f16::to_f32),
            // A shift: written so that the compiler vectorises it without a CPU feature.
            Self::Bf16 => widen_with(bytemuck::cast_slice(bytes), out, |bits: u16| {
                f32::from_bits(u32::from(bits) << 16)
            }),
        }
    }
}

fn widen_with<T: Copy>(source: &[T], out: &mut [f32], widen: impl Fn(T) -> f32) {
    for (out, &value) in out.iter_mut().zip(source) {
        *out = widen(value);
    }
}

/// Bytes of a [`bf16`] number, kept equal to what [`Format::bytes`] counts.
const _: () = assert!(size_of::<bf16>() == 2 && size_of::<f16>() == 2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widening_is_exact() {
        let values = [0.0f32, -0.0, 1.0, -2.5, 65504.0, 6e-8, f32::INFINITY];
        let mut out = [0.0; 7];
        let as_bf16 = values.map(bf16::from_f32);
        Format::Bf16.widen(bytemuck::cast_slice(&as_bf16), &mut out);
        assert_eq!(out, as_bf16.map(bf16::to_f32));
        let as_f16 = values.map(f16::from_f32);
        Format::F16.widen(bytemuck::cast_slice(&as_f16), &mut out);
        assert_eq!(out, as_f16.map(f16::to_f32));
        Format::F32.widen(bytemuck::cast_slice(&values), &mut out);
        assert_eq!(out, values);
    }
}
