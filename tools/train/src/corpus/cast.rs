//! Who and what a story is about, and which half of the language it belongs to.

use super::Split;
use super::names::{self, Name, Names};
use super::plots::{PLOTS, Plot};
use super::slots::{Part, Slot, parts, written};
use super::word::has_word;
use super::words::{self, Place, Things, Wish};
use crate::random::Random;

/// One story in this many belongs to the held-out half.
const HELD_OUT_ONE_IN: u64 = 16;

/// How often another hero or thing is drawn before the story is given up.
const DRAWS_MAX: usize = 100;

/// How many of the names are seldom ones.
const SELDOM_NAMES: f64 = 0.25;

/// How many of the names have no token of their own.
const NAMES_IN_PIECES: f64 = 0.06;

/// How often the hero, the friend, and the hero for a friend that was drawn are the usual ones: nobody else comes up in a story
/// unasked, so most others are drawn in vain.
const USUAL_HEROES: f64 = 0.1;
const USUAL_FRIENDS: f64 = 0.6;
const HEROES_FOR_FRIENDS: f64 = 0.08;

/// A child or an animal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Person {
    pub(super) name: Name,
    /// "girl", "boy" or the kind of animal.
    pub(super) kind: &'static str,
    pub(super) animal: bool,
    /// Whether the name is one of the seldom ones.
    pub(super) seldom: bool,
}

impl Person {
    fn draw(random: &mut Random, animal: bool) -> Self {
        let drawn = random.unit();
        let seldom = drawn < SELDOM_NAMES + NAMES_IN_PIECES;
        let names = match (seldom, animal) {
            (true, _) if drawn < NAMES_IN_PIECES => &names::IN_PIECES,
            (true, _) => &names::SELDOM,
            (false, true) => &names::ANIMALS,
            (false, false) => &names::CHILDREN,
        };
        let name = draw_name(random, names);
        let kind = match (animal, name.she) {
            (true, _) => *random.pick(words::ANIMALS),
            (false, true) => "girl",
            (false, false) => "boy",
        };
        Self {
            name,
            kind,
            animal,
            seldom,
        }
    }

    /// Whom a story is about that was not told whom to name, but perhaps what the hero is. Were it free to take anybody, no name
    /// would be likely, and a model that takes the likeliest would mix several.
    fn usual(kind: &'static str) -> Self {
        let number = words::ANIMALS.iter().position(|animal| *animal == kind);
        let (number, names) = match number {
            Some(number) => (number, &names::ANIMALS),
            None => (usize::from(kind == "boy"), &names::CHILDREN),
        };
        // Girls' and boys' names in turn.
        Self::named(kind, names, number, number % 2 == 0)
    }

    /// Who comes into the story of this one unasked: one for heroes who are called "he" and one for those called "she", of the
    /// other sex, so that the two have different names.
    fn companion(&self) -> Self {
        let she = !self.name.she;
        if !self.animal {
            return Self::usual(if she { "girl" } else { "boy" });
        }
        let kind = if she { "rabbit" } else { "bear" };
        // Two of a kind could not be told apart by it.
        let kind = if self.kind == kind { "fox" } else { kind };
        Self::named(kind, &names::ANIMALS, 0, she)
    }

    fn named(kind: &'static str, names: &Names, number: usize, she: bool) -> Self {
        let texts = if she { names.she } else { names.he };
        Self {
            name: Name {
                text: texts[number % texts.len()],
                she,
            },
            kind,
            animal: words::ANIMALS.contains(&kind),
            seldom: false,
        }
    }

    /// Whether both can be in one story: they must be told apart by name, and animals by kind.
    fn differs_from(&self, other: &Self) -> bool {
        self.name != other.name && !(self.animal && self.kind == other.kind)
    }

    /// How a story first names the person.
    fn introduced(&self) -> String {
        if self.animal {
            format!("{} the {}", self.name.text, self.kind)
        } else {
            self.name.text.to_owned()
        }
    }

    /// How a user names the person: whoever reads it has to know the pronouns.
    pub(super) fn asked_for(&self, random: &mut Random) -> String {
        let Self { name, kind, .. } = self;
        if self.animal && random.chance(0.3) {
            format!("{} the {kind}", name.text)
        } else if self.animal || random.chance(if self.seldom { 0.8 } else { 0.15 }) {
            let named = if random.chance(0.25) {
                "called"
            } else {
                "named"
            };
            written(
                &format!("{kind} {named} {}", name.text),
                super::slots::Form::Article,
            )
        } else {
            name.text.to_owned()
        }
    }
}

fn draw_name(random: &mut Random, names: &Names) -> Name {
    let she = random.chance(0.5);
    let text = *random.pick(if she { names.she } else { names.he });
    Name { text, she }
}

