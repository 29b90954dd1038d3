//! Facts and figures of the host and the GPU.

use std::{
    fs,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use sluice_ops::device::{Gpu, LiveStats};
use sluice_proto::v1;
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

/// Facts and figures of the host.
pub struct HostFacts {
    /// `None` if the system's figures cannot be read.
    system: Option<Mutex<System>>,
    pub(crate) processor: String,
}

impl Default for HostFacts {
    fn default() -> Self {
        Self::new()
    }
}

impl HostFacts {
    /// Reads the facts that do not change.
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
        // The library reports 0 for what it could not read.
        Some((system.total_memory(), system.available_memory())).filter(|(total, _)| *total > 0)
    }

    /// Bytes of this process in RAM; `None` if the system does not tell.
    #[must_use]
    pub fn resident_bytes(&self) -> Option<u64> {
        self.to_wire(0).resident_bytes
    }

    /// While the engine holds so many bytes in this process.
    pub(crate) fn to_wire(&self, held_bytes: u64) -> v1::HostStatus {
        let (total, available) = self.memory().unzip();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let resident = status_bytes(&status, "VmRSS:");
        v1::HostStatus {
            total_bytes: total,
            available_bytes: available,
            resident_bytes: resident,
            resident_peak_bytes: status_bytes(&status, "VmHWM:"),
            // Saturating: memory that was allocated and never written to counts as held, but is not resident.
            resident_other_bytes: resident.map(|bytes| bytes.saturating_sub(held_bytes)),
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

/// Live figures of the GPU, read at most once a second: driver and NVML are slow, and slower while the GPU computes.
#[derive(Default)]
pub struct GpuFigures(tokio::sync::Mutex<Option<(Instant, LiveStats)>>);

impl GpuFigures {
    /// How long figures are used again.
    const PATIENCE: Duration = Duration::from_secs(1);

    /// The GPU's figures, read on a blocking thread. Callers that come meanwhile wait on the lock for the same answer.
    pub(crate) async fn of(&self, gpu: &Gpu) -> Option<LiveStats> {
        let mut known = self.0.lock().await;
        if let Some((since, live)) = &*known
            && since.elapsed() < Self::PATIENCE
        {
            return Some(live.clone());
        }
        let gpu = gpu.clone();
        let live = tokio::task::spawn_blocking(move || gpu.live_stats())
            .await
            .ok()?;
        *known = Some((Instant::now(), live.clone()));
        Some(live)
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
        assert_eq!(host.resident_other_bytes, Some(resident - 4096));
        assert!(
            host.resident_program_bytes
                .is_some_and(|bytes| bytes < resident)
        );
        let host = HostFacts::new().to_wire(u64::MAX);
        assert_eq!(host.resident_other_bytes, Some(0));
    }
}
