//! Pins without a position. A pass before all others, over prompt and canvas as they then stand, tells how likely each of
//! their tokens is at each masked position; each text comes to stand where its tokens are likeliest.
//!
//! That is the mean of their log-probabilities, each from the same pass and so without the tokens beside it: a text of several
//! tokens is no worse off than one of a single token, and a place where only its first token fits is no good place.

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use sluice_ops::{Candidate, LmHeadRow};

use super::Diffusion;
use crate::{
    event::{Event, PlacedText},
    request::{AnywherePins, CanvasSlot, Generate, PLACING_ROWS},
};

/// What is known of the places of texts.
pub(super) struct Placing {
    /// The tokens of all texts, rising.
    tokens: Vec<u32>,
    /// The masked positions, rising, counted from the first one to fill.
    masked: Vec<usize>,
    /// The log-probabilities of the tokens at the first of those positions, one position after another.
    found: Vec<f64>,
}

/// A place for a text.
#[derive(Clone, Copy, PartialEq)]
struct Place {
    position: usize,
    log_probability: f64,
}

impl Placing {
    /// What a request has to place, if it has anything, and anywhere to place it.
    pub(super) fn new(request: &Generate) -> Option<Self> {
        let texts = request.anywhere.iter().flat_map(|pins| &pins.texts);
        let tokens: BTreeSet<u32> = texts.flatten().copied().collect();
        let slots = request.canvas.iter().enumerate();
        let masked = slots.filter(|(_, slot)| **slot == CanvasSlot::Masked);
        let masked: Vec<usize> = masked.map(|(position, _)| position).collect();
        (!tokens.is_empty() && !masked.is_empty()).then(|| Self {
            tokens: tokens.into_iter().collect(),
            masked,
            found: Vec::new(),
        })
    }

    /// Positions that were read.
    fn read(&self) -> usize {
        self.found.len() / self.tokens.len()
    }

    /// The rows of the next pass, behind a prompt of this length.
    pub(super) fn rows(&self, prompt: usize) -> Vec<LmHeadRow> {
        let left = &self.masked[self.read()..];
        let row = |position: &usize| LmHeadRow {
            position: prompt + position,
            may_end: true,
            target: None,
            watched: self.tokens.clone(),
            is_check: false,
        };
        left.iter().take(PLACING_ROWS).map(row).collect()
    }

    /// Takes what a pass has found for its rows; whether all positions were read.
    fn take(&mut self, candidates: &[Candidate]) -> bool {
        let rows = candidates.iter();
        self.found
            .extend(rows.flat_map(|candidate| &candidate.evidence.watched));
        self.read() == self.masked.len()
    }

    /// Where texts come to stand, group after group: of each the likeliest first, of equal ones the one further left, then the
    /// earlier text.
    fn places(&self, groups: &[AnywherePins]) -> Vec<PlacedText> {
        let mut free = self.masked.clone();
        // Those of them that touch no text, so that the model can write something between two.
        let mut apart = self.masked.clone();
        let mut placed = Vec::new();
        for (group, AnywherePins { texts, most }) in groups.iter().enumerate() {
            let best = |text: &[u32], free: &[usize], apart: &[usize]| {
                self.best(text, apart).or_else(|| self.best(text, free))
            };
            let mut open: Vec<Option<Place>> =
                (texts.iter().map(|text| best(text, &free, &apart))).collect();
            for _ in 0..*most {
                let found = open.iter().enumerate();
                let found = found.filter_map(|(text, place)| Some((text, (*place)?)));
                let first = found.reduce(|first, next| match is_better(&next.1, &first.1) {
                    true => next,
                    false => first,
                });
                let Some((text, place)) = first else {
                    break;
                };
                let end = place.position + texts[text].len();
                let around = place.position.saturating_sub(1)..end + 1;
                free.retain(|position| !(place.position..end).contains(position));
                apart.retain(|position| !around.contains(position));
                // Stays so: room only becomes less.
                open[text] = None;
                for (text, place) in texts.iter().zip(&mut open) {
                    if place.is_some_and(|place| meets(&place, text, &around)) {
                        *place = best(text, &free, &apart);
                    }
                }
                placed.push(PlacedText {
                    group,
                    text,
                    position: place.position,
                    tokens: texts[text].clone(),
                    // A token that may not be chosen has none; formats such as JSON have no infinity.
                    log_probability: place.log_probability.max(f64::MIN),
                });
            }
        }
        placed
    }

    /// The likeliest place of a text where all of its positions are free.
    fn best(&self, text: &[u32], free: &[usize]) -> Option<Place> {
        let columns = text.iter().map(|token| self.tokens.binary_search(token));
        let columns: Vec<usize> = columns.flatten().collect();
        let runs = free.windows(text.len());
        let runs = runs.filter(|run| run[run.len() - 1] - run[0] == run.len() - 1);
        let places = runs.map(|run| {
            // Where its first position lies among those that were read; what is free lies beside it there, too.
            let row = self.masked.partition_point(|&masked| masked < run[0]);
            let columns = columns.iter().enumerate();
            let found = columns
                .map(|(offset, column)| self.found[(row + offset) * self.tokens.len() + column]);
            Place {
                position: run[0],
                log_probability: found.sum::<f64>() / text.len() as f64,
            }
        });
        places.reduce(|first, next| match is_better(&next, &first) {
            true => next,
            false => first,
        })
    }
}

fn is_better(one: &Place, other: &Place) -> bool {
    let sure = |place: &Place| place.log_probability;
    sure(one) > sure(other) || (sure(one) == sure(other) && one.position < other.position)
}

/// Whether a text at a place would stand on some of these positions.
fn meets(place: &Place, text: &[u32], taken: &Range<usize>) -> bool {
    place.position < taken.end && taken.start < place.position + text.len()
}

impl Diffusion {
    /// Takes what a placing pass has found; after the last one texts stand where they belong, and decoding begins anew with them.
    pub(super) fn place(&mut self, candidates: &[Candidate], emit: &mut dyn FnMut(Event)) {
        let Some(placing) = &mut self.placing else {
            return;
        };
        if !placing.take(candidates) {
            return;
        }
        let placed = placing.places(&self.request.anywhere);
        let mut request = self.request.clone();
        request.anywhere.clear();
        for text in &placed {
            for (slot, id) in request.canvas[text.position..].iter_mut().zip(&text.tokens) {
                *slot = CanvasSlot::Pinned(*id);
            }
        }
        *self = Self {
            started: self.started,
            passes: self.passes,
            is_lossless: self.is_lossless,
            ..Self::new(request, Arc::clone(&self.vocabulary))
        };
        emit(Event::Placed(placed));
    }
}

#[cfg(test)]
mod tests;
