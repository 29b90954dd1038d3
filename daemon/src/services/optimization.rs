//! Optimizing the loaded model's weights: from the call to the job.

use std::{path::PathBuf, sync::Arc};

use sluice_checkpoint::calibration::{CalibrationError, POSITIONS_MIN};
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
    models::ServingModel,
    operations::{Operation, files},
    prepare,
};

/// One sample of so many is kept for the measurement of the result.
const TEST_SHARE: usize = 5;
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
        let text_hash = measurements::hash(&samples);
        let (test_samples, samples) = apart(samples);
        let threads = files::threads(asked.threads);
        let missing = match (&asked.calibration, &calibration) {
            (CalibrationChoice::Own, Some(target)) if !exists(target.clone()).await? => {
                Some(CalibrationOptions {
                    share: caller.share(),
                    model_name: serving.name.name.clone(),
                    text_hash: measurements::hash(&samples),
                    // What the result is measured on stays out of it.
                    samples: samples.clone(),
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
        let settings = self.engine.settings();
        let in_force = settings.budget.bytes();
        let options = OptimizeOptions {
            share: caller.share(),
            model_name: serving.name.name.clone(),
            samples: spread(samples, most),
            test_samples: spread(test_samples, most),
            text_hash: text_hash ^ most as u64,
            seed: asked.seed,
            calibration,
            goal: match asked.bits_per_weight {
                Some(bits) => OptimizeGoal::Rate(bits),
                None => OptimizeGoal::Fit {
                    budget_bytes: (asked.budget_bytes.or(in_force))
                        .unwrap_or_else(|| self.engine.budget_default()),
                    max_pass_s: asked.max_pass_ms.map(|ms| ms / 1000.0),
                },
            },
            threads,
        };
        let engine = self.engine.clone();
        self.operations
            .optimize(engine, &serving.name, missing, options)
    }
}

/// The samples that the result is measured on, and all others.
fn apart(samples: Vec<Vec<u32>>) -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
    // A text of few lines has to serve for both.
    if samples.len() < TEST_SHARE {
        return (samples.clone(), samples);
    }
    let (mut test, mut rest) = (Vec::new(), Vec::new());
    for (index, sample) in samples.into_iter().enumerate() {
        match index % TEST_SHARE {
            0 => test.push(sample),
            _ => rest.push(sample),
        }
    }
    (test, rest)
}

/// At most so many samples, evenly spread.
fn spread(samples: Vec<Vec<u32>>, most: usize) -> Vec<Vec<u32>> {
    let count = samples.len();
    let taken = count.min(most);
    let mut each: Vec<Option<Vec<u32>>> = samples.into_iter().map(Some).collect();
    (0..taken)
        .filter_map(|index| each[index * count / taken].take())
        .collect()
}

async fn exists(path: PathBuf) -> Result<bool, Failure> {
    let exists = tokio::task::spawn_blocking(move || path.try_exists()).await?;
    exists.map_err(|error| {
        InvalidField {
            field: "calibration_path",
            problem: format!("cannot be examined: {error}"),
        }
        .into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_result_are_others_than_those_of_the_choice() {
        let samples: Vec<Vec<u32>> = (0..23).map(|id| vec![id]).collect();
        let (test, rest) = apart(samples.clone());
        assert_eq!((test.len(), rest.len()), (5, 18));
        assert!(test.iter().all(|sample| !rest.contains(sample)));
        assert_eq!(apart(samples[..4].to_vec()).0, samples[..4]);
        assert_eq!(spread(samples.clone(), 4), [[0], [5], [11], [17]]);
        assert_eq!(spread(samples.clone(), 99), samples);
        assert_eq!(spread(Vec::new(), 4), Vec::<Vec<u32>>::new());
    }
}
