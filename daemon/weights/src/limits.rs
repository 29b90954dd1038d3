//! Bounds on what a checkpoint may ask for.

/// Largest input width of any projection: a thread's scratch holds a tile of 16 such rows.
pub const HIDDEN_SIZE_MAX: usize = 1 << 16;
/// Most tokens that end a text, including the end of a chat turn.
pub const END_TOKENS_MAX: usize = sluice_cuda::LM_HEAD_TOKENS;
/// Longest context: a thread's scratch holds one query's scores several times over.
pub const CONTEXT_LENGTH_MAX: usize = 1 << 18;
/// The context of models whose state doesn't grow with it, which have no limit of their own: a request's tokens are
/// kept as long as it runs.
pub const RECURRENT_CONTEXT_LENGTH: usize = 1 << 20;
/// Largest head dimension: a thread's scratch holds a tile of keys beside one query's scores.
pub const HEAD_DIM_MAX: usize = 1 << 10;
