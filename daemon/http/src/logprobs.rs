//! Log-probabilities of tokens: handed on with the text that the tokens make, and written in each API's shape.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;
use sluice_proto::v1;

use crate::failure::Failure;

/// What OpenAI writes where a probability is 0: JSON has no infinity.
const IMPOSSIBLE: f32 = -9999.0;

/// For how many of the most probable tokens a request asks beside each token's own; `None`: for nothing.
///
/// # Errors
/// When it asks for them and not for the token's own.
pub(crate) fn asked(logprobs: Option<bool>, top: Option<u32>) -> Result<Option<u32>, Failure> {
    match (logprobs.unwrap_or_default(), top.filter(|top| *top > 0)) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None) => Ok(None),
        (false, Some(_)) => Err(Failure::field("top_logprobs", "goes with `logprobs`")),
    }
}

/// Tokens whose log-probabilities have come and whose text has not been handed on.
#[derive(Debug, Default)]
pub(crate) struct TokenQueue {
    tokens: VecDeque<v1::CanvasToken>,
    /// Position of the next one to come.
    next: u32,
    /// Bytes of those that were taken.
    taken_bytes: usize,
}

impl TokenQueue {
    /// Adds the tokens of a picture or of a block that was not there yet.
    pub(crate) fn add(&mut self, tokens: &[v1::CanvasToken]) {
        for token in tokens {
            if token.position == self.next && token.logprobs.is_some() {
                self.tokens.push_back(token.clone());
                self.next += 1;
            }
        }
    }

    /// The tokens of so many bytes of text, as far as they end there.
    pub(crate) fn take(&mut self, text_bytes: usize) -> Vec<v1::CanvasToken> {
        let mut taken = Vec::new();
        while let Some(token) = self.tokens.front()
            && self.taken_bytes + token.piece.len() <= text_bytes
        {
            self.taken_bytes += token.piece.len();
            taken.extend(self.tokens.pop_front());
        }
        taken
    }

    /// Those that are left of a text of so many tokens.
    pub(crate) fn rest(&mut self, text_tokens: u32) -> Vec<v1::CanvasToken> {
        let left = self.tokens.drain(..);
        left.filter(|token| token.position < text_tokens).collect()
    }
}

/// A token in the shape of OpenAI's chats, and of Ollama.
#[derive(Debug, Serialize)]
pub(crate) struct TokenLogprob {
    #[serde(flatten)]
    token: Logprob,
    top_logprobs: Vec<Logprob>,
}

#[derive(Debug, Serialize)]
struct Logprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl Logprob {
    fn new(piece: &[u8], logprob: f32) -> Self {
        Self {
            token: String::from_utf8_lossy(piece).into_owned(),
            logprob: finite(logprob),
            bytes: piece.to_vec(),
        }
    }
}

fn finite(logprob: f32) -> f32 {
    match logprob.is_finite() {
        true => logprob,
        false => IMPOSSIBLE,
    }
}

impl TokenLogprob {
    /// The shape of each of these.
    pub(crate) fn of(tokens: &[v1::CanvasToken]) -> Vec<Self> {
        let shape = |token: &v1::CanvasToken| {
            let logprobs = token.logprobs.as_ref()?;
            let top = (logprobs.top.iter()).map(|top| Logprob::new(&top.piece, top.logprob));
            Some(Self {
                token: Logprob::new(&token.piece, logprobs.logprob),
                top_logprobs: top.collect(),
            })
        };
        tokens.iter().filter_map(shape).collect()
    }
}

/// Tokens in the shape of OpenAI's completions.
#[derive(Debug, Default, Serialize)]
pub(crate) struct TextLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<BTreeMap<String, f32>>,
    /// Characters of the text before each.
    text_offset: Vec<usize>,
}

impl TextLogprobs {
    /// The shape of these, before which the text has `offset` characters. Counts theirs.
    pub(crate) fn of(tokens: &[v1::CanvasToken], offset: &mut usize) -> Self {
        let mut shape = Self::default();
        for token in tokens {
            let Some(logprobs) = &token.logprobs else {
                continue;
            };
            let text = |piece: &[u8]| String::from_utf8_lossy(piece).into_owned();
            let top = logprobs.top.iter();
            let top = top.map(|top| (text(&top.piece), finite(top.logprob)));
            shape.tokens.push(text(&token.piece));
            shape.token_logprobs.push(finite(logprobs.logprob));
            shape.top_logprobs.push(top.collect());
            shape.text_offset.push(*offset);
            // A piece may be part of a character, which counts where it begins.
            let begins = |byte: &&u8| **byte & 0xC0 != 0x80;
            *offset += token.piece.iter().filter(begins).count();
        }
        shape
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn token(position: u32, piece: &[u8]) -> v1::CanvasToken {
        v1::CanvasToken {
            position,
            piece: piece.to_vec(),
            logprobs: Some(v1::TokenLogprobs {
                logprob: -0.5,
                top: vec![v1::TopLogprob {
                    id: 1,
                    piece: b"x".to_vec(),
                    logprob: f32::NEG_INFINITY,
                }],
            }),
            ..Default::default()
        }
    }

    #[test]
    fn tokens_come_once_and_with_their_text() {
        let mut queue = TokenQueue::default();
        let all = [
            token(0, b"a"),
            token(1, b"\xC3"),
            token(2, b"\xA9"),
            token(3, b""),
        ];
        queue.add(&all[..2]);
        queue.add(&all[..3]);
        assert_eq!(queue.take(1), all[..1]);
        // Half a character is no text yet.
        assert_eq!(queue.take(1), []);
        queue.add(&all);
        assert_eq!(queue.take(3), all[1..]);
        queue.add(&[token(4, b"after"), token(5, b"its end")]);
        assert_eq!(queue.rest(5), [token(4, b"after")]);
    }

    #[test]
    fn shapes_are_openais() {
        let tokens = [token(0, "é".as_bytes()), token(1, b"b")];
        assert_eq!(
            serde_json::to_value(TokenLogprob::of(&tokens[..1])).unwrap(),
            json!([{
                "token": "é", "logprob": -0.5, "bytes": [0xC3, 0xA9],
                "top_logprobs": [{"token": "x", "logprob": -9999.0, "bytes": [0x78]}],
            }])
        );
        let mut offset = 3;
        assert_eq!(
            serde_json::to_value(TextLogprobs::of(&tokens, &mut offset)).unwrap(),
            json!({
                "tokens": ["é", "b"], "token_logprobs": [-0.5, -0.5],
                "top_logprobs": [{"x": -9999.0}, {"x": -9999.0}], "text_offset": [3, 4],
            })
        );
        assert_eq!(offset, 5);
    }
}
