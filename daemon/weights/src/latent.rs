//! The sizes of a latent thought model.

/// What a latent thought model has besides the sizes of other models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentShape {
    /// Latent vectors of each layer, of the hidden size.
    pub latents: usize,
    /// Positions from one latent of a layer to the next, as rotary embedding sees them.
    pub stride: usize,
    /// Most positions that a token sees, its own included.
    pub window: usize,
}
