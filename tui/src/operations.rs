//! Operations by their ids: what one is, how it is called, and cancelling it.

use sluice_proto::v1::{CancelOperationRequest, Operation, OperationKind, WatchOperationRequest};

use crate::{connection::DaemonConnection, output::Failure};

/// The present picture of an operation.
///
/// # Errors
/// The daemon's, such as for an id that it does not know.
pub async fn find(daemon: &DaemonConnection, operation_id: u64) -> Result<Operation, Failure> {
    let request = WatchOperationRequest {
        operation_id,
        follow: false,
    };
    let failed = |status| daemon.failure(status);
    let answer = daemon.operations().watch_operation(request).await;
    let answer = answer.map_err(failed)?.into_inner().message().await;
    let operation = answer.map_err(failed)?.and_then(|answer| answer.operation);
    operation.ok_or_else(no_operation)
}

fn no_operation() -> Failure {
    Failure::new("the daemon's answer has no operation")
}

/// The failure of a stream that ended without a result that this version knows.
#[must_use]
pub fn no_result() -> Failure {
    Failure::new("the daemon ended the stream without a result")
}

/// Asks the daemon to stop an operation. Returns whether it waited or ran, and its present picture. Most work takes a moment to
/// end.
///
/// # Errors
/// The daemon's, such as for an operation that cannot be cancelled.
pub async fn cancel(
    daemon: &DaemonConnection,
    operation_id: u64,
) -> Result<(bool, Operation), Failure> {
    let request = CancelOperationRequest { operation_id };
    let answer = daemon.operations().cancel_operation(request).await;
    let answer = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    Ok((
        answer.was_active,
        answer.operation.ok_or_else(no_operation)?,
    ))
}

/// What people call an operation: `request 7`, `job 3`, `the load of o/m`.
#[must_use]
pub fn name(operation: &Operation) -> String {
    let (id, model) = (operation.operation_id, &operation.model);
    match operation.kind() {
        OperationKind::Load => format!("the load of {model}"),
        OperationKind::Pull => format!("the download of {model}"),
        kind if kind.is_request() => format!("request {id}"),
        kind if kind.is_on_files() => format!("job {id}"),
        _ => format!("operation {id}"),
    }
}
