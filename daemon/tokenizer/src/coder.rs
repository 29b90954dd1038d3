//! From text to ids, with Hugging Face's library or RWKV's vocabulary: what takes memory and time that a file decides.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Deserialize;
use tokenizers::normalizer::Range as OffsetRange;
use tokenizers::{
    Encoding, Model as _, ModelWrapper, Normalizer as _, NormalizerWrapper, OffsetReferential,
    OffsetType, PreTokenizedString, PreTokenizer as _, Token, Tokenizer as HfTokenizer,
};

use super::{
    TokenizerFiles,
    chat::ChatTemplate,
    config::TokenizerConfig,
    control::{self, ControlTokens},
    conversation::{Conversation, TemplateInput},
    error::TokenizerError,
    pieces::TokenPieces,
    vocabulary::{TextFrame, Vocabulary},
    world::{self, END_OF_TEXT, WorldVocabulary},
};

/// The tokenizer and the chat template.
pub(super) struct TextCoder {
    encoder: Encoder,
    control_tokens: ControlTokens,
    template: ChatTemplate,
}

/// What text becomes ids by.
enum Encoder {
    Library(Box<HfTokenizer>),
    World(WorldVocabulary),
}

/// An id, and the bytes of the text that the library says it covers.
pub(super) type IdWithOffsets = (u32, (usize, usize));

impl TextCoder {
    /// Parses the files, and lists what is needed of the vocabulary without them.
    pub(super) fn new(files: &TokenizerFiles<'_>) -> Result<(Self, Vocabulary), TokenizerError> {
        let mut config = files
            .config
            .map(TokenizerConfig::parse)
            .transpose()?
            .unwrap_or_default();
        if let Some(template) = files.template {
            config.set_template(template)?;
        }
        let (coder, pieces) = match world::is_world(files.tokenizer) {
            true => Self::of_world(files.tokenizer, &config)?,
            false => Self::of_library(files.tokenizer, &config)?,
        };
        let vocabulary = Vocabulary::new(
            pieces,
            coder.control_tokens.strings(),
            coder.frame()?,
            coder.template.uses(),
        );
        Ok((coder, vocabulary))
    }

    fn of_library(
        json: &[u8],
        config: &TokenizerConfig,
    ) -> Result<(Self, TokenPieces), TokenizerError> {
        let tokenizer = parse_tokenizer(json)?;
        let control_tokens = ControlTokens::new(&tokenizer, config)?;
        let pieces = TokenPieces::new(&tokenizer, |id| control_tokens.contains(id))?;
        let template = ChatTemplate::new(config, |token| tokenizer.token_to_id(token).is_some())?;
        let coder = Self {
            encoder: Encoder::Library(tokenizer.into()),
            control_tokens,
            template,
        };
        Ok((coder, pieces))
    }

    fn of_world(
        file: &[u8],
        config: &TokenizerConfig,
    ) -> Result<(Self, TokenPieces), TokenizerError> {
        let world = WorldVocabulary::parse(file)?;
        let pieces = TokenPieces::of_world(&world)?;
        let coder = Self {
            control_tokens: ControlTokens::of_world(&world, config)?,
            encoder: Encoder::World(world),
            template: ChatTemplate::of_world(config)?,
        };
        Ok((coder, pieces))
    }

