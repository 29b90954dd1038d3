//! What a plan is made from: loads, changes, plans and the daemon's configuration have it in common.

use std::{fmt, str::FromStr};

use crate::{
    level::{CpuExperts, EmbeddingPlacement, KvCacheFormat, Level, MAX_SLOWDOWN},
    mix::MixId,
    units,
};

/// What a plan is made from, as far as somebody says it: what is `None` stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct PlanOptions {
    /// Fidelity of the weights: off, standard, mild (or lossless), moderate (or q8), aggressive (or q4) or auto
    #[cfg_attr(feature = "clap", arg(long, value_name = "LEVEL"))]
    pub level: Option<Level>,
    /// Device memory budget, such as 4GiB, or `default` for the memory that was free when the daemon started, less a margin
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "BYTES|default", allow_negative_numbers = true)
    )]
    pub budget: Option<Budget>,
    /// Where the embedding is kept: host, device, or auto (on the host at every level but off)
    #[cfg_attr(feature = "clap", arg(long, value_name = "PLACE"))]
    pub embedding: Option<EmbeddingPlacement>,
    /// Slowdown that level auto accepts for fidelity: a pass may take this many times as long as at the fastest level
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "FACTOR", value_parser = crate::level::parse_max_slowdown, allow_negative_numbers = true)
    )]
    pub max_slowdown: Option<f64>,
    /// Format of an autoregressive model's KV cache: f32, bf16, q8_0, q5_0, q4_0, or auto for bf16, on a GPU for the dtype it
    /// computes in
    #[cfg_attr(feature = "clap", arg(long, value_name = "FORMAT"))]
    pub kv_cache_format: Option<KvCacheFormat>,
    /// Whether the CPU computes some of a mixture's experts beside a GPU without room for all: off, or auto for where that is
    /// faster; answers are not called exact then
    #[cfg_attr(feature = "clap", arg(long, value_name = "WHEN"))]
    pub cpu_experts: Option<CpuExperts>,
    /// Mix that level optimized computes with, such as 3f2a91c4: one that `sluice optimize` made, by default the latest
    #[cfg_attr(feature = "clap", arg(long, value_name = "ID"))]
    pub mix: Option<MixId>,
}

impl PlanOptions {
    /// These options, and of the others what these leave out.
    #[must_use]
    pub fn over(self, other: Self) -> Self {
        Self {
            level: self.level.or(other.level),
            budget: self.budget.or(other.budget),
            embedding: self.embedding.or(other.embedding),
            max_slowdown: self.max_slowdown.or(other.max_slowdown),
            kv_cache_format: self.kv_cache_format.or(other.kv_cache_format),
            cpu_experts: self.cpu_experts.or(other.cpu_experts),
            mix: self.mix.or(other.mix),
        }
    }

    /// Whether nothing is said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What is said, by the names that flags have, as people would type it.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, String)> {
        let values = [
            self.level.map(|level| level.to_string()),
            self.budget.map(|budget| budget.to_string()),
            self.embedding.map(|place| place.to_string()),
            self.max_slowdown.map(|factor| factor.to_string()),
            self.kv_cache_format.map(|format| format.to_string()),
            self.cpu_experts.map(|value| value.to_string()),
            self.mix.map(|mix| mix.to_string()),
        ];
        let values = NAMES.into_iter().zip(values);
        values.filter_map(|(name, value)| Some((name, value?)))
    }

    /// An argument of a command line; the help of one of these options says what holds where it is left out.
    #[cfg(feature = "clap")]
    #[must_use]
    pub fn with_default(arg: clap::Arg, default: impl Fn(&str) -> String) -> clap::Arg {
        let name = arg.get_long().filter(|name| NAMES.contains(name));
        match name.map(default).zip(arg.get_help()) {
            Some((default, help)) => {
                let help = format!("{help} [default: {default}]");
                arg.help(help)
            }
            None => arg,
        }
    }
}

/// The options' names as flags, in their order.
const NAMES: [&str; 7] = [
    "level",
    "budget",
    "embedding",
    "max-slowdown",
    "kv-cache-format",
    "cpu-experts",
    "mix",
];

impl fmt::Display for PlanOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.values().map(|(name, value)| format!("{name} {value}"));
        f.write_str(&values.collect::<Vec<_>>().join(", "))
    }
}

/// Limit of the device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Budget {
    /// What was free when the daemon started, less a margin.
    #[default]
    Default,
    /// This many bytes.
    Bytes(u64),
}

impl Budget {
    /// The bytes; `None`: the default.
    #[must_use]
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::Default => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }
}

impl From<Option<u64>> for Budget {
    fn from(bytes: Option<u64>) -> Self {
        bytes.map_or(Self::Default, Self::Bytes)
    }
}

impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "default" {
            return Ok(Self::Default);
        }
        match units::parse_bytes(text).map_err(|problem| format!("{problem}, or `default`"))? {
            0 => Err(format!("{text:?} leaves no memory to use")),
            bytes => Ok(Self::Bytes(bytes)),
        }
    }
}

