//! Tiles of 12 × 32 in AVX-512's registers: 24 sums, two for a row of the panel, one for an element of `x`: 27 of 32
//! registers.

use std::{arch::x86_64::*, mem};

use super::{MatrixRows, Microkernel, TileOf, TileOutput};

const VECTOR: usize = 16;
const COLUMNS: usize = 2 * VECTOR;

pub(in crate::cpu) static KERNEL: Microkernel = Microkernel {
    rows: 12,
    row_lanes: VECTOR,
    columns: COLUMNS,
    transpose,
    tile,
};

unsafe fn tile(rows: usize, x: &[f32], panel: &[f32], out: TileOutput) {
    // A constant number of rows in each, so that the sums are registers and the loops over rows are unrolled.
    const TILES: [TileOf; 12] = [
        tile_of::<1>,
        tile_of::<2>,
        tile_of::<3>,
        tile_of::<4>,
        tile_of::<5>,
        tile_of::<6>,
        tile_of::<7>,
        tile_of::<8>,
        tile_of::<9>,
        tile_of::<10>,
        tile_of::<11>,
        tile_of::<12>,
    ];
    // SAFETY: as the caller says.
    unsafe { TILES[rows - 1](x, panel, out) };
}

/// Prefetches a tile's output, which is not needed before the sums are done.
#[inline]
pub(super) fn prefetch_output<const ROWS: usize>(out: TileOutput) {
    for row in 0..ROWS {
        for half in 0..2 {
            let place = out.start.wrapping_add(row * out.stride + VECTOR * half);
            // SAFETY: a prefetch never faults, so places beyond the output do no harm.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) };
        }
    }
}

#[target_feature(enable = "avx512f")]
unsafe fn tile_of<const ROWS: usize>(x: &[f32], panel: &[f32], out: TileOutput) {
    prefetch_output::<ROWS>(out);
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    let (x, _) = x.as_chunks::<VECTOR>();
    let (panel, _) = panel.as_chunks::<COLUMNS>();
    for (x, weights) in x.iter().zip(panel) {
        let (halves, _) = weights.as_chunks();
        let (low, high) = (vector(&halves[0]), vector(&halves[1]));
        for row in 0..ROWS {
            let x = _mm512_set1_ps(x[row]);
            sums[row][0] = _mm512_fmadd_ps(x, low, sums[row][0]);
            sums[row][1] = _mm512_fmadd_ps(x, high, sums[row][1]);
        }
    }
    // SAFETY: as the caller says.
    unsafe { write(&sums, out) };
}

/// Writes a tile's sums to its output, or adds them.
///
/// # Safety
/// The CPU has AVX-512. The output's columns of these rows are nobody else's.
#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::cpu) unsafe fn write(sums: &[[__m512; 2]], out: TileOutput) {
    // One mask serves full and partial panels alike, so that both take the same path.
    let masks = masks(out.columns);
    for (row, sums) in sums.iter().enumerate() {
        for (half, (&sum, mask)) in sums.iter().zip(masks).enumerate() {
            let place = out.start.wrapping_add(row * out.stride + VECTOR * half);
            // SAFETY: the mask leaves the output's columns alone, which are this tile's.
            unsafe {
                let sum = match out.adds {
                    true => _mm512_add_ps(_mm512_maskz_loadu_ps(mask, place), sum),
                    false => sum,
                };
                _mm512_mask_storeu_ps(place, mask, sum);
            }
        }
    }
}

/// Masks of the first columns, in two vectors; there may be none.
pub(in crate::cpu) fn masks(columns: usize) -> [__mmask16; 2] {
    assert!(columns <= COLUMNS, "a tile has no more columns");
    // Wider than all columns, so that neither none nor all of them shift by the full width.
    let mask = (1_u64 << columns) - 1;
    [mask as __mmask16, (mask >> VECTOR) as __mmask16]
}

/// Loads a vector. By value, since the intrinsic is a copy between pointers, which an unoptimised standard library checks for
/// overlap each time.
#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::cpu) fn vector(values: &[f32; VECTOR]) -> __m512 {
    // SAFETY: a vector is as many elements, of any bits.
    unsafe { mem::transmute(*values) }
}

