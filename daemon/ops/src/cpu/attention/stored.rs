//! Keys and values of one head as they are stored, row by row, and their products with a query and with weights: no row is
//! dequantized to memory first.

#[cfg(target_arch = "x86_64")]
mod x86;

use sluice_formats::Format;
#[cfg(target_arch = "x86_64")]
use sluice_machine::InstructionSet;
use sluice_machine::Instructions;

/// Elements that are read at a time.
const PIECE: usize = 16;

/// The heads of some rows.
#[derive(Clone, Copy)]
pub(super) struct StoredRows<'a> {
    /// From the first row's head on; the last row ends with its head.
    pub(super) bytes: &'a [u8],
    /// Bytes from the beginning of a row to that of the next.
    pub(super) stride: usize,
    pub(super) count: usize,
}

/// Kernels for one format and head dimension.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    score: Score,
    weigh: Weigh,
    /// Bytes of a head that are read.
    head_bytes: usize,
    dim: usize,
}

/// # Safety
/// The CPU has the kernel's instructions; rows and query have as many elements as the kernel is for.
type Score = unsafe fn(query: &[f32], rows: StoredRows<'_>, scores: &mut [f32]);

/// # Safety
/// As [`Score`].
type Weigh = unsafe fn(weights: &[f32], rows: StoredRows<'_>, out: &mut [f32]);

impl Kernels {
    /// Those for heads of `dim` elements in this format; `None` where the format, the dimension or the CPU has none.
    pub(super) fn of(instructions: Instructions, format: Format, dim: usize) -> Option<Self> {
        if !dim.is_multiple_of(PIECE.max(format.block_len())) {
            return None;
        }
        #[cfg(target_arch = "x86_64")]
        {
            let (score, weigh) = if instructions.has(InstructionSet::Avx512) {
                x86::avx512::kernels(format, dim / PIECE)?
            } else if instructions.has(InstructionSet::Avx2) {
                x86::avx2::kernels(format, dim / PIECE)?
            } else {
                return None;
            };
            Some(Self {
                score,
                weigh,
                head_bytes: format.bytes(dim),
                dim,
            })
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = instructions;
            None
        }
    }

    /// The dot product of a query and each key.
    pub(super) fn score(&self, query: &[f32], keys: StoredRows<'_>, scores: &mut [f32]) {
        self.check(keys);
        assert!(query.len() == self.dim && scores.len() == keys.count);
        // SAFETY: `of` made sure of the instructions, and lengths were compared.
        unsafe { (self.score)(query, keys, scores) };
    }

    /// Adds the values to `out`, each times its weight: their sum is taken first, in the order of the values.
    pub(super) fn weigh(&self, weights: &[f32], values: StoredRows<'_>, out: &mut [f32]) {
        self.check(values);
        assert!(out.len() == self.dim && weights.len() == values.count);
        // SAFETY: as above.
        unsafe { (self.weigh)(weights, values, out) };
    }

    fn check(&self, rows: StoredRows<'_>) {
        let last = rows.count.saturating_sub(1) * rows.stride;
        assert!(rows.count == 0 || last + self.head_bytes <= rows.bytes.len());
    }
}

#[cfg(test)]
mod tests;
