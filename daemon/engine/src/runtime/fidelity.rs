//! Measuring a level on the loaded model: its rows first, then those of the checkpoint's own weights, then the logits
//! of both LM heads beside each other. Afterwards the plan in force is restored, whatever happens.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use sluice_formats::Format;
use sluice_ops::Activation;
use sluice_plan::{Plan, PlanError, resolve_kv_cache_format};
use sluice_shared::{
    level::{KvCacheFormat, Level},
    mix::MixId,
    options::ResolvedPlanSettings,
};
use sluice_weights::{TensorPart, WeightGroup, WeightGroupPlan, decompressed};

use super::{weight_cache::with_mix_of, worker::Worker};
use crate::{
    decode::fidelity::{self, FidelitySample, SampleReading},
    error::EngineError,
    event::{Event, FidelityResult, Outcome, PartLoss},
    model::network::Interrupt,
    request::{MeasureFidelity, MeasureMix},
    residency::{LoadOutcome, WeightReader},
};

/// What a measurement puts in force.
#[derive(Debug, Clone, Copy)]
struct ComparedWeights {
    level: Level,
    /// The mix of level `optimized`; `None`: the latest.
    mix: Option<MixId>,
}

impl ComparedWeights {
    fn level(level: Level) -> Self {
        Self { level, mix: None }
    }
}

/// The parts that the LM head is cut into.
fn lm_head_parts(plan: &Plan) -> impl Iterator<Item = &WeightGroupPlan> {
    let is_head = |group: &&WeightGroupPlan| matches!(group.group, WeightGroup::LmHead(_));
    plan.groups.iter().filter(is_head)
}

/// Most bytes of a part of the LM head: at most as many as the source's, which may be `f32`.
fn lm_head_bytes(plan: &Plan) -> u64 {
    let largest = lm_head_parts(plan).map(|group| group.tensors[0].elements());
    largest.max().unwrap_or(0) * size_of::<f32>() as u64
}

/// A refusal of what was left of a budget, as one of the whole: a measurement's own memory is needed beside the plan's.
fn with_room_for(own_bytes: u64, budget_bytes: u64, error: EngineError) -> EngineError {
    match error {
        EngineError::Plan(PlanError::BudgetTooSmall {
            least_bytes,
            level,
            canvas,
            ..
        }) => EngineError::Plan(PlanError::BudgetTooSmall {
            budget_bytes,
            least_bytes: least_bytes + own_bytes,
            level,
            canvas,
            fitting: None,
        }),
        error => error,
    }
}

/// Memory that a measurement takes beside a plan: both sides' rows, a converted part of the LM head and what a GPU
/// decompresses it into, and a second piece of logits.
fn extra_bytes(plan: &Plan, samples: &[FidelitySample]) -> u64 {
    let rows: usize = samples.iter().map(|sample| sample.rows.len()).sum();
    let width = lm_head_parts(plan)
        .map(|group| group.tensors[0].width)
        .max()
        .unwrap_or(0);
    let both_rows = (2 * rows * width * size_of::<f32>()) as u64;
    let head_bytes = lm_head_bytes(plan);
    both_rows + head_bytes + head_bytes.min(decompressed::BYTES_MAX as u64) + (8 << 20)
}

impl Worker {
    /// Runs the measurement. Between its passes no settings change.
    pub(super) fn measure_fidelity(
        &mut self,
        request: &MeasureFidelity,
        cancel: &AtomicBool,
        emit: &mut dyn FnMut(Event),
    ) -> Result<Outcome, EngineError> {
        self.measure_beside_plan(cancel, |worker, before| {
            worker
                .compare_levels(request, before, cancel, emit)
                .map(Outcome::Fidelity)
        })
    }

    /// Measures parts of a mix. Between its passes no settings change.
    pub(super) fn measure_mix(
        &mut self,
        request: &MeasureMix,
        cancel: &AtomicBool,
        emit: &mut dyn FnMut(Event),
    ) -> Result<Outcome, EngineError> {
        self.measure_beside_plan(cancel, |worker, before| {
            worker
                .compare_parts(request, before, cancel, emit)
                .map(Outcome::MixParts)
        })
    }

