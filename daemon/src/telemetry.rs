//! One picture of the daemon: what it is, holds and does.

use std::{
    fs, process,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use sluice_engine::{Engine, Settings};
use sluice_ops::{
    device::{Gpu, Live},
    ledger,
};
use sluice_proto::{PROTOCOL, v1};
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

use crate::{services::Daemon, translate};

/// What the machine says of itself.
pub struct HostFacts {
    /// `None` where the machine does not tell.
    system: Option<Mutex<System>>,
    processor: String,
}

impl Default for HostFacts {
    fn default() -> Self {
        Self::new()
    }
}

impl HostFacts {
    /// Asks for what does not change.
    #[must_use]
    pub fn new() -> Self {
        let kind = RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing());
        let system = System::new_with_specifics(kind).ok();
        let processor = system
            .as_ref()
            .and_then(|system| system.cpus().first())
            .map(|cpu| cpu.brand().trim())
            .filter(|brand| !brand.is_empty())
            .unwrap_or("unknown processor")
            .to_owned();
        Self {
            system: system.map(Mutex::new),
            processor,
        }
    }

    /// Bytes in all, and those that could be had now.
    fn memory(&self) -> Option<(u64, u64)> {
        let mut system = self
            .system
            .as_ref()?
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
        // The library says 0 for what it could not read.
        Some((system.total_memory(), system.available_memory())).filter(|(total, _)| *total > 0)
    }

    /// What this process holds in memory, where the system tells.
    #[must_use]
    pub fn resident_bytes(&self) -> Option<u64> {
        self.to_wire(0).resident_bytes
    }

    /// While the engine holds so many bytes in this process.
    fn to_wire(&self, held_bytes: u64) -> v1::Host {
        let (total, available) = self.memory().unzip();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let resident = status_bytes(&status, "VmRSS:");
        v1::Host {
            total_bytes: total,
            available_bytes: available,
            resident_bytes: resident,
            resident_peak_bytes: status_bytes(&status, "VmHWM:"),
            // What was taken and never written to is held, and not resident.
            resident_beyond_bytes: resident.map(|bytes| bytes.saturating_sub(held_bytes)),
            resident_program_bytes: status_bytes(&status, "RssFile:"),
        }
    }
}

