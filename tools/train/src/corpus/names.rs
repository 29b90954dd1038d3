//! The names of children and animals.

/// Somebody's name and which pronouns go with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) text: &'static str,
    pub(super) she: bool,
}

/// Names that go with "she", and names that go with "he".
pub(super) struct Names {
    pub(super) she: &'static [&'static str],
    pub(super) he: &'static [&'static str],
}

/// Every list of names.
pub(super) const ALL: [&Names; 4] = [&CHILDREN, &ANIMALS, &SELDOM, &IN_PIECES];

/// Whether a word is in one of them.
pub(super) fn is_name(word: &str) -> bool {
    ALL.iter()
        .any(|names| names.she.contains(&word) || names.he.contains(&word))
}

/// The usual names of children.
#[rustfmt::skip]
pub(super) const CHILDREN: Names = Names {
    she: &[
        "Mia", "Anna", "Lily", "Ella", "Nora", "Zoe", "Ruby", "Clara", "Ida", "Rosa", "Emma", "Lucy", "Sara", "Maya",
        "Eva", "Amy", "Lena", "Kate", "Sofia", "Alice",
    ],
    he: &[
        "Tom", "Ben", "Max", "Leo", "Sam", "Finn", "Jack", "Noah", "Oskar", "Paul", "Hugo", "Adam", "Tim", "Luke",
        "Peter", "Nico", "Omar", "Ravi", "Jonas", "Emil",
    ],
};

/// The usual names of animals.
#[rustfmt::skip]
pub(super) const ANIMALS: Names = Names {
    she: &["Luna", "Hazel", "Poppy", "Molly", "Willow", "Tilly", "Bella", "Coco"],
    he: &["Theo", "Pip", "Bruno", "Otto", "Rusty", "Gus", "Milo", "Toby"],
};

/// Names that come up seldom, so that a name has to be copied from the question and cannot be known by heart.
#[rustfmt::skip]
pub(super) const SELDOM: Names = Names {
    she: &[
        "Ada", "Agnes", "Aisha", "Alma", "Amira", "Anika", "Astrid", "Aya", "Beatrix", "Bianca", "Britta", "Carla",
        "Chloe", "Dana", "Delia", "Dina", "Edith", "Elena", "Elif", "Elsa", "Erika", "Esther", "Fatima", "Fiona",
        "Flora", "Freya", "Gemma", "Greta", "Hana", "Heidi", "Helen", "Ines", "Ingrid", "Irene", "Iris", "Isla",
        "Jana", "Jasmin", "Judith", "Julia", "Kaya", "Kira", "Laila", "Lara", "Leila", "Linda", "Linnea", "Lotte",
        "Maren", "Marta", "Matilda", "Mei", "Mina", "Nadia", "Naomi", "Nina", "Olga", "Olivia", "Paula", "Petra",
        "Pia", "Priya", "Rita", "Romy", "Sanna", "Selma", "Signe", "Silvia", "Stella", "Sunita", "Tara", "Tessa",
        "Thea", "Uma", "Vera", "Viola", "Wanda", "Yara", "Yuki", "Zahra",
    ],
    he: &[
        "Aaron", "Ahmed", "Albert", "Alfie", "Ali", "Amir", "Anders", "Anton", "Arjun", "Arne", "Arthur", "Axel",
        "Basil", "Boris", "Bram", "Carlos", "Casper", "Cyrus", "Daniel", "David", "Dennis", "Diego", "Edgar", "Eli",
        "Enzo", "Erik", "Felix", "Frank", "Fred", "George", "Goran", "Gustav", "Hamid", "Harry", "Henry", "Hiro",
        "Ian", "Igor", "Ivan", "Jakob", "James", "Jan", "Jens", "Joel", "Jonah", "Juan", "Karim", "Karl", "Kenji",
        "Kofi", "Kurt", "Lars", "Levi", "Liam", "Linus", "Louis", "Magnus", "Malik", "Marco", "Mateo", "Nils",
        "Oliver", "Oscar", "Otis", "Pablo", "Pedro", "Ralf", "Rohan", "Ruben", "Sami", "Samuel", "Simon", "Stefan",
        "Sven", "Tariq", "Theodor", "Tobias", "Viktor", "Walter", "Yusuf",
    ],
};

/// Names that come up so seldom that the tokenizer has no token for them: what users type has to be copied piece by piece.
#[rustfmt::skip]
pub(super) const IN_PIECES: Names = Names {
    she: &[
        "Abigail", "Amelia", "Anya", "Aurora", "Camila", "Carmen", "Charlotte", "Daisy", "Eleanor", "Elin", "Emily",
        "Evelyn", "Frida", "Grace", "Hannah", "Harper", "Johanna", "Josie", "Katya", "Laura", "Leonie", "Lillian",
        "Lina", "Louise", "Lucia", "Maja", "Maria", "Meera", "Noor", "Penelope", "Riley", "Rose", "Saga", "Sakura",
        "Salma", "Sarah", "Sophie", "Victoria", "Violet", "Zelda",
    ],
    he: &[
        "Alexander", "Andrei", "Andrew", "Archie", "Benjamin", "Billy", "Charlie", "Chris", "Danny", "Dmitri", "Dylan",
        "Elijah", "Ethan", "Freddie", "Giovanni", "Haruki", "Hassan", "Idris", "Jacob", "Jamie", "Johnny", "Kevin",
        "Kwame", "Lasse", "Logan", "Luca", "Lucas", "Mason", "Matteo", "Matthew", "Michael", "Mika", "Nathan",
        "Pierre", "Robert", "Ryan", "Teddy", "Thomas", "Tunde", "William",
    ],
};
