//! Which requests are admitted: the rules they must keep, and what their passes take.

use std::collections::BTreeSet;

use sluice_checkpoint::features::{Feature, FeatureRefusal, Features};
use sluice_ops::WINDOW_PASS_ROWS;
use sluice_plan::Workload;
use sluice_shared::{
    decoding::{BRANCHES_MAX, CanvasGrowth, Decoding, Speculation},
    policy::{PolicyChoice, RENOISE},
    prior::PriorSolver,
    sampling::{
        EosPolicy, KvCacheMode, Remasking, STOP_BYTES_MAX, STOPS_MAX, Sampling, field_path,
        logprobs_problem,
    },
};
use sluice_weights::LayerKind;

use crate::{
    decode::{self, fidelity::ROWS_PER_SAMPLE_MAX, policy::policy},
    error::RequestError,
    model::ModelInfo,
    posterior::LOG_VAR_MAX,
    request::{
        CanvasSlot, CollectInputs, Embed, Generate, InputPass, MeasureFidelity, MeasureMix, Score,
        Thinking, Work,
    },
};

impl Work {
    /// The sums by which a plan counts the request's passes.
    #[must_use]
    pub fn workload(&self) -> Workload {
        // Guidance runs every canvas twice.
        let requests = |guidance: f64| if guidance > 0.0 { 2 } else { 1 };
        let longest = |samples: &[Vec<u32>]| samples.iter().map(Vec::len).max();
        match self {
            Self::Generate(request) => request.workload(requests(request.guidance)),
            // The answer is one block: all of its masked positions are read in one pass.
            Self::Score(request) => Workload::new(
                request.prompt.len() + request.answer.len(),
                request.answer.len(),
                requests(request.guidance),
            )
            // Those of a latent thought model. Others count none.
            .thinking((request.prompt.len() + request.answer.len()).saturating_sub(1)),
            Self::MeasureFidelity(request) | Self::MeasureMix(MeasureMix { on: request, .. }) => {
                Workload::new(
                    longest(&request.samples).unwrap_or(1),
                    ROWS_PER_SAMPLE_MAX,
                    1,
                )
            }
            Self::CollectInputs(request) => {
                let passes = request.passes.iter();
                let longest = passes.clone().map(|pass| pass.tokens.len()).max();
                let most_read = passes.map(|pass| pass.rows.len()).max();
                Workload::new(longest.unwrap_or(1), most_read.unwrap_or(1), 1)
            }
            Self::Embed(request) => {
                let (longest, texts, rows) = request.sizes();
                Workload::of_texts(longest, texts, rows)
            }
        }
    }

    /// Checks the request against the model's limits.
    ///
    /// # Errors
    /// The first rule it breaks.
    pub fn check(&self, model: &ModelInfo) -> Result<(), RequestError> {
        let asked = match self {
            Self::Embed(_) => Feature::Embed,
            _ => Feature::Generate,
        };
        if let Some(refusal) = model.features().refusal(asked) {
            return Err(RequestError::of_feature(refusal, "model"));
        }
        match self {
            Self::Generate(generate) => generate.check(model),
            Self::Score(score) => score.check(model),
            Self::MeasureFidelity(compare) => compare.check(model),
            Self::MeasureMix(measure) => measure.on.check(model),
            Self::CollectInputs(collect) => collect.check(model),
            Self::Embed(embed) => embed.check(model),
        }
    }
}

impl RequestError {
    /// The refusal of what asks for a feature that the model lacks.
    #[must_use]
    pub fn of_feature(refusal: FeatureRefusal, what: &'static str) -> Self {
        match refusal {
            FeatureRefusal::OnlyMaskedDiffusion => Self::OnlyMaskedDiffusion { what },
            FeatureRefusal::OnlyAutoregressive => Self::OnlyAutoregressive { what },
            FeatureRefusal::OnlyLatent => Self::OnlyLatent { what },
            FeatureRefusal::OnlyRecurrent => Self::OnlyRecurrent { what },
            FeatureRefusal::OnlyEncoders => Self::OnlyEncoders,
            FeatureRefusal::NotEncoders => Self::NotEncoders,
            FeatureRefusal::Because(reason) => Self::Sampling {
                what,
                problem: reason.to_owned(),
            },
        }
    }
}

