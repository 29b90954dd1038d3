//! The rows of a pass, and what their queries attend to.

use std::ops::Range;

use sluice_ops::{
    AttentionKeys, AttentionRange, AttentionTasks, Indices, KeySegment, KvCache, Ops, OpsError,
    PassRun, PassStates, RecurrentState, SoftEmbeddings,
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
    /// Text of a model that denoises canvases behind it: these rows follow those that the caches hold, and each sees itself
    /// and those before it, in layers with a window the last of them.
    Text {
        /// The sequence's caches, in the order of [`KvCacheShape::each`](sluice_ops::KvCacheShape::each).
        caches: &'a mut [KvCache],
    },
    /// A canvas behind such text: all rows see each other and the text, in layers with a window the last of it. They don't
    /// count as held.
    Canvas {
        /// The sequence's caches.
        caches: &'a mut [KvCache],
        /// For each row what the pass before has predicted at its place, as one token; `None` in a canvas's first pass.
        soft: Option<&'a SoftEmbeddings>,
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
pub(super) struct BatchRows<'a> {
    pub(super) tokens: Vec<u32>,
    /// The rows of canvases behind text, each with what the pass before has predicted.
    pub(super) canvases: Vec<(Range<usize>, Option<&'a SoftEmbeddings>)>,
    /// Of sequences of text and canvases behind it, for all rows and for those that are read, 1 where they are text.
    are_text: [Indices; 2],
    /// The position of each row in its own sequence.
    pub(super) positions: Indices,
    /// Rows that are read, and below their positions.
    pub(super) wanted: Indices,
    pub(super) wanted_positions: Indices,
}

impl BatchRows<'_> {
    /// For all rows or, in the last layer, for the wanted ones, 1 where they are text before canvases and 0 where they are
    /// of those.
    pub(super) fn are_text(&self, is_last: bool) -> &Indices {
        &self.are_text[usize::from(is_last)]
    }
}

/// What the rows' queries attend to.
pub(super) struct BatchKeys<'a> {
    /// By kind of attention: of all layers, or of those with a window and then of those that see all.
    kinds: Vec<KindKeys<'a>>,
    /// Whether all sequences are autoregressive and their caches have all rows of the pass, so that queries read caches
    /// only.
    pub(super) is_of_caches: bool,
    /// The latents of sequences that have some.
    pub(super) latents: LatentKeys<'a>,
    /// The states of sequences without attention.
    pub(super) states: PassStates<'a>,
}

/// What the rows' queries attend to in layers of one kind.
pub(super) struct KindKeys<'a> {
    /// Caches to which rows are written.
    pub(super) caches: Vec<CachedRows<'a>>,
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

impl<'a> BatchKeys<'a> {
    /// What they attend to in layers of a kind.
    pub(super) fn of_kind(&mut self, kind: usize) -> &mut KindKeys<'a> {
        &mut self.kinds[kind]
    }
}

