//! Levels, budgets, workloads and measurements as they are asked for.

use sluice_shared::{
    level::{Level, check_max_slowdown},
    mix::MixId,
    options::{Budget, PlanOptions},
};

use super::{InvalidField, ModelRef, at_least_one, checked, invalid, known, wire_value};
use crate::v1::{self, plan_options::Budget as WireBudget};

/// More than any machine has.
const BUDGET_BYTES_MAX: u64 = 1 << 50;
/// Most positions of all canvases that share a planned pass: planning makes a dry run of every position.
const POSITIONS_MAX: u64 = 1 << 20;

/// A checked [`v1::PlanRequest`].
#[derive(Debug, Clone, PartialEq)]
pub struct Planning {
    /// For which model.
    pub model: ModelRef,
    /// What is other than in the settings.
    pub options: PlanOptions,
    /// The workload that the plan must have room for.
    pub workload: Workload,
    /// Models to load after it; none: it is planned alone.
    pub more_models: Vec<ModelRef>,
}

/// A checked [`v1::Workload`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Positions of a canvas, at least 1.
    pub canvas_length: Option<u32>,
    /// Positions decoded together, at least 1.
    pub block_length: Option<u32>,
    /// Requests that share a pass, at least 1; times `canvas_length`, few enough to be rehearsed.
    pub batch_requests: Option<u32>,
}

/// What a level is measured on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Samples {
    /// Texts with at least one line that is not blank.
    Texts(Vec<String>),
    /// At least one sample, none of them empty.
    Tokens(Vec<Vec<u32>>),
}

/// A checked [`v1::MeasureFidelityRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measuring {
    /// What it is measured on.
    pub samples: Samples,
    /// The level; `None`: the one in force.
    pub level: Option<Level>,
    /// Seed of the masks.
    pub seed: Option<u64>,
    /// Most samples, at least 1.
    pub max_samples: Option<u32>,
}

/// A checked [`v1::LoadModelRequest`].
#[derive(Debug, Clone, PartialEq)]
pub struct Loading {
    /// Which model; one with weights, and not merely the loaded one.
    pub model: ModelRef,
    /// Whether it is to be loaded at every start.
    pub make_default: bool,
    /// Whether it is to stay until it is unloaded by name.
    pub pin: bool,
    /// What it is loaded with, as far as that is said.
    pub options: PlanOptions,
}

/// A checked [`v1::RestoreRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreTarget {
    /// To what the daemon was started or the model loaded with.
    Start,
    /// To the checkpoint's own weights.
    Source,
}

impl TryFrom<v1::RestoreRequest> for RestoreTarget {
    type Error = InvalidField;

    fn try_from(wire: v1::RestoreRequest) -> Result<Self, InvalidField> {
        match known("target", wire.target)? {
            v1::RestoreTarget::Unspecified | v1::RestoreTarget::Start => Ok(Self::Start),
            v1::RestoreTarget::Source => Ok(Self::Source),
        }
    }
}

impl TryFrom<v1::PlanRequest> for Planning {
    type Error = InvalidField;

    fn try_from(wire: v1::PlanRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            more_models: more_models(wire.model.as_ref(), wire.more_models)?,
            model: wire.model.try_into()?,
            options: wire.options.unwrap_or_default().try_into()?,
            workload: wire.workload.unwrap_or_default().try_into()?,
        })
    }
}

/// Most models that are planned beside each other.
const PLANNED_MODELS_MAX: usize = 16;

/// The models that are planned beside the first.
fn more_models(
    first: Option<&v1::ModelRef>,
    more: Vec<v1::ModelRef>,
) -> Result<Vec<ModelRef>, InvalidField> {
    if first.is_none() && !more.is_empty() {
        return Err(invalid("model", "is missing"));
    }
    if more.len() >= PLANNED_MODELS_MAX {
        let problem = format!("more than {PLANNED_MODELS_MAX} models");
        return Err(invalid("more_models", problem));
    }
    more.into_iter()
        .map(|model| Some(model).try_into())
        .collect()
}

impl TryFrom<v1::Workload> for Workload {
    type Error = InvalidField;

