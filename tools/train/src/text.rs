//! A text of one's own as training data: encoded once into a file of token ids, from which pieces are read, so neither
//! the text nor its tokens have to fit into memory. The end of the text is held out.

mod chunks;

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

pub use self::chunks::Chunks;
use crate::{file, vocabulary::Vocabulary};

/// The file of token ids in the output folder: 32 bits each, little-endian.
pub const TOKENS_NAME: &str = "tokens.bin";
const FACTS_NAME: &str = "tokens.json";

/// What a run's text is, for a checkpoint to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextFacts {
    /// A hash of text and tokenizer.
    pub fingerprint: u64,
    /// Tokens in all.
    pub tokens: u64,
    /// Of these, the last so many are held out.
    pub held_out_tokens: u64,
}

impl TextFacts {
    /// Tokens that are trained on.
    #[must_use]
    pub fn training_tokens(&self) -> u64 {
        self.tokens - self.held_out_tokens
    }
}

/// Which text, and how much of it is held out.
#[derive(Debug, Clone, PartialEq)]
pub struct TextOptions {
    /// A file of UTF-8 text.
    pub path: PathBuf,
    /// The share at the end that is held out, from 0 to 1.
    pub held_out_share: f64,
}

/// What batches are drawn from.
pub struct Data {
    /// The tokenizer.
    pub vocabulary: Vocabulary,
    /// The text; without one the story language of [`crate::corpus`].
    pub text: Option<TokenFile>,
}

impl From<Vocabulary> for Data {
    fn from(vocabulary: Vocabulary) -> Self {
        Self {
            vocabulary,
            text: None,
        }
    }
}

/// [`Data`], borrowed.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The tokenizer.
    pub vocabulary: &'a Vocabulary,
    /// The text, if there is one.
    pub text: Option<&'a TokenFile>,
}

impl<'a> From<&'a Vocabulary> for Source<'a> {
    fn from(vocabulary: &'a Vocabulary) -> Self {
        Self {
            vocabulary,
            text: None,
        }
    }
}

impl<'a> From<&'a Data> for Source<'a> {
    fn from(data: &'a Data) -> Self {
        Self {
            vocabulary: &data.vocabulary,
            text: data.text.as_ref(),
        }
    }
}

/// An encoded text.
pub struct TokenFile {
    file: File,
    facts: TextFacts,
}

impl TokenFile {
    /// Encodes a text into the output folder of a run, unless it is there already.
    ///
    /// Both its parts must have pieces of `length` tokens; nothing is put in the place of text that is missing.
    pub fn open(
        folder: &Path,
        options: &TextOptions,
        vocabulary: &Vocabulary,
        length: usize,
    ) -> Result<Self> {
        ensure!(
            options.held_out_share > 0.0 && options.held_out_share < 1.0,
            "the held-out share of a text must lie between 0 and 1, not {}",
            options.held_out_share
        );
        let fingerprint = fingerprint(&options.path, vocabulary)?;
        let (path, facts_path) = (folder.join(TOKENS_NAME), folder.join(FACTS_NAME));
        let found = fs::read(&facts_path).ok();
        let found = found.and_then(|bytes| serde_json::from_slice::<TextFacts>(&bytes).ok());
        let tokens = match found {
            Some(facts) if facts.fingerprint == fingerprint && path.exists() => facts.tokens,
            _ => encode(&options.path, vocabulary, &path)?,
        };
        let held_out_tokens = (tokens as f64 * options.held_out_share).ceil() as u64;
        let facts = TextFacts {
            fingerprint,
            tokens,
            held_out_tokens,
        };
        file::replace(&facts_path, serde_json::to_vec(&facts)?)?;
        // A piece is read with the token after it.
        let least = length as u64 + 1;
        ensure!(
            facts.training_tokens() >= least && held_out_tokens >= least,
            "{} is too short: {} tokens to train on and {held_out_tokens} held out, where {least} of each are needed\n\
             give a longer text, a shorter --sequence-length or another --held-out-share",
            options.path.display(),
            facts.training_tokens()
        );
        let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
        Ok(Self { file, facts })
    }

