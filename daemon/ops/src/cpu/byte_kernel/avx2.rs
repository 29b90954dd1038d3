//! Tiles of 6 × 16 by AVX2's byte multiplications, the second eight columns after the first eight: six integer sums,
//! six finished ones, and none that is spilled to memory. AVX-VNNI's dot products of bytes give the same sums, with fewer
//! instructions.

use std::{arch::x86_64::*, mem};

use super::{
    super::lanes::{add_products, align_stack, run, wide},
    BLOCK, ByteKernel, ROWS, Tile, TileOutput,
    microkernel::avx2::{KERNEL as WORDS, elements as numbers_of, vector},
};

const VECTOR: usize = 8;
const COLUMNS: usize = 2 * VECTOR;
const LANES: usize = ROWS;

pub(super) static KERNEL: ByteKernel = ByteKernel {
    lanes: LANES,
    columns: COLUMNS,
    words: &WORDS,
    round,
    wide_bits: Some(8),
    tiles: |groups| match (groups.len, groups.bits) {
        (16, _) => const { &tiles::<4, { run(6) }>() },
        (_, 4) => const { &tiles::<8, { run(4) }>() },
        (_, 8) => const { &wide_tiles::<8>() },
        _ => const { &tiles::<8, { run(5) }>() },
    },
};

/// The same by AVX-VNNI.
pub(super) static VNNI_KERNEL: ByteKernel = ByteKernel {
    wide_bits: None,
    tiles: |groups| match groups.len {
        16 => const { &tiles::<4, BY_VNNI>() },
        _ => const { &tiles::<8, BY_VNNI>() },
    },
    ..KERNEL
};

/// In place of a [`run`]: products are added up in 32 bits at once.
const BY_VNNI: usize = 0;

/// For one row and more, where groups are `STEPS` words of weights, of which `RUN` can be added up in 16 bits.
const fn tiles<const STEPS: usize, const RUN: usize>() -> [Tile; ROWS] {
    [
        tile::<1, STEPS, RUN>,
        tile::<2, STEPS, RUN>,
        tile::<3, STEPS, RUN>,
        tile::<4, STEPS, RUN>,
        tile::<5, STEPS, RUN>,
        tile::<6, STEPS, RUN>,
    ]
}

/// The same for weights of eight bits.
const fn wide_tiles<const STEPS: usize>() -> [Tile; ROWS] {
    [
        wide_tile::<1, STEPS>,
        wide_tile::<2, STEPS>,
        wide_tile::<3, STEPS>,
        wide_tile::<4, STEPS>,
        wide_tile::<5, STEPS>,
        wide_tile::<6, STEPS>,
    ]
}

#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const ROWS: usize, const STEPS: usize, const RUN: usize>(
    x: &[f32],
    elements: &[f32],
    panel: &[f32],
    scales: &[f32],
    out: TileOutput,
) {
    align_stack();
    let x = x.as_chunks::<LANES>().0.as_chunks::<STEPS>().0;
    let numbers = elements.as_chunks::<LANES>().0.as_chunks::<2>().0;
    let panel = (panel.as_chunks::<VECTOR>().0.as_chunks::<2>().0)
        .as_chunks::<STEPS>()
        .0;
    let scales = scales.as_chunks::<VECTOR>().0.as_chunks::<2>().0;
    let (scales, minima) = scales.split_at(scales.len() / 2);
    let mut products = [[[0.0; VECTOR]; 2]; ROWS];
    // Half of the columns at a time: sums of both halves, in integers and in `f32`, would need more than the 16
    // registers.
    for half in 0..2 {
        let mut sums = [_mm256_setzero_ps(); ROWS];
        let groups = x.iter().zip(panel).zip(numbers);
        for (((x, weights), [x_scales, x_sums]), (scales, minima)) in
            groups.zip(scales.iter().zip(minima))
        {
            let weights = weights.each_ref().map(|weights| &weights[half]);
            let whole = whole::<ROWS, STEPS, RUN>(x, &weights);
            let (scale, minimum) = (vector(&scales[half]), vector(&minima[half]));
            // w = scale · q + minimum, so Σ w·x = scale · x_scale · Σ q·x + minimum · (x_scale · Σ x): the second sum
            // was made when `x` was rounded.
            for row in 0..ROWS {
                let both = _mm256_mul_ps(_mm256_set1_ps(x_scales[row]), scale);
                let so_far = _mm256_fmadd_ps(_mm256_set1_ps(x_sums[row]), minimum, sums[row]);
                sums[row] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole[row]), both, so_far);
            }
        }
        for (products, sum) in products.iter_mut().zip(sums) {
            products[half] = numbers_of(sum);
        }
    }
    for (row, products) in products.iter().enumerate() {
        // SAFETY: as the caller says.
        unsafe { out.write(row, products.as_flattened()) };
    }
}

