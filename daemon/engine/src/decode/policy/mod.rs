//! Policies: which of a pass's candidates are committed, and which committed tokens are taken back. They decide from
//! confidences and from what they saw before, and touch nothing else; their names, parameters and defaults stand in
//! [`sluice_shared::policy`].

mod apart;
mod credit;
mod entropy;
mod klass;
mod neighbours;
mod revoke;
mod schedule;
mod threshold;

use std::{cmp::Ordering, ops::Range};

use sluice_ops::{Candidate, RankingScore};
use sluice_shared::policy::PolicyChoice;

use self::{
    apart::Apart,
    credit::Credit,
    entropy::Entropy,
    klass::Klass,
    neighbours::{Hierarchical, Local},
    revoke::Revoke,
    schedule::{Dream, Reference},
    threshold::{Decay, Factor, Margin, Threshold},
};

/// One way to choose. A block is decided by one after the other of its passes, each of which commits at least one masked
/// position and takes back fewer than it commits: so every block ends.
pub trait Policy: Send {
    /// What it wants to be told.
    fn needs(&self) -> PolicyNeeds {
        PolicyNeeds::default()
    }

    /// Another block begins: what was seen of the one before means nothing for it.
    fn open(&mut self) {}

    /// Ids whose log-probabilities at a masked position it wants to know after the next pass.
    fn watched(&self, _position: usize) -> &[u32] {
        &[]
    }

    /// What to do after a pass.
    fn decide(&mut self, view: &BlockView<'_>) -> PolicyDecision;

    /// Whether it remembers nothing, and decides from what it sees alone.
    fn is_stateless(&self) -> bool {
        true
    }

    /// The same, with what it remembers.
    fn boxed_clone(&self) -> Box<dyn Policy>;
}

impl Clone for Box<dyn Policy> {
    fn clone(&self) -> Self {
        self.boxed_clone()
    }
}

/// What a policy wants to be told beside confidences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolicyNeeds {
    /// What rows are ranked by, where that is a part of the policy and not the user's choice.
    pub ranking: Option<RankingScore>,
    /// The most probable token of each row, whatever chance has chosen.
    pub top: bool,
    /// How far each row's distribution has moved since the pass before.
    pub divergence: bool,
    /// Committed positions of the open block are verified in every pass.
    pub checks: bool,
}

/// What a policy sees of a block after a pass. Positions count from the first one to fill.
#[derive(Debug, Clone)]
pub struct BlockView<'a> {
    /// Where the block stood before the pass.
    pub step: PolicyStep,
    /// The positions of the block; those that are not in `rows` are committed or pinned.
    pub block: Range<usize>,
    /// The masked positions, rising; never none.
    pub rows: &'a [ScoredPosition<'a>],
    /// The committed positions that the pass has verified, rising.
    pub checked: &'a [CheckedPosition<'a>],
    /// Tokens that end the text, and fill what is behind it.
    pub ends: &'a [u32],
    /// Candidates were drawn by chance, which no policy is to undo by another choice of its own.
    pub draws: bool,
}

/// Where a block stands before a pass commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyStep {
    /// Steps in this block before this one: passes, unless some were guessed ahead.
    pub index: usize,
    /// Passes that the reference schedule gives the block.
    pub steps: usize,
    /// Masks it had when it was opened.
    pub masked_at_start: usize,
}

/// A masked position, and what the model would put there.
#[derive(Debug, Clone, Copy)]
pub struct ScoredPosition<'a> {
    /// Where.
    pub position: usize,
    /// By what it is ranked; the highest first.
    pub score: f64,
    /// What the head made of its row.
    pub candidate: &'a Candidate,
}

/// A committed position that was verified: read as if it were still masked, by a row that sees all but its token.
#[derive(Debug, Clone, Copy)]
pub struct CheckedPosition<'a> {
    /// Where.
    pub position: usize,
    /// Probability of its token.
    pub probability: f64,
    /// What the model would put there now.
    pub candidate: &'a Candidate,
}

