//! How often something was so.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Some of so many; shown as a percentage, or as a dash when nothing was counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// How often it was so.
    pub hits: usize,
    /// How often it could have been.
    pub of: usize,
}

impl Rate {
    /// Counts one more case.
    pub fn add(&mut self, hit: bool) {
        self.add_many(usize::from(hit), 1);
    }

    /// Counts one more case, if it is one.
    pub fn add_if_some(&mut self, hit: Option<bool>) {
        if let Some(hit) = hit {
            self.add(hit);
        }
    }

    /// Counts several cases.
    pub fn add_many(&mut self, hits: usize, of: usize) {
        self.hits += hits;
        self.of += of;
    }

    /// Between 0 and 1; nothing when nothing was counted.
    #[must_use]
    pub fn share(self) -> Option<f64> {
        (self.of > 0).then(|| self.hits as f64 / self.of as f64)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.share() {
            Some(share) => format!("{:.1} %", 100.0 * share),
            None => "–".to_owned(),
        };
        // So that a width given to a column holds.
        formatter.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_of_nothing_is_unknown_and_not_zero() {
        let mut rate = Rate::default();
        rate.add_if_some(None);
        assert_eq!(rate.share(), None);
        assert_eq!(format!("{rate:>4}"), "   –");
        rate.add(true);
        rate.add(false);
        rate.add_many(1, 2);
        assert_eq!(format!("{rate:>8}"), "  50.0 %");
    }
}
