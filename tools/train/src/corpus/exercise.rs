//! An exercise before the stories: words to be said again in any order.
//!
//! Among stories a small network first learns which word follows which, and for millions of tokens does not look any
//! further: names stay guesses. Here nothing can be learned but to look at what the request says.

use super::{Message, Role, Sample, Task, names, words};
use crate::random::Random;

/// Words of an exercise.
const WORDS_MIN: usize = 3;
const WORDS_MAX: usize = 9;

/// The exercise with this number.
#[must_use]
pub fn exercise(seed: u64, number: u64) -> Sample {
    let mut random = Random::new(seed ^ 0x6578_6572, number);
    let count = WORDS_MIN + random.below(WORDS_MAX + 1 - WORDS_MIN);
    let mut words: Vec<String> = Vec::new();
    while words.len() < count {
        let word = draw_word(&mut random);
        if !words.iter().any(|known| known == word) {
            words.push(word.to_owned());
        }
    }
    let asked = format!("Say these words: {}.", words.join(", "));
    random.shuffle(&mut words);
    Sample {
        task: Task::With,
        messages: vec![Message {
            role: Role::User,
            content: asked,
        }],
        answer: format!("{}.", words.join(", ")),
        kept_words: words,
    }
}

fn draw_word(random: &mut Random) -> &'static str {
    let she = random.chance(0.5);
    let place = random.below(words::NEAR.len());
    let list = match (random.below(8), she) {
        (0, true) => names::CHILDREN.she,
        (0, false) => names::CHILDREN.he,
        (1, true) => names::ANIMALS.she,
        (1, false) => names::ANIMALS.he,
        (2, true) => names::SELDOM.she,
        (2, false) => names::SELDOM.he,
        (3, _) => words::BOUGHT,
        (4, _) => words::MADE,
        (5, _) => words::ANIMALS,
        (6, _) => words::NEAR[place].helpers,
        _ => return words::NEAR[place].name,
    };
    list[random.below(list.len())]
}
