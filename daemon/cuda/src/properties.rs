//! Constant properties of a GPU, from the driver and NVML. Unknown values are `None`, never 0.

use std::ffi::{CStr, c_char};

use crate::{
    driver::{DeviceHandle, Driver},
    error::{CudaError, GpuUnavailable},
    nvml::nvml,
};

/// Constant properties of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceProperties {
    /// The product's name, e.g. `NVIDIA H200`.
    pub name: String,
    /// `GPU-` and 32 hexadecimal digits in groups.
    pub uuid: String,
    /// PCI address: domain, bus, device and function.
    pub pci_bus_id: String,
    /// Compute capability: major and minor version.
    pub capability: (u32, u32),
    /// Version of the driver package, from NVML.
    pub driver_version: Option<String>,
    /// CUDA version that the driver supports.
    pub cuda_version: (u32, u32),
    /// Total memory that programs can use, in bytes.
    pub total_bytes: u64,
    /// Number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// Size of the level-2 cache, in bytes.
    pub l2_bytes: Option<u64>,
    /// Width of the memory interface, in bits.
    pub memory_bus_bits: Option<u32>,
    /// Whether it computes in bf16.
    pub has_bf16: bool,
    /// Whether it shares the host's memory.
    pub integrated: bool,
}

/// A GPU that this process may see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceName {
    /// Its index, for [`Gpu::open`](crate::Gpu::open).
    pub ordinal: usize,
    /// The product's name, e.g. `NVIDIA H200`.
    pub name: String,
    /// Compute capability: major and minor version.
    pub capability: (u32, u32),
    /// Total memory that programs can use, in bytes.
    pub total_bytes: u64,
}

/// Lists the GPUs that this process may see, at least one, without opening any.
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

// `CUdevice_attribute` values of cuda.h.
const INTEGRATED: i32 = 18;
const MULTIPROCESSOR_COUNT: i32 = 16;
const MEMORY_BUS_WIDTH: i32 = 37;
const L2_CACHE_SIZE: i32 = 38;
const CAPABILITY_MAJOR: i32 = 75;
const CAPABILITY_MINOR: i32 = 76;

impl DeviceProperties {
    pub(crate) fn read(driver: &Driver, device: DeviceHandle) -> Result<Self, CudaError> {
        // The driver reports 0 for an attribute that it doesn't know of this GPU.
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
            // Ampere and newer multiply bf16 in tensor cores; Turing has no bf16 instructions.
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

/// A NUL-terminated text that the driver writes into a buffer.
fn text(
    what: &str,
    driver: &Driver,
    write: impl FnOnce(*mut c_char, i32) -> i32,
) -> Result<String, CudaError> {
    const BYTES: i32 = 256;
    let mut buffer = [0_u8; BYTES as usize];
    // One byte less than the buffer has, so that its last byte stays 0 whatever the driver writes.
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