impl KindKeys<'_> {
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
) -> Result<(BatchRows<'a>, BatchKeys<'a>), EngineError> {
    let (mut tokens, mut positions) = (Vec::new(), Vec::new());
    let (mut wanted, mut wanted_positions) = (Vec::new(), Vec::new());
    // By kind of attention.
    let (mut ranges, mut caches) = (vec![Ranges::default()], vec![Vec::new()]);
    let (mut canvases, mut are_text) = (Vec::new(), [Vec::new(), Vec::new()]);
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
        let is_text = match sequence.sees {
            VisibleKeys::Text { .. } => Some(1),
            VisibleKeys::Canvas { .. } => Some(0),
            _ => None,
        };
        if let Some(is_text) = is_text {
            are_text[0].resize(rows.end, is_text);
            are_text[1].resize(wanted_rows.end, is_text);
        }
        let cache = caches[0].len();
        match &mut sequence.sees {
            VisibleKeys::Each { checks } => {
                is_of_caches = false;
                let each = CanvasRows::new(start, sequence.positions, *checks, block_length);
                let all: Vec<_> = (0..rows.len()).collect();
                ranges[0].all.extend(each.ranges(rows, &all));
                (ranges[0].wanted).extend(each.ranges(wanted_rows, sequence.wanted));
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
                caches[0].push(CachedRows {
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
                ranges[0].add(&[rows, wanted_rows], [keys(), keys()]);
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
                caches[0].push(causal(kept, cache, queries, seen, &mut ranges[0]));
            }
            VisibleKeys::Text { caches: kept } => {
                is_of_caches = false;
                resize_kinds(kept.len(), &mut ranges, &mut caches);
                for (kind, kept) in kept.iter_mut().enumerate() {
                    let last_seen: Vec<_> = (kept.len()..kept.len() + rows.len()).collect();
                    let queries = [rows.clone(), wanted_rows.clone()];
                    let seen = (&last_seen[..], sequence.wanted);
                    let cache = caches[kind].len();
                    caches[kind].push(causal(kept, cache, queries, seen, &mut ranges[kind]));
                }
            }
            VisibleKeys::Canvas { caches: kept, soft } => {
                is_of_caches = false;
                canvases.push((rows.clone(), *soft));
                resize_kinds(kept.len(), &mut ranges, &mut caches);
                for (kind, kept) in kept.iter_mut().enumerate() {
                    let queries = [rows.clone(), wanted_rows.clone()];
                    let cache = caches[kind].len();
                    caches[kind].push(canvas(kept, cache, queries, &mut ranges[kind]));
                }
            }
            VisibleKeys::Blocks {
                cache: kept,
                last_seen,
            } => {
                // As with other canvases.
                is_of_caches = false;
                let queries = [rows, wanted_rows];
                let seen = (*last_seen, sequence.wanted);
                caches[0].push(causal(kept, cache, queries, seen, &mut ranges[0]));
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
                caches[0].push(causal(kept, cache, queries, seen, &mut ranges[0]));
            }
        }
    }
    let [are_all_text, are_read_text] = are_text;
    let rows = BatchRows {
        tokens,
        canvases,
        are_text: [ops.indices(are_all_text)?, ops.indices(are_read_text)?],
        positions: ops.indices(positions)?,
        wanted: ops.indices(wanted)?,
        wanted_positions: ops.indices(wanted_positions)?,
    };
    let kinds = ranges.into_iter().zip(caches).map(|(ranges, caches)| {
        Ok(KindKeys {
            caches,
            all: ops.attention_tasks(ranges.all)?,
            wanted: ops.attention_tasks(ranges.wanted)?,
        })
    });
    let kinds = kinds.collect::<Result<_, OpsError>>()?;
    let seen = BatchKeys {
        kinds,
        is_of_caches,
        latents: LatentKeys {
            sequences: latent_sequences,
            all: ops.attention_tasks(latent_ranges.all)?,
            wanted: ops.attention_tasks(latent_ranges.wanted)?,
        },
        states,
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

/// Makes room for as many kinds of attention as a sequence has caches.
fn resize_kinds(count: usize, ranges: &mut Vec<Ranges>, caches: &mut Vec<Vec<CachedRows<'_>>>) {
    ranges.resize_with(count, Ranges::default);
    caches.resize_with(count, Vec::new);
}

/// Rows of a canvas behind the text that a cache, the pass's `cache`-th, holds.
fn canvas<'a>(
    kept: &'a mut KvCache,
    cache: usize,
    queries: [Range<usize>; 2],
    ranges: &mut Ranges,
) -> CachedRows<'a> {
    let text = kept.len();
    // As if the canvas were one position.
    let window = kept.shape().window.map_or(text, |window| window - 1);
    let seen = kept.runs(text.saturating_sub(window)..text + queries[0].len());
    let segments: Vec<_> = (seen.into_iter().filter(|run| !run.is_empty()))
        .map(|run| KeySegment {
            start: run.start,
            len: run.len(),
        })
        .collect();
    let mut from = queries[0].start;
    let written = kept.runs(text..text + queries[0].len());
    let own: Vec<_> = (written.into_iter().filter(|run| !run.is_empty()))
        .map(|run| {
            let rows = from..from + run.len();
            from = rows.end;
            let start = run.start;
            PassRun { rows, start }
        })
        .collect();
    let keys = || AttentionKeys::Cached {
        cache,
        segments: segments.clone(),
        own: own.clone(),
    };
    ranges.add(&queries, [keys(), keys()]);
    CachedRows {
        cache: kept,
        runs: own,
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

#[cfg(test)]
mod tests {
    use sluice_formats::Format;
    use sluice_ops::{KvCacheShape, device::Device, ledger::Ledger};

    use super::*;

    /// Positions take turns in a cache with a window, so that a canvas and what it sees may lie in two parts.
    #[test]
    fn a_canvas_goes_around_the_end_of_a_cache_with_a_window() {
        let ops = Ops::new(Device::cpu(1).unwrap(), Ledger::default()).unwrap();
        let shape = KvCacheShape {
            layers: 1,
            kv_heads: 1,
            head_dim: 2,
            format: Format::F32,
            keeps_recent: false,
            window: Some(12),
        };
        let mut cache = ops.kv_cache(shape, 1000).unwrap();
        assert_eq!(cache.capacity(), 523);
        cache.advance(515);
        let mut ranges = Ranges::default();
        let rows = canvas(&mut cache, 0, [4..20, 0..2], &mut ranges);
        let run = |rows: Range<usize>, start| PassRun { rows, start };
        let own = vec![run(4..12, 515), run(12..20, 0)];
        assert_eq!(rows.runs, own);
        // The last eleven positions of the text, and sixteen of the canvas.
        let segment = |start, len| KeySegment { start, len };
        let keys = AttentionKeys::Cached {
            cache: 0,
            segments: vec![segment(504, 19), segment(0, 8)],
            own,
        };
        assert_eq!(ranges.all[0].keys, keys);
        assert_eq!(
            (ranges.all[0].queries.clone(), &ranges.wanted[0].keys),
            (4..20, &keys)
        );
    }
}
