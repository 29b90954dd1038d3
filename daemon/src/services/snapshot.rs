//! Makes snapshots of the whole daemon.

use std::process;

use sluice_engine::{PlanOptions, PlanSettings};
use sluice_ops::{device::LiveStats, ledger};
use sluice_proto::{PROTOCOL, v1};

use super::Daemon;
use crate::{failure::Failure, translate};

/// A snapshot of the daemon now. Live figures of the GPU may be a second old.
pub(super) async fn snapshot(daemon: &Daemon) -> v1::Snapshot {
    let live = match daemon.engine.device().gpu() {
        Some(gpu) => daemon.gpu_figures.of(gpu).await,
        None => None,
    };
    let state = match daemon.models.serving() {
        _ if daemon.is_draining() => v1::DaemonState::Draining,
        Ok(_) => v1::DaemonState::Ready,
        Err(Failure::ModelLoading { .. }) => v1::DaemonState::Loading,
        Err(_) => v1::DaemonState::NoModel,
    };
    let queue = daemon.engine.queue();
    // Read once: figures of one picture agree, whatever the engine does meanwhile.
    let memory = daemon.engine.memory();
    v1::Snapshot {
        daemon: Some(v1::DaemonStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol_version: PROTOCOL,
            process_id: process::id(),
            uptime_ms: daemon.started.elapsed().as_millis() as u64,
            state: state.into(),
            socket_path: daemon.socket.to_string_lossy().into_owned(),
            stall: daemon.stall.get().map(|stall| stall.to_string()),
            file_problems: daemon.file_problems(),
        }),
        device: Some(device(daemon, live.as_ref(), &memory)),
        host: Some(daemon.host.to_wire(held_here(daemon, &memory))),
        model: daemon.models.present(),
        queue: Some(v1::QueueStatus {
            capacity: queue.capacity as u32,
            waiting: (queue.waiting + daemon.waiting_for_model()) as u32,
            running: queue.running as u32,
        }),
        totals: Some(daemon.requests.totals().to_wire()),
        settings: Some(settings(daemon)),
        operations: (daemon.operations.active().iter())
            .map(|operation| operation.to_wire())
            .collect(),
        ..weights(daemon)
    }
}

/// Bytes that the engine holds of this process's memory.
fn held_here(daemon: &Daemon, memory: &ledger::LedgerReport) -> u64 {
    match daemon.engine.device().is_gpu() {
        true => daemon.engine.pinned_bytes(),
        false => memory.used_bytes,
    }
}

/// The plan in force and its weights; empty without a model.
fn weights(daemon: &Daemon) -> v1::Snapshot {
    let Some(in_force) = daemon.engine.in_force() else {
        return v1::Snapshot::default();
    };
    let model = daemon.models.serving();
    let name = model.map_or_else(|_| String::new(), |serving| serving.name.name);
    v1::Snapshot {
        plan: Some(translate::plan::plan(&in_force.plan, &name)),
        weight_switch: in_force.switch.map(translate::plan::weight_switch),
        switch_target: in_force.switch.and_then(|_| daemon.switch_target.get()),
        weights_version: Some(in_force.weights_version),
        passes: Some(translate::plan::pass_statistics(&in_force.passes)),
        layers: translate::plan::layer_statuses(&in_force.groups),
        ..Default::default()
    }
}

fn settings(daemon: &Daemon) -> v1::SettingsStatus {
    let engine = &daemon.engine;
    let wire = |settings: PlanSettings| v1::PlanOptions::from(PlanOptions::from(settings));
    let bytes = |settings: PlanSettings| {
        let bytes = settings.budget.bytes();
        bytes.unwrap_or_else(|| engine.budget_default())
    };
    let settings = engine.settings();
    let loaded = engine.loaded_with().map(|loaded| {
        let serving = daemon.models.serving();
        // Without remembered settings: this is what `restore` leads to.
        serving.map_or(loaded, |serving| serving.restore_point.restored(loaded))
    });
    v1::SettingsStatus {
        options: Some(wire(settings)),
        budget_bytes: bytes(settings),
        loaded_with: loaded.map(wire),
        loaded_with_budget_bytes: loaded.map(bytes),
        substitution: (engine.substitution()).map(|substitution| v1::LevelSubstitution {
            requested: v1::Level::from(substitution.requested).into(),
            used: v1::Level::from(substitution.taken).into(),
            reason: substitution.reason,
        }),
        small_memory_defaults: daemon.settings.small_memory_defaults(),
    }
}

fn device(
    daemon: &Daemon,
    live: Option<&LiveStats>,
    memory: &ledger::LedgerReport,
) -> v1::DeviceStatus {
    let device = daemon.engine.device();
    let (total_bytes, free_bytes) = match device.gpu() {
        Some(gpu) => (
            Some(gpu.properties().total_bytes),
            live.and_then(|live| live.free_bytes),
        ),
        None => {
            let facts = device.memory();
            (facts.total_bytes, facts.free_bytes)
        }
    };
    let kinds = memory.kinds.iter();
    let kinds = kinds.filter(|kind| translate::gpu::is_known(kind.kind, kind.peak_bytes));
    let kinds = kinds.map(|kind| v1::MemoryUse {
        kind: translate::format::memory_kind(kind.kind).into(),
        bytes: kind.bytes,
        peak_bytes: kind.peak_bytes,
    });
    v1::DeviceStatus {
        kind: match device.is_gpu() {
            true => v1::DeviceKind::Cuda.into(),
            false => v1::DeviceKind::Cpu.into(),
        },
        name: match device.gpu() {
            Some(gpu) => gpu.name().to_owned(),
            None => daemon.host.processor.clone(),
        },
        gpu: device
            .gpu()
            .map(|gpu| translate::gpu::gpu(device, gpu, live)),
        gpu_unavailable: daemon
            .engine
            .gpu_unavailable()
            .map(|why| v1::GpuUnavailable {
                reason: why.to_string(),
                hint: why.hint().to_owned(),
                is_fault: why.is_fault(),
            }),
        threads: daemon.engine.device().threads() as u32,
        memory: kinds.collect(),
        used_bytes: memory.used_bytes,
        peak_bytes: memory.peak_bytes,
        total_bytes,
        free_bytes,
        default_budget_bytes: daemon.engine.budget_default(),
    }
}
