//! How sure the model was: token by token, and pass by pass.

use std::ops::Range;

use sluice_proto::v1::{CanvasToken, TokenState};

use super::Recording;

/// How things stood with one position after one pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cell {
    /// Nothing was predicted yet.
    Masked,
    /// There was a guess, with its probability where that is known.
    Provisional(Option<f32>),
    /// It was committed since the column before, with its probability where that is known.
    Fresh(Option<f32>),
    /// It was committed earlier.
    Committed,
    /// The user fixed it from the start.
    Pinned,
}

/// A position that was settled with its block.
struct Settled<'a> {
    block: u32,
    token: &'a CanvasToken,
}

impl Recording {
    /// A column for each run of passes in `columns`, which shows how things stood after the last of them: a cell for each
    /// position of `positions`. Nothing else is decoded.
    #[must_use]
    pub fn heat(&self, positions: Range<u32>, columns: &[Range<usize>]) -> Vec<Vec<Cell>> {
        let visible = positions.len();
        let at = |position: u32| {
            let offset = position.checked_sub(positions.start)? as usize;
            (offset < visible).then_some(offset)
        };
        let mut settled: Vec<Option<Settled<'_>>> = (0..visible).map(|_| None).collect();
        for (block, tokens) in &self.canvas.blocks {
            for token in tokens {
                if let Some(offset) = at(token.position) {
                    settled[offset] = Some(Settled {
                        block: *block,
                        token,
                    });
                }
            }
        }
        let mut pinned = vec![false; visible];
        let pins = self.canvas.started.iter().flat_map(|s| &s.pinned);
        for offset in pins.filter_map(|pin| at(pin.position)) {
            pinned[offset] = true;
        }

        let column = |index: usize| -> Vec<Cell> {
            let Some(kept) = self.passes.get(index) else {
                return vec![Cell::Masked; visible];
            };
            let mut cells: Vec<Cell> = (settled.iter().zip(&pinned))
                .map(|(settled, is_pinned)| match settled {
                    _ if *is_pinned => Cell::Pinned,
                    Some(settled) if settled.block < kept.block => Cell::Committed,
                    _ => Cell::Masked,
                })
                .collect();
            let tokens = kept.pass().map(|pass| pass.tokens).unwrap_or_default();
            for token in &tokens {
                if let Some(offset) = at(token.position) {
                    cells[offset] = cell(token);
                }
            }
            cells
        };
        let mut heat = Vec::with_capacity(columns.len());
        // What stood before the first column; before the first pass there was nothing.
        let before = columns.first().and_then(|first| first.start.checked_sub(1));
        let mut previous = match before {
            Some(index) => column(index),
            None => vec![Cell::Masked; visible],
        };
        for passes in columns {
            let Some(last) = passes.end.checked_sub(1) else {
                continue;
            };
            let cells = column(last);
            let shown = cells.iter().zip(&previous).zip(&settled);
            heat.push(
                shown
                    .map(|((cell, previous), settled)| since(*cell, *previous, settled.as_ref()))
                    .collect(),
            );
            previous = cells;
        }
        heat
    }

    /// Kept passes shared out over at most so many columns, those of one column beside each other.
    #[must_use]
    pub fn columns(&self, columns: usize) -> Vec<Range<usize>> {
        let passes = self.passes.len();
        let columns = columns.min(passes);
        (0..columns)
            .map(|column| column * passes / columns..(column + 1) * passes / columns)
            .collect()
    }
}

/// How one position stands in its pass.
fn cell(token: &CanvasToken) -> Cell {
    match token.state() {
        TokenState::Committed if token.fresh => Cell::Fresh(token.confidence),
        TokenState::Committed => Cell::Committed,
        TokenState::Pinned => Cell::Pinned,
        TokenState::Provisional if token.id.is_some() => Cell::Provisional(token.confidence),
        TokenState::Provisional | TokenState::Masked | TokenState::Unspecified => Cell::Masked,
    }
}

/// What was committed in a pass that the column doesn't show is new in the column all the same.
fn since(cell: Cell, previous: Cell, settled: Option<&Settled<'_>>) -> Cell {
    match (cell, previous) {
        (Cell::Committed, Cell::Masked | Cell::Provisional(_)) => {
            let settled = settled.and_then(|settled| settled.token.confidence);
            let guess = match previous {
                Cell::Provisional(guess) => guess,
                _ => None,
            };
            Cell::Fresh(settled.or(guess))
        }
        _ => cell,
    }
}
