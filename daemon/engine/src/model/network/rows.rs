//! The rows of a pass, and what their queries attend to.

use std::ops::Range;

use sluice_ops::{
    AttentionKeys, AttentionRange, AttentionTasks, Indices, KeySegment, KvCache, Ops, PassRun,
    PassStates, RecurrentState,
};

use crate::error::EngineError;

/// Rows of a canvas or a text in a pass.
pub struct Sequence<'a> {
    /// Token ids of the rows.
    pub tokens: &'a [u32],
    /// The position of each row in its sequence.
    pub positions: &'a [usize],
    /// Rows that are read, counted from the sequence's first row in this pass.
    pub wanted: &'a [usize],
    /// What the rows attend to.
    pub sees: VisibleKeys<'a>,
}

/// What a sequence's rows attend to.
pub enum VisibleKeys<'a> {
    /// Each other; with block diffusion those before them and in their own block. Positions rise. The last `checks` rows stand at positions of other rows: a check sees itself in that
    /// row's place, and no other row sees it.
    Each {
        /// How many rows are checks.
        checks: usize,
    },
    /// Positions of a cache, to which keys and values of these rows are written first.
    Cached {
        /// The sequence's cache.
        cache: &'a mut KvCache,
        /// The positions to which the rows are written, one run after another.
        cache_positions: &'a [Range<usize>],
        /// The positions that all of the rows see.
        seen: &'a [KeySegment],
        /// Positions to choose from by the attention of these rows, and how many stay, at the front of the cache.
        selects: Option<&'a (Vec<Range<usize>>, usize)>,
    },
    /// Autoregressive: these rows follow those that the cache holds, and each sees itself and all before it.
    Before {
        /// The sequence's cache.
        cache: &'a mut KvCache,
    },
    /// Block diffusion: these rows follow those that the cache holds, and each sees all up to the last position of its
    /// block. They don't count as held: whoever finds that their tokens are final says so.
    Blocks {
        /// The sequence's cache.
        cache: &'a mut KvCache,
        /// For each row the last position that it sees.
        last_seen: &'a [usize],
    },
    /// Autoregressive within a window, with cross-attention to latents.
    Latent {
        /// The sequence's cache, with a window.
        cache: &'a mut KvCache,
        /// Keys and values of each layer's latents; computed in the first pass, while it is empty.
        latents: &'a mut KvCache,
        /// The latents: for each layer the same number of rows of the hidden size.
        z: &'a [f32],
    },
    /// Autoregressive without attention: these rows follow those that the state has read.
    State {
        /// The sequence's state.
        state: &'a mut RecurrentState,
        /// A second state that becomes the sequence's after so many of these rows: at least one, and not all.
        fork: Option<(usize, &'a mut RecurrentState)>,
    },
}

/// Rows that go through the layers together.
pub(super) struct BatchRows {
    pub(super) tokens: Vec<u32>,
    /// The position of each row in its own sequence.
    pub(super) positions: Indices,
    /// Rows that are read, and below their positions.
    pub(super) wanted: Indices,
    pub(super) wanted_positions: Indices,
}

/// What the rows' queries attend to.
pub(super) struct BatchKeys<'a> {
    /// Caches to which rows are written.
    pub(super) caches: Vec<CachedRows<'a>>,
    /// Whether all sequences are autoregressive and their caches have all rows of the pass, so that queries read caches
    /// only.
    pub(super) is_of_caches: bool,
    /// The latents of sequences that have some.
    pub(super) latents: LatentKeys<'a>,
    /// The states of sequences without attention.
    pub(super) states: PassStates<'a>,
    all: AttentionTasks,
    wanted: AttentionTasks,
}

/// What cross-attention reads.
pub(super) struct LatentKeys<'a> {
    /// For each sequence the cache of its latents' keys and values, and the latents.
    pub(super) sequences: Vec<(&'a mut KvCache, &'a [f32])>,
    all: AttentionTasks,
    wanted: AttentionTasks,
}

impl LatentKeys<'_> {
    /// The tasks of all rows or, in the last layer, of the wanted ones.
    pub(super) fn tasks(&self, is_last: bool) -> &AttentionTasks {
        match is_last {
            true => &self.wanted,
            false => &self.all,
        }
    }
}

/// A cache, and the runs of rows that are written to it.
pub(super) struct CachedRows<'a> {
    pub(super) cache: &'a mut KvCache,
    pub(super) runs: Vec<PassRun>,
    /// Positions to choose from, and how many stay.
    pub(super) selects: Option<&'a (Vec<Range<usize>>, usize)>,
    queries: [Range<usize>; 2],
}

impl CachedRows<'_> {
    /// The rows of its queries; the last layer has only the wanted ones.
    pub(super) fn queries(&self, is_last: bool) -> Range<usize> {
        self.queries[usize::from(is_last)].clone()
    }
}

