//! Weights whose rows lie beside each other ([`sluice_formats::interleaved`]): read straight into products with few rows of
//! `x`, and to panels for many.

#[cfg(target_arch = "x86_64")]
mod formats;
#[cfg(target_arch = "x86_64")]
mod kernels;
#[cfg(target_arch = "x86_64")]
mod x86;

use sluice_formats::{Format, interleaved::ROWS};
#[cfg(target_arch = "x86_64")]
use sluice_machine::InstructionSet;
use sluice_machine::Instructions;
use sluice_weights::{Weight, WeightData};

use super::microkernel::TileOutput;

/// The rows of a panel that are read together, each with how many there are: those that lie beside each other apart.
pub(super) fn rows_of_panel(weight: &Weight<'_>) -> impl Iterator<Item = (usize, usize)> + use<> {
    let rows = weight.rows;
    let step = match weight.data {
        WeightData::Interleaved(_) => ROWS,
        _ => rows,
    };
    (0..rows)
        .step_by(step)
        .map(move |row| (row, step.min(rows - row)))
}

/// The rows at the beginning of a weight that lie beside each other, 16 at a time.
pub(super) fn beside<'a>(weight: &Weight<'a>) -> impl Iterator<Item = &'a [u8]> {
    let rows = (0..weight.rows).step_by(ROWS);
    rows.map_while(|row| weight.side_by_side(row))
}

/// Rows of `x` in the order of their elements, as they are multiplied: rounded to bytes in words, and of each group of these
/// its scale, and its sum times the scale.
#[derive(Clone, Copy)]
pub(super) struct RoundedRows<'a> {
    pub(super) words: &'a [f32],
    pub(super) numbers: &'a [f32],
}

/// Lanes of a panel of weights: all pieces of it, each with `step` lanes, of which these rows have 16.
pub(super) struct PanelLanes<'a> {
    pub(super) words: &'a mut [f32],
    /// Of quants, a scale for each group.
    pub(super) scales: &'a mut [f32],
    /// Of quants, a minimum for each group.
    pub(super) minima: &'a mut [f32],
    pub(super) step: usize,
}

/// The kernels of one instruction set, by format.
pub(super) struct Interleaved {
    /// Most rows of `x` that are multiplied by quants without a panel: as many as were measured to be faster so.
    pub(super) few_for_quants: usize,
    /// The same by elements that stand alone.
    pub(super) few_for_elements: usize,
    pub(super) quants: fn(Format) -> QuantKernels,
    pub(super) elements: fn(Format) -> ElementKernels,
}

/// Kernels for a format with groups.
pub(super) struct QuantKernels {
    /// For one row of `x` and more, as long as all sums fit in registers. More rows go through 16 of weights in parts, of which
    /// the second finds them in the core's own cache.
    pub(super) multiply: &'static [MultiplyQuants],
    pub(super) unpack: Unpack,
}

/// Kernels for a format whose elements stand alone.
pub(super) struct ElementKernels {
    /// As [`QuantKernels::multiply`].
    pub(super) multiply: &'static [MultiplyElements],
    /// For one packed row of `x` and more, by twice 16 rows; none where unpacking a panel first is faster.
    pub(super) tiles: &'static [MultiplyTile],
    pub(super) dequantize: Dequantize,
}

/// # Safety
/// The CPU has the kernel's instructions, and the output's elements of these rows are nobody else's.
pub(super) type MultiplyQuants = unsafe fn(x: RoundedRows<'_>, weights: &[u8], out: TileOutput);

/// # Safety
/// As [`MultiplyQuants`].
pub(super) type MultiplyElements = unsafe fn(x: &[f32], weights: &[u8], out: TileOutput);

/// # Safety
/// As [`MultiplyQuants`].
pub(super) type MultiplyTile =
    unsafe fn(x: &[f32], step: usize, weights: [&[u8]; 2], out: TileOutput);

/// # Safety
/// The CPU has the kernel's instructions.
pub(super) type Unpack = unsafe fn(weights: &[u8], panel: PanelLanes<'_>);

/// # Safety
/// The CPU has the kernel's instructions.
pub(super) type Dequantize = unsafe fn(weights: &[u8], out: &mut [f32], step: usize);

impl Interleaved {
    /// The kernels of these instructions, if they have any.
    pub(super) fn of(instructions: Instructions) -> Option<&'static Self> {
        #[cfg(target_arch = "x86_64")]
        {
            if instructions.has(InstructionSet::Avx512Vnni) {
                return Some(&x86::AVX512_VNNI);
            }
            if instructions.has(InstructionSet::AvxVnni) {
                return Some(&x86::AVX_VNNI);
            }
            if instructions.has(InstructionSet::Avx2) {
                return Some(&x86::AVX2);
            }
        }
        let _ = instructions;
        None
    }
}
