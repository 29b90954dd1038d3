//! Gaps in the middle of a text: everything around them is pinned, and what fills them has to go with both sides.
//!
//! The request says nothing ("Tell me a story."), so that the text alone tells what belongs into the gap. In a word gap
//! a name, a thing or the like is missing in one sentence and stands somewhere else in the text; in a sentence gap one
//! whole sentence is missing, whose names and things all stand somewhere else.

use std::{collections::BTreeSet, ops::Range, sync::LazyLock};

use anyhow::Result;
use sluice_engine::CanvasSlot;
use sluice_tokenizer::Tokenizer;

use crate::{
    corpus::{self, Sample, Split, has_word, is_whole, names_in, occurrences, sentences},
    random::Random,
};

/// What is asked for, which is as good as nothing.
pub(super) const REQUEST: &str = "Tell me a story.";

/// Samples from which the words of things, places and helpers are taken: so many that hardly a "golden trumpet" is
/// missing.
const LEXICON_SAMPLES: u64 = 20_000;

/// What is missing in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One word, or a thing of two words, everywhere in one sentence.
    Word,
    /// One whole sentence.
    Sentence,
}

/// A text with a part missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// The whole text.
    text: String,
    /// The sentence in which something is missing.
    sentence: Range<usize>,
    /// What is missing, in order.
    holes: Vec<Range<usize>>,
}

/// A gap on a canvas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Canvas {
    tokens: Vec<u32>,
    masked: Vec<bool>,
    /// The tokens of the sentence.
    sentence: Range<usize>,
}

/// How a gap was filled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Whether every sentence of the text is whole.
    pub whole: bool,
    /// Whether it is whole and the sentence names no person, thing, place or helper that stands nowhere else.
    pub consistent: bool,
    /// Whether the text is what it was before.
    pub right: bool,
}

impl Gap {
    /// A gap in the right answer of a sample, or none if no part of it is told by the others.
    #[must_use]
    pub fn draw(sample: &Sample, kind: Kind, random: &mut Random) -> Option<Self> {
        let text = sample.answer.as_str();
        let all = spans(text);
        let middle = all.get(1..all.len().saturating_sub(1))?;
        let mut gaps = Vec::new();
        for sentence in middle {
            match kind {
                Kind::Word => {
                    for word in told_words(&text[sentence.clone()]) {
                        let holes = occurrences(&text[sentence.clone()], &word)
                            .map(|at| sentence.start + at..sentence.start + at + word.len())
                            .collect();
                        let gap = Self::new(text, sentence, holes);
                        if has_word(&gap.outside(), &word) {
                            gaps.push(gap);
                        }
                    }
                }
                Kind::Sentence => {
                    let gap = Self::new(text, sentence, vec![sentence.clone()]);
                    let outside = gap.outside();
                    let words = told_words(&text[sentence.clone()]);
                    if words.iter().all(|word| has_word(&outside, word)) {
                        gaps.push(gap);
                    }
                }
            }
        }
        (!gaps.is_empty()).then(|| random.pick(&gaps).clone())
    }

    fn new(text: &str, sentence: &Range<usize>, holes: Vec<Range<usize>>) -> Self {
        Self {
            text: text.to_owned(),
            sentence: sentence.clone(),
            holes,
        }
    }

    /// The text around the holes.
    fn outside(&self) -> String {
        let mut outside = String::new();
        let mut from = 0;
        for hole in &self.holes {
            outside += &self.text[from..hole.start];
            // Nothing of the language; keeps the words on both sides apart.
            outside.push('_');
            from = hole.end;
        }
        outside + &self.text[from..]
    }

    /// The gap in tokens, with the end of the turn behind the text.
    pub fn on_canvas(&self, text: &Tokenizer, end: u32) -> Result<Canvas> {
        let spans = text.encode_with_spans(&self.text)?;
        let overlaps = |span: &Range<usize>, part: &Range<usize>| {
            span.start < part.end && part.start < span.end
        };
        let masked = spans
            .iter()
            .map(|(_, span)| self.holes.iter().any(|hole| overlaps(span, hole)))
            .chain([false])
            .collect();
        let inside = |(_, span): &(u32, Range<usize>)| overlaps(span, &self.sentence);
        let first = spans.iter().position(inside).unwrap_or(0);
        let last = spans.iter().rposition(inside).map_or(0, |last| last + 1);
        Ok(Canvas {
            tokens: spans.iter().map(|(token, _)| *token).chain([end]).collect(),
            masked,
            sentence: first..last,
        })
    }

    /// Judges the text that came of it and its sentence.
    #[must_use]
    pub fn judge(&self, text: &str, sentence: &str) -> Verdict {
        let outside = self.outside();
        let whole = sentences(text).iter().all(|sentence| is_whole(sentence));
        let words = told_words(sentence);
        Verdict {
            whole,
            // Nonsense names nobody either.
            consistent: whole && words.iter().all(|word| has_word(&outside, word)),
            right: text == self.text,
        }
    }
}

impl Canvas {
    /// The canvas as the engine takes it.
    #[must_use]
    pub fn slots(&self) -> Vec<CanvasSlot> {
        let slot = |(token, masked): (&u32, &bool)| {
            if *masked {
                CanvasSlot::Masked
            } else {
                CanvasSlot::Pinned(*token)
            }
        };
        self.tokens.iter().zip(&self.masked).map(slot).collect()
    }

    /// How many tokens are missing.
    #[must_use]
    pub fn masked(&self) -> usize {
        self.masked.iter().filter(|masked| **masked).count()
    }

    /// The tokens of the sentence, from those of the filled canvas.
    #[must_use]
    pub fn sentence<'t>(&self, filled: &'t [u32]) -> &'t [u32] {
        &filled[self.sentence.start.min(filled.len())..self.sentence.end.min(filled.len())]
    }
}

