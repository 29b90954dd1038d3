//! Rows and weights in pairs of bf16: a word is a pair of inputs of one row, so that words are packed as `f32` are.

use super::{MatrixRows, RowPanels, TileOutput};

/// Words of 16 rows of weights, one of each row.
pub(in crate::cpu) type PairLanes = [u8; 64];

/// How many pairs so many elements are; the last one may be half empty.
pub(in crate::cpu) fn pairs(depth: usize) -> usize {
    depth.div_ceil(2)
}

/// What multiplies pairs, beside the [`Microkernel`](super::Microkernel) of the same instructions, which moves words of weights.
///
/// Unsafe functions ask that the CPU has the kernel's instructions.
pub(in crate::cpu) trait PairKernel: Sync {
    /// Most rows of a panel of `x`.
    fn panel_rows(&self) -> usize;

    /// Words that so much of the depth of a panel takes.
    fn panel_words(&self, depth: usize) -> usize;

    /// Packs rows of `x` that make a panel, rounded to nearest even and in pairs. `loose` has room for them.
    ///
    /// # Safety
    /// See above.
    unsafe fn pack_rows(&self, x: MatrixRows<'_>, packed: &mut [f32], loose: &mut [f32]);

    /// Rounds elements to pairs, to nearest even.
    ///
    /// # Safety
    /// See above.
    unsafe fn round(&self, values: &[f32], words: &mut [f32]);

    /// Rounds weights that come input by input, 16 rows of them from `lane` on, to pairs. Lanes beyond the rows get zeros.
    ///
    /// # Safety
    /// See above.
    unsafe fn pair_inputs(&self, inputs: MatrixRows<'_>, lane: usize, words: &mut [f32]);

    /// Prepares this thread for panels with so many rows at most.
    ///
    /// # Safety
    /// See above.
    unsafe fn begin(&self, _rows: usize) {}

    /// Ends what [`PairKernel::begin`] began.
    ///
    /// # Safety
    /// See above.
    unsafe fn end(&self) {}

    /// Multiplies packed panels of `x` by the words of 32 rows of weights, of which the last 16 may be none of the output's. The
    /// output begins at the first of these rows.
    ///
    /// # Safety
    /// See above, and this thread began with as many rows as any of the panels has. The output's columns of all rows are nobody
    /// else's.
    unsafe fn gemm_panel(
        &self,
        rows: &RowPanels,
        packed: &[f32],
        weights: [&[PairLanes]; 2],
        out: TileOutput,
    );
}

/// A thread that multiplies pairs, until this is dropped.
pub(in crate::cpu) struct Begun(&'static dyn PairKernel);

impl Begun {
    /// # Safety
    /// The CPU has the kernel's instructions.
    pub(in crate::cpu) unsafe fn new(kernel: &'static dyn PairKernel, panels: &RowPanels) -> Self {
        // SAFETY: as the caller says.
        unsafe { kernel.begin(panels.tallest()) };
        Self(kernel)
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        // SAFETY: as when it began.
        unsafe { self.0.end() };
    }
}
