//! The licence of a model on disk, as its own files name it. They are untrusted: little is read of them, and what they say is
//! shortened and without control characters.

use std::path::{Path, PathBuf};

use sluice_checkpoint::gguf;

use super::model_files::first_bytes;
use crate::invisible::is_invisible;

/// Most bytes read of a card or a licence's text.
const TEXT_BYTES_MAX: u64 = 64 << 10;
/// Most bytes read of a GGUF file: what it says of itself stands before the vocabulary.
const GGUF_BYTES_MAX: u64 = 256 << 10;
/// Longest licence that is shown, in characters.
const CHARS_MAX: usize = 100;

/// Words in which a licence's text has its title, behind a notice of copyright.
const TITLE_WORDS: usize = 24;

/// Files with the text of a licence.
const TEXTS: [&str; 4] = ["LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE"];

/// Words at the beginning of licences' texts, with the hub's names of these. The first that is there decides: some texts speak
/// of others.
const KNOWN: [(&str, &str); 7] = [
    ("llama 3.2 community license", "llama3.2"),
    ("llama 3.1 community license", "llama3.1"),
    ("llama 3 community license", "llama3"),
    (
        "nvidia nemotron open model license",
        "nvidia-nemotron-open-model-license",
    ),
    ("apache license", "apache-2.0"),
    ("mit license", "mit"),
    ("permission is hereby granted, free of charge", "mit"),
];

/// The licence of a model that is this file, or lies in this folder. `is_alone` tells that papers beside a file are the
/// file's own.
pub(super) fn licence(path: &Path, is_alone: bool) -> Option<String> {
    if path.is_dir() {
        return of_folder(path);
    }
    let is_gguf = path
        .extension()
        .is_some_and(|extension| extension == "gguf");
    let own = is_gguf.then(|| gguf::licence(&first_bytes(path, GGUF_BYTES_MAX)?));
    let own = own.flatten().and_then(|name| shown(&name));
    own.or_else(|| of_folder(path.parent().filter(|_| is_alone)?))
}

/// The licence that a folder's card names in its first lines, else the one whose text lies beside it.
fn of_folder(folder: &Path) -> Option<String> {
    let text = |path: PathBuf| {
        let head = first_bytes(&path, TEXT_BYTES_MAX)?;
        Some(String::from_utf8_lossy(&head).into_owned())
    };
    let card = text(folder.join("README.md"));
    card.and_then(|card| of_card(&card)).or_else(|| {
        let mut texts = TEXTS.iter().filter_map(|name| text(folder.join(name)));
        texts.find_map(|text| of_text(&text).map(str::to_owned))
    })
}

/// The licence in the head of a model card.
fn of_card(card: &str) -> Option<String> {
    let mut lines = card.trim_start_matches('\u{feff}').lines();
    lines.next().filter(|line| line.trim_end() == "---")?;
    let head: Vec<_> = lines.take_while(|line| line.trim_end() != "---").collect();
    let value = |key: &str| {
        let place = head.iter().position(|line| {
            line.strip_prefix(key)
                .is_some_and(|rest| rest.starts_with(':'))
        })?;
        let own = head[place][key.len() + 1..].trim();
        // Of several in a list the first.
        let listed = head
            .get(place + 1)
            .and_then(|next| next.trim().strip_prefix("- "));
        let value = if own.is_empty() { listed? } else { own };
        shown(value.trim_matches(['"', '\'', '[', ']', ' ']))
    };
    match value("license") {
        Some(licence) if licence == "other" => value("license_name").or(Some(licence)),
        licence => licence,
    }
}

/// The hub's name of the licence that a text is, by its title: others are spoken of further down.
fn of_text(text: &str) -> Option<&'static str> {
    let head: String = text.chars().take(2000).collect();
    // However its lines are broken.
    let words: Vec<_> = head.split_whitespace().take(TITLE_WORDS).collect();
    let title = format!(" {}", words.join(" ").to_lowercase());
    if title.contains(" modified ") {
        return None;
    }
    let known = KNOWN
        .iter()
        .find(|(words, _)| title.contains(&format!(" {words}")));
    known.map(|(_, name)| *name)
}

