//! `sluice status`: one snapshot in words.

use sluice_proto::v1::{
    DeviceStatus, Dtype, GpuStatus, GpuUnavailable, HostStatus, PassStatistics, Plan,
    SettingsStatus, Snapshot,
};
use sluice_report::plan::memory_label;
use sluice_report::plan::{experts, staging_buffers};
use sluice_shared::units;

use super::models::describe;
use crate::{
    connection::DaemonConnection,
    gpu,
    output::{Failure, StandardOutput},
    plans,
    text::sanitise_line,
};

/// Prints one snapshot.
pub(super) async fn run(
    daemon: &DaemonConnection,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let snapshot = daemon.snapshot().await?;
    if json {
        return out.json(&snapshot);
    }
    for line in lines(&snapshot) {
        out.line(&line)?;
    }
    Ok(())
}

fn lines(snapshot: &Snapshot) -> Vec<String> {
    let mut lines = Vec::new();
    let mut fact = |name: &str, value: String| lines.push(format!("{name:<9} {value}"));
    if let Some(server) = &snapshot.daemon {
        fact(
            "daemon",
            format!(
                "sluiced {}, {}, pid {}, up {}, {}",
                server.version,
                server.state().to_string().replace('_', " "),
                server.process_id,
                units::duration_ms(server.uptime_ms as f64),
                server.socket_path,
            ),
        );
        if let Some(stall) = &server.stall {
            fact("", stall.clone());
        }
        for problem in &server.file_problems {
            fact("", problem.clone());
        }
    }
    fact(
        "model",
        snapshot.model.as_ref().map_or("none".into(), describe),
    );
    for other in snapshot
        .loaded_models
        .iter()
        .filter(|other| !other.is_present)
    {
        if let (Some(model), Some(plan)) = (&other.model, &other.plan) {
            let pinned = if other.is_pinned { ", pinned" } else { "" };
            let held = units::bytes(other.device_bytes);
            let (name, level) = (sanitise_line(&model.name), plan.level());
            fact(
                "",
                format!("beside it {name}, level {level}, {held}{pinned}"),
            );
        }
    }
    if let Some(device) = &snapshot.device {
        fact("device", device_line(device));
        for kind in &device.memory {
            fact(
                "",
                format!(
                    "{:<12} {:>10}, at most {}",
                    memory_label(kind.kind()),
                    units::bytes(kind.bytes),
                    units::bytes(kind.peak_bytes)
                ),
            );
        }
        for (name, value) in device.gpu.iter().flat_map(gpu_lines) {
            fact(name, value);
        }
        if let Some(GpuUnavailable { reason, hint, .. }) = &device.gpu_unavailable {
            fact("no GPU", format!("so the CPU computes: {reason}"));
            fact("", format!("hint: {hint}"));
        }
    }
    for (name, value) in plan_lines(snapshot) {
        fact(name, value);
    }
    fact("memory", host_line(snapshot.host.as_ref()));
    if let Some(queue) = &snapshot.queue {
        fact(
            "queue",
            format!(
                "{} running, {} waiting, capacity {}",
                queue.running, queue.waiting, queue.capacity
            ),
        );
    }
    for request in snapshot.requests() {
        fact("", super::requests::row(request));
    }
    for job in snapshot.jobs() {
        fact("job", super::jobs::row(job));
    }
    if let Some(totals) = &snapshot.totals {
        fact(
            "so far",
            format!(
                "{} done, {} cancelled, {} failed, {} refused; {} passes, {} tokens",
                units::count(totals.done_requests),
                units::count(totals.cancelled_requests),
                units::count(totals.failed_requests),
                units::count(totals.refused_requests),
                units::count(totals.passes),
                units::count(totals.committed_tokens),
            ),
        );
    }
    lines
}