/// The values of all slots of one story.
#[derive(Clone)]
pub(super) struct Cast {
    pub(super) plot: &'static Plot,
    pub(super) hero: Person,
    pub(super) friend: Person,
    /// The thing with its look or flavour.
    pub(super) thing: String,
    noun: &'static str,
    pub(super) place: &'static Place,
    spot: &'static str,
    pub(super) helper: &'static str,
    day: &'static str,
    missing: &'static str,
    wish: &'static Wish,
    /// What stands for `{who}` and `{whom}`.
    who: String,
    whom: String,
}

impl Cast {
    /// A cast of this half of the language that passes a test.
    pub(super) fn draw_where(
        random: &mut Random,
        split: Split,
        fits: impl Fn(&Self) -> bool,
    ) -> Self {
        loop {
            let plot = *random.pick(PLOTS);
            let animal = plot.animal_hero || random.chance(0.35);
            let cast = Self::around(random, plot, None, animal);
            if cast.split() == split && fits(&cast) {
                return cast;
            }
        }
    }

    /// Another cast for the same hero, in a plot that can follow.
    pub(super) fn draw_again(random: &mut Random, split: Split, first: &Self) -> Self {
        loop {
            let plot = *random.pick(PLOTS);
            let cast = Self::around(random, plot, Some(first.hero), first.hero.animal);
            let follows = !plot.again.is_empty() && plot.name != first.plot.name;
            if follows
                && cast.split() == split
                && cast.helper != first.helper
                && cast.noun != first.noun
                && cast.friend == cast.hero.companion()
                && cast.thing == cast.noun
            {
                return cast;
            }
        }
    }

    /// The same story with another hero or another thing. None when few things fit the plot and all of them belong to
    /// the other half.
    pub(super) fn draw_changed(
        &self,
        random: &mut Random,
        split: Split,
        change: Change,
    ) -> Option<Self> {
        for _ in 0..DRAWS_MAX {
            let mut cast = self.clone();
            match change {
                Change::Hero => {
                    let animal = self.hero.animal || random.chance(0.5);
                    cast.hero = Person::draw(random, animal);
                    cast.who = cast.hero.introduced();
                }
                Change::Thing => {
                    (cast.thing, cast.noun) = draw_thing(random, self.plot, self.place);
                }
            }
            let same = match change {
                Change::Hero => {
                    cast.hero.name == self.hero.name
                        || (cast.hero.animal && cast.hero.kind == self.friend.kind)
                }
                Change::Thing => cast.noun == self.noun,
            };
            if !same && cast.hero.name != cast.friend.name && cast.split() == split {
                return Some(cast);
            }
        }
        None
    }

    fn around(
        random: &mut Random,
        plot: &'static Plot,
        hero: Option<Person>,
        animal: bool,
    ) -> Self {
        let place = random.pick(if plot.far { words::FAR } else { words::NEAR });
        let (hero, friend) = match hero {
            Some(hero) => (hero, Self::friend_of(random, &hero)),
            None => Self::draw_two(random, animal),
        };
        let (thing, noun) = draw_thing(random, plot, place);
        Self {
            plot,
            hero,
            friend,
            thing,
            noun,
            place,
            spot: *random.pick(place.spots),
            helper: *random.pick(place.helpers),
            day: *random.pick(words::DAYS),
            missing: *random.pick(words::MISSING),
            wish: random.pick(words::WISHES),
            who: hero.introduced(),
            whom: friend.introduced(),
        }
    }

