//! cuBLAS, NVIDIA's matrix library, where the machine has it: faster than our own kernels for many rows, and not needed.

use std::{
    ffi::c_void,
    ptr,
    sync::{Mutex, PoisonError},
};

use sluice_formats::DType;

use crate::{
    context::{Context, Stream},
    driver::Handle,
    error::CudaError,
    library::{self, ErrorCode, functions},
    memory::DeviceAllocation,
    properties::DeviceProperties,
    span::GpuSpan,
};

mod trial;

/// The versions that are looked for, the newest first: CUDA's major version and the library's name.
const LIBRARIES: [(u32, &str); 3] = [
    (13, "libcublas.so.13"),
    (12, "libcublas.so.12"),
    (11, "libcublas.so.11"),
];

functions! {
    /// cuBLAS's functions.
    struct Api {
        create: cublasCreate_v2(*mut Handle),
        destroy: cublasDestroy_v2(Handle),
        version: cublasGetVersion_v2(Handle, *mut i32),
        set_stream: cublasSetStream_v2(Handle, Handle),
        set_workspace: cublasSetWorkspace_v2(Handle, *mut c_void, usize),
        set_math_mode: cublasSetMathMode(Handle, i32),
        gemm: cublasGemmEx(
            Handle, i32, i32, i32, i32, i32, *const c_void, *const c_void, i32, i32, *const c_void, i32, i32,
            *const c_void, *mut c_void, i32, i32, i32, i32,
        ),
    }
}

/// What cuBLAS works in: NVIDIA's recommendation for cards since Hopper, and for those before.
const WORKSPACE_BYTES: [usize; 2] = [32 << 20, 4 << 20];

/// cuBLAS on one card, working in its stream.
pub struct Blas {
    api: Api,
    /// One thread at a time may use it.
    handle: Mutex<Library>,
    context: Context,
    name: String,
    /// cuBLAS's for as long as its state lives: it writes there whenever it multiplies.
    workspace: DeviceAllocation,
}

/// cuBLAS's own state.
struct Library(Handle);

// SAFETY: the handle is of use in any thread, one at a time.
unsafe impl Send for Library {}

/// A product of matrices, row after row: `out[rows, outputs] = x[rows, width] · weights[outputs, width]ᵀ`. Rows of the result
/// may lie apart.
#[derive(Debug, Clone, Copy)]
pub struct Matmul {
    /// The result, in the numbers of `x` or in `f32`.
    pub out: GpuSpan,
    /// Whether the result is `f32`, whatever `x` is.
    pub out_is_f32: bool,
    /// The one factor.
    pub x: GpuSpan,
    /// The other, of the same numbers.
    pub weights: GpuSpan,
    /// Rows of `x`.
    pub rows: usize,
    /// Rows of the weights.
    pub outputs: usize,
    /// Numbers from one row of the result to the next: `outputs` of them, or more where these are some columns of a wider one.
    pub out_stride: usize,
    /// Numbers in a row of either.
    pub width: usize,
    /// Whether the product is added to what `out` holds.
    pub accumulate: bool,
}

impl Matmul {
    /// Numbers from the result's first to its last.
    ///
    /// # Panics
    /// When its rows overlap.
    pub(crate) fn out_len(&self) -> usize {
        assert!(
            self.out_stride >= self.outputs,
            "rows of the result overlap"
        );
        match self.rows {
            0 => 0,
            rows => (rows - 1) * self.out_stride + self.outputs,
        }
    }
}

impl Blas {
    /// Opens the newest library that can compute on the card. The context must be the current one.
    pub(crate) fn open(
        context: Context,
        stream: &Stream,
        facts: &DeviceProperties,
    ) -> Result<Self, String> {
        // One that is newer than the driver opens and then fails.
        let names = LIBRARIES
            .iter()
            .filter(|(major, _)| *major <= context.driver.cuda_version.0);
        let mut reasons = Vec::new();
        for (_, name) in names {
            match Self::open_one(name, context, stream, facts) {
                Ok(blas) => return Ok(blas),
                Err(reason) => reasons.push(reason),
            }
        }
        Err(reasons.join("; "))
    }

