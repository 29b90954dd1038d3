//! `sluice fidelity`: measures the fidelity of levels to the checkpoint's own weights.

use std::{
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::Serialize;
use sluice_proto::client::when_there_is_room;
use sluice_proto::v1::{
    self, FidelityMeasurement, FidelityResult, ListFidelityRequest, MeasureFidelityRequest, Plan,
    PlanRequest, SampleTexts, measure_fidelity_request::Samples, operation::Outcome,
};
use sluice_shared::{level::Level, options::PlanOptions, units};

use super::{input, operations::owned, until_interrupted};
use crate::{
    cli::{Fidelity, LevelChoice},
    connection::DaemonConnection,
    operations::no_result,
    output::{Failure, StandardOutput},
    plans,
    text::sanitise_line,
};

/// The levels of `all`; `off` is left out, since it has the weights of `standard`.
const ALL: [Level; 4] = [
    Level::Standard,
    Level::Mild,
    Level::Moderate,
    Level::Aggressive,
];

/// Measures the levels one after another, and prints each result as soon as it is known.
pub(super) async fn run(
    socket: PathBuf,
    arguments: &Fidelity,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    if arguments.show {
        return until_interrupted(show(socket, arguments.json, out)).await;
    }
    let (text, name) = input::file(arguments.file.as_deref())?;
    if text.trim().is_empty() {
        return Err(Failure::new(format!("{name} holds no text")));
    }
    until_interrupted(all(socket, arguments, text, out)).await
}

async fn all(
    socket: PathBuf,
    arguments: &Fidelity,
    text: String,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let daemon = DaemonConnection::connect(socket).await?;
    let mut rows = Vec::new();
    // All levels are planned first: one that cannot be loaded is reported before minutes are spent on the others.
    for level in levels(&arguments.levels) {
        rows.push((level, plan(&daemon, level).await?));
    }
    let mut request = MeasureFidelityRequest {
        samples: Some(Samples::Texts(SampleTexts { texts: vec![text] })),
        level: 0,
        seed: arguments.seed,
        max_samples: arguments.samples,
    };
    let mut last = None;
    let mut measured: Vec<Plan> = Vec::new();
    for (level, plan) in rows {
        if let Some(equal) = measured
            .iter()
            .find(|known| has_equal_weights(known, &plan))
        {
            match arguments.json {
                true => out.json(&LevelRow::equal(&plan, equal.level()))?,
                false => out.line(&equal_row(&plan, equal.level()))?,
            }
            continue;
        }
        request.level = wire_level(level);
        let result = measure(&daemon, request.clone(), plan.level()).await?;
        // The daemon draws a seed for the first level; the others get the same masks, or they would not be comparable.
        request.seed = Some(result.seed);
        measured.push(plan.clone());
        if arguments.json {
            out.json(&LevelRow::measured(&plan, &result))?;
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

/// Lists earlier measurements, the latest first.
async fn show(socket: PathBuf, as_json: bool, out: &mut StandardOutput) -> Result<(), Failure> {
    let daemon = DaemonConnection::connect(socket).await?;
    let answer = daemon
        .optimizer()
        .list_fidelity(ListFidelityRequest {})
        .await;
    let answer = answer.map_err(|status| daemon.failure(status))?;
    let measurements = answer.into_inner().measurements;
    if measurements.is_empty() && !as_json {
        return out.line("nothing was measured since the daemon started");
    }
    for (index, measurement) in measurements.iter().rev().enumerate() {
        if as_json {
            out.json(measurement)?;
            continue;
        }
        if index == 0 {
            out.line(&measurement_line([
                "level", "mean KL", "same top", "tokens", "ago", "model",
            ]))?;
        }
        out.line(&measurement_row(measurement))?;
    }
    Ok(())
}

fn measurement_row(measurement: &FidelityMeasurement) -> String {
    let result = measurement.result.unwrap_or_default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ms = now.map_or(0, |now| now.as_millis() as u64);
    let ago_ms = now_ms.saturating_sub(measurement.measured_unix_ms);
    measurement_line([
        &result.level().to_string(),
        &format!("{:.6}", result.mean_kl_nats.max(0.0)),
        &format!("{:.2} %", result.top_agreement * 100.0),
        &units::count(result.rows.into()),
        &units::duration_ms(ago_ms as f64),
        &sanitise_line(&measurement.model),
    ])
}

fn measurement_line(cells: [&str; 6]) -> String {
    let [level, mean_kl, same_top, tokens, ago, model] = cells;
    format!("{level:<10} {mean_kl:>9} {same_top:>9} {tokens:>7} {ago:>10}  {model}")
}

/// The levels to measure, without repetition; `None` stands for the one in force.
fn levels(asked: &[LevelChoice]) -> Vec<Option<Level>> {
    let mut levels = Vec::new();
    for asked in asked {
        let these = match asked {
            LevelChoice::All => &ALL[..],
            LevelChoice::One(level) => std::slice::from_ref(level),
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

/// A level as a request has it; unspecified for the one in force.
fn wire_level(level: Option<Level>) -> i32 {
    level.map_or(v1::Level::Unspecified, v1::Level::from).into()
}

/// The plan of a level that can be put in force; `None` stands for the one that is.
///
/// # Errors
/// Why it cannot.
pub(super) async fn plan(daemon: &DaemonConnection, level: Option<Level>) -> Result<Plan, Failure> {
    let options = PlanOptions {
        level,
        ..PlanOptions::default()
    };
    let answer = daemon.optimizer().plan(PlanRequest::from(options)).await;
    let plan = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner()
        .plan
        .ok_or_else(|| Failure::new("the daemon's answer has no plan"))?;
    match plan.is_loadable {
        true => Ok(plan),
        false => Err(Failure::new(plan.not_loadable_reason)),
    }
}

/// Measures a level, and shows the progress.
///
/// # Errors
/// The daemon's refusal.
pub(super) async fn measure(
    daemon: &DaemonConnection,
    request: MeasureFidelityRequest,
    level: v1::Level,
) -> Result<FidelityResult, Failure> {
    let call = when_there_is_room(|| {
        let (mut client, request) = (daemon.optimizer(), request.clone());
        async move { client.measure_fidelity(request).await }
    });
    let operation = owned(daemon, call, |step| {
        format!(
            "{level}: {} of {} passes",
            step.done,
            step.total.unwrap_or(0)
        )
    });
    match operation.await?.outcome {
        Some(Outcome::Fidelity(result)) => Ok(result),
        _ => Err(no_result()),
    }
}

/// A level's line for scripts.
#[derive(Serialize)]
struct LevelRow<'a> {
    level: v1::Level,
    /// The measured level with equal weights; this level is not measured then.
    equal_to: Option<v1::Level>,
    peak_bytes: u64,
    pass_ms: Option<f64>,
    result: Option<&'a FidelityResult>,
}

impl<'a> LevelRow<'a> {
    fn measured(plan: &'a Plan, result: &'a FidelityResult) -> Self {
        Self {
            level: result.level(),
            equal_to: None,
            peak_bytes: plan.peak_bytes,
            pass_ms: plan.pass_ms,
            result: Some(result),
        }
    }

    fn equal(plan: &Plan, level: v1::Level) -> Self {
        Self {
            level: plan.level(),
            equal_to: Some(level),
            peak_bytes: plan.peak_bytes,
            pass_ms: plan.pass_ms,
            result: None,
        }
    }
}

/// Whether both plans compute with equal weights, in whatever format these are stored.
pub(super) fn has_equal_weights(one: &Plan, other: &Plan) -> bool {
    let is_same = one.level == other.level || one.equal_levels.contains(&other.level);
    is_same || one.is_lossless && other.is_lossless
}

fn equal_row(plan: &Plan, equal: v1::Level) -> String {
    let level = plan.level();
    let weights = match plan.equal_levels().any(|level| level == equal) {
        true => "the very same weights as",
        false => "same weights as",
    };
    format!("{level:<10} {weights} {equal}: not measured again")
}

fn header() -> String {
    line([
        "level", "mean KL", "same top", "source", "level", "peak", "a pass",
    ])
}

fn row(result: &FidelityResult, plan: &Plan) -> String {
    // A divergence is never negative, but rounding may turn 0 into a small negative number.
    let mean_kl = result.mean_kl_nats.max(0.0);
    line([
        &result.level().to_string(),
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
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn all_levels_are_each_measured_once() {
        assert_eq!(levels(&[]), [None]);
        assert_eq!(levels(&[LevelChoice::All]), ALL.map(Some));
        let asked = [
            LevelChoice::One(Level::Moderate),
            LevelChoice::All,
            LevelChoice::One(Level::Moderate),
        ];
        let expected = [
            Level::Moderate,
            Level::Standard,
            Level::Mild,
            Level::Aggressive,
        ];
        assert_eq!(levels(&asked), expected.map(Some));
    }

    #[test]
    fn a_level_with_the_numbers_of_another_is_not_measured_again() {
        let plan = |level: v1::Level, is_lossless, same_as: &[v1::Level]| Plan {
            level: level.into(),
            is_lossless,
            equal_levels: same_as.iter().map(|level| (*level).into()).collect(),
            ..Default::default()
        };
        let standard = plan(v1::Level::Standard, true, &[v1::Level::Moderate]);
        assert!(has_equal_weights(
            &standard,
            &plan(v1::Level::Mild, true, &[])
        ));
        let moderate = plan(v1::Level::Moderate, true, &[v1::Level::Standard]);
        assert!(has_equal_weights(&standard, &moderate));
        assert!(!has_equal_weights(
            &standard,
            &plan(v1::Level::Aggressive, false, &[])
        ));
        assert_eq!(
            equal_row(&moderate, v1::Level::Standard),
            "moderate   the very same weights as standard: not measured again"
        );
    }

    #[test]
    fn a_level_that_is_not_measured_again_has_the_same_keys() {
        let plan = Plan {
            level: v1::Level::Mild.into(),
            peak_bytes: 7,
            ..Default::default()
        };
        let result = FidelityResult::default();
        let equal = json!(LevelRow::equal(&plan, v1::Level::Standard));
        let measured = json!(LevelRow::measured(&plan, &result));
        let keys = |value: &Value| {
            let keys = value.as_object().unwrap().keys();
            keys.cloned().collect::<Vec<_>>()
        };
        assert_eq!(keys(&equal), keys(&measured));
        assert_eq!(equal["equal_to"], "standard");
        assert_eq!(
            (&equal["level"], &equal["peak_bytes"]),
            (&"mild".into(), &7.into())
        );
        assert!(equal["result"].is_null() && measured["equal_to"].is_null());
    }

    #[test]
    fn a_row_has_figures_that_fit_and_no_negative_zero() {
        let result = FidelityResult {
            level: v1::Level::Aggressive.into(),
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
