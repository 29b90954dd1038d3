//! NVIDIA's driver, opened at run time, since most machines that Sluice starts on may have none.
//!
//! Only functions that every driver since CUDA 12.0 has are used, and all of them are looked up at once. The bindings
//! are our own: existing crates open other names first (`libcuda.so` may be the toolkit's stub), drop the system's
//! error messages, panic when a function is missing, and take codes for Rust enums, which a newer driver's code breaks.

use std::{
    env,
    ffi::{CStr, c_char, c_uint, c_void},
    ptr,
    sync::{Mutex, PoisonError},
};

use libloading::Library;

use crate::{
    error::{CudaError, GpuUnavailable, code},
    library::{self, ErrorCode, functions},
    nvml::nvml,
};

const LIBRARY: &str = "libcuda.so.1";

/// The CUDA version whose compiler made the PTX; an older driver cannot read it. Linux drivers support it since 525.60.
pub const CUDA_NEEDED: (u32, u32) = (12, 0);

/// The driver's handle of a GPU.
pub(crate) type DeviceHandle = i32;
/// The driver's opaque pointers.
pub(crate) type Handle = *mut c_void;

functions! {
    /// The driver's required functions, by the names of cuda.h.
    struct Api {
        init: cuInit(c_uint),
        error_name: cuGetErrorName(ErrorCode, *mut *const c_char),
        error_text: cuGetErrorString(ErrorCode, *mut *const c_char),

        device_count: cuDeviceGetCount(*mut i32),
        device_get: cuDeviceGet(*mut DeviceHandle, i32),
        device_name: cuDeviceGetName(*mut c_char, i32, DeviceHandle),
        device_uuid: cuDeviceGetUuid(*mut [u8; 16], DeviceHandle),
        device_pci_bus_id: cuDeviceGetPCIBusId(*mut c_char, i32, DeviceHandle),
        // Names are the library's: cuda.h maps plain names to `_v2` where a signature has changed.
        device_total_memory: cuDeviceTotalMem_v2(*mut usize, DeviceHandle),
        device_attribute: cuDeviceGetAttribute(*mut i32, i32, DeviceHandle),

        context_flags: cuDevicePrimaryCtxSetFlags_v2(DeviceHandle, c_uint),
        context_retain: cuDevicePrimaryCtxRetain(*mut Handle, DeviceHandle),
        context_release: cuDevicePrimaryCtxRelease_v2(DeviceHandle),
        context_set_current: cuCtxSetCurrent(Handle),
        context_wait: cuCtxSynchronize(),

        memory_info: cuMemGetInfo_v2(*mut usize, *mut usize),
        memory_allocate: cuMemAlloc_v2(*mut u64, usize),
        memory_free: cuMemFree_v2(u64),
        host_allocate: cuMemHostAlloc(*mut *mut c_void, usize, c_uint),
        host_free: cuMemFreeHost(*mut c_void),
        copy_to_device: cuMemcpyHtoDAsync_v2(u64, *const c_void, usize, Handle),
        copy_to_host: cuMemcpyDtoHAsync_v2(*mut c_void, u64, usize, Handle),
        copy_on_device: cuMemcpyDtoDAsync_v2(u64, u64, usize, Handle),
        fill: cuMemsetD8Async(u64, u8, usize, Handle),

        stream_create: cuStreamCreate(*mut Handle, c_uint),
        stream_wait: cuStreamSynchronize(Handle),
        stream_begin_after: cuStreamWaitEvent(Handle, Handle, c_uint),
        stream_destroy: cuStreamDestroy_v2(Handle),
        event_create: cuEventCreate(*mut Handle, c_uint),
        event_record: cuEventRecord(Handle, Handle),
        event_wait: cuEventSynchronize(Handle),
        event_elapsed: cuEventElapsedTime(*mut f32, Handle, Handle),
        event_destroy: cuEventDestroy_v2(Handle),

        module_load: cuModuleLoadDataEx(*mut Handle, *const c_void, c_uint, *mut i32, *mut *mut c_void),
        module_function: cuModuleGetFunction(*mut Handle, Handle, *const c_char),
        module_unload: cuModuleUnload(Handle),
        launch: cuLaunchKernel(
            Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void,
        ),
    }
}

