//! Calibrating the loaded model, as a job: its passes are requests of the engine, its result is a file.

use std::sync::Arc;

use sluice_engine::{
    Engine,
    calibration::{
        CalibrateError, CalibrationOptions, CalibrationProgress, CalibrationSummary, calibrate,
    },
};
use sluice_proto::v1::{self, OperationKind, OperationStage, ProgressUnit};
use sluice_shared::units;

use super::{Operation, OperationDescription, Operations, Outcome, progress};
use crate::{failure::Failure, model_name::ModelName};

/// Positions for each input of the widest matrix below which estimates of whole matrices lean on damping.
const POSITIONS_PER_COLUMN: u64 = 4;

impl Operations {
    /// Begins to calibrate the loaded model.
    ///
    /// # Errors
    /// When no work on files can begin now.
    pub fn calibrate(
        self: &Arc<Self>,
        engine: Arc<Engine>,
        model: &ModelName,
        options: CalibrationOptions,
    ) -> Result<Arc<Operation>, Failure> {
        let description = OperationDescription {
            kind: OperationKind::Calibrate,
            model: model.name.clone(),
            input_path: model.input(),
            output_path: options.target.display().to_string(),
            threads: Some(options.threads),
            caller: None,
        };
        self.work(description, move |operation, stop| {
            let mut report = |step| operation.progress(step_to_wire(step));
            let made = calibrate(&engine, &options, stop, &mut report);
            let made = made.map_err(|error| match error {
                CalibrateError::Cancelled => Failure::JobCancelled {
                    partial_path: None,
                    by_shutdown: false,
                },
                error => error.into(),
            })?;
            for notice in notices(&made) {
                operation.notice(notice);
            }
            Ok(Outcome::Calibrate(result_to_wire(&made)))
        })
    }
}

pub(super) fn step_to_wire(step: CalibrationProgress) -> v1::OperationProgress {
    let (item, unit, done, total) = match step {
        CalibrationProgress::Decoding { done, total } => {
            let item = "texts that the model continues".to_owned();
            (item, ProgressUnit::Positions, done, total)
        }
        CalibrationProgress::Computing {
            done,
            total,
            sweep,
            sweeps,
        } => {
            let item = format!("sweep {sweep} of {sweeps}");
            (item, ProgressUnit::Passes, done, total)
        }
    };
    v1::OperationProgress {
        item,
        ..progress(OperationStage::Computing, unit, done as u64, total as u64)
    }
}

/// What of a result is less than it could be.
pub(super) fn notices(made: &CalibrationSummary) -> Vec<String> {
    let mut notices = Vec::new();
    let origin = &made.origin;
    if !origin.is_lossless {
        notices.push(
            "some passes had weights that are not the checkpoint's own; for those, choose level standard and calibrate again"
                .to_owned(),
        );
    }
    let widest = origin.model.hidden_size.max(origin.model.intermediate_size) as u64;
    if origin.is_full && origin.positions < POSITIONS_PER_COLUMN * widest {
        notices.push(format!(
            "{} positions are few for matrices of {} columns; {} or more are better",
            units::count(origin.positions),
            units::count(widest),
            units::count(POSITIONS_PER_COLUMN * widest),
        ));
    }
    notices
}

fn result_to_wire(made: &CalibrationSummary) -> v1::CalibrateResult {
    v1::CalibrateResult {
        file_bytes: made.file_bytes,
        passes: made.origin.passes,
        positions: made.origin.positions,
        masked_positions: made.masked_positions,
        sweeps: made.sweeps as u32,
        diagonal: !made.origin.is_full,
        is_lossless: made.origin.is_lossless,
        seed: made.origin.seed,
        text_hash: made.origin.text_hash,
    }
}
