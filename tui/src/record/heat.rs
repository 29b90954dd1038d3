//! The model's confidence, token by token and pass by pass.

use std::ops::Range;

use sluice_proto::v1::{CanvasToken, TokenState};

use super::Recording;
use crate::json::read::POSITIONS_MAX;

/// State of one position after one pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HeatCell {
    /// Nothing is predicted yet.
    Masked,
    /// A token is predicted; its probability, where that is known.
    Provisional(Option<f32>),
    /// Committed since the column before; its probability, where that is known.
    Fresh(Option<f32>),
    /// Committed since the column before in the place of another token; its probability, where that is known.
    Edited(Option<f32>),
    /// Committed earlier.
    Committed,
    /// Pinned by the user from the start.
    Pinned,
}

/// The cells of a pass in two bytes each. A heat map shows hundreds of passes at once: decoding them for each frame took 14 ms.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct HeatRow {
    first: u32,
    cells: Box<[u16]>,
}

/// Confidences are rounded to multiples of 1/8000. The limits of the confidence classes are such multiples, so rounding moves
/// no cell to another class.
const PARTS: f32 = 8_000.0;
/// The states are the bits above a confidence's; 0 is a position that the pass does not have.
const MASKED: u16 = 1 << 13;
const COMMITTED: u16 = 2 << 13;
const PINNED: u16 = 3 << 13;
const PROVISIONAL: u16 = 4 << 13;
const FRESH: u16 = 5 << 13;
const EDITED: u16 = 6 << 13;
/// Stands for a confidence that is not known.
const UNKNOWN: u16 = MASKED - 1;

impl HeatRow {
    /// The cells of a pass's tokens.
    pub(super) fn of(tokens: &[CanvasToken]) -> Self {
        let positions = || tokens.iter().map(|token| token.position);
        let first = positions().min().unwrap_or(0);
        let length = positions()
            .max()
            .map_or(0, |last| (last - first) as usize + 1);
        let mut cells = vec![0; length.min(POSITIONS_MAX)];
        for token in tokens {
            if let Some(place) = cells.get_mut((token.position - first) as usize) {
                *place = pack(cell(token));
            }
        }
        Self {
            first,
            cells: cells.into(),
        }
    }

    /// Bytes on the heap.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.cells)
    }

    /// The cell of a position; `None` if the pass does not have it.
    fn at(&self, position: u32) -> Option<HeatCell> {
        let offset = position.checked_sub(self.first)?;
        let packed = *self.cells.get(offset as usize)?;
        let known = packed & UNKNOWN;
        let confidence = (known != UNKNOWN).then(|| f32::from(known) / PARTS);
        match packed & !UNKNOWN {
            MASKED => Some(HeatCell::Masked),
            COMMITTED => Some(HeatCell::Committed),
            PINNED => Some(HeatCell::Pinned),
            PROVISIONAL => Some(HeatCell::Provisional(confidence)),
            FRESH => Some(HeatCell::Fresh(confidence)),
            EDITED => Some(HeatCell::Edited(confidence)),
            _ => None,
        }
    }
}

fn pack(cell: HeatCell) -> u16 {
    let parts = |confidence: Option<f32>| match confidence {
        Some(p) => (p.clamp(0.0, 1.0) * PARTS).round() as u16,
        None => UNKNOWN,
    };
    match cell {
        HeatCell::Masked => MASKED,
        HeatCell::Committed => COMMITTED,
        HeatCell::Pinned => PINNED,
        HeatCell::Provisional(confidence) => PROVISIONAL | parts(confidence),
        HeatCell::Fresh(confidence) => FRESH | parts(confidence),
        HeatCell::Edited(confidence) => EDITED | parts(confidence),
    }
}

/// A position of a block that is done.
struct SettledPosition<'a> {
    block: u32,
    token: &'a CanvasToken,
}