fn device_line(device: &DeviceStatus) -> String {
    let mut line = device.kind().to_string();
    if !device.name.is_empty() {
        line += &format!(" ({})", device.name);
    }
    let threads = match device.gpu {
        // With a GPU these threads only convert weights.
        Some(_) => "threads beside it",
        None => "threads",
    };
    line += &format!(", {} {threads}", device.threads);
    if let Some(instructions) = &device.instructions {
        line += &format!(", {instructions}");
    }
    if device.compute_dtype() == Dtype::Bf16 {
        line += ", computes in bf16";
    }
    line += &format!(
        ", {} held, at most {}",
        units::bytes(device.used_bytes),
        units::bytes(device.peak_bytes)
    );
    if let (Some(free), Some(total)) = (device.free_bytes, device.total_bytes) {
        line += &format!("; {} of {} free", units::bytes(free), units::bytes(total));
    }
    line
}

/// The GPU and its present state.
fn gpu_lines(gpu: &GpuStatus) -> [(&'static str, String); 5] {
    let unknown = || "unknown".to_owned();
    let blas = match &gpu.cublas {
        Some(blas) => format!("with {blas}"),
        None => "without cuBLAS".to_owned(),
    };
    let driver = gpu.driver_version.clone();
    let driver = driver.unwrap_or_else(|| "of unknown version".into());
    let mut bus = gpu::pcie_link(gpu).unwrap_or_else(unknown);
    if let Some(best) = gpu::pcie_link_max(gpu) {
        bus += &format!(", at best {best}");
    }
    let others = gpu.other_processes_bytes.map(units::bytes);
    [
        ("GPU", format!("{}, {blas}", gpu::compute_capability(gpu))),
        (
            "driver",
            format!(
                "{driver}, CUDA {}; the GPU is {}",
                gpu.cuda_version, gpu.pci_bus_id
            ),
        ),
        ("bus", bus),
        (
            "now",
            gpu::joined([gpu::activity(gpu), gpu::clocks(gpu)], ", ").unwrap_or_else(unknown),
        ),
        (
            "others",
            format!(
                "hold {}",
                others.unwrap_or_else(|| "an unknown amount".into())
            ),
        ),
    ]
}

/// The plan beside measured figures.
fn plan_lines(snapshot: &Snapshot) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    if let Some(settings) = &snapshot.settings {
        let plan = snapshot.plan.as_ref();
        facts.push(("level", level(settings, plan)));
        let budget = units::bytes(settings.budget_bytes);
        let whose = if settings.is_default_budget() {
            ", the default"
        } else {
            ""
        };
        facts.push(("budget", format!("{budget}{whose}")));
        facts.extend(defaults(settings));
    }
    if let Some(switching) = plans::switching(snapshot) {
        facts.push(("switching", switching));
    }
    let Some(plan) = &snapshot.plan else {
        return facts;
    };
    let measured = snapshot.passes.unwrap_or_default();
    let peak = match measured.peak_bytes {
        Some(bytes) => format!("{} measured", units::bytes(bytes)),
        None => NOT_MEASURED.into(),
    };
    let predicted = units::bytes(plan.peak_bytes);
    facts.push(("peak", format!("{predicted} predicted, {peak}")));
    facts.push(("a pass", pass(plan, &measured)));
    facts.push(("streamed", streamed(plan, &measured)));
    facts.extend(plan.notes.iter().map(|note| ("", format!("note: {note}"))));
    facts
}

const NOT_MEASURED: &str = "not measured yet";

/// The level of the settings and, if that is `auto`, the level that it resolved to.
fn level(settings: &SettingsStatus, plan: Option<&Plan>) -> String {
    let Some(plan) = plan else {
        return settings.level().to_string();
    };
    let mut words = plan.level().to_string();
    if settings.level() != plan.level() {
        words += &format!(", by {}", settings.level());
    }
    if !plan.is_lossless {
        words += ", not lossless";
    }
    if let Some(substitution) = &settings.substitution {
        let requested = substitution.requested();
        words += &format!(", instead of {requested}: {}", substitution.reason);
    }
    words
}

