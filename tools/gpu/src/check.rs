//! Whether a GPU computes right, and frees what it took.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use sluice_daemon::config::{ComputeDtype, Device};
use sluice_engine::{
    EngineError, EngineOptions,
    check::{CheckResult, fixture_latents, fixture_logits, fixture_tokens, resident, streamed},
};
use sluice_formats::DType;
use sluice_ops::{Ops, device, ledger::Ledger};
use sluice_plan::{ExpertSplit, Plan, PlanError};
use sluice_shared::level::Level;
use sluice_weights::{Shape, SourceTensor};

use super::{Deadline, Found, Limit, Report, about, open, operations, requests::Requests};

/// The fixtures that every device is checked with: models with many heads, with grouped heads in bf16 and two files,
/// with an autoregressive mask, with biases and shifted logits, with states, with windows and latents, of blocks, and
/// mixtures of experts with each of the routers.
const FIXTURES: [&str; 14] = [
    "llada-tiny",
    "llada-tiny-bf16",
    "llama-tiny",
    "dream-tiny",
    "rwkv7-tiny",
    "ltm-tiny",
    "sdar-tiny",
    "fast-dllm-v2-tiny",
    "nemotron-ld-tiny",
    "qwen3-moe-tiny",
    "llada-moe-tiny",
    "llada2-tiny",
    "rnd1-tiny",
    "diffusion-gemma-tiny",
];

/// What is checked.
#[derive(Debug, Args)]
pub struct Checking {
    /// Device: cuda:N, or cpu to check the check
    #[arg(long, value_name = "DEVICE", default_value_t = Device::Cuda(0))]
    device: Device,

    /// Check this dtype alone: f32, f16 or bf16 [default: all that the GPU has]
    #[arg(long, value_name = "DTYPE")]
    compute_dtype: Option<ComputeDtype>,

    /// Folder of the reference's outputs, daemon/engine/tests/fixtures of the source; without it,
    /// no whole model is compared
    #[arg(long, value_name = "DIR")]
    fixtures: Option<PathBuf>,

    /// Answer so many short requests, after which the card must have as much free memory as before
    #[arg(long, value_name = "N")]
    requests: Option<usize>,

    /// Leave out single operations
    #[arg(long)]
    no_operations: bool,

    /// Seed of the random inputs
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    limit: Limit,
}

/// Pinned memory for some, but not all, of a small model's weights.
const SOME_PINNED_BYTES: u64 = 100_000;

/// Where the weights of a checked model are.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// On the device; the level says whether the embedding is there, too.
    Resident(Level),
    /// As few on the device as possible, with so many bytes kept in pinned memory.
    Streamed(u64),
    /// The same with all of them kept there, and the CPU computes most experts of a mixture.
    CpuExperts,
}

const PLACES: [(&str, Place); 6] = [
    ("resident", Place::Resident(Level::Off)),
    ("embedding on the host", Place::Resident(Level::Standard)),
    ("streamed", Place::Streamed(u64::MAX)),
    ("streamed, some read", Place::Streamed(SOME_PINNED_BYTES)),
    ("streamed, all read", Place::Streamed(0)),
    ("experts by the CPU", Place::CpuExperts),
];

impl Place {
    fn plan(
        self,
        device: &device::Device,
        shape: &Shape,
        sources: &[SourceTensor],
    ) -> Result<Option<Plan>, PlanError> {
        let profile = device.profile();
        let streamed = |pinned| streamed(profile, shape, sources, Level::Standard, pinned);
        Ok(match self {
            Self::Resident(level) => Some(resident(profile, shape, sources, level)?),
            Self::Streamed(pinned) => Some(streamed(pinned)?),
            // Nothing else is checked by it.
            Self::CpuExperts if shape.mixture().is_none() || !device.is_gpu() => None,
            Self::CpuExperts => Some(Plan {
                cpu_experts: Some(ExpertSplit {
                    on_gpu: 2,
                    rows_max: usize::MAX,
                }),
                ..streamed(u64::MAX)?
            }),
        })
    }
}

/// The checks of one dtype, reported as they are made.
struct Run<'a> {
    number: DType,
    report: &'a Report,
    failed: usize,
}

