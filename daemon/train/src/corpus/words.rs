//! The words and plots of the story language, as plain tables.

/// Somebody a story can be about.
pub(super) struct Hero {
    pub(super) name: &'static str,
    pub(super) she: bool,
}

const fn she(name: &'static str) -> Hero {
    Hero { name, she: true }
}

const fn he(name: &'static str) -> Hero {
    Hero { name, she: false }
}

#[rustfmt::skip]
pub(super) const CHILDREN: &[Hero] = &[
    she("Mia"), she("Anna"), she("Lily"), she("Ella"), she("Nora"), she("Zoe"), she("Ruby"), she("Clara"),
    she("Ida"), she("Rosa"), she("Emma"), she("Lucy"), he("Tom"), he("Ben"), he("Max"), he("Leo"), he("Sam"),
    he("Finn"), he("Jack"), he("Noah"), he("Oskar"), he("Paul"), he("Hugo"), he("Adam"),
];

/// Kinds of animal, and the names that animals have.
#[rustfmt::skip]
pub(super) const ANIMALS: (&[&str], &[Hero]) = (
    &["fox", "rabbit", "bear", "mouse", "hedgehog", "kitten", "puppy", "badger", "otter", "elephant"],
    &[
        he("Theo"), he("Pip"), he("Bruno"), he("Otto"), he("Rusty"), he("Gus"), she("Luna"), she("Hazel"),
        she("Daisy"), she("Poppy"), she("Molly"), she("Willow"),
    ],
);

/// A place, where things hide there, and who lives there and can help.
pub(super) struct Place {
    pub(super) name: &'static str,
    pub(super) spots: &'static [&'static str],
    pub(super) helpers: &'static [&'static str],
}

const fn place(
    name: &'static str,
    spots: &'static [&'static str],
    helpers: &'static [&'static str],
) -> Place {
    Place {
        name,
        spots,
        helpers,
    }
}

#[rustfmt::skip]
pub(super) const PLACES: &[Place] = &[
    place("park", &["under a bench", "behind a tall tree"], &["squirrel", "gardener"]),
    place("lake", &["in the reeds", "beside an old boat"], &["duck", "fisherman"]),
    place("forest", &["under a fern", "inside a hollow tree"], &["owl", "deer"]),
    place("garden", &["among the roses", "behind the shed"], &["robin", "snail"]),
    place("beach", &["under a shell", "behind a sand castle"], &["crab", "seagull"]),
    place("farm", &["in the hay", "behind the barn"], &["goat", "farmer"]),
    place("market", &["under a table", "beside the apples"], &["baker", "sparrow"]),
    place("river", &["on a flat stone", "under the bridge"], &["frog", "swan"]),
    place("meadow", &["in the tall grass", "under a daisy"], &["bee", "sheep"]),
    place("mountain", &["behind a rock", "in a small cave"], &["eagle", "shepherd"]),
];

#[rustfmt::skip]
pub(super) const THINGS: &[&str] = &[
    "kite", "ball", "boat", "book", "drum", "lamp", "hat", "scarf", "bell", "key", "cup", "doll", "bike", "map",
    "coin", "basket", "apple", "umbrella", "flute", "balloon", "train", "ring", "blanket", "pencil",
];

pub(super) const COLOURS: &[&str] = &["red", "blue", "green", "yellow", "old", "little"];

pub(super) const DAYS: &[&str] = &[
    "sunny day",
    "windy day",
    "cloudy day",
    "warm morning",
    "cold morning",
    "quiet evening",
];

#[rustfmt::skip]
pub(super) const REQUESTS: &[&str] = &[
    "Tell me a story about", "Tell a story about", "Please tell me a story about", "Write a story about",
    "I would like a story about",
];

/// One plot: how to ask for it, and the sentences to choose from at each stage. An empty sentence leaves a stage out.
pub(super) struct Plot {
    pub(super) animal_hero: bool,
    pub(super) questions: &'static [&'static str],
    pub(super) stages: &'static [&'static [&'static str]],
}

