//! Loading a model beside the present one, as the engine's thread sees it: it is asked for memory between two requests,
//! and installs the new model when it is whole. Everything else happens on the load's own thread.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering},
};

use sluice_machine::Rates;
use sluice_plan::Plan;
use sluice_tokenizer::Tokenizer;
use sluice_weights::END_TOKENS_MAX;

use super::{
    LoadEvent, LoadedModel,
    current_model::CurrentModel,
    load_step::{LoadResult, LoadStep, ReadyModel},
    loader::{Loader, RunningLoad},
    worker::Worker,
};
use crate::{
    decode::Vocabulary,
    error::EngineError,
    model::{ModelInfo, network::Network},
    request::ModelId,
    schedule::LoadCommand,
};

impl Worker {
    /// Begins a load.
    pub(super) fn begin_load(&mut self, mut load: LoadCommand) {
        if load.cancel.load(Ordering::Relaxed) {
            return self.end_load(LoadResult::failed(load, EngineError::LoadCancelled));
        }
        let notices = self.look_at_memory_now().notices;
        (notices.into_iter()).for_each(|notice| (load.report)(LoadEvent::Notice(notice)));
        let rates = match self.rates() {
            Ok(rates) => rates,
            Err(error) => return self.end_load(LoadResult::failed(load, error)),
        };
        let loader = Loader {
            shared: Arc::clone(&self.shared),
            ops: Arc::clone(&self.ops),
            weight_cache: Arc::clone(&self.weight_cache),
            rates,
        };
        match RunningLoad::start(loader, load) {
            Ok(loading) => self.loading = Some(loading),
            Err(refused) => self.end_load(refused),
        }
    }

    /// Does what the load in progress needs.
    pub(super) fn step_load(&mut self, step: LoadStep) {
        match step {
            LoadStep::Budget { plan, granted } => {
                // A switch of the old model would compete for the memory that is promised now.
                self.abandon_switch(EngineError::Superseded);
                let is_granted = self.grant_budget(&plan).is_ok();
                self.update_limit();
                // A load that was cancelled meanwhile is gone.
                let _ = granted.send(is_granted);
            }
            LoadStep::Finished(end) => self.end_load(end),
        }
    }

    fn end_load(&mut self, end: LoadResult) {
        let LoadResult { result, mut report } = end;
        self.loading = None;
        self.shared.queue.end_load();
        let result = result.and_then(|loaded| {
            // Installing changes nothing before its end, so after a panic the present model is still whole.
            let installed = catch_unwind(AssertUnwindSafe(|| self.install(*loaded)));
            installed.unwrap_or(Err(EngineError::Panicked))
        });
        self.update_limit();
        report(LoadEvent::Finished(result));
    }

    /// Replaces the present model by one that is completely loaded.
    fn install(&mut self, loaded: ReadyModel) -> Result<Arc<LoadedModel>, EngineError> {
        let ReadyModel {
            opened,
            planner,
            plan,
            reader,
            weights,
            prior,
            settings,
            substitution,
        } = loaded;
        // The only step that can fail comes first, while the old model is still in place.
        let mut model = Network::new(opened.config, &self.ops)?;
        model.set_mlp_rows(planner.mlp_rows);
        model.set_heartbeat(self.shared.heartbeat.clone());
        let mut info = model.info(&weights);
        info.has_prior = prior.is_some();
        info.state = opened.state_model;
        add_end_of_turn(&mut info, opened.tokenizer.as_deref());
        let id = ModelId(
            self.shared
                .group
                .last_model_id
                .fetch_add(1, Ordering::Relaxed)
                + 1,
        );
        self.current = Some(CurrentModel {
            vocabulary: Arc::new(Vocabulary {
                size: info.vocab_size,
                mask: info.mask,
                ends: info.eos_token_ids.clone(),
            }),
            model,
            weights,
            prior,
            id,
            planner: Arc::clone(&planner),
            reader,
            plan,
            switch: None,
            serving: None,
            serving_kv_cache_format: None,
            prefix_cache: Vec::new(),
            holds_others: false,
            stays_wide: false,
            mlp_rows: planner.mlp_rows,
        });
        let loaded = Arc::new(LoadedModel {
            id,
            info,
            recommended: opened.checkpoint.recommended(),
            tokenizer: opened.tokenizer,
        });
        // Published before the model, so that whoever sees it also sees the settings that it was loaded with.
        self.shared.state.set_settings(settings);
        self.shared.state.set_loaded_with(settings, substitution);
        self.shared.state.set_model(Arc::clone(&loaded), planner);
        self.start_measuring();
        self.tell_state();
        Ok(loaded)
    }

    /// Promises the memory for a plan. Unloads the present model if both do not fit while it serves.
    ///
    /// # Errors
    /// When other engines leave too little by now.
    fn grant_budget(&mut self, plan: &Plan) -> Result<(), EngineError> {
        let ledger = &self.shared.ledger;
        let mut promised = plan.peak_bytes();
        let mut stays = false;
        if let Some(current) = &mut self.current {
            // The cheapest memory to give up, and of no use once another model answers.
            current.prefix_cache.clear();
            let new =
                plan.resident_bytes() + plan.staging.total_bytes() + plan.working.tables_bytes;
            let serving = current.plan.working;
            let serving = serving.activation_bytes + serving.kv_cache_bytes + serving.logits_bytes;
            let both = ledger.used_bytes() + serving + new;
            stays = both <= plan.budget_bytes;
            if stays {
                promised = promised.max(both);
            }
        }
        ledger.set_limit(plan.budget_bytes);
        ledger.claim(promised)?;
        if !stays && self.current.take().is_some() {
            self.shared.state.clear();
        }
        if let Some(loading) = &mut self.loading {
            loading.grant(plan.budget_bytes, promised);
        }
        Ok(())
    }

    /// Rates of the device, where memory allowed to measure them; measured when first needed.
    pub(super) fn rates(&self) -> Result<Option<Rates>, EngineError> {
        self.shared.group.rates(&self.ops)
    }
}

/// The strings that end a chat model's turn: LLaDA's and Llama 3's, and Qwen's and Dream's, whatever their
/// configurations say. LLaDA and Dream then fill the canvas with EOS; both end the visible answer.
const ENDS_OF_TURN: [&str; 2] = ["<|eot_id|>", "<|im_end|>"];

fn add_end_of_turn(info: &mut ModelInfo, tokenizer: Option<&Tokenizer>) {
    let known = ENDS_OF_TURN
        .iter()
        .filter_map(|token| tokenizer?.token_id(token));
    for id in known.filter(|&id| (id as usize) < info.vocab_size) {
        let ends = &mut info.eos_token_ids;
        if !ends.contains(&id) && ends.len() < END_TOKENS_MAX {
            ends.push(id);
        }
    }
}
