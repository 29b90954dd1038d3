//! How fast a card is: copies, single operations, and passes of a checkpoint by level and budget.

use std::{
    collections::HashMap,
    error::Error,
    fmt, iter,
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::Args;
use serde_json::{Value, json};
use sluice_engine::check::{Sizes, Speed, speeds};
use sluice_ops::device::{self, Gpu as Card};
use sluice_shared::{decoding::Caching, level::Level};

use super::{
    Failure, Found, Limit, Report, about,
    memory::Watch,
    open,
    passes::{Load, Loads},
    scratch::Scratch,
};
use crate::config::{Budget, Compute, Device, PinLimit};

/// What is timed.
#[derive(Debug, Args)]
pub struct Timing {
    /// The card: cuda:N, or cpu to compare with
    #[arg(long, value_name = "DEVICE", default_value_t = Device::Cuda(0))]
    pub(super) device: Device,

    /// What to compute in: auto, f32, f16 or bf16
    #[arg(long, value_name = "NUMBER", default_value_t = Compute::Auto)]
    pub(super) compute: Compute,

    /// Checkpoint whose passes are timed; `sluiced synth --preset llada-8b DIR` makes one
    #[arg(long, value_name = "DIR|FILE")]
    pub(super) model: Option<PathBuf>,

    /// Levels to load it at, or all of those that it can be streamed at
    #[arg(long, value_name = "LEVEL,LEVEL", default_value_t = Levels(vec![Level::Standard]))]
    pub(super) levels: Levels,

    /// Budgets to load it under, such as 4GB,8GB, after it was loaded without any: what doesn't fit is streamed
    #[arg(long, value_name = "BYTES,BYTES", value_delimiter = ',')]
    pub(super) budgets: Vec<Budget>,

    /// Canvases to time
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [128, 512])]
    pub(super) canvas: Vec<usize>,

    /// Passes of each
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(super) passes: usize,

    /// Keys and values that are kept between passes: none, prefix, dual or vicinity
    #[arg(long, value_name = "KIND", default_value_t = Caching::default())]
    pub(super) cache: Caching,

    /// Requests that share passes, such as 1,16, timed under the least budget at which a level is streamed
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub(super) requests: Vec<usize>,

    /// Most memory of the host that is pinned for a card to copy streamed weights from [default: auto, half of it at most]
    #[arg(long, value_name = "BYTES|auto")]
    pub(super) pin_limit: Option<PinLimit>,

    /// Folder for converted copies of the checkpoint, which streaming at moderate and aggressive takes, and which stay
    /// there [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    converted: Option<PathBuf>,

    /// Width of the matrices that single operations are timed with, a multiple of 256
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = parse_width, conflicts_with = "only_passes")]
    width: usize,

    /// Leave out single operations
    #[arg(long)]
    only_passes: bool,

    #[command(flatten)]
    limit: Limit,
}

/// Most numbers in a row that single operations are timed with.
const WIDTH_MAX: usize = 16384;
/// Rows of every format are whole blocks of so many.
const BLOCK: usize = 256;

fn parse_width(text: &str) -> Result<usize, String> {
    let width = text.parse().map_err(|_| "no number".to_owned())?;
    let is_whole = (BLOCK..=WIDTH_MAX).contains(&width) && width.is_multiple_of(BLOCK);
    is_whole
        .then_some(width)
        .ok_or_else(|| format!("not a multiple of {BLOCK} up to {WIDTH_MAX}"))
}

/// Levels to try, one after another.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Levels(Vec<Level>);

/// Those that leave a plan the choice of what it streams.
const STREAMED: [Level; 4] = [
    Level::Standard,
    Level::Mild,
    Level::Moderate,
    Level::Aggressive,
];

impl FromStr for Levels {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self(STREAMED.to_vec())),
            names => names
                .split(',')
                .map(str::parse)
                .collect::<Result<_, _>>()
                .map(Self),
        }
    }
}

impl fmt::Display for Levels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(|level| level.name()).collect();
        f.write_str(&names.join(","))
    }
}

impl Levels {
    /// Those that a checkpoint can be loaded at: only one that is coded can be kept so.
    fn of(&self, is_coded: bool) -> impl Iterator<Item = Level> {
        let levels = self.0.iter().copied();
        levels.filter(move |level| is_coded || *level != Level::Mild)
    }
}

/// What could not be measured or is wrong, told at once and at the end.
pub(super) struct Failures<'a> {
    report: &'a Report,
    count: usize,
}

impl Failures<'_> {
    pub(super) fn add(&mut self, what: &str, cause: &dyn Error) {
        eprintln!("FAILED {what}: {cause}");
        let failure = json!({ "what": what, "cause": cause.to_string() });
        self.report.add("failures", failure);
        self.count += 1;
    }
}

