//! What users ask for, in their own words, and small talk. `<...>` stands for what the request is about.

use super::slots::capital;
use crate::random::Random;

/// Requests for a story; `<story>` is "a story" with its length, `<subject>` what it is about.
#[rustfmt::skip]
pub(super) const STORY: &[&str] = &[
    "Tell me <story> about <subject>.", "Tell me <story> about <subject>", "Write <story> about <subject>.",
    "Please tell me <story> about <subject>.", "Please write <story> about <subject>.",
    "Can you tell me <story> about <subject>?", "Could you write <story> about <subject>?",
    "I would like <story> about <subject>.", "I want <story> about <subject>.", "<Story> about <subject>, please.",
    "<Story> about <subject>.", "Make up <story> about <subject>.", "Give me <story> about <subject>.",
];

/// Requests that are hardly more than the subject.
pub(super) const TERSE: &[&str] = &[
    "<Subject>.",
    "<Subject>",
    "<Subject>, please.",
    "Story: <subject>",
    "About <subject>.",
];

/// Requests that name the sort of story instead of its subject.
#[rustfmt::skip]
pub(super) const GENRE: &[&str] = &[
    "Tell me <genre>.", "Tell me <genre> with <cast>.", "Write <genre> with <cast>.", "<Genre> with <cast>, please.",
    "I would like <genre> with <cast>.", "Please write <genre>.", "Can you tell me <genre> with <cast>?",
];

/// Requests that leave everything open.
#[rustfmt::skip]
pub(super) const OPEN: &[&str] = &[
    "Tell me <story>.", "Tell me <story>, please.", "Please write <story>.", "Can you tell me <story>?",
    "<Story>, please.",
];

/// What a story is called by its length.
#[rustfmt::skip]
pub(super) const WHOLE: &[&str] = &[
    "a story", "a story", "a story", "a nice story", "a bedtime story", "a story for children",
    "a funny story", "a good story", "a fairy tale", "a tale",
];
pub(super) const SHORT: &[&str] = &["a short story", "a very short story", "a little story"];
pub(super) const LONG: &[&str] = &["a long story", "a very long story"];

/// More wishes; `<more>` is a thing or helper with its article.
pub(super) const MORE: &[&str] = &[
    " It should have <more> in it.",
    " There should be <more> in it.",
    " Put <more> in it, please.",
];

/// Requests for a story with certain words.
#[rustfmt::skip]
pub(super) const WITH: &[&str] = &[
    "Write a story with these words: <words>.", "Use these words in a story: <words>.",
    "Tell me a story with <list>.",
    "A story with <list>, please.", "Write a story with the words <list>.", "Story with: <words>",
    "Please use <list> in a story.", "Words: <words>. Write a story.",
];

/// Requests for a story with a given beginning.
#[rustfmt::skip]
pub(super) const BEGIN: &[&str] = &[
    "Write a story that begins like this: <start>", "Begin a story with this: <start>",
    "Start your story with: <start>",
    "Tell me a story. Begin with: <start>", "The story should begin like this: <start>",
];

/// Requests for the rest of a story.
#[rustfmt::skip]
pub(super) const CONTINUE: &[&str] = &[
    "Continue this story: <start>", "Go on with this story: <start>", "How does this story go on? <start>",
    "<start> What happened next?", "Please finish this story: <start>", "<start> Go on, please.",
    "Tell me the rest of the story. <start>",
];

/// A story and a question about it in one message.
#[rustfmt::skip]
pub(super) const QUESTION: &[&str] = &[
    "<story> <question>", "<story>\n\n<question>", "<question> <story>", "<question>\n\n<story>",
    "Read this story: <story> <question>", "Here is a story. <story> Question: <question>",
    "Story: <story>\nQuestion: <question>",
];

/// Requests for a missing sentence.
#[rustfmt::skip]
pub(super) const GAP: &[&str] = &[
    "Fill the gap: <story>", "What is missing? <story>", "Which sentence is missing here? <story>",
    "Please fill in the missing sentence. <story>", "<story>\n\nFill the gap, please.",
];

