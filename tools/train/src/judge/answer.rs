//! Judges one answer by what its sample says of it.

use crate::corpus::{Sample, Task, has_word, is_whole, names_in, occurrences, sentences};

/// Stories with more sentences than this name everybody more than once; a shorter one has no room for that.
const SHORT_STORY_SENTENCES: usize = 3;

/// The people of a story, unless the right answer has more: a hero and a friend.
const PEOPLE: usize = 2;

/// What an answer was found to be; nothing stands where a question does not arise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Whether every name that the answer has to keep is in it.
    pub names_kept: Option<bool>,
    /// Whether every word that the answer has to keep is in it: names, kinds of animals, things, places, helpers.
    pub words_kept: Option<bool>,
    /// Whether it names nobody who does not belong; see [`strangers`].
    pub no_stranger: bool,
    /// How many sentences it has.
    pub sentences: usize,
    /// How many of them the language can produce.
    pub sentences_whole: usize,
    /// Whether it is the expected answer, letter by letter. Only asked of the tasks that leave little choice.
    pub right: Option<bool>,
}

impl Verdict {
    /// Judges an answer to a sample.
    #[must_use]
    pub fn of(sample: &Sample, answer: &str) -> Self {
        let answer = answer.trim();
        let sentences = sentences(answer);
        let words: Vec<&str> = sample.kept_words.iter().map(String::as_str).collect();
        let names: Vec<&str> = words
            .iter()
            .copied()
            .filter(|word| word.starts_with(char::is_uppercase))
            .collect();
        Self {
            names_kept: keeps(answer, &names),
            words_kept: keeps(answer, &words),
            no_stranger: strangers(sample, answer).is_empty(),
            sentences_whole: sentences
                .iter()
                .filter(|sentence| is_whole(sentence))
                .count(),
            sentences: sentences.len(),
            right: matches!(sample.task, Task::Question | Task::FillGap | Task::Shorten)
                .then(|| answer == sample.answer),
        }
    }

    /// Whether there is a sentence, and all of them are whole.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.sentences > 0 && self.sentences_whole == self.sentences
    }

    /// Whether it is whole and names all that it should, and nobody else.
    #[must_use]
    pub fn is_flawless(&self) -> bool {
        self.is_whole() && self.no_stranger && self.names_kept != Some(false)
    }
}

fn keeps(answer: &str, words: &[&str]) -> Option<bool> {
    (!words.is_empty()).then(|| words.iter().all(|word| has_word(answer, word)))
}

