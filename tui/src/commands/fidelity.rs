//! `sluice fidelity`: how close levels come to the checkpoint's own weights.

use std::path::PathBuf;

use futures_util::StreamExt;
use sluice_proto::v1::{
    FidelityResult, MeasureFidelityRequest, Plan, PlanRequest, Texts,
    measure_fidelity_request::Samples, measure_fidelity_response::Kind,
};
use sluice_shared::{level::Level, units};

use super::input;
use crate::{
    cli::{Fidelity, Levels},
    connection::Daemon,
    json,
    output::{Failure, Out, Progress},
    plans,
    text::sanitise_line,
};

/// What `all` means: `off` has the weights of `standard`, and `mild` can't be loaded yet.
const ALL: [Level; 3] = [Level::Standard, Level::Moderate, Level::Aggressive];

/// Measures the levels, one after another, and prints each as soon as it is known.
pub(super) async fn run(
    socket: PathBuf,
    arguments: &Fidelity,
    out: &mut Out,
) -> Result<(), Failure> {
    let (text, name) = input::file(arguments.file.as_deref())?;
    if text.trim().is_empty() {
        return Err(Failure::new(format!("{name} holds no text")));
    }
    let daemon = Daemon::connect(socket).await?;
    let mut rows = Vec::new();
    // A level that can't be had is told before minutes are spent on the others.
    for level in levels(&arguments.levels) {
        rows.push((level, plan(&daemon, level).await?));
    }
    let mut request = MeasureFidelityRequest {
        samples: Some(Samples::Texts(Texts { texts: vec![text] })),
        level: None,
        seed: arguments.seed,
        max_samples: arguments.samples,
    };
    let mut last = None;
    for (level, plan) in rows {
        request.level = level.map(|level| level.name().to_owned());
        let result = measure(&daemon, request.clone(), &plan.level).await?;
        // The same masks for all.
        request.seed = Some(result.seed);
        if arguments.json {
            out.line(&json::fidelity(&result, &plan).to_string())?;
            continue;
        }
        if last.is_none() {
            out.line(&header())?;
        }
        out.line(&row(&result, &plan))?;
        last = Some(result);
    }
    match last {
        Some(result) => out.line(&footer(&result)),
        None => Ok(()),
    }
}

/// The levels without repetition; `None`: the one in force.
fn levels(asked: &[Levels]) -> Vec<Option<Level>> {
    let mut levels = Vec::new();
    for asked in asked {
        let these = match asked {
            Levels::All => &ALL[..],
            Levels::One(level) => std::slice::from_ref(level),
        };
        for level in these {
            if !levels.contains(&Some(*level)) {
                levels.push(Some(*level));
            }
        }
    }
    if levels.is_empty() {
        levels.push(None);
    }
    levels
}

async fn plan(daemon: &Daemon, level: Option<Level>) -> Result<Plan, Failure> {
    let request = PlanRequest {
        level: level.map(|level| level.name().to_owned()),
        ..Default::default()
    };
    let answer = daemon.optimizer().plan(request).await;
    let plan = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner()
        .plan
        .ok_or_else(|| Failure::new("the daemon's answer has no plan"))?;
    if !plan.is_loadable {
        return Err(Failure::new(plan.not_loadable)
            .with_hint("`--level all` measures those that can be loaded"));
    }
    Ok(plan)
}

async fn measure(
    daemon: &Daemon,
    request: MeasureFidelityRequest,
    level: &str,
) -> Result<FidelityResult, Failure> {
    let answer = daemon.optimizer().measure_fidelity(request).await;
    let mut stream = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    let mut progress = Progress::new();
    let mut result = None;
    while let Some(answer) = stream.next().await {
        match answer.map_err(|status| daemon.failure(status))?.kind {
            Some(Kind::Progress(step)) => {
                progress.show(&format!("{level}: {} of {} passes", step.done, step.total));
            }
            Some(Kind::Result(measured)) => result = Some(measured),
            None => {}
        }
    }
    progress.clear();
    result.ok_or_else(|| Failure::new("the daemon ended the stream without a result"))
}

fn header() -> String {
    line([
        "level", "mean KL", "same top", "source", "level", "peak", "a pass",
    ])
}

fn row(result: &FidelityResult, plan: &Plan) -> String {
    // A divergence is never negative; what rounding makes of none may be.
    let mean_kl = result.mean_kl_nats.max(0.0);
    line([
        &sanitise_line(&result.level),
        &format!("{mean_kl:.6}"),
        &format!("{:.2} %", result.top_agreement * 100.0),
        &format!("{:.4}", result.source_bound_nats),
        &format!("{:.4}", result.level_bound_nats),
        &units::bytes(plan.peak_bytes),
        &plans::pass_time(plan),
    ])
}

fn line(cells: [&str; 7]) -> String {
    let [level, mean_kl, same_top, source, own, peak, pass] = cells;
    format!("{level:<10} {mean_kl:>9} {same_top:>9} {source:>8} {own:>8} {peak:>9} {pass:>8}")
}

fn footer(result: &FidelityResult) -> String {
    format!(
        "{} samples, {} tokens, seed {}; KL and bounds in nats a token, peak and pass as planned",
        units::count(result.samples.into()),
        units::count(result.rows.into()),
        result.seed
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_levels_are_each_measured_once() {
        assert_eq!(levels(&[]), [None]);
        assert_eq!(levels(&[Levels::All]), ALL.map(Some));
        let asked = [
            Levels::One(Level::Moderate),
            Levels::All,
            Levels::One(Level::Moderate),
        ];
        let expected = [Level::Moderate, Level::Standard, Level::Aggressive];
        assert_eq!(levels(&asked), expected.map(Some));
    }

    #[test]
    fn a_row_has_figures_that_fit_and_no_negative_zero() {
        let result = FidelityResult {
            level: "aggressive".into(),
            mean_kl_nats: -1e-12,
            top_agreement: 0.99951,
            source_bound_nats: 1.25,
            level_bound_nats: 12.5,
            ..Default::default()
        };
        let plan = Plan {
            peak_bytes: 640 << 20,
            ..Default::default()
        };
        let row = row(&result, &plan);
        assert_eq!(
            row,
            "aggressive  0.000000   99.95 %   1.2500  12.5000   640 MiB  unknown"
        );
        assert_eq!(header().len(), row.len());
    }
}
