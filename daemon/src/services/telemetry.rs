//! `TelemetryService`: snapshots, once or as a stream.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures_util::{
    StreamExt,
    stream::{self, Stream},
};
use sluice_proto::{
    model::InvalidField,
    v1::{self, Finding, telemetry_service_server::TelemetryService},
};
use sluice_report::findings::ok;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tonic::{Request, Response, Status};

use super::{Daemon, snapshot::snapshot};
use crate::{caller::Caller, examine::of_device, failure::Failure, role::Role};

/// Time between snapshots when nobody says how long.
const INTERVAL_DEFAULT_MS: u32 = 500;
/// Shortest time between snapshots, changes or not.
const INTERVAL_MIN_MS: u32 = 50;

/// The service; clones share the daemon.
pub(super) struct Service(pub(super) Arc<Daemon>);

#[tonic::async_trait]
impl TelemetryService for Service {
    type WatchSnapshotsStream =
        Pin<Box<dyn Stream<Item = Result<v1::WatchSnapshotsResponse, Status>> + Send>>;

    async fn get_snapshot(
        &self,
        _: Request<v1::GetSnapshotRequest>,
    ) -> Result<Response<v1::GetSnapshotResponse>, Status> {
        Ok(Response::new(v1::GetSnapshotResponse {
            snapshot: Some(snapshot(&self.0).await),
        }))
    }

    async fn watch_snapshots(
        &self,
        request: Request<v1::WatchSnapshotsRequest>,
    ) -> Result<Response<Self::WatchSnapshotsStream>, Status> {
        let interval_ms = request.into_inner().interval_ms;
        let interval_ms = interval_ms.unwrap_or(INTERVAL_DEFAULT_MS);
        if interval_ms < INTERVAL_MIN_MS {
            return Err(Failure::from(InvalidField {
                field: "interval_ms",
                problem: format!("must be at least {INTERVAL_MIN_MS}, not {interval_ms}"),
            })
            .into());
        }
        let watcher = Watcher {
            changes: self.0.changes.subscribe(),
            daemon: self.0.clone(),
            interval: Duration::from_millis(interval_ms.into()),
            last: None,
        };
        let answers = stream::unfold(watcher, |mut watcher| async {
            watcher.wait().await;
            let snapshot = Some(snapshot(&watcher.daemon).await);
            Some((Ok(v1::WatchSnapshotsResponse { snapshot }), watcher))
        });
        let closing = self.0.closing.clone().cancelled_owned();
        Ok(Response::new(answers.take_until(closing).boxed()))
    }

    async fn examine(
        &self,
        request: Request<v1::ExamineRequest>,
    ) -> Result<Response<v1::ExamineResponse>, Status> {
        let engine = self.0.engine.clone();
        let device = move || of_device(engine.device(), engine.gpu_unavailable());
        let mut findings = match &self.0.examiner {
            Some(examiner) => examiner.examine(device).await,
            None => vec![device()],
        };
        findings.push(access(Caller::of(&request)));
        Ok(Response::new(v1::ExamineResponse { findings }))
    }
}

/// What the caller may do, which only its connection tells.
fn access(caller: Caller) -> Finding {
    let role = caller.role.map_or("none", Role::name);
    ok("your role", role)
}

struct Watcher {
    daemon: Arc<Daemon>,
    changes: watch::Receiver<()>,
    interval: Duration,
    last: Option<Instant>,
}

impl Watcher {
    /// Returns when the next snapshot is due: at once for the first, else after the interval
    /// or, sooner, when something changed; many changes at once make one snapshot.
    async fn wait(&mut self) {
        if let Some(last) = self.last {
            tokio::select! {
                () = sleep_until(last + self.interval) => {}
                Ok(()) = self.changes.changed() => {
                    sleep_until(last + Duration::from_millis(INTERVAL_MIN_MS.into())).await;
                }
            }
        }
        self.changes.borrow_and_update();
        self.last = Some(Instant::now());
    }
}
