//! What passes have told of mixtures' experts: it stays with the model in the daemon's state, so that the next daemon plans with it.

use std::sync::Arc;

use sluice_engine::Engine;
use sluice_plan::{LearnedExperts, corrections::TimeCorrections};

use crate::{
    config::{ConfigArguments, Environment},
    services::Daemon,
    settings,
    state::{SavedExperts, State, StateStore},
};

/// Has the engine plan with what an earlier daemon saved.
pub(crate) fn restore(engine: &Engine, state: &StateStore) {
    for learned in state.read(all_in) {
        engine.restore_experts(&learned);
    }
}

/// Has plans without a daemon know what a daemon with the usual settings would: what lies in its folder of models, where that can be
/// read.
pub(crate) fn restore_for_plans(corrections: &TimeCorrections) {
    let config = ConfigArguments::default().resolve(&Environment::of_process());
    let folder = config.ok().and_then(|config| config.models.value.0);
    let state = folder.and_then(|folder| State::saved_in(&folder));
    for learned in state.iter().flat_map(all_in) {
        corrections.restore_experts(&learned);
    }
}

fn all_in(state: &State) -> Vec<LearnedExperts> {
    let models = state.models.iter();
    let saved = models.filter_map(|model| model.experts);
    saved.map(LearnedExperts::from).collect()
}

/// Saves what loaded models' passes have told, where it is news.
pub(crate) fn save(daemon: &Daemon) {
    let state = daemon.library.state();
    for model in daemon.models.all_loaded() {
        let engine = model.engine.upgrade();
        let Some(learned) = engine.and_then(|engine| engine.learned_experts()) else {
            continue;
        };
        let learned = SavedExperts::from(learned);
        let before = state.read(|state| settings::saved_experts(state, &model.name));
        if before.is_none_or(|before| !before.is_near(&learned)) {
            let change = |state: &mut State| {
                settings::remember_experts(state, &model.name, learned);
            };
            // Nobody asked for it; that it cannot be written is in the log.
            state.change(change, |_| {});
        }
    }
}

/// Saves it whenever something has changed, such as the end of a request, until the daemon closes.
pub(crate) async fn watch(daemon: Arc<Daemon>) {
    let mut changes = daemon.changes.subscribe();
    loop {
        tokio::select! {
            () = daemon.closing.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
        }
        save(&daemon);
    }
}
