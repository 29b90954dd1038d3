//! Makes snapshots of the whole daemon.

use std::process;

use sluice_engine::{PlanOptions, PlanSettings};
use sluice_ops::{device::LiveStats, ledger};
use sluice_proto::{PROTOCOL, v1};

use super::Daemon;
use crate::{models::ServingModel, translate};

/// A snapshot of the daemon now. Live figures of the GPU may be a second old.
pub(super) async fn snapshot(daemon: &Daemon) -> v1::Snapshot {
    let live = match daemon.engine.device().gpu() {
        Some(gpu) => daemon.gpu_figures.of(gpu).await,
        None => None,
    };
    // Read once: figures of one picture agree, whatever the engines do meanwhile.
    let memory = daemon.engine.memory_of_all();
    let queues: Vec<_> = (daemon.engines.all().iter())
        .map(|engine| engine.queue())
        .collect();
    let waiting: usize = queues.iter().map(|queue| queue.waiting).sum();
    let running: usize = queues.iter().map(|queue| queue.running).sum();
    let shown = daemon.models.shown();
    let shown = shown.as_ref();
    let settings = settings(daemon, shown);
    let loaded_models: Vec<_> = (daemon.models.all_loaded().iter())
        .filter_map(|model| loaded_model(daemon, model, shown))
        .collect();
    let budget_bytes = match &loaded_models[..] {
        [] | [_] => settings.budget_bytes,
        several => (several.iter())
            .map(|model| model.budget_bytes)
            .fold(daemon.engine.shared_budget_bytes(), u64::max),
    };
    v1::Snapshot {
        daemon: Some(v1::DaemonStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol_version: PROTOCOL,
            process_id: process::id(),
            uptime_ms: daemon.started.elapsed().as_millis() as u64,
            state: daemon.state().into(),
            socket_path: daemon.socket.to_string_lossy().into_owned(),
            stall: daemon.stall.get().map(|stall| stall.to_string()),
            file_problems: daemon.file_problems(),
        }),
        device: Some(v1::DeviceStatus {
            budget_bytes,
            ..device(daemon, live.as_ref(), &memory)
        }),
        host: Some(daemon.host.to_wire(held_here(daemon, &memory))),
        model: daemon.models.present(),
        queue: Some(v1::QueueStatus {
            capacity: daemon.engine.queue().capacity as u32,
            waiting: (waiting + daemon.waiting_for_model()) as u32,
            running: running as u32,
        }),
        totals: Some(daemon.requests.totals().to_wire()),
        settings: Some(settings),
        operations: (daemon.operations.active().iter())
            .map(|operation| operation.to_wire())
            .collect(),
        loaded_models,
        loaded_models_max: daemon.settings.loaded_models() as u32,
        ..weights(shown)
    }
}

/// What is told of a loaded model beside others; `None`: it has gone.
fn loaded_model(
    daemon: &Daemon,
    model: &ServingModel,
    shown: Option<&ServingModel>,
) -> Option<v1::LoadedModel> {
    let engine = model.engine.upgrade()?;
    let in_force = engine.in_force()?;
    let (queue, uses) = (engine.queue(), daemon.models.uses().of(&model.name));
    let settings = engine.settings();
    let is_used = uses.admitted + uses.in_line + uses.jobs > 0;
    Some(v1::LoadedModel {
        model: Some(model.to_wire()),
        is_present: shown.is_some_and(|shown| shown.name.is_same(&model.name)),
        is_pinned: daemon.models.is_pinned(model),
        options: Some(v1::PlanOptions::from(PlanOptions::from(settings))),
        budget_bytes: in_force.plan.budget_bytes,
        device_bytes: engine.memory().used_bytes,
        claimed_bytes: engine.taken_bytes(),
        plan: Some(translate::plan::summary(&in_force.plan, &model.name.name)),
        queue: Some(v1::QueueStatus {
            capacity: queue.capacity as u32,
            waiting: (queue.waiting + uses.in_line) as u32,
            running: queue.running as u32,
        }),
        unused_ms: (!is_used).then_some(uses.unused_for.as_millis() as u64),
        passes: Some(translate::plan::pass_statistics(&in_force.passes)),
    })
}

/// Bytes that the engine holds of this process's memory.
fn held_here(daemon: &Daemon, memory: &ledger::LedgerReport) -> u64 {
    match daemon.engine.device().is_gpu() {
        true => {
            let by_cpu = daemon.engine.ledger_beside_gpu().used_bytes();
            daemon.engine.pinned_bytes_of_all() + by_cpu
        }
        false => memory.used_bytes,
    }
}

/// The plan in force and its weights; empty without a model.
fn weights(shown: Option<&ServingModel>) -> v1::Snapshot {
    let Some(shown) = shown else {
        return v1::Snapshot::default();
    };
    let Some(in_force) = shown.engine.upgrade().and_then(|engine| engine.in_force()) else {
        return v1::Snapshot::default();
    };
    v1::Snapshot {
        plan: Some(translate::plan::plan(&in_force.plan, &shown.name.name)),
        weight_switch: in_force.switch.map(translate::plan::weight_switch),
        switch_target: in_force.switch.and_then(|_| shown.switch_target.get()),
        weights_version: Some(in_force.weights_version),
        passes: Some(translate::plan::pass_statistics(&in_force.passes)),
        layers: translate::plan::layer_statuses(&in_force.groups, &in_force.expert_visits),
        ..Default::default()
    }
}

fn settings(daemon: &Daemon, shown: Option<&ServingModel>) -> v1::SettingsStatus {
    let engine = shown.and_then(|shown| shown.engine.upgrade());
    let engine = engine.unwrap_or_else(|| daemon.engine.clone());
    let wire = |settings: PlanSettings| v1::PlanOptions::from(PlanOptions::from(settings));
    let bytes = |settings: PlanSettings| engine.allowed_bytes(&settings);
    let settings = engine.settings();
    let loaded = engine.loaded_with().map(|loaded| {
        // Without remembered settings: this is what `restore` leads to.
        shown.map_or(loaded, |shown| shown.restore_point.restored(loaded))
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
        threads: device.threads() as u32,
        instructions: match device.is_gpu() {
            true => None,
            false => Some(device.instructions().name().to_owned()),
        },
        compute_dtype: match device.is_gpu() {
            true => None,
            false => Some(translate::format::dtype(device.product_dtype().into()).into()),
        },
        memory: kinds.collect(),
        used_bytes: memory.used_bytes,
        peak_bytes: memory.peak_bytes,
        total_bytes,
        free_bytes,
        default_budget_bytes: daemon.engine.budget_default(),
        ..Default::default()
    }
}