/// What models and requests get by the defaults for small memory, if these are taken.
fn defaults(settings: &SettingsStatus) -> Option<(&'static str, String)> {
    let defaults = settings.small_memory_defaults.iter();
    let words: Vec<_> = defaults
        .map(|setting| format!("{} {}", setting.name.replace('_', " "), setting.value))
        .collect();
    let words = format!("{} (small_memory)", words.join(", "));
    (!settings.small_memory_defaults.is_empty()).then_some(("defaults", words))
}

fn pass(plan: &Plan, measured: &PassStatistics) -> String {
    let predicted = format!(
        "{} predicted for a canvas of {}",
        plans::pass_time(plan),
        units::count(plan.workload.unwrap_or_default().canvas_length().into())
    );
    let (Some(mean_ms), Some(last_ms)) = (measured.mean_ms, measured.last_ms) else {
        return format!("{predicted}, {NOT_MEASURED}");
    };
    format!(
        "{predicted}, {} measured over {} passes, {} for the last of {} rows",
        units::duration_ms(mean_ms),
        units::count(measured.count),
        units::duration_ms(last_ms),
        units::count(measured.last_rows.into())
    )
}

fn streamed(plan: &Plan, measured: &PassStatistics) -> String {
    if plan.streamed_bytes_per_pass == 0 && measured.streamed_bytes == 0 {
        return "nothing".into();
    }
    let predicted = units::bytes(plan.streamed_bytes_per_pass);
    let mut words = format!("{predicted} a pass predicted");
    if measured.count > 0 {
        let passes = measured.count as f64;
        let mean = (measured.streamed_bytes as f64 / passes) as u64;
        let waited = units::duration_ms(measured.waited_ms / passes);
        words += &format!(", {} measured, {waited} a pass waited", units::bytes(mean));
    } else {
        words += &format!(", {NOT_MEASURED}");
    }
    let slots = plan.staging_buffers.as_ref().map(staging_buffers);
    let hits = measured.experts.as_ref().map(plans::expert_hits);
    let hits = hits.map(|hits| format!("of touched experts {hits}"));
    for part in slots.into_iter().chain(experts(plan)).chain(hits) {
        words += &format!("; {part}");
    }
    words
}