impl Generate {
    /// The workload of so many canvases that differ in what is masked of the prompt.
    fn workload(&self, canvases: usize) -> Workload {
        let Decoding {
            kv_cache: caching,
            canvas_growth: growth,
            speculation,
            ..
        } = self.decoding;
        let block = match growth {
            CanvasGrowth::Fixed | CanvasGrowth::Append => self.block_length,
            // A block may grow to twice its length, and finding the canvas's length reads the last positions.
            CanvasGrowth::Insert => decode::diffusion::lm_head_rows(self.block_length),
        };
        // What is drafted is a pass's, whatever is shown as a block.
        let draft = policy(&self.policy).needs().draft;
        let block = draft.map_or(block, |window| window.most);
        let canvas = self.padded_length();
        let workload = Workload::new(canvas, block, canvases * speculation.canvases() as usize)
            // The most of any pass: the opening pass of a block computes more than those after it.
            .computing(decode::most_rows(self))
            .comparing(self.compared_rows())
            .thinking(self.thought_rows());
        let workload = match caching.mode {
            KvCacheMode::None => workload,
            KvCacheMode::Blocks => workload.in_blocks(block),
            _ => workload.with_kv_cache(),
        };
        let workload = match policy(&self.policy).needs().checks {
            true => workload.checking(),
            false => workload,
        };
        // Nothing is tried beside the pass that finds places for pins.
        workload.reading(self.placing_rows() * canvases)
    }

    /// Positions whose distributions its policy compares with those of the pass before: those of a block, or none.
    #[must_use]
    pub fn compared_rows(&self) -> usize {
        match policy(&self.policy).needs().divergence {
            true => self.block_length,
            false => 0,
        }
    }

    fn check(&self, model: &ModelInfo) -> Result<(), RequestError> {
        check_lengths(&self.prompt, self.canvas.len(), model)?;
        let prompt = self.prompt.len();
        model.check_context(prompt, self.padded_length() - prompt)?;
        if self.block_length == 0 {
            return Err(RequestError::Zero {
                what: "block length",
            });
        }
        // Blocks of block diffusion are counted from the prompt's first position, and the last is computed whole.
        if self.block_length > self.canvas.len() && self.diffusion_block().is_none() {
            return Err(RequestError::BlockTooLong {
                block: self.block_length,
                canvas: self.canvas.len(),
            });
        }
        if self.steps == 0 {
            return Err(RequestError::Zero {
                what: "diffusion.steps",
            });
        }
        check_scale("sampling.temperature", self.temperature)?;
        check_scale("diffusion.guidance", self.guidance)?;
        if let Some(thinking) = &self.thinking {
            check_thinking(thinking, model)?;
        }
        self.state.check(model.state.as_ref())?;
        self.check_features(model.features())?;
        match model.mask {
            Some(_) => {
                self.check_ranking()?;
                self.check_decoding(model)?;
                self.check_anywhere()?;
            }
            None => self.check_autoregressive(model)?,
        }
        // Only pinned ids come from the user; masked positions have none to check.
        let pinned = self.slots();
        let pinned = pinned.iter().filter_map(|slot| match slot {
            CanvasSlot::Pinned(id) => Some(id),
            CanvasSlot::Masked => None,
        });
        let anywhere = self.anywhere.iter().flat_map(|pins| &pins.texts).flatten();
        check_ids(self.prompt.iter().chain(pinned).chain(anywhere), model)
    }

