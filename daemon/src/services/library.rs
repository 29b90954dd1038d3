//! The part of `ModelService` about models on disk: listing, downloading, removing, inspecting.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use sluice_checkpoint::{self as checkpoint, CachedWeights};
use sluice_engine::PlanOptions;
use sluice_hub::{HubName, Pull, Token};
use sluice_plan::Plan;
use sluice_proto::{
    model::{InvalidField, ModelRef},
    v1,
};
use sluice_shared::{mix::MixId, names, units};
use tokio::task::spawn_blocking;

use super::{Daemon, operation, requests::ResponseStream};
use crate::{
    caller::Caller,
    failure::Failure,
    library::{self, EntryOrigin, ModelEntry, RemovedModel},
    model_name::{EMBEDDED_NAME, ModelName},
    models::{LoadRequest, MeantModel, Requester, UnloadReason},
    operations::{Operation, OperationStatus, Unsaved},
    settings,
    state::SaveError,
    translate,
};

impl Daemon {
    /// All models, and the converted weights that are kept of them. It reads folders, so few are made at once.
    pub(super) async fn list(
        self: &Arc<Self>,
        caller: Caller,
    ) -> Result<v1::ListModelsResponse, Failure> {
        let place = self.listing.enter(caller.share()).await?;
        let daemon = self.clone();
        let list = move || {
            let list = daemon.list_now(caller);
            drop(place);
            list
        };
        Ok(spawn_blocking(list).await?)
    }

    fn list_now(&self, caller: Caller) -> v1::ListModelsResponse {
        let models = self.all_models(caller);
        let kinds = [v1::OperationKind::Load, v1::OperationKind::Pull];
        let active = self.operations.active_of(&kinds);
        let operations = active.iter().map(|operation| operation.to_wire()).collect();
        let Some((folder, bytes_max)) = self.engine.weight_cache() else {
            return v1::ListModelsResponse {
                models,
                operations,
                loads_on_request: self.settings.loads_on_request(),
                ..Default::default()
            };
        };
        let entries = self.library.entries();
        let mut kept = checkpoint::cached_weights(folder);
        let held = self.models.paths_in_use();
        kept.retain(|kept| {
            let path = kept.checkpoint.as_deref();
            path.is_none_or(|path| {
                // A folder may be named for the file in it.
                let is_held = |held: &PathBuf| path.starts_with(held) || held.starts_with(path);
                held.iter().any(is_held) || self.access.check_path(caller, path).is_ok()
            })
        });
        let kept = kept.into_iter();
        let kept = kept.map(|kept| v1::ConvertedWeights {
            model: converted_weights_name(&kept, &entries),
            path: (kept.checkpoint.as_ref())
                .map_or_else(String::new, |path| path.to_string_lossy().into_owned()),
            level: v1::Level::from(kept.level).into(),
            bytes: kept.bytes,
            is_in_use: kept.is_in_use,
            mix: kept.mix.map_or(0, MixId::number),
        });
        v1::ListModelsResponse {
            models,
            converted_weights: kept.collect(),
            converted_weights_folder: folder.to_string_lossy().into_owned(),
            converted_weights_bytes_max: bytes_max,
            operations,
            loads_on_request: self.settings.loads_on_request(),
        }
    }

    /// All models that a caller is told of: present ones first, then those on their way and on disk. Reads folders: not for
    /// async code.
    fn all_models(&self, caller: Caller) -> Vec<v1::Model> {
        let mut models = self.models.list();
        let entries = self.library.entries();
        for model in &mut models {
            let known = entries
                .iter()
                .find(|entry| entry.path == Path::new(&model.path));
            if let Some(entry) = known {
                entry.describe(model);
            }
        }
        models.extend(self.pulls.list());
        let held = self.models.paths_in_use();
        for entry in (entries.iter()).filter(|entry| self.tells_of(caller, entry, &held)) {
            let is_known = |model: &v1::Model| match entry.is_partial {
                // It is shown as the download that it is.
                true => model.name == entry.name,
                false => entry.path == Path::new(&model.path),
            };
            if !models.iter().any(is_known) {
                models.push(entry.to_wire());
            }
        }
        let default = self.library.default().unwrap_or_else(ModelName::embedded);
        let path = default.path.as_deref().unwrap_or(Path::new(""));
        for model in &mut models {
            model.is_default = Path::new(&model.path) == path
                && (default.path.is_some() || model.is_demonstration);
        }
        models
    }

