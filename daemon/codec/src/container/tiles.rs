//! Checks of 16 bits a tile, which locate damage. Running a model doesn't need them.

use std::ops::Range;

use super::hash::{Hash, fold};
use crate::{
    layout::{MatrixLayout, STRIP_TILES, Scheme, WHOLE},
    symbols::raw_bytes,
};

/// Multiplier that mixes hashes before they are combined, so that a tile with swapped parts has another check. It is
/// 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Appends the checks of plain bytes, one for each tile of `tile_bytes`.
pub(super) fn of_plain(bytes: &[u8], tile_bytes: usize, checks: &mut Vec<u16>) {
    checks.extend(bytes.chunks(tile_bytes).map(|tile| fold(Hash::of(tile))));
}

/// Appends the checks of a chunk: one for the tables before its tiles, and one for each tile. They depend on the bytes
/// alone, so that damaged chunks have checks too: where lengths are invalid, tiles end where their part does.
///
/// # Panics
/// When there are fewer bytes than the layout says.
pub(super) fn of_chunk(bytes: &[u8], layout: &MatrixLayout, checks: &mut Vec<u16>) {
    checks.push(fold(Hash::of(&bytes[..layout.codes().start])));
    let mut places = TilePositions::new(layout, bytes);
    for tile in 0..layout.tiles() {
        let [codes, escapes, raw] = places.next(tile).map(|part| Hash::of(&bytes[part]));
        // A tile's codes, escapes and raw bits lie apart in the chunk, so each is hashed alone and the three are mixed.
        let first = codes.0.wrapping_mul(SPREAD) ^ escapes.0;
        checks.push(fold(Hash(first.wrapping_mul(SPREAD) ^ raw.0)));
    }
}

/// Walks through the tiles of a chunk. Unlike the decoder's iterator it accepts any lengths.
struct TilePositions<'a> {
    layout: &'a MatrixLayout,
    bytes: &'a [u8],
    /// Offset in codes or escapes where the next tile begins.
    at: usize,
}

impl<'a> TilePositions<'a> {
    fn new(layout: &'a MatrixLayout, bytes: &'a [u8]) -> Self {
        Self {
            layout,
            bytes,
            at: 0,
        }
    }

    /// Byte ranges of a tile's codes, escapes and raw bits. Tiles must be asked for in order.
    fn next(&mut self, tile: usize) -> [Range<usize>; 3] {
        let layout = self.layout;
        if tile.is_multiple_of(STRIP_TILES) {
            let place = layout.offsets().start + tile / STRIP_TILES * 4;
            let offset = self.bytes[place..place + 4].try_into();
            self.at = u32::from_le_bytes(offset.expect("four bytes")) as usize;
        }
        let numbers = layout.tile_elements(tile);
        let lengths = &self.bytes[layout.lengths()];
        let length = match layout.scheme() {
            Scheme::Columns => {
                let (lengths, _) = lengths.as_chunks::<2>();
                usize::from(u16::from_le_bytes(lengths[tile]))
            }
            _ if lengths[tile] == WHOLE => numbers.len(),
            Scheme::Dictionary => usize::from(lengths[tile]),
            _ => usize::from(lengths[tile]) * layout.unit_bytes(),
        };
        // No overflow: an offset has 32 bits, and a strip 32 lengths. Places beyond the part are cut by `within`.
        let varying = self.at..self.at + length;
        self.at += length;
        let (codes, escapes) = match layout.scheme() {
            Scheme::Dictionary => (
                within(&layout.codes(), numbers.start / 2..numbers.end.div_ceil(2)),
                within(&layout.escapes(), varying),
            ),
            _ => (within(&layout.codes(), varying), 0..0),
        };
        // Where a scheme has no raw bits, `within` cuts the range to nothing.
        let raw_bytes = raw_bytes(layout.dtype());
        let raw = numbers.start * raw_bytes..numbers.end * raw_bytes;
        [codes, escapes, within(&layout.raw(), raw)]
    }
}

/// The intersection of a part and a range relative to its start.
fn within(part: &Range<usize>, range: Range<usize>) -> Range<usize> {
    let place = |at: usize| part.start.saturating_add(at).min(part.end);
    place(range.start)..place(range.end)
}
