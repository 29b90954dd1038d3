//! Why a request has no answer, as HTTP tells it. Each API writes it in its own shape.

use hyper::{Method, StatusCode};
use serde_json::Error as JsonError;
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    /// Short stable name of the reason, in lower case.
    pub(crate) reason: Option<String>,
    /// The field that is wrong.
    pub(crate) field: Option<String>,
    /// The daemon's words, and what to do.
    pub(crate) message: String,
    /// When it may be tried again.
    pub(crate) retry_after_s: Option<u64>,
    /// The method that the path takes, where that was another.
    pub(crate) allowed: Option<Method>,
}

/// What nginx calls a request that was ended before its answer. No client tries it again by itself.
const ENDED: u16 = 499;
/// Bytes of words that quote a request.
const WORDS_BYTES_MAX: usize = 1 << 10;

impl Failure {
    pub(crate) fn new(status: StatusCode, reason: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            reason: Some(reason.to_owned()),
            field: None,
            message: message.into(),
            retry_after_s: None,
            allowed: None,
        }
    }

    /// A field of the request is wrong.
    pub(crate) fn field(field: &str, problem: impl std::fmt::Display) -> Self {
        Self {
            field: Some(field.to_owned()),
            ..Self::new(
                StatusCode::BAD_REQUEST,
                "invalid_field",
                format!("{field}: {problem}"),
            )
        }
    }

    /// No model has this name.
    pub(crate) fn unknown_model(name: &str) -> Self {
        let mut name = name.to_owned();
        name.truncate(name.floor_char_boundary(WORDS_BYTES_MAX));
        let message = format!(
            "the model `{name}` is not known, or not loaded\nhint: `sluice list` shows models, `sluice load` loads one"
        );
        Self {
            field: Some("model".to_owned()),
            ..Self::new(StatusCode::NOT_FOUND, "model_not_found", message)
        }
    }

    /// The request was cancelled by somebody else than its caller.
    pub(crate) fn cancelled() -> Self {
        let status = StatusCode::from_u16(ENDED).expect("three digits");
        Self::new(status, "cancelled", "the request was cancelled")
    }

    /// The daemon answered in a way that it never should.
    pub(crate) fn unexpected(what: &str) -> Self {
        tracing::error!(what, "the daemon's answer cannot be told over HTTP");
        let message = format!("{what}; this is a bug in sluiced");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    /// The body is no JSON, or not of the right shape. A field that is wrong is named at the message's beginning.
    pub(crate) fn json(error: &JsonError) -> Self {
        let mut message = error.to_string();
        // It may quote the request.
        message.truncate(message.floor_char_boundary(WORDS_BYTES_MAX));
        let named = message.split_once(": ").map(|(name, _)| name);
        // The library's own words of what is no JSON begin with some, and none of them is a name.
        let is_name = |name: &&str| !name.is_empty() && !name.contains(' ');
        let field = named.filter(is_name).map(str::to_owned);
        let reason = match field.is_some() {
            true => {
                // Where its value ends helps nobody who has its name, and reads as part of what to do.
                if let Some((words, _)) = message.rsplit_once(" at line ") {
                    message.truncate(words.len());
                }
                "invalid_field"
            }
            false => "invalid_json",
        };
        Self {
            field,
            ..Self::new(StatusCode::BAD_REQUEST, reason, message)
        }
    }

    /// With the field's name that the API has for the daemon's, which begins the message, too.
    pub(crate) fn renamed(mut self, name: impl Fn(&str) -> Option<String>) -> Self {
        if let Some(field) = &self.field
            && let Some(name) = name(field)
        {
            if let Some(problem) = self.message.strip_prefix(&format!("{field}:")) {
                self.message = format!("{name}:{problem}");
            }
            self.field = Some(name);
        }
        self
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        let info = status.get_details_error_info();
        let (reason, hint) = match info {
            Some(mut info) => (info.reason, info.metadata.remove("hint")),
            None => (String::new(), None),
        };
        let violations = status.get_details_bad_request();
        let violation = violations.and_then(|bad| bad.field_violations.into_iter().next());
        let is_of_model = matches!(reason.as_str(), "UNKNOWN_MODEL" | "MODEL_NOT_LOADED");
        let names_model = is_of_model.then(|| "model".to_owned());
        let delay = status
            .get_details_retry_info()
            .and_then(|retry| retry.retry_delay);
        let message = match hint {
            Some(hint) => format!("{}\nhint: {hint}", status.message()),
            None => status.message().to_owned(),
        };
        Self {
            status: http_status(status.code(), &reason),
            reason: (!reason.is_empty()).then(|| reason.to_ascii_lowercase()),
            field: violation.map(|violation| violation.field).or(names_model),
            message,
            // Whole seconds alone can be said, and 0 would be at once.
            retry_after_s: delay.map(|delay| delay.as_secs().max(1)),
            allowed: None,
        }
    }
}

/// The status by a call's code; a few reasons have others than the rest of their code.
fn http_status(code: Code, reason: &str) -> StatusCode {
    match (code, reason) {
        (_, "NO_MODEL" | "MODEL_FAILED") => StatusCode::SERVICE_UNAVAILABLE,
        (_, "MODEL_NOT_LOADED") => StatusCode::NOT_FOUND,
        (_, "MESSAGE_TOO_LARGE") => StatusCode::PAYLOAD_TOO_LARGE,
        (_, "OUT_OF_MEMORY") => StatusCode::INSUFFICIENT_STORAGE,
        (_, "MESSAGE_TIMEOUT") => StatusCode::REQUEST_TIMEOUT,
        (Code::Ok, _) => StatusCode::OK,
        (Code::InvalidArgument | Code::OutOfRange | Code::FailedPrecondition, _) => {
            StatusCode::BAD_REQUEST
        }
        (Code::Unauthenticated, _) => StatusCode::UNAUTHORIZED,
        (Code::PermissionDenied, _) => StatusCode::FORBIDDEN,
        (Code::NotFound, _) => StatusCode::NOT_FOUND,
        (Code::AlreadyExists, _) => StatusCode::CONFLICT,
        (Code::ResourceExhausted, _) => StatusCode::TOO_MANY_REQUESTS,
        (Code::Unavailable | Code::Aborted, _) => StatusCode::SERVICE_UNAVAILABLE,
        (Code::DeadlineExceeded, _) => StatusCode::GATEWAY_TIMEOUT,
        (Code::Unimplemented, _) => StatusCode::NOT_IMPLEMENTED,
        (Code::Cancelled, _) => Failure::cancelled().status,
        (Code::Unknown | Code::Internal | Code::DataLoss, _) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
