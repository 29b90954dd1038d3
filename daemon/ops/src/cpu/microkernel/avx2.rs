//! Tiles of 6 × 16 in AVX2's registers: 12 sums, two for a row of the panel, one for an element of `x`: 15 of 16
//! registers.

use std::{arch::x86_64::*, mem};

use super::{MatrixRows, Microkernel, TileOf, TileOutput};

const VECTOR: usize = 8;
const COLUMNS: usize = 2 * VECTOR;

pub(in crate::cpu) static KERNEL: Microkernel = Microkernel {
    rows: 6,
    row_lanes: VECTOR,
    columns: COLUMNS,
    transpose,
    tile,
};

unsafe fn tile(rows: usize, x: &[f32], panel: &[f32], out: TileOutput) {
    // The number of rows is a constant in each, so that the sums are registers and the loops over rows are unrolled.
    const TILES: [TileOf; 6] = [
        tile_of::<1>,
        tile_of::<2>,
        tile_of::<3>,
        tile_of::<4>,
        tile_of::<5>,
        tile_of::<6>,
    ];
    // SAFETY: as the caller says.
    unsafe { TILES[rows - 1](x, panel, out) };
}

#[target_feature(enable = "avx2,fma")]
unsafe fn tile_of<const ROWS: usize>(x: &[f32], panel: &[f32], out: TileOutput) {
    let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
    let (x, _) = x.as_chunks::<VECTOR>();
    let (panel, _) = panel.as_chunks::<COLUMNS>();
    // Each sum adds one element after another with a single rounding (FMA), whatever `ROWS` is: a row's result doesn't
    // depend on those beside it.
    for (x, weights) in x.iter().zip(panel) {
        let (halves, _) = weights.as_chunks();
        let (low, high) = (vector(&halves[0]), vector(&halves[1]));
        for row in 0..ROWS {
            let x = _mm256_set1_ps(x[row]);
            sums[row][0] = _mm256_fmadd_ps(x, low, sums[row][0]);
            sums[row][1] = _mm256_fmadd_ps(x, high, sums[row][1]);
        }
    }
    // A panel at the weights' right edge writes element by element: AVX2 has no masked store that is as cheap as
    // AVX-512's.
    for (row, sums) in sums.iter().enumerate() {
        if out.columns < COLUMNS {
            // SAFETY: as the caller says.
            unsafe { out.write(row, sums.map(|sum| elements(sum)).as_flattened()) };
            continue;
        }
        for (half, &sum) in sums.iter().enumerate() {
            let place = out.start.wrapping_add(row * out.stride + half * VECTOR);
            // SAFETY: as the caller says: whole vectors are the output's. Arrays of `f32` need no more alignment than
            // those.
            let place = unsafe { &mut *place.cast::<[f32; VECTOR]>() };
            *place = elements(match out.adds {
                true => _mm256_add_ps(vector(place), sum),
                false => sum,
            });
        }
    }
}

/// Loads a vector. By value, since the intrinsic is a copy between pointers, which an unoptimised standard library checks for
/// overlap each time.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::cpu) fn vector(values: &[f32; VECTOR]) -> __m256 {
    // SAFETY: a vector is as many elements, of any bits.
    unsafe { mem::transmute(*values) }
}

/// The elements of a vector.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::cpu) fn elements(vector: __m256) -> [f32; VECTOR] {
    // SAFETY: as above.
    unsafe { mem::transmute(vector) }
}

#[target_feature(enable = "avx2")]
unsafe fn transpose(rows: MatrixRows<'_>, out: &mut [f32], lanes: usize) {
    // Where lanes are fewer than a vector has, each store writes over what the next one writes anew.
    assert!(rows.count <= lanes && (lanes.is_multiple_of(VECTOR) || lanes < VECTOR));
    for first in (0..rows.count).step_by(VECTOR) {
        let rows = rows.part(first, VECTOR.min(rows.count - first));
        // AVX2 loads have no masks that are as cheap as AVX-512's: what is left of the depth goes element by element
        // below.
        let whole = rows.depth - rows.depth % VECTOR;
        for from in (0..whole).step_by(VECTOR) {
            let mut vectors = [_mm256_setzero_ps(); VECTOR];
            for (index, vector_out) in vectors.iter_mut().enumerate() {
                if index < rows.count {
                    let values = rows.row(index)[from..].first_chunk();
                    // Rows beyond the last stay zero: their lanes are computed with and never written.
                    *vector_out = vector(values.expect("whole vectors"));
                }
            }
            for (index, vector) in transposed(vectors).iter().enumerate() {
                let place = &mut out[(from + index) * lanes + first..];
                *place.first_chunk_mut().expect("lanes are whole vectors") = elements(*vector);
            }
        }
        for row in 0..rows.count {
            for (k, &value) in rows.row(row).iter().enumerate().skip(whole) {
                out[k * lanes + first + row] = value;
            }
        }
    }
}

/// Lane `j` of vector `i` becomes lane `i` of vector `j`.
#[inline]
#[target_feature(enable = "avx2")]
fn transposed(rows: [__m256; VECTOR]) -> [__m256; VECTOR] {
    // Pairs of rows, then fours, within each half of a vector; then the halves.
    let mut pairs = rows;
    for i in (0..VECTOR).step_by(2) {
        pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    let mut fours = pairs;
    for i in (0..VECTOR).step_by(4) {
        fours[i] = _mm256_shuffle_ps::<0x44>(pairs[i], pairs[i + 2]);
        fours[i + 1] = _mm256_shuffle_ps::<0xee>(pairs[i], pairs[i + 2]);
        fours[i + 2] = _mm256_shuffle_ps::<0x44>(pairs[i + 1], pairs[i + 3]);
        fours[i + 3] = _mm256_shuffle_ps::<0xee>(pairs[i + 1], pairs[i + 3]);
    }
    let mut out = fours;
    for i in 0..4 {
        out[i] = _mm256_permute2f128_ps::<0x20>(fours[i], fours[i + 4]);
        out[i + 4] = _mm256_permute2f128_ps::<0x31>(fours[i], fours[i + 4]);
    }
    out
}
