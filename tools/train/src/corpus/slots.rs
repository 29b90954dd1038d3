//! Templates: fixed text with slots in braces, such as `{hero}` or `{a thing}`.

/// What stands in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    /// The hero's name.
    Hero,
    /// The hero when first met: "Mia" or "Theo the fox".
    Who,
    /// "girl", "boy" or the hero's kind of animal.
    Kind,
    /// The friend's name.
    Friend,
    /// The friend when first met.
    Whom,
    /// "he" or "she", for the hero.
    Subject,
    /// "him" or "her".
    Object,
    /// "his" or "her".
    Owner,
    /// The thing, with its look or flavour: "blue kite".
    Thing,
    Place,
    /// The place with its preposition: "in the forest".
    At,
    /// Where something hides, with its preposition: "under a bench".
    Spot,
    Helper,
    Day,
    /// What the cook has run out of.
    Missing,
    Wish,
    Trouble,
}

/// How the value of a slot is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Plain,
    /// With "a" or "an".
    Article,
    /// With "A" or "An".
    CapitalArticle,
    Capital,
}

/// A piece of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part<'a> {
    Literal(&'a str),
    Slot(Slot, Form),
}

/// The pieces of a template, in order.
///
/// # Panics
///
/// When the template has an unknown slot or an open brace: the tables are part of the program.
pub(super) fn parts(template: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut rest = template;
    while let Some((literal, after)) = rest.split_once('{') {
        let (name, after) = after
            .split_once('}')
            .expect("every brace of a template is closed");
        if !literal.is_empty() {
            parts.push(Part::Literal(literal));
        }
        parts.push(slot(name));
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(Part::Literal(rest));
    }
    parts
}

fn slot(name: &str) -> Part<'static> {
    let (form, name) = if let Some(name) = name.strip_prefix("a ") {
        (Form::Article, name)
    } else if let Some(name) = name.strip_prefix("A ") {
        (Form::CapitalArticle, name)
    } else if name.starts_with(char::is_uppercase) {
        (Form::Capital, name)
    } else {
        (Form::Plain, name)
    };
    let slot = match name {
        "hero" => Slot::Hero,
        "who" => Slot::Who,
        "kind" => Slot::Kind,
        "friend" => Slot::Friend,
        "whom" => Slot::Whom,
        "he" | "He" => Slot::Subject,
        "him" => Slot::Object,
        "his" => Slot::Owner,
        "thing" => Slot::Thing,
        "place" => Slot::Place,
        "at" | "At" => Slot::At,
        "spot" => Slot::Spot,
        "helper" => Slot::Helper,
        "day" => Slot::Day,
        "missing" => Slot::Missing,
        "wish" => Slot::Wish,
        "trouble" => Slot::Trouble,
        _ => panic!("the slot {name:?} is in a template but not in the list of slots"),
    };
    Part::Slot(slot, form)
}

/// A value in the form that the slot asks for.
pub(super) fn written(value: &str, form: Form) -> String {
    match form {
        Form::Plain => value.to_owned(),
        Form::Article => format!("{} {value}", article(value)),
        Form::CapitalArticle => capital(&format!("{} {value}", article(value))),
        Form::Capital => capital(value),
    }
}

/// "a" or "an", by the first letter of the next word. No word of the tables sounds other than it is spelled here.
pub(super) fn article(next: &str) -> &'static str {
    if next.starts_with(['a', 'e', 'i', 'o', 'u']) {
        "an"
    } else {
        "a"
    }
}

/// The text with a small first letter.
pub(super) fn small(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map(|first| first.to_lowercase().collect::<String>() + letters.as_str())
        .unwrap_or_default()
}

/// The text with a capital first letter.
pub(super) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().collect::<String>() + letters.as_str())
        .unwrap_or_default()
}
