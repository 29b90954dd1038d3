//! The shapes that attention and KV caches share.

use sluice_formats::Format;
use sluice_weights::Shape;

/// How rows are made up of heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// Number of query heads.
    pub heads: usize,
    /// Key and value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Elements in a head.
    pub head_dim: usize,
}

/// The shape and format of a KV cache's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvCacheShape {
    /// Layers of the model.
    pub layers: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements in a head.
    pub head_dim: usize,
    /// How elements are stored; on a GPU only in the dtype that it computes in.
    pub format: Format,
}

impl KvCacheShape {
    /// The KV cache of a model of this shape, kept in this format.
    #[must_use]
    pub fn of(shape: &Shape, format: Format) -> Self {
        Self {
            layers: shape.layers,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            format,
        }
    }

    /// Elements that are stored for a head: padded to whole blocks of the format.
    pub(super) fn stored_dim(&self) -> usize {
        self.head_dim.next_multiple_of(self.format.block_len())
    }

    /// Bytes of a head of one position.
    pub(super) fn head_bytes(&self) -> usize {
        self.format.bytes(self.stored_dim())
    }

    /// Bytes of the keys, or of the values, of one position in one layer.
    pub(super) fn row_bytes(&self) -> usize {
        self.kv_heads * self.head_bytes()
    }

    /// Bytes of the keys and values of so many positions in all layers.
    #[must_use]
    pub fn bytes(&self, positions: usize) -> usize {
        2 * self.layers * positions * self.row_bytes()
    }
}
