//! Names in remembered texts, by how they are written: words with a capital letter, one after another.
//!
//! No list of names and no model is asked. So where all nouns are written with a capital letter, as in German, they count as names, and where
//! there are no such letters nothing does.

use std::collections::HashSet;

/// Words of a name, at most.
const WORDS_MAX: usize = 6;
/// Words that join others within a name, such as "Ludwig van Beethoven".
const PARTICLES: [&str; 16] = [
    "of", "the", "de", "van", "von", "der", "den", "di", "da", "do", "dos", "la", "le", "du",
    "del", "al",
];
/// What may stand before a name with a full stop that ends no sentence.
const TITLES: [&str; 6] = ["Mr", "Mrs", "Ms", "Dr", "St", "Prof"];
/// Words that begin English sentences, and belong to no name that follows them.
const FUNCTION_WORDS: &str = "\
    a an the this that these those he she it we they you i his her its our their my your in on at of to for from by with without as and \
    or but so if when where while who whom whose what which why how there here then after before since until because although though not \
    no yes all any some many most each every both other another one two three is are was were be been do does did has have had can could \
    will would shall should may might must let please see also however today yesterday tomorrow now once during between under over about \
    into only even just still often later soon next first last";

/// A word of a text.
struct Word<'a> {
    /// Without what stands around it, but with the full stop of an initial or a title.
    text: &'a str,
    kind: Kind,
    /// A sentence begins with it, or what may be one.
    begins: bool,
    /// Nothing but space lies between it and the word before.
    follows: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// With a capital letter, or more of them.
    Capital,
    /// A single capital letter, perhaps with a full stop.
    Initial,
    Number,
    Particle,
    Other,
}

/// The names in these texts, in their order, each once and without those that are part of another; not those that `said` has.
pub(super) fn names<'a>(texts: impl Iterator<Item = &'a str>, said: &str) -> Vec<String> {
    let words: Vec<Word<'_>> = texts.flat_map(words).collect();
    let inside = words.iter().filter(|word| !word.begins);
    let inside: HashSet<&str> = inside
        .filter(|word| word.kind == Kind::Capital)
        .map(|word| word.text)
        .collect();
    let plain: HashSet<&str> = words
        .iter()
        .filter(|word| word.kind == Kind::Other)
        .map(|word| word.text)
        .collect();
    let is_plain = |text: &str| {
        let lower = text.to_lowercase();
        plain.contains(lower.as_str()) || is_function_word(&lower)
    };
    let said = said.to_lowercase();
    let mut found: Vec<String> = Vec::new();
    for mut run in runs(&words) {
        if let [first, _, ..] = run
            && first.begins
            && is_plain(first.text)
        {
            // What is left is no sentence's beginning: a name, or nothing.
            let after = run[1..].iter().position(|word| is_start(word));
            run = after.map_or(&[], |after| &run[1 + after..]);
        }
        let is_name = match run {
            [] => false,
            [one] => {
                one.kind == Kind::Capital
                    && !is_plain(one.text)
                    && (!one.begins || inside.contains(one.text))
            }
            many => many.iter().any(|word| word.kind == Kind::Capital),
        };
        let texts: Vec<&str> = run.iter().map(|word| word.text).collect();
        let name = texts.join(" ");
        if is_name && !found.contains(&name) && !has_words(&said, &name.to_lowercase()) {
            found.push(name);
        }
    }
    let is_whole = |name: &&String| {
        let mut others = found.iter().filter(|other| other != name);
        !others.any(|other| has_words(other, name))
    };
    found.iter().filter(is_whole).cloned().collect()
}

/// Whether a text has these words, one after another and whole.
fn has_words(text: &str, words: &str) -> bool {
    let mut places = text.match_indices(words);
    places.any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + words.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
    })
}

fn is_function_word(lower: &str) -> bool {
    FUNCTION_WORDS.split_whitespace().any(|word| word == lower)
}

/// Whether a name may begin with this word.
fn is_start(word: &Word<'_>) -> bool {
    match word.kind {
        Kind::Capital => true,
        // "I" begins no name, but "J. R. R. Tolkien" does.
        Kind::Initial => word.text.ends_with('.'),
        Kind::Number | Kind::Particle | Kind::Other => false,
    }
}

/// Whether a sentence begins behind a letter with a full stop, which looks like an initial: "Plan B. He left".
fn is_sentence_start(before: &str, word: &Word<'_>) -> bool {
    before.ends_with('.') && is_function_word(&word.text.to_lowercase())
}

/// Words that stand together as those of a name do.
fn runs<'w, 'a>(words: &'w [Word<'a>]) -> Vec<&'w [Word<'a>]> {
    let mut runs = Vec::new();
    let mut next = 0;
    while next < words.len() {
        if !is_start(&words[next]) {
            next += 1;
            continue;
        }
        let mut end = next + 1;
        for (at, word) in words.iter().enumerate().skip(end) {
            let is_new = word.begins || is_sentence_start(words[at - 1].text, word);
            if !word.follows || is_new || at - next >= WORDS_MAX {
                break;
            }
            match word.kind {
                Kind::Capital | Kind::Initial | Kind::Number => end = at + 1,
                // Belongs to the name if that goes on behind it.
                Kind::Particle => {}
                Kind::Other => break,
            }
        }
        runs.push(&words[next..end]);
        next = end;
    }
    runs
}

