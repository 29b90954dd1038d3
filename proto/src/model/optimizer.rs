//! Levels, budgets, workloads and measurements as they are asked for.

use std::fmt::Display;

use sluice_shared::{
    level::{Level, check_max_slowdown},
    settings::PlanOptions,
};

use super::{InvalidField, ModelRef, at_least_one, invalid, known};
use crate::v1;

/// More than any machine has.
const BUDGET_BYTES_MAX: u64 = 1 << 50;
/// Most positions of all canvases that share a planned pass: a pass is rehearsed position by position.
const POSITIONS_MAX: u64 = 1 << 20;

/// A checked [`v1::PlanRequest`].
#[derive(Debug, Clone, PartialEq)]
pub struct Planning {
    /// For which model.
    pub model: ModelRef,
    /// With which change of the settings.
    pub change: PlanOptions,
    /// What it has to have room for.
    pub workload: Workload,
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
    /// The level and the budget from here on.
    pub change: PlanOptions,
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
            model: wire.model.try_into()?,
            change: change(v1::ApplyRequest {
                level: wire.level,
                budget_bytes: wire.budget_bytes,
                default_budget: wire.default_budget,
                embedding: wire.embedding,
                auto_factor: wire.auto_factor,
                kv: wire.kv,
            })?,
            workload: wire.workload.unwrap_or_default().try_into()?,
        })
    }
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
        match change(wire)? {
            change if change.is_empty() => {
                Err(invalid("level", "neither a level nor a budget is given"))
            }
            change => Ok(change),
        }
    }
}

impl From<PlanOptions> for v1::ApplyRequest {
    fn from(change: PlanOptions) -> Self {
        Self {
            level: wire_value::<v1::Level, _>(change.level),
            budget_bytes: change.budget_bytes.flatten(),
            default_budget: change.budget_bytes == Some(None),
            embedding: wire_value::<v1::EmbeddingPlacement, _>(change.embedding),
            auto_factor: change.max_slowdown,
            kv: wire_value::<v1::KvCacheFormat, _>(change.kv_cache_format),
        }
    }
}

impl From<PlanOptions> for v1::PlanRequest {
    fn from(change: PlanOptions) -> Self {
        let wire = v1::ApplyRequest::from(change);
        Self {
            level: wire.level,
            budget_bytes: wire.budget_bytes,
            default_budget: wire.default_budget,
            embedding: wire.embedding,
            auto_factor: wire.auto_factor,
            kv: wire.kv,
            ..Self::default()
        }
    }
}

/// A change of the settings, checked field by field; other messages have the same fields.
fn change(wire: v1::ApplyRequest) -> Result<PlanOptions, InvalidField> {
    let auto_factor = wire.auto_factor.map(check_max_slowdown).transpose();
    Ok(PlanOptions {
        level: checked("level", wire.level, v1::Level::checked)?,
        budget_bytes: budget_or_default(wire.budget_bytes, wire.default_budget)?,
        embedding: checked("embedding", wire.embedding, v1::EmbeddingPlacement::checked)?,
        max_slowdown: auto_factor.map_err(|problem| invalid("auto_factor", problem))?,
        kv_cache_format: checked("kv", wire.kv, v1::KvCacheFormat::checked)?,
    })
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
                    return Err(invalid("ids", "has no samples"));
                }
                if let Some(at) = samples.iter().position(|sample| sample.ids.is_empty()) {
                    return Err(invalid("ids", format!("sample {at} is empty")));
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
            change: change(v1::ApplyRequest {
                level: wire.level,
                budget_bytes: wire.budget_bytes,
                default_budget: wire.default_budget,
                ..Default::default()
            })?,
        })
    }
}

/// A budget to come; `Some(None)`: the default one.
fn budget_or_default(
    bytes: Option<u64>,
    is_default: bool,
) -> Result<Option<Option<u64>>, InvalidField> {
    match (budget(bytes)?, is_default) {
        (Some(_), true) => {
            let problem = "a budget is given and the default one asked for";
            Err(invalid("default_budget", problem))
        }
        (Some(bytes), false) => Ok(Some(Some(bytes))),
        (None, true) => Ok(Some(None)),
        (None, false) => Ok(None),
    }
}

/// A value of an enum, as the wire has it: 0 where nothing is said.
fn wire_value<W: From<T> + Into<i32>, T>(value: Option<T>) -> i32 {
    value.map_or(0, |value| W::from(value).into())
}

/// What an enum's field asks for. A value that is only reported can't be asked for.
fn checked<W: TryFrom<i32> + Default + PartialEq + Display, T>(
    field: &'static str,
    number: i32,
    checked: impl Fn(W) -> Option<T>,
) -> Result<Option<T>, InvalidField> {
    let value: W = known(field, number)?;
    if value == W::default() {
        return Ok(None);
    }
    let problem = format!("{value} is reported, and cannot be asked for");
    checked(value)
        .map(Some)
        .ok_or_else(|| invalid(field, problem))
}

