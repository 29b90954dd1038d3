//! Decompresses a matrix from bytes that are used in place.
//!
//! Bytes are checked as far as memory safety needs: whatever they are, decompressing rows yields elements or an error.
//! [`CompressedMatrix::check`] checks the rest, that an encoder would have produced these bytes from some input.

use std::ops::Range;

use thiserror::Error;

use crate::{
    columns::ColumnMatrix,
    dictionary,
    huffman::{self, STAGE_BYTES, STREAMS},
    layout::{
        CODE_LENGTHS_BYTES, COLUMN_ROWS_MAX, DICTIONARY_BYTES, MatrixLayout, PAD_BYTES,
        STRIP_TILES, Scheme, TILE_COLUMNS, WHOLE,
    },
    simd::SimdPath,
    symbols::{merge, raw_bytes, upcast, upcast_plain},
    trellis,
};

/// Elements that are decompressed at a time where tiles don't matter: 8 KiB as `f32`, which stays in the first-level
/// cache.
const RUN_MAX: usize = 2048;

/// Why a matrix or its rows cannot be decompressed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecompressError {
    /// The number of bytes differs from what the layout requires.
    #[error("a compressed matrix has {found} bytes instead of {expected}")]
    Length {
        /// Bytes that the layout requires.
        expected: usize,
        /// Bytes that were given.
        found: usize,
    },
    /// The code lengths don't form a complete Huffman code.
    #[error("the table of a compressed matrix is damaged")]
    Table,
    /// The padding isn't zero.
    #[error("the padding of a compressed matrix is damaged")]
    Padding,
    /// A tile lies outside of its part, or no encoder makes such a tile. The value is the tile's index.
    #[error("tile {0} of a compressed matrix is damaged")]
    Tile(usize),
    /// The matrix doesn't have the requested rows.
    #[error("rows {from} to {to} are outside of a matrix of {rows} rows")]
    Rows {
        /// The first requested row.
        from: usize,
        /// The end of the requested rows, exclusive.
        to: usize,
        /// Rows of the matrix.
        rows: usize,
    },
    /// The matrix doesn't have the requested columns, or is not one that is decompressed by columns.
    #[error("columns {from} to {to} are outside of a matrix of {width} columns")]
    Columns {
        /// The first requested column.
        from: usize,
        /// The end of the requested columns, exclusive.
        to: usize,
        /// Columns that can be asked for.
        width: usize,
    },
    /// The output isn't exactly as long as the rows.
    #[error("the output has space for {found} bytes; the rows have {expected}")]
    Space {
        /// Bytes or elements that the rows have.
        expected: usize,
        /// Bytes or elements that the output has space for.
        found: usize,
    },
    /// Quantized weights don't have their original values any more.
    #[error("trellis-quantized weights cannot be restored to their original bytes")]
    Lossy,
}

/// A compressed matrix: its layout, its bytes, and decoding tables built from them.
#[derive(Clone, Debug)]
pub struct CompressedMatrix<'a> {
    layout: MatrixLayout,
    bytes: &'a [u8],
    table: Table,
    path: SimdPath,
}

/// The scheme's decoding tables.
#[derive(Clone, Debug)]
enum Table {
    Plain,
    Huffman(huffman::Table),
    Dictionary([u8; DICTIONARY_BYTES]),
    Trellis(huffman::Table, trellis::TrellisLevels),
    Columns(ColumnMatrix),
}

