//! The LM head's reduction: from rows to one candidate each, in pieces of the vocabulary, so that no matrix of canvas ×
//! vocabulary ever exists.

mod distributions;
mod gpu;

use half::bf16;
use rayon::prelude::*;
use sluice_formats::{DType, noise::Noise};
use sluice_machine::{Instructions, MemoryKind};
use sluice_weights::Weight;

pub use self::distributions::Distributions;
use self::{
    distributions::DistributionShift,
    gpu::{GpuLmHead, LmHeadMemory},
};
use super::{
    Activation, Backend, Ops, Phase, SoftEmbeddings,
    cpu::{CpuBackend, exp},
};
use crate::{OpsError, device::DeviceBuffer};

/// Logits that exist at once: 4 MiB, or a piece of the least size where that is more.
const PIECE_LOGITS: usize = 1 << 20;
/// Least columns of a piece: enough to keep every thread's kernel busy.
pub(super) const PIECE_COLUMNS_MIN: usize = 256;

/// How many columns to take at once: at most `columns`, in multiples of the least, since compressed rows are
/// decompressed in chunks of that size.
pub(super) fn whole_columns(columns: usize, part_rows: usize) -> usize {
    match columns < part_rows {
        true => columns / PIECE_COLUMNS_MIN * PIECE_COLUMNS_MIN,
        false => part_rows,
    }
}

/// A row that the LM head reads, and what is asked of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LmHeadRow {
    /// Its position in the canvas, which determines its noise.
    pub position: usize,
    /// Whether an end token may be chosen.
    pub may_end: bool,
    /// A token whose log-probability is asked for, if any.
    pub target: Option<u32>,
    /// Tokens whose log-probabilities are asked for besides; a GPU's reduction kernel supports none.
    pub watched: Vec<u32>,
    /// Read as if the position were masked, though its token, the target, stands in the canvas.
    pub is_check: bool,
}

/// What candidates are ranked by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RankingScore {
    /// The chosen token's probability.
    #[default]
    Confidence,
    /// By how much the most probable token is more probable than the next one.
    Margin,
    /// The negated entropy of the row's distribution: Σ p ln p over all tokens, at most 0.
    Entropy,
}

/// How a token is chosen from a row's logits.
#[derive(Debug, Clone)]
pub struct SamplingParams<'a> {
    /// Scale of the Gumbel noise; 0 chooses the largest logit.
    pub temperature: f64,
    /// The generator of the noise.
    pub noise: Noise,
    /// Index of the pass, which determines the noise together with the position.
    pub pass: usize,
    /// Guidance weight w: rows come in two halves, conditional and unconditional, and the
    /// logits are u + (w + 1)(c − u).
    pub guidance: Option<f64>,
    /// Ids from here on are unused rows of the LM head, never chosen.
    pub vocab_size: usize,
    /// The mask's id, never chosen; `None` for a model without.
    pub mask_token_id: Option<u32>,
    /// End tokens, chosen only in rows that may end.
    pub end_tokens: &'a [u32],
    /// Tokens whose logit counts as −∞, for choice and probability alike, as in the
    /// reference's `logits_eos_inf`, which knows a single end token.
    pub suppressed: &'a [u32],
    /// What [`Candidate::rank`] is.
    pub ranking: RankingScore,
    /// Whether [`CandidateEvidence::top`] is asked for.
    pub top: bool,
    /// What logits go through before all else; `None`: they are taken as they come.
    pub scaling: Option<LogitScaling>,
}

/// What logits go through before anything is chosen by them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogitScaling {
    /// What they are bounded by, smoothly; `None`: they are not.
    pub soft_cap: Option<f32>,
    /// What they are then divided by.
    pub temperature: f64,
}