/// What a policy has decided.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PolicyDecision {
    /// At least one, each of another row.
    pub commit: Vec<Commit>,
    /// Indices into what was checked, each once, and fewer than are committed.
    pub take_back: Vec<usize>,
}

/// A token to commit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Commit {
    /// Index of its row.
    pub row: usize,
    /// Which.
    pub token: u32,
    /// Its probability.
    pub confidence: f64,
}

impl Commit {
    /// A row's candidate.
    #[must_use]
    pub fn of(row: usize, candidate: &Candidate) -> Self {
        Self {
            row,
            token: candidate.token,
            confidence: candidate.confidence,
        }
    }
}

/// The policy of a request.
///
/// # Panics
/// When the registry has a policy that isn't implemented here.
#[must_use]
pub fn policy(choice: &PolicyChoice) -> Box<dyn Policy> {
    let value = |index: usize| choice.value(index);
    let policy: Box<dyn Policy> = match choice.name() {
        "reference" => Box::new(Reference),
        "threshold" => Box::new(Threshold { t: value(0) }),
        "factor" => Box::new(Factor { f: value(0) }),
        "dream" => Box::new(Dream { eps: value(0) }),
        "margin" => Box::new(Margin { least: value(0) }),
        "decay" => Box::new(Decay {
            t: value(0),
            alpha: value(1),
        }),
        "hierarchical" => Box::new(Hierarchical {
            high: value(0),
            low: value(1),
        }),
        "local" => Box::new(Local {
            t: value(0),
            relaxed: value(1),
            radius: value(2) as usize,
        }),
        "entropy" => Box::new(Entropy { gamma: value(0) }),
        "klass" => Box::new(Klass::new(value(0), value(1), value(2) as usize)),
        "credit" => Box::new(Credit::new(value(0), value(1), value(2), value(3))),
        "revoke" => Box::new(Revoke {
            draft: value(0),
            keep: value(1),
            share: value(2),
            most: value(3) as usize,
        }),
        other => unreachable!("policy '{other}' is in the registry but not implemented"),
    };
    match choice.apart() {
        0 => policy,
        positions => Box::new(Apart { policy, positions }),
    }
}

impl BlockView<'_> {
    /// Indices of the rows, the highest score first. Ties go to the lower position; what is no number comes last.
    fn ranked(&self) -> Vec<usize> {
        ranked(self.rows.len(), |row| self.rows[row].score)
    }

    /// How many rows have this score at least.
    fn reaching(&self, least: f64) -> usize {
        self.rows.iter().filter(|row| row.score >= least).count()
    }

    /// Commits the candidates of these rows, and of the highest one in any case.
    fn with_best(&self, mut rows: Vec<usize>) -> PolicyDecision {
        let best = self.ranked()[0];
        if !rows.contains(&best) {
            rows.push(best);
        }
        self.commit(rows)
    }

    /// Commits the candidates of the highest rows, so many of them and at least one.
    fn best(&self, count: usize) -> PolicyDecision {
        let mut best = self.ranked();
        best.truncate(count.max(1));
        self.commit(best)
    }

    /// Commits the candidates of these rows.
    fn commit(&self, rows: impl IntoIterator<Item = usize>) -> PolicyDecision {
        let commit = rows.into_iter();
        PolicyDecision {
            commit: (commit.map(|row| Commit::of(row, self.rows[row].candidate))).collect(),
            take_back: Vec::new(),
        }
    }
}

/// The numbers below `count` by what they score, the highest first; equals rise, and what is no number comes last.
fn ranked(count: usize, score: impl Fn(usize) -> f64) -> Vec<usize> {
    let score = |index: usize| Some(score(index)).filter(|score| !score.is_nan());
    let mut ranked: Vec<usize> = (0..count).collect();
    // Stable, so that equals keep their order.
    ranked.sort_by(|&a, &b| {
        let order = score(b).partial_cmp(&score(a));
        order.unwrap_or(Ordering::Equal)
    });
    ranked
}

#[cfg(test)]
mod tests;
