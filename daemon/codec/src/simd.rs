//! Run-time choice between portable code, AVX2 and AVX-512.

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// A code path. Tests hold all to the same bits.
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
pub(crate) struct Avx2 {
    is_wide: bool,
}

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    /// Whether it has AVX-512's instructions for bytes as well (F, BW and VBMI).
    pub(crate) fn is_wide(self) -> bool {
        self.is_wide
    }
}

impl SimdPath {
    /// The fastest path that this processor supports.
    pub(crate) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("pclmulqdq")
        {
            return Self::Avx2(Avx2 {
                is_wide: is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vbmi"),
            });
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
        #[cfg(target_arch = "x86_64")]
        if let Self::Avx2(best) = Self::best() {
            paths.push(Self::Avx2(Avx2 { is_wide: false }));
            if best.is_wide {
                paths.push(Self::Avx2(best));
            }
        }
        paths
    }
}
