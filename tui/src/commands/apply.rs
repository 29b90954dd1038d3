//! `sluice level`, `sluice budget` and `sluice restore`: change the plan of the loaded model while requests run.

use std::future::Future;

use sluice_proto::{
    operations::OperationResponse,
    v1::{
        ApplyRequest, Operation, OperationProgress, Plan, PlannedChange, ProgressUnit,
        RestoreRequest, RestoreTarget,
        operation::{Detail, Outcome},
    },
};
use sluice_report::{plan::switch_estimate, progress::bar};
use sluice_shared::{options::PlanOptions, units};
use tonic::{Response, Status, Streaming};

use super::{
    follow::interrupts,
    operations::{self, NewNotices, OnInterrupt, Step},
};
use crate::{
    cli::{Restore, RestoreTo, SetBudget, SetLevel},
    connection::DaemonConnection,
    output::{Failure, ProgressLine, StandardOutput, dim},
    plans,
};

/// The form in which a change is shown.
#[derive(Clone, Copy)]
enum ChangeOutput {
    /// Each picture of the operation as a JSON object.
    Json,
    /// Words on standard output: the change is what the command was asked for.
    Words,
    /// Words on standard error: the command was asked for something else, whose output is on standard output.
    Aside,
}

impl ChangeOutput {
    fn of(json: bool) -> Self {
        match json {
            true => Self::Json,
            false => Self::Words,
        }
    }
}

/// Applies options for a command that goes on to something else.
pub(super) async fn plan_options(
    daemon: &DaemonConnection,
    options: PlanOptions,
    model: &str,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    apply(daemon, (options, Some(model)), ChangeOutput::Aside, out).await
}

/// Applies what another command was asked to put in force.
pub(super) async fn in_force(
    daemon: &DaemonConnection,
    options: PlanOptions,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    apply(daemon, (options, None), ChangeOutput::of(json), out).await
}

/// Applies another level.
pub(super) async fn level(
    daemon: &DaemonConnection,
    arguments: &SetLevel,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let output = ChangeOutput::of(arguments.json);
    let model = arguments.model.as_deref();
    apply(daemon, (arguments.options, model), output, out).await
}

/// Applies another budget.
pub(super) async fn budget(
    daemon: &DaemonConnection,
    arguments: &SetBudget,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let options = PlanOptions {
        budget: Some(arguments.budget),
        ..PlanOptions::default()
    };
    let model = arguments.model.as_deref();
    let output = ChangeOutput::of(arguments.json);
    apply(daemon, (options, model), output, out).await
}

/// Restores the settings that the model was loaded with, or the checkpoint's own weights.
pub(super) async fn restore(
    daemon: &DaemonConnection,
    arguments: &Restore,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let request = RestoreRequest {
        target: match arguments.to {
            RestoreTo::Start => RestoreTarget::Start.into(),
            RestoreTo::Source => RestoreTarget::Source.into(),
        },
        model: arguments.model.clone().unwrap_or_default(),
    };
    let mut client = daemon.optimizer();
    let call = client.restore(request);
    follow(daemon, call, ChangeOutput::of(arguments.json), out).await
}

async fn apply(
    daemon: &DaemonConnection,
    (options, model): (PlanOptions, Option<&str>),
    manner: ChangeOutput,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let mut client = daemon.optimizer();
    let call = client.apply(ApplyRequest {
        model: model.unwrap_or_default().to_owned(),
        ..options.into()
    });
    follow(daemon, call, manner, out).await
}

/// Shows a change until it is in force. An interrupt ends the watching, not the change.
async fn follow<R: OperationResponse>(
    daemon: &DaemonConnection,
    call: impl Future<Output = Result<Response<Streaming<R>>, Status>>,
    manner: ChangeOutput,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let mut interrupts = interrupts()?;
    let mut shown = ShownChange::default();
    let leaves = OnInterrupt::Leaves(interrupted);
    let change = |operation: &Operation, progress: &mut ProgressLine| {
        match manner {
            ChangeOutput::Json => out.json(operation)?,
            ChangeOutput::Words => shown.show(operation, progress, |line| out.line(line))?,
            ChangeOutput::Aside => shown.show(operation, progress, |line| {
                dim(line);
                Ok(())
            })?,
        }
        Ok(Step::Next)
    };
    operations::follow(daemon, call, &mut interrupts, leaves, change).await?;
    Ok(())
}

