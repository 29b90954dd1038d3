//! Passes of a checkpoint that is loaded at a level, under a budget: their time beside the least that bus and GPU need
//! for them, and the peak memory beside the plan's.

use std::{collections::HashMap, path::Path, time::Instant};

use serde_json::{Value, json};
use sluice_checkpoint::Source;
use sluice_daemon::config::PinnedMemoryLimit;
use sluice_engine::{
    Engine, EngineError, EngineOptions, Generate, ModelId, Outcome, PARALLEL_DEFAULT, PlanOptions,
    PlanSettings, Work, event::PassReport, runtime::PlanInForce,
};
use sluice_shared::{
    decoding::Decoding,
    level::Level,
    sampling::{EosPolicy, KvCacheMode},
    units,
};

use super::{
    Deadline, Report,
    memory::{GpuMemory, Peak, Watch, over_budget, tolerance_bytes},
    report::Failures,
    shared::{self, median},
    timing::Timing,
};

/// Positions decoded together: LLaDA's block.
const BLOCK: usize = 32;
/// Passes that are not counted: kernels are compiled, and streamed weights come to the host's memory.
const WARM_UP: usize = 2;

/// Passes of an answer that is compared.
const COMPARED_PASSES: usize = 4;

#[derive(Debug, thiserror::Error)]
#[error(
    "its tokens aren't those of the first load at this level, whose weights and products are the same"
)]
struct OtherTokens;

/// What passes are measured with, and the results so far.
pub(super) struct Loads<'a> {
    pub(super) options: &'a Timing,
    pub(super) watch: &'a Watch<'a>,
    /// The bus's rate from pinned memory, measured in the same run.
    pub(super) link_bytes_per_s: Option<f64>,
    pub(super) deadline: Deadline,
    pub(super) failures: Failures<'a>,
    pub(super) report: &'a Report,
    pub(super) resident: HashMap<Level, Resident>,
}

/// The results at a level with all weights on the device, and what else was found there first.
#[derive(Debug, Default)]
pub(super) struct Resident {
    /// The tokens of the first load that answered.
    tokens: Option<Vec<u32>>,
    peak_bytes: u64,
    /// Seconds of a pass, by canvas.
    pass_s: HashMap<usize, f64>,
    /// Whether a budget had it streamed, and its shared requests were timed.
    is_shared: bool,
}

/// How to load a checkpoint.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load<'a> {
    pub(super) model: &'a Path,
    /// Folder for converted weights.
    pub(super) converted: &'a Path,
    pub(super) level: Level,
    pub(super) budget_bytes: Option<u64>,
    /// Whether the checkpoint is a container of compressed weights.
    pub(super) is_compressed: bool,
}

/// A loaded checkpoint.
struct Loaded<'a> {
    load: Load<'a>,
    engine: Engine,
    model: ModelId,
    /// The most bytes that plans so far allow.
    planned_bytes: u64,
}

impl Load<'_> {
    fn budget(&self) -> String {
        (self.budget_bytes).map_or_else(|| "none".to_owned(), units::bytes)
    }

    fn words(&self) -> String {
        match self.budget_bytes {
            Some(budget) => format!("{} within {}", self.level.name(), units::bytes(budget)),
            None => format!("{} without a budget", self.level.name()),
        }
    }
}

impl Loaded<'_> {
    /// Separate allocations, each of which the driver rounds up: none where weights lie side by side in the arena.
    fn allocations(&self) -> usize {
        let is_mapped = (self.engine.device().gpu()).is_some_and(|gpu| gpu.arena().is_some());
        match self.engine.in_force() {
            Some(now) if !is_mapped => now.plan.groups.len(),
            _ => 0,
        }
    }
}

