//! Why there is no GPU to work with, and what fails on one.

use crate::library::ErrorCode;

/// Why no GPU can be used. [`GpuUnavailable::hint`] says what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuUnavailable {
    /// The driver's library is missing or cannot be used.
    #[error("cannot use NVIDIA's driver: {reason}")]
    NoDriver {
        /// The system's message, with the name that was looked for.
        reason: String,
    },
    /// The driver is too old for the kernels' PTX.
    #[error(
        "NVIDIA's driver is too old: it supports CUDA {}.{}, and {}.{} is required",
        found.0, found.1, needed.0, needed.1
    )]
    DriverTooOld {
        /// The CUDA version that the driver supports.
        found: (u32, u32),
        /// The lowest supported version.
        needed: (u32, u32),
    },
    /// The driver works and sees no GPU.
    #[error("NVIDIA's driver finds no GPU")]
    NoDevice,
    /// The environment hides every GPU from this process.
    #[error("CUDA_VISIBLE_DEVICES={visible:?} hides every NVIDIA GPU")]
    Hidden {
        /// The value of `CUDA_VISIBLE_DEVICES`.
        visible: String,
    },
    /// The requested index is out of range.
    #[error("there is no NVIDIA GPU {ordinal}: the driver lists {count}, numbered from 0")]
    NoSuchDevice {
        /// The requested index.
        ordinal: usize,
        /// The number of GPUs that this process may see.
        count: usize,
    },
    /// The GPU's generation is too old for the kernels.
    #[error(
        "{name} is too old: its compute capability is {}.{}, and {}.{} is required",
        capability.0, capability.1, needed.0, needed.1
    )]
    TooOld {
        /// The GPU's name.
        name: String,
        /// The GPU's compute capability.
        capability: (u32, u32),
        /// The lowest supported capability.
        needed: (u32, u32),
    },
    /// The GPU has too little free memory for a context.
    #[error(
        "{name} has too little free memory: {needed_bytes} bytes are required{}",
        free_bytes.map_or_else(String::new, |free| format!(", {free} are free"))
    )]
    TooLittleMemory {
        /// The GPU's name.
        name: String,
        /// Free bytes on the GPU, if known.
        free_bytes: Option<u64>,
        /// The least that is needed, in bytes.
        needed_bytes: u64,
    },
    /// Another process uses the GPU exclusively, or its compute mode prohibits work.
    #[error(
        "{name} {}",
        if *prohibited { "is set to accept no work" } else { "is held by another process alone" }
    )]
    Busy {
        /// The GPU's name.
        name: String,
        /// Whether the compute mode prohibits all work, rather than a second process.
        prohibited: bool,
    },
    /// The GPU works, but cannot run the model that it was opened for.
    #[error("{name} cannot run {model}: {reason}")]
    Unfit {
        /// The GPU's name.
        name: String,
        /// Name of the model.
        model: String,
        /// Why the model cannot run there.
        reason: String,
    },
    /// The driver is installed, but a call failed.
    #[error(transparent)]
    Failed(#[from] CudaError),
}

impl GpuUnavailable {
    /// Whether somebody should look into it: not where there is no driver, or where the user hides all GPUs.
    #[must_use]
    pub fn is_fault(&self) -> bool {
        !matches!(self, Self::NoDriver { .. } | Self::Hidden { .. })
    }

    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoDriver { .. } => {
                "install NVIDIA's driver, so that `nvidia-smi` lists the GPU; start a container with its GPUs; for a library in an \
                 unusual folder set LD_LIBRARY_PATH"
            }
            Self::DriverTooOld { .. } => "update NVIDIA's driver to version 525 or newer",
            Self::NoDevice => {
                "check that `nvidia-smi` lists the GPU, and that this user or service may open /dev/nvidia*"
            }
            Self::Hidden { .. } => {
                "unset CUDA_VISIBLE_DEVICES, or name a GPU in it as `nvidia-smi -L` lists it"
            }
            Self::NoSuchDevice { .. } => {
                "choose one of those that `nvidia-smi -L` lists; CUDA_VISIBLE_DEVICES narrows and renumbers them"
            }
            Self::TooOld { .. } => {
                "use a GPU of the Turing generation (GTX 16, RTX 20) or newer, or the CPU"
            }
            Self::TooLittleMemory { .. } => {
                "end other programs on the GPU, which `nvidia-smi` lists, or use the CPU"
            }
            Self::Busy {
                prohibited: true, ..
            } => "run `nvidia-smi -c DEFAULT` as root to allow computing on this GPU",
            Self::Busy { .. } => {
                "end the other process, which `nvidia-smi` lists, or run `nvidia-smi -c DEFAULT` as root to share the GPU"
            }
            Self::Unfit { .. } => {
                "load a smaller model, end other programs on the GPU, or raise --budget; then start sluiced again. \
                 `--device cpu` uses the CPU on purpose"
            }
            Self::Failed(cause) => match cause.code() {
                code::STUB_LIBRARY => {
                    "libcuda.so.1 is the CUDA toolkit's stand-in for linking: take its folder `stubs` out of LD_LIBRARY_PATH"
                }
                code::SYSTEM_DRIVER_MISMATCH => {
                    "the driver's library and its kernel module are of different versions: restart the machine after an update"
                }
                code::COMPAT_NOT_SUPPORTED_ON_DEVICE => {
                    "CUDA's compatibility package supports data center GPUs only: take its folder out of LD_LIBRARY_PATH, or update the driver"
                }
                code::SYSTEM_NOT_READY => {
                    "the driver's services are not running: start nvidia-fabricmanager or nvidia-persistenced, then try again"
                }
                code::NOT_PERMITTED | code::OPERATING_SYSTEM => {
                    "check that this user or service may open /dev/nvidia*"
                }
                code::UNKNOWN | code::NOT_INITIALIZED => {
                    "check that `nvidia-smi` works and that the kernel module nvidia_uvm is loaded; after a suspend, a restart may be needed"
                }
                _ => "check that `nvidia-smi` works, and look for NVRM in the kernel log",
            },
        }
    }
}