    /// Length and parts of the text.
    #[must_use]
    pub fn facts(&self) -> &TextFacts {
        &self.facts
    }

    /// `length` tokens from a place on.
    pub fn read(&self, start: u64, length: usize) -> Result<Vec<u32>> {
        let mut bytes = vec![0; 4 * length];
        self.file
            .read_exact_at(&mut bytes, 4 * start)
            .context("read tokens of the text")?;
        let ids = bytes.chunks_exact(4);
        let ids = ids.map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]));
        Ok(ids.collect())
    }

    /// Up to `count` pieces of the held-out part, spread evenly over it and without overlap.
    pub fn held_out(&self, count: u64, length: usize) -> Result<Vec<Vec<u32>>> {
        let room = self.facts.held_out_tokens / length as u64;
        let count = count.min(room);
        let start = self.facts.training_tokens();
        let pieces = (0..count).map(|index| {
            let piece = index * room / count;
            self.read(start + piece * length as u64, length)
        });
        pieces.collect()
    }
}

/// FNV-1a over the text and the tokenizer, which together decide the tokens.
fn fingerprint(path: &Path, vocabulary: &Vocabulary) -> Result<u64> {
    let mix = |hash: u64, bytes: &[u8]| {
        bytes.iter().fold(hash, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
    };
    let mut hash = mix(0xcbf2_9ce4_8422_2325, vocabulary.to_json()?.as_bytes());
    for chunk in Chunks::open(path)? {
        hash = mix(hash, chunk?.as_bytes());
    }
    Ok(hash)
}

/// Writes the ids of a text, and tells how many they are.
fn encode(text: &Path, vocabulary: &Vocabulary, path: &Path) -> Result<u64> {
    let temporary = path.with_extension("partial");
    let file =
        File::create(&temporary).with_context(|| format!("create {}", temporary.display()))?;
    let mut writer = BufWriter::new(file);
    let mut tokens = 0;
    for chunk in Chunks::open(text)? {
        for id in vocabulary.encode(&chunk?)? {
            writer.write_all(&id.to_le_bytes())?;
            tokens += 1;
        }
    }
    writer
        .flush()
        .with_context(|| format!("write {}", temporary.display()))?;
    fs::rename(&temporary, path).with_context(|| format!("rename to {}", path.display()))?;
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary() -> Vocabulary {
        Vocabulary::train(1, 400, 100).expect("train")
    }

    fn open(text: &[u8], length: usize) -> Result<TokenFile> {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("text");
        fs::write(&path, text).expect("write");
        let options = TextOptions {
            path,
            held_out_share: 0.25,
        };
        TokenFile::open(folder.path(), &options, &vocabulary(), length)
    }

    #[test]
    fn a_text_is_read_in_pieces_and_its_end_is_held_out() {
        let text: String = (0..4000)
            .map(|number| format!("{number} hedgehogs.\n"))
            .collect();
        let tokens = open(text.as_bytes(), 50).expect("open");
        let facts = *tokens.facts();
        assert_eq!(facts.held_out_tokens, facts.tokens.div_ceil(4));
        let all = tokens.read(0, facts.tokens as usize).expect("read");
        assert_eq!(vocabulary().decode(&all).expect("decode"), text);
        let pieces = tokens.held_out(7, 50).expect("held out");
        assert_eq!(pieces.len(), 7);
        assert_eq!(pieces[0], all[facts.training_tokens() as usize..][..50]);
    }

    #[test]
    fn a_text_that_is_no_use_is_refused() {
        let error = |text: &[u8]| open(text, 50).err().expect("refused").to_string();
        assert!(error(b"").contains("has no text"), "{}", error(b""));
        assert!(error(b" \n\n ").contains("has no text"));
        assert!(error(b"Too short.").contains("is too short"));
        assert!(error(b"\xff\xfe\xff").contains("is not UTF-8"));
        let missing = TextOptions {
            path: PathBuf::from("/nowhere"),
            held_out_share: 0.25,
        };
        assert!(TokenFile::open(Path::new("/"), &missing, &vocabulary(), 50).is_err());
    }
}