fn budget(bytes: Option<u64>) -> Result<Option<u64>, InvalidField> {
    match bytes {
        Some(0) => Err(invalid("budget_bytes", "must be at least 1, not 0")),
        Some(bytes) if bytes > BUDGET_BYTES_MAX => {
            let problem = format!("{bytes} bytes are more than any machine has");
            Err(invalid("budget_bytes", problem))
        }
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use sluice_shared::level::{EmbeddingPlacement, KvCacheFormat};

    use super::*;

    #[test]
    fn an_adjustment_changes_something_and_says_what_once() {
        let adjust = |wire: v1::ApplyRequest| PlanOptions::try_from(wire);
        let all = adjust(v1::ApplyRequest {
            level: v1::Level::Auto.into(),
            budget_bytes: Some(7),
            default_budget: false,
            embedding: v1::EmbeddingPlacement::Host.into(),
            auto_factor: Some(2.0),
            kv: v1::KvCacheFormat::Q80.into(),
        });
        let expected = PlanOptions {
            level: Some(Level::Auto),
            budget_bytes: Some(Some(7)),
            embedding: Some(EmbeddingPlacement::Host),
            max_slowdown: Some(2.0),
            kv_cache_format: Some(KvCacheFormat::Q8_0),
        };
        assert_eq!(all, Ok(expected));
        assert_eq!(adjust(expected.into()), Ok(expected));
        let default = adjust(v1::ApplyRequest {
            default_budget: true,
            ..Default::default()
        });
        let default = default.unwrap();
        assert_eq!(default.budget_bytes, Some(None));
        assert_eq!(adjust(default.into()), Ok(default));
        let nothing = adjust(v1::ApplyRequest::default()).unwrap_err();
        assert_eq!(
            nothing.to_string(),
            "level: neither a level nor a budget is given"
        );
        let both = v1::ApplyRequest {
            budget_bytes: Some(7),
            default_budget: true,
            ..Default::default()
        };
        assert_eq!(adjust(both).unwrap_err().field, "default_budget");
        for factor in [0.99, f64::NAN, f64::INFINITY] {
            let wrong = adjust(v1::ApplyRequest {
                auto_factor: Some(factor),
                ..Default::default()
            });
            assert_eq!(wrong.unwrap_err().field, "auto_factor");
        }
        let wrong = adjust(v1::ApplyRequest {
            embedding: 9,
            ..Default::default()
        });
        assert_eq!(wrong.unwrap_err().to_string(), "embedding: has no value 9");
        let wrong = adjust(v1::ApplyRequest {
            kv: 9,
            ..Default::default()
        });
        assert_eq!(wrong.unwrap_err().to_string(), "kv: has no value 9");
        let reported = adjust(v1::ApplyRequest {
            kv: v1::KvCacheFormat::F16.into(),
            ..Default::default()
        });
        assert_eq!(
            reported.unwrap_err().to_string(),
            "kv: f16 is reported, and cannot be asked for"
        );
    }

    fn demonstration() -> Option<v1::ModelRef> {
        let name = "sluice-demo".to_owned();
        v1::model_ref::By::Name(name).into()
    }

    #[test]
    fn a_load_says_which_model() {
        let nothing = Loading::try_from(v1::LoadModelRequest::default());
        assert_eq!(nothing.unwrap_err().to_string(), "model: is missing");
    }

    #[test]
    fn levels_and_budgets_that_make_no_sense_are_named() {
        let load = |level: i32, budget_bytes| {
            Loading::try_from(v1::LoadModelRequest {
                model: demonstration(),
                level,
                budget_bytes,
                ..Default::default()
            })
        };
        let mild = load(v1::Level::Mild.into(), Some(1)).unwrap();
        assert_eq!(mild.change.level, Some(Level::Mild));
        let error = load(99, None).unwrap_err();
        assert_eq!(error.to_string(), "level: has no value 99");
        for bytes in [0, u64::MAX] {
            assert_eq!(load(0, Some(bytes)).unwrap_err().field, "budget_bytes");
        }
        let default = |budget_bytes| {
            Loading::try_from(v1::LoadModelRequest {
                model: demonstration(),
                budget_bytes,
                default_budget: true,
                ..Default::default()
            })
        };
        assert_eq!(default(None).unwrap().change.budget_bytes, Some(None));
        assert_eq!(default(Some(1)).unwrap_err().field, "default_budget");
    }

    #[test]
    fn restoring_leads_to_one_of_two_places() {
        let restore = |target| RestoreTarget::try_from(v1::RestoreRequest { target });
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
            (ids(&[]), "ids: has no samples"),
            (ids(&[&[1], &[]]), "ids: sample 1 is empty"),
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