/// What was already shown of a change, since each picture repeats it.
#[derive(Default)]
struct ShownChange {
    is_planned: bool,
    notices: NewNotices,
}

impl ShownChange {
    fn show(
        &mut self,
        operation: &Operation,
        progress: &mut ProgressLine,
        mut tell: impl FnMut(&str) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if let (false, Some(Detail::PlannedChange(planned))) = (self.is_planned, &operation.detail)
        {
            // Pictures are repeated as a whole, so the plan is printed with the first that has it.
            self.is_planned = true;
            for line in prediction(planned) {
                tell(&line)?;
            }
        }
        for notice in self.notices.of(operation) {
            progress.clear();
            dim(&format!("note: {notice}"));
        }
        match (&operation.outcome, &operation.progress) {
            (Some(Outcome::Apply(applied)), _) => {
                tell(&measurement(operation.elapsed_ms, applied.device_bytes))
            }
            (None, Some(step)) if operation.is_active() => {
                progress.show(&step_line(step));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// The progress of a change, in a line.
pub(super) fn step_line(step: &OperationProgress) -> String {
    let total = step.total.unwrap_or(0);
    let bar = bar(step.done, total);
    match step.unit() {
        ProgressUnit::Steps => format!("switching {bar} {} of {total} steps", step.done),
        _ => format!(
            "converting {bar} {} of {}",
            units::bytes(step.done),
            units::bytes(total)
        ),
    }
}

fn interrupted() -> Failure {
    Failure::interrupted("the switch continues")
        .with_hint("`sluice status` shows how far it is, `sluice restore` takes it back")
}

/// The planned figures before and after the change.
fn prediction(planned: &PlannedChange) -> Vec<String> {
    let after = planned.plan.clone().unwrap_or_default();
    let before = planned.plan_before.as_ref();
    let line = |name: &str, figure: fn(&Plan) -> String, remark: &str| {
        let to = figure(&after);
        let from = before.map(figure).filter(|from| *from != to);
        let change = from.map_or(to.clone(), |from| format!("{from} → {to}"));
        format!("{name:<9} {change}{remark}")
    };
    let mut lines = vec![
        line("level", |plan| plan.level().to_string(), ""),
        line("budget", |plan| units::bytes(plan.budget_bytes), ""),
        line("peak", |plan| units::bytes(plan.peak_bytes), ", predicted"),
        line("a pass", plans::pass_time, ", predicted"),
        line("streamed", plans::streamed, ""),
    ];
    if let Some(time) = &after.switch_estimate {
        lines.push(format!("{:<9} {}", "switch", switch_estimate(time)));
    }
    lines.extend(after.notes.iter().map(|note| format!("note: {note}")));
    lines
}

fn measurement(elapsed_ms: f64, device_bytes: u64) -> String {
    format!(
        "{:<9} after {}, with {} held on the device",
        "in force",
        units::duration_ms(elapsed_ms),
        units::bytes(device_bytes)
    )
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::{Level, SwitchEstimate};

    use super::*;

    #[test]
    fn a_prediction_says_what_changes_and_what_stays() {
        let before = Plan {
            level: Level::Standard.into(),
            budget_bytes: 4 << 30,
            peak_bytes: 4 << 30,
            pass_ms: Some(1800.0),
            streamed_bytes_per_pass: 2 << 30,
            ..Default::default()
        };
        let after = Plan {
            level: Level::Moderate.into(),
            peak_bytes: 3 << 30,
            pass_ms: None,
            streamed_bytes_per_pass: 0,
            switch_estimate: Some(SwitchEstimate {
                idle_ms: 4100.0,
                busy_ms: 24_600.0,
                converted_weights: 210_000_000,
                read_bytes: 1 << 30,
            }),
            ..before.clone()
        };
        let lines = prediction(&PlannedChange {
            plan: Some(after),
            plan_before: Some(before),
            total_steps: 3,
        });
        assert_eq!(
            lines,
            [
                "level     standard → moderate",
                "budget    4.00 GiB",
                "peak      4.00 GiB → 3.00 GiB, predicted",
                "a pass    1.8 s → unknown, predicted",
                "streamed  2.00 GiB a pass → nothing",
                "switch    about 4.1 s to convert 210.0 M weights, up to 24.6 s while requests run",
            ]
        );
    }
}