    /// Ids of plain text: special tokens' strings in it are not special.
    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let tokens = self.encode_with_offsets(text)?;
        Ok(tokens.into_iter().map(|(id, _)| id).collect())
    }

    /// As [`TextCoder::encode`], with the library's offsets.
    pub(super) fn encode_with_offsets(
        &self,
        text: &str,
    ) -> Result<Vec<IdWithOffsets>, TokenizerError> {
        self.tokenize(text, &self.control_tokens.breaks(text))
    }

    /// Renders a conversation through the template, ready for an answer. All of its texts stay plain text.
    pub(super) fn encode_chat(&self, chat: &Conversation) -> Result<Vec<u32>, TokenizerError> {
        let input = TemplateInput::of(chat).map_err(TokenizerError::encode)?;
        // With all 32 marks in use, U+FDD0, which no text needs, is removed from the texts.
        let mark = control::free_mark(|mark| input.has_char(mark));
        let mark_text = |text: &str| match mark {
            Some(mark) => self.control_tokens.mark(text, mark),
            None => self
                .control_tokens
                .mark(&text.replace(LAST_RESORT, ""), LAST_RESORT),
        };
        let rendered = self.template.render(input.with_texts(&mark_text))?;
        let (text, breaks) = control::unmark(&rendered, mark.unwrap_or(LAST_RESORT));
        let tokens = self.tokenize(&text, &breaks)?;
        Ok(tokens.into_iter().map(|(id, _)| id).collect())
    }

    /// What the tokenizer adds to a text, such as the token for its beginning.
    // Found by encoding a text: post-processors differ, and which of them add tokens is not declared.
    fn frame(&self) -> Result<TextFrame, TokenizerError> {
        let Encoder::Library(tokenizer) = &self.encoder else {
            return Ok(TextFrame::default());
        };
        let encode = || tokenizer.encode("a", true);
        let encoding = guarded(encode).map_err(TokenizerError::encode)?;
        let ids = encoding.get_ids();
        let is_own = |special: &u32| *special == 0;
        let own = encoding.get_special_tokens_mask();
        let first = own.iter().position(is_own).unwrap_or(ids.len());
        let end = own
            .iter()
            .rposition(is_own)
            .map_or(ids.len(), |last| last + 1);
        let unknown = match tokenizer.get_model() {
            ModelWrapper::WordPiece(model) => Some(&model.unk_token),
            ModelWrapper::WordLevel(model) => Some(&model.unk_token),
            ModelWrapper::BPE(model) => model.unk_token.as_ref(),
            ModelWrapper::Unigram(_) => None,
        };
        Ok(TextFrame {
            before: ids[..first].to_vec(),
            behind: ids[end..].to_vec(),
            unknown: unknown.and_then(|token| tokenizer.token_to_id(token)),
        })
    }

    /// Ids with offsets, where a control token across one of `breaks` is text.
    fn tokenize(&self, text: &str, breaks: &[usize]) -> Result<Vec<IdWithOffsets>, TokenizerError> {
        match &self.encoder {
            Encoder::Library(tokenizer) => {
                let encoding = self.tokenize_by_library(tokenizer, text, breaks)?;
                let ids = encoding.get_ids().iter().copied();
                Ok(ids.zip(encoding.get_offsets().iter().copied()).collect())
            }
            Encoder::World(world) => self.tokenize_by_world(world, text, breaks),
        }
    }

    fn tokenize_by_world(
        &self,
        world: &WorldVocabulary,
        text: &str,
        breaks: &[usize],
    ) -> Result<Vec<IdWithOffsets>, TokenizerError> {
        let hidden = control::hide(text, breaks);
        let mut tokens = Vec::new();
        let mut end = 0;
        let control = self.control_tokens.find(&hidden).map(Some);
        for found in control.chain([None]) {
            let part = end..found.as_ref().map_or(text.len(), |found| found.start);
            for (id, len) in world.encode(&text.as_bytes()[part])? {
                tokens.push((id, (end, end + len)));
                end += len;
            }
            if let Some(found) = found {
                tokens.push((END_OF_TEXT, (found.start, found.end)));
                end = found.end;
            }
        }
        Ok(tokens)
    }

    /// As the library's `encode` (split at added tokens, normalize, split into words, tokenize each), except that an
    /// added token across one of `breaks` is text.
    fn tokenize_by_library(
        &self,
        tokenizer: &HfTokenizer,
        text: &str,
        breaks: &[usize],
    ) -> Result<Encoding, TokenizerError> {
        let run = || -> tokenizers::Result<Encoding> {
            // Added tokens marked `normalized` are looked for in the text as it stands too;
            // that differs only where a normalizer would change their spelling.
            let hidden = control::hide(text, breaks);
            let found = tokenizer
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
            if let Some(normalizer) = tokenizer.get_normalizer() {
                parts.normalize(|part| normalizer.normalize(part))?;
            }
            if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
                pre_tokenizer.pre_tokenize(&mut parts)?;
            }
            parts.tokenize(|word| self.tokenize_word(tokenizer, word.get()))?;
            parts.into_encoding(None, 0, OffsetType::Byte)
        };
        guarded(run).map_err(TokenizerError::encode)
    }

    /// Some vocabularies hold their control strings as ordinary words too; in a user's text those are spelled character
    /// by character.
    fn tokenize_word(&self, tokenizer: &HfTokenizer, word: &str) -> tokenizers::Result<Vec<Token>> {
        let model = tokenizer.get_model();
        let tokens = model.tokenize(word)?;
        let spells_control = |token: &Token| {
            self.control_tokens
                .string(token.id)
                // A string of a single character cannot be spelled in any other way.
                .is_some_and(|string| string == token.value && string.chars().count() > 1)
                // Not where it stands for what the vocabulary lacks, as `[UNK]` does.
                && word.get(token.offsets.0..token.offsets.1) == Some(&token.value)
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
