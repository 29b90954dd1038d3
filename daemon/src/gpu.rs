//! `sluiced gpu check` and `sluiced gpu bench`: one command each for whoever has a card that nobody has tried before. What is
//! done goes to standard error as it happens, the results as one JSON object to standard output.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use sluice_engine::{
    Change, Engine, EngineError, Generate, Options, Settings,
    check::{Check, Speed, fixture_logits, fixture_tokens, operations, speeds},
    checkpoint::Source,
    device::{self, Gpu as Card, Number},
    ledger::Ledger,
    model::shape::Shape,
    ops::Ops,
    plan::{BLOCK_DEFAULT, Machine, Plan, PlanError, Question, SourceTensor, Working, Workload},
};
use sluice_shared::{
    exit,
    level::{Choices, Level},
    sampling::EosPolicy,
    units,
};

use crate::config::{Compute, Device};

mod memory;

use memory::CardMemory;

/// What is to be done with a card.
#[derive(Debug, Subcommand)]
pub enum Gpu {
    /// Compare every operation with the CPU's, and small models with the reference implementations' outputs
    Check(Checking),

    /// Time copies, products, attention, and passes of a checkpoint
    Bench(Timing),
}

/// What is checked.
#[derive(Debug, Args)]
pub struct Checking {
    /// The card: cuda:N, or cpu to check the check
    #[arg(long, value_name = "DEVICE", default_value_t = Device::Cuda(0))]
    device: Device,

    /// Check this number alone: f32, f16 or bf16 [default: all that the card has]
    #[arg(long, value_name = "NUMBER")]
    compute: Option<Compute>,

    /// Folder of the reference's outputs, daemon/engine/tests/fixtures of the source; without it,
    /// operations alone are checked
    #[arg(long, value_name = "DIR")]
    fixtures: Option<PathBuf>,

    /// Seed of the random inputs
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// What is timed.
#[derive(Debug, Args)]
pub struct Timing {
    /// The card: cuda:N, or cpu to compare with
    #[arg(long, value_name = "DEVICE", default_value_t = Device::Cuda(0))]
    device: Device,

    /// What to compute in: auto, f32, f16 or bf16
    #[arg(long, value_name = "NUMBER", default_value_t = Compute::Auto)]
    compute: Compute,

    /// Checkpoint whose passes are timed; `sluiced synth --preset llada-8b DIR` makes one
    #[arg(long, value_name = "DIR|FILE")]
    model: Option<PathBuf>,

    /// Level to load it at
    #[arg(long, value_name = "LEVEL", default_value_t = Level::Standard)]
    level: Level,

    /// Canvases to time
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [128, 512])]
    canvas: Vec<usize>,

    /// Passes of each
    #[arg(long, value_name = "N", default_value_t = 8)]
    passes: usize,

    /// Leave out single operations
    #[arg(long)]
    only_passes: bool,
}

/// Does it, and returns the exit code: 1 where something is wrong.
#[must_use]
pub fn run(options: &Gpu) -> u8 {
    let done = match options {
        Gpu::Check(options) => options.check(),
        Gpu::Bench(options) => options.bench(),
    };
    match done {
        Ok((report, is_right)) => {
            let written = writeln!(io::stdout(), "{report:#}");
            match written.is_ok() && is_right {
                true => exit::OK,
                false => exit::FAILURE,
            }
        }
        Err(error) => {
            eprintln!("sluiced: {error}");
            if let EngineError::NoCard(unavailable) = &error {
                eprintln!("hint: {}", unavailable.hint());
            }
            exit::FAILURE
        }
    }
}

fn open(device: Device, number: Option<Number>) -> Result<device::Device, EngineError> {
    Ok(device::Device::open(device.choice(), number, 0)?.device)
}

/// What is known of the device, for the report.
fn about(device: &device::Device) -> Value {
    let Some(card) = device.gpu() else {
        return json!({ "kind": "cpu", "threads": device.threads() });
    };
    let facts = card.facts();
    let version = |(major, minor): (u32, u32)| format!("{major}.{minor}");
    json!({
        "kind": "cuda",
        "name": facts.name,
        "capability": version(facts.capability),
        "driver": facts.driver_version,
        "cuda": version(facts.cuda_version),
        "blas": card.blas().map(|blas| blas.name().to_owned()),
        "total_bytes": facts.total_bytes,
        "context_bytes": card.context_bytes(),
        "multiprocessors": facts.multiprocessors,
    })
}

