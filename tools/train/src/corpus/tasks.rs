//! Makes the samples: one function for each task.

use super::asking::{request, subject};
use super::cast::{Cast, Change};
use super::grammar::sentences;
use super::names::is_name;
use super::plots::{COMMON_QUESTIONS, Question};
use super::requests::{self, Talk, choose, put};
use super::slots::small;
use super::story::{self, Length, Told};
use super::word::has_word;
use super::words::Things;
use super::{Message, Role, Sample, Split, Task};
use crate::random::Random;

/// How many of the asked-for stories are short and long.
const SHORT_STORIES: f64 = 0.15;
const LONG_STORIES: f64 = 0.06;

/// A sample of this task.
pub(super) fn sample(task: Task, split: Split, random: &mut Random) -> Sample {
    match task {
        Task::Story => without_strangers(random, |random| asked_for(split, random)),
        Task::With => without_strangers(random, |random| with_words(split, random)),
        Task::BeginWith => without_strangers(random, |random| begin_with(split, random)),
        Task::Continue => without_strangers(random, |random| continued(split, random)),
        Task::Question => question(split, random),
        Task::FillGap => fill_gap(split, random),
        Task::Shorten => shorten(split, random),
        Task::Chat => chat(split, random),
    }
}

/// A story that names nobody but whom the request names and who is usual beside them.
fn without_strangers(random: &mut Random, tell: impl Fn(&mut Random) -> (Cast, Sample)) -> Sample {
    loop {
        let (cast, sample) = tell(random);
        let asked: Vec<&str> = (sample.messages.iter())
            .map(|message| &message.content[..])
            .collect();
        if cast.brings_nothing_unasked(&sample.answer, &asked.join(" ")) {
            return sample;
        }
    }
}

fn asked_for(split: Split, random: &mut Random) -> (Cast, Sample) {
    let chosen = random.unit();
    let length = if chosen < SHORT_STORIES {
        Length::Short
    } else if chosen < SHORT_STORIES + LONG_STORIES {
        Length::Long
    } else {
        Length::Whole
    };
    let told = tell(split, length, random);
    let (request, kept_words) = request(&told, length, random);
    let sample = Sample {
        task: Task::Story,
        messages: vec![user(typed(request, random))],
        answer: told.text,
        kept_words,
    };
    (told.cast, sample)
}

fn tell(split: Split, length: Length, random: &mut Random) -> Told {
    let follows = |cast: &Cast| length != Length::Long || !cast.plot.again.is_empty();
    let cast = Cast::draw_where(random, split, follows);
    let text = match length {
        Length::Short => story::short(&cast, random),
        Length::Whole => story::whole(&cast, random),
        Length::Long => {
            let second = Cast::draw_again(random, split, &cast);
            story::long(&cast, &second, random)
        }
    };
    Told { cast, text }
}

fn with_words(split: Split, random: &mut Random) -> (Cast, Sample) {
    let told = tell(split, Length::Whole, random);
    // Of two animals nobody could tell which is which.
    let friend = ["{whom}"].iter().filter(|_| !told.cast.friend.animal);
    let mut others: Vec<String> = friend
        .chain(&["{thing}", "{place}", "{helper}"])
        .flat_map(|template| told.cast.content(template))
        .filter(|word| has_word(&told.text, word))
        .collect();
    random.shuffle(&mut others);
    others.truncate(1 + random.below(4));
    // The kind of an animal is always told, so that the story is about that animal and not another.
    let mut words = told.cast.content("{who}");
    words.append(&mut others);
    random.shuffle(&mut words);
    let frame = random.pick(requests::WITH);
    let request = put(
        &put(frame, "words", &words.join(", ")),
        "list",
        &list(&words),
    );
    let sample = Sample {
        task: Task::With,
        messages: vec![user(typed(request, random))],
        answer: told.text,
        kept_words: words,
    };
    (told.cast, sample)
}

/// "kite, lake and Mia".
fn list(words: &[String]) -> String {
    match words {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => words.concat(),
    }
}

fn begin_with(split: Split, random: &mut Random) -> (Cast, Sample) {
    let told = tell(split, Length::Whole, random);
    let start = sentences(&told.text).swap_remove(0);
    let request = put(choose(random, requests::BEGIN), "start", &start);
    let kept_words = shared_words(&told.cast, &start, &told.text);
    let sample = Sample {
        task: Task::BeginWith,
        messages: vec![user(request)],
        answer: told.text,
        kept_words,
    };
    (told.cast, sample)
}