/// [`tile`] for weights whose products don't fit in 16 bits: both are widened to as many, and products added up in 32. Sums of
/// all columns fill the registers, those in `f32` are in memory: a word of `x` that is read for half of the columns alone
/// would be read twice.
#[target_feature(enable = "avx2,fma")]
unsafe fn wide_tile<const ROWS: usize, const STEPS: usize>(
    x: &[f32],
    elements: &[f32],
    panel: &[f32],
    scales: &[f32],
    out: TileOutput,
) {
    align_stack();
    let x = (x.as_chunks::<LANES>().0.as_chunks::<2>().0)
        .as_chunks::<STEPS>()
        .0;
    let numbers = elements.as_chunks::<LANES>().0.as_chunks::<2>().0;
    let panel = (panel.as_chunks::<VECTOR>().0.as_chunks::<2>().0)
        .as_chunks::<STEPS>()
        .0;
    let scales = scales.as_chunks::<VECTOR>().0.as_chunks::<2>().0;
    let (scales, minima) = scales.split_at(scales.len() / 2);
    let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
    let groups = x.iter().zip(panel).zip(numbers);
    for (((x, weights), [x_scales, x_sums]), (scales, minima)) in
        groups.zip(scales.iter().zip(minima))
    {
        let mut whole = [[_mm256_setzero_si256(); 2]; ROWS];
        for ([x_even, x_odd], weights) in x.iter().zip(weights) {
            let weights = weights.each_ref().map(|weights| bytes(weights));
            let even = weights.map(|weights| _mm256_and_si256(weights, _mm256_set1_epi16(255)));
            let odd = weights.map(|weights| _mm256_srli_epi16::<8>(weights));
            for (x, weights) in [(x_even, even), (x_odd, odd)] {
                for row in 0..ROWS {
                    let x = word(x[row]);
                    for half in 0..2 {
                        let products = _mm256_madd_epi16(weights[half], x);
                        whole[row][half] = _mm256_add_epi32(whole[row][half], products);
                    }
                }
            }
        }
        for half in 0..2 {
            let (scale, minimum) = (vector(&scales[half]), vector(&minima[half]));
            for row in 0..ROWS {
                let both = _mm256_mul_ps(_mm256_set1_ps(x_scales[row]), scale);
                let so_far = _mm256_fmadd_ps(_mm256_set1_ps(x_sums[row]), minimum, sums[row][half]);
                sums[row][half] =
                    _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole[row][half]), both, so_far);
            }
        }
    }
    for (row, sums) in sums.into_iter().enumerate() {
        let products = sums.map(|sum| numbers_of(sum));
        // SAFETY: as the caller says.
        unsafe { out.write(row, products.as_flattened()) };
    }
}

