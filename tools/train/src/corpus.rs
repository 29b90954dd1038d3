//! The text generator: a narrow, whole language of children's stories, and the requests that call for them.
//!
//! A model of three million parameters cannot learn English, but it can learn this: a dozen plots whose sentences come
//! in the same order, told with a few hundred words. What changes from story to story are the names, the things, the
//! places and the helpers; a quarter of the names are seldom ones, so that a model must learn to copy what the request
//! names instead of knowing it by heart.

mod asking;
mod cast;
mod exercise;
mod grammar;
mod names;
mod plots;
mod requests;
mod slots;
mod story;
mod tasks;
#[cfg(test)]
mod tests;
mod word;
mod words;

pub use exercise::exercise;
pub use grammar::{is_whole, names_in, sentences};
pub use word::{has_word, occurrences};

use crate::random::Random;

/// Which half of the language a sample is from. The halves share words and plots, but no story: each combination of
/// plot, hero and main thing belongs to one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// What a model is trained on.
    Train,
    /// What a model is judged by.
    HeldOut,
}

/// Who says a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The person at the keyboard.
    User,
    /// The model that is trained.
    Assistant,
}

impl Role {
    /// The name the chat template uses.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What is said.
    pub content: String,
}

/// What a sample asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Task {
    /// A story about somebody or something.
    Story,
    /// A story in which the given words occur.
    With,
    /// A story that begins with the given sentence.
    BeginWith,
    /// The rest of a story.
    Continue,
    /// An answer to a question about a story.
    Question,
    /// The sentence that is missing in a story.
    FillGap,
    /// A story in a sentence or two.
    Shorten,
    /// Small talk, or one more story in a longer conversation.
    Chat,
}

impl Task {
    /// All tasks, in the order of reports.
    pub const ALL: [Self; 8] = [
        Self::Story,
        Self::With,
        Self::BeginWith,
        Self::Continue,
        Self::Question,
        Self::FillGap,
        Self::Shorten,
        Self::Chat,
    ];

    /// The task's name, for reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Story => "story",
            Self::With => "with",
            Self::BeginWith => "begin with",
            Self::Continue => "continue",
            Self::Question => "question",
            Self::FillGap => "fill gap",
            Self::Shorten => "shorten",
            Self::Chat => "chat",
        }
    }

    /// How many of a hundred samples are of this task.
    fn share(self) -> usize {
        match self {
            Self::Story => 34,
            Self::With => 14,
            Self::BeginWith | Self::FillGap | Self::Shorten => 6,
            Self::Continue | Self::Chat => 8,
            Self::Question => 18,
        }
    }

    fn draw(random: &mut Random) -> Self {
        let mut number = random.below(Self::ALL.iter().map(|task| task.share()).sum());
        for task in Self::ALL {
            if number < task.share() {
                return task;
            }
            number -= task.share();
        }
        unreachable!("the number is below the sum of the shares")
    }
}

/// A conversation and how it should go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// What is asked for.
    pub task: Task,
    /// The conversation so far; the last message is the user's.
    pub messages: Vec<Message>,
    /// What the assistant should say.
    pub answer: String,
    /// The words of the conversation (names, things, places) that the answer has to contain.
    pub kept_words: Vec<String>,
}

/// The sample with this number; the same split, seed and number always give the same sample.
#[must_use]
pub fn sample(split: Split, seed: u64, number: u64) -> Sample {
    let mut random = Random::new(seed, number);
    let task = Task::draw(&mut random);
    tasks::sample(task, split, &mut random)
}