impl Recording {
    /// A column for each run of passes in `columns`, with a cell for each position of `positions` as it was after the last pass
    /// of the run.
    #[must_use]
    pub fn heat(&self, positions: Range<u32>, columns: &[Range<usize>]) -> Vec<Vec<HeatCell>> {
        let visible = positions.len();
        let at = |position: u32| {
            let offset = position.checked_sub(positions.start)? as usize;
            (offset < visible).then_some(offset)
        };
        let mut settled: Vec<Option<SettledPosition<'_>>> = (0..visible).map(|_| None).collect();
        for (block, tokens) in &self.canvas.blocks {
            for token in tokens {
                if let Some(offset) = at(token.position) {
                    settled[offset] = Some(SettledPosition {
                        block: *block,
                        token,
                    });
                }
            }
        }
        let mut pinned = vec![false; visible];
        for offset in self.canvas.pinned().filter_map(|pin| at(pin.position)) {
            pinned[offset] = true;
        }

        let column = |index: usize| -> Vec<HeatCell> {
            let Some(kept) = self.passes.get(index) else {
                return vec![HeatCell::Masked; visible];
            };
            let places = positions.clone().zip(settled.iter().zip(&pinned));
            places
                .map(|(position, (settled, is_pinned))| {
                    let of_block = kept.row.at(position);
                    of_block.unwrap_or(match settled {
                        _ if *is_pinned => HeatCell::Pinned,
                        Some(settled) if settled.block < kept.block => HeatCell::Committed,
                        _ => HeatCell::Masked,
                    })
                })
                .collect()
        };
        let mut heat = Vec::with_capacity(columns.len());
        // The state before the first column, to tell what that column committed.
        let before = columns.first().and_then(|first| first.start.checked_sub(1));
        let mut previous = match before {
            Some(index) => column(index),
            None => vec![HeatCell::Masked; visible],
        };
        for passes in columns {
            let Some(last) = passes.end.checked_sub(1) else {
                continue;
            };
            let cells = column(last);
            let edits = self.edits(&positions, passes.start..last);
            let shown = cells.iter().zip(&previous).zip(settled.iter().zip(edits));
            heat.push(
                shown
                    .map(|((cell, previous), (settled, edit))| {
                        since(*cell, *previous, settled.as_ref(), edit)
                    })
                    .collect(),
            );
            previous = cells;
        }
        heat
    }

    /// The latest edit of each position in these passes.
    fn edits(&self, positions: &Range<u32>, passes: Range<usize>) -> Vec<Option<HeatCell>> {
        let kept = self.passes.get(passes).unwrap_or_default();
        let rows = || kept.iter().rev().map(|kept| &kept.row);
        let edit_of = |position| {
            let mut cells = rows().filter_map(|row| row.at(position));
            cells.find(|cell| matches!(cell, HeatCell::Edited(_)))
        };
        positions.clone().map(edit_of).collect()
    }

    /// Divides the kept passes into at most `columns` runs of consecutive passes.
    #[must_use]
    pub fn columns(&self, columns: usize) -> Vec<Range<usize>> {
        let passes = self.passes.len();
        let columns = columns.min(passes);
        (0..columns)
            .map(|column| column * passes / columns..(column + 1) * passes / columns)
            .collect()
    }
}

/// The cell of a token in its pass.
fn cell(token: &CanvasToken) -> HeatCell {
    match token.state() {
        TokenState::Committed if token.is_edited => HeatCell::Edited(token.confidence),
        TokenState::Committed if token.is_fresh => HeatCell::Fresh(token.confidence),
        TokenState::Committed => HeatCell::Committed,
        TokenState::Pinned => HeatCell::Pinned,
        TokenState::Provisional if token.id.is_some() => HeatCell::Provisional(token.confidence),
        TokenState::Provisional | TokenState::Masked | TokenState::Unspecified => HeatCell::Masked,
    }
}

/// The cell as the column shows it: a token that was committed in a pass between two columns is fresh in the later one, and one
/// that took another's place there is an edit.
fn since(
    cell: HeatCell,
    previous: HeatCell,
    settled: Option<&SettledPosition<'_>>,
    edit: Option<HeatCell>,
) -> HeatCell {
    match (cell, previous) {
        (HeatCell::Committed, HeatCell::Masked | HeatCell::Provisional(_)) => {
            let settled = settled.and_then(|settled| settled.token.confidence);
            let guess = match previous {
                HeatCell::Provisional(guess) => guess,
                _ => None,
            };
            HeatCell::Fresh(settled.or(guess))
        }
        (HeatCell::Committed, _) => edit.unwrap_or(cell),
        _ => cell,
    }
}
