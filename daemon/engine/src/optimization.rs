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
mod kept;
mod losses;
mod write;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::{SystemTime, UNIX_EPOCH},
};

use rayon::ThreadPoolBuilder;
use sluice_checkpoint::{
    CheckpointError,
    calibration::{Calibration, CalibrationError},
    features::Feature,
    weight_cache::{MixChoice, MixRecord, MixedGroup, Mixes},
};
use sluice_machine::page::PAGE_BYTES;
use sluice_optimize::allocate::{AllocateError, Limits};
use sluice_plan::{Plan, PlanError, allocation_slack_bytes};
use sluice_shared::{
    compression::MIX_BITS,
    level::Level,
    mix::MixId,
    options::{PlanSettings, ResolvedPlanSettings},
};

use self::{
    choice::{Choices, Form, GroupCosts, bytes_of},
    losses::measure_losses,
    write::MixWriter,
};
pub use self::{
    error::OptimizeError,
    groups::{GroupKind, MatrixGroup, groups},
    kept::{KeptMix, kept_mixes},
};
use crate::{
    command::LoadedModel,
    error::EngineError,
    event::{Outcome, PartLoss},
    fair::ShareKey,
    request::{MatrixKey, MeasureFidelity, MeasureMix, Work},
    runtime::{Engine, Planner, usual_workload},
    turns::Turns,
};
pub use sluice_checkpoint::weight_cache::{LossPoint, LossPrediction};

/// Bits per weight that all groups are measured at: low enough that losses stand out, high enough that they go as 4^-R.
const BITS_MEASURED: f64 = 3.0;
/// Lowest rate that is chosen.
const BITS_MIN: f64 = *MIX_BITS.start();
/// Highest rate that is chosen. What more bytes gain are the checkpoint's own weights.
const BITS_MAX: f64 = *MIX_BITS.end();
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
    /// Hash of the former, by which measurements of an earlier run are found.
    pub text_hash: u64,
    /// Seed of the masks.
    pub seed: u64,
    /// The calibration to quantize by; `None`: all inputs count alike.
    pub calibration: Option<PathBuf>,
    /// What rates are chosen for.
    pub goal: OptimizeGoal,
    /// Threads that quantize.
    pub threads: usize,
}

/// What rates are chosen for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OptimizeGoal {
    /// The least loss within these limits.
    Fit {
        /// Device memory that the plan may take.
        budget_bytes: u64,
        /// Seconds that a pass may take, by the plan's prediction.
        max_pass_s: Option<f64>,
    },
    /// So many bits per weight for all matrices, whatever they lose.
    Rate(f64),
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
    /// What was predicted; `None` where a rate was given.
    pub prediction: Option<LossPrediction>,
    /// The divergence that was measured on the other texts.
    pub measured: PartLoss,
    /// Why all this could not be written beside the mix; `None`: it was.
    pub not_kept: Option<String>,
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
    check(engine, options.goal)?;
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
    let run = Run {
        options,
        settings: engine.settings(),
        planner: &planner,
        mixes,
        measure: Measure {
            turns: &turns,
            model: &model,
            seed: options.seed,
        },
        writer,
    };
    let chosen = match options.goal {
        OptimizeGoal::Fit {
            budget_bytes,
            max_pass_s,
        } => run.fit(budget_bytes, max_pass_s, report)?,
        OptimizeGoal::Rate(bits) => run.at_rate(bits),
    };
    run.finish(chosen, report)
}

