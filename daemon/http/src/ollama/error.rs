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
