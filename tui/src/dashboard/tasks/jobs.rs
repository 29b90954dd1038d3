//! Calls that begin jobs, and tell what came of them. How far a job is, the snapshots tell.

use std::path::PathBuf;

use futures_util::StreamExt;
use sluice_proto::v1::{
    CompressRequest, DecompressRequest, JobEvent, JobResult, ListJobsRequest, VerifyRequest,
    job_event::Kind,
};
use sluice_report::container;
use tokio::sync::mpsc::Sender;
use tonic::{Response, Status, Streaming};

use super::{super::event::Event, models};
use crate::{connection::DaemonConnection, output::Failure};

/// Asks for the jobs.
pub(super) async fn list(daemon: DaemonConnection, events: Sender<Event>) -> Result<(), Failure> {
    let answer = daemon.jobs().list_jobs(ListJobsRequest {}).await;
    let answer = answer.map_err(|status| daemon.failure(status))?;
    let _ = events.send(Event::Jobs(answer.into_inner().jobs)).await;
    Ok(())
}

/// Has a model coded into a file.
pub(super) async fn compress(
    daemon: DaemonConnection,
    model: String,
    output: PathBuf,
    events: Sender<Event>,
) -> Result<(), Failure> {
    let output = output.display().to_string();
    let call = CompressRequest {
        model: models::model_ref(model),
        output_path: output.clone(),
        ..Default::default()
    };
    let answer = daemon.jobs().compress(call).await;
    follow(daemon, answer, output, events).await
}

/// Has a coded file made into a folder.
pub(super) async fn decompress(
    daemon: DaemonConnection,
    file: PathBuf,
    folder: PathBuf,
    events: Sender<Event>,
) -> Result<(), Failure> {
    let folder = folder.display().to_string();
    let call = DecompressRequest {
        input_path: file.display().to_string(),
        output_path: folder.clone(),
        threads: None,
    };
    let answer = daemon.jobs().decompress(call).await;
    follow(daemon, answer, folder, events).await
}

/// Has a coded file compared with its checksums.
pub(super) async fn verify(
    daemon: DaemonConnection,
    file: PathBuf,
    events: Sender<Event>,
) -> Result<(), Failure> {
    let file = file.display().to_string();
    let call = VerifyRequest {
        input_path: file.clone(),
    };
    let answer = daemon.jobs().verify(call).await;
    follow(daemon, answer, file, events).await
}

/// Waits for a job's end and tells what came of it; the file or folder names it.
async fn follow(
    daemon: DaemonConnection,
    answer: Result<Response<Streaming<JobEvent>>, Status>,
    named: String,
    events: Sender<Event>,
) -> Result<(), Failure> {
    let mut stream = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    while let Some(answer) = stream.next().await {
        if let Some(Kind::Result(result)) = answer.map_err(|status| daemon.failure(status))?.kind {
            let event = match outcome_text(&named, &result) {
                Ok(words) => Event::Succeeded(words),
                Err(words) => Event::Failed(words),
            };
            let _ = events.send(event).await;
        }
    }
    // What was written may be a model.
    models::list(daemon, events).await
}

/// What came of a job; damage is a failure.
fn outcome_text(named: &str, result: &JobResult) -> Result<String, String> {
    match &result.kind {
        Some(kind) => container::outcome(named, kind, result.elapsed_ms),
        None => Err(format!("{named}: the job ended without a result")),
    }
}
