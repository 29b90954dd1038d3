//! What is known of a card, from the driver and from NVML, NVIDIA's management library, and short probes of how fast bytes
//! move. What is unknown is `None`, never 0.

use std::{
    collections::HashMap,
    ffi::{CStr, c_char},
    process,
    sync::OnceLock,
    time::Duration,
};

use nvml_wrapper::{
    Device as RawNvmlDevice, Nvml,
    enum_wrappers::device::{Clock, TemperatureSensor},
    enums::device::UsedGpuMemory,
    error::NvmlError,
};

use crate::{
    CopyStream, CudaError, Gpu, HostMemory, Span, Unavailable,
    driver::{Device, Driver},
};

/// What stays as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// As its maker calls it.
    pub name: String,
    /// `GPU-` and 32 hexadecimal digits in groups.
    pub uuid: String,
    /// Where it is plugged in: domain, bus, device and function.
    pub pci_bus_id: String,
    /// The generation of its instructions.
    pub capability: (u32, u32),
    /// The driver's own version, from NVML.
    pub driver_version: Option<String>,
    /// CUDA's version that the driver knows.
    pub cuda_version: (u32, u32),
    /// All memory that programs can have.
    pub total_bytes: u64,
    /// Processors, each of which runs blocks of a kernel.
    pub multiprocessors: u32,
    /// The cache between the processors and the memory.
    pub l2_bytes: Option<u64>,
    /// Width of the way to the card's memory.
    pub memory_bus_bits: Option<u32>,
    /// Whether it computes in bf16.
    pub has_bf16: bool,
    /// Whether it shares the host's memory.
    pub integrated: bool,
}

/// What changes from moment to moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Live {
    /// Free for this process and others, if the driver tells.
    pub free_bytes: Option<u64>,
    /// Held by other processes, where NVML tells each one's share.
    pub held_by_others_bytes: Option<u64>,
    /// The way between host and card. Idle cards lower the generation.
    pub bus: Option<Bus>,
    /// Clocks now.
    pub clocks_mhz: Option<Clocks>,
    /// Temperature of the chip.
    pub temperature_c: Option<u32>,
    /// Power drawn.
    pub power_w: Option<f64>,
    /// Power that it may draw.
    pub power_limit_w: Option<f64>,
    /// Share of the time that it worked, over the last second or so.
    pub utilization_percent: Option<Utilization>,
}

/// A PCI Express link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bus {
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
pub struct Clocks {
    /// The processors'.
    pub sm: u32,
    /// The memory's.
    pub memory: u32,
}

/// How busy a card is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Utilization {
    /// Some kernel ran.
    pub gpu: u32,
    /// The memory was read or written.
    pub memory: u32,
}

/// A card that this process may see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceName {
    /// What [`Gpu::open`] takes.
    pub ordinal: usize,
    /// As its maker calls it.
    pub name: String,
    /// The generation of its instructions.
    pub capability: (u32, u32),
    /// All memory that programs can have.
    pub total_bytes: u64,
}

/// The cards that this process may see, at least one; none is opened.
///
/// # Errors
/// Why there is none.
pub fn devices() -> Result<Vec<DeviceName>, Unavailable> {
    let driver = Driver::get()?;
    (0..driver.device_count()?)
        .map(|ordinal| {
            let device = driver.device(ordinal)?;
            Ok(DeviceName {
                ordinal,
                name: name(driver, device)?,
                capability: capability(driver, device)?,
                total_bytes: total_bytes(driver, device)?,
            })
        })
        .collect()
}

// The driver's names for what can be asked of a card.
const INTEGRATED: i32 = 18;
const MULTIPROCESSOR_COUNT: i32 = 16;
const COMPUTE_MODE: i32 = 20;
const MEMORY_BUS_WIDTH: i32 = 37;
const L2_CACHE_SIZE: i32 = 38;
const CAPABILITY_MAJOR: i32 = 75;
const CAPABILITY_MINOR: i32 = 76;

