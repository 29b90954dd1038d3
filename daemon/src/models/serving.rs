//! A loaded model, as requests are made for it.

use std::sync::{Arc, Weak};

use sluice_checkpoint::family::Family;
use sluice_engine::{
    Engine, EngineError, LoadedModel, PlanOptions, PlanSettings as EngineSettings,
};
use sluice_proto::v1;
use sluice_tokenizer::Tokenizer;

use crate::{
    failure::Failure, model_name::ModelName, operations::change::SwitchTarget,
    settings::LoadSettings, translate,
};

/// A model that requests can be made for.
#[derive(Clone)]
pub struct ServingModel {
    /// Name and path of the model.
    pub name: ModelName,
    /// What the engine holds.
    pub loaded: Arc<LoadedModel>,
    /// The settings that `restore` leads to.
    pub restore_point: RestorePoint,
    /// The engine that has it. Weak, since the engine's thread holds what owns this.
    pub engine: Weak<Engine>,
    /// Target of the change of level or budget under way.
    pub switch_target: SwitchTarget,
    /// Whether whoever loaded it wants it to stay.
    pub is_pinned: bool,
    /// Whether it was loaded because somebody said so, and not only for a request.
    pub(super) is_chosen: bool,
}

/// The model that a request for text is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MeantModel {
    /// Whichever is the present one.
    Present,
    /// The one that the request names.
    Named(ModelName),
}

/// Where `restore` leads: to what the model was loaded with, but for what was only remembered from before.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RestorePoint {
    /// Settings that the load's request named.
    pub requested: PlanOptions,
    /// The settings that came from memory, as they would have been without it.
    unremembered: PlanOptions,
}

impl RestorePoint {
    pub(super) fn new(asked: PlanOptions, holds: LoadSettings, unremembered: LoadSettings) -> Self {
        let (holds, without) = (holds.change(), unremembered.change());
        Self {
            requested: asked,
            unremembered: PlanOptions {
                level: without.level.filter(|_| holds.level != without.level),
                budget: without.budget.filter(|_| holds.budget != without.budget),
                ..PlanOptions::default()
            },
        }
    }

    /// What the model was loaded with, but for what was remembered.
    #[must_use]
    pub fn restored(self, loaded: EngineSettings) -> EngineSettings {
        loaded.with(&self.unremembered)
    }
}

impl ServingModel {
    /// A model that an engine has, loaded because somebody said so, without settings to go back to.
    #[must_use]
    pub fn new(name: ModelName, loaded: Arc<LoadedModel>, engine: Weak<Engine>) -> Self {
        Self {
            name,
            loaded,
            restore_point: RestorePoint::default(),
            engine,
            switch_target: SwitchTarget::default(),
            is_pinned: false,
            is_chosen: true,
        }
    }

    /// The engine that has it.
    ///
    /// # Errors
    /// When it has gone.
    pub fn engine(&self) -> Result<Arc<Engine>, Failure> {
        let engine = self.engine.upgrade();
        engine.ok_or_else(|| EngineError::NoModel.into())
    }

    /// Whether the engine still has it: it lets a model go to make room for another, or because a change of its weights failed
    /// half-way, on its own thread and before this module hears of it.
    pub(super) fn is_held(&self) -> bool {
        let held = self.engine.upgrade().and_then(|engine| engine.model());
        held.is_some_and(|held| held.id == self.loaded.id)
    }

    /// The tokenizer of the model.
    ///
    /// # Errors
    /// When the model has none.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>, Failure> {
        self.loaded
            .tokenizer
            .as_ref()
            .ok_or_else(|| Failure::NoTokenizer {
                model: self.name.name.clone(),
            })
    }

    /// Whether it takes part in conversations: it has a chat template, or is LLaDA, whose template is known and was published
    /// after some of its checkpoints.
    #[must_use]
    pub fn can_chat(&self) -> bool {
        let text = self.loaded.tokenizer.as_ref();
        let is_llada = self.loaded.info.family == Family::Llada.name();
        text.is_some_and(|text| is_llada || text.has_chat_template())
    }

    pub(crate) fn to_wire(&self) -> v1::Model {
        let info = &self.loaded.info;
        v1::Model {
            shape: Some(v1::ModelShape {
                family: info.family.to_owned(),
                parameters: info.parameters,
                weight_bytes: info.weight_bytes,
                formats: (info.formats.iter().copied())
                    .map(translate::format::weight_format)
                    .collect(),
                layers: info.layers as u32,
                hidden_size: info.hidden_size as u32,
                attention_heads: info.attention_heads as u32,
                kv_heads: info.kv_heads as u32,
                intermediate_size: info.intermediate_size as u32,
                vocab_size: info.vocab_size as u32,
                padded_vocab_size: info.padded_vocab_size as u32,
                context_length: info.context_length as u32,
                has_tokenizer: self.loaded.tokenizer.is_some(),
                takes_tools: (self.loaded.tokenizer.as_ref())
                    .is_some_and(|tokenizer| tokenizer.takes_tools()),
                mask_token_id: info.mask.and_then(|mask| mask.token_id),
                eos_token_ids: info.eos_token_ids.clone(),
                has_prior: info.has_prior,
                bos_token_id: info.bos_token_id,
                kind: match info.mask {
                    None if info.sentences.is_some() => v1::ModelKind::SentenceEncoder.into(),
                    Some(_) => v1::ModelKind::MaskedDiffusion.into(),
                    None => v1::ModelKind::Autoregressive.into(),
                },
            }),
            ..self.name.to_wire(v1::ModelState::Ready)
        }
    }
}
