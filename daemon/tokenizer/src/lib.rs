//! Text to token ids and back: the tokenizer, each token's bytes, and the chat template.
//!
//! Works from the bytes of `tokenizer.json` and `tokenizer_config.json`. Ids are those that
//! Hugging Face's library gives, with one difference: strings such as `<|eot_id|>` are
//! control tokens only where the chat template writes them. In a user's text they are text.

mod chat;
mod clock;
mod config;
mod control;
mod error;
mod pieces;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use chat::ChatTemplate;
use config::TokenizerConfig;
use control::ControlTokens;
pub use error::TokenizerError;
use pieces::TokenPieces;
use serde::Deserialize;
use tokenizers::normalizer::Range as OffsetRange;
use tokenizers::{
    Encoding, Model as _, Normalizer as _, NormalizerWrapper, OffsetReferential, OffsetType,
    PreTokenizedString, PreTokenizer as _, Token, Tokenizer as HfTokenizer,
};

/// A checkpoint's tokenizer and chat template.
pub struct Tokenizer {
    tokenizer: HfTokenizer,
    control_tokens: ControlTokens,
    pieces: TokenPieces,
    template: ChatTemplate,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Text")
            .field("vocabulary", &self.vocab_size())
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// `tokenizer_json` as Hugging Face writes it; `tokenizer_config` for the chat template
    /// and the names of special tokens.
    pub fn new(
        tokenizer_json: &[u8],
        tokenizer_config: Option<&[u8]>,
    ) -> Result<Self, TokenizerError> {
        Self::with_template(tokenizer_json, tokenizer_config, None)
    }

    /// The same, with the chat template of a file of its own, which goes before that of `tokenizer_config`.
    pub fn with_template(
        tokenizer_json: &[u8],
        tokenizer_config: Option<&[u8]>,
        template: Option<&[u8]>,
    ) -> Result<Self, TokenizerError> {
        let mut config = tokenizer_config
            .map(TokenizerConfig::parse)
            .transpose()?
            .unwrap_or_default();
        if let Some(template) = template {
            config.set_template(template)?;
        }
        let tokenizer = parse_tokenizer(tokenizer_json)?;
        let control = ControlTokens::new(&tokenizer, &config);
        let pieces = TokenPieces::new(&tokenizer, |id| control.contains(id))?;
        let template = ChatTemplate::new(&config, |token| tokenizer.token_to_id(token).is_some())?;
        Ok(Self {
            tokenizer,
            control_tokens: control,
            pieces,
            template,
        })
    }

