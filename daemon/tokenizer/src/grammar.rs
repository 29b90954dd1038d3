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
