//! Places parts in a range of addresses, and tracks which pieces need memory.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    ops::Range,
};

/// The alignment that the driver promises for allocations, which kernels and copies rely on.
const ALIGNMENT: usize = 256;

/// Parts of any size over pieces of one size. A piece has memory while some part lies in it.
pub(super) struct Layout {
    range_bytes: usize,
    piece_bytes: usize,
    /// Lengths of parts by their start.
    parts: BTreeMap<usize, usize>,
    /// Number of parts in each piece that has any.
    users: BTreeMap<usize, usize>,
    used_bytes: usize,
}

impl Layout {
    pub(super) fn new(range_bytes: usize, piece_bytes: usize) -> Self {
        Self {
            range_bytes,
            piece_bytes,
            parts: BTreeMap::new(),
            users: BTreeMap::new(),
            used_bytes: 0,
        }
    }

    /// Bytes of all parts.
    pub(super) fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    /// Bytes of all pieces that have memory.
    pub(super) fn mapped_bytes(&self) -> usize {
        self.users.len() * self.piece_bytes
    }

    /// Finds a place for a part. Returns its start, and the pieces that need memory from now on; `None` if no gap is
    /// long enough.
    ///
    /// Takes the gap where the fewest pieces have to be added, the first of these. A part begins where the one before
    /// it ends, in the same piece, so that memory is wasted only at gaps.
    pub(super) fn take(&mut self, bytes: usize) -> Option<(usize, Range<usize>)> {
        assert!(bytes > 0, "a part has bytes");
        // Linear in the number of parts, which are weight groups and staging buffers: some hundred at most.
        let ends = self.parts.iter().map(|(&start, &bytes)| start + bytes);
        let starts = self.parts.keys().copied().chain([self.range_bytes]);
        let start = [0]
            .into_iter()
            .chain(ends)
            .map(|end| end.next_multiple_of(ALIGNMENT))
            .zip(starts)
            .filter(|&(from, to)| to.saturating_sub(from) >= bytes)
            .map(|(from, _)| from)
            .min_by_key(|&from| self.without_memory(from, bytes).len())?;
        let added = self.without_memory(start, bytes);
        for piece in self.pieces(start, bytes) {
            *self.users.entry(piece).or_default() += 1;
        }
        self.parts.insert(start, bytes);
        self.used_bytes += bytes;
        Some((start, added))
    }

    /// Removes a part. Returns the pieces that need no memory any more.
    pub(super) fn give_back(&mut self, start: usize) -> Range<usize> {
        let bytes = self
            .parts
            .remove(&start)
            .expect("a part is given back once");
        self.used_bytes -= bytes;
        for piece in self.pieces(start, bytes) {
            if let Entry::Occupied(mut users) = self.users.entry(piece) {
                *users.get_mut() -= 1;
                if *users.get() == 0 {
                    users.remove();
                }
            }
        }
        self.without_memory(start, bytes)
    }

    fn pieces(&self, start: usize, bytes: usize) -> Range<usize> {
        start / self.piece_bytes..(start + bytes).div_ceil(self.piece_bytes)
    }