fn continued(split: Split, random: &mut Random) -> (Cast, Sample) {
    let told = tell(split, Length::Whole, random);
    let sentences = sentences(&told.text);
    let (start, rest) = sentences.split_at(1 + random.below(3));
    let (start, rest) = (start.join(" "), rest.join(" "));
    let request = put(choose(random, requests::CONTINUE), "start", &start);
    let kept_words = shared_words(&told.cast, &start, &rest);
    let sample = Sample {
        task: Task::Continue,
        messages: vec![user(request)],
        answer: rest,
        kept_words,
    };
    (told.cast, sample)
}

/// The words of the cast that are in both texts.
fn shared_words(cast: &Cast, one: &str, other: &str) -> Vec<String> {
    cast.content("{hero} {friend} {thing} {place} {helper}")
        .into_iter()
        .filter(|word| has_word(one, word) && has_word(other, word))
        .collect()
}

fn question(split: Split, random: &mut Random) -> Sample {
    let length = if random.chance(0.6) {
        Length::Short
    } else {
        Length::Whole
    };
    let told = tell(split, length, random);
    let (asked, answer, kept_words) = loop {
        if let Some(found) = ask(&told, random) {
            break found;
        }
    };
    let messages = if random.chance(0.6) {
        let frame = random.pick(requests::QUESTION);
        vec![user(put(
            &put(frame, "story", &told.text),
            "question",
            &asked,
        ))]
    } else {
        let mut messages = conversation(&told, length, random);
        if random.chance(0.3)
            && let Some((before, reply, _)) = ask(&told, random)
            && before != asked
        {
            messages.extend([user(before), assistant(reply)]);
        }
        messages.push(user(asked));
        messages
    };
    Sample {
        task: Task::Question,
        messages,
        answer,
        kept_words,
    }
}

/// One question that the story answers, its answer, and the words that the answer needs.
fn ask(told: &Told, random: &mut Random) -> Option<(String, String, Vec<String>)> {
    let questions = told.cast.plot.questions;
    let number = random.below(questions.len() + COMMON_QUESTIONS.len());
    let Question { asked, answer } = questions
        .get(number)
        .unwrap_or_else(|| &COMMON_QUESTIONS[number - questions.len()]);
    let asked = *random.pick(asked);
    let kept_words = told.cast.content(answer);
    let is_told = |words: &[String]| words.iter().all(|word| has_word(&told.text, word));
    (is_told(&kept_words) && is_told(&told.cast.content(asked)))
        .then(|| (told.cast.fill(asked), told.cast.fill(answer), kept_words))
}

/// The story as an earlier part of the conversation.
fn conversation(told: &Told, length: Length, random: &mut Random) -> Vec<Message> {
    vec![
        user(request(told, length, random).0),
        assistant(told.text.clone()),
    ]
}

fn fill_gap(split: Split, random: &mut Random) -> Sample {
    let length = if random.chance(0.25) {
        Length::Short
    } else {
        Length::Whole
    };
    let told = tell(split, length, random);
    let mut sentences = sentences(&told.text);
    let gap = gap(&told.cast, &sentences, random);
    let answer = std::mem::replace(&mut sentences[gap], requests::BLANK.to_owned());
    let request = put(choose(random, requests::GAP), "story", &sentences.join(" "));
    Sample {
        task: Task::FillGap,
        messages: vec![user(request)],
        answer,
        // Other sentences could stand there as well.
        kept_words: Vec::new(),
    }
}

/// Which sentence to leave out: one whose names, thing and helper the others give away, if there is one.
fn gap(cast: &Cast, sentences: &[String], random: &mut Random) -> usize {
    let words = cast.content("{who} {whom} {thing} {place} {helper}");
    let named_elsewhere = |gap: usize, word: &str| {
        let others = sentences
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != gap);
        others.into_iter().any(|(_, other)| has_word(other, word))
    };
    let can_be_guessed = |gap: &usize| {
        let mut told = words.iter().filter(|word| has_word(&sentences[*gap], word));
        told.all(|word| named_elsewhere(*gap, word))
    };
    let gaps: Vec<usize> = (0..sentences.len()).filter(can_be_guessed).collect();
    if gaps.is_empty() {
        random.below(sentences.len())
    } else {
        *random.pick(&gaps)
    }
}

