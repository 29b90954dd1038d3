use std::collections::{BTreeSet, HashMap, HashSet};

use super::cast::Cast;
use super::*;

/// Samples of both halves.
fn samples(count: u64) -> impl Iterator<Item = Sample> {
    [Split::Train, Split::HeldOut]
        .into_iter()
        .flat_map(move |split| (0..count).map(move |number| sample(split, 3, number)))
}

fn texts(sample: &Sample) -> impl Iterator<Item = &str> {
    let messages = sample
        .messages
        .iter()
        .map(|message| message.content.as_str());
    messages.chain([sample.answer.as_str()])
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphabetic())
        .filter(|word| !word.is_empty())
}

#[test]
fn the_same_number_gives_the_same_sample() {
    for number in 0..500 {
        assert_eq!(
            sample(Split::Train, 7, number),
            sample(Split::Train, 7, number)
        );
    }
    assert_ne!(sample(Split::Train, 7, 1), sample(Split::Train, 8, 1));
}

#[test]
fn what_the_conversation_names_returns_in_the_answer() {
    for sample in samples(10_000) {
        for word in &sample.kept_words {
            let named = sample
                .messages
                .iter()
                .any(|message| has_word(&message.content, word));
            assert!(named, "{word:?} is not asked for in {sample:?}");
            assert!(
                has_word(&sample.answer, word),
                "{word:?} is missing in {sample:?}"
            );
        }
    }
}

#[test]
fn the_conversation_ends_with_the_user_and_takes_turns() {
    for sample in samples(5_000) {
        for (number, message) in sample.messages.iter().rev().enumerate() {
            let role = if number % 2 == 0 {
                Role::User
            } else {
                Role::Assistant
            };
            assert_eq!(message.role, role, "{sample:?}");
        }
    }
}

#[test]
fn texts_are_tidy() {
    for sample in samples(10_000) {
        for text in texts(&sample) {
            assert!(!text.is_empty(), "{sample:?}");
            assert!(!text.contains(['{', '}', '<', '>']), "{sample:?}");
            assert!(!text.contains("  ") && text.trim() == text, "{sample:?}");
            assert_eq!(text.matches('"').count() % 2, 0, "{sample:?}");
        }
    }
}

#[test]
fn articles_fit_the_next_word() {
    for sample in samples(10_000) {
        for text in texts(&sample) {
            let words: Vec<String> = words(text).map(str::to_lowercase).collect();
            for pair in words.windows(2) {
                let vowel = pair[1].starts_with(['a', 'e', 'i', 'o', 'u']);
                assert!(pair[0] != "a" || !vowel, "{pair:?} in {text:?}");
                assert!(pair[0] != "an" || vowel, "{pair:?} in {text:?}");
            }
        }
    }
}

#[test]
fn every_sentence_of_an_answer_is_whole() {
    for sample in samples(4_000) {
        for sentence in sentences(&sample.answer) {
            assert!(is_whole(&sentence), "{sentence:?} in {sample:?}");
        }
    }
}

#[test]
fn damaged_sentences_are_not_whole() {
    let mut random = Random::new(1, 0);
    let (mut damaged, mut accepted) = (0, 0);
    for sample in samples(2_000) {
        for sentence in sentences(&sample.answer) {
            let mut words: Vec<&str> = sentence.split(' ').collect();
            let at = random.below(words.len());
            if random.chance(0.5) {
                words.insert(at, words[at]);
            } else {
                words.remove(at);
            }
            damaged += 1;
            accepted += usize::from(is_whole(&words.join(" ")));
        }
    }
    assert!(
        accepted * 20 < damaged,
        "{accepted} of {damaged} damaged sentences pass"
    );
}

#[test]
fn sentences_end_outside_of_quotes() {
    let text = "\"Where is it?\" asked Mia. \"Oh no! It is gone!\" An owl came by. \"Look,\" it said. \"Here!\"";
    let expected = [
        "\"Where is it?\" asked Mia.",
        "\"Oh no! It is gone!\"",
        "An owl came by.",
        "\"Look,\" it said.",
        "\"Here!\"",
    ];
    assert_eq!(sentences(text), expected);
    assert_eq!(sentences("Mia saw"), ["Mia saw"]);
    assert!(sentences(" ").is_empty());
}

