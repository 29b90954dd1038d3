//! Masked-diffusion decoding: blocks from left to right, in each a few passes that commit the candidates a policy
//! picks.
//!
//! References: `generate.py` of ML-GSAI/LLaDA; Fast-dLLM's samplers without cache, with a prefix and a dual cache;
//! Dream's own sampler for `dream`, and for ranking by margin and entropy. Differences, each with the same tokens where
//! the reference has any: steps need not be divisible (a remainder goes to the first blocks); rows that cannot be
//! committed are not read; the unconditional branch runs only with guidance; the mask and unused ids are never chosen;
//! noise is added in the logarithm. Beyond them: pinned positions, which guidance counts as prompt; a stop at EOS; what
//! passes leave out (`super::reach`); canvases that grow (`canvas_growth`); orders that are tried beside each other
//! (`branch`); and pins without a position (`placing`).

mod branch;
mod canvas_growth;
mod placing;

use std::{collections::BTreeMap, ops::Range, sync::Arc, time::Instant};

use sluice_formats::noise::Noise;
use sluice_ops::{Candidate, LmHeadRow, RankingScore};
use sluice_shared::{
    decoding::{CanvasGrowth, Speculation},
    sampling::{EosPolicy, KvCacheMode, Remasking},
};

pub(crate) use self::canvas_growth::lm_head_rows;
use self::{branch::CanvasBranch, placing::Placing};
use super::{
    BlockSight, DiffusionRequest, FinishedBlocks, Pass, PassReach, Vocabulary,
    policy::{
        self, BlockView, CheckedPosition, Commit, Policy, PolicyDecision, PolicyStep,
        ScoredPosition, WrittenPosition,
    },
    reach::{PassContext, ReachRule},
};
use crate::{
    event::{
        CanvasPosition, Event, FinishReason, GenerationResult, Outcome, PassCost, PassReport,
        TokenState,
    },
    request::{CanvasSlot, Generate},
};

/// Streams of random numbers that must differ from each other.
const GUMBEL_STREAM: u64 = 0;
const RANKING_STREAM: u64 = 1;

/// Consecutive positions of the part to fill.
struct CanvasBlock {
    start: usize,
    end: usize,
    /// Passes that the reference schedule gives it; 0 when nothing is masked.
    steps: usize,
}

/// A masked diffusion request that is being decoded.
pub struct Diffusion {
    request: Generate,
    vocabulary: Arc<Vocabulary>,
    policy: Box<dyn Policy>,
    rule: ReachRule,
    started: Instant,
    /// Prompt, then the part to fill.
    canvas: Vec<u32>,
    /// The positions of the part to fill.
    positions: Vec<CanvasPosition>,
    blocks: Vec<CanvasBlock>,
    /// The open block; all are done when it is beyond the last.
    block: usize,
    passes_in_block: usize,
    /// Steps of the policy in it: as many as passes, unless guessed passes were right.
    steps_in_block: usize,
    /// Masks of the open block before its first pass.
    masked_at_start: usize,
    /// Passes of the open block with nothing masked.
    post_passes: usize,
    /// Whether nothing of the open block changes any more, though its policy might replace tokens.
    is_settled: bool,
    /// Positions before this one may not end the text.
    may_end_from: usize,
    /// Tokens that are never chosen.
    suppressed: Vec<u32>,
    /// Pins without a position, until they have one.
    placing: Option<Placing>,
    /// Whether the canvas's length is still being found.
    is_sizing: bool,
    /// The KV cache is valid for all positions before this one; `None` where it holds nothing.
    cached_until: Option<usize>,
    /// Passes since the whole cache was computed.
    passes_since_refresh: usize,
    /// What the next pass computes.
    reach: PassReach,
    /// The canvases of the next pass; the first is this request's own.
    branches: Vec<CanvasBranch>,
    passes: usize,
    steps: usize,
    /// Committed tokens that were taken back, by position, until another one is committed there.
    taken_back: BTreeMap<usize, u32>,
    /// How often a committed token was replaced by another one.
    edits: usize,
    finish: Option<FinishReason>,
    is_lossless: bool,
}

