//! Loops that are compiled for wider vectors, too: a build for any x86-64 has four lanes.

/// Independent running sums: one for each lane of the widest vectors. A constant, so that sums are in the same order
/// whatever the vectors' width.
pub(super) const LANES: usize = 16;

/// Compiles a loop once for each kind of vectors, and takes what this processor has.
macro_rules! with_vectors {
    ($(#[$doc:meta])* $name:ident, $body:ident, ($($argument:ident: $type:ty),*) $(-> $result:ty)?) => {
        $(#[$doc])*
        pub(in crate) fn $name($($argument: $type),*) $(-> $result)? {
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
                if is_x86_feature_detected!("avx512f") {
                    // SAFETY: the processor has what the function is compiled for.
                    return unsafe { widest($($argument),*) };
                }
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: as above.
                    return unsafe { wide($($argument),*) };
                }
            }
            $body($($argument),*)
        }
    };
}
pub(super) use with_vectors;
