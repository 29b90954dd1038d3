//! One denoising pass: canvases with masks in, a candidate for each requested row out.

use std::{slice, sync::atomic::AtomicBool};

use sluice_checkpoint::family::MaskToken;
use sluice_formats::noise::Noise;
use sluice_ops::{
    Candidate, Distributions, KeySegment, KvCache, LmHeadGroup, LmHeadRow, LogitScaling, Ops,
    Phase, RankingScore, SamplingParams, SoftEmbeddings,
};
use sluice_weights::TensorPart;

use super::reach::PassReach;
use crate::{
    event::{Event, Outcome, PassCost},
    model::network::{Interrupt, Network, Sequence, VisibleKeys, acquire},
    residency::Residency,
};

/// The vocabulary's size, and the ids with a meaning of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vocabulary {
    /// Ids are below this.
    pub size: usize,
    /// The mask, of masked diffusion models; `None` for autoregressive ones.
    pub mask: Option<MaskToken>,
    /// End tokens. The first fills what is left after the end of a text. May be empty.
    pub ends: Vec<u32>,
}

impl Vocabulary {
    /// The mask's id.
    ///
    /// # Panics
    /// When the model is autoregressive: requests that need a mask are refused for it.
    #[must_use]
    pub fn mask_id(&self) -> u32 {
        let mask = self.mask.as_ref();
        mask.expect("requests that fill masks were checked against the model")
            .id()
    }

    /// The row whose logits predict a position: with shifted logits the one before.
    pub(super) fn row_of(&self, position: usize) -> usize {
        self.mask.map_or(position, |mask| mask.row_of(position))
    }
}

/// One pass over one canvas of a request.
#[derive(Debug, Clone)]
pub struct Pass<'a> {
    /// Index of the pass in its request, from 0, counted as if passes were never guessed ahead.
    pub number: usize,
    /// The canvas, prompt included.
    pub canvas: &'a [u32],
    /// The canvas with everything given masked, and the weight w, when guidance is on.
    pub guidance: Option<(&'a [u32], f64)>,
    /// What is computed and what is seen.
    pub reach: &'a PassReach,
    /// Rows to read, in rising order of position; checks come last, in the same order.
    pub rows: &'a [LmHeadRow],
    /// Scale of the Gumbel noise.
    pub temperature: f64,
    /// The generator of the noise.
    pub noise: Noise,
    /// Tokens whose logit counts as −∞.
    pub suppressed: &'a [u32],
    /// What candidates are ranked by.
    pub ranking: RankingScore,
    /// Whether each row's most probable token is needed, whatever noise has chosen.
    pub top: bool,
    /// What only a pass over a canvas of random tokens has; `None` for all others.
    pub renoised: Option<RenoisedPass>,
}

/// A pass over a canvas of random tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RenoisedPass {
    /// Whether it is the canvas's first, which is told of none before.
    pub is_first: bool,
    /// What logits are divided by.
    pub temperature: f64,
}

impl<'a> Pass<'a> {
    /// Its canvases: two with guidance.
    fn canvases(&self) -> impl Iterator<Item = &'a [u32]> + use<'a> {
        let unconditional = self.guidance.map(|(canvas, _)| canvas);
        [Some(self.canvas), unconditional].into_iter().flatten()
    }

    /// Rows that verify what was committed.
    fn checks(&self) -> &'a [LmHeadRow] {
        let first = self.rows.partition_point(|row| !row.is_check);
        &self.rows[first..]
    }

    /// Rows that the layers compute.
    #[must_use]
    pub fn layer_rows(&self) -> usize {
        (self.reach.rows() + self.checks().len()) * self.canvases().count()
    }
}

/// What a request keeps on the device from pass to pass.
#[derive(Default)]
pub struct RequestMemory {
    /// A KV cache for each of its canvases.
    pub kv_caches: Vec<KvCache>,
    /// Distributions of its block's rows in the pass before, where its policy compares them.
    pub distributions: Option<Distributions>,
    /// What a canvas of random tokens is told of the pass before, where it has some.
    pub soft: Option<Box<SoftPredictions>>,
}

