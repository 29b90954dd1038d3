//! The shapes that attention and KV caches share.

use sluice_formats::Format;
use sluice_weights::{LayerKind, Shape};

/// How rows are made up of heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// Number of query heads.
    pub heads: usize,
    /// Key and value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Elements in a head.
    pub head_dim: usize,
    /// Whether scores are divided by the root of that.
    pub is_scaled: bool,
}

impl AttentionShape {
    /// What scores are multiplied by.
    pub(super) fn score_scale(&self) -> f32 {
        match self.is_scaled {
            true => (self.head_dim as f32).sqrt().recip(),
            false => 1.0,
        }
    }
}

/// Positions in a block of those that are kept in more bits. Which these are depends on a query's position alone, so that
/// no result depends on how a prompt was cut.
pub(super) const RECENT_BLOCK: usize = 32;
/// The first block, that of a query, and the one before it.
const RECENT_ROWS_MAX: usize = 3 * RECENT_BLOCK;

/// Most rows of a sequence in a pass whose cache has a window: the cache has places for so many beside what they see.
pub const WINDOW_PASS_ROWS: usize = 512;

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
    /// Whether the first and the latest positions are kept in `q8_0`, too: of a sequence that is read from left to right,
    /// in fewer bits.
    pub keeps_recent: bool,
    /// Most positions that a query sees, its own included; the cache then holds the latest positions alone.
    pub window: Option<usize>,
}

impl KvCacheShape {
    /// The KV cache of a model of this shape, kept in this format.
    #[must_use]
    pub fn of(shape: &Shape, format: Format) -> Self {
        Self::each(shape, format)[0]
    }

    /// The KV caches of a model of this shape, kept in this format: one, or one of layers with a window and one of those that
    /// see all.
    #[must_use]
    pub fn each(shape: &Shape, format: Format) -> Vec<Self> {
        let window = match shape.layer_kind {
            LayerKind::LatentThought(latents) => Some(latents.window),
            LayerKind::Gemma(gemma) => Some(gemma.window),
            LayerKind::Attention
            | LayerKind::Mixture(_)
            | LayerKind::Rwkv7(_)
            | LayerKind::Encoder(_) => None,
        };
        let all = Self {
            layers: shape.layers,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            format,
            keeps_recent: shape.causal
                && window.is_none()
                && matches!(format, Format::Q5_0 | Format::Q4_0),
            window,
        };
        let LayerKind::Gemma(gemma) = shape.layer_kind else {
            return vec![all];
        };
        let full = shape.layers / gemma.full_step;
        let in_window = Self {
            layers: shape.layers - full,
            ..all
        };
        let full = Self {
            layers: full,
            kv_heads: gemma.full_kv_heads,
            head_dim: gemma.full_head_dim,
            window: None,
            ..all
        };
        vec![in_window, full]
    }

    /// Places for a sequence of so many positions: with a window no more than the rows of a pass and what the first of
    /// them sees.
    pub(super) fn places(&self, positions: usize) -> usize {
        match self.window {
            Some(window) => positions.min(window - 1 + WINDOW_PASS_ROWS),
            None => positions,
        }
    }

    /// Elements that are stored for a head: padded to whole blocks of the format.
    pub(super) fn stored_dim(&self) -> usize {
        self.head_dim.next_multiple_of(self.format.block_len())
    }

    /// Whether heads are stored rotated ([`crate::rotation`]).
    pub(super) fn is_rotated(&self) -> bool {
        matches!(self.format, Format::Q5_0 | Format::Q4_0)
    }

    /// Bytes of a head of one position.
    pub(super) fn head_bytes(&self) -> usize {
        self.format.bytes(self.stored_dim())
    }

    /// Bytes of the keys, or of the values, of one position in one layer.
    pub(super) fn row_bytes(&self) -> usize {
        self.kv_heads * self.head_bytes()
    }

    /// Rows that are kept in `q8_0` beside so many positions.
    pub(super) fn recent_rows(&self, positions: usize) -> usize {
        match self.keeps_recent {
            true => positions.min(RECENT_ROWS_MAX),
            false => 0,
        }
    }

    /// The shape of those rows.
    pub(super) fn recent(&self) -> Self {
        Self {
            format: Format::Q8_0,
            keeps_recent: false,
            ..*self
        }
    }

    /// Bytes of the keys and values of so many positions in all layers.
    #[must_use]
    pub fn bytes(&self, positions: usize) -> usize {
        let positions = self.places(positions);
        let recent = self.recent_rows(positions) * self.recent().row_bytes();
        2 * self.layers * (positions * self.row_bytes() + recent)
    }
}
