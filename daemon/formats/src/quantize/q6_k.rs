//! `q6_k`: scales of 16 groups of 16, found as ggml's `make_qx_quants` does with squares as weights: at most three
//! rounds of rounding and fitting, then single weights are moved where that fits better.

use half::f16;

use super::{
    super::blocks::{K_WEIGHTS, Q6_K_BYTES, widest},
    lanes::{Groups, any, beside, clamp, low_byte, mask, nearest, pick},
};

/// Weights in a group.
const LEN: usize = 16;
/// Groups in a block.
const GROUPS: usize = K_WEIGHTS / LEN;
/// Blocks whose groups are searched at once: enough lanes to hide the latency of divisions.
const BLOCKS: usize = 2;
/// Offset of stored quants, which makes them unsigned.
const OFFSET: f32 = 32.0;

/// Quantizes whole blocks.
pub(super) fn quantize(values: &[f32], bytes: &mut [u8]) {
    widest!(all(values: &[f32], bytes: &mut [u8]));
}

#[inline(always)]
pub(super) fn all(values: &[f32], bytes: &mut [u8]) {
    let (several, rest) = values.as_chunks::<{ BLOCKS * K_WEIGHTS }>();
    let (several_out, rest_out) = bytes.as_chunks_mut::<{ BLOCKS * Q6_K_BYTES }>();
    for (values, bytes) in several.iter().zip(several_out) {
        some::<{ BLOCKS * GROUPS }>(values, bytes);
    }
    let (values, rest) = rest.as_chunks::<K_WEIGHTS>();
    let (blocks, rest_out) = rest_out.as_chunks_mut::<Q6_K_BYTES>();
    assert!(rest.is_empty() && rest_out.is_empty() && values.len() == blocks.len());
    for (values, block) in values.iter().zip(blocks) {
        some::<GROUPS>(values, block);
    }
}

/// Quantizes blocks with `LANES` groups in all.
#[inline(always)]
fn some<const LANES: usize>(values: &[f32], bytes: &mut [u8]) {
    let (scales, found) = search::<LANES>(&beside(values));
    let blocks = bytes.as_chunks_mut().0.iter_mut();
    let blocks = blocks.zip(values.as_chunks().0).zip(scales.as_chunks().0);
    for (number, ((block, values), scales)) in blocks.enumerate() {
        // For groups whose scale rounds to zero, ggml keeps the quants of the search.
        let found = |group: usize| {
            let lane = number * GROUPS + group;
            std::array::from_fn(|place| low_byte(found[place][lane]))
        };
        write(block, values, scales, found);
    }
}

/// The nearest quant, clamped to six bits.
#[inline(always)]
fn round(value: f32) -> f32 {
    clamp(nearest(value), -OFFSET, OFFSET - 1.0)
}