    /// Measures under other plans, and puts the one in force back.
    fn measure_beside_plan(
        &mut self,
        cancel: &AtomicBool,
        measure: impl FnOnce(&mut Self, &Plan) -> Result<Outcome, Interrupt>,
    ) -> Result<Outcome, EngineError> {
        while self.current_mut()?.switch.is_some() {
            if cancel.load(Ordering::Relaxed) {
                return Ok(Outcome::Cancelled);
            }
            // Whoever asked for the switch is told how it ends.
            self.advance_switch_idle();
        }
        let before = self.current_mut()?.plan.clone();
        let result = measure(self, &before);
        // Even when cancelled: the flag below is fresh, so that the way back is not cancelled, too.
        self.switch_now(Plan::clone(&before), &AtomicBool::new(false))?;
        match result {
            Ok(outcome) => Ok(outcome),
            Err(Interrupt::Cancelled) => Ok(Outcome::Cancelled),
            Err(Interrupt::Failed(_)) if cancel.load(Ordering::Relaxed) => Ok(Outcome::Cancelled),
            Err(Interrupt::Failed(error)) => Err(error),
        }
    }

    /// Measures each part of a mix against the checkpoint's own rows, which are computed once.
    fn compare_parts(
        &mut self,
        request: &MeasureMix,
        before: &Plan,
        cancel: &AtomicBool,
        emit: &mut dyn FnMut(Event),
    ) -> Result<Vec<PartLoss>, Interrupt> {
        emit(Event::Started {
            blocks: 1,
            is_exact: true,
        });
        let current = self.current_mut()?;
        let samples = fidelity::samples(&request.on, current.vocabulary.mask);
        let total = (1 + request.parts.len()) * samples.len();
        let mut done = 0;
        let mut tell = || {
            done += 1;
            emit(Event::ScoreProgress { done, total });
        };
        let [_, exact] = self.kv_cache_formats()?;
        let source = ComparedWeights::level(Level::Standard);
        let theirs = self.rows_at(source, exact, before, &samples, cancel, &mut tell)?;
        let mut losses = Vec::with_capacity(request.parts.len());
        for part in &request.parts {
            let current = self.current_mut()?;
            let name = current
                .planner
                .mixes
                .select(request.mix, Arc::clone(part))?;
            let mixed = ComparedWeights {
                level: Level::Optimized,
                mix: Some(name),
            };
            // Both sides with the same KV cache: the part alone is to be measured.
            let ours = self.rows_at(mixed, exact, before, &samples, cancel, &mut tell)?;
            let plan = Arc::clone(&self.current_mut()?.plan);
            self.switch_to(source, exact, before, &samples, cancel)?;
            let rows = [&theirs, &ours];
            let compared = self.divergence(Level::Optimized, &samples, &plan, rows, cancel)?;
            losses.push(PartLoss {
                mean_kl: compared.mean_kl,
                standard_error: compared.kl_standard_error,
            });
        }
        Ok(losses)
    }

