//! Rounds weights to the levels of blocks whose scales are chosen.

use sluice_formats::Format;

use super::{
    layout::{Quants, put_quants},
    scales,
};

/// Most weights of a block.
const WEIGHTS: usize = 256;

/// Quantizes a row block by block, without feedback.
pub(super) fn row(format: Format, values: &[f32], mean_squares: Option<&[f32]>, bytes: &mut [u8]) {
    let len = format.block_len();
    let blocks = bytes.chunks_exact_mut(format.block_bytes());
    for (at, (values, block)) in values.chunks_exact(len).zip(blocks).enumerate() {
        let moments = mean_squares.map(|moments| &moments[at * len..][..len]);
        one_block(format, values, moments, block);
    }
}

fn one_block(format: Format, values: &[f32], mean_squares: Option<&[f32]>, block: &mut [u8]) {
    let mut weights = [1.; WEIGHTS];
    let weights = &mut weights[..values.len()];
    if let Some(moments) = mean_squares {
        let square: f32 = values.iter().map(|value| value * value).sum();
        let square = square / values.len() as f32;
        // As in llama.cpp: twice the mean square where a minimum takes part of the weights.
        let square = if format == Format::Q4K {
            2. * square
        } else {
            square
        };
        for ((weight, value), moment) in weights.iter_mut().zip(values).zip(moments) {
            *weight = moment * (square + value * value).sqrt();
        }
    }
    scales::put(format, values, weights, block);
    round_block(format, values, block);

    // The plain search may do better by chance; what counts is the error of the outputs.
    let mut plain = [0; WEIGHTS * 2];
    let plain = &mut plain[..block.len()];
    if format != Format::Q4_0 {
        format.quantize(values, plain);
        let error = |block: &[u8]| error(format, values, mean_squares, block);
        if error(plain) < error(block) {
            block.copy_from_slice(plain);
        }
    }
}

/// Rounds all weights of a block with the scales that it has.
fn round_block(format: Format, values: &[f32], block: &mut [u8]) {
    let len = groups_len(format);
    let (mut quants, mut scales, mut minima) = ([0; WEIGHTS], [0.; 16], [0.; 16]);
    let quants = &mut quants[..values.len()];
    let groups = values.len() / len;
    format.quants(block, quants, &mut scales[..groups], &mut minima[..groups]);
    let levels = Quants::of(format);
    for (group, (values, quants)) in values.chunks(len).zip(quants.chunks_mut(len)).enumerate() {
        for (quant, value) in quants.iter_mut().zip(values) {
            *quant = levels.nearest(*value, scales[group], minima[group]) as u8;
        }
    }
    put_quants(format, quants, block);
}

/// Squared error of a block, weighted by importance alone.
fn error(format: Format, values: &[f32], mean_squares: Option<&[f32]>, block: &[u8]) -> f64 {
    let mut decoded = [0.; WEIGHTS];
    let decoded = &mut decoded[..values.len()];
    format.dequantize(block, decoded);
    let squares = values
        .iter()
        .zip(decoded)
        .map(|(value, decoded)| (value - *decoded).powi(2));
    match mean_squares {
        Some(moments) => squares
            .zip(moments)
            .map(|(s, moment)| f64::from(s * moment))
            .sum(),
        None => squares.map(f64::from).sum(),
    }
}

/// Weights that share a scale.
fn groups_len(format: Format) -> usize {
    let groups = format.groups();
    groups.expect("the format was checked").len
}

/// The levels that the weights of some rows may take, and have taken.
pub(super) struct Grid {
    format: Format,
    width: usize,
    rows: usize,
    group: usize,
    levels: Quants,
    /// Of each group of columns, for each row.
    scales: Vec<f32>,
    minima: Vec<f32>,
    /// Row by row.
    quants: Vec<u8>,
}

impl Grid {
    /// The grid of blocks, row by row.
    pub(super) fn new(format: Format, width: usize, bytes: &[u8]) -> Self {
        let group = groups_len(format);
        let rows = bytes.len() / format.bytes(width);
        let groups = width / group;
        let mut quants = vec![0; rows * width];
        let (mut scales, mut minima) = (vec![0.; rows * groups], vec![0.; rows * groups]);
        format.quants(bytes, &mut quants, &mut scales, &mut minima);
        let rows_of_all: Vec<usize> = (0..rows).collect();
        let by_group = |values: &[f32]| crate::feedback::columns_of(values, groups, &rows_of_all);
        Self {
            format,
            width,
            rows,
            group,
            levels: Quants::of(format),
            scales: by_group(&scales),
            minima: by_group(&minima),
            quants,
        }
    }

    /// Rounds the values of a column, one for each row.
    pub(super) fn round(&mut self, column: usize, values: &[f32], decoded: &mut [f32]) {
        let group = column / self.group * self.rows..;
        let (scales, minima) = (&self.scales[group.clone()], &self.minima[group]);
        let quants = self.quants.iter_mut().skip(column).step_by(self.width);
        let places = quants.zip(values).zip(decoded);
        for (((quant, value), decoded), (scale, minimum)) in places.zip(scales.iter().zip(minima)) {
            let level = self.levels.nearest(*value, *scale, *minimum);
            *quant = level as u8;
            *decoded = level * scale + minimum;
        }
    }

    /// Writes the quants of a row into its blocks.
    pub(super) fn put_row(&self, row: usize, bytes: &mut [u8]) {
        let quants = self.quants[row * self.width..][..self.width].chunks(self.format.block_len());
        let blocks = bytes.chunks_exact_mut(self.format.block_bytes());
        for (quants, block) in quants.zip(blocks) {
            put_quants(self.format, quants, block);
        }
    }
}
