//! A row of a report: for people a line of a table, for scripts an object.

use serde::Serialize;
use sluice_proto::v1::{FidelityResult, Level, Plan};
use sluice_shared::{exit, units};

use crate::{
    commands::{bench::BenchFigures, fidelity},
    output::Failure,
    text::sanitise_line,
};

/// What was measured at a level.
#[derive(Debug, Default, Serialize)]
pub(super) struct ReportRow {
    level: Level,
    #[serde(flatten)]
    figures: LevelFigures,
    /// The earlier level whose weights are equal, so that its fidelity holds.
    equal_to: Option<Level>,
    fidelity: Option<FidelityResult>,
    /// Why figures are missing: all, or those of fidelity.
    problem: Option<String>,
    /// The plan that was made for it.
    #[serde(skip)]
    plan: Option<Plan>,
}

/// What a level takes; all unknown where it could not be put in force.
#[derive(Debug, Default, Serialize)]
pub(super) struct LevelFigures {
    /// Of all weights, on whichever tier.
    bits_per_weight: Option<f64>,
    /// Weights that stay on the device.
    device_weight_bytes: Option<u64>,
    /// Most device memory held while text was generated.
    peak_device_bytes: Option<u64>,
    /// Median.
    pass_ms: Option<f64>,
    tokens_per_second: Option<f64>,
}

impl LevelFigures {
    /// The figures of the plan in force and of a request.
    pub(super) fn of(in_force: &Plan, measured: &BenchFigures) -> Self {
        let groups = in_force.layers.iter().flat_map(|layer| &layer.groups);
        let (bytes, weights) = groups.fold((0, 0), |(bytes, weights), group| {
            (bytes + group.bytes, weights + group.weights)
        });
        Self {
            // A daemon of an earlier version does not count them.
            bits_per_weight: (weights > 0).then(|| bytes as f64 * 8.0 / weights as f64),
            device_weight_bytes: Some(in_force.resident_bytes),
            peak_device_bytes: Some(measured.peak_device_bytes),
            pass_ms: measured.pass_ms_median,
            tokens_per_second: measured.tokens_per_second(),
        }
    }
}

/// How close a level is to the checkpoint's own weights.
#[derive(Debug, Clone, Copy)]
pub(super) struct LevelFidelity {
    pub(super) result: FidelityResult,
    /// The level with equal weights that was measured.
    pub(super) equal_to: Option<Level>,
}

impl ReportRow {
    /// A level that cannot be put in force.
    ///
    /// # Errors
    /// The failure, where it is about more than this level.
    pub(super) fn not_measured(
        level: sluice_shared::level::Level,
        failure: Failure,
    ) -> Result<Self, Failure> {
        Self::refused(level.into(), failure)
    }

    /// The same by the daemon's name of the level.
    ///
    /// # Errors
    /// As there.
    pub(super) fn refused(level: Level, failure: Failure) -> Result<Self, Failure> {
        Ok(Self {
            level,
            problem: Some(refusal(failure)?),
            ..Self::default()
        })
    }

    /// A level that was put in force.
    ///
    /// # Errors
    /// As of [`Self::refused`].
    pub(super) fn measured(
        plan: Plan,
        figures: LevelFigures,
        fidelity: Result<LevelFidelity, Failure>,
    ) -> Result<Self, Failure> {
        let row = Self {
            level: plan.level(),
            figures,
            plan: Some(plan),
            ..Self::default()
        };
        Ok(match fidelity {
            Ok(fidelity) => Self {
                equal_to: fidelity.equal_to,
                fidelity: Some(fidelity.result),
                ..row
            },
            Err(failure) => Self {
                problem: Some(refusal(failure)?),
                ..row
            },
        })
    }

    pub(super) fn level(&self) -> Level {
        self.level
    }