/// Rows of one request, and how their tokens are chosen.
#[derive(Debug)]
pub struct LmHeadGroup<'a> {
    /// In rising order of position.
    pub rows: &'a [LmHeadRow],
    /// The same for all of them.
    pub sampling: SamplingParams<'a>,
    /// The distributions of the pass before, which rows are compared with and then replace; checks do neither. The
    /// rows' positions span no more than it has places.
    pub distributions: Option<&'a mut Distributions>,
    /// For each row the mean of the head's rows by their probabilities, of a head that is the embedding: what a token would
    /// be that is all tokens at once.
    pub soft: Option<&'a mut SoftEmbeddings>,
}

/// What the model would put at a row's position.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The chosen token.
    pub token: u32,
    /// Its probability by the un-noised, un-tempered logits.
    pub confidence: f64,
    /// The score it is ranked by, from the same logits; the highest comes first.
    pub rank: f64,
    /// Log-probability of the row's target, in nats; `None` where none was asked for.
    pub target_log_probability: Option<f64>,
    /// Further evidence that was asked for.
    pub evidence: CandidateEvidence,
}

/// Further evidence about a row, from the un-noised, un-tempered logits.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CandidateEvidence {
    /// Log-probabilities of the watched tokens, in their order.
    pub watched: Vec<f64>,
    /// The most probable token that may be chosen; `None` where it was not asked for.
    pub top: Option<TopToken>,
    /// KL(now ‖ before), in nats: how far its distribution has moved since the pass before. `None` where that pass did
    /// not read the position.
    pub divergence: Option<f64>,
}

/// The most probable token, whatever noise has chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopToken {
    /// The token's id.
    pub token: u32,
    /// Its log-probability, in nats.
    pub log_probability: f64,
}

/// A row's state between pieces.
#[derive(Clone)]
pub(super) struct RunningRow {
    /// The vector instructions that it is reduced with, where the CPU does it.
    instructions: Instructions,
    /// Largest logit so far, and the sum of `exp(logit - max)`.
    pub(super) max: f32,
    pub(super) sum: f64,
    /// Best noised logit, its token and its plain logit.
    pub(super) best_score: f64,
    pub(super) best: Option<u32>,
    pub(super) best_logit: f32,
    pub(super) target_logit: f32,
    /// Second largest logit so far.
    pub(super) second: f32,
    /// Sum of `logit * exp(logit - max)`, where rows are ranked by their entropy.
    pub(super) weighted: f64,
    /// Largest logit of those that may be chosen, and its token.
    pub(super) top: Option<(u32, f32)>,
    /// Logits of the watched tokens.
    pub(super) watched: Vec<f32>,
    /// How far its distribution has moved, where that is asked for.
    pub(super) moved: Option<DistributionShift>,
}

/// The state of a reduction: rows, and how far each has come through the vocabulary.
pub struct LmHeadReduction<'a> {
    groups: Vec<LmHeadGroup<'a>>,
    /// Columns of the vocabulary whose logits exist at once.
    columns: usize,
    state: ReductionState,
}

/// Where the states and logits of the rows of all groups are.
enum ReductionState {
    Cpu {
        running: Vec<RunningRow>,
        logits: DeviceBuffer<f32>,
    },
    Gpu(Box<GpuLmHead>),
    /// A GPU does the matmul, and its reduction kernel lacks what is asked for: logits are downloaded and reduced here.
    Copied {
        memory: LmHeadMemory,
        running: Vec<RunningRow>,
        logits: Vec<f32>,
    },
    /// Counted only, where a GPU would compute.
    DryRun {
        _memory: LmHeadMemory,
    },
}

