//! The rows and columns of a tensor that stay.

use std::ops::Range;

use sluice_weights::{Shape, TensorPart, TensorSpec};

use super::PrunedLayer;

/// The rows and columns of a tensor that stay; `None`: all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct KeptParts {
    pub(super) rows: Option<Vec<bool>>,
    /// Ranges of elements of each row.
    pub(super) columns: Option<Vec<Range<usize>>>,
}

impl KeptParts {
    /// What stays of this tensor.
    pub(super) fn of(spec: &TensorSpec, shape: &Shape, layer: &PrunedLayer) -> Self {
        let queries = shape.attention_heads / shape.kv_heads * shape.head_dim;
        let heads = |each: usize| match layer.removed_kv_heads.is_empty() {
            true => None,
            false => {
                let removed = |head: usize| {
                    let removed = &layer.removed_kv_heads;
                    removed.binary_search(&(head as u16)).is_ok()
                };
                let kept = (0..shape.kv_heads * each).map(|row| !removed(row / each));
                Some(kept.collect::<Vec<_>>())
            }
        };
        let channels = || match layer.removed_channels.is_empty() {
            true => None,
            false => {
                let mut kept = vec![true; shape.intermediate_size];
                for &channel in &layer.removed_channels {
                    kept[channel as usize] = false;
                }
                Some(kept)
            }
        };
        let rows = |rows| Self {
            rows,
            columns: None,
        };
        let columns = |kept: Option<Vec<bool>>| Self {
            rows: None,
            columns: kept.as_deref().map(runs),
        };
        match spec.part {
            TensorPart::Query | TensorPart::QueryBias => rows(heads(queries)),
            TensorPart::Key | TensorPart::KeyBias | TensorPart::Value | TensorPart::ValueBias => {
                rows(heads(shape.head_dim))
            }
            TensorPart::AttentionOutput => columns(heads(queries)),
            TensorPart::Gate | TensorPart::Up => rows(channels()),
            TensorPart::Down => columns(channels()),
            _ => Self::default(),
        }
    }

    /// The shape of what stays of a tensor of this shape.
    pub(super) fn shape(&self, before: &[usize]) -> Vec<usize> {
        let mut shape = before.to_vec();
        if let (Some(rows), Some(first)) = (&self.rows, shape.first_mut()) {
            *first = rows.iter().filter(|kept| **kept).count();
        }
        if let (Some(columns), Some(last)) = (&self.columns, shape.last_mut()) {
            *last = columns.iter().map(Range::len).sum();
        }
        shape
    }

    /// Appends what stays of rows from `first` on, which have `width` elements of `element_bytes`.
    pub(super) fn take(
        &self,
        first: usize,
        width: usize,
        element_bytes: usize,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) {
        for (row, bytes) in bytes.chunks_exact(width * element_bytes).enumerate() {
            if self.rows.as_ref().is_some_and(|rows| !rows[first + row]) {
                continue;
            }
            match &self.columns {
                None => out.extend_from_slice(bytes),
                Some(columns) => {
                    for columns in columns {
                        let (start, end) = (columns.start, columns.end);
                        out.extend_from_slice(&bytes[start * element_bytes..end * element_bytes]);
                    }
                }
            }
        }
    }
}

/// Runs of kept elements.
fn runs(kept: &[bool]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (index, _) in kept.iter().enumerate().filter(|(_, kept)| **kept) {
        match runs.last_mut() {
            Some(run) if run.end == index => run.end += 1,
            _ => runs.push(index..index + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_columns_are_taken_out() {
        let bytes: Vec<u8> = (0..24).collect();
        let kept = KeptParts {
            rows: Some(vec![true, false, true]),
            columns: Some(runs(&[false, true, true, false])),
        };
        let columns = kept.columns.as_deref().unwrap();
        assert_eq!((columns.len(), &columns[0]), (1, &(1..3)));
        assert_eq!(kept.shape(&[3, 4]), [2, 2]);
        let mut out = Vec::new();
        // Two rows, then the last.
        kept.take(0, 4, 2, &bytes[..16], &mut out);
        kept.take(2, 4, 2, &bytes[16..], &mut out);
        assert_eq!(out, [2, 3, 4, 5, 18, 19, 20, 21]);
        let whole = KeptParts::default();
        assert_eq!(whole.shape(&[3, 4]), [3, 4]);
        out.clear();
        whole.take(0, 4, 2, &bytes, &mut out);
        assert_eq!(out, bytes);
    }
}
