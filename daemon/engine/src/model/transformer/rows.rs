//! The rows of a pass, and what their queries see.

use std::ops::Range;

use super::{Next, Sequence};
use crate::{
    error::EngineError,
    ops::{AttentionRange, AttentionTasks, CausalTasks, Indices, KeySegment, KvCache, Ops},
};

/// Rows that go through the layers together.
pub(super) struct Rows {
    pub(super) tokens: Vec<u32>,
    /// Of each row, in its own sequence.
    pub(super) positions: Indices,
    /// Rows that are read, and their positions.
    pub(super) wanted: Indices,
    pub(super) wanted_positions: Indices,
}

/// What the rows' queries see.
pub(super) enum Seen<'a> {
    /// All of their canvas, which is among the rows.
    Canvas(Tasks<AttentionTasks>),
    /// Their own position and those before it, which the cache of their sequence holds.
    Kept(Vec<Kept<'a>>, Tasks<CausalTasks>),
}

/// A causal sequence's rows, and where its keys and values are kept.
pub(super) struct Kept<'a> {
    pub(super) rows: Range<usize>,
    pub(super) cache: &'a mut KvCache,
}

/// Tasks of attention for all rows, and for queries that are the wanted rows alone.
pub(super) struct Tasks<T> {
    all: T,
    wanted: T,
}

impl<T> Tasks<T> {
    /// The last layer computes the wanted rows alone.
    pub(super) fn of(&self, is_last: bool) -> &T {
        match is_last {
            true => &self.wanted,
            false => &self.all,
        }
    }
}

/// Rows of canvases, one canvas after another.
pub(super) fn packed(
    sequences: &[Sequence<'_>],
    ops: &Ops,
) -> Result<(Rows, Seen<'static>), EngineError> {
    let mut tokens = Vec::new();
    let (mut positions, mut ranges) = (Vec::new(), Vec::new());
    let (mut wanted, mut wanted_positions) = (Vec::new(), Vec::new());
    let mut wanted_ranges = Vec::new();
    for sequence in sequences {
        let start = tokens.len();
        let wanted_start = wanted.len();
        tokens.extend_from_slice(sequence.tokens);
        positions.extend(0..sequence.tokens.len());
        wanted.extend(sequence.wanted.iter().map(|position| start + position));
        wanted_positions.extend_from_slice(sequence.wanted);
        let keys = vec![KeySegment {
            start,
            len: sequence.tokens.len(),
        }];
        wanted_ranges.push(AttentionRange {
            queries: wanted_start..wanted.len(),
            keys: keys.clone(),
        });
        ranges.push(AttentionRange {
            queries: start..tokens.len(),
            keys,
        });
    }
    let rows = Rows {
        tokens,
        positions: ops.indices(positions)?,
        wanted: ops.indices(wanted)?,
        wanted_positions: ops.indices(wanted_positions)?,
    };
    let tasks = Tasks {
        all: ops.attention_tasks(ranges)?,
        wanted: ops.attention_tasks(wanted_ranges)?,
    };
    Ok((rows, Seen::Canvas(tasks)))
}

/// The next rows of sequences whose first positions their caches hold, one sequence after another.
pub(super) fn next<'a>(
    sequences: &'a mut [Next<'_>],
    ops: &Ops,
) -> Result<(Rows, Seen<'a>), EngineError> {
    let mut tokens = Vec::new();
    let (mut positions, mut kept) = (Vec::new(), Vec::new());
    let (mut wanted, mut wanted_positions) = (Vec::new(), Vec::new());
    let mut wanted_counts = Vec::new();
    for sequence in sequences {
        let start = tokens.len();
        let position = sequence.cache.len();
        tokens.extend_from_slice(sequence.tokens);
        positions.extend(position..position + sequence.tokens.len());
        wanted.extend(sequence.wanted.iter().map(|row| start + row));
        wanted_positions.extend(sequence.wanted.iter().map(|row| position + row));
        wanted_counts.push(sequence.wanted.len());
        kept.push(Kept {
            rows: start..tokens.len(),
            cache: &mut *sequence.cache,
        });
    }
    let rows = Rows {
        tokens,
        positions: ops.indices(positions)?,
        wanted: ops.indices(wanted)?,
        wanted_positions: ops.indices(wanted_positions)?,
    };
    let counts = kept.iter().map(|kept| kept.rows.len());
    let tasks = Tasks {
        all: ops.causal_tasks(&rows.positions, counts)?,
        wanted: ops.causal_tasks(&rows.wanted_positions, wanted_counts)?,
    };
    Ok((rows, Seen::Kept(kept, tasks)))
}
