//! Models that requests wait for: they are loaded one after another, in the order in which they were first wanted.

use std::sync::Arc;

use sluice_engine::PlanOptions;
use tokio::sync::watch;

use super::{Known, LoadRequest, MeantModel, ModelName, Models, Requester};
use crate::{failure::Failure, limits::WANTED_MODELS_MAX, operations::Operation};

/// A model that is being loaded, or will be.
pub struct ComingModel {
    /// The model.
    pub name: ModelName,
    /// How far that is.
    pub coming: Coming,
}

/// How far it is with a model that comes.
pub enum Coming {
    /// It loads.
    Load(Arc<Operation>),
    /// Its turn to load comes.
    Wanted(Arc<WantedModel>),
}

/// A model that requests wait for.
pub struct WantedModel {
    name: ModelName,
    progress: watch::Sender<WantedProgress>,
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
}

impl Known {
    fn coming(&self) -> Option<ComingModel> {
        let loading = self.loading.as_ref()?;
        Some(ComingModel {
            name: loading.name.clone(),
            coming: Coming::Load(loading.operation.clone()),
        })
    }
}

impl Models {
    /// Whether a request would load a sleeping model again, or wait for that load.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        let known = self.lock();
        let loading = known.loading.as_ref();
        let is_waking = loading.is_some_and(|loading| loading.requester == Requester::Request);
        is_waking || !known.asleep.is_empty()
    }

    /// What a request waits for while its model is not loaded: the load that is under way, or one that this asks for, of a model
    /// that was let go or that the request names. `None`: there is nothing to wait for.
    ///
    /// # Errors
    /// When the model is not loaded for requests, or too many others are waited for.
    pub fn coming(self: &Arc<Self>, meant: &MeantModel) -> Result<Option<ComingModel>, Failure> {
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
                    _ => return Ok(known.coming()),
                }
            }
        };
        if known.find(&name).is_some() {
            return Ok(None);
        }
        if let Some(coming) = known.coming()
            && coming.name.is_same(&name)
        {
            return Ok(Some(coming));
        }
        if known.sleeping(&name).is_none() && !self.settings.loads_on_request() {
            return Err(Failure::ModelNotLoaded { model: name.name });
        }
        let wanted = self.want(&mut known, &name)?;
        Ok(Some(ComingModel {
            name,
            coming: Coming::Wanted(wanted),
        }))
    }

    fn want(
        self: &Arc<Self>,
        known: &mut Known,
        name: &ModelName,
    ) -> Result<Arc<WantedModel>, Failure> {
        let mut wanted = known.wanted.iter();
        if let Some(wanted) = wanted.find(|wanted| wanted.name.is_same(name)) {
            return Ok(wanted.clone());
        }
        if known.wanted.len() == WANTED_MODELS_MAX {
            return Err(Failure::LineFull {
                max: WANTED_MODELS_MAX,
            });
        }
        let wanted = Arc::new(WantedModel {
            name: name.clone(),
            progress: watch::Sender::default(),
        });
        known.wanted.push_back(wanted.clone());
        if !std::mem::replace(&mut known.loads_wanted, true) {
            tokio::spawn(self.clone().load_wanted());
        }
        Ok(wanted)
    }

    /// Loads what is wanted, as long as anything is.
    async fn load_wanted(self: Arc<Self>) {
        let mut changes = self.changes.subscribe();
        loop {
            // Before the look, so that nothing is missed between look and wait.
            changes.mark_unchanged();
            let next = {
                let mut known = self.lock();
                let Some(wanted) = known.wanted.front().cloned() else {
                    known.loads_wanted = false;
                    return;
                };
                known.loading.is_none().then_some(wanted)
            };
            let ended = match next {
                Some(wanted) => self.load_one(&wanted).await.map(|result| (wanted, result)),
                None => None,
            };
            match ended {
                Some((wanted, result)) => {
                    self.lock().wanted.pop_front();
                    wanted.progress.send_replace(WantedProgress::Ended(result));
                    self.changes.tell();
                }
                // Another load is under way. The sender lives in `self`, so `changed` cannot fail.
                None => drop(changes.changed().await),
            }
        }
    }

    /// Loads a wanted model; `None`: another load was begun in this very moment.
    async fn load_one(self: &Arc<Self>, wanted: &WantedModel) -> Option<Result<(), String>> {
        let name = &wanted.name;
        let (base, request, is_chosen) = {
            let known = self.lock();
            if known.find(name).is_some() {
                return Some(Ok(()));
            }
            let uses = self.uses.of(name);
            if uses.admitted + uses.in_line == 0 {
                return Some(Err("nobody waits for it any more".to_owned()));
            }
            match known.sleeping(name) {
                // With the settings that it had when it was unloaded, not those for later loads.
                Some(asleep) => {
                    let was = asleep.settings;
                    let requested = PlanOptions {
                        level: Some(was.level),
                        budget: Some(was.budget),
                        ..PlanOptions::default()
                    };
                    let request = LoadRequest {
                        name: name.clone(),
                        requested,
                        pin: asleep.is_pinned,
                    };
                    (Some(was), request, true)
                }
                None => (None, LoadRequest::of(name.clone()), false),
            }
        };
        let base = base.unwrap_or_else(|| self.base_settings());
        match self.begin_load(request, base, (Requester::Request, is_chosen)) {
            Ok(operation) => {
                let model = &name.name;
                match is_chosen {
                    true => tracing::info!(model, "a request wakes the model"),
                    false => tracing::info!(model, "a request has the model loaded"),
                }
                let loading = WantedProgress::Loading(operation.clone());
                wanted.progress.send_replace(loading);
                let status = operation.ended().await;
                let error = status.error().map(|error| error.message().to_owned());
                Some(error.map_or(Ok(()), Err))
            }
            Err(Failure::LoadInProgress { .. }) => None,
            Err(failure) => Some(Err(failure.to_string())),
        }
    }
}
