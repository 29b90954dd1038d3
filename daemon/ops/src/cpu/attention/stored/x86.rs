//! The kernels, compiled for AVX-512 and AVX2.

use sluice_formats::Format;

use super::{
    Heads, PIECE, StoredRows,
    transposed::{ROWS, Transposed, WORDS},
};
use crate::cpu::lanes::Lanes;

/// Most pieces of a head.
const PIECES_MAX: usize = sluice_weights::HEAD_DIM_MAX / PIECE;

/// How elements of a row are read.
trait Elements {
    /// Reads the piece with this index.
    ///
    /// # Safety
    /// As [`Lanes`]; the row has this piece.
    unsafe fn read<L: Lanes>(row: *const u8, piece: usize) -> L::Numbers;

    /// Elements of a word.
    const PARTS: usize;
    /// Bytes that stand before each eight words.
    const PREFIX: usize = 0;

    /// What stands before eight words of 16 rows: what their elements are multiplied by.
    ///
    /// # Safety
    /// As [`Lanes`]; rows begin with eight words and what stands before them.
    #[inline(always)]
    unsafe fn scales<L: Lanes>(_rows: &[*const u8; ROWS]) -> L::Numbers {
        // SAFETY: as the caller says.
        unsafe { L::zero() }
    }

    /// This element of a word of 16 rows.
    ///
    /// # Safety
    /// As [`Lanes`].
    unsafe fn part<L: Transposed>(words: L::Words, part: usize, scales: L::Numbers) -> L::Numbers;
}

struct F32;
struct F16;
struct Bf16;
struct Q8_0;

impl Elements for F32 {
    #[inline(always)]
    unsafe fn read<L: Lanes>(row: *const u8, piece: usize) -> L::Numbers {
        // SAFETY: as the caller says.
        unsafe { L::bits(L::words(row.add(4 * PIECE * piece))) }
    }

    const PARTS: usize = 1;

    #[inline(always)]
    unsafe fn part<L: Transposed>(words: L::Words, _part: usize, _: L::Numbers) -> L::Numbers {
        // SAFETY: as the caller says.
        unsafe { L::bits(words) }
    }
}

impl Elements for F16 {
    #[inline(always)]
    unsafe fn read<L: Lanes>(row: *const u8, piece: usize) -> L::Numbers {
        // SAFETY: as the caller says.
        unsafe { L::halves(row.add(2 * PIECE * piece)) }
    }

    const PARTS: usize = 2;

    #[inline(always)]
    unsafe fn part<L: Transposed>(words: L::Words, part: usize, _: L::Numbers) -> L::Numbers {
        // SAFETY: as the caller says.
        unsafe {
            match part {
                0 => L::low_halves(words),
                _ => L::low_halves(L::shift_right(words, 16)),
            }
        }
    }
}

impl Elements for Bf16 {
    #[inline(always)]
    unsafe fn read<L: Lanes>(row: *const u8, piece: usize) -> L::Numbers {
        // SAFETY: as the caller says.
        unsafe { L::upper_halves(row.add(2 * PIECE * piece)) }
    }

    const PARTS: usize = 2;

    #[inline(always)]
    unsafe fn part<L: Transposed>(words: L::Words, part: usize, _: L::Numbers) -> L::Numbers {
        // SAFETY: as the caller says.
        unsafe {
            L::bits(match part {
                0 => L::shift_left(words, 16),
                _ => L::and(words, 0xffff_0000),
            })
        }
    }
}

impl Elements for Q8_0 {
    #[inline(always)]
    unsafe fn read<L: Lanes>(row: *const u8, piece: usize) -> L::Numbers {
        const PIECES: usize = Format::Q8_0.block_len() / PIECE;
        // SAFETY: as the caller says.
        unsafe {
            let block = row.add(piece / PIECES * Format::Q8_0.block_bytes());
            let scale = half::f16::from_le_bytes([*block, *block.add(1)]);
            let bytes = L::signed_bytes(block.add(2 + piece % PIECES * PIECE));
            L::multiply(bytes, L::splat(scale.to_f32()))
        }
    }

    const PARTS: usize = 4;
    const PREFIX: usize = 2;

    #[inline(always)]
    unsafe fn scales<L: Lanes>(rows: &[*const u8; ROWS]) -> L::Numbers {
        // SAFETY: as the caller says.
        unsafe {
            let mut halves = [0_u16; ROWS];
            for lane in 0..ROWS {
                halves[lane] = rows[lane].cast::<u16>().read_unaligned();
            }
            L::halves(halves.as_ptr().cast())
        }
    }