/// A figure of `/proc/self/status`, which counts in KiB.
fn status_bytes(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// What changes on a card, asked for at most once in a while: driver and NVML take their time, and more of it while the
/// card is given work.
#[derive(Default)]
pub struct CardFigures(tokio::sync::Mutex<Option<(Instant, Live)>>);

impl CardFigures {
    /// How long figures are as good as new.
    const PATIENCE: Duration = Duration::from_secs(1);

    /// On a thread that may wait; those that ask meanwhile wait for the same answer.
    async fn of(&self, gpu: &Gpu) -> Option<Live> {
        let mut known = self.0.lock().await;
        if let Some((since, live)) = &*known
            && since.elapsed() < Self::PATIENCE
        {
            return Some(live.clone());
        }
        let gpu = gpu.clone();
        let live = tokio::task::spawn_blocking(move || gpu.live()).await.ok()?;
        *known = Some((Instant::now(), live.clone()));
        Some(live)
    }
}

/// The picture as it is now; what changes on a card by itself may be a second old.
pub async fn snapshot(daemon: &Daemon) -> v1::Snapshot {
    let live = match daemon.engine.device().gpu() {
        Some(gpu) => daemon.card.of(gpu).await,
        None => None,
    };
    let state = if daemon.is_draining() {
        v1::ServerState::Draining
    } else if daemon.models.serving().is_ok() {
        v1::ServerState::Ready
    } else {
        v1::ServerState::NoModel
    };
    let queue = daemon.engine.queue();
    let active = daemon.requests.active();
    // Read once: figures of one picture agree, whatever the engine does meanwhile.
    let memory = daemon.engine.memory();
    v1::Snapshot {
        server: Some(v1::Server {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol_version: PROTOCOL,
            pid: process::id(),
            uptime_ms: daemon.started.elapsed().as_millis() as u64,
            state: state.into(),
            socket: daemon.socket.to_string_lossy().into_owned(),
        }),
        device: Some(device(daemon, live.as_ref(), &memory)),
        host: Some(daemon.host.to_wire(held_here(daemon, &memory))),
        model: daemon.models.present(),
        queue: Some(v1::Queue {
            capacity: queue.capacity as u32,
            waiting: (queue.waiting + daemon.waiting_for_model()) as u32,
            running: queue.running as u32,
        }),
        requests: active.iter().map(|record| record.summary()).collect(),
        totals: Some(daemon.requests.totals().to_wire()),
        settings: Some(settings(daemon)),
        jobs: daemon.jobs.running(),
        ..weights(daemon)
    }
}

/// Bytes that the engine holds of this process's memory.
fn held_here(daemon: &Daemon, memory: &ledger::Report) -> u64 {
    match daemon.engine.device().is_card() {
        true => daemon.engine.pinned_bytes(),
        false => memory.used_bytes,
    }
}

/// The plan in force and what came of it; empty without a model.
fn weights(daemon: &Daemon) -> v1::Snapshot {
    let Some(in_force) = daemon.engine.in_force() else {
        return v1::Snapshot::default();
    };
    let model = daemon.models.serving();
    let name = model.map_or_else(|_| String::new(), |serving| serving.name.name);
    v1::Snapshot {
        plan: Some(translate::plan::plan(&in_force.plan, &name)),
        switching: in_force.switch.map(translate::plan::switch),
        switch_target: in_force.switch.and_then(|_| daemon.switch_target.get()),
        epoch: Some(in_force.epoch),
        measured: Some(translate::plan::measured(&in_force.measured)),
        layers: translate::plan::states(&in_force.units),
        ..Default::default()
    }
}

fn settings(daemon: &Daemon) -> v1::Settings {
    let wire = |settings| settings_to_wire(&daemon.engine, settings);
    let substitution = daemon.engine.substitution();
    let loaded = daemon.engine.loaded_with().map(|loaded| {
        let serving = daemon.models.serving();
        // What was asked for doesn't count: nobody goes back to that.
        serving.map_or(loaded, |serving| serving.start.instead_of(loaded))
    });
    v1::Settings {
        loaded_with: loaded.map(|settings| Box::new(wire(settings))),
        substitution: substitution.map(|substitution| v1::Substitution {
            asked: substitution.asked.name().to_owned(),
            taken: substitution.taken.name().to_owned(),
            reason: substitution.reason,
        }),
        ..wire(daemon.engine.settings())
    }
}

fn settings_to_wire(engine: &Engine, settings: Settings) -> v1::Settings {
    let default = || engine.budget_default();
    v1::Settings {
        level: settings.level.name().to_owned(),
        budget_bytes: settings.budget_bytes.unwrap_or_else(default),
        is_default_budget: settings.budget_bytes.is_none(),
        embedding: settings.embedding.name().to_owned(),
        auto_factor: settings.auto_factor,
        kv: settings.kv.name().to_owned(),
        ..Default::default()
    }
}

fn device(daemon: &Daemon, live: Option<&Live>, memory: &ledger::Report) -> v1::Device {
    let device = daemon.engine.device();
    let (total_bytes, free_bytes) = match device.gpu() {
        Some(gpu) => (
            Some(gpu.facts().total_bytes),
            live.and_then(|live| live.free_bytes),
        ),
        None => {
            let facts = device.memory();
            (facts.total_bytes, facts.free_bytes)
        }
    };
    let kinds = memory.kinds.iter();
    let kinds = kinds.filter(|kind| translate::card::is_known(kind.kind, kind.peak_bytes));
    let kinds = kinds.map(|kind| v1::MemoryKind {
        kind: kind.kind.name().to_owned(),
        bytes: kind.bytes,
        peak_bytes: kind.peak_bytes,
    });
    v1::Device {
        kind: if device.is_card() { "cuda" } else { "cpu" }.to_owned(),
        name: match device.gpu() {
            Some(gpu) => gpu.name().to_owned(),
            None => daemon.host.processor.clone(),
        },
        card: device
            .gpu()
            .map(|gpu| translate::card::card(device, gpu, live)),
        no_card: daemon.engine.no_card().map(|why| v1::NoCard {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_the_process_are_read() {
        let status = "Name:\tsluiced\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(status_bytes(status, "VmRSS:"), Some(1 << 20));
        assert_eq!(status_bytes(status, "VmHWM:"), Some(2 << 20));
        assert_eq!(status_bytes(status, "VmSwap:"), None);
    }

    #[test]
    fn this_machine_tells_its_memory() {
        let host = HostFacts::new().to_wire(4096);
        assert!(host.total_bytes > host.available_bytes);
        let resident = host.resident_bytes.unwrap();
        assert_eq!(host.resident_beyond_bytes, Some(resident - 4096));
        assert!(
            host.resident_program_bytes
                .is_some_and(|bytes| bytes < resident)
        );
        let host = HostFacts::new().to_wire(u64::MAX);
        assert_eq!(host.resident_beyond_bytes, Some(0));
    }
}