impl Diffusion {
    /// Begins this request, for a model with this vocabulary.
    #[must_use]
    pub fn new(request: Generate, vocabulary: Arc<Vocabulary>) -> Self {
        let mask = vocabulary.mask_id();
        let is_sizing = request.decoding.canvas_growth == CanvasGrowth::Insert;
        let mut slots = request.slots();
        match is_sizing {
            // A growing canvas starts with a part of the request's masks; the rest is inserted later. A part of them loses
            // nothing: admission refuses pins where the canvas grows.
            true => slots.truncate(canvas_growth::first_length(slots.len())),
            false => slots.resize(
                request.padded_length() - request.prompt.len(),
                CanvasSlot::Masked,
            ),
        }
        let filled = slots.iter().map(|slot| match slot {
            CanvasSlot::Masked => mask,
            CanvasSlot::Pinned(id) => *id,
        });
        let positions = slots.iter().enumerate().map(|(position, slot)| {
            let (token, state) = match slot {
                CanvasSlot::Masked => (None, TokenState::Masked),
                CanvasSlot::Pinned(id) => (Some(*id), TokenState::Pinned),
            };
            CanvasPosition::unpredicted(position, token, state)
        });
        Self {
            canvas: request.prompt.iter().copied().chain(filled).collect(),
            positions: positions.collect(),
            blocks: blocks(&slots, &request, &vocabulary),
            block: 0,
            passes_in_block: 0,
            steps_in_block: 0,
            masked_at_start: 0,
            post_passes: 0,
            is_settled: false,
            may_end_from: match request.eos {
                EosPolicy::Stop => request.may_end_from(),
                EosPolicy::Suppress | EosPolicy::Keep => 0,
            },
            suppressed: suppressed(&request, &vocabulary),
            placing: Placing::new(&request),
            is_sizing,
            cached_until: None,
            passes_since_refresh: 0,
            reach: PassReach::default(),
            branches: Vec::new(),
            started: Instant::now(),
            passes: 0,
            steps: 0,
            taken_back: BTreeMap::new(),
            edits: 0,
            finish: None,
            is_lossless: true,
            policy: policy::policy(&request.policy),
            rule: ReachRule::new(&request, vocabulary.mask.is_some_and(|mask| mask.shifted)),
            request,
            vocabulary,
        }
    }

    /// The result so far or in the end. `peak_device_bytes` is 0: the caller keeps the ledger.
    #[must_use]
    pub fn generated(mut self) -> GenerationResult {
        let mut tokens = self.canvas.split_off(self.request.prompt.len());
        tokens.truncate(self.request.canvas.len());
        GenerationResult {
            tokens,
            finish_reason: self.finish.unwrap_or(FinishReason::Cancelled),
            passes: self.passes,
            edits: self.edits,
            elapsed: self.started.elapsed(),
            peak_device_bytes: 0,
            is_lossless: self.is_lossless,
            state: None,
        }
    }

    /// Closes blocks in which nothing is left to do, and prepares the next pass. `candidates` are the last pass's for
    /// positions that are still masked, from which passes ahead may be guessed.
    fn advance(&mut self, candidates: &[(usize, Candidate)], emit: &mut dyn FnMut(Event)) {
        // Before anything is decided, so that what is placed counts as pinned for all else.
        if let Some(placing) = &self.placing {
            self.reach = PassReach::whole(self.canvas.len());
            self.branches = vec![self.branch(placing.rows(self.request.prompt.len()), Vec::new())];
            return;
        }
        // DAEDAL finds the length first: it asks the last positions of the whole canvas whether they see an end.
        if self.is_sizing {
            self.reach = PassReach::whole(self.canvas.len());
            self.branches = vec![self.branch(self.sizing_rows(), Vec::new())];
            return;
        }
        while let Some(&CanvasBlock { start, end, .. }) = self.blocks.get(self.block) {
            let shown = start..self.shown(end);
            if shown.is_empty() {
                break;
            }
            // A loop, since pinned or already ended blocks need no pass at all.
            if self.is_open(&(start..end), &shown) {
                if self.steps_in_block == 0 {
                    self.masked_at_start = self.masked(start, end).count();
                    self.policy.open();
                }
                self.reach = self.reach();
                self.branches = self.branches(candidates);
                return;
            }
            let ended = self.stop_at_end();
            // Also for blocks without a pass, so that viewers get every block.
            emit(Event::BlockDone {
                block: self.block,
                passes: self.passes_in_block,
                positions: self.positions[shown].to_vec(),
            });
            if ended {
                self.finish = Some(FinishReason::Eos);
                return;
            }
            self.block += 1;
            self.passes_in_block = 0;
            self.steps_in_block = 0;
            self.post_passes = 0;
            self.is_settled = false;
        }
        self.finish = Some(FinishReason::Length);
    }