impl<'a> CompressedMatrix<'a> {
    /// Builds the decoding tables. The bytes may be untrusted; their length must be the layout's.
    pub fn new(layout: MatrixLayout, bytes: &'a [u8]) -> Result<Self, DecompressError> {
        if bytes.len() != layout.bytes() {
            return Err(DecompressError::Length {
                expected: layout.bytes(),
                found: bytes.len(),
            });
        }
        // Only the table and the padding are checked here, which takes no longer than building the tables. Tiles are
        // checked when they are decoded.
        let (padded, lengths) = match layout.scheme() {
            Scheme::Plain => (0..0, 0..0),
            Scheme::Dictionary => (layout.escapes(), layout.table()),
            Scheme::Huffman | Scheme::Trellis | Scheme::Columns => (layout.codes(), layout.table()),
        };
        // Decoders read whole words that may reach into the padding, and expect zeros there: they treat any read past
        // the end as zeros.
        if let Some(padding) = bytes[padded].last_chunk::<PAD_BYTES>()
            && *padding != [0; PAD_BYTES]
        {
            return Err(DecompressError::Padding);
        }
        let table = &bytes[lengths];
        let codes = || {
            let lengths = table.first_chunk::<CODE_LENGTHS_BYTES>();
            lengths
                .and_then(huffman::Table::new)
                .ok_or(DecompressError::Table)
        };
        let table = match layout.scheme() {
            Scheme::Plain => Table::Plain,
            Scheme::Huffman => Table::Huffman(codes()?),
            Scheme::Dictionary => {
                Table::Dictionary(*table.first_chunk().ok_or(DecompressError::Table)?)
            }
            Scheme::Trellis => {
                let (lengths, levels) = trellis::table(table).ok_or(DecompressError::Table)?;
                let codes = huffman::Table::new(&lengths).ok_or(DecompressError::Table)?;
                Table::Trellis(codes, levels)
            }
            Scheme::Columns => Table::Columns(
                ColumnMatrix::read(table, &bytes[layout.steps()]).ok_or(DecompressError::Table)?,
            ),
        };
        Ok(Self {
            layout,
            bytes,
            table,
            path: SimdPath::best(),
        })
    }

    /// Byte ranges of its parts.
    #[must_use]
    pub fn layout(&self) -> &MatrixLayout {
        &self.layout
    }

    /// Replaces the code path that was chosen for this processor.
    #[cfg(test)]
    pub(crate) fn set_path(&mut self, path: SimdPath) {
        self.path = path;
    }

    /// The compressed bytes, all parts.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Decompresses rows to their original bytes, of a losslessly compressed matrix. `out` must have exactly their
    /// size.
    pub fn decompress_rows(
        &self,
        rows: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), DecompressError> {
        let size = self.layout.dtype().bytes();
        let numbers = self.elements(rows)?;
        check_space(numbers.len() * size, out.len())?;
        match self.layout.scheme() {
            Scheme::Plain => {
                out.copy_from_slice(&self.bytes[numbers.start * size..numbers.end * size]);
                Ok(())
            }
            Scheme::Huffman | Scheme::Dictionary => {
                let first = numbers.start;
                // A call without symbols announces a part: its raw bits and its output are fetched while symbols are
                // decoded.
                self.each_part(numbers, |symbols, part| {
                    let out = &mut out[(part.start - first) * size..(part.end - first) * size];
                    let Some(symbols) = symbols else {
                        self.path.fetch(self.raw(part));
                        self.path.fetch_to_write(out);
                        return;
                    };
                    merge(self.path, self.layout.dtype(), symbols, self.raw(part), out);
                })
            }
            Scheme::Trellis | Scheme::Columns => Err(DecompressError::Lossy),
        }
    }

    /// Decompresses rows to `f32` for a matmul. `out` must have exactly their size.
    pub fn decompress_rows_f32(
        &self,
        rows: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), DecompressError> {
        let numbers = self.elements(rows.clone())?;
        check_space(numbers.len(), out.len())?;
        let first = numbers.start;
        if self.layout.scheme() == Scheme::Plain {
            // No symbols to decode: one pass over all elements.
            self.upcast_part(&[], numbers, out);
            return Ok(());
        }
        if self.layout.scheme() == Scheme::Columns {
            return self.each_block(rows.clone(), |row, column, values| {
                let start = (row - rows.start) * self.layout.width() + column;
                out[start..start + values.len()].copy_from_slice(values);
            });
        }
        self.each_part(numbers, |symbols, part| {
            let out = &mut out[part.start - first..part.end - first];
            match symbols {
                Some(symbols) => self.upcast_part(symbols, part, out),
                None => {
                    self.fetch(part);
                    self.path.fetch_to_write(out);
                }
            }
        })
    }

