//! Models that requests wait for: they are loaded one after another. Turns go round between the users who want some, and each
//! user's go in the order in which they were first wanted.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use sluice_engine::{
    PlanOptions, PlanSettings,
    fair::{FairQueue, Room, ShareKey},
};
use tokio::sync::watch;

use super::{Known, LoadCause, LoadRequest, MeantModel, ModelName, Models, Requester};
use crate::{failure::Failure, limits::WANTED_MODELS_MAX, operations::Operation};

/// A model that is being loaded, or will be.
pub struct PendingModel {
    /// The model.
    pub name: ModelName,
    /// How far that is.
    pub pending: Pending,
}

/// How far it is with a model that comes.
pub enum Pending {
    /// It loads.
    Load(Arc<Operation>),
    /// Its turn to load comes.
    Wanted(Arc<WantedModel>),
}

/// A model that requests wait for.
pub struct WantedModel {
    pub(super) name: ModelName,
    number: u64,
    progress: watch::Sender<WantedProgress>,
    /// Its load ended because nobody waited for it any more.
    is_abandoned: AtomicBool,
}

/// How far it is with a wanted model.
#[derive(Clone, Default)]
pub enum WantedProgress {
    /// Others load before it.
    #[default]
    Waiting,
    /// It loads.
    Loading(Arc<Operation>),
    /// It is there, or why it is not.
    Ended(Result<(), String>),
}

impl WantedModel {
    /// The progress, now and after each change. It comes to an end in any case.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<WantedProgress> {
        self.progress.subscribe()
    }

    /// Nobody waits for it any more, so its load ends. Whoever wants it by then has it loaded anew.
    pub(super) fn abandon(&self) {
        // Relaxed: the load's end, which orders all else, is waited for before this is read.
        self.is_abandoned.store(true, Ordering::Relaxed);
    }

    fn was_abandoned(&self) -> bool {
        self.is_abandoned.swap(false, Ordering::Relaxed)
    }

    pub(super) fn end(&self, result: Result<(), String>) {
        self.progress.send_replace(WantedProgress::Ended(result));
    }
}

/// The models that requests wait for.
#[derive(Default)]
pub(super) struct WantedModels {
    models: Vec<Arc<WantedModel>>,
    /// Whose turn to load is next, by number; of the users who wanted a model first.
    turns: FairQueue<()>,
    last_number: u64,
    /// Whether a task loads them.
    are_loaded: bool,
}

impl WantedModels {
    pub(super) fn is_empty(&self) -> bool {
        self.models.is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.models.len()
    }

    /// Whether requests wait for this model.
    pub(super) fn has(&self, name: &ModelName) -> bool {
        self.find(name).is_some()
    }

    fn find(&self, name: &ModelName) -> Option<&Arc<WantedModel>> {
        self.models.iter().find(|wanted| wanted.name.is_same(name))
    }

    /// The one of this name, which is wanted from now on.
    fn want(&mut self, name: &ModelName, share: ShareKey) -> Result<Arc<WantedModel>, Failure> {
        if let Some(wanted) = self.find(name) {
            return Ok(wanted.clone());
        }
        let max = WANTED_MODELS_MAX;
        if !self.turns.has_place(share, max) {
            return Err(Failure::TooManyWanted { max });
        }
        self.last_number += 1;
        let wanted = Arc::new(WantedModel {
            name: name.clone(),
            number: self.last_number,
            progress: watch::Sender::default(),
            is_abandoned: AtomicBool::default(),
        });
        // Nobody knows yet how long it takes: each counts for one turn.
        self.turns.insert(share, wanted.number, 1, ());
        self.models.push(wanted.clone());
        Ok(wanted)
    }

    fn next(&self) -> Option<Arc<WantedModel>> {
        let number = self.turns.next_of(|_| Room::Free)?;
        let mut models = self.models.iter();
        models.find(|wanted| wanted.number == number).cloned()
    }

    /// Takes it out: it has had its turn.
    fn take(&mut self, wanted: &WantedModel) {
        self.turns.serve(wanted.number);
        self.models.retain(|other| other.number != wanted.number);
    }

    /// Takes the one of this name out, if it is there.
    pub(super) fn remove(&mut self, name: &ModelName) -> Option<Arc<WantedModel>> {
        let wanted = self.find(name)?.clone();
        self.take(&wanted);
        Some(wanted)
    }
}

/// What is to be done next for the models that requests wait for.
enum NextWanted {
    /// None is wanted any more.
    Nothing,
    /// Another load is under way.
    Wait,
    /// It is over with one that needs no load.
    Ended(Arc<WantedModel>, Result<(), String>),
    /// One is to be loaded.
    Load(Arc<WantedModel>, WantedLoad),
}

/// How a wanted model is loaded.
struct WantedLoad {
    /// The settings that it had when it was unloaded, if it sleeps.
    asleep: Option<PlanSettings>,
    request: LoadRequest,
}

impl Known {
    fn pending(&self) -> Option<PendingModel> {
        let loading = self.loading.as_ref()?;
        Some(PendingModel {
            name: loading.name.clone(),
            pending: Pending::Load(loading.operation.clone()),
        })
    }
}

impl Models {
    /// Whether requests for text are served: a model is loaded, or sleeps until a request, or requests have models loaded. Not while the
    /// first one loads, so that balancers wait for it, and not after that failed.
    #[must_use]
    pub fn serves(&self) -> bool {
        let known = self.lock();
        if known.held().next().is_some() || !known.asleep.is_empty() {
            return true;
        }
        match &known.loading {
            Some(loading) => loading.requester == Requester::Request,
            None => known.failed.is_none() && self.settings.loads_on_request(),
        }
    }

