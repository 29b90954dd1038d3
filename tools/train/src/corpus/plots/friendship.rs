//! Plots about friends: they quarrel, give, race and meet.

use super::{Plot, question};
use crate::corpus::words::Things;

/// Two friends quarrel and make up.
#[rustfmt::skip]
pub(super) const QUARREL: Plot = Plot {
    name: "quarrel",
    animal_hero: false,
    far: false,
    things: Things::Any,
    genres: &["story about sharing", "story about two friends"],
    subjects: &[
        "{who} and {whom} who share {a thing}", "{who} and {whom} who both want {a thing}",
        "two friends, {who} and {whom}", "two friends, {who} and {whom}, who both want {a thing}",
        "{who}, {whom} and {a thing}",
        "{who} and {whom} {at}",
    ],
    stages: &[
        &["One {day}, {who} and {whom} went to the {place}."],
        &["They found {a thing} {spot}.", "There was {a thing} {spot}."],
        &[
            "\"It is mine!\" said {hero}. \"No, it is mine!\" said {friend}.",
            "{hero} wanted the {thing}, and {friend} wanted it too.",
        ],
        &[
            "They pulled and pulled, and nobody was happy.",
            "They did not speak for a long time.",
            "{hero} began to cry, and {friend} was angry.",
        ],
        &[
            "{A helper} saw them. \"You can share it,\" said the {helper}.",
            "\"Why do you not share?\" asked {a helper}.",
        ],
        &[
            "\"I am sorry,\" said {hero}. \"I am sorry too,\" said {friend}.",
            "{hero} and {friend} looked at each other and laughed.",
        ],
        &[
            "\"You can have the {thing} first,\" said {hero} to {friend}.",
            "\"Let us play together,\" said {hero}.", "",
        ],
        &[
            "So they shared the {thing} and played until the stars came out.",
            "From that day on, {hero} and {friend} shared the {thing}.",
        ],
    ],
    again: &["{hero} met {whom} {at}.", "{hero} and {whom} went to the {place}."],
    short: &[
        &["{who} and {whom} found {a thing} {at}."],
        &[
            "\"It is mine!\" said {hero}. \"No, it is mine!\" said {friend}.",
            "{hero} wanted the {thing}, and {friend} wanted it too.",
        ],
        &["Then they were sorry and shared it.", "\"You can share it,\" said {a helper}, and so they did."],
    ],
    summaries: &[
        "{hero} and {friend} both wanted {a thing}, but then they shared it.",
        "{hero} and {friend} found {a thing} {at} and learned to share it.",
    ],
    questions: &[
        question(&["Where did {hero} and {friend} go?"], "{hero} and {friend} went to the {place}."),
        question(&["What did {hero} and {friend} find?", "What did they find?"], "They found {a thing}."),
        question(&["Where did they find the {thing}?", "Where was the {thing}?"], "The {thing} was {spot}."),
        question(&["Who wanted the {thing}?", "Who found the {thing}?"], "{hero} and {friend} wanted the {thing}."),
        question(&["Who told them to share?"], "{A helper} told them to share."),
        question(&["How does it end?", "How does the story end?"], "{hero} and {friend} share the {thing}."),
    ],
};

/// A present is made for a friend.
#[rustfmt::skip]
pub(super) const PRESENT: Plot = Plot {
    name: "present",
    animal_hero: false,
    far: false,
    things: Things::Made,
    genres: &["story about a gift", "story about a birthday"],
    subjects: &[
        "{who} and a gift for {whom}", "{who} who makes {a thing} for {whom}", "a gift for {whom}",
        "the birthday of {whom}", "{who} who makes {a thing}", "{who} and a birthday", "{a kind} and a birthday",
        "{who} who needs a gift", "a birthday",
    ],
    stages: &[
        &[
            "It was the birthday of {whom}, and {who} had no gift.",
            "Tomorrow was the birthday of {whom}. What could {who} give?",
        ],
        &["{hero} thought and thought.", "\"What can I do?\" asked {hero}.", ""],
        &["Then {he} went to the {place} and asked {a helper}.", "{At}, {he} met {a helper}."],
        &[
            "\"Make {a thing},\" said the {helper}. \"I will help you.\"",
            "\"You can make {a thing},\" said the {helper}.",
        ],
        &[
            "They worked all day, and the {thing} was beautiful.",
            "{hero} worked until night, and then the {thing} was done.",
        ],
        &[
            "{friend} opened the gift and smiled. \"I love this {thing}!\" said {friend}.",
            "\"Is this {thing} for me?\" asked {friend}. \"Yes,\" said {hero}.",
        ],
        &[
            "It was the best birthday of all.",
            "{friend} hugged {hero}, and they ate cake together.",
            "Then {hero} and {friend} danced and laughed.",
        ],
    ],
    again: &["it was the birthday of {whom}, and {hero} had no gift."],
    short: &[
        &["{who} wanted to give a gift to {whom}.", "It was the birthday of {whom}, and {who} had no gift."],
        &["So {he} made {a thing}.", "{A helper} helped {him} to make {a thing}."],
        &["\"I love this {thing}!\" said {friend}.", "{friend} hugged {hero} and smiled."],
    ],
    summaries: &[
        "{hero} made {a thing} for {friend}.", "{friend} got {a thing} from {hero}. It was a beautiful gift.",
    ],
    questions: &[
        question(&["What did {hero} make?", "What did {hero} give to {friend}?"], "{hero} made {a thing}."),
        question(&["Who got the {thing}?", "Who was the gift for?"], "{friend} got the {thing}."),
        question(&["Who made the {thing}?"], "{hero} made the {thing}."),
        question(&["Who helped {hero}?"], "{A helper} helped {hero}."),
        question(&["How does it end?", "How does the story end?"], "{friend} gets the {thing} and is happy."),
    ],
};