    /// Decompresses rows to `f32` in pieces, in order, none longer than 2048 elements or a row; `sink` is given the
    /// row, its first column and the elements. For a single row of input the pieces are multiplied while they are in
    /// the first-level cache, and never written to memory. Of [`Scheme::Columns`] the pieces of a row come in order, but
    /// those of all rows in turn.
    pub fn decompress_pieces_f32(
        &self,
        rows: Range<usize>,
        mut sink: impl FnMut(usize, usize, &[f32]),
    ) -> Result<(), DecompressError> {
        let numbers = self.elements(rows.clone())?;
        if self.layout.scheme() == Scheme::Columns {
            return self.each_block(rows, sink);
        }
        // On the stack, 8 KiB: the matmul of a single row allocates nothing.
        let mut values = [0.; RUN_MAX];
        let mut upcast = |symbols: &[u8], part: Range<usize>| {
            let values = &mut values[..part.len()];
            self.upcast_part(symbols, part.clone(), values);
            for (row, columns) in self.split_by_row(part.clone()) {
                // A part may begin and end within rows; `values` holds only the part.
                let start = row * self.layout.width() + columns.start - part.start;
                sink(row, columns.start, &values[start..start + columns.len()]);
            }
        };
        if self.layout.scheme() == Scheme::Plain {
            for start in numbers.clone().step_by(RUN_MAX) {
                upcast(&[], start..numbers.end.min(start + RUN_MAX));
            }
            return Ok(());
        }
        self.each_part(numbers, |symbols, part| match symbols {
            Some(symbols) => upcast(symbols, part),
            None => self.fetch(part),
        })
    }

    /// Decompresses columns of a [`Scheme::Columns`] matrix to `f32`, for a matmul that goes through the inputs: column
    /// after column, all rows of each. `out` must have exactly their size. Columns from a multiple of
    /// [`TILE_COLUMNS`] on take least time.
    pub fn decompress_columns_f32(
        &self,
        columns: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), DecompressError> {
        let matrix = self.column_matrix(&columns)?;
        let rows = self.layout.rows();
        check_space(columns.len() * rows, out.len())?;
        self.decompress_columns(matrix, columns, out, rows)
    }

    /// What columns are multiplied by, if the matrix has these columns.
    fn column_matrix(&self, columns: &Range<usize>) -> Result<&ColumnMatrix, DecompressError> {
        let (matrix, width) = match &self.table {
            Table::Columns(matrix) => (Some(matrix), self.layout.width()),
            _ => (None, 0),
        };
        matrix
            .filter(|_| columns.start <= columns.end && columns.end <= width)
            .ok_or(DecompressError::Columns {
                from: columns.start,
                to: columns.end,
                width,
            })
    }

    /// Decompresses columns to places `stride` elements apart.
    fn decompress_columns(
        &self,
        matrix: &ColumnMatrix,
        columns: Range<usize>,
        out: &mut [f32],
        stride: usize,
    ) -> Result<(), DecompressError> {
        // Columns without rows are in no tile.
        if columns.is_empty() || self.layout.rows() == 0 {
            return Ok(());
        }
        let codes = &self.bytes[self.layout.codes()];
        let mut places = self.tile_positions(columns.start / TILE_COLUMNS);
        let start = |_| Ok(places.next()?.at.start);
        matrix.decompress(self.path, codes, columns, start, out, stride)
    }

    /// Decompresses rows of a [`Scheme::Columns`] matrix, a few columns at a time; `sink` is given the row, its first
    /// column and the elements.
    fn each_block(
        &self,
        rows: Range<usize>,
        mut sink: impl FnMut(usize, usize, &[f32]),
    ) -> Result<(), DecompressError> {
        // A tile for each stream.
        const COLUMNS: usize = STREAMS * TILE_COLUMNS;
        // Rows that are turned at a time: a vector of each column.
        const ROWS: usize = 4;
        // A cache line more than a column has: elements of a row would share a few sets of the cache otherwise.
        const STRIDE: usize = COLUMN_ROWS_MAX + 16;
        if rows.is_empty() {
            return Ok(());
        }
        // On the stack, 51 KiB: decoding a row allocates nothing.
        let mut block = [0.; COLUMNS * STRIDE];
        for first in (0..self.layout.width()).step_by(COLUMNS) {
            let columns = first..self.layout.width().min(first + COLUMNS);
            let matrix = self.column_matrix(&columns)?;
            self.decompress_columns(matrix, columns.clone(), &mut block, STRIDE)?;
            let (columns_of, _) = block.as_chunks::<STRIDE>();
            for start in rows.clone().step_by(ROWS) {
                let mut values = [[0.; COLUMNS]; ROWS];
                for (at, column) in columns_of.iter().enumerate() {
                    let some: &[f32; ROWS] = column[start..]
                        .first_chunk()
                        .expect("a column has space for them");
                    for (values, value) in values.iter_mut().zip(some) {
                        values[at] = *value;
                    }
                }
                for (row, values) in (start..rows.end).zip(&values) {
                    sink(row, first, &values[..columns.len()]);
                }
            }
        }
        Ok(())
    }

