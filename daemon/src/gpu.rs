//! `sluiced gpu check` and `sluiced gpu bench`: one command each for whoever has a card that nobody has tried before. What is
//! done goes to standard error as it happens, the results as one JSON object to standard output.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    sync::mpsc,
};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use sluice_engine::{
    Change, Engine, EngineError, Event, Generate, LoadEvent, Options, Settings, Slot, Work,
    check::{Check, Speed, fixture_logits, fixture_tokens, operations, speeds},
    checkpoint::Source,
    device::{self, Gpu as Card, Number},
    ledger::Ledger,
    model::shape::Shape,
    ops::Ops,
    plan::{Machine, Plan, Question, SourceTensor, Working, Workload},
};
use sluice_shared::{
    exit,
    level::{Choices, Level},
    policy::PolicyChoice,
    sampling::{EosPolicy, Remasking, Sampling},
    units,
};

use crate::config::{Compute, Device};

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
        let numbers: Vec<Number> = match self.compute.and_then(Compute::number) {
            Some(number) => vec![number],
            None => {
                let device = open(self.device, None)?;
                let has_bf16 = device.gpu().is_none_or(|card| card.facts().has_bf16);
                let is_there = |number: &Number| has_bf16 || *number != Number::Bf16;
                Number::ALL.into_iter().filter(is_there).collect()
            }
        };
        let mut runs = Vec::new();
        let mut failed = 0;
        for number in numbers {
            let device = open(self.device, Some(number))?;
            let mut checks = operations(&device, self.seed, &mut |check| tell(number, check))?;
            // What the references computed in is `f32`; other numbers choose other tokens now and then.
            if let (Some(folder), Number::F32) = (&self.fixtures, number) {
                for name in ["llada-tiny", "llada-tiny-bf16"] {
                    let found = self.fixture(&folder.join(name), &device)?;
                    found.iter().for_each(|check| tell(number, check));
                    checks.extend(found);
                }
            }
            failed += checks.iter().filter(|check| !check.passes()).count();
            let checks: Vec<Value> = checks.iter().map(check_json).collect();
            runs.push(json!({ "compute": number.name(), "checks": checks }));
            if device.gpu().is_none() {
                // The CPU computes in one number only.
                break;
            }
        }
        let device = about(&open(self.device, None)?);
        eprintln!("{failed} checks failed");
        let report = json!({ "device": device, "failed": failed, "runs": runs });
        Ok((report, failed == 0))
    }

    fn fixture(&self, folder: &Path, device: &device::Device) -> Result<Vec<Check>, EngineError> {
        let mut checks = Vec::new();
        // With the embedding on the card, and without.
        for level in [Level::Off, Level::Standard] {
            let ops = Ops::new(device.clone(), Ledger::default())?;
            let plan = |shape: &Shape, sources: &[_]| resident(shape, sources, level, device);
            checks.extend(fixture_logits(folder, &ops, &plan)?);
        }
        let options = Options {
            device: self.device.choice(),
            number: Some(Number::F32),
            ..Options::default()
        };
        checks.extend(fixture_tokens(folder, options)?);
        Ok(checks)
    }
}

fn resident(
    shape: &Shape,
    sources: &[SourceTensor],
    level: Level,
    device: &device::Device,
) -> Option<Plan> {
    let plan = Plan::new(&Question {
        shape,
        sources,
        choices: Choices::from(level),
        budget_bytes: u64::MAX,
        workload: Workload {
            canvas: shape.context_length.min(16),
            ..Workload::default()
        },
        working: Working::default(),
        machine: &Machine::unmeasured(device.profile(), 0),
    });
    plan.ok()
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
}

fn check_json(check: &Check) -> Value {
    json!({
        "name": check.name,
        // JSON has no word for what is not a number.
        "error": check.error.is_finite().then_some(check.error),
        "tolerance": check.tolerance,
        "passes": check.passes(),
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
        let number = device.number();
        drop(device);
        let mut passes = Vec::new();
        if let Some(model) = &self.model {
            for &canvas in &self.canvas {
                passes.push(self.passes(model, canvas)?);
            }
        }
        let report = json!({
            "device": about,
            "compute": number.name(),
            "link": link,
            "operations": operations,
            "passes": passes,
        });
        Ok((report, true))
    }

    /// Loads the checkpoint, runs some passes, and unloads it again.
    fn passes(&self, model: &Path, canvas: usize) -> Result<Value, EngineError> {
        let free = || -> Result<Option<u64>, EngineError> {
            Ok(open(self.device, self.compute.number())?
                .memory()
                .free_bytes)
        };
        let before = free()?;
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
        let loaded = load(&engine, model, settings)?;
        let load_s = begun.elapsed().as_secs_f64();
        let block = 32.min(canvas);
        let workload = Workload {
            canvas,
            block,
            requests: 1,
        };
        let plan = engine.plan(&Change::default(), workload)?;
        let times = generate(&engine, loaded, canvas, block, self.passes)?;
        let (memory, card_free) = (engine.memory(), engine.device().memory().free_bytes);
        engine.stop();
        drop(engine);
        let after = free()?;
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
        Ok(json!({
            "canvas": canvas,
            "block": block,
            "level": self.level.name(),
            "load_s": load_s,
            "pass_s": times,
            "pass_median_s": median,
            "pass_predicted_s": plan.pass.map(|pass| pass.total_s()),
            "peak_bytes": memory.peak_bytes,
            "peak_predicted_bytes": plan.peak_bytes(),
            "free_before_bytes": before,
            "free_with_model_bytes": card_free,
            "free_after_unload_bytes": after,
        }))
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

fn load(
    engine: &Engine,
    model: &Path,
    settings: Settings,
) -> Result<sluice_engine::ModelId, EngineError> {
    let (send, receive) = mpsc::channel();
    let report = Box::new(move |event| {
        if let LoadEvent::Finished(result) = event {
            drop(send.send(result));
        }
    });
    engine.load(Source::Folder(model.to_owned()), settings, report);
    let finished = receive.recv().map_err(|_| EngineError::Stopped)?;
    finished.map(|loaded| loaded.id)
}

/// Seconds of each of so many passes.
fn generate(
    engine: &Engine,
    model: sluice_engine::ModelId,
    canvas: usize,
    block: usize,
    passes: usize,
) -> Result<Vec<f64>, EngineError> {
    let (send, events) = mpsc::channel();
    let sink = Box::new(move |event| drop(send.send(event)));
    let prompt = canvas - block;
    let request = Generate {
        model,
        prompt: (1..=prompt as u32).collect(),
        canvas: vec![Slot::Masked; block],
        block_length: block,
        steps: block,
        temperature: 0.0,
        guidance: 0.0,
        remasking: Remasking::LowConfidence,
        eos: EosPolicy::Suppress,
        policy: PolicyChoice::default(),
        sampling: Sampling::default(),
        stops: Vec::new(),
        seed: 1,
    };
    let ticket = engine.submit(Work::Generate(request), sink)?;
    let mut times = Vec::new();
    for event in events {
        match event {
            Event::Pass(report) => {
                times.push(report.pass_time.as_secs_f64());
                if times.len() == passes {
                    engine.cancel(ticket);
                }
            }
            Event::Finished(result) => {
                result?;
                break;
            }
            _ => {}
        }
    }
    Ok(times)
}
