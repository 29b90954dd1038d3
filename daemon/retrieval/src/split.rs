//! Cuts texts into pieces, by their structure and within a bound of memory.
//!
//! A piece is what a search finds and a prompt gets: whole paragraphs below one heading, as many as have room. Code is cut
//! where blank lines stand, rather before a line without indentation. A paragraph that is too long is cut behind a sentence,
//! else between words.

use std::io::{self, Read};

/// Most bytes of a piece: some 200 to 250 tokens of English, which sentence encoders read whole.
pub(crate) const PIECE_BYTES_MAX: usize = 1000;
/// A piece is not ended for a small paragraph while it has fewer bytes.
const PIECE_BYTES_LEAST: usize = 200;
/// Most bytes of the headings that a piece stands below.
const HEADING_BYTES_MAX: usize = 200;
/// Bytes that are read at a time.
const READ_BYTES: usize = 64 << 10;
/// Levels of Markdown's headings.
const LEVELS: usize = 6;

/// What a text is cut by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextKind {
    /// Paragraphs.
    Plain,
    /// Headings, paragraphs, and fenced code.
    Markdown,
    /// Blank lines and indentation.
    Code,
}

impl TextKind {
    /// By the name of a file.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
        match extension.to_ascii_lowercase().as_str() {
            "md" | "markdown" | "mdx" | "rmd" | "qmd" => Self::Markdown,
            "c" | "h" | "cc" | "cpp" | "cxx" | "hpp" | "cu" | "cuh" | "rs" | "go" | "py" | "js"
            | "ts" | "jsx" | "tsx" | "java" | "kt" | "swift" | "rb" | "php" | "pl" | "sh"
            | "bash" | "lua" | "zig" | "hs" | "ml" | "scala" | "cs" | "sql" | "proto" | "toml"
            | "yaml" | "yml" | "json" | "css" | "cmake" => Self::Code,
            _ => Self::Plain,
        }
    }
}

/// A piece of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The headings that it stands below, the outermost first, joined by ` › `; empty where there are none.
    pub heading: String,
    /// The text, not empty.
    pub text: String,
}

/// Cuts one text. It holds a piece, a paragraph and a line at most.
#[derive(Debug)]
pub struct Splitter {
    kind: TextKind,
    headings: [String; LEVELS],
    /// Inside fenced code, by what ends it.
    fence: Option<&'static str>,
    /// Lines of the paragraph that is being read.
    block: String,
    /// Blocks of the piece that is being filled.
    piece: String,
    /// The line that is being read.
    line: Vec<u8>,
}

impl Splitter {
    /// Begins a text.
    #[must_use]
    pub fn new(kind: TextKind) -> Self {
        Self {
            kind,
            headings: Default::default(),
            fence: None,
            block: String::new(),
            piece: String::new(),
            line: Vec::new(),
        }
    }

