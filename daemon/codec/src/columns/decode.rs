//! Decodes columns, several tiles in turn.
//!
//! As in `huffman`, independent streams hide the latency of table lookups. Here each stream goes through the columns of
//! a tile, and takes the next tile when it is done: a column's codes say where they end, and the next column begins
//! there. Streams begin a column together, and all wait for the slowest: branches that are hard to predict, such as the
//! number of rounds, are then shared by all of them. A lookup that would yield symbols of no column stops its stream,
//! without a branch, and a second table says how many of its bits are the column's.

use std::{hint::select_unpredictable, ops::Range};

use super::{
    bits::BitReader,
    classes::{Class, ENTRIES, ENTRY_SYMBOLS, ESCAPED, class},
    encode::{read_escaped, read_raw},
    header::{ColumnHeader, HeaderCoder},
};
use crate::{
    huffman::{BITS_MAX, STREAMS},
    layout::{COLUMN_ROWS_MAX, TILE_COLUMNS},
    simd::SimdPath,
};

/// Lookups per 64-bit word: five codes, after up to seven bits of a started byte, are 62 bits.
const LOOKUPS: usize = 5;
/// The end of a stream without a tile.
const IDLE: u32 = u32::MAX;
/// Most bytes of a column's codes that are read: the longest codes and one word.
const READ_BYTES: usize = (COLUMN_ROWS_MAX * BITS_MAX).div_ceil(8) + 8;
/// Symbols of a column while it is decoded, with what is written past its end.
const STAGE_BYTES: usize = COLUMN_ROWS_MAX + ENTRY_SYMBOLS;
/// What a stream without a tile reads.
static NOTHING: [u8; READ_BYTES] = [0; READ_BYTES];
/// What it decodes by: neither bits nor symbols.
static NO_ENTRIES: [u64; ENTRIES] = [0; ENTRIES];

// `progress` packs both counts into one `u32`, and the bits of one round must fit a word.
const _: () = assert!(READ_BYTES * 8 < 1 << 16 && STAGE_BYTES < 1 << 16);
const _: () = assert!(7 + BITS_MAX * LOOKUPS <= 64);

/// A tile that is being decoded.
struct Stream<'c> {
    /// Its columns from the current one on, as far as they are wanted.
    columns: Range<usize>,
    headers: HeaderCoder,
    /// Where the low bits of the current column's elements begin, if it is a wide one.
    raw: BitReader<'c>,
    /// Where the current column's codes begin.
    from: BitReader<'c>,
    header: ColumnHeader,
    class: &'static Class,
}

/// What a column's elements follow from, beside its header.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ColumnSymbols<'a> {
    /// Without marks; none of a column of zeros.
    pub(super) symbols: &'a [u8],
    /// Low bits of its elements. They count in wide columns alone.
    pub(super) raw: &'a [u8],
    /// Whether any symbol may be an escaped one. Words of a class have no outliers.
    pub(super) has_escaped: bool,
}