    /// Computes elements `part` as `f32` from their symbols; an uncompressed matrix has none.
    fn upcast_part(&self, symbols: &[u8], part: Range<usize>, out: &mut [f32]) {
        let number = self.layout.dtype();
        match &self.table {
            Table::Columns(_) => unreachable!("it is decompressed by columns"),
            Table::Plain => {
                let size = number.bytes();
                upcast_plain(number, &self.bytes[part.start * size..part.end * size], out);
            }
            Table::Huffman(_) | Table::Dictionary(_) => {
                // Merging and upcasting are one step: the original bytes are never written.
                upcast(self.path, number, symbols, self.raw(part), out);
            }
            Table::Trellis(_, levels) => {
                let steps = &self.bytes[self.layout.steps()];
                // A tile may span rows, and each row has a step of its own.
                let (mut symbols, mut out) = (symbols, out);
                for (row, columns) in self.split_by_row(part) {
                    let now = symbols
                        .split_off(..columns.len())
                        .expect("as many as numbers");
                    let to = out
                        .split_off_mut(..columns.len())
                        .expect("as many as numbers");
                    levels.dequantize(self.path, steps[row], now, to);
                }
            }
        }
    }

    /// Splits a range of elements into rows and their columns.
    fn split_by_row(&self, part: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
        // A matrix of width 0 has no elements and yields no rows; `max(1)` only avoids the division by zero.
        let width = self.layout.width().max(1);
        let rows = part.start / width..part.end.div_ceil(width);
        rows.map(move |row| {
            let all = row * width..(row + 1) * width;
            let here = part.start.max(all.start)..part.end.min(all.end);
            (row, here.start - all.start..here.end - all.start)
        })
    }

    /// Prefetches the dictionary indices and raw bits of elements.
    fn fetch(&self, part: Range<usize>) {
        if self.layout.scheme() == Scheme::Dictionary {
            self.path.fetch(self.indices(&part));
        }
        if self.layout.scheme() != Scheme::Trellis {
            self.path.fetch(self.raw(part));
        }
    }

    /// Checks that an encoder would have made these bytes: no stray bits, no tile longer than its codes. Slower than
    /// decompression.
    pub fn check(&self) -> Result<(), DecompressError> {
        if self.layout.scheme() == Scheme::Plain {
            return Ok(());
        }
        let mut places = self.tile_positions(0);
        // As long as the longest tile.
        let mut out = [0; 512];
        let mut end = 0;
        for tile in 0..self.layout.tiles() {
            let place = places.next()?;
            // Tiles have to follow each other without gaps or overlaps, across strips too.
            if place.at.start != end {
                return Err(DecompressError::Tile(tile));
            }
            end = place.at.end;
            let count = self.layout.tile_elements(tile).len();
            let good = match &self.table {
                Table::Trellis(..) if place.whole => {
                    let symbols = &self.bytes[self.layout.codes()][place.at.clone()];
                    // Which quantizer a symbol belongs to follows from the trellis; an encoder never stores the mark.
                    symbols.iter().all(|symbol| symbol & trellis::SECOND == 0)
                }
                _ if place.whole => true,
                Table::Columns(matrix) => {
                    let columns = count / self.layout.rows();
                    matrix.check(&self.bytes[self.layout.codes()], place.at.clone(), columns)
                }
                Table::Huffman(table) | Table::Trellis(table, _) => {
                    let codes = &self.bytes[self.layout.codes()];
                    // The fast decoder doesn't tell how many bits a tile consumed.
                    let bits = table.decode_slowly(codes, place.at.start, &mut out[..count]);
                    let bytes = bits.div_ceil(8);
                    let codes = &codes[place.at.clone()];
                    bytes.next_multiple_of(self.layout.unit_bytes()) == codes.len()
                        && codes[bytes..].iter().all(|byte| *byte == 0)
                        && (bits % 8 == 0 || codes[bits / 8] >> (bits % 8) == 0)
                }
                Table::Dictionary(_) => {
                    let codes = self.indices(&self.layout.tile_elements(tile));
                    let index = |i: usize| codes[i / 2] >> (i % 2 * 4) & 15;
                    let escapes = (0..count).filter(|i| index(*i) == dictionary::ESCAPE);
                    escapes.count() == place.at.len()
                        && (count.is_multiple_of(2) || index(count) == 0)
                }
                Table::Plain => true,
            };
            if !good {
                return Err(DecompressError::Tile(tile));
            }
        }
        // The last offset must be the end of all tiles, which must be the end of the part: no byte is unaccounted for.
        let strips = self.layout.tiles().div_ceil(STRIP_TILES);
        let last = self.layout.tiles().saturating_sub(1);
        if self.offset(strips) != end || end != places.limit {
            return Err(DecompressError::Tile(last));
        }
        Ok(())
    }

