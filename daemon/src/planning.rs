//! `sluiced plan`: what would live where, without a daemon and without loading anything.

use std::path::PathBuf;

use clap::Args;
use sluice_checkpoint::{CheckpointError, family::Preset};
use sluice_engine::engine::{Outline, machine};
use sluice_machine::default_budget;
use sluice_ops::device::{self, Unavailable};
use sluice_proto::{model, v1};
use sluice_report as report;
use sluice_shared::{
    exit,
    level::{AUTO_FACTOR, Embedding, Kv, Level, parse_auto_factor},
    settings::Settings,
};
use tonic_types::StatusExt;

use crate::{
    config::{Budget, Compute, Device, Threads},
    failure::Failure,
    model_name::ModelName,
    offline::print,
    synth::presets,
    translate,
};

/// What `sluiced plan` was asked for.
#[derive(Debug, Args)]
pub struct Planning {
    #[command(flatten)]
    subject: Subject,

    /// How faithful weights are: off, standard, mild, moderate, aggressive or auto
    #[arg(long, value_name = "LEVEL", default_value_t = Level::Standard)]
    level: Level,

    /// Most memory to use, such as 4GiB [default: what is free, less a margin]
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    budget: Option<Budget>,

    /// Where the embedding's rows are: host, device, or auto for the host at all levels but off
    #[arg(long, value_name = "PLACE", default_value_t = Embedding::Auto)]
    embedding: Embedding,

    /// How many times as long as at the fastest level a pass may take at level auto
    #[arg(
        long,
        value_name = "FACTOR",
        value_parser = parse_auto_factor,
        default_value_t = AUTO_FACTOR,
        allow_negative_numbers = true
    )]
    auto_factor: f64,

    /// How a causal model's keys and values are kept: f32, bf16, q8_0, or auto for bf16, on a card for what it computes in
    #[arg(long, value_name = "FORMAT", default_value_t = Kv::Auto)]
    kv: Kv,

    /// Positions of a canvas, prompt included [default: 256, or the model's context if less]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    canvas: Option<u32>,

    /// Positions decoded together [default: 32]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    block: Option<u32>,

    /// Requests that share a pass [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    requests: Option<u32>,

    /// Where to compute: auto, cpu, or cuda:N
    #[arg(long, value_name = "DEVICE", default_value_t = Device::Auto)]
    device: Device,

    /// What a card computes in: auto, f32, f16 or bf16
    #[arg(long, value_name = "NUMBER", default_value_t = Compute::Auto)]
    compute: Compute,

    /// Threads that compute [default: one a core]
    #[arg(long, value_name = "N")]
    threads: Option<Threads>,

    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Which model; one of the two.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Subject {
    /// Shape of a published model, stored in bf16
    #[arg(long, value_name = "NAME", value_parser = presets())]
    preset: Option<&'static Preset>,

    /// Checkpoint: a Hugging Face folder, a .safetensors file in one, or a .gguf or .sluice file
    #[arg(long, value_name = "DIR|FILE")]
    model: Option<PathBuf>,
}

/// Prints the plan, and returns the exit code.
#[must_use]
pub fn run(options: &Planning) -> u8 {
    let plan = match options.plan() {
        Ok(plan) => plan,
        Err(failure) => {
            eprintln!("sluiced: {failure}");
            let status = tonic::Status::from(&failure);
            let hint = status.get_details_error_info();
            if let Some(hint) = hint.and_then(|mut info| info.metadata.remove("hint")) {
                eprintln!("hint: {hint}");
            }
            return match failure {
                Failure::Field(_) => exit::USAGE,
                _ => exit::FAILURE,
            };
        }
    };
    let text = match options.json {
        true => serde_json::to_string(&plan).expect("a plan has text for keys"),
        false => report::plan::lines(&plan).join("\n"),
    };
    match print(&(text + "\n")) {
        Ok(()) => exit::OK,
        Err(error) => {
            eprintln!("sluiced: {error}");
            exit::FAILURE
        }
    }
}

impl Planning {
    fn plan(&self) -> Result<v1::Plan, Failure> {
        // Checked as if it had come over the wire: the rules stand in one place.
        let asked = model::Planning::try_from(v1::PlanRequest {
            canvas: self.canvas,
            block: self.block,
            requests: self.requests,
            ..Default::default()
        })?;
        let threads = self.threads.map_or(0, Threads::get);
        let opened = device::Device::open(self.device.choice(), self.compute.number(), threads)?;
        let device = opened.device;
        let memory = device.memory();
        let machine = machine(&device)?;
        let (name, outline) = match (self.subject.preset, &self.subject.model) {
            (Some(preset), _) => (preset.name.to_owned(), Outline::of_preset(preset, machine)),
            (None, Some(path)) => {
                let path = std::path::absolute(path).map_err(|cause| CheckpointError::Io {
                    path: path.clone(),
                    cause,
                })?;
                let model = ModelName::at(&path);
                let outline = Outline::of_checkpoint(&model.source(), machine)?;
                (model.name, outline)
            }
            (None, None) => unreachable!("the command line requires one of the two"),
        };
        let settings = Settings {
            level: self.level,
            budget_bytes: self.budget.and_then(Budget::bytes),
            embedding: self.embedding,
            auto_factor: self.auto_factor,
            kv: self.kv,
        };
        let budget_bytes = settings.budget_bytes;
        let budget_bytes = budget_bytes.or_else(|| memory.free_bytes.map(default_budget));
        let workload = translate::plan::workload(&asked, outline.context_length())?;
        let plan = outline.plan(settings, budget_bytes.unwrap_or(u64::MAX), workload)?;
        let mut plan = translate::plan::plan(&plan, &name);
        plan.notes.extend(planned_for(&device, opened.no_card));
        Ok(plan)
    }
}

/// What the plan is for, where that was left to the machine or is a card.
fn planned_for(device: &device::Device, no_card: Option<Unavailable>) -> Option<String> {
    if let Some(reason) = no_card {
        return Some(format!("for the CPU, since no card can be used: {reason}"));
    }
    let gpu = device.gpu()?;
    let number = device.number().name();
    Some(format!("for {}, which computes in {number}", gpu.name()))
}
