//! Grammars: which tokens may come next in a text that has to match one.
//!
//! A grammar comes with a request, from anybody. Compiling it, and finding the tokens that go on, takes as much memory, time
//! and stack as its author likes, so both are done in a worker of the tokenizer's process, where the kernel bounds them. What
//! the daemon gets is a set of tokens for each position. The work itself is llguidance's, with the feature `grammar` alone.

#[cfg(feature = "grammar")]
mod matcher;
#[cfg(not(feature = "grammar"))]
mod without;

#[cfg(feature = "grammar")]
pub(crate) use self::matcher::{GrammarMatcher, GrammarVocabulary};
#[cfg(not(feature = "grammar"))]
pub(crate) use self::without::{GrammarMatcher, GrammarVocabulary};
use crate::{
    Patience,
    error::{LimitReached, TokenizerError},
    process::client::ProcessSession,
};

/// Whether this program was built with grammars.
pub const HAS_GRAMMARS: bool = cfg!(feature = "grammar");

/// What a text has to match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grammar {
    /// How `text` says it.
    pub kind: GrammarKind,
    /// The schema, the expression or the rules.
    pub text: String,
}

/// How a grammar is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrammarKind {
    /// As a JSON schema.
    JsonSchema,
    /// As a regular expression.
    Regex,
    /// In llguidance's variant of Lark.
    Lark,
}

impl GrammarKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::JsonSchema, Self::Regex, Self::Lark];
}

/// The tokens that may come next.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AllowedTokens {
    /// A bit for each token id, the lowest bit of the first word for id 0. What lies beyond is not allowed.
    pub mask: Vec<u32>,
    /// Whether the text may end here. What ends it is the model's to say: no end token is in the mask.
    pub may_end: bool,
}

/// A grammar at a place in a text, in a worker of its own, which ends with it.
pub struct GrammarSession(ProcessSession);

impl GrammarSession {
    pub(crate) fn new(session: ProcessSession) -> Self {
        Self(session)
    }

    pub(crate) fn compile(&mut self, grammar: &Grammar) -> Result<AllowedTokens, TokenizerError> {
        self.0.compile(grammar).map_err(of_grammar)
    }

    /// Takes a token that was allowed, and says which come after it.
    ///
    /// # Errors
    /// When the grammar has become too complex, takes too long, or no token can follow.
    pub fn accept(
        &mut self,
        token: u32,
        patience: &Patience,
    ) -> Result<AllowedTokens, TokenizerError> {
        self.0.accept(token, patience).map_err(of_grammar)
    }
}

/// A wait for the tokenizer was one for the grammar.
fn of_grammar(error: TokenizerError) -> TokenizerError {
    match error {
        TokenizerError::Limit(LimitReached::Wait) => LimitReached::GrammarWait.into(),
        error => error,
    }
}