/// Refuses what cannot be reached, as far as that is known before any work.
///
/// # Errors
/// When no mix fits, the checkpoint itself does, or a pass cannot be so short.
pub fn check(engine: &Engine, goal: OptimizeGoal) -> Result<(), OptimizeError> {
    let model = engine.model().ok_or(EngineError::NoModel)?;
    if let Some(refusal) = model.info.features().refusal(Feature::Optimize) {
        return Err(OptimizeError::Layers(refusal.reason()));
    }
    let OptimizeGoal::Fit {
        budget_bytes,
        max_pass_s,
    } = goal
    else {
        return Ok(());
    };
    let planner = engine.planner().ok_or(EngineError::NoModel)?;
    let original = plan(&planner, engine.settings(), Level::Standard, None)?;
    let pass_s = original.pass.map(|pass| pass.total_s());
    if max_pass_s.is_some() && pass_s.is_none() {
        return Err(OptimizeError::UnknownTimes);
    }
    if original.held_bytes(&planner.machine) <= budget_bytes {
        return Err(match (max_pass_s, pass_s) {
            (Some(limit_s), Some(least_s)) if limit_s < least_s => {
                OptimizeError::PassTime { limit_s, least_s }
            }
            _ => OptimizeError::NothingToQuantize,
        });
    }
    let groups = groups(&planner.sources());
    let own: u64 = GroupCosts::of(&original, None, &groups).bytes.iter().sum();
    let weights: u64 = groups.iter().map(|group| group.weights).sum();
    let least_bytes = original.peak_bytes() - own + (weights as f64 * BITS_MIN / 8.0) as u64;
    match budget_bytes < least_bytes {
        true => Err(too_small(budget_bytes, least_bytes, &original)),
        false => Ok(()),
    }
}

fn too_small(budget_bytes: u64, least_bytes: u64, plan: &Plan) -> OptimizeError {
    EngineError::Plan(PlanError::BudgetTooSmall {
        budget_bytes,
        least_bytes,
        level: Level::Optimized,
        canvas: plan.workload.canvas_length,
        fitting: None,
    })
    .into()
}

/// The usual plan of a level, with all weights on the device.
fn plan(
    planner: &Planner,
    settings: PlanSettings,
    level: Level,
    mix: Option<MixId>,
) -> Result<Plan, EngineError> {
    let settings = ResolvedPlanSettings::from(PlanSettings {
        level,
        mix,
        ..settings
    });
    let workload = usual_workload(&planner.config.shape);
    planner.plan(settings, u64::MAX, workload)
}

/// An optimization, with all that it needs.
struct Run<'a> {
    options: &'a OptimizeOptions,
    settings: PlanSettings,
    planner: &'a Planner,
    mixes: &'a Mixes,
    measure: Measure<'a>,
    writer: MixWriter<'a>,
}

/// A mix that is to be written.
struct PlannedMix {
    forms: Vec<Form>,
    record: MixRecord,
    prediction: Option<LossPrediction>,
}