fn shorten(split: Split, random: &mut Random) -> Sample {
    let told = tell(split, Length::Whole, random);
    let (answer, kept_words) = loop {
        let template = *random.pick(told.cast.plot.summaries);
        let words = told.cast.content(template);
        if words.iter().all(|word| has_word(&told.text, word)) {
            break (told.cast.fill(template), words);
        }
    };
    let messages = if random.chance(0.7) {
        vec![user(put(
            choose(random, requests::SHORTEN),
            "story",
            &told.text,
        ))]
    } else {
        let mut messages = conversation(&told, Length::Whole, random);
        messages.push(user(choose(random, requests::SHORTEN_LAST).to_owned()));
        messages
    };
    Sample {
        task: Task::Shorten,
        messages,
        answer,
        kept_words,
    }
}

fn chat(split: Split, random: &mut Random) -> Sample {
    // Small talk belongs to no split; only the training half has it, so that the halves share nothing.
    if split == Split::Train && random.chance(0.4) {
        return small_talk(Vec::new(), random.pick(requests::TALKS), random);
    }
    let length = if random.chance(0.4) {
        Length::Short
    } else {
        Length::Whole
    };
    let chosen = random.unit();
    if chosen < 0.2 {
        let told = tell(split, length, random);
        return small_talk(
            conversation(&told, length, random),
            &requests::THANKS,
            random,
        );
    }
    if chosen < 0.3 {
        let before = vec![
            user(choose(random, requests::GREETING.said).to_owned()),
            assistant(choose(random, requests::GREETING.answers).to_owned()),
        ];
        return another(before, split, random);
    }
    if chosen < 0.6 {
        let told = tell(split, length, random);
        return another(conversation(&told, length, random), split, random);
    }
    again(split, length, random)
}

fn small_talk(mut messages: Vec<Message>, talk: &Talk, random: &mut Random) -> Sample {
    messages.push(user(typed((*random.pick(talk.said)).to_owned(), random)));
    Sample {
        task: Task::Chat,
        messages,
        answer: (*random.pick(talk.answers)).to_owned(),
        kept_words: Vec::new(),
    }
}

/// A new story after what was said before.
fn another(messages: Vec<Message>, split: Split, random: &mut Random) -> Sample {
    without_strangers(random, |random| {
        tell_another(messages.clone(), split, random)
    })
}

fn tell_another(mut messages: Vec<Message>, split: Split, random: &mut Random) -> (Cast, Sample) {
    let told = tell(split, Length::Whole, random);
    let asked = told.cast.as_asked(random);
    let (subject, kept_words) = subject(&told, &asked, random);
    let frame = if messages[0].content.contains("story") {
        random.pick(requests::ANOTHER)
    } else {
        random.pick(requests::STORY)
    };
    messages.push(user(put(
        &put(frame, "story", "a story"),
        "subject",
        &subject,
    )));
    let sample = Sample {
        task: Task::Chat,
        messages,
        answer: told.text,
        kept_words,
    };
    (told.cast, sample)
}

/// The same story in the same words with another hero or thing.
fn again(split: Split, length: Length, random: &mut Random) -> Sample {
    let change = if random.chance(0.5) {
        Change::Hero
    } else {
        Change::Thing
    };
    let (cast, changed) = loop {
        let cast = Cast::draw_where(random, split, |cast| cast.plot.things != Things::None);
        if let Some(changed) = cast.draw_changed(random, split, change) {
            break (cast, changed);
        }
    };
    let draws = random.clone();
    let tell = |cast: &Cast| {
        let mut random = draws.clone();
        if length == Length::Short {
            story::short(cast, &mut random)
        } else {
            story::whole(cast, &mut random)
        }
    };
    let text = tell(&cast);
    let answer = tell(&changed);
    let template = if change == Change::Hero {
        "{who}"
    } else {
        "{a thing}"
    };
    let asked = changed.as_asked(random);
    let mut messages = conversation(&Told { cast, text }, length, random);
    messages.push(user(put(
        choose(random, requests::AGAIN),
        "change",
        &asked.fill(template),
    )));
    Sample {
        task: Task::Chat,
        messages,
        answer,
        kept_words: asked.content(template),
    }
}

/// As people type: now and then without the capital that a request begins with, or its last stop.
fn typed(request: String, random: &mut Random) -> String {
    let (is_small, is_open) = (random.chance(0.15), random.chance(0.15));
    let mut request = request;
    let first = request.split(' ').next().unwrap_or_default();
    let first = first.trim_end_matches(|letter: char| !letter.is_alphabetic());
    if is_small && !is_name(first) {
        request = small(&request);
    }
    if is_open {
        let end = request.trim_end_matches(['.', '!', '?']).len();
        request.truncate(end);
    }
    request
}

fn user(content: String) -> Message {
    Message {
        role: Role::User,
        content,
    }
}

fn assistant(content: String) -> Message {
    Message {
        role: Role::Assistant,
        content,
    }
}
