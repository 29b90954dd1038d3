//! One turn of a conversation: a prompt or an answer.

use serde::{Deserialize, Serialize};
use sluice_proto::v1::{FinishReason, GenerationDone};

/// Who wrote a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Speaker {
    /// The user.
    User,
    /// The model.
    Assistant,
}

/// A prompt or an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Who wrote it.
    pub speaker: Speaker,
    /// The text as it was typed or generated, not yet made safe for a terminal.
    pub text: String,
    /// How an answer was generated; `None` for prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<AnswerOrigin>,
    /// The answer before it was last replaced or rewritten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<AnswerVersion>,
}

/// An earlier version of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnswerVersion {
    /// The text of that version.
    pub text: String,
    /// How that version was generated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<AnswerOrigin>,
}

/// How an answer was generated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnswerOrigin {
    /// The daemon's id of the request; a later daemon uses the same id for another.
    pub request_id: u64,
    /// Seed that gives the same answer again.
    pub seed: u64,
    /// Whether the tokens are those that the reference sampler gives.
    pub exact: bool,
    /// Number of tokens generated.
    pub tokens: u32,
    /// Number of passes.
    pub passes: u32,
    /// Time from the first pass to the last, in milliseconds, where it is known.
    #[serde(default)]
    pub elapsed_ms: Option<f64>,
    /// Whether the request was cancelled before the answer was complete.
    #[serde(default)]
    pub is_cut: bool,
    /// The limit that cut the answer off, where one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<AnswerLimit>,
    /// Tokens of the context that the conversation takes with this answer, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<u32>,
    /// Pieces of the daemon's memory that stood in its prompt, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u32>,
}

/// The limit that cut an answer off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AnswerLimit {
    /// The requested length.
    Length,
    /// The model's context.
    Context,
}

impl AnswerLimit {
    /// The limit that cut a request's text off. The length alone does not tell: an edit fills its length and is complete.
    #[must_use]
    pub fn of(done: &GenerationDone) -> Option<Self> {
        match done.finish_reason() {
            _ if !done.is_truncated => None,
            FinishReason::Length => Some(Self::Length),
            FinishReason::Context => Some(Self::Context),
            _ => None,
        }
    }

    /// The effect on the answer, in words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Length => "cut off at its length",
            Self::Context => "cut off, the context is full",
        }
    }
}

impl Turn {
    /// A turn that was not generated here: without an origin or an earlier version.
    #[must_use]
    pub fn new(speaker: Speaker, text: String) -> Self {
        Self {
            speaker,
            text,
            origin: None,
            before: None,
        }
    }
}
