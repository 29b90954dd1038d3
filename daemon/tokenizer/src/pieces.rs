//! What each token id stands for, as bytes: one flat table, built once.

use std::collections::HashMap;

use tokenizers::{DecoderWrapper, PreTokenizerWrapper, Tokenizer as HfTokenizer};

use super::{
    error::TokenizerError,
    limits::{ID_MAX, VOCABULARY_BYTES_MAX},
    world::WorldVocabulary,
};

pub(super) struct TokenPieces {
    bytes: Vec<u8>,
    /// Where each piece ends in `bytes`; it begins where the one before ends.
    ends: Vec<u32>,
}

impl TokenPieces {
    /// `is_special` tells the ids that have no bytes of their own.
    pub(super) fn new(
        tokenizer: &HfTokenizer,
        is_special: impl Fn(u32) -> bool,
    ) -> Result<Self, TokenizerError> {
        let mut tokens: Vec<(u32, String)> = tokenizer
            .get_vocab(true)
            .into_iter()
            .map(|(token, id)| (id, token))
            .collect();
        // By id, then by string: of two strings under one id the same is taken each time, whatever the map's order.
        tokens.sort_unstable();
        let highest = tokens.last().map(|&(id, _)| id);
        let highest =
            highest.ok_or_else(|| TokenizerError::tokenizer("the vocabulary is empty"))?;
        if highest > ID_MAX {
            return Err(TokenizerError::tokenizer(format_args!(
                "token id {highest} exceeds the limit of {ID_MAX}"
            )));
        }

        let spelling = Spelling::of(tokenizer);
        Self::collect(tokens, |(id, token), bytes| {
            if !is_special(*id) {
                spelling.write(token, bytes);
            }
        })
        .map_err(TokenizerError::tokenizer)
    }

    /// The tokens of a world vocabulary.
    pub(super) fn of_world(world: &WorldVocabulary) -> Result<Self, TokenizerError> {
        let mut tokens: Vec<(u32, &[u8])> = world.tokens().collect();
        tokens.sort_unstable();
        Self::collect(tokens, |(_, token), bytes| bytes.extend_from_slice(token))
            .map_err(TokenizerError::world)
    }

    /// A table of tokens in the order of their ids, whose bytes `write` adds.
    fn collect<T>(
        tokens: Vec<(u32, T)>,
        write: impl Fn(&(u32, T), &mut Vec<u8>),
    ) -> Result<Self, String> {
        let mut bytes = Vec::new();
        let mut ends: Vec<u32> = Vec::with_capacity(tokens.len());
        for token in tokens {
            let id_index = token.0 as usize;
            if ends.len() > id_index {
                continue; // a second string under the same id
            }
            // Ids without a token get an empty piece: they end where the one before ends.
            ends.resize(id_index, bytes.len() as u32);
            write(&token, &mut bytes);
            if bytes.len() > VOCABULARY_BYTES_MAX {
                return Err(format!(
                    "the vocabulary's strings exceed {VOCABULARY_BYTES_MAX} bytes"
                ));
            }
            ends.push(bytes.len() as u32);
        }
        Ok(Self { bytes, ends })
    }

    /// The tables, to be sent elsewhere.
    pub(super) fn parts(&self) -> (&[u8], &[u32]) {
        (&self.bytes, &self.ends)
    }

    /// The pieces of such tables; `None` where they don't fit each other.
    pub(super) fn from_parts(bytes: Vec<u8>, ends: Vec<u32>) -> Option<Self> {
        let is_whole =
            ends.is_sorted() && ends.last().map(|&end| end as usize) == Some(bytes.len());
        is_whole.then_some(Self { bytes, ends })
    }

    pub(super) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else {
            return &[];
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// Highest id + 1.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }
}

/// How a vocabulary writes bytes as strings.
enum Spelling {
    /// GPT-2's alphabet: a visible character for each byte.
    ByteLevel(HashMap<char, u8>),
    /// SentencePiece's: `▁` for a space, `<0x0A>` for a byte.
    Sentence,
}

impl Spelling {
    // A decoder says best how bytes are written; some files have none, and only split into bytes.
    fn of(tokenizer: &HfTokenizer) -> Self {
        let byte_level = tokenizer.get_decoder().is_some_and(decodes_bytes)
            || (tokenizer.get_decoder().is_none()
                && tokenizer.get_pre_tokenizer().is_some_and(splits_bytes));
        if byte_level {
            Self::ByteLevel(byte_alphabet().collect())
        } else {
            Self::Sentence
        }
    }

    fn write(&self, token: &str, bytes: &mut Vec<u8>) {
        match self {
            Self::ByteLevel(alphabet) => {
                let start = bytes.len();
                for character in token.chars() {
                    let Some(&byte) = alphabet.get(&character) else {
                        // Added tokens are plain text, and one foreign character shows it.
                        bytes.truncate(start);
                        bytes.extend_from_slice(token.as_bytes());
                        return;
                    };
                    bytes.push(byte);
                }
            }
            Self::Sentence => match byte_token(token) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend_from_slice(token.replace('▁', " ").as_bytes()),
            },
        }
    }
}

fn decodes_bytes(decoder: &DecoderWrapper) -> bool {
    match decoder {
        DecoderWrapper::ByteLevel(_) => true,
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().any(decodes_bytes),
        _ => false,
    }
}

fn splits_bytes(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::ByteLevel(_) => true,
        PreTokenizerWrapper::Sequence(sequence) => sequence.as_ref().iter().any(splits_bytes),
        _ => false,
    }
}

/// `<0x0A>` → 10.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// GPT-2's table (`bytes_to_unicode` in openai/gpt-2 `src/encoder.py`): printable Latin-1
/// stands for itself, the other bytes for 256, 257, … in their order.
pub(super) fn byte_alphabet() -> impl Iterator<Item = (char, u8)> {
    let mut stand_ins = (256..).filter_map(char::from_u32);
    (0..=u8::MAX).map(move |byte| {
        let character = match byte {
            b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
            _ => stand_ins
                .next()
                .expect("there are more characters than bytes"),
        };
        (character, byte)
    })
}