impl Facts {
    pub(crate) fn read(driver: &Driver, device: Device) -> Result<Self, CudaError> {
        let known = |attribute| {
            driver
                .attribute(device, attribute)
                .ok()
                .filter(|&value| value > 0)
        };
        let capability = capability(driver, device)?;
        Ok(Self {
            name: name(driver, device)?,
            uuid: uuid(driver, device)?,
            pci_bus_id: pci_bus_id(driver, device)?,
            capability,
            driver_version: nvml().and_then(|nvml| nvml.sys_driver_version().ok()),
            cuda_version: driver.cuda_version,
            total_bytes: total_bytes(driver, device)?,
            multiprocessors: driver.attribute(device, MULTIPROCESSOR_COUNT)?,
            l2_bytes: known(L2_CACHE_SIZE).map(u64::from),
            memory_bus_bits: known(MEMORY_BUS_WIDTH),
            has_bf16: capability >= (8, 0),
            integrated: known(INTEGRATED).is_some(),
        })
    }
}

impl Driver {
    /// Whether the card is set to run nobody's work.
    pub(crate) fn is_prohibited(&self, device: Device) -> bool {
        const PROHIBITED: u32 = 2;
        self.attribute(device, COMPUTE_MODE) == Ok(PROHIBITED)
    }
}

fn name(driver: &Driver, device: Device) -> Result<String, CudaError> {
    // SAFETY: at most as many bytes are written as the buffer has.
    text("ask for the card's name", driver, |buffer, bytes| unsafe {
        (driver.api.device_name)(buffer, bytes, device)
    })
}

fn pci_bus_id(driver: &Driver, device: Device) -> Result<String, CudaError> {
    // SAFETY: at most as many bytes are written as the buffer has.
    text("ask for the card's place", driver, |buffer, bytes| unsafe {
        (driver.api.device_pci_bus_id)(buffer, bytes, device)
    })
}

/// A text that the driver writes into a buffer, with a NUL at its end.
fn text(
    what: &str,
    driver: &Driver,
    write: impl FnOnce(*mut c_char, i32) -> i32,
) -> Result<String, CudaError> {
    const BYTES: i32 = 256;
    let mut buffer = [0_u8; BYTES as usize];
    driver.check(what, write(buffer.as_mut_ptr().cast(), BYTES - 1))?;
    let text = CStr::from_bytes_until_nul(&buffer).expect("the last byte stays 0");
    Ok(text.to_string_lossy().into_owned())
}

fn uuid(driver: &Driver, device: Device) -> Result<String, CudaError> {
    let mut bytes = [0; 16];
    // SAFETY: `bytes` outlives the call.
    driver.check("ask for the card's UUID", unsafe {
        (driver.api.device_uuid)(&raw mut bytes, device)
    })?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!(
        "GPU-{}-{}-{}-{}-{}",
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..]
    ))
}

fn capability(driver: &Driver, device: Device) -> Result<(u32, u32), CudaError> {
    Ok((
        driver.attribute(device, CAPABILITY_MAJOR)?,
        driver.attribute(device, CAPABILITY_MINOR)?,
    ))
}

fn total_bytes(driver: &Driver, device: Device) -> Result<u64, CudaError> {
    let mut bytes = 0;
    // SAFETY: `bytes` outlives the call.
    driver.check("ask for the card's memory", unsafe {
        (driver.api.device_total_memory)(&raw mut bytes, device)
    })?;
    Ok(bytes as u64)
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
    fn held_bytes(&self) -> Option<u64> {
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

    fn bus(&self) -> Result<Bus, NvmlError> {
        Ok(Bus {
            generation: self.0.current_pcie_link_gen()?,
            generation_max: self.0.max_pcie_link_gen()?,
            width: self.0.current_pcie_link_width()?,
            width_max: self.0.max_pcie_link_width()?,
        })
    }

    fn clocks_mhz(&self) -> Result<Clocks, NvmlError> {
        Ok(Clocks {
            sm: self.0.clock_info(Clock::SM)?,
            memory: self.0.clock_info(Clock::Memory)?,
        })
    }
}

/// How fast bytes move, in bytes a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkRates {
    /// From pinned memory to the card; from any other where the system pins nothing.
    pub pinned_to_device: f64,
    /// From any other memory to the card.
    pub pageable_to_device: f64,
    /// On the card, from one place to another: each byte is read and written, and counted once.
    pub device_copy: f64,
}

/// What [`Gpu::measure_rates`] takes on the card while it runs, at least, and a quarter of it on the host.
pub const PROBE_BYTES: usize = 128 << 20;

/// The fastest of these counts: others met somebody else's work, or a card that was still waking up.
const PROBE_ROUNDS: usize = 6;