    /// The fidelity of this row, if it is that of a plan, too.
    pub(super) fn fidelity_of_equal(&self, plan: &Plan) -> Option<LevelFidelity> {
        let known = self.plan.as_ref()?;
        let result = self
            .fidelity
            .filter(|_| fidelity::has_equal_weights(known, plan))?;
        Some(LevelFidelity {
            result,
            equal_to: Some(self.equal_to.unwrap_or(self.level)),
        })
    }

    /// The row, and why figures are missing.
    pub(super) fn lines(&self) -> Vec<String> {
        let level = self.level.to_string();
        let problem = self.problem.as_deref().map(sanitise_line);
        if self.plan.is_none() {
            let problem = problem.unwrap_or_default();
            return vec![format!("{level:<10} not measured: {problem}")];
        }
        let figures = &self.figures;
        let number = |value: Option<f64>, digits: usize| {
            value.map_or_else(unknown, |value| format!("{value:.digits$}"))
        };
        let bytes = |value: Option<u64>| value.map_or_else(unknown, units::bytes);
        let fidelity = self.fidelity.as_ref();
        let row = line([
            &level,
            &number(figures.bits_per_weight, 2),
            &bytes(figures.device_weight_bytes),
            &bytes(figures.peak_device_bytes),
            &(figures.pass_ms).map_or_else(unknown, |ms| format!("{ms:.1} ms")),
            &number(figures.tokens_per_second, 1),
            // A divergence is never negative, but rounding may turn 0 into a small negative number.
            &number(fidelity.map(|result| result.mean_kl_nats.max(0.0)), 6),
            &fidelity.map_or_else(unknown, |result| {
                format!("{:.2} %", result.top_agreement * 100.0)
            }),
            &number(fidelity.map(|result| result.level_bound_nats), 4),
        ]);
        let missing = problem.map(|problem| format!("{:<10} fidelity not measured: {problem}", ""));
        [row].into_iter().chain(missing).collect()
    }
}

/// The message of a refusal that is about one level.
///
/// # Errors
/// A failure that is about more: the daemon is gone, or nobody reads the output.
fn refusal(failure: Failure) -> Result<String, Failure> {
    match failure {
        Failure::Reported { code, message, .. } if code == exit::FAILURE => Ok(message),
        failure => Err(failure),
    }
}

/// The heading of the table.
pub(super) fn header() -> String {
    line([
        "level", "bits", "weights", "peak", "a pass", "tokens/s", "mean KL", "same top", "bound",
    ])
}

fn line(cells: [&str; 9]) -> String {
    let [
        level,
        bits,
        weights,
        peak,
        pass,
        rate,
        mean_kl,
        same_top,
        bound,
    ] = cells;
    format!(
        "{level:<10} {bits:>5} {weights:>9} {peak:>9} {pass:>10} {rate:>8} {mean_kl:>9} {same_top:>9} {bound:>8}"
    )
}

/// What the figures are of; `None` without a row that has some.
pub(super) fn footer(rows: &[ReportRow], length: u32) -> Option<String> {
    let plan = rows.iter().find_map(|row| row.plan.as_ref())?;
    let model = sanitise_line(&plan.model);
    let fidelity = rows.iter().find_map(|row| row.fidelity);
    let samples = fidelity.map(|result| {
        format!(
            "{} samples, {} tokens, seed {}; ",
            units::count(result.samples.into()),
            units::count(result.rows.into()),
            result.seed
        )
    });
    Some(format!(
        "{model}: {}KL and bound in nats a token; bits of all weights; weights on the device; time of {length} tokens",
        samples.unwrap_or_default()
    ))
}

