//! The encoder: a column at a time.

use sluice_formats::DType;

use super::{
    classes::{Class, ESCAPED_BITS, class},
    decode::ColumnSymbols,
    encode::{codes_bits, write_tile},
    header::{ColumnHeader, HEADER_BITS, RAW_BITS_MAX},
    matrix::ColumnMatrix,
    spreads::CLASSES,
    wide,
};
use crate::{
    encode::{EncodeError, Encoded},
    layout::{COLUMN_ROWS_MAX, LayoutError, MatrixLayout, STRIP_TILES, Scheme, TILE_COLUMNS},
    simd::SimdPath,
    trellis::{
        BIT_COST, LINEAR_MAX, PARTS, ROW_EXPONENT, SECOND, SYMBOLS, ViterbiSearch, ZERO, candidate,
        mark, row_byte,
    },
};

/// Bits of a tile beside its columns: its length, its share of an offset, and half a byte of padding.
const TILE_BITS: u32 = 16 + 1 + 4;

/// Quantizes a chunk column by column, in any order of columns; the caller sees what each column decodes to before it
/// goes on, so that it can feed errors back into columns that are still to come.
///
/// A chunk has at most 256 rows. An element is stored as `row factor · column step · level`: row factors follow from
/// `row_sizes`, steps are the caller's, rounded to a quarter of an octave, and levels are chosen by a Viterbi search
/// through the trellis, by squared error and bits (see Marcellin and Fischer 1990, and WaterSIC, arXiv 2603.04956, for
/// the order of columns and their steps).
pub struct ColumnsEncoder {
    dtype: DType,
    width: usize,
    /// Row factors as bytes.
    bytes: Vec<u8>,
    scales: ColumnMatrix,
    headers: Vec<Option<ColumnHeader>>,
    /// Symbols column after column, without marks.
    symbols: Vec<u8>,
    /// The low bits of wide columns' elements, in the same order.
    raw: Vec<u8>,
    not_finite: Option<usize>,
    search: Box<ViterbiSearch>,
    work: Work,
}

/// Buffers of a column.
struct Work {
    scaled: Vec<f32>,
    symbols: Vec<u8>,
    raw: Vec<u8>,
    levels: Vec<f32>,
}

/// What a column may be quantized to.
struct Choice {
    class: u8,
    /// Low bits that are stored as they are, in a wide column.
    raw_bits: u8,
    bits: usize,
    /// Squared error in squared steps, and the price of the bits.
    cost: f32,
}

impl ColumnsEncoder {
    /// An encoder for a chunk of as many rows as `row_sizes` has. `dtype` is the dtype that the elements had;
    /// decompression doesn't need it. `row_sizes` are the root mean squares of the rows, in any unit: only their
    /// ratios matter, by which larger rows get larger steps. `step` is the chunk's base step, in the elements' unit:
    /// columns may have steps within sixteen octaves of it.
    ///
    /// # Errors
    /// When there are more than 256 rows, or the chunk has too many elements.
    pub fn new(
        dtype: DType,
        width: usize,
        row_sizes: &[f32],
        step: f32,
    ) -> Result<Self, EncodeError> {
        let rows = row_sizes.len();
        // Refuses what no layout has.
        layout(dtype, rows, width, 0)?;
        let squares: f64 = row_sizes.iter().map(|size| f64::from(*size).powi(2)).sum();
        let mean = (squares / rows.max(1) as f64).sqrt();
        let byte = |size: &f32| row_byte((f64::from(*size) / mean).powf(ROW_EXPONENT));
        let bytes: Vec<u8> = row_sizes.iter().map(byte).collect();
        // Keeps the largest level finite: 5,000 steps, sixteen octaves of column steps, and row factors.
        let step = step.clamp(f32::MIN_POSITIVE * 1e8, f32::MAX * 1e-18);
        Ok(Self {
            dtype,
            width,
            scales: ColumnMatrix::new(step, &bytes),
            bytes,
            headers: vec![None; width],
            symbols: vec![0; rows * width],
            raw: vec![0; rows * width],
            not_finite: None,
            search: ViterbiSearch::new(),
            work: Work {
                scaled: vec![0.; rows],
                symbols: vec![0; rows],
                raw: vec![0; rows],
                levels: vec![0.; rows],
            },
        })
    }

