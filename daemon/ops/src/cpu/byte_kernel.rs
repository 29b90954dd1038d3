//! Kernels of matmuls in integers, one for each instruction set: how rows of `x` are rounded to 8 bits and packed, and tiles of
//! the output.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod vnni;

use sluice_formats::{Format, QuantGroups};
#[cfg(target_arch = "x86_64")]
use sluice_machine::InstructionSet;
use sluice_machine::Instructions;

use super::microkernel::{self, LINE, MatrixRows, Microkernel, TileOutput};

/// Elements of a row of `x` that share a scale.
pub(super) const BLOCK: usize = 32;
/// Bytes in a word: those that one lane multiplies and adds together.
pub(super) const BYTES: usize = 4;
/// Most rows of `x` that a tile of the output has.
pub(super) const ROWS: usize = 6;

/// The kernel of one instruction set.
pub(super) struct ByteKernel {
    /// Words from one word of a packed panel of rows to the next: as many as rows, since fewer bytes stay in nearer caches.
    pub(super) lanes: usize,
    /// Weight rows in a panel: columns of a tile.
    pub(super) columns: usize,
    /// The `f32` kernel that transposes words for this one.
    pub(super) words: &'static Microkernel,
    pub(super) round: Round,
    /// Bits of weights that are multiplied by rows of `x` in 16 bits: by one instruction for half as many products, where
    /// those of bytes would not fit.
    pub(super) wide_bits: Option<u32>,
    /// Tiles of one row up to [`ROWS`].
    pub(super) tiles: fn(QuantGroups) -> &'static [Tile; ROWS],
}

/// Rounds a row to bytes, and writes of each group its scale, and its sum times the scale, to the row's lane of
/// `numbers`.
///
/// # Safety
/// The CPU has the kernel's instructions.
pub(super) type Round = unsafe fn(
    x: &[f32],
    bytes: &mut [i8],
    numbers: &mut [f32],
    row: usize,
    lanes: usize,
    group: usize,
);

/// Multiplies a packed panel of rows, with scales and sums of their groups in `numbers`, by one of weights with scales
/// and minima.
///
/// # Safety
/// The CPU has the kernel's instructions, and the output's columns of the tile's rows are nobody else's.
pub(super) type Tile =
    unsafe fn(x: &[f32], numbers: &[f32], panel: &[f32], scales: &[f32], out: TileOutput);

impl ByteKernel {
    /// The best one of these instructions, if they have one.
    fn of(instructions: Instructions) -> Option<&'static Self> {
        #[cfg(target_arch = "x86_64")]
        {
            if instructions.has(InstructionSet::Avx512Vnni) {
                return Some(&vnni::KERNEL);
            }
            if instructions.has(InstructionSet::AvxVnni) {
                return Some(&avx2::VNNI_KERNEL);
            }
            if instructions.has(InstructionSet::Avx2) {
                return Some(&avx2::KERNEL);
            }
        }
        let _ = instructions;
        None
    }

    /// All that this CPU can run.
    #[cfg(test)]
    pub(super) fn all() -> Vec<&'static Self> {
        let all = Instructions::all().iter();
        let mut all: Vec<_> = all
            .filter_map(|&instructions| Self::of(instructions))
            .collect();
        all.dedup_by(|a, b| std::ptr::eq(*a, *b));
        all
    }
}

/// Whether rows are rounded to be multiplied with weights of this format: it stores integers, and these are instructions for
/// them.
pub(crate) fn rounds_rows(instructions: Instructions, format: Format) -> bool {
    kernel_for(instructions, format).is_some()
}

/// The kernel that multiplies weights of this format, and how they are grouped. It is the same for any number of rows.
pub(super) fn kernel_for(
    instructions: Instructions,
    format: Format,
) -> Option<(&'static ByteKernel, QuantGroups)> {
    Some((ByteKernel::of(instructions)?, format.groups()?))
}

/// Panels of rows of `x` for one kernel: two values for each group, then bytes.
#[derive(Clone, Copy)]
pub(super) struct RoundedPanels {
    kernel: &'static ByteKernel,
    groups: QuantGroups,
}

impl RoundedPanels {
    /// Those of a kernel, for weights in such groups.
    pub(super) fn new(kernel: &'static ByteKernel, groups: QuantGroups) -> Self {
        Self { kernel, groups }
    }

    /// Elements that a scale of weights is for; all else is the same for all formats.
    pub(super) fn group(&self) -> usize {
        self.groups.len
    }

    /// Whether its bytes lie in words of 16 bits: two words in place of one, of the first and third byte, and of the others.
    pub(super) fn is_wide(&self) -> bool {
        self.kernel.wide_bits == Some(self.groups.bits)
    }

    /// Words of a row's bytes.
    pub(super) fn row_words(&self, depth: usize) -> usize {
        match self.is_wide() {
            true => 2 * depth / BYTES,
            false => depth / BYTES,
        }
    }

    /// Words of so much of the depth of a panel, and some behind them that are overwritten while it is packed.
    pub(super) fn words(&self, depth: usize) -> usize {
        self.kernel.lanes * (2 * depth / self.groups.len + self.row_words(depth)) + LINE
    }

    /// Rounds rows of `x` and packs them.
    pub(super) fn pack(&self, x: MatrixRows<'_>, loose: &mut [f32], packed: &mut [f32]) {
        let (rows, depth, lanes) = (x.count(), x.depth(), self.kernel.lanes);
        let (numbers, bytes) = packed.split_at_mut(2 * lanes * depth / self.groups.len);
        let words = self.row_words(depth);
        let (loose, narrow) = loose.split_at_mut(rows * words);
        for (row, rounded) in loose.chunks_exact_mut(words).enumerate() {
            let bytes = match self.is_wide() {
                true => &mut narrow[..depth / BYTES],
                false => &mut *rounded,
            };
            let bytes = bytemuck::cast_slice_mut(bytes);
            // SAFETY: `of` made sure of the instructions.
            unsafe {
                (self.kernel.round)(x.row(row), bytes, numbers, row, lanes, self.groups.len);
            }
            if self.is_wide() {
                let bytes = bytemuck::cast_slice(&narrow[..depth / BYTES]);
                widen(bytes, bytemuck::cast_slice_mut(rounded));
            }
        }
        let rounded = MatrixRows::new(loose, words, rows, words);
        // Words of four bytes are transposed as if they were `f32`, which only moves bits: the lanes of a vector are
        // then the rows.
        self.kernel.words.transpose(rounded, bytes, lanes, 0);
    }
}

/// Four bytes to two words: those with even numbers, then the others, as masks and shifts take weights apart.
fn widen(bytes: &[i8], words: &mut [[i16; BYTES]]) {
    for (&[a, b, c, d], words) in bytes.as_chunks().0.iter().zip(words) {
        *words = [a, c, b, d].map(i16::from);
    }
}