/// A race is won by stopping to help.
#[rustfmt::skip]
pub(super) const RACE: Plot = Plot {
    name: "race",
    animal_hero: false,
    far: false,
    things: Things::Any,
    genres: &["story about a race"],
    subjects: &[
        "{who} and a race {at}", "{who} who wins {a thing}", "a race for {a thing}",
        "{who} and {whom} in a race", "a race {at}", "{who} who runs a race", "{who} and a race",
    ],
    stages: &[
        &[
            "One {day}, there was a race {at}. The prize was {a thing}.",
            "There was a big race {at}, and the prize was {a thing}.",
        ],
        &[
            "{who} wanted to win, and {whom} wanted to win too.",
            "\"I will win,\" said {who}. \"No, I will win,\" said {whom}.",
        ],
        &["\"One, two, three, go!\" said {a helper}.", "{A helper} called, \"Go!\""],
        &["{hero} ran like the wind.", "Soon {hero} was first."],
        &["But then {friend} fell down.", "Then there was a cry. {friend} fell down!"],
        &[
            "{hero} turned around and helped {friend} up.",
            "\"I will not leave you,\" said {hero}, and {he} took the hand of {friend}.",
        ],
        &["They ran on side by side, and both came in last.", "Side by side, {hero} and {friend} came in last."],
        &[
            "\"A good friend wins more than a race,\" said the {helper}, and gave them the {thing}.",
            "But the {helper} gave the {thing} to {hero}. \"You have a good heart,\" said the {helper}.",
        ],
        &["\"Thank you, {hero}!\" said {friend}.", "{hero} and {friend} were very happy.", ""],
    ],
    again: &["there was a race {at}. The prize was {a thing}."],
    short: &[
        &["{who} and {whom} ran a race {at} for {a thing}."],
        &[
            "{friend} fell down, and {hero} helped {friend} up.",
            "Then {friend} fell down, but {hero} came to help.",
        ],
        &["{A helper} gave the {thing} to {hero}.", "They came in last, but {a helper} gave them the {thing}."],
    ],
    summaries: &[
        "{hero} helped {friend} in a race and got {a thing}.",
        "In a race {at}, {friend} fell down and {hero} helped.",
    ],
    questions: &[
        question(&["What was the prize?", "What did {hero} get?"], "The prize was {a thing}."),
        question(&["Who fell down?"], "{friend} fell down."),
        question(&["Who helped {friend}?"], "{hero} helped {friend}."),
        question(&["Where was the race?"], "The race was {at}."),
        question(&["Who gave the prize?", "Who gave the {thing} to {hero}?"], "{A helper} gave the prize."),
    ],
};

/// Somebody new and shy moves in.
#[rustfmt::skip]
pub(super) const NEIGHBOR: Plot = Plot {
    name: "neighbor",
    animal_hero: false,
    far: false,
    things: Things::Any,
    genres: &["story about a new friend"],
    subjects: &[
        "{who} and a new friend", "{who} and a new friend named {friend}", "{who} who meets {whom} {at}",
        "{whom} who is new", "{who} who shows {a thing} to {whom}",
    ],
    stages: &[
        &[
            "One {day}, {whom} moved into a house near the {place}.",
            "{whom} was new and lived near the {place}.",
        ],
        &["{friend} knew nobody and sat {spot}, all alone.", "There sat {friend} {spot}, all alone."],
        &["{who} saw {friend} and came with {a thing}.", "Then {who} came by with {a thing}."],
        &["\"Hello, I am {hero},\" said {hero}. \"Who are you?\"", "\"Do you want to play?\" asked {hero}."],
        &["But {friend} did not speak.", "At first, {friend} looked at the ground."],
        &["So {hero} gave the {thing} to {friend}.", "\"You can have my {thing} for a day,\" said {hero}."],
        &[
            "\"Is it for me? I am {friend},\" said {friend} and smiled.",
            "\"Nobody was so kind to me before,\" said {friend}.",
        ],
        &[
            "Soon they played with the {thing} and laughed.",
            "They laughed until the stars came out.",
        ],
        &["From that day on, {hero} and {friend} were best friends.", "And {friend} was not alone again."],
    ],
    again: &["{whom} moved into a house near the {place}."],
    short: &[
        &["{whom} was new and sat alone {at}."],
        &[
            "{who} came by with {a thing}. \"Do you want to play?\" asked {hero}.",
            "{who} gave {a thing} to {friend}.",
        ],
        &["From that day on, they were best friends.", "Soon they played with the {thing} and laughed."],
    ],
    summaries: &[
        "{friend} was new and alone, but {hero} came with {a thing}.",
        "{hero} shared {a thing} with {friend}. Now they are friends.",
    ],
    questions: &[
        question(&["Who was new?", "Who was alone?"], "{friend} was new and alone."),
        question(&["What did {hero} have?", "What did they play with?"], "{hero} had {a thing}."),
        question(&["Who was kind to {friend}?", "Who played with {friend}?"], "{hero} was kind to {friend}."),
        question(&["Where was {friend}?", "Where did {friend} sit?"], "{friend} was {at}."),
        question(&["How does it end?", "How does the story end?"], "{hero} and {friend} are friends."),
    ],
};
