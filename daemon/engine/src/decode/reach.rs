//! Which positions a pass computes, and which it sees: all of the canvas, or with a KV cache the open block and its
//! surroundings, and of the masks behind it a window and the last.
//!
//! References: Fast-dLLM (arXiv 2505.22618) for the prefix and the dual cache; dInfer (2510.08666) for the vicinity;
//! DPad (2508.14148) and Streaming-dLLM (2601.17917) for the window and the last position, without which a window costs
//! 1.2 to 1.9 points. New here is [`KvCacheReuse::recompute_before`]: of what stands before a block only so much is
//! computed anew when it opens, so that a pass costs the same however long the text has become.

use std::ops::Range;

use sluice_ops::{KeySegment, WINDOW_PASS_ROWS};
use sluice_plan::MLP_ROWS;
use sluice_shared::{
    decoding::{CanvasGrowth, Decoding, KvCacheReuse},
    policy::RENOISE,
    sampling::KvCacheMode,
};

use crate::request::{CanvasSlot, Generate};

/// What a pass computes of a canvas, and what it sees. Positions count from the first of the prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PassReach {
    /// Ranges that are computed, in rising order.
    pub computed: Vec<Range<usize>>,
    /// Ranges of cache positions that are seen; `None` where the pass sees only what it computes.
    pub cached: Option<Vec<Range<usize>>>,
    /// The cache positions to which computed keys and values go; `None`: the positions of the tokens.
    pub cache_positions: Option<Range<usize>>,
    /// Cache positions to choose from after this pass, and how many stay: those then move to the front of the cache.
    pub selects: Option<(Vec<Range<usize>>, usize)>,
    /// With block diffusion what the positions see. What is computed then follows what the cache holds.
    pub sight: Option<BlockSight>,
}

/// What the positions of a pass of block diffusion see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockSight {
    /// What stands before them, and all of their own block of so many positions.
    Blocks(usize),
    /// All that is computed, and what stands before it: the open block behind text that is read causally.
    Open,
    /// What stands before them. Rows then predict the next position.
    Causal,
}

impl PassReach {
    /// All of a canvas, without a cache.
    #[must_use]
    pub fn whole(length: usize) -> Self {
        let all = 0..length;
        Self {
            computed: vec![all],
            ..Self::default()
        }
    }

    /// How many positions are computed.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.computed.iter().map(Range::len).sum()
    }

    /// The positions that are computed, rising.
    pub fn positions(&self) -> impl Iterator<Item = usize> + '_ {
        self.computed.iter().cloned().flatten()
    }

    /// The row of a position among those that are computed.
    #[must_use]
    pub fn row_of(&self, position: usize) -> Option<usize> {
        let mut before = 0;
        for range in &self.computed {
            if range.contains(&position) {
                return Some(before + position - range.start);
            }
            before += range.len();
        }
        None
    }

    /// The last position that each position sees, with block diffusion.
    #[must_use]
    pub fn last_seen(&self) -> Option<Vec<usize>> {
        let end = self.computed.last().map_or(0, |range| range.end);
        let sight = self.sight?;
        let last = |position: usize| match sight {
            BlockSight::Blocks(length) => (position / length + 1) * length - 1,
            BlockSight::Open => end - 1,
            BlockSight::Causal => position,
        };
        Some(self.positions().map(last).collect())
    }

    /// The row that predicts a position, among those that are computed; `of_model` says at which position it stands where
    /// all see their own block.
    #[must_use]
    pub fn predicting_row(
        &self,
        position: usize,
        of_model: impl Fn(usize) -> usize,
    ) -> Option<usize> {
        match self.sight {
            Some(BlockSight::Causal) => self.row_of(position.checked_sub(1)?),
            _ => self.row_of(of_model(position)),
        }
    }

    /// The segments of the cache that are seen; `None` without a cache.
    #[must_use]
    pub fn segments(&self) -> Option<Vec<KeySegment>> {
        let kept = self.cached.as_ref()?;
        let segment = |range: &Range<usize>| KeySegment {
            start: range.start,
            len: range.len(),
        };
        Some(kept.iter().map(segment).collect())
    }
}