    /// Quantizes `values`, one of each row, of a column with about this step: the nearest that the format has, a
    /// quarter of an octave apart, or the least of which there are enough, a thousand, for the largest of them. Writes
    /// what they decode to, bit for bit, into `decoded`. A step of 0 makes a column of zeros, and so does a step for
    /// which zeros cost less than anything else. Returns the bits that the column takes, its share of what its tile has
    /// beside codes included; what its class and step take depends on the columns beside it, and is counted as an
    /// average. Quantizing a column again replaces it.
    ///
    /// # Panics
    /// When there is no such column, or `values` or `decoded` don't have one number for each row.
    pub fn quantize_column(
        &mut self,
        column: usize,
        values: &[f32],
        step: f32,
        decoded: &mut [f32],
    ) -> u32 {
        let rows = self.bytes.len();
        assert!(column < self.width && values.len() == rows && decoded.len() == rows);
        if let Some(row) = values.iter().position(|value| !value.is_finite()) {
            self.not_finite.get_or_insert(row * self.width + column);
        }
        let kept = column * rows..(column + 1) * rows;
        let header = self.scale(step / self.scales.step(), values);
        let best = match step > 0. {
            true => self.choose(kept.clone()),
            false => None,
        };
        let header = match &best {
            Some(best) => header.with_class(best.class, best.raw_bits),
            None => ColumnHeader::ZERO,
        };
        self.headers[column] = Some(header);
        let symbols = ColumnSymbols {
            symbols: &self.symbols[kept.clone()],
            raw: &self.raw[kept],
            has_escaped: true,
        };
        self.scales
            .decode(SimdPath::best(), header, symbols, decoded);
        best.map_or(0, |best| best.bits as u32) + HEADER_BITS + TILE_BITS / TILE_COLUMNS as u32
    }

    /// Scales a column to steps, which are about `ratio` of the chunk's.
    fn scale(&mut self, ratio: f32, values: &[f32]) -> ColumnHeader {
        let scaled = &mut self.work.scaled;
        let header = ColumnHeader::new(0, ratio);
        self.scales.to_steps(header, values, scaled);
        let peak = scaled.iter().fold(0_f32, |peak, one| peak.max(one.abs()));
        if peak <= wide::STEPS_MAX {
            return header;
        }
        let header = ColumnHeader::at_least(0, header.ratio() * (peak / wide::STEPS_MAX));
        self.scales.to_steps(header, values, scaled);
        header
    }

    /// Chooses class and symbols of the scaled column, and keeps the symbols; `None` if zeros cost less.
    fn choose(&mut self, kept: std::ops::Range<usize>) -> Option<Choice> {
        let scaled = &self.work.scaled;
        // The class is guessed from symbols that are chosen one by one.
        let mut counts = [0_u32; SYMBOLS];
        for value in scaled {
            counts[nearest(*value)] += 1;
        }
        let expected = |index: usize| {
            let costs = class(index as u8).prices.costs;
            let each = counts.iter().zip(costs);
            each.map(|(count, cost)| *count as f32 * cost).sum::<f32>()
        };
        let expected: [f32; CLASSES] = std::array::from_fn(expected);
        let by_cost = |one: &usize, other: &usize| expected[*one].total_cmp(&expected[*other]);
        let mut next = (0..CLASSES).min_by(by_cost)? as u8;
        let mut best: Option<Choice> = None;
        let mut tried = [false; CLASSES];
        // What the search finds may suit another class better, in which it finds something else: a few rounds.
        while !tried[usize::from(next)] {
            tried[usize::from(next)] = true;
            let class = class(next);
            let symbols = &mut self.work.symbols;
            self.search
                .choose(SimdPath::best(), &self.work.scaled, &class.prices, symbols);
            let bits = codes_bits(class, symbols);
            let error = squared_error(class, &self.work.scaled, symbols, &mut self.work.levels);
            let cost = error + BIT_COST * bits as f32;
            let around = next.saturating_sub(1)..=(next + 1).min(CLASSES as u8 - 1);
            if best.as_ref().is_none_or(|best| cost < best.cost) {
                self.symbols[kept.clone()].copy_from_slice(symbols);
                best = Some(Choice {
                    class: next,
                    raw_bits: 0,
                    bits,
                    cost,
                });
                let fewest = |index: &u8| codes_bits(super::classes::class(*index), symbols);
                next = around.min_by_key(fewest)?;
            }
        }
        let widest = |best: &Choice| usize::from(best.class) == CLASSES - 1;
        let far = |value: &f32| value.abs() > LINEAR_MAX;
        if best.as_ref().is_some_and(widest) || self.work.scaled.iter().any(far) {
            best = self.choose_wide(kept, best);
        }
        let zeros: f32 = self.work.scaled.iter().map(|value| value * value).sum();
        best.filter(|best| best.cost < zeros)
    }

