//! Stories as they are told: whole, short and long.

use super::cast::Cast;
use crate::random::Random;

/// A story with the words of its telling.
pub(super) struct Told {
    pub(super) cast: Cast,
    pub(super) text: String,
}

/// How long a story is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    Short,
    Whole,
    Long,
}

/// What joins the second story of a long one to the first.
pub(super) const LINKS: &[&str] = &["The next day, ", "A week later, ", "Not long after, "];

/// The whole story: one variant of each stage. The draws depend on the plot alone, so the same state of the random
/// numbers tells another cast's story in the same words.
pub(super) fn whole(cast: &Cast, random: &mut Random) -> String {
    told(cast, cast.plot.stages, random)
}

/// The story in two or three sentences.
pub(super) fn short(cast: &Cast, random: &mut Random) -> String {
    told(cast, cast.plot.short, random)
}

/// Two stories of the same hero.
pub(super) fn long(first: &Cast, second: &Cast, random: &mut Random) -> String {
    let link = *random.pick(LINKS);
    let opening = *random.pick(second.plot.again);
    let opening = second.fill(opening);
    let start = whole(first, random);
    let rest = told(second, &second.plot.stages[1..], random);
    format!("{start} {link}{opening} {rest}")
}

fn told(cast: &Cast, stages: &[&[&str]], random: &mut Random) -> String {
    let mut text = String::new();
    for stage in stages {
        let variant = *random.pick(stage);
        if variant.is_empty() {
            continue;
        }
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(&cast.fill(variant));
    }
    text
}
