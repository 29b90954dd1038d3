//! What the formats whose blocks have 32 weights share.

use super::super::blocks::SMALL_WEIGHTS;

/// Quantizes block after block: all weights, to as many whole blocks. `quantize` must be a function that is always inlined,
/// and no closure, or it is compiled without the vector features of the caller.
#[inline(always)]
pub(super) fn each_small_block<const BYTES: usize>(
    values: &[f32],
    bytes: &mut [u8],
    quantize: impl Fn(&[f32; SMALL_WEIGHTS], &mut [u8; BYTES]),
) {
    let (values, rest) = values.as_chunks();
    let (blocks, rest_out) = bytes.as_chunks_mut();
    assert!(rest.is_empty() && rest_out.is_empty() && values.len() == blocks.len());
    for (values, block) in values.iter().zip(blocks) {
        quantize(values, block);
    }
}

/// The bits of a magnitude: as integers they have a vector maximum. NaN doesn't count.
#[inline(always)]
pub(super) fn magnitude(value: f32) -> u32 {
    let bits = value.abs().to_bits();
    if bits > f32::INFINITY.to_bits() {
        0
    } else {
        bits
    }
}

/// The largest of them.
#[inline(always)]
pub(super) fn largest_magnitude(values: &[f32; SMALL_WEIGHTS]) -> u32 {
    (values.iter()).fold(0, |largest, &value| magnitude(value).max(largest))
}
