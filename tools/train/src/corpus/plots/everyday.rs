//! Plots of every day: lost, wished for, taken and cooked.

use super::{Plot, question};
use crate::corpus::words::Things;

/// Something is lost and found again.
#[rustfmt::skip]
pub(super) const LOST: Plot = Plot {
    name: "lost",
    animal_hero: false,
    far: false,
    things: Things::Any,
    genres: &["story about something lost"],
    subjects: &[
        "{who} who lost {a thing}", "{who} and a lost {thing}", "{who} who lost {a thing} {at}",
        "a lost {thing}", "{a helper} who saw a lost {thing}", "{who} who looks for {a thing}",
    ],
    stages: &[
        &[
            "One {day}, {who} took {his} {thing} to the {place}.",
            "{who} loved {his} {thing}. One {day}, {he} took it to the {place}.",
            "Once there was {a kind} named {hero}. One {day}, {hero} went to the {place} with {his} {thing}.",
        ],
        &[
            "{He} played and sang, and then the {thing} was gone.",
            "A strong wind came, and the {thing} was gone.",
            "Then {he} fell asleep, and when {he} woke up, the {thing} was gone.",
        ],
        &[
            "\"Where is my {thing}?\" asked {hero}.",
            "{hero} looked and looked, but {he} could not find it.",
        ],
        &["Then {a helper} came by.", "Just then, {hero} met {a helper}."],
        &["\"Look {spot},\" said the {helper}.", "\"I saw the {thing} {spot},\" said the {helper}."],
        &["{hero} ran to look, and there was the {thing}!", "And there it was, {spot}!"],
        &[
            "\"Thank you!\" said {hero}, and {he} hugged the {helper}.", "",
        ],
        &[
            "{hero} went home with {his} {thing}, and {he} was happy again.",
            "From that day on, {hero} took good care of the {thing}.",
        ],
    ],
    again: &["{hero} took {his} {thing} to the {place}.", "{hero} went to the {place} with {his} {thing}."],
    short: &[
        &["{who} lost {his} {thing} {at}.", "One {day}, {who} lost {a thing} {at}."],
        &["{A helper} saw it {spot}.", "{A helper} helped {him} and found it {spot}."],
        &["\"Thank you!\" said {hero}, and {he} was happy again.", "{hero} went home with {his} {thing}."],
    ],
    summaries: &[
        "{hero} lost {his} {thing} {at}, and {a helper} helped {him} to find it.",
        "{hero} lost {a thing}. {A helper} saw it {spot}.",
    ],
    questions: &[
        question(&["Where did {hero} go?"], "{hero} went to the {place}."),
        question(&["Who lost the {thing}?"], "{hero} lost the {thing}."),
        question(&["What did {hero} lose?", "What was lost?"], "{hero} lost {his} {thing}."),
        question(&["Who helped {hero}?"], "{A helper} helped {hero}."),
        question(&["Where was the {thing}?", "Where did {hero} find the {thing}?"], "The {thing} was {spot}."),
        question(&["How does it end?", "How does the story end?"], "{hero} finds the {thing} and is happy again."),
    ],
};

/// Something is wished for and earned by helping.
#[rustfmt::skip]
pub(super) const WISH: Plot = Plot {
    name: "wish",
    animal_hero: false,
    far: false,
    things: Things::Any,
    genres: &["story about a wish", "story about helping"],
    subjects: &[
        "{who} who wants {a thing}", "{who} and a wish for {a thing}",
        "{who} who wants {a thing} and helps {a helper}",
        "{who} who gets {a thing} {at}",
    ],
    stages: &[
        &[
            "Once there was {a kind} named {hero} who wanted {a thing}.",
            "More than anything, {who} wanted {a thing}.",
            "Every night, {who} dreamed of {a thing}.",
        ],
        &["But {he} had no money.", "Nobody had one to give.", ""],
        &["One {day}, {hero} went to the {place}."],
        &["There {he} met {a helper} who was stuck {spot}.", "{A helper} sat {spot} and cried."],
        &[
            "\"Can you help me?\" asked the {helper}.",
            "\"Please help me,\" said the {helper}. \"I want to go home.\"",
        ],
        &["\"Of course,\" said {hero}, and {he} helped at once.", "{hero} helped the {helper} right away."],
        &[
            "\"You are kind,\" said the {helper}. \"This {thing} is for you.\"",
            "The {helper} smiled and gave {him} {a thing}.",
        ],
        &[
            "{hero} danced all the way home with {his} {thing}.",
            "So {hero} got {his} {thing} at last.",
        ],
    ],
    again: &[],
    short: &[
        &["{who} wanted {a thing}.", "More than anything, {who} wanted {a thing}."],
        &["{At}, {he} helped {a helper} who was stuck {spot}."],
        &["The {helper} smiled and gave {him} {a thing}.", "So the {helper} gave {him} {a thing}."],
    ],
    summaries: &[
        "{hero} wanted {a thing} and got it from {a helper}.",
        "{hero} helped {a helper} {at} and got {a thing}.",
    ],
    questions: &[
        question(&["Where did {hero} go?"], "{hero} went to the {place}."),
        question(&["What did {hero} want?", "What did {hero} dream of?"], "{hero} wanted {a thing}."),
        question(&["Who gave {hero} the {thing}?"], "{A helper} gave {hero} the {thing}."),
        question(&["Who did {hero} help?", "Who was {at}?"], "{hero} helped {a helper}."),
        question(&["Where was the {helper}?"], "The {helper} was {spot}."),
        question(&["How does it end?", "How does the story end?"], "{hero} gets the {thing} and is happy."),
    ],
};