    /// Checks that every tile lies inside its part. Then all rows decompress without an error, to whatever values.
    pub fn check_tile_bounds(&self) -> Result<(), DecompressError> {
        if self.layout.scheme() == Scheme::Plain {
            return Ok(());
        }
        let mut places = self.tile_positions(0);
        (0..self.layout.tiles()).try_for_each(|_| places.next().map(drop))
    }

    /// Byte ranges of a tile: its codes, escapes and raw bits, each of which may be empty.
    pub fn tile_bytes(&self, tile: usize) -> Result<[Range<usize>; 3], DecompressError> {
        let layout = &self.layout;
        let numbers = layout.tile_elements(tile);
        if numbers.is_empty() {
            return Err(DecompressError::Tile(tile));
        }
        let within =
            |part: Range<usize>, at: Range<usize>| part.start + at.start..part.start + at.end;
        let size = layout.dtype().bytes();
        let codes = match layout.scheme() {
            Scheme::Plain => {
                let codes = within(layout.codes(), numbers.start * size..numbers.end * size);
                return Ok([codes, 0..0, 0..0]);
            }
            Scheme::Dictionary => {
                within(layout.codes(), numbers.start / 2..numbers.end.div_ceil(2))
            }
            Scheme::Huffman | Scheme::Trellis | Scheme::Columns => {
                within(layout.codes(), self.tile_positions(tile).next()?.at)
            }
        };
        let escapes = match layout.scheme() {
            Scheme::Dictionary => within(layout.escapes(), self.tile_positions(tile).next()?.at),
            _ => 0..0,
        };
        // Raw bits of a tile follow from its place alone; codes and escapes are found by lengths.
        let size = raw_bytes(layout.dtype());
        let raw = match layout.scheme() {
            Scheme::Trellis | Scheme::Columns => 0..0,
            _ => within(layout.raw(), numbers.start * size..numbers.end * size),
        };
        Ok([codes, escapes, raw])
    }

    /// The index range of the elements of `rows`, if the matrix has these rows.
    fn elements(&self, rows: Range<usize>) -> Result<Range<usize>, DecompressError> {
        if rows.start > rows.end || rows.end > self.layout.rows() {
            return Err(DecompressError::Rows {
                from: rows.start,
                to: rows.end,
                rows: self.layout.rows(),
            });
        }
        let width = self.layout.width();
        Ok(rows.start * width..rows.end * width)
    }

    /// Decodes the symbols of `elements` in order, and passes them to `sink` with the elements that they belong to.
    /// Before that, `sink` is called without symbols for the same elements or more, so that it can prefetch what they
    /// will need.
    #[inline]
    fn each_part(
        &self,
        elements: Range<usize>,
        sink: impl FnMut(Option<&[u8]>, Range<usize>),
    ) -> Result<(), DecompressError> {
        match &self.table {
            _ if elements.is_empty() => Ok(()),
            // Callers handle these themselves: they have no symbols, or not in this order.
            Table::Plain | Table::Columns(_) => Ok(()),
            Table::Huffman(table) | Table::Trellis(table, _) => {
                self.each_tile(table, &elements, sink)
            }
            Table::Dictionary(palette) => self.each_run(palette, &elements, sink),
        }
    }

