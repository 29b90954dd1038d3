//! How much of a model is removed.

use serde::{Deserialize, Serialize};

use crate::compression::PruneError;

/// Shares of a model to remove.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PruneShares {
    /// Of the KV heads of all layers, each with all of its query heads.
    pub heads: f64,
    /// Of the MLP channels of each layer.
    pub channels: f64,
}

impl PruneShares {
    /// Checks that something can be left.
    pub(super) fn check(&self) -> Result<(), PruneError> {
        for (units, share) in [("heads", self.heads), ("channels", self.channels)] {
            // Also refuses NaN.
            if !(0.0..1.0).contains(&share) {
                return Err(PruneError::Share { units, share });
            }
        }
        Ok(())
    }
}
