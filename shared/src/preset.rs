//! Presets: one word for how much of the reference is given up for speed, instead of a policy, a cache, a window and a
//! canvas growth that one must know and that must suit each other. The table is the only place that defines them.

use std::{fmt, str::FromStr};

use crate::{
    decoding::{BRANCHES_DEFAULT, Decoding, Speculation},
    policy::PolicyChoice,
};

/// How much of the reference is given up for speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Preset {
    /// Nothing: the reference's results.
    #[default]
    Exact,
    /// Only what costs little quality.
    Quality,
    /// Between quality and fast.
    Balanced,
    /// As much as most answers tolerate.
    Fast,
    /// [`Preset::Balanced`] where arithmetic takes the time; where passes wait for streamed weights, several orders in
    /// whole passes.
    Auto,
}

/// A row of the table: the settings of a preset, as people would write them.
#[derive(Debug)]
pub struct PresetInfo {
    /// The preset that the row defines.
    pub preset: Preset,
    /// The name that people type.
    pub name: &'static str,
    /// One line for help texts.
    pub summary: &'static str,
    /// The value of `--policy`.
    pub policy: &'static str,
    /// The value of `--kv-cache`.
    pub kv_cache: &'static str,
    /// The value of `--suffix-window`; `None`: no window.
    pub suffix_window: Option<u32>,
    /// The value of `--canvas-growth`.
    pub canvas_growth: &'static str,
}

/// All presets, the default first. Where rows cost nothing, `exact` guesses passes ahead besides; the row of
/// [`Preset::Auto`] is for where they do cost ([`Preset::resolve`]).
pub const PRESETS: &[PresetInfo] = &[
    PresetInfo {
        preset: Preset::Exact,
        name: "exact",
        summary: "the reference schedule, without a KV cache",
        policy: "reference",
        kv_cache: "none",
        suffix_window: None,
        canvas_growth: "fixed",
    },
    PresetInfo {
        preset: Preset::Quality,
        name: "quality",
        summary: "commits every near-certain token of a pass; keeps the KV cache before the block",
        // 96 % of the demonstration model's sentences are whole at 2.1 tokens a pass, 98 % with `exact`
        // (docs/presets.md). Equal tokens at neighbouring positions wait: doubled words are what commits of one pass
        // get wrong most.
        policy: "threshold:t=0.95,apart=1",
        // Keys change most just after their token was committed, so what lies further back is kept as it is.
        kv_cache: "prefix:recompute-before=64",
        // With this cache and window the likelihood stays that of whole passes: 0.84 nats a token beside 0.92
        // (docs/benchmarks.md).
        suffix_window: Some(64),
        canvas_growth: "fixed",
    },
    PresetInfo {
        preset: Preset::Balanced,
        name: "balanced",
        summary: "commits every likely token of a pass; keeps the KV cache around the block",
        // 94 % of the sentences are whole, at 2.4 tokens a pass.
        policy: "threshold:t=0.8,apart=1",
        // 37 rows a pass and 435 tokens a second with `threshold:t=0.9`, where the cache of `quality` has 87 rows and
        // comes to 210 (docs/benchmarks.md).
        kv_cache: "dual:recompute-before=32",
        suffix_window: Some(64),
        canvas_growth: "fixed",
    },
    PresetInfo {
        preset: Preset::Fast,
        name: "fast",
        summary: "like balanced, with more tokens per pass",
        // 76 % of the sentences are whole, at 3.1 tokens a pass.
        policy: "factor:f=1,apart=1",
        kv_cache: "dual:recompute-before=32",
        suffix_window: Some(64),
        canvas_growth: "fixed",
    },
    PresetInfo {
        preset: Preset::Auto,
        name: "auto",
        summary: "balanced; if passes wait for streamed weights, speculation without a KV cache",
        policy: "threshold:t=0.8,apart=1",
        kv_cache: "dual:recompute-before=32",
        suffix_window: Some(64),
        canvas_growth: "fixed",
    },
];

/// The settings of a preset.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ResolvedPreset {
    /// Which positions a pass commits.
    pub policy: PolicyChoice,
    /// What passes compute.
    pub decoding: Decoding,
}

