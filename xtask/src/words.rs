//! `cargo xtask words`: old words of the project that the field has other words for, counted where people meet them: in the
//! help of both programs, in the schema, and in the names of public items. CI fails where one comes back.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::outcome::Outcome;
use crate::system::{built, root};

/// An old word and what replaced it.
struct Row {
    /// Phrases, in lower case; the plural of the last word counts, too.
    old: &'static [&'static str],
    new: &'static str,
    /// Longer phrases with the same word that mean something else.
    but: &'static [&'static str],
}

/// docs/renames.md has each name; these are the words that they consisted of.
const ROWS: [Row; 25] = [
    row(&["card"], "GPU", &["model card", "train card"]),
    row(&["keys and values", "kept keys"], "KV cache", &[]),
    row(
        &["kv"],
        "KV cache, KV heads",
        &["kv cache", "kv head", "kv length", "num kv", "put kv"],
    ),
    row(
        &["fill masks", "fills masks", "write from left"],
        "masked diffusion, autoregressive",
        &[],
    ),
    row(
        &["causal"],
        "autoregressive",
        &["causal mask", "causal attention", "causal lm"],
    ),
    row(&["multiply", "multiplies"], "matmul", &[]),
    row(&["widen", "widened"], "dequantize, upcast", &[]),
    row(&["turned"], "RoPE", &[]),
    row(&["mlp width"], "intermediate size", &[]),
    row(&["embedding rows"], "padded vocab size", &[]),
    row(&["head rows"], "LM head rows", &["lm head rows"]),
    row(
        &["unit"],
        "weight group",
        &[
            "systemd unit",
            "progress unit",
            "their unit",
            "count unit",
            "unit unit",
            "a unit",
        ],
    ),
    row(&["slot"], "staging buffer", &["canvas slot"]),
    row(&["rehearsal", "rehearse"], "dry run", &[]),
    row(
        &["coded"],
        "compressed",
        &["huffman coded", "dictionary coded"],
    ),
    row(&["palette"], "dictionary", &[]),
    row(&["derivative"], "converted weights, weight cache", &[]),
    row(&["epoch"], "weights version", &[]),
    row(&["dial"], "preset", &[]),
    row(&["auto factor"], "max slowdown", &[]),
    row(&["pin limit"], "pinned memory limit", &[]),
    row(&["read limit"], "disk read limit", &["disk read limit"]),
    row(&["growth"], "canvas growth", &["canvas growth"]),
    row(&["behind"], "recompute before", &[]),
    row(&["registry"], "requests, operations", &[]),
];

/// Public names with a word that means something else there: units of measure, a causal mask, slots of random stories, the
/// model card.
const NAMES: [&str; 6] = ["units", "unit", "unit_bytes", "causal", "slots", "card"];

const fn row(old: &'static [&'static str], new: &'static str, but: &'static [&'static str]) -> Row {
    Row { old, new, but }
}

/// A place where people meet words, and the words in it.
struct Text {
    place: String,
    words: Vec<String>,
}

/// As a step of CI.
pub(crate) fn check() -> io::Result<Outcome> {
    let columns = [
        ("help", help()?),
        ("schema", schema()?),
        ("public items", public_items()?),
    ];
    println!(
        "{:<36} {:>6} {:>6} {:>6}",
        "old word", "help", "schema", "items"
    );
    let mut found = BTreeSet::new();
    for row in &ROWS {
        let places = columns.each_ref().map(|(_, texts)| places(row, texts));
        let [help, schema, items] = places.each_ref().map(Vec::len);
        println!(
            "{:<36} {help:>6} {schema:>6} {items:>6}",
            row.old.join(", ")
        );
        for place in places.iter().flatten() {
            found.insert(format!("{place}: say {} for {}", row.new, row.old[0]));
        }
    }
    for line in &found {
        println!("{line}");
    }
    Ok(match found.len() {
        0 => Outcome::Passed,
        count => Outcome::Failed(format!("{count} places have old words")),
    })
}

/// Where a row's old words stand.
fn places<'t>(row: &Row, texts: &'t [Text]) -> Vec<&'t str> {
    let mut places = Vec::new();
    for text in texts {
        for at in 0..text.words.len() {
            let is_old = row.old.iter().any(|old| begins(&text.words[at..], old));
            let is_other = row
                .but
                .iter()
                .any(|but| stands_around(&text.words, at, but));
            if is_old && !is_other {
                places.push(text.place.as_str());
            }
        }
    }
    places
}

/// Whether words begin with a phrase, whose last word may be in the plural.
fn begins(words: &[String], phrase: &str) -> bool {
    let phrase: Vec<&str> = phrase.split(' ').collect();
    phrase.len() <= words.len()
        && phrase
            .iter()
            .zip(words)
            .enumerate()
            .all(|(index, (expected, word))| {
                let is_last = index + 1 == phrase.len();
                word == expected || is_last && word.strip_suffix('s') == Some(expected)
            })
}

/// Whether the word at `at` is part of a phrase.
fn stands_around(words: &[String], at: usize, phrase: &str) -> bool {
    let len = phrase.split(' ').count();
    (at.saturating_sub(len - 1)..=at).any(|start| begins(&words[start..], phrase))
}