    /// Whether a caller is told of a model on disk. What somebody loaded from elsewhere is told only to those who may name
    /// its path, unless it is one of those that are held.
    fn tells_of(&self, caller: Caller, entry: &ModelEntry, held: &[PathBuf]) -> bool {
        entry.origin != EntryOrigin::Path
            || held.contains(&entry.path)
            || self.access.check_path(caller, &entry.path).is_ok()
    }

    /// The model that a reference names. Reads folders on a blocking thread.
    pub(super) async fn resolve(
        self: &Arc<Self>,
        caller: Caller,
        model: ModelRef,
    ) -> Result<ModelName, Failure> {
        let daemon = self.clone();
        spawn_blocking(move || daemon.resolve_now(caller, model)).await?
    }

    /// As [`Daemon::resolve`], for blocking threads.
    pub(super) fn resolve_now(
        &self,
        caller: Caller,
        model: ModelRef,
    ) -> Result<ModelName, Failure> {
        match model.with_weights()? {
            ModelRef::Loaded => Ok(self.models.serving()?.name),
            ModelRef::Name(name) | ModelRef::Shape(name) => {
                let held = self.models.paths_in_use();
                let is_told = |entry: &ModelEntry| self.tells_of(caller, entry, &held);
                let model = self.library.model_among(&name, is_told)?;
                // A name is no way around the rules for paths: links may lead out of the folder of models.
                match model.path.as_ref().filter(|path| !held.contains(path)) {
                    Some(path) => {
                        let place = self.access.check_path(caller, path)?;
                        Ok(opened_at(model, place))
                    }
                    None => Ok(model),
                }
            }
            ModelRef::Path(path) => {
                let place = self.access.check_path(caller, &path)?;
                Ok(opened_at(self.library.at(&place), place))
            }
        }
    }

    pub(super) async fn unload(
        self: &Arc<Self>,
        caller: Caller,
        model: String,
    ) -> Result<v1::UnloadModelResponse, Failure> {
        let meant = match ModelRef::of_request(model)? {
            ModelRef::Loaded => None,
            model => match self.meant(caller, model).await? {
                MeantModel::Present => None,
                MeantModel::Named(name) => Some(name),
            },
        };
        let held = || {
            let memory = self.engine.memory_of_all();
            (memory.used_bytes, self.host.resident_bytes())
        };
        let before = held();
        let name = self.unload_in_turn(caller, meant.as_ref()).await?;
        let after = held();
        if let Some(name) = &name {
            let freed = before.0.saturating_sub(after.0);
            tracing::info!(
                model = name.name,
                freed = units::bytes(freed),
                "unloaded for a client"
            );
        }
        Ok(v1::UnloadModelResponse {
            model: name.map(|name| name.name).unwrap_or_default(),
            device_bytes_before: before.0,
            device_bytes_after: after.0,
            resident_bytes_before: before.1,
            resident_bytes_after: after.1,
        })
    }

    /// Unloads for a caller, who waits in a bounded line. Only the first of it is with the engine or next to it, so that an
    /// unload of the idle model stands behind one of them at most.
    async fn unload_in_turn(
        &self,
        caller: Caller,
        model: Option<&ModelName>,
    ) -> Result<Option<ModelName>, Failure> {
        let _place = self.unloading.enter(caller.share()).await?;
        self.models.unload(model, UnloadReason::Requested).await
    }

    pub(super) fn pull(
        &self,
        caller: Caller,
        asked: v1::PullModelRequest,
    ) -> Result<ResponseStream<v1::PullModelResponse>, Failure> {
        let given = |text: String| Some(text).filter(|text| !text.is_empty());
        let asked_name = ModelRef::try_from(asked.model)?.name()?;
        let name: HubName = names::full(&asked_name).unwrap_or(&asked_name).parse()?;
        if name.label().is_some() && !asked.file_name.is_empty() {
            let problem = "cannot be combined with a label".to_owned();
            return Err(InvalidField {
                field: "file_name",
                problem,
            }
            .into());
        }
        let token = match asked.hub_token.is_empty() {
            true => None,
            false => Some(Token::new(&asked.hub_token).ok_or_else(|| InvalidField {
                field: "hub_token",
                problem: "has blanks or characters that no token has".to_owned(),
            })?),
        };
        let pull = Pull {
            name,
            file: given(asked.file_name),
            revision: given(asked.revision),
        };
        let budget = self.engine.allowed_bytes(&self.models.base_settings());
        let operation = self.pulls.begin(pull, token, caller, budget)?;
        Ok(operation::follow(operation, &self.closing))
    }