impl Preset {
    /// The preset's row of the table.
    #[must_use]
    pub fn info(self) -> &'static PresetInfo {
        let row = PRESETS.iter().find(|row| row.preset == self);
        row.expect("the table has a row for each")
    }

    /// The name that people type.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// The preset's settings. `is_bus_bound` tells whether passes with given settings wait for streamed weights longer
    /// than they compute; only `exact` and `auto` ask. Then rows cost nothing, so leaving them out saves nothing, and
    /// further canvases may be tried beside the first: with `exact` guesses of the passes ahead, which give the same
    /// tokens in fewer passes, with `auto` other orders, which give more tokens a pass.
    #[must_use]
    pub fn resolve(self, is_bus_bound: impl Fn(&ResolvedPreset) -> bool) -> ResolvedPreset {
        let bundle = self.info().resolved();
        let whole = ResolvedPreset {
            decoding: Decoding::default(),
            ..bundle
        };
        let speculating = |bundle, speculation| ResolvedPreset {
            decoding: Decoding {
                speculation,
                ..Decoding::default()
            },
            ..bundle
        };
        let drafted = speculating(bundle, DRAFT);
        let explored = speculating(Self::Quality.info().resolved(), EXPLORE);
        // Asked with the canvases that would be added: a pass that waits with one canvas may not wait with several.
        match self {
            Self::Exact if is_bus_bound(&drafted) => drafted,
            Self::Auto if is_bus_bound(&explored) => explored,
            Self::Auto if is_bus_bound(&whole) => whole,
            _ => bundle,
        }
    }
}

// 1.73 tokens a pass with the demonstration model, 0.88 without, and the same tokens (docs/benchmarks.md).
/// For `exact` where rows cost nothing. More canvases bring little more.
const DRAFT: Speculation = Speculation::Draft {
    branches: BRANCHES_DEFAULT,
};
/// For `auto` where rows cost nothing: 3.6 tokens a pass of the demonstration model, where guessing ahead comes to 2.6.
const EXPLORE: Speculation = Speculation::Explore { branches: 3 };

impl PresetInfo {
    fn resolved(&self) -> ResolvedPreset {
        ResolvedPreset {
            policy: self.policy.parse().expect("a test parses every row"),
            decoding: Decoding {
                kv_cache: (self.kv_cache.parse()).expect("a test parses every row"),
                suffix_window: self.suffix_window,
                canvas_growth: self.canvas_growth.parse().expect("a test parses every row"),
                speculation: Speculation::None,
            },
        }
    }
}

/// No preset has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown preset '{0}'; known are {known}", known = known_presets())]
pub struct UnknownPreset(String);

fn known_presets() -> String {
    let names: Vec<_> = PRESETS.iter().map(|row| row.name).collect();
    names.join(", ")
}

impl FromStr for Preset {
    type Err = UnknownPreset;

    fn from_str(text: &str) -> Result<Self, UnknownPreset> {
        let row = PRESETS.iter().find(|row| row.name == text);
        row.map(|row| row.preset)
            .ok_or_else(|| UnknownPreset(text.to_owned()))
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_one_of_the_preset_and_parses() {
        let all = [
            Preset::Exact,
            Preset::Quality,
            Preset::Balanced,
            Preset::Fast,
            Preset::Auto,
        ];
        assert_eq!(PRESETS.len(), all.len());
        for preset in all {
            assert_eq!(preset.to_string().parse(), Ok(preset));
            let info = preset.info();
            let ResolvedPreset { policy, decoding } = preset.resolve(|_| false);
            // As shown in help texts, so nothing is left to defaults.
            assert_eq!(policy.to_string(), info.policy);
            assert_eq!(decoding.kv_cache.to_string(), info.kv_cache);
            assert_eq!(decoding.canvas_growth.to_string(), info.canvas_growth);
            assert_eq!(decoding.suffix_window, info.suffix_window);
        }
    }

    #[test]
    fn exact_is_what_the_reference_does() {
        let exact = Preset::default();
        let ResolvedPreset { policy, decoding } = exact.resolve(|_| false);
        assert!(policy == PolicyChoice::default() && decoding == Decoding::default());
        let ResolvedPreset { policy, decoding } = exact.resolve(|_| true);
        assert!(policy == PolicyChoice::default() && decoding.is_exact());
        assert_eq!(decoding.speculation, DRAFT);
        for approximate in [Preset::Quality, Preset::Balanced, Preset::Fast] {
            let bundle = approximate.resolve(|_| true);
            assert!(!bundle.policy.info().exact && !bundle.decoding.is_exact());
        }
    }

    #[test]
    fn auto_takes_whole_passes_where_rows_cost_nothing() {
        let balanced = Preset::Balanced.resolve(|_| true);
        assert_eq!(Preset::Auto.resolve(|_| false), balanced);
        let bound = Preset::Auto.resolve(|_| true);
        assert_eq!(bound.policy, Preset::Quality.resolve(|_| true).policy);
        assert_eq!(bound.decoding.speculation, EXPLORE);
        assert_eq!(bound.decoding.kv_cache, Decoding::default().kv_cache);
        // Where rows of one canvas cost nothing, but those of several do.
        let one = |bundle: &ResolvedPreset| bundle.decoding.speculation == Speculation::None;
        assert_eq!(Preset::Auto.resolve(one).decoding, Decoding::default());
        assert_eq!(Preset::Exact.resolve(one).decoding, Decoding::default());
    }

    #[test]
    fn an_unknown_position_is_told_with_the_known_ones() {
        let error = "slow".parse::<Preset>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown preset 'slow'; known are exact, quality, balanced, fast, auto"
        );
    }
}