/// Stores a vector at the beginning of `out`.
#[inline]
#[target_feature(enable = "avx512f")]
fn store(vector: __m512, out: &mut [f32]) {
    let place = out.first_chunk_mut::<VECTOR>();
    // SAFETY: as above.
    *place.expect("lanes are whole vectors") =
        unsafe { mem::transmute::<__m512, [f32; VECTOR]>(vector) };
}

#[target_feature(enable = "avx512f")]
unsafe fn transpose(rows: MatrixRows<'_>, out: &mut [f32], lanes: usize) {
    // Where lanes are fewer than a vector has, each store writes over what the next one writes anew.
    assert!(rows.count <= lanes && (lanes.is_multiple_of(VECTOR) || lanes < VECTOR));
    for first in (0..rows.count).step_by(VECTOR) {
        let last = VECTOR.min(rows.count - first) - 1;
        for from in (0..rows.depth).step_by(VECTOR) {
            let count = VECTOR.min(rows.depth - from);
            let [mask, _] = masks(count);
            let mut vectors = [_mm512_setzero_ps(); VECTOR];
            for (row, vector) in vectors.iter_mut().enumerate() {
                // The last row is loaded again for those that do not exist: a mask for each row would cost more than
                // the load.
                let place = (first + row.min(last)) * rows.stride + from;
                let place = rows.values.as_ptr().wrapping_add(place);
                // SAFETY: the mask keeps the load within the row.
                *vector = unsafe { _mm512_maskz_loadu_ps(mask, place) };
            }
            let vectors = transposed(vectors);
            // Two loops, since the count must be a constant for full vectors: with a variable one the compiler keeps
            // all 16 in memory to index them.
            if count == VECTOR {
                for (index, vector) in vectors.iter().enumerate() {
                    store(*vector, &mut out[(from + index) * lanes + first..]);
                }
            } else {
                for (index, vector) in vectors[..count].iter().enumerate() {
                    store(*vector, &mut out[(from + index) * lanes + first..]);
                }
            }
        }
    }
}

/// Lane `j` of vector `i` becomes lane `i` of vector `j`.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(rows: [__m512; VECTOR]) -> [__m512; VECTOR] {
    // Pairs of rows, then fours, within each quarter of a vector; then the quarters.
    let mut pairs = rows;
    for i in (0..VECTOR).step_by(2) {
        pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    let mut fours = pairs;
    for i in (0..VECTOR).step_by(4) {
        // Casts to doubles are no instructions: `unpack` of doubles moves pairs of elements at once.
        let low = [_mm512_castps_pd(pairs[i]), _mm512_castps_pd(pairs[i + 2])];
        let high = [
            _mm512_castps_pd(pairs[i + 1]),
            _mm512_castps_pd(pairs[i + 3]),
        ];
        fours[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(low[0], low[1]));
        fours[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low[0], low[1]));
        fours[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high[0], high[1]));
        fours[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high[0], high[1]));
    }
    let mut out = fours;
    for i in 0..4 {
        let [a, b, c, d] = [fours[i], fours[i + 4], fours[i + 8], fours[i + 12]];
        let even = [
            _mm512_shuffle_f32x4::<0x88>(a, b),
            _mm512_shuffle_f32x4::<0x88>(c, d),
        ];
        let odd = [
            _mm512_shuffle_f32x4::<0xdd>(a, b),
            _mm512_shuffle_f32x4::<0xdd>(c, d),
        ];
        out[i] = _mm512_shuffle_f32x4::<0x88>(even[0], even[1]);
        out[i + 8] = _mm512_shuffle_f32x4::<0xdd>(even[0], even[1]);
        out[i + 4] = _mm512_shuffle_f32x4::<0x88>(odd[0], odd[1]);
        out[i + 12] = _mm512_shuffle_f32x4::<0xdd>(odd[0], odd[1]);
    }
    out
}