/// What the loops need to know of all streams.
struct Lanes<'c> {
    entries: [&'static [u64; ENTRIES]; STREAMS],
    from: [&'c [u8; READ_BYTES]; STREAMS],
    /// Low half: bits read; high half: symbols written. One addition of an entry advances both.
    progress: [u32; STREAMS],
    /// High half: symbols of each column, in whole words; low half: all ones.
    ends: [u32; STREAMS],
}

/// Decodes the symbols of `columns` of a matrix of `rows` rows, and passes each column's to `sink`, in any order. `start`
/// says where a tile's codes begin; any place is safe, as past the end of `codes` there are zeros.
pub(super) fn each_column<E>(
    path: SimdPath,
    codes: &[u8],
    rows: usize,
    columns: &Range<usize>,
    mut start: impl FnMut(usize) -> Result<usize, E>,
    mut sink: impl FnMut(usize, ColumnHeader, ColumnSymbols<'_>),
) -> Result<(), E> {
    assert!((1..=COLUMN_ROWS_MAX).contains(&rows));
    let codes = &Codes::new(codes);
    let mut queue = Queue {
        tiles: columns.start / TILE_COLUMNS..columns.end.div_ceil(TILE_COLUMNS),
        columns_end: columns.end,
        rows,
        codes,
        start: &mut start,
    };
    let mut sink = |column, header, symbols: ColumnSymbols<'_>| {
        // The columns of a tile before the first one that is wanted are decoded as well.
        if columns.contains(&column) {
            sink(column, header, symbols);
        }
    };
    // On the stack: decoding a column allocates nothing.
    let mut stages = [[0; STAGE_BYTES]; STREAMS];
    let mut raw = [0; COLUMN_ROWS_MAX];
    let mut streams: [Option<Stream<'_>>; STREAMS] = Default::default();
    let mut lanes = Lanes {
        entries: [&NO_ENTRIES; STREAMS],
        from: [&NOTHING; STREAMS],
        progress: [0; STREAMS],
        ends: [IDLE; STREAMS],
    };
    for (n, stream) in streams.iter_mut().enumerate() {
        *stream = queue.open(n, &mut lanes, &mut sink)?;
    }
    while streams.iter().any(Option::is_some) {
        match path {
            SimdPath::Portable => decode_any(&mut lanes, &mut stages),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: there is no such path on a processor without these features.
            SimdPath::Avx2(_) => unsafe { decode_bmi2(&mut lanes, &mut stages) },
        }
        for (n, stream) in streams.iter_mut().enumerate() {
            let Some(open_stream) = stream else { continue };
            open_stream.end(&lanes, n);
            let symbols = &mut stages[n][..rows];
            let has_escaped = has_escaped(symbols);
            if has_escaped {
                read_escaped(symbols, &mut open_stream.from);
            }
            let raw = &mut raw[..rows];
            if open_stream.header.raw_bits > 0 {
                read_raw(path, &mut open_stream.raw, open_stream.header.raw_bits, raw);
            }
            let symbols = ColumnSymbols {
                symbols,
                raw,
                has_escaped,
            };
            sink(open_stream.columns.start, open_stream.header, symbols);
            open_stream.columns.start += 1;
            if !open_stream.begin(n, codes, rows, &mut lanes, &mut sink) {
                *stream = queue.open(n, &mut lanes, &mut sink)?;
            }
        }
    }
    Ok(())
}

/// The tiles that no stream has taken yet.
struct Queue<'c, F> {
    tiles: Range<usize>,
    /// The end of the columns that are wanted.
    columns_end: usize,
    rows: usize,
    codes: &'c Codes<'c>,
    /// Where a tile's codes begin.
    start: F,
}

impl<'c, E, F: FnMut(usize) -> Result<usize, E>> Queue<'c, F> {
    /// Opens the next tile that has a column which isn't zero.
    fn open(
        &mut self,
        n: usize,
        lanes: &mut Lanes<'c>,
        sink: &mut impl FnMut(usize, ColumnHeader, ColumnSymbols<'_>),
    ) -> Result<Option<Stream<'c>>, E> {
        lanes.idle(n);
        for tile in self.tiles.by_ref() {
            let first = tile * TILE_COLUMNS;
            let all = first..self.columns_end.min(first + TILE_COLUMNS);
            let mut next = Stream::new(self.codes.all, (self.start)(tile)?, all);
            if next.begin(n, self.codes, self.rows, lanes, sink) {
                return Ok(Some(next));
            }
        }
        Ok(None)
    }
}

/// The codes of all tiles, and their last bytes with zeros after them, so that as many bytes as a column may have can be
/// read from any place.
struct Codes<'c> {
    all: &'c [u8],
    end: [u8; 2 * READ_BYTES],
}

impl<'c> Codes<'c> {
    fn new(all: &'c [u8]) -> Self {
        let mut end = [0; 2 * READ_BYTES];
        let last = &all[all.len().saturating_sub(READ_BYTES)..];
        end[READ_BYTES - last.len()..READ_BYTES].copy_from_slice(last);
        Self { all, end }
    }

    fn from(&self, at: usize) -> &[u8; READ_BYTES] {
        let bytes = self.all.get(at..).unwrap_or_default();
        bytes.first_chunk().unwrap_or_else(|| {
            let end = self.end[READ_BYTES - bytes.len()..].first_chunk();
            end.expect("there are as many zeros")
        })
    }
}

