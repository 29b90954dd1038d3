//! Decodes columns, several tiles in turn.
//!
//! As in `huffman`, independent streams hide the latency of table lookups. Here each stream goes through the columns of
//! a tile, and takes the next tile when it is done: a column's codes say where they end, and the next column begins
//! there. All streams advance together until one of them has fewer symbols left than a round may yield; that one then
//! finishes its column alone, exactly to its last symbol.

use std::ops::Range;

use super::{
    bits::BitReader,
    classes::{Class, ENTRIES, ENTRY_SYMBOLS, class},
    encode::read_escaped,
    header::{ColumnHeader, HeaderCoder},
};
use crate::{
    huffman::{BITS_MAX, STREAMS},
    layout::{COLUMN_ROWS_MAX, TILE_COLUMNS},
    simd::SimdPath,
};

/// Lookups per 64-bit word: five codes, after up to seven bits of a started byte, are 62 bits.
const LOOKUPS: usize = 5;
/// Symbols that a round yields at most.
const ROUND_SYMBOLS: usize = LOOKUPS * ENTRY_SYMBOLS;
/// Most bytes of a column's codes that are read: the longest codes and one word.
const READ_BYTES: usize = (COLUMN_ROWS_MAX * BITS_MAX).div_ceil(8) + 8;
/// Symbols of a column while it is decoded, with what is written past its end.
const STAGE_BYTES: usize = COLUMN_ROWS_MAX + ENTRY_SYMBOLS;
/// What a stream without a tile reads.
const NOTHING: [u8; READ_BYTES] = [0; READ_BYTES];

// `progress` packs both counts into one `u32`, and the bits of one round must fit a word.
const _: () = assert!(READ_BYTES * 8 < 1 << 16 && STAGE_BYTES < 1 << 16);
const _: () = assert!(7 + BITS_MAX * LOOKUPS <= 64);

/// A tile that is being decoded.
struct Stream<'c> {
    /// Its columns from the current one on, as far as they are wanted.
    columns: Range<usize>,
    headers: HeaderCoder,
    /// Where the current column's codes begin.
    from: BitReader<'c>,
    header: ColumnHeader,
    class: &'static Class,
    /// Symbols of the current column, in whole words.
    count: usize,
    /// The last bytes of all, with zeros after them, where fewer are left than may be read.
    copy: Option<Box<[u8; READ_BYTES]>>,
}

