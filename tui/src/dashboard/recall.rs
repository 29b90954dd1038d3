//! Pieces of what the daemon remembers, to be looked at: those that a search found, or that stood in the prompt of an answer.

use sluice_proto::v1::{MemoryHit, PromptMemory, SearchMemoryResponse};
use sluice_shared::units;

use crate::memory;

/// The pieces that are shown, and which of them is selected.
#[derive(Debug, Default)]
pub struct Recall {
    /// What they are.
    pub title: String,
    /// The pieces, the best first.
    pub pieces: Vec<RecalledPiece>,
    /// Index of the selected piece.
    pub selected: usize,
    /// First line of its text that is shown.
    pub scroll: usize,
}

/// A piece as it is shown.
#[derive(Debug, PartialEq, Eq)]
pub struct RecalledPiece {
    /// Score and place, safe to show in a line.
    pub line: String,
    /// The text as the daemon has it, not yet made safe for a terminal.
    pub text: String,
}

impl RecalledPiece {
    fn of(score: &str, hit: Option<&MemoryHit>) -> Self {
        let (source, piece) = memory::parts(hit);
        Self {
            line: format!("{score}  {}", memory::place(&source, &piece)),
            text: piece.text,
        }
    }
}

impl Recall {
    /// What a search found.
    #[must_use]
    pub fn found(query: &str, answer: &SearchMemoryResponse) -> Self {
        let piece = |hit: &MemoryHit| RecalledPiece::of(&memory::score(hit.score), Some(hit));
        Self {
            title: format!("Remembered, by {}: {query}", answer.ranking()),
            pieces: answer.hits.iter().map(piece).collect(),
            ..Self::default()
        }
    }

    /// What stood in a prompt.
    #[must_use]
    pub fn used(memory: &PromptMemory) -> Self {
        let pieces = memory.pieces.iter();
        Self {
            title: format!(
                "Memory of the answer, {} tokens of its prompt",
                units::count(memory.tokens.into())
            ),
            pieces: pieces
                .map(|used| RecalledPiece::of(&format!("[{}]", used.label), used.hit.as_ref()))
                .collect(),
            ..Self::default()
        }
    }

    /// The text of the selected piece.
    #[must_use]
    pub fn text(&self) -> &str {
        let piece = self.pieces.get(self.selected);
        piece.map_or("", |piece| piece.text.trim_end())
    }

    /// Selects another piece.
    pub fn step(&mut self, by: isize) {
        let last = self.pieces.len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(by).min(last);
        self.scroll = 0;
    }
}
