//! Sixteen bits a tile, by which damage is told with its place. They are no part of what a model is run from.

use std::ops::Range;

use super::hash::{Hash, fold};
use crate::{
    layout::{MatrixLayout, STRIP_TILES, Scheme, WHOLE},
    symbols::raw_bytes,
};

/// Spreads one of two hashes before they are put together, so that two tiles' swapped parts aren't the same tile.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The checks of plain bytes, of which tiles have so many: one a tile.
pub(super) fn of_plain(bytes: &[u8], tile_bytes: usize, checks: &mut Vec<u16>) {
    checks.extend(bytes.chunks(tile_bytes).map(|tile| fold(Hash::of(tile))));
}

/// The checks of a chunk: one of the tables before its tiles, and one a tile. They follow from the bytes alone, whatever
/// those are: where lengths make no sense, tiles end where their part does.
///
/// # Panics
/// When there are fewer bytes than the layout says.
pub(super) fn of_chunk(bytes: &[u8], layout: &MatrixLayout, checks: &mut Vec<u16>) {
    checks.push(fold(Hash::of(&bytes[..layout.codes().start])));
    let mut places = TilePositions::new(layout, bytes);
    for tile in 0..layout.tiles() {
        let [codes, escapes, raw] = places.next(tile).map(|part| Hash::of(&bytes[part]));
        let first = codes.0.wrapping_mul(SPREAD) ^ escapes.0;
        checks.push(fold(Hash(first.wrapping_mul(SPREAD) ^ raw.0)));
    }
}

/// Goes from tile to tile.
struct TilePositions<'a> {
    layout: &'a MatrixLayout,
    bytes: &'a [u8],
    /// Where in codes or escapes the next tile begins.
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

    /// What is coded of a tile, its escapes, and its raw bytes. Tiles are asked for in order.
    fn next(&mut self, tile: usize) -> [Range<usize>; 3] {
        let layout = self.layout;
        if tile.is_multiple_of(STRIP_TILES) {
            let place = layout.offsets().start + tile / STRIP_TILES * 4;
            let offset = self.bytes[place..place + 4].try_into();
            self.at = u32::from_le_bytes(offset.expect("four bytes")) as usize;
        }
        let numbers = layout.tile_elements(tile);
        let length = self.bytes[layout.lengths().start + tile];
        let length = match (length, layout.scheme()) {
            (WHOLE, _) => numbers.len(),
            (escapes, Scheme::Dictionary) => usize::from(escapes),
            (units, _) => usize::from(units) * layout.unit_bytes(),
        };
        let varying = self.at..self.at + length;
        self.at += length;
        let (codes, escapes) = match layout.scheme() {
            Scheme::Dictionary => (
                within(&layout.codes(), numbers.start / 2..numbers.end.div_ceil(2)),
                within(&layout.escapes(), varying),
            ),
            _ => (within(&layout.codes(), varying), 0..0),
        };
        let raw_bytes = raw_bytes(layout.dtype());
        let raw = numbers.start * raw_bytes..numbers.end * raw_bytes;
        [codes, escapes, within(&layout.raw(), raw)]
    }
}

/// What of a part's bytes there is.
fn within(part: &Range<usize>, range: Range<usize>) -> Range<usize> {
    let place = |at: usize| part.start.saturating_add(at).min(part.end);
    place(range.start)..place(range.end)
}
