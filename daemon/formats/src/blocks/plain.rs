//! Plain formats.

use super::widest;

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