    /// Decodes Huffman-coded symbols, [`STREAMS`] tiles in turn.
    #[inline]
    fn each_tile(
        &self,
        table: &huffman::Table,
        elements: &Range<usize>,
        mut sink: impl FnMut(Option<&[u8]>, Range<usize>),
    ) -> Result<(), DecompressError> {
        let codes = &self.bytes[self.layout.codes()];
        let tiles = self.tiles_of(elements);
        let mut places = self.tile_positions(tiles.start);
        // On the stack, 12 KiB: decoding a row allocates nothing.
        let mut stages = [[0; STAGE_BYTES]; STREAMS];
        for first in tiles.clone().step_by(STREAMS) {
            let group = first..tiles.end.min(first + STREAMS);
            let all = self.elements_of(&group);
            sink(
                None,
                all.start.max(elements.start)..all.end.min(elements.end),
            );
            let mut found: [TileBytes; STREAMS] = Default::default();
            for place in &mut found[..group.len()] {
                *place = places.next()?;
            }
            // Whole tiles of the group are decoded as well, to bytes that are overwritten below: the decoder takes any
            // start.
            if found[..group.len()].iter().any(|place| !place.whole) {
                // All tiles but the last have as many elements as the first of the group. A shorter last tile decodes
                // into what follows it; these symbols are dropped below.
                let count = self.layout.tile_elements(first).len();
                let starts = std::array::from_fn(|n| found[n].at.start);
                table.decode(self.path, codes, starts, count, &mut stages);
            }
            for ((tile, place), stage) in group.zip(found).zip(&mut stages) {
                let all = self.layout.tile_elements(tile);
                let part = all.start.max(elements.start)..all.end.min(elements.end);
                let symbols = &mut stage[..all.len()];
                if place.whole {
                    symbols.copy_from_slice(&codes[place.at]);
                }
                if matches!(self.table, Table::Trellis(..)) {
                    // All of the tile, even where only a part is wanted: a mark depends on all parities before it.
                    trellis::mark(self.path, symbols);
                }
                let symbols = &symbols[part.start - all.start..part.end - all.start];
                sink(Some(symbols), part);
            }
        }
        Ok(())
    }

    /// Looks up dictionary symbols, as many tiles at a time as the buffer holds.
    #[inline]
    fn each_run(
        &self,
        dictionary: &[u8; DICTIONARY_BYTES],
        elements: &Range<usize>,
        mut sink: impl FnMut(Option<&[u8]>, Range<usize>),
    ) -> Result<(), DecompressError> {
        let escapes = &self.bytes[self.layout.escapes()];
        let tiles = self.tiles_of(elements);
        let mut places = self.tile_positions(tiles.start);
        // On the stack: decoding a row allocates nothing.
        let mut symbols = [0; RUN_MAX];
        // Whole tiles, since escapes are found by tile.
        let count = RUN_MAX / self.layout.tile();
        for first in tiles.clone().step_by(count) {
            let group = first..tiles.end.min(first + count);
            let all = self.elements_of(&group);
            // Lookups take less time than a memory access, so the prefetch runs one whole run ahead.
            sink(
                None,
                all.end.min(elements.end)..elements.end.min(all.end + RUN_MAX),
            );
            let symbols = &mut symbols[..all.len()];
            dictionary::decompress(self.path, dictionary, self.indices(&all), symbols);
            for tile in group {
                let place = places.next()?;
                if place.at.is_empty() {
                    continue;
                }
                let here = self.layout.tile_elements(tile);
                let symbols = &mut symbols[here.start - all.start..here.end - all.start];
                let escapes = &escapes[place.at];
                if place.whole {
                    symbols.copy_from_slice(escapes);
                } else {
                    dictionary::patch(self.indices(&here), escapes, symbols);
                }
            }
            let part = all.start.max(elements.start)..all.end.min(elements.end);
            sink(
                Some(&symbols[part.start - all.start..part.end - all.start]),
                part,
            );
        }
        Ok(())
    }

