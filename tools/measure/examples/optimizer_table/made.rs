//! What an engine makes of the model: calibrations, and mixes by its optimizer.

use std::{fs, path::Path, sync::atomic::AtomicBool};

use sluice_checkpoint::calibration::Calibration;
use sluice_engine::{
    Budget, Engine, EngineOptions, PlanSettings, ShareKey,
    calibration::{CalibrationOptions, PASS_TOKENS_MAX, POSITIONS_DEFAULT, calibrate},
    optimization::{OptimizeGoal, OptimizeOptions, OptimizeSummary, optimize},
};
use sluice_measure::{Result, checkpoints::source, fidelity::tokenized_lines};
use sluice_shared::level::{KvCacheFormat, Level};
use tempfile::TempDir;

const MODEL_NAME: &str = "model";
const SEED: u64 = 1;
const THREADS: usize = 2;
const MEMORY_BYTES: u64 = 4 << 30;
/// Most texts that losses are measured on, as the daemon has it.
const SAMPLES_MAX: usize = 64;

/// An engine with the model, and texts.
pub(crate) struct Made {
    engine: Engine,
    folder: TempDir,
    calibration: Vec<Vec<u32>>,
    test: Vec<Vec<u32>>,
}

impl Made {
    pub(crate) fn new(model: &Path, calibration: &Path, test: &Path) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let engine = Engine::start(EngineOptions {
            threads: THREADS,
            weight_cache: Some(folder.path().join("weights")),
            ..EngineOptions::default()
        })?;
        let settings = PlanSettings {
            level: Level::Standard,
            budget: Budget::Bytes(1 << 40),
            // An autoregressive model rounds its KV cache otherwise.
            kv_cache_format: KvCacheFormat::F32,
            ..PlanSettings::default()
        };
        engine.load_now(source(model), settings)?;
        let lines =
            |text: &Path| tokenized_lines(model, &fs::read_to_string(text)?, PASS_TOKENS_MAX);
        Ok(Self {
            engine,
            calibration: lines(calibration)?,
            test: lines(test)?,
            folder,
        })
    }

    /// A calibration on the first text, with whole second moments or only mean squares.
    pub(crate) fn calibration(&self, is_full: bool) -> Result<Calibration> {
        let options = CalibrationOptions {
            share: ShareKey::default(),
            model_name: MODEL_NAME.to_owned(),
            samples: self.calibration.clone(),
            text_hash: 0,
            seed: SEED,
            positions_max: POSITIONS_DEFAULT,
            is_full,
            memory_bytes: MEMORY_BYTES,
            threads: THREADS,
            target: self.folder.path().join(file(is_full)),
            may_replace: false,
        };
        calibrate(&self.engine, &options, &AtomicBool::new(false), &mut |_| {})?;
        Ok(Calibration::open(&options.target)?)
    }

    /// The optimizer's mixes at these mean rates, by the calibration with whole second moments.
    pub(crate) fn mixes(&self, mean_bits: &[f64]) -> Result<Vec<OptimizeSummary>> {
        // The curve is the same whatever the budget; here half of the weights' bytes.
        let plan = &self.engine.in_force().ok_or("no model")?.plan;
        let largest = self.optimize(plan.peak_bytes() - plan.weight_bytes() / 2)?;
        let curve = largest.prediction.ok_or("a budget was given")?.curve;
        let mixes = mean_bits.iter().map(|bits| {
            let mut points = curve.iter();
            let point = points.find(|point| point.bits == *bits);
            self.optimize(point.ok_or("mean rates are quarters of a bit")?.bytes)
        });
        mixes.collect()
    }

    fn optimize(&self, budget_bytes: u64) -> Result<OptimizeSummary> {
        let step = (self.calibration.len() / SAMPLES_MAX).max(1);
        let options = OptimizeOptions {
            share: ShareKey::default(),
            model_name: MODEL_NAME.to_owned(),
            samples: self
                .calibration
                .iter()
                .step_by(step)
                .take(SAMPLES_MAX)
                .cloned()
                .collect(),
            test_samples: self.test.clone(),
            text_hash: 0,
            seed: SEED,
            calibration: Some(self.folder.path().join(file(true))),
            goal: OptimizeGoal::Fit {
                budget_bytes,
                max_pass_s: None,
            },
            threads: THREADS,
        };
        let never = AtomicBool::new(false);
        Ok(optimize(&self.engine, &options, &never, &mut |_| {})?)
    }
}

fn file(is_full: bool) -> &'static str {
    match is_full {
        true => "full.calibration.safetensors",
        false => "diagonal.calibration.safetensors",
    }
}
