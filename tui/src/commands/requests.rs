//! `sluice requests`.

use sluice_proto::v1::{ListOperationsRequest, Operation, OperationKind, OperationState};
use sluice_shared::units;

use crate::{
    connection::DaemonConnection,
    output::{Failure, StandardOutput},
    text::sanitise_line,
};

/// Lists the requests that the daemon remembers.
pub(super) async fn list(
    daemon: &DaemonConnection,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let request = ListOperationsRequest {
        kinds: OperationKind::REQUESTS.map(Into::into).into(),
        ..Default::default()
    };
    let answer = daemon.operations().list_operations(request).await;
    let list = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    if json {
        return out.json(&list);
    }
    let requests = list.operations;
    if requests.is_empty() {
        return out.line("no requests");
    }
    out.line(&header())?;
    for request in &requests {
        out.line(&row(request))?;
    }
    Ok(())
}

/// The heading of a table of requests.
pub(super) fn header() -> String {
    format!(
        "{:>5}  {:<9} {:<10} {:>9} {:>7} {:>9}",
        "ID", "KIND", "STATE", "BLOCKS", "PASSES", "TIME"
    )
}

/// A request as a row of the table.
pub(super) fn row(request: &Operation) -> String {
    let waits = request.state() == OperationState::Queued;
    let ms = if waits {
        request.queued_ms
    } else {
        request.elapsed_ms
    };
    let detail = request.request_detail();
    let mut row = format!(
        "{:>5}  {:<9} {:<10} {:>9} {:>7} {:>9}",
        request.operation_id,
        request.kind().request_word(),
        request.state(),
        format!("{}/{}", detail.done_blocks, detail.blocks),
        detail.passes,
        units::duration_ms(ms),
    );
    // The state already says that it was cancelled.
    if let Some(error) = &request.error
        && request.state() == OperationState::Failed
    {
        row += &format!("  {}", sanitise_line(&error.message));
    }
    row
}