    fn try_from(wire: v1::Workload) -> Result<Self, InvalidField> {
        let checked = Self {
            canvas_length: at_least_one("workload.canvas_length", wire.canvas_length)?,
            block_length: at_least_one("workload.block_length", wire.block_length)?,
            batch_requests: at_least_one("workload.batch_requests", wire.batch_requests)?,
        };
        let (canvas, requests) = (checked.canvas_length, checked.batch_requests);
        let positions = u64::from(canvas.unwrap_or(1)) * u64::from(requests.unwrap_or(1));
        if positions > POSITIONS_MAX {
            let problem = format!("{positions} positions in a pass exceed {POSITIONS_MAX}");
            return Err(invalid("workload.batch_requests", problem));
        }
        Ok(checked)
    }
}

impl TryFrom<v1::ApplyRequest> for PlanOptions {
    type Error = InvalidField;

    fn try_from(wire: v1::ApplyRequest) -> Result<Self, InvalidField> {
        match Self::try_from(wire.options.unwrap_or_default())? {
            options if options.is_empty() => Err(invalid("options", "nothing is set")),
            options => Ok(options),
        }
    }
}

impl From<PlanOptions> for v1::ApplyRequest {
    fn from(options: PlanOptions) -> Self {
        Self {
            options: Some(options.into()),
            ..Self::default()
        }
    }
}

impl From<PlanOptions> for v1::PlanRequest {
    fn from(options: PlanOptions) -> Self {
        Self {
            options: Some(options.into()),
            ..Self::default()
        }
    }
}

impl TryFrom<v1::PlanOptions> for PlanOptions {
    type Error = InvalidField;

    fn try_from(wire: v1::PlanOptions) -> Result<Self, InvalidField> {
        let budget = match wire.budget {
            // `false` says as little as an unset field: only `true` asks for the default.
            None | Some(WireBudget::DefaultBudget(false)) => None,
            Some(WireBudget::DefaultBudget(true)) => Some(Budget::Default),
            Some(WireBudget::BudgetBytes(bytes)) => Some(Budget::Bytes(budget_bytes(bytes)?)),
        };
        let slowdown = wire.max_slowdown.map(check_max_slowdown).transpose();
        Ok(Self {
            level: checked("options.level", wire.level, v1::Level::checked)?,
            budget,
            embedding: checked(
                "options.embedding_placement",
                wire.embedding_placement,
                v1::EmbeddingPlacement::checked,
            )?,
            max_slowdown: slowdown.map_err(|problem| invalid("options.max_slowdown", problem))?,
            kv_cache_format: checked(
                "options.kv_cache_format",
                wire.kv_cache_format,
                v1::KvCacheFormat::checked,
            )?,
            cpu_experts: checked(
                "options.cpu_experts",
                wire.cpu_experts,
                v1::CpuExperts::checked,
            )?,
            mix: MixId::from_number(wire.mix),
        })
    }
}

impl From<PlanOptions> for v1::PlanOptions {
    fn from(options: PlanOptions) -> Self {
        Self {
            level: wire_value::<v1::Level, _>(options.level),
            budget: options.budget.map(|budget| match budget {
                Budget::Default => WireBudget::DefaultBudget(true),
                Budget::Bytes(bytes) => WireBudget::BudgetBytes(bytes),
            }),
            embedding_placement: wire_value::<v1::EmbeddingPlacement, _>(options.embedding),
            max_slowdown: options.max_slowdown,
            kv_cache_format: wire_value::<v1::KvCacheFormat, _>(options.kv_cache_format),
            cpu_experts: wire_value::<v1::CpuExperts, _>(options.cpu_experts),
            mix: options.mix.map_or(0, MixId::number),
        }
    }
}

impl v1::SettingsStatus {
    /// The level, as it was asked for.
    #[must_use]
    pub fn level(&self) -> v1::Level {
        self.options.unwrap_or_default().level()
    }

    /// Whether nobody set the budget.
    #[must_use]
    pub fn is_default_budget(&self) -> bool {
        let budget = self.options.unwrap_or_default().budget;
        budget == Some(WireBudget::DefaultBudget(true))
    }
}

impl TryFrom<v1::MeasureFidelityRequest> for Measuring {
    type Error = InvalidField;