/// The words of a text, without headings.
fn words(text: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut begins = true;
    let mut follows = false;
    for line in text.lines() {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            begins = true;
            continue;
        }
        // An item of a list, or a cell of a table.
        begins |= line.starts_with(['-', '*', '+', '|', '•', '>']);
        for token in line.split_whitespace() {
            let core = token.trim_matches(|c: char| !c.is_alphanumeric());
            if core.is_empty() {
                begins |= token.contains('|');
                follows = false;
                continue;
            }
            let start = token.find(core).unwrap_or(0);
            let (before, after) = (&token[..start], &token[start + core.len()..]);
            // What is quoted or put into brackets may be a sentence of its own.
            begins |= before.contains(['"', '“', '„', '«', '\'', '‘', '(', '|']);
            follows &= before.is_empty();
            let owner = ["'s", "’s"]
                .iter()
                .find_map(|ending| core.strip_suffix(ending));
            let is_single = core.chars().count() == 1;
            let is_upper = core.starts_with(char::is_uppercase);
            let is_short = after == "." && is_upper && (is_single || TITLES.contains(&core));
            let text = match (is_short, owner) {
                (true, _) => &token[start..start + core.len() + 1],
                (false, Some(owner)) => owner,
                (false, None) => core,
            };
            words.push(Word {
                text,
                kind: kind(owner.unwrap_or(core)),
                begins,
                follows,
            });
            let ends = !is_short && !after.is_empty();
            begins = ends && after.contains(['.', '!', '?', ':', '…', '。', '|']);
            follows = !ends && owner.is_none();
        }
    }
    words
}

fn kind(core: &str) -> Kind {
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '-' | '\'' | '’' | '.' | '&');
    if !core.chars().all(is_word) {
        return Kind::Other;
    }
    if core.chars().all(|c| c.is_ascii_digit()) {
        return Kind::Number;
    }
    match (core.starts_with(char::is_uppercase), core.chars().count()) {
        (true, 1) => Kind::Initial,
        (true, _) => Kind::Capital,
        (false, _) if PARTICLES.contains(&core) => Kind::Particle,
        (false, _) => Kind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<String> {
        names([text].into_iter(), "")
    }

    #[test]
    fn runs_of_capitals_are_names() {
        assert_eq!(
            of("In 1969 the crew of Apollo 11 with Neil Armstrong flew to the Moon."),
            ["Apollo 11", "Neil Armstrong", "Moon"]
        );
        assert_eq!(
            of(
                "We read J. R. R. Tolkien and Ludwig van Beethoven, and the University of the Arts."
            ),
            [
                "J. R. R. Tolkien",
                "Ludwig van Beethoven",
                "University of the Arts"
            ]
        );
        assert_eq!(
            of("at St. Louis, with Dr. Anna Öhm's cat"),
            ["St. Louis", "Dr. Anna Öhm"]
        );
        assert_eq!(
            of("They chose Plan B. He left with Vitamin C. The pool was shut."),
            ["Plan B.", "Vitamin C."]
        );
        // What joins others joins nothing at an end.
        assert_eq!(of("the end of Sparta of the south"), ["Sparta"]);
        assert_eq!(
            of("Anna and Bob met Carl; Dora, Emil."),
            ["Bob", "Carl", "Dora", "Emil"]
        );
    }

    #[test]
    fn a_sentences_beginning_is_no_name_by_itself() {
        assert!(
            of("Pools open at eight. Bread is sold.\n\n- Water\n- \"Come in,\" he said").is_empty()
        );
        assert_eq!(
            of("Lindenau has a pool. There is one in Lindenau."),
            ["Lindenau"]
        );
        assert_eq!(
            of("When Anna came, Neil Armstrong left."),
            ["Anna", "Neil Armstrong"]
        );
        // It is written small elsewhere.
        assert_eq!(of("Swimming Anna is fast. She likes swimming."), ["Anna"]);
        assert!(of("the Pool, and a pool").is_empty());
        assert!(of("# Opening Hours\n\nI think so, and I do").is_empty());
    }

    #[test]
    fn a_name_counts_once_and_not_where_the_user_has_said_it() {
        let texts = [
            "the street of Karl Heine",
            "by Heine, in Leipzig, near Karl Heine",
        ];
        assert_eq!(names(texts.into_iter(), ""), ["Karl Heine", "Leipzig"]);
        assert_eq!(
            names(texts.into_iter(), "where is LEIPZIG?"),
            ["Karl Heine"]
        );
        // A part of a word is not that word.
        assert_eq!(names(["in Rom"].into_iter(), "romance"), ["Rom"]);
    }

    #[test]
    fn what_is_no_word_is_no_name() {
        assert!(of("see [Anna](https://Example.com/A), x=Y and https://A.b/C").is_empty());
        assert_eq!(
            of("| so | with **Anna** | Bob of **Rome** |"),
            ["Anna", "Rome"]
        );
        assert!(of("日本語のテキスト。東京。").is_empty());
    }

    /// Whatever is remembered, nothing but what stands there becomes a name.
    #[test]
    fn any_text_has_names_that_stand_in_it() {
        let parts = [
            "Anna", "J.", " ", "\n", "\n\n", "of", "|", "ß", "É", "'s", "’", "11", "(", "\"", ". ",
            "-", "#", "St.", "\u{301}", "İ",
        ];
        let mut state = 1_u64;
        for _ in 0..2000 {
            let mut text = String::new();
            for _ in 0..30 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                text += parts[(state >> 33) as usize % parts.len()];
            }
            for name in of(&text) {
                assert!(
                    name.split(' ').all(|word| text.contains(word)),
                    "{name:?} in {text:?}"
                );
            }
        }
    }
}
