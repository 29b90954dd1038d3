//! The PTX that is in the program, and which kernel is in which piece of it.

/// Kernels that are compiled together.
pub(crate) struct Module {
    pub(crate) name: &'static str,
    /// For cards from capability 7.5 on, unless the module is for newer ones only.
    pub(crate) ptx_75: Option<&'static str>,
    /// For cards from capability 8.0 on.
    pub(crate) ptx_80: &'static str,
}

/// The module that a kernel is in.
pub(crate) fn module_of(kernel: &str) -> Option<&'static Module> {
    let argument = |line: &'static str, call: &str| {
        line.strip_prefix(call)?
            .strip_prefix('(')?
            .strip_suffix(')')
    };
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
    (
        all: $($all:literal)*;
        from_80: $($from_80:literal)*;
    ) => {
        [
            // Compiled for the oldest card that has what it needs; newer ones take the same.
            $(Module {
                name: $all,
                ptx_75: Some(include_str!(concat!("../ptx/", $all, ".ptx"))),
                ptx_80: include_str!(concat!("../ptx/", $all, ".ptx")),
            },)*
            $(Module {
                name: $from_80,
                ptx_75: None,
                ptx_80: include_str!(concat!("../ptx/", $from_80, ".ptx")),
            },)*
        ]
    };
}

static MODULES: [Module; 24] = modules! {
    all:
        "embed" "rows_f32" "rows_f16" "dequantize_f32" "dequantize_f16" "decode_f32" "decode_f16" "multiply_f32"
        "multiply_f16" "multiply_few_f32" "multiply_few_f16" "multiply_palette_f32" "multiply_palette_f16"
        "attention_f32" "attention_f16" "head" "compare";
    from_80:
        "rows_bf16" "dequantize_bf16" "decode_bf16" "multiply_bf16" "multiply_few_bf16" "multiply_palette_bf16"
        "attention_bf16";
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_in_the_module_that_the_list_says() {
        let names = include_str!("../kernels/list.h")
            .lines()
            .filter_map(|line| line.strip_prefix("KERNEL(")?.strip_suffix(')'));
        let mut count = 0;
        for name in names {
            let module = module_of(name).unwrap_or_else(|| panic!("{name} is in no module"));
            let entry = format!(".visible .entry {name}(");
            assert!(module.ptx_80.contains(&entry), "{}: {name}", module.name);
            count += 1;
        }
        let entries: usize = MODULES
            .iter()
            .map(|module| module.ptx_80.matches(".entry ").count())
            .sum();
        assert_eq!(count, entries, "kernels that the list doesn't have");
        assert!(module_of("none").is_none());
    }
}