    #[inline(always)]
    unsafe fn part<L: Transposed>(words: L::Words, part: usize, scales: L::Numbers) -> L::Numbers {
        // SAFETY: as the caller says.
        unsafe {
            let words = match part {
                3 => words,
                _ => L::shift_left(words, 24 - 8 * part as u32),
            };
            L::multiply(L::whole(L::shift_right_signed(words, 24)), scales)
        }
    }
}

/// How often [`WORDS`] go into a cache line.
const UNITS: usize = 2;
/// Most queries that keys are multiplied by at a time.
const QUERIES: usize = 4;

/// # Safety
/// As [`Score`](super::Score). Of one query so many groups of [`ROWS`] keys go side by side, and of two queries so many, so
/// that the steps of one sum don't wait for each other.
#[inline(always)]
unsafe fn score<L: Transposed, E: Elements, const OF_ONE: usize, const OF_TWO: usize>(
    queries: &[f32],
    heads: Heads,
    keys: StoredRows<'_>,
    scores: &mut [f32],
) {
    let parts = queries.chunks(QUERIES * heads.stride);
    for (queries, scores) in parts.zip(scores.chunks_mut(QUERIES * keys.count)) {
        // SAFETY: as the caller says.
        unsafe {
            match queries.len() / heads.stride {
                1 => score_groups::<L, E, 1, OF_ONE>(queries, heads, keys, scores),
                2 => score_groups::<L, E, 2, OF_TWO>(queries, heads, keys, scores),
                3 => score_groups::<L, E, 3, 1>(queries, heads, keys, scores),
                _ => score_groups::<L, E, QUERIES, 1>(queries, heads, keys, scores),
            }
        }
    }
}

/// # Safety
/// As [`Score`](super::Score), for so many queries.
#[inline(always)]
unsafe fn score_groups<L: Transposed, E: Elements, const QUERIES: usize, const GROUPS: usize>(
    queries: &[f32],
    heads: Heads,
    keys: StoredRows<'_>,
    scores: &mut [f32],
) {
    let whole = keys.count - keys.count % (ROWS * GROUPS);
    // SAFETY: as the caller says.
    unsafe {
        for from in (0..whole).step_by(ROWS * GROUPS) {
            score_rows::<L, E, QUERIES, GROUPS>(queries, heads, keys, from, scores);
        }
        for from in (whole..keys.count).step_by(ROWS) {
            score_rows::<L, E, QUERIES, 1>(queries, heads, keys, from, scores);
        }
    }
}

/// # Safety
/// As [`Score`](super::Score), for so many queries and the keys of so many groups, or up to the last.
#[inline(always)]
unsafe fn score_rows<L: Transposed, E: Elements, const QUERIES: usize, const GROUPS: usize>(
    queries: &[f32],
    heads: Heads,
    keys: StoredRows<'_>,
    from: usize,
    scores: &mut [f32],
) {
    let mut rows = [[std::ptr::null(); ROWS]; GROUPS];
    for (group, rows) in rows.iter_mut().enumerate() {
        for (lane, row) in rows.iter_mut().enumerate() {
            // The last key once more in the lanes beyond it.
            let key = (from + group * ROWS + lane).min(keys.count - 1);
            *row = keys.bytes.as_ptr().wrapping_add(key * keys.stride);
        }
    }
    // SAFETY: as the caller says.
    unsafe {
        let mut sums = [[L::zero(); QUERIES]; GROUPS];
        let units = heads.dim / (WORDS * E::PARTS);
        // By cache lines, which the other groups might drive out before their second half is read.
        for line in (0..units).step_by(UNITS) {
            for group in 0..GROUPS {
                for unit in line..units.min(line + UNITS) {
                    let query = queries.as_ptr().add(unit * WORDS * E::PARTS);
                    let scales = E::scales::<L>(&rows[group]);
                    for row in &mut rows[group] {
                        *row = row.wrapping_add(E::PREFIX);
                    }
                    let words = L::transposed(&rows[group]);
                    for (word, &words) in words.iter().enumerate() {
                        for part in 0..E::PARTS {
                            let elements = E::part::<L>(words, part, scales);
                            for (row, sum) in sums[group].iter_mut().enumerate() {
                                let at = row * heads.stride + word * E::PARTS + part;
                                *sum = L::multiply_add(elements, L::splat(*query.add(at)), *sum);
                            }
                        }
                    }
                    for row in &mut rows[group] {
                        *row = row.wrapping_add(4 * WORDS);
                    }
                }
            }
        }
        for (group, sums) in sums.iter().enumerate() {
            let from = from + group * ROWS;
            for (row, &sum) in sums.iter().enumerate() {
                let scores = &mut scores[row * keys.count + from..(row + 1) * keys.count];
                if let Some(scores) = scores.first_chunk_mut::<ROWS>() {
                    L::store(sum, scores.as_mut_ptr());
                } else {
                    let mut own = [0.0; ROWS];
                    L::store(sum, own.as_mut_ptr());
                    scores.copy_from_slice(&own[..scores.len()]);
                }
            }
        }
    }
}

