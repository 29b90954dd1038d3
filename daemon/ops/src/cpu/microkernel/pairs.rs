//! Rows and weights in pairs of bf16: a word is a pair of inputs of one row, so that words are packed as `f32` are.

use super::{DEPTH, MatrixRows, Microkernel, TileOutput};

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

/// Multiplies all packed rows of `x`, from word `from` of `words` on, by the words of 32 rows of weights, of which the last 16
/// may be none of the output's.
///
/// # Safety
/// The CPU has the kernel's instructions. The output's columns of all rows are nobody else's.
type GemmPanel = unsafe fn(
    rows: usize,
    packed: &[f32],
    words: usize,
    from: usize,
    weights: [&[PairLanes]; 2],
    out: TileOutput,
);

impl Microkernel {
    /// Packs rows of `x` as [`Microkernel::pack_rows`] does, rounded and in pairs. `loose` has room for a panel's rows in a block
    /// of the depth.
    pub(in crate::cpu) fn pack_row_pairs(
        &self,
        kernel: &PairKernel,
        x: MatrixRows<'_>,
        packed: &mut [f32],
        loose: &mut [f32],
    ) {
        let lanes = self.row_lanes;
        assert_eq!(packed.len(), self.packed_lanes(x.count) * pairs(x.depth));
        let panels = packed.chunks_exact_mut(lanes * pairs(x.depth));
        for ((first, count), panel) in self.row_panels(x.count).zip(panels) {
            let blocks = panel.chunks_mut(lanes * pairs(DEPTH));
            for (from, panel) in (0..x.depth).step_by(DEPTH).zip(blocks) {
                let words = panel.len() / lanes;
                for (row, out) in loose.chunks_exact_mut(words).take(count).enumerate() {
                    let row = x.row(first + row);
                    // SAFETY: `of` made sure of the instructions.
                    unsafe { (kernel.round)(&row[from..x.depth.min(from + DEPTH)], out) };
                }
                self.transpose(MatrixRows::new(loose, words, count, words), panel, lanes, 0);
            }
        }
    }
}
