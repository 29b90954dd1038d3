//! The picture of one request, built from its events, and how its tokens are drawn.
//!
//! The commands and the dashboard draw from here, so that a token looks the same in both.

mod layout;
mod look;

use std::collections::{BTreeMap, btree_map::Entry};

pub use layout::{MASK_MARK, SPECIAL_MARK, TextRun, runs, wrap, wrap_marked, wrap_text};
pub use look::{Confidence, Look};
use sluice_proto::v1::{
    CanvasToken, GenerationBlock, GenerationDone, GenerationPass, GenerationPlaced,
    GenerationQueued, GenerationStarted, GenerationThought, TokenState, generation_event::Event,
};
use sluice_shared::policy::POLICIES;

use crate::text::width;

/// Most notices of a request that are kept; beyond that the oldest are dropped.
pub const NOTICES_MAX: usize = 64;

/// The state of one request, as far as its events have told.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Canvas {
    /// Set once the daemon has queued the request.
    pub queued: Option<GenerationQueued>,
    /// Set once the request runs.
    pub started: Option<GenerationStarted>,
    /// Where texts without a position stand, once that is found.
    pub placed: Option<GenerationPlaced>,
    /// Steps of sampling a latent thought model's learned prior, without the sample that the last may carry.
    pub samples: Vec<GenerationThought>,
    /// Steps of its inference, without the posterior that the last may carry.
    pub thoughts: Vec<GenerationThought>,
    /// Tokens of the blocks that are done, by the block's index.
    pub blocks: BTreeMap<u32, Vec<CanvasToken>>,
    /// The latest picture of the open block.
    pub pass: Option<GenerationPass>,
    /// Notices of the daemon, the earliest first; at most [`NOTICES_MAX`].
    pub notices: Vec<String>,
    /// Set once the request is done or cancelled.
    pub done: Option<GenerationDone>,
    /// Set once the request failed: the failure's message.
    pub failure: Option<String>,
    any_piece: bool,
}

