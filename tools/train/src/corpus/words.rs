//! The things, places, helpers and times that the stories are made of.

/// Which things fit the thing of a plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Things {
    /// The plot has no thing.
    None,
    /// Anything small enough to be carried about.
    Any,
    /// Only what can be made at home.
    Made,
    /// What helps to find somebody in a storm.
    Tool,
    /// Something to bake or cook.
    Food,
    /// Something to travel in; it goes with the place.
    Ride,
}

/// Small things that cannot well be made by hand at home.
#[rustfmt::skip]
pub(super) const BOUGHT: &[&str] = &[
    "ball", "bell", "key", "map", "coin", "umbrella", "balloon", "ring", "pencil", "clock", "mirror", "spoon",
    "whistle", "button", "violin", "trumpet", "marble", "compass", "brush", "feather",
];

/// Small things that can be made at home.
#[rustfmt::skip]
pub(super) const MADE: &[&str] = &[
    "kite", "book", "drum", "lamp", "hat", "scarf", "cup", "doll", "basket", "flute", "blanket", "flag", "box",
    "puppet", "necklace", "ribbon", "mask", "crown", "coat", "bag",
];

/// Things that help to find somebody.
pub(super) const TOOLS: &[&str] = &["lamp", "rope", "bell", "whistle", "drum", "trumpet"];

/// Dishes that a story can be about.
pub(super) const FOODS: &[&str] = &["cake", "pie", "pudding", "muffin", "pizza", "tart"];

/// What a dish is made with.
pub(super) const FLAVOURS: &[&str] = &["apple", "berry", "honey", "lemon", "carrot", "nut"];

/// What things look like.
pub(super) const LOOKS: &[&str] = &[
    "red", "blue", "green", "yellow", "old", "little", "golden", "shiny",
];

/// What a cook can run out of.
pub(super) const MISSING: &[&str] = &["milk", "flour", "butter", "sugar"];

/// The animals that a story can be about. None of them is a helper as well.
#[rustfmt::skip]
pub(super) const ANIMALS: &[&str] = &[
    "fox", "rabbit", "bear", "mouse", "hedgehog", "cat", "dog", "badger", "otter", "elephant", "lion", "monkey",
    "dragon", "pig",
];

/// Times at which a story can begin.
#[rustfmt::skip]
pub(super) const DAYS: &[&str] = &[
    "sunny day", "windy day", "cloudy day", "warm day", "warm morning", "cold morning", "summer day",
    "quiet morning",
];

/// A place, where things hide there, and who lives there and can help.
pub(super) struct Place {
    pub(super) name: &'static str,
    /// Where one is there: "in the forest".
    pub(super) at: &'static str,
    pub(super) spots: &'static [&'static str],
    pub(super) helpers: &'static [&'static str],
    /// What one travels there in; only far places have this.
    pub(super) rides: &'static [&'static str],
}

const fn near(
    name: &'static str,
    at: &'static str,
    spots: &'static [&'static str],
    helpers: &'static [&'static str],
) -> Place {
    far(name, at, spots, helpers, &[])
}

const fn far(
    name: &'static str,
    at: &'static str,
    spots: &'static [&'static str],
    helpers: &'static [&'static str],
    rides: &'static [&'static str],
) -> Place {
    Place {
        name,
        at,
        spots,
        helpers,
        rides,
    }
}

/// Places to which one can walk.
#[rustfmt::skip]
pub(super) const NEAR: &[Place] = &[
    near("park", "in the park", &["under a bench", "behind a tall tree"], &["squirrel", "gardener"]),
    near("lake", "at the lake", &["in the reeds", "beside an old boat"], &["duck", "fisherman"]),
    near("forest", "in the forest", &["under a bush", "inside a hollow tree"], &["owl", "deer"]),
    near("garden", "in the garden", &["among the roses", "behind the shed"], &["robin", "snail"]),
    near("beach", "at the beach", &["beside a big shell", "behind a sand castle"], &["crab", "seagull"]),
    near("farm", "on the farm", &["in the hay", "behind the barn"], &["goat", "farmer"]),
    near("market", "at the market", &["under a table", "beside the apples"], &["baker", "sparrow"]),
    near("river", "at the river", &["on a flat stone", "under the bridge"], &["frog", "swan"]),
    near("meadow", "in the meadow", &["in the tall grass", "among the flowers"], &["bee", "sheep"]),
    near("mountain", "on the mountain", &["behind a rock", "in a small cave"], &["eagle", "shepherd"]),
    near("school", "at the school", &["behind the door", "under a chair"], &["teacher", "painter"]),
    near("village", "in the village", &["beside the well", "behind a gate"], &["hen", "miller"]),
    near("harbor", "at the harbor", &["under a net", "behind a barrel"], &["sailor", "seal"]),
];

/// Places to which one has to travel.
#[rustfmt::skip]
pub(super) const FAR: &[Place] = &[
    far(
        "island", "on the island", &["under a palm tree", "beside a blue pool"], &["parrot", "turtle"],
        &["boat", "ship", "sailboat"],
    ),
    far(
        "moon", "on the moon", &["behind a gray rock", "in a deep hole"], &["robot", "alien"],
        &["rocket", "spaceship"],
    ),
    far(
        "castle", "in the castle", &["in a high tower", "behind a golden gate"], &["giant", "queen"],
        &["balloon", "airship"],
    ),
];

/// A foolish wish, and why it turns out badly.
pub(super) struct Wish {
    /// What follows "I wish".
    pub(super) text: &'static str,
    /// What follows "But now".
    pub(super) trouble: &'static str,
}

#[rustfmt::skip]
pub(super) const WISHES: &[Wish] = &[
    Wish { text: "to be as tall as a tree", trouble: "the house and the bed were too small" },
    Wish { text: "for a hundred cakes", trouble: "there was no room to sleep or to play" },
    Wish { text: "that it was always night", trouble: "it was dark and nobody came out to play" },
];
