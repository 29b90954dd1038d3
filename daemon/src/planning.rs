//! `sluiced plan`: what would live where, without a daemon and without loading anything.

use std::path::PathBuf;

use clap::{Arg, Args};
use sluice_checkpoint::{CheckpointError, family::PublishedShape};
use sluice_engine::runtime::{ModelOutline, machine};
use sluice_machine::default_budget;
use sluice_ops::device::{self, GpuUnavailable};
use sluice_proto::{model, v1};
use sluice_report as report;
use sluice_shared::{
    exit,
    options::{PlanOptions, PlanSettings},
};
use tonic_types::StatusExt;

use crate::{
    config::{ComputeDtype, Device, Threads},
    failure::Failure,
    model_name::ModelName,
    offline::print,
    synth::published_shapes,
    translate,
};

/// What `sluiced plan` was asked for.
#[derive(Debug, Args)]
#[command(mut_args(with_default))]
pub struct Planning {
    #[command(flatten)]
    subject: ModelChoice,

    /// What the plan is made from.
    #[command(flatten)]
    options: PlanOptions,

    /// Canvas length in tokens, prompt included [default: 256, or the model's context if it is shorter]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    canvas: Option<u32>,

    /// Block length: positions decoded together [default: 32]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    block: Option<u32>,

    /// Requests in a batch [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    requests: Option<u32>,

    /// Where to compute: auto, cpu, or cuda:N
    #[arg(long, value_name = "DEVICE", default_value_t = Device::Auto)]
    device: Device,

    /// Dtype that a GPU computes in: auto, f32, f16 or bf16
    #[arg(long, value_name = "DTYPE", default_value_t = ComputeDtype::Auto)]
    compute_dtype: ComputeDtype,

    /// Threads for computation [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<Threads>,

    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// An option of the plan with what holds where it is left out.
fn with_default(arg: Arg) -> Arg {
    let built_in = PlanOptions {
        budget: None,
        ..PlanSettings::default().into()
    };
    PlanOptions::with_default(arg, |name| {
        let value = built_in.values().find(|(known, _)| *known == name);
        value.map_or_else(
            || "free memory less a margin".to_owned(),
            |(_, value)| value,
        )
    })
}

/// Which model; one of the two.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct ModelChoice {
    /// Shape of a published model, with bf16 weights
    #[arg(long, value_name = "NAME", value_parser = published_shapes())]
    shape: Option<&'static PublishedShape>,

    /// Checkpoint: a Hugging Face folder, a .safetensors file in one, or a .gguf, .pth or .sluice file
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
        let workload = model::Workload::try_from(v1::Workload {
            canvas_length: self.canvas,
            block_length: self.block,
            batch_requests: self.requests,
        })?;
        let threads = self.threads.map_or(0, Threads::get);
        let opened =
            device::Device::open(self.device.choice(), self.compute_dtype.dtype(), threads)?;
        let device = opened.device;
        let memory = device.memory();
        let machine = machine(&device)?;
        let (name, outline) = match (self.subject.shape, &self.subject.model) {
            (Some(preset), _) => (
                preset.name.to_owned(),
                ModelOutline::of_published_shape(preset, machine),
            ),
            (None, Some(path)) => {
                let path = std::path::absolute(path).map_err(|cause| CheckpointError::Io {
                    path: path.clone(),
                    cause,
                })?;
                let model = ModelName::at(&path);
                let outline = ModelOutline::of_checkpoint(&model.source(), machine)?;
                (model.name, outline)
            }
            (None, None) => unreachable!("the command line requires one of the two"),
        };
        let settings = PlanSettings::from(self.options);
        let budget_bytes = settings.budget.bytes();
        let budget_bytes = budget_bytes.or_else(|| memory.free_bytes.map(default_budget));
        let workload = translate::plan::workload(workload, outline.context_length())?;
        let plan = outline.plan(settings, budget_bytes.unwrap_or(u64::MAX), workload)?;
        let mut plan = translate::plan::plan(&plan, &name);
        plan.notes
            .extend(device_note(&device, opened.gpu_unavailable));
        Ok(plan)
    }
}

/// The device that the plan is for, if the machine chose it or it is a GPU.
fn device_note(device: &device::Device, no_gpu: Option<GpuUnavailable>) -> Option<String> {
    if let Some(reason) = no_gpu {
        return Some(format!("for the CPU, since no GPU is usable: {reason}"));
    }
    let gpu = device.gpu()?;
    let number = device.dtype().name();
    Some(format!("for {}, which computes in {number}", gpu.name()))
}
