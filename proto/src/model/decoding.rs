//! How a request wants its canvas decoded: the dial, and what is to take the place of parts of it.

use sluice_shared::{
    decoding::{BRANCHES_DEFAULT, BRANCHES_MAX},
    policy::PolicyChoice,
    sampling::KvCacheMode,
};
pub use sluice_shared::{
    decoding::{CanvasGrowth, KvCacheReuse, Speculation},
    preset::Preset,
};

use super::{InvalidField, invalid, known};
use crate::v1;

/// What was said of it, checked; `None` is the daemon's or the dial's to say.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DecodingChoice {
    /// What all the others come from.
    pub preset: Option<Preset>,
    /// Which positions a pass commits.
    pub policy: Option<PolicyChoice>,
    /// What is kept between passes; every setting makes sense.
    pub kv_cache: Option<KvCacheReuse>,
    /// Masks behind the open block that a pass computes.
    pub suffix_window: Option<u32>,
    /// How long the canvas is.
    pub canvas_growth: Option<CanvasGrowth>,
    /// Orders tried beside each other, as few as may be.
    pub speculation: Option<Speculation>,
}

impl DecodingChoice {
    /// Reads its fields of a request.
    pub(super) fn read(wire: &v1::GenerateRequest) -> Result<Self, InvalidField> {
        let dial = match known("dial", wire.dial)? {
            v1::DecodingPreset::Unspecified => None,
            v1::DecodingPreset::Exact => Some(Preset::Exact),
            v1::DecodingPreset::Quality => Some(Preset::Quality),
            v1::DecodingPreset::Balanced => Some(Preset::Balanced),
            v1::DecodingPreset::Fast => Some(Preset::Fast),
            v1::DecodingPreset::Auto => Some(Preset::Auto),
        };
        let growth = match known("growth", wire.growth)? {
            v1::CanvasGrowth::Unspecified => None,
            v1::CanvasGrowth::Fixed => Some(CanvasGrowth::Fixed),
            v1::CanvasGrowth::Append => Some(CanvasGrowth::Append),
            v1::CanvasGrowth::Insert => Some(CanvasGrowth::Insert),
        };
        let policy = wire.policy.as_ref().map(policy).transpose()?;
        let speculation = wire.speculation.as_ref().map(speculation).transpose()?;
        Ok(Self {
            preset: dial,
            policy,
            kv_cache: kv_cache_reuse(known("cache", wire.cache)?, wire.cache_options.as_ref())?,
            suffix_window: wire.window,
            canvas_growth: growth,
            speculation,
        })
    }

    /// Writes its fields of a request.
    pub fn write(&self, wire: &mut v1::GenerateRequest) {
        wire.set_dial(match self.preset {
            None => v1::DecodingPreset::Unspecified,
            Some(Preset::Exact) => v1::DecodingPreset::Exact,
            Some(Preset::Quality) => v1::DecodingPreset::Quality,
            Some(Preset::Balanced) => v1::DecodingPreset::Balanced,
            Some(Preset::Fast) => v1::DecodingPreset::Fast,
            Some(Preset::Auto) => v1::DecodingPreset::Auto,
        });
        wire.policy = self.policy.as_ref().map(v1::CommitPolicy::from);
        wire.set_cache(match self.kv_cache.map(|caching| caching.mode) {
            None => v1::KvCacheMode::Unspecified,
            Some(KvCacheMode::None) => v1::KvCacheMode::None,
            Some(KvCacheMode::Prefix) => v1::KvCacheMode::Prefix,
            Some(KvCacheMode::Dual) => v1::KvCacheMode::Dual,
            Some(KvCacheMode::Vicinity) => v1::KvCacheMode::Vicinity,
        });
        let kept = self
            .kv_cache
            .filter(|caching| caching.mode != KvCacheMode::None);
        wire.cache_options = kept.map(|caching| v1::KvCacheReuse {
            refresh_passes: caching.refresh_passes,
            recompute_before: caching.recompute_before,
            recompute_around: Some(caching.recompute_around),
            keep_share: Some(caching.keep_share),
        });
        wire.window = self.suffix_window;
        wire.set_growth(match self.canvas_growth {
            None => v1::CanvasGrowth::Unspecified,
            Some(CanvasGrowth::Fixed) => v1::CanvasGrowth::Fixed,
            Some(CanvasGrowth::Append) => v1::CanvasGrowth::Append,
            Some(CanvasGrowth::Insert) => v1::CanvasGrowth::Insert,
        });
        wire.speculation = self.speculation.map(|speculation| {
            let (kind, branches) = match speculation {
                Speculation::None => (v1::SpeculationKind::None, None),
                Speculation::Explore { branches } => (v1::SpeculationKind::Explore, Some(branches)),
                Speculation::Draft { branches } => (v1::SpeculationKind::Draft, Some(branches)),
            };
            v1::Speculation {
                kind: kind.into(),
                branches,
            }
        });
    }
}

fn policy(wire: &v1::CommitPolicy) -> Result<PolicyChoice, InvalidField> {
    let parameters = wire.parameters.iter();
    let parameters = parameters.map(|(key, value)| (key.as_str(), *value));
    PolicyChoice::new(&wire.name, parameters).map_err(|error| invalid("policy", error.to_string()))
}

