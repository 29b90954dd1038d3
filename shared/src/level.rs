//! Levels: named sets of choices that a plan is made from. A level sets the fidelity of the weights; how much memory
//! they may take is set by the budget.

use std::{fmt, str::FromStr};

/// The fidelity of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// The checkpoint's weights, all of them on the device.
    Off,
    /// The checkpoint's weights; the embedding's rows come from the host, and what does not fit the budget is streamed.
    Standard,
    /// The checkpoint's weights, losslessly compressed.
    Mild,
    /// Eight bits a weight.
    Moderate,
    /// Four bits a weight.
    Aggressive,
    /// Formats chosen group by group: the weights of a [mix](crate::mix).
    Optimized,
    /// The most faithful level whose pass takes at most [`max_slowdown`](crate::options::PlanSettings::max_slowdown)
    /// times as long as the fastest level's.
    Auto,
}

/// Default of how many times as long a pass may take for fidelity under [`Level::Auto`].
pub const MAX_SLOWDOWN: f64 = 1.5;

/// A factor for [`Level::Auto`], checked.
///
/// # Errors
/// When it is below 1, infinite or NaN.
pub fn check_max_slowdown(factor: f64) -> Result<f64, String> {
    // The fastest level takes its own time once, so a smaller factor would leave no level.
    match factor.is_finite() && factor >= 1.0 {
        true => Ok(factor),
        false => Err(format!("must be at least 1, not {factor}")),
    }
}

/// A factor for [`Level::Auto`], parsed and checked.
///
/// # Errors
/// What is wrong with the text.
pub fn parse_max_slowdown(text: &str) -> Result<f64, String> {
    let factor = text.parse();
    check_max_slowdown(factor.map_err(|_| format!("{text:?} is not a number, such as 1.5"))?)
}

/// Where the rows of the embedding are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EmbeddingPlacement {
    /// As the level says: on the device at `off`, on the host at all others.
    #[default]
    Auto,
    /// Read row by row from where the checkpoint lies.
    Host,
    /// In the device's memory, whatever else has to be streamed.
    Device,
}

impl EmbeddingPlacement {
    /// Every placement, the default first.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Host, Self::Device];

    /// The name that people type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Host => "host",
            Self::Device => "device",
        }
    }
}

impl fmt::Display for EmbeddingPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for EmbeddingPlacement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|place| place.name() == text);
        known.ok_or_else(|| {
            format!("unknown embedding placement {text:?}; known are auto, host, device")
        })
    }
}

/// Whether the CPU computes some of a mixture's experts beside a GPU that has no room for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CpuExperts {
    /// Never: all are computed by the GPU, whose sums the answers have.
    #[default]
    Off,
    /// Those with few rows, where that is predicted to be faster than copying them. Sums differ from the GPU's by rounding, so no
    /// answer counts as exact.
    Auto,
}

impl CpuExperts {
    /// Every value, the default first.
    pub const ALL: [Self; 2] = [Self::Off, Self::Auto];

    /// The name that people type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Auto => "auto",
        }
    }
}

impl fmt::Display for CpuExperts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CpuExperts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|value| value.name() == text);
        known.ok_or_else(|| {
            format!("unknown value {text:?} for experts on the CPU; known are off, auto")
        })
    }
}

/// The format of an autoregressive model's KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum KvCacheFormat {
    /// The dtype that a GPU computes in; on the CPU bf16.
    #[default]
    Auto,
    /// As it was computed: 32 bits an element.
    F32,
    /// Rounded to 16 bits, as models are trained.
    Bf16,
    // Down to 8 bits, fewer cost nothing that likelihoods show, and take a half or a quarter of the memory
    // (docs/benchmarks.md). A canvas loses by fewer than that (docs/models.md).
    /// In 8 bits, with a scale for each 32 elements of a head.
    Q8_0,
    /// In 5 bits, rotated first.
    Q5_0,
    /// In 4 bits, rotated first.
    Q4_0,
}

impl KvCacheFormat {
    /// Every format, the default first.
    pub const ALL: [Self; 6] = [
        Self::Auto,
        Self::F32,
        Self::Bf16,
        Self::Q8_0,
        Self::Q5_0,
        Self::Q4_0,
    ];

    /// The name that people type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q5_0 => "q5_0",
            Self::Q4_0 => "q4_0",
        }
    }
}

impl fmt::Display for KvCacheFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for KvCacheFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|kv| kv.name() == text);
        known.ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            format!("unknown KV cache format {text:?}; known are {known}")
        })
    }
}

impl Level {
    /// All levels, the most faithful first, `auto` last.
    pub const ALL: [Self; 7] = [
        Self::Off,
        Self::Standard,
        Self::Mild,
        Self::Moderate,
        Self::Aggressive,
        Self::Optimized,
        Self::Auto,
    ];