impl Ops {
    /// Begins to reduce the rows of all groups to a candidate each, by an LM head whose largest part has `part_rows` of
    /// the vocabulary.
    ///
    /// The probability's denominator is the whole LM head's, as in the reference; ties go to the lower id.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn start_lm_head<'a>(
        &self,
        mut groups: Vec<LmHeadGroup<'a>>,
        part_rows: usize,
    ) -> Result<LmHeadReduction<'a>, OpsError> {
        for group in &mut groups {
            if let Some(soft) = &mut group.soft {
                assert_eq!(soft.len(), group.rows.len());
                if let Backend::Cpu(_) = &self.backend {
                    soft.values_mut().fill(0.0);
                }
            }
        }
        let rows = groups.iter().map(|group| group.rows.len()).sum();
        let inputs = groups.iter().map(LmHeadGroup::inputs).sum::<usize>();
        let is_soft = groups.iter().any(|group| group.soft.is_some());
        // Monotonic in the rows: a pass of fewer rows must not take more memory than the dry run's.
        let count = match is_soft && !self.device.is_gpu() {
            // Soft embeddings are summed piece by piece, so that pieces must not depend on what other rows there are. A
            // GPU, whose results do, has more to do at once in larger pieces.
            true => PIECE_COLUMNS_MIN * inputs,
            false => PIECE_LOGITS.max(PIECE_COLUMNS_MIN * inputs),
        }
        .min(part_rows * inputs);
        // There may be no rows: then nothing can be divided by them.
        let columns = whole_columns(count.checked_div(inputs).unwrap_or(part_rows), part_rows);
        let (device, ledger) = (&self.device, &self.ledger);
        let shares = is_soft.then(|| device.dtype());
        let on_gpu = || LmHeadMemory::take(&self.pool, rows, count, shares);
        let state = match &self.backend {
            Backend::Gpu(_) if !groups.iter().all(LmHeadGroup::is_plain) => {
                assert!(
                    !is_soft,
                    "nothing is asked beside soft embeddings that copies logits"
                );
                ReductionState::Copied {
                    memory: on_gpu()?,
                    running: start(&mut groups, device.instructions()),
                    logits: vec![0.0; count],
                }
            }
            Backend::Gpu(gpu) => {
                ReductionState::Gpu(Box::new(gpu.start_lm_head(&groups, on_gpu()?)?))
            }
            Backend::DryRun if device.is_gpu() => ReductionState::DryRun { _memory: on_gpu()? },
            Backend::Cpu(_) | Backend::DryRun => ReductionState::Cpu {
                running: start(&mut groups, device.instructions()),
                logits: DeviceBuffer::new(device, ledger, MemoryKind::Logits, count)?,
            },
        };
        Ok(LmHeadReduction {
            groups,
            columns,
            state,
        })
    }

    /// Takes the next part of the LM head, whose first row is `first` of the vocabulary, for each row of `x` (after the
    /// final norm): group after group its conditional rows and then, with guidance, as many unconditional ones.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When rows and `x` don't match, or the part is larger than was said.
    pub fn reduce_lm_head(
        &self,
        reduction: &mut LmHeadReduction<'_>,
        x: &Activation,
        part: &Weight<'_>,
        first: usize,
    ) -> Result<(), OpsError> {
        let _timed = self.timed(Phase::LmHead);
        let inputs = reduction.groups.iter().map(LmHeadGroup::inputs);
        assert_eq!(x.len(), inputs.sum::<usize>());
        for from in (0..part.rows).step_by(reduction.columns.max(1)) {
            let to = part.rows.min(from + reduction.columns);
            // A piece at a time: all logits of a canvas of 1024 take 4.1 GiB in the reference.
            let piece = part.rows(from, to);
            match &self.backend {
                Backend::Cpu(cpu) => {
                    reduction.take_on_cpu(cpu, x, &piece, first + from);
                    self.add_soft(reduction, &piece)?;
                }
                Backend::Gpu(gpu) => {
                    let first = first + from;
                    let groups = &mut reduction.groups;
                    match &mut reduction.state {
                        ReductionState::Gpu(state) => {
                            gpu.reduce_lm_head(state, x, &piece, first)?;
                        }
                        ReductionState::Copied {
                            memory,
                            running,
                            logits,
                        } => {
                            let logits = &mut logits[..x.len() * piece.rows];
                            let there = memory.logits().part(0, size_of_val(logits));
                            gpu.logits(x, &piece, there)?;
                            // Waits for the GPU: the next piece overwrites these logits.
                            gpu.download(there, logits)?;
                            self.device
                                .run(|| reduce(logits, piece.rows, first, groups, running));
                        }
                        ReductionState::Cpu { .. } | ReductionState::DryRun { .. } => {
                            unreachable!("began on the GPU")
                        }
                    }
                }
                Backend::DryRun if self.device.is_gpu() => {}
                Backend::DryRun => self.add_soft(reduction, &piece)?,
            }
        }
        Ok(())
    }

    /// Adds a piece of the head to the soft embeddings on the CPU, by what the rows' logits have become.
    fn add_soft(
        &self,
        reduction: &mut LmHeadReduction<'_>,
        piece: &Weight<'_>,
    ) -> Result<(), OpsError> {
        let mut first = 0;
        for group in &mut reduction.groups {
            let start = first;
            first += group.inputs();
            let Some(soft) = &mut group.soft else {
                continue;
            };
            let mut shares = self.pool.take(soft.len(), piece.rows, DType::F32)?;
            if let (Backend::Cpu(cpu), ReductionState::Cpu { logits, .. }) =
                (&self.backend, &reduction.state)
            {
                let values = shares.values_mut();
                let logits = &logits.host()[start * piece.rows..];
                values.copy_from_slice(&logits[..values.len()]);
                cpu.gemm_transposed(&shares, piece, soft.values_mut(), true);
            }
        }
        Ok(())
    }
}