fn host_line(host: Option<&HostStatus>) -> String {
    let known = |bytes: Option<u64>| bytes.map_or("unknown".into(), units::bytes);
    let host = host.copied().unwrap_or_default();
    let mut line = format!(
        "{} available of {}; sluiced resident {}, at most {}",
        known(host.available_bytes),
        known(host.total_bytes),
        known(host.resident_bytes),
        known(host.resident_peak_bytes)
    );
    if let Some(beyond) = host.resident_other_bytes {
        line += &format!("; {} of it outside the ledger", units::bytes(beyond));
    }
    line
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::{
        DeviceKind, Dtype, Level, PlanOptions, ResolvedSetting, StagingBuffers, SwitchTarget,
        WeightSwitch, Workload, plan_options,
    };

    use super::*;

    fn measured() -> PassStatistics {
        PassStatistics {
            count: 4,
            mean_ms: Some(1900.0),
            last_ms: Some(1850.0),
            last_rows: 288,
            waited_ms: 48.0,
            streamed_bytes: 8 << 30,
            peak_bytes: Some(3 << 30),
            ..Default::default()
        }
    }

    fn streaming() -> Snapshot {
        Snapshot {
            plan: Some(Plan {
                level: Level::Moderate.into(),
                peak_bytes: 4 << 30,
                pass_ms: Some(1800.0),
                workload: Some(Workload {
                    canvas_length: Some(256),
                    ..Default::default()
                }),
                streamed_bytes_per_pass: 2 << 30,
                staging_buffers: Some(StagingBuffers {
                    count: 3,
                    bytes_each: 120 << 20,
                    decompress_bytes: 0,
                    ..Default::default()
                }),
                ..Default::default()
            }),
            settings: Some(SettingsStatus {
                options: Some(PlanOptions {
                    level: Level::Auto.into(),
                    budget: Some(plan_options::Budget::DefaultBudget(true)),
                    ..Default::default()
                }),
                budget_bytes: 4 << 30,
                ..Default::default()
            }),
            weight_switch: Some(WeightSwitch {
                done_steps: 3,
                total_steps: 9,
            }),
            switch_target: Some(SwitchTarget {
                level: Level::Aggressive.into(),
                budget_bytes: 4 << 30,
            }),
            passes: Some(measured()),
            ..Default::default()
        }
    }

    #[test]
    fn the_plan_stands_beside_the_measurement() {
        let lines = lines(&streaming());
        assert_eq!(
            lines[1..7],
            [
                "level     moderate, by auto, not lossless",
                "budget    4.00 GiB, the default",
                "switching to aggressive, step 4 of 9",
                "peak      4.00 GiB predicted, 3.00 GiB measured",
                "a pass    1.8 s predicted for a canvas of 256, 1.9 s measured over 4 passes, 1.9 s for the last of 288 rows",
                "streamed  2.00 GiB a pass predicted, 2.00 GiB measured, 12 ms a pass waited; 3 staging buffers of 120 MiB",
            ]
        );
    }

    #[test]
    fn the_defaults_for_small_memory_are_told_where_they_are_taken() {
        let mut snapshot = streaming();
        let settings = snapshot.settings.as_mut().unwrap();
        settings.small_memory_defaults = [("level", "aggressive"), ("block_length", "32")]
            .map(|(name, value)| ResolvedSetting {
                name: name.to_owned(),
                value: value.to_owned(),
                origin: "small_memory".to_owned(),
            })
            .into();
        assert_eq!(
            lines(&snapshot)[3],
            "defaults  level aggressive, block length 32 (small_memory)"
        );
    }

    #[test]
    fn a_switch_says_what_is_known_of_it() {
        let shown = |snapshot: &Snapshot| lines(snapshot)[3].clone();
        let snapshot = Snapshot {
            switch_target: None,
            ..streaming()
        };
        assert_eq!(shown(&snapshot), "switching step 4 of 9");
        let mut snapshot = streaming();
        snapshot.weight_switch = Some(WeightSwitch {
            done_steps: 9,
            total_steps: 9,
        });
        snapshot.switch_target = Some(SwitchTarget {
            level: Level::Moderate.into(),
            budget_bytes: 6 << 30,
        });
        assert_eq!(
            shown(&snapshot),
            "switching to moderate within 6.00 GiB, step 9 of 9"
        );
        snapshot.weight_switch = Some(WeightSwitch {
            done_steps: 0,
            total_steps: 0,
        });
        assert!(shown(&snapshot).ends_with(", converting"));
    }

    #[test]
    fn what_was_not_measured_yet_is_said() {
        let snapshot = Snapshot {
            passes: None,
            ..streaming()
        };
        let text = lines(&snapshot).join("\n");
        assert_eq!(text.matches(NOT_MEASURED).count(), 3, "{text}");
    }

    fn on(device: DeviceStatus) -> Vec<String> {
        lines(&Snapshot {
            device: Some(device),
            ..Default::default()
        })
    }

    #[test]
    fn a_gpu_tells_what_it_is_and_how_it_does() {
        let gpu = GpuStatus {
            compute_dtype: Dtype::Bf16.into(),
            compute_capability: "8.6".into(),
            pci_bus_id: "0000:01:00.0".into(),
            driver_version: Some("570.00".into()),
            cuda_version: "12.8".into(),
            cublas: Some("libcublas.so.12 (120805)".into()),
            other_processes_bytes: Some(1 << 30),
            pcie_generation: Some(3),
            pcie_generation_max: Some(4),
            pcie_lanes: Some(8),
            pcie_lanes_max: Some(8),
            clock_mhz: Some(1500),
            memory_clock_mhz: Some(5000),
            temperature_c: Some(56),
            power_w: Some(61.2),
            power_limit_w: Some(115.0),
            utilization_percent: Some(37),
            ..Default::default()
        };
        let device = DeviceStatus {
            kind: DeviceKind::Cuda.into(),
            name: "NVIDIA GeForce RTX 3060".into(),
            threads: 8,
            used_bytes: 1 << 30,
            peak_bytes: 1 << 30,
            total_bytes: Some(12 << 30),
            free_bytes: Some(10 << 30),
            gpu: Some(gpu),
            ..Default::default()
        };
        assert_eq!(
            on(device)[1..7],
            [
                "device    cuda (NVIDIA GeForce RTX 3060), 8 threads beside it, 1.00 GiB held, at most 1.00 GiB; 10.0 GiB of 12.0 GiB free",
                "GPU       capability 8.6, computes in bf16, with libcublas.so.12 (120805)",
                "driver    570.00, CUDA 12.8; the GPU is 0000:01:00.0",
                "bus       PCI Express 3 x8, at best 4 x8",
                "now       37 % busy, 56 °C, 61 W of 115 W, 1,500 MHz, memory 5,000 MHz",
                "others    hold 1.00 GiB",
            ]
        );
    }

    #[test]
    fn what_nobody_tells_of_a_gpu_is_unknown() {
        let gpu = GpuStatus {
            compute_dtype: Dtype::F16.into(),
            compute_capability: "7.5".into(),
            pci_bus_id: "0000:01:00.0".into(),
            cuda_version: "12.0".into(),
            ..Default::default()
        };
        let device = DeviceStatus {
            gpu: Some(gpu),
            ..Default::default()
        };
        assert_eq!(
            on(device)[2..7],
            [
                "GPU       capability 7.5, computes in f16, without cuBLAS",
                "driver    of unknown version, CUDA 12.0; the GPU is 0000:01:00.0",
                "bus       unknown",
                "now       unknown",
                "others    hold an unknown amount",
            ]
        );
    }

    #[test]
    fn the_cpu_tells_its_instructions() {
        let mut device = DeviceStatus {
            kind: DeviceKind::Cpu.into(),
            threads: 8,
            instructions: Some("avx512-vnni".into()),
            ..Default::default()
        };
        assert_eq!(
            on(device.clone())[1],
            "device    cpu, 8 threads, avx512-vnni, 0 B held, at most 0 B"
        );
        device.compute_dtype = Some(Dtype::Bf16.into());
        assert_eq!(
            on(device.clone())[1],
            "device    cpu, 8 threads, avx512-vnni, computes in bf16, 0 B held, at most 0 B"
        );
        // An older daemon doesn't.
        device.instructions = None;
        device.compute_dtype = None;
        assert_eq!(
            on(device)[1],
            "device    cpu, 8 threads, 0 B held, at most 0 B"
        );
    }

    #[test]
    fn a_gpu_that_can_not_be_used_is_said_with_what_to_do() {
        let device = DeviceStatus {
            kind: DeviceKind::Cpu.into(),
            gpu_unavailable: Some(GpuUnavailable {
                reason: "NVIDIA's driver finds no GPU".into(),
                hint: "see that `nvidia-smi` lists the GPU".into(),
                is_fault: true,
            }),
            ..Default::default()
        };
        assert_eq!(
            on(device)[2..4],
            [
                "no GPU    so the CPU computes: NVIDIA's driver finds no GPU",
                "          hint: see that `nvidia-smi` lists the GPU",
            ]
        );
    }

    #[test]
    fn what_the_process_has_beyond_what_is_held_is_said() {
        let host = HostStatus {
            total_bytes: Some(16 << 30),
            available_bytes: Some(8 << 30),
            resident_bytes: Some(342 << 20),
            resident_peak_bytes: Some(350 << 20),
            resident_other_bytes: Some(33 << 20),
            resident_program_bytes: Some(20 << 20),
        };
        assert_eq!(
            host_line(Some(&host)),
            "8.00 GiB available of 16.0 GiB; sluiced resident 342 MiB, at most 350 MiB; 33.0 MiB of it outside the ledger"
        );
    }

    #[test]
    fn an_unknown_figure_reads_as_unknown() {
        let lines = lines(&Snapshot::default());
        assert_eq!(
            lines,
            [
                "model     none",
                "memory    unknown available of unknown; sluiced resident unknown, at most unknown"
            ]
        );
    }
}
