//! What stays known of a GPU, from the driver and from NVML. What is unknown is `None`, never 0.

use std::ffi::{CStr, c_char};

use crate::{
    driver::{DeviceHandle, Driver},
    error::{CudaError, GpuUnavailable},
    nvml::nvml,
};

/// What stays as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceProperties {
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

/// A card that this process may see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceName {
    /// What [`Gpu::open`](crate::Gpu::open) takes.
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
pub fn devices() -> Result<Vec<DeviceName>, GpuUnavailable> {
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
const MEMORY_BUS_WIDTH: i32 = 37;
const L2_CACHE_SIZE: i32 = 38;
const CAPABILITY_MAJOR: i32 = 75;
const CAPABILITY_MINOR: i32 = 76;

impl DeviceProperties {
    pub(crate) fn read(driver: &Driver, device: DeviceHandle) -> Result<Self, CudaError> {
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

fn name(driver: &Driver, device: DeviceHandle) -> Result<String, CudaError> {
    // SAFETY: at most as many bytes are written as the buffer has.
    text("query the GPU's name", driver, |buffer, bytes| unsafe {
        (driver.api.device_name)(buffer, bytes, device)
    })
}

fn pci_bus_id(driver: &Driver, device: DeviceHandle) -> Result<String, CudaError> {
    // SAFETY: at most as many bytes are written as the buffer has.
    text(
        "query the GPU's PCI bus id",
        driver,
        |buffer, bytes| unsafe { (driver.api.device_pci_bus_id)(buffer, bytes, device) },
    )
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

fn uuid(driver: &Driver, device: DeviceHandle) -> Result<String, CudaError> {
    let mut bytes = [0; 16];
    // SAFETY: `bytes` outlives the call.
    driver.check("query the GPU's UUID", unsafe {
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

fn capability(driver: &Driver, device: DeviceHandle) -> Result<(u32, u32), CudaError> {
    Ok((
        driver.attribute(device, CAPABILITY_MAJOR)?,
        driver.attribute(device, CAPABILITY_MINOR)?,
    ))
}

fn total_bytes(driver: &Driver, device: DeviceHandle) -> Result<u64, CudaError> {
    let mut bytes = 0;
    // SAFETY: `bytes` outlives the call.
    driver.check("query the GPU's memory size", unsafe {
        (driver.api.device_total_memory)(&raw mut bytes, device)
    })?;
    Ok(bytes as u64)
}