functions! {
    /// Functions that map memory to reserved addresses. Sluice works without them.
    struct RangeApi {
        granularity: cuMemGetAllocationGranularity(*mut usize, *const Properties, i32),
        reserve: cuMemAddressReserve(*mut u64, usize, usize, u64, u64),
        free: cuMemAddressFree(u64, usize),
        create: cuMemCreate(*mut u64, usize, *const Properties, u64),
        release: cuMemRelease(u64),
        map: cuMemMap(u64, usize, usize, u64, u64),
        unmap: cuMemUnmap(u64, usize),
        set_access: cuMemSetAccess(u64, usize, *const Access, usize),
    }
}

/// `CUmemLocation` of cuda.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    kind: i32,
    id: i32,
}

impl Location {
    fn on(device: DeviceHandle) -> Self {
        const DEVICE: i32 = 1;
        Self {
            kind: DEVICE,
            id: device,
        }
    }
}

/// `CUmemAllocationProp` of cuda.h.
#[repr(C)]
pub(crate) struct Properties {
    kind: i32,
    handle_kinds: i32,
    location: Location,
    for_windows: *mut c_void,
    flags: [u8; 8],
}

impl Properties {
    /// Plain memory on a GPU.
    pub(crate) fn on(device: DeviceHandle) -> Self {
        const PINNED: i32 = 1;
        Self {
            kind: PINNED,
            handle_kinds: 0,
            location: Location::on(device),
            for_windows: ptr::null_mut(),
            flags: [0; 8],
        }
    }
}

/// `CUmemAccessDesc` of cuda.h.
#[repr(C)]
pub(crate) struct Access {
    location: Location,
    flags: i32,
}

impl Access {
    /// Read and write access for a GPU.
    pub(crate) fn to(device: DeviceHandle) -> Self {
        const READ_WRITE: i32 = 3;
        Self {
            location: Location::on(device),
            flags: READ_WRITE,
        }
    }
}

/// The initialized driver.
pub(crate) struct Driver {
    pub(crate) api: Api,
    pub(crate) ranges: Option<RangeApi>,
    /// The CUDA version that it supports.
    pub(crate) cuda_version: (u32, u32),
}

impl Driver {
    /// The driver, opened once. A failure isn't kept: a driver may be installed while the daemon runs.
    pub(crate) fn get() -> Result<&'static Self, GpuUnavailable> {
        static DRIVER: Mutex<Option<&'static Driver>> = Mutex::new(None);
        let mut driver = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = *driver {
            return Ok(driver);
        }
        let opened = Box::leak(Box::new(Self::open()?));
        *driver = Some(opened);
        Ok(opened)
    }

    fn open() -> Result<Self, GpuUnavailable> {
        let (library, _) = library::open_first(&[LIBRARY])
            .map_err(|reason| GpuUnavailable::NoDriver { reason })?;
        // The driver starts threads of its own, so it is never unloaded.
        let library = Box::leak(Box::new(library));
        // Checked before the other functions are looked up: an old driver lacks some, and its age is the better error.
        let cuda_version = cuda_version(library)?;
        if cuda_version < CUDA_NEEDED {
            return Err(GpuUnavailable::DriverTooOld {
                found: cuda_version,
                needed: CUDA_NEEDED,
            });
        }
        // SAFETY: the types are those of cuda.h, and have been since CUDA 11.
        let api = unsafe { Api::find(library) }.map_err(incomplete)?;
        // SAFETY: as above.
        let ranges = unsafe { RangeApi::find(library) }.ok();
        let driver = Self {
            api,
            ranges,
            cuda_version,
        };
        // SAFETY: the flags must be 0.
        match unsafe { (driver.api.init)(0) } {
            code::NO_DEVICE => Err(no_device()),
            code => {
                driver.check("initialize NVIDIA's driver", code)?;
                Ok(driver)
            }
        }
    }

    /// The number of GPUs that this process may see, at least one.
    pub(crate) fn device_count(&self) -> Result<usize, GpuUnavailable> {
        let mut count = 0;
        // SAFETY: `count` outlives the call.
        self.check("count NVIDIA GPUs", unsafe {
            (self.api.device_count)(&raw mut count)
        })?;
        match usize::try_from(count) {
            Ok(count) if count > 0 => Ok(count),
            _ => Err(no_device()),
        }
    }

    /// The driver's handle of a GPU, by its index among those that this process may see.
    pub(crate) fn device(&self, ordinal: usize) -> Result<DeviceHandle, GpuUnavailable> {
        let count = self.device_count()?;
        let mut device = 0;
        match i32::try_from(ordinal) {
            Ok(number) if ordinal < count => {
                // SAFETY: `device` outlives the call.
                self.check("find the GPU", unsafe {
                    (self.api.device_get)(&raw mut device, number)
                })?;
                Ok(device)
            }
            _ => Err(GpuUnavailable::NoSuchDevice { ordinal, count }),
        }
    }

    /// Turns a code into an error that begins with `what`.
    pub(crate) fn check(&self, what: &str, code: ErrorCode) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let (name, text) = self.words(code);
        Err(CudaError::Driver {
            what: what.to_owned(),
            code,
            name,
            text,
        })
    }

    /// An integer attribute of a GPU.
    pub(crate) fn attribute(&self, device: DeviceHandle, attribute: i32) -> Result<u32, CudaError> {
        let mut value = 0;
        // SAFETY: `value` outlives the call.
        self.check("query the GPU's attributes", unsafe {
            (self.api.device_attribute)(&raw mut value, attribute, device)
        })?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// Whether the GPU's compute mode prohibits all work.
    pub(crate) fn is_prohibited(&self, device: DeviceHandle) -> bool {
        const COMPUTE_MODE: i32 = 20;
        const PROHIBITED: u32 = 2;
        self.attribute(device, COMPUTE_MODE) == Ok(PROHIBITED)
    }

    /// The driver's name for a code, and its description.
    pub(crate) fn words(&self, code: ErrorCode) -> (String, String) {
        let ask = |function: unsafe extern "C" fn(ErrorCode, *mut *const c_char) -> ErrorCode| {
            let mut words = ptr::null();
            // SAFETY: `words` outlives the call.
            let known = unsafe { function(code, &raw mut words) } == 0 && !words.is_null();
            known.then(|| {
                // SAFETY: the driver answers with a text of its own, which stays.
                let words = unsafe { CStr::from_ptr(words) };
                words.to_string_lossy().into_owned()
            })
        };
        (
            ask(self.api.error_name).unwrap_or_else(|| format!("code {code}")),
            ask(self.api.error_text).unwrap_or_else(|| "unknown error".to_owned()),
        )
    }
}

