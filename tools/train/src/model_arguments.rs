//! The trained model that a command is about, and the text it is asked about.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use candle_core::Device;
use clap::Args;

use crate::{
    checkpoint::{self, State},
    config::ModelConfig,
    export,
    latent::LatentOptions,
    model::Model,
    text::{Data, TextOptions, TokenFile},
    vocabulary::Vocabulary,
};

/// Where a model and a text are.
#[derive(Debug, Args)]
pub struct ModelArguments {
    /// The folder that training wrote to, for its averaged weights.
    #[arg(long, required_unless_present = "model", conflicts_with = "model")]
    checkpoint: Option<PathBuf>,
    /// The folder of an exported model instead.
    #[arg(long)]
    model: Option<PathBuf>,
    /// A text, instead of the story language.
    #[arg(long)]
    text: Option<PathBuf>,
    /// The share of that text, at its end, that is held out.
    #[arg(long, default_value_t = 0.05)]
    held_out_share: f64,
}

/// A model with what belongs to it.
pub struct Opened {
    /// The model.
    pub model: Model,
    /// Its tokenizer.
    pub vocabulary: Vocabulary,
    /// How a latent thought model's latents were learned.
    pub latent: Option<LatentOptions>,
}

impl ModelArguments {
    /// Opens the model; `weights` says which of a checkpoint's are meant.
    ///
    /// # Errors
    /// When something is missing or damaged.
    pub fn open(&self, weights: impl FnOnce(&State) -> Result<Model>) -> Result<Opened> {
        match (&self.checkpoint, &self.model) {
            (Some(folder), _) => {
                let state = checkpoint::load(folder, &Device::Cpu)?
                    .with_context(|| format!("there is no checkpoint in {}", folder.display()))?;
                Ok(Opened {
                    model: weights(&state)?,
                    vocabulary: Vocabulary::load(&folder.join(export::TOKENIZER_NAME))?,
                    latent: state.progress.latent,
                })
            }
            (None, Some(folder)) => exported(folder),
            (None, None) => unreachable!("one of them is required"),
        }
    }

    /// The text, encoded for a model.
    ///
    /// # Errors
    /// When it can't be read, or is too short for the model.
    pub fn data(&self, vocabulary: Vocabulary, config: &ModelConfig) -> Result<Data> {
        // The file of tokens stays open; its folder is needed only until then.
        let folder = tempfile::tempdir().context("make a folder for tokens")?;
        let text = self.text.as_ref().map(|path| {
            let options = TextOptions {
                path: path.clone(),
                held_out_share: self.held_out_share,
            };
            TokenFile::open(folder.path(), &options, &vocabulary, config.length_max())
        });
        let text = text.transpose()?;
        Ok(Data { vocabulary, text })
    }
}

/// An exported model.
///
/// # Errors
/// When a part of it is missing or damaged.
pub fn exported(folder: &Path) -> Result<Opened> {
    let vocabulary = Vocabulary::load(&folder.join(export::TOKENIZER_NAME))?;
    let config = export::read_config(folder)?;
    Ok(Opened {
        model: export::read(folder, &config, &vocabulary, &Device::Cpu)?,
        vocabulary,
        latent: export::read_latent(folder)?,
    })
}
