//! A text file in pieces of bounded size.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, ensure};

/// The largest piece, in bytes.
const BYTES_MAX: usize = 256 << 10;

/// The pieces of a text in their order. They end at line breaks, where lines are not longer than a piece, so that no word
/// is cut; every character is in one of them.
pub struct Chunks {
    path: PathBuf,
    file: File,
    rest: Vec<u8>,
    /// Bytes of the pieces before.
    taken: usize,
    ended: bool,
}

impl Chunks {
    /// Opens a text, which must have something in it besides white space.
    pub fn open(path: &Path) -> Result<Self> {
        let mut chunks = Self::start(path)?;
        let has_text = chunks.any(|chunk| match chunk {
            Ok(text) => !text.trim().is_empty(),
            // The caller meets the error again.
            Err(_) => true,
        });
        ensure!(has_text, "{} has no text", path.display());
        Self::start(path)
    }

    fn start(path: &Path) -> Result<Self> {
        Ok(Self {
            file: File::open(path).with_context(|| format!("open {}", path.display()))?,
            path: path.to_owned(),
            rest: Vec::new(),
            taken: 0,
            ended: false,
        })
    }

    fn read(&mut self) -> Result<Option<String>> {
        while !self.ended && self.rest.len() < BYTES_MAX {
            let wanted = (BYTES_MAX - self.rest.len()) as u64;
            let count = Read::by_ref(&mut self.file)
                .take(wanted)
                .read_to_end(&mut self.rest)
                .with_context(|| format!("read {}", self.path.display()))?;
            self.ended = count == 0;
        }
        if self.rest.is_empty() {
            return Ok(None);
        }
        let cut = if self.ended {
            self.rest.len()
        } else {
            let line = self.rest.iter().rposition(|byte| *byte == b'\n');
            let space = || self.rest.iter().rposition(|byte| *byte == b' ');
            // Before the space, which belongs to the word behind it; failing both, before the last character.
            let character = || self.rest.iter().rposition(|byte| byte & 0xc0 != 0x80);
            line.map(|line| line + 1)
                .or_else(|| space().filter(|space| *space > 0))
                .or_else(|| character().filter(|character| *character > 0))
                .unwrap_or(self.rest.len())
        };
        let after = self.rest.split_off(cut);
        let bytes = std::mem::replace(&mut self.rest, after);
        let length = bytes.len();
        let text = String::from_utf8(bytes).map_err(|error| {
            let place = self.taken + error.utf8_error().valid_up_to();
            anyhow!("{} is not UTF-8 text at byte {place}", self.path.display())
        })?;
        self.taken += length;
        Ok(Some(text))
    }
}

impl Iterator for Chunks {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_bounded_and_lose_nothing() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("text");
        let lines: String = (0..60_000)
            .map(|number| format!("line {number}\n"))
            .collect();
        for text in [
            lines,
            "größer".repeat(100_000),
            "two words ".repeat(100_000),
        ] {
            std::fs::write(&path, &text).expect("write");
            let pieces = Chunks::open(&path).expect("open");
            let pieces = pieces.collect::<Result<Vec<_>>>().expect("pieces");
            assert!(pieces.len() > 1 && pieces.iter().all(|piece| piece.len() <= BYTES_MAX));
            assert_eq!(pieces.concat(), text);
        }
    }
}
