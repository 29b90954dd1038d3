//! Scores of KV heads and MLP channels by their weights alone: those of the rows of `q`, `k`, `v`, `gate` and `up`, and
//! of the columns of `o` and `down`, that belong to a unit.
//!
//! Data-free scores are the weakest there are (`mag_sp`, the baseline of FLAP, arXiv 2312.11983); they need nothing but
//! the weights.

use std::{mem::take, sync::atomic::AtomicBool};

use rayon::prelude::*;
use sluice_codec::container::{Hash, Hasher};
use sluice_shared::pruning::PruneScore;
use sluice_weights::{Shape, TensorPart, TensorSpec};

use super::{choose::LayerScores, dtype, inputs::relative};
use crate::{
    Checkpoint, TensorEntry,
    compression::{CompressError, read_pieces},
};

/// Bytes of rows that are read at once.
const BATCH_BYTES: usize = 32 << 20;
/// Rows whose sums are taken by one thread. A fixed number, so that the order of additions, and with it the choice,
/// doesn't depend on the number of threads.
const PIECE_ROWS: usize = 32;

/// Scores of all layers, and the hash of all tensors.
pub(super) struct Scored {
    pub(super) layers: Vec<LayerScores>,
    pub(super) source_hash: Hash,
}

/// Reads all tensors once, for the scores and the source's hash.
pub(super) fn score(
    checkpoint: &Checkpoint,
    shape: &Shape,
    by: PruneScore,
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(&str, u64),
) -> Result<Scored, CompressError> {
    let specs = shape.tensors();
    let layer = LayerScores {
        kv_heads: vec![0.0; shape.kv_heads],
        channels: vec![0.0; shape.intermediate_size],
    };
    let mut layers = vec![layer; shape.layers];
    let mut all = Hasher::default();
    for (name, entry) in &checkpoint.tensors {
        let spec = specs.iter().find(|spec| spec.name == *name);
        let mut hasher = Hasher::default();
        let mut rows = spec.and_then(|spec| Rows::of(spec, shape, entry));
        let mut first = 0;
        let piece_bytes = rows.as_ref().map_or(BATCH_BYTES, Rows::batch_bytes);
        read_pieces(checkpoint, entry, piece_bytes, cancel, |bytes| {
            hasher.update(bytes);
            if let (Some(rows), Some(spec)) = (&mut rows, spec) {
                first += rows.add(first, bytes, by, &mut layers[spec.layer]);
            }
            progress(name, bytes.len() as u64);
            Ok(())
        })?;
        all.update(name.as_bytes());
        all.update(&hasher.finish().0.to_le_bytes());
    }
    for layer in &mut layers {
        if by == PruneScore::L2 {
            let scores = layer.kv_heads.iter_mut().chain(&mut layer.channels);
            scores.for_each(|score| *score = score.sqrt());
        }
        // Layers differ in the size of their weights, and the larger are not missed more for it.
        layer.kv_heads = relative(take(&mut layer.kv_heads));
    }
    Ok(Scored {
        layers,
        source_hash: all.finish(),
    })
}

/// The rows of a matrix, and how they or their columns belong to units.
struct Rows {
    format: sluice_formats::Format,
    width: usize,
    /// Rows, or columns, of a unit.
    of_unit: usize,
    is_by_row: bool,
    is_of_heads: bool,
}

impl Rows {
    /// `None` for tensors that belong to no unit. Biases count little, and are left out.
    fn of(spec: &TensorSpec, shape: &Shape, entry: &TensorEntry) -> Option<Self> {
        let queries = shape.attention_heads / shape.kv_heads * shape.head_dim;
        let (of_unit, is_by_row, is_of_heads) = match spec.part {
            TensorPart::Query => (queries, true, true),
            TensorPart::Key | TensorPart::Value => (shape.head_dim, true, true),
            TensorPart::AttentionOutput => (queries, false, true),
            TensorPart::Gate | TensorPart::Up => (1, true, false),
            TensorPart::Down => (1, false, false),
            _ => return None,
        };
        Some(Self {
            format: dtype(entry)?.into(),
            width: spec.size().1,
            of_unit,
            is_by_row,
            is_of_heads,
        })
    }

    fn row_bytes(&self) -> usize {
        self.format.bytes(self.width)
    }

    /// Whole rows, as many as a batch has room for.
    fn batch_bytes(&self) -> usize {
        (BATCH_BYTES / self.row_bytes()).max(1) * self.row_bytes()
    }

    /// Adds rows from `first` on to their layer's scores, and returns how many they are.
    fn add(&self, first: usize, bytes: &[u8], by: PruneScore, layer: &mut LayerScores) -> usize {
        let scores = match self.is_of_heads {
            true => &mut layer.kv_heads,
            false => &mut layer.channels,
        };
        let weigh = |value: f32| match by {
            PruneScore::L2 => f64::from(value) * f64::from(value),
            // Scores of a calibration are made of these weights later, and need none of this.
            _ => f64::from(value.abs()),
        };
        let pieces = bytes.par_chunks(PIECE_ROWS * self.row_bytes());
        let sums = pieces.map(|bytes| {
            let rows = bytes.len() / self.row_bytes();
            let mut values = vec![0.0; rows * self.width];
            self.format.dequantize(bytes, &mut values);
            let rows = values.chunks_exact(self.width);
            match self.is_by_row {
                true => rows
                    .map(|row| row.iter().map(|&value| weigh(value)).sum())
                    .collect(),
                false => {
                    let mut sums = vec![0.0; self.width];
                    for row in rows {
                        for (sum, &value) in sums.iter_mut().zip(row) {
                            *sum += weigh(value);
                        }
                    }
                    sums
                }
            }
        });
        let sums: Vec<Vec<f64>> = sums.collect();
        if self.is_by_row {
            for (row, sum) in sums.iter().flatten().enumerate() {
                scores[(first + row) / self.of_unit] += sum;
            }
        } else {
            for sums in &sums {
                for (column, sum) in sums.iter().enumerate() {
                    scores[column / self.of_unit] += sum;
                }
            }
        }
        bytes.len() / self.row_bytes()
    }
}
