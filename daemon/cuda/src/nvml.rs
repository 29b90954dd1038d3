//! NVML, NVIDIA's management library, where it is found, and what it reports of a GPU's current state. Unknown values
//! are `None`, never 0.

use std::{collections::HashMap, process, sync::OnceLock};

use nvml_wrapper::{
    Device as RawNvmlDevice, Nvml,
    enum_wrappers::device::{Clock, TemperatureSensor},
    enums::device::UsedGpuMemory,
    error::NvmlError,
};

/// A GPU's current state.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveStats {
    /// Bytes that are free for this process and others.
    pub free_bytes: Option<u64>,
    /// Bytes that other processes hold, if NVML reports each one's share.
    pub held_by_others_bytes: Option<u64>,
    /// The PCI Express link. Idle GPUs lower its generation.
    pub pcie_link: Option<PcieLink>,
    /// Current clock rates, in MHz.
    pub clocks_mhz: Option<GpuClocks>,
    /// Temperature of the chip, in °C.
    pub temperature_c: Option<u32>,
    /// Current power draw, in W.
    pub power_w: Option<f64>,
    /// Power limit that is enforced, in W.
    pub power_limit_w: Option<f64>,
    /// Load over the last second or so, in percent of the time.
    pub utilization_percent: Option<GpuUtilization>,
}

/// State of a PCI Express link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PcieLink {
    /// Current generation of PCI Express.
    pub generation: u32,
    /// Highest generation that both GPU and slot support.
    pub generation_max: u32,
    /// Number of lanes in use.
    pub width: u32,
    /// Number of lanes that both GPU and slot have.
    pub width_max: u32,
}

/// Clock rates of a GPU, in MHz.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuClocks {
    /// Clock rate of the multiprocessors.
    pub sm: u32,
    /// Clock rate of the memory.
    pub memory: u32,
}

/// Load of a GPU, in percent of the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuUtilization {
    /// Share of the time in which a kernel ran.
    pub gpu: u32,
    /// Share of the time in which memory was read or written.
    pub memory: u32,
}

impl LiveStats {
    /// Reads a GPU's state by its NVML handle, if there is one.
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

/// NVML, opened once, if it is found.
pub(crate) fn nvml() -> Option<&'static Nvml> {
    // A failure is kept, unlike the driver's: NVML only adds figures.
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    NVML.get_or_init(|| Nvml::init().ok()).as_ref()
}

/// NVML's handle of a GPU.
pub(crate) struct NvmlDevice(RawNvmlDevice<'static>);

impl NvmlDevice {
    /// Finds a GPU by its PCI address: NVML's indices differ from the driver's, and ignore `CUDA_VISIBLE_DEVICES`.
    pub(crate) fn find(pci_bus_id: &str) -> Option<Self> {
        nvml()?.device_by_pci_bus_id(pci_bus_id).ok().map(Self)
    }

    pub(crate) fn free_bytes(&self) -> Option<u64> {
        self.0.memory_info().ok().map(|memory| memory.free)
    }

    /// Bytes that other processes hold; `None` if any process's share is unknown, or if this process isn't listed.
    fn held_by_others_bytes(&self) -> Option<u64> {
        let mut bytes_by_process = self.bytes_by_process()?;
        bytes_by_process.remove(&process::id())?;
        Some(bytes_by_process.values().sum())
    }

    /// Bytes that this process holds; `None` if it isn't listed, which happens in containers, where process ids differ.
    pub(crate) fn held_bytes(&self) -> Option<u64> {
        self.bytes_by_process()?.remove(&process::id())
    }

    /// Bytes by process id; `None` if any process's share is unknown.
    fn bytes_by_process(&self) -> Option<HashMap<u32, u64>> {
        let mut processes = self.0.running_compute_processes().ok()?;
        processes.extend(self.0.running_graphics_processes().ok()?);
        // A process that computes and draws is in both lists with the same figure.
        let mut bytes_by_process = HashMap::new();
        for process in processes {
            // A partial sum would make others' share look smaller than it is.
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