/// Decodes the symbols of `columns` of a matrix of `rows` rows, and passes each column's to `sink`, in any order.
/// `start` says where a tile's codes begin; any place is safe, as past the end of `codes` there are zeros.
pub(super) fn each_column<E>(
    path: SimdPath,
    codes: &[u8],
    rows: usize,
    columns: &Range<usize>,
    mut start: impl FnMut(usize) -> Result<usize, E>,
    mut sink: impl FnMut(usize, ColumnHeader, &mut [u8]),
) -> Result<(), E> {
    assert!((1..=COLUMN_ROWS_MAX).contains(&rows));
    let mut tiles = columns.start / TILE_COLUMNS..columns.end.div_ceil(TILE_COLUMNS);
    let mut sink = |column, header, symbols: &mut [u8]| {
        // The columns of a tile before the first one that is wanted are decoded as well.
        if columns.contains(&column) {
            sink(column, header, symbols);
        }
    };
    // On the stack: decoding a column allocates nothing.
    let mut stages = [[0; STAGE_BYTES]; STREAMS];
    let mut progress = [0; STREAMS];
    let mut streams: [Option<Stream<'_>>; STREAMS] = Default::default();
    loop {
        for (stream, progress) in streams.iter_mut().zip(&mut progress) {
            while stream.is_none() {
                let Some(tile) = tiles.next() else { break };
                let first = tile * TILE_COLUMNS;
                let all = first..columns.end.min(first + TILE_COLUMNS);
                let mut next = Stream::new(codes, start(tile)?, all);
                *progress = next.begin(rows, &mut sink);
                *stream = Some(next).filter(|next| !next.columns.is_empty());
            }
        }
        let left = streams
            .iter()
            .zip(progress)
            .filter_map(|(stream, progress)| {
                Some(stream.as_ref()?.count - (progress >> 16) as usize)
            });
        let Some(least) = left.min() else {
            return Ok(());
        };
        let rounds = least / ROUND_SYMBOLS;
        if rounds > 0 {
            let mut entries = [&class(0).entries; STREAMS];
            let mut from = [&NOTHING; STREAMS];
            for (n, stream) in streams.iter().enumerate() {
                match stream {
                    Some(stream) => (entries[n], from[n]) = (&stream.class.entries, stream.bytes()),
                    None => progress[n] = 0,
                }
            }
            let entries = entries.map(|entries| &**entries);
            match path {
                SimdPath::Portable => decode_any(entries, from, rounds, &mut progress, &mut stages),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: there is no such path on a processor without these features.
                SimdPath::Avx2(_) => unsafe {
                    decode_bmi2(entries, from, rounds, &mut progress, &mut stages);
                },
            }
        }
        let each = streams.iter_mut().zip(&mut progress).zip(&mut stages);
        for ((stream, progress), stage) in each {
            let Some(open) = stream else { continue };
            if open.count - (*progress >> 16) as usize >= ROUND_SYMBOLS {
                continue;
            }
            open.finish(*progress, stage);
            let symbols = &mut stage[..rows];
            if symbols.iter().fold(0, |all, symbol| all | symbol) & 0x80 != 0 {
                read_escaped(symbols, &mut open.from);
            }
            sink(open.columns.start, open.header, symbols);
            open.columns.start += 1;
            *progress = open.begin(rows, &mut sink);
            if open.columns.is_empty() {
                *stream = None;
            }
        }
    }
}

impl<'c> Stream<'c> {
    fn new(codes: &'c [u8], start: usize, columns: Range<usize>) -> Self {
        Self {
            columns,
            headers: HeaderCoder::new(),
            from: BitReader::new(codes, start.saturating_mul(8)),
            header: ColumnHeader::ZERO,
            class: class(0),
            count: 0,
            copy: None,
        }
    }

    /// Begins with the next column that isn't zero, if there is one. Returns its progress.
    fn begin(&mut self, rows: usize, mut sink: impl FnMut(usize, ColumnHeader, &mut [u8])) -> u32 {
        while !self.columns.is_empty() {
            self.header = self.headers.read(&mut self.from);
            if let Some(index) = self.header.class {
                self.class = class(index);
                self.count = rows.next_multiple_of(self.class.together);
                break;
            }
            sink(self.columns.start, self.header, &mut []);
            self.columns.start += 1;
        }
        let rest = self.from.rest();
        self.copy = (rest.len() < READ_BYTES).then(|| {
            let mut copy = Box::new(NOTHING);
            copy[..rest.len()].copy_from_slice(rest);
            copy
        });
        (self.from.at % 8) as u32
    }

    /// The current column's bytes.
    fn bytes(&self) -> &[u8; READ_BYTES] {
        match &self.copy {
            Some(copy) => copy,
            None => self
                .from
                .rest()
                .first_chunk()
                .expect("it isn't near the end"),
        }
    }

    /// Decodes what the rounds left of a column.
    fn finish(&mut self, mut progress: u32, stage: &mut [u8; STAGE_BYTES]) {
        let bytes = self.bytes();
        loop {
            let (bits, at) = ((progress & 0xffff) as usize, (progress >> 16) as usize);
            if at >= self.count {
                self.from.at = self.from.at / 8 * 8 + bits;
                return;
            }
            let word = bytes[bits / 8..].first_chunk().expect("longest codes fit");
            let window = (u64::from_le_bytes(*word) >> (bits % 8)) as usize % ENTRIES;
            let entry = match self.count - at >= ENTRY_SYMBOLS {
                true => self.class.entries[window],
                false => self.class.singles[window],
            };
            stage[at..at + ENTRY_SYMBOLS].copy_from_slice(&((entry >> 32) as u32).to_le_bytes());
            progress += entry as u32;
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi2")]
// Compiled a second time for `shrx`, as in `huffman`.
fn decode_bmi2(
    entries: [&[u64; ENTRIES]; STREAMS],
    from: [&[u8; READ_BYTES]; STREAMS],
    rounds: usize,
    progress: &mut [u32; STREAMS],
    stages: &mut [[u8; STAGE_BYTES]; STREAMS],
) {
    decode_any(entries, from, rounds, progress, stages);
}

/// Advances all streams by so many rounds that none of them gets beyond its column.
#[inline(always)]
fn decode_any(
    entries: [&[u64; ENTRIES]; STREAMS],
    from: [&[u8; READ_BYTES]; STREAMS],
    rounds: usize,
    all: &mut [u32; STREAMS],
    stages: &mut [[u8; STAGE_BYTES]; STREAMS],
) {
    let mut progress = *all;
    let most = progress.into_iter().max().unwrap_or(0) >> 16;
    // Each lookup yields one symbol at least, and takes eleven bits at most: so many symbols, so many bits.
    assert!(most as usize + rounds * ROUND_SYMBOLS <= COLUMN_ROWS_MAX);
    for _ in 0..rounds {
        let mut words = [0_u64; STREAMS];
        for n in 0..STREAMS {
            let bits = progress[n] as usize & 0xffff;
            // SAFETY: fewer than `COLUMN_ROWS_MAX` symbols were read, of at most `BITS_MAX` bits each, after less than
            // a byte, and `from[n]` has space for as many and this word.
            let word = unsafe {
                from[n]
                    .as_ptr()
                    .add(bits / 8)
                    .cast::<u64>()
                    .read_unaligned()
            };
            words[n] = u64::from_le(word) >> (bits % 8);
        }
        for _ in 0..LOOKUPS {
            for n in 0..STREAMS {
                let entry = entries[n][words[n] as usize % ENTRIES];
                let symbols = ((entry >> 32) as u32).to_le_bytes();
                let at = (progress[n] >> 16) as usize;
                // SAFETY: fewer than `COLUMN_ROWS_MAX` symbols were written, and `stages[n]` has space for an entry
                // more.
                unsafe {
                    let out = stages[n].as_mut_ptr().add(at);
                    // Always four bytes: the next lookup overwrites what is too much.
                    out.cast::<[u8; ENTRY_SYMBOLS]>().write(symbols);
                }
                // The low six bits of an entry are its count of bits, and x86 shifts by no others.
                words[n] >>= entry % 64;
                progress[n] = progress[n].wrapping_add(entry as u32);
            }
        }
    }
    *all = progress;
}