    /// Ids of plain text: special tokens' strings in it are not special.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        Ok(self
            .tokenize(text, &self.control_tokens.breaks(text))?
            .get_ids()
            .to_vec())
    }

    /// As [`Tokenizer::encode`], with the bytes of `text` that each token covers.
    pub fn encode_with_spans(
        &self,
        text: &str,
    ) -> Result<Vec<(u32, Range<usize>)>, TokenizerError> {
        let encoding = self.tokenize(text, &self.control_tokens.breaks(text))?;
        let ids = encoding.get_ids();
        if self.decode(ids) == text.as_bytes() {
            // The library gives each part of a split character the whole character's bytes.
            let mut end = 0;
            return Ok(ids
                .iter()
                .map(|&id| {
                    let start = end;
                    end += self.piece(id).len();
                    (id, start..end)
                })
                .collect());
        }
        // The tokenizer changed the text (it normalizes, or drops spaces), so only its own offsets are left.
        Ok(ids
            .iter()
            .zip(encoding.get_offsets())
            .map(|(&id, &(start, end))| (id, start..end))
            .collect())
    }

    /// Renders (role, content) turns through the checkpoint's template (LLaDA's own if it
    /// has none), ready for an answer. Roles and contents stay plain text.
    pub fn encode_chat(&self, turns: &[(&str, &str)]) -> Result<Vec<u32>, TokenizerError> {
        let texts = turns.iter().flat_map(|&(role, content)| [role, content]);
        // With all 32 marks in use, U+FDD0, which no text needs, is removed from the texts.
        let mark = control::free_mark(texts);
        let mark_text = |text: &str| match mark {
            Some(mark) => self.control_tokens.mark(text, mark),
            None => self
                .control_tokens
                .mark(&text.replace(LAST_RESORT, ""), LAST_RESORT),
        };
        let marked: Vec<(String, String)> = turns
            .iter()
            .map(|&(role, content)| (mark_text(role), mark_text(content)))
            .collect();

        let turns = marked
            .iter()
            .map(|(role, content)| (role.as_str(), content.as_str()));
        let rendered = self.template.render(turns)?;
        let (text, breaks) = control::unmark(&rendered, mark.unwrap_or(LAST_RESORT));
        Ok(self.tokenize(&text, &breaks)?.get_ids().to_vec())
    }

    /// Whether the checkpoint has a chat template of its own.
    pub fn has_chat_template(&self) -> bool {
        self.template.is_own()
    }

    /// Ids that the tokenizer puts before every text, such as the token for its beginning.
    // Found by encoding a text: post-processors differ, and which of them add tokens is not declared.
    pub fn bos_tokens(&self) -> Result<Vec<u32>, TokenizerError> {
        let encode = || self.tokenizer.encode("a", true);
        let encoding = guarded(encode).map_err(TokenizerError::encode)?;
        let pairs = encoding
            .get_ids()
            .iter()
            .zip(encoding.get_special_tokens_mask());
        let leading = pairs.take_while(|(_, special)| **special == 1);
        Ok(leading.map(|(id, _)| *id).collect())
    }

    /// Bytes of a token; empty for special ones and unknown ids. May be part of a character.
    pub fn piece(&self, id: u32) -> &[u8] {
        self.pieces.get(id)
    }

    /// The pieces of all ids, one after another.
    pub fn decode(&self, ids: &[u32]) -> Vec<u8> {
        ids.iter().flat_map(|&id| self.piece(id)).copied().collect()
    }

    /// The text of the ids with special tokens spelled out, for showing a prompt as the
    /// model sees it.
    pub fn decode_with_specials(&self, ids: &[u32]) -> Vec<u8> {
        let spell = |&id| {
            self.control_tokens
                .string(id)
                .map_or(self.piece(id), str::as_bytes)
        };
        ids.iter().flat_map(spell).copied().collect()
    }

    /// The id of a token, special or not, by its string in the vocabulary.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// Highest id + 1.
    pub fn vocab_size(&self) -> usize {
        self.pieces.len()
    }

    /// As the library's `encode` (split at added tokens, normalize, split into words, tokenize each), except that an
    /// added token across one of `breaks` is text.
    fn tokenize(&self, text: &str, breaks: &[usize]) -> Result<Encoding, TokenizerError> {
        let run = || -> tokenizers::Result<Encoding> {
            // Added tokens marked `normalized` are looked for in the text as it stands too;
            // that differs only where a normalizer would change their spelling.
            let hidden = control::hide(text, breaks);
            let found = self
                .tokenizer
                .get_added_vocabulary()
                .extract_and_normalize::<NormalizerWrapper>(None, &hidden);
            let cuts = found.get_splits(OffsetReferential::Original, OffsetType::Byte);

            let mut parts = PreTokenizedString::from(text);
            parts.split(|_, whole| {
                cuts.iter()
                    .map(|&(_, (start, end), added)| {
                        let slice = whole
                            // Nothing is normalized yet, so both ranges are one; this one is looked
                            // up directly instead of searched for from the start.
                            .slice(OffsetRange::Normalized(start..end))
                            .ok_or("a split off a character")?;
                        Ok((slice, added.clone()))
                    })
                    .collect::<tokenizers::Result<Vec<_>>>()
            })?;
            // In the library's order from here on: parts that are added tokens already are left alone by each step.
            if let Some(normalizer) = self.tokenizer.get_normalizer() {
                parts.normalize(|part| normalizer.normalize(part))?;
            }
            if let Some(pre_tokenizer) = self.tokenizer.get_pre_tokenizer() {
                pre_tokenizer.pre_tokenize(&mut parts)?;
            }
            parts.tokenize(|word| self.tokenize_word(word.get()))?;
            parts.into_encoding(None, 0, OffsetType::Byte)
        };
        guarded(run).map_err(TokenizerError::encode)
    }

    /// Some vocabularies hold their control strings as ordinary words too; in a user's text those are spelled character
    /// by character.
    fn tokenize_word(&self, word: &str) -> tokenizers::Result<Vec<Token>> {
        let model = self.tokenizer.get_model();
        let tokens = model.tokenize(word)?;
        let spells_control = |token: &Token| {
            self.control_tokens
                .string(token.id)
                // A string of a single character cannot be spelled in any other way.
                .is_some_and(|string| string == token.value && string.chars().count() > 1)
        };
        if !tokens.iter().any(spells_control) {
            return Ok(tokens);
        }
        let mut spelled = Vec::new();
        for token in tokens {
            if !spells_control(&token) {
                spelled.push(token);
                continue;
            }
            let (start, end) = token.offsets;
            for (at, character) in word[start..end].char_indices() {
                // Offsets of the part are within the character.
                let at = start + at;
                for mut part in model.tokenize(character.encode_utf8(&mut [0; 4]))? {
                    part.offsets = (at + part.offsets.0, at + part.offsets.1);
                    spelled.push(part);
                }
            }
        }
        Ok(spelled)
    }
}

const LAST_RESORT: char = '\u{FDD0}';

fn parse_tokenizer(json: &[u8]) -> Result<HfTokenizer, TokenizerError> {
    #[derive(Deserialize)]
    struct Declared {
        #[serde(default)]
        added_tokens: Vec<DeclaredToken>,
    }
    #[derive(Deserialize)]
    struct DeclaredToken {
        id: u32,
        content: String,
    }

    let declared: Declared = serde_json::from_slice(json).map_err(TokenizerError::tokenizer)?;
    let mut tokenizer =
        guarded(|| HfTokenizer::from_bytes(json)).map_err(TokenizerError::tokenizer)?;
    // The library assigns ids to added tokens itself, and would silently go on with other ids than the checkpoint was
    // trained with.
    for DeclaredToken { id, content } in declared.added_tokens {
        match tokenizer.token_to_id(&content) {
            Some(given) if given == id => {}
            given => {
                let given = given.map_or("none".to_owned(), |given| given.to_string());
                return Err(TokenizerError::tokenizer(format_args!(
                    "added token {content:?} is declared with id {id}, but the vocabulary has it under id {given}"
                )));
            }
        }
    }
    // A file may ask for every text to be cut or padded to some length.
    tokenizer
        .with_truncation(None)
        .map_err(TokenizerError::tokenizer)?;
    tokenizer.with_padding(None);
    Ok(tokenizer)
}

/// The library panics on some broken files; that must not take the caller's thread along.
fn guarded<T>(run: impl FnOnce() -> tokenizers::Result<T>) -> tokenizers::Result<T> {
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|_| Err("the tokenizers library panicked".into()))
}

#[cfg(test)]
mod tests;