/// The words of a text or a name: `LmHead`, `lm_head` and `lm-head` are two.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut last = ' ';
    for character in text.chars() {
        let begins = !last.is_alphanumeric() || last.is_lowercase() && character.is_uppercase();
        if character.is_alphanumeric() {
            match words.last_mut() {
                Some(word) if !begins => word.extend(character.to_lowercase()),
                _ => words.push(character.to_lowercase().collect()),
            }
        }
        last = character;
    }
    words
}

fn lines(place: &str, text: &str) -> Vec<Text> {
    let numbered = text.lines().enumerate();
    let line = |(index, line): (usize, &str)| Text {
        place: format!("{place}:{}", index + 1),
        words: words(line),
    };
    numbered.map(line).collect()
}

/// The help of both programs and of all their commands.
fn help() -> io::Result<Vec<Text>> {
    let mut texts = Vec::new();
    for program in ["sluice", "sluiced"] {
        let mut commands = vec![Vec::new()];
        while let Some(command) = commands.pop() {
            let text = help_of(&built(program)?, &command)?;
            let place = [&[program.to_owned()], &command[..]].concat().join(" ");
            texts.extend(lines(&format!("{place} --help"), &text));
            for name in subcommands(&text) {
                commands.push([&command[..], &[name]].concat());
            }
        }
    }
    Ok(texts)
}

fn help_of(program: &Path, command: &[String]) -> io::Result<String> {
    let output = Command::new(program).args(command).arg("--help").output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(io::Error::other(format!("{command:?} --help failed"))),
    }
}

/// What clap lists below `Commands:`, but for the help itself.
fn subcommands(help: &str) -> Vec<String> {
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let list = list.take_while(|line| line.starts_with("  "));
    let names = list.filter(|line| !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

fn schema() -> io::Result<Vec<Text>> {
    let mut texts = Vec::new();
    for file in files("proto/sluice", "proto")? {
        texts.extend(lines(&place(&file), &fs::read_to_string(&file)?));
    }
    Ok(texts)
}

/// Names of what Rust crates export, and of their fields and methods.
fn public_items() -> io::Result<Vec<Text>> {
    let mut texts = Vec::new();
    for folder in ["daemon", "proto", "report", "shared", "tools", "tui"] {
        for file in files(folder, "rs")? {
            let source = fs::read_to_string(&file)?;
            for (index, line) in source.lines().enumerate() {
                let name = public_name(line).filter(|name| !NAMES.contains(name));
                if let Some(name) = name {
                    texts.push(Text {
                        place: format!("{}:{}: {name}", place(&file), index + 1),
                        words: words(name),
                    });
                }
            }
        }
    }
    Ok(texts)
}

fn place(file: &Path) -> String {
    let inside = file.strip_prefix(root()).unwrap_or(file);
    inside.display().to_string()
}

/// `new` of `pub const fn new(…`, `rows` of `pub rows: usize,`.
fn public_name(line: &str) -> Option<&str> {
    let item = line.trim_start().strip_prefix("pub ")?;
    let modifiers = [
        "const", "async", "unsafe", "fn", "struct", "enum", "trait", "type", "mod", "static",
    ];
    let mut item_words = item.split(' ').skip_while(|word| modifiers.contains(word));
    let first = item_words.next()?;
    let end = first.find(|character: char| !character.is_alphanumeric() && character != '_');
    Some(&first[..end.unwrap_or(first.len())]).filter(|name| *name != "use")
}

/// Files below a folder of the repository with such an ending.
fn files(folder: &str, ending: &str) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|extension| extension == ending)
            {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_case_are_split() {
        for name in ["LmHead", "lm_head", "lm-head", "lm head"] {
            assert_eq!(words(name), ["lm", "head"]);
        }
        assert_eq!(words("--q8_0, KV"), ["q8", "0", "kv"]);
    }

    #[test]
    fn an_old_word_is_found_in_the_plural_and_not_where_it_means_something_else() {
        let row = row(&["card", "kept keys"], "GPU", &["model card"]);
        let text = |text: &str| lines("here", text);
        assert_eq!(
            places(&row, &text("a card\nmany cards")),
            ["here:1", "here:2"]
        );
        assert_eq!(places(&row, &text("kept keys and")), ["here:1"]);
        assert!(places(&row, &text("the model card of a cardinal")).is_empty());
    }

    #[test]
    fn commands_are_read_from_help() {
        let help =
            "Usage: x\n\nCommands:\n  run   runs\n          more\n  help  this\n\nOptions:\n  -h\n";
        assert_eq!(subcommands(help), ["run"]);
    }

    #[test]
    fn public_items_are_told_by_their_names() {
        assert_eq!(
            public_name("    pub const fn bytes(self) -> usize {"),
            Some("bytes")
        );
        assert_eq!(public_name("pub struct Plan<'a> {"), Some("Plan"));
        assert_eq!(public_name("    pub rows: usize,"), Some("rows"));
        assert_eq!(public_name("pub use self::a;"), None);
        assert_eq!(public_name("pub(crate) fn hidden() {}"), None);
    }
}