impl Checking {
    fn check(&self) -> Result<(Value, bool), EngineError> {
        let device = open(self.device, None)?;
        let numbers: Vec<Number> = match self.compute.and_then(Compute::number) {
            Some(number) => vec![number],
            None => {
                let has_bf16 = device.gpu().is_none_or(|card| card.facts().has_bf16);
                let is_there = |number: &Number| has_bf16 || *number != Number::Bf16;
                Number::ALL.into_iter().filter(is_there).collect()
            }
        };
        // Known now, it is told whatever becomes of the card.
        let device = about(&device);
        let mut runs = Vec::new();
        let mut failed = 0;
        for number in numbers {
            let checks = self.checks(number);
            failed += checks.iter().filter(|check| !check.passes()).count();
            let checks: Vec<Value> = checks.iter().map(check_json).collect();
            runs.push(json!({ "compute": number.name(), "checks": checks }));
            if self.device == Device::Cpu {
                // It computes in one number only.
                break;
            }
        }
        eprintln!("{failed} checks failed");
        let report = json!({ "device": device, "failed": failed, "runs": runs });
        Ok((report, failed == 0))
    }

    /// All that is checked in a number. What can't be is a check that failed, and others go on.
    fn checks(&self, number: Number) -> Vec<Check> {
        let mut checks = Vec::new();
        let device = match open(self.device, Some(number)) {
            Ok(device) => device,
            Err(error) => {
                let check = Check::failed("the device", &error);
                tell(number, &check);
                return vec![check];
            }
        };
        match operations(&device, self.seed, &mut |check| tell(number, check)) {
            Ok(found) => checks.extend(found),
            Err(error) => {
                let check = Check::failed("operations", &error);
                tell(number, &check);
                checks.push(check);
            }
        }
        let names = ["llada-tiny", "llada-tiny-bf16"];
        for folder in names
            .iter()
            .filter_map(|name| Some(self.fixtures.as_ref()?.join(name)))
        {
            let mut found = Vec::new();
            if let Err(error) = self.fixture(&folder, &device, &mut found) {
                found.push(Check::failed(
                    format!("{}, the rest", folder.display()),
                    &error,
                ));
            }
            found.iter().for_each(|check| tell(number, check));
            checks.extend(found);
        }
        checks
    }

    fn fixture(
        &self,
        folder: &Path,
        device: &device::Device,
        checks: &mut Vec<Check>,
    ) -> Result<(), EngineError> {
        // With the embedding on the card, and without.
        for level in [Level::Off, Level::Standard] {
            let ops = Ops::new(device.clone(), Ledger::default())?;
            let plan =
                |shape: &Shape, sources: &[_]| resident(shape, sources, level, device).map(Some);
            checks.extend(fixture_logits(folder, &ops, &plan)?);
        }
        if device.number() != Number::F32 {
            // What the references computed in is `f32`; other numbers choose other tokens now and then.
            return Ok(());
        }
        let options = Options {
            device: self.device.choice(),
            number: Some(Number::F32),
            ..Options::default()
        };
        checks.extend(fixture_tokens(folder, options)?);
        Ok(())
    }
}

fn resident(
    shape: &Shape,
    sources: &[SourceTensor],
    level: Level,
    device: &device::Device,
) -> Result<Plan, PlanError> {
    Plan::new(&Question {
        shape,
        sources,
        choices: Choices::from(level),
        budget_bytes: u64::MAX,
        workload: Workload::new(shape.context_length.min(16), BLOCK_DEFAULT, 1),
        working: Working::default(),
        machine: &Machine::unmeasured(device.profile(), 0),
    })
}

fn tell(number: Number, check: &Check) {
    let verdict = if check.passes() { "ok" } else { "WRONG" };
    eprintln!(
        "{:<5} {:<5} {:<60} {:.1e} of {:.1e}",
        verdict,
        number.name(),
        check.name,
        check.error,
        check.tolerance
    );
    if let Some(cause) = &check.cause {
        eprintln!("      {cause}");
    }
}

fn check_json(check: &Check) -> Value {
    json!({
        "name": check.name,
        // JSON has no word for what is not a number.
        "error": check.error.is_finite().then_some(check.error),
        "tolerance": check.tolerance,
        "passes": check.passes(),
        "cause": check.cause,
    })
}