impl Loads<'_> {
    pub(super) fn tell_header(&self) {
        eprintln!(
            "{:<10} {:>9} {:>6} {:>10} {:>10} {:>10} {:>10} {:>10} {:>5}  most held by plan, account and driver",
            "level",
            "budget",
            "canvas",
            "resident",
            "streamed",
            "pinned",
            "predicted",
            "measured",
            "share"
        );
    }

    /// Loads the checkpoint, runs passes of each canvas, and unloads it. The GPU stays open all the while, so its
    /// context is taken before and after.
    pub(super) fn load(&mut self, load: Load<'_>) {
        let Load {
            level,
            budget_bytes,
            ..
        } = load;
        let known = self.resident.get(&level);
        // A budget that the load without one never reached changes nothing, so its passes are not measured twice.
        if let (Some(budget), Some(resident)) = (budget_bytes, known)
            && resident.peak_bytes > 0
            && resident.peak_bytes <= budget
        {
            eprintln!("{:<10} {:>9} as without", level.name(), load.budget());
            let found = json!({
                "level": level.name(),
                "budget_bytes": budget,
                "as_without_budget": true,
            });
            self.report.add("loads", found);
            return;
        }
        let before = self.watch.free_bytes();
        self.watch.begin();
        let begun = Instant::now();
        let mut loaded = match self.watch.during(|| self.start(load)) {
            Ok(loaded) => loaded,
            Err(error) => {
                let mut what = load.words();
                if budget_bytes.is_some() {
                    let context = units::bytes(self.watch.context_bytes());
                    what += &format!(", of which the driver has {context}");
                }
                self.failures.add(&what, &error);
                return;
            }
        };
        let load_s = begun.elapsed().as_secs_f64();
        let load_peak_bytes = self.watch.most_held_bytes();
        // Not the budget itself: a load measures rates with buffers of its own before anything is planned.
        let load_budget = budget_bytes.map(|budget| self.watch.load_budget(budget));
        self.held("while it was loaded", load_budget, &loaded, load_peak_bytes);
        let mut passes = Vec::new();
        for &canvas in &self.options.canvas {
            if self.deadline.is_over() {
                break;
            }
            match self.passes(&mut loaded, canvas) {
                Ok(found) => passes.push(found),
                Err(error) => {
                    let what = format!("{}, canvas of {canvas}", load.words());
                    self.failures.add(&what, &error);
                }
            }
        }
        let planned_bytes = (self.watch).counted(loaded.planned_bytes, loaded.engine.device());
        let streamed = loaded
            .engine
            .in_force()
            .map(|now| now.plan.streamed_bytes());
        let resident = self.resident.entry(level).or_default();
        // The peak of a canvas that failed is not known.
        if streamed == Some(0) && passes.len() == self.options.canvas.len() {
            resident.peak_bytes = resident.peak_bytes.max(planned_bytes);
        }
        let is_equal = self.writes_the_same(&loaded);
        self.watch.begin();
        let requests = self.shared(&loaded);
        let most_bytes = self.watch.most_held_bytes();
        self.held("requests", budget_bytes, &loaded, most_bytes);
        let account = loaded.engine.memory();
        let with_model = self.watch.free_bytes();
        let allocations = loaded.allocations();
        loaded.engine.stop();
        drop(loaded);
        let after = self.watch.free_bytes();
        self.watch.begin_anew();
        let gpu = GpuMemory::new(before, with_model, after, &account, allocations);
        if let Some(gpu) = &gpu {
            gpu.tell();
            for fault in gpu.faults() {
                self.failures.add(&load.words(), &fault);
            }
        }
        let found = json!({
            "level": level.name(),
            "budget_bytes": budget_bytes,
            "load_s": load_s,
            "load_peak_driver_bytes": load_peak_bytes,
            "passes": passes,
            "same_tokens": is_equal,
            "requests": requests,
            "gpu": gpu.as_ref().map(GpuMemory::json),
        });
        self.report.add("loads", found);
    }

    /// Reports what exceeded the budget at the peak; how it compares with the plan is reported elsewhere.
    fn held(
        &mut self,
        what: &str,
        budget_bytes: Option<u64>,
        loaded: &Loaded<'_>,
        driver_bytes: Option<u64>,
    ) {
        let Loaded { load, engine, .. } = loaded;
        let measured = engine.in_force().map_or(0, |now| now.passes.peak_bytes);
        let account_bytes = self.watch.counted(measured, engine.device());
        let slack = self.watch.unplanned_bytes();
        for fault in over_budget(budget_bytes, account_bytes, driver_bytes, slack) {
            self.failures
                .add(&format!("{}, {what}", load.words()), &fault);
        }
    }

    fn start<'a>(&self, load: Load<'a>) -> Result<Loaded<'a>, EngineError> {
        let options = self.options;
        let parallel = (options.requests.iter().copied().max()).unwrap_or(PARALLEL_DEFAULT);
        let engine = Engine::start(EngineOptions {
            device: options.device.choice(),
            compute_dtype: options.compute_dtype.dtype(),
            parallel,
            // Those of the next count come while the engine still lets go of the last ones.
            queue_max: 2 * parallel,
            weight_cache: Some(load.converted.to_owned()),
            pinned_memory_limit_bytes: options
                .pinned_memory_limit
                .and_then(PinnedMemoryLimit::bytes),
            // Later budgets stream from the converted weights.
            keep_converted: !options.budgets.is_empty(),
            ..EngineOptions::default()
        })?;
        let settings = PlanSettings {
            level: load.level,
            budget: (load.budget_bytes)
                .map(|budget| self.watch.engine_budget(budget, engine.device()))
                .into(),
            ..PlanSettings::default()
        };
        let source = Source::Folder(load.model.to_owned());
        let model = engine.load_now(source, settings)?.id;
        Ok(Loaded {
            load,
            engine,
            model,
            planned_bytes: 0,
        })
    }

    fn passes(&mut self, loaded: &mut Loaded<'_>, canvas: usize) -> Result<Value, EngineError> {
        let allocations = loaded.allocations();
        let Loaded {
            load,
            engine,
            model,
            planned_bytes,
        } = loaded;
        let request = self.request(*model, canvas);
        let block = request.block_length;
        self.watch.begin();
        let warm = self
            .watch
            .during(|| engine.passes(request.clone(), WARM_UP))?;
        let workload = Work::Generate(request.clone()).workload();
        let mut reports = engine.passes(request, self.options.passes)?;
        // One more may have begun before it was cancelled.
        reports.truncate(self.options.passes);
        let PlanInForce {
            plan,
            passes: measured,
            ..
        } = engine.in_force().ok_or(EngineError::NoModel)?;
        let asked = engine.plan(&PlanOptions::default(), workload)?;
        // The peaks of ledger and driver may be from the plan before.
        *planned_bytes = (*planned_bytes).max(plan.weight_bytes() + asked.working.total_bytes());
        let counted = |bytes| self.watch.counted(bytes, engine.device());
        let plan_bytes = counted(*planned_bytes);
        let peak = Peak {
            budget_bytes: load.budget_bytes,
            plan_bytes,
            account_bytes: counted(measured.peak_bytes),
            driver_bytes: self.watch.most_held_bytes(),
            tolerance_bytes: tolerance_bytes(plan_bytes, allocations),
            unplanned_bytes: self.watch.unplanned_bytes(),
        };
        for fault in peak.faults() {
            let what = format!("{}, canvas of {canvas}", load.words());
            self.failures.add(&what, &fault);
        }
        let times = seconds(&reports);
        let median_s = median(&times);
        let streamed = reports.iter().map(|report| report.cost.streamed_bytes);
        let streamed_bytes = streamed.max().unwrap_or(0);
        let predicted_s = asked.pass.map(|pass| pass.total_s());
        let resident = self.resident.entry(load.level).or_default();
        if streamed_bytes == 0 {
            resident
                .pass_s
                .extend(median_s.map(|median_s| (canvas, median_s)));
        }
        let floors = Floors {
            bus_s: self
                .link_bytes_per_s
                .map(|rate| streamed_bytes as f64 / rate),
            resident_s: resident.pass_s.get(&canvas).copied(),
            planned_s: asked.pass.map(|pass| pass.compute_s),
        };
        let share = floors.longest_s().zip(median_s);
        let share = share
            .filter(|_| streamed_bytes > 0)
            .map(|(floor, median)| floor / median);
        let ms = |s: Option<f64>| {
            s.map_or_else(|| "unknown".to_owned(), |s| units::duration_ms(1000.0 * s))
        };
        eprintln!(
            "{:<10} {:>9} {canvas:>6} {:>10} {:>10} {:>10} {:>10} {:>10} {:>5}  {}",
            load.level.name(),
            load.budget(),
            units::bytes(plan.resident_bytes()),
            units::bytes(streamed_bytes),
            units::bytes(plan.pinned_bytes),
            ms(predicted_s),
            ms(median_s),
            share.map_or_else(String::new, |share| format!("{share:.2}")),
            peak.words(),
        );
        Ok(json!({
            "canvas": canvas,
            "block": block,
            "kv_cache": self.options.kv_cache.to_string(),
            "resident_bytes": plan.resident_bytes(),
            "streamed_bytes": streamed_bytes,
            "pinned_bytes": plan.pinned_bytes,
            "warm_up_s": seconds(&warm),
            "pass_s": times,
            "waited_s": reports.iter().map(|report| report.cost.waited.as_secs_f64()).collect::<Vec<_>>(),
            "rows": reports.iter().map(|report| report.rows).collect::<Vec<_>>(),
            "pass_median_s": median_s,
            "median_s_by_rows": by_rows(&reports),
            "pass_predicted_s": predicted_s,
            "floors": floors.json(),
            "streaming_efficiency": share,
            "peak": peak.json(),
        }))
    }

    /// Whether a short answer equals that of the first load at this level: the same weights in the same matmuls,
    /// wherever they come from. `None` where there is nothing to compare with. A copy that came too late or went to the
    /// wrong place would show here, at realistic sizes and times.
    fn writes_the_same(&mut self, loaded: &Loaded<'_>) -> Option<bool> {
        let canvas = *self.options.canvas.iter().min()?;
        // What is decompressed at load takes another matmul kernel than what is streamed compressed, so tokens may
        // differ.
        let level = loaded.load.level;
        if self.deadline.is_over() || (loaded.load.is_compressed && level != Level::Mild) {
            return None;
        }
        let request = self.request(loaded.model, canvas);
        let request = Generate {
            steps: COMPARED_PASSES.min(request.steps),
            ..request
        };
        let tokens = match loaded.engine.run(Work::Generate(request)) {
            Ok(Outcome::Generated(answer)) => answer.tokens,
            Ok(other) => unreachable!("asked to generate: {other:?}"),
            Err(error) => {
                self.failures
                    .add(&format!("{}, an answer", loaded.load.words()), &error);
                return None;
            }
        };
        let level = self.resident.entry(level).or_default();
        match &level.tokens {
            Some(first) => {
                let is_equal = *first == tokens;
                if !is_equal {
                    let what = format!("{}, an answer", loaded.load.words());
                    self.failures.add(&what, &OtherTokens);
                }
                Some(is_equal)
            }
            None => {
                level.tokens = Some(tokens);
                None
            }
        }
    }

    /// A request that fills one block at the canvas's end; with a KV cache, one that fills its second half.
    fn request(&self, model: ModelId, canvas: usize) -> Generate {
        let block = BLOCK.min(canvas);
        let length = match self.options.kv_cache.mode {
            KvCacheMode::None => block,
            _ => (canvas / 2 / block * block).max(block),
        };
        Generate {
            block_length: block,
            eos: EosPolicy::Suppress,
            decoding: Decoding {
                kv_cache: self.options.kv_cache,
                ..Decoding::default()
            },
            ..Generate::greedy(model, (1..=(canvas - length) as u32).collect(), length)
        }
    }

    /// Times requests that share passes, at the smallest budget that has a level streamed.
    fn shared(&mut self, loaded: &Loaded<'_>) -> Value {
        let is_streamed =
            (loaded.engine.in_force()).is_some_and(|now| now.plan.streamed_bytes() > 0);
        let level = self.resident.entry(loaded.load.level).or_default();
        let counts = &self.options.requests;
        if counts.is_empty() || !is_streamed || level.is_shared || self.deadline.is_over() {
            return Value::Null;
        }
        level.is_shared = true;
        let together = || shared::together(&loaded.engine, loaded.model, counts, self.deadline);
        match self.watch.during(together) {
            Ok(found) => found,
            Err(error) => {
                let what = format!("{}, requests", loaded.load.words());
                self.failures.add(&what, &error);
                Value::Null
            }
        }
    }
}

