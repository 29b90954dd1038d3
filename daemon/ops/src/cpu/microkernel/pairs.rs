//! Rows and weights in pairs of bf16: a word is a pair of inputs of one row, so that words are packed as `f32` are.

use super::{MatrixRows, Microkernel, RowPanels, TileOutput};

/// Words of 16 rows of weights, one of each row.
pub(in crate::cpu) type PairLanes = [u8; 64];

/// How many pairs so many elements are; the last one may be half empty.
pub(in crate::cpu) fn pairs(depth: usize) -> usize {
    depth.div_ceil(2)
}

/// What multiplies pairs, beside the [`Microkernel`] of the same instructions, which moves their words.
pub(in crate::cpu) struct PairKernel {
    pub(in crate::cpu) round: Round,
    pub(in crate::cpu) pair_inputs: PairInputs,
    pub(in crate::cpu) gemm_panel: GemmPanel,
}

/// Rounds elements to pairs, to nearest even.
///
/// # Safety
/// The CPU has the kernel's instructions.
type Round = unsafe fn(values: &[f32], words: &mut [f32]);

/// Rounds weights that come input by input, 16 rows of them from `lane` on, to pairs. Lanes beyond the rows get zeros.
///
/// # Safety
/// The CPU has the kernel's instructions.
type PairInputs = unsafe fn(inputs: MatrixRows<'_>, lane: usize, words: &mut [f32]);

/// Multiplies packed panels of `x` by the words of 32 rows of weights, of which the last 16 may be none of the output's. The
/// output begins at the first of these rows.
///
/// # Safety
/// The CPU has the kernel's instructions. The output's columns of all rows are nobody else's.
type GemmPanel =
    unsafe fn(rows: &RowPanels, packed: &[f32], weights: [&[PairLanes]; 2], out: TileOutput);

impl PairKernel {
    /// Packs rows of `x` that make a panel, rounded and in pairs. `loose` has room for them.
    pub(in crate::cpu) fn pack_rows(
        &self,
        words_kernel: &Microkernel,
        x: MatrixRows<'_>,
        packed: &mut [f32],
        loose: &mut [f32],
    ) {
        let words = pairs(x.depth);
        for (row, out) in loose.chunks_exact_mut(words).take(x.count).enumerate() {
            // SAFETY: `of` made sure of the instructions.
            unsafe { (self.round)(x.row(row), out) };
        }
        let loose = MatrixRows::new(loose, words, x.count, words);
        words_kernel.transpose(loose, packed, words_kernel.row_lanes, 0);
    }
}