impl BatchKeys<'_> {
    /// The tasks of all rows or, in the last layer, of the wanted ones.
    pub(super) fn tasks(&self, is_last: bool) -> &AttentionTasks {
        match is_last {
            true => &self.wanted,
            false => &self.all,
        }
    }
}

/// Concatenates the rows of sequences, of a model whose blocks are so long if it is one of block diffusion.
pub(super) fn batched<'a>(
    sequences: &'a mut [Sequence<'_>],
    block_length: Option<usize>,
    ops: &Ops,
) -> Result<(BatchRows, BatchKeys<'a>), EngineError> {
    let (mut tokens, mut positions) = (Vec::new(), Vec::new());
    let (mut wanted, mut wanted_positions) = (Vec::new(), Vec::new());
    let mut ranges = Ranges::default();
    let mut caches = Vec::new();
    let mut is_of_caches = true;
    let mut states = PassStates::default();
    let mut latent_sequences = Vec::new();
    let mut latent_ranges = Ranges::default();
    for sequence in sequences {
        let (start, wanted_start) = (tokens.len(), wanted.len());
        tokens.extend_from_slice(sequence.tokens);
        // Positions count within a sequence, rows over all of them: rotary embedding uses the former, attention the
        // latter.
        positions.extend_from_slice(sequence.positions);
        wanted.extend(sequence.wanted.iter().map(|row| start + row));
        wanted_positions.extend(sequence.wanted.iter().map(|&row| sequence.positions[row]));
        let rows = start..tokens.len();
        let wanted_rows = wanted_start..wanted.len();
        let cache = caches.len();
        match &mut sequence.sees {
            VisibleKeys::Each { checks } => {
                is_of_caches = false;
                let each = CanvasRows::new(start, sequence.positions, *checks, block_length);
                let all: Vec<_> = (0..rows.len()).collect();
                ranges.all.extend(each.ranges(rows, &all));
                (ranges.wanted).extend(each.ranges(wanted_rows, sequence.wanted));
            }
            VisibleKeys::Cached {
                cache: kept,
                cache_positions: places,
                seen,
                selects,
            } => {
                // Such a sequence also reads caches only, but a model of this kind may mix it with canvases that do
                // not; memory must not depend on that.
                is_of_caches = false;
                let mut from = start;
                let runs = places.iter().map(|places| {
                    let rows = from..from + places.len();
                    from = rows.end;
                    let start = places.start;
                    PassRun { rows, start }
                });
                let runs: Vec<_> = runs.collect();
                let own = runs.clone();
                assert_eq!(from, rows.end, "each row has a place");
                caches.push(CachedRows {
                    cache: kept,
                    runs,
                    selects: *selects,
                    queries: [rows.clone(), wanted_rows.clone()],
                });
                let keys = || AttentionKeys::Cached {
                    cache,
                    segments: seen.to_vec(),
                    own: own.clone(),
                };
                ranges.add(&[rows, wanted_rows], [keys(), keys()]);
            }
            VisibleKeys::State { state, fork } => {
                let fork = fork.as_mut().map(|(count, fork)| (*count, &mut **fork));
                states.add(rows, state, fork);
            }
            VisibleKeys::Before { cache: kept } => {
                is_of_caches &= !kept.shape().keeps_recent;
                let last_seen: Vec<_> = (kept.len()..kept.len() + rows.len()).collect();
                let queries = [rows, wanted_rows];
                let seen = (&last_seen[..], sequence.wanted);
                caches.push(causal(kept, cache, queries, seen, &mut ranges));
            }
            VisibleKeys::Blocks {
                cache: kept,
                last_seen,
            } => {
                // As with other canvases.
                is_of_caches = false;
                let queries = [rows, wanted_rows];
                let seen = (*last_seen, sequence.wanted);
                caches.push(causal(kept, cache, queries, seen, &mut ranges));
            }
            VisibleKeys::Latent {
                cache: kept,
                latents,
                z,
            } => {
                let queries = [rows, wanted_rows];
                let keys = || AttentionKeys::Cached {
                    cache: latent_sequences.len(),
                    segments: vec![KeySegment {
                        start: 0,
                        len: latents.capacity(),
                    }],
                    own: Vec::new(),
                };
                latent_ranges.add(&queries, [keys(), keys()]);
                latent_sequences.push((&mut **latents, *z));
                let last_seen: Vec<_> = (kept.len()..kept.len() + queries[0].len()).collect();
                let seen = (&last_seen[..], sequence.wanted);
                caches.push(causal(kept, cache, queries, seen, &mut ranges));
            }
        }
    }
    let rows = BatchRows {
        tokens,
        positions: ops.indices(positions)?,
        wanted: ops.indices(wanted)?,
        wanted_positions: ops.indices(wanted_positions)?,
    };
    let seen = BatchKeys {
        caches,
        is_of_caches,
        latents: LatentKeys {
            sequences: latent_sequences,
            all: ops.attention_tasks(latent_ranges.all)?,
            wanted: ops.attention_tasks(latent_ranges.wanted)?,
        },
        states,
        all: ops.attention_tasks(ranges.all)?,
        wanted: ops.attention_tasks(ranges.wanted)?,
    };
    Ok((rows, seen))
}