    /// The name that people type and screens show.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Standard => "standard",
            Self::Mild => "mild",
            Self::Moderate => "moderate",
            Self::Aggressive => "aggressive",
            Self::Optimized => "optimized",
            Self::Auto => "auto",
        }
    }

    /// The field's name for the level, which people may type too, but which is never written.
    #[must_use]
    pub fn alias(self) -> Option<&'static str> {
        match self {
            Self::Mild => Some("lossless"),
            Self::Moderate => Some("q8"),
            Self::Aggressive => Some("q4"),
            Self::Off | Self::Standard | Self::Optimized | Self::Auto => None,
        }
    }

    /// What the level does, in a line.
    #[must_use]
    pub fn summary(self) -> &'static str {
        match self {
            Self::Off => "checkpoint weights, all resident on the device",
            Self::Standard => "checkpoint weights; those that don't fit the budget are streamed",
            Self::Mild => "losslessly compressed weights, about 12 bits per bf16 weight",
            Self::Moderate => "8-bit weights (q8_0)",
            Self::Aggressive => "4-bit weights (q4_k), 6-bit LM head",
            Self::Optimized => "formats chosen by `sluice optimize`, weight group by weight group",
            Self::Auto => "the most faithful level within the allowed slowdown",
        }
    }

    /// Limits that requests should stay within for the text to hold up; `None`: no limits.
    #[must_use]
    pub fn advised_limits(self) -> Option<AdvisedLimits> {
        match self {
            Self::Aggressive => Some(AdvisedLimits {
                length: 64,
                block_length: 32,
                steps: 64,
            }),
            Self::Off
            | Self::Standard
            | Self::Mild
            | Self::Moderate
            | Self::Optimized
            | Self::Auto => None,
        }
    }

    /// The levels that may replace it where it is not possible: none is less faithful, and the nearest comes first.
    /// `off`, `standard` and `mild` are equally faithful; `off` replaces none, since it takes the most memory.
    #[must_use]
    pub fn substitutes(self) -> &'static [Self] {
        match self {
            Self::Off => &[Self::Standard, Self::Mild],
            Self::Standard => &[Self::Mild],
            Self::Mild | Self::Auto => &[Self::Standard],
            // The smaller of the two lossless levels first: LLaDA-8B takes 10.5 GiB at `mild`, 14.0 GiB at `standard`.
            Self::Moderate => &[Self::Mild, Self::Standard],
            // A mix may be more faithful than either of the quantized levels.
            Self::Optimized => &[Self::Mild, Self::Standard],
            Self::Aggressive => &[Self::Moderate, Self::Mild, Self::Standard],
        }
    }

    /// Whether outputs are those of the checkpoint's own weights, bit for bit; `None` for `auto`, which decides later.
    #[must_use]
    pub fn is_lossless(self) -> Option<bool> {
        match self {
            Self::Off | Self::Standard | Self::Mild => Some(true),
            Self::Moderate | Self::Aggressive | Self::Optimized => Some(false),
            Self::Auto => None,
        }
    }
}

/// Limits that a level recommends for requests. They are advice: nothing is refused or changed for their sake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdvisedLimits {
    /// Positions to fill.
    pub length: u32,
    /// Positions decoded together.
    pub block_length: u32,
    /// Passes of the reference schedule.
    pub steps: u32,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|level| level.name() == text || level.alias() == Some(text))
            .ok_or_else(|| {
                let names: Vec<_> = Self::ALL.iter().map(|level| level.name()).collect();
                format!("unknown level {text:?}; known are {}", names.join(", "))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for level in Level::ALL {
            assert_eq!(level.name().parse(), Ok(level));
        }
        for (alias, level) in [
            ("lossless", Level::Mild),
            ("q8", Level::Moderate),
            ("q4", Level::Aggressive),
        ] {
            assert_eq!(alias.parse(), Ok(level));
        }
        for place in EmbeddingPlacement::ALL {
            assert_eq!(place.name().parse(), Ok(place));
        }
        for kv in KvCacheFormat::ALL {
            assert_eq!(kv.name().parse(), Ok(kv));
        }
        assert!(
            "q4".parse::<KvCacheFormat>()
                .unwrap_err()
                .contains("q8_0, q5_0, q4_0")
        );
        assert!(
            "disk"
                .parse::<EmbeddingPlacement>()
                .unwrap_err()
                .contains("host")
        );
        assert_eq!(parse_max_slowdown("2"), Ok(2.0));
        for wrong in ["0.9", "NaN", "inf", "much"] {
            assert!(parse_max_slowdown(wrong).is_err(), "{wrong}");
        }
        let error = "Off".parse::<Level>().unwrap_err();
        assert!(
            error.contains("off, standard, mild, moderate, aggressive, optimized, auto"),
            "{error}"
        );
    }
}