/// A name without what could steer a terminal, and not too long; `None` for an empty one.
fn shown(name: &str) -> Option<String> {
    let plain = name.trim().chars().take(CHARS_MAX);
    let escaped = plain.flat_map(|char| {
        let (escaped, char) = match char.is_control() || is_invisible(char) {
            true => (Some(char.escape_default()), None),
            false => (None, Some(char)),
        };
        escaped.into_iter().flatten().chain(char)
    });
    let name: String = escaped.collect();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_licence_is_read_from_the_head_of_a_card() {
        for (card, expected) in [
            ("---\nlanguage: en\nlicense: mit\n---\n# A", Some("mit")),
            (
                "---\nlicense: other\nlicense_name: \"llama3\"\n---\n",
                Some("llama3"),
            ),
            (
                "---\nlicense:\n- apache-2.0\n- mit\n---\n",
                Some("apache-2.0"),
            ),
            ("---\nlicense: [mit]\n---\n", Some("mit")),
            ("---\nlicense_name: x\n---\n", None),
            ("# A\nlicense: mit", None),
            ("---\na: b\n---\nlicense: mit", None),
            ("---\nlicense:\n---\n", None),
            ("", None),
            ("---\nlicense: a\u{1b}[2Jb\n---\n", Some("a\\u{1b}[2Jb")),
            ("---\nlicense: a\u{202e}b\n---\n", Some("a\\u{202e}b")),
        ] {
            assert_eq!(of_card(card).as_deref(), expected, "{card:?}");
        }
        let long = format!("---\nlicense: {}\n---\n", "x".repeat(5000));
        assert_eq!(of_card(&long).unwrap().len(), CHARS_MAX);
    }

    #[test]
    fn texts_of_licences_are_recognised() {
        for (text, expected) in [
            (
                "\n      Apache License\n  Version 2.0, January 2004",
                Some("apache-2.0"),
            ),
            (
                "Copyright (c) X\n\nPermission is hereby granted, free\nof charge, to",
                Some("mit"),
            ),
            ("MIT License\n\nCopyright", Some("mit")),
            ("LLAMA 3.1 COMMUNITY LICENSE AGREEMENT", Some("llama3.1")),
            ("META LLAMA 3 COMMUNITY LICENSE AGREEMENT", Some("llama3")),
            ("All rights reserved.", None),
            ("Modified MIT License\n\nCopyright", None),
            ("You must not submit license keys.", None),
            (
                &format!("A licence. {} Apache License", "Terms. ".repeat(30)),
                None,
            ),
        ] {
            assert_eq!(of_text(text), expected, "{text}");
        }
    }

    #[test]
    fn a_card_goes_before_a_text_and_a_file_needs_papers_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &[u8]| fs::write(folder.path().join(name), text).unwrap();
        let found = |name: &str, is_alone| licence(&folder.path().join(name), is_alone);
        assert_eq!(found("", true), None);
        put("LICENSE", b"MIT License");
        assert_eq!(found("", true).as_deref(), Some("mit"));
        put("README.md", b"---\nlicense: apache-2.0\n---\n");
        assert_eq!(found("", true).as_deref(), Some("apache-2.0"));
        put("a.sluice", b"");
        assert_eq!(found("a.sluice", false), None);
        assert_eq!(found("a.sluice", true).as_deref(), Some("apache-2.0"));
        // A card that is no text, or is cut within a character.
        put(
            "README.md",
            &[b"---\nlicense: mit\n---\n", &[0xff; 1 << 17][..]].concat(),
        );
        assert_eq!(found("", true).as_deref(), Some("mit"));
    }
}
