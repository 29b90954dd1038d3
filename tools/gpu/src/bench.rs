//! How fast a GPU is: copies, single operations, and passes of a checkpoint by level and budget.

use std::{collections::HashMap, iter, path::Path};

use serde_json::{Value, json};
use sluice_ops::device::{self, Gpu};

use super::{
    Failure, Found, Report, about,
    memory::Watch,
    open,
    passes::{Load, Loads},
    report::Failures,
    scratch::Scratch,
    speed::{OperationSpeed, SpeedSizes, speeds},
    timing::Timing,
};

impl Timing {
    pub(super) fn bench(&self, report: &Report) -> Found {
        let deadline = self.limit.deadline();
        let device = open(self.device, self.compute_dtype.dtype())?;
        // Before anything else of the GPU's memory is taken.
        let watch = Watch::new(&device);
        report.set("device", about(&device));
        report.set("compute", json!(device.dtype().name()));
        for list in ["operations", "loads", "failures"] {
            report.set(list, json!([]));
        }
        let mut failures = Failures::new(report);
        let link = device.gpu().map(Gpu::measure_bandwidth).transpose();
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
                "to the GPU {:.1} GB/s from pinned memory, {:.1} GB/s from any other, {:.1} GB/s read and written on it",
                link.pinned_to_device / 1e9,
                link.pageable_to_device / 1e9,
                2.0 * link.device_copy / 1e9
            );
        }
        // A copy on the device reads and writes each byte.
        let memory_bytes_per_s = link.as_ref().map(|link| 2.0 * link.device_copy);
        if !self.only_passes && !deadline.is_over() {
            let told = &mut |speed: &OperationSpeed| {
                tell_speed(speed, memory_bytes_per_s);
                report.add("operations", speed_json(speed, memory_bytes_per_s));
            };
            let sizes = SpeedSizes {
                hidden_size: self.hidden_size,
                ..SpeedSizes::default()
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
        let failed = loads.failures.count();
        if failed > 0 {
            eprintln!("failures, told above where they were found: {failed}");
        }
        report.set("stopped", json!(stopped));
        Ok(failed == 0)
    }

    /// Loads each level without a budget, then under each one, the smallest first.
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
        let is_compressed = model.extension().is_some_and(|kind| kind == "sluice");
        loads.tell_header();
        for level in self.levels.of(is_compressed) {
            let all = budgets.iter().copied().map(Some);
            for budget_bytes in iter::once(None).chain(all) {
                // The failure was reported where it happened.
                if loads.deadline.is_over() || device.has_failed() {
                    return Ok(());
                }
                loads.load(Load {
                    model,
                    converted,
                    level,
                    budget_bytes,
                    is_compressed,
                });
            }
        }
        Ok(())
    }
}

fn tell_speed(speed: &OperationSpeed, memory_bytes_per_s: Option<f64>) {
    let bytes_per_s = speed.bytes / speed.seconds;
    let work = match speed.decompressed_bytes {
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

fn speed_json(speed: &OperationSpeed, memory_bytes_per_s: Option<f64>) -> Value {
    let bytes_per_s = speed.bytes / speed.seconds;
    json!({
        "name": speed.name,
        "seconds": speed.seconds,
        "operations_per_s": speed.operations / speed.seconds,
        "bytes_per_s": bytes_per_s,
        "decoded_bytes_per_s": speed.decompressed_bytes.map(|bytes| bytes / speed.seconds),
        "share_of_memory_rate": memory_bytes_per_s.map(|rate| bytes_per_s / rate),
    })
}