impl Lanes<'_> {
    fn idle(&mut self, n: usize) {
        self.entries[n] = &NO_ENTRIES;
        self.from[n] = &NOTHING;
        (self.progress[n], self.ends[n]) = (0, IDLE);
    }
}

impl<'c> Stream<'c> {
    fn new(codes: &'c [u8], start: usize, columns: Range<usize>) -> Self {
        let from = BitReader::new(codes, start.saturating_mul(8));
        Self {
            columns,
            headers: HeaderCoder::new(),
            raw: from.clone(),
            from,
            header: ColumnHeader::ZERO,
            class: class(0),
        }
    }

    /// Begins with the next column that isn't zero, if there is one.
    fn begin<'l>(
        &mut self,
        n: usize,
        codes: &'l Codes<'_>,
        rows: usize,
        lanes: &mut Lanes<'l>,
        sink: &mut impl FnMut(usize, ColumnHeader, ColumnSymbols<'_>),
    ) -> bool {
        while !self.columns.is_empty() {
            self.header = self.headers.read(&mut self.from);
            if let Some(index) = self.header.class {
                self.class = class(index);
                self.raw = self.from.clone();
                self.from.at += usize::from(self.header.raw_bits) * rows;
                lanes.entries[n] = &self.class.entries;
                lanes.from[n] = codes.from(self.from.at / 8);
                lanes.progress[n] = (self.from.at % 8) as u32;
                let count = rows.next_multiple_of(self.class.together) as u32;
                lanes.ends[n] = count << 16 | 0xffff;
                return true;
            }
            sink(self.columns.start, self.header, ColumnSymbols::default());
            self.columns.start += 1;
        }
        false
    }

    /// Advances `from` to the end of the column's codes.
    fn end(&mut self, lanes: &Lanes<'_>, n: usize) {
        let progress = lanes.progress[n];
        let bits = (progress & 0xffff) as usize;
        let left = (lanes.ends[n] - progress) >> 16;
        self.from.at = self.from.at / 8 * 8 + bits;
        let window = self.from.peek() as usize % ENTRIES;
        self.from.at += usize::from(self.class.parts[window] >> (4 * left) & 15);
    }
}