    /// Reads a text to its end, and gives each piece to `take`, until that says that it is enough.
    ///
    /// # Errors
    /// Those of `read` and of `take`.
    pub fn split<E: From<io::Error>>(
        mut self,
        mut read: impl Read,
        mut take: impl FnMut(Piece) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let count = match read.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result?,
            };
            if count == 0 {
                break;
            }
            for part in buffer[..count].split_inclusive(|&byte| byte == b'\n') {
                self.line.extend_from_slice(part);
                // A line without end is read in parts.
                if part.ends_with(b"\n") || self.line.len() >= READ_BYTES {
                    self.end_line(&mut take)?;
                }
            }
        }
        self.end_line(&mut take)?;
        self.end_block(&mut take)?;
        self.end_piece(&mut take)
    }

    /// Takes in the line that was read; of one that is not whole, all but the bytes of a character that is not.
    fn end_line<E>(&mut self, take: &mut impl FnMut(Piece) -> Result<(), E>) -> Result<(), E> {
        let line = std::mem::take(&mut self.line);
        let is_whole = line.ends_with(b"\n");
        let mut end = line.len();
        if !is_whole
            && let Err(error) = std::str::from_utf8(&line)
            && error.error_len().is_none()
        {
            end = error.valid_up_to();
        }
        let text = String::from_utf8_lossy(&line[..end]);
        // Control characters would show in terminals and in prompts.
        let text: String = text
            .chars()
            .filter(|char| !char.is_control() || *char == '\t')
            .collect();
        self.line = line[end..].to_vec();
        self.add_line(text.trim_end(), take)
    }

    fn add_line<E>(
        &mut self,
        line: &str,
        take: &mut impl FnMut(Piece) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.kind == TextKind::Markdown {
            let trimmed = line.trim_start();
            let fence = ["```", "~~~"]
                .into_iter()
                .find(|fence| trimmed.starts_with(fence));
            match (self.fence, fence) {
                (None, Some(fence)) => self.fence = Some(fence),
                (Some(open), Some(fence)) if open == fence => self.fence = None,
                _ => {}
            }
            if self.fence.is_none()
                && fence.is_none()
                && let Some((level, title)) = heading(line)
            {
                self.end_block(take)?;
                self.end_piece(take)?;
                let end = title.floor_char_boundary(HEADING_BYTES_MAX);
                title[..end].clone_into(&mut self.headings[level]);
                self.headings[level + 1..]
                    .iter_mut()
                    .for_each(String::clear);
                return Ok(());
            }
        }
        if line.is_empty() {
            // Blank lines inside fenced code end no block, unless it gets long.
            return match self.fence.is_some() && self.block.len() < PIECE_BYTES_MAX {
                true => {
                    self.block.push('\n');
                    Ok(())
                }
                false => self.end_block(take),
            };
        }
        // A declaration begins a piece, once the one before has some size.
        let begins = self.kind == TextKind::Code && !line.starts_with([' ', '\t', '}', ')']);
        if begins && self.block.is_empty() && self.piece.len() >= PIECE_BYTES_MAX / 2 {
            self.end_piece(take)?;
        }
        if !self.block.is_empty() {
            self.block.push('\n');
        }
        self.block.push_str(line);
        match self.block.len() >= READ_BYTES {
            true => self.end_block(take),
            false => Ok(()),
        }
    }

    /// Adds the block to the piece, or begins another with it.
    fn end_block<E>(&mut self, take: &mut impl FnMut(Piece) -> Result<(), E>) -> Result<(), E> {
        let block = std::mem::take(&mut self.block);
        let mut rest = block.trim_matches('\n');
        if rest.trim().is_empty() {
            return Ok(());
        }
        let room = PIECE_BYTES_MAX.saturating_sub(self.piece.len() + 2);
        // A long paragraph behind a heading's first words stays with them.
        if rest.len() > room && self.piece.len() >= PIECE_BYTES_LEAST {
            self.end_piece(take)?;
        }
        loop {
            let room = PIECE_BYTES_MAX.saturating_sub(self.piece.len() + 2);
            let end = cut(rest, room);
            if !self.piece.is_empty() {
                self.piece.push_str("\n\n");
            }
            self.piece.push_str(rest[..end].trim_end());
            rest = rest[end..].trim_start_matches([' ', '\n']);
            if rest.is_empty() {
                return Ok(());
            }
            self.end_piece(take)?;
        }
    }

    fn end_piece<E>(&mut self, take: &mut impl FnMut(Piece) -> Result<(), E>) -> Result<(), E> {
        let text = std::mem::take(&mut self.piece);
        if text.trim().is_empty() {
            return Ok(());
        }
        let headings = self.headings.iter().filter(|heading| !heading.is_empty());
        let mut heading = headings.map(String::as_str).collect::<Vec<_>>().join(" › ");
        heading.truncate(heading.floor_char_boundary(HEADING_BYTES_MAX));
        take(Piece { heading, text })
    }
}

/// The level, from 0, and the title of a line of Markdown that is a heading.
fn heading(line: &str) -> Option<(usize, &str)> {
    let title = line.trim_start_matches('#');
    let level = line.len() - title.len();
    let is_heading = (1..=LEVELS).contains(&level) && title.starts_with([' ', '\t']);
    let title = title.trim().trim_end_matches('#').trim_end();
    (is_heading && !title.is_empty()).then(|| (level - 1, title))
}