impl Run<'_> {
    /// One rate for all groups.
    fn at_rate(&self, bits: f64) -> PlannedMix {
        let forms = vec![Form::Quantized(bits); self.writer.groups.len()];
        let groups = self.writer.groups.iter();
        let mixed = groups.map(|group| MixedGroup {
            tensors: group.names(self.writer.sources),
            bits,
            is_original: false,
            bytes: bytes_of(group, bits),
            predicted_kl_nats: None,
        });
        PlannedMix {
            record: MixRecord {
                calibration: self.writer.calibration_name(),
                budget_bytes: None,
                groups: mixed.collect(),
            },
            forms,
            prediction: None,
        }
    }

    /// The least loss within limits, by measurements of every group.
    fn fit(
        &self,
        budget_bytes: u64,
        max_pass_s: Option<f64>,
        report: &mut dyn FnMut(OptimizeProgress),
    ) -> Result<PlannedMix, OptimizeError> {
        let (groups, sources) = (self.writer.groups, self.writer.sources);
        let equal = vec![Form::Quantized(BITS_MEASURED); groups.len()];
        let candidates = self.mixes.candidates();
        let candidate =
            (self.writer).write(&candidates, &equal, &MixRecord::default(), false, report)?;
        // What the plan takes besides these matrices, whatever their rates.
        let plan = |level, mix| plan(self.planner, self.settings, level, mix);
        let (original, plan) = (
            plan(Level::Standard, None)?,
            plan(Level::Optimized, Some(candidate.id))?,
        );
        let machine = &self.planner.machine;
        let other_bytes = other_bytes(&plan, candidate.id) + allocation_slack_bytes(machine);
        let least = groups.iter().map(|group| bytes_of(group, BITS_MIN));
        let least_bytes =
            other_bytes + (least.sum::<u64>() as f64 / (1.0 - SLACK)).ceil() as u64 + 1;
        if budget_bytes < least_bytes {
            return Err(too_small(budget_bytes, least_bytes, &plan));
        }
        // Measured passes correct what rates predict, at this level and not at the checkpoint's.
        let correction = plan.pass.map_or(1.0, |pass| pass.correction);
        let costs = |plan: &Plan| {
            let seconds = plan.tensor_seconds(&self.planner.config.shape, machine);
            GroupCosts::of(plan, seconds.as_ref(), groups).corrected(correction)
        };
        let (own_costs, costs) = (costs(&original), costs(&plan));
        let other_s = match max_pass_s {
            Some(_) => seconds_besides(&plan, &costs).ok_or(OptimizeError::UnknownTimes)?,
            None => 0.0,
        };
        let limits = Limits {
            bytes: ((budget_bytes - other_bytes) as f64 * (1.0 - SLACK)) as u64,
            seconds: max_pass_s.map(|limit| limit - other_s),
        };
        let within = |sensitivities: Vec<f64>| {
            let choices = Choices::new(groups, sensitivities, &own_costs, &costs);
            match choices.within(limits) {
                Ok(chosen) => Ok((choices, chosen)),
                Err(AllocateError::Time { limit, least }) => Err(OptimizeError::PassTime {
                    limit_s: limit + other_s,
                    least_s: least + other_s,
                }),
                Err(other) => Err(other.into()),
            }
        };
        // Whether there is a choice depends on no loss, and measuring takes minutes.
        within(vec![0.0; groups.len()])?;
        let losses = measure_losses(
            &self.measure,
            (&candidate, &candidates, groups, sources),
            (&self.options.samples, self.options.text_hash),
            report,
        )?;
        let (choices, chosen) = within(losses::sensitivities(groups, &losses))?;
        Ok(PlannedMix {
            record: MixRecord {
                calibration: self.writer.calibration_name(),
                budget_bytes: Some(budget_bytes),
                groups: choices.record(&chosen, sources),
            },
            prediction: Some(LossPrediction {
                kl_nats: chosen.allocation.loss,
                gap_kl_nats: chosen.allocation.gap(),
                uniform_kl_nats: choices.uniform_loss(chosen.allocation.bytes),
                curve: choices.curve(other_bytes)?,
            }),
            forms: chosen.forms,
        })
    }

    /// Writes the mix, and measures it on other texts than it was chosen by.
    fn finish(
        self,
        chosen: PlannedMix,
        report: &mut dyn FnMut(OptimizeProgress),
    ) -> Result<OptimizeSummary, OptimizeError> {
        let PlannedMix {
            forms,
            record,
            prediction,
        } = chosen;
        let (groups, sources) = (self.writer.groups, self.writer.sources);
        let mix = (self.writer).write(self.mixes, &forms, &record, true, report)?;
        let quantized = groups.iter().zip(&forms);
        let whole: Vec<MatrixKey> = quantized
            .filter(|(_, form)| form.bits().is_some())
            .flat_map(|(group, _)| group.keys(sources).to_vec())
            .collect();
        let test = &self.options.test_samples;
        let measured = self.measure.parts(mix.id, vec![whole.into()], test)?;
        let measured = measured.first().copied().ok_or(OptimizeError::Cancelled)?;
        let choice = MixChoice {
            chosen_unix_ms: unix_ms(),
            record,
            prediction,
            measured_kl_nats: measured.mean_kl,
            measured_kl_standard_error: measured.standard_error,
        };
        // No reason to lose the mix, which is written.
        let kept = self.mixes.keep_choice(mix.id, &choice);
        let not_kept = kept.err().map(|error| error.to_string());
        let MixChoice {
            record, prediction, ..
        } = choice;
        let bits = record.groups.iter().zip(groups);
        let bits = bits.map(|(choice, group)| choice.bits * group.weights as f64);
        let weights: u64 = groups.iter().map(|group| group.weights).sum();
        Ok(OptimizeSummary {
            mix: mix.id,
            bits: bits.sum::<f64>() / weights as f64,
            prediction,
            // Not the file's own: another budget may have led to the same rates before.
            record: Arc::new(record),
            groups: groups.to_vec(),
            measured,
            not_kept,
        })
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// Seconds of a pass besides the matmuls with the groups; `None` where they cannot be predicted.
fn seconds_besides(plan: &Plan, costs: &GroupCosts) -> Option<f64> {
    let matmuls: f64 = costs.seconds.as_ref()?.iter().sum();
    Some(plan.pass?.total_s() - matmuls)
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
