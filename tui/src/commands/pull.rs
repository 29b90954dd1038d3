//! `sluice pull`.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use futures_util::StreamExt;
use sluice_proto::v1::{
    CancelPullRequest, Model, PullModelRequest, PullModelResponse, PullPlan, PullProgress,
    model_ref::By, pull_model_response::Kind,
};
use sluice_report::progress::advance;
use sluice_shared::{bandwidth::Bandwidth, names, units};
use tokio::signal::unix::Signal;
use tonic::{Code, Streaming};

use super::{follow::interrupts, models::describe};
use crate::{
    cli::Pull,
    connection::DaemonConnection,
    output::{Failure, ProgressLine, StandardOutput, dim},
};

/// How long an interrupted client waits for the daemon to take the cancellation.
const CANCEL_WAIT: Duration = Duration::from_secs(5);

/// Downloads a model, or joins the download under way.
pub(super) async fn run(
    socket: PathBuf,
    arguments: &Pull,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let daemon = DaemonConnection::connect(socket).await?;
    let mut interrupts = interrupts()?;
    let model = model(&daemon, arguments, &mut interrupts, out).await?;
    if !arguments.json {
        out.line(&format!("pulled {}", describe(&model)))?;
        dim(&format!("`sluice load {}` loads it", model.name));
    }
    Ok(())
}

/// Has a model downloaded, and shows how far that is.
pub(super) async fn model(
    daemon: &DaemonConnection,
    arguments: &Pull,
    interrupts: &mut Signal,
    out: &mut StandardOutput,
) -> Result<Model, Failure> {
    // The daemon knows short names, too; but a cancellation has to name what is on its way.
    let asked = names::full(&arguments.name).unwrap_or(&arguments.name);
    let request = PullModelRequest {
        model: By::Name(asked.to_owned()).into(),
        file_name: arguments.file.clone().unwrap_or_default(),
        revision: arguments.revision.clone().unwrap_or_default(),
        // The daemon has its own environment; this one is the user's.
        hub_token: std::env::var("HF_TOKEN").unwrap_or_default(),
    };
    let answer = daemon.models().pull_model(request).await;
    let stream = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    follow(daemon, arguments, asked, stream, interrupts, out).await
}

/// Shows a download until the model is there. An interrupt cancels it; what became of that, the stream tells.
async fn follow(
    daemon: &DaemonConnection,
    arguments: &Pull,
    asked: &str,
    mut stream: Streaming<PullModelResponse>,
    interrupts: &mut Signal,
    out: &mut StandardOutput,
) -> Result<Model, Failure> {
    let mut progress = ProgressLine::new();
    let mut rate = Bandwidth::default();
    let mut was_interrupted = false;
    let mut name = match &arguments.file {
        Some(file) => format!("{asked}:{file}"),
        None => asked.to_owned(),
    };
    loop {
        let next = tokio::select! {
            next = stream.next() => next,
            _ = interrupts.recv() => {
                progress.clear();
                if was_interrupted {
                    return Err(unconfirmed());
                }
                was_interrupted = true;
                cancel(daemon, &name).await?;
                continue;
            }
        };
        let kind = match next {
            Some(Ok(answer)) => answer.kind,
            Some(Err(status)) if was_interrupted && status.code() == Code::Cancelled => {
                return Err(Failure::interrupted("the downloaded part is kept")
                    .with_hint("run the same command again to resume"));
            }
            Some(Err(status)) => return Err(daemon.failure(status)),
            None => return Err(Failure::new("the daemon ended the stream without a model")),
        };
        let Some(kind) = kind else { continue };
        if arguments.json {
            out.json(&kind)?;
        }
        match kind {
            Kind::Plan(plan) => {
                name.clone_from(&plan.name);
                if !arguments.json {
                    progress.clear();
                    dim(&planned(&plan));
                }
            }
            Kind::Progress(step) if !arguments.json => {
                rate.record(Instant::now(), step.done_bytes);
                progress.show(&pulling(&step, rate.bytes_per_second()));
            }
            Kind::Notice(text) if !arguments.json => {
                progress.clear();
                dim(&format!("note: {text}"));
            }
            Kind::Model(model) => {
                progress.clear();
                return Ok(model);
            }
            _ => {}
        }
    }
}

async fn cancel(daemon: &DaemonConnection, name: &str) -> Result<(), Failure> {
    let name = name.to_owned();
    let mut client = daemon.models();
    let call = client.cancel_pull(CancelPullRequest { name });
    match tokio::time::timeout(CANCEL_WAIT, call).await {
        Ok(answer) => answer.map(|_| ()).map_err(|status| daemon.failure(status)),
        Err(_) => Err(unconfirmed()),
    }
}

fn unconfirmed() -> Failure {
    Failure::interrupted("the daemon has not confirmed the end of the download")
        .with_hint("`sluice list` shows whether it is still running")
}

/// What is to come, in one line.
fn planned(plan: &PullPlan) -> String {
    let mut line = format!(
        "{}: {} files, {}",
        plan.name,
        plan.files,
        units::bytes(plan.total_bytes)
    );
    if plan.present_bytes > 0 {
        line += &format!(", {} already downloaded", units::bytes(plan.present_bytes));
    }
    line + &format!("; into {}", plan.folder)
}

fn pulling(step: &PullProgress, rate: Option<f64>) -> String {
    let mut line = advance("pulling", step.done_bytes, step.total_bytes, rate);
    if !step.file.is_empty() {
        line += &format!(" · {}", step.file);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_fits_a_line() {
        let step = PullProgress {
            file: "model.safetensors".into(),
            done_bytes: 1 << 30,
            total_bytes: 4 << 30,
        };
        let line = pulling(&step, Some(f64::from(100 << 20)));
        assert!(
            line.ends_with("1.00 GiB of 4.00 GiB, 100 MiB/s, 30 s left · model.safetensors"),
            "{line}"
        );
        let plan = PullPlan {
            name: "a/b".into(),
            files: 3,
            total_bytes: 4 << 30,
            present_bytes: 1 << 30,
            folder: "/m/a/b".into(),
            ..Default::default()
        };
        assert_eq!(
            planned(&plan),
            "a/b: 3 files, 4.00 GiB, 1.00 GiB already downloaded; into /m/a/b"
        );
    }
}
