//! Judges text: where its sentences are, whether each is one of the language's own, and whom it names.

use std::collections::HashSet;
use std::sync::LazyLock;

use super::cast::pronouns;
use super::plots::{COMMON_QUESTIONS, PLOTS};
use super::slots::{Form, Part, Slot, article, capital, parts, written};
use super::{requests, story, words};

/// The sentences of a text. A sentence ends with a stop outside of quotes, or with a quote that ends with a stop when
/// no small letter follows: `"Where is my kite?" asked Mia.` is one sentence.
#[must_use]
pub fn sentences(text: &str) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut start = 0;
    let mut quoted = false;
    let mut last = ' ';
    for (at, letter) in text.char_indices() {
        let ends = match letter {
            '"' => {
                quoted = !quoted;
                !quoted && is_stop(last) && !small_letter_follows(&text[at + 1..])
            }
            _ => !quoted && is_stop(letter),
        };
        if ends {
            push_trimmed(&mut sentences, &text[start..=at]);
            start = at + 1;
        }
        last = letter;
    }
    push_trimmed(&mut sentences, &text[start..]);
    sentences
}

fn is_stop(letter: char) -> bool {
    matches!(letter, '.' | '!' | '?')
}

fn small_letter_follows(rest: &str) -> bool {
    rest.trim_start().starts_with(char::is_lowercase)
}

fn push_trimmed(sentences: &mut Vec<String>, sentence: &str) {
    let sentence = sentence.trim();
    if !sentence.is_empty() {
        sentences.push(sentence.to_owned());
    }
}

/// Whether a sentence is one that the language can produce: a template with fitting words in all its slots. Any
/// capitalised word will do for a name.
#[must_use]
pub fn is_whole(sentence: &str) -> bool {
    PATTERNS
        .iter()
        .any(|pattern| fits(pattern, sentence, &mut Vec::new()))
}

/// The names in a text, in order and each once: the capitalised words that no template contains.
#[must_use]
pub fn names_in(text: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for word in text.split(|letter: char| !letter.is_alphabetic()) {
        if is_name(word) && !names.iter().any(|name| name == word) {
            names.push(word.to_owned());
        }
    }
    names
}

fn is_name(word: &str) -> bool {
    let mut letters = word.chars();
    letters.next().is_some_and(char::is_uppercase)
        && letters.clone().next().is_some()
        && letters.all(char::is_lowercase)
        && !CAPITALISED.contains(word)
}

/// A sentence of the language with its slots open.
type Pattern = Vec<Part<'static>>;

static PATTERNS: LazyLock<Vec<Pattern>> = LazyLock::new(|| {
    let mut patterns: Vec<Pattern> = Vec::new();
    for template in templates() {
        let template: &'static str = template.leak();
        let pattern = parts(template);
        if !patterns.contains(&pattern) {
            patterns.push(pattern);
        }
    }
    patterns
});

/// Every sentence template of the stories and answers.
fn templates() -> Vec<String> {
    let mut templates = Vec::new();
    let mut add = |text: &str| templates.append(&mut sentences(text));
    for plot in PLOTS {
        for variant in plot.stages.iter().chain(plot.short).copied().flatten() {
            add(variant);
        }
        for opening in plot.again {
            for link in story::LINKS {
                add(&format!("{link}{opening}"));
            }
        }
        for summary in plot.summaries {
            add(summary);
        }
        for question in plot.questions.iter().chain(COMMON_QUESTIONS) {
            add(question.answer);
        }
    }
    for talk in requests::TALKS {
        for answer in talk.answers {
            add(answer);
        }
    }
    templates
}

/// The capitalised words of the templates and of filled slots, which are therefore no names.
static CAPITALISED: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let mut words: HashSet<String> = ["He", "She", "A", "An", "At", "In", "On"]
        .map(str::to_owned)
        .into();
    for part in PATTERNS.iter().flatten() {
        let Part::Literal(text) = part else { continue };
        let found = text.split(|letter: char| !letter.is_alphabetic());
        words.extend(
            found
                .filter(|word| word.starts_with(char::is_uppercase))
                .map(str::to_owned),
        );
    }
    words
});

/// Whether the text is the pattern with values for which `bound` has no contradiction: the same slot has the same
/// value throughout a sentence, and all pronouns agree.
fn fits<'t>(pattern: &[Part], text: &'t str, bound: &mut Vec<(Slot, &'t str)>) -> bool {
    let Some((part, pattern)) = pattern.split_first() else {
        return text.is_empty();
    };
    match *part {
        Part::Literal(literal) => text
            .strip_prefix(literal)
            .is_some_and(|rest| fits(pattern, rest, bound)),
        Part::Slot(slot, form) => {
            for (bindings, rest) in readings(slot, form, text) {
                let known = bound.len();
                if bind(bound, bindings) && fits(pattern, rest, bound) {
                    return true;
                }
                bound.truncate(known);
            }
            false
        }
    }
}

/// Adds the bindings unless one of them contradicts what is bound already; what was added before stays, and the
/// caller cuts it off.
fn bind<'t>(bound: &mut Vec<(Slot, &'t str)>, bindings: Vec<(Slot, &'t str)>) -> bool {
    for (slot, value) in bindings {
        match bound.iter().find(|(known, _)| *known == slot) {
            Some((_, same)) if *same != value => return false,
            Some(_) => {}
            None => bound.push((slot, value)),
        }
    }
    true
}

