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
    /// Whose.
    pub speaker: Speaker,
    /// The words.
    pub text: String,
    /// How an answer came about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<AnswerOrigin>,
    /// What an answer was before it was written anew, all or in part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<AnswerVersion>,
}

/// A text that an answer had.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnswerVersion {
    /// The words.
    pub text: String,
    /// How they came about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<AnswerOrigin>,
}

/// How an answer came about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnswerOrigin {
    /// The request, as the daemon of that time numbered it.
    pub request_id: u64,
    /// With it, the same again.
    pub seed: u64,
    /// Whether it is what the reference would have given.
    pub exact: bool,
    /// Tokens of the text.
    pub tokens: u32,
    /// Passes.
    pub passes: u32,
    /// From first pass to last, where that is known.
    #[serde(default)]
    pub elapsed_ms: Option<f64>,
    /// Whether it was stopped before its end.
    #[serde(default)]
    pub is_cut: bool,
    /// Which limit ended it, where one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<AnswerLimit>,
    /// Tokens of the context that the conversation took with it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<u32>,
}

/// What ended an answer that was not at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AnswerLimit {
    /// The length that was asked for.
    Length,
    /// The model's context.
    Context,
}

impl AnswerLimit {
    /// The limit that ended a request, where its text would have gone on: an edit's fills its length and is whole.
    #[must_use]
    pub fn of(done: &GenerationDone) -> Option<Self> {
        match done.finish_reason() {
            _ if !done.is_truncated => None,
            FinishReason::Length => Some(Self::Length),
            FinishReason::Context => Some(Self::Context),
            _ => None,
        }
    }

    /// What it did to the answer, in words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Length => "cut off at its length",
            Self::Context => "cut off, the context is full",
        }
    }
}

impl Turn {
    /// Words of somebody.
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
