//! Text to token ids and back: the tokenizer, each token's bytes, and the chat template.
//!
//! Works from the bytes of `tokenizer.json` and `tokenizer_config.json`, or of RWKV's vocabulary. Ids are those that
//! Hugging Face's library gives, with one difference: strings such as `<|eot_id|>` are
//! control tokens only where the chat template writes them. In a user's text they are text.
//!
//! Files from strangers decide how much memory and time parsing, rendering and tokenizing take, and the libraries
//! have no bounds for either. So a daemon lets a process of its own do that ([`Tokenizer::apart`]), and keeps
//! tables alone.

mod chat;
mod clock;
mod coder;
mod config;
mod control;
mod conversation;
mod error;
mod expression_size;
pub mod grammar;
mod grammar_session;
pub mod limits;
mod pieces;
pub mod process;
mod vocabulary;
mod world;

use std::{ops::Range, path::Path};

use coder::{IdWithOffsets, TextCoder};
pub use conversation::{Conversation, ConversationMessage};
pub use error::{LimitReached, TokenizerError};
use grammar::{AllowedTokens, Grammar};
pub use grammar_session::GrammarSession;
use process::{TextProcess, client::ProcessSession, message::SessionKind};
pub use sluice_apart::Patience;
use vocabulary::Vocabulary;

/// The files that a tokenizer is built from.
#[derive(Debug, Clone, Copy)]
pub struct TokenizerFiles<'a> {
    /// `tokenizer.json` as Hugging Face writes it, or `rwkv_vocab_v20230424.txt`.
    pub tokenizer: &'a [u8],
    /// `tokenizer_config.json`, for the chat template and the names of special tokens.
    pub config: Option<&'a [u8]>,
    /// `chat_template.jinja`, which goes before the template of `tokenizer_config.json`.
    pub template: Option<&'a [u8]>,
}

/// A checkpoint's tokenizer and chat template.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    place: Place,
}

/// Where text is tokenized.
enum Place {
    /// In this process, without bounds: for files that are trusted.
    Here(Box<TextCoder>),
    /// In a process of its own.
    Apart(TextProcess),
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Tokenizer")
            .field("vocabulary", &self.vocab_size())
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// A tokenizer in this process, for files that are trusted: what they make of memory and time is not bounded.
    pub fn new(
        tokenizer_json: &[u8],
        tokenizer_config: Option<&[u8]>,
    ) -> Result<Self, TokenizerError> {
        Self::here(&TokenizerFiles {
            tokenizer: tokenizer_json,
            config: tokenizer_config,
            template: None,
        })
    }

    /// As [`Tokenizer::new`], from all files.
    pub fn here(files: &TokenizerFiles<'_>) -> Result<Self, TokenizerError> {
        let (coder, vocabulary) = TextCoder::new(files)?;
        Ok(Self {
            vocabulary,
            place: Place::Here(Box::new(coder)),
        })
    }

    /// A tokenizer in a process of its own, which `program` becomes when it is started with [`process::ARGUMENT`]. Memory
    /// and time are [bounded](limits) for the parsing of the files and for each session.
    pub fn apart(
        program: &Path,
        files: &TokenizerFiles<'_>,
        patience: &Patience,
    ) -> Result<Self, TokenizerError> {
        let (process, vocabulary) = TextProcess::start(program, files, patience)?;
        Ok(Self {
            vocabulary,
            place: Place::Apart(process),
        })
    }