    /// Whether a pass may change something of a block, of whose positions some are shown.
    fn is_open(&self, block: &Range<usize>, shown: &Range<usize>) -> bool {
        let is_masked = |range: &Range<usize>| self.masked(range.start, range.end).next().is_some();
        match self.policy.needs().edits {
            None => is_masked(shown) && !self.has_ended(),
            // Whatever is written may be replaced until the whole block is: what is behind the answer's end counts, too.
            Some(post) => {
                let is_begun = self.passes_in_block > 0;
                is_masked(block) || (is_begun && !self.is_settled && self.post_passes < post)
            }
        }
    }

    /// Calls `ask` with the state of the next pass, with the open block as positions of the canvas.
    fn at<T>(&self, ask: impl FnOnce(&PassContext<'_>) -> T) -> T {
        let CanvasBlock { start, end, .. } = self.blocks[self.block];
        let prompt = self.request.prompt.len();
        ask(&PassContext {
            block: &(prompt + start..prompt + end),
            end: self.canvas.len(),
            cached_until: self.cached_until,
            passes_since_refresh: self.passes_since_refresh,
            opens: self.passes_in_block == 0,
            is_for_first: self.takes_first_alone(),
        })
    }

    /// The end of a range of positions, without those behind the canvas that was asked for: the last block of block
    /// diffusion is computed whole.
    fn shown(&self, end: usize) -> usize {
        end.min(self.request.canvas.len())
    }

    fn reach(&self) -> PassReach {
        self.at(|at| self.rule.reach(at))
    }

    fn masked(&self, start: usize, end: usize) -> impl Iterator<Item = usize> + '_ {
        (start..end).filter(|&position| !is_fixed(self.positions[position].state))
    }

    /// The rows that the LM head reads: what may be committed, what the policy wants verified, and nothing else.
    fn rows(&self) -> Vec<LmHeadRow> {
        let CanvasBlock { start, end, .. } = self.blocks[self.block];
        let prompt = self.request.prompt.len();
        // DAEDAL's growth asks each position how sure it is of the end, so the end token is its target.
        let target = match self.request.decoding.canvas_growth {
            CanvasGrowth::Insert => self.vocabulary.ends.first().copied(),
            CanvasGrowth::Fixed | CanvasGrowth::Append => None,
        };
        let edits = self.policy.needs().edits.is_some();
        let may_change = |position: &usize| match self.positions[*position].state {
            TokenState::Committed => edits,
            state => !is_fixed(state),
        };
        // No other row can be committed: of 512 positions with blocks of 32 this leaves out 94 % of the LM head's work.
        let masked = (start..end).filter(may_change).map(|position| LmHeadRow {
            position: prompt + position,
            may_end: position >= self.may_end_from,
            target,
            watched: self.policy.watched(position).to_vec(),
            is_check: false,
        });
        let checked = match self.policy.needs().checks {
            true => start..end,
            false => start..start,
        };
        let committed = (self.positions[checked].iter())
            // Pinned positions are the user's, so they are neither verified nor taken back.
            .filter(|position| position.state == TokenState::Committed);
        let checks = committed.map(|position| LmHeadRow {
            position: prompt + position.position,
            may_end: position.position >= self.may_end_from,
            target: position.token,
            watched: Vec::new(),
            is_check: true,
        });
        // Checks come last, as their rows do in the pass.
        let rows = masked.chain(checks);
        match self.reach.sight {
            // A pass that stores finished blocks may not have the rows yet.
            Some(_) => {
                let of_model = |position| self.vocabulary.row_of(position);
                let has =
                    |row: &LmHeadRow| (self.reach.predicting_row(row.position, of_model)).is_some();
                rows.filter(has).collect()
            }
            None => rows.collect(),
        }
    }

    /// A canvas of the next pass in which these rows are read, with its unconditional twin under guidance.
    fn branch(&self, rows: Vec<LmHeadRow>, guess: Vec<Commit>) -> CanvasBranch {
        CanvasBranch {
            unconditional: (self.request.guidance > 0.0).then(|| self.unconditional(&self.canvas)),
            canvas: self.canvas.clone(),
            rows,
            guess,
        }
    }

