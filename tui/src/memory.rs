//! What the daemon remembers, in words, as commands and dashboard tell it.

use sluice_proto::v1::{MemoryHit, MemoryPiece, MemorySource, PromptMemory, UsedPiece};
use sluice_shared::units;

use crate::{dates, text::sanitise_line};

/// Tokens of a prompt that memory may take where nobody says how many.
pub const DEFAULT_TOKENS: &str = "512";
/// Bytes of the beginning of a text that make its title.
const TITLE_BYTES: usize = 48;

/// The source and the heading of a piece: `/home/ada/notes/pool.md · Opening hours`.
#[must_use]
pub fn place(source: &MemorySource, piece: &MemoryPiece) -> String {
    below(&source.name, &piece.heading)
}

fn below(name: &str, heading: &str) -> String {
    match heading.is_empty() {
        true => sanitise_line(name),
        false => sanitise_line(&format!("{name} · {heading}")),
    }
}

/// The last two parts of a path; any other name as it is.
fn short_name(name: &str) -> &str {
    let mut slashes = name.rmatch_indices('/').map(|(at, _)| at);
    match (name.starts_with('/'), slashes.nth(1)) {
        (true, Some(at)) => &name[at + 1..],
        _ => name,
    }
}

/// A piece that stands in a prompt: `memory [1] notes/pool.md · Opening hours (score 0.033, 41 tokens)`.
#[must_use]
pub fn used(piece: &UsedPiece) -> String {
    let (source, found) = parts(piece.hit.as_ref());
    format!(
        "memory [{}] {} (score {}, {} tokens)",
        piece.label,
        below(short_name(&source.name), &found.heading),
        score(piece.hit.as_ref().map_or(0.0, |hit| hit.score)),
        units::count(piece.tokens.into()),
    )
}

/// A score: BM25 of a word that most pieces have is a few millionths.
#[must_use]
pub fn score(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 1.0 => format!("{value:.2}"),
        size if size >= 0.001 => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

/// What stands in a prompt, a line for each piece.
#[must_use]
pub fn used_lines(memory: &PromptMemory) -> Vec<String> {
    match memory.pieces.is_empty() {
        true => vec!["memory: no piece stands in this prompt".to_owned()],
        false => memory.pieces.iter().map(used).collect(),
    }
}

/// The texts of the pieces that stand in a prompt, each below what it is.
#[must_use]
pub fn used_texts(memory: &PromptMemory) -> Vec<String> {
    let text = |piece: &UsedPiece| {
        let (source, found) = parts(piece.hit.as_ref());
        let place = place(&source, &found);
        format!("[{}] {place}\n{}", piece.label, found.text.trim_end())
    };
    memory.pieces.iter().map(text).collect()
}

/// The source and the piece of a hit; empty ones where the daemon sent none.
#[must_use]
pub fn parts(hit: Option<&MemoryHit>) -> (MemorySource, MemoryPiece) {
    let hit = hit.cloned().unwrap_or_default();
    (
        hit.source.unwrap_or_default(),
        hit.piece.unwrap_or_default(),
    )
}

/// The day on which a source was changed, or added where that is not known.
#[must_use]
pub fn day(source: &MemorySource) -> String {
    let seconds = source.modified_unix_s.unwrap_or(source.added_unix_s);
    dates::date(u64::try_from(seconds).unwrap_or(0))
}

/// A title for a text that has none: a time, so that no other text takes its place, and its first words.
#[must_use]
pub fn title(seconds: u64, text: &str) -> String {
    let mut title = dates::time(seconds);
    // Names have no control characters.
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()) {
        if word.is_empty() {
            continue;
        }
        if title.len() + word.len() > TITLE_BYTES {
            break;
        }
        title.push(' ');
        title.push_str(word);
    }
    title
}

#[cfg(test)]
mod tests {
    use sluice_proto::model::MEMORY_TOKENS_DEFAULT;

    use super::*;

    fn piece(name: &str, heading: &str) -> UsedPiece {
        UsedPiece {
            hit: Some(MemoryHit {
                source: Some(MemorySource {
                    name: name.into(),
                    ..Default::default()
                }),
                piece: Some(MemoryPiece {
                    heading: heading.into(),
                    text: "open\nat 8\n".into(),
                    ..Default::default()
                }),
                score: 0.0328,
                ..Default::default()
            }),
            label: 1,
            tokens: 41,
        }
    }

    #[test]
    fn a_used_piece_fits_a_line() {
        assert_eq!(
            used(&piece("/home/ada/notes/pool.md", "Opening\n\x1b[2Jhours")),
            "memory [1] notes/pool.md · Opening \u{fffd}[2Jhours (score 0.033, 41 tokens)"
        );
        assert_eq!(
            used(&piece("a/b/note", "")),
            "memory [1] a/b/note (score 0.033, 41 tokens)"
        );
        assert_eq!(short_name("/pool.md"), "/pool.md");
        let memory = PromptMemory {
            pieces: vec![piece("/n/pool.md", "Hours"), UsedPiece::default()],
            ..Default::default()
        };
        assert_eq!(used_texts(&memory)[0], "[1] /n/pool.md · Hours\nopen\nat 8");
        assert_eq!(used_lines(&memory).len(), 2);
        assert!(used_lines(&PromptMemory::default())[0].contains("no piece"));
    }

    #[test]
    fn the_default_is_the_daemons() {
        assert_eq!(DEFAULT_TOKENS, MEMORY_TOKENS_DEFAULT.to_string());
    }

    #[test]
    fn scores_have_the_digits_that_tell_them_apart() {
        let told = [4.5, 0.0328, -0.25, 0.0000012, 0.0].map(score);
        assert_eq!(told, ["4.50", "0.033", "-0.250", "1.2e-6", "0"]);
    }

    #[test]
    fn titles_begin_with_a_time_and_end_between_words() {
        let text = "The pool opens\nat eight on weekdays and at ten on Sundays";
        assert_eq!(
            title(1_767_323_045, text),
            "2026-01-02 03:04:05 The pool opens at eight on"
        );
        assert_eq!(title(0, "a\u{7}b"), "1970-01-01 00:00:00 a b");
        assert_eq!(title(0, " "), "1970-01-01 00:00:00");
    }
}