/// The names in an answer that have no business there.
///
/// An answer about a given story (a question, a gap, a summary) may only name who was named before: every other name
/// is a stranger. A new story may bring in people of its own, but a story of this language has a hero and at most one
/// friend (with two stories in one, a friend for each), and somebody who belongs to a story of some length comes up
/// again. So in a story a new name is a stranger when it makes too many people, or when it stands there once in more
/// than three sentences. One plot breaks the last rule (whoever helps with a feast may be named once), so that about
/// one in a hundred right stories is found guilty; the judgement says how many.
#[must_use]
pub fn strangers(sample: &Sample, answer: &str) -> Vec<String> {
    let known: Vec<String> = sample
        .messages
        .iter()
        .flat_map(|message| names_in(&message.content))
        .collect();
    let names = names_in(answer);
    let people_max = names_in(&sample.answer).len().max(PEOPLE);
    let is_long = sentences(answer).len() > SHORT_STORY_SENTENCES;
    let known_here = names.iter().filter(|name| known.contains(name)).count();
    let new = names.iter().filter(|name| !known.contains(name));
    new.enumerate()
        .filter(|(number, name)| match sample.task {
            Task::Question | Task::FillGap | Task::Shorten => true,
            Task::Story | Task::With | Task::BeginWith | Task::Continue | Task::Chat => {
                let too_many = known_here + number >= people_max;
                too_many || (is_long && occurrences(answer, name).count() == 1)
            }
        })
        .map(|(_, name)| name.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::{self, Message, Role, Split};

    fn story(asked: &str, kept_words: &[&str], answer: &str) -> Sample {
        Sample {
            task: Task::Story,
            messages: vec![Message {
                role: Role::User,
                content: asked.to_owned(),
            }],
            answer: answer.to_owned(),
            kept_words: kept_words.iter().map(|word| (*word).to_owned()).collect(),
        }
    }

    const LOST: &str = "One sunny day, Mia took her blue kite to the lake. A strong wind came, and the blue kite was \
        gone. Just then, Mia met a duck. Mia ran to look, and there was the blue kite!";

    #[test]
    fn words_are_found_whole_only() {
        assert!(has_word("Then Anna came.", "Anna"));
        assert!(has_word("\"Anna!\" said Tom.", "Anna"));
        assert!(!has_word("Then Anna came.", "Ann"));
        assert!(!has_word("a kitesurfer", "kite"));
        assert!(has_word("the blue kite.", "blue kite"));
        assert!(!has_word("the blue, kite", "blue kite"));
        assert!(has_word("kites and a kite", "kite"));
    }

    #[test]
    fn every_word_has_to_be_kept_and_names_are_counted_by_themselves() {
        let sample = story("About Mia and a kite.", &["Mia", "blue kite"], LOST);
        let kept = |answer: &str| {
            let verdict = Verdict::of(&sample, answer);
            (verdict.names_kept, verdict.words_kept)
        };
        assert_eq!(kept(LOST), (Some(true), Some(true)));
        assert_eq!(kept("Mia lost a red kite."), (Some(true), Some(false)));
        assert_eq!(kept("Tom lost a blue kite."), (Some(false), Some(false)));
        let sample = story("About a kite.", &["kite"], LOST);
        assert_eq!(Verdict::of(&sample, LOST).names_kept, None);
        let sample = story("A story.", &[], LOST);
        assert_eq!(Verdict::of(&sample, LOST).words_kept, None);
    }

    #[test]
    fn broken_sentences_are_counted() {
        let sample = story("A story about Mia.", &["Mia"], LOST);
        let verdict = Verdict::of(&sample, LOST);
        assert_eq!((verdict.sentences, verdict.sentences_whole), (4, 4));
        assert!(verdict.is_whole());
        let verdict = Verdict::of(&sample, &LOST.replace("came, and the", "came the"));
        assert_eq!((verdict.sentences, verdict.sentences_whole), (4, 3));
        assert!(!verdict.is_whole());
        assert!(!Verdict::of(&sample, " ").is_whole());
    }

    #[test]
    fn a_name_that_stands_there_once_is_a_stranger() {
        let sample = story("A story about Mia.", &["Mia"], LOST);
        assert!(strangers(&sample, LOST).is_empty());
        let answer = LOST.replace("Mia met", "Anna met");
        assert_eq!(strangers(&sample, &answer), ["Anna"]);
        // The request left the hero open, but one hero is enough.
        let sample = story("A story about a kite.", &["kite"], LOST);
        assert!(strangers(&sample, LOST).is_empty());
        assert_eq!(strangers(&sample, &answer), ["Anna"]);
    }

    #[test]
    fn more_people_than_a_story_has_are_strangers() {
        let sample = story("A story about Mia and Tom.", &["Mia", "Tom"], LOST);
        assert!(strangers(&sample, "Mia met Tom.").is_empty());
        assert_eq!(strangers(&sample, "Mia met Tom and Anna."), ["Anna"]);
        let sample = story("A story about Mia.", &["Mia"], LOST);
        assert!(strangers(&sample, "Mia met Tom.").is_empty());
        assert_eq!(strangers(&sample, "Mia met Tom and Anna."), ["Anna"]);
        assert_eq!(strangers(&sample, "Max met Tom and Anna."), ["Anna"]);
    }

    #[test]
    fn an_answer_about_a_story_names_nobody_new() {
        let mut sample = story(
            "Who lost the kite? Mia lost a kite.",
            &[],
            "Mia lost the kite.",
        );
        sample.task = Task::Question;
        assert!(strangers(&sample, "Mia lost the kite.").is_empty());
        assert_eq!(strangers(&sample, "Tom lost the kite."), ["Tom"]);
    }

    #[test]
    fn right_answers_pass() {
        let mut guilty = 0;
        for number in 0..2_000 {
            let sample = corpus::sample(Split::HeldOut, 5, number);
            let verdict = Verdict::of(&sample, &sample.answer);
            assert_ne!(verdict.names_kept, Some(false), "{sample:?}");
            assert_ne!(verdict.words_kept, Some(false), "{sample:?}");
            assert_ne!(verdict.right, Some(false), "{sample:?}");
            assert!(verdict.is_whole(), "{sample:?}");
            guilty += usize::from(!verdict.no_stranger);
        }
        assert!(guilty < 30, "{guilty} right answers of 2000 have strangers");
    }

    #[test]
    fn a_hero_who_changes_the_name_midway_is_found_out() {
        let (mut changed, mut found) = (0, 0);
        for number in 0..1_000 {
            let sample = corpus::sample(Split::HeldOut, 6, number);
            let names = names_in(&sample.answer);
            let (Task::Story | Task::With, Some(hero)) = (sample.task, names.first()) else {
                continue;
            };
            // The last mention only, where there are many.
            let places: Vec<usize> = occurrences(&sample.answer, hero).collect();
            let Some(&at) = places.last().filter(|_| places.len() > 3) else {
                continue;
            };
            let answer = format!(
                "{}Nobodie{}",
                &sample.answer[..at],
                &sample.answer[at + hero.len()..]
            );
            changed += 1;
            found += usize::from(strangers(&sample, &answer).contains(&"Nobodie".to_owned()));
        }
        assert!(changed > 200);
        assert_eq!(found, changed);
    }
}
