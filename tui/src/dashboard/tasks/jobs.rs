//! Calls that begin jobs and report their results. Progress comes with the snapshots.

use std::path::PathBuf;

use futures_util::StreamExt;
use sluice_proto::{
    operations::OperationResponse,
    v1::{CompressRequest, DecompressRequest, VerifyRequest},
};
use sluice_report::container;
use tokio::sync::mpsc::Sender;
use tonic::{Response, Status, Streaming};

use super::{super::event::Event, models};
use crate::{connection::DaemonConnection, output::Failure};

/// Compresses a model into a file.
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
    let answer = daemon.optimizer().compress(call).await;
    follow(daemon, answer, output, events).await
}

/// Decompresses a compressed file into a folder.
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
    let answer = daemon.optimizer().decompress(call).await;
    follow(daemon, answer, folder, events).await
}

/// Compares a compressed file with its checksums.
pub(super) async fn verify(
    daemon: DaemonConnection,
    file: PathBuf,
    events: Sender<Event>,
) -> Result<(), Failure> {
    let file = file.display().to_string();
    let call = VerifyRequest {
        input_path: file.clone(),
    };
    let answer = daemon.optimizer().verify(call).await;
    follow(daemon, answer, file, events).await
}

/// Waits for a job's end and reports its result under the name of its file or folder.
pub(super) async fn follow<R: OperationResponse>(
    daemon: DaemonConnection,
    answer: Result<Response<Streaming<R>>, Status>,
    named: String,
    events: Sender<Event>,
) -> Result<(), Failure> {
    let mut stream = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    while let Some(answer) = stream.next().await {
        let answer = answer.map_err(|status| daemon.failure(status))?;
        if let Some(job) = answer.into_operation()
            && let Some(result) = &job.outcome
        {
            // The job itself succeeded, but a damaged file is shown as an error.
            let event = match container::outcome(&named, result, job.elapsed_ms) {
                Ok(words) => Event::Succeeded(words),
                Err(words) => Event::Failed(words),
            };
            let _ = events.send(event).await;
        }
    }
    // The output may be a model that the list does not have yet.
    models::list(daemon, events).await
}
