//! Which vector instructions compute: found once, by what works here, and chosen for each device.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;

use std::{fmt, sync::OnceLock};

/// Vector instructions that go together, by the name that settings and screens have for them. Of those that a CPU has, later
/// ones compute faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstructionSet {
    /// What every CPU of the architecture has.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// Those of AVX2, and dot products of bytes in its vectors (AVX-VNNI).
    AvxVnni,
    /// Those of AVX2, and AVX-512 with its operations on bytes (F and BW).
    Avx512,
    /// Those of AVX-512, and dot products of bytes (VNNI).
    Avx512Vnni,
    /// Those before, and dot products of bf16.
    Avx512Bf16,
    /// Those before, and products of tiles of bf16 (AMX).
    Amx,
}

impl InstructionSet {
    /// All sets, in their order.
    pub const ALL: [Self; 7] = [
        Self::Portable,
        Self::Avx2,
        Self::AvxVnni,
        Self::Avx512,
        Self::Avx512Vnni,
        Self::Avx512Bf16,
        Self::Amx,
    ];

    /// The name that settings and screens use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avx-vnni",
            Self::Avx512 => "avx512",
            Self::Avx512Vnni => "avx512-vnni",
            Self::Avx512Bf16 => "avx512-bf16",
            Self::Amx => "amx",
        }
    }

    /// Whether the CPU has these instructions, and the system keeps the registers that they need.
    #[cfg(target_arch = "x86_64")]
    fn works(self) -> bool {
        // Detection asks the system, too: a register that it doesn't keep is as good as none.
        match self {
            Self::Portable => true,
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            Self::AvxVnni => Self::Avx2.works() && is_x86_feature_detected!("avxvnni"),
            Self::Avx512 => {
                Self::Avx2.works()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
            }
            Self::Avx512Vnni => Self::Avx512.works() && is_x86_feature_detected!("avx512vnni"),
            Self::Avx512Bf16 => Self::Avx512Vnni.works() && is_x86_feature_detected!("avx512bf16"),
            #[cfg(target_os = "linux")]
            Self::Amx => Self::Avx512Bf16.works() && amx::state() == amx::State::Works,
            #[cfg(not(target_os = "linux"))]
            Self::Amx => false,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn works(self) -> bool {
        self == Self::Portable
    }
}

impl fmt::Display for InstructionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Instructions that work on this CPU. There is no other way to a value than through what was found here, so that whoever has
/// one may run kernels of these instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instructions(InstructionSet);

impl Instructions {
    /// Those of [`InstructionSet::Portable`].
    pub const PORTABLE: Self = Self(InstructionSet::Portable);

    /// All that work here, in their order; the first is [`InstructionSet::Portable`].
    pub fn all() -> &'static [Self] {
        static ALL: OnceLock<Vec<Instructions>> = OnceLock::new();
        ALL.get_or_init(|| {
            let sets = InstructionSet::ALL.into_iter();
            sets.filter(|set| set.works()).map(Self).collect()
        })
    }

    /// The best that work here.
    #[must_use]
    pub fn best() -> Self {
        *Self::all().last().expect("the portable ones always work")
    }

    /// Those of this set; `None` if they don't work here.
    #[must_use]
    pub fn of(set: InstructionSet) -> Option<Self> {
        Self::all().iter().copied().find(|all| all.0 == set)
    }

    /// Why AMX is left out where the processor has it.
    #[must_use]
    pub fn amx_barred() -> Option<&'static str> {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if let amx::State::Barred(why) = amx::state() {
            return Some(why);
        }
        None
    }

    /// The set's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// Whether those of `set` are among them.
    #[must_use]
    pub fn has(self, set: InstructionSet) -> bool {
        // Each set has those before, but for AVX-VNNI: server CPUs have AVX-512's dot products without it.
        self.0 == set || self.0 > set && set != InstructionSet::AvxVnni
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_works_is_known_by_its_name() {
        let all = Instructions::all();
        assert_eq!(all.first().map(|all| all.name()), Some("portable"));
        assert_eq!(all.last(), Some(&Instructions::best()));
        for set in InstructionSet::ALL {
            assert_eq!(Instructions::of(set).is_some(), set.works(), "{set}");
        }
    }

    #[test]
    fn a_set_has_those_before_it() {
        let has = |set, other| Instructions(set).has(other);
        for set in InstructionSet::ALL {
            assert!(has(set, set) && has(set, InstructionSet::Portable));
        }
        assert!(has(InstructionSet::AvxVnni, InstructionSet::Avx2));
        assert!(has(InstructionSet::Amx, InstructionSet::Avx512Vnni));
        assert!(!has(InstructionSet::Avx2, InstructionSet::Avx512));
        assert!(!has(InstructionSet::Avx512Vnni, InstructionSet::AvxVnni));
    }
}