    /// Makes the scaled column a wide one if that costs less than what it may be quantized to otherwise.
    fn choose_wide(
        &mut self,
        kept: std::ops::Range<usize>,
        other: Option<Choice>,
    ) -> Option<Choice> {
        let Work {
            scaled,
            symbols,
            raw,
            levels: rests,
        } = &mut self.work;
        for (rest, value) in rests.iter_mut().zip(&*scaled) {
            *rest = value - wide::even(*value) as f32;
        }
        let path = SimdPath::best();
        self.search.choose(path, rests, wide::prices(), symbols);
        mark(path, symbols);
        let found = wide::choose(scaled, symbols, raw).map(|found| Choice {
            class: found.class,
            raw_bits: found.raw_bits,
            bits: found.bits,
            cost: found.squared_error + BIT_COST * found.bits as f32,
        });
        let found = found.filter(|found| other.as_ref().is_none_or(|one| found.cost < one.cost));
        let Some(found) = found else { return other };
        self.symbols[kept.clone()].copy_from_slice(symbols);
        self.raw[kept].copy_from_slice(raw);
        Some(found)
    }

    /// The compressed chunk.
    ///
    /// # Errors
    /// When an element was infinite or NaN, or the result would be too large.
    ///
    /// # Panics
    /// When a column hasn't been quantized.
    pub fn finish(self) -> Result<Encoded, EncodeError> {
        if let Some(at) = self.not_finite {
            return Err(EncodeError::NotFinite(at));
        }
        let rows = self.bytes.len();
        let mut codes = Vec::new();
        let (mut offsets, mut lengths) = (Vec::new(), Vec::new());
        let columns: Vec<ColumnHeader> = self
            .headers
            .iter()
            .map(|header| header.expect("all columns have been quantized"))
            .collect();
        let tiles = match rows {
            0 => &[][..],
            _ => &columns,
        };
        let elements = rows.max(1) * TILE_COLUMNS;
        let each = self.symbols.chunks(elements).zip(self.raw.chunks(elements));
        for (tile, (headers, (symbols, raw))) in tiles.chunks(TILE_COLUMNS).zip(each).enumerate() {
            if tile % STRIP_TILES == 0 {
                offsets.push(codes.len());
            }
            let bytes = write_tile(rows, headers, symbols, raw);
            lengths.extend((bytes.len() as u16).to_le_bytes());
            codes.extend(bytes);
        }
        offsets.push(codes.len());
        let layout = layout(self.dtype, rows, self.width, codes.len())?;
        let mut bytes = vec![0; layout.bytes()];
        let offsets: Vec<u8> = offsets
            .into_iter()
            // A layout's codes have fewer bytes.
            .flat_map(|offset| (offset as u32).to_le_bytes())
            .collect();
        for (part, of) in [
            (layout.table(), &self.scales.step().to_le_bytes()[..]),
            (layout.steps(), &self.bytes),
            (layout.offsets(), &offsets),
            (layout.lengths(), &lengths),
            (layout.codes(), &codes),
        ] {
            bytes[part.start..part.start + of.len()].copy_from_slice(of);
        }
        Ok(Encoded { layout, bytes })
    }
}

fn layout(
    dtype: DType,
    rows: usize,
    width: usize,
    codes: usize,
) -> Result<MatrixLayout, LayoutError> {
    // Tiles of this scheme have a size of their own, so any size will do.
    MatrixLayout::new(Scheme::Columns, dtype, rows, width, 256, codes, 0)
}

/// The symbol whose level is nearest, of the first quantizer.
fn nearest(value: f32) -> usize {
    match value.abs() < LINEAR_MAX {
        // Rounded down by the cast, since the sum is positive; a quarter is where levels are.
        true => (value + (ZERO as f32 + 0.5 - 0.25)) as usize,
        false => candidate(value, 0),
    }
}

/// The squared error of symbols, in squared steps.
fn squared_error(class: &Class, values: &[f32], symbols: &mut [u8], levels: &mut [f32]) -> f32 {
    let path = SimdPath::best();
    mark(path, symbols);
    class.levels.scale(path, PARTS.recip(), symbols, levels);
    for symbol in symbols {
        *symbol &= !SECOND;
    }
    let each = values.iter().zip(levels);
    each.map(|(value, level)| (value - *level).powi(2)).sum()
}

// A tile's length is stored in 16 bits.
const _: () = assert!(
    TILE_COLUMNS
        * (COLUMN_ROWS_MAX
            * (crate::huffman::BITS_MAX + ESCAPED_BITS as usize + RAW_BITS_MAX as usize)
            / 8
            + 8)
        < 1 << 16
);
