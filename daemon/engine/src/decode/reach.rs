//! Which positions a pass computes, and which it sees: all of the canvas, or with keys and values that are kept the open block
//! and its surroundings, and of the masks behind it a window and the last.
//!
//! References: Fast-dLLM (arXiv 2505.22618) for the prefix and the dual cache; dInfer (2510.08666) for the vicinity; DPad
//! (2508.14148) and Streaming-dLLM (2601.17917) for the window and the last position, which without the others costs 1.2 to 1.9
//! points. New here is [`Caching::behind`]: of what stands before a block only so much is computed anew when it opens, so that
//! a pass costs the same however long the text has become.

use std::ops::Range;

use sluice_ops::KeySegment;
use sluice_shared::{
    decoding::{Caching, Decoding, Growth},
    sampling::Cache,
};

use crate::request::{Generate, Slot};

/// What a pass computes of a canvas, and what it sees. Positions count from the first of the prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reach {
    /// Ranges that are computed, in rising order.
    pub computed: Vec<Range<usize>>,
    /// Ranges of places that are seen, where keys and values are kept; else what is computed.
    pub kept: Option<Vec<Range<usize>>>,
    /// Where keys and values of what is computed go, if not to the places of their positions.
    pub places: Option<Range<usize>>,
    /// Places to choose from once they were seen, and how many stay: they then are the first ones.
    pub selects: Option<(Vec<Range<usize>>, usize)>,
}

impl Reach {
    /// All of a canvas, nothing of which is kept.
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

    /// What is seen of a cache, if one is.
    #[must_use]
    pub fn segments(&self) -> Option<Vec<KeySegment>> {
        let kept = self.kept.as_ref()?;
        let segment = |range: &Range<usize>| KeySegment {
            start: range.start,
            len: range.len(),
        };
        Some(kept.iter().map(segment).collect())
    }
}

/// How a request's passes reach.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    pub(super) caching: Caching,
    pub(super) window: Option<usize>,
    pub(super) growth: Growth,
    /// Behind the last pinned position, which a window doesn't hide.
    pub(super) pinned_end: usize,
}

/// Where a pass stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct At<'a> {
    /// The open block.
    pub(super) block: &'a Range<usize>,
    /// The canvas's length.
    pub(super) end: usize,
    /// Keys and values of all positions before this one are kept, if any are.
    pub(super) held: Option<usize>,
    /// Passes since they were last computed anew.
    pub(super) since: usize,
    /// Whether the block was opened by this pass.
    pub(super) opens: bool,
}

impl Rule {
    /// As a request asks for. Of a model whose logits are shifted, the row before what is read is computed too.
    pub(super) fn new(request: &Generate, is_shifted: bool) -> Self {
        let Decoding {
            mut caching,
            window,
            growth,
            ..
        } = request.decoding;
        if is_shifted {
            caching.behind = caching.behind.map(|behind| behind.max(1));
            caching.around = caching.around.max(1);
        }
        Self {
            caching,
            window: window.map(|masks| masks as usize),
            growth,
            pinned_end: match request.may_end_from() {
                0 => 0,
                end => request.prompt.len() + end,
            },
        }
    }

    /// Whether keys and values are kept.
    pub(super) fn keeps(&self) -> bool {
        self.caching.kind != Cache::None
    }

    /// Whether a pass computes more than its block's usual part: the block opens, or it is time again.
    pub(super) fn renews(&self, at: &At<'_>) -> bool {
        let is_due = |passes: u32| at.since >= passes as usize;
        at.held.is_none() || at.opens || self.caching.refresh.is_some_and(is_due)
    }

    /// The end of what is kept after such a pass, from the first position on.
    pub(super) fn holds(&self, at: &At<'_>) -> Option<usize> {
        match self.renews(at) {
            true => self.visible(at).first().map(|range| range.end),
            false => at.held,
        }
    }

    /// What a pass reaches.
    pub(super) fn reach(&self, at: &At<'_>) -> Reach {
        let visible = self.visible(at);
        if !self.keeps() {
            return Reach {
                computed: visible,
                ..Reach::default()
            };
        }
        if self.caching.keep < 1.0 && !self.renews(at) {
            return self.sparse(at, visible);
        }
        let around = self.caching.around as usize;
        let block = at.block;
        let part = match self.caching.kind {
            _ if self.renews(at) => {
                let behind = self
                    .caching
                    .behind
                    .map_or(block.start, |behind| behind as usize);
                let start = block.start.saturating_sub(behind);
                // Blocks without a mask were passed over.
                start.min(at.held.unwrap_or(0))..at.end
            }
            Cache::None | Cache::Prefix => block.start..at.end,
            Cache::Dual => block.clone(),
            Cache::Vicinity => block.start.saturating_sub(around)..block.end + around,
        };
        let inside = |range: &Range<usize>| {
            let range = range.start.max(part.start)..range.end.min(part.end);
            (!range.is_empty()).then_some(range)
        };
        Reach {
            computed: visible.iter().filter_map(inside).collect(),
            kept: Some(visible),
            ..Reach::default()
        }
    }

    /// A pass over the block alone: the first one sees all keys and chooses which stay, later ones see those, which stand
    /// before the block's own.
    fn sparse(&self, at: &At<'_>, visible: Vec<Range<usize>>) -> Reach {
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
        let count = (all as f64 * self.caching.keep).ceil() as usize;
        let computed = vec![block.clone()];
        match at.since {
            1 => Reach {
                computed,
                kept: Some(visible),
                places: None,
                selects: Some((outside, count)),
            },
            _ => {
                let stay = 0..count + block.len();
                Reach {
                    computed,
                    kept: Some(vec![stay]),
                    places: Some(count..count + block.len()),
                    selects: None,
                }
            }
        }
    }