/// What all rows attend to and, in the last layer, the wanted ones.
#[derive(Default)]
struct Ranges {
    all: Vec<AttentionRange>,
    wanted: Vec<AttentionRange>,
}

impl Ranges {
    /// Adds what these queries see: all rows of a sequence, and the wanted ones.
    fn add(&mut self, [all, wanted]: &[Range<usize>; 2], [keys, of_wanted]: [AttentionKeys; 2]) {
        for (ranges, queries, keys) in [
            (&mut self.all, all, keys),
            (&mut self.wanted, wanted, of_wanted),
        ] {
            let queries = queries.clone();
            ranges.push(AttentionRange { queries, keys });
        }
    }
}

/// Rows that follow those that a cache, the pass's `cache`-th, holds, and see all up to the last position that is given for
/// each. `seen` is that, and which of the rows are wanted.
fn causal<'a>(
    kept: &'a mut KvCache,
    cache: usize,
    queries: [Range<usize>; 2],
    (last_seen, wanted): (&[usize], &[usize]),
    ranges: &mut Ranges,
) -> CachedRows<'a> {
    let own = PassRun {
        rows: queries[0].clone(),
        start: kept.len(),
    };
    // Each query sees the cache up to a position, which also hides the capacity that is not written yet.
    let keys = |positions| AttentionKeys::Causal {
        cache,
        positions,
        own: Some(own.clone()),
    };
    let of_wanted = wanted.iter().map(|&row| last_seen[row]).collect();
    ranges.add(&queries, [keys(last_seen.to_vec()), keys(of_wanted)]);
    CachedRows {
        cache: kept,
        runs: vec![own],
        selects: None,
        queries,
    }
}

/// The rows of a canvas, which see each other.
struct CanvasRows<'a> {
    start: usize,
    /// Positions of the rows that all see.
    positions: &'a [usize],
    /// Positions of the check rows.
    checks: &'a [usize],
    /// Positions of a block of block diffusion; `None`: each row sees all.
    block_length: Option<usize>,
}

impl<'a> CanvasRows<'a> {
    fn new(
        start: usize,
        positions: &'a [usize],
        checks: usize,
        block_length: Option<usize>,
    ) -> Self {
        let (positions, checks) = positions.split_at(positions.len() - checks);
        Self {
            start,
            positions,
            checks,
            block_length,
        }
    }

    /// Ranges for `queries`, which are these of the rows: one for rows that see the same, which come first, and one for
    /// each check.
    fn ranges(&self, queries: Range<usize>, rows: &[usize]) -> Vec<AttentionRange> {
        let segment = |from: usize, to: usize| KeySegment {
            start: self.start + from,
            len: to - from,
        };
        let all = self.positions.len();
        let plain = rows.partition_point(|&row| row < all);
        let block = |row: &usize| {
            self.block_length
                .map_or(0, |length| self.positions[*row] / length)
        };
        let mut query = queries.start;
        let alike = rows[..plain].chunk_by(|a, b| block(a) == block(b));
        let mut ranges: Vec<_> = alike
            .map(|alike| {
                let queries = query..query + alike.len();
                query = queries.end;
                // Without the check rows: they hold masks at positions whose tokens are among these rows.
                let seen = match self.block_length {
                    Some(length) => {
                        let end = (block(&alike[0]) + 1) * length;
                        self.positions.partition_point(|&position| position < end)
                    }
                    None => all,
                };
                AttentionRange {
                    queries,
                    keys: AttentionKeys::Pass(vec![segment(0, seen)]),
                }
            })
            .collect();
        for (query, &row) in queries.zip(rows).skip(plain) {
            // All rows but the one at its own position, and itself: the mask that WINO verifies committed tokens with.
            let own = self.checks[row - all];
            let before = self.positions.partition_point(|&position| position < own);
            let seen = [
                segment(0, before),
                segment(before + 1, all),
                segment(row, row + 1),
            ];
            ranges.push(AttentionRange {
                queries: query..query + 1,
                keys: AttentionKeys::Pass(seen.into_iter().filter(|keys| keys.len > 0).collect()),
            });
        }
        ranges
    }
}