impl Canvas {
    /// Updates the picture by the next event.
    pub fn apply(&mut self, event: Event) {
        match event {
            // Always the first event of a stream. A stream that is joined again repeats everything, so all is reset.
            Event::Queued(queued) => {
                *self = Self {
                    queued: Some(queued),
                    ..Self::default()
                };
            }
            Event::Started(started) => self.started = Some(started),
            Event::Placed(placed) => self.placed = Some(placed),
            Event::Thought(thought) => {
                let steps = match thought.noise_level {
                    Some(_) => &mut self.samples,
                    None => &mut self.thoughts,
                };
                steps.push(GenerationThought {
                    thoughts: None,
                    ..thought
                });
            }
            Event::PassDone(pass) => {
                self.any_piece |= has_piece(&pass.tokens);
                self.pass = Some(pass);
            }
            Event::BlockDone(GenerationBlock {
                block, mut tokens, ..
            }) => {
                // A block that is done does not change, so only its first event counts.
                if let Entry::Vacant(vacant) = self.blocks.entry(block) {
                    self.any_piece |= has_piece(&tokens);
                    for token in &mut tokens {
                        token.is_fresh = false;
                        token.is_edited = false;
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
            // It tells of the model, not of the request.
            Event::Loading(_) => {}
        }
    }

    /// The request as it was when a block was opened, without its notices.
    #[must_use]
    pub fn before(&self, block: u32) -> Self {
        let done = self.blocks.range(..block);
        Self {
            queued: self.queued,
            started: self.started.clone(),
            placed: self.placed.clone(),
            samples: self.samples.clone(),
            thoughts: self.thoughts.clone(),
            blocks: done
                .map(|(block, tokens)| (*block, tokens.clone()))
                .collect(),
            // Whether tokens have text is known for the whole run; early pictures must not show ids where later ones show text.
            any_piece: self.any_piece,
            ..Self::default()
        }
    }

    /// The steps for latents that it is at, or was at last.
    #[must_use]
    pub fn latent_steps(&self) -> &[GenerationThought] {
        match self.thoughts.is_empty() {
            true => &self.samples,
            false => &self.thoughts,
        }
    }

    /// Whether the request has thought, and written nothing.
    #[must_use]
    pub fn has_only_thought(&self) -> bool {
        !self.latent_steps().is_empty() && self.pass.is_none() && self.blocks.is_empty()
    }

    /// Whether its policy may replace committed tokens by others.
    #[must_use]
    pub fn may_be_edited(&self) -> bool {
        let diffusion = self.started.as_ref().and_then(|s| s.diffusion.as_ref());
        let policy = diffusion.and_then(|options| options.policy.as_ref());
        policy.is_some_and(|policy| {
            let mut known = POLICIES.iter();
            known.any(|known| known.name == policy.name && known.takes_back)
        })
    }

    /// A line of what the looks of tokens mean, each word in its own; as many as there is room for.
    #[must_use]
    pub fn legend(&self, columns: usize) -> Vec<TextRun> {
        let mask = format!("{MASK_MARK} masked");
        // Where tokens may be replaced, that comes before what most lines have no room for.
        let edited = self.may_be_edited().then_some(("edited", Look::Edited));
        let entries = [
            ("committed", Look::Committed),
            ("guess", Look::Provisional),
            (mask.as_str(), Look::Masked),
            ("pinned", Look::Pinned),
            ("new", Look::Fresh(Confidence::High)),
        ];
        let by_confidence = [
            ("likely <0.7", Look::Fresh(Confidence::Medium)),
            ("unsure <0.3", Look::Fresh(Confidence::Low)),
        ];
        let run = |text: &str, look| TextRun {
            text: text.to_owned(),
            look,
        };
        let mut line = Vec::new();
        let mut used = 0;
        for (words, look) in entries.into_iter().chain(edited).chain(by_confidence) {
            let space = if line.is_empty() { "" } else { "  " };
            used += space.len() + width(words);
            if used > columns {
                break;
            }
            line.extend([run(space, Look::Committed), run(words, look)]);
        }
        line
    }

    /// Whether no further events will come.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.done.is_some() || self.failure.is_some()
    }

    /// Whether tokens are shown as ids, since the model has no tokenizer.
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

    /// Tokens that are pinned: from the start, and where texts without a position have found a place.
    pub fn pinned(&self) -> impl Iterator<Item = &CanvasToken> {
        let given = self.started.iter().flat_map(|started| &started.pinned);
        let placed = self.placed.iter().flat_map(|placed| &placed.texts);
        given.chain(placed.flat_map(|text| &text.tokens))
    }

    /// Pinned and masked tokens behind those that were seen, up to the requested length.
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
            self.pinned().map(|pin| (pin.position, pin)).collect();
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

    /// The tokens of all positions: those seen, then those ahead.
    #[must_use]
    pub fn all_tokens(&self) -> Vec<CanvasToken> {
        self.seen().cloned().chain(self.ahead()).collect()
    }
}

fn has_piece(tokens: &[CanvasToken]) -> bool {
    tokens.iter().any(|token| !token.piece.is_empty())
}

/// Token ids as they are printed: separated by commas.
#[must_use]
pub fn ids_text(ids: &[u32]) -> String {
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    ids.join(",")
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::PlacedText;

    use super::*;

    #[test]
    fn what_has_found_a_place_is_pinned_ahead() {
        let at = |position, id| CanvasToken {
            position,
            id: Some(id),
            state: TokenState::Pinned.into(),
            ..Default::default()
        };
        let mut canvas = Canvas::default();
        canvas.apply(Event::Started(GenerationStarted {
            length: 4,
            pinned: vec![at(0, 7)],
            ..Default::default()
        }));
        let ids = |canvas: &Canvas| {
            canvas
                .ahead()
                .iter()
                .map(|token| token.id)
                .collect::<Vec<_>>()
        };
        assert_eq!(ids(&canvas), [Some(7), None, None, None]);
        canvas.apply(Event::Placed(GenerationPlaced {
            texts: vec![PlacedText {
                tokens: vec![at(2, 8), at(3, 9)],
                ..Default::default()
            }],
            ..Default::default()
        }));
        assert_eq!(ids(&canvas), [Some(7), None, Some(8), Some(9)]);
        assert_eq!(canvas.pinned().count(), 3);
        // A picture of an earlier block has them, too.
        assert_eq!(canvas.before(0).ahead(), canvas.ahead());
    }

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
