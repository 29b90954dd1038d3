//! `sluiced plan`: what would live where, without a daemon and without loading anything.

mod published;

use std::path::PathBuf;

use clap::{Arg, Args};
use sluice_checkpoint::{CheckpointError, family::PublishedShape};
use sluice_engine::runtime::{ModelOutline, machine};
use sluice_machine::default_budget;
use sluice_ops::{
    CommonMemory,
    device::{self, GpuUnavailable},
};
use sluice_plan::Machine;
use sluice_proto::{model, v1};
use sluice_report as report;
use sluice_shared::{
    exit,
    options::{PlanOptions, PlanSettings},
};
use tonic_types::StatusExt;

use self::published::Terms;
use crate::{
    config::{ComputeDtype, Device, InstructionsChoice, LoadedModelsMax, Threads},
    failure::Failure,
    learned_experts,
    model_name::ModelName,
    offline::print,
    synth::published_shapes,
    together::{CommonBudget, OutlinedModel},
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

    /// Models that may be loaded at once, of several: as the daemon's setting
    #[arg(long, value_name = "N", default_value = "3")]
    loaded_models: LoadedModelsMax,

    /// Where to compute: auto, cpu, or cuda:N
    #[arg(long, value_name = "DEVICE", default_value_t = Device::Auto)]
    device: Device,

    /// Dtype to compute in: auto, f32, f16 or bf16
    #[arg(long, value_name = "DTYPE", default_value_t = ComputeDtype::Auto)]
    compute_dtype: ComputeDtype,

    /// Vector instructions that the CPU computes with: as the daemon's setting
    #[arg(long, value_name = "NAME", default_value_t = InstructionsChoice::Auto)]
    instructions: InstructionsChoice,

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

/// Which models; at least one.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
struct ModelChoice {
    /// Shape of a published model, with bf16 weights; several are loaded one after another
    #[arg(long, value_name = "NAME", num_args = 1.., value_parser = published_shapes())]
    shape: Vec<&'static PublishedShape>,

    /// All published shapes, one in a line, each at the most faithful level at which all its weights stay on the device, else
    /// with streamed weights; `--level` plans all at one level
    #[arg(long, conflicts_with_all = ["shape", "model"])]
    all: bool,

    /// Checkpoint: a Hugging Face folder, a .safetensors file in one, or a .gguf, .pth or .sluice file; several come after the
    /// shapes
    #[arg(long, value_name = "DIR|FILE", num_args = 1..)]
    model: Vec<PathBuf>,
}

/// Prints the plan, and returns the exit code.
#[must_use]
pub fn run(options: &Planning) -> u8 {
    let text = match options.text() {
        Ok(text) => text,
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
    match print(&(text + "\n")) {
        Ok(()) => exit::OK,
        Err(error) => {
            eprintln!("sluiced: {error}");
            exit::FAILURE
        }
    }
}

/// What a plan is as text: a table for people, or JSON.
fn text_of(answer: &v1::PlanResponse, as_json: bool) -> String {
    let keys = "a plan has text for keys";
    match (&answer.plan, as_json) {
        (Some(plan), true) => serde_json::to_string(plan).expect(keys),
        (None, true) => serde_json::to_string(answer).expect(keys),
        (Some(plan), false) => report::plan::lines(plan).join("\n"),
        (None, false) => {
            let mut lines = report::plan::together(&answer.models, answer.budget_bytes);
            let notes = answer.models.iter().filter_map(|model| model.plan.as_ref());
            let notes = notes.flat_map(|plan| &plan.notes);
            // Those of the device, which all plans have alike.
            let device = notes.filter(|note| note.starts_with("for ")).take(1);
            lines.extend(device.map(|note| format!("note: {note}")));
            lines.join("\n")
        }
    }
}

impl Planning {
    fn text(&self) -> Result<String, Failure> {
        let (terms, device) = self.terms()?;
        if !self.subject.all {
            return Ok(text_of(&self.plan(terms, &device)?, self.json));
        }
        let plans = terms.plan_all();
        Ok(match self.json {
            true => serde_json::to_string(&plans).expect("a plan has text for keys"),
            false => plans.lines().join("\n"),
        })
    }

    /// What plans are made from, and the device that they are for.
    fn terms(&self) -> Result<(Terms, device::Device), Failure> {
        // Checked as if it had come over the wire: the rules stand in one place.
        let workload = model::Workload::try_from(v1::Workload {
            canvas_length: self.canvas,
            block_length: self.block,
            batch_requests: self.requests,
        })?;
        let threads = self.threads.map_or(0, Threads::get);
        let opened =
            device::Device::open(self.device.choice(), self.compute_dtype.dtype(), threads)?;
        let instructions = self.instructions.instructions();
        let device = opened.device.with_instructions(instructions);
        let memory = device.memory();
        let machine = machine(&device)?;
        learned_experts::restore_for_plans(&machine.corrections);
        let settings = PlanSettings::from(self.options);
        let budget_bytes = settings.budget.bytes();
        let budget_bytes = budget_bytes.or_else(|| memory.free_bytes.map(default_budget));
        let budget_bytes = budget_bytes.unwrap_or(u64::MAX);
        let terms = Terms {
            machine,
            settings,
            has_level: self.options.level.is_some(),
            budget_bytes,
            workload,
            note: device_note(&device, opened.gpu_unavailable),
        };
        Ok((terms, device))
    }

    fn plan(&self, terms: Terms, device: &device::Device) -> Result<v1::PlanResponse, Failure> {
        let Terms {
            machine,
            settings,
            budget_bytes,
            workload,
            note,
            ..
        } = terms;
        let mut models = self.subject.outlines(&machine, settings)?;
        if models.len() > 1 {
            let common = CommonBudget {
                budget_bytes,
                budget_default: budget_bytes,
                common_bytes: CommonMemory::bytes_on(device),
                models_max: self.loaded_models.get(),
            };
            let mut models = common.plan(&models)?;
            for plan in models.iter_mut().filter_map(|model| model.plan.as_mut()) {
                plan.notes.extend(note.clone());
            }
            return Ok(v1::PlanResponse {
                models,
                budget_bytes,
                ..Default::default()
            });
        }
        let model = models.pop().expect("the command line requires one");
        let workload = translate::plan::workload(workload, model.outline.context_length())?;
        let plan = model.outline.plan(settings, budget_bytes, workload)?;
        let mut plan = translate::plan::plan(&plan, &model.name);
        plan.notes.extend(note);
        Ok(v1::PlanResponse {
            plan: Some(plan),
            ..Default::default()
        })
    }
}

impl ModelChoice {
    /// The models, in the order in which they would be loaded.
    fn outlines(
        &self,
        machine: &Machine,
        settings: PlanSettings,
    ) -> Result<Vec<OutlinedModel>, Failure> {
        let of = |name: String, outline| OutlinedModel {
            name,
            outline,
            settings,
            is_pinned: false,
        };
        let mut models: Vec<_> = (self.shape.iter())
            .map(|shape| {
                let outline = ModelOutline::of_published_shape(shape, machine.clone());
                of(shape.name.to_owned(), outline)
            })
            .collect();
        for path in &self.model {
            let path = std::path::absolute(path).map_err(|cause| CheckpointError::Io {
                path: path.clone(),
                cause,
            })?;
            let model = ModelName::at(&path);
            let outline = ModelOutline::of_checkpoint(&model.source(), machine.clone())?;
            models.push(of(model.name, outline));
        }
        Ok(models)
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
