//! What a call of a prior's network takes besides its weights.

use sluice_checkpoint::PriorShape;
use sluice_formats::{DType, Format};
use sluice_ops::{Ops, OpsError};
use sluice_weights::{Weight, WeightData};

use super::Prior;

impl Prior {
    /// Bytes of the rows that the network's loops work on, for such a prior.
    pub(crate) fn scratch_bytes(shape: PriorShape) -> u64 {
        let PriorShape {
            vectors,
            latent_width,
            width,
            heads,
            ..
        } = shape;
        // Of a row: in the latents' width what goes in and comes out, scaled and not, and what a sampler's step makes of
        // it; in the network's the residual, its norm, queries, keys, values and their mixture, or the MLP's inner row;
        // the parts of a head; and its scores for all rows. Shapes are checked, so that the product fits 64 bits.
        let row = 8 * latent_width + 8 * width + 5 * (width / heads) + vectors;
        let modulation = 8 * width;
        (size_of::<f32>() * (vectors * row + modulation)) as u64
    }
}

/// The matmuls of a dry run: one of each size.
pub(super) fn dry_run_matmuls(shape: PriorShape, ops: &Ops) -> Result<(), OpsError> {
    let PriorShape {
        vectors,
        latent_width,
        width,
        heads,
        ..
    } = shape;
    let head_dim = width / heads;
    let biased = [
        (1, width, 6 * width),
        (vectors, latent_width, width),
        (vectors, width, 4 * width),
        (vectors, 4 * width, width),
        (vectors, width, latent_width),
    ];
    for (rows, from, to) in biased {
        let x = ops.matrix(rows, from, &[], DType::F32)?;
        ops.linear_biased(&x, &counted(to, from), &counted(1, to))?;
    }
    for (from, to) in [(head_dim, vectors), (vectors, head_dim)] {
        let x = ops.matrix(vectors, from, &[], DType::F32)?;
        ops.linear(&x, &counted(to, from))?;
    }
    Ok(())
}

/// A matrix without elements, for a dry run.
fn counted(rows: usize, width: usize) -> Weight<'static> {
    Weight {
        format: Format::F32,
        rows,
        width,
        data: WeightData::Host(&[]),
        weights_version: 0,
    }
}
