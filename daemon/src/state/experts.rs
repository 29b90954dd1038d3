//! What is saved of a mixture's experts.

use serde::{Deserialize, Deserializer, Serialize};
use sluice_plan::LearnedExperts;

/// A figure that differs by less from the saved one isn't worth a write: passes touch at most 7 % more or fewer experts by it.
const CHANGE_MIN: f64 = 0.02;

/// What passes have told of a model's experts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SavedExperts {
    /// The hash of the model's shape: another model may lie there by now.
    shape: u64,
    spread: f64,
    turnover: f64,
}

impl SavedExperts {
    /// Reads one; `None` where something else stands in its place, which is no reason to lose the whole file.
    pub(super) fn read<'de, D: Deserializer<'de>>(file: D) -> Result<Option<Self>, D::Error> {
        let value = serde_json::Value::deserialize(file)?;
        Ok(serde_json::from_value(value).ok())
    }

    /// Whether there is no need to write the other one in its place.
    pub(crate) fn is_near(&self, other: &Self) -> bool {
        self.shape == other.shape
            && (self.spread - other.spread).abs() < CHANGE_MIN
            && (self.turnover - other.turnover).abs() < CHANGE_MIN
    }
}

impl From<SavedExperts> for LearnedExperts {
    fn from(saved: SavedExperts) -> Self {
        let SavedExperts {
            shape,
            spread,
            turnover,
        } = saved;
        Self {
            shape,
            spread,
            turnover,
        }
    }
}

impl From<LearnedExperts> for SavedExperts {
    fn from(learned: LearnedExperts) -> Self {
        let LearnedExperts {
            shape,
            spread,
            turnover,
        } = learned;
        Self {
            shape,
            spread,
            turnover,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anything_else_in_its_place_is_passed_over() {
        #[derive(Deserialize)]
        struct Model {
            #[serde(deserialize_with = "SavedExperts::read")]
            experts: Option<SavedExperts>,
        }
        let read = |text: &str| {
            let text = format!("{{\"experts\": {text}}}");
            serde_json::from_str::<Model>(&text).unwrap().experts
        };
        let saved = SavedExperts {
            shape: 7,
            spread: 0.5,
            turnover: 0.25,
        };
        assert_eq!(read(&serde_json::to_string(&saved).unwrap()), Some(saved));
        let later = r#"{"shape": 7, "spread": 0.5, "turnover": 0.25, "more": 1}"#;
        assert_eq!(read(later), Some(saved));
        for broken in [
            "null",
            "[]",
            "\"word\"",
            r#"{"shape": 7, "spread": null, "turnover": 0.25}"#,
            r#"{"shape": -1, "spread": 0.5, "turnover": 0.25}"#,
        ] {
            assert_eq!(read(broken), None, "{broken}");
        }
    }

    #[test]
    fn small_changes_are_no_news() {
        let saved = SavedExperts {
            shape: 7,
            spread: 0.5,
            turnover: 0.25,
        };
        let turnover = 0.26;
        assert!(saved.is_near(&SavedExperts { turnover, ..saved }));
        let turnover = 0.3;
        assert!(!saved.is_near(&SavedExperts { turnover, ..saved }));
        let shape = 8;
        assert!(!saved.is_near(&SavedExperts { shape, ..saved }));
    }
}
