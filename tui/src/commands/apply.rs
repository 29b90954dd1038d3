//! `sluice level`, `sluice budget` and `sluice restore`: another plan for the loaded model, while requests run.

use futures_util::StreamExt;
use sluice_proto::v1::{
    Applied, ApplyPlanned, ApplyRequest, ApplyResponse, Plan, RestoreRequest, apply_response::Kind,
};
use sluice_shared::units;
use tokio::signal::unix::Signal;
use tonic::{Response, Status, Streaming};

use super::{advance::bar, follow::interrupts};
use crate::{
    cli::{Budget, SetBudget, SetLevel},
    connection::Daemon,
    json,
    output::{Failure, Out, Progress, dim},
    plans,
};

/// Puts another level in force.
pub(super) async fn level(
    daemon: &Daemon,
    arguments: &SetLevel,
    out: &mut Out,
) -> Result<(), Failure> {
    let request = ApplyRequest {
        level: Some(arguments.level.name().to_owned()),
        budget_bytes: arguments.budget,
        embedding: arguments.knobs.embedding.map(|place| place.to_string()),
        auto_factor: arguments.knobs.auto_factor,
        kv: arguments.knobs.kv.map(|kv| kv.to_string()),
        ..Default::default()
    };
    apply(daemon, request, arguments.json, out).await
}

/// Puts another budget in force.
pub(super) async fn budget(
    daemon: &Daemon,
    arguments: &SetBudget,
    out: &mut Out,
) -> Result<(), Failure> {
    let mut request = ApplyRequest::default();
    match arguments.budget {
        Budget::Default => request.default_budget = true,
        Budget::Bytes(bytes) => request.budget_bytes = Some(bytes),
    }
    apply(daemon, request, arguments.json, out).await
}

/// Goes back to the checkpoint's own weights.
pub(super) async fn restore(daemon: &Daemon, json: bool, out: &mut Out) -> Result<(), Failure> {
    let mut interrupts = interrupts()?;
    let mut client = daemon.optimizer();
    let answer = tokio::select! {
        answer = client.restore(RestoreRequest {}) => answer,
        _ = interrupts.recv() => return Err(interrupted()),
    };
    follow(daemon, answer, json, out, &mut interrupts).await
}

async fn apply(
    daemon: &Daemon,
    request: ApplyRequest,
    json: bool,
    out: &mut Out,
) -> Result<(), Failure> {
    let mut interrupts = interrupts()?;
    let mut client = daemon.optimizer();
    let answer = tokio::select! {
        answer = client.apply(request) => answer,
        _ = interrupts.recv() => return Err(interrupted()),
    };
    follow(daemon, answer, json, out, &mut interrupts).await
}

/// Shows a change until it is in force. An interrupt ends the watching, not the change.
async fn follow(
    daemon: &Daemon,
    answer: Result<Response<Streaming<ApplyResponse>>, Status>,
    json: bool,
    out: &mut Out,
    interrupts: &mut Signal,
) -> Result<(), Failure> {
    let mut stream = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    let mut progress = Progress::new();
    loop {
        let next = tokio::select! {
            next = stream.next() => next,
            _ = interrupts.recv() => return Err(interrupted()),
        };
        let Some(answer) = next else {
            return Err(Failure::new("the daemon ended the stream without a result"));
        };
        let Some(kind) = answer.map_err(|status| daemon.failure(status))?.kind else {
            continue;
        };
        if json {
            out.line(&json::applying(&kind).to_string())?;
        } else {
            show(&kind, &mut progress, out)?;
        }
        if matches!(kind, Kind::Applied(_)) {
            return Ok(());
        }
    }
}

fn show(kind: &Kind, progress: &mut Progress, out: &mut Out) -> Result<(), Failure> {
    match kind {
        Kind::Planned(planned) => {
            for line in prediction(planned) {
                out.line(&line)?;
            }
        }
        Kind::Conversion(conversion) => progress.show(&format!(
            "converting {} {} of {}",
            bar(conversion.done_bytes, conversion.total_bytes),
            units::bytes(conversion.done_bytes),
            units::bytes(conversion.total_bytes)
        )),
        Kind::Progress(switch) => progress.show(&format!(
            "switching {} {} of {} steps",
            bar(switch.done.into(), switch.steps.into()),
            switch.done,
            switch.steps
        )),
        Kind::Notice(text) => {
            progress.clear();
            dim(&format!("note: {text}"));
        }
        Kind::Applied(applied) => {
            progress.clear();
            out.line(&measurement(applied))?;
        }
    }
    Ok(())
}

fn interrupted() -> Failure {
    Failure::new("interrupted; the switch goes on")
        .with_hint("`sluice status` shows how far it is, `sluice restore` takes it back")
}

/// What the change will do, before and after.
fn prediction(planned: &ApplyPlanned) -> Vec<String> {
    let after = planned.plan.clone().unwrap_or_default();
    let before = planned.before.as_ref();
    let line = |name: &str, figure: fn(&Plan) -> String, remark: &str| {
        let to = figure(&after);
        let from = before.map(figure).filter(|from| *from != to);
        let change = from.map_or(to.clone(), |from| format!("{from} → {to}"));
        format!("{name:<9} {change}{remark}")
    };
    vec![
        line("level", |plan| plan.level.clone(), ""),
        line("budget", |plan| units::bytes(plan.budget_bytes), ""),
        line("peak", |plan| units::bytes(plan.peak_bytes), ", predicted"),
        line("a pass", plans::pass_time, ", predicted"),
        line("streamed", plans::streamed, ""),
    ]
}

fn measurement(applied: &Applied) -> String {
    format!(
        "{:<9} after {}, with {} held on the device",
        "in force",
        units::duration_ms(applied.elapsed_ms),
        units::bytes(applied.device_bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prediction_says_what_changes_and_what_stays() {
        let before = Plan {
            level: "standard".into(),
            budget_bytes: 4 << 30,
            peak_bytes: 4 << 30,
            pass_ms: Some(1800.0),
            streamed_bytes_per_pass: 2 << 30,
            ..Default::default()
        };
        let after = Plan {
            level: "moderate".into(),
            peak_bytes: 3 << 30,
            pass_ms: None,
            streamed_bytes_per_pass: 0,
            ..before.clone()
        };
        let lines = prediction(&ApplyPlanned {
            plan: Some(after),
            before: Some(before),
            steps: 3,
        });
        assert_eq!(
            lines,
            [
                "level     standard → moderate",
                "budget    4.00 GiB",
                "peak      4.00 GiB → 3.00 GiB, predicted",
                "a pass    1.8 s → unknown, predicted",
                "streamed  2.00 GiB a pass → nothing",
            ]
        );
    }
}
