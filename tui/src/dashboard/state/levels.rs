//! The level in force and the selected one, and the fidelity of each.

use sluice_proto::v1::{Dtype, Snapshot};
use sluice_shared::{level::Level, mix::MixId};

use super::{
    super::levels::{FIDELITIES_MAX, LevelFidelity, Optimization},
    DashboardState,
};

impl DashboardState {
    /// The level that is selected on the levels page.
    #[must_use]
    pub fn level(&self) -> Level {
        let in_force = self.level_in_force();
        let level = self.levels.selected.and_then(|at| Level::ALL.get(at));
        level.copied().or(in_force).unwrap_or(Level::ALL[0])
    }

    /// The level of the settings in force, which may be `auto`; `None` while it is not known.
    #[must_use]
    pub fn level_in_force(&self) -> Option<Level> {
        self.snapshot()?.settings.as_ref()?.level().checked()
    }

    /// The measured fidelity of a level of the present model; for `auto`, of the level that it resolves to.
    #[must_use]
    pub fn fidelity_of(&self, level: Level) -> Option<&LevelFidelity> {
        let level = self.comes_to(level)?;
        let (model, parameters) = self.model()?;
        self.fidelity.iter().find(|known| {
            known.level == level && known.model == model && known.parameters == parameters
        })
    }

    /// The mix that was chosen last for the present model, if the daemon keeps one.
    #[must_use]
    pub fn optimization(&self) -> Option<&Optimization> {
        let (model, _) = self.model()?;
        self.levels.optimizations.get(&model)
    }

    /// Whether the mix of the present model's optimization is in force.
    #[must_use]
    pub fn is_mix_in_force(&self, known: &Optimization) -> bool {
        let settings = self
            .present()
            .and_then(|snapshot| snapshot.settings.as_ref());
        let options = settings.and_then(|settings| settings.options.as_ref());
        // A daemon that says none may have taken any.
        let mix = options.and_then(|options| MixId::from_number(options.mix));
        self.level_in_force() == Some(Level::Optimized) && mix == Some(known.mix)
    }

    /// Whether outputs at a level are exactly those of the checkpoint's own weights; `None` where that is not known.
    #[must_use]
    pub fn is_lossless(&self, level: Level) -> Option<bool> {
        match self.levels.plan(level) {
            Some(plan) => Some(plan.is_lossless),
            None => level.is_lossless(),
        }
    }

    /// Whether outputs of lossless weights are rounded all the same, since the CPU multiplies in bf16.
    #[must_use]
    pub fn rounds_to_bf16(&self) -> bool {
        let device = self
            .snapshot()
            .and_then(|snapshot| snapshot.device.as_ref());
        device.is_some_and(|device| device.compute_dtype() == Dtype::Bf16)
    }

    /// The level that `auto` resolves to, or the level itself; `None` where that is not known.
    pub(in super::super) fn comes_to(&self, level: Level) -> Option<Level> {
        match level {
            Level::Auto => self.levels.plan(level)?.level().checked(),
            level => Some(level),
        }
    }

    /// Name and parameters of the model that is shown, to tell it from others.
    fn model(&self) -> Option<(String, u64)> {
        model(self.present()?)
    }

    /// The same of the model that is loaded at present.
    pub(in super::super) fn present_model(&self) -> Option<(String, u64)> {
        model(self.present()?)
    }

    /// Keeps a measurement, in the place of an earlier one of the same level and model.
    pub(in super::super) fn add_fidelity(&mut self, fidelity: LevelFidelity) {
        self.fidelity.retain(|known| {
            (&known.model, known.parameters, known.level)
                != (&fidelity.model, fidelity.parameters, fidelity.level)
        });
        self.fidelity.push(fidelity);
        let excess = self.fidelity.len().saturating_sub(FIDELITIES_MAX);
        self.fidelity.drain(..excess);
    }
}

fn model(snapshot: &Snapshot) -> Option<(String, u64)> {
    let model = snapshot.model.as_ref()?;
    let shape = model.shape.as_ref().map(|shape| shape.parameters);
    // Where the number of parameters is not known, the name alone tells models apart.
    let parameters = shape.or(model.parameters).unwrap_or(0);
    Some((model.name.clone(), parameters))
}