impl LmHeadReduction<'_> {
    fn take_on_cpu(&mut self, cpu: &CpuBackend, x: &Activation, piece: &Weight<'_>, first: usize) {
        let ReductionState::Cpu { running, logits } = &mut self.state else {
            unreachable!("began on the CPU")
        };
        let (groups, width) = (&mut self.groups, piece.rows);
        let logits = &mut logits.host_mut()[..x.len() * width];
        cpu.run(|| {
            cpu.gemm_one(x, piece, logits, false);
            reduce(logits, width, first, groups, running);
        });
    }

    /// For each group a candidate for each of its rows, once the whole LM head was taken.
    ///
    /// # Errors
    /// When a row's logits are NaN, or the device fails.
    pub fn candidates(mut self) -> Result<Vec<Vec<Candidate>>, OpsError> {
        let rows = self.groups.iter().map(|group| group.rows.len());
        // A GPU's are done there.
        let divides = matches!(self.state, ReductionState::Cpu { .. });
        let running = match self.state {
            ReductionState::Cpu { running, .. } | ReductionState::Copied { running, .. } => running,
            ReductionState::Gpu(state) => state.read(rows.sum())?,
            ReductionState::DryRun { .. } => Vec::new(),
        };
        let mut running = running.iter();
        let groups = self.groups.iter_mut().map(|group| {
            // States of all groups lie one after another, as `start` made them.
            let pairs = group.rows.iter().zip(running.by_ref());
            let soft = group.soft.as_mut().filter(|_| divides);
            let mut soft = soft.map(|soft| soft.rows_mut());
            let candidates = pairs.map(|(row, running)| {
                if let Some(soft) = soft.as_mut().and_then(Iterator::next) {
                    let sum = running.sum as f32;
                    soft.iter_mut().for_each(|value| *value /= sum);
                }
                // Only now is the whole distribution there: a pass that failed before leaves no entry for the next one
                // to compare with.
                if let (Some(distributions), Some(moved)) =
                    (&mut group.distributions, &running.moved)
                {
                    distributions.put(
                        row.position,
                        group.sampling.pass,
                        moved.log_sum(running.max),
                    );
                }
                running.candidate(row, &group.sampling)
            });
            candidates.collect()
        });
        groups.collect()
    }
}