/// Each group's scale, and its quants with the offset.
#[inline(always)]
fn search<const LANES: usize>(x: &Groups<LANES, LEN>) -> ([f32; LANES], Groups<LANES, LEN>) {
    let (mut largest, mut inverse) = ([0.0; LANES], [0.0; LANES]);
    for x in x {
        for lane in 0..LANES {
            // `>`, not `>=`: of equal magnitudes ggml takes the first.
            let is_larger = mask(x[lane].abs() > f32::abs(largest[lane]));
            largest[lane] = pick(is_larger, x[lane], largest[lane]);
        }
    }
    for lane in 0..LANES {
        inverse[lane] = -OFFSET / largest[lane];
    }
    let mut quants = [[0.0f32; LANES]; LEN];
    let (mut products, mut squares) = ([0.0; LANES], [0.0; LANES]);
    for (x, quants) in x.iter().zip(&mut quants) {
        for lane in 0..LANES {
            let (x, quant) = (x[lane], round(inverse[lane] * x[lane]));
            let weight = x * x;
            quants[lane] = quant;
            products[lane] += weight * x * quant;
            squares[lane] += weight * quant * quant;
        }
    }
    // First phase: rounding by the fitted scale, then fitting it again.
    for _ in 0..3 {
        // A lane that has converged computes the same again and keeps it, since lanes cannot leave the loop alone.
        for lane in 0..LANES {
            inverse[lane] = 1.0 / (products[lane] / squares[lane]);
        }
        let mut is_better = [0; LANES];
        let mut tried = [[0.0f32; LANES]; LEN];
        let (mut tried_products, mut tried_squares) = ([0.0; LANES], [0.0; LANES]);
        for ((x, quants), tried) in x.iter().zip(&quants).zip(&mut tried) {
            for lane in 0..LANES {
                let (x, quant) = (x[lane], round(inverse[lane] * x[lane]));
                let weight = x * x;
                tried[lane] = quant;
                is_better[lane] |= quant.to_bits() ^ quants[lane].to_bits();
                tried_products[lane] += weight * x * quant;
                tried_squares[lane] += weight * quant * quant;
            }
        }
        for lane in 0..LANES {
            // ggml compares the squared correlation sum(xq)² / sum(q²), which measures the error of the best scale,
            // without the division.
            let best = products[lane] / squares[lane] * products[lane];
            let (products, squares): (f32, f32) = (tried_products[lane], tried_squares[lane]);
            // Written so that NaN continues, as in ggml.
            let ends = (squares == 0.0) | (products * products <= best * squares);
            is_better[lane] = mask((is_better[lane] != 0) & !ends);
        }
        if !any(&is_better) {
            break;
        }
        for (quants, tried) in quants.iter_mut().zip(&tried) {
            for lane in 0..LANES {
                quants[lane] = pick(is_better[lane], tried[lane], quants[lane]);
            }
        }
        for lane in 0..LANES {
            products[lane] = pick(is_better[lane], tried_products[lane], products[lane]);
            squares[lane] = pick(is_better[lane], tried_squares[lane], squares[lane]);
        }
    }
    // Second phase: coordinate descent over single weights.
    for _ in 0..5 {
        let mut is_changed = [0; LANES];
        for (x, quants) in x.iter().zip(&mut quants) {
            for lane in 0..LANES {
                let (x, quant) = (x[lane], quants[lane]);
                let weight = x * x;
                // Weight by weight: takes it out of both sums, and asks which quant would fit the scale that the others
                // have.
                let others_products = products[lane] - weight * x * quant;
                let others_squares = squares[lane] - weight * quant * quant;
                let moved = round(x * others_squares / others_products);
                let moved_products = others_products + weight * x * moved;
                let moved_squares = others_squares + weight * moved * moved;
                let fits_better = moved_products * moved_products * squares[lane]
                    > products[lane] * products[lane] * moved_squares;
                let moves = mask(
                    (others_products > 0.0)
                        & (moved != quant)
                        & (moved_squares > 0.0)
                        & fits_better,
                );
                quants[lane] = pick(moves, moved, quant);
                products[lane] = pick(moves, moved_products, products[lane]);
                squares[lane] = pick(moves, moved_squares, squares[lane]);
                is_changed[lane] |= moves;
            }
        }
        if !any(&is_changed) {
            break;
        }
    }
    let mut scales = [0.0; LANES];
    for lane in 0..LANES {
        let is_zero = mask(largest[lane] == 0.0);
        scales[lane] = pick(is_zero, 0.0, products[lane] / squares[lane]);
        for quants in &mut quants {
            quants[lane] = pick(is_zero, 0.0, quants[lane] + OFFSET);
        }
    }
    (scales, quants)
}

/// Writes a block: scales in eight bits, and weights quantized by the rounded scales.
#[inline(always)]
fn write(
    block: &mut [u8; Q6_K_BYTES],
    values: &[f32; K_WEIGHTS],
    scales: &[f32; GROUPS],
    found: impl Fn(usize) -> [u8; LEN],
) {
    let mut largest = 0.0f32;
    for &scale in scales {
        if scale.abs() > largest.abs() {
            largest = scale;
        }
    }
    // -128, not 127: the scale of the largest magnitude gets the side that reaches further.
    let inverse = -128.0 / largest;
    let above = f16::from_f32(1.0 / inverse);
    let (lows, rest) = block.split_at_mut(128);
    let (highs, rest) = rest.split_at_mut(64);
    let (packed, rest) = rest.split_at_mut(GROUPS);
    rest.copy_from_slice(&above.to_le_bytes());
    for (packed, scale) in packed.iter_mut().zip(scales) {
        *packed = ((inverse * scale).round() as i32).min(127) as u8;
    }
    // As a reader will see it: weights are quantized by the rounded scales.
    let above = above.to_f32();
    let mut quants = [[0u8; LEN]; GROUPS];
    for (group, values) in values.as_chunks::<LEN>().0.iter().enumerate() {
        let scale = above * f32::from(packed[group].cast_signed());
        if scale == 0.0 {
            quants[group] = found(group);
            continue;
        }
        for (quant, &value) in quants[group].iter_mut().zip(values) {
            *quant = low_byte(round(value / scale) + OFFSET);
        }
    }
    // The reverse of the unpacking in `blocks::k`: four quarters of 32 weights share low halves and high pairs.
    let halves = quants.as_flattened().as_chunks::<128>().0.iter();
    let outs = (lows.as_chunks_mut::<64>().0.iter_mut()).zip(highs.as_chunks_mut::<32>().0);
    for (quants, (lows, highs)) in halves.zip(outs) {
        for lane in 0..32 {
            let [a, b, c, d] = [0, 32, 64, 96].map(|start| quants[start + lane]);
            lows[lane] = a & 15 | c << 4;
            lows[lane + 32] = b & 15 | d << 4;
            highs[lane] = a >> 4 | b >> 4 << 2 | c >> 4 << 4 | d >> 4 << 6;
        }
    }
}