/// How the passes of a request reach.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReachRule {
    pub(super) kv_cache: KvCacheReuse,
    pub(super) suffix_window: Option<usize>,
    pub(super) canvas_growth: CanvasGrowth,
    /// Positions of a block of block diffusion.
    pub(super) block_length: Option<usize>,
    /// Whether what stands before the open block is read causally.
    pub(super) causal_attention_before: bool,
    /// One past the last pinned position, which a window does not hide.
    pub(super) pinned_end: usize,
}

/// The state of a pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct PassContext<'a> {
    /// The open block.
    pub(super) block: &'a Range<usize>,
    /// The canvas's length.
    pub(super) end: usize,
    /// The cache is valid for all positions before this one; `None` where it holds nothing.
    pub(super) cached_until: Option<usize>,
    /// Passes since the whole cache was computed.
    pub(super) passes_since_refresh: usize,
    /// Whether the block was opened by this pass.
    pub(super) opens: bool,
    /// Whether the pass is for the row before the block alone, which predicts its first position.
    pub(super) is_for_first: bool,
}

impl ReachRule {
    /// The rule of a request. If the model's logits are shifted, the row before those that are read is computed, too.
    pub(super) fn new(request: &Generate, is_shifted: bool) -> Self {
        let Decoding {
            kv_cache: mut caching,
            suffix_window: window,
            canvas_growth: growth,
            ..
        } = request.decoding;
        // With shifted logits the row before a block predicts its first position, so every pass must have it.
        if is_shifted {
            caching.recompute_before = caching.recompute_before.map(|behind| behind.max(1));
            caching.recompute_around = caching.recompute_around.max(1);
        }
        Self {
            kv_cache: caching,
            suffix_window: window.map(|masks| masks as usize),
            canvas_growth: growth,
            block_length: request.diffusion_block(),
            causal_attention_before: request.causal_attention_before,
            pinned_end: match request.may_end_from() {
                0 => 0,
                end => request.prompt.len() + end,
            },
        }
    }

    /// Whether a KV cache is used.
    pub(super) fn uses_kv_cache(&self) -> bool {
        self.kv_cache.mode != KvCacheMode::None
    }

    /// Whether a pass computes more than its block's usual part: the block opens, or a refresh is due.
    pub(super) fn renews(&self, at: &PassContext<'_>) -> bool {
        let is_due = |passes: u32| at.passes_since_refresh >= passes as usize;
        // Fast-dLLM rebuilds the cache at each block's border: what the last block has committed changes the keys
        // around it.
        at.cached_until.is_none() || at.opens || self.kv_cache.refresh_passes.is_some_and(is_due)
    }

    /// The end of the cache's valid positions after such a pass, counted from the first.
    pub(super) fn holds(&self, at: &PassContext<'_>) -> Option<usize> {
        match self.renews(at) {
            true => self.visible(at).first().map(|range| range.end),
            false => at.cached_until,
        }
    }

    /// What a pass computes and sees.
    pub(super) fn reach(&self, at: &PassContext<'_>) -> PassReach {
        if let Some(length) = self.block_length {
            return match self.causal_attention_before {
                true => Self::open_block(at),
                false => Self::blocks(at, length),
            };
        }
        let visible = self.visible(at);
        if !self.uses_kv_cache() {
            return PassReach {
                computed: visible,
                ..PassReach::default()
            };
        }
        if self.kv_cache.keep_share < 1.0 && !self.renews(at) {
            return self.sparse(at, visible);
        }
        let around = self.kv_cache.recompute_around as usize;
        let block = at.block;
        let part = match self.kv_cache.mode {
            _ if self.renews(at) => {
                let behind = self
                    .kv_cache
                    .recompute_before
                    .map_or(block.start, |behind| behind as usize);
                let start = block.start.saturating_sub(behind);
                // Blocks without a mask were passed over: the cache ends before them, and they are computed now.
                start.min(at.cached_until.unwrap_or(0))..at.end
            }
            KvCacheMode::None | KvCacheMode::Prefix | KvCacheMode::Blocks => block.start..at.end,
            // At a threshold of 0.9: 354 tokens/s for 194 with `prefix`, and 37 % of the tokens are those of `exact`,
            // for 68 % (docs/benchmarks.md).
            KvCacheMode::Dual => block.clone(),
            // Keys near the block change most while it fills. dInfer recomputes 16 positions on each side for that
            // reason.
            KvCacheMode::Vicinity => block.start.saturating_sub(around)..block.end + around,
        };
        // What is outside the visible ranges is neither computed nor cached: a window bounds both.
        let inside = |range: &Range<usize>| {
            let range = range.start.max(part.start)..range.end.min(part.end);
            (!range.is_empty()).then_some(range)
        };
        PassReach {
            computed: visible.iter().filter_map(inside).collect(),
            cached: Some(visible),
            ..PassReach::default()
        }
    }