/// What stands in the place of the missing sentence.
pub(super) const BLANK: &str = "___";

/// Requests for a shorter form.
#[rustfmt::skip]
pub(super) const SHORTEN: &[&str] = &[
    "Make this story shorter: <story>", "Tell this story in one or two sentences: <story>", "Make it short: <story>",
    "What is this story about? <story>", "<story>\n\nPlease make it shorter.", "<story> Tell it in a few words.",
];

/// The same, about a story told before.
pub(super) const SHORTEN_LAST: &[&str] = &[
    "Make it shorter, please.",
    "Tell it in a few words.",
    "Now in one or two sentences.",
];

/// Requests for another story after the first; `<subject>` as above.
#[rustfmt::skip]
pub(super) const ANOTHER: &[&str] = &[
    "Another one, please. This time about <subject>.", "Now a story about <subject>.",
    "And one about <subject>, please.",
    "Thank you! Now tell me a story about <subject>.", "Another story, please, about <subject>.",
    "Now about <subject>.",
];

/// Requests to tell the same story with a change.
#[rustfmt::skip]
pub(super) const AGAIN: &[&str] = &[
    "Tell it again with <change>.", "Tell it again, but with <change>.", "Now the same story with <change>, please.",
    "The same again with <change>.",
];

/// Small talk about one matter.
pub(super) struct Talk {
    pub(super) said: &'static [&'static str],
    pub(super) answers: &'static [&'static str],
}

#[rustfmt::skip]
pub(super) const GREETING: Talk = Talk {
    said: &[
        "Hello!", "Hello", "Hi!", "Hi", "Hi there!", "Good morning!", "Good evening!", "Hello, how are you?",
        "How are you?",
    ],
    answers: &["Hello! Shall I tell you a story?", "Hello! Who should the story be about?"],
};

#[rustfmt::skip]
pub(super) const THANKS: Talk = Talk {
    said: &[
        "Thank you!", "Thank you", "Thanks!", "Thanks", "Thank you very much!", "That was nice.",
        "I like this story.",
        "What a nice story!", "Very good!",
    ],
    answers: &["You are welcome! Shall I tell you another story?", "You are welcome!"],
};

/// All small talk that can open a conversation.
#[rustfmt::skip]
pub(super) const TALKS: &[Talk] = &[
    GREETING,
    THANKS,
    Talk {
        said: &[
            "Who are you?", "What are you?", "What is your name?", "Are you a person?", "Tell me about you.",
            "Hi! Who are you?",
        ],
        answers: &["I am a small demonstration model. I tell short stories."],
    },
    Talk {
        said: &[
            "What can you do?", "What do you do?", "Can you help me?", "Help", "Hello, what can you do?",
            "What can I ask you?",
        ],
        answers: &["I can tell stories, continue them and answer questions about them."],
    },
    Talk {
        said: &["Goodbye!", "Goodbye", "Bye!", "Bye", "Good night!", "See you soon!"],
        answers: &["Goodbye! Come back for another story.", "Goodbye!"],
    },
    Talk {
        said: &[
            "What is two and three?", "What is the news?", "Write a poem.", "Will it rain?", "Write a program.",
            "What time is it?", "What is the capital of France?", "Why is the sky blue?", "Write me a letter.",
            "What is the answer?", "Explain it to me.", "How old is the moon?", "Count to ten.", "Tell me a joke.",
        ],
        answers: &["I do not know that. I can only tell stories."],
    },
];

/// Puts a text for `<place>`, and with a capital for `<Place>`.
pub(super) fn put(frame: &str, place: &str, text: &str) -> String {
    frame
        .replace(&format!("<{place}>"), text)
        .replace(&format!("<{}>", capital(place)), &capital(text))
}

/// One of the texts.
pub(super) fn choose(random: &mut Random, texts: &'static [&'static str]) -> &'static str {
    random.pick::<&'static str>(texts)
}
