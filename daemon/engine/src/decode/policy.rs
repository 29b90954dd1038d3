//! Policies: which of a pass's candidates are committed, and which committed tokens are taken back. They decide from
//! confidences and from what they saw before, and change nothing else. Their names, parameters and defaults are in
//! [`sluice_shared::policy`].

mod apart;
mod blocks;
mod causal;
mod credit;
mod entropy;
mod klass;
mod neighbours;
mod renoise;
mod revoke;
mod schedule;
mod threshold;

use std::{cmp::Ordering, ops::Range};

use sluice_ops::{Candidate, RankingScore};
use sluice_shared::policy::{PolicyChoice, RENOISE};

use self::{
    apart::Apart,
    blocks::{Deadline, Dynamic, Edit, Sequential},
    causal::Causal,
    credit::Credit,
    entropy::Entropy,
    klass::Klass,
    neighbours::{Hierarchical, Local},
    renoise::Renoise,
    revoke::Revoke,
    schedule::{Dream, Reference, Rnd1},
    threshold::{Decay, Factor, Margin, Threshold},
};

/// A rule that chooses commits. It decides after each pass of a block, and each time commits at least one masked
/// position and takes back fewer than it commits: so every block ends.
pub trait Policy: Send {
    /// What it needs to know besides confidences.
    fn needs(&self) -> PolicyNeeds {
        PolicyNeeds::default()
    }

    /// Another block begins: what it remembers of the one before does not apply.
    fn open(&mut self) {}

    /// Ids whose log-probabilities at a masked position it needs after the next pass.
    fn watched(&self, _position: usize) -> &[u32] {
        &[]
    }

    /// Decides what to commit and to take back after a pass.
    fn decide(&mut self, view: &BlockView<'_>) -> PolicyDecision;

    /// Whether it remembers nothing, and decides from the view alone.
    fn is_stateless(&self) -> bool {
        true
    }

    /// A copy, with what it remembers.
    fn boxed_clone(&self) -> Box<dyn Policy>;
}

impl Clone for Box<dyn Policy> {
    fn clone(&self) -> Self {
        self.boxed_clone()
    }
}

/// What a policy needs to know besides confidences.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PolicyNeeds {
    /// The ranking it requires; `None` where that is the user's choice.
    pub ranking: Option<RankingScore>,
    /// Each row's most probable token, whatever noise has chosen.
    pub top: bool,
    /// How far each row's distribution has moved since the pass before.
    pub divergence: bool,
    /// Verification of committed positions of the open block in every pass.
    pub checks: bool,
    /// Candidates for committed positions of the open block, too, whose tokens may be replaced; and how many passes a block
    /// may have in which nothing is masked any more.
    pub edits: Option<usize>,
    /// Text that is written from left to right, each token as a causal pass predicts it, with so long drafts.
    pub draft: Option<DraftWindow>,
    /// Canvases of random tokens that are denoised by this rule.
    pub renoising: Option<Renoising>,
}

/// How canvases of random tokens are denoised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Renoising {
    /// Rows are accepted while the entropies of surer ones come to no more.
    pub bound: f64,
    /// What logits are divided by in the end.
    pub coolest: f64,
    /// What logits are divided by in the first pass.
    pub hottest: f64,
    /// The mean entropy below which a canvas that has not changed is finished.
    pub sure: f64,
    /// Most passes of a canvas.
    pub steps: usize,
}

/// How many positions a block of drafted tokens has, the token before them included; 1: nothing is drafted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftWindow {
    /// At first, and where drafts are wrong.
    pub least: usize,
    /// Where drafts are right.
    pub most: usize,
}

/// What a policy sees of a block after a pass. Positions count from the first one to fill.
#[derive(Debug, Clone)]
pub struct BlockView<'a> {
    /// Progress of the block before this pass.
    pub step: PolicyStep,
    /// The positions of the block; those that are not in `rows` are committed or pinned.
    pub block: Range<usize>,
    /// The masked positions, rising; none only for a policy that edits.
    pub rows: &'a [ScoredPosition<'a>],
    /// The committed positions whose tokens may be replaced, rising; none unless the policy edits.
    pub written: &'a [WrittenPosition<'a>],
    /// The committed positions that the pass has verified, rising.
    pub checked: &'a [CheckedPosition<'a>],
    /// End tokens, which also fill what is behind the end.
    pub ends: &'a [u32],
    /// Whether candidates were drawn with noise: a policy must not replace them by a choice of its own.
    pub draws: bool,
}

/// The progress of a block before a pass commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyStep {
    /// Steps in this block before this one: as many as passes, unless some were guessed ahead.
    pub index: usize,
    /// Passes that the reference schedule gives the block.
    pub steps: usize,
    /// Masks it had when it was opened.
    pub masked_at_start: usize,
    /// Positions that the reference shares out among the steps: those masks, or with block diffusion all of the block's.
    pub scheduled: usize,
}