/// Somebody has taken something, and the hero finds out who.
#[rustfmt::skip]
pub(super) const MYSTERY: Plot = Plot {
    name: "mystery",
    animal_hero: false,
    far: false,
    things: Things::Any,
    genres: &["mystery"],
    subjects: &[
        "{who} who finds out who took {a thing}", "{who} and the missing {thing}", "the mystery of the {thing}",
        "{who} and a missing {thing}", "{who} who looks for a thief",
        "{who}, {whom} and the missing {thing}", "a thief {at}",
    ],
    stages: &[
        &[
            "One {day}, {whom} came running. \"Somebody took my {thing}!\" said {friend}.",
            "\"Who took my {thing}?\" asked {whom} one {day}.",
        ],
        &["{who} wanted to help.", "\"I will find out,\" said {who}."],
        &[
            "{hero} saw small prints on the path, and they led to the {place}.",
            "There were small prints on the ground. {hero} followed them to the {place}.",
        ],
        &["Something moved {spot}.", "There was a noise {spot}.", ""],
        &["It was {a helper} with the {thing}!", "There sat {a helper} with the {thing}!"],
        &[
            "\"Why did you take it?\" asked {hero}.",
            "\"That {thing} is not yours,\" said {hero}.",
        ],
        &[
            "\"I am sorry. I only wanted to play,\" said the {helper}.",
            "\"It was so beautiful,\" said the {helper}.",
        ],
        &["The {helper} gave the {thing} back.", "So {hero} took the {thing} back to {friend}."],
        &[
            "\"Thank you, {hero}!\" said {friend}, and they all played together.",
            "{friend} laughed and said, \"You are very clever, {hero}!\"",
        ],
    ],
    again: &["{whom} came running. \"Somebody took my {thing}!\" said {friend}."],
    short: &[
        &["\"Who took my {thing}?\" asked {whom}.", "Somebody took the {thing} of {whom}."],
        &["{who} followed small prints to the {place}, and there sat {a helper} with the {thing}."],
        &["\"I am sorry,\" said the {helper}, and gave it back.", "The {helper} was sorry and gave it back."],
    ],
    summaries: &[
        "{A helper} took the {thing} of {friend}, and {hero} found it.",
        "Somebody took the {thing} of {friend}. {hero} found out that it was {a helper}.",
    ],
    questions: &[
        question(&["Who took the {thing}?", "Who was the thief?", "Who was it?"], "{A helper} took the {thing}."),
        question(&["What was missing?", "What was gone?"], "The {thing} was missing."),
        question(&["What did the {helper} take?"], "The {helper} took the {thing}."),
        question(&["Who found the {thing}?"], "{hero} found the {thing}."),
        question(&["Where was the thief?", "Where was the {thing}?"], "The thief was {at}."),
        question(
            &["How does it end?", "How does the story end?"],
            "The {helper} is sorry, and {friend} gets the {thing} back.",
        ),
    ],
};

/// Something is cooked for a feast, and an ingredient is missing.
#[rustfmt::skip]
pub(super) const FEAST: Plot = Plot {
    name: "feast",
    animal_hero: false,
    far: false,
    things: Things::Food,
    genres: &["story about baking", "story about a feast"],
    subjects: &[
        "{who} who makes {a thing}", "{who} who makes {a thing} for {whom}", "{who}, {whom} and {a thing}",
        "{who} who bakes {a thing}", "a feast {at}", "{who} and a feast",
    ],
    stages: &[
        &[
            "There was a feast {at}, and {who} wanted to make {a thing}.",
            "One {day}, {who} wanted to make {a thing} for the feast {at}.",
        ],
        &["{whom} came to help.", "\"I will help you,\" said {whom}."],
        &["But there was no {missing} in the house.", "The {missing} was all gone."],
        &["\"What can we do?\" asked {friend}.", "\"No {missing}, no {thing},\" said {hero}.", ""],
        &[
            "They went out and asked {a helper} for some {missing}.",
            "{hero} ran from door to door and met {a helper}.",
        ],
        &[
            "\"You can have my {missing},\" said the {helper}. \"But I want to come to the feast.\"",
            "\"Here is some {missing},\" said the {helper}.",
        ],
        &["Soon the {thing} was in the oven.", "{hero} and {friend} sang and worked, and soon the {thing} was done."],
        &[
            "At the feast, they all ate the {thing}. \"It is so good!\" said the {helper}.",
            "\"This is the best {thing} of all,\" said {friend} at the feast.",
        ],
        &["Not one piece was left.", "They ate and laughed until the stars came out."],
    ],
    again: &["there was a feast {at}, and {hero} wanted to make {a thing}."],
    short: &[
        &["{who} wanted to make {a thing} with {whom}, but the {missing} was gone."],
        &["{A helper} gave them some {missing}.", "\"Here is some {missing},\" said {a helper}."],
        &["They ate the {thing} together {at}.", "Soon the {thing} was done, and they ate it together."],
    ],
    summaries: &[
        "{hero} and {friend} made {a thing} for a feast with the {missing} of {a helper}.",
        "{hero} made {a thing} for a feast. {A helper} gave some {missing}.",
    ],
    questions: &[
        question(&["What did {hero} make?", "What did they eat?"], "{hero} made {a thing}."),
        question(&["What was missing?", "What was gone?"], "There was no {missing}."),
        question(&["Who gave them the {missing}?", "Who had {missing}?"], "{A helper} gave them the {missing}."),
        question(&["Who helped {hero}?"], "{friend} helped {hero}."),
        question(&["Where was the feast?"], "The feast was {at}."),
    ],
};