    /// Refuses what the model cannot be asked for.
    fn check_features(&self, features: Features) -> Result<(), RequestError> {
        use Feature::{
            BlockCache, Lookahead, NextToken, NextTokenChoice, PassCache, Pins, Policies, Renoise,
            ReplaceTokens,
        };
        let Sampling {
            top_k,
            top_p,
            min_p,
            repetition_penalty,
        } = self.sampling;
        let Decoding {
            kv_cache,
            suffix_window,
            canvas_growth,
            speculation,
        } = self.decoding;
        let is_pinned = self.canvas.iter().any(|slot| *slot != CanvasSlot::Masked);
        // What a block diffusion model keeps is no choice, so that asking it to keep nothing is one.
        let keeps_otherwise = match kv_cache.mode {
            KvCacheMode::None => features.has(BlockCache),
            KvCacheMode::Prefix | KvCacheMode::Dual | KvCacheMode::Vicinity => true,
            KvCacheMode::Blocks => false,
        };
        let needs = policy(&self.policy).needs();
        let asked = [
            (NextTokenChoice, "sampling.top_k", top_k.is_some()),
            (NextTokenChoice, "sampling.top_p", top_p.is_some()),
            (NextTokenChoice, "sampling.min_p", min_p.is_some()),
            (
                NextTokenChoice,
                "sampling.repetition_penalty",
                repetition_penalty.is_some(),
            ),
            (
                NextTokenChoice,
                "autoregressive.stop",
                !self.stops.is_empty(),
            ),
            (
                NextTokenChoice,
                "autoregressive.top_logprobs",
                self.top_logprobs.is_some(),
            ),
            (
                NextTokenChoice,
                "autoregressive.grammar",
                self.grammar.is_some(),
            ),
            (Pins, "diffusion.pins", is_pinned),
            (Lookahead, "diffusion.pins", !self.anywhere.is_empty()),
            (Policies, "diffusion.guidance", self.guidance > 0.0),
            (
                Policies,
                "diffusion.remasking",
                self.remasking != Remasking::default(),
            ),
            (Renoise, "diffusion.policy", needs.renoising.is_some()),
            (
                Policies,
                "diffusion.policy",
                needs.renoising.is_none()
                    && (self.policy != PolicyChoice::default() || features.has(Renoise)),
            ),
            (
                BlockCache,
                "diffusion.kv_cache",
                kv_cache.mode == KvCacheMode::Blocks,
            ),
            (PassCache, "diffusion.kv_cache", keeps_otherwise),
            (
                Lookahead,
                "diffusion.suffix_window",
                suffix_window.is_some(),
            ),
            (
                Lookahead,
                "diffusion.canvas_growth",
                canvas_growth != CanvasGrowth::Fixed,
            ),
            (
                Lookahead,
                "diffusion.speculation",
                speculation != Speculation::None,
            ),
            (ReplaceTokens, "diffusion.policy", needs.edits.is_some()),
            (NextToken, "diffusion.policy", needs.draft.is_some()),
        ];
        let refused = asked.into_iter().filter(|(.., is_asked)| *is_asked);
        let mut refused = refused
            .filter_map(|(feature, what, _)| Some((feature, what, features.refusal(feature)?)));
        let Some((feature, what, refusal)) = refused.next() else {
            return Ok(());
        };
        Err(match (refusal, feature) {
            (FeatureRefusal::Because(reason), ReplaceTokens | NextToken | Renoise) => {
                let problem = format!("policy '{}' {reason}", self.policy.name());
                RequestError::Sampling { what, problem }
            }
            (refusal, _) => RequestError::of_feature(refusal, what),
        })
    }

    /// Refuses a ranking beside a policy's own.
    fn check_ranking(&self) -> Result<(), RequestError> {
        // Ranking is either the policy's or the user's: silently preferring one would answer another request than was
        // asked.
        if self.remasking != Remasking::default() && policy(&self.policy).needs().ranking.is_some()
        {
            let name = self.policy.name();
            return Err(RequestError::Sampling {
                what: "diffusion.remasking",
                problem: format!("policy '{name}' ranks positions by itself"),
            });
        }
        Ok(())
    }