impl Gpu {
    /// So many bytes or, where that is more, so many that the card's cache holds little of them when their turn comes again:
    /// what takes its time from memory is timed with these. No more than a part of what is free.
    #[must_use]
    pub fn beyond_cache(&self, least: usize) -> usize {
        const CACHES: u64 = 4;
        const OF_FREE: u64 = 8;
        let cache = self.facts().l2_bytes.unwrap_or(0);
        let free = self.memory().map_or(0, |memory| memory.free_bytes);
        least.max((CACHES * cache).min(free / OF_FREE) as usize)
    }

    /// What changes from moment to moment.
    #[must_use]
    pub fn live(&self) -> Live {
        let nvml = self.nvml();
        let watts = |milliwatts: u32| f64::from(milliwatts) / 1000.0;
        Live {
            free_bytes: self.memory().ok().map(|memory| memory.free_bytes),
            held_by_others_bytes: nvml.and_then(NvmlDevice::held_by_others_bytes),
            bus: nvml.and_then(|card| card.bus().ok()),
            clocks_mhz: nvml.and_then(|card| card.clocks_mhz().ok()),
            temperature_c: nvml.and_then(|card| card.0.temperature(TemperatureSensor::Gpu).ok()),
            power_w: nvml.and_then(|card| card.0.power_usage().ok()).map(watts),
            power_limit_w: nvml
                .and_then(|card| card.0.enforced_power_limit().ok())
                .map(watts),
            utilization_percent: nvml.and_then(|card| card.0.utilization_rates().ok()).map(
                |rates| Utilization {
                    gpu: rates.gpu,
                    memory: rates.memory,
                },
            ),
        }
    }

    /// What this process holds of the card's memory, its context among it, by NVML's count; unknown where that doesn't tell.
    #[must_use]
    pub fn held_bytes(&self) -> Option<u64> {
        self.nvml()?.held_bytes()
    }

    /// Measures how fast bytes move, in some tens of milliseconds, with [`PROBE_BYTES`] on the card or more than its cache holds.
    ///
    /// # Errors
    /// When there is no room for the probe, or the driver fails.
    pub fn measure_rates(&self) -> Result<LinkRates, CudaError> {
        const HOST_BYTES: usize = PROBE_BYTES / 8;
        let part = self.beyond_cache(PROBE_BYTES / 2);
        let memory = self.allocate(2 * part)?;
        let (one, other) = (memory.span().part(0, part), memory.span().part(part, part));
        let to = memory.span().part(0, HOST_BYTES);
        // Where the system pins nothing, weights are copied from memory as any other.
        let pinned = match HostMemory::pinned(self, HOST_BYTES) {
            Err(CudaError::OutOfPinnedMemory { .. }) => HostMemory::pageable(self, HOST_BYTES)?,
            pinned => pinned?,
        };
        let copies = CopyStream::new(self)?;
        // Written, so that the system has given it pages.
        let pageable = vec![1_u8; HOST_BYTES];
        let rate = |bytes: usize, work: &dyn Fn() -> Result<(), CudaError>| {
            let mut fastest = Duration::MAX;
            for _ in 0..PROBE_ROUNDS {
                let timer = self.start_timer()?;
                work()?;
                fastest = fastest.min(timer.stop()?);
            }
            // Less than this is noise.
            let seconds = fastest.max(Duration::from_micros(1)).as_secs_f64();
            Ok::<_, CudaError>(bytes as f64 / seconds)
        };
        Ok(LinkRates {
            pinned_to_device: HOST_BYTES as f64 / fastest_copy(&copies, &pinned, to)?,
            pageable_to_device: rate(HOST_BYTES, &|| self.upload(to, &pageable))?,
            device_copy: rate(part, &|| self.copy(other, one))?,
        })
    }
}

/// Seconds that the fastest copy of all that memory took, between marks: the host's waiting is no part of it.
fn fastest_copy(copies: &CopyStream, from: &HostMemory, to: Span) -> Result<f64, CudaError> {
    let mut fastest = Duration::MAX;
    for _ in 0..PROBE_ROUNDS {
        let begin = copies.mark()?;
        copies.copy(from, [(to, 0..from.len())])?;
        let end = copies.mark()?;
        end.wait()?;
        let time = end.since(&begin)?;
        fastest = fastest.min(time.expect("it was waited for"));
    }
    // Less than this is noise.
    Ok(fastest.max(Duration::from_micros(1)).as_secs_f64())
}
