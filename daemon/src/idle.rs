//! Unloads the model after a time without requests.

use std::{sync::Arc, time::Duration};

use sluice_engine::ModelId;
use sluice_proto::v1::OperationKind;
use sluice_shared::units;
use tokio::time::{Instant, timeout_at};

use crate::{models::UnloadReason, services::Daemon};

/// Counters that differ if the model was used since the last look, even by a request that has ended in between.
#[derive(PartialEq)]
struct ActivityTrace {
    model: ModelId,
    requests: u64,
    changes: u64,
}

/// Unloads the model whenever it was idle for `after`. Returns when the daemon closes.
pub async fn watch(daemon: Arc<Daemon>, after: Duration) {
    let mut changes = daemon.changes.subscribe();
    let mut since: Option<(ActivityTrace, Instant)> = None;
    loop {
        // Before looking, so that a change after the look wakes the wait below.
        changes.mark_unchanged();
        let trace = trace(&daemon);
        since = match (trace, since.take()) {
            (Some(trace), Some((before, since))) if trace == before => Some((trace, since)),
            (Some(trace), _) => Some((trace, Instant::now())),
            (None, _) => None,
        };
        let until = since.as_ref().map(|(_, since)| *since + after);
        if until.is_some_and(|until| until <= Instant::now()) {
            since = None;
            let before = daemon.engine.memory().used_bytes;
            // The engine decides: a model that got a request since the look stays, and so does one while another loads.
            if let Ok(Some(name)) = daemon
                .models
                .unload(&daemon.engine, UnloadReason::Idle)
                .await
            {
                let freed = before.saturating_sub(daemon.engine.memory().used_bytes);
                let idle = units::duration_ms(after.as_secs_f64() * 1000.0);
                tracing::info!(
                    model = name.name,
                    freed = units::bytes(freed),
                    idle,
                    "unloaded the idle model"
                );
            }
            continue;
        }
        let changed = async {
            match until {
                // The timeout is no failure: the loop looks again.
                Some(until) => timeout_at(until, changes.changed()).await.unwrap_or(Ok(())),
                None => changes.changed().await,
            }
        };
        tokio::select! {
            () = daemon.closing.cancelled() => return,
            changed = changed => if changed.is_err() { return },
        }
    }
}

/// The counters of the serving model; `None` while there is no model, or a request, a calibration or a change of it is
/// under way.
fn trace(daemon: &Daemon) -> Option<ActivityTrace> {
    let serving = daemon.models.serving().ok()?;
    let is_changing = daemon.switch_target.get().is_some();
    let computing = [OperationKind::Calibrate, OperationKind::Optimize];
    let computing = daemon.operations.active_of(&computing);
    let is_used = !computing.is_empty() || !daemon.requests.active().is_empty();
    if is_changing || daemon.is_wanted() || is_used {
        return None;
    }
    let totals = daemon.requests.totals().to_wire();
    Some(ActivityTrace {
        model: serving.loaded.id,
        requests: totals.done_requests + totals.cancelled_requests + totals.failed_requests,
        changes: daemon.switch_target.ended(),
    })
}