    /// A canvas with everything given masked: prompt and pinned positions.
    fn unconditional(&self, canvas: &[u32]) -> Vec<u32> {
        let mask = self.vocabulary.mask_id();
        let prompt = self.request.prompt.len();
        let mut canvas = canvas.to_vec();
        canvas[..prompt].fill(mask);
        // Committed tokens stay, as in the reference: only what was given is masked.
        for position in &self.positions {
            if position.state == TokenState::Pinned {
                canvas[prompt + position.position] = mask;
            }
        }
        canvas
    }

    /// What a policy decides by, `ahead` steps after the next one: candidates of the masked rows, and those of verified
    /// rows.
    fn judged<'a>(
        &self,
        rows: &[LmHeadRow],
        candidates: &'a [Candidate],
        ahead: usize,
    ) -> JudgedPositions<'a> {
        let prompt = self.request.prompt.len();
        let noise = Noise::new(self.request.seed).stream(RANKING_STREAM);
        let mut scored = Vec::with_capacity(rows.len());
        let mut written = Vec::new();
        let mut checked = Vec::new();
        for (row, candidate) in rows.iter().zip(candidates) {
            let position = row.position - prompt;
            if row.is_check {
                let probability = candidate.target_log_probability;
                checked.push(CheckedPosition {
                    position,
                    probability: probability.expect("a check has a target").exp(),
                    candidate,
                });
                continue;
            }
            if let CanvasPosition {
                state: TokenState::Committed,
                token: Some(token),
                ..
            } = self.positions[position]
            {
                written.push(WrittenPosition {
                    position,
                    token,
                    candidate,
                });
                continue;
            }
            // By step and not by pass: guessed passes then draw the same numbers as passes run one by one.
            let number = (self.steps + ahead) as u64;
            scored.push(ScoredPosition {
                position,
                score: match self.request.remasking {
                    Remasking::Random => noise.uniform(number, row.position as u64, 0),
                    _ => candidate.rank,
                },
                candidate,
            });
        }
        JudgedPositions {
            scored,
            written,
            checked,
        }
    }

    /// What a policy sees of the open block, `ahead` steps after the next one.
    fn view<'a>(
        &self,
        judged: &'a JudgedPositions<'a>,
        ends: &'a [u32],
        ahead: usize,
    ) -> BlockView<'a> {
        let CanvasBlock { start, end, steps } = self.blocks[self.block];
        BlockView {
            step: PolicyStep {
                index: self.steps_in_block + ahead,
                steps,
                masked_at_start: self.masked_at_start,
                scheduled: match self.rule.block_length {
                    Some(_) if !self.rule.causal_attention_before => {
                        filled_together(&self.request, &self.vocabulary)
                    }
                    _ => self.masked_at_start,
                },
            },
            block: start..end,
            rows: &judged.scored,
            written: &judged.written,
            checked: &judged.checked,
            ends,
            draws: self.request.temperature > 0.0,
        }
    }

    /// Whether this is the only pass with the row that predicts a shifted model's first position of the block:
    /// Fast-dLLM's Dream then commits that one, and nothing else; so does Fast-dLLM v2 with the pass that stores the
    /// block before, and whoever reads that causally.
    fn takes_first_alone(&self) -> bool {
        let CanvasBlock { start, .. } = self.blocks[self.block];
        if self.rule.causal_attention_before {
            return self.reach.sight == Some(BlockSight::Causal);
        }
        // With shifted logits the row before the block predicts its first position. Later passes of these modes begin
        // at the block and lack that row.
        let lacks_row = match self.rule.kv_cache.mode {
            KvCacheMode::Prefix | KvCacheMode::Dual => self.passes_in_block == 0,
            KvCacheMode::Blocks => {
                let position = self.request.prompt.len() + start;
                position > 0 && position.is_multiple_of(self.request.block_length)
            }
            KvCacheMode::None | KvCacheMode::Vicinity => false,
        };
        self.vocabulary.mask.is_some_and(|mask| mask.shifted)
            && lacks_row
            && !is_fixed(self.positions[start].state)
    }

    /// Shows the candidates as provisional, then commits and takes back what the policy says. Returns the commits.
    fn step(&mut self, rows: &[LmHeadRow], candidates: &[Candidate]) -> Vec<Commit> {
        let prompt = self.request.prompt.len();
        let decision = match self.takes_first_alone() {
            true => PolicyDecision {
                commit: vec![Commit::of(0, &candidates[0])],
                ..PolicyDecision::default()
            },
            false => {
                let judged = self.judged(rows, candidates, 0);
                // Another handle, because the policy is borrowed mutably while the view holds the end tokens.
                let vocabulary = Arc::clone(&self.vocabulary);
                let view = self.view(&judged, &vocabulary.ends, 0);
                self.policy.decide(&view)
            }
        };
        let pairs = rows.iter().zip(candidates);
        // Candidates are shown before the commits below, which overwrite those that were chosen.
        let (mut masked, mut written, mut checks) = (Vec::new(), Vec::new(), Vec::new());
        for (row, candidate) in pairs {
            let position = row.position - prompt;
            match (row.is_check, self.positions[position].state) {
                (true, _) => checks.push((position, candidate)),
                (false, TokenState::Committed) => written.push(position),
                (false, _) => {
                    masked.push(position);
                    propose(&mut self.positions[position], candidate);
                }
            }
        }
        let at = |places: &[usize], commits: Vec<Commit>| -> Vec<Commit> {
            let commits = commits.into_iter();
            let commits = commits.map(|commit| Commit {
                row: places[commit.row],
                ..commit
            });
            commits.collect()
        };
        let commits = at(&masked, decision.commit);
        let replaced = at(&written, decision.replace);
        if masked.is_empty() {
            self.post_passes += 1;
            self.is_settled = replaced.is_empty();
        }
        self.commit(&commits);
        self.commit(&replaced);
        for index in decision.take_back {
            let (position, candidate) = checks[index];
            let token = self.positions[position].token;
            self.taken_back.extend(token.map(|token| (position, token)));
            propose(&mut self.positions[position], candidate);
            self.canvas[prompt + position] = self.vocabulary.mask_id();
        }
        self.steps += 1;
        // The token that a causal pass predicts is not of the block's schedule.
        let is_causal = self.reach.sight == Some(BlockSight::Causal);
        self.steps_in_block += usize::from(!is_causal);
        commits
    }

    /// Writes tokens to positions of the part to fill.
    fn commit(&mut self, commits: &[Commit]) {
        for commit in commits {
            let position = &mut self.positions[commit.row];
            let before = match position.state {
                TokenState::Committed => position.token,
                _ => self.taken_back.remove(&commit.row),
            };
            position.is_edited = before.is_some_and(|token| token != commit.token);
            self.edits += usize::from(position.is_edited);
            position.token = Some(commit.token);
            // Rounded for display alone: ranking has compared `f64`, since near-certain rows tie in `f32`.
            position.confidence = Some(commit.confidence as f32);
            position.state = TokenState::Committed;
            position.is_fresh = true;
            self.canvas[self.request.prompt.len() + commit.row] = commit.token;
        }
    }

    /// Where the text ends: an end token with nothing masked before it, and no pin behind it.
    fn end(&self) -> Option<usize> {
        // The reference never stops at an end token and shows the words behind it.
        if self.request.eos != EosPolicy::Stop {
            return None;
        }
        let ends = &self.vocabulary.ends;
        self.positions
            // Fixed positions only, from the front: an end token behind a mask may still be preceded by text.
            .iter()
            .take(self.request.canvas.len())
            .take_while(|position| is_fixed(position.state))
            .skip(self.may_end_from)
            .find(|position| position.token.is_some_and(|token| ends.contains(&token)))
            .map(|position| position.position)
    }

    fn has_ended(&self) -> bool {
        self.end().is_some()
    }

    /// If the text has ended, fills what is left with EOS, and returns true.
    fn stop_at_end(&mut self) -> bool {
        let Some(end) = self.end() else {
            return false;
        };
        // Not empty: `end` has just found one of them in the text.
        let eos = self.vocabulary.ends[0];
        let prompt = self.request.prompt.len();
        // Words behind the end were guesses for a longer text; they are replaced, committed or not.
        for position in &mut self.positions[end + 1..] {
            *position =
                CanvasPosition::unpredicted(position.position, Some(eos), TokenState::Committed);
            self.canvas[prompt + position.position] = eos;
        }
        true
    }

    fn committed(&self) -> usize {
        let shown = &self.positions[..self.shown(self.positions.len())];
        shown.iter().filter(|p| is_fixed(p.state)).count()
    }
}

