//! What stands in for grammars where the program was built without: nothing asks for them then.

use super::{AllowedTokens, Grammar};
use crate::{error::TokenizerError, pieces::TokenPieces};

/// There is none.
pub(crate) struct GrammarVocabulary;

/// There is none.
pub(crate) enum GrammarMatcher {}

impl GrammarVocabulary {
    pub(crate) fn new(_: &TokenPieces) -> Result<Self, TokenizerError> {
        Err(TokenizerError::grammar("built without grammars"))
    }
}

impl GrammarMatcher {
    pub(crate) fn compile(
        _: &GrammarVocabulary,
        _: &Grammar,
    ) -> Result<(Self, AllowedTokens), TokenizerError> {
        Err(TokenizerError::grammar("built without grammars"))
    }

    pub(crate) fn accept(&mut self, _: u32) -> Result<AllowedTokens, TokenizerError> {
        match *self {}
    }
}
