//! Run-time choice between portable code and AVX2.

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// A code path. Tests hold both to the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SimdPath {
    /// Plain Rust, which runs on every processor.
    Portable,
    /// AVX2, BMI2, F16C and PCLMULQDQ. Only [`SimdPath::best`] makes one, so a value proves that the processor has them.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
}

/// Proof that the processor has AVX2, BMI2, F16C and PCLMULQDQ: all processors that have the first have the others.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Avx2(());

impl SimdPath {
    /// The fastest path that this processor supports.
    pub(crate) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("pclmulqdq")
        {
            return Self::Avx2(Avx2(()));
        }
        Self::Portable
    }

    /// Prefetches bytes that will be read soon: memory would be idle while symbols are decoded.
    #[inline(always)]
    pub(crate) fn fetch(self, bytes: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        for at in (0..bytes.len()).step_by(LINE_BYTES) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: what every processor of this kind has, of an address that may be read.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().add(at).cast()) };
        }
        _ = bytes;
    }

    /// Prefetches a buffer that will be written soon.
    #[inline(always)]
    pub(crate) fn fetch_to_write<T>(self, out: &mut [T]) {
        #[cfg(target_arch = "x86_64")]
        // `ET0` fetches the line in exclusive state, which a later store would otherwise have to ask other cores for.
        for at in (0..out.len()).step_by(LINE_BYTES / size_of::<T>()) {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            // SAFETY: as above.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(out.as_ptr().add(at).cast()) };
        }
        _ = out;
    }

    /// All paths that this processor supports, for tests.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Self> {
        let mut paths = vec![Self::Portable];
        if Self::best() != Self::Portable {
            paths.push(Self::best());
        }
        paths
    }
}
