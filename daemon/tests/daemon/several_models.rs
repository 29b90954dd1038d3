//! Requests that name a model.

use sluice_proto::{client::CallError, v1};
use tonic::Code;

use crate::support::{Daemon, checkpoints, done, generate, tokens};

/// A request for ids of the model of this name.
fn asking(model: &str) -> v1::GenerateRequest {
    v1::GenerateRequest {
        model: model.to_owned(),
        ..tokens(&[1, 2, 3], 8)
    }
}

fn code_and_reason(error: &CallError) -> (Code, &str) {
    (error.code, error.reason.as_deref().unwrap_or_default())
}

#[tokio::test]
async fn a_request_is_for_the_model_that_it_names() {
    let daemon = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &[]).await;
    let unnamed = generate(&daemon, tokens(&[1, 2, 3], 8)).await.unwrap();
    let named = generate(&daemon, asking("llada-tiny")).await.unwrap();
    assert_eq!(done(&named).token_ids, done(&unnamed).token_ids);

    let error = generate(&daemon, asking("sluice-demo")).await.unwrap_err();
    let not_loaded = (Code::FailedPrecondition, "MODEL_NOT_LOADED");
    assert_eq!(code_and_reason(&error), not_loaded);
    let error = generate(&daemon, asking("o/nothing")).await.unwrap_err();
    assert_eq!(code_and_reason(&error), (Code::NotFound, "UNKNOWN_MODEL"));
    let error = generate(&daemon, asking(&"n".repeat(5000))).await;
    let error = error.unwrap_err();
    assert_eq!(
        code_and_reason(&error),
        (Code::InvalidArgument, "INVALID_FIELD")
    );
}