/// What passes over a canvas of random tokens predict at each of its places, as one token.
pub struct SoftPredictions {
    /// Of the last pass that succeeded.
    pub last: SoftEmbeddings,
    /// Of the pass that is running.
    pub next: SoftEmbeddings,
}

/// A pass, and what its request keeps.
pub struct PassRequest<'a> {
    /// The pass over one canvas.
    pub pass: Pass<'a>,
    /// What the request keeps; only the first of its passes may use it.
    pub memory: Option<&'a mut RequestMemory>,
}

/// The finished blocks of a request of block diffusion, whose keys and values don't change any more.
#[derive(Debug, Clone, Copy)]
pub struct FinishedBlocks<'a> {
    /// Their tokens, from the first of the prompt on.
    pub tokens: &'a [u32],
    /// Positions of a block; 1 where text is read causally.
    pub block_length: usize,
}

/// A masked diffusion request, which is run a pass at a time.
pub trait DiffusionRequest: Send {
    /// Emits the first event, before the first pass.
    fn start(&mut self, emit: &mut dyn FnMut(Event));

    /// The next pass, of one canvas or of several beside each other; empty when nothing is left to do. Does not change
    /// the request: asked again, it returns the same.
    fn passes(&self) -> Vec<Pass<'_>>;

    /// Whether all of its canvases but the first are guesses of passes ahead, which may be left out of a pass and change no token.
    fn guesses(&self) -> bool {
        false
    }

    /// Whether the next pass is beside the others: it neither reads nor changes what is kept from pass to pass.
    fn is_apart(&self) -> bool {
        false
    }

    /// Whether there is nothing left to do.
    fn is_done(&self) -> bool;

    /// Takes the candidates of each of those canvases, in order.
    fn take(&mut self, candidates: &[Vec<Candidate>], cost: &PassCost, emit: &mut dyn FnMut(Event));

    /// What its KV cache holds after the last pass, with block diffusion.
    fn finished(&self) -> Option<FinishedBlocks<'_>> {
        None
    }

    /// Goes on after so many positions, whose keys and values its KV cache has: whole blocks, with block diffusion.
    fn go_on_after(&mut self, _rows: usize) {}

    /// The result, when nothing is left to do or the request is cancelled.
    fn outcome(self: Box<Self>) -> Outcome;
}

/// A loaded model, and the operations of its device.
#[derive(Clone, Copy)]
pub struct Denoiser<'a> {
    /// The operations of the device.
    pub ops: &'a Ops,
    /// The model's layers, without weights.
    pub model: &'a Network,
    /// The model's weights, resident or streamed.
    pub weights: &'a Residency,
    /// The vocabulary's size, and the ids with a meaning of their own.
    pub vocabulary: &'a Vocabulary,
}

