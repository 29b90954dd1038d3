//! The kernels, compiled for AVX-512 and AVX2.

use sluice_formats::Format;

use super::{PIECE, StoredRows};
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
}

impl Elements for F16 {
    #[inline(always)]
    unsafe fn read<L: Lanes>(row: *const u8, piece: usize) -> L::Numbers {
        // SAFETY: as the caller says.
        unsafe { L::halves(row.add(2 * PIECE * piece)) }
    }
}

impl Elements for Bf16 {
    #[inline(always)]
    unsafe fn read<L: Lanes>(row: *const u8, piece: usize) -> L::Numbers {
        // SAFETY: as the caller says.
        unsafe { L::upper_halves(row.add(2 * PIECE * piece)) }
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
}

/// # Safety
/// As [`Score`]; heads have `PIECES` pieces, or as many as the query where that is 0.
#[inline(always)]
unsafe fn score<L: Lanes, E: Elements, const PIECES: usize>(
    query: &[f32],
    rows: StoredRows<'_>,
    scores: &mut [f32],
) {
    let pieces = if PIECES == 0 {
        query.len() / PIECE
    } else {
        PIECES
    };
    // SAFETY: as the caller says.
    unsafe {
        let mut held = [L::zero(); PIECES_MAX];
        for (piece, held) in held[..pieces].iter_mut().enumerate() {
            *held = L::numbers(query.as_ptr().add(PIECE * piece));
        }
        let mut row = rows.bytes.as_ptr();
        for score in scores {
            let mut sums = L::multiply(held[0], E::read::<L>(row, 0));
            for (piece, &held) in held[..pieces].iter().enumerate().skip(1) {
                sums = L::multiply_add(held, E::read::<L>(row, piece), sums);
            }
            *score = L::sum(sums);
            row = row.wrapping_add(rows.stride);
        }
    }
}

/// # Safety
/// As [`score`], with `out` for the query.
#[inline(always)]
unsafe fn weigh<L: Lanes, E: Elements, const PIECES: usize>(
    weights: &[f32],
    rows: StoredRows<'_>,
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
        let mut row = rows.bytes.as_ptr();
        for &weight in weights {
            let weight = L::splat(weight);
            for (piece, sum) in sums[..pieces].iter_mut().enumerate() {
                *sum = L::multiply_add(weight, E::read::<L>(row, piece), *sum);
            }
            row = row.wrapping_add(rows.stride);
        }
        for (piece, &sum) in sums[..pieces].iter().enumerate() {
            let place = out.as_mut_ptr().add(PIECE * piece);
            L::store(L::add(L::numbers(place), sum), place);
        }
    }
}

/// Compiles the kernels for an instruction set.
macro_rules! kernels {
    ($name:ident, $lanes:ident, $features:literal) => {
        pub(super) mod $name {
            use sluice_formats::Format;

            use super::{
                super::{Score, StoredRows, Weigh},
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
                    4 => (score::<E, 4>, weigh::<E, 4>),
                    8 => (score::<E, 8>, weigh::<E, 8>),
                    _ => (score::<E, 0>, weigh::<E, 0>),
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn score<E: Elements, const PIECES: usize>(
                query: &[f32],
                rows: StoredRows<'_>,
                scores: &mut [f32],
            ) {
                // SAFETY: as the caller says.
                unsafe { super::score::<$lanes, E, PIECES>(query, rows, scores) };
            }

            #[target_feature(enable = $features)]
            unsafe fn weigh<E: Elements, const PIECES: usize>(
                weights: &[f32],
                rows: StoredRows<'_>,
                out: &mut [f32],
            ) {
                // SAFETY: as the caller says.
                unsafe { super::weigh::<$lanes, E, PIECES>(weights, rows, out) };
            }
        }
    };
}

kernels! { avx512, Avx512Vnni, "avx512f,avx512bw,avx2,fma,f16c" }
kernels! { avx2, Avx2, "avx2,fma,f16c" }