impl Run<'_> {
    fn add(&mut self, check: &CheckResult) {
        tell(self.number, check);
        let mut told = check_json(check);
        told["compute"] = json!(self.number.name());
        self.report.add("checks", told);
        self.failed += usize::from(!check.passes());
        self.report.set("failed", json!(self.failed));
    }

    /// Adds what was found; what cannot be computed is a check that failed.
    fn add_all(&mut self, what: String, found: Result<Vec<CheckResult>, EngineError>) {
        match found {
            Ok(checks) => checks.iter().for_each(|check| self.add(check)),
            Err(error) => self.add(&CheckResult::failed(what, &error)),
        }
    }
}

impl Checking {
    pub(super) fn check(&self, report: &Report) -> Found {
        let deadline = self.limit.deadline();
        let device = open(self.device, None)?;
        let numbers: Vec<DType> = match self.compute_dtype.and_then(ComputeDtype::dtype) {
            Some(number) => vec![number],
            None => {
                let has_bf16 = device.gpu().is_none_or(|gpu| gpu.properties().has_bf16);
                let is_there = |number: &DType| has_bf16 || *number != DType::Bf16;
                DType::ALL.into_iter().filter(is_there).collect()
            }
        };
        // Reported before the checks: it is known whatever becomes of the GPU.
        report.set("device", about(&device));
        report.set("checks", json!([]));
        let mut run = Run {
            number: device.dtype(),
            report,
            failed: 0,
        };
        for number in numbers {
            run.number = number;
            self.check_number(&mut run, deadline);
            if self.device == Device::Cpu {
                // The CPU computes in `f32` only.
                break;
            }
        }
        if let Some(count) = self.requests
            && !deadline.is_over()
        {
            let number = self.compute_dtype.and_then(ComputeDtype::dtype);
            let requests = Requests::new(count, self.device.choice(), number);
            run.number = device.dtype();
            eprintln!("answering {count} requests");
            let (moments, checks) = requests.answer(&device, deadline);
            report.set("requests", moments);
            checks.iter().for_each(|check| run.add(check));
        }
        let stopped = deadline.is_over();
        let failed = run.failed;
        eprintln!(
            "{failed} checks failed{}",
            if stopped { ", the time was up" } else { "" }
        );
        report.set("stopped", json!(stopped));
        Ok(failed == 0)
    }

    /// All checks in one dtype.
    fn check_number(&self, run: &mut Run<'_>, deadline: Deadline) {
        let device = match open(self.device, Some(run.number)) {
            Ok(device) => device,
            Err(error) => return run.add(&CheckResult::failed("the device", &error)),
        };
        if !self.no_operations && !deadline.is_over() {
            let told = &mut |check: &CheckResult| run.add(check);
            if let Err(error) = operations(&device, self.seed, told) {
                run.add(&CheckResult::failed("operations", &error));
            }
        }
        for name in FIXTURES {
            if let Some(fixtures) = &self.fixtures {
                self.fixture(&fixtures.join(name), &device, run, deadline);
            }
        }
    }

    fn fixture(
        &self,
        folder: &Path,
        device: &device::Device,
        run: &mut Run<'_>,
        deadline: Deadline,
    ) {
        for (name, place) in PLACES {
            if deadline.is_over() {
                return;
            }
            let plan = |shape: &Shape, sources: &[_]| place.plan(device, shape, sources);
            for compare in [fixture_logits, fixture_latents] {
                // A fresh ledger each time: nothing is left over from the one before.
                let found = Ops::new(device.clone(), Ledger::default())
                    .map_err(EngineError::from)
                    .and_then(|ops| compare(folder, &ops, &plan));
                let found = found.map(|checks| checks.into_iter().map(|check| named(check, name)));
                run.add_all(
                    format!("{}, {name}", folder.display()),
                    found.map(Iterator::collect),
                );
            }
        }
        if device.dtype() != DType::F32 {
            // The references were computed in `f32`; rounding to 16 bits changes a token now and then.
            return;
        }
        if deadline.is_over() {
            return;
        }
        let options = EngineOptions {
            device: self.device.choice(),
            compute_dtype: Some(DType::F32),
            ..EngineOptions::default()
        };
        run.add_all(
            folder.display().to_string(),
            fixture_tokens(folder, options),
        );
    }
}

fn named(check: CheckResult, place: &str) -> CheckResult {
    CheckResult {
        name: format!("{}, {place}", check.name),
        ..check
    }
}

fn tell(number: DType, check: &CheckResult) {
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

fn check_json(check: &CheckResult) -> Value {
    json!({
        "name": check.name,
        // JSON has no value for NaN.
        "error": check.error.is_finite().then_some(check.error),
        "tolerance": check.tolerance,
        "passes": check.passes(),
        "cause": check.cause,
    })
}
