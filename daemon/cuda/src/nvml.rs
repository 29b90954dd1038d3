//! NVML, NVIDIA's management library, where it is found, and what it knows of a GPU from moment to moment. What is unknown
//! is `None`, never 0.

use std::{collections::HashMap, process, sync::OnceLock};

use nvml_wrapper::{
    Device as RawNvmlDevice, Nvml,
    enum_wrappers::device::{Clock, TemperatureSensor},
    enums::device::UsedGpuMemory,
    error::NvmlError,
};

/// What changes from moment to moment.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveStats {
    /// Free for this process and others, if the driver tells.
    pub free_bytes: Option<u64>,
    /// Held by other processes, where NVML tells each one's share.
    pub held_by_others_bytes: Option<u64>,
    /// The way between host and card. Idle cards lower the generation.
    pub pcie_link: Option<PcieLink>,
    /// Clocks now.
    pub clocks_mhz: Option<GpuClocks>,
    /// Temperature of the chip.
    pub temperature_c: Option<u32>,
    /// Power drawn.
    pub power_w: Option<f64>,
    /// Power that it may draw.
    pub power_limit_w: Option<f64>,
    /// Share of the time that it worked, over the last second or so.
    pub utilization_percent: Option<GpuUtilization>,
}

/// A PCI Express link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PcieLink {
    /// Of PCI Express, now.
    pub generation: u32,
    /// What card and slot both can do.
    pub generation_max: u32,
    /// Lanes now.
    pub width: u32,
    /// What card and slot both have.
    pub width_max: u32,
}

/// How fast a card is clocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuClocks {
    /// The processors'.
    pub sm: u32,
    /// The memory's.
    pub memory: u32,
}

/// How busy a card is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuUtilization {
    /// Some kernel ran.
    pub gpu: u32,
    /// The memory was read or written.
    pub memory: u32,
}

impl LiveStats {
    /// By NVML's handle of the card, where there is one.
    pub(crate) fn read(nvml: Option<&NvmlDevice>, free_bytes: Option<u64>) -> Self {
        let watts = |milliwatts: u32| f64::from(milliwatts) / 1000.0;
        Self {
            free_bytes,
            held_by_others_bytes: nvml.and_then(NvmlDevice::held_by_others_bytes),
            pcie_link: nvml.and_then(|card| card.pcie_link().ok()),
            clocks_mhz: nvml.and_then(|card| card.clocks_mhz().ok()),
            temperature_c: nvml.and_then(|card| card.0.temperature(TemperatureSensor::Gpu).ok()),
            power_w: nvml.and_then(|card| card.0.power_usage().ok()).map(watts),
            power_limit_w: nvml
                .and_then(|card| card.0.enforced_power_limit().ok())
                .map(watts),
            utilization_percent: nvml.and_then(|card| card.0.utilization_rates().ok()).map(
                |rates| GpuUtilization {
                    gpu: rates.gpu,
                    memory: rates.memory,
                },
            ),
        }
    }
}

/// NVML, opened once, where it is found.
pub(crate) fn nvml() -> Option<&'static Nvml> {
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    NVML.get_or_init(|| Nvml::init().ok()).as_ref()
}

/// A card as NVML knows it.
pub(crate) struct NvmlDevice(RawNvmlDevice<'static>);

impl NvmlDevice {
    /// By its place, since NVML numbers cards otherwise than the driver does, and knows nothing of `CUDA_VISIBLE_DEVICES`.
    pub(crate) fn find(pci_bus_id: &str) -> Option<Self> {
        nvml()?.device_by_pci_bus_id(pci_bus_id).ok().map(Self)
    }

    pub(crate) fn free_bytes(&self) -> Option<u64> {
        self.0.memory_info().ok().map(|memory| memory.free)
    }

    /// What other processes hold; unknown when the share of any is, or when this process isn't listed.
    fn held_by_others_bytes(&self) -> Option<u64> {
        let mut bytes_by_process = self.bytes_by_process()?;
        bytes_by_process.remove(&process::id())?;
        Some(bytes_by_process.values().sum())
    }

    /// What this process holds; unknown when it isn't listed, which happens in containers, where process ids mean something
    /// else.
    pub(crate) fn held_bytes(&self) -> Option<u64> {
        self.bytes_by_process()?.remove(&process::id())
    }

    /// Unknown when the share of any is.
    fn bytes_by_process(&self) -> Option<HashMap<u32, u64>> {
        let mut processes = self.0.running_compute_processes().ok()?;
        processes.extend(self.0.running_graphics_processes().ok()?);
        // One that computes and draws is in both lists with the same figure.
        let mut bytes_by_process = HashMap::new();
        for process in processes {
            let UsedGpuMemory::Used(bytes) = process.used_gpu_memory else {
                return None;
            };
            bytes_by_process.insert(process.pid, bytes);
        }
        Some(bytes_by_process)
    }

    fn pcie_link(&self) -> Result<PcieLink, NvmlError> {
        Ok(PcieLink {
            generation: self.0.current_pcie_link_gen()?,
            generation_max: self.0.max_pcie_link_gen()?,
            width: self.0.current_pcie_link_width()?,
            width_max: self.0.max_pcie_link_width()?,
        })
    }

    fn clocks_mhz(&self) -> Result<GpuClocks, NvmlError> {
        Ok(GpuClocks {
            sm: self.0.clock_info(Clock::SM)?,
            memory: self.0.clock_info(Clock::Memory)?,
        })
    }
}