    fn draw_two(random: &mut Random, animal: bool) -> (Person, Person) {
        let drawn = random.unit();
        if drawn < HEROES_FOR_FRIENDS {
            let friend = Person::draw(random, animal);
            return (friend.companion(), friend);
        }
        let hero = if drawn < HEROES_FOR_FRIENDS + USUAL_HEROES {
            let kinds = if animal {
                words::ANIMALS
            } else {
                &["girl", "boy"]
            };
            Person::usual(random.pick::<&'static str>(kinds))
        } else {
            Person::draw(random, animal)
        };
        (hero, Self::friend_of(random, &hero))
    }

    fn friend_of(random: &mut Random, hero: &Person) -> Person {
        if random.chance(USUAL_FRIENDS) {
            return hero.companion();
        }
        loop {
            let friend = Person::draw(random, hero.animal);
            if friend.differs_from(hero) {
                return friend;
            }
        }
    }

    /// The plot, the hero and the main thing, which together decide the half of the language.
    pub(super) fn core(&self) -> (&'static str, &'static str, &'static str) {
        let main = if self.plot.things == Things::None {
            self.place.name
        } else {
            self.noun
        };
        (self.plot.name, self.hero.name.text, main)
    }

    pub(super) fn split(&self) -> Split {
        let (plot, hero, main) = self.core();
        if hash(&[plot, hero, main]).is_multiple_of(HELD_OUT_ONE_IN) {
            Split::HeldOut
        } else {
            Split::Train
        }
    }

    /// Whether the story names only people whom the request names and those who are usual beside them, and says of no thing what
    /// it looks like unless the request does.
    pub(super) fn brings_nothing_unasked(&self, story: &str, asked: &str) -> bool {
        let is_new = |word: &str| has_word(story, word) && !has_word(asked, word);
        let friend_is_asked = has_word(asked, self.friend.name.text);
        let usual_hero = if has_word(asked, self.hero.kind) || !friend_is_asked {
            let kind = match self.hero.animal {
                true if !has_word(asked, self.hero.kind) => words::ANIMALS[0],
                false if self.hero.kind == "boy" && !has_word(asked, "boy") => "girl",
                _ => self.hero.kind,
            };
            Person::usual(kind)
        } else {
            self.friend.companion()
        };
        (!is_new(self.hero.name.text) || self.hero == usual_hero)
            && (!is_new(self.friend.name.text) || self.friend == self.hero.companion())
            && (self.thing == self.noun || !is_new(&self.thing))
    }

    /// This cast with the hero and friend named as a user names them.
    pub(super) fn as_asked(&self, random: &mut Random) -> Self {
        Self {
            who: self.hero.asked_for(random),
            whom: self.friend.asked_for(random),
            ..self.clone()
        }
    }

    /// The value of a slot.
    pub(super) fn value(&self, slot: Slot) -> &str {
        let she = self.hero.name.she;
        match slot {
            Slot::Hero => self.hero.name.text,
            Slot::Who => &self.who,
            Slot::Kind => self.hero.kind,
            Slot::Friend => self.friend.name.text,
            Slot::Whom => &self.whom,
            Slot::Subject => pronouns(she).0,
            Slot::Object => pronouns(she).1,
            Slot::Owner => pronouns(she).2,
            Slot::Thing => &self.thing,
            Slot::Place => self.place.name,
            Slot::At => self.place.at,
            Slot::Spot => self.spot,
            Slot::Helper => self.helper,
            Slot::Day => self.day,
            Slot::Missing => self.missing,
            Slot::Wish => self.wish.text,
            Slot::Trouble => self.wish.trouble,
        }
    }

    /// The template with all slots filled.
    pub(super) fn fill(&self, template: &str) -> String {
        parts(template)
            .into_iter()
            .map(|part| match part {
                Part::Literal(text) => text.to_owned(),
                Part::Slot(slot, form) => written(self.value(slot), form),
            })
            .collect()
    }

    /// The words that a template takes from this cast: names, kinds of animals, things, places and helpers.
    pub(super) fn content(&self, template: &str) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        for part in parts(template) {
            let Part::Slot(slot, _) = part else { continue };
            for word in self.content_of(slot) {
                if !words.iter().any(|known| known == word) {
                    words.push(word.to_owned());
                }
            }
        }
        words
    }

    fn content_of(&self, slot: Slot) -> Vec<&str> {
        match slot {
            Slot::Who if self.hero.animal => vec![self.hero.name.text, self.hero.kind],
            Slot::Whom if self.friend.animal => vec![self.friend.name.text, self.friend.kind],
            Slot::Hero | Slot::Who => vec![self.hero.name.text],
            Slot::Friend | Slot::Whom => vec![self.friend.name.text],
            Slot::At => vec![self.place.name],
            Slot::Subject | Slot::Object | Slot::Owner | Slot::Day => vec![],
            _ => vec![self.value(slot)],
        }
    }
}

/// What is different when a story is told again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Hero,
    Thing,
}

/// The thing as it is told, and its noun.
fn draw_thing(random: &mut Random, plot: &Plot, place: &Place) -> (String, &'static str) {
    let nouns = match plot.things {
        Things::None | Things::Any if random.chance(0.5) => words::BOUGHT,
        Things::None | Things::Any | Things::Made => words::MADE,
        Things::Tool => words::TOOLS,
        Things::Food => words::FOODS,
        Things::Ride => place.rides,
    };
    let noun = *random.pick(nouns);
    let more = if plot.things == Things::Food {
        words::FLAVOURS
    } else {
        words::LOOKS
    };
    let thing = if random.chance(0.45) {
        format!("{} {noun}", random.pick(more))
    } else {
        noun.to_owned()
    };
    (thing, noun)
}

/// "she" or "he", and the forms that go with it.
pub(super) fn pronouns(she: bool) -> (&'static str, &'static str, &'static str) {
    if she {
        ("she", "her", "her")
    } else {
        ("he", "him", "his")
    }
}

/// The FNV-1a hash, which stays the same on every machine and in every version of the compiler.
fn hash(words: &[&str]) -> u64 {
    let bytes = words.iter().flat_map(|word| word.bytes().chain([0]));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // The low bits of FNV are weak for short inputs.
    (hash ^ (hash >> 32)) >> 7
}
