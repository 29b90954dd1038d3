//! Where GGUF's blocks keep quants and scales: the reverse of `sluice_formats`' unpacking.

use half::f16;

use sluice_formats::Format;

/// Weights of a K block.
pub(super) const K_WEIGHTS: usize = 256;

/// Quants of a format: unsigned, with the one that stands for zero where the format has no minima.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quants {
    pub(super) least: f32,
    pub(super) zero: f32,
    pub(super) most: f32,
}

impl Quants {
    pub(super) fn of(format: Format) -> Self {
        let (least, zero, most) = match format {
            // Not -128: kernels take the magnitude as a signed byte.
            Format::Q8_0 => (1., 128., 255.),
            Format::Q6K => (0., 32., 63.),
            Format::Q4K => (0., 0., 15.),
            Format::Q4_0 => (0., 8., 15.),
            _ => unreachable!("the format was checked"),
        };
        Self { least, zero, most }
    }

    /// The nearest quant: an element is quant · scale + minimum.
    #[inline(always)]
    pub(super) fn nearest(self, value: f32, scale: f32, minimum: f32) -> f32 {
        if scale == 0. {
            self.zero
        } else {
            nearest((value - minimum) / scale, self.least, self.most)
        }
    }
}

/// Rounds to an integer within a range below 2²², by moving the value to where floats are integers: the portable
/// instruction set can't round.
#[inline(always)]
pub(super) fn nearest(value: f32, least: f32, most: f32) -> f32 {
    const SHIFT: f32 = (3 << 22) as f32;
    let value = if value > least { value } else { least };
    let value = if value < most { value } else { most };
    (value + SHIFT) - SHIFT
}

/// Half precision; what is too large becomes the largest number.
pub(super) fn half(value: f32) -> f16 {
    let most = f16::MAX.to_f32();
    f16::from_f32(value.clamp(-most, most))
}

/// Writes the quants of a block, and nothing else of it.
pub(super) fn put_quants(format: Format, quants: &[u8], block: &mut [u8]) {
    match format {
        Format::Q8_0 => {
            for (out, quant) in block[2..].iter_mut().zip(quants) {
                *out = quant ^ 128;
            }
        }
        Format::Q4_0 => put_nibbles(quants, &mut block[2..]),
        Format::Q4K => {
            let parts = block[16..].chunks_exact_mut(32);
            parts
                .zip(quants.chunks_exact(64))
                .for_each(|(out, quants)| put_nibbles(quants, out));
        }
        Format::Q6K => {
            let (lows, rest) = block.split_at_mut(128);
            let outs = lows.chunks_exact_mut(64).zip(rest.chunks_exact_mut(32));
            for (quants, (lows, highs)) in quants.chunks_exact(128).zip(outs) {
                for lane in 0..32 {
                    let [a, b, c, d] = [0, 32, 64, 96].map(|start| quants[start + lane]);
                    lows[lane] = a & 15 | c << 4;
                    lows[lane + 32] = b & 15 | d << 4;
                    highs[lane] = a >> 4 | b >> 4 << 2 | c >> 4 << 4 | d >> 4 << 6;
                }
            }
        }
        _ => unreachable!("the format was checked"),
    }
}

/// The first half of the quants in low nibbles, the second in high ones.
fn put_nibbles(quants: &[u8], out: &mut [u8]) {
    let (low, high) = quants.split_at(quants.len() / 2);
    for (out, (low, high)) in out.iter_mut().zip(low.iter().zip(high)) {
        *out = low | high << 4;
    }
}

/// Writes the scale of `q8_0` or `q4_0`.
pub(super) fn put_scale(scale: f16, block: &mut [u8]) {
    block[..2].copy_from_slice(&scale.to_le_bytes());
}

/// Writes the scales of `q6_k`.
pub(super) fn put_q6_k_scales(above: f16, scales: &[i8; 16], block: &mut [u8]) {
    for (out, scale) in block[192..208].iter_mut().zip(scales) {
        *out = scale.cast_unsigned();
    }
    block[208..].copy_from_slice(&above.to_le_bytes());
}

/// Writes the scales and minima of `q4_k`: six bits each for the first four groups; those of the others are split into
/// four bits and two.
pub(super) fn put_q4_k_scales(
    above: [f16; 2],
    scales: &[u8; 8],
    minima: &[u8; 8],
    block: &mut [u8],
) {
    block[..2].copy_from_slice(&above[0].to_le_bytes());
    block[2..4].copy_from_slice(&above[1].to_le_bytes());
    let packed = &mut block[4..16];
    for group in 0..4 {
        let (scale, minimum) = (scales[group + 4], minima[group + 4]);
        packed[group] = scales[group] | scale >> 4 << 6;
        packed[group + 4] = minima[group] | minimum >> 4 << 6;
        packed[group + 8] = scale & 15 | minimum << 4;
    }
}