    /// A pass of block diffusion: what is finished and not cached yet, and the open block. Finished blocks are computed for
    /// their keys and values alone, so they share a pass with the next block's first, as the same rows would take two.
    fn blocks(at: &PassContext<'_>, length: usize) -> PassReach {
        let from = at.cached_until.unwrap_or(0);
        let own = at.block.start / length * length;
        // Of a long prompt as many whole blocks as go through the layers together.
        let most = (MLP_ROWS / length).max(1) * length;
        let computed = match (own - from > most, at.is_for_first) {
            (true, _) => from..from + most,
            (false, true) => from..own,
            (false, false) => from..own + length,
        };
        PassReach {
            computed: vec![computed],
            sight: Some(BlockSight::Blocks(length)),
            ..PassReach::default()
        }
    }

    /// A pass of block diffusion behind text that is read causally: what is not cached of it, whose last row predicts the
    /// open block's first token, or else the open block.
    fn open_block(at: &PassContext<'_>) -> PassReach {
        let from = at.cached_until.unwrap_or(0);
        let (computed, sight) = match from < at.block.start {
            true => {
                let end = at.block.start.min(from + MLP_ROWS);
                (from..end, BlockSight::Causal)
            }
            false => (at.block.clone(), BlockSight::Open),
        };
        PassReach {
            computed: vec![computed],
            sight: Some(sight),
            ..PassReach::default()
        }
    }

    /// A pass over the block alone. The first one sees all keys, and chooses which stay; later ones see those, which
    /// then stand before the block's own.
    fn sparse(&self, at: &PassContext<'_>, visible: Vec<Range<usize>>) -> PassReach {
        let block = at.block;
        let outside = |range: &Range<usize>| {
            let before = range.start..range.end.min(block.start);
            let behind = range.start.max(block.end)..range.end;
            [before, behind]
        };
        let outside: Vec<_> = (visible.iter().flat_map(outside))
            .filter(|range| !range.is_empty())
            .collect();
        let all: usize = outside.iter().map(Range::len).sum();
        // The same in the choosing pass and in later ones, since it depends on the canvas alone.
        let count = (all as f64 * self.kv_cache.keep_share).ceil() as usize;
        let computed = vec![block.clone()];
        // The cache has been compacted: the kept keys are the first `count` positions, whatever positions their tokens
        // have.
        match at.passes_since_refresh {
            1 => PassReach {
                computed,
                cached: Some(visible),
                cache_positions: None,
                selects: Some((outside, count)),
                sight: None,
            },
            _ => {
                let stay = 0..count + block.len();
                PassReach {
                    computed,
                    cached: Some(vec![stay]),
                    cache_positions: Some(count..count + block.len()),
                    selects: None,
                    sight: None,
                }
            }
        }
    }

    /// What a block sees: everything before its end; behind it the window, or all up to the last pin where that is
    /// further; and the last position.
    fn visible(&self, at: &PassContext<'_>) -> Vec<Range<usize>> {
        let end = match (self.canvas_growth, self.suffix_window) {
            // Behind the block nothing exists yet but what the user has pinned.
            (CanvasGrowth::Append, _) => {
                let all = 0..at.block.end.max(self.pinned_end);
                return vec![all];
            }
            (_, None) => at.end,
            (_, Some(window)) => (at.block.end + window).max(self.pinned_end).min(at.end),
        };
        let (all, near, last) = (0..at.end, 0..end, at.end - 1..at.end);
        // A gap of one position is the last position itself, which is seen anyway.
        match at.end - end {
            0 | 1 => vec![all],
            _ => vec![near, last],
        }
    }
}

