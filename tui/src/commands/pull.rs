//! `sluice pull`.

use std::{path::PathBuf, time::Instant};

use sluice_proto::v1::{
    Model, OperationProgress, OperationStage, PullModelRequest, PullPlan,
    model_ref::By,
    operation::{Detail, Outcome},
};
use sluice_report::progress::advance;
use sluice_shared::{bandwidth::Bandwidth, names, units};
use tokio::signal::unix::Signal;

use super::{
    follow::interrupts,
    models::describe,
    operations::{NewNotices, OnInterrupt, Step, follow},
};
use crate::{
    cli::Pull,
    connection::DaemonConnection,
    operations::no_result,
    output::{Failure, StandardOutput, dim},
};

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

/// Has the daemon download a model and shows the progress. An interrupt cancels the download.
pub(super) async fn model(
    daemon: &DaemonConnection,
    arguments: &Pull,
    interrupts: &mut Signal,
    out: &mut StandardOutput,
) -> Result<Model, Failure> {
    let request = PullModelRequest {
        model: By::Name(
            names::full(&arguments.name)
                .unwrap_or(&arguments.name)
                .to_owned(),
        )
        .into(),
        file_name: arguments.file.clone().unwrap_or_default(),
        revision: arguments.revision.clone().unwrap_or_default(),
        // The user's token: the daemon has another environment, and may run as another user.
        hub_token: std::env::var("HF_TOKEN").unwrap_or_default(),
    };
    let cancels = OnInterrupt::Cancels {
        announce: || {},
        cancelled: |_| {
            Failure::interrupted("the downloaded part is kept")
                .with_hint("run the same command again to resume")
        },
        unconfirmed,
    };
    let (mut rate, mut notices) = (Bandwidth::default(), NewNotices::default());
    let (mut is_planned, mut stage) = (false, OperationStage::Downloading);
    let mut client = daemon.models();
    let call = client.pull_model(request);
    let pulled = follow(daemon, call, interrupts, cancels, |operation, progress| {
        if arguments.json {
            out.json(operation)?;
            return Ok(Step::Next);
        }
        if let (false, Some(Detail::PullPlan(plan))) = (is_planned, &operation.detail) {
            is_planned = true;
            progress.clear();
            dim(&planned(plan));
        }
        for notice in notices.of(operation) {
            progress.clear();
            dim(&format!("note: {notice}"));
        }
        let step = operation.progress.as_ref();
        if let Some(step) = step.filter(|_| operation.is_active()) {
            // Hashing is no measure of the network.
            if std::mem::replace(&mut stage, step.stage()) != step.stage() {
                rate = Bandwidth::default();
            }
            rate.record(Instant::now(), step.done);
            progress.show(&pulling(step, rate.bytes_per_second()));
        }
        Ok(Step::Next)
    });
    match pulled.await?.outcome {
        Some(Outcome::Pull(result)) => result.model.ok_or_else(no_result),
        _ => Err(no_result()),
    }
}

fn unconfirmed() -> Failure {
    Failure::interrupted("the daemon has not confirmed the end of the download")
        .with_hint("`sluice list` shows whether it is still running")
}

/// The plan of the download in one line.
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

fn pulling(step: &OperationProgress, rate: Option<f64>) -> String {
    let what = match step.stage() {
        OperationStage::Verifying => "hashing what is there",
        _ => "pulling",
    };
    let mut line = advance(what, step.done, step.total.unwrap_or(0), rate);
    if !step.item.is_empty() {
        line += &format!(" · {}", step.item);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_fits_a_line() {
        let step = OperationProgress {
            item: "model.safetensors".into(),
            done: 1 << 30,
            total: Some(4 << 30),
            ..Default::default()
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
