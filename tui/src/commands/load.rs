//! `sluice load`.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use futures_util::StreamExt;
use serde_json::json;
use sluice_proto::v1::{
    CancelLoadRequest, LoadModelRequest, LoadModelResponse, Model, Plan, load_model_response::Kind,
    model_ref::By,
};
use sluice_report::progress::advance;
use sluice_shared::{names, units};
use tokio::signal::unix::Signal;
use tonic::{Code, Streaming};

use super::{follow::interrupts, library::subject, models::describe};
use crate::{
    cli::Load,
    connection::DaemonConnection,
    output::{Failure, ProgressLine, StandardOutput, dim},
    plans,
    text::sanitise_line,
};

/// How long an interrupted client waits for the daemon to take the cancellation.
const CANCEL_WAIT: Duration = Duration::from_secs(5);

/// Loads a checkpoint, or the embedded model where no folder is named.
pub(super) async fn run(
    socket: PathBuf,
    arguments: &Load,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let asked = match &arguments.model {
        Some(argument) => subject(argument)?,
        None => By::Name(names::DEMONSTRATION_MODEL.to_owned()),
    };
    let request = LoadModelRequest {
        model: asked.into(),
        options: Some(arguments.options.into()),
        make_default: arguments.default,
    };
    let daemon = DaemonConnection::connect(socket).await?;
    let mut interrupts = interrupts()?;
    let model = model(&daemon, request, arguments.json, &mut interrupts, out).await?;
    match arguments.json {
        true => Ok(()),
        false => out.line(&format!("loaded {}", describe(&model))),
    }
}

/// Loads a model, and shows how far that is.
pub(super) async fn model(
    daemon: &DaemonConnection,
    request: LoadModelRequest,
    json: bool,
    interrupts: &mut Signal,
    out: &mut StandardOutput,
) -> Result<Model, Failure> {
    let mut client = daemon.models();
    let answer = tokio::select! {
        answer = client.load_model(request) => answer,
        _ = interrupts.recv() => {
            cancel(daemon).await?;
            return Err(cancelled());
        }
    };
    let stream = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    follow(daemon, stream, json, interrupts, out).await
}

/// Shows a load until the model is there. An interrupt cancels it; what became of that, the stream tells.
async fn follow(
    daemon: &DaemonConnection,
    mut stream: Streaming<LoadModelResponse>,
    json: bool,
    interrupts: &mut Signal,
    out: &mut StandardOutput,
) -> Result<Model, Failure> {
    let mut progress = ProgressLine::new();
    let mut model = None;
    let mut was_interrupted = false;
    loop {
        let next = tokio::select! {
            next = stream.next() => next,
            _ = interrupts.recv() => {
                progress.clear();
                if was_interrupted {
                    return Err(unconfirmed());
                }
                was_interrupted = true;
                cancel(daemon).await?;
                continue;
            }
        };
        let kind = match next {
            Some(Ok(answer)) => answer.kind,
            Some(Err(status)) if was_interrupted && status.code() == Code::Cancelled => {
                return Err(cancelled());
            }
            Some(Err(status)) => return Err(daemon.failure(status)),
            None => break,
        };
        if let (true, Some(kind)) = (json, &kind) {
            out.json(kind)?;
        }
        match kind {
            Some(Kind::Model(loaded)) => model = Some(loaded),
            _ if json => {}
            Some(Kind::Plan(plan)) => {
                progress.clear();
                dim(&prediction(&plan));
            }
            Some(Kind::Conversion(step)) => progress.show(&advance(
                "converting",
                step.done_bytes,
                step.total_bytes,
                None,
            )),
            Some(Kind::Progress(step)) => progress.show(&advance(
                "loading",
                step.loaded_bytes,
                step.total_bytes,
                None,
            )),
            Some(Kind::Notice(text)) => {
                progress.clear();
                dim(&format!("note: {text}"));
            }
            None => {}
        }
    }
    model.ok_or_else(|| Failure::new("the daemon ended the stream without a model"))
}

/// Cancels the load of this model.
pub(super) async fn stop(
    daemon: &DaemonConnection,
    name: &str,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let was_loading = cancel(daemon).await?;
    if json {
        return out.json(&json!({"name": name, "was_loading": was_loading}));
    }
    let name = sanitise_line(name);
    out.line(&match was_loading {
        true => format!("cancelled the load of {name}"),
        false => format!("the load of {name} has already finished"),
    })
}

/// Whether something was loading.
async fn cancel(daemon: &DaemonConnection) -> Result<bool, Failure> {
    let mut client = daemon.models();
    let call = client.cancel_load(CancelLoadRequest {});
    match tokio::time::timeout(CANCEL_WAIT, call).await {
        Ok(Ok(answer)) => Ok(answer.into_inner().was_loading),
        Ok(Err(status)) => Err(daemon.failure(status)),
        Err(_) => Err(unconfirmed()),
    }
}

fn cancelled() -> Failure {
    Failure::interrupted("the load was cancelled")
}

fn unconfirmed() -> Failure {
    Failure::interrupted("the daemon has not confirmed the end of the load")
        .with_hint("`sluice status` shows whether it still loads")
}

/// The plan in one line.
fn prediction(plan: &Plan) -> String {
    format!(
        "plan: level {}, peak {} of {}, a pass {}, streamed {}",
        plan.level(),
        units::bytes(plan.peak_bytes),
        units::bytes(plan.budget_bytes),
        plans::pass_time(plan),
        plans::streamed(plan)
    )
}

/// The daemon has another working folder, so the path is made absolute here.
pub(super) fn absolute(dir: &Path) -> Result<String, Failure> {
    let shown = dir.display();
    let path = std::path::absolute(dir)
        .map_err(|error| Failure::new(format!("make '{shown}' absolute: {error}")))?;
    let path = path.into_os_string().into_string();
    path.map_err(|_| Failure::new(format!("the path '{shown}' is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::Level;

    use super::*;

    #[test]
    fn paths_become_absolute() {
        let path = absolute(Path::new("models/x")).unwrap();
        assert!(
            path.starts_with('/') && path.ends_with("models/x"),
            "{path}"
        );
    }

    #[test]
    fn the_plan_of_a_load_fits_a_line() {
        let plan = Plan {
            level: Level::Moderate.into(),
            budget_bytes: 4 << 30,
            peak_bytes: 3 << 30,
            pass_ms: Some(620.0),
            ..Default::default()
        };
        assert_eq!(
            prediction(&plan),
            "plan: level moderate, peak 3.00 GiB of 4.00 GiB, a pass 620 ms, streamed nothing"
        );
    }
}