#[test]
fn names_are_found_and_other_capitals_are_not() {
    let text = "Then Mia met Theo the fox. \"Thank you, Mia!\" said Theo. He was happy.";
    assert_eq!(names_in(text), ["Mia", "Theo"]);
}

#[test]
fn every_name_is_known_as_a_name() {
    for names in names::ALL {
        for name in names.she.iter().chain(names.he) {
            assert_eq!(names_in(name), [*name]);
        }
    }
}

#[test]
fn nobody_has_two_names_and_no_name_has_two_people() {
    let mut seen = HashSet::new();
    for names in names::ALL {
        for name in names.she.iter().chain(names.he) {
            assert!(seen.insert(name), "{name} is listed twice");
        }
    }
}

#[test]
fn the_halves_share_no_story() {
    let stories = |split| -> HashSet<String> {
        (0..20_000)
            .map(|number| sample(split, 11, number))
            .filter(|sample| matches!(sample.task, Task::Story | Task::With | Task::BeginWith))
            .map(|sample| sample.answer)
            .collect()
    };
    assert!(stories(Split::Train).is_disjoint(&stories(Split::HeldOut)));
    let cores = |split| -> HashSet<_> {
        let mut random = Random::new(11, 0);
        (0..20_000)
            .map(|_| Cast::draw_where(&mut random, split, |_| true).core())
            .collect()
    };
    assert!(cores(Split::Train).is_disjoint(&cores(Split::HeldOut)));
}

#[test]
fn a_story_names_nobody_but_its_cast() {
    for sample in samples(5_000) {
        let names = names_in(&sample.answer);
        assert!(names.len() <= 3, "{names:?} in {sample:?}");
    }
}

#[test]
fn whom_a_story_brings_in_unasked_goes_by_whom_it_is_about() {
    let mut brought: HashMap<String, BTreeSet<String>> = HashMap::new();
    for sample in samples(10_000) {
        if !matches!(sample.task, Task::Story | Task::With) {
            continue;
        }
        let asked = &sample.messages[0].content;
        let names = names_in(&sample.answer);
        let [one, other] = &names[..] else {
            continue;
        };
        let (known, new) = match (has_word(asked, one), has_word(asked, other)) {
            (true, false) => (one, other),
            (false, true) => (other, one),
            _ => continue,
        };
        let kind = sample.answer.split(&format!("{known} the ")).nth(1);
        let kind = kind.and_then(|after| words(after).next());
        let about = kind.map_or_else(|| known.clone(), str::to_owned);
        brought.entry(about).or_default().insert(new.clone());
    }
    assert!(brought.len() > 100);
    for (about, names) in brought {
        // A kind of animal has heroes of both sexes.
        assert!(names.len() <= 2, "{names:?} come up beside {about}");
    }
}

#[test]
fn lengths_stay_within_bounds() {
    let mut long = 0;
    for sample in samples(10_000) {
        let count: usize = texts(&sample).map(|text| words(text).count()).sum();
        assert!(count <= 400, "{count} words in {sample:?}");
        long += usize::from(count > 210);
    }
    assert!(long < 1_200, "{long} of 20000 samples are long");
}

#[test]
fn the_language_is_small() {
    let mut ordinary = BTreeSet::new();
    for sample in samples(20_000) {
        for text in texts(&sample) {
            let names = names_in(text);
            let found = words(text).filter(|word| !names.iter().any(|name| name == word));
            ordinary.extend(found.map(str::to_lowercase));
        }
    }
    assert!(
        ordinary.len() <= 560,
        "{} words: {ordinary:?}",
        ordinary.len()
    );
}

#[test]
fn every_task_comes_up_as_often_as_it_should() {
    let mut counts: HashMap<Task, usize> = HashMap::new();
    for number in 0..10_000 {
        *counts
            .entry(sample(Split::Train, 1, number).task)
            .or_default() += 1;
    }
    for task in Task::ALL {
        let (count, share) = (counts[&task], task.share() * 100);
        assert!(
            count.abs_diff(share) < 150,
            "{task:?}: {count}, not {share}"
        );
    }
}
