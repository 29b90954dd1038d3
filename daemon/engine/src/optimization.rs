//! The optimizer: the most faithful mix of rates that fits a budget.
//!
//! All matrices are quantized to one rate first. Each group of them is then put in force alone, and the divergence from
//! the checkpoint's own outputs is measured: at another rate R it goes as 4^-R, as the rate-distortion bound does
//! (a quadratic model: small errors of independent matrices add up in KL). Of the rates, and the checkpoint's own
//! weights, `sluice_optimize::allocate` chooses one for each group, so that the sum is least within a budget and, if
//! one is given, a time; and every matrix is quantized again, to its group's rate.
//!
//! What a killed run has done is found again: matrices in the unfinished file of a mix, measurements beside the one that
//! they are of.

mod choice;
mod error;
mod groups;
mod losses;
mod write;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

use rayon::ThreadPoolBuilder;
use sluice_checkpoint::{
    CheckpointError,
    calibration::{Calibration, CalibrationError},
    weight_cache::{MixRecord, MixedGroup},
};
use sluice_machine::page::PAGE_BYTES;
use sluice_optimize::allocate::{AllocateError, Limits};
use sluice_plan::{Plan, PlanError, allocation_slack_bytes};
use sluice_shared::{
    level::Level,
    mix::MixId,
    options::{PlanSettings, ResolvedPlanSettings},
};
use sluice_weights::SourceTensor;

use self::{
    choice::{Choices, Chosen, Form, GroupCosts},
    losses::measure_losses,
    write::MixWriter,
};
pub use self::{
    error::OptimizeError,
    groups::{GroupKind, MatrixGroup, groups},
};
use crate::{
    command::LoadedModel,
    error::EngineError,
    event::{Outcome, PartLoss},
    fair::ShareKey,
    request::{MatrixKey, MeasureFidelity, MeasureMix, Work},
    runtime::{Engine, usual_workload},
    turns::Turns,
};

/// Bits per weight that all groups are measured at: low enough that losses stand out, high enough that they go as 4^-R.
const BITS_MEASURED: f64 = 3.0;
/// Lowest rate that is chosen: below, losses rise faster than 4^-R.
pub const BITS_MIN: f64 = 1.75;
/// Highest rate that is chosen; the codes hardly reach six bits, and above this losses fall more slowly than 4^-R. What
/// more bytes gain than this are the checkpoint's own weights.
pub const BITS_MAX: f64 = 5.75;
/// Share of the budget that rates are not chosen for, since a matrix comes to within half a percent of its rate.
const SLACK: f64 = 0.005;

/// What to optimize for.
#[derive(Debug, Clone)]
pub struct OptimizeOptions {
    /// Whose turns it takes.
    pub share: ShareKey,
    /// Name of the model, for people.
    pub model_name: String,
    /// Texts as ids that losses are measured on.
    pub samples: Vec<Vec<u32>>,
    /// Other texts, that the result is measured on.
    pub test_samples: Vec<Vec<u32>>,
    /// Hash of both, by which measurements of an earlier run are found.
    pub text_hash: u64,
    /// Seed of the masks.
    pub seed: u64,
    /// The calibration to quantize by; `None`: all inputs count alike.
    pub calibration: Option<PathBuf>,
    /// Device memory that the plan may take.
    pub budget_bytes: u64,
    /// Seconds that a pass may take, by the plan's prediction.
    pub max_pass_s: Option<f64>,
    /// Threads that quantize.
    pub threads: usize,
}

/// How far an optimization is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OptimizeProgress {
    /// Matrices are quantized.
    Quantizing {
        /// The tensor at work.
        tensor: String,
        /// Weights that are done.
        done: u64,
        /// Weights of all matrices.
        total: u64,
        /// Whether to the one rate that groups are measured at, or to those that were chosen.
        is_final: bool,
    },
    /// Losses of groups are measured.
    Measuring {
        /// Groups that are done.
        done: usize,
        /// All groups.
        total: usize,
    },
}

/// The mix that was made.
#[derive(Debug, Clone, PartialEq)]
pub struct OptimizeSummary {
    /// Its name.
    pub mix: MixId,
    /// What was chosen.
    pub record: Arc<MixRecord>,
    /// The group of each choice.
    pub groups: Vec<MatrixGroup>,
    /// Mean bits per weight of all matrices.
    pub bits: f64,
    /// How far the predicted divergence may be above that of the best choice, in nats.
    pub gap_kl_nats: f64,
    /// Predicted divergence with the same rate for all matrices in as many bytes, in nats.
    pub uniform_kl_nats: f64,
    /// Predicted divergence by bytes of the plan, at mean rates from the lowest to the highest.
    pub curve: Vec<LossPoint>,
    /// The divergence that was measured on the other texts.
    pub measured: PartLoss,
}

