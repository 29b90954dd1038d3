//! Optimizing the loaded model's weights for a budget, as a job: its passes are requests of the engine, its result is a mix.

use std::sync::Arc;

use sluice_engine::{
    Engine,
    calibration::{CalibrateError, CalibrationOptions, calibrate},
    optimization::{
        GroupKind, KeptMix, LossPoint, LossPrediction, MatrixGroup, OptimizeError, OptimizeOptions,
        OptimizeProgress, OptimizeSummary, check, optimize,
    },
};
use sluice_proto::v1::{self, OperationKind, OperationStage, ProgressUnit};

use super::{Operation, OperationDescription, Operations, Outcome, calibration, progress};
use crate::{failure::Failure, model_name::ModelName};

/// Predicted and measured losses that differ by more than this factor are told: losses of groups did not add up then.
const ADDITIVE_WITHIN: f64 = 1.5;

impl Operations {
    /// Begins to optimize the loaded model. With `missing`, that calibration is made first. `notice` is known before.
    ///
    /// # Errors
    /// When no work on files can begin now.
    pub fn optimize(
        self: &Arc<Self>,
        engine: Arc<Engine>,
        model: &ModelName,
        (missing, options): (Option<CalibrationOptions>, OptimizeOptions),
        notice: Option<String>,
    ) -> Result<Arc<Operation>, Failure> {
        let description = OperationDescription {
            kind: OperationKind::Optimize,
            model: model.name.clone(),
            input_path: model.input(),
            output_path: String::new(),
            threads: Some(options.threads),
            caller: None,
        };
        self.work(description, move |operation, stop| {
            // Before a calibration that takes minutes.
            check(&engine, options.goal)?;
            if let Some(notice) = notice {
                operation.notice(notice);
            }
            if let Some(missing) = &missing {
                let mut report = |step| operation.progress(calibration::step_to_wire(step));
                let made = calibrate(&engine, missing, stop, &mut report);
                let made = made.map_err(|error| match error {
                    CalibrateError::Cancelled => cancelled(),
                    error => error.into(),
                })?;
                for notice in calibration::notices(&made) {
                    operation.notice(notice);
                }
            }
            let mut report = |step| operation.progress(step_to_wire(step));
            let made = optimize(&engine, &options, stop, &mut report);
            let made = made.map_err(|error| match error {
                OptimizeError::Cancelled => cancelled(),
                error => error.into(),
            })?;
            for notice in not_additive(&made).into_iter().chain(not_kept(&made)) {
                operation.notice(notice);
            }
            Ok(Outcome::Optimize(result_to_wire(&made)))
        })
    }
}

fn cancelled() -> Failure {
    Failure::JobCancelled {
        partial_path: None,
        by_shutdown: false,
    }
}

fn not_additive(made: &OptimizeSummary) -> Option<String> {
    let ratio = made.measured.mean_kl / made.prediction.as_ref()?.kl_nats;
    (ratio.is_finite() && !(1.0 / ADDITIVE_WITHIN..=ADDITIVE_WITHIN).contains(&ratio)).then(|| {
        format!(
            "the mix lost {ratio:.2} times what was predicted: losses of single groups do not add up at so few bits"
        )
    })
}

fn not_kept(made: &OptimizeSummary) -> Option<String> {
    let (mix, problem) = (made.mix, made.not_kept.as_ref()?);
    Some(format!(
        "what was chosen and measured could not be written beside mix {mix}: {problem}; level optimized may take another mix as the latest, unless this one is named"
    ))
}

fn step_to_wire(step: OptimizeProgress) -> v1::OperationProgress {
    match step {
        OptimizeProgress::Quantizing {
            tensor,
            done,
            total,
            is_final,
        } => v1::OperationProgress {
            item: match is_final {
                true => tensor,
                false => format!("{tensor}, to be measured"),
            },
            ..progress(
                OperationStage::Quantizing,
                ProgressUnit::Weights,
                done,
                total,
            )
        },
        OptimizeProgress::Measuring { done, total } => {
            let (done, total) = (done as u64, total as u64);
            progress(OperationStage::Measuring, ProgressUnit::Groups, done, total)
        }
    }
}

fn result_to_wire(made: &OptimizeSummary) -> v1::OptimizeResult {
    let groups = made.groups.iter().zip(&made.record.groups);
    v1::OptimizeResult {
        mix: made.mix.number(),
        bits_per_weight: made.bits,
        prediction: made.prediction.as_ref().map(prediction_to_wire),
        measured_kl_nats: made.measured.mean_kl,
        measured_kl_standard_error: made.measured.standard_error,
        groups: groups
            .map(|(group, choice)| v1::MatrixGroup {
                kind: kind_to_wire(group).into(),
                layer: (group.kind != GroupKind::LmHead).then_some(group.layer as u32),
                bits_per_weight: choice.bits,
                bytes: choice.bytes,
                predicted_kl_nats: choice.predicted_kl_nats,
                is_original: choice.is_original,
            })
            .collect(),
    }
}

/// A mix, as it is listed.
pub(crate) fn kept_to_wire(kept: &KeptMix) -> v1::Mix {
    let choice = kept.choice.as_ref();
    v1::Mix {
        mix: kept.mix.number(),
        bits_per_weight: kept.bits,
        file_bytes: kept.file_bytes,
        chosen_unix_ms: choice.map(|choice| choice.chosen_unix_ms),
        budget_bytes: choice.and_then(|choice| choice.record.budget_bytes),
        prediction: choice.and_then(|choice| choice.prediction.as_ref().map(prediction_to_wire)),
        measured_kl_nats: choice.map(|choice| choice.measured_kl_nats),
        measured_kl_standard_error: choice.map(|choice| choice.measured_kl_standard_error),
    }
}

fn prediction_to_wire(prediction: &LossPrediction) -> v1::LossPrediction {
    v1::LossPrediction {
        kl_nats: prediction.kl_nats,
        gap_kl_nats: prediction.gap_kl_nats,
        uniform_kl_nats: prediction.uniform_kl_nats,
        curve: prediction.curve.iter().map(point_to_wire).collect(),
    }
}

fn kind_to_wire(group: &MatrixGroup) -> v1::MatrixGroupKind {
    match group.kind {
        GroupKind::QueryKey => v1::MatrixGroupKind::QueryKey,
        GroupKind::Value => v1::MatrixGroupKind::Value,
        GroupKind::AttentionOutput => v1::MatrixGroupKind::AttentionOutput,
        GroupKind::GateUp => v1::MatrixGroupKind::GateUp,
        GroupKind::Down => v1::MatrixGroupKind::Down,
        GroupKind::LmHead => v1::MatrixGroupKind::LmHead,
    }
}

fn point_to_wire(point: &LossPoint) -> v1::LossPoint {
    v1::LossPoint {
        bits_per_weight: point.bits,
        bytes: point.bytes,
        predicted_kl_nats: point.kl_nats,
    }
}
