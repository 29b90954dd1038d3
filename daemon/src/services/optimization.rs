//! Optimizing the loaded model's weights: from the call to the job.

use std::{path::PathBuf, sync::Arc};

use sluice_checkpoint::calibration::{Calibration, CalibrationError, POSITIONS_MIN};
use sluice_engine::{
    admission::FIDELITY_SAMPLES_MAX,
    calibration::{CalibrateError, CalibrationOptions, POSITIONS_DEFAULT},
    optimization::{OptimizeGoal, OptimizeOptions},
};
use sluice_proto::model::{CalibrationChoice, InvalidField, OptimizeJob};
use sluice_tokenizer::Patience;

use super::{Daemon, calibration::calibration_memory};
use crate::{
    caller::Caller,
    failure::Failure,
    measurements,
    models::{Models, ServingModel},
    operations::{Operation, files},
    prepare::{self, TextSplit, spread},
};

/// Told where [`TextSplit::is_shared`].
const SHARED_TEXTS: &str = "the mix is measured on texts that it is calibrated or chosen by, since there are no others: its loss on new texts may be higher";
/// Samples of a measurement when nobody says how many.
const SAMPLES_DEFAULT: usize = 64;

impl Daemon {
    /// Begins to optimize the loaded model, once its text is tokenized.
    pub(super) async fn begin_optimization(
        self: &Arc<Self>,
        caller: Caller,
        mut asked: OptimizeJob,
    ) -> Result<Arc<Operation>, Failure> {
        let serving = self.models.serving()?;
        let own = self.default_calibration(&serving.name)?;
        let calibration = match &asked.calibration {
            CalibrationChoice::Without => None,
            CalibrationChoice::Own => Some(own),
            CalibrationChoice::File(path) => {
                let [path] = self.check_paths(caller, [path.clone()]).await?;
                Some(path)
            }
        };
        let texts = std::mem::take(&mut asked.texts);
        let prepare = move |serving: &ServingModel, patience: &Patience| {
            prepare::calibration_samples(texts, serving, patience)
        };
        let (samples, serving) = self.prepare(caller.share(), serving, prepare).await?;
        let positions: usize = samples.iter().map(Vec::len).sum();
        if (positions as u64) < POSITIONS_MIN {
            // Losses of a few sentences would choose for these alone.
            return Err(CalibrateError::File(CalibrationError::TooLittle {
                what: "the text".to_owned(),
                positions: positions as u64,
                needed: POSITIONS_MIN,
            })
            .into());
        }
        let calibrated = match &calibration {
            Some(path) => calibrated_texts(path.clone()).await?,
            None => None,
        };
        let split = TextSplit::new(samples, calibrated.as_deref().unwrap_or_default());
        let threads = files::threads(asked.threads);
        let missing = match (&asked.calibration, &calibration) {
            (CalibrationChoice::Own, Some(target)) if calibrated.is_none() => {
                Some(CalibrationOptions {
                    share: caller.share(),
                    model_name: serving.name.name.clone(),
                    text_hash: measurements::hash(&split.work),
                    // What the result is measured on stays out of it.
                    samples: split.work.clone(),
                    seed: asked.seed,
                    positions_max: POSITIONS_DEFAULT,
                    is_full: true,
                    memory_bytes: calibration_memory(),
                    threads,
                    target: target.clone(),
                    may_replace: false,
                })
            }
            _ => None,
        };
        let most = asked
            .max_samples
            .map_or(SAMPLES_DEFAULT, |most| most as usize);
        let most = most.min(FIDELITY_SAMPLES_MAX);
        let samples = spread(split.work, most);
        let engine = serving.engine()?;
        let settings = engine.settings();
        let in_force = settings.budget.bytes();
        let options = OptimizeOptions {
            share: caller.share(),
            model_name: serving.name.name.clone(),
            text_hash: measurements::hash(&samples),
            samples,
            test_samples: spread(split.test, most),
            seed: asked.seed,
            calibration,
            goal: match asked.bits_per_weight {
                Some(bits) => OptimizeGoal::Rate(bits),
                None => OptimizeGoal::Fit {
                    budget_bytes: (asked.budget_bytes.or(in_force))
                        .unwrap_or_else(|| engine.budget_default()),
                    max_pass_s: asked.max_pass_ms.map(|ms| ms / 1000.0),
                },
            },
            threads,
        };
        let notice = split.is_shared.then(|| SHARED_TEXTS.to_owned());
        let operation =
            (self.operations).optimize(engine, &serving.name, (missing, options), notice)?;
        let in_use = self.models.uses().begin_job(&serving.name);
        Models::keep_for(&operation, in_use);
        Ok(operation)
    }
}

/// The marks of the texts that a calibration was made of, if there is one that says so; `None` where there is none.
async fn calibrated_texts(path: PathBuf) -> Result<Option<Vec<u32>>, Failure> {
    let read = move || -> std::io::Result<Option<Vec<u32>>> {
        // What is wrong with it is told when it is opened to be used.
        let texts = |calibration: Calibration| calibration.origin().texts.clone();
        let is_there = path.try_exists()?;
        Ok(is_there.then(|| Calibration::open(&path).map(texts).unwrap_or_default()))
    };
    let found = tokio::task::spawn_blocking(read).await?;
    found.map_err(|error| {
        InvalidField {
            field: "calibration_path",
            problem: format!("cannot be examined: {error}"),
        }
        .into()
    })
}
