//! What is known of a vocabulary without the tokenizer: each token's bytes, and the control tokens.

use std::collections::HashMap;

use super::{chat::TemplateUses, pieces::TokenPieces};

/// Ids that a tokenizer adds to a text's own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TextFrame {
    /// Before every text.
    pub(super) before: Vec<u32>,
    /// Behind every text.
    pub(super) behind: Vec<u32>,
    /// In the place of what the vocabulary has no token for.
    pub(super) unknown: Option<u32>,
}

/// The tables of a vocabulary. They are all that a process keeps whose tokenizer runs in another.
pub(super) struct Vocabulary {
    pub(super) pieces: TokenPieces,
    /// The strings of control tokens.
    pub(super) control: HashMap<u32, String>,
    /// What stands around every text.
    pub(super) frame: TextFrame,
    pub(super) template: TemplateUses,
    longest_piece: usize,
}

impl Vocabulary {
    pub(super) fn new(
        pieces: TokenPieces,
        control: &HashMap<u32, String>,
        frame: TextFrame,
        template: TemplateUses,
    ) -> Self {
        let longest_piece = (0..pieces.len())
            .map(|id| pieces.get(id as u32).len())
            .max();
        Self {
            longest_piece: longest_piece.unwrap_or(0),
            pieces,
            control: control.clone(),
            frame,
            template,
        }
    }

    /// The id of a token by the text that it stands for, or by its string where it is a control token.
    pub(super) fn id(&self, token: &str) -> Option<u32> {
        let control = self.control.iter();
        let named = control.filter(|(_, string)| *string == token);
        if let Some(id) = named.map(|(&id, _)| id).min() {
            return Some(id);
        }
        let mut ids = 0..self.pieces.len() as u32;
        ids.find(|&id| !token.is_empty() && self.pieces.get(id) == token.as_bytes())
    }

    /// The pieces of all ids, one after another.
    pub(super) fn decode(&self, ids: &[u32]) -> Vec<u8> {
        let pieces = ids.iter().map(|&id| self.pieces.get(id));
        pieces.collect::<Vec<_>>().concat()
    }

    /// Bytes of the longest piece.
    pub(super) fn longest_piece(&self) -> usize {
        self.longest_piece
    }
}