fn has_escaped(symbols: &[u8]) -> bool {
    let (words, rest) = symbols.as_chunks::<8>();
    let words = words
        .iter()
        .fold(0, |all, word| all | u64::from_le_bytes(*word));
    let rest = rest.iter().fold(0, |all, symbol| all | symbol);
    words & 0x8080_8080_8080_8080 != 0 || rest & ESCAPED != 0
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi2")]
// Compiled a second time for `shrx`, as in `huffman`.
fn decode_bmi2(lanes: &mut Lanes<'_>, stages: &mut [[u8; STAGE_BYTES]; STREAMS]) {
    decode_any(lanes, stages);
}

/// Decodes a column of each stream, up to where the next lookup would yield more symbols than it has.
#[inline(always)]
fn decode_any(lanes: &mut Lanes<'_>, stages: &mut [[u8; STAGE_BYTES]; STREAMS]) {
    let Lanes {
        entries,
        from,
        ends,
        ..
    } = *lanes;
    let mut progress = lanes.progress;
    // What loads and stores of rounds rely on: no stream gets beyond its end, and one without a tile has entries that
    // don't advance it.
    for (progress, end) in progress.into_iter().zip(ends) {
        assert!(progress < 8 && (end == IDLE || end >> 16 <= COLUMN_ROWS_MAX as u32));
    }
    loop {
        let left = progress.into_iter().zip(ends).map(|(at, end)| end - at);
        let least = left.fold(u32::MAX, u32::min) >> 16;
        // No stream can reach its end in fewer rounds.
        let rounds = least as usize / (LOOKUPS * ENTRY_SYMBOLS);
        if rounds == 0 {
            break;
        }
        for _ in 0..rounds {
            round::<false>(&entries, &from, &ends, &mut progress, stages);
        }
    }
    while round::<true>(&entries, &from, &ends, &mut progress, stages) {}
    lanes.progress = progress;
}

/// Some lookups in the next word of each stream. With `STOPS`, streams stop before a lookup that would yield more symbols
/// than are left, and it returns whether any stream has not.
#[inline(always)]
fn round<const STOPS: bool>(
    entries: &[&[u64; ENTRIES]; STREAMS],
    from: &[&[u8; READ_BYTES]; STREAMS],
    ends: &[u32; STREAMS],
    progress: &mut [u32; STREAMS],
    stages: &mut [[u8; STAGE_BYTES]; STREAMS],
) -> bool {
    let mut words = [0_u64; STREAMS];
    for n in 0..STREAMS {
        let bits = progress[n] as usize & 0xffff;
        // SAFETY: at most `COLUMN_ROWS_MAX` symbols were read, of at most `BITS_MAX` bits each, after less than a byte, and
        // `from[n]` has space for as many and this word.
        let word = unsafe {
            from[n]
                .as_ptr()
                .add(bits / 8)
                .cast::<u64>()
                .read_unaligned()
        };
        words[n] = u64::from_le(word) >> (bits % 8);
    }
    let mut last = [0; STREAMS];
    for _ in 0..LOOKUPS {
        for n in 0..STREAMS {
            let mut entry = entries[n][words[n] as usize % ENTRIES];
            let symbols = ((entry >> 32) as u32).to_le_bytes();
            let at = (progress[n] >> 16) as usize;
            // SAFETY: as above: at most `COLUMN_ROWS_MAX` symbols were written, and `stages[n]` has space for an entry more.
            unsafe {
                let out = stages[n].as_mut_ptr().add(at);
                // Always four bytes: the next lookup overwrites what is too much.
                out.cast::<[u8; ENTRY_SYMBOLS]>().write(symbols);
            }
            if STOPS {
                let fits = progress[n].wrapping_add(entry as u32) <= ends[n];
                entry = select_unpredictable(fits, entry, 0);
                last[n] = entry;
            }
            // The low six bits of an entry are its count of bits, and x86 shifts by no others.
            words[n] >>= entry % 64;
            progress[n] = progress[n].wrapping_add(entry as u32);
        }
    }
    last.into_iter().fold(0, |all, entry| all | entry) != 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::columns::encode::read_codes;

    proptest! {
        /// Whatever the bytes are: each column ends where it does word by word, or the next would differ.
        #[test]
        fn any_bytes_decode_as_word_by_word(
            bytes in prop::collection::vec(any::<u8>(), 0..4000),
            rows in prop_oneof![1_usize..=256, Just(256)],
            starts in prop::collection::vec(0_usize..4100, 11),
            first in 0_usize..20,
        ) {
            let columns = first..starts.len() * TILE_COLUMNS - 3;
            for path in SimdPath::all() {
                let start = |tile: usize| Ok::<_, ()>(starts[tile]);
                let mut found = vec![None; columns.end];
                each_column(path, &bytes, rows, &columns, start, |column, header, of| {
                    let raw = if header.raw_bits > 0 { of.raw } else { &[] };
                    found[column] = Some((header, of.symbols.to_vec(), raw.to_vec()));
                })
                .unwrap();
                for (tile, start) in starts.iter().enumerate() {
                    let mut from = BitReader::new(&bytes, start * 8);
                    let mut headers = HeaderCoder::new();
                    let all = tile * TILE_COLUMNS..(tile + 1) * TILE_COLUMNS;
                    for column in all.start..all.end.min(columns.end) {
                        let header = headers.read(&mut from);
                        let (mut symbols, mut raw) = (Vec::new(), Vec::new());
                        if header.raw_bits > 0 {
                            raw.resize(rows, 0);
                            read_raw(SimdPath::Portable, &mut from, header.raw_bits, &mut raw);
                        }
                        if let Some(index) = header.class {
                            read_codes(class(index), &mut from, rows, &mut symbols);
                            symbols.truncate(rows);
                        }
                        let found = found[column].take();
                        prop_assert_eq!(found.is_some(), columns.contains(&column));
                        let Some(its) = found else { continue };
                        prop_assert_eq!(its, (header, symbols, raw));
                    }
                }
            }
        }
    }
}