    fn open_one(
        name: &str,
        context: Context,
        stream: &Stream,
        facts: &DeviceProperties,
    ) -> Result<Self, String> {
        let (library, _) = library::open_first(&[name])?;
        // It has state of its own in the process: it stays.
        let library = Box::leak(Box::new(library));
        // SAFETY: the types are those of cublas_v2.h, and have been since CUDA 11.
        let api =
            unsafe { Api::find(library) }.map_err(|symbol| format!("{name} has no {symbol}"))?;
        let named = |cause: CudaError| format!("{name}: {cause}");
        let [since_hopper, before] = WORKSPACE_BYTES;
        let workspace_bytes = match facts.capability >= (9, 0) {
            true => since_hopper,
            false => before,
        };
        let workspace = DeviceAllocation::allocate(context, workspace_bytes).map_err(named)?;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` outlives the call.
        check("start", unsafe { (api.create)(&raw mut handle) }).map_err(named)?;
        let mut blas = Self {
            api,
            handle: Mutex::new(Library(handle)),
            context,
            name: name.to_owned(),
            workspace,
        };
        blas.prepare(handle, stream.handle).map_err(named)?;
        // Libraries open and start on cards that they have no kernels for.
        trial::check_gemm(&blas, context, stream, facts.has_bf16).map_err(named)?;
        Ok(blas)
    }

    fn prepare(&mut self, handle: Handle, stream: Handle) -> Result<(), CudaError> {
        /// No TensorFloat-32, and no sums in half precision.
        const DISALLOW_REDUCED_PRECISION_REDUCTION: i32 = 16;
        let mut version = 0;
        // SAFETY: the handle lives, and `version` outlives the call.
        check("report its version", unsafe {
            (self.api.version)(handle, &raw mut version)
        })?;
        // 120304 is 12.3.4; it was 11203 for 11.2.3 too.
        self.name = format!("{} ({version})", self.name);
        // SAFETY: handle and stream live, in the same context.
        check("use a stream", unsafe {
            (self.api.set_stream)(handle, stream)
        })?;
        // After the stream, which takes back what was set before.
        // SAFETY: memory on the card that lives as long as the handle.
        check("take a workspace", unsafe {
            (self.api.set_workspace)(
                handle,
                ptr::without_provenance_mut(address(self.workspace.span)),
                self.workspace.span.bytes(),
            )
        })?;
        // SAFETY: the handle lives.
        check("set its math mode", unsafe {
            (self.api.set_math_mode)(handle, DISALLOW_REDUCED_PRECISION_REDUCTION)
        })
    }

    /// The library's file and version.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Memory on the card that it works in, held as long as the card is open.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        self.workspace.span.bytes()
    }

    /// Multiplies, after all that was sent to the card before. Sums are `f32`; products of `f32` are strictly that.
    ///
    /// # Errors
    /// When cuBLAS refuses.
    ///
    /// # Panics
    /// When a span is too short.
    pub fn gemm(&self, dtype: DType, matmul: Matmul) -> Result<(), CudaError> {
        const TRANSPOSED: i32 = 1;
        const AS_IT_IS: i32 = 0;
        const COMPUTE_F32: i32 = 68;
        const COMPUTE_F32_PEDANTIC: i32 = 69;
        const ALGORITHM_DEFAULT: i32 = -1;
        let Matmul {
            out,
            out_is_f32,
            x,
            weights,
            rows,
            outputs,
            out_stride,
            width,
            accumulate,
        } = matmul;
        let out_number = if out_is_f32 { DType::F32 } else { dtype };
        assert!(
            out.bytes() >= matmul.out_len() * out_number.bytes(),
            "out is too short"
        );
        assert!(x.bytes() >= rows * width * dtype.bytes(), "x is too short");
        assert!(
            weights.bytes() >= outputs * width * dtype.bytes(),
            "weights are too short"
        );
        if rows == 0 || outputs == 0 {
            return Ok(());
        }
        let size = |size: usize| i32::try_from(size).expect("a matrix that fits a GPU");
        let alpha = 1.0_f32;
        let beta = if accumulate { 1.0_f32 } else { 0.0 };
        let compute = match dtype {
            DType::F32 => COMPUTE_F32_PEDANTIC,
            DType::F16 | DType::Bf16 => COMPUTE_F32,
        };
        self.context.make_current()?;
        let library = self.lock();
        // cuBLAS counts in columns: it sees each matrix transposed, and computes outᵀ = weights · xᵀ.
        // SAFETY: addresses on the card, and spans as long as the sizes say; `alpha` and `beta` outlive the call, which
        // reads them as f32 for these ways to compute.
        check("multiply", unsafe {
            (self.api.gemm)(
                library.0,
                TRANSPOSED,
                AS_IT_IS,
                size(outputs),
                size(rows),
                size(width),
                (&raw const alpha).cast(),
                ptr::without_provenance(address(weights)),
                kind(dtype),
                size(width),
                ptr::without_provenance(address(x)),
                kind(dtype),
                size(width),
                (&raw const beta).cast(),
                ptr::without_provenance_mut(address(out)),
                kind(out_number),
                size(out_stride),
                compute,
                ALGORITHM_DEFAULT,
            )
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Library> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            let library = self.lock();
            // SAFETY: made once, destroyed once.
            unsafe { (self.api.destroy)(library.0) };
        }
    }
}

fn address(span: GpuSpan) -> usize {
    usize::try_from(span.address()).expect("addresses have 64 bits")
}

/// cuBLAS's name for a kind of number.
fn kind(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 2,
        DType::Bf16 => 14,
    }
}

fn check(what: &'static str, code: ErrorCode) -> Result<(), CudaError> {
    let name = match code {
        0 => return Ok(()),
        1 => "CUBLAS_STATUS_NOT_INITIALIZED",
        3 => "CUBLAS_STATUS_ALLOC_FAILED",
        7 => "CUBLAS_STATUS_INVALID_VALUE",
        8 => "CUBLAS_STATUS_ARCH_MISMATCH",
        11 => "CUBLAS_STATUS_MAPPING_ERROR",
        13 => "CUBLAS_STATUS_EXECUTION_FAILED",
        14 => "CUBLAS_STATUS_INTERNAL_ERROR",
        15 => "CUBLAS_STATUS_NOT_SUPPORTED",
        code => {
            return Err(CudaError::Blas {
                what,
                name: format!("code {code}"),
            });
        }
    };
    Err(CudaError::Blas {
        what,
        name: name.to_owned(),
    })
}