    /// What a request waits for while its model is not loaded: the load that is under way, or one that this asks for, of a model
    /// that was unloaded to make room or as idle, or that the request names. `None`: there is nothing to wait for.
    ///
    /// # Errors
    /// When the model is not loaded for requests, or too many others are waited for.
    pub fn pending(
        self: &Arc<Self>,
        meant: &MeantModel,
        share: ShareKey,
    ) -> Result<Option<PendingModel>, Failure> {
        let mut known = self.lock();
        let name = match meant {
            MeantModel::Named(name) => name.clone(),
            MeantModel::Present => {
                if known.present().is_some() {
                    return Ok(None);
                }
                let asleep = known.present.as_ref();
                let asleep = asleep.and_then(|name| known.sleeping(name));
                let asleep = asleep.map(|asleep| asleep.name.clone());
                let loading = known.loading.as_ref();
                let is_chosen = loading.is_some_and(|load| load.requester != Requester::Request);
                match asleep {
                    // Somebody loads another in its place.
                    Some(name) if !is_chosen => name,
                    _ => return Ok(known.pending()),
                }
            }
        };
        if known.find(&name).is_some() {
            return Ok(None);
        }
        // A load for requests is told of by what they want, which outlasts a load that ended because nobody waited.
        if let Some(pending) = known.pending()
            && pending.name.is_same(&name)
            && !known.wanted.has(&name)
        {
            return Ok(Some(pending));
        }
        if known.sleeping(&name).is_none() && !self.settings.loads_on_request() {
            return Err(Failure::ModelNotLoaded { model: name.name });
        }
        let wanted = known.wanted.want(&name, share)?;
        if !std::mem::replace(&mut known.wanted.are_loaded, true) {
            tokio::spawn(self.clone().load_wanted());
        }
        Ok(Some(PendingModel {
            name,
            pending: Pending::Wanted(wanted),
        }))
    }

    /// Loads what is wanted, as long as anything is.
    async fn load_wanted(self: Arc<Self>) {
        let mut changes = self.changes.subscribe();
        loop {
            // Before the look, so that nothing is missed between look and wait.
            changes.mark_unchanged();
            match self.next_wanted() {
                NextWanted::Nothing => return self.reclaim_memory(),
                // The sender lives in `self`, so `changed` cannot fail.
                NextWanted::Wait => drop(changes.changed().await),
                NextWanted::Ended(wanted, result) => wanted.end(result),
                NextWanted::Load(wanted, load) => {
                    if let Some(result) = self.load_one(&wanted, load).await {
                        self.lock().wanted.take(&wanted);
                        wanted.end(result);
                        self.changes.tell();
                    }
                }
            }
        }
    }

    fn next_wanted(&self) -> NextWanted {
        let mut known = self.lock();
        let Some(wanted) = known.wanted.next() else {
            known.wanted.are_loaded = false;
            return NextWanted::Nothing;
        };
        if known.loading.is_some() {
            return NextWanted::Wait;
        }
        let name = &wanted.name;
        // Looked at and taken out under one lock: whoever comes later finds it gone, and wants it anew.
        let ended = match known.find(name) {
            Some(_) => Some(Ok(())),
            None if !self.is_waited_for(name) => {
                Some(Err("nobody waits for it any more".to_owned()))
            }
            None => None,
        };
        if let Some(result) = ended {
            known.wanted.take(&wanted);
            return NextWanted::Ended(wanted, result);
        }
        let asleep = known.sleeping(name).map(|asleep| asleep.settings);
        // With the settings that it had when it was unloaded, not those for later loads.
        let requested = asleep.map(|was| PlanOptions {
            level: Some(was.level),
            budget: Some(was.budget),
            ..PlanOptions::default()
        });
        let request = LoadRequest {
            requested: requested.unwrap_or_default(),
            ..LoadRequest::of(name.clone())
        };
        drop(known);
        NextWanted::Load(wanted, WantedLoad { asleep, request })
    }

    /// Whether requests wait for this model, or are being made for it.
    pub(super) fn is_waited_for(&self, name: &ModelName) -> bool {
        let uses = self.uses.of(name);
        uses.admitted + uses.in_line > 0
    }

    /// Loads a wanted model; `None`: it is to be looked at again, since another load began meanwhile, or nobody waited for this one.
    async fn load_one(
        self: &Arc<Self>,
        wanted: &Arc<WantedModel>,
        load: WantedLoad,
    ) -> Option<Result<(), String>> {
        let model = &wanted.name.name;
        let is_chosen = load.asleep.is_some();
        let base = load.asleep.unwrap_or_else(|| self.base_settings());
        let cause = LoadCause {
            requester: Requester::Request,
            is_chosen,
            wanted: Some(wanted.clone()),
        };
        match self.begin_load(load.request, base, cause) {
            Ok(operation) => {
                match is_chosen {
                    true => tracing::info!(model, "a request wakes the model"),
                    false => tracing::info!(model, "a request has the model loaded"),
                }
                let loading = WantedProgress::Loading(operation.clone());
                wanted.progress.send_replace(loading);
                let status = operation.ended().await;
                let error = status.error().map(|error| error.message().to_owned());
                match error {
                    Some(_) if wanted.was_abandoned() => None,
                    error => Some(error.map_or(Ok(()), Err)),
                }
            }
            Err(Failure::LoadInProgress { .. }) => None,
            Err(failure) => Some(Err(failure.to_string())),
        }
    }
}
