//! Keys and values of one head as they are stored, row by row, and their products with queries and with weights: no row is
//! dequantized to memory first. Each product is summed as a tile of packed panels sums it: a score element after element of
//! a head, a mean key after key, with a single rounding each (FMA).

mod portable;
#[cfg(target_arch = "x86_64")]
mod transposed;
#[cfg(target_arch = "x86_64")]
mod x86;

use sluice_formats::Format;
#[cfg(target_arch = "x86_64")]
use sluice_machine::InstructionSet;
use sluice_machine::Instructions;

/// Elements that are read at a time.
#[cfg(target_arch = "x86_64")]
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

/// How heads of queries stand, or of sums for them: elements from one to the next, and how many of each are computed with.
#[derive(Clone, Copy)]
struct Heads {
    stride: usize,
    dim: usize,
}

/// # Safety
/// The CPU has the kernel's instructions; there are rows, they and queries have as many elements as the kernel is for, and
/// scores are a row for each query, of one for each key.
type Score = unsafe fn(queries: &[f32], heads: Heads, keys: StoredRows<'_>, scores: &mut [f32]);

/// # Safety
/// As [`Score`], of weights and sums.
type Weigh = unsafe fn(weights: &[f32], values: StoredRows<'_>, sums: &mut [f32], heads: Heads);

impl Kernels {
    /// Those for heads of `dim` elements in this format; `None` where the format, the dimension or the CPU has none.
    pub(super) fn of(instructions: Instructions, format: Format, dim: usize) -> Option<Self> {
        let (score, weigh) = Self::functions(instructions, format, dim)?;
        Some(Self {
            score,
            weigh,
            head_bytes: format.bytes(dim),
            dim,
        })
    }

    /// Those for heads of `f32`, padded to whole pieces.
    pub(super) fn of_f32(instructions: Instructions, dim: usize) -> Self {
        Self::of(instructions, Format::F32, dim).expect("every instruction set has kernels of f32")
    }

    fn functions(instructions: Instructions, format: Format, dim: usize) -> Option<(Score, Weigh)> {
        #[cfg(target_arch = "x86_64")]
        if instructions.has(InstructionSet::Avx2) {
            if !dim.is_multiple_of(PIECE.max(format.block_len())) {
                return None;
            }
            return match instructions.has(InstructionSet::Avx512) {
                true => x86::avx512::kernels(format, dim / PIECE),
                false => x86::avx2::kernels(format, dim / PIECE),
            };
        }
        // Elsewhere there are these alone.
        let _ = (instructions, dim);
        (format == Format::F32).then_some((portable::score, portable::weigh))
    }

    /// The dot products of queries, which stand `stride` elements apart, and keys: a row of scores for each query.
    pub(super) fn score(
        &self,
        queries: &[f32],
        stride: usize,
        keys: StoredRows<'_>,
        scores: &mut [f32],
    ) {
        self.check(keys, scores.len(), queries.len(), stride);
        let dim = self.dim;
        // SAFETY: `of` made sure of the instructions, and lengths were compared.
        unsafe { (self.score)(queries, Heads { stride, dim }, keys, scores) };
    }

    /// Adds values to rows of `out`, which stand `stride` elements apart, each times the row's weight of it: their sum is
    /// taken first, in the order of the values.
    pub(super) fn weigh(
        &self,
        weights: &[f32],
        values: StoredRows<'_>,
        out: &mut [f32],
        stride: usize,
    ) {
        self.check(values, weights.len(), out.len(), stride);
        let dim = self.dim;
        // SAFETY: as above.
        unsafe { (self.weigh)(weights, values, out, Heads { stride, dim }) };
    }

    /// # Panics
    /// When rows are not there, or numbers of scores or weights don't fit those of elements.
    fn check(&self, rows: StoredRows<'_>, scores: usize, elements: usize, stride: usize) {
        assert!(rows.count > 0 && self.dim <= stride);
        assert!((rows.count - 1) * rows.stride + self.head_bytes <= rows.bytes.len());
        assert!(scores.is_multiple_of(rows.count) && scores / rows.count * stride == elements);
    }
}

#[cfg(test)]
mod tests;