/// Most positions that a pass of a request computes; at least as many as its LM head is planned for, even with nothing
/// to fill.
#[must_use]
pub fn most_rows(request: &Generate) -> usize {
    // Shifted reaches one row further than not, so this is an upper bound for every model.
    let rule = ReachRule::new(request, true);
    let (prompt, end) = (request.prompt.len(), request.padded_length());
    // Places for pins are looked for in the whole canvas, whatever later passes leave out.
    if !request.anywhere.is_empty() {
        return end;
    }
    if let Some(block) = request.diffusion_block() {
        // A block after as many rows as are only stored.
        let stored = (MLP_ROWS / block).max(1) * block;
        return match request.policy.name() == RENOISE {
            // Text and canvases have passes of their own.
            true => MLP_ROWS.min(WINDOW_PASS_ROWS).max(block).min(end),
            false => (stored + block).min(end),
        };
    }
    // Inserted masks shift the blocks, so that their passes cannot be foreseen.
    if request.decoding.canvas_growth == CanvasGrowth::Insert {
        return end;
    }
    // The blocks are played through as decoding will meet them: an opening pass depends on what the cache held before.
    let mut held = None;
    let slots = request.slots();
    let blocks = slots.chunks(request.block_length.max(1)).enumerate();
    let open = blocks.filter(|(_, slots)| slots.contains(&CanvasSlot::Masked));
    let rows = open.map(|(index, slots)| {
        let start = prompt + index * request.block_length;
        let opening = PassContext {
            block: &(start..start + slots.len()),
            end,
            cached_until: held,
            passes_since_refresh: 0,
            opens: true,
            is_for_first: false,
        };
        held = rule.holds(&opening);
        let later = PassContext {
            cached_until: held,
            passes_since_refresh: 1,
            opens: false,
            ..opening
        };
        rule.reach(&opening).rows().max(rule.reach(&later).rows())
    });
    let head_rows = request.block_length.min(end);
    rows.max().unwrap_or(0).max(head_rows)
}

#[cfg(test)]
#[expect(
    clippy::single_range_in_vec_init,
    reason = "lists of ranges, of which some have one"
)]
mod tests {
    use super::*;

    fn rule(caching: &str, window: Option<usize>) -> ReachRule {
        ReachRule {
            kv_cache: caching.parse().unwrap(),
            suffix_window: window,
            canvas_growth: CanvasGrowth::Fixed,
            block_length: None,
            causal_attention_before: false,
            pinned_end: 0,
        }
    }

    const BLOCK: Range<usize> = 40..48;

