//! What passes have told of mixtures' experts: it stays with the model in the daemon's state, so that the next daemon plans with it.

use std::sync::Arc;

use sluice_engine::Engine;

use crate::{
    services::Daemon,
    settings,
    state::{SavedExperts, State, StateStore},
};

/// Has the engine plan with what an earlier daemon saved.
pub(crate) fn restore(engine: &Engine, state: &StateStore) {
    let saved = |state: &State| -> Vec<SavedExperts> {
        let models = state.models.iter();
        models.filter_map(|model| model.experts).collect()
    };
    for saved in state.read(saved) {
        engine.restore_experts(&saved.into());
    }
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