impl Timing {
    fn bench(&self) -> Result<(Value, bool), EngineError> {
        let device = open(self.device, self.compute.number())?;
        let about = about(&device);
        let link = device.gpu().map(Card::measure_rates).transpose()?;
        let link = link.map(|link| {
            json!({
                "pinned_to_device_bytes_per_s": link.pinned_to_device,
                "pageable_to_device_bytes_per_s": link.pageable_to_device,
                "device_copy_bytes_per_s": link.device_copy,
            })
        });
        let operations = match self.only_passes {
            true => Vec::new(),
            false => speeds(&device, &mut tell_speed)?,
        };
        let operations: Vec<Value> = operations.iter().map(speed_json).collect();
        let mut passes = Vec::new();
        let mut is_right = true;
        if let Some(model) = &self.model {
            for &canvas in &self.canvas {
                let (report, memory) = self.passes(model, canvas, &device)?;
                passes.push(report);
                is_right &= memory.is_none_or(|memory| memory.agrees());
            }
        }
        let report = json!({
            "device": about,
            "compute": device.number().name(),
            "link": link,
            "operations": operations,
            "passes": passes,
        });
        Ok((report, is_right))
    }

    /// Loads the checkpoint, runs some passes, and unloads it again. `device` stays open all the while: what its context takes
    /// is taken before and after.
    fn passes(
        &self,
        model: &Path,
        canvas: usize,
        device: &device::Device,
    ) -> Result<(Value, Option<CardMemory>), EngineError> {
        let free = || device.gpu().and(device.memory().free_bytes);
        let before = free();
        let engine = Engine::start(Options {
            device: self.device.choice(),
            number: self.compute.number(),
            ..Options::default()
        })?;
        let settings = Settings {
            level: self.level,
            ..Settings::default()
        };
        let begun = std::time::Instant::now();
        let loaded = engine
            .load_now(Source::Folder(model.to_owned()), settings)?
            .id;
        let load_s = begun.elapsed().as_secs_f64();
        let block = 32.min(canvas);
        let workload = Workload::new(canvas, block, 1);
        let plan = engine.plan(&Change::default(), workload)?;
        let prompt = (1..=(canvas - block) as u32).collect();
        let request = Generate {
            eos: EosPolicy::Suppress,
            ..Generate::greedy(loaded, prompt, block)
        };
        let reports = engine.passes(request, self.passes)?;
        let times: Vec<f64> = reports
            .iter()
            .map(|report| report.cost.time.as_secs_f64())
            .collect();
        let (memory, with_model) = (engine.memory(), free());
        let allocations = plan.units.len();
        engine.stop();
        drop(engine);
        let after = free();
        let card = CardMemory::new(before, with_model, after, &memory, allocations);
        card.iter().for_each(CardMemory::tell);
        // The first passes compile kernels and touch memory.
        let mut later: Vec<f64> = times.iter().skip(times.len().min(2)).copied().collect();
        later.sort_by(f64::total_cmp);
        let median = later.get(later.len() / 2).copied();
        eprintln!(
            "canvas {canvas}: {} a pass, {} held at most of {} predicted",
            median.map_or("unknown".to_owned(), |s| units::duration_ms(1000.0 * s)),
            units::bytes(memory.peak_bytes),
            units::bytes(plan.peak_bytes()),
        );
        let report = json!({
            "canvas": canvas,
            "block": block,
            "level": self.level.name(),
            "load_s": load_s,
            "pass_s": times,
            "pass_median_s": median,
            "pass_predicted_s": plan.pass.map(|pass| pass.total_s()),
            "peak_bytes": memory.peak_bytes,
            "peak_predicted_bytes": plan.peak_bytes(),
            "card": card.as_ref().map(CardMemory::json),
        });
        Ok((report, card))
    }
}

fn tell_speed(speed: &Speed) {
    eprintln!(
        "{:<50} {:>10}  {:>8.2} TFLOP/s  {:>8.1} GB/s",
        speed.name,
        units::duration_ms(1000.0 * speed.seconds),
        speed.operations / speed.seconds / 1e12,
        speed.bytes / speed.seconds / 1e9
    );
}

fn speed_json(speed: &Speed) -> Value {
    json!({
        "name": speed.name,
        "seconds": speed.seconds,
        "operations_per_s": speed.operations / speed.seconds,
        "bytes_per_s": speed.bytes / speed.seconds,
    })
}
