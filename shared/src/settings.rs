//! The settings of a model's weights: what loads, changes, plans and the daemon's configuration have in common.

use crate::level::{EmbeddingPlacement, KvCacheFormat, Level, MAX_SLOWDOWN};

/// What a plan is made for, as the user says it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlanSettings {
    /// Fidelity of the weights.
    pub level: Level,
    /// Limit for the device's memory; `None`: what was free when the engine started, less a margin.
    pub budget_bytes: Option<u64>,
    /// Where the embedding is kept.
    pub embedding: EmbeddingPlacement,
    /// How many times as long as at the fastest level a pass may take under [`Level::Auto`]; at least 1.
    pub max_slowdown: f64,
    /// Format of an autoregressive model's KV cache.
    pub kv_cache_format: KvCacheFormat,
}

/// A change of the settings: what is `None` stays.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PlanOptions {
    /// The new level.
    pub level: Option<Level>,
    /// The new budget; `Some(None)`: the default one.
    pub budget_bytes: Option<Option<u64>>,
    /// The new place of the embedding.
    pub embedding: Option<EmbeddingPlacement>,
    /// The new factor of [`Level::Auto`], at least 1.
    pub max_slowdown: Option<f64>,
    /// The new format of the KV cache, from the next request on.
    pub kv_cache_format: Option<KvCacheFormat>,
}

impl Default for PlanSettings {
    fn default() -> Self {
        Self {
            level: Level::Standard,
            budget_bytes: None,
            embedding: EmbeddingPlacement::Auto,
            max_slowdown: MAX_SLOWDOWN,
            kv_cache_format: KvCacheFormat::Auto,
        }
    }
}

impl From<PlanSettings> for PlanOptions {
    /// The change that leads to these settings from any others.
    fn from(settings: PlanSettings) -> Self {
        Self {
            level: Some(settings.level),
            budget_bytes: Some(settings.budget_bytes),
            embedding: Some(settings.embedding),
            max_slowdown: Some(settings.max_slowdown),
            kv_cache_format: Some(settings.kv_cache_format),
        }
    }
}

impl PlanOptions {
    /// This change, and of another one what this leaves as it is.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            level: self.level.or(other.level),
            budget_bytes: self.budget_bytes.or(other.budget_bytes),
            embedding: self.embedding.or(other.embedding),
            max_slowdown: self.max_slowdown.or(other.max_slowdown),
            kv_cache_format: self.kv_cache_format.or(other.kv_cache_format),
        }
    }

    /// Whether all stays as it is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl PlanSettings {
    /// The settings after a change.
    #[must_use]
    pub fn with(self, change: &PlanOptions) -> Self {
        Self {
            level: change.level.unwrap_or(self.level),
            budget_bytes: change.budget_bytes.unwrap_or(self.budget_bytes),
            embedding: change.embedding.unwrap_or(self.embedding),
            max_slowdown: change.max_slowdown.unwrap_or(self.max_slowdown),
            kv_cache_format: change.kv_cache_format.unwrap_or(self.kv_cache_format),
        }
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
    /// All else.
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

    #[test]
    fn a_change_leaves_what_it_does_not_name() {
        let before = PlanSettings {
            level: Level::Mild,
            budget_bytes: Some(7),
            embedding: EmbeddingPlacement::Host,
            max_slowdown: 2.0,
            kv_cache_format: KvCacheFormat::Q8_0,
        };
        assert_eq!(before.with(&PlanOptions::default()), before);
        let all = PlanOptions::from(before);
        assert_eq!(PlanSettings::default().with(&all), before);
        let some = PlanOptions {
            level: Some(Level::Off),
            budget_bytes: Some(None),
            ..PlanOptions::default()
        };
        let after = PlanSettings {
            level: Level::Off,
            budget_bytes: None,
            ..before
        };
        assert_eq!(before.with(&some), after);
        assert_eq!(some.or(all), PlanOptions::from(after));
        assert_eq!(all.or(some), all);
        assert!(PlanOptions::default().is_empty() && !some.is_empty());
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