/// The states of all rows before the first piece.
fn start(groups: &mut [LmHeadGroup<'_>], instructions: Instructions) -> Vec<RunningRow> {
    let mut running = Vec::new();
    for group in groups {
        running.extend(group.rows.iter().map(|row| {
            let distributions = group.distributions.as_mut().filter(|_| !row.is_check);
            RunningRow {
                instructions,
                watched: vec![f32::NEG_INFINITY; row.watched.len()],
                moved: distributions.map(|distributions| {
                    DistributionShift::from(distributions.take(row.position, group.sampling.pass))
                }),
                ..RunningRow::default()
            }
        }));
    }
    running
}

/// A row's logits in a piece, and what they are reduced with.
struct Taking<'a> {
    logits: &'a mut [f32],
    /// Logits of the unconditional branch, and the guidance weight.
    guidance: Option<(&'a [f32], f32)>,
    row: &'a LmHeadRow,
    choice: &'a SamplingParams<'a>,
    /// The row's logits of the pass before, which are replaced by this one's.
    before: Option<&'a mut [bf16]>,
    /// Its soft embedding, to which the piece is added by what the logits become.
    soft: Option<&'a mut [f32]>,
    running: &'a mut RunningRow,
}

/// Reduces logits of `width` tokens from `first` on into the rows' states, on the device's threads.
fn reduce(
    mut logits: &mut [f32],
    width: usize,
    first: usize,
    groups: &mut [LmHeadGroup<'_>],
    mut running: &mut [RunningRow],
) {
    // All groups' rows are collected first, so that one parallel loop covers them: a group alone may have a single row.
    let mut all = Vec::with_capacity(running.len());
    for group in groups {
        let (rows, choice) = (group.rows, &group.sampling);
        let kept = group.distributions.as_mut();
        let mut kept = kept.map(|distributions| distributions.pieces(first, width));
        let mut soft = group.soft.as_mut().map(|soft| soft.rows_mut());
        let (states, others) = running.split_at_mut(rows.len());
        let (conditional, rest) = logits.split_at_mut(rows.len() * width);
        // Unconditional rows follow the group's own, as `Ops::reduce_lm_head` is given them.
        let guided = if choice.guidance.is_some() {
            rows.len()
        } else {
            0
        };
        let (unconditional, rest) = rest.split_at_mut(guided * width);
        (running, logits) = (others, rest);
        let mut plain = unconditional.chunks_exact(width);
        let of_rows = rows.iter().zip(conditional.chunks_exact_mut(width));
        all.extend(of_rows.zip(states).map(|((row, logits), running)| {
            Taking {
                logits,
                guidance: choice.guidance.map(|w| {
                    let plain = plain.next().expect("each row has two branches");
                    (plain, w as f32)
                }),
                row,
                choice,
                // Checks have no `moved`: their distribution is another one, and must not replace the position's own.
                before: (running.moved.as_ref())
                    .and(kept.as_mut())
                    .map(|pieces| pieces.of(row.position)),
                soft: soft.as_mut().and_then(Iterator::next),
                running,
            }
        }));
    }
    all.into_par_iter().for_each(|taking| {
        let Taking {
            logits,
            guidance,
            row,
            choice,
            before,
            soft,
            running,
        } = taking;
        if let Some((plain, w)) = guidance {
            guide(logits, plain, w);
        }
        if let Some(scaling) = choice.scaling {
            scaling.apply(running.instructions, logits);
        }
        let before_max = running.max;
        running.take(logits, first, row, choice, before);
        if let Some(soft) = soft {
            let shrunk = (before_max - running.max).exp();
            soft.iter_mut().for_each(|value| *value *= shrunk);
            exp::exp_sum_from(running.instructions, logits, running.max, 0);
        }
    });
}

impl LogitScaling {
    fn factor(self) -> f32 {
        self.temperature.recip() as f32
    }

    fn apply(self, instructions: Instructions, logits: &mut [f32]) {
        let factor = self.factor();
        match self.soft_cap {
            Some(cap) => exp::cap(instructions, logits, cap, factor),
            None => logits.iter_mut().for_each(|logit| *logit *= factor),
        }
    }
}

impl LmHeadGroup<'_> {
    /// Rows of the matmul: twice the group's with guidance.
    pub(super) fn inputs(&self) -> usize {
        self.rows.len()
            * if self.sampling.guidance.is_some() {
                2
            } else {
                1
            }
    }

    /// Whether a GPU's kernel computes all that is asked for.
    fn is_plain(&self) -> bool {
        self.sampling.ranking != RankingScore::Margin
            && self.distributions.is_none()
            && self.rows.iter().all(|row| row.watched.is_empty())
    }
}

/// `u + (w + 1)(c − u)`, written to `c`.
fn guide(conditional: &mut [f32], unconditional: &[f32], w: f32) {
    for (c, u) in conditional.iter_mut().zip(unconditional) {
        *c = u + (w + 1.0) * (*c - u);
    }
}

impl Default for RunningRow {
    fn default() -> Self {
        Self {
            instructions: Instructions::PORTABLE,
            max: f32::NEG_INFINITY,
            sum: 0.0,
            best_score: f64::NEG_INFINITY,
            best: None,
            best_logit: f32::NEG_INFINITY,
            target_logit: f32::NEG_INFINITY,
            second: f32::NEG_INFINITY,
            weighted: 0.0,
            top: None,
            watched: Vec::new(),
            moved: None,
        }
    }
}

impl RunningRow {
    fn take(
        &mut self,
        logits: &mut [f32],
        from: usize,
        row: &LmHeadRow,
        sampling: &SamplingParams<'_>,
        before: Option<&mut [bf16]>,
    ) {
        let len = logits.len();
        let inside = |id: u32| (id as usize).checked_sub(from).filter(|&i| i < len);
        // Suppressed tokens are removed before the sum, as the reference does: they have no share of the probability.
        // Mask and end tokens below are removed after it, since they only must not be chosen.
        for &id in sampling.suppressed {
            if let Some(index) = inside(id) {
                logits[index] = f32::NEG_INFINITY;
            }
        }
        if let Some(index) = row.target.and_then(inside) {
            self.target_logit = logits[index];
        }
        for (watched, &id) in self.watched.iter_mut().zip(&row.watched) {
            if let Some(index) = inside(id) {
                *watched = logits[index];
            }
        }
        self.add_to_sum(logits, sampling.ranking);
        if let (Some(moved), Some(before)) = (&mut self.moved, before) {
            moved.take(logits, before, self.max);
        }
        // Tokens that must not be chosen: few ids, so they are overwritten instead of compared with at each logit.
        for &id in (sampling.mask_token_id.iter())
            .chain(sampling.end_tokens.iter().filter(|_| !row.may_end))
        {
            if let Some(index) = inside(id) {
                logits[index] = f32::NEG_INFINITY;
            }
        }
        let used = sampling.vocab_size.saturating_sub(from).min(logits.len());
        self.choose(&logits[..used], from, row, sampling);
    }

    fn add_to_sum(&mut self, logits: &[f32], ranking: RankingScore) {
        // A running pair: the second largest is the largest of what the maximum has beaten.
        if ranking == RankingScore::Margin {
            let (mut first, mut second) = (self.max, self.second);
            for &logit in logits {
                second = second.max(first.min(logit));
                first = first.max(logit);
            }
            self.second = second;
        }
        // The running softmax: sums were relative to the old maximum, and are scaled before this piece's terms are
        // added.
        let max = exp::max(self.instructions, logits);
        if max > self.max {
            let shrunk = f64::from((self.max - max).exp());
            self.sum *= shrunk;
            self.weighted *= shrunk;
            if let Some(moved) = &mut self.moved {
                moved.shrink(shrunk);
            }
            self.max = max;
        }
        // Nothing but −∞ so far: `logit - max` would be NaN.
        if self.max == f32::NEG_INFINITY {
            return;
        }
        // In `f64`: where one token is all but certain, the others' terms vanish beside its 1
        // in `f32`, and near-certain rows could no longer be ranked.
        self.sum += exp::exp_total(self.instructions, logits, self.max);
        if ranking == RankingScore::Entropy {
            let possible = logits.iter().filter(|logit| **logit > f32::NEG_INFINITY);
            // −∞ · 0 is NaN, so impossible tokens are left out.
            self.weighted += possible
                .map(|&logit| f64::from((logit - self.max).exp()) * f64::from(logit))
                .sum::<f64>();
        }
    }

    fn choose(
        &mut self,
        logits: &[f32],
        from: usize,
        row: &LmHeadRow,
        sampling: &SamplingParams<'_>,
    ) {
        if sampling.temperature == 0.0 {
            // A vectorized maximum, then a search for its first place: ties go to the lower id, as in the reference's
            // arg-max.
            let most = exp::max(self.instructions, logits);
            // Strictly larger: of equal logits in two pieces, the earlier piece has the lower id.
            if f64::from(most) > self.best_score {
                let index = logits.iter().position(|&logit| logit == most);
                self.best = index.map(|index| (from + index) as u32);
                self.best_score = f64::from(most);
                self.best_logit = most;
            }
            return;
        }
        for (index, &logit) in logits.iter().enumerate() {
            let mut score = f64::from(logit);
            let token = from + index;
            if sampling.top && self.top.is_none_or(|(_, top)| logit > top) {
                self.top = Some((token as u32, logit));
            }
            // −∞ gets no noise: it would still be −∞, but computing noise for it costs.
            if logit > f32::NEG_INFINITY {
                // Noise is a function of pass, position and token, not a stream: the choice depends neither on pieces
                // nor on the rows beside it.
                score += sampling.temperature
                    * sampling.noise.gumbel(
                        sampling.pass as u64,
                        row.position as u64,
                        token as u64,
                    );
            }
            if score > self.best_score {
                self.best_score = score;
                self.best = Some(token as u32);
                self.best_logit = logit;
            }
        }
    }

    fn candidate(
        &self,
        row: &LmHeadRow,
        sampling: &SamplingParams<'_>,
    ) -> Result<Candidate, OpsError> {
        let log_sum = f64::from(self.max) + self.sum.ln();
        let log_probability = |logit: f32| f64::from(logit) - log_sum;
        // NaN logits show as no best token or a sum that is not finite: the request fails instead of writing token 0.
        let Some(token) = self.best.filter(|_| log_sum.is_finite()) else {
            return Err(OpsError::NotANumber {
                position: row.position,
            });
        };
        let confidence = log_probability(self.best_logit).exp();
        Ok(Candidate {
            token,
            confidence,
            rank: match sampling.ranking {
                RankingScore::Confidence => confidence,
                RankingScore::Margin => {
                    log_probability(self.max).exp() - log_probability(self.second).exp()
                }
                // Σ p ln p = Σ l·e^(l−m) / Σ e^(l−m) − log-sum-exp, from the two running sums.
                RankingScore::Entropy => self.weighted / self.sum - log_sum,
            },
            target_log_probability: row.target.map(|_| log_probability(self.target_logit)),
            evidence: CandidateEvidence {
                watched: self
                    .watched
                    .iter()
                    .map(|&logit| log_probability(logit))
                    .collect(),
                // Without noise the most probable token is the chosen one.
                top: sampling.top.then(|| {
                    let (token, logit) = self.top.unwrap_or((token, self.best_logit));
                    TopToken {
                        token,
                        log_probability: log_probability(logit),
                    }
                }),
                divergence: (self.moved.as_ref())
                    .and_then(|moved| moved.divergence(self.max, self.sum)),
            },
        })
    }
}

#[cfg(test)]
mod tests;