    pub(super) async fn remove(
        self: &Arc<Self>,
        caller: Caller,
        name: String,
        force: bool,
    ) -> Result<v1::RemoveModelResponse, Failure> {
        let library = self.library.clone();
        let name = spawn_blocking(move || library.listed_name(&name)).await?;
        let is_pulling = self.pulls.list().iter().any(|model| model.name == name);
        if is_pulling {
            return Err(Failure::ModelInUse { model: name });
        }
        // Compared by path: a loaded model may have another name, or a model elsewhere the same one.
        let (library, asked) = (self.library.clone(), name.clone());
        let mut held = self.models.names_in_use();
        let held = spawn_blocking(move || {
            held.retain(|held| library.holds_any(&asked, held.path.as_slice()));
            held
        });
        let held = held.await?;
        if !held.is_empty() && !force {
            return Err(Failure::ModelInUse { model: name });
        }
        for held in &held {
            self.unload_in_turn(caller, Some(held)).await?;
        }
        let (daemon, asked) = (self.clone(), name.clone());
        let removed = spawn_blocking(move || {
            let found = daemon.library.find(&asked).ok();
            let removed = daemon.library.remove(&asked)?;
            // Weights converted from a deleted model are of no use.
            let is_of_it = |kept: &CachedWeights| match (&found, &kept.checkpoint) {
                (Some(entry), Some(path)) => {
                    path.starts_with(&entry.path) || *path == entry.folder || entry.leads_to(path)
                }
                _ => false,
            };
            let kept = daemon.remove_converted_weights_where(is_of_it);
            Ok::<_, Failure>(match removed {
                RemovedModel::Deleted(bytes) => v1::RemoveModelResponse {
                    freed_bytes: bytes + kept.freed_bytes,
                    ..kept
                },
                RemovedModel::Forgotten(path) => v1::RemoveModelResponse {
                    kept_path: path.to_string_lossy().into_owned(),
                    ..kept
                },
            })
        });
        let removed = removed.await??;
        self.removal_response(&name, &removed);
        Ok(removed)
    }

    /// Removes the weights that were converted of a model and kept.
    pub(super) async fn remove_converted_weights(
        self: &Arc<Self>,
        name: String,
    ) -> Result<v1::RemoveModelResponse, Failure> {
        let (daemon, asked) = (self.clone(), name.clone());
        let removed = spawn_blocking(move || {
            let entries = daemon.library.entries();
            // Those of a model that is gone are still called by its name.
            let meant = daemon.library.model(&asked);
            let asked = meant.map_or(asked, |model| model.name);
            daemon.remove_converted_weights_where(|kept| {
                converted_weights_name(kept, &entries) == asked
                    || kept.checkpoint.as_deref() == Some(Path::new(&asked))
            })
        });
        let removed = removed.await?;
        self.removal_response(&name, &removed);
        Ok(removed)
    }

    fn remove_converted_weights_where(
        &self,
        is_meant: impl Fn(&CachedWeights) -> bool,
    ) -> v1::RemoveModelResponse {
        let Some((folder, _)) = self.engine.weight_cache() else {
            return v1::RemoveModelResponse::default();
        };
        let removed = checkpoint::remove_cached(folder, is_meant);
        v1::RemoveModelResponse {
            freed_bytes: removed.bytes,
            removed_files: removed.files as u32,
            files_in_use: removed.not_removed as u32,
            ..Default::default()
        }
    }

    fn removal_response(&self, model: &str, removed: &v1::RemoveModelResponse) {
        let freed = units::bytes(removed.freed_bytes);
        tracing::info!(model, freed, "removed for a client");
        self.changes.tell();
    }

