//! The PTX that is embedded in the program, compressed, and the module of each kernel.

use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;

/// Limit for a module's decompressed PTX, three times the largest one.
const PTX_BYTES_MAX: usize = 2 << 20;

/// Kernels that are compiled together, for the oldest GPU that has the needed features. Newer GPUs use the same PTX.
pub(crate) struct KernelModule {
    pub(crate) name: &'static str,
    compressed: &'static [u8],
}

impl KernelModule {
    /// Decompresses the module's PTX. That takes milliseconds, and the driver's compiler takes longer.
    ///
    /// # Panics
    /// When the program's own bytes are damaged: their checksum is verified.
    pub(crate) fn ptx(&self) -> String {
        let ptx = decompress_to_vec_zlib_with_limit(self.compressed, PTX_BYTES_MAX)
            .unwrap_or_else(|error| panic!("the PTX of {} is damaged: {error}", self.name));
        String::from_utf8(ptx).expect("PTX is ASCII")
    }
}

/// The module that contains a kernel.
pub(crate) fn module_of(kernel: &str) -> Option<&'static KernelModule> {
    let argument = |line: &'static str, call: &str| {
        line.strip_prefix(call)?
            .strip_prefix('(')?
            .strip_suffix(')')
    };
    // The list is a C header, which compiles the kernels as well, so it cannot disagree with them. Kernels are looked
    // up once each.
    let mut module = None;
    for line in include_str!("../kernels/list.h").lines() {
        if let Some(name) = argument(line, "MODULE") {
            module = MODULES.iter().find(|module| module.name == name);
        } else if argument(line, "KERNEL") == Some(kernel) {
            return module;
        }
    }
    None
}

macro_rules! modules {
    ($($name:literal)*) => {
        [$(KernelModule {
            name: $name,
            compressed: include_bytes!(concat!("../ptx/", $name, ".zlib")),
        },)*]
    };
}

static MODULES: [KernelModule; 37] = modules! {
    "embed" "rows_f32" "rows_f16" "rows_bf16" "dequantize_f32" "dequantize_f16" "dequantize_bf16" "decode_f32"
    "decode_f16" "decode_bf16" "decode_columns_f32" "decode_columns_f16" "decode_columns_bf16" "multiply_f32"
    "multiply_f16" "multiply_bf16" "multiply_few_f32" "multiply_few_f16" "multiply_few_bf16" "multiply_palette_f32"
    "multiply_palette_f16" "multiply_palette_bf16" "attention_f32" "attention_f16" "attention_bf16" "rwkv7_f32" "rwkv7_f16"
    "rwkv7_bf16" "backward_f32" "backward_f16" "backward_bf16" "mixture" "grouped_f32"
    "grouped_f16" "grouped_bf16" "head" "compare"
};

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn every_kernel_is_in_the_module_that_the_list_says() {
        let names = include_str!("../kernels/list.h")
            .lines()
            .filter_map(|line| line.strip_prefix("KERNEL(")?.strip_suffix(')'));
        let ptx: HashMap<_, _> = MODULES
            .iter()
            .map(|module| (module.name, module.ptx()))
            .collect();
        let mut count = 0;
        for name in names {
            let module = module_of(name).unwrap_or_else(|| panic!("{name} is in no module"));
            let entry = format!(".visible .entry {name}(");
            assert!(ptx[module.name].contains(&entry), "{}: {name}", module.name);
            count += 1;
        }
        let entries: usize = ptx.values().map(|ptx| ptx.matches(".entry ").count()).sum();
        assert_eq!(count, entries, "kernels that the list doesn't have");
        assert!(module_of("none").is_none());
    }

    #[test]
    fn more_or_other_ptx_than_was_compressed_is_refused() {
        let module = &MODULES[0];
        let mut flipped = module.compressed.to_vec();
        let middle = flipped.len() / 2;
        flipped[middle] ^= 1;
        let cut = &module.compressed[..middle];
        for bytes in [&flipped[..], cut] {
            assert!(decompress_to_vec_zlib_with_limit(bytes, PTX_BYTES_MAX).is_err());
        }
        let len = module.ptx().len();
        assert!(decompress_to_vec_zlib_with_limit(module.compressed, len - 1).is_err());
        let largest = MODULES.iter().map(|module| module.ptx().len()).max();
        assert!(largest.is_some_and(|bytes| 2 * bytes < PTX_BYTES_MAX));
    }
}
