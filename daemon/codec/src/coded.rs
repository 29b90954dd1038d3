//! A coded matrix, read where it lies.
//!
//! Bytes are checked as far as reading them safely needs: whatever they are, rows of them are numbers or an error.
//! [`Coded::check`] checks the rest, that they are what an encoder would have made of some numbers.

use std::ops::Range;

use thiserror::Error;

use crate::{
    huffman::{self, STAGE_BYTES, STREAMS},
    layout::{CODE_LENGTHS_BYTES, Layout, PAD_BYTES, PALETTE_BYTES, STRIP_TILES, Scheme, WHOLE},
    palette,
    path::Path,
    rate,
    symbols::{merge, widen, widen_plain},
};

/// Why there are no numbers.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The matrix has more bytes, or fewer.
    #[error("{found} bytes of a coded matrix of {expected}")]
    Length {
        /// Bytes that its layout has.
        expected: usize,
        /// Bytes that there are.
        found: usize,
    },
    /// The lengths of its Huffman codes are not those of a complete code.
    #[error("the table of a coded matrix is damaged")]
    Table,
    /// Its padding is something.
    #[error("the padding of a coded matrix is damaged")]
    Padding,
    /// A tile isn't where it is said to be, or not what an encoder makes.
    #[error("tile {0} of a coded matrix is damaged")]
    Tile(usize),
    /// It has no such rows.
    #[error("rows {from} to {to} of a matrix of {rows}")]
    Rows {
        /// The first one that was asked for.
        from: usize,
        /// The end of those that were asked for.
        to: usize,
        /// Rows that it has.
        rows: usize,
    },
    /// Its rows need more space, or less.
    #[error("space for {found}, where rows have {expected}")]
    Space {
        /// Bytes or numbers of the rows.
        expected: usize,
        /// Bytes or numbers that there is space for.
        found: usize,
    },
    /// Rate-coded numbers aren't what they were.
    #[error("rate-coded numbers have no original bytes")]
    Lossy,
}

/// A matrix and its coded bytes.
#[derive(Clone, Debug)]
pub struct Coded<'a> {
    layout: Layout,
    bytes: &'a [u8],
    table: Table,
    path: Path,
}

/// What symbols are decoded by.
#[derive(Clone, Debug)]
enum Table {
    Plain,
    Huffman(huffman::Table),
    Palette([u8; PALETTE_BYTES]),
    Rate(huffman::Table, rate::Levels),
}

impl<'a> Coded<'a> {
    /// From bytes as long as the layout says, no matter where they come from.
    pub fn new(layout: Layout, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        if bytes.len() != layout.bytes() {
            return Err(DecodeError::Length {
                expected: layout.bytes(),
                found: bytes.len(),
            });
        }
        let (padded, lengths) = match layout.scheme() {
            Scheme::Plain => (0..0, 0..0),
            Scheme::Palette => (layout.escapes(), layout.table()),
            Scheme::Huffman | Scheme::Rate => (layout.codes(), layout.table()),
        };
        // Decoders read on into the padding, and rely on where zeros begin.
        if let Some(padding) = bytes[padded].last_chunk::<PAD_BYTES>()
            && *padding != [0; PAD_BYTES]
        {
            return Err(DecodeError::Padding);
        }
        let table = &bytes[lengths];
        let codes = || {
            let lengths = table.first_chunk::<CODE_LENGTHS_BYTES>();
            lengths
                .and_then(huffman::Table::new)
                .ok_or(DecodeError::Table)
        };
        let table = match layout.scheme() {
            Scheme::Plain => Table::Plain,
            Scheme::Huffman => Table::Huffman(codes()?),
            Scheme::Palette => Table::Palette(*table.first_chunk().ok_or(DecodeError::Table)?),
            Scheme::Rate => {
                let (lengths, levels) = rate::table(table).ok_or(DecodeError::Table)?;
                let codes = huffman::Table::new(&lengths).ok_or(DecodeError::Table)?;
                Table::Rate(codes, levels)
            }
        };
        Ok(Self {
            layout,
            bytes,
            table,
            path: Path::best(),
        })
    }

