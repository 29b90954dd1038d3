//! A model in the real engine: what is judged is what users get.

use std::{path::Path, sync::Arc};

use anyhow::{Context, Result, bail};
use sluice_checkpoint::Source;
use sluice_engine::{
    CanvasSlot, Engine, EngineOptions, Generate, LoadedModel, Outcome, PlanSettings, Work,
    event::FinishReason, request::Thinking,
};
use sluice_shared::{decoding::Decoding, policy::PolicyChoice, sampling::EosPolicy};
use sluice_tokenizer::Tokenizer;

use crate::corpus::Message;

/// What ends a message in LLaDA's chat template.
const TURN_END: &str = "<|eot_id|>";

/// An engine with one model.
pub struct Session {
    engine: Engine,
    model: Arc<LoadedModel>,
}

/// How a canvas is to be filled.
#[derive(Debug, Clone, PartialEq)]
pub struct Way {
    /// Positions decoded together.
    pub block_length: usize,
    /// Passes of the reference schedule.
    pub steps: usize,
    /// Which positions a pass commits.
    pub policy: PolicyChoice,
    /// What a pass computes.
    pub decoding: Decoding,
    /// Steps in which a latent thought model infers the prompt's latents; with 0 they are drawn from the prior.
    pub thinking: Option<usize>,
    /// The seed of the latents' noise.
    pub seed: u64,
}

/// A canvas that was filled.
#[derive(Debug, Clone, PartialEq)]
pub struct Filled {
    /// Its tokens up to the end of the text, without what ends it.
    pub tokens: Vec<u32>,
    /// The tokens as text.
    pub text: String,
    /// Passes it took.
    pub passes: usize,
    /// Time it took, in seconds.
    pub seconds: f64,
    /// Whether the text ended by itself and not because the canvas was full.
    pub stopped: bool,
}

impl Session {
    /// Starts an engine and loads the model of a folder.
    pub fn open(folder: &Path, threads: usize) -> Result<Self> {
        let engine = Engine::start(EngineOptions {
            threads,
            queue_max: 1,
            ..EngineOptions::default()
        })
        .context("start engine")?;
        let model = engine
            .load_now(Source::Folder(folder.to_owned()), PlanSettings::default())
            .with_context(|| format!("load {}", folder.display()))?;
        Ok(Self { engine, model })
    }

    /// The model's tokenizer and chat template.
    pub fn text(&self) -> Result<&Tokenizer> {
        self.model
            .tokenizer
            .as_deref()
            .context("the model has no tokenizer")
    }

    /// A conversation as tokens, ready for the next answer.
    pub fn encode(&self, messages: &[Message]) -> Result<Vec<u32>> {
        let turns: Vec<(&str, &str)> = messages
            .iter()
            .map(|message| (message.role.name(), message.content.as_str()))
            .collect();
        self.text()?.encode_chat(&turns).context("encode prompt")
    }

    /// Whether the model fills masks, and not only what comes next.
    #[must_use]
    pub fn fills_gaps(&self) -> bool {
        self.model.info.mask.is_some()
    }

    /// Whether prompt and canvas fit the model.
    #[must_use]
    pub fn has_room(&self, prompt: usize, canvas: usize) -> bool {
        self.model.info.check_context(prompt, canvas).is_ok()
    }

    /// The token that ends an answer.
    pub fn end(&self) -> Result<u32> {
        let ends = &self.model.info.eos_token_ids;
        self.text()?
            .token_id(TURN_END)
            .or_else(|| ends.first().copied())
            .context("the model has no end token")
    }

    /// Fills a canvas greedily.
    pub fn fill(&self, prompt: Vec<u32>, canvas: Vec<CanvasSlot>, way: &Way) -> Result<Filled> {
        let request = Generate {
            block_length: way.block_length.clamp(1, canvas.len()),
            steps: way.steps.max(1),
            eos: EosPolicy::Stop,
            policy: way.policy,
            decoding: way.decoding,
            seed: way.seed,
            thinking: way.thinking.map(|steps| {
                Box::new(Thinking {
                    steps,
                    start: None,
                    prior: None,
                    returns_posterior: false,
                })
            }),
            ..Generate::greedy(self.model.id, prompt, canvas.len())
        };
        let request = Generate { canvas, ..request };
        let outcome = self
            .engine
            .run(Work::Generate(request))
            .context("generate")?;
        let Outcome::Generated(generated) = outcome else {
            bail!("the request was cancelled");
        };
        let ends = &self.model.info.eos_token_ids;
        let end = generated
            .tokens
            .iter()
            .position(|token| ends.contains(token));
        let mut tokens = generated.tokens;
        tokens.truncate(end.unwrap_or(tokens.len()));
        Ok(Filled {
            text: String::from_utf8_lossy(&self.text()?.decode(&tokens)).into_owned(),
            tokens,
            passes: generated.passes,
            seconds: generated.elapsed.as_secs_f64(),
            stopped: generated.finish_reason == FinishReason::Eos,
        })
    }
}
