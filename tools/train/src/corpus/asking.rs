//! How a user asks for a given story.

use super::cast::Cast;
use super::requests::{self, choose, put};
use super::slots::{Form, written};
use super::story::{Length, Told};
use super::word::has_word;
use super::words::Things;
use crate::random::Random;

/// How a user asks for this story, and what has to be kept of it.
pub(super) fn request(told: &Told, length: Length, random: &mut Random) -> (String, Vec<String>) {
    let asked = told.cast.as_asked(random);
    if length == Length::Whole && random.chance(0.12) {
        return genre_request(told, &asked, random);
    }
    let called = match length {
        Length::Short => random.pick(requests::SHORT),
        Length::Whole => random.pick(requests::WHOLE),
        Length::Long => random.pick(requests::LONG),
    };
    if random.chance(0.04) {
        let frame = random.pick(requests::OPEN);
        return (put(frame, "story", called), Vec::new());
    }
    let (subject, mut kept_words) = subject(told, &asked, random);
    let frame = if length == Length::Whole && random.chance(0.2) {
        random.pick(requests::TERSE)
    } else {
        random.pick(requests::STORY)
    };
    let mut text = put(&put(frame, "story", called), "subject", &subject);
    if length != Length::Short && text.ends_with('.') && random.chance(0.15) {
        add_more(told, &mut text, &mut kept_words, random);
    }
    (text, kept_words)
}

/// What the story is about in the user's words: something of which every word comes up in the story.
pub(super) fn subject(told: &Told, asked: &Cast, random: &mut Random) -> (String, Vec<String>) {
    // Drawn again until it fits: a subject that the story does not mention would teach the model to ignore requests.
    loop {
        let plain = random.chance(0.4);
        let template = *random.pick(if plain {
            plain_subjects(&told.cast)
        } else {
            told.cast.plot.subjects
        });
        let words = asked.content(template);
        if words.iter().all(|word| has_word(&told.text, word)) {
            return (asked.fill(template), words);
        }
    }
}

/// Subjects that say nothing of the plot.
fn plain_subjects(cast: &Cast) -> &'static [&'static str] {
    if cast.plot.things == Things::None {
        &[
            "{who}",
            "{who} and {whom}",
            "{who} and {a helper}",
            "{a kind}",
        ]
    } else {
        &[
            "{who}",
            "{who}",
            "{who} and {a thing}",
            "{who} and {whom}",
            "{who} and {a helper}",
            "{who}, {whom} and {a thing}",
            "{who}, {a thing} and {a helper}",
            "{a thing}",
            "{a kind}",
        ]
    }
}

fn genre_request(told: &Told, asked: &Cast, random: &mut Random) -> (String, Vec<String>) {
    let frame = random.pick(requests::GENRE);
    let genre = written(choose(random, told.cast.plot.genres), Form::Article);
    let cast = if has_word(&told.text, told.cast.friend.name.text) && random.chance(0.6) {
        "{who} and {whom}"
    } else {
        "{who}"
    };
    let kept_words = if frame.contains("<cast>") {
        asked.content(cast)
    } else {
        Vec::new()
    };
    (
        put(&put(frame, "genre", &genre), "cast", &asked.fill(cast)),
        kept_words,
    )
}

fn add_more(told: &Told, text: &mut String, kept_words: &mut Vec<String>, random: &mut Random) {
    let template = *random.pick(&["{a thing}", "{a helper}"]);
    let [word] = &told.cast.content(template)[..] else {
        return;
    };
    if has_word(&told.text, word) && !kept_words.contains(word) {
        text.push_str(&put(
            choose(random, requests::MORE),
            "more",
            &told.cast.fill(template),
        ));
        kept_words.push(word.clone());
    }
}