/// # Safety
/// As [`Weigh`](super::Weigh); heads have `PIECES` pieces, or as many as there are where that is 0.
#[inline(always)]
unsafe fn weigh<L: Lanes, E: Elements, const PIECES: usize>(
    weights: &[f32],
    values: StoredRows<'_>,
    sums: &mut [f32],
    heads: Heads,
) {
    let rows = weights.chunks_exact(values.count);
    for (weights, sums) in rows.zip(sums.chunks_exact_mut(heads.stride)) {
        // SAFETY: as the caller says.
        unsafe { weigh_row::<L, E, PIECES>(weights, values, &mut sums[..heads.dim]) };
    }
}

/// # Safety
/// As [`weigh`], for one query.
#[inline(always)]
unsafe fn weigh_row<L: Lanes, E: Elements, const PIECES: usize>(
    weights: &[f32],
    values: StoredRows<'_>,
    out: &mut [f32],
) {
    let pieces = if PIECES == 0 {
        out.len() / PIECE
    } else {
        PIECES
    };
    // SAFETY: as the caller says.
    unsafe {
        let mut sums = [L::zero(); PIECES_MAX];
        let mut row = values.bytes.as_ptr();
        for &weight in weights {
            let weight = L::splat(weight);
            for (piece, sum) in sums[..pieces].iter_mut().enumerate() {
                *sum = L::multiply_add(weight, E::read::<L>(row, piece), *sum);
            }
            row = row.wrapping_add(values.stride);
        }
        for (piece, &sum) in sums[..pieces].iter().enumerate() {
            let place = out.as_mut_ptr().add(PIECE * piece);
            L::store(L::add(L::numbers(place), sum), place);
        }
    }
}

/// Compiles the kernels for an instruction set.
macro_rules! kernels {
    ($name:ident, $lanes:ident, $groups:expr, $features:literal) => {
        pub(super) mod $name {
            use sluice_formats::Format;

            use super::{
                super::{Heads, Score, StoredRows, Weigh},
                Bf16, Elements, F16, F32, Q8_0,
            };
            use crate::cpu::lanes::$lanes;

            pub(in super::super) fn kernels(
                format: Format,
                pieces: usize,
            ) -> Option<(Score, Weigh)> {
                Some(match format {
                    Format::F32 => of::<F32>(pieces),
                    Format::F16 => of::<F16>(pieces),
                    Format::Bf16 => of::<Bf16>(pieces),
                    Format::Q8_0 => of::<Q8_0>(pieces),
                    _ => return None,
                })
            }

            /// The usual head dimensions are constants, so that a head's sums are registers.
            fn of<E: Elements>(pieces: usize) -> (Score, Weigh) {
                match pieces {
                    4 => (score::<E>, weigh::<E, 4>),
                    8 => (score::<E>, weigh::<E, 8>),
                    _ => (score::<E>, weigh::<E, 0>),
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn score<E: Elements>(
                queries: &[f32],
                heads: Heads,
                keys: StoredRows<'_>,
                scores: &mut [f32],
            ) {
                // SAFETY: as the caller says.
                unsafe {
                    super::score::<$lanes, E, { $groups[0] }, { $groups[1] }>(
                        queries, heads, keys, scores,
                    )
                };
            }

            #[target_feature(enable = $features)]
            unsafe fn weigh<E: Elements, const PIECES: usize>(
                weights: &[f32],
                values: StoredRows<'_>,
                sums: &mut [f32],
                heads: Heads,
            ) {
                // SAFETY: as the caller says.
                unsafe { super::weigh::<$lanes, E, PIECES>(weights, values, sums, heads) };
            }
        }
    };
}

kernels! { avx512, Avx512Vnni, [4, 2], "avx512f,avx512bw,avx2,fma,f16c" }
kernels! { avx2, Avx2, [1, 1], "avx2,fma,f16c" }