/// What failed on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// The GPU has too little free memory.
    #[error(
        "cannot allocate {needed_bytes} bytes of GPU memory{}",
        free_bytes.map_or_else(String::new, |free| format!("; {free} are free"))
    )]
    OutOfMemory {
        /// Bytes that were requested.
        needed_bytes: u64,
        /// Free bytes on the GPU, not always in one piece; `None` if the driver doesn't say.
        free_bytes: Option<u64>,
    },
    /// The system provides no more pinned memory.
    #[error("cannot allocate {needed_bytes} bytes of pinned host memory")]
    OutOfPinnedMemory {
        /// Bytes that were requested.
        needed_bytes: u64,
    },
    /// The driver cannot compile a kernel module for this GPU.
    #[error("cannot compile the kernels of {module} for this GPU: {text} ({name}){}{log}", if log.is_empty() { "" } else { "\n" })]
    Kernels {
        /// Name of the kernel module.
        module: &'static str,
        /// The driver's code.
        code: i32,
        /// The driver's name for the code.
        name: String,
        /// The driver's description of the code.
        text: String,
        /// The log of the driver's compiler; may be empty.
        log: String,
    },
    /// The driver refused a call, or work that was sent before has failed: kernels run later than they are launched, so
    /// their errors appear at the next call that waits. After some of them this process cannot use the GPU any more.
    #[error("cannot {what}: {text} ({name})")]
    Driver {
        /// The operation, in words.
        what: String,
        /// The driver's code.
        code: i32,
        /// The driver's name for the code.
        name: String,
        /// The driver's description of the code.
        text: String,
    },
    /// A cuBLAS call failed.
    #[error("cuBLAS cannot {what}: {name}")]
    Blas {
        /// The operation, in words.
        what: &'static str,
        /// cuBLAS's name for its code.
        name: String,
    },
}

impl CudaError {
    /// Whether this process cannot use the GPU any more. After some failures the driver answers every call with the
    /// same code, and only a new process can use the GPU again.
    #[must_use]
    pub fn ends_context(&self) -> bool {
        code::ends_context(self.code())
    }

    /// Whether the GPU or its driver had too little memory, whatever for.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. }) || self.code() == code::OUT_OF_MEMORY
    }

    fn code(&self) -> ErrorCode {
        match self {
            Self::Driver { code, .. } | Self::Kernels { code, .. } => *code,
            Self::OutOfMemory { .. } | Self::OutOfPinnedMemory { .. } | Self::Blas { .. } => 0,
        }
    }
}

/// The driver's codes that are handled specially.
pub(crate) mod code {
    use crate::library::ErrorCode;

    pub(crate) const OUT_OF_MEMORY: ErrorCode = 2;
    pub(crate) const NOT_INITIALIZED: ErrorCode = 3;
    pub(crate) const STUB_LIBRARY: ErrorCode = 34;
    pub(crate) const DEVICE_UNAVAILABLE: ErrorCode = 46;
    pub(crate) const NO_DEVICE: ErrorCode = 100;
    pub(crate) const OPERATING_SYSTEM: ErrorCode = 304;
    pub(crate) const NOT_READY: ErrorCode = 600;
    pub(crate) const NOT_PERMITTED: ErrorCode = 800;
    pub(crate) const SYSTEM_NOT_READY: ErrorCode = 802;
    pub(crate) const SYSTEM_DRIVER_MISMATCH: ErrorCode = 803;
    pub(crate) const COMPAT_NOT_SUPPORTED_ON_DEVICE: ErrorCode = 804;
    pub(crate) const UNKNOWN: ErrorCode = 999;

    /// Whether the driver returns this code from every later call, as cuda.h says of each of these.
    pub(crate) fn ends_context(code: ErrorCode) -> bool {
        const DEINITIALIZED: ErrorCode = 4;
        const ECC_UNCORRECTABLE: ErrorCode = 214;
        const NVLINK_UNCORRECTABLE: ErrorCode = 220;
        const CONTAINED: ErrorCode = 226;
        const ILLEGAL_ADDRESS: ErrorCode = 700;
        const LAUNCH_TIMEOUT: ErrorCode = 702;
        const CONTEXT_IS_DESTROYED: ErrorCode = 709;
        const ASSERT: ErrorCode = 710;
        const HARDWARE_STACK_ERROR: ErrorCode = 714;
        const LAUNCH_FAILED: ErrorCode = 719;
        const TENSOR_MEMORY_LEAK: ErrorCode = 721;
        const EXTERNAL_DEVICE: ErrorCode = 911;
        matches!(
            code,
            DEINITIALIZED
                | ECC_UNCORRECTABLE
                | NVLINK_UNCORRECTABLE
                | CONTAINED
                | ILLEGAL_ADDRESS
                | LAUNCH_TIMEOUT
                | CONTEXT_IS_DESTROYED
                | ASSERT
                // Between them: illegal instruction, misaligned address, invalid address space, invalid program counter.
                | HARDWARE_STACK_ERROR
                ..=LAUNCH_FAILED | TENSOR_MEMORY_LEAK | EXTERNAL_DEVICE | UNKNOWN
        )
    }
}