    fn compare_levels(
        &mut self,
        request: &MeasureFidelity,
        before: &Plan,
        cancel: &AtomicBool,
        emit: &mut dyn FnMut(Event),
    ) -> Result<FidelityResult, Interrupt> {
        let started = Instant::now();
        emit(Event::Started {
            blocks: 1,
            is_exact: true,
        });
        let current = self.current_mut()?;
        let samples = fidelity::samples(request, current.vocabulary.mask);
        let asked = request.level.unwrap_or(before.level);
        let choices = ResolvedPlanSettings {
            level: asked,
            ..self.shared.state.settings().resolved()
        };
        let current = self.current_mut()?;
        // Without a limit: only whether the level needs compressed weights is asked here.
        let plan = current.planner.plan(choices, u64::MAX, before.workload)?;
        // Lossless compression computes the same as the source: nothing is compressed for a measurement.
        let level = match plan.is_estimate() {
            true => Level::Standard,
            false => asked,
        };
        let total = 2 * samples.len();
        let mut done = 0;
        let mut tell = || {
            done += 1;
            emit(Event::ScoreProgress { done, total });
        };
        // The source is read with an unrounded KV cache where the device has one: what the cache's format loses counts
        // as the level's loss.
        let [format, exact] = self.kv_cache_formats()?;
        // Level first, source second: the divergence below needs the source's LM head in force.
        let subject = ComparedWeights {
            level,
            mix: choices.settings.effective_mix(),
        };
        let ours = self.rows_at(subject, format, before, &samples, cancel, &mut tell)?;
        // Taken before the plan changes again: into its forms the level's LM head is converted below.
        let of_level = Arc::clone(&self.current_mut()?.plan);
        let level = match plan.is_estimate() {
            true => plan.level,
            false => of_level.level,
        };
        let source = ComparedWeights::level(Level::Standard);
        let theirs = self.rows_at(source, exact, before, &samples, cancel, &mut tell)?;
        self.divergence(level, &samples, &of_level, [&theirs, &ours], cancel)
            .map(|compared| FidelityResult {
                elapsed: started.elapsed(),
                ..compared
            })
    }

    /// The formats of an autoregressive model's KV cache: the one in force, and the most exact that there is.
    fn kv_cache_formats(&self) -> Result<[Format; 2], EngineError> {
        let kv = self.shared.state.settings().kv_cache_format;
        let profile = self.ops.device().profile();
        let kept_in = |kv| resolve_kv_cache_format(kv, &profile).map_err(EngineError::from);
        let exact = kept_in(KvCacheFormat::F32).or(kept_in(KvCacheFormat::Auto))?;
        Ok([kept_in(kv)?, exact])
    }

    /// Puts weights in force, with room for a measurement. Returns how an autoregressive model reads samples.
    fn switch_to(
        &mut self,
        weights: ComparedWeights,
        kept_in: Format,
        before: &Plan,
        samples: &[FidelitySample],
        cancel: &AtomicBool,
    ) -> Result<Option<SampleReading>, EngineError> {
        let budget = self.shared.ledger.room_bytes(before.budget_bytes);
        let mut choices = self.shared.state.settings().resolved();
        choices.level = weights.level;
        choices.settings.mix = weights.mix;
        choices.settings.resolved_mix = None;
        let current = self.current_mut()?;
        let shape = &current.planner.config.shape;
        let reading = shape
            .causal
            .then(|| SampleReading::new(shape, kept_in, current.mlp_rows));
        let longest = samples
            .iter()
            .map(|sample| sample.tokens.len())
            .max()
            .unwrap_or(0);
        // Memory that the measurement itself takes is not available to this plan.
        let own_bytes = extra_bytes(before, samples)
            + reading.map_or(0, |reading| reading.memory.bytes(longest) as u64);
        let budget = budget.saturating_sub(own_bytes);
        let plan = current.planner.plan(choices, budget, before.workload);
        let plan = plan.map_err(|error| with_room_for(own_bytes, before.budget_bytes, error))?;
        self.switch_now(plan, cancel)?;
        Ok(reading)
    }

    /// The rows of all samples, one after another, by these weights, with the KV cache in a format.
    fn rows_at(
        &mut self,
        weights: ComparedWeights,
        kept_in: Format,
        before: &Plan,
        samples: &[FidelitySample],
        cancel: &AtomicBool,
        tell: &mut dyn FnMut(),
    ) -> Result<Activation, Interrupt> {
        let reading = self.switch_to(weights, kept_in, before, samples, cancel)?;
        let Self {
            current, ops, turn, ..
        } = self;
        let current = current.as_ref().ok_or(EngineError::NoModel)?;
        let count = samples.iter().map(|sample| sample.rows.len()).sum();
        // Outlives the switch between the two sides, so it has memory of its own outside the arena.
        let mut kept = ops.persistent(count, current.planner.config.shape.hidden_size)?;
        let mut at = 0;
        for sample in samples {
            turn.pass_on();
            let model = (&current.model, &current.weights);
            fidelity::rows(sample, ops, model, reading, cancel, &mut |rows| {
                ops.set_rows(&mut kept, at, rows)?;
                at += rows.len();
                Ok(())
            })?;
            tell();
        }
        Ok(kept)
    }

