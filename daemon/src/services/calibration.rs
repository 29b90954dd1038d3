//! Calibrating the loaded model: from the call to the job.

use std::{path::PathBuf, sync::Arc};

use sluice_engine::calibration::{CalibrationOptions, POSITIONS_DEFAULT};
use sluice_machine::MemoryStats;
use sluice_proto::model::{CalibrateJob, InvalidField};
use sluice_tokenizer::Patience;

use super::Daemon;
use crate::{
    caller::Caller,
    failure::Failure,
    measurements,
    model_name::ModelName,
    models::{Models, ServingModel},
    operations::{Operation, files},
    prepare::{self, TextSplit},
};

/// Least memory for the statistics of a calibration when nobody says how much: those of the widest matrix of a model of
/// eight billion parameters fit.
const CALIBRATION_MEMORY_MIN: u64 = 1 << 30;
/// Characters of a model's name in the name of its calibration: file names have at most 255 bytes.
const NAME_CHARS_MAX: usize = 50;

/// The memory for the statistics of a calibration when nobody says how much.
pub(super) fn calibration_memory() -> u64 {
    let free_bytes = MemoryStats::read().free_bytes.unwrap_or_default();
    (free_bytes / 4).max(CALIBRATION_MEMORY_MIN)
}

impl Daemon {
    /// Begins to calibrate the loaded model, once its text is tokenized.
    pub(super) async fn begin_calibration(
        self: &Arc<Self>,
        caller: Caller,
        mut asked: CalibrateJob,
    ) -> Result<Arc<Operation>, Failure> {
        let serving = self.models.serving()?;
        let target = match asked.output.take() {
            Some(output) => {
                let [output] = self.check_paths(caller, [output]).await?;
                output
            }
            None => self.default_calibration(&serving.name)?,
        };
        let texts = std::mem::take(&mut asked.texts);
        let prepare = move |serving: &ServingModel, patience: &Patience| {
            prepare::calibration_samples(texts, serving, patience)
        };
        let (samples, serving) = self.prepare(caller.share(), serving, prepare).await?;
        // As the optimizer leaves it out: what a mix will be measured on.
        let samples = TextSplit::new(samples, &[]).work;
        let options = CalibrationOptions {
            share: caller.share(),
            model_name: serving.name.name.clone(),
            text_hash: measurements::hash(&samples),
            samples,
            seed: asked.seed,
            positions_max: (asked.max_positions).map_or(POSITIONS_DEFAULT, |most| most as usize),
            is_full: asked.is_full,
            memory_bytes: asked.memory_bytes.unwrap_or_else(calibration_memory),
            threads: files::threads(asked.threads),
            target,
            may_replace: asked.may_replace,
        };
        let engine = serving.engine()?;
        let operation = self.operations.calibrate(engine, &serving.name, options)?;
        let in_use = self.models.uses().begin_job(&serving.name);
        Models::keep_for(&operation, in_use);
        Ok(operation)
    }

    /// Where a calibration is written when nobody says where.
    pub(super) fn default_calibration(&self, model: &ModelName) -> Result<PathBuf, Failure> {
        let (folder, _) = self.engine.weight_cache().ok_or_else(|| InvalidField {
            field: "output_path",
            problem: "is required, since sluiced has no folder of converted weights".to_owned(),
        })?;
        let is_plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
        let plain = |c: char| if is_plain(c) { c } else { '-' };
        let name: String = model.name.chars().take(NAME_CHARS_MAX).map(plain).collect();
        Ok(folder.join(format!("{name}.calibration.safetensors")))
    }
}