/// The CUDA version that the driver supports, which it tells before it is initialized.
fn cuda_version(library: &Library) -> Result<(u32, u32), GpuUnavailable> {
    functions! {
        struct Version {
            get: cuDriverGetVersion(*mut i32),
        }
    }
    // SAFETY: the type is that of cuda.h.
    let version = unsafe { Version::find(library) }.map_err(incomplete)?;
    let mut number = 0;
    // SAFETY: `number` outlives the call.
    match unsafe { (version.get)(&raw mut number) } {
        0 => {}
        // The toolkit's stub answers every call with this code, even when asked what the code means.
        code::STUB_LIBRARY => {
            return Err(GpuUnavailable::Failed(CudaError::Driver {
                what: "use NVIDIA's driver".to_owned(),
                code: code::STUB_LIBRARY,
                name: "CUDA_ERROR_STUB_LIBRARY".to_owned(),
                text: "CUDA driver is a stub library".to_owned(),
            }));
        }
        code => {
            return Err(GpuUnavailable::Failed(CudaError::Driver {
                what: "query the driver's version".to_owned(),
                code,
                name: format!("code {code}"),
                text: "unknown error".to_owned(),
            }));
        }
    }
    let number = u32::try_from(number).unwrap_or(0);
    // CUDA encodes 12.4 as 12040.
    Ok((number / 1000, number % 1000 / 10))
}

fn incomplete(symbol: &str) -> GpuUnavailable {
    GpuUnavailable::NoDriver {
        reason: format!("{LIBRARY} has no {symbol}"),
    }
}

/// Why the driver shows no GPU. `CUDA_VISIBLE_DEVICES` is the driver's own variable; it is read here only to name it.
fn no_device() -> GpuUnavailable {
    let counted = nvml().and_then(|nvml| nvml.device_count().ok());
    match env::var("CUDA_VISIBLE_DEVICES") {
        // Where nobody counts the GPUs, only a value that names none is known to hide them all: the system may keep
        // this process from those that it names.
        Ok(visible) if counted.map_or(names_none(&visible), |count| count > 0) => {
            GpuUnavailable::Hidden { visible }
        }
        _ => GpuUnavailable::NoDevice,
    }
}

fn names_none(visible: &str) -> bool {
    matches!(visible.trim(), "" | "-1" | "NoDevFiles")
}