    fn try_from(wire: v1::MeasureFidelityRequest) -> Result<Self, InvalidField> {
        use v1::measure_fidelity_request::Samples as Wire;

        let samples = match wire.samples {
            None => return Err(invalid("samples", "are missing")),
            Some(Wire::Texts(v1::SampleTexts { texts })) => {
                if texts.iter().all(|text| text.trim().is_empty()) {
                    return Err(invalid("texts", "have no line that is not blank"));
                }
                Samples::Texts(texts)
            }
            Some(Wire::Tokens(v1::SampleTokens { samples })) => {
                if samples.is_empty() {
                    return Err(invalid("tokens", "has no samples"));
                }
                if let Some(at) = samples.iter().position(|sample| sample.ids.is_empty()) {
                    return Err(invalid("tokens", format!("sample {at} is empty")));
                }
                Samples::Tokens(samples.into_iter().map(|sample| sample.ids).collect())
            }
        };
        Ok(Self {
            samples,
            level: checked("level", wire.level, v1::Level::checked)?,
            seed: wire.seed,
            max_samples: at_least_one("max_samples", wire.max_samples)?,
        })
    }
}

impl TryFrom<v1::LoadModelRequest> for Loading {
    type Error = InvalidField;

    fn try_from(wire: v1::LoadModelRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            model: ModelRef::try_from(wire.model)?.named()?,
            make_default: wire.make_default,
            pin: wire.pin,
            options: wire.options.unwrap_or_default().try_into()?,
        })
    }
}

