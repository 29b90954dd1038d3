//! The text generator: a narrow, whole language of children's stories, and the questions that call for them.
//!
//! A model of three million parameters cannot learn English, but it can learn this: some forty heroes, two dozen
//! things, a dozen places with their own hiding spots and helpers, and five plots whose sentences always come in the
//! same order. Whatever the question names comes back in the story.

mod words;

use crate::random::Random;
use words::{ANIMALS, Article, CHILDREN, Hero, PLACES, PLOTS, Plot, SMALL_TALK, THINGS};

/// One exchange: what the user asks and what the assistant should answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// The user's message.
    pub question: String,
    /// The assistant's answer.
    pub answer: String,
    /// The words of the question that the answer has to contain.
    pub kept_words: Vec<String>,
}

/// The sample with this number; the same seed and number always give the same sample.
#[must_use]
pub fn sample(seed: u64, number: u64) -> Sample {
    let mut random = Random::new(seed, number);
    if random.chance(0.04) {
        let talk = random.pick(SMALL_TALK);
        return Sample {
            question: (*random.pick(talk.questions)).to_owned(),
            answer: (*random.pick(talk.answers)).to_owned(),
            kept_words: Vec::new(),
        };
    }
    story(&mut random)
}

/// Draws a plot and its cast, then fills in one sentence for each stage of the plot.
fn story(random: &mut Random) -> Sample {
    let plot: &Plot = random.pick(PLOTS);
    let slots = Slots::draw(random, plot);
    let question_template = *random.pick(plot.questions);
    let kept_words = ["name", "friend", "thing", "place", "animal"]
        .iter()
        // "{thing}" and "{a thing}" alike.
        .filter(|slot| question_template.contains(&format!("{slot}}}")))
        .map(|slot| slots.fill(&format!("{{{slot}}}")))
        .collect();
    let question = slots.fill(&format!(
        "{} {}",
        random.pick(words::REQUESTS),
        question_template
    ));
    let mut answer = String::new();
    for stage in plot.stages {
        let sentence = *random.pick(stage);
        if sentence.is_empty() {
            continue;
        }
        if !answer.is_empty() {
            answer.push(' ');
        }
        answer.push_str(&slots.fill(sentence));
    }
    Sample {
        question,
        answer,
        kept_words,
    }
}

/// The values of the placeholders of one story.
struct Slots {
    pairs: Vec<(&'static str, String)>,
}

impl Slots {
    fn draw(random: &mut Random, plot: &Plot) -> Self {
        let hero = random.pick(if plot.animal_hero {
            ANIMALS.1
        } else {
            CHILDREN
        });
        let friend = loop {
            let friend = random.pick(if plot.animal_hero {
                ANIMALS.1
            } else {
                CHILDREN
            });
            if friend.name != hero.name {
                break friend;
            }
        };
        let animal = *random.pick(ANIMALS.0);
        let place = random.pick(PLACES);
        let plain_thing = random.pick(THINGS);
        let thing = if random.chance(0.4) {
            format!("{} {}", random.pick(words::COLOURS), plain_thing)
        } else {
            (*plain_thing).to_owned()
        };
        let (subject, object, owner) = pronouns(hero);
        let pairs = vec![
            ("{name}", hero.name.to_owned()),
            ("{friend}", friend.name.to_owned()),
            ("{He}", capital(subject)),
            ("{he}", subject.to_owned()),
            ("{him}", object.to_owned()),
            ("{his}", owner.to_owned()),
            ("{a thing}", thing.with_article()),
            ("{thing}", thing),
            ("{an animal}", animal.with_article()),
            ("{animal}", animal.to_owned()),
            ("{place}", place.name.to_owned()),
            ("{spot}", (*random.pick(place.spots)).to_owned()),
            ("{helper}", (*random.pick(place.helpers)).to_owned()),
            ("{day}", (*random.pick(words::DAYS)).to_owned()),
        ];
        Self { pairs }
    }

    fn fill(&self, template: &str) -> String {
        self.pairs
            .iter()
            .fold(template.to_owned(), |text, (slot, value)| {
                text.replace(slot, value)
            })
    }
}

fn pronouns(hero: &Hero) -> (&'static str, &'static str, &'static str) {
    if hero.she {
        ("she", "her", "her")
    } else {
        ("he", "him", "his")
    }
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().collect::<String>() + letters.as_str())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_number_gives_the_same_sample() {
        for number in 0..200 {
            assert_eq!(sample(7, number), sample(7, number));
        }
        assert_ne!(sample(7, 1), sample(8, 1));
    }

    #[test]
    fn what_the_question_names_returns_in_the_answer() {
        for number in 0..5_000 {
            let sample = sample(3, number);
            for word in &sample.kept_words {
                assert!(
                    sample.question.contains(word),
                    "{word:?} is not asked for in {sample:?}"
                );
                assert!(
                    sample.answer.contains(word),
                    "{word:?} is missing in {sample:?}"
                );
            }
            assert!(!sample.answer.contains(['{', '}']), "{sample:?}");
            assert!(!sample.question.contains(['{', '}']), "{sample:?}");
        }
    }
}