    /// Tiles that `elements` lie in; there is at least one element.
    fn tiles_of(&self, elements: &Range<usize>) -> Range<usize> {
        elements.start / self.layout.tile()..elements.end.div_ceil(self.layout.tile())
    }

    /// Elements of `tiles`, of which there is at least one.
    fn elements_of(&self, tiles: &Range<usize>) -> Range<usize> {
        self.layout.tile_elements(tiles.start).start..self.layout.tile_elements(tiles.end - 1).end
    }

    /// The dictionary indices of elements; the range begins at a tile, so on a whole byte.
    fn indices(&self, elements: &Range<usize>) -> &'a [u8] {
        let codes = &self.bytes[self.layout.codes()];
        &codes[elements.start / 2..elements.end.div_ceil(2)]
    }

    /// The raw bits of elements.
    fn raw(&self, elements: Range<usize>) -> &'a [u8] {
        let size = raw_bytes(self.layout.dtype());
        &self.bytes[self.layout.raw()][elements.start * size..elements.end * size]
    }

    /// A strip's offset into codes or escapes.
    fn offset(&self, strip: usize) -> usize {
        let (offsets, _) = self.bytes[self.layout.offsets()].as_chunks::<4>();
        u32::from_le_bytes(offsets[strip]) as usize
    }

    /// Iterates the byte ranges of tiles in codes or escapes, beginning with `tile`.
    fn tile_positions(&self, tile: usize) -> TilePositions<'_, 'a> {
        let mut places = TilePositions {
            matrix: self,
            lengths: &self.bytes[self.layout.lengths()],
            limit: match self.layout.scheme() {
                Scheme::Dictionary => self.layout.escapes_len(),
                _ => self.layout.codes_len(),
            },
            unit: match self.layout.scheme() {
                Scheme::Dictionary => 1,
                _ => self.layout.unit_bytes(),
            },
            tile,
            start: 0,
        };
        // Only strips have offsets: the lengths of the strip's tiles before this one are added up, at most 31.
        // Saturating, since hostile lengths may overflow.
        let first = tile / STRIP_TILES * STRIP_TILES;
        if first < tile {
            places.start = self.offset(first / STRIP_TILES);
            for tile in first..tile {
                places.start = places.start.saturating_add(places.length(tile));
            }
        }
        places
    }
}

fn check_space(expected: usize, found: usize) -> Result<(), DecompressError> {
    if found == expected {
        Ok(())
    } else {
        Err(DecompressError::Space { expected, found })
    }
}

/// A tile's bytes in codes or escapes.
#[derive(Clone, Default)]
struct TileBytes {
    at: Range<usize>,
    /// The bytes are the symbols themselves, uncompressed.
    whole: bool,
}

/// Iterator over the byte ranges of consecutive tiles.
struct TilePositions<'c, 'a> {
    matrix: &'c CompressedMatrix<'a>,
    lengths: &'a [u8],
    limit: usize,
    unit: usize,
    tile: usize,
    start: usize,
}

impl TilePositions<'_, '_> {
    /// The next tile's bytes, which lie inside of codes or escapes. The caller knows that there is such a tile.
    fn next(&mut self) -> Result<TileBytes, DecompressError> {
        let tile = self.tile;
        // Offsets come from the file, so each strip begins anew and the end is compared with the part's length below.
        if tile.is_multiple_of(STRIP_TILES) {
            self.start = self.matrix.offset(tile / STRIP_TILES);
        }
        let end = self.start.saturating_add(self.length(tile));
        if end > self.limit {
            return Err(DecompressError::Tile(tile));
        }
        let place = TileBytes {
            at: self.start..end,
            whole: self.is_whole(tile),
        };
        self.start = end;
        self.tile += 1;
        Ok(place)
    }

    fn length(&self, tile: usize) -> usize {
        if self.matrix.layout.scheme() == Scheme::Columns {
            let (lengths, _) = self.lengths.as_chunks::<2>();
            return u16::from_le_bytes(lengths[tile]).into();
        }
        match self.lengths[tile] {
            WHOLE => self.matrix.layout.tile_elements(tile).len(),
            length => usize::from(length) * self.unit,
        }
    }

    fn is_whole(&self, tile: usize) -> bool {
        self.matrix.layout.scheme() != Scheme::Columns && self.lengths[tile] == WHOLE
    }
}