impl Denoiser<'_> {
    /// Candidates for the rows of these passes, in order, from one pass over the weights. Passes whose policies compare
    /// distributions have some in `memory`.
    ///
    /// # Errors
    /// When the pass fails, or `cancel` is set meanwhile.
    ///
    /// # Panics
    /// When a pass reads a KV cache, and there is none for each of its canvases.
    pub fn candidates(
        &self,
        requests: &mut [PassRequest<'_>],
        cancel: &AtomicBool,
    ) -> Result<Vec<Vec<Candidate>>, Interrupt> {
        let held = |requests: &[PassRequest<'_>]| -> Vec<usize> {
            let memories = requests.iter().filter_map(|asked| asked.memory.as_deref());
            let caches = memories.flat_map(|memory| &memory.kv_caches);
            caches.map(KvCache::len).collect()
        };
        let before = held(requests);
        // Separate, so that what the caches keep is settled on every way out of the pass, errors included.
        let candidates = self.try_candidates(requests, cancel);
        // A pass that failed is run again, with what it was told.
        for PassRequest { pass, memory } in requests.iter_mut().filter(|_| candidates.is_ok()) {
            let memory = memory.as_deref_mut().filter(|_| pass.renoised.is_some());
            if let Some(soft) = memory.and_then(|memory| memory.soft.as_deref_mut()) {
                std::mem::swap(&mut soft.last, &mut soft.next);
            }
        }
        let memories = requests
            .iter_mut()
            .filter_map(|asked| asked.memory.as_mut());
        // Only now are keys dropped: a pass that failed is run again, and must see all of them.
        let caches = memories.flat_map(|memory| &mut memory.kv_caches);
        for (cache, before) in caches.zip(before) {
            match &candidates {
                Ok(_) => self.ops.keep_salient(cache)?,
                Err(_) => {
                    // The pass is run again: it sums attention from the start, and adds what memory ran short behind.
                    cache.forget_salience();
                    cache.take_back(cache.len() - before);
                }
            }
        }
        candidates
    }

    fn try_candidates(
        &self,
        requests: &mut [PassRequest<'_>],
        cancel: &AtomicBool,
    ) -> Result<Vec<Vec<Candidate>>, Interrupt> {
        let (ops, weights) = (self.ops, self.weights);
        let prepared: Vec<PreparedPass> = (requests.iter())
            .map(|asked| self.prepare(&asked.pass))
            .collect();
        let mut sequences = Vec::new();
        for (asked, prepared) in requests.iter_mut().zip(&prepared) {
            let (caches, soft) = match asked.memory.as_deref_mut() {
                Some(RequestMemory {
                    kv_caches, soft, ..
                }) => (&mut kv_caches[..], soft.as_deref()),
                None => (&mut [][..], None),
            };
            let is_first = (asked.pass.renoised).is_none_or(|renoised| renoised.is_first);
            let mut caches = caches.iter_mut();
            for tokens in &prepared.tokens {
                sequences.push(Sequence {
                    tokens,
                    positions: &prepared.positions,
                    wanted: &prepared.wanted,
                    sees: match &prepared.seen {
                        SeenKeys::Each => VisibleKeys::Each {
                            checks: asked.pass.checks().len(),
                        },
                        SeenKeys::Text => VisibleKeys::Text {
                            caches: std::mem::take(&mut caches).into_slice(),
                        },
                        SeenKeys::Canvas => VisibleKeys::Canvas {
                            caches: std::mem::take(&mut caches).into_slice(),
                            soft: soft.filter(|_| !is_first).map(|soft| &soft.last),
                        },
                        SeenKeys::Blocks(last_seen) => VisibleKeys::Blocks {
                            cache: caches.next().expect("a cache for each canvas"),
                            last_seen,
                        },
                        SeenKeys::Cached(seen) => VisibleKeys::Cached {
                            cache: caches.next().expect("a cache for each canvas"),
                            cache_positions: match &asked.pass.reach.cache_positions {
                                Some(places) => slice::from_ref(places),
                                // Unless the cache was compacted, a token's keys lie at the token's own position.
                                None => &asked.pass.reach.computed,
                            },
                            seen,
                            selects: asked.pass.reach.selects.as_ref(),
                        },
                    },
                });
            }
        }
        let hidden = self.model.forward(ops, weights, &mut sequences, cancel)?;
        if hidden.is_empty() {
            // Rows that are only stored, as those of a long prompt.
            return Ok(vec![Vec::new(); requests.len()]);
        }
        let x = self.model.final_norm(ops, weights, &hidden)?;
        // Returned to the arena before the LM head's buffers are taken: the dry run does the same, so the plan counts
        // them once.
        drop(hidden);
        let groups: Vec<LmHeadGroup<'_>> = (requests.iter_mut())
            .map(|asked| {
                let (distributions, soft) = match asked.memory.as_deref_mut() {
                    Some(memory) => (memory.distributions.as_mut(), memory.soft.as_deref_mut()),
                    None => (None, None),
                };
                let is_renoised = asked.pass.renoised.is_some();
                LmHeadGroup {
                    rows: asked.pass.rows,
                    sampling: self.choice(&asked.pass),
                    distributions,
                    soft: soft.filter(|_| is_renoised).map(|soft| &mut soft.next),
                }
            })
            // One walk over the parts of the LM head for all requests: they may be streamed, and are acquired one at a
            // time.
            .collect();
        let mut reduction = ops.start_lm_head(groups, weights.lm_head_part_rows())?;
        for (group, first) in weights.lm_head_parts() {
            let head = acquire(ops, weights, group)?;
            ops.reduce_lm_head(&mut reduction, &x, &head.weight(TensorPart::LmHead), first)?;
        }
        // Waits for a GPU, so it is timed as a phase of its own.
        let timed = ops.timed(Phase::Sampling);
        let candidates = reduction.candidates()?;
        drop(timed);
        Ok(candidates)
    }

    fn prepare(&self, pass: &Pass<'_>) -> PreparedPass {
        let reach = pass.reach;
        let checks = pass.checks();
        let mut positions: Vec<usize> = reach.positions().collect();
        let computed = positions.len();
        // A check is a row of its own, at the same position as the token that it verifies, but holding a mask.
        positions.extend(checks.iter().map(|row| row.position));
        // The unconditional canvas has the same rows at the same positions, so one list of positions serves both.
        let tokens = pass.canvases().map(|canvas| {
            let computed = positions[..computed]
                .iter()
                .map(|&position| canvas[position]);
            computed
                .chain(checks.iter().map(|_| self.vocabulary.mask_id()))
                .collect()
        });
        let tokens = tokens.collect();
        // Masked rows are read at the row that predicts them (shifted logits: the one before); checks at their own
        // rows, which follow the computed ones.
        let masked = &pass.rows[..pass.rows.len() - checks.len()];
        // The row before the first computed one does not exist; as in Fast-dLLM's Dream, the first stands for it.
        let wanted = masked.iter().map(|row| {
            let of_model = |position| self.vocabulary.row_of(position);
            reach.predicting_row(row.position, of_model).unwrap_or(0)
        });
        let wanted = wanted.chain(computed..positions.len()).collect();
        PreparedPass {
            tokens,
            positions,
            wanted,
            seen: match (reach.last_seen(), reach.segments()) {
                _ if pass.renoised.is_some() => SeenKeys::Canvas,
                (Some(_), _) if self.model.reads_text_apart() => SeenKeys::Text,
                (Some(last_seen), _) => SeenKeys::Blocks(last_seen),
                (None, Some(segments)) => SeenKeys::Cached(segments),
                (None, None) => SeenKeys::Each,
            },
        }
    }

    fn choice<'a>(&'a self, pass: &Pass<'a>) -> SamplingParams<'a> {
        SamplingParams {
            temperature: pass.temperature,
            noise: pass.noise,
            pass: pass.number,
            guidance: pass.guidance.map(|(_, weight)| weight),
            vocab_size: self.vocabulary.size,
            mask_token_id: self.vocabulary.mask.and_then(|mask| mask.token_id),
            end_tokens: &self.vocabulary.ends,
            suppressed: pass.suppressed,
            ranking: pass.ranking,
            top: pass.top,
            scaling: pass.renoised.map(|renoised| LogitScaling {
                soft_cap: self.model.soft_cap(),
                temperature: renoised.temperature,
            }),
        }
    }
}

/// The rows of a pass, for each of its canvases.
struct PreparedPass {
    tokens: Vec<Vec<u32>>,
    positions: Vec<usize>,
    wanted: Vec<usize>,
    seen: SeenKeys,
}

/// What the rows of a pass see.
enum SeenKeys {
    /// Each other.
    Each,
    /// Segments of the KV cache.
    Cached(Vec<KeySegment>),
    /// All up to a position, for each row the last.
    Blocks(Vec<usize>),
    /// The text before them.
    Text,
    /// The text before their canvas, and each other.
    Canvas,
}
