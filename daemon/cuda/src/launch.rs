//! Kernels: looked up in their modules, compiled by the driver on first use, and checked against the arguments that
//! they take.

use std::{
    collections::{HashMap, hash_map::Entry},
    ffi::{CString, c_void},
    ptr,
};

use crate::{
    context::Context,
    driver::Handle,
    error::CudaError,
    modules::{KernelModule, module_of},
};

/// An argument of a kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) enum KernelArgument<'a> {
    Address(u64),
    U32(u32),
    F32(f32),
    U64(u64),
    /// A structure by value.
    Bytes(&'a [u8]),
}

impl KernelArgument<'_> {
    pub(crate) fn address(&self) -> *mut c_void {
        match self {
            Self::Address(value) | Self::U64(value) => ptr::from_ref(value).cast_mut().cast(),
            Self::U32(value) => ptr::from_ref(value).cast_mut().cast(),
            Self::F32(value) => ptr::from_ref(value).cast_mut().cast(),
            Self::Bytes(bytes) => bytes.as_ptr().cast_mut().cast(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Address(_) | Self::U64(_) => 8,
            Self::U32(_) | Self::F32(_) => 4,
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}

/// The kernels that have been used, and their modules.
pub(crate) struct KernelCache {
    modules: HashMap<&'static str, Loaded>,
    functions: HashMap<String, Function>,
    context: Context,
}

/// A module that the driver has compiled for this GPU.
struct Loaded {
    handle: Handle,
    /// Parameter sizes of each of its kernels, in bytes.
    parameters: HashMap<String, Vec<usize>>,
}

struct Function {
    handle: Handle,
    /// Sizes of its parameters, in bytes.
    parameters: Vec<usize>,
}

// SAFETY: the driver's handles are of use in any thread.
unsafe impl Send for KernelCache {}

impl KernelCache {
    pub(crate) fn new(context: Context) -> Self {
        Self {
            modules: HashMap::new(),
            functions: HashMap::new(),
            context,
        }
    }

    /// A kernel that is ready to be launched with these arguments.
    pub(crate) fn function(
        &mut self,
        kernel: &str,
        arguments: &[KernelArgument<'_>],
    ) -> Result<Handle, CudaError> {
        // Not `entry`: it would allocate the name for every launch.
        if !self.functions.contains_key(kernel) {
            let function = self.find(kernel)?;
            self.functions.insert(kernel.to_owned(), function);
        }
        let function = self
            .functions
            .get(kernel)
            .expect("it was inserted if it was not there");
        // The driver is given addresses only, and would read past them.
        assert!(
            arguments
                .iter()
                .map(KernelArgument::bytes)
                .eq(function.parameters.iter().copied()),
            "{kernel} takes arguments of {:?} bytes, not {arguments:?}",
            function.parameters
        );
        Ok(function.handle)
    }

    fn find(&mut self, kernel: &str) -> Result<Function, CudaError> {
        let context = self.context;
        let module =
            module_of(kernel).unwrap_or_else(|| panic!("there is no kernel named {kernel}"));
        let loaded = match self.modules.entry(module.name) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Loaded::new(module, context)?),
        };
        let parameters = loaded.parameters.get(kernel).cloned();
        let parameters = parameters.unwrap_or_else(|| panic!("{} has no {kernel}", module.name));
        let name = CString::new(kernel).expect("names have no NUL");
        let mut handle = ptr::null_mut();
        // SAFETY: the module is loaded, the name ends with a NUL, and `handle` outlives the call.
        let code = unsafe {
            (context.driver.api.module_function)(&raw mut handle, loaded.handle, name.as_ptr())
        };
        match code {
            0 => Ok(Function { handle, parameters }),
            code => Err(failed(module, context, code, "")),
        }
    }
}

impl Drop for KernelCache {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            for module in self.modules.values() {
                // SAFETY: loaded once, unloaded once, after the work has ended.
                unsafe { (self.context.driver.api.module_unload)(module.handle) };
            }
        }
    }
}