pub(super) fn budget_bytes(bytes: u64) -> Result<u64, InvalidField> {
    match bytes {
        0 => Err(invalid("options.budget", "must be at least 1 byte, not 0")),
        bytes if bytes > BUDGET_BYTES_MAX => {
            let problem = format!("{bytes} bytes are more than any machine has");
            Err(invalid("options.budget", problem))
        }
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use sluice_shared::level::{CpuExperts, EmbeddingPlacement, KvCacheFormat};

    use super::*;

    #[test]
    fn an_adjustment_changes_something_and_says_what_once() {
        let adjust = |options| {
            let options = Some(options);
            PlanOptions::try_from(v1::ApplyRequest {
                options,
                ..Default::default()
            })
        };
        let all = v1::PlanOptions {
            level: v1::Level::Auto.into(),
            budget: Some(WireBudget::BudgetBytes(7)),
            embedding_placement: v1::EmbeddingPlacement::Host.into(),
            max_slowdown: Some(2.0),
            cpu_experts: v1::CpuExperts::Auto.into(),
            kv_cache_format: v1::KvCacheFormat::Q80.into(),
            mix: 0x3f2a_91c4,
        };
        let expected = PlanOptions {
            level: Some(Level::Auto),
            budget: Some(Budget::Bytes(7)),
            embedding: Some(EmbeddingPlacement::Host),
            max_slowdown: Some(2.0),
            cpu_experts: Some(CpuExperts::Auto),
            kv_cache_format: Some(KvCacheFormat::Q8_0),
            mix: MixId::from_number(0x3f2a_91c4),
        };
        assert_eq!(adjust(all), Ok(expected));
        assert_eq!(v1::PlanOptions::from(expected), all);
        let default = PlanOptions {
            budget: Some(Budget::Default),
            ..PlanOptions::default()
        };
        assert_eq!(adjust(default.into()), Ok(default));
        let not_default = v1::PlanOptions {
            budget: Some(WireBudget::DefaultBudget(false)),
            ..Default::default()
        };
        for nothing in [v1::PlanOptions::default(), not_default] {
            let error = adjust(nothing).unwrap_err().to_string();
            assert_eq!(error, "options: nothing is set");
        }
    }

    #[test]
    fn options_that_make_no_sense_are_named() {
        let problem = |change: fn(&mut v1::PlanOptions)| {
            let mut wire = v1::PlanOptions::default();
            change(&mut wire);
            PlanOptions::try_from(wire).unwrap_err().to_string()
        };
        for (problem, expected) in [
            (
                problem(|wire| wire.level = 99),
                "options.level: has no value 99",
            ),
            (
                problem(|wire| wire.embedding_placement = 9),
                "options.embedding_placement: has no value 9",
            ),
            (
                problem(|wire| wire.kv_cache_format = 9),
                "options.kv_cache_format: has no value 9",
            ),
            (
                problem(|wire| wire.set_kv_cache_format(v1::KvCacheFormat::F16)),
                "options.kv_cache_format: f16 is reported, and cannot be asked for",
            ),
            (
                problem(|wire| wire.budget = Some(WireBudget::BudgetBytes(0))),
                "options.budget: must be at least 1 byte, not 0",
            ),
        ] {
            assert_eq!(problem, expected);
        }
        let much = problem(|wire| wire.budget = Some(WireBudget::BudgetBytes(u64::MAX)));
        assert!(much.starts_with("options.budget: "), "{much}");
        for factor in [0.99, f64::NAN, f64::INFINITY] {
            let wire = v1::PlanOptions {
                max_slowdown: Some(factor),
                ..Default::default()
            };
            let wrong = PlanOptions::try_from(wire).unwrap_err();
            assert_eq!(wrong.field, "options.max_slowdown");
        }
    }

    #[test]
    fn a_load_says_which_model() {
        let nothing = Loading::try_from(v1::LoadModelRequest::default());
        assert_eq!(nothing.unwrap_err().to_string(), "model: is missing");
    }

    #[test]
    fn restoring_leads_to_one_of_two_places() {
        let restore = |target| {
            RestoreTarget::try_from(v1::RestoreRequest {
                target,
                ..Default::default()
            })
        };
        let wire = |target: v1::RestoreTarget| restore(target.into());
        assert_eq!(restore(0), Ok(RestoreTarget::Start));
        assert_eq!(wire(v1::RestoreTarget::Start), Ok(RestoreTarget::Start));
        assert_eq!(wire(v1::RestoreTarget::Source), Ok(RestoreTarget::Source));
        assert_eq!(
            restore(9).unwrap_err().to_string(),
            "target: has no value 9"
        );
    }

    #[test]
    fn a_measurement_has_samples() {
        use v1::measure_fidelity_request::Samples as Wire;

        let measure = |samples| {
            Measuring::try_from(v1::MeasureFidelityRequest {
                samples,
                ..Default::default()
            })
            .map_err(|error| error.to_string())
        };
        let texts = |texts: &[&str]| {
            let texts = texts.iter().map(|text| (*text).to_owned()).collect();
            Some(Wire::Texts(v1::SampleTexts { texts }))
        };
        let ids = |samples: &[&[u32]]| {
            let sample = |ids: &&[u32]| v1::TokenSample { ids: ids.to_vec() };
            let samples = samples.iter().map(sample).collect();
            Some(Wire::Tokens(v1::SampleTokens { samples }))
        };
        assert!(measure(texts(&["", "\n a"])).is_ok());
        let checked = measure(ids(&[&[1, 2], &[3]])).unwrap();
        assert_eq!(checked.samples, Samples::Tokens(vec![vec![1, 2], vec![3]]));
        for (samples, problem) in [
            (None, "samples: are missing"),
            (texts(&["", " \n"]), "texts: have no line that is not blank"),
            (ids(&[]), "tokens: has no samples"),
            (ids(&[&[1], &[]]), "tokens: sample 1 is empty"),
        ] {
            assert_eq!(measure(samples).unwrap_err(), problem);
        }
    }

    #[test]
    fn a_workload_has_something_to_compute_and_not_too_much() {
        let plan = |canvas, requests| {
            let workload = v1::Workload {
                canvas_length: Some(canvas),
                batch_requests: Some(requests),
                block_length: None,
            };
            Planning::try_from(v1::PlanRequest {
                workload: Some(workload),
                ..Default::default()
            })
        };
        assert_eq!(plan(64, 4).unwrap().model, ModelRef::Loaded);
        let field = |canvas, requests| plan(canvas, requests).unwrap_err().field;
        assert_eq!(field(0, 1), "workload.canvas_length");
        assert_eq!(field(1, 0), "workload.batch_requests");
        assert_eq!(field(u32::MAX, u32::MAX), "workload.batch_requests");
    }
}
