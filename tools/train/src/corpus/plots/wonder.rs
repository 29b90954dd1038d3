//! Plots of courage, travel and magic.

use super::{Plot, question};
use crate::corpus::words::Things;

/// An animal is afraid of something and finds courage.
#[rustfmt::skip]
pub(super) const SHY: Plot = Plot {
    name: "shy",
    animal_hero: true,
    far: false,
    things: Things::None,
    genres: &["story about an animal", "story about a brave animal"],
    subjects: &[
        "{who}", "{who} {at}", "{who} who is brave", "{who} and {whom}", "{who} who is afraid",
        "{who} who helps {whom}", "a shy {kind}", "a brave {kind}",
        "a brave {kind} named {hero}", "a shy {kind} named {hero}",
    ],
    stages: &[
        &[
            "Near the {place} lived {a kind} named {hero}.",
            "Once there was {a kind} named {hero} who lived near the {place}.",
        ],
        &["\"I am afraid of the dark,\" said {hero}.", "{hero} was small and very shy."],
        &["One {day}, {hero} heard a cry {spot}.", "Somebody called for help {spot} one {day}."],
        &["It was {whom}, and {friend} was stuck.", "There was {whom}, who could not get out."],
        &[
            "\"Do not worry, {friend},\" said {hero}. \"I will help you.\"",
            "\"Please do not go,\" said {friend}. \"I will stay,\" said {hero}.",
        ],
        &["{hero} forgot {his} fear and pulled and pulled.", "With a deep breath, {hero} pulled and pulled."],
        &["At last {friend} was free.", "Soon {friend} was safe."],
        &[
            "\"You are a brave {kind}!\" said {friend}.",
            "\"Thank you, {hero}! You are my best friend,\" said {friend}.",
        ],
        &["From that day on, {hero} was not afraid.", "{hero} and {friend} walked home together."],
    ],
    again: &[],
    short: &[
        &["{who} was small and very shy.", "{who} was afraid of the dark."],
        &["One {day}, {whom} was stuck {spot} {at}."],
        &[
            "{hero} forgot {his} fear and helped {friend}.",
            "\"I will help you,\" said {hero}, and soon {friend} was free.",
        ],
    ],
    summaries: &[
        "{hero} was a shy {kind}, but {he} helped {friend} {at}.",
        "{friend} was stuck {spot}, and {hero} was brave and helped.",
    ],
    questions: &[
        question(&["Who was stuck?", "Who needed help?"], "{friend} was stuck."),
        question(&["Where was {friend}?", "Where was {friend} stuck?"], "{friend} was {spot}."),
        question(&["Who helped {friend}?", "Who was brave?"], "{hero} helped {friend}."),
        question(&["How does it end?", "How does the story end?"], "{friend} is free, and {hero} is brave."),
    ],
};

/// Two friends travel far away, come into trouble and get home.
#[rustfmt::skip]
pub(super) const JOURNEY: Plot = Plot {
    name: "journey",
    animal_hero: false,
    far: true,
    things: Things::Ride,
    genres: &["adventure", "adventure story", "story about a journey"],
    subjects: &[
        "{who} who goes to the {place}", "{who} and {whom} who go to the {place}", "{who} and {a thing}",
        "{who}, {whom} and {a thing}", "a journey to the {place}", "a trip to the {place}",
        "{who} and a trip to the {place}", "{who} and {whom} on the way to the {place}", "{who} who wants to see the {place}",
    ],
    stages: &[
        &[
            "{who} and {whom} had {a thing}. \"Let us go to the {place}!\" said {hero}.",
            "One {day}, {who} and {whom} climbed into {a thing} and set out for the {place}.",
            "{who} dreamed of the {place}. One {day}, {he} set out in {a thing} with {whom}.",
        ],
        &["They were on their way all day and all night.", "The way was long, and the stars were bright.", ""],
        &["At last they saw the {place}.", "\"There is the {place}!\" said {friend} at last."],
        &["But then the {thing} hit a stone and broke.", "A strong wind came, and the {thing} broke."],
        &["\"How will we get home?\" asked {friend}.", "\"Now we cannot go home,\" said {friend}."],
        &["Just then, they saw {a helper} {spot}.", "They looked around. {A helper} sat {spot}."],
        &["\"I can help you,\" said the {helper}.", "\"Do not worry,\" said the {helper}."],
        &[
            "Together they worked until the {thing} was as good as new.",
            "The {helper} was strong and clever, and soon the {thing} was as good as new.",
        ],
        &[
            "{hero} and {friend} thanked the {helper} and went home.",
            "At home, {hero} and {friend} told everybody about the {helper}.",
        ],
    ],
    again: &["{hero} and {whom} climbed into {a thing} and set out for the {place}."],
    short: &[
        &["{who} and {whom} went to the {place} in {a thing}."],
        &["Then the {thing} broke, and they could not go home."],
        &["But {a helper} helped them, and soon the {thing} was as good as new."],
    ],
    summaries: &[
        "{hero} and {friend} went to the {place} in {a thing}, and {a helper} helped them to get home.",
        "{hero} and {friend} went to the {place}. The {thing} broke, but {a helper} helped them.",
    ],
    questions: &[
        question(&["Where did {hero} and {friend} go?", "Where did they go?"], "They went to the {place}."),
        question(&["What broke?", "What happened to the {thing}?"], "The {thing} broke."),
        question(&["Who helped them?", "Who could help?"], "{A helper} helped them."),
        question(&["Who went with {hero}?"], "{friend} went with {hero}."),
        question(
            &["How does it end?", "How does the story end?"],
            "{hero} and {friend} go home with the help of {a helper}.",
        ),
    ],
};