    /// Checks that the options of what passes leave out or try go together.
    fn check_decoding(&self, model: &ModelInfo) -> Result<(), RequestError> {
        let Decoding {
            kv_cache: caching,
            suffix_window: window,
            canvas_growth: growth,
            speculation,
        } = self.decoding;
        let refused = |what, problem: String| Err(RequestError::Sampling { what, problem });
        let blocks = model.mask.and_then(|mask| mask.blocks);
        let causal_attention_before = blocks.is_some_and(|blocks| blocks.causal_attention_before);
        if self.causal_attention_before != causal_attention_before {
            let problem = "whether text before the open block is read causally is the model's";
            return refused("model", problem.to_owned());
        }
        if growth != CanvasGrowth::Fixed && self.reserved.is_some() {
            let problem = "nothing may be reserved behind a canvas that grows";
            return refused("diffusion.canvas_growth", problem.to_owned());
        }
        if let Some((what, problem)) = caching.problem() {
            return refused("diffusion.kv_cache", format!("{what} {problem}"));
        }
        let keeps = caching.mode != KvCacheMode::None;
        // With the dual cache each block's first pass sees all keys, from which the share is chosen; recomputing less
        // has fewer.
        if caching.keep_share < 1.0
            && (caching.mode != KvCacheMode::Dual || caching.recompute_before.is_some())
        {
            let problem = "keeping a share of the keys requires the dual KV cache with a full recompute at each new block";
            return refused("diffusion.kv_cache", problem.to_owned());
        }
        if caching.keep_share < 1.0 && self.prompt.len() + self.canvas.len() > KEEP_CANVAS_MAX {
            let problem = format!(
                "keeping a share of the keys is limited to canvases of {KEEP_CANVAS_MAX} positions"
            );
            return refused("diffusion.kv_cache", problem);
        }
        let policy = policy(&self.policy);
        if policy.needs().renoising.is_some() {
            self.check_renoising()?;
        }
        let speculates = speculation != Speculation::None;
        let branches = speculation.canvases() - 1;
        if speculates && !(1..=BRANCHES_MAX).contains(&branches) {
            let problem = format!("branches must be between 1 and {BRANCHES_MAX}");
            return refused("diffusion.speculation", problem);
        }
        // A guessed canvas would have to write the same cache positions as the first one.
        if speculates && (keeps || growth == CanvasGrowth::Insert) {
            let problem = "speculation cannot be combined with a KV cache or with inserted masks";
            return refused("diffusion.speculation", problem.to_owned());
        }
        // A guess asks the policy about steps ahead, on a copy; what it remembers of real passes would be wrong for
        // those.
        if speculates && !policy.is_stateless() {
            let problem = format!(
                "policy '{}' depends on earlier passes and cannot be combined with speculation",
                self.policy.name()
            );
            return refused("diffusion.speculation", problem);
        }
        // A check row sees all but one position, computed in the same pass: neither cached nor shifted rows can be
        // masked so.
        let verifies = model.features().has(Feature::VerifyTokens);
        if policy.needs().checks && (keeps || speculates || !verifies) {
            let problem = format!(
                "policy '{}' verifies committed tokens; it cannot be combined with a KV cache, speculation or a model with \
                 shifted logits",
                self.policy.name()
            );
            return refused("diffusion.policy", problem);
        }
        if policy.needs().draft.is_some() {
            self.check_draft()?;
        }
        if policy.needs().divergence && self.block_length > FIDELITY_ROWS_MAX {
            let problem = format!(
                "policy '{}' keeps each position's distribution and is limited to blocks of {FIDELITY_ROWS_MAX} positions",
                self.policy.name()
            );
            return refused("diffusion.policy", problem);
        }
        if growth == CanvasGrowth::Append && window.is_some() {
            let problem =
                "a suffix window has no effect on a canvas that grows by appending; leave it out";
            return refused("diffusion.suffix_window", problem.to_owned());
        }
        // Remembered positions would point at other tokens once masks were inserted before them.
        if growth == CanvasGrowth::Insert && !policy.is_stateless() {
            let problem = format!(
                "policy '{}' remembers positions, which inserted masks would move",
                self.policy.name()
            );
            return refused("diffusion.canvas_growth", problem);
        }
        let is_pinned = self.canvas.iter().any(|slot| *slot != CanvasSlot::Masked);
        if growth == CanvasGrowth::Insert && (is_pinned || model.eos_token_ids.is_empty()) {
            let problem =
                "canvas growth requires a model with an end token and no pinned positions";
            return refused("diffusion.canvas_growth", problem.to_owned());
        }
        Ok(())
    }

