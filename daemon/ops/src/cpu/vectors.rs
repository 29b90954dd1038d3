//! Loops that are compiled for wider vectors, too: a build for any x86-64 has four lanes.

/// Independent running sums: one for each lane of the widest vectors. A constant, so that sums are in the same order
/// whatever the vectors' width.
pub(super) const LANES: usize = 16;

/// Compiles a loop once for each kind of vectors, and takes the best of these instructions.
macro_rules! with_vectors {
    ($(#[$doc:meta])* $name:ident, $body:ident, ($($argument:ident: $type:ty),*) $(-> $result:ty)?) => {
        $(#[$doc])*
        pub(in crate) fn $name(
            instructions: sluice_machine::Instructions,
            $($argument: $type),*
        ) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f")]
                fn widest($($argument: $type),*) $(-> $result)? {
                    $body($($argument),*)
                }
                #[target_feature(enable = "avx2")]
                fn wide($($argument: $type),*) $(-> $result)? {
                    $body($($argument),*)
                }
                use sluice_machine::InstructionSet;
                if instructions.has(InstructionSet::Avx512) {
                    // SAFETY: the function is compiled for these instructions.
                    return unsafe { widest($($argument),*) };
                }
                if instructions.has(InstructionSet::Avx2) {
                    // SAFETY: as above.
                    return unsafe { wide($($argument),*) };
                }
            }
            let _ = instructions;
            $body($($argument),*)
        }
    };
}
pub(super) use with_vectors;
