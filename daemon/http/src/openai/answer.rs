//! The shapes of OpenAI's answers, whole and in pieces.

use serde::Serialize;
use sluice_proto::v1;

use crate::{
    calls::Call,
    extension::{AnswerFacts, CanvasEvent},
    logprobs::{TextLogprobs, TokenLogprob},
};

/// What all pieces of an answer begin with.
#[derive(Debug, Clone)]
pub(super) struct Head {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) fingerprint: String,
}

/// A whole answer, or a piece of one.
#[derive(Debug, Serialize)]
pub(super) struct Envelope<'a> {
    pub(super) id: &'a str,
    pub(super) object: &'static str,
    pub(super) created: u64,
    pub(super) model: &'a str,
    pub(super) system_fingerprint: &'a str,
    pub(super) choices: &'a [Choice],
    /// In a stream with usage, `null` in all pieces but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sluice: Option<CanvasEvent<'a>>,
}

impl Head {
    /// A piece with these choices.
    pub(super) fn envelope<'a>(
        &'a self,
        object: &'static str,
        choices: &'a [Choice],
    ) -> Envelope<'a> {
        Envelope {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            system_fingerprint: &self.fingerprint,
            choices,
            usage: None,
            sluice: None,
        }
    }
}

/// One of the answers to a request, or a piece of one.
#[derive(Debug, Serialize)]
pub(super) struct Choice {
    pub(super) index: u32,
    #[serde(flatten)]
    pub(super) content: Content,
    pub(super) logprobs: Option<Logprobs>,
    pub(super) finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sluice: Option<Box<AnswerFacts>>,
}

/// Log-probabilities of a choice's tokens.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Logprobs {
    Chat {
        content: Vec<TokenLogprob>,
        refusal: Option<()>,
    },
    Text(TextLogprobs),
}

/// What of an answer's text a choice has.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Content {
    /// The whole of a chat's answer.
    Message(Message),
    /// More of a chat's answer.
    Delta(Delta),
    /// The whole of a completion, or more of it.
    Text(String),
}

#[derive(Debug, Serialize)]
pub(super) struct Message {
    pub(super) role: &'static str,
    pub(super) content: Option<String>,
    pub(super) refusal: Option<()>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tool_calls: Vec<ToolCall>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tool_calls: Vec<ToolCall>,
}

/// A call of a function.
#[derive(Debug, Serialize)]
pub(super) struct ToolCall {
    /// In a stream alone: which of the calls it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    function: CalledFunction,
}

#[derive(Debug, Serialize)]
struct CalledFunction {
    name: String,
    /// A JSON object, as text.
    arguments: String,
}

impl ToolCall {
    /// The shape of each of these, with ids that no other call has.
    pub(super) fn of(calls: Vec<Call>, operation: u64, is_streamed: bool) -> Vec<Self> {
        let shape = |(index, call): (usize, Call)| Self {
            index: is_streamed.then_some(index),
            id: format!("call_{operation}_{index}"),
            kind: "function",
            function: CalledFunction {
                name: call.name,
                arguments: call.arguments,
            },
        };
        calls.into_iter().enumerate().map(shape).collect()
    }
}

/// Tokens of a request, all answers together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Usage {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u32,
}

impl Usage {
    /// With the tokens of one more answer. Those to the same prompt count it once.
    pub(super) fn plus(self, prompt_tokens: u32, done: &v1::GenerationDone) -> Self {
        let completion_tokens = self.completion_tokens + done.generated_tokens;
        let prompt_tokens = self.prompt_tokens + prompt_tokens;
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
        }
    }
}

/// Why an answer ended, in OpenAI's words.
pub(super) fn finish_reason(done: &v1::GenerationDone, has_calls: bool) -> &'static str {
    match done.finish_reason() {
        _ if has_calls => "tool_calls",
        v1::FinishReason::Length | v1::FinishReason::Context => "length",
        _ => "stop",
    }
}