    /// Checks pins without a position.
    fn check_anywhere(&self) -> Result<(), RequestError> {
        let texts = || self.anywhere.iter().flat_map(|pins| &pins.texts);
        let tokens: BTreeSet<u32> = texts().flatten().copied().collect();
        let problem = if texts().any(Vec::is_empty) {
            "a text without tokens can't be pinned".to_owned()
        } else if texts().count() > ANYWHERE_TEXTS_MAX {
            let count = texts().count();
            format!("{count} texts without a position exceed the limit of {ANYWHERE_TEXTS_MAX}")
        } else if let Some(text) = texts().find(|text| text.len() > ANYWHERE_TEXT_TOKENS_MAX) {
            format!(
                "a text without a position has {} tokens, and the limit is {ANYWHERE_TEXT_TOKENS_MAX}",
                text.len()
            )
        } else if tokens.len() > ANYWHERE_TOKENS_MAX {
            format!(
                "texts without a position have {} different tokens, and the limit is {ANYWHERE_TOKENS_MAX}",
                tokens.len()
            )
        } else if !self.anywhere.is_empty() && self.decoding.canvas_growth != CanvasGrowth::Fixed {
            "a canvas that grows isn't all there when places for texts without a position are found"
                .to_owned()
        } else {
            return Ok(());
        };
        let what = "diffusion.pins";
        Err(RequestError::Sampling { what, problem })
    }

    /// Checks a request for canvases of random tokens.
    fn check_renoising(&self) -> Result<(), RequestError> {
        let refused = |what, problem: &str| {
            let problem = format!("policy '{RENOISE}' {problem}");
            Err(RequestError::Sampling { what, problem })
        };
        if self.temperature > 0.0 {
            let problem = "has temperatures of its own: leave this out, or set those, as in renoise:tmin=0.3,tmax=0.6";
            return refused("sampling.temperature", problem);
        }
        if self.block_length > WINDOW_PASS_ROWS {
            let problem = format!("takes canvases of at most {WINDOW_PASS_ROWS} positions");
            return refused("diffusion.block_length", &problem);
        }
        // A canvas stands behind text.
        match self.prompt.is_empty() {
            true => Err(RequestError::Zero { what: "prompt" }),
            false => Ok(()),
        }
    }

    /// Checks that a request for tokens that causal passes predict asks for nothing else.
    fn check_draft(&self) -> Result<(), RequestError> {
        let name = self.policy.name();
        let refused = |what, problem: &str| {
            let problem = format!("policy '{name}' {problem}");
            Err(RequestError::Sampling { what, problem })
        };
        let from_left = "writes from left to right";
        if self.canvas.iter().any(|slot| *slot != CanvasSlot::Masked) {
            return refused("diffusion.pins", from_left);
        }
        if self.remasking != Remasking::default() {
            return refused("diffusion.remasking", from_left);
        }
        if self.guidance > 0.0 {
            return refused("diffusion.guidance", "takes no guidance");
        }
        // The first token is predicted by the one before it, so there has to be one.
        match self.prompt.is_empty() {
            true => Err(RequestError::Zero { what: "prompt" }),
            false => Ok(()),
        }
    }

