//! Errors in OpenAI's shape.

use hyper::{
    StatusCode,
    header::{HeaderName, HeaderValue},
};
use serde::Serialize;

use crate::{
    failure::Failure,
    streaming::{self, Answer},
};

/// The header by which OpenAI's services tell their clients whether to send a request again.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// The body of an answer that is an error, and the event that ends a stream with one.
#[derive(Debug, Serialize)]
pub(crate) struct ErrorBody {
    error: ErrorObject,
}

#[derive(Debug, Serialize)]
struct ErrorObject {
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<String>,
    code: Option<String>,
}

impl From<Failure> for ErrorBody {
    fn from(failure: Failure) -> Self {
        let code = failure.reason.map(|reason| code(failure.status, reason));
        Self {
            error: ErrorObject {
                message: failure.message,
                kind: kind(failure.status),
                param: failure.field,
                code,
            },
        }
    }
}

/// An error as an answer.
pub(crate) fn answer(failure: Failure) -> Answer {
    let status = failure.status;
    let mut answer = streaming::json(status, &ErrorBody::from(failure));
    if status.is_server_error() && status != StatusCode::SERVICE_UNAVAILABLE {
        // OpenAI's clients send again by themselves what has such a status: a request whose own time is over would hold its place
        // for as long again.
        let never = HeaderValue::from_static("false");
        answer.headers_mut().insert(SHOULD_RETRY, never);
    }
    answer
}

/// OpenAI's types of errors, by status.
fn kind(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "server_error",
    }
}

/// OpenAI's own codes where there is one for the daemon's reason: clients compare them.
fn code(status: StatusCode, reason: String) -> String {
    let own = match (status, reason.as_str()) {
        (_, "context_exceeded" | "canvas_too_long" | "too_long") => "context_length_exceeded",
        (StatusCode::UNAUTHORIZED, _) => "invalid_api_key",
        (StatusCode::TOO_MANY_REQUESTS, "queue_full") => "rate_limit_exceeded",
        (_, "unknown_model" | "model_not_loaded") => "model_not_found",
        _ => return reason,
    };
    own.to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tonic::{Code, Status};
    use tonic_types::{ErrorDetails, StatusExt};

    use super::*;
    use crate::field_names::TextApi;

    fn error(code: Code, reason: &str, field: Option<&str>) -> (u16, Value) {
        let message = match field {
            Some(field) => format!("{field}: is wrong"),
            None => "it is wrong".to_owned(),
        };
        let mut details = ErrorDetails::new();
        let hint = ("hint".to_owned(), "do better".to_owned());
        details.set_error_info(
            reason,
            "sluice",
            [hint]
                .into_iter()
                .collect::<std::collections::HashMap<_, _>>(),
        );
        if let Some(field) = field {
            details.add_bad_request_violation(field, &message);
        }
        let failure = Failure::from(Status::with_error_details(code, message, details));
        let failure = failure.renamed(|field| TextApi::Chat.name(field));
        let status = failure.status.as_u16();
        let body = serde_json::to_value(ErrorBody::from(failure)).unwrap();
        (status, body["error"].clone())
    }

    #[test]
    fn an_error_keeps_the_daemons_words_and_has_openais_names() {
        assert_eq!(
            error(Code::InvalidArgument, "SAMPLING", Some("sampling.top_p")),
            (
                400,
                json!({
                    "message": "top_p: is wrong\nhint: do better",
                    "type": "invalid_request_error",
                    "param": "top_p",
                    "code": "sampling",
                })
            )
        );
        for (field, name) in [
            ("length", "max_tokens"),
            ("chat", "messages"),
            ("diffusion.kv_cache", "sluice.kv_cache"),
        ] {
            let (_, error) = error(Code::InvalidArgument, "INVALID_FIELD", Some(field));
            assert_eq!(error["param"], name);
        }
    }

    #[test]
    fn what_cannot_succeed_is_not_sent_again() {
        for (code, is_told) in [
            (Code::DeadlineExceeded, true),
            (Code::Internal, true),
            (Code::Unimplemented, true),
            // A model loads, or there is room later.
            (Code::Unavailable, false),
            (Code::ResourceExhausted, false),
            // Clients know it of these.
            (Code::InvalidArgument, false),
            (Code::Cancelled, false),
        ] {
            let answer = answer(Failure::from(Status::new(code, "it is wrong")));
            let told = answer.headers().get(SHOULD_RETRY);
            assert_eq!(told.is_some_and(|told| told == "false"), is_told, "{code}");
        }
    }

    #[test]
    fn codes_become_statuses() {
        for (code, reason, status, openai) in [
            (
                Code::InvalidArgument,
                "CONTEXT_EXCEEDED",
                400,
                "context_length_exceeded",
            ),
            (
                Code::Unauthenticated,
                "UNKNOWN_TOKEN",
                401,
                "invalid_api_key",
            ),
            (Code::PermissionDenied, "ROLE_NEEDED", 403, "role_needed"),
            (Code::NotFound, "UNKNOWN_MODEL", 404, "model_not_found"),
            (
                Code::ResourceExhausted,
                "MESSAGE_TOO_LARGE",
                413,
                "message_too_large",
            ),
            (
                Code::ResourceExhausted,
                "QUEUE_FULL",
                429,
                "rate_limit_exceeded",
            ),
            (Code::FailedPrecondition, "NO_MODEL", 503, "no_model"),
            (Code::Unavailable, "DRAINING", 503, "draining"),
            (
                Code::DeadlineExceeded,
                "DEADLINE_EXCEEDED",
                504,
                "deadline_exceeded",
            ),
            (Code::Internal, "ENGINE_LOST", 500, "engine_lost"),
        ] {
            let (found, error) = error(code, reason, None);
            assert_eq!((found, error["code"].as_str()), (status, Some(openai)));
        }
    }
}
