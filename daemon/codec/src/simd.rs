//! Which of two ways the same is computed: one that any processor takes, and one for those that have AVX2.

/// Bytes that memory gives at a time.
const LINE_BYTES: usize = 64;

/// A way. The tests hold both to the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SimdPath {
    /// What every processor has.
    Portable,
    /// AVX2, BMI2 and F16C; made by [`Path::best`] alone, and so proof of them.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
}

/// Proof that the processor has what it takes.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Avx2(());

impl SimdPath {
    /// The faster one of those that there are.
    pub(crate) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("f16c")
        {
            return Self::Avx2(Avx2(()));
        }
        Self::Portable
    }

    /// Asks memory for what will be read soon. While symbols are decoded memory would have little to do.
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

    /// The same for what will be written.
    #[inline(always)]
    pub(crate) fn fetch_to_write<T>(self, out: &mut [T]) {
        #[cfg(target_arch = "x86_64")]
        for at in (0..out.len()).step_by(LINE_BYTES / size_of::<T>()) {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            // SAFETY: as above.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(out.as_ptr().add(at).cast()) };
        }
        _ = out;
    }

    /// All that there are, for tests.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Self> {
        let mut paths = vec![Self::Portable];
        if Self::best() != Self::Portable {
            paths.push(Self::best());
        }
        paths
    }
}
