//! What is known of a card, on the wire.

use sluice_machine::MemoryKind;
use sluice_ops::device::{Device, Gpu, LiveStats};
use sluice_proto::v1;

use super::format;

/// The GPU and its live figures, where the driver tells them.
#[must_use]
pub fn gpu(device: &Device, gpu: &Gpu, live: Option<&LiveStats>) -> v1::GpuStatus {
    let facts = gpu.properties();
    let bus = live.and_then(|live| live.pcie_link);
    let clocks = live.and_then(|live| live.clocks_mhz);
    let version = |(major, minor): (u32, u32)| format!("{major}.{minor}");
    v1::GpuStatus {
        compute_dtype: format::dtype(device.dtype().into()).into(),
        compute_capability: version(facts.capability),
        uuid: facts.uuid.clone(),
        pci_bus_id: facts.pci_bus_id.clone(),
        driver_version: facts.driver_version.clone(),
        cuda_version: version(facts.cuda_version),
        cublas: gpu.blas().map(|blas| blas.name().to_owned()),
        multiprocessors: facts.multiprocessors,
        other_processes_bytes: live.and_then(|live| live.held_by_others_bytes),
        pcie_generation: bus.map(|bus| bus.generation),
        pcie_generation_max: bus.map(|bus| bus.generation_max),
        pcie_lanes: bus.map(|bus| bus.width),
        pcie_lanes_max: bus.map(|bus| bus.width_max),
        clock_mhz: clocks.map(|clocks| clocks.sm),
        memory_clock_mhz: clocks.map(|clocks| clocks.memory),
        temperature_c: live.and_then(|live| live.temperature_c),
        power_w: live.and_then(|live| live.power_w),
        power_limit_w: live.and_then(|live| live.power_limit_w),
        utilization_percent: live
            .and_then(|live| live.utilization_percent)
            .map(|busy| busy.gpu),
    }
}

/// Whether so many bytes of a kind say something. The CPU has no context, and where NVML is missing nobody tells what a
/// GPU's takes: it is never known to be 0. A model without a KV cache has none.
#[must_use]
pub fn is_known(kind: MemoryKind, bytes: u64) -> bool {
    !matches!(
        kind,
        MemoryKind::Context | MemoryKind::KvCache | MemoryKind::State
    ) || bytes > 0
}