impl DiffusionRequest for Diffusion {
    fn start(&mut self, emit: &mut dyn FnMut(Event)) {
        let shown = self.request.canvas.len();
        emit(Event::Started {
            blocks: self.blocks.partition_point(|block| block.start < shown),
            is_exact: self.request.decoding.is_exact(),
        });
        self.started = Instant::now();
        self.advance(&[], emit);
    }

    fn passes(&self) -> Vec<Pass<'_>> {
        if self.is_done() {
            return Vec::new();
        }
        let request = &self.request;
        let guesses = self.guesses();
        let passes = self
            .branches
            .iter()
            .enumerate()
            .map(|(index, branch)| Pass {
                // A guessed pass draws the noise of the step that it stands for.
                number: self.steps + if guesses { index } else { 0 },
                canvas: &branch.canvas,
                guidance: (branch.unconditional.as_deref())
                    .map(|canvas| (canvas, request.guidance)),
                reach: &self.reach,
                rows: &branch.rows,
                temperature: match &self.placing {
                    // Only probabilities of given tokens are read, which noise would not change.
                    Some(_) => 0.0,
                    None => request.temperature,
                },
                noise: Noise::new(request.seed).stream(GUMBEL_STREAM),
                suppressed: &self.suppressed,
                ranking: (self.policy.needs().ranking).unwrap_or(match request.remasking {
                    // Random scores are drawn in `judged`; where else candidates are ranked, it is by confidence.
                    Remasking::LowConfidence | Remasking::Random => RankingScore::Confidence,
                    Remasking::Margin => RankingScore::Margin,
                    Remasking::Entropy => RankingScore::Entropy,
                }),
                top: self.policy.needs().top,
                renoised: None,
            });
        passes.collect()
    }

    fn guesses(&self) -> bool {
        matches!(self.request.decoding.speculation, Speculation::Draft { .. })
    }

    fn is_apart(&self) -> bool {
        self.placing.is_some()
    }

    fn is_done(&self) -> bool {
        self.finish.is_some()
    }

    fn take(
        &mut self,
        candidates: &[Vec<Candidate>],
        cost: &PassCost,
        emit: &mut dyn FnMut(Event),
    ) {
        self.is_lossless &= cost.weights.is_lossless;
        // The branches of this pass, of which `candidates` may hold only the first: guesses are left out where they
        // would lengthen a shared pass.
        let mut passes = self.passes();
        passes.truncate(candidates.len());
        let rows = passes.iter().map(Pass::layer_rows).sum();
        let head_rows = passes.iter().map(|pass| pass.rows.len()).sum();
        drop(passes);
        for position in &mut self.positions {
            position.is_fresh = false;
            position.is_edited = false;
        }
        let CanvasBlock { start, end, .. } = self.blocks[self.block];
        let mut block = start..end;
        let mut last = Vec::new();
        // Neither a placing nor a sizing pass commits anything or is a step of the policy.
        if self.placing.is_some() {
            self.place(&candidates[0], emit);
        } else if self.is_sizing {
            self.size(&candidates[0]);
            block.end = self.blocks[self.block].end;
        } else if let (Some(length), Some(end_of_pass)) = (
            self.rule.block_length,
            self.reach.computed.first().map(|computed| computed.end),
        ) {
            // All before the open block is final, and in the cache by now.
            let open = match self.rule.causal_attention_before {
                true => self.request.prompt.len() + start,
                false => (self.request.prompt.len() + start) / length * length,
            };
            self.cached_until = Some(end_of_pass.min(open));
            if head_rows > 0 {
                last = self.follow(candidates);
            }
            if self.is_settled {
                // The pass has read what stands there for good.
                self.cached_until = Some(end_of_pass);
            }
            self.passes_in_block += 1;
        } else {
            if self.rule.uses_kv_cache() {
                // The state before this pass decides what it has written to the cache, so it is read before it changes.
                let (renews, held) = self.at(|at| (self.rule.renews(at), self.rule.holds(at)));
                // Counted from 1: the pass that recomputes the cache has just filled it.
                self.passes_since_refresh = if renews {
                    1
                } else {
                    self.passes_since_refresh + 1
                };
                self.cached_until = held;
            }
            last = self.follow(candidates);
            if self.request.decoding.canvas_growth == CanvasGrowth::Insert {
                self.insert(&last);
                block.end = self.blocks[self.block].end;
            }
            self.passes_in_block += 1;
        }
        self.passes += 1;
        emit(Event::Pass(Box::new(PassReport {
            passes: self.passes,
            block: self.block,
            passes_in_block: self.passes_in_block,
            positions: self.positions[block.start..self.shown(block.end)].to_vec(),
            committed: self.committed(),
            rows,
            lm_head_rows: head_rows,
            elapsed: self.started.elapsed(),
            cost: *cost,
        })));
        self.advance(&last, emit);
    }

    fn finished(&self) -> Option<FinishedBlocks<'_>> {
        Some(FinishedBlocks {
            block_length: self.request.kept_block()?,
            tokens: &self.canvas[..self.cached_until.unwrap_or(0)],
        })
    }

    fn go_on_after(&mut self, rows: usize) {
        self.cached_until = Some(rows);
    }

    fn outcome(self: Box<Self>) -> Outcome {
        Outcome::Generated(self.generated())
    }
}