impl PolicyStep {
    /// How many positions the reference commits in this step: an even share, and one more in the first steps.
    fn quota(&self) -> usize {
        let steps = self.steps.min(self.scheduled).max(1);
        self.scheduled / steps + usize::from(self.index < self.scheduled % steps)
    }
}

/// A masked position and its candidate.
#[derive(Debug, Clone, Copy)]
pub struct ScoredPosition<'a> {
    /// The position, counted from the first one to fill.
    pub position: usize,
    /// The score that it is ranked by; the highest comes first.
    pub score: f64,
    /// The LM head's candidate for its row.
    pub candidate: &'a Candidate,
}

/// A committed position, and the candidate for it of a pass that has read its token.
#[derive(Debug, Clone, Copy)]
pub struct WrittenPosition<'a> {
    /// The position, counted from the first one to fill.
    pub position: usize,
    /// The token that stands there.
    pub token: u32,
    /// The LM head's candidate for its row.
    pub candidate: &'a Candidate,
}

/// A committed position that was verified: read as if it were still masked, by a row that sees all but its token.
#[derive(Debug, Clone, Copy)]
pub struct CheckedPosition<'a> {
    /// The position, counted from the first one to fill.
    pub position: usize,
    /// Probability of the committed token.
    pub probability: f64,
    /// The candidate that the model has for it now.
    pub candidate: &'a Candidate,
}

/// The decision of a policy after a pass.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PolicyDecision {
    /// Tokens to commit: at least one unless nothing is masked, each for another row.
    pub commit: Vec<Commit>,
    /// Tokens to replace others with, each for another of the written positions.
    pub replace: Vec<Commit>,
    /// Indices into `checked`, each once, and fewer than there are commits.
    pub take_back: Vec<usize>,
}

/// A token to commit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Commit {
    /// Index of its row in the view.
    pub row: usize,
    /// The token's id.
    pub token: u32,
    /// The token's probability, without noise.
    pub confidence: f64,
}

impl Commit {
    /// Commits a row's candidate.
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
/// When the registry has a policy that is not implemented here.
#[must_use]
pub fn policy(choice: &PolicyChoice) -> Box<dyn Policy> {
    let value = |index: usize| choice.value(index);
    let policy: Box<dyn Policy> = match choice.name() {
        "reference" => Box::new(Reference),
        "dynamic" => Box::new(Dynamic { t: value(0) }),
        "sequential" => Box::new(Sequential),
        "edit" => Box::new(Edit {
            t: value(0),
            edit: value(1),
            post: value(2) as usize,
        }),
        "deadline" => Box::new(Deadline { t: value(0) }),
        "autoregressive" => Box::new(Causal {
            window: DraftWindow { least: 1, most: 1 },
        }),
        "verify" => Box::new(Causal {
            window: DraftWindow {
                least: value(1).min(value(0)) as usize,
                most: value(0) as usize,
            },
        }),
        RENOISE => Box::new(Renoise {
            rule: Renoising {
                bound: value(0),
                coolest: value(1),
                hottest: value(2),
                sure: value(3),
                steps: value(4) as usize,
            },
        }),
        "threshold" => Box::new(Threshold { t: value(0) }),
        "factor" => Box::new(Factor { f: value(0) }),
        "dream" => Box::new(Dream { eps: value(0) }),
        "rnd1" => Box::new(Rnd1),
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
    // Around the policy and not within each, since it only looks at what was about to be committed.
    match choice.apart() {
        0 => policy,
        positions => Box::new(Apart { policy, positions }),
    }
}

impl BlockView<'_> {
    /// Indices of the rows, the highest score first. Ties go to the lower position; NaN comes last.
    fn ranked(&self) -> Vec<usize> {
        ranked(self.rows.len(), |row| self.rows[row].score)
    }

    /// How many rows have at least this score.
    fn reaching(&self, least: f64) -> usize {
        self.rows.iter().filter(|row| row.score >= least).count()
    }

    /// Commits the candidates of these rows, and of the highest one in any case.
    fn with_best(&self, mut rows: Vec<usize>) -> PolicyDecision {
        let best = self.ranked()[0];
        // At least one commit in each pass, or a block might never end.
        if !rows.contains(&best) {
            rows.push(best);
        }
        self.commit(rows)
    }

    /// Commits the candidates of the `count` highest rows, at least one.
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
            ..PolicyDecision::default()
        }
    }
}

/// Indices below `count` by score, the highest first; equal scores in rising order, NaN last.
fn ranked(count: usize, score: impl Fn(usize) -> f64) -> Vec<usize> {
    // `None` is less than any `Some`, so NaN sorts behind every score.
    let score = |index: usize| Some(score(index)).filter(|score| !score.is_nan());
    let mut ranked: Vec<usize> = (0..count).collect();
    // A stable sort: equals keep their order.
    ranked.sort_by(|&a, &b| {
        let order = score(b).partial_cmp(&score(a));
        order.unwrap_or(Ordering::Equal)
    });
    ranked
}

#[cfg(test)]
mod tests;
