//! Bounds on what a checkpoint may ask for.

/// Largest width of any projection's input: a thread's scratch then holds a tile of 16 rows.
pub const HIDDEN_SIZE_MAX: usize = 1 << 16;
/// Tokens that end a text, at most, the end of a chat's turn among them.
pub const END_TOKENS_MAX: usize = sluice_cuda::LM_HEAD_TOKENS;
/// Longest context: a thread's scratch then holds one query's scores several times over.
pub const CONTEXT_LENGTH_MAX: usize = 1 << 18;
/// Most numbers in a head: a thread's scratch then holds a tile of keys beside one query's scores.
pub const HEAD_DIM_MAX: usize = 1 << 10;