impl fmt::Display for Budget {
    /// As it is read back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // `pad` keeps the width that tables ask for.
            Self::Default => f.pad("default"),
            Self::Bytes(bytes) => f.pad(&units::bytes_exactly(*bytes)),
        }
    }
}

/// [`PlanOptions`] with nothing left out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlanSettings {
    /// Fidelity of the weights.
    pub level: Level,
    /// Limit of the device's memory.
    pub budget: Budget,
    /// Where the embedding is kept.
    pub embedding: EmbeddingPlacement,
    /// How many times as long as at the fastest level a pass may take under [`Level::Auto`]; at least 1.
    pub max_slowdown: f64,
    /// Format of an autoregressive model's KV cache, from the next request on.
    pub kv_cache_format: KvCacheFormat,
    /// Whether the CPU computes some of a mixture's experts beside a GPU.
    pub cpu_experts: CpuExperts,
    /// The mix of [`Level::Optimized`] that was named; `None`: the latest.
    pub mix: Option<MixId>,
    /// The one that was the latest when the level came into force with none named: plans keep to it, whatever is made later.
    pub resolved_mix: Option<MixId>,
}

impl Default for PlanSettings {
    fn default() -> Self {
        PlanOptions::default().into()
    }
}

impl From<PlanOptions> for PlanSettings {
    /// What nobody says is as built in.
    fn from(options: PlanOptions) -> Self {
        Self {
            level: options.level.unwrap_or(Level::Standard),
            budget: options.budget.unwrap_or_default(),
            embedding: options.embedding.unwrap_or_default(),
            max_slowdown: options.max_slowdown.unwrap_or(MAX_SLOWDOWN),
            kv_cache_format: options.kv_cache_format.unwrap_or_default(),
            cpu_experts: options.cpu_experts.unwrap_or_default(),
            mix: options.mix,
            resolved_mix: None,
        }
    }
}

impl From<PlanSettings> for PlanOptions {
    /// The options that lead to these settings from any others.
    fn from(settings: PlanSettings) -> Self {
        Self {
            level: Some(settings.level),
            budget: Some(settings.budget),
            embedding: Some(settings.embedding),
            max_slowdown: Some(settings.max_slowdown),
            kv_cache_format: Some(settings.kv_cache_format),
            cpu_experts: Some(settings.cpu_experts),
            mix: settings.effective_mix(),
        }
    }
}

impl PlanSettings {
    /// The settings after a change. Whoever asks for a level, and names no mix, asks for the latest.
    #[must_use]
    pub fn with(self, change: &PlanOptions) -> Self {
        let after: Self = change.over(self.with_unresolved_mix().into()).into();
        let is_taken = change.level.is_none() && after.mix.is_none();
        Self {
            resolved_mix: self.resolved_mix.filter(|_| is_taken),
            ..after
        }
    }

    /// Whether a change names nothing but what these settings have.
    #[must_use]
    pub fn have(self, change: &PlanOptions) -> bool {
        self.with(change).with_unresolved_mix() == self.with_unresolved_mix()
    }

    /// The settings as a load begins with them: a mix that nobody named is found anew.
    #[must_use]
    pub fn with_unresolved_mix(self) -> Self {
        Self {
            resolved_mix: None,
            ..self
        }
    }

    /// The mix of [`Level::Optimized`]; `None`: the latest.
    #[must_use]
    pub fn effective_mix(&self) -> Option<MixId> {
        self.mix.or(self.resolved_mix)
    }

    /// What a plan chooses by.
    #[must_use]
    pub fn resolved(self) -> ResolvedPlanSettings {
        ResolvedPlanSettings {
            level: self.level,
            settings: self,
        }
    }
}

/// What a plan chooses by: settings, and the level that they come to. The plan has the budget in bytes beside this.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ResolvedPlanSettings {
    /// Fidelity of the weights: the settings' level, or the one that takes its place.
    pub level: Level,
    /// The settings other than the level.
    pub settings: PlanSettings,
}

impl From<PlanSettings> for ResolvedPlanSettings {
    fn from(settings: PlanSettings) -> Self {
        settings.resolved()
    }
}

impl From<Level> for ResolvedPlanSettings {
    fn from(level: Level) -> Self {
        let settings = PlanSettings {
            level,
            ..PlanSettings::default()
        };
        settings.resolved()
    }
}