    pub(super) async fn inspect(
        self: &Arc<Self>,
        caller: Caller,
        model: ModelRef,
    ) -> Result<v1::InspectModelResponse, Failure> {
        let place = self.preparing.enter(caller.share()).await?;
        let model = self.resolve(caller, model).await?;
        let daemon = self.clone();
        let answer = spawn_blocking(move || {
            let path = model.path.as_deref();
            if let Some(path) = model.place() {
                // A wrong path is the caller's mistake, so it is an error and not a fact in the answer.
                std::fs::metadata(path).map_err(|cause| {
                    Failure::from(checkpoint::CheckpointError::Io {
                        path: path.to_owned(),
                        cause,
                    })
                })?;
            }
            let known = daemon
                .all_models(Caller::DAEMON)
                .into_iter()
                .find(|known| Path::new(&known.path) == path.unwrap_or(Path::new("")));
            let wire = known.unwrap_or_else(|| model.to_wire(v1::ModelState::Available));
            let holds = daemon.settings.for_load(&model, &PlanOptions::default());
            let settings = (daemon.models.base_settings())
                .with_unresolved_mix()
                .with(&holds.change());
            let budget = daemon.engine.allowed_bytes(&settings);
            let machine = daemon.engine.machine();
            let not_loadable = |plan: &Plan| translate::plan::not_loadable(plan, &daemon.engine);
            let mut answer =
                library::inspect(&model, wire, machine, settings, budget, not_loadable);
            answer.settings = holds.to_wire();
            let settings = &daemon.settings;
            let limits = settings.default_limits();
            library::sampling(&model, &mut answer, &settings.table(&model), limits);
            answer
                .facts
                .extend(daemon.settings.problem().map(|value| v1::CheckpointFact {
                    name: "warning".to_owned(),
                    value,
                }));
            drop(place);
            Ok(answer)
        });
        answer.await?
    }
}

/// The model, to be opened at the place that was checked.
fn opened_at(model: ModelName, place: PathBuf) -> ModelName {
    ModelName {
        checked: Some(place).filter(|place| model.path.as_ref() != Some(place)),
        ..model
    }
}

/// The name that lists use for the model of converted weights.
fn converted_weights_name(kept: &CachedWeights, entries: &[ModelEntry]) -> String {
    let Some(path) = &kept.checkpoint else {
        return match &*kept.model {
            // As the engine calls what lies inside the program.
            "embedded" => EMBEDDED_NAME.to_owned(),
            model => model.to_owned(),
        };
    };
    let mut whole = entries.iter().filter(|entry| !entry.is_partial);
    // It may have been opened without the links in its path.
    let known =
        whole.find(|entry| entry.path == *path || entry.folder == *path || entry.leads_to(path));
    known.map_or_else(|| kept.model.clone(), |entry| entry.name.clone())
}

/// Begins to load the configured model, whose path is saved once the load succeeded.
pub(crate) fn load_configured(
    daemon: &Arc<Daemon>,
    name: ModelName,
) -> Result<Arc<Operation>, Failure> {
    let request = LoadRequest::of(name.clone());
    let load = || daemon.models.load(request, Requester::Configuration);
    let record = LoadRecord {
        daemon: daemon.clone(),
        name,
        change: PlanOptions::default(),
        make_default: false,
    };
    daemon.writes.begin(load, |load| {
        is_loaded(load).then_some(move || record.write())
    })
}

/// Whether a load that has ended succeeded.
pub(super) fn is_loaded(load: &OperationStatus) -> bool {
    load.outcome().is_some()
}

/// What is saved of a load once it succeeded.
pub(super) struct LoadRecord {
    pub(super) daemon: Arc<Daemon>,
    pub(super) name: ModelName,
    /// Requested settings, which the next load uses, too.
    pub(super) change: PlanOptions,
    /// Whether the model is to be loaded at every start.
    pub(super) make_default: bool,
}

impl LoadRecord {
    /// Saves it. Returns what could not be saved.
    pub(super) fn write(&self) -> Option<Unsaved> {
        let library = &self.daemon.library;
        let path = self.name.path.as_ref();
        let path = path.and_then(|path| library.new_path(path));
        let default = self
            .make_default
            .then(|| library.default_record(&self.name));
        let saved = library.state().save(|state| {
            if let Some(path) = &path {
                path.put_in(state);
            }
            settings::remember(state, &self.name, &self.change);
            if default.is_some() {
                state.default_model = default;
            }
        });
        let (error, name) = (saved.err()?, &self.name.name);
        if self.make_default {
            let kept = format!("{name} is loaded, but is not the default after a restart");
            return Some(Unsaved::Failure(Failure::NotSaved { kept, error }));
        }
        if self.change.level.is_some() || self.change.budget.is_some() {
            return Some(settings_not_saved(name, error));
        }
        path.map(|_| Unsaved::Notice(format!("the path of {name} is not remembered: {error}")))
    }
}

/// What is said of settings that hold only until the daemon ends.
pub(super) fn settings_not_saved(model: &str, error: SaveError) -> Unsaved {
    let kept = format!("level and budget of {model} are in force, but not after a restart");
    match error {
        // It was said at the start, and all else goes on.
        SaveError::Locked { .. } => Unsaved::Notice(format!("{kept}: {error}")),
        SaveError::Io { .. } => Unsaved::Failure(Failure::NotSaved { kept, error }),
    }
}

#[cfg(test)]
mod tests;
