//! Structured pruning: which inputs of a layer are removed, and what the others take over.
//!
//! Inputs are removed in groups of neighbours: a SwiGLU channel is one input of the down projection, together with its
//! rows of gate and up; a KV head is the inputs of the output projection that all of its query heads compute. Pruning
//! is scores for each layer ([`scores`] by magnitude or statistics, [`removal_order`] by what a removal costs after
//! compensation), a choice over all layers ([`choose`]), and [`compensate`] for the weights that remain.

mod choice;
mod compensation;
mod removal;
pub mod scores;

use thiserror::Error;

use crate::{factor::FactorError, feedback::MatrixError};

pub use choice::{Choice, LayerScores, choose};
pub use compensation::{Compensated, compensate};
pub use removal::{RemovalOrder, removal_order};

/// Why a model can't be pruned in this way.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum PruneError {
    /// The share to remove isn't a number from 0 to below 1.
    #[error("the share to remove must be at least 0 and below 1, not {0}")]
    Ratio(f64),
    /// Inputs can't be divided into groups of this size.
    #[error("{width} inputs are not whole groups of {size}")]
    Groups {
        /// Inputs of the layer.
        width: usize,
        /// Inputs of a group.
        size: usize,
    },
    /// A layer must keep at least one group.
    #[error("nothing would be left of layer {layer}")]
    NothingLeft {
        /// Place among the layers that were given.
        layer: usize,
    },
    /// A score is infinite or NaN.
    #[error("the score of group {group} of layer {layer} is infinite or NaN")]
    Score {
        /// Place among the layers that were given.
        layer: usize,
        /// Group of the layer.
        group: usize,
    },
    /// Kept inputs must be given once each, in order.
    #[error("kept inputs must ascend and be below {width}")]
    Kept {
        /// Inputs of the layer.
        width: usize,
    },
    /// A matrix or its statistics can't be used.
    #[error(transparent)]
    Matrix(#[from] MatrixError),
    /// The second moments have no factor.
    #[error(transparent)]
    Factor(#[from] FactorError),
}

/// The number of groups of a layer.
fn groups(width: usize, size: usize) -> Result<usize, PruneError> {
    if width == 0 || size == 0 || !width.is_multiple_of(size) {
        return Err(PruneError::Groups { width, size });
    }
    Ok(width / size)
}