impl Loaded {
    /// Has the driver compile a module for this GPU, or find it in its cache of compiled modules.
    fn new(module: &'static KernelModule, context: Context) -> Result<Self, CudaError> {
        const ERROR_LOG_BUFFER: i32 = 5;
        const ERROR_LOG_BUFFER_BYTES: i32 = 6;
        // PTX, not machine code: the driver compiles it for GPUs newer than this program, and keeps the result on disk.
        let ptx = module.ptx();
        let parameters = parameters(&ptx);
        let text = CString::new(ptx).expect("PTX has no NUL");
        // Without a log, a PTX error is only a code; 8 KiB hold the first messages.
        let mut log = vec![0_u8; 8 << 10];
        let mut options = [ERROR_LOG_BUFFER, ERROR_LOG_BUFFER_BYTES];
        let mut values = [
            log.as_mut_ptr().cast(),
            ptr::without_provenance_mut::<c_void>(log.len()),
        ];
        let mut handle = ptr::null_mut();
        // SAFETY: the text ends with a NUL; there are as many values as options, of the types that these want; all outlive
        // the call.
        let code = unsafe {
            (context.driver.api.module_load)(
                &raw mut handle,
                text.as_ptr().cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        if code == 0 {
            return Ok(Self { handle, parameters });
        }
        let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
        let log = String::from_utf8_lossy(&log[..end]);
        Err(failed(module, context, code, &log))
    }
}

fn failed(module: &KernelModule, context: Context, code: i32, log: &str) -> CudaError {
    context.note(code);
    let (name, text) = context.driver.words(code);
    CudaError::Kernels {
        module: module.name,
        code,
        name,
        text,
        log: log.trim().to_owned(),
    }
}

/// Parses the parameter sizes of every kernel from `.visible .entry name(.param .u64 a, .param .align 8 .b8 b[32])`.
/// They come from the PTX itself, so a kernel whose signature changed cannot be launched with old arguments.
fn parameters(ptx: &str) -> HashMap<String, Vec<usize>> {
    let kernel = |rest: &str| {
        let (name, rest) = rest.split_once('(')?;
        let list = rest.split(')').next()?;
        Some((name.trim().to_owned(), sizes(list)?))
    };
    ptx.split(".entry").skip(1).filter_map(kernel).collect()
}

/// The sizes in a list of parameters, in bytes.
fn sizes(list: &str) -> Option<Vec<usize>> {
    list.split(',')
        .filter(|parameter| !parameter.trim().is_empty())
        .map(|parameter| {
            let number = parameter.split_whitespace().find_map(|word| {
                let (kind, bits) = word.strip_prefix('.')?.split_at_checked(1)?;
                // `.u64`, `.s32`, `.b8`, `.f32`; neither `.param` nor `.align` begins with one of these letters.
                "usbf".contains(kind).then(|| bits.parse::<usize>().ok())?
            })?;
            let count = match parameter.split_once('[') {
                Some((_, count)) => count.split(']').next()?.trim().parse().ok()?,
                None => 1,
            };
            Some(number / 8 * count)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kernel_takes_is_read_from_its_ptx() {
        let ptx = "
.visible .entry embed_f32_wide(
	.param .u64 embed_f32_wide_param_0
)
{ ret; }
	// .globl	embed_f32
.visible .entry embed_f32(
	.param .u64 .ptr .align 1 embed_f32_param_0,
	.param .u32 embed_f32_param_1,
	.param .f32 embed_f32_param_2,
	.param .align 8 .b8 embed_f32_param_3[168]
)
.maxntid 256, 1, 1
{ ret; }
.visible .entry nothing()
{ ret; }
";
        let expected = [
            ("embed_f32", vec![8, 4, 4, 168]),
            ("embed_f32_wide", vec![8]),
            ("nothing", vec![]),
        ];
        let expected = expected.map(|(kernel, sizes)| (kernel.to_owned(), sizes));
        assert_eq!(parameters(ptx), HashMap::from(expected));
    }
}