    /// Where its parts are.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Takes another way than the best one.
    #[cfg(test)]
    pub(crate) fn set_path(&mut self, path: Path) {
        self.path = path;
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Rows as the bytes they were: of a matrix coded without loss. `out` has exactly their size.
    pub fn decode_rows(&self, rows: Range<usize>, out: &mut [u8]) -> Result<(), DecodeError> {
        let size = self.layout.number().bytes();
        let numbers = self.numbers(rows, out.len(), size)?;
        match self.layout.scheme() {
            Scheme::Plain => {
                out.copy_from_slice(&self.bytes[numbers.start * size..numbers.end * size]);
                Ok(())
            }
            Scheme::Huffman | Scheme::Palette => {
                let first = numbers.start;
                self.each_tile(numbers, |symbols, part| {
                    let out = &mut out[(part.start - first) * size..(part.end - first) * size];
                    let Some(symbols) = symbols else {
                        self.path.fetch(self.raw(part));
                        self.path.fetch_to_write(out);
                        return;
                    };
                    merge(
                        self.path,
                        self.layout.number(),
                        symbols,
                        self.raw(part),
                        out,
                    );
                })
            }
            Scheme::Rate => Err(DecodeError::Lossy),
        }
    }

    /// Rows widened to `f32`, what a multiplication reads. `out` has exactly their size.
    pub fn widen_rows(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), DecodeError> {
        let numbers = self.numbers(rows, out.len(), 1)?;
        let first = numbers.start;
        let number = self.layout.number();
        match &self.table {
            Table::Plain => {
                let size = number.bytes();
                let bytes = &self.bytes[numbers.start * size..numbers.end * size];
                widen_plain(number, bytes, out);
                Ok(())
            }
            Table::Huffman(_) | Table::Palette(_) => self.each_tile(numbers, |symbols, part| {
                let out = &mut out[part.start - first..part.end - first];
                let Some(symbols) = symbols else {
                    self.path.fetch(self.raw(part));
                    self.path.fetch_to_write(out);
                    return;
                };
                widen(self.path, number, symbols, self.raw(part), out);
            }),
            Table::Rate(_, levels) => self.each_tile(numbers, |symbols, part| {
                let Some(symbols) = symbols else {
                    let out = &mut out[part.start - first..part.end - first];
                    self.path.fetch_to_write(out);
                    return;
                };
                let (width, steps) = (self.layout.width(), self.layout.steps());
                let (mut symbols, mut at) = (symbols, part.start);
                while at < part.end {
                    let row = at / width;
                    let end = part.end.min((row + 1) * width);
                    let (now, later) = symbols.split_at(end - at);
                    let out = &mut out[at - first..end - first];
                    let step = self.bytes[steps.start + row];
                    levels.widen(self.path, step, now, out);
                    (symbols, at) = (later, end);
                }
            }),
        }
    }

    /// Whether all of it is what an encoder makes: no bits that mean nothing, no tile longer than said. Slower than decoding.
    pub fn check(&self) -> Result<(), DecodeError> {
        if self.layout.scheme() == Scheme::Plain {
            return Ok(());
        }
        let mut places = self.places(0);
        let mut out = [0; 512];
        let mut end = 0;
        for tile in 0..self.layout.tiles() {
            let place = places.next()?;
            if place.at.start != end {
                return Err(DecodeError::Tile(tile));
            }
            end = place.at.end;
            let count = self.layout.tile_numbers(tile).len();
            let good = match &self.table {
                Table::Rate(..) if place.whole => {
                    let symbols = &self.bytes[self.layout.codes()][place.at.clone()];
                    symbols.iter().all(|symbol| symbol & rate::SECOND == 0)
                }
                _ if place.whole => true,
                Table::Huffman(table) | Table::Rate(table, _) => {
                    let codes = &self.bytes[self.layout.codes()];
                    let bits = table.decode_slowly(codes, place.at.start, &mut out[..count]);
                    let bytes = bits.div_ceil(8);
                    let codes = &codes[place.at.clone()];
                    bytes.next_multiple_of(self.layout.unit_bytes()) == codes.len()
                        && codes[bytes..].iter().all(|byte| *byte == 0)
                        && (bits % 8 == 0 || codes[bits / 8] >> (bits % 8) == 0)
                }
                Table::Palette(_) => {
                    let codes = self.indices(tile);
                    let index = |i: usize| codes[i / 2] >> (i % 2 * 4) & 15;
                    let escapes = (0..count).filter(|i| index(*i) == palette::ESCAPE);
                    escapes.count() == place.at.len()
                        && (count.is_multiple_of(2) || index(count) == 0)
                }
                Table::Plain => true,
            };
            if !good {
                return Err(DecodeError::Tile(tile));
            }
        }
        let strips = self.layout.tiles().div_ceil(STRIP_TILES);
        let last = self.layout.tiles().saturating_sub(1);
        if self.offset(strips) != end || end != places.limit {
            return Err(DecodeError::Tile(last));
        }
        Ok(())
    }

    /// Whether every tile is where it is said to be: then its rows can be decoded, to whatever numbers.
    pub fn check_places(&self) -> Result<(), DecodeError> {
        if self.layout.scheme() == Scheme::Plain {
            return Ok(());
        }
        let mut places = self.places(0);
        (0..self.layout.tiles()).try_for_each(|_| places.next().map(drop))
    }

    /// Where a tile's bytes are: codes, escapes, and raw ones, each of which it may lack.
    pub fn tile_bytes(&self, tile: usize) -> Result<[Range<usize>; 3], DecodeError> {
        let layout = &self.layout;
        let numbers = layout.tile_numbers(tile);
        if numbers.is_empty() {
            return Err(DecodeError::Tile(tile));
        }
        let within =
            |part: Range<usize>, at: Range<usize>| part.start + at.start..part.start + at.end;
        let size = layout.number().bytes();
        let codes = match layout.scheme() {
            Scheme::Plain => {
                let codes = within(layout.codes(), numbers.start * size..numbers.end * size);
                return Ok([codes, 0..0, 0..0]);
            }
            Scheme::Palette => within(layout.codes(), numbers.start / 2..numbers.end.div_ceil(2)),
            Scheme::Huffman | Scheme::Rate => within(layout.codes(), self.places(tile).next()?.at),
        };
        let escapes = match layout.scheme() {
            Scheme::Palette => within(layout.escapes(), self.places(tile).next()?.at),
            _ => 0..0,
        };
        let size = layout.number().raw_bytes();
        let raw = match layout.scheme() {
            Scheme::Rate => 0..0,
            _ => within(layout.raw(), numbers.start * size..numbers.end * size),
        };
        Ok([codes, escapes, raw])
    }

    /// The numbers of rows, if there are such rows and there is as much space.
    fn numbers(
        &self,
        rows: Range<usize>,
        space: usize,
        size: usize,
    ) -> Result<Range<usize>, DecodeError> {
        if rows.start > rows.end || rows.end > self.layout.rows() {
            return Err(DecodeError::Rows {
                from: rows.start,
                to: rows.end,
                rows: self.layout.rows(),
            });
        }
        let width = self.layout.width();
        let numbers = rows.start * width..rows.end * width;
        let expected = numbers.len() * size;
        if space != expected {
            return Err(DecodeError::Space {
                expected,
                found: space,
            });
        }
        Ok(numbers)
    }

    /// Symbols of some numbers, and which numbers they are of, tile by tile. Before some tiles are decoded there is a call
    /// for all of their numbers without symbols, so that memory can be asked for what they will need.
    fn each_tile(
        &self,
        numbers: Range<usize>,
        mut sink: impl FnMut(Option<&[u8]>, Range<usize>),
    ) -> Result<(), DecodeError> {
        if numbers.is_empty() {
            return Ok(());
        }
        let tiles = numbers.start / self.layout.tile()..numbers.end.div_ceil(self.layout.tile());
        let mut places = self.places(tiles.start);
        let mut stages = [[0; STAGE_BYTES]; STREAMS];
        for first in tiles.clone().step_by(STREAMS) {
            let group = first..tiles.end.min(first + STREAMS);
            let all = self.layout.tile_numbers(group.start).start
                ..self.layout.tile_numbers(group.end - 1).end;
            if !matches!(self.table, Table::Palette(_)) {
                sink(None, all.start.max(numbers.start)..all.end.min(numbers.end));
            }
            self.decode(&mut places, group.clone(), &mut stages)?;
            for (tile, stage) in group.zip(&stages) {
                let all = self.layout.tile_numbers(tile);
                let part = all.start.max(numbers.start)..all.end.min(numbers.end);
                let symbols = &stage[part.start - all.start..part.end - all.start];
                sink(Some(symbols), part);
            }
        }
        Ok(())
    }

    /// Symbols of as many tiles as are decoded in turn, or fewer.
    fn decode(
        &self,
        places: &mut Places<'_, '_>,
        tiles: Range<usize>,
        stages: &mut [[u8; STAGE_BYTES]; STREAMS],
    ) -> Result<(), DecodeError> {
        let mut found: [Place; STREAMS] = Default::default();
        for place in &mut found[..tiles.len()] {
            *place = places.next()?;
        }
        match &self.table {
            Table::Plain => {}
            Table::Huffman(table) | Table::Rate(table, _) => {
                let codes = &self.bytes[self.layout.codes()];
                // Of all but the last tile the same; what it lacks is what follows, and isn't looked at.
                let count = self.layout.tile_numbers(tiles.start).len();
                if found[..tiles.len()].iter().any(|place| !place.whole) {
                    let starts = std::array::from_fn(|n| found[n].at.start);
                    table.decode(self.path, codes, starts, count, stages);
                }
                for (place, stage) in found.iter().zip(stages) {
                    if place.whole {
                        let symbols = &codes[place.at.clone()];
                        stage[..symbols.len()].copy_from_slice(symbols);
                    }
                    if matches!(self.table, Table::Rate(..)) {
                        rate::mark(self.path, &mut stage[..count]);
                    }
                }
            }
            Table::Palette(palette) => {
                let escapes = &self.bytes[self.layout.escapes()];
                for ((tile, place), stage) in tiles.zip(&found).zip(stages) {
                    let escapes = &escapes[place.at.clone()];
                    let stage = &mut stage[..self.layout.tile_numbers(tile).len()];
                    if place.whole {
                        stage.copy_from_slice(escapes);
                    } else {
                        palette::decode(self.path, palette, self.indices(tile), escapes, stage);
                    }
                }
            }
        }
        Ok(())
    }

    /// Indices of a tile into the palette.
    fn indices(&self, tile: usize) -> &'a [u8] {
        let numbers = self.layout.tile_numbers(tile);
        let codes = &self.bytes[self.layout.codes()];
        &codes[numbers.start / 2..numbers.end.div_ceil(2)]
    }