impl Timing {
    pub(super) fn bench(&self, report: &Report) -> Found {
        let deadline = self.limit.deadline();
        let device = open(self.device, self.compute.number())?;
        // Before anything is taken of what the card has left.
        let watch = Watch::new(&device);
        report.set("device", about(&device));
        report.set("compute", json!(device.number().name()));
        for list in ["operations", "loads", "failures"] {
            report.set(list, json!([]));
        }
        let mut failures = Failures { report, count: 0 };
        let link = device.gpu().map(Card::measure_rates).transpose();
        let link = link.unwrap_or_else(|error| {
            failures.add("copies", &error);
            None
        });
        let rates = link.as_ref().map(|link| {
            json!({
                "pinned_to_device_bytes_per_s": link.pinned_to_device,
                "pageable_to_device_bytes_per_s": link.pageable_to_device,
                "device_copy_bytes_per_s": link.device_copy,
            })
        });
        report.set("link", json!(rates));
        if let Some(link) = &link {
            eprintln!(
                "to the card {:.1} GB/s from pinned memory, {:.1} GB/s from any other, {:.1} GB/s read and written on it",
                link.pinned_to_device / 1e9,
                link.pageable_to_device / 1e9,
                2.0 * link.device_copy / 1e9
            );
        }
        // Each byte that is copied there is read and written.
        let memory_bytes_per_s = link.as_ref().map(|link| 2.0 * link.device_copy);
        if !self.only_passes && !deadline.is_over() {
            let told = &mut |speed: &Speed| {
                tell_speed(speed, memory_bytes_per_s);
                report.add("operations", speed_json(speed, memory_bytes_per_s));
            };
            let sizes = Sizes {
                width: self.width,
                ..Sizes::default()
            };
            if let Err(error) = speeds(&device, &sizes, told) {
                failures.add("operations", &error);
            }
        }
        let mut loads = Loads {
            options: self,
            watch: &watch,
            link_bytes_per_s: link.as_ref().map(|link| link.pinned_to_device),
            deadline,
            failures,
            report,
            resident: HashMap::new(),
        };
        if let Some(model) = &self.model
            && let Err(error) = self.load_all(model, &device, &mut loads)
        {
            loads.failures.add("passes", &error);
        }
        let stopped = deadline.is_over();
        if stopped {
            eprintln!("the time was up");
        }
        let failed = loads.failures.count;
        if failed > 0 {
            eprintln!("failures, told above where they were found: {failed}");
        }
        report.set("stopped", json!(stopped));
        Ok(failed == 0)
    }

    /// Each level without a budget, then under each one.
    fn load_all(
        &self,
        model: &Path,
        device: &device::Device,
        loads: &mut Loads<'_>,
    ) -> Result<(), Failure> {
        let scratch;
        let converted = match &self.converted {
            Some(folder) => folder.as_path(),
            None => {
                scratch = Scratch::new()?;
                scratch.path()
            }
        };
        let budgets = self.budgets.iter().filter_map(|budget| budget.bytes());
        let mut budgets: Vec<u64> = budgets.collect();
        budgets.sort_unstable();
        let is_coded = model.extension().is_some_and(|kind| kind == "sluice");
        loads.tell_header();
        for level in self.levels.of(is_coded) {
            let all = budgets.iter().copied().map(Some);
            for budget_bytes in iter::once(None).chain(all) {
                // What made it fail was told.
                if loads.deadline.is_over() || device.has_failed() {
                    return Ok(());
                }
                loads.load(Load {
                    model,
                    converted,
                    level,
                    budget_bytes,
                    is_coded,
                });
            }
        }
        Ok(())
    }
}

fn tell_speed(speed: &Speed, memory_bytes_per_s: Option<f64>) {
    let bytes_per_s = speed.bytes / speed.seconds;
    let work = match speed.decoded_bytes {
        Some(bytes) => format!("{:>8.1} GB/s decoded", bytes / speed.seconds / 1e9),
        None => format!(
            "{:>8.2} TFLOP/s     ",
            speed.operations / speed.seconds / 1e12
        ),
    };
    let share =
        memory_bytes_per_s.map(|rate| format!("  {:>5.2} of the memory's", bytes_per_s / rate));
    eprintln!(
        "{:<50} {:>9.4} ms  {work}  {:>8.1} GB/s{}",
        speed.name,
        1000.0 * speed.seconds,
        bytes_per_s / 1e9,
        share.unwrap_or_default()
    );
}

fn speed_json(speed: &Speed, memory_bytes_per_s: Option<f64>) -> Value {
    let bytes_per_s = speed.bytes / speed.seconds;
    json!({
        "name": speed.name,
        "seconds": speed.seconds,
        "operations_per_s": speed.operations / speed.seconds,
        "bytes_per_s": bytes_per_s,
        "decoded_bytes_per_s": speed.decoded_bytes.map(|bytes| bytes / speed.seconds),
        "share_of_memory_rate": memory_bytes_per_s.map(|rate| bytes_per_s / rate),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_levels_are_those_that_can_be_streamed() {
        let all: Levels = "all".parse().unwrap();
        let names = |is_coded| all.of(is_coded).map(Level::name).collect::<Vec<_>>();
        assert_eq!(names(true), ["standard", "mild", "moderate", "aggressive"]);
        assert_eq!(names(false), ["standard", "moderate", "aggressive"]);
        let two: Levels = "off,moderate".parse().unwrap();
        assert_eq!(two, Levels(vec![Level::Off, Level::Moderate]));
        assert_eq!(two.to_string(), "off,moderate");
        assert!("standard,fast".parse::<Levels>().is_err());
    }
}