    /// Compares the logits of both LM heads: the checkpoint's, which is in force, and that of the level's plan.
    fn divergence(
        &mut self,
        level: Level,
        samples: &[FidelitySample],
        plan: &Plan,
        rows: [&Activation; 2],
        cancel: &AtomicBool,
    ) -> Result<FidelityResult, Interrupt> {
        let Self { current, ops, .. } = self;
        let current = current.as_mut().ok_or(EngineError::NoModel)?;
        // The way back to the source has closed the mix that the level's LM head may be in.
        let reader = WeightReader::clone(&current.reader);
        let reader = with_mix_of(reader, &current.planner, plan)?;
        current.set_reader(Arc::new(reader))?;
        // As much as was kept free for it.
        let decompress_bytes = plan.staging.decompress_bytes.min(lm_head_bytes(plan));
        current.weights.raise_decompression(decompress_bytes)?;
        let weights = &current.weights;
        let targets: Vec<u32> = samples
            .iter()
            .flat_map(|sample| sample.targets.iter().copied())
            .collect();
        // In parts of the vocabulary: the logits of both sides would take more memory than the model's activations.
        let mut comparison = ops.start_comparison(&targets, weights.lm_head_part_rows())?;
        for head in lm_head_parts(plan) {
            if cancel.load(Ordering::Relaxed) {
                return Err(Interrupt::Cancelled);
            }
            // One part at a time: never a second LM head, only a converted part beside the resident one.
            let LoadOutcome::Done(converted) =
                weights.load_converted(head, ops.device(), cancel)?
            else {
                return Err(Interrupt::Cancelled);
            };
            let guard = weights.acquire(head.group)?;
            let first = head.tensors[0].first_row;
            let parts = [
                &guard.weight(TensorPart::LmHead),
                &weights.converted_weight(&converted, head, TensorPart::LmHead),
            ];
            ops.compare_lm_heads(&mut comparison, rows, parts, first)?;
        }
        let divergences = comparison.divergences()?;
        let count = divergences.len() as f64;
        let mean =
            |value: &dyn Fn(usize) -> f64| (0..divergences.len()).map(value).sum::<f64>() / count;
        // The likelihood bound weighs every canvas alike, however many of its rows are read.
        let read = samples.iter().filter(|sample| !sample.rows.is_empty());
        let count_read = read.clone().count() as f64;
        let mut at = 0;
        let mut likelihood = [0.0; 2];
        let mean_kl = mean(&|row| divergences[row].kl);
        let mut squares = 0.0;
        for sample in read {
            let rows = &divergences[at..at + sample.rows.len()];
            at += rows.len();
            // A ratio of sums over samples, linearized.
            let off: f64 = rows.iter().map(|row| row.kl - mean_kl).sum();
            squares += off * off;
            for (side, sum) in likelihood.iter_mut().enumerate() {
                let all: f64 = rows.iter().map(|row| row.target[side]).sum();
                *sum += all / rows.len() as f64 / count_read;
            }
        }
        Ok(FidelityResult {
            level,
            samples: samples.len(),
            rows: divergences.len(),
            mean_kl,
            kl_standard_error: squares.sqrt() / count,
            top_agreement: mean(&|row| f64::from(divergences[row].same_top)),
            source_bound: -likelihood[0],
            level_bound: -likelihood[1],
            elapsed: std::time::Duration::ZERO,
        })
    }
}
