//! `sluice requests` and `sluice cancel`.

use serde_json::json;
use sluice_proto::v1::{CancelRequestRequest, ListRequestsRequest, RequestState, RequestSummary};
use sluice_shared::units;

use crate::{
    cli::Cancel,
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
    let answer = daemon
        .generation()
        .list_requests(ListRequestsRequest {})
        .await;
    let list = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    if json {
        return out.json(&list);
    }
    let requests = list.requests;
    if requests.is_empty() {
        return out.line("no requests");
    }
    out.line(&header())?;
    for request in &requests {
        out.line(&row(request))?;
    }
    Ok(())
}

/// What stands above rows of requests.
pub(super) fn header() -> String {
    format!(
        "{:>5}  {:<9} {:<10} {:>9} {:>7} {:>9}",
        "ID", "KIND", "STATE", "BLOCKS", "PASSES", "TIME"
    )
}

/// One request as a line of a table.
pub(super) fn row(request: &RequestSummary) -> String {
    let waits = request.state() == RequestState::Queued;
    let ms = if waits {
        request.queued_ms
    } else {
        request.elapsed_ms
    };
    let mut row = format!(
        "{:>5}  {:<9} {:<10} {:>9} {:>7} {:>9}",
        request.request_id,
        request.kind(),
        request.state(),
        format!("{}/{}", request.blocks_done, request.blocks),
        request.passes,
        units::duration_ms(ms),
    );
    if !request.error.is_empty() {
        row += &format!("  {}", sanitise_line(&request.error));
    }
    row
}

/// Stops a request.
pub(super) async fn cancel(
    daemon: &DaemonConnection,
    arguments: &Cancel,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let request_id = arguments.id;
    let call = CancelRequestRequest { request_id };
    let answer = daemon.generation().cancel_request(call).await;
    let answer = answer.map_err(|status| daemon.failure(status))?;
    let was_active = answer.into_inner().was_active;
    if arguments.json {
        return out.json(&json!({"request_id": request_id, "was_active": was_active}));
    }
    if was_active {
        out.line(&format!("cancelled request {request_id}"))
    } else {
        out.line(&format!("request {request_id} has already finished"))
    }
}