/// Lower bounds of a pass's time.
struct Floors {
    /// Copying the streamed bytes, at the bus's rate.
    bus_s: Option<f64>,
    /// The same pass with all weights on the GPU, measured, where they fit.
    resident_s: Option<f64>,
    /// The GPU's computing, by the plan.
    planned_s: Option<f64>,
}

impl Floors {
    /// The longest of them, measured rather than planned.
    fn longest_s(&self) -> Option<f64> {
        let gpu_s = self.resident_s.or(self.planned_s);
        self.bus_s.into_iter().chain(gpu_s).max_by(f64::total_cmp)
    }

    fn json(&self) -> Value {
        json!({
            "bus_s": self.bus_s,
            "gpu_s": self.resident_s.or(self.planned_s),
            "gpu_is_measured": self.resident_s.is_some(),
        })
    }
}

fn seconds(reports: &[PassReport]) -> Vec<f64> {
    let times = reports.iter().map(|report| report.cost.time.as_secs_f64());
    times.collect()
}

/// The median time of passes by how many rows they computed: with a KV cache, passes that compute the whole canvas take
/// longer than the others.
fn by_rows(reports: &[PassReport]) -> Vec<Value> {
    let mut rows: Vec<usize> = reports.iter().map(|report| report.rows).collect();
    rows.sort_unstable();
    rows.dedup();
    let of = |rows: usize| {
        let times = reports.iter().filter(|report| report.rows == rows);
        let times: Vec<f64> = times.map(|report| report.cost.time.as_secs_f64()).collect();
        json!({ "rows": rows, "passes": times.len(), "median_s": median(&times) })
    };
    rows.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_takes_at_least_what_takes_longest() {
        let floors = |bus_s, resident_s, planned_s| {
            Floors {
                bus_s,
                resident_s,
                planned_s,
            }
            .longest_s()
        };
        assert_eq!(floors(Some(2.0), Some(1.0), Some(9.0)), Some(2.0));
        assert_eq!(floors(Some(2.0), Some(3.0), Some(9.0)), Some(3.0));
        assert_eq!(floors(Some(2.0), None, Some(9.0)), Some(9.0));
        assert_eq!(floors(None, None, None), None);
    }
}