fn unknown() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use sluice_proto::v1::{LayerPlan, WeightGroupPlan};

    use super::*;

    fn plan(level: Level, is_lossless: bool) -> Plan {
        let group = |bytes, weights| WeightGroupPlan {
            bytes,
            weights,
            ..Default::default()
        };
        Plan {
            model: "m".into(),
            level: level.into(),
            is_lossless,
            resident_bytes: 4 << 30,
            layers: vec![LayerPlan {
                groups: vec![group(600, 1000), group(400, 600)],
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    fn row(level: Level) -> ReportRow {
        let plan = plan(level, false);
        let figures = LevelFigures {
            bits_per_weight: Some(4.5),
            device_weight_bytes: Some(4 << 30),
            peak_device_bytes: Some(5 << 30),
            pass_ms: Some(620.25),
            tokens_per_second: Some(1.61),
        };
        let fidelity = LevelFidelity {
            result: FidelityResult {
                mean_kl_nats: -1e-12,
                top_agreement: 0.99951,
                level_bound_nats: 12.5,
                samples: 3,
                rows: 1234,
                ..Default::default()
            },
            equal_to: None,
        };
        ReportRow::measured(plan, figures, Ok(fidelity)).unwrap()
    }

    #[test]
    fn a_row_has_figures_that_fit_and_no_negative_zero() {
        let lines = row(Level::Aggressive).lines();
        assert_eq!(
            lines,
            [
                "aggressive  4.50  4.00 GiB  5.00 GiB   620.2 ms      1.6  0.000000   99.95 %  12.5000"
            ]
        );
        assert_eq!(header().len(), lines[0].len());
        assert!(header().len() <= 100);
    }

    #[test]
    fn what_is_not_known_is_not_zero_and_says_why() {
        let failure = || Failure::new("no room\x1b[2J");
        let refused = ReportRow::refused(Level::Off, failure()).unwrap();
        assert_eq!(
            refused.lines(),
            ["off        not measured: no room\u{fffd}[2J"]
        );
        assert_eq!(footer(&[refused], 32), None);
        let partly = ReportRow::measured(
            plan(Level::Mild, true),
            LevelFigures::default(),
            Err(failure()),
        );
        let lines = partly.unwrap().lines();
        assert!(lines[0].ends_with("-         -        -"), "{lines:?}");
        assert!(
            lines[1].contains("fidelity not measured: no room"),
            "{lines:?}"
        );
        // What is about more than a level ends the report.
        assert!(ReportRow::refused(Level::Off, Failure::interrupted("x")).is_err());
        assert!(ReportRow::refused(Level::Off, Failure::PipeClosed).is_err());
    }

    #[test]
    fn bits_are_those_of_all_weights() {
        let measured = BenchFigures::default();
        let figures = LevelFigures::of(&plan(Level::Mild, true), &measured);
        assert_eq!(figures.bits_per_weight, Some(5.0));
        assert_eq!(figures.pass_ms, None);
        let older = LevelFigures::of(&Plan::default(), &measured);
        assert_eq!(older.bits_per_weight, None);
    }

    #[test]
    fn equal_weights_are_compared_once_and_rows_have_the_same_keys() {
        let known = row(Level::Aggressive);
        let equal = Plan {
            equal_levels: vec![Level::Aggressive.into()],
            ..plan(Level::Moderate, false)
        };
        assert!(
            known
                .fidelity_of_equal(&plan(Level::Moderate, false))
                .is_none()
        );
        let other = Plan {
            equal_levels: vec![Level::Moderate.into()],
            ..plan(Level::Aggressive, false)
        };
        let known = ReportRow {
            plan: Some(other),
            ..known
        };
        let fidelity = known.fidelity_of_equal(&equal).unwrap();
        assert_eq!(fidelity.equal_to, Some(Level::Aggressive));
        let row = ReportRow::measured(equal, LevelFigures::default(), Ok(fidelity)).unwrap();
        let refused = ReportRow::refused(Level::Off, Failure::new("no room")).unwrap();
        let keys = |row: &ReportRow| {
            let row: Value = json!(row);
            let keys = row.as_object().unwrap().keys();
            keys.cloned().collect::<Vec<_>>()
        };
        assert_eq!(keys(&row), keys(&refused));
        assert_eq!(json!(row)["equal_to"], "aggressive");
        assert_eq!(json!(refused)["problem"], "no room");
    }
}
