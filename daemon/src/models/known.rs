//! The models that are loaded, load, failed or sleep: what is read of them and changed at once.

use sluice_proto::v1;

use super::{Known, ServingModel, SleepingModel};
use crate::{model_name::ModelName, translate};

impl Known {
    /// The loaded models, in the order in which they were loaded.
    pub(super) fn held(&self) -> impl Iterator<Item = &ServingModel> {
        self.loaded.iter().filter(|model| model.is_held())
    }

    /// The loaded model of this name.
    pub(super) fn find(&self, name: &ModelName) -> Option<&ServingModel> {
        self.held().find(|model| model.name.is_same(name))
    }

    /// The model that requests mean which name none, if it is loaded.
    pub(super) fn present(&self) -> Option<&ServingModel> {
        self.find(self.present.as_ref()?)
    }

    pub(super) fn sleeping(&self, name: &ModelName) -> Option<&SleepingModel> {
        self.asleep.iter().find(|asleep| asleep.name.is_same(name))
    }

    /// Whether it is loaded, or sleeps until a request.
    pub(super) fn has(&self, name: &ModelName) -> bool {
        self.find(name).is_some() || self.sleeping(name).is_some()
    }

    /// Pins a loaded model, which is not read again for that, and is the one that somebody loaded last.
    pub(super) fn pin(&mut self, name: &ModelName) -> v1::LoadResult {
        let mut loaded = self.loaded.iter_mut();
        let Some(model) = loaded.find(|model| model.is_held() && model.name.is_same(name)) else {
            return v1::LoadResult::default();
        };
        (model.is_pinned, model.is_chosen) = (true, true);
        self.present = Some(name.clone());
        let engine = model.engine.upgrade();
        let in_force = engine.and_then(|engine| engine.in_force());
        let plan = in_force.map(|in_force| translate::plan::plan(&in_force.plan, &name.name));
        v1::LoadResult {
            plan,
            model: Some(model.to_wire()),
        }
    }

    /// The name of a model that is about to be loaded: its path, where another one has its short name already.
    pub(super) fn own_name(&self, name: ModelName) -> ModelName {
        let sleeping = self.asleep.iter().map(|asleep| &asleep.name);
        let mut others = self.held().map(|model| &model.name).chain(sleeping);
        match (
            others.any(|other| other.name == name.name && !other.is_same(&name)),
            &name.path,
        ) {
            (true, Some(path)) => ModelName {
                name: path.to_string_lossy().into_owned(),
                ..name
            },
            _ => name,
        }
    }

    /// Forgets those that engines have let go.
    pub(super) fn forget_gone(&mut self) -> Vec<ServingModel> {
        let is_gone = |model: &mut ServingModel| !model.is_held();
        self.loaded.extract_if(.., is_gone).collect()
    }
}
