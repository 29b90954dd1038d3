//! Grammars by llguidance: a vocabulary's prefix tree, compiled grammars, and the tokens that may come next.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use llguidance::{
    JsonCompileOptions, ParserFactory, TokenParser,
    api::{ParserLimits, StopReason, TopLevelGrammar},
    toktrie::{
        ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie,
    },
};
use serde_json::Value;

use super::{AllowedTokens, Grammar, GrammarKind};
use crate::{
    error::TokenizerError,
    limits::{GRAMMAR_TOKEN_BYTES_MAX, GRAMMAR_VOCABULARY_BYTES_MAX},
    pieces::TokenPieces,
};

/// What may stand between two tokens of JSON: nothing, a space, or a line break with some indentation, as in llama.cpp's
/// grammars. Without a limit, models that have nothing to say write white space until their length runs out.
const WHITE_SPACE: &str = r" |\r?\n[ \t]{0,20}";

/// llguidance's first byte of tokens that are no text.
const SPECIAL: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// llguidance's own limits, which give better errors than the kernel's: about 20 ms for compiling and 15 ms for the tokens that
/// come next, as long as a grammar's cost is where llguidance counts it.
fn limits() -> ParserLimits {
    ParserLimits {
        // A state takes 1 to 2 kB.
        max_lexer_states: 50_000,
        // What it would add is the grammar's text and the answer's.
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// A vocabulary as a prefix tree of its tokens' bytes.
pub(crate) struct GrammarVocabulary(ParserFactory);

impl GrammarVocabulary {
    /// Tokens without text are in no grammar; nor are the few that are too long.
    pub(crate) fn new(pieces: &TokenPieces) -> Result<Self, TokenizerError> {
        let (bytes, ends) = pieces.parts();
        if bytes.len() > GRAMMAR_VOCABULARY_BYTES_MAX {
            return Err(TokenizerError::grammar(format_args!(
                "the model's vocabulary has {} bytes, more than the {GRAMMAR_VOCABULARY_BYTES_MAX} that grammars can be used with",
                bytes.len()
            )));
        }
        let is_usable = |piece: &[u8]| {
            piece.len() <= GRAMMAR_TOKEN_BYTES_MAX && piece.first() != Some(&SPECIAL)
        };
        let word = |id: u32| match pieces.get(id) {
            piece if is_usable(piece) => piece.to_vec(),
            _ => Vec::new(),
        };
        let words: Vec<_> = (0..ends.len() as u32).map(word).collect();
        contained(|| {
            // Ends are the caller's business, so that the tree is good for whatever ends the model's texts.
            let info = TokRxInfo::new(words.len() as u32, INVALID_TOKEN);
            let tree: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words)));
            // Without slices, masks of JSON strings take 50 µs and not 1, and the tree half of the memory.
            let mut factory = ParserFactory::new(&tree, InferenceCapabilities::default(), &[])
                .map_err(TokenizerError::grammar)?;
            factory.quiet();
            *factory.limits_mut() = limits();
            Ok(Self(factory))
        })
    }
}

/// A compiled grammar at a place in a text.
pub(crate) struct GrammarMatcher {
    parser: TokenParser,
    accepted: usize,
}

impl GrammarMatcher {
    /// Compiles a grammar; with the tokens that a text may begin with.
    pub(crate) fn compile(
        vocabulary: &GrammarVocabulary,
        grammar: &Grammar,
    ) -> Result<(Self, AllowedTokens), TokenizerError> {
        let source = match grammar.kind {
            GrammarKind::JsonSchema => TopLevelGrammar::from_json_schema(schema(&grammar.text)?),
            GrammarKind::Regex => TopLevelGrammar::from_regex(&grammar.text),
            GrammarKind::Lark => TopLevelGrammar::from_lark(grammar.text.clone()),
        };
        contained(|| {
            let parser = vocabulary.0.create_parser(source);
            let mut parser = parser.map_err(|error| TokenizerError::grammar(words(&error)))?;
            parser.start_without_prompt();
            let mut matcher = Self {
                parser,
                accepted: 0,
            };
            let allowed = matcher.allowed()?;
            Ok((matcher, allowed))
        })
    }

    /// Takes a token that was allowed, and says which come after it.
    pub(crate) fn accept(&mut self, token: u32) -> Result<AllowedTokens, TokenizerError> {
        contained(|| {
            // Tokens to take back: none, since that is no capability of ours.
            let taken_back = self.parser.consume_token(token);
            taken_back.map_err(|error| self.failed(error))?;
            self.accepted += 1;
            self.allowed()
        })
    }

    fn allowed(&mut self) -> Result<AllowedTokens, TokenizerError> {
        let is_over = self.parser.check_stop();
        if is_over.map_err(|error| self.failed(error))? {
            return Ok(AllowedTokens {
                mask: Vec::new(),
                may_end: true,
            });
        }
        match self.parser.compute_mask() {
            Ok(mask) => Ok(AllowedTokens {
                mask: mask.as_slice().to_vec(),
                may_end: self.parser.is_accepting(),
            }),
            // More text could follow, but none that the vocabulary has.
            Err(_) if self.is_stuck() && self.parser.is_accepting() => Ok(AllowedTokens {
                mask: Vec::new(),
                may_end: true,
            }),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn is_stuck(&self) -> bool {
        self.parser.stop_reason() == StopReason::NoExtensionBias
    }

    fn failed(&self, error: impl ToString) -> TokenizerError {
        let after = self.accepted;
        TokenizerError::grammar(match self.parser.stop_reason() {
            StopReason::NoExtensionBias => {
                format!("after {after} tokens no token of the model's vocabulary continues it")
            }
            StopReason::LexerTooComplex | StopReason::ParserTooComplex => {
                format!("after {after} tokens it is too complex: {}", words(&error))
            }
            _ => format!("after {after} tokens: {}", words(&error)),
        })
    }
}

/// What the library says. It catches panics, and adds backtraces and states behind its words.
fn words(error: &impl ToString) -> String {
    let said = error.to_string();
    let words = said.split("\n<").next().unwrap_or_default();
    words.to_owned()
}

fn schema(text: &str) -> Result<Value, TokenizerError> {
    let schema = serde_json::from_str(text)
        .map_err(|error| TokenizerError::grammar(format_args!("the schema is no JSON: {error}")))?;
    let mut schema = match schema {
        Value::Bool(true) => Value::Object(serde_json::Map::new()),
        schema => schema,
    };
    // What the schema says of white space goes first.
    if schema.is_object() && schema.get("x-guidance").is_none() {
        let options = JsonCompileOptions {
            whitespace_pattern: Some(WHITE_SPACE.to_owned()),
            ..JsonCompileOptions::default()
        };
        options.apply_to(&mut schema);
    }
    Ok(schema)
}

/// Panics of the library are errors of the grammar that met them.
fn contained<T>(work: impl FnOnce() -> Result<T, TokenizerError>) -> Result<T, TokenizerError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(TokenizerError::grammar("it is beyond llguidance")))
}

#[cfg(test)]
mod tests;
