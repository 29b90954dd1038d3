//! The settings of a model's weights: what loads, changes, plans and the daemon's configuration have in common.

use crate::level::{AUTO_FACTOR, Embedding, Kv, Level};

/// What a plan is made for, as the user says it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Fidelity of the weights.
    pub level: Level,
    /// Limit for the device's memory; `None`: what was free when the engine started, less a margin.
    pub budget_bytes: Option<u64>,
    /// Where the embedding is kept.
    pub embedding: Embedding,
    /// How many times as long as at the fastest level a pass may take under [`Level::Auto`]; at least 1.
    pub auto_factor: f64,
    /// Format of an autoregressive model's KV cache.
    pub kv: Kv,
}

/// A change of the settings: what is `None` stays.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Change {
    /// The new level.
    pub level: Option<Level>,
    /// The new budget; `Some(None)`: the default one.
    pub budget_bytes: Option<Option<u64>>,
    /// The new place of the embedding.
    pub embedding: Option<Embedding>,
    /// The new factor of [`Level::Auto`], at least 1.
    pub auto_factor: Option<f64>,
    /// The new format of the KV cache, from the next request on.
    pub kv: Option<Kv>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            level: Level::Standard,
            budget_bytes: None,
            embedding: Embedding::Auto,
            auto_factor: AUTO_FACTOR,
            kv: Kv::Auto,
        }
    }
}

impl From<Settings> for Change {
    /// The change that leads to these settings from any others.
    fn from(settings: Settings) -> Self {
        Self {
            level: Some(settings.level),
            budget_bytes: Some(settings.budget_bytes),
            embedding: Some(settings.embedding),
            auto_factor: Some(settings.auto_factor),
            kv: Some(settings.kv),
        }
    }
}

impl Change {
    /// This change, and of another one what this leaves as it is.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            level: self.level.or(other.level),
            budget_bytes: self.budget_bytes.or(other.budget_bytes),
            embedding: self.embedding.or(other.embedding),
            auto_factor: self.auto_factor.or(other.auto_factor),
            kv: self.kv.or(other.kv),
        }
    }

    /// Whether all stays as it is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Settings {
    /// The settings after a change.
    #[must_use]
    pub fn with(self, change: &Change) -> Self {
        Self {
            level: change.level.unwrap_or(self.level),
            budget_bytes: change.budget_bytes.unwrap_or(self.budget_bytes),
            embedding: change.embedding.unwrap_or(self.embedding),
            auto_factor: change.auto_factor.unwrap_or(self.auto_factor),
            kv: change.kv.unwrap_or(self.kv),
        }
    }

    /// What a plan chooses by.
    #[must_use]
    pub fn choices(self) -> Choices {
        Choices {
            level: self.level,
            settings: self,
        }
    }
}

/// What a plan chooses by: settings, and the level that they come to. The plan has the budget in bytes beside this.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choices {
    /// Fidelity of the weights: the settings' level, or the one that takes its place.
    pub level: Level,
    /// All else.
    pub settings: Settings,
}

impl From<Settings> for Choices {
    fn from(settings: Settings) -> Self {
        settings.choices()
    }
}

impl From<Level> for Choices {
    fn from(level: Level) -> Self {
        let settings = Settings {
            level,
            ..Settings::default()
        };
        settings.choices()
    }
}

impl Choices {
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
        let before = Settings {
            level: Level::Mild,
            budget_bytes: Some(7),
            embedding: Embedding::Host,
            auto_factor: 2.0,
            kv: Kv::Q8_0,
        };
        assert_eq!(before.with(&Change::default()), before);
        let all = Change::from(before);
        assert_eq!(Settings::default().with(&all), before);
        let some = Change {
            level: Some(Level::Off),
            budget_bytes: Some(None),
            ..Change::default()
        };
        let after = Settings {
            level: Level::Off,
            budget_bytes: None,
            ..before
        };
        assert_eq!(before.with(&some), after);
        assert_eq!(some.or(all), Change::from(after));
        assert_eq!(all.or(some), all);
        assert!(Change::default().is_empty() && !some.is_empty());
    }

    #[test]
    fn a_plan_knows_that_its_level_was_chosen_by_auto() {
        let auto = Choices::from(Level::Auto);
        let chosen = Choices {
            level: Level::Mild,
            ..auto
        };
        assert!(auto.decompresses() && chosen.decompresses());
        assert!(!Choices::from(Level::Mild).decompresses());
    }
}