/// Where the sentences of a text are.
fn spans(text: &str) -> Vec<Range<usize>> {
    let mut from = 0;
    sentences(text)
        .iter()
        .filter_map(|sentence| {
            let start = from + text[from..].find(sentence.as_str())?;
            from = start + sentence.len();
            Some(start..from)
        })
        .collect()
}

/// The words of a sentence that another part of the text would have to tell: names, animals, things, places, helpers.
/// Of "blue kite" and "kite" it is the longer one.
fn told_words(sentence: &str) -> Vec<String> {
    let mut words = names_in(sentence);
    let found: Vec<&String> = LEXICON
        .iter()
        .filter(|word| has_word(sentence, word))
        .collect();
    let is_part = |word: &str| {
        found
            .iter()
            .any(|other| other.len() > word.len() && has_word(other, word))
    };
    let longest = found.iter().filter(|word| !is_part(word));
    words.extend(longest.map(|word| (*word).clone()));
    words
}

/// Every word that some answer had to keep, without the names.
static LEXICON: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    (0..LEXICON_SAMPLES)
        .flat_map(|number| corpus::sample(Split::Train, 0, number).kept_words)
        .filter(|word| word.starts_with(char::is_lowercase))
        .collect()
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::{Message, Role, Task};

    const TEXT: &str = "One sunny day, Mia took her blue kite to the lake. A strong wind came, and the blue kite was \
        gone. Just then, Mia met a duck. Mia ran to look, and there was the blue kite!";

    fn sample(answer: &str) -> Sample {
        Sample {
            task: Task::Story,
            messages: vec![Message {
                role: Role::User,
                content: REQUEST.to_owned(),
            }],
            answer: answer.to_owned(),
            kept_words: Vec::new(),
        }
    }

    /// All gaps of a text that come up.
    fn holes(text: &str, kind: Kind) -> BTreeSet<String> {
        (0..100)
            .filter_map(|number| Gap::draw(&sample(text), kind, &mut Random::new(1, number)))
            .map(|gap| gap.text[gap.holes[0].clone()].to_owned())
            .collect()
    }

    #[test]
    fn a_word_is_left_out_only_where_another_sentence_tells_it() {
        // The duck is told nowhere else, and the first and last sentence are no middle.
        let words = ["Mia", "blue kite"].map(str::to_owned);
        assert_eq!(holes(TEXT, Kind::Word), words.into());
        assert!(holes("Mia met a duck. Mia was happy.", Kind::Word).is_empty());
    }

    #[test]
    fn a_sentence_is_left_out_only_where_the_others_tell_its_words() {
        let sentences = ["A strong wind came, and the blue kite was gone."].map(str::to_owned);
        assert_eq!(holes(TEXT, Kind::Sentence), sentences.into());
    }

    #[test]
    fn every_place_of_a_word_in_its_sentence_is_left_out() {
        let text = "Mia met Tom. \"It is mine!\" said Mia. \"No, it is mine!\" said Tom. The end.";
        let gap = Gap::draw(&sample(text), Kind::Word, &mut Random::new(1, 0)).expect("gap");
        assert_eq!(gap.holes.len(), 1);
        let text = "Mia met Tom. Mia saw that Mia was late. Then Tom went home.";
        let gap = Gap::draw(&sample(text), Kind::Word, &mut Random::new(1, 0)).expect("gap");
        assert_eq!(
            gap.outside(),
            "Mia met Tom. _ saw that _ was late. Then Tom went home."
        );
    }

    #[test]
    fn a_filled_gap_is_judged_by_its_surroundings() {
        let gap = (0..100)
            .filter_map(|number| {
                Gap::draw(&sample(TEXT), Kind::Sentence, &mut Random::new(1, number))
            })
            .next()
            .expect("gap");
        let judge = |sentence: &str| {
            let filled = TEXT.replace("A strong wind came, and the blue kite was gone.", sentence);
            let Verdict {
                whole,
                consistent,
                right,
            } = gap.judge(&filled, sentence);
            (whole, consistent, right)
        };
        let original = &TEXT[gap.holes[0].clone()];
        assert_eq!(judge(original), (true, true, true));
        assert_eq!(
            judge("Mia looked and looked, but she could not find it."),
            (true, true, false)
        );
        assert_eq!(
            judge("Anna looked and looked, but she could not find it."),
            (true, false, false)
        );
        assert_eq!(
            judge("A strong wind came, and the red drum was gone."),
            (true, false, false)
        );
        assert_eq!(
            judge("A strong wind came, and blue kite was gone."),
            (false, false, false)
        );
    }

    #[test]
    fn right_texts_pass_and_most_stories_have_gaps() {
        let (mut stories, mut words, mut whole) = (0, 0, 0);
        for number in 0..300 {
            let sample = corpus::sample(Split::HeldOut, 5, number);
            if sample.task != Task::Story {
                continue;
            }
            stories += 1;
            for kind in [Kind::Word, Kind::Sentence] {
                let Some(gap) = Gap::draw(&sample, kind, &mut Random::new(5, number)) else {
                    continue;
                };
                let count = if kind == Kind::Word {
                    &mut words
                } else {
                    &mut whole
                };
                *count += 1;
                let verdict = gap.judge(&gap.text, &gap.text[gap.sentence.clone()]);
                assert!(
                    verdict.whole && verdict.consistent && verdict.right,
                    "{gap:?}"
                );
            }
        }
        assert!(words * 10 > stories * 7, "{words} of {stories}");
        assert!(whole * 10 > stories * 7, "{whole} of {stories}");
    }
}