/// A wish comes true, goes wrong and is taken back.
#[rustfmt::skip]
pub(super) const MAGIC: Plot = Plot {
    name: "magic",
    animal_hero: false,
    far: false,
    things: Things::Any,
    genres: &["fairy tale", "story about magic", "magic story"],
    subjects: &[
        "{who} and a magic {thing}", "{who} who finds a magic {thing}", "a magic {thing}",
        "{who} who finds a magic {thing} {at}",
    ],
    stages: &[
        &[
            "One {day}, {who} found {a thing} {spot} {at}.",
            "{who} was {at} one {day} and found {a thing} {spot}.",
        ],
        &["It was a magic {thing}!", "\"I am magic,\" said the {thing}. \"What do you want?\""],
        &["\"I wish {wish},\" said {hero}."],
        &["At once, the wish came true.", "The {thing} began to shine, and the wish came true.", ""],
        &["But now {trouble}."],
        &["\"Oh no!\" said {hero}. \"What can I do?\"", "{hero} was very sad."],
        &[
            "\"Ask for the old days back,\" said {a helper}.",
            "{A helper} came by and said, \"Wish again, but be wise!\"",
        ],
        &[
            "{hero} took the {thing} and said, \"Please make it all as it was before.\"",
            "So {hero} held the {thing} and wished it all away.",
        ],
        &[
            "And it was so. {hero} was happy and gave the {thing} to the {helper}.",
            "Then all was well again. \"I have all that I need,\" said {hero}.",
        ],
    ],
    again: &["{hero} found {a thing} {spot} {at}."],
    short: &[
        &["{who} found a magic {thing} {at}."],
        &["\"I wish {wish},\" said {hero}. But then {trouble}."],
        &["So {hero} wished it all away and was happy again."],
    ],
    summaries: &[
        "{hero} found a magic {thing}, but the wish was not wise.",
        "{hero} found a magic {thing} {at}. The wish went wrong, and {he} wished it away.",
    ],
    questions: &[
        question(&["What did {hero} find?", "What was magic?"], "{hero} found a magic {thing}."),
        question(&["What did {hero} wish?", "What was the wish?"], "{hero} wished {wish}."),
        question(&["Where was the {thing}?", "Where did {hero} find the {thing}?"], "The {thing} was {spot}."),
        question(&["Who helped {hero}?"], "{A helper} helped {hero}."),
        question(&["What went wrong?"], "After the wish, {trouble}."),
    ],
};

/// A friend is lost in a storm and is found.
#[rustfmt::skip]
pub(super) const STORM: Plot = Plot {
    name: "storm",
    animal_hero: false,
    far: false,
    things: Things::Tool,
    genres: &["story about a storm", "story about a rescue"],
    subjects: &[
        "{who} who finds {whom} in a storm", "{who}, {whom} and a storm", "a storm {at}",
        "{who} and {a thing} in a storm", "{who} who is brave in a storm", "{who} and a storm",
    ],
    stages: &[
        &[
            "A big storm came to the {place}, and {whom} was not home.",
            "One night, there was a big storm, and {whom} was alone {at}.",
        ],
        &["\"Where is {friend}?\" asked {a helper}.", "\"{friend} is out in the storm!\" said {a helper}."],
        &[
            "{who} was afraid, but {he} took {a thing} and went out.",
            "\"I will go,\" said {who}, and {he} took {a thing}.",
        ],
        &["The wind was strong, and the rain was cold.", "It was so dark that {he} could not see the path.", ""],
        &["\"{friend}, where are you?\" called {hero}.", "{hero} called and called."],
        &["At last {he} heard {friend} {spot}.", "\"I am here!\" cried {friend} {spot}."],
        &["With the help of the {thing}, {hero} got {friend} out.", "The {thing} helped {him} to find the way back."],
        &["At home, the {helper} gave them warm milk.", "\"You are both safe!\" said the {helper} and hugged them."],
        &["\"You are brave, {hero},\" said {friend}.", "{hero} and {friend} slept until the sun came out."],
    ],
    again: &["a big storm came to the {place}, and {whom} was not home."],
    short: &[
        &["{whom} was alone {at} in a big storm."],
        &["{who} took {a thing} and went out.", "{who} was afraid, but {he} took {a thing} and went out."],
        &[
            "Soon {hero} found {friend} {spot}, and they were safe.",
            "{hero} found {friend}, and they went home together.",
        ],
    ],
    summaries: &[
        "{hero} found {friend} in a storm with the help of {a thing}.",
        "{friend} was alone in a storm. {hero} took {a thing} and found {friend}.",
    ],
    questions: &[
        question(&["Who was alone in the storm?", "Who was lost?"], "{friend} was alone in the storm."),
        question(&["Who found {friend}?", "Who was brave?"], "{hero} found {friend}."),
        question(&["What did {hero} take?"], "{hero} took {a thing}."),
        question(&["Where was {friend}?"], "{friend} was {at}."),
        question(&["How does it end?", "How does the story end?"], "{hero} finds {friend}, and they are safe."),
    ],
};
