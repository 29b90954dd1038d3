//! Plain formats as blocks of one vector without a scale, for dot products alone.

use half::{bf16, f16, slice::HalfFloatSliceExt};

use super::{LANES, add, dots, widest};

/// One vector of elements.
type Out = [f32; LANES];

dots! { dot_f32 = f32s, LANES, 4 * LANES }
dots! { dot_f16 = f16s, LANES, 2 * LANES }
dots! { dot_bf16 = bf16s, LANES, 2 * LANES }

/// Adds products of `f32` weights to partial sums, in the same order as the dot products of plain formats: a row that
/// is added part by part gives the same bits.
///
/// # Panics
/// When they are not whole vectors, or not as many.
pub fn add_dot_products(weights: &[f32], x: &[f32], sums: &mut Out) {
    #[inline(always)]
    fn all(weights: &[f32], x: &[f32], sums: &mut Out) {
        assert!(weights.len() == x.len() && x.len().is_multiple_of(LANES));
        add(weights, x, sums);
    }
    widest!(all(weights: &[f32], x: &[f32], sums: &mut Out));
}

/// Adds weights of one input, each times `x`, to as many partial sums, rounding as [`add_dot_products`] does.
///
/// # Panics
/// When there are not as many.
pub fn add_scaled(weights: &[f32], x: f32, sums: &mut [f32]) {
    #[inline(always)]
    fn all(weights: &[f32], x: f32, sums: &mut [f32]) {
        assert_eq!(weights.len(), sums.len());
        for (sum, weight) in sums.iter_mut().zip(weights) {
            *sum += weight * x;
        }
    }
    widest!(all(weights: &[f32], x: f32, sums: &mut [f32]));
}

/// Upcasts bf16, which is the upper half of an `f32`, by a shift.
///
/// # Panics
/// When the bytes are not aligned.
pub(crate) fn upcast_bf16(bytes: &[u8], out: &mut [f32]) {
    #[inline(always)]
    fn all(bytes: &[u8], out: &mut [f32]) {
        // Panics on unaligned bytes; weights are placed on cache lines.
        let source: &[u16] = bytemuck::cast_slice(bytes);
        for (out, &bits) in out.iter_mut().zip(source) {
            *out = f32::from_bits(u32::from(bits) << 16);
        }
    }
    widest!(all(bytes: &[u8], out: &mut [f32]));
}

#[inline(always)]
fn f32s(block: &[u8; 4 * LANES], out: &mut Out) {
    for (out, bytes) in out.iter_mut().zip(block.as_chunks::<4>().0) {
        *out = f32::from_le_bytes(*bytes);
    }
}

#[inline(always)]
fn f16s(block: &[u8; 2 * LANES], out: &mut Out) {
    let mut numbers = [f16::ZERO; LANES];
    for (number, bytes) in numbers.iter_mut().zip(block.as_chunks::<2>().0) {
        *number = f16::from_le_bytes(*bytes);
    }
    numbers.convert_to_f32_slice(out);
}

#[inline(always)]
fn bf16s(block: &[u8; 2 * LANES], out: &mut Out) {
    for (out, bytes) in out.iter_mut().zip(block.as_chunks::<2>().0) {
        *out = bf16::from_le_bytes(*bytes).to_f32();
    }
}