/// Sums of a group: in 16 bits for as long as they fit, then in 32.
#[inline]
#[target_feature(enable = "avx2")]
fn whole<const ROWS: usize, const STEPS: usize, const RUN: usize>(
    x: &[[f32; LANES]; STEPS],
    weights: &[&[f32; VECTOR]; STEPS],
) -> [__m256i; ROWS] {
    let mut whole = [_mm256_setzero_si256(); ROWS];
    if RUN == BY_VNNI {
        for (x, weights) in x.iter().zip(weights) {
            let weights = bytes(weights);
            for row in 0..ROWS {
                whole[row] = add_products(whole[row], weights, word(x[row]));
            }
        }
        return whole;
    }
    // `maddubs` saturates instead of wrapping, so a run must end before 32,767 can be reached.
    let run = const { if RUN < STEPS { RUN } else { STEPS } };
    for (x, weights) in x.chunks_exact(run).zip(weights.chunks_exact(run)) {
        let mut short = [_mm256_setzero_si256(); ROWS];
        for (x, weights) in x.iter().zip(weights) {
            let weights = bytes(weights);
            for row in 0..ROWS {
                // Unsigned by signed bytes, as for `dpbusd`: weights are stored without sign, with a minimum.
                let products = _mm256_maddubs_epi16(weights, word(x[row]));
                short[row] = _mm256_add_epi16(short[row], products);
            }
        }
        for row in 0..ROWS {
            whole[row] = _mm256_add_epi32(whole[row], wide(short[row]));
        }
    }
    whole
}

/// A word's four bytes in every lane.
#[inline]
#[target_feature(enable = "avx2")]
fn word(word: f32) -> __m256i {
    _mm256_set1_epi32(word.to_bits().cast_signed())
}

