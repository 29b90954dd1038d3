//! A compressed matrix of this scheme: what its columns are multiplied by, decompression, and checks.

use std::ops::Range;

use super::{
    bits::BitReader,
    classes::class,
    decode::{ColumnSymbols, each_column},
    encode::{read_codes, read_raw, write_tile},
    header::{ColumnHeader, HeaderCoder},
    wide,
};
use crate::{
    simd::SimdPath,
    trellis::{PARTS, SYMBOLS, row_ratio, scale_marked},
};

/// What the columns of a chunk are multiplied by.
#[derive(Clone, Debug)]
pub(crate) struct ColumnMatrix {
    step: f32,
    /// Row factors.
    factors: Vec<f32>,
}

impl ColumnMatrix {
    /// From the chunk's step and the rows' bytes.
    pub(super) fn new(step: f32, bytes: &[u8]) -> Self {
        Self {
            step,
            factors: bytes.iter().map(|byte| row_ratio(*byte)).collect(),
        }
    }

    /// From a table and the rows' bytes; `None` if the table is too short.
    pub(crate) fn read(table: &[u8], rows: &[u8]) -> Option<Self> {
        Some(Self::new(f32::from_le_bytes(*table.first_chunk()?), rows))
    }

    /// The chunk's step.
    pub(super) fn step(&self) -> f32 {
        self.step
    }

    /// Computes a column's elements in steps.
    pub(super) fn to_steps(&self, header: ColumnHeader, values: &[f32], out: &mut [f32]) {
        let step = self.step * header.ratio();
        for ((out, value), factor) in out.iter_mut().zip(values).zip(&self.factors) {
            // A row of zeros has factor 0.
            let value = value / (step * factor);
            *out = if value.is_finite() { value } else { 0. };
        }
    }

    /// Computes a column's elements.
    pub(super) fn decode(
        &self,
        path: SimdPath,
        header: ColumnHeader,
        of: ColumnSymbols<'_>,
        out: &mut [f32],
    ) {
        let Some(index) = header.class else {
            return out.fill(0.);
        };
        // Level times column step, then times row factor: each product is rounded, so the order is part of the format.
        let part = self.step / PARTS * header.ratio();
        if header.raw_bits > 0 {
            return wide::decode(path, of, header.raw_bits, part, &self.factors, out);
        }
        let levels = &class(index).levels;
        let ColumnSymbols {
            symbols,
            has_escaped,
            ..
        } = of;
        scale_marked(levels, path, part, &self.factors, symbols, out, has_escaped);
    }

    /// Decompresses columns, which have rows, into `out`, `stride` elements apart. `start` says where a tile's codes begin.
    pub(crate) fn decompress<E>(
        &self,
        path: SimdPath,
        codes: &[u8],
        columns: Range<usize>,
        start: impl FnMut(usize) -> Result<usize, E>,
        out: &mut [f32],
        stride: usize,
    ) -> Result<(), E> {
        let rows = self.factors.len();
        each_column(
            path,
            codes,
            rows,
            &columns,
            start,
            |column, header, symbols| {
                let out = &mut out[(column - columns.start) * stride..][..rows];
                self.decode(path, header, symbols, out);
            },
        )
    }

    /// Whether an encoder would have made this tile, of so many columns.
    pub(crate) fn check(&self, codes: &[u8], tile: Range<usize>, columns: usize) -> bool {
        let rows = self.factors.len();
        let mut from = BitReader::new(codes, tile.start * 8);
        let mut coder = HeaderCoder::new();
        let (mut headers, mut symbols, mut raw) = (Vec::new(), Vec::new(), Vec::new());
        let mut column = Vec::new();
        for _ in 0..columns {
            let header = coder.read(&mut from);
            headers.push(header);
            column.clear();
            let first = raw.len();
            raw.resize(first + rows, 0);
            if let Some(index) = header.class {
                read_raw(
                    SimdPath::Portable,
                    &mut from,
                    header.raw_bits,
                    &mut raw[first..],
                );
                read_codes(class(index), &mut from, rows, &mut column);
            }
            column.resize(rows, 0);
            symbols.extend_from_slice(&column);
        }
        // Stray bits, codes that are not the shortest, and fillings that are not what they should be all show here.
        debug_assert!(symbols.iter().all(|symbol| usize::from(*symbol) < SYMBOLS));
        write_tile(rows, &headers, &symbols, &raw) == codes[tile]
    }
}