    /// Begins to tokenize for one request. Memory and time are those of all that is done in the session.
    ///
    /// # Errors
    /// When the tokenizer's process cannot be reached or started again.
    pub fn session(&self, patience: &Patience) -> Result<TokenizerSession<'_>, TokenizerError> {
        let place = match &self.place {
            Place::Here(coder) => SessionPlace::Here(coder),
            Place::Apart(process) => {
                SessionPlace::Apart(process.session(SessionKind::Text, patience)?)
            }
        };
        Ok(TokenizerSession {
            vocabulary: &self.vocabulary,
            place,
        })
    }

    /// Compiles a grammar for a text of its own; with the tokens that the text may begin with.
    ///
    /// # Errors
    /// When there is something wrong with the grammar, it takes more than it may, or there is no process that bounds it.
    pub fn compile(
        &self,
        grammar: &Grammar,
        patience: &Patience,
    ) -> Result<(GrammarSession, AllowedTokens), TokenizerError> {
        let Place::Apart(process) = &self.place else {
            let problem = "grammars are compiled in a process of their own alone";
            return Err(TokenizerError::process(problem));
        };
        let session = process.session(SessionKind::Grammar, patience)?;
        let mut session = GrammarSession::new(session);
        let allowed = session.compile(grammar)?;
        Ok((session, allowed))
    }

    /// [`TokenizerSession::encode`] in a session of its own.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.session(&Patience::default())?.encode(text)
    }

    /// [`TokenizerSession::encode_with_spans`] in a session of its own.
    pub fn encode_with_spans(
        &self,
        text: &str,
    ) -> Result<Vec<(u32, Range<usize>)>, TokenizerError> {
        self.session(&Patience::default())?.encode_with_spans(text)
    }

    /// [`TokenizerSession::encode_chat`] of (role, content) turns, in a session of its own.
    pub fn encode_chat(&self, turns: &[(&str, &str)]) -> Result<Vec<u32>, TokenizerError> {
        self.session(&Patience::default())?
            .encode_chat(Conversation::of(turns))
    }

    /// Whether the checkpoint has a chat template of its own.
    pub fn has_chat_template(&self) -> bool {
        self.vocabulary.template.is_own
    }

    /// Whether the chat template has a place for functions that the model may call.
    pub fn takes_tools(&self) -> bool {
        self.vocabulary.template.takes_tools
    }

    /// Ids that the tokenizer puts before every text, such as the token for its beginning.
    pub fn bos_tokens(&self) -> &[u32] {
        &self.vocabulary.frame.before
    }

    /// Ids that the tokenizer puts behind every text, such as the token for its end.
    pub fn end_tokens(&self) -> &[u32] {
        &self.vocabulary.frame.behind
    }

    /// The id that stands for what the vocabulary has no token for.
    pub fn unknown_token(&self) -> Option<u32> {
        self.vocabulary.frame.unknown
    }

    /// Bytes of a token; empty for special ones and unknown ids. May be part of a character.
    pub fn piece(&self, id: u32) -> &[u8] {
        self.vocabulary.pieces.get(id)
    }

    /// Bytes of the longest token: so many tokens stand for so many times these bytes at most.
    pub fn longest_piece(&self) -> usize {
        self.vocabulary.longest_piece()
    }

    /// The pieces of all ids, one after another.
    pub fn decode(&self, ids: &[u32]) -> Vec<u8> {
        self.vocabulary.decode(ids)
    }

    /// The text of the ids with special tokens spelled out, for showing a prompt as the
    /// model sees it.
    pub fn decode_with_specials(&self, ids: &[u32]) -> Vec<u8> {
        let spell = |id| {
            let control = self.vocabulary.control.get(id);
            control.map_or(self.piece(*id), |string| string.as_bytes())
        };
        ids.iter().flat_map(spell).copied().collect()
    }

    /// The id of a token by its text, or by its string where it is a control token.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.vocabulary.id(token)
    }

    /// Highest id + 1.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.pieces.len()
    }
}

/// What one request has tokenized. Dropping it ends what is still under way.
pub struct TokenizerSession<'a> {
    vocabulary: &'a Vocabulary,
    place: SessionPlace<'a>,
}

enum SessionPlace<'a> {
    Here(&'a TextCoder),
    Apart(ProcessSession),
}

impl TokenizerSession<'_> {
    /// Ids of plain text: special tokens' strings in it are not special.
    pub fn encode(&mut self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        match &mut self.place {
            SessionPlace::Here(coder) => coder.encode(text),
            SessionPlace::Apart(session) => session.encode(text),
        }
    }

    /// As [`TokenizerSession::encode`], with the bytes of `text` that each token covers.
    pub fn encode_with_spans(
        &mut self,
        text: &str,
    ) -> Result<Vec<(u32, Range<usize>)>, TokenizerError> {
        let tokens: Vec<IdWithOffsets> = match &mut self.place {
            SessionPlace::Here(coder) => coder.encode_with_offsets(text)?,
            SessionPlace::Apart(session) => session.encode_with_offsets(text)?,
        };
        let ids: Vec<u32> = tokens.iter().map(|&(id, _)| id).collect();
        if self.vocabulary.decode(&ids) == text.as_bytes() {
            // The library gives each part of a split character the whole character's bytes.
            let mut end = 0;
            return Ok(ids
                .iter()
                .map(|&id| {
                    let start = end;
                    end += self.vocabulary.pieces.get(id).len();
                    (id, start..end)
                })
                .collect());
        }
        // The tokenizer changed the text (it normalizes, or drops spaces), so only its own offsets are left.
        let spans = tokens
            .into_iter()
            .map(|(id, (start, end))| (id, start..end));
        Ok(spans.collect())
    }

    /// Renders a conversation through the checkpoint's template (RWKV's or LLaDA's own if it has none), ready for an answer. All
    /// of its texts stay plain text.
    pub fn encode_chat(&mut self, chat: Conversation) -> Result<Vec<u32>, TokenizerError> {
        match &mut self.place {
            SessionPlace::Here(coder) => coder.encode_chat(&chat),
            SessionPlace::Apart(session) => session.encode_chat(chat),
        }
    }
}

#[cfg(test)]
mod tests;