/// A point of the curve of loss against bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossPoint {
    /// Mean bits per weight.
    pub bits: f64,
    /// Bytes of the plan.
    pub bytes: u64,
    /// Predicted divergence, in nats.
    pub kl_nats: f64,
}

/// Optimizes the present model's weights for a budget. Blocks: not for the engine's own thread. The mix is left in the
/// folder of converted weights, and not put in force.
///
/// # Errors
/// When the budget is too small, there is no folder for it, the calibration is another model's, a pass or the file fails,
/// or `stop` is set.
pub fn optimize(
    engine: &Engine,
    options: &OptimizeOptions,
    stop: &AtomicBool,
    report: &mut dyn FnMut(OptimizeProgress),
) -> Result<OptimizeSummary, OptimizeError> {
    let model = engine.model().ok_or(EngineError::NoModel)?;
    let planner = engine.planner().ok_or(EngineError::NoModel)?;
    let mixes = planner.mixes.files().ok_or(EngineError::NoMix(None))?;
    let checkpoint = planner.checkpoint.as_ref().ok_or(EngineError::NoModel)?;
    let calibration = match &options.calibration {
        Some(path) => {
            let identity = engine.model_identity(&options.model_name)?;
            let opened = Calibration::open_for(path, &identity);
            Some(opened.map_err(|error| not_a_calibration(path, error))?)
        }
        None => None,
    };
    let sources = planner.sources();
    let groups = groups(&sources);
    let pool = ThreadPoolBuilder::new()
        .num_threads(options.threads)
        .thread_name(|index| format!("sluice-mix-{index}"))
        .build()
        .map_err(|error| OptimizeError::Threads(error.to_string()))?;
    let writer = MixWriter {
        checkpoint,
        calibration: calibration.as_ref(),
        sources: &sources,
        groups: &groups,
        pool: &pool,
        stop,
    };
    let turns = Turns {
        engine,
        share: options.share,
        stop,
    };
    let equal = vec![Form::Quantized(BITS_MEASURED); groups.len()];
    let candidates = mixes.candidates();
    let candidate = writer.write(&candidates, &equal, &MixRecord::default(), false, report)?;
    // What the plan takes besides these matrices, whatever their rates.
    let settings = PlanSettings {
        level: Level::Optimized,
        mix: Some(candidate.id),
        ..engine.settings()
    };
    let plan = planner.plan(
        ResolvedPlanSettings::from(settings),
        u64::MAX,
        usual_workload(&planner.config.shape),
    )?;
    let other_bytes = other_bytes(&plan, candidate.id) + allocation_slack_bytes(&planner.machine);
    let weights: u64 = groups.iter().map(|group| group.weights).sum();
    let least_bytes = other_bytes + (weights as f64 * BITS_MIN / 8.0 / (1.0 - SLACK)).ceil() as u64;
    // Before minutes of passes.
    if options.budget_bytes < least_bytes {
        return Err(EngineError::Plan(PlanError::BudgetTooSmall {
            budget_bytes: options.budget_bytes,
            least_bytes,
            level: Level::Optimized,
            canvas: plan.workload.canvas_length,
            fitting: None,
        })
        .into());
    }
    let of_original = ResolvedPlanSettings {
        level: Level::Standard,
        ..ResolvedPlanSettings::from(settings)
    };
    let original = planner.plan(of_original, u64::MAX, plan.workload)?;
    let costs = |plan: &Plan| {
        let seconds = plan.tensor_seconds(&planner.config.shape, &planner.machine);
        GroupCosts::of(plan, seconds.as_ref(), &groups)
    };
    let (own_costs, costs) = (costs(&original), costs(&plan));
    let bytes = ((options.budget_bytes - other_bytes) as f64 * (1.0 - SLACK)) as u64;
    if own_costs.bytes.iter().sum::<u64>() <= bytes {
        return Err(OptimizeError::NothingToQuantize);
    }
    let other_s = match options.max_pass_s {
        Some(_) => Some(seconds_besides(&plan, &costs).ok_or(OptimizeError::UnknownTimes)?),
        None => None,
    };
    let measure = Measure {
        turns: &turns,
        model: &model,
        seed: options.seed,
    };
    let losses = measure_losses(
        &measure,
        (&candidate, &candidates, &groups, &sources),
        (&options.samples, options.text_hash),
        report,
    )?;
    let choices = Choices::new(
        &groups,
        losses::sensitivities(&groups, &losses),
        &own_costs,
        &costs,
    );
    let limits = Limits {
        bytes,
        seconds: (options.max_pass_s.zip(other_s)).map(|(limit, other)| limit - other),
    };
    let chosen = choices.within(limits).map_err(|error| match error {
        AllocateError::Time { limit, least } => OptimizeError::PassTime {
            limit_s: limit + other_s.unwrap_or_default(),
            least_s: least + other_s.unwrap_or_default(),
        },
        other => other.into(),
    })?;
    let record = record(
        &choices,
        &chosen,
        &groups,
        &sources,
        &own_costs,
        options,
        calibration.as_ref(),
    );
    let mix = writer.write(mixes, &chosen.forms, &record, true, report)?;
    let quantized = groups.iter().zip(&chosen.forms);
    let whole: Vec<MatrixKey> = quantized
        .filter(|(_, form)| form.bits().is_some())
        .flat_map(|(group, _)| group.keys(&sources).to_vec())
        .collect();
    let measured = measure.parts(mix.id, vec![whole.into()], &options.test_samples)?;
    Ok(OptimizeSummary {
        mix: mix.id,
        bits: chosen.allocation.bytes as f64 * 8.0 / weights as f64,
        gap_kl_nats: chosen.allocation.gap(),
        uniform_kl_nats: choices.uniform_loss(chosen.allocation.bytes),
        curve: choices.curve(other_bytes)?,
        record: mix.record,
        groups,
        measured: measured.first().copied().ok_or(OptimizeError::Cancelled)?,
    })
}

