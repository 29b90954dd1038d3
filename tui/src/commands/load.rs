//! `sluice load`.

use std::{path::PathBuf, time::Duration};

use serde_json::json;
use sluice_proto::v1::{
    CancelOperationRequest, LoadModelRequest, Model, OperationStage, Plan,
    model_ref::By,
    operation::{Detail, Outcome},
};
use sluice_report::progress::advance;
use sluice_shared::{names, units};
use tokio::signal::unix::Signal;

use super::{
    follow::interrupts,
    models::describe,
    operations::{NewNotices, OnInterrupt, Step, follow, no_result},
    paths::subject,
};
use crate::{
    cli::Load,
    connection::DaemonConnection,
    output::{Failure, StandardOutput, dim},
    plans,
    text::sanitise_line,
};

/// How long `sluice stop` waits for the daemon to confirm the cancellation.
const CANCEL_WAIT: Duration = Duration::from_secs(5);

/// Loads a model; without an argument, the demonstration model.
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

/// Loads a model and shows the progress. An interrupt cancels the load.
pub(super) async fn model(
    daemon: &DaemonConnection,
    request: LoadModelRequest,
    json: bool,
    interrupts: &mut Signal,
    out: &mut StandardOutput,
) -> Result<Model, Failure> {
    let cancels = OnInterrupt::Cancels {
        announce: || {},
        cancelled: |_| Failure::interrupted("the load was cancelled"),
        unconfirmed,
    };
    let (mut is_planned, mut notices) = (false, NewNotices::default());
    let mut client = daemon.models();
    let call = client.load_model(request);
    // Each picture repeats the plan and all notices; what was shown is not shown again.
    let loaded = follow(daemon, call, interrupts, cancels, |operation, progress| {
        if json {
            out.json(operation)?;
            return Ok(Step::Next);
        }
        if let (false, Some(Detail::PlannedChange(planned))) = (is_planned, &operation.detail) {
            is_planned = true;
            progress.clear();
            dim(&prediction(
                planned.plan.as_ref().unwrap_or(&Plan::default()),
            ));
        }
        for notice in notices.of(operation) {
            progress.clear();
            dim(&format!("note: {notice}"));
        }
        let step = operation.progress.as_ref();
        if let Some(step) = step.filter(|_| operation.is_active()) {
            let verb = match step.stage() {
                OperationStage::Converting => "converting",
                _ => "loading",
            };
            progress.show(&advance(verb, step.done, step.total.unwrap_or(0), None));
        }
        Ok(Step::Next)
    });
    match loaded.await?.outcome {
        Some(Outcome::Load(result)) => result.model.ok_or_else(no_result),
        _ => Err(no_result()),
    }
}

/// Cancels the load of this model.
pub(super) async fn stop(
    daemon: &DaemonConnection,
    model: &Model,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let was_loading = match model.operation_id {
        Some(operation_id) => cancel(daemon, operation_id).await?,
        None => false,
    };
    let name = &model.name;
    if json {
        return out.json(&json!({"name": name, "was_loading": was_loading}));
    }
    let name = sanitise_line(name);
    out.line(&match was_loading {
        true => format!("cancelled the load of {name}"),
        false => format!("the load of {name} has already finished"),
    })
}

/// Cancels an operation. Returns whether it was still active.
async fn cancel(daemon: &DaemonConnection, operation_id: u64) -> Result<bool, Failure> {
    let mut client = daemon.operations();
    let call = client.cancel_operation(CancelOperationRequest { operation_id });
    match tokio::time::timeout(CANCEL_WAIT, call).await {
        Ok(Ok(answer)) => Ok(answer.into_inner().was_active),
        Ok(Err(status)) => Err(daemon.failure(status)),
        Err(_) => Err(unconfirmed()),
    }
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

#[cfg(test)]
mod tests {
    use sluice_proto::v1::Level;

    use super::*;

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