    /// What stands before the end of the block, the window behind it or, where that is more, all up to the last pin, and the
    /// last position.
    fn visible(&self, at: &At<'_>) -> Vec<Range<usize>> {
        let end = match (self.growth, self.window) {
            (Growth::Append, _) => {
                let all = 0..at.block.end.max(self.pinned_end);
                return vec![all];
            }
            (_, None) => at.end,
            (_, Some(window)) => (at.block.end + window).max(self.pinned_end).min(at.end),
        };
        let (all, near, last) = (0..at.end, 0..end, at.end - 1..at.end);
        match at.end - end {
            0 | 1 => vec![all],
            _ => vec![near, last],
        }
    }
}

/// Most positions that a pass of a request computes: not fewer than the head is planned for, though there may be nothing to fill.
#[must_use]
pub fn most_rows(request: &Generate) -> usize {
    let rule = Rule::new(request, true);
    let (prompt, length) = (request.prompt.len(), request.canvas.len());
    // Where masks are put in, blocks end elsewhere.
    if request.decoding.growth == Growth::Insert {
        return prompt + length;
    }
    let mut held = None;
    let blocks = request
        .canvas
        .chunks(request.block_length.max(1))
        .enumerate();
    let open = blocks.filter(|(_, slots)| slots.contains(&Slot::Masked));
    let rows = open.map(|(index, slots)| {
        let start = prompt + index * request.block_length;
        let opening = At {
            block: &(start..start + slots.len()),
            end: prompt + length,
            held,
            since: 0,
            opens: true,
        };
        held = rule.holds(&opening);
        let later = At {
            held,
            since: 1,
            opens: false,
            ..opening
        };
        rule.reach(&opening).rows().max(rule.reach(&later).rows())
    });
    let head_rows = request.block_length.min(prompt + length);
    rows.max().unwrap_or(0).max(head_rows)
}

#[cfg(test)]
#[expect(
    clippy::single_range_in_vec_init,
    reason = "lists of ranges, of which some have one"
)]
mod tests {
    use super::*;

    fn rule(caching: &str, window: Option<usize>) -> Rule {
        Rule {
            caching: caching.parse().unwrap(),
            window,
            growth: Growth::Fixed,
            pinned_end: 0,
        }
    }

    const BLOCK: Range<usize> = 40..48;

    /// A pass in the second block, the so-manieth since all was computed anew.
    fn at(since: usize) -> At<'static> {
        At {
            block: &BLOCK,
            end: 100,
            held: Some(52),
            since,
            opens: since == 0,
        }
    }

    fn computed(rule: Rule, since: usize) -> Vec<Range<usize>> {
        rule.reach(&at(since)).computed
    }

    #[test]
    fn without_a_cache_all_that_is_seen_is_computed() {
        let reach = rule("none", None).reach(&at(1));
        assert_eq!(
            (reach.computed.as_slice(), reach.kept),
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
        let appended = Rule {
            growth: Growth::Append,
            ..rule("none", Some(10))
        };
        assert_eq!(computed(appended, 1), [0..48]);
    }

    #[test]
    fn caches_leave_out_what_they_keep() {
        for caching in ["prefix", "dual", "vicinity"] {
            let opening = rule(caching, None).reach(&at(0));
            assert_eq!(opening.computed, [0..100], "{caching}");
            assert_eq!(opening.kept, Some(vec![0..100]));
        }
        assert_eq!(computed(rule("prefix", None), 1), [40..100]);
        assert_eq!(computed(rule("dual", None), 1), [40..48]);
        assert_eq!(computed(rule("vicinity:around=5", None), 1), [35..53]);
        assert_eq!(computed(rule("vicinity:around=90", None), 1), [0..100]);
        assert_eq!(computed(rule("prefix", Some(4)), 1), [40..52, 99..100]);
        assert_eq!(computed(rule("vicinity:around=5", Some(2)), 1), [35..50]);
        let reach = rule("dual", Some(4)).reach(&at(3));
        assert_eq!(reach.kept, Some(vec![0..52, 99..100]));
        let segments = reach.segments().unwrap();
        assert_eq!((segments[1].start, segments[1].len), (99, 1));
    }

    #[test]
    fn of_the_keys_outside_a_share_stays() {
        let rule = rule("dual:keep=0.5", Some(4));
        assert_eq!(rule.reach(&at(0)).selects, None);
        let choosing = rule.reach(&at(1));
        assert_eq!(choosing.computed, [40..48]);
        assert_eq!(choosing.kept, Some(vec![0..52, 99..100]));
        assert_eq!(choosing.selects, Some((vec![0..40, 48..52, 99..100], 23)));
        let later = rule.reach(&at(2));
        assert_eq!(later.computed, [40..48]);
        assert_eq!(
            (later.kept, later.places),
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
        let first = At {
            held: None,
            ..at(0)
        };
        assert_eq!(rule.reach(&first).computed, [0..52, 99..100]);
        assert_eq!(rule.holds(&first), Some(52));
        // What lies between blocks that were passed over is not forgotten.
        let far = At {
            held: Some(20),
            ..at(0)
        };
        assert_eq!(rule.reach(&far).computed, [20..52, 99..100]);
    }

    #[test]
    fn what_is_pinned_is_seen() {
        let pinned = Rule {
            pinned_end: 80,
            ..rule("none", Some(4))
        };
        assert_eq!(computed(pinned, 1), [0..80, 99..100]);
        let appended = Rule {
            growth: Growth::Append,
            ..pinned
        };
        assert_eq!(computed(appended, 1), [0..80]);
        let behind = Rule {
            pinned_end: 10,
            ..pinned
        };
        assert_eq!(computed(behind, 1), [0..52, 99..100]);
    }
}
