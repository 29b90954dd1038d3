//! Errors in Ollama's shape.

use serde::Serialize;

use crate::{
    failure::Failure,
    streaming::{self, Answer},
};

/// The body of an answer that is an error, and the line that ends a stream with one.
#[derive(Debug, Serialize)]
pub(super) struct ErrorBody {
    error: String,
}

impl From<Failure> for ErrorBody {
    fn from(failure: Failure) -> Self {
        let failure = failure.renamed(|field| Some(field_name(field)));
        Self {
            error: failure.message,
        }
    }
}

/// An error as an answer.
pub(crate) fn answer(failure: Failure) -> Answer {
    let status = failure.status;
    streaming::json(status, &ErrorBody::from(failure))
}

/// The name that a field of the daemon's schema has here.
fn field_name(field: &str) -> String {
    match field {
        "length" => "options.num_predict",
        "chat" => "messages",
        "chat.tools_json" => "tools",
        "raw_text" => "prompt",
        "autoregressive.stop" => "options.stop",
        "autoregressive.top_logprobs" => "top_logprobs",
        "autoregressive.grammar" => "format",
        "sampling.repetition_penalty" => "options.repeat_penalty",
        field if field.starts_with("edit") => "suffix",
        field => {
            return match field.split_once('.') {
                Some(("diffusion" | "thinking", option)) => format!("sluice.{option}"),
                Some(("sampling", option)) => format!("options.{option}"),
                _ => field.to_owned(),
            };
        }
    }
    .to_owned()
}