/// What a slot binds at the start of a text, and the text that is left.
type Reading<'t> = (Vec<(Slot, &'t str)>, &'t str);

/// All ways to read a slot at the start of the text.
fn readings(slot: Slot, form: Form, text: &str) -> Vec<Reading<'_>> {
    match slot {
        Slot::Hero | Slot::Friend => name_readings(slot, text),
        Slot::Who => introductions(Slot::Hero, text),
        Slot::Whom => introductions(Slot::Friend, text),
        Slot::Subject | Slot::Object | Slot::Owner => pronoun_readings(slot, form, text),
        _ => values(slot)
            .iter()
            .filter_map(|value| value_reading(slot, value, form, text))
            .collect(),
    }
}

fn name_readings(slot: Slot, text: &str) -> Vec<Reading<'_>> {
    let end = text
        .find(|letter: char| !letter.is_alphabetic())
        .unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    if is_name(name) {
        vec![(vec![(slot, name)], rest)]
    } else {
        Vec::new()
    }
}

/// A name alone or with a kind of animal.
fn introductions(slot: Slot, text: &str) -> Vec<Reading<'_>> {
    let mut readings = name_readings(slot, text);
    let Some((bindings, rest)) = readings.first().cloned() else {
        return readings;
    };
    if let Some(after) = rest.strip_prefix(" the ") {
        let kinds = words::ANIMALS.iter();
        readings
            .extend(kinds.filter_map(|kind| Some((bindings.clone(), after.strip_prefix(kind)?))));
    }
    readings
}

/// Pronouns bind which of "she" and "he" they belong to.
fn pronoun_readings(slot: Slot, form: Form, text: &str) -> Vec<Reading<'_>> {
    [true, false]
        .into_iter()
        .filter_map(|she| {
            let (subject, object, owner) = pronouns(she);
            let word = match slot {
                Slot::Subject => subject,
                Slot::Object => object,
                _ => owner,
            };
            let rest = text.strip_prefix(written(word, form).as_str())?;
            Some((vec![(Slot::Subject, subject)], rest))
        })
        .collect()
}

fn value_reading<'t>(
    slot: Slot,
    value: &'static str,
    form: Form,
    text: &'t str,
) -> Option<Reading<'t>> {
    let rest = match form {
        Form::Plain => text.strip_prefix(value)?,
        Form::Capital => text.strip_prefix(capital(value).as_str())?,
        Form::Article => after_article(text, article(value))?.strip_prefix(value)?,
        Form::CapitalArticle => {
            after_article(text, &capital(article(value)))?.strip_prefix(value)?
        }
    };
    Some((vec![(slot, value)], rest))
}

fn after_article<'t>(text: &'t str, article: &str) -> Option<&'t str> {
    text.strip_prefix(article)?.strip_prefix(' ')
}

/// Everything that can stand in a slot of the closed kind.
fn values(slot: Slot) -> &'static [&'static str] {
    match slot {
        Slot::Thing => &THINGS,
        Slot::Place => &PLACES,
        Slot::At => &PLACES_AT,
        Slot::Spot => &SPOTS,
        Slot::Helper => &HELPERS,
        Slot::Kind => &KINDS,
        Slot::Day => words::DAYS,
        Slot::Missing => words::MISSING,
        Slot::Wish => &WISHES,
        Slot::Trouble => &TROUBLES,
        _ => &[],
    }
}

static PLACES: LazyLock<Vec<&str>> = LazyLock::new(|| places().map(|place| place.name).collect());
static PLACES_AT: LazyLock<Vec<&str>> = LazyLock::new(|| places().map(|place| place.at).collect());
static SPOTS: LazyLock<Vec<&str>> =
    LazyLock::new(|| places().flat_map(|place| place.spots).copied().collect());
static HELPERS: LazyLock<Vec<&str>> =
    LazyLock::new(|| places().flat_map(|place| place.helpers).copied().collect());
static WISHES: LazyLock<Vec<&str>> =
    LazyLock::new(|| words::WISHES.iter().map(|wish| wish.text).collect());
static TROUBLES: LazyLock<Vec<&str>> =
    LazyLock::new(|| words::WISHES.iter().map(|wish| wish.trouble).collect());
static KINDS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    words::ANIMALS
        .iter()
        .copied()
        .chain(["girl", "boy"])
        .collect()
});

/// Every thing and dish, plain and with each look or flavour.
static THINGS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let rides = words::FAR.iter().flat_map(|place| place.rides);
    let things = words::BOUGHT
        .iter()
        .chain(words::MADE)
        .chain(words::TOOLS)
        .chain(rides);
    let mut all: Vec<&str> = Vec::new();
    for (nouns, more) in [
        (things.copied().collect::<Vec<_>>(), words::LOOKS),
        (words::FOODS.to_vec(), words::FLAVOURS),
    ] {
        for noun in nouns {
            all.push(noun);
            all.extend(more.iter().map(|more| &*format!("{more} {noun}").leak()));
        }
    }
    all
});

fn places() -> impl Iterator<Item = &'static words::Place> {
    words::NEAR.iter().chain(words::FAR)
}
