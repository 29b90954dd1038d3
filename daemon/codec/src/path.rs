//! Which of two ways the same is computed: one that any processor takes, and one for those that have AVX2.

/// A way. The tests hold both to the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
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

impl Path {
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