    /// What symbols leave of some numbers.
    fn raw(&self, numbers: Range<usize>) -> &'a [u8] {
        let size = self.layout.number().raw_bytes();
        &self.bytes[self.layout.raw()][numbers.start * size..numbers.end * size]
    }

    /// Where a strip begins.
    fn offset(&self, strip: usize) -> usize {
        let (offsets, _) = self.bytes[self.layout.offsets()].as_chunks::<4>();
        u32::from_le_bytes(offsets[strip]) as usize
    }

    /// Places of tiles in codes or escapes, from one on.
    fn places(&self, tile: usize) -> Places<'_, 'a> {
        let mut places = Places {
            coded: self,
            lengths: &self.bytes[self.layout.lengths()],
            limit: match self.layout.scheme() {
                Scheme::Palette => self.layout.escapes_len(),
                _ => self.layout.codes_len(),
            },
            unit: match self.layout.scheme() {
                Scheme::Palette => 1,
                _ => self.layout.unit_bytes(),
            },
            tile,
            start: 0,
        };
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

/// Bytes of a tile.
#[derive(Clone, Default)]
struct Place {
    at: Range<usize>,
    /// They are its symbols as they are.
    whole: bool,
}

/// Places of tiles, one after the other.
struct Places<'c, 'a> {
    coded: &'c Coded<'a>,
    lengths: &'a [u8],
    limit: usize,
    unit: usize,
    tile: usize,
    start: usize,
}

impl Places<'_, '_> {
    /// The next one, which is within codes or escapes. There must be such a tile.
    fn next(&mut self) -> Result<Place, DecodeError> {
        let tile = self.tile;
        if tile.is_multiple_of(STRIP_TILES) {
            self.start = self.coded.offset(tile / STRIP_TILES);
        }
        let end = self.start.saturating_add(self.length(tile));
        if end > self.limit {
            return Err(DecodeError::Tile(tile));
        }
        let place = Place {
            at: self.start..end,
            whole: self.lengths[tile] == WHOLE,
        };
        self.start = end;
        self.tile += 1;
        Ok(place)
    }

    fn length(&self, tile: usize) -> usize {
        match self.lengths[tile] {
            WHOLE => self.coded.layout.tile_numbers(tile).len(),
            length => usize::from(length) * self.unit,
        }
    }
}