/// Seconds of a pass besides the matmuls with the groups; `None` where they cannot be predicted.
fn seconds_besides(plan: &Plan, costs: &GroupCosts) -> Option<f64> {
    let matmuls: f64 = costs.seconds.as_ref()?.iter().sum();
    Some((plan.pass?.total_s() - matmuls).max(0.0))
}

/// Whoever names a file as a calibration is told so, whatever it is instead.
fn not_a_calibration(path: &Path, error: CalibrationError) -> CalibrationError {
    match error {
        CalibrationError::File(
            error @ (CheckpointError::MalformedFile { .. } | CheckpointError::WrongLength { .. }),
        ) => CalibrationError::Damaged {
            path: path.to_owned(),
            cause: error.to_string(),
        },
        other => other,
    }
}

/// Bytes of a plan besides the matrices of a mix, with a page for each group that may take one more at another rate.
fn other_bytes(plan: &Plan, mix: MixId) -> u64 {
    let tensors = plan.groups.iter().flat_map(|group| &group.tensors);
    let mixed = tensors.filter(|tensor| tensor.storage.mix() == mix.number());
    let mixed_bytes: u64 = mixed.map(|tensor| tensor.bytes()).sum();
    plan.peak_bytes() - mixed_bytes + (plan.groups.len() * PAGE_BYTES) as u64
}

fn record(
    choices: &Choices<'_>,
    chosen: &Chosen,
    groups: &[MatrixGroup],
    sources: &[SourceTensor],
    own_costs: &GroupCosts,
    options: &OptimizeOptions,
    calibration: Option<&Calibration>,
) -> MixRecord {
    let mixed = groups.iter().zip(&chosen.forms).enumerate();
    let mixed = mixed.map(|(at, (group, &form))| {
        let weights = group.weights as f64;
        let bytes = match form {
            Form::Quantized(bits) => (weights * bits / 8.0) as u64,
            Form::Original => own_costs.bytes[at],
        };
        MixedGroup {
            tensors: choice::names(group, sources),
            bits: form.bits().unwrap_or(bytes as f64 * 8.0 / weights),
            is_original: form == Form::Original,
            bytes,
            predicted_kl_nats: choices.loss(at, form),
        }
    });
    MixRecord {
        calibration: write::calibration_name(calibration),
        budget_bytes: options.budget_bytes,
        predicted_kl_nats: chosen.allocation.loss,
        groups: mixed.collect(),
    }
}

/// Measures parts of mixes, as requests.
struct Measure<'a> {
    turns: &'a Turns<'a>,
    model: &'a LoadedModel,
    seed: u64,
}

impl Measure<'_> {
    fn parts(
        &self,
        mix: MixId,
        parts: Vec<Arc<[MatrixKey]>>,
        samples: &[Vec<u32>],
    ) -> Result<Vec<PartLoss>, OptimizeError> {
        let work = Work::MeasureMix(MeasureMix {
            on: MeasureFidelity {
                model: self.model.id,
                level: None,
                samples: samples.to_vec(),
                seed: self.seed,
            },
            mix,
            parts,
        });
        match self.turns.submit(work, |_| {})?.finish()? {
            Outcome::MixParts(losses) => Ok(losses),
            _ => Err(OptimizeError::Cancelled),
        }
    }
}

#[cfg(test)]
mod tests;
