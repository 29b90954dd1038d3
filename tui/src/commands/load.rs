//! `sluice load`.

use std::path::PathBuf;

use sluice_proto::v1::{
    LoadModelRequest, Model, OperationStage, Plan,
    model_ref::By,
    operation::{Detail, Outcome},
};
use sluice_report::progress::advance;
use sluice_shared::{names, units};
use tokio::signal::unix::Signal;

use super::{
    follow::interrupts,
    models::describe,
    operations::{NewNotices, OnInterrupt, Step, follow},
    paths::subject,
};
use crate::{
    cli::Load,
    connection::DaemonConnection,
    operations::no_result,
    output::{Failure, StandardOutput, dim},
    plans,
};

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
        pin: arguments.pin,
    };
    let daemon = DaemonConnection::connect(socket).await?;
    loaded(&daemon, request, arguments.json, out).await
}

/// Loads a model in place of the present one, as that was loaded by default.
pub(super) async fn in_place(
    daemon: &DaemonConnection,
    model: By,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let request = LoadModelRequest {
        model: model.into(),
        ..LoadModelRequest::default()
    };
    loaded(daemon, request, json, out).await
}

async fn loaded(
    daemon: &DaemonConnection,
    request: LoadModelRequest,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let mut interrupts = interrupts()?;
    let model = model(daemon, request, json, &mut interrupts, out).await?;
    match json {
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