/// Where a text is cut so that at most `room` bytes stand before: all of it, behind a line or a sentence, between words, or
/// anywhere.
fn cut(text: &str, room: usize) -> usize {
    let room = room.max(4);
    if text.len() <= room {
        return text.len();
    }
    let end = text.floor_char_boundary(room);
    let least = end / 2;
    let before = &text[..end];
    let found = |mark: &str| {
        let at = before.rfind(mark).filter(|&at| at >= least);
        at.map(|at| at + mark.len())
    };
    let sentences = [". ", "! ", "? ", ".\n", "。"]
        .into_iter()
        .filter_map(found)
        .max();
    let cuts = sentences.or_else(|| found("\n")).or_else(|| found(" "));
    cuts.unwrap_or(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(kind: TextKind, text: &[u8]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let take = |piece| {
            pieces.push(piece);
            Ok::<_, io::Error>(())
        };
        Splitter::new(kind).split(text, take).unwrap();
        pieces
    }

    #[test]
    fn markdown_is_cut_at_headings_which_pieces_name() {
        let text = "Before.\n\n# Boats\n\nA boat floats.\n\n## Sails\nSails pull.\n\n```sh\n# no heading\n\nls\n```\n# Cars\nCars roll.\n";
        let pieces = split(TextKind::Markdown, text.as_bytes());
        let found: Vec<_> = (pieces.iter().map(|piece| (&*piece.heading, &*piece.text))).collect();
        assert_eq!(
            found,
            [
                ("", "Before."),
                ("Boats", "A boat floats."),
                (
                    "Boats › Sails",
                    "Sails pull.\n\n```sh\n# no heading\n\nls\n```"
                ),
                ("Cars", "Cars roll."),
            ]
        );
    }

    #[test]
    fn no_piece_is_too_long_and_no_word_is_lost() {
        let sentence = "The quick brown fox jumps over the lazy dog. ";
        let long = sentence.repeat(100);
        let unbroken = "ä".repeat(200_000);
        for (kind, text) in [
            (TextKind::Plain, long.as_str()),
            (TextKind::Code, &long),
            (TextKind::Plain, &unbroken),
        ] {
            let pieces = split(kind, text.as_bytes());
            assert!(
                pieces
                    .iter()
                    .all(|piece| piece.text.len() <= PIECE_BYTES_MAX)
            );
            let joined: String = pieces.iter().flat_map(|piece| piece.text.chars()).collect();
            let bare = |text: &str| text.replace([' ', '\n'], "");
            assert_eq!(bare(&joined), bare(text));
        }
        let pieces = split(TextKind::Plain, long.as_bytes());
        assert!(pieces.iter().all(|piece| piece.text.ends_with("dog.")));
    }

    #[test]
    fn paragraphs_share_a_piece_and_code_begins_with_declarations() {
        let text = "One.\n\nTwo.\n\n\nThree.\n";
        assert_eq!(
            split(TextKind::Plain, text.as_bytes())[0].text,
            "One.\n\nTwo.\n\nThree."
        );
        let function = format!("fn f() {{\n{}}}\n\n", "    call();\n".repeat(50));
        let pieces = split(TextKind::Code, function.repeat(3).as_bytes());
        assert_eq!(pieces.len(), 3);
        assert!(pieces.iter().all(|piece| piece.text.starts_with("fn f()")));
    }

    #[test]
    fn what_is_no_text_becomes_no_control_characters() {
        let pieces = split(TextKind::Plain, b"a\x1b[31mb\xff\xfec\0\r\n\xf0\x9f");
        assert_eq!(pieces[0].text, "a[31mb\u{fffd}\u{fffd}c");
        assert!(split(TextKind::Plain, b"").is_empty());
        assert!(
            split(TextKind::Markdown, b"# \n\n##\n \n\t\n")
                .iter()
                .all(|piece| piece.text == "#\n\n##")
        );
    }
}