/// What a policy decides by.
struct JudgedPositions<'a> {
    scored: Vec<ScoredPosition<'a>>,
    written: Vec<WrittenPosition<'a>>,
    checked: Vec<CheckedPosition<'a>>,
}

/// Marks the position as still masked, with the candidate shown provisionally.
fn propose(position: &mut CanvasPosition, candidate: &Candidate) {
    position.token = Some(candidate.token);
    position.confidence = Some(candidate.confidence as f32);
    position.state = TokenState::Provisional;
}

fn is_fixed(state: TokenState) -> bool {
    matches!(state, TokenState::Committed | TokenState::Pinned)
}

/// Positions that are filled together: a block's, or of a block diffusion model a part of them.
fn filled_together(request: &Generate, vocabulary: &Vocabulary) -> usize {
    let length = request.block_length;
    let blocks = vocabulary.mask.and_then(|mask| mask.blocks);
    match blocks.filter(|_| request.diffusion_block().is_some()) {
        Some(blocks) if blocks.filled_together < blocks.length => {
            // A request's own length need not be a multiple of it.
            Some(blocks.filled_together)
                .filter(|&together| length.is_multiple_of(together))
                .unwrap_or(length)
        }
        _ => length,
    }
}

/// Tokens that are never chosen, and have no part of the probability. A block diffusion model's mask is one of them: others'
/// references only never choose it.
pub(super) fn suppressed(request: &Generate, vocabulary: &Vocabulary) -> Vec<u32> {
    let ends = match request.eos {
        EosPolicy::Suppress => vocabulary.ends.clone(),
        EosPolicy::Stop | EosPolicy::Keep => Vec::new(),
    };
    let mask = vocabulary.mask.filter(|mask| mask.blocks.is_some());
    ends.into_iter()
        .chain(mask.and_then(|mask| mask.token_id))
        .collect()
}