impl ResolvedPlanSettings {
    /// Whether losslessly compressed weights are decompressed once and for all where there is room and it pays: under
    /// [`Level::Auto`], whatever level that comes to.
    #[must_use]
    pub fn decompresses(&self) -> bool {
        self.settings.level == Level::Auto
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> PlanOptions {
        PlanOptions {
            level: Some(Level::Mild),
            budget: Some(Budget::Bytes(7)),
            embedding: Some(EmbeddingPlacement::Host),
            max_slowdown: Some(2.0),
            kv_cache_format: Some(KvCacheFormat::Q8_0),
            cpu_experts: Some(CpuExperts::Auto),
            mix: Some(MixId::of_hash(7)),
        }
    }

    #[test]
    fn options_go_before_others_one_by_one() {
        let nothing = PlanOptions::default();
        assert!(nothing.is_empty() && !all().is_empty());
        let others = PlanOptions {
            level: Some(Level::Off),
            budget: Some(Budget::Default),
            embedding: Some(EmbeddingPlacement::Device),
            max_slowdown: Some(3.0),
            kv_cache_format: Some(KvCacheFormat::F32),
            cpu_experts: Some(CpuExperts::Off),
            mix: Some(MixId::of_hash(8)),
        };
        // Each of them is said by one, by the other, by both or by neither.
        for (first, second, expected) in [
            (all(), others, all()),
            (all(), nothing, all()),
            (nothing, all(), all()),
            (nothing, nothing, nothing),
        ] {
            assert_eq!(first.over(second), expected);
        }
        let level = PlanOptions {
            level: Some(Level::Off),
            ..nothing
        };
        let budget = PlanOptions {
            budget: Some(Budget::Default),
            ..nothing
        };
        for one in [level, budget] {
            let merged = one.over(all());
            assert_eq!(merged.level, one.level.or(all().level));
            assert_eq!(merged.budget, one.budget.or(all().budget));
            assert_eq!(merged.max_slowdown, all().max_slowdown);
        }
    }

    #[test]
    fn a_mix_that_nobody_named_stays_until_the_level_is_asked_for() {
        let (first, second) = (MixId::of_hash(1), MixId::of_hash(2));
        let optimized = PlanOptions {
            level: Some(Level::Optimized),
            ..PlanOptions::default()
        };
        let budget = PlanOptions {
            budget: Some(Budget::Bytes(7)),
            ..PlanOptions::default()
        };
        let named = PlanOptions {
            mix: Some(second),
            ..PlanOptions::default()
        };
        let taken = PlanSettings {
            resolved_mix: Some(first),
            ..PlanSettings::default().with(&optimized)
        };
        assert_eq!(taken.effective_mix(), Some(first));
        assert_eq!(PlanOptions::from(taken).mix, Some(first));
        assert_eq!(taken.with(&budget).effective_mix(), Some(first));
        assert_eq!(taken.with(&optimized).effective_mix(), None);
        assert_eq!(taken.with_unresolved_mix().effective_mix(), None);
        // A name goes before it, and stays.
        let with_name = taken.with(&named);
        assert_eq!(with_name.resolved_mix, None);
        for change in [optimized, budget] {
            assert_eq!(with_name.with(&change).effective_mix(), Some(second));
        }
        assert!(taken.have(&optimized) && !taken.have(&budget) && !taken.have(&named));
    }

    #[test]
    fn a_change_leaves_what_it_does_not_name() {
        let before = PlanSettings::from(all());
        assert_eq!(PlanOptions::from(before), all());
        assert_eq!(before.with(&PlanOptions::default()), before);
        assert_eq!(PlanSettings::default().with(&all()), before);
        let some = PlanOptions {
            level: Some(Level::Off),
            budget: Some(Budget::Default),
            ..PlanOptions::default()
        };
        let after = PlanSettings {
            level: Level::Off,
            budget: Budget::Default,
            ..before
        };
        assert_eq!(before.with(&some), after);
        assert!(after.have(&some) && !before.have(&some));
    }

    #[test]
    fn options_are_shown_as_people_type_them() {
        assert_eq!(PlanOptions::default().to_string(), "");
        assert_eq!(
            all().to_string(),
            "level mild, budget 7, embedding host, max-slowdown 2, kv-cache-format q8_0, \
             cpu-experts auto, mix 00000007"
        );
    }

    #[test]
    fn a_budget_is_an_amount_or_the_default() {
        for (text, budget) in [
            ("default", Budget::Default),
            ("4GiB", Budget::Bytes(4 << 30)),
            ("4294967297", Budget::Bytes((4 << 30) + 1)),
        ] {
            assert_eq!(text.parse(), Ok(budget));
            assert_eq!(budget.to_string(), text);
        }
        let problem = "much".parse::<Budget>().unwrap_err();
        assert!(
            problem.contains("4GiB") && problem.contains("`default`"),
            "{problem}"
        );
        assert!("0".parse::<Budget>().unwrap_err().contains("no memory"));
    }

    #[test]
    fn a_plan_knows_that_its_level_was_chosen_by_auto() {
        let auto = ResolvedPlanSettings::from(Level::Auto);
        let chosen = ResolvedPlanSettings {
            level: Level::Mild,
            ..auto
        };
        assert!(auto.decompresses() && chosen.decompresses());
        assert!(!ResolvedPlanSettings::from(Level::Mild).decompresses());
    }
}