impl From<&PolicyChoice> for v1::CommitPolicy {
    fn from(choice: &PolicyChoice) -> Self {
        Self {
            name: choice.name().to_owned(),
            parameters: choice
                .parameters()
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
        }
    }
}

fn kv_cache_reuse(
    kind: v1::KvCacheMode,
    options: Option<&v1::KvCacheReuse>,
) -> Result<Option<KvCacheReuse>, InvalidField> {
    let kind = match kind {
        v1::KvCacheMode::Unspecified if options.is_some() => {
            return Err(invalid(
                "cache_options",
                "has options but no mode; set the mode",
            ));
        }
        v1::KvCacheMode::Unspecified => return Ok(None),
        v1::KvCacheMode::None => KvCacheMode::None,
        v1::KvCacheMode::Prefix => KvCacheMode::Prefix,
        v1::KvCacheMode::Dual => KvCacheMode::Dual,
        v1::KvCacheMode::Vicinity => KvCacheMode::Vicinity,
    };
    let mut caching = KvCacheReuse {
        mode: kind,
        ..KvCacheReuse::default()
    };
    if let Some(options) = options {
        caching.refresh_passes = options.refresh_passes;
        caching.recompute_before = options.recompute_before;
        caching.recompute_around = options.recompute_around.unwrap_or(caching.recompute_around);
        caching.keep_share = options.keep_share.unwrap_or(caching.keep_share);
    }
    match caching.problem() {
        Some((option, problem)) => Err(invalid("cache_options", format!("{option} {problem}"))),
        None => Ok(Some(caching)),
    }
}

fn speculation(wire: &v1::Speculation) -> Result<Speculation, InvalidField> {
    let branches = wire.branches.unwrap_or(BRANCHES_DEFAULT);
    if !(1..=BRANCHES_MAX).contains(&branches) {
        let problem = format!("branches must be between 1 and {BRANCHES_MAX}, not {branches}");
        return Err(invalid("speculation", problem));
    }
    match known("speculation", wire.kind)? {
        v1::SpeculationKind::Unspecified => Err(invalid("speculation", "has no kind")),
        v1::SpeculationKind::None => Ok(Speculation::None),
        v1::SpeculationKind::Explore => Ok(Speculation::Explore { branches }),
        v1::SpeculationKind::Draft => Ok(Speculation::Draft { branches }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(change: impl FnOnce(&mut v1::GenerateRequest)) -> Result<DecodingChoice, String> {
        let mut wire = v1::GenerateRequest::default();
        change(&mut wire);
        DecodingChoice::read(&wire).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_written_is_read_again() {
        let nothing = DecodingChoice::default();
        assert_eq!(read(|wire| nothing.write(wire)), Ok(nothing));
        for (caching, growth, speculation) in [
            ("none", "fixed", "none"),
            ("prefix", "append", "explore:branches=4"),
            ("dual:refresh=8,behind=0", "insert", "draft:branches=15"),
            ("vicinity:around=4,keep=0.5", "fixed", "explore:branches=1"),
        ] {
            let choice = DecodingChoice {
                preset: Some(Preset::Fast),
                policy: Some("threshold:t=0.7".parse().unwrap()),
                kv_cache: Some(caching.parse().unwrap()),
                suffix_window: Some(0),
                canvas_growth: Some(growth.parse().unwrap()),
                speculation: Some(speculation.parse().unwrap()),
            };
            assert_eq!(read(|wire| choice.write(wire)), Ok(choice));
        }
    }

    #[test]
    fn what_is_not_said_of_a_cache_is_as_published() {
        let choice = read(|wire| wire.cache = v1::KvCacheMode::Dual.into()).unwrap();
        assert_eq!(choice.kv_cache, Some("dual".parse().unwrap()));
    }

    #[test]
    fn each_broken_field_is_named() {
        let problem = |change: fn(&mut v1::GenerateRequest)| read(change).unwrap_err();
        assert_eq!(problem(|wire| wire.dial = 9), "dial: has no value 9");
        assert_eq!(problem(|wire| wire.cache = 9), "cache: has no value 9");
        assert_eq!(problem(|wire| wire.growth = 9), "growth: has no value 9");
        let options = |options: v1::KvCacheReuse, kind: v1::KvCacheMode| {
            let change = |wire: &mut v1::GenerateRequest| {
                wire.set_cache(kind);
                wire.cache_options = Some(options);
            };
            read(change).unwrap_err()
        };
        assert_eq!(
            options(v1::KvCacheReuse::default(), v1::KvCacheMode::Unspecified),
            "cache_options: has options but no mode; set the mode"
        );
        let never = v1::KvCacheReuse {
            refresh_passes: Some(0),
            ..Default::default()
        };
        assert_eq!(
            options(never, v1::KvCacheMode::Dual),
            "cache_options: refresh must be at least 1, not 0"
        );
        let speculation = |kind, branches| {
            let change = |wire: &mut v1::GenerateRequest| {
                wire.speculation = Some(v1::Speculation { kind, branches });
            };
            read(change).unwrap_err()
        };
        assert_eq!(speculation(0, None), "speculation: has no kind");
        assert_eq!(speculation(9, None), "speculation: has no value 9");
        assert_eq!(
            speculation(v1::SpeculationKind::Draft.into(), Some(16)),
            "speculation: branches must be between 1 and 15, not 16"
        );
    }
}
