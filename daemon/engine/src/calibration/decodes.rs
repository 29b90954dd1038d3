//! Passes that a masked diffusion model makes while it continues texts: a clean beginning, and a block that it has filled
//! in part itself. Calibration on text that nobody masked loses the most where such a model works (DLLMQuant, arXiv
//! 2508.14090).

use std::sync::{Arc, Mutex, PoisonError};

use sluice_checkpoint::family::MaskToken;
use sluice_formats::noise::Noise;

use super::{
    CalibrateError, CalibrationOptions, CalibrationProgress, PASS_TOKENS_MAX,
    passes::{TextPasses, rows_of},
};
use crate::{
    command::LoadedModel,
    event::{Event, Outcome, PassReport, TokenState},
    request::{Generate, InputPass, Work},
    turns::Turns,
};

/// A stream of random numbers that no other purpose uses.
const CUT_STREAM: u64 = 18;
/// Positions decoded together, as LLaDA does.
const BLOCK_LENGTH: usize = 32;
/// Positions that a decode fills.
const LENGTH_MIN: usize = 16;
const LENGTH_MAX: usize = 128;
/// Positions that a decoding pass commits: fewer make more passes that hardly differ.
const COMMITS_PER_PASS: usize = 4;
/// Of the passes of a decode, every second is kept.
const KEEP_EVERY: usize = 2;
/// How often a text may be continued, each time from another place, when there is little of it.
const ROUNDS_MAX: usize = 4;

/// Passes of so many positions, or of as many as the texts give.
pub(super) fn own_decodes(
    turns: &Turns<'_>,
    options: &CalibrationOptions,
    (model, mask): (&LoadedModel, MaskToken),
    total: usize,
    report: &mut dyn FnMut(CalibrationProgress),
) -> Result<TextPasses, CalibrateError> {
    let samples = &options.samples;
    let mut passes = TextPasses::default();
    for index in 0..samples.len() * ROUNDS_MAX {
        let done = passes.positions();
        report(CalibrationProgress::Decoding {
            done: done.min(total),
            total,
        });
        if done >= total {
            break;
        }
        let text = index % samples.len();
        let sample = &samples[text];
        let context = model.info.context_length.min(PASS_TOKENS_MAX);
        let Some(decode) = Decode::new(sample, context, options.seed, index) else {
            continue;
        };
        let kept = Arc::new(Mutex::new(decode.canvas(mask)));
        let canvas = Arc::clone(&kept);
        let watch = move |event: &Event| {
            if let Event::Pass(report) = event {
                let mut canvas = canvas.lock().unwrap_or_else(PoisonError::into_inner);
                canvas.see(report);
            }
        };
        let work = Work::Generate(decode.request(model, options.seed));
        match turns.submit(work, watch)?.finish()? {
            Outcome::Generated(_) => {}
            _ => return Err(CalibrateError::Cancelled),
        }
        let mut canvas = kept.lock().unwrap_or_else(PoisonError::into_inner);
        for pass in canvas.kept.drain(..) {
            if passes.positions() < total {
                passes.push(text, pass);
            }
        }
    }
    Ok(passes)
}

/// A text whose end the model fills in.
struct Decode<'a> {
    prompt: &'a [u32],
    length: usize,
}

impl<'a> Decode<'a> {
    /// A text is cut between its first and last quarter. `None` for one that is too short.
    fn new(sample: &'a [u32], context: usize, seed: u64, index: usize) -> Option<Self> {
        let place = Noise::new(seed)
            .stream(CUT_STREAM)
            .uniform(index as u64, 0, 0);
        let cut = (sample.len() as f64 * (0.25 + 0.5 * place)) as usize;
        let cut = cut.min(context.saturating_sub(LENGTH_MIN));
        let length = (sample.len() - cut).clamp(LENGTH_MIN, LENGTH_MAX);
        (cut > 0).then(|| Self {
            prompt: &sample[..cut],
            length: length.min(context - cut),
        })
    }

    fn request(&self, model: &LoadedModel, seed: u64) -> Generate {
        Generate {
            block_length: BLOCK_LENGTH.min(self.length),
            steps: self.length.div_ceil(COMMITS_PER_PASS),
            seed,
            ..Generate::greedy(model.id, self.prompt.to_vec(), self.length)
        }
    }

    fn canvas(&self, mask: MaskToken) -> Canvas {
        let masks = std::iter::repeat_n(mask.id(), self.length);
        let tokens = self.prompt.iter().copied().chain(masks).collect();
        let mut canvas = Canvas {
            mask,
            prompt: self.prompt.len(),
            block: BLOCK_LENGTH.min(self.length),
            tokens,
            kept: Vec::new(),
        };
        canvas.keep();
        canvas
    }
}

/// A canvas as its passes leave it.
struct Canvas {
    mask: MaskToken,
    prompt: usize,
    block: usize,
    tokens: Vec<u32>,
    kept: Vec<InputPass>,
}

impl Canvas {
    fn see(&mut self, report: &PassReport) {
        for position in &report.positions {
            let is_final = matches!(position.state, TokenState::Committed | TokenState::Pinned);
            let token = position.token.filter(|_| is_final);
            self.tokens[self.prompt + position.position] = token.unwrap_or(self.mask.id());
        }
        if report.passes.is_multiple_of(KEEP_EVERY) {
            self.keep();
        }
    }

    /// Keeps the canvas as the pass that follows will see it: it reads the masks of the first block that has any.
    fn keep(&mut self) {
        let filled = &self.tokens[self.prompt..];
        let Some(first) = filled.iter().position(|id| *id == self.mask.id()) else {
            return;
        };
        let start = first / self.block * self.block;
        let end = filled.len().min(start + self.block);
        let masked = (start..end).filter(|&at| filled[at] == self.mask.id());
        let masked: Vec<usize> = masked.map(|at| self.prompt + at).collect();
        self.kept.push(InputPass {
            tokens: self.tokens.clone(),
            rows: rows_of(&masked, self.mask),
        });
    }
}