    /// Checks the options of autoregressive models.
    fn check_autoregressive(&self, model: &ModelInfo) -> Result<(), RequestError> {
        // The first token is predicted by the one before it, so there has to be one.
        if self.prompt.is_empty() {
            return Err(RequestError::Zero { what: "prompt" });
        }
        if let Some((what, problem)) = self.sampling.problem() {
            let what = field_path(what);
            return Err(RequestError::Sampling { what, problem });
        }
        let longest = self.stops.iter().map(Vec::len).max().unwrap_or(0);
        if self.stops.len() > STOPS_MAX || longest > STOP_BYTES_MAX {
            let problem = format!(
                "at most {STOPS_MAX} stop strings of at most {STOP_BYTES_MAX} bytes each are allowed"
            );
            return Err(RequestError::Sampling {
                what: "autoregressive.stop",
                problem,
            });
        }
        if self.grammar.is_some() {
            self.check_ends(model)?;
        }
        let problem = self
            .top_logprobs
            .and_then(|top| logprobs_problem(top, self.canvas.len(), self.block_length));
        if let Some(problem) = problem {
            return Err(RequestError::Sampling {
                what: "autoregressive.top_logprobs",
                problem,
            });
        }
        Ok(())
    }
}

impl Generate {
    /// Refuses a grammar where the text would not end with it.
    fn check_ends(&self, model: &ModelInfo) -> Result<(), RequestError> {
        let (what, problem) = match (self.eos, model.eos_token_ids.is_empty()) {
            (EosPolicy::Stop, false) => return Ok(()),
            (EosPolicy::Stop, true) => (
                "autoregressive.grammar",
                "a text ends with its grammar, and this model has no end token",
            ),
            (EosPolicy::Suppress | EosPolicy::Keep, _) => (
                "sampling.eos_policy",
                "a text ends with its grammar, so the end token must be what stops it",
            ),
        };
        Err(RequestError::Sampling {
            what,
            problem: problem.to_owned(),
        })
    }
}

impl Score {
    fn check(&self, model: &ModelInfo) -> Result<(), RequestError> {
        check_lengths(&self.prompt, self.answer.len(), model)?;
        match (model.features().refusal(Feature::Score), model.layer_kind) {
            (Some(FeatureRefusal::OnlyMaskedDiffusion), _) => {
                return Err(RequestError::OnlyMaskedDiffusion {
                    what: "likelihood estimates by masking",
                });
            }
            (Some(refusal), _) => return Err(RequestError::of_feature(refusal, "model")),
            (None, LayerKind::LatentThought(_)) => self.check_latent()?,
            (None, _) if self.think_steps.is_some() => {
                return Err(RequestError::OnlyLatent {
                    what: "think_steps",
                });
            }
            (None, _) => {}
        }
        if self.draws == 0 {
            return Err(RequestError::Zero { what: "draws" });
        }
        if self.draws > SCORE_DRAWS_MAX {
            return Err(RequestError::TooManyDraws {
                draws: self.draws,
                max: SCORE_DRAWS_MAX,
            });
        }
        check_scale("guidance", self.guidance)?;
        check_ids(self.prompt.iter().chain(&self.answer), model)
    }

    fn check_latent(&self) -> Result<(), RequestError> {
        let is_short = self.prompt.is_empty() && self.answer.len() == 1;
        for (is_asked, what) in [
            (self.guidance > 0.0, "guidance"),
            (self.check_greedy, "check_greedy"),
        ] {
            if is_asked {
                return Err(RequestError::OnlyMaskedDiffusion { what });
            }
        }
        if is_short {
            let problem = "the first token of all is given, so that a single one has no likelihood; give a prompt";
            return Err(RequestError::Sampling {
                what: "answer",
                problem: problem.to_owned(),
            });
        }
        match self.think_steps {
            Some(steps) => check_think_steps("think_steps", steps),
            None => Ok(()),
        }
    }
}

