//! The prefix cache: KV caches that are kept between requests to autoregressive models.

use sluice_ops::KvCache;
use sluice_weights::Storage;

/// Most requests whose KV cache is kept after they ended.
pub(super) const KEPT_PREFIXES_MAX: usize = 4;

/// The KV cache of a request that has ended.
pub(super) struct KeptPrefix {
    /// The tokens of the cached positions.
    pub(super) tokens: Vec<u32>,
    pub(super) cache: KvCache,
    /// How the weights that it was computed with were stored.
    pub(super) storages: Vec<Storage>,
}

/// Bytes of these entries.
pub(super) fn prefix_cache_bytes(prefixes: &[KeptPrefix]) -> u64 {
    prefixes.iter().map(|kept| kept.cache.bytes()).sum()
}

/// Which entry shares the longest prefix with the prompt, and its length; `None` where none shares a token.
pub(super) fn longest_prefix(prefixes: &[KeptPrefix], prompt: &[u32]) -> Option<(usize, usize)> {
    let same = |kept: &KeptPrefix| {
        let pairs = kept.tokens.iter().zip(prompt);
        pairs.take_while(|(a, b)| a == b).count()
    };
    let lengths = prefixes.iter().map(same).enumerate();
    lengths
        // Of equally long ones the last, which is the latest.
        .max_by_key(|(_, same)| *same)
        .filter(|(_, same)| *same > 0)
}
