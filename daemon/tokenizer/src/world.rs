//! RWKV's world tokenizer: of all tokens that a text goes on with, the longest is next. Tokens are bytes, and may be
//! parts of characters.
//!
//! Hugging Face's library has no such model: its `WordPiece` takes the longest as well, but tries all lengths of the rest
//! of a text for each token.
//!
//! Reference: BlinkDL/ChatRWKV, tokenizer/rwkv_tokenizer.py.

mod literal;

use std::str;

use super::{
    error::TokenizerError,
    limits::{ID_MAX, WORLD_TOKEN_BYTES_MAX},
};

/// Id of the token that ends a text. The file has no line for it.
pub(super) const END_OF_TEXT: u32 = 0;
/// What templates call it where no configuration names it.
pub(super) const END_OF_TEXT_STRING: &str = "<|rwkv_tokenizer_end_of_text|>";

/// The tokens of a vocabulary file: lines of an id, the token as a literal of Python, and its bytes.
pub(super) struct WorldVocabulary {
    bytes: Vec<u8>,
    /// In the order of their bytes, so that tokens with a common beginning lie together.
    tokens: Vec<Token>,
    /// Where tokens with this first byte begin in `tokens`, and the end of all.
    first_bytes: Vec<usize>,
}

#[derive(Clone, Copy)]
struct Token {
    id: u32,
    start: u32,
    len: u32,
}

/// Whether a tokenizer's file is such a vocabulary: others are JSON.
pub(super) fn is_world(file: &[u8]) -> bool {
    file.first().is_some_and(u8::is_ascii_digit)
}

impl WorldVocabulary {
    pub(super) fn parse(file: &[u8]) -> Result<Self, TokenizerError> {
        let text = str::from_utf8(file).map_err(TokenizerError::world)?;
        let mut vocabulary = Self {
            bytes: Vec::new(),
            tokens: Vec::new(),
            first_bytes: Vec::new(),
        };
        for (index, line) in text.lines().enumerate() {
            let added = vocabulary.add(line);
            added.map_err(|cause| {
                TokenizerError::world(format_args!("line {}: {cause}", index + 1))
            })?;
        }
        vocabulary.sort()
    }

    /// Adds the token of a line.
    fn add(&mut self, line: &str) -> Result<(), String> {
        let parts = line.split_once(' ').and_then(|(id, rest)| {
            let (literal, len) = rest.rsplit_once(' ')?;
            Some((id.parse::<u32>().ok()?, literal, len.parse::<usize>().ok()?))
        });
        let (id, literal, len) = parts.ok_or("it is no id, token and length")?;
        if id == END_OF_TEXT || id > ID_MAX {
            return Err(format!("the id {id} is not from 1 to {ID_MAX}"));
        }
        let start = self.bytes.len();
        literal::push(literal, &mut self.bytes)?;
        let found = self.bytes.len() - start;
        if found != len || found == 0 {
            return Err(format!("the token has {found} bytes, not {len}"));
        }
        if found > WORLD_TOKEN_BYTES_MAX {
            return Err(format!(
                "the token has {found} bytes, more than the limit of {WORLD_TOKEN_BYTES_MAX}"
            ));
        }
        self.tokens.push(Token {
            id,
            start: u32::try_from(start).map_err(|_| "there are too many bytes".to_owned())?,
            len: found as u32,
        });
        Ok(())
    }

    fn sort(mut self) -> Result<Self, TokenizerError> {
        let bytes = &self.bytes;
        let of = |token: &Token| &bytes[token.start as usize..][..token.len as usize];
        // By id as well, so that of two ids for one token the same is taken each time.
        self.tokens
            .sort_unstable_by(|a, b| (of(a), a.id).cmp(&(of(b), b.id)));
        if let Some(pair) = self
            .tokens
            .windows(2)
            .find(|pair| of(&pair[0]) == of(&pair[1]))
        {
            return Err(TokenizerError::world(format_args!(
                "the ids {} and {} are the same token",
                pair[0].id, pair[1].id
            )));
        }
        let mut ids: Vec<u32> = self.tokens.iter().map(|token| token.id).collect();
        ids.sort_unstable();
        if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(TokenizerError::world(format_args!(
                "the id {} is two tokens",
                pair[0]
            )));
        }
        let begins = |byte: usize| {
            self.tokens
                .partition_point(|token| usize::from(of(token)[0]) < byte)
        };
        self.first_bytes = (0..=256).map(begins).collect();
        Ok(self)
    }

    /// All tokens: id and bytes.
    pub(super) fn tokens(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.tokens.iter().map(|token| (token.id, self.of(token)))
    }

    /// Whether a token stands for exactly this text.
    pub(super) fn has(&self, text: &str) -> bool {
        let found = self
            .tokens
            .binary_search_by(|token| self.of(token).cmp(text.as_bytes()));
        found.is_ok()
    }

    /// Ids of a text, and the bytes that each has.
    pub(super) fn encode(&self, text: &[u8]) -> Result<Vec<(u32, usize)>, TokenizerError> {
        let mut tokens = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let token = self.longest(rest).ok_or_else(|| {
                TokenizerError::encode(format_args!("no token begins with byte {:#04x}", rest[0]))
            })?;
            tokens.push((token.id, token.len as usize));
            rest = &rest[token.len as usize..];
        }
        Ok(tokens)
    }

    /// The longest token that a text, which isn't empty, begins with.
    fn longest(&self, text: &[u8]) -> Option<Token> {
        let first = usize::from(text[0]);
        let mut alike = &self.tokens[self.first_bytes[first]..self.first_bytes[first + 1]];
        let mut longest = None;
        // All of `alike` have the first `len` bytes of the text; one that ends there is their first.
        for len in 1..=text.len() {
            longest = alike
                .first()
                .filter(|token| token.len as usize == len)
                .copied()
                .or(longest);
            let Some(next) = text.get(len) else {
                break;
            };
            let byte = |token: &Token| self.of(token).get(len);
            let from = alike.partition_point(|token| byte(token) < Some(next));
            alike = &alike[from..];
            let to = alike.partition_point(|token| byte(token) == Some(next));
            alike = &alike[..to];
            if alike.is_empty() {
                break;
            }
        }
        longest
    }

    fn of(&self, token: &Token) -> &[u8] {
        &self.bytes[token.start as usize..][..token.len as usize]
    }
}

#[cfg(test)]
mod tests;