    /// The pieces in a free range that have no memory: all but those at either end that neighbours use.
    fn without_memory(&self, start: usize, bytes: usize) -> Range<usize> {
        // Parts don't overlap, so only the first and the last piece can be shared with neighbours.
        let mut pieces = self.pieces(start, bytes);
        if self.users.contains_key(&pieces.start) {
            pieces.start += 1;
        }
        if !pieces.is_empty() && self.users.contains_key(&(pieces.end - 1)) {
            pieces.end -= 1;
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const PIECE: usize = 4096;

    /// A request to a layout: allocate so many bytes, or free one of its parts.
    #[derive(Debug, Clone)]
    enum Step {
        Take(usize),
        GiveBack(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let bytes = prop_oneof![1..300usize, 1..3 * PIECE, 1..20 * PIECE];
        let step = prop_oneof![
            3 => bytes.prop_map(Step::Take),
            2 => any::<usize>().prop_map(Step::GiveBack),
        ];
        prop::collection::vec(step, 1..200)
    }

    proptest! {
        #[test]
        fn pieces_have_memory_exactly_where_parts_lie(steps in steps()) {
            let range_bytes = 100 * PIECE;
            let mut layout = Layout::new(range_bytes, PIECE);
            let mut parts: Vec<Range<usize>> = Vec::new();
            let mut mapped = BTreeSet::new();
            for step in steps {
                match step {
                    Step::Take(bytes) => {
                        let Some((start, added)) = layout.take(bytes) else {
                            let mut ends: Vec<usize> = vec![0];
                            ends.extend(parts.iter().map(|part| part.end));
                            let fits = |end: &usize| {
                                let start = end.next_multiple_of(ALIGNMENT);
                                let next = parts.iter().map(|part| part.start);
                                let next = next.filter(|next| next >= end).min();
                                start + bytes <= next.unwrap_or(range_bytes)
                            };
                            prop_assert!(!ends.iter().any(fits), "there is a gap for {bytes}");
                            continue;
                        };
                        let part = start..start + bytes;
                        prop_assert!(start % ALIGNMENT == 0 && part.end <= range_bytes);
                        for other in &parts {
                            prop_assert!(other.end <= part.start || part.end <= other.start);
                        }
                        for piece in added {
                            prop_assert!(mapped.insert(piece), "it has memory");
                        }
                        parts.push(part);
                    }
                    Step::GiveBack(_) if parts.is_empty() => {}
                    Step::GiveBack(which) => {
                        let part = parts.swap_remove(which % parts.len());
                        for piece in layout.give_back(part.start) {
                            prop_assert!(mapped.remove(&piece), "it has no memory");
                        }
                    }
                }
                let needed: BTreeSet<usize> = parts
                    .iter()
                    .flat_map(|part| part.start / PIECE..part.end.div_ceil(PIECE))
                    .collect();
                prop_assert_eq!(&mapped, &needed);
                prop_assert_eq!(layout.mapped_bytes(), needed.len() * PIECE);
                prop_assert_eq!(layout.used_bytes(), parts.iter().map(Range::len).sum::<usize>());
            }
        }

        /// A load, then levels one after another: each new weight group is made before the old one is freed.
        #[test]
        fn going_from_level_to_level_loses_little(
            levels in prop::collection::vec(prop::collection::vec(3 * PIECE..20 * PIECE, 30), 1..8),
        ) {
            let mut layout = Layout::new(4000 * PIECE, PIECE);
            let mut units: Vec<usize> = Vec::new();
            for level in levels {
                for (i, bytes) in level.into_iter().enumerate() {
                    let (start, _) = layout.take(bytes).expect("there is room");
                    match units.get_mut(i) {
                        Some(unit) => {
                            layout.give_back(std::mem::replace(unit, start));
                        }
                        None => units.push(start),
                    }
                }
                let lost = layout.mapped_bytes() - layout.used_bytes();
                prop_assert!(lost < units.len() * PIECE / 2, "{lost} bytes");
            }
        }
    }

    #[test]
    fn neighbours_share_the_piece_at_their_border() {
        let mut layout = Layout::new(100 * PIECE, PIECE);
        assert_eq!(layout.take(PIECE + 100), Some((0, 0..2)));
        assert_eq!(layout.take(2 * PIECE), Some((PIECE + 256, 2..4)));
        assert_eq!(layout.mapped_bytes(), 4 * PIECE);
        assert_eq!(layout.give_back(0), 0..1);
        assert_eq!(layout.give_back(PIECE + 256), 1..4);
        assert_eq!((layout.mapped_bytes(), layout.used_bytes()), (0, 0));
    }

    #[test]
    fn a_part_goes_where_memory_is_rather_than_first() {
        let mut layout = Layout::new(100 * PIECE, PIECE);
        let (first, _) = layout.take(3 * PIECE).unwrap();
        let (_, _) = layout.take(PIECE / 2).unwrap();
        layout.give_back(first);
        assert_eq!(
            layout.take(PIECE / 4),
            Some((3 * PIECE + PIECE / 2, 4..4)),
            "beside the part that there is"
        );
    }
}
