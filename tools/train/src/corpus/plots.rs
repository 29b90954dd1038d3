//! The plots: what happens in a story, in which order, and in which words.
//!
//! Every variant of a stage fits every variant of the stages before it. An empty variant leaves the stage out. Variants of a stage
//! begin with different words, and two that name hero and friend in like sentences name them in the same order: a model that fills
//! in the likeliest word at each place would else mix them.

mod everyday;
mod friendship;
mod wonder;

use super::words::Things;

/// One plot and all that can be said about it. The words in braces are the slots of `slots.rs`.
pub(super) struct Plot {
    pub(super) name: &'static str,
    /// Whether only an animal can be the hero.
    pub(super) animal_hero: bool,
    /// Whether the story happens far away, where one has to travel to.
    pub(super) far: bool,
    pub(super) things: Things,
    /// What such a story is called, as in "Tell me a mystery."
    pub(super) genres: &'static [&'static str],
    /// What such a story is about, as in "Tell me a story about ...".
    pub(super) subjects: &'static [&'static str],
    pub(super) stages: &'static [&'static [&'static str]],
    /// Other first stages, to come after "The next day,"; none if the plot cannot follow another one.
    pub(super) again: &'static [&'static str],
    /// The stages of the short form.
    pub(super) short: &'static [&'static [&'static str]],
    /// The story in a sentence or two.
    pub(super) summaries: &'static [&'static str],
    pub(super) questions: &'static [Question],
}

/// One thing to ask about a story, and the answer.
pub(super) struct Question {
    pub(super) asked: &'static [&'static str],
    pub(super) answer: &'static str,
}

const fn question(asked: &'static [&'static str], answer: &'static str) -> Question {
    Question { asked, answer }
}

/// Questions that suit every plot.
#[rustfmt::skip]
pub(super) const COMMON_QUESTIONS: &[Question] = &[
    question(&["Where does the story happen?"], "The story happens {at}."),
    question(&["Who is the story about?", "Who is in the story?"], "The story is about {hero}."),
    question(&["What is the name of the {kind}?", "What is the {kind} called?"], "The name of the {kind} is {hero}."),
];

/// Every plot that stories are made of.
pub(super) const PLOTS: &[&Plot] = &[
    &everyday::LOST,
    &everyday::WISH,
    &everyday::MYSTERY,
    &everyday::FEAST,
    &friendship::QUARREL,
    &friendship::PRESENT,
    &friendship::RACE,
    &friendship::NEIGHBOR,
    &wonder::SHY,
    &wonder::JOURNEY,
    &wonder::MAGIC,
    &wonder::STORM,
];
