//! Unloads each model after a time without requests for it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use sluice_engine::ModelId;
use sluice_shared::units;
use tokio::time::{Instant, timeout_at};

use crate::{
    models::{ServingModel, UnloadReason},
    services::Daemon,
};

/// Counters that differ if a model was used since the last look, even by a request that has ended in between.
#[derive(PartialEq)]
struct ActivityTrace {
    last_use: u64,
    changes: u64,
}

/// Unloads each model whenever it was idle for `after`, unless it is pinned. Returns when the daemon closes.
pub async fn watch(daemon: Arc<Daemon>, after: Duration) {
    let mut changes = daemon.changes.subscribe();
    let mut since: HashMap<ModelId, (ActivityTrace, Instant)> = HashMap::new();
    loop {
        // Before looking, so that a change after the look wakes the wait below.
        changes.mark_unchanged();
        let models = daemon.models.all_loaded();
        let idle = models.iter().filter_map(|model| {
            let (id, trace) = (model.loaded.id, trace(&daemon, model)?);
            let before = since.remove(&id).filter(|(before, _)| *before == trace);
            let since = before.map_or_else(Instant::now, |(_, since)| since);
            Some((id, (trace, since)))
        });
        since = idle.collect();
        let earliest = since.iter().min_by_key(|(_, (_, since))| *since);
        let until = earliest.map(|(id, (_, since))| (*id, *since + after));
        if let Some((id, until)) = until
            && until <= Instant::now()
        {
            since.remove(&id);
            if let Some(model) = models.iter().find(|model| model.loaded.id == id) {
                unload(&daemon, model, after).await;
            }
            continue;
        }
        let changed = async {
            match until {
                // The timeout is no failure: the loop looks again.
                Some((_, until)) => timeout_at(until, changes.changed()).await.unwrap_or(Ok(())),
                None => changes.changed().await,
            }
        };
        tokio::select! {
            () = daemon.closing.cancelled() => return,
            changed = changed => if changed.is_err() { return },
        }
    }
}

/// Unloads a model, if the engine finds it idle as well: one that got a request since the look stays.
async fn unload(daemon: &Daemon, model: &ServingModel, after: Duration) {
    let before = daemon.engine.memory_of_all().used_bytes;
    let name = Some(&model.name);
    if let Ok(Some(name)) = daemon.models.unload(name, UnloadReason::Idle).await {
        let freed = before.saturating_sub(daemon.engine.memory_of_all().used_bytes);
        let idle = units::duration_ms(after.as_secs_f64() * 1000.0);
        tracing::info!(
            model = name.name,
            freed = units::bytes(freed),
            idle,
            "unloaded the idle model"
        );
    }
}

/// The counters of a model; `None` while it is pinned, or a request, a job or a change of it is under way.
fn trace(daemon: &Daemon, model: &ServingModel) -> Option<ActivityTrace> {
    let stays = daemon.models.is_busy(model) || daemon.models.is_pinned(model);
    (!stays).then(|| ActivityTrace {
        last_use: daemon.models.uses().of(&model.name).last_use,
        changes: model.switch_target.ended(),
    })
}
