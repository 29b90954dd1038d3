//! The picture of one request folded from its events, and how its tokens are drawn.
//!
//! The commands and the dashboard draw from here, so that a token looks the same in both.

mod layout;
mod look;

use std::collections::{BTreeMap, btree_map::Entry};

pub use layout::{MASK_MARK, SPECIAL_MARK, TextRun, runs, wrap, wrap_marked, wrap_text};
pub use look::{Confidence, Look};
use sluice_proto::v1::{
    CanvasToken, GenerationBlock, GenerationDone, GenerationPass, GenerationQueued,
    GenerationStarted, TokenState, generation_event::Event,
};

/// Notices of a request that are kept, the newest.
pub const NOTICES_MAX: usize = 64;

/// One request as its events have shown it so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Canvas {
    /// Set once it was admitted.
    pub queued: Option<GenerationQueued>,
    /// Set once it runs.
    pub started: Option<GenerationStarted>,
    /// Blocks without a mask, by index.
    pub blocks: BTreeMap<u32, Vec<CanvasToken>>,
    /// The latest picture of the open block.
    pub pass: Option<GenerationPass>,
    /// What the daemon wanted the user to know.
    pub notices: Vec<String>,
    /// Set once it ended well.
    pub done: Option<GenerationDone>,
    /// Set once it failed.
    pub failure: Option<String>,
    any_piece: bool,
}

impl Canvas {
    /// Takes in one event.
    pub fn apply(&mut self, event: Event) {
        match event {
            // Always the first: whoever joins again is told everything from the start.
            Event::Queued(queued) => {
                *self = Self {
                    queued: Some(queued),
                    ..Self::default()
                };
            }
            Event::Started(started) => self.started = Some(started),
            Event::PassDone(pass) => {
                self.any_piece |= has_piece(&pass.tokens);
                self.pass = Some(pass);
            }
            Event::BlockDone(GenerationBlock {
                block, mut tokens, ..
            }) => {
                // A block that is done doesn't change: telling it again adds nothing.
                if let Entry::Vacant(vacant) = self.blocks.entry(block) {
                    self.any_piece |= has_piece(&tokens);
                    for token in &mut tokens {
                        token.is_fresh = false;
                    }
                    vacant.insert(tokens);
                }
            }
            Event::Notice(notice) => {
                self.notices.push(notice.text);
                let excess = self.notices.len().saturating_sub(NOTICES_MAX);
                self.notices.drain(..excess);
            }
            Event::Done(done) => self.done = Some(done),
            // Of the model, not of the canvas.
            Event::Loading(_) => {}
        }
    }

    /// The same request as it stood when a block was opened, without its notices.
    #[must_use]
    pub fn before(&self, block: u32) -> Self {
        let done = self.blocks.range(..block);
        Self {
            queued: self.queued,
            started: self.started.clone(),
            blocks: done
                .map(|(block, tokens)| (*block, tokens.clone()))
                .collect(),
            // Numbers in an early picture and words in a later one would be hard to read.
            any_piece: self.any_piece,
            ..Self::default()
        }
    }

    /// Whether nothing more will come.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.done.is_some() || self.failure.is_some()
    }

    /// Whether tokens are shown as numbers, for want of a tokenizer.
    #[must_use]
    pub fn shows_ids(&self) -> bool {
        match &self.done {
            Some(done) => done.text.is_none(),
            None => {
                let prompt = self.started.as_ref().map_or(&[][..], |s| &s.prompt_text);
                prompt.is_empty() && !self.any_piece
            }
        }
    }

    /// Tokens of the blocks that are done and of the open one, in order.
    pub fn seen(&self) -> impl Iterator<Item = &CanvasToken> {
        let open = self.pass.as_ref();
        let open = open.filter(|pass| !self.blocks.contains_key(&pass.block));
        let open = open.into_iter().flat_map(|pass| &pass.tokens);
        self.blocks.values().flatten().chain(open)
    }

    /// What is pinned or masked beyond them.
    #[must_use]
    pub fn ahead(&self) -> Vec<CanvasToken> {
        let Some(started) = &self.started else {
            return Vec::new();
        };
        let next = self
            .seen()
            .last()
            .map_or(0, |token| token.position.saturating_add(1));
        let pinned: BTreeMap<u32, &CanvasToken> =
            (started.pinned.iter().map(|pin| (pin.position, pin))).collect();
        let token = |position| match pinned.get(&position) {
            Some(pin) => (*pin).clone(),
            None => CanvasToken {
                position,
                state: TokenState::Masked.into(),
                ..Default::default()
            },
        };
        (next..started.length).map(token).collect()
    }

    /// All positions: what was seen, then what lies ahead.
    #[must_use]
    pub fn all_tokens(&self) -> Vec<CanvasToken> {
        self.seen().cloned().chain(self.ahead()).collect()
    }
}

fn has_piece(tokens: &[CanvasToken]) -> bool {
    tokens.iter().any(|token| !token.piece.is_empty())
}

/// The ids of a result as they are printed.
#[must_use]
pub fn ids_text(ids: &[u32]) -> String {
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    ids.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(state: TokenState, piece: &[u8]) -> CanvasToken {
        CanvasToken {
            id: Some(7),
            piece: piece.to_vec(),
            state: state.into(),
            ..Default::default()
        }
    }

    #[test]
    fn a_block_that_is_done_stays_as_it_was_told() {
        let done = |tokens| {
            Event::BlockDone(GenerationBlock {
                tokens,
                ..GenerationBlock::default()
            })
        };
        let mut canvas = Canvas::default();
        canvas.apply(done(vec![token(TokenState::Committed, b"")]));
        let told = canvas.clone();
        canvas.apply(done(vec![token(TokenState::Committed, b"ab")]));
        canvas.apply(done(Vec::new()));
        assert_eq!(canvas, told);
    }

    #[test]
    fn positions_beyond_the_open_block_are_masked_or_pinned() {
        let pinned = CanvasToken {
            position: 3,
            ..token(TokenState::Pinned, b"x")
        };
        let mut canvas = Canvas::default();
        canvas.apply(Event::Started(GenerationStarted {
            length: 5,
            pinned: vec![pinned],
            ..Default::default()
        }));
        canvas.apply(Event::PassDone(GenerationPass {
            tokens: vec![token(TokenState::Committed, b"a")],
            ..Default::default()
        }));
        let looks: Vec<Look> = canvas.all_tokens().iter().map(Look::of).collect();
        let expected = [
            Look::Committed,
            Look::Masked,
            Look::Masked,
            Look::Pinned,
            Look::Masked,
        ];
        assert_eq!(looks, expected);
        assert!(!canvas.shows_ids());
    }
}
