//! `sluice-gpu check` and `sluice-gpu bench`: one command each for whoever has a GPU that nobody has tried before.
//! Results go to standard error as they are found, and all of them as one JSON object to standard output, also when a
//! part fails or the time is up.

use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use sluice_checkpoint::synth::SynthError;
use sluice_daemon::{config::Device, offline::SystemError};
use sluice_engine::EngineError;
use sluice_formats::DType;
use sluice_ops::{OpsError, device};
use sluice_shared::exit;

mod bench;
mod check;
mod memory;
mod operations;
mod passes;
mod report;
mod requests;
mod scratch;
mod shared;
mod speed;
mod timing;

use self::report::Report;
pub use self::{
    check::Checking,
    operations::operations,
    speed::{OperationSpeed, SpeedSizes, speeds},
    timing::Timing,
};

/// What is to be done with a card.
#[derive(Debug, Subcommand)]
pub enum Gpu {
    /// Compare every operation with the CPU's, small models with the reference implementations' outputs, and memory before
    /// many requests with memory after
    Check(Checking),

    /// Time copies, products, attention, and passes of a checkpoint, resident and streamed
    Bench(Timing),
}

/// For how long.
#[derive(Debug, Args)]
struct Limit {
    /// Begin nothing new after so many minutes, and report what was found
    #[arg(long, value_name = "N", value_parser = minutes)]
    minutes: Option<f64>,
}

/// Why a part of the work could not be done.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    System(#[from] SystemError),
    #[error(transparent)]
    Synth(#[from] SynthError),
}

/// Whether everything that was found is right.
type Found = Result<bool, Failure>;

/// Runs the command, and returns the exit code: 1 where something is wrong.
#[must_use]
pub fn run(options: &Gpu) -> u8 {
    let done = report::reporting(|report| {
        let found = match options {
            Gpu::Check(options) => options.check(report),
            Gpu::Bench(options) => options.bench(report),
        };
        // Before the reason is printed why there is no more of it.
        let is_told = report.tell();
        found.map(|is_right| is_right && is_told)
    });
    match done.map_err(Failure::from).flatten() {
        Ok(true) => exit::OK,
        Ok(false) => exit::FAILURE,
        Err(error) => {
            eprintln!("sluice-gpu: {error}");
            if let Failure::Engine(EngineError::Ops(OpsError::NoGpu(unavailable))) = &error {
                eprintln!("hint: {}", unavailable.hint());
            }
            exit::FAILURE
        }
    }
}

fn open(device: Device, number: Option<DType>) -> Result<device::Device, EngineError> {
    Ok(device::Device::open(device.choice(), number, 0)?.device)
}

/// The device's properties, for the report.
fn about(device: &device::Device) -> Value {
    let Some(gpu) = device.gpu() else {
        return json!({ "kind": "cpu", "threads": device.threads() });
    };
    let facts = gpu.properties();
    let version = |(major, minor): (u32, u32)| format!("{major}.{minor}");
    json!({
        "kind": "cuda",
        "name": facts.name,
        "capability": version(facts.capability),
        "driver": facts.driver_version,
        "cuda": version(facts.cuda_version),
        "blas": gpu.blas().map(|blas| blas.name().to_owned()),
        "blas_absence": gpu.blas_absence(),
        // Otherwise each weight group is an allocation of its own.
        "maps_memory": gpu.arena().is_some(),
        "total_bytes": facts.total_bytes,
        "context_bytes": gpu.context_bytes(),
        "multiprocessors": facts.multiprocessors,
    })
}

fn minutes(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(minutes) if (0.0..=MINUTES_MAX).contains(&minutes) => Ok(minutes),
        _ => Err(format!(
            "{text:?} is no number of minutes up to {MINUTES_MAX}"
        )),
    }
}

/// Most minutes that a command may be given: a week.
const MINUTES_MAX: f64 = 10_080.0;

/// When nothing new is begun any more, unless a signal comes before.
#[derive(Debug, Clone, Copy)]
struct Deadline(Option<Instant>);

impl Limit {
    /// The deadline, counted from now on.
    fn deadline(&self) -> Deadline {
        let minutes = self.minutes;
        Deadline(minutes.map(|minutes| Instant::now() + Duration::from_secs_f64(60.0 * minutes)))
    }
}

impl Deadline {
    fn is_over(self) -> bool {
        report::is_signalled() || self.0.is_some_and(|end| Instant::now() >= end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_are_few_and_not_below_zero() {
        assert_eq!(minutes("0"), Ok(0.0));
        assert_eq!(minutes("2.5"), Ok(2.5));
        for wrong in ["-1", "nan", "inf", "1e9", "soon", ""] {
            assert!(minutes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn nothing_new_begins_after_the_deadline() {
        let limit = |minutes| Limit { minutes }.deadline();
        assert!(limit(Some(0.0)).is_over());
        assert!(!limit(Some(60.0)).is_over());
        assert!(!limit(None).is_over());
    }
}
