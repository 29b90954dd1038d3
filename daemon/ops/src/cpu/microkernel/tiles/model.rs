//! The kernel of tiles by a model of their instructions, for tests on every machine.

use std::cell::Cell;

use half::bf16;
use sluice_machine::tiles::Model;

use super::*;

pub(in crate::cpu::microkernel) static PAIRS: TilePairs<Model> = TilePairs::NEW;

thread_local! {
    static COMPUTES: Cell<bool> = const { Cell::new(false) };
}

/// Whether the model multiplies pairs in what this thread begins.
pub(in crate::cpu::microkernel) fn computes() -> bool {
    COMPUTES.get()
}

/// Lets the model multiply pairs in whatever this thread begins, on all of the device's threads, until it is dropped.
pub(in crate::cpu) struct Computing;

impl Computing {
    pub(in crate::cpu) fn new() -> Self {
        COMPUTES.set(true);
        Self
    }
}

impl Drop for Computing {
    fn drop(&mut self) {
        COMPUTES.set(false);
    }
}

/// The pair of these elements, as a word.
fn word(low: f32, high: f32) -> f32 {
    let [low, high] = [low, high].map(|value| u32::from(bf16::from_f32(value).to_bits()));
    f32::from_bits(low | high << 16)
}

impl BesideTiles for Model {
    unsafe fn round(values: &[f32], words: &mut [f32]) {
        assert_eq!(words.len(), pairs(values.len()));
        for (word_at, pair) in words.iter_mut().zip(values.chunks(2)) {
            *word_at = word(pair[0], pair.get(1).copied().unwrap_or_default());
        }
    }

    unsafe fn round_row(values: &[f32], row: usize, panel: &mut [[[f32; WORDS]; ROWS]]) {
        for (lines, values) in panel.iter_mut().zip(values.chunks(2 * WORDS)) {
            lines[row] = [0.0; WORDS];
            // SAFETY: it needs no instructions.
            unsafe { Self::round(values, &mut lines[row][..pairs(values.len())]) };
        }
    }

    unsafe fn pair_inputs(inputs: MatrixRows<'_>, lane: usize, words: &mut [f32]) {
        let at = |input: usize, lane: usize| match input < inputs.count {
            true => inputs.row(input).get(lane).copied().unwrap_or_default(),
            false => 0.0,
        };
        for (pair, words) in words.chunks_exact_mut(WORDS).enumerate() {
            for (index, word_at) in words.iter_mut().enumerate() {
                *word_at = word(at(2 * pair, lane + index), at(2 * pair + 1, lane + index));
            }
        }
    }

    unsafe fn write(sums: &[[f32; COLUMNS]], out: TileOutput) {
        for (row, sums) in sums.iter().enumerate() {
            // SAFETY: as the caller says.
            unsafe { out.write(row, sums) };
        }
    }
}