#[rustfmt::skip]
pub(super) const PLOTS: &[Plot] = &[
    // Something is lost and found again.
    Plot {
        animal_hero: false,
        questions: &["{name} and a lost {thing}.", "{name} who lost a {thing} at the {place}.", "a lost {thing}."],
        stages: &[
            &["One {day}, {name} took {his} {thing} to the {place}.", "One {day}, {name} went to the {place} with {his} {thing}."],
            &["{He} played and sang, and then the {thing} was gone.", "A strong wind came, and the {thing} was gone.", "{He} fell asleep, and when {he} woke up, the {thing} was gone."],
            &["{name} was very sad.", "{name} began to cry.", ""],
            &["\"Where is my {thing}?\" asked {name}.", "{name} looked and looked, but {he} could not find it."],
            &["A kind {helper} came by. \"I saw it {spot},\" said the {helper}.", "Then {he} met a {helper}. \"Look {spot},\" said the {helper}."],
            &["{name} ran to look. The {thing} was there, {spot}!", "And there it was, {spot}!"],
            &["\"Thank you!\" said {name} to the {helper}.", "{name} thanked the {helper} and laughed."],
            &["Then {name} went home with {his} {thing}.", "From that day on, {name} took good care of the {thing}.", "{He} was happy again."],
        ],
    },
    // Something is wished for and earned by helping.
    Plot {
        animal_hero: false,
        questions: &["{name} who wants {a thing}.", "{name} and a wish for {a thing}.", "{name} who finds {a thing} at the {place}."],
        stages: &[
            &["There was once a child named {name} who wanted {a thing}.", "More than anything, {name} wanted {a thing}."],
            &["But {he} had no money.", "But nobody had one to give.", "{He} dreamed of it every night."],
            &["One {day}, {he} went to the {place}.", "One {day}, {name} walked to the {place}."],
            &["There {he} met a {helper} who was stuck {spot}.", "There {he} saw a {helper} who was sitting {spot}, all alone."],
            &["\"Can you help me?\" asked the {helper}.", "\"Please help me,\" said the {helper}."],
            &["\"Of course,\" said {name}, and {he} helped at once.", "{name} helped the {helper} right away."],
            &["\"You are kind,\" said the {helper}. \"This {thing} is for you.\"", "The {helper} smiled and gave {him} {a thing}."],
            &["{name} danced all the way home.", "{name} had never been so happy.", "So {name} got {his} {thing} at last."],
        ],
    },
    // An animal is afraid of something and finds courage.
    Plot {
        animal_hero: true,
        questions: &["{an animal} named {name} at the {place}.", "{an animal} named {name}.", "{an animal} named {name} and a brave friend."],
        stages: &[
            &["Once there was {an animal} named {name} who lived near the {place}.", "Near the {place} lived {an animal} named {name}."],
            &["{name} was afraid of the dark.", "{name} was afraid of the rain.", "{name} was very small and shy."],
            &["One {day}, {he} heard a cry {spot}.", "One {day}, somebody called for help {spot}."],
            &["It was {friend}, a little {helper}.", "A {helper} named {friend} was stuck there."],
            &["\"Do not worry, {friend},\" said {name}. \"I will help you.\"", "\"Please do not go,\" said {friend}. \"I will stay,\" said {name}."],
            &["{name} forgot {his} fear and pulled with all {his} might.", "{He} took a deep breath and pulled and pulled."],
            &["Soon {friend} was free.", "At last {friend} was safe."],
            &["\"You are a brave {animal}!\" said {friend}.", "\"Thank you, {name}! You are my best friend,\" said {friend}."],
            &["After that, the {animal} was never afraid again.", "And the two friends walked home together.", ""],
        ],
    },
    // Two friends quarrel and make up.
    Plot {
        animal_hero: false,
        questions: &["{name} and {friend}.", "{name} and {friend} at the {place}.", "{name}, {friend} and {a thing}."],
        stages: &[
            &["One {day}, {name} and {friend} went to the {place}.", "One {day}, {name} met {friend} at the {place}."],
            &["They found {a thing} {spot}.", "There was {a thing} {spot}."],
            &["\"It is mine!\" said {name}. \"No, it is mine!\" said {friend}.", "{name} wanted it, and {friend} wanted it too."],
            &["They pulled and pulled, and nobody was happy.", "They did not speak for a long time."],
            &["A wise {helper} saw them. \"You can share it,\" said the {helper}.", "\"Why do you not share?\" asked a {helper}."],
            &["\"I am sorry,\" said {name}. \"I am sorry too,\" said {friend}.", "{name} and {friend} looked at each other and laughed."],
            &["So they shared the {thing} and played until the sun went down.", "From then on, {name} and {friend} shared the {thing} every day."],
        ],
    },
    // A present is made for a friend.
    Plot {
        animal_hero: false,
        questions: &["{name} and a gift for {friend}.", "{name} who makes {a thing} for {friend}.", "a gift for {friend}."],
        stages: &[
            &["It was the birthday of {friend}, and {name} had no gift.", "Tomorrow was the birthday of {friend}. What could {name} give?"],
            &["{name} thought and thought.", "\"What can I do?\" said {name}.", ""],
            &["Then {he} went to the {place} and asked a {helper}.", "At the {place}, {he} met a {helper}."],
            &["\"Make {a thing},\" said the {helper}. \"I will help you.\"", "\"You can make {a thing},\" said the {helper}."],
            &["They worked all day, and the {thing} was beautiful.", "{name} worked until the evening, and then the {thing} was done."],
            &["{friend} opened the box and smiled. \"I love this {thing}!\" said {friend}.", "\"Is this {thing} for me?\" asked {friend}. \"Yes,\" said {name}."],
            &["It was the best birthday of all.", "{friend} hugged {name}, and they ate cake together.", "Then {name} and {friend} ate cake."],
        ],
    },
];

/// A few questions about the model itself.
pub(super) struct SmallTalk {
    pub(super) questions: &'static [&'static str],
    pub(super) answers: &'static [&'static str],
}

pub(super) const SMALL_TALK: &[SmallTalk] = &[
    SmallTalk {
        questions: &["Who are you?", "What are you?", "What can you do?"],
        answers: &["I am a small demonstration model. I tell short stories."],
    },
    SmallTalk {
        questions: &["Hello!", "Hello", "Hi!", "Hi", "Good morning!"],
        answers: &[
            "Hello! Ask me for a story.",
            "Hello! Shall I tell you a story?",
        ],
    },
    SmallTalk {
        questions: &["Thank you!", "Thank you", "Thanks!", "That was nice."],
        answers: &["You are welcome! Shall I tell you another story?"],
    },
];

/// Puts "a" or "an" before a noun.
pub(super) trait Article {
    /// The noun with its indefinite article.
    fn with_article(&self) -> String;
}

impl<T: AsRef<str> + ?Sized> Article for T {
    fn with_article(&self) -> String {
        let noun = self.as_ref();
        let article = if noun.starts_with(['a', 'e', 'i', 'o', 'u']) {
            "an"
        } else {
            "a"
        };
        format!("{article} {noun}")
    }
}
