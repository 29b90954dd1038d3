//! Placeholder until the kernels are there.

/// Kernels that are compiled together.
pub(crate) struct Module {
    pub(crate) name: &'static str,
    /// For cards from capability 7.5 on, unless the module is for newer ones only.
    pub(crate) ptx_75: Option<&'static str>,
    /// For cards from capability 8.0 on.
    pub(crate) ptx_80: &'static str,
}

pub(crate) fn module_of(_kernel: &str) -> Option<&'static Module> {
    None
}