/// Cuts the part to fill into blocks, those of block diffusion counted from the prompt's first position.
fn blocks(slots: &[CanvasSlot], request: &Generate, vocabulary: &Vocabulary) -> Vec<CanvasBlock> {
    let length = filled_together(request, vocabulary);
    if request.diffusion_block().is_none() {
        return cut(slots, 0, length, request.steps);
    }
    let before = match request.causal_attention_before {
        true => 0,
        false => request.prompt.len() % length,
    };
    let mut blocks = cut(slots, before, length, 1);
    for block in blocks.iter_mut().filter(|block| block.steps > 0) {
        // Blocks that the prompt reaches into have fewer masks and as many steps, as SDAR has it.
        block.steps = (length * request.steps)
            .div_ceil(request.canvas.len())
            .max(1);
    }
    blocks
}

/// Cuts the part to fill into blocks, of the first of which so many positions lie before it, and shares the steps out over
/// those with masks: evenly, a remainder to the first ones, at least one each.
fn cut(slots: &[CanvasSlot], before: usize, block_length: usize, steps: usize) -> Vec<CanvasBlock> {
    let mut blocks: Vec<CanvasBlock> = (0..before + slots.len())
        .step_by(block_length)
        .map(|start| CanvasBlock {
            start: start.saturating_sub(before),
            end: slots.len().min(start + block_length - before),
            steps: 0,
        })
        .collect();
    let open =
        |block: &&mut CanvasBlock| slots[block.start..block.end].contains(&CanvasSlot::Masked);
    let count = blocks.iter_mut().filter(open).count();
    for (index, block) in blocks.iter_mut().filter(open).enumerate() {
        // The reference requires steps to be a multiple of the blocks. With such steps this gives the same schedule.
        block.steps = (steps / count + usize::from(index < steps % count)).max(1);
    }
    blocks
}

#[cfg(test)]
mod tests;