#[target_feature(enable = "avx2,fma")]
unsafe fn round(
    x: &[f32],
    bytes: &mut [i8],
    elements: &mut [f32],
    row: usize,
    lanes: usize,
    group: usize,
) {
    let (x, _) = x.as_chunks::<VECTOR>().0.as_chunks::<4>();
    let (bytes, _) = bytes.as_chunks_mut::<BLOCK>();
    let per_block = 2 * lanes * BLOCK / group;
    for ((x, bytes), numbers) in x
        .iter()
        .zip(bytes)
        .zip(elements.chunks_exact_mut(per_block))
    {
        let x = x.each_ref().map(|x| vector(x));
        let sign = _mm256_set1_ps(-0.0);
        let sizes = x.map(|x| _mm256_andnot_ps(sign, x));
        let largest = _mm256_max_ps(
            _mm256_max_ps(sizes[0], sizes[1]),
            _mm256_max_ps(sizes[2], sizes[3]),
        );
        let odd = _mm256_or_ps(
            _mm256_cmp_ps::<_CMP_UNORD_Q>(x[0], x[1]),
            _mm256_cmp_ps::<_CMP_UNORD_Q>(x[2], x[3]),
        );
        // NaN must stay NaN: `max` would return the other operand and hide it.
        let size = match _mm256_movemask_ps(odd) {
            0 => numbers_of(largest).into_iter().fold(0.0, f32::max),
            _ => f32::NAN,
        };
        // 127 and not 128, as in llama.cpp: `run` counts on no byte being larger.
        let scale = size / 127.0;
        // False for NaN, too: the bytes are zero then, and the scale carries the NaN into the result.
        let inverse = match scale > 0.0 {
            true => _mm256_set1_ps(127.0 / size),
            false => _mm256_setzero_ps(),
        };
        // Rounds to even, the CPU's default, as the AVX-512 kernel does: both give the same bytes.
        let whole = x.map(|x| _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse)));
        // The lowest byte of each 32-bit lane. The packs interleave the two halves of the vectors, which the
        // permutation undoes.
        let low = whole.map(|whole| _mm256_and_si256(whole, _mm256_set1_epi32(255)));
        let mixed = _mm256_packus_epi16(
            _mm256_packus_epi32(low[0], low[1]),
            _mm256_packus_epi32(low[2], low[3]),
        );
        let order = _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0);
        let ordered = _mm256_permutevar8x32_epi32(mixed, order);
        // SAFETY: a vector of bytes is as many bytes.
        *bytes = unsafe { mem::transmute::<__m256i, [i8; BLOCK]>(ordered) };
        let mut sums = [
            sum(_mm256_add_epi32(whole[0], whole[1])),
            sum(_mm256_add_epi32(whole[2], whole[3])),
        ];
        // Rows share a scale in groups of 32; where weights have a scale for each 16, so do the sums.
        if group == BLOCK {
            sums[0] = sums[0].wrapping_add(sums[1]);
        }
        for (numbers, sum) in numbers.chunks_exact_mut(2 * lanes).zip(sums) {
            numbers[row] = scale;
            numbers[lanes + row] = scale * sum as f32;
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn sum(whole: __m256i) -> i32 {
    // SAFETY: a vector is as many integers.
    let numbers: [i32; VECTOR] = unsafe { mem::transmute(whole) };
    numbers.into_iter().fold(0, i32::wrapping_add)
}

#[inline]
#[target_feature(enable = "avx2")]
fn bytes(words: &[f32; VECTOR]) -> __m256i {
    // SAFETY: a vector is as many words, of any bits.
    unsafe { mem::transmute(*words) }
}

#[cfg(test)]
mod tests {
    use sluice_formats::{QuantGroups, noise::Noise};
    use sluice_machine::{InstructionSet, Instructions};

    use super::*;

    const DEPTH: usize = 256;

    /// Both kernels, where this CPU has both.
    fn kernels() -> Option<[&'static ByteKernel; 2]> {
        Instructions::of(InstructionSet::AvxVnni).map(|_| [&KERNEL, &VNNI_KERNEL])
    }

    fn random_bytes(count: usize, seed: u64, values: f64) -> impl Iterator<Item = f64> {
        let noise = Noise::new(seed);
        (0..count as u64).map(move |i| (noise.uniform(0, i, 0) * values).floor())
    }

    fn random_scales(count: usize, seed: u64) -> Vec<f32> {
        random_bytes(count, seed, 1e6)
            .map(|x| x as f32 / 1e6 - 0.5)
            .collect()
    }

    fn words(bytes: &[u8]) -> Vec<f32> {
        bytemuck::pod_collect_to_vec(bytes)
    }

    /// Of a word of each row the bytes with even numbers, then the others.
    fn widened(bytes: &[i8]) -> Vec<i16> {
        let words = bytes.as_chunks::<4>().0.chunks(LANES);
        let halves = words.flat_map(|words| [0, 1].map(|from| (words, from)));
        halves
            .flat_map(|(words, from)| {
                words
                    .iter()
                    .flat_map(move |word| [word[from], word[from + 2]])
            })
            .map(i16::from)
            .collect()
    }

    #[test]
    fn vnni_gives_the_same_bits() {
        let Some(kernels) = kernels() else { return };
        for groups in
            [(32, 4), (32, 5), (16, 6), (32, 8)].map(|(len, bits)| QuantGroups { len, bits })
        {
            let count = DEPTH / groups.len;
            let weights = |columns: usize, seed| -> Vec<u8> {
                let values = f64::from(1 << groups.bits);
                random_bytes(columns * DEPTH, seed, values)
                    .map(|x| x as u8)
                    .collect()
            };
            let x = |lanes: usize, seed| -> Vec<i8> {
                random_bytes(lanes * DEPTH, seed, 255.0)
                    .map(|x| (x - 127.0) as i8)
                    .collect()
            };
            let panel = words(&weights(COLUMNS, 1));
            let x = x(LANES, 2);
            let numbers = random_scales(2 * LANES * count, 3);
            let scales = random_scales(2 * COLUMNS * count, 4);
            for rows in 0..ROWS {
                let [expected, found] = kernels.map(|kernel| {
                    let packed = match kernel.wide_bits == Some(groups.bits) {
                        true => words(bytemuck::cast_slice(&widened(&x))),
                        false => words(bytemuck::cast_slice(&x)),
                    };
                    let mut out = [[0.0; COLUMNS]; ROWS];
                    let target = TileOutput {
                        start: out.as_flattened_mut().as_mut_ptr(),
                        stride: COLUMNS,
                        columns: COLUMNS,
                        adds: false,
                    };
                    // SAFETY: the CPU runs both kernels, and the output has all rows and columns.
                    unsafe {
                        (kernel.tiles)(groups)[rows](&packed, &numbers, &panel, &scales, target);
                    };
                    out
                });
                assert_eq!(found, expected);
            }
        }
    }
}
