//! Products of pairs of bf16 in tiles (AMX): rows of `x` in panels of 16 beside 32 rows of weights. Every number of rows goes
//! through tiles, whose sums are in an order of their own: an output doesn't depend on how many rows there are.

use std::marker::PhantomData;

use sluice_machine::tiles::{COLUMNS, Lines, ROWS, Shapes, Tiles, WORDS, gemm_panels};

use super::{
    MatrixRows, RowPanels, TileOutput,
    pairs::{PairKernel, PairLanes, pairs},
};

/// What vectors do beside tiles.
///
/// Unsafe functions ask that the CPU has the instructions.
pub(super) trait BesideTiles: Tiles {
    /// As [`PairKernel::round`].
    unsafe fn round(values: &[f32], words: &mut [f32]);

    /// Rounds the elements of a row to its lines of 16 pairs. The last is filled with zeros.
    unsafe fn round_row(values: &[f32], row: usize, panel: &mut [[[f32; WORDS]; ROWS]]);

    /// As [`PairKernel::pair_inputs`].
    unsafe fn pair_inputs(inputs: MatrixRows<'_>, lane: usize, words: &mut [f32]);

    /// Writes the sums of rows to the output, or adds them. The output's columns of these rows are nobody else's.
    unsafe fn write(sums: &[[f32; COLUMNS]], out: TileOutput);
}

/// The kernel of such tiles.
pub(super) struct TilePairs<T>(PhantomData<T>);

impl<T> TilePairs<T> {
    pub(super) const NEW: Self = Self(PhantomData);
}

impl<T: BesideTiles + Sync> PairKernel for TilePairs<T> {
    fn panel_rows(&self) -> usize {
        ROWS
    }

    fn panel_words(&self, depth: usize) -> usize {
        ROWS * pairs(depth).next_multiple_of(WORDS)
    }

    unsafe fn pack_rows(&self, x: MatrixRows<'_>, packed: &mut [f32], _loose: &mut [f32]) {
        let panel = packed.as_chunks_mut().0.as_chunks_mut().0;
        for row in 0..x.count {
            // SAFETY: as the caller says, as for all that follow.
            unsafe { T::round_row(x.row(row), row, panel) };
        }
    }

    unsafe fn round(&self, values: &[f32], words: &mut [f32]) {
        // SAFETY: see above.
        unsafe { T::round(values, words) };
    }

    unsafe fn pair_inputs(&self, inputs: MatrixRows<'_>, lane: usize, words: &mut [f32]) {
        // SAFETY: see above.
        unsafe { T::pair_inputs(inputs, lane, words) };
    }

    unsafe fn begin(&self, rows: usize) {
        // SAFETY: see above.
        unsafe { T::configure(&Shapes::new(rows)) };
    }

    unsafe fn end(&self) {
        // SAFETY: see above.
        unsafe { T::release() };
    }

    unsafe fn gemm_panel(
        &self,
        rows: &RowPanels,
        packed: &[f32],
        weights: [&[PairLanes]; 2],
        out: TileOutput,
    ) {
        let (lines, _) = bytemuck::cast_slice::<f32, u8>(packed).as_chunks();
        let steps = lines
            .as_chunks()
            .0
            .chunks_exact(weights[0].len().div_ceil(WORDS));
        let mut panels = rows.iter().zip(steps).map(|((first, count), lines)| Panel {
            lines,
            count,
            out: out.at_row(first),
        });
        // The first rows bring the weights to the nearest cache, where the others find them.
        let mut prefetches = true;
        while let Some(one) = panels.next() {
            // SAFETY: as the caller says; tiles were configured for as many rows.
            unsafe {
                match panels.next() {
                    Some(two) => multiply_panels::<T, 2>([one, two], weights, prefetches),
                    None => multiply_panels::<T, 1>([one], weights, prefetches),
                }
            }
            prefetches = false;
        }
    }
}

/// A packed panel of `x`, and where its products go.
struct Panel<'a> {
    lines: &'a [Lines],
    /// Rows that it has.
    count: usize,
    out: TileOutput,
}

/// # Safety
/// As [`PairKernel::gemm_panel`].
unsafe fn multiply_panels<T: BesideTiles, const PANELS: usize>(
    panels: [Panel<'_>; PANELS],
    weights: [&[PairLanes]; 2],
    prefetches: bool,
) {
    let mut sums = [[[0.0; COLUMNS]; ROWS]; PANELS];
    let x = panels.each_ref().map(|panel| panel.lines);
    // SAFETY: as the caller says.
    unsafe { gemm_panels::<T, PANELS>(x, weights, prefetches, &mut sums) };
    for (panel, sums) in panels.iter().zip(&sums) {
        // SAFETY: as the caller says.
        unsafe { T::write(&sums[..panel.count], panel.out) };
    }
}

#[cfg(test)]
pub(in crate::cpu) mod model;
