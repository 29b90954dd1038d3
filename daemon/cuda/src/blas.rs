//! cuBLAS, NVIDIA's matrix library, where the machine has it. It is faster than our kernels for many rows, but never
//! required.

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

/// Supported libraries, newest first: CUDA's major version and the library's name.
const LIBRARIES: [(u32, &str); 3] = [
    (13, "libcublas.so.13"),
    (12, "libcublas.so.12"),
    (11, "libcublas.so.11"),
];

functions! {
    /// cuBLAS's functions, by the names of cublas_v2.h.
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

/// Workspace of cuBLAS: NVIDIA's recommendation for GPUs since Hopper, and for older ones.
const WORKSPACE_BYTES: [usize; 2] = [32 << 20, 4 << 20];

/// cuBLAS on one GPU, working in the GPU's stream.
pub struct Blas {
    api: Api,
    /// cuBLAS handles may be used by one thread at a time.
    handle: Mutex<Library>,
    context: Context,
    name: String,
    /// cuBLAS writes here in every call, so it lives as long as the handle.
    workspace: DeviceAllocation,
}

/// cuBLAS's library handle.
struct Library(Handle);

// SAFETY: the handle is of use in any thread, one at a time.
unsafe impl Send for Library {}

/// A matmul of row-major matrices: `out[rows, outputs] = x[rows, width] · weights[outputs, width]ᵀ`. Rows of the result
/// may lie apart.
#[derive(Debug, Clone, Copy)]
pub struct Matmul {
    /// The result, in the dtype of `x` or in `f32`.
    pub out: GpuSpan,
    /// Whether the result is `f32`, whatever the dtype of `x`.
    pub out_is_f32: bool,
    /// The left factor: `rows` × `width`.
    pub x: GpuSpan,
    /// The right factor, `outputs` × `width`, in the dtype of `x` where cuBLAS multiplies.
    pub weights: GpuSpan,
    /// Rows of `x`.
    pub rows: usize,
    /// Rows of the weights.
    pub outputs: usize,
    /// Elements from one row of the result to the next: `outputs`, or more where these are some columns of a wider
    /// result.
    pub out_stride: usize,
    /// Elements in a row of `x` and of the weights.
    pub width: usize,
    /// Whether the product is added to what `out` holds.
    pub accumulate: bool,
}

/// A matmul of row-major matrices with the weights as they are: `out[rows, outputs] = x[rows, depth] · weights[depth,
/// outputs]`, in `f32`. Rows of `x` may lie apart.
#[derive(Debug, Clone, Copy)]
pub struct TransposedMatmul {
    /// The result, in `f32`.
    pub out: GpuSpan,
    /// The left factor: `rows` × `depth`.
    pub x: GpuSpan,
    /// Elements from one row of `x` to the next: `depth`, or more where these are some of its columns.
    pub x_stride: usize,
    /// The right factor, `depth` × `outputs`, in the dtype of `x` where cuBLAS multiplies.
    pub weights: GpuSpan,
    /// Rows of `x`.
    pub rows: usize,
    /// Columns of the weights.
    pub outputs: usize,
    /// Rows of the weights.
    pub depth: usize,
    /// Whether the product is added to what `out` holds.
    pub accumulate: bool,
}

impl TransposedMatmul {
    /// Elements from the first of `x` to its last, gaps included.
    ///
    /// # Panics
    /// When its rows overlap.
    pub(crate) fn x_len(&self) -> usize {
        assert!(self.x_stride >= self.depth, "rows of x overlap");
        match self.rows {
            0 => 0,
            rows => (rows - 1) * self.x_stride + self.depth,
        }
    }
}

/// A product of column-major matrices, as cuBLAS takes it.
struct Product {
    /// The product, its dtype, and elements from one column to the next.
    out: (GpuSpan, DType, usize),
    /// The left factor, elements from one column to the next, and whether it is transposed.
    left: (GpuSpan, usize, bool),
    /// The right factor, and elements from one column to the next.
    right: (GpuSpan, usize),
    /// Rows and columns of the product, and the inner size.
    sizes: [usize; 3],
    accumulate: bool,
}

impl Matmul {
    /// Elements from the result's first to its last, gaps included.
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
    /// Opens the newest library that can compute on this GPU. The context must be current.
    pub(crate) fn open(
        context: Context,
        stream: &Stream,
        facts: &DeviceProperties,
    ) -> Result<Self, String> {
        // A library that is newer than the driver opens, and fails later.
        let names = LIBRARIES
            .iter()
            .filter(|(major, _)| *major <= context.driver.cuda_version.0);
        let mut reasons = Vec::new();
        for (_, name) in names {
            match Self::open_one(name, context, stream, facts) {
                Ok(blas) => return Ok(blas),
                // All reasons are kept, since only the user knows which library should have worked.
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
        // The library keeps state of its own in the process, so it is never unloaded.
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
        // A workspace of our own, so that the ledger can count it.
        let workspace = DeviceAllocation::allocate(context, workspace_bytes).map_err(named)?;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` outlives the call.
        check("start", unsafe { (api.create)(&raw mut handle) }).map_err(named)?;
        // Owned from here on: what fails below destroys the handle and frees the workspace.
        let mut blas = Self {
            api,
            handle: Mutex::new(Library(handle)),
            context,
            name: name.to_owned(),
            workspace,
        };
        blas.prepare(handle, stream.handle).map_err(named)?;
        // A library opens and starts even on a GPU that it has no kernels for.
        trial::check_gemm(&blas, context, stream, facts.has_bf16).map_err(named)?;
        Ok(blas)
    }

    fn prepare(&mut self, handle: Handle, stream: Handle) -> Result<(), CudaError> {
        /// Sums of half-precision products stay `f32`. TensorFloat-32 is off by default.
        const DISALLOW_REDUCED_PRECISION_REDUCTION: i32 = 16;
        let mut version = 0;
        // SAFETY: the handle lives, and `version` outlives the call.
        check("report its version", unsafe {
            (self.api.version)(handle, &raw mut version)
        })?;
        // cuBLAS encodes 12.3.4 as 120304, and encoded 11.2.3 as 11203, so the number is shown as it is.
        self.name = format!("{} ({version})", self.name);
        // SAFETY: handle and stream live, in the same context.
        check("use a stream", unsafe {
            (self.api.set_stream)(handle, stream)
        })?;
        // Set after the stream: setting a stream resets the workspace.
        // SAFETY: memory on the GPU that lives as long as the handle.
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

    /// The library's file name and version.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of GPU memory that it works in, held while the GPU is open.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        self.workspace.span.bytes()
    }

    /// Sends a matmul behind all work that was sent before. Sums are `f32`; products of `f32` elements are computed in
    /// full precision.
    ///
    /// # Errors
    /// When cuBLAS refuses.
    ///
    /// # Panics
    /// When a span is too short.
    pub fn gemm(&self, dtype: DType, matmul: Matmul) -> Result<(), CudaError> {
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
        // cuBLAS is column-major: it sees each matrix transposed, and computes outᵀ = weights · xᵀ.
        self.multiply(
            dtype,
            Product {
                out: (out, out_number, out_stride),
                left: (weights, width, true),
                right: (x, width),
                sizes: [outputs, rows, width],
                accumulate,
            },
        )
    }

    /// Sends a matmul with the weights as they are, as [`gemm`](Self::gemm) does.
    ///
    /// # Errors
    /// When cuBLAS refuses.
    ///
    /// # Panics
    /// When a span is too short.
    pub fn gemm_transposed(&self, dtype: DType, matmul: TransposedMatmul) -> Result<(), CudaError> {
        let TransposedMatmul {
            out,
            x,
            x_stride,
            weights,
            rows,
            outputs,
            depth,
            accumulate,
        } = matmul;
        assert!(out.bytes() >= rows * outputs * 4, "out is too short");
        assert!(
            x.bytes() >= matmul.x_len() * dtype.bytes(),
            "x is too short"
        );
        assert!(
            weights.bytes() >= depth * outputs * dtype.bytes(),
            "weights are too short"
        );
        // Transposed as cuBLAS sees them: outᵀ = weightsᵀ · xᵀ.
        self.multiply(
            dtype,
            Product {
                out: (out, DType::F32, outputs),
                left: (weights, outputs, false),
                right: (x, x_stride),
                sizes: [outputs, rows, depth],
                accumulate,
            },
        )
    }

    /// Multiplies matrices whose spans are long enough.
    fn multiply(&self, dtype: DType, product: Product) -> Result<(), CudaError> {
        const TRANSPOSED: i32 = 1;
        const AS_IT_IS: i32 = 0;
        const COMPUTE_F32: i32 = 68;
        const COMPUTE_F32_PEDANTIC: i32 = 69;
        const ALGORITHM_DEFAULT: i32 = -1;
        let Product {
            out: (out, out_number, out_stride),
            left: (left, left_stride, is_transposed),
            right: (right, right_stride),
            sizes: [rows, columns, inner],
            accumulate,
        } = product;
        if rows == 0 || columns == 0 {
            return Ok(());
        }
        // cuBLAS counts in `int`: 2^31 elements in one dimension don't fit a GPU.
        let size = |size: usize| i32::try_from(size).expect("a matrix that fits a GPU");
        let alpha = 1.0_f32;
        let beta = if accumulate { 1.0_f32 } else { 0.0 };
        // Pedantic: no TensorFloat-32 or other shortcuts for `f32`, so that results agree with the CPU's to float
        // order.
        let compute = match dtype {
            DType::F32 => COMPUTE_F32_PEDANTIC,
            DType::F16 | DType::Bf16 => COMPUTE_F32,
        };
        self.context.make_current()?;
        let library = self.lock();
        // SAFETY: addresses on the GPU, and spans as long as the sizes say; `alpha` and `beta` outlive the call, which
        // reads them as f32 for these ways to compute.
        check("multiply", unsafe {
            (self.api.gemm)(
                library.0,
                if is_transposed { TRANSPOSED } else { AS_IT_IS },
                AS_IT_IS,
                size(rows),
                size(columns),
                size(inner),
                (&raw const alpha).cast(),
                ptr::without_provenance(address(left)),
                kind(dtype),
                size(left_stride),
                ptr::without_provenance(address(right)),
                kind(dtype),
                size(right_stride),
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

/// The `cudaDataType` of a dtype.
fn kind(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 2,
        DType::Bf16 => 14,
    }
}

fn check(what: &'static str, code: ErrorCode) -> Result<(), CudaError> {
    // Spelled out: the oldest cuBLAS that is looked for has no function that names codes.
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
