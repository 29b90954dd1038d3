//! The prefix cache: KV caches, or states, that are kept between requests to models that read a text from left to right:
//! autoregressive ones, and those of block diffusion.

use sluice_weights::Storage;

use crate::model::sequence_memory::SequenceMemory;

/// Most of them that are kept.
pub(super) const KEPT_PREFIXES_MAX: usize = 4;

/// What was kept of a request's tokens.
pub(super) struct KeptPrefix {
    /// The tokens that were read.
    pub(super) tokens: Vec<u32>,
    pub(super) memory: SequenceMemory,
    /// Positions of a block, with block diffusion: keys and values depend on it.
    pub(super) block_length: Option<usize>,
    /// How the weights that it was computed with were stored.
    pub(super) storages: Vec<Storage>,
}

/// Bytes of these entries.
pub(super) fn prefix_cache_bytes(prefixes: &[KeptPrefix]) -> u64 {
    prefixes.iter().map(|kept| kept.memory.bytes()).sum()
}

/// From which entry the prompt can go on after the most tokens, and after how many; `None` where from none. The last
/// token of the prompt is always read, since its logits are needed. With block diffusion whole blocks are gone on from.
pub(super) fn longest_prefix(
    prefixes: &[KeptPrefix],
    prompt: &[u32],
    block_length: Option<usize>,
) -> Option<(usize, usize)> {
    let same = |kept: &KeptPrefix| {
        if kept.block_length != block_length {
            return 0;
        }
        let pairs = kept.tokens.iter().zip(prompt);
        let same = pairs.take_while(|(a, b)| a == b).count();
        let same = same.min(prompt.len().saturating_sub(1));
        kept.memory
            .usable(same - block_length.map_or(0, |length| same % length))
    };
    let lengths = prefixes.iter().map(same).enumerate();
    lengths
        // Of equally long ones the last, which is the latest.
        .max_by_key(|(_, same)| *same)
        .filter(|(_, same)| *same > 0)
}