impl MeasureFidelity {
    fn check(&self, model: &ModelInfo) -> Result<(), RequestError> {
        if let Some(refusal) = model.features().refusal(Feature::Fidelity) {
            return Err(RequestError::of_feature(refusal, "fidelity"));
        }
        // An autoregressive model predicts nothing from a text of a single token.
        let least = if model.mask.is_some() { 1 } else { 2 };
        if self.samples.iter().all(|sample| sample.len() < least) {
            return Err(RequestError::Zero { what: "samples" });
        }
        if self.samples.len() > FIDELITY_SAMPLES_MAX {
            return Err(RequestError::TooManySamples {
                samples: self.samples.len(),
                max: FIDELITY_SAMPLES_MAX,
            });
        }
        for sample in &self.samples {
            check_lengths(&[], sample.len(), model)?;
        }
        check_ids(self.samples.iter().flatten(), model)
    }
}

impl Embed {
    fn check(&self, model: &ModelInfo) -> Result<(), RequestError> {
        if self.texts.is_empty() {
            return Err(RequestError::Zero { what: "texts" });
        }
        if self.texts.len() > EMBED_TEXTS_MAX {
            return Err(RequestError::TooManyTexts {
                texts: self.texts.len(),
                max: EMBED_TEXTS_MAX,
            });
        }
        for text in &self.texts {
            model.check_context(text.len(), 0)?;
        }
        check_ids(self.texts.iter().flatten(), model)
    }
}

impl CollectInputs {
    fn check(&self, model: &ModelInfo) -> Result<(), RequestError> {
        if self.passes.is_empty() || self.inputs.is_empty() {
            return Err(RequestError::Zero { what: "passes" });
        }
        if self.passes.len() > INPUT_PASSES_MAX {
            return Err(RequestError::TooManySamples {
                samples: self.passes.len(),
                max: INPUT_PASSES_MAX,
            });
        }
        for InputPass { tokens, rows } in &self.passes {
            check_lengths(&[], tokens.len(), model)?;
            let is_rising = rows.is_sorted_by(|a, b| a < b);
            if !is_rising || rows.last().is_none_or(|row| *row >= tokens.len()) {
                return Err(RequestError::Zero { what: "rows" });
            }
            let mask = model.mask.and_then(|mask| mask.token_id);
            check_ids(tokens.iter().filter(|id| Some(**id) != mask), model)?;
        }
        Ok(())
    }
}

/// Longest canvas of which a share of the keys can be kept: as many scores fit in a thread's scratch.
const KEEP_CANVAS_MAX: usize = 1 << 17;

/// Longest block of a policy that compares distributions, each of which is as long as the vocabulary.
const FIDELITY_ROWS_MAX: usize = 1024;

/// Most texts without a position: each is looked for at all positions.
pub const ANYWHERE_TEXTS_MAX: usize = 32;

/// Most tokens of a text without a position: how likely each is is summed up at every position.
pub const ANYWHERE_TEXT_TOKENS_MAX: usize = 64;

/// Most different tokens of texts without a position, each of which is looked for at all positions.
pub const ANYWHERE_TOKENS_MAX: usize = 64;

/// Most texts of one comparison: a thousand rows measure a level to a few percent.
pub const FIDELITY_SAMPLES_MAX: usize = 256;

/// Most passes of one request for inputs: others wait for all of them.
pub const INPUT_PASSES_MAX: usize = 64;

/// Most texts of one request for vectors, so that no answer is larger than a message may be.
pub const EMBED_TEXTS_MAX: usize = 2048;

/// Most draws of one estimate: beyond this the standard error no longer pays for the time.
pub const SCORE_DRAWS_MAX: usize = 65_536;

/// Most steps of inference: posteriors settle within a tenth of them.
pub const THINK_STEPS_MAX: usize = 1000;

fn check_think_steps(what: &'static str, steps: usize) -> Result<(), RequestError> {
    if steps > THINK_STEPS_MAX {
        let problem = format!("{steps} steps exceed the limit of {THINK_STEPS_MAX}");
        return Err(RequestError::Sampling { what, problem });
    }
    Ok(())
}