    /// A pass in the second block, the so-manieth since all was computed anew.
    fn at(since: usize) -> PassContext<'static> {
        PassContext {
            block: &BLOCK,
            end: 100,
            cached_until: Some(52),
            passes_since_refresh: since,
            opens: since == 0,
            is_for_first: false,
        }
    }

    fn computed(rule: ReachRule, since: usize) -> Vec<Range<usize>> {
        rule.reach(&at(since)).computed
    }

    #[test]
    fn without_a_cache_all_that_is_seen_is_computed() {
        let reach = rule("none", None).reach(&at(1));
        assert_eq!(
            (reach.computed.as_slice(), reach.cached),
            (&[0..100][..], None)
        );
        let reach = rule("none", Some(10)).reach(&at(1));
        assert_eq!(reach.computed, [0..58, 99..100]);
        assert_eq!(reach.rows(), 59);
        assert_eq!((reach.row_of(57), reach.row_of(99)), (Some(57), Some(58)));
        assert_eq!((reach.row_of(58), reach.row_of(100)), (None, None));
        assert_eq!(reach.positions().last(), Some(99));
        // Where nothing lies between the window and the last position, they are one.
        assert_eq!(computed(rule("none", Some(51)), 1), [0..100]);
        assert_eq!(computed(rule("none", Some(500)), 1), [0..100]);
        let appended = ReachRule {
            canvas_growth: CanvasGrowth::Append,
            ..rule("none", Some(10))
        };
        assert_eq!(computed(appended, 1), [0..48]);
    }

    #[test]
    fn caches_leave_out_what_they_keep() {
        for caching in ["prefix", "dual", "vicinity"] {
            let opening = rule(caching, None).reach(&at(0));
            assert_eq!(opening.computed, [0..100], "{caching}");
            assert_eq!(opening.cached, Some(vec![0..100]));
        }
        assert_eq!(computed(rule("prefix", None), 1), [40..100]);
        assert_eq!(computed(rule("dual", None), 1), [40..48]);
        assert_eq!(computed(rule("vicinity:around=5", None), 1), [35..53]);
        assert_eq!(computed(rule("vicinity:around=90", None), 1), [0..100]);
        assert_eq!(computed(rule("prefix", Some(4)), 1), [40..52, 99..100]);
        assert_eq!(computed(rule("vicinity:around=5", Some(2)), 1), [35..50]);
        let reach = rule("dual", Some(4)).reach(&at(3));
        assert_eq!(reach.cached, Some(vec![0..52, 99..100]));
        let segments = reach.segments().unwrap();
        assert_eq!((segments[1].start, segments[1].len), (99, 1));
    }

    #[test]
    fn of_the_keys_outside_a_share_stays() {
        let rule = rule("dual:keep=0.5", Some(4));
        assert_eq!(rule.reach(&at(0)).selects, None);
        let choosing = rule.reach(&at(1));
        assert_eq!(choosing.computed, [40..48]);
        assert_eq!(choosing.cached, Some(vec![0..52, 99..100]));
        assert_eq!(choosing.selects, Some((vec![0..40, 48..52, 99..100], 23)));
        let later = rule.reach(&at(2));
        assert_eq!(later.computed, [40..48]);
        assert_eq!(
            (later.cached, later.cache_positions),
            (Some(vec![0..31]), Some(23..31))
        );
    }

    #[test]
    fn what_is_kept_is_computed_anew_in_time() {
        let rule = rule("dual:refresh=3,behind=10", Some(4));
        assert_eq!(computed(rule, 0), [30..52, 99..100]);
        assert_eq!(computed(rule, 2), [40..48]);
        assert_eq!(computed(rule, 3), [30..52, 99..100]);
        // Before anything was kept, all is.
        let first = PassContext {
            cached_until: None,
            ..at(0)
        };
        assert_eq!(rule.reach(&first).computed, [0..52, 99..100]);
        assert_eq!(rule.holds(&first), Some(52));
        // What lies between blocks that were passed over is not forgotten.
        let far = PassContext {
            cached_until: Some(20),
            ..at(0)
        };
        assert_eq!(rule.reach(&far).computed, [20..52, 99..100]);
    }

    #[test]
    fn text_before_an_open_block_is_read_causally() {
        let rule = ReachRule {
            block_length: Some(8),
            causal_attention_before: true,
            ..rule("blocks", None)
        };
        let reading = rule.reach(&PassContext {
            cached_until: Some(30),
            ..at(0)
        });
        assert_eq!(reading.computed, [30..40]);
        assert_eq!(reading.last_seen(), Some((30..40).collect()));
        // The row before predicts a position, and the pass has no other of the block's.
        let row = |reach: &PassReach, position| reach.predicting_row(position, |position| position);
        assert_eq!((row(&reading, 40), row(&reading, 41)), (Some(9), None));
        let open = rule.reach(&PassContext {
            cached_until: Some(40),
            ..at(0)
        });
        assert_eq!(open.computed, [40..48]);
        assert_eq!(open.last_seen(), Some(vec![47; 8]));
        assert_eq!(row(&open, 41), Some(1));
    }

    #[test]
    fn what_is_pinned_is_seen() {
        let pinned = ReachRule {
            pinned_end: 80,
            ..rule("none", Some(4))
        };
        assert_eq!(computed(pinned, 1), [0..80, 99..100]);
        let appended = ReachRule {
            canvas_growth: CanvasGrowth::Append,
            ..pinned
        };
        assert_eq!(computed(appended, 1), [0..80]);
        let behind = ReachRule {
            pinned_end: 10,
            ..pinned
        };
        assert_eq!(computed(behind, 1), [0..52, 99..100]);
    }
}
