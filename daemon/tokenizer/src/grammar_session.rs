//! A grammar at a place in a text, as the tokenizer's process has it.

use crate::{
    Patience,
    error::{LimitReached, TokenizerError},
    grammar::{AllowedTokens, Grammar},
    process::client::ProcessSession,
};

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