fn check_thinking(thinking: &Thinking, model: &ModelInfo) -> Result<(), RequestError> {
    if let Some(refusal) = model.features().refusal(Feature::Think) {
        return Err(RequestError::of_feature(refusal, "thinking"));
    }
    let LayerKind::LatentThought(sizes) = model.layer_kind else {
        unreachable!("only latent thought models think");
    };
    let refused = |what, problem| Err(RequestError::Sampling { what, problem });
    check_think_steps("thinking.steps", thinking.steps)?;
    if let Some(prior) = thinking.prior {
        if let Some(problem) = prior.problem() {
            return refused("thinking.prior", problem);
        }
        let samples = prior.solver != PriorSolver::None;
        if samples && !model.has_prior {
            let problem = "the loaded model has no learned prior; `sluice-train prior` makes one";
            return refused("thinking.prior", problem.to_owned());
        }
        if samples && thinking.start.is_some() {
            let problem = "thoughts say where to begin already; leave out one of both";
            return refused("thinking.prior", problem.to_owned());
        }
    }
    let Some(start) = &thinking.start else {
        return Ok(());
    };
    let elements = model.layers * sizes.latents * model.hidden_size;
    if start.mu.len() != elements || start.log_var.len() != elements {
        let problem = format!(
            "these are the thoughts of another model: means and log variances have {} and {} elements, this model's {elements} \
             ({} layers of {} latents of {})",
            start.mu.len(),
            start.log_var.len(),
            model.layers,
            sizes.latents,
            model.hidden_size
        );
        return refused("thinking.thoughts", problem);
    }
    if !start.is_sound() {
        let problem = format!(
            "means must be finite, and log variances between -{LOG_VAR_MAX} and {LOG_VAR_MAX}"
        );
        return refused("thinking.thoughts", problem);
    }
    Ok(())
}

fn check_lengths(prompt: &[u32], fill: usize, model: &ModelInfo) -> Result<(), RequestError> {
    if fill == 0 {
        return Err(RequestError::Zero { what: "length" });
    }
    model.check_context(prompt.len(), fill)
}

/// Greatest temperature and guidance weight: far beyond all use, and far from where logits
/// would overflow.
pub const SCALE_MAX: f64 = 1000.0;

fn check_scale(what: &'static str, value: f64) -> Result<(), RequestError> {
    // Written so that NaN fails.
    if !(0.0..=SCALE_MAX).contains(&value) {
        return Err(RequestError::NotAScale {
            what,
            max: SCALE_MAX,
            value,
        });
    }
    Ok(())
}

/// Ids must lie in the vocabulary, and none may be the mask's: masked positions are said by the canvas.
fn check_ids<'a>(
    ids: impl Iterator<Item = &'a u32>,
    model: &ModelInfo,
) -> Result<(), RequestError> {
    for &id in ids {
        if id as usize >= model.vocab_size {
            return Err(RequestError::UnknownToken {
                id,
                vocab_size: model.vocab_size,
            });
        }
        if model.mask.is_some_and(|mask| mask.token_id == Some(id)) {
            return Err(RequestError::MaskGiven { id });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::ModelId;

    #[test]
    fn a_policy_that_ranks_by_itself_is_not_told_how() {
        let refused = |policy: &str, remasking: Remasking| {
            let request = Generate {
                policy: policy.parse().unwrap(),
                remasking,
                ..Generate::greedy(ModelId(1), vec![5], 4)
            };
            request.check_ranking().err().map(|error| error.to_string())
        };
        for policy in ["margin", "entropy", "credit"] {
            assert_eq!(refused(policy, Remasking::LowConfidence), None);
            assert_eq!(
                refused(policy, Remasking::Random),
                Some(format!(
                    "diffusion.remasking: policy '{policy}' ranks positions by itself"
                ))
            );
        }
        assert_eq!(refused("klass", Remasking::Random), None);
    }
}
