//! The mixes of a model that plans at level `optimized` use: found in the folder of converted weights, and kept open
//! while plans are made of them.

use std::sync::{Arc, Mutex, PoisonError, atomic::AtomicBool};

use sluice_checkpoint::weight_cache::{Mixes, OpenMix};
use sluice_plan::Plan;
use sluice_shared::{level::Level, mix::MixId, options::PlanSettings};
use sluice_weights::SourceTensor;

use crate::{error::EngineError, request::MatrixKey};

/// Mixes that are open at once: the one in force, the one that is switched to, and one that is asked about.
const OPEN_MAX: usize = 3;

/// The mixes of a model. An outline of one that is not loaded has none.
#[derive(Debug, Default)]
pub(crate) struct ModelMixes {
    mixes: Option<Mixes>,
    /// The last used one last.
    open: Mutex<Vec<NamedMix>>,
}

/// What level `optimized` computes with under this name.
#[derive(Debug, Clone)]
struct NamedMix {
    name: MixId,
    mix: OpenMix,
    /// The matrices that are taken from it; `None`: all that it has.
    only: Option<Arc<[MatrixKey]>>,
}

impl ModelMixes {
    /// The mixes in a folder.
    pub(super) fn new(mixes: Mixes) -> Self {
        Self {
            mixes: Some(mixes),
            open: Mutex::default(),
        }
    }

    /// The files of all mixes; `None` where there is no folder for them.
    pub(crate) fn files(&self) -> Option<&Mixes> {
        self.mixes.as_ref()
    }

    /// These settings with the mix that they come to now, where none is named: later plans keep to it.
    pub(super) fn settle(&self, settings: PlanSettings) -> PlanSettings {
        if settings.level != Level::Optimized || settings.effective_mix().is_some() {
            return settings;
        }
        PlanSettings {
            resolved_mix: self.latest(),
            ..settings
        }
    }

    fn latest(&self) -> Option<MixId> {
        self.mixes.as_ref()?.all().last().copied()
    }

    /// Adds to the model's tensors those of a mix; of the latest where none is named.
    ///
    /// # Errors
    /// When there is none, or its file cannot be used.
    pub(super) fn apply(
        &self,
        named: Option<MixId>,
        mut sources: Vec<SourceTensor>,
    ) -> Result<Vec<SourceTensor>, EngineError> {
        let NamedMix { mix, only, .. } = self.named(named)?;
        mix.apply(&mut sources);
        if let Some(only) = only {
            for source in &mut sources {
                let is_taken = only.contains(&(source.spec.layer, source.spec.part));
                source.mixed = source.mixed.take().filter(|_| is_taken);
            }
        }
        Ok(sources)
    }

    /// The mix that a plan takes weights from, if there is one.
    ///
    /// # Errors
    /// When its file cannot be used any more.
    pub(super) fn of_plan(&self, plan: &Plan) -> Result<Option<OpenMix>, EngineError> {
        let mut tensors = plan.groups.iter().flat_map(|group| &group.tensors);
        let number = tensors.find_map(|tensor| MixId::from_number(tensor.storage.mix()));
        let Some(mix) = number else {
            return Ok(None);
        };
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let known = open.iter().find(|known| known.mix.id == mix);
        if let Some(known) = known {
            return Ok(Some(known.mix.clone()));
        }
        drop(open);
        self.named(Some(mix)).map(|named| Some(named.mix))
    }

    /// Names a part of a mix: these matrices, and of all others the checkpoint's.
    ///
    /// # Errors
    /// When there is no such mix, or its file cannot be used.
    pub(super) fn select(&self, mix: MixId, only: Arc<[MatrixKey]>) -> Result<MixId, EngineError> {
        let whole = self.named(Some(mix))?;
        // Only this process knows the name, and only while the part is being measured.
        let name = MixId::of_text(&format!("{mix} {only:?}"));
        self.keep(NamedMix {
            name,
            only: Some(only),
            ..whole
        });
        Ok(name)
    }

    fn named(&self, named: Option<MixId>) -> Result<NamedMix, EngineError> {
        let mixes = self.mixes.as_ref().ok_or(EngineError::NoMix(named))?;
        let name = named.or_else(|| self.latest());
        let name = name.ok_or(EngineError::NoMix(None))?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = open.iter().position(|known| known.name == name) {
            let known = open.remove(index);
            if known.mix.container.check_all_unchanged().is_ok() {
                open.push(known.clone());
                return Ok(known);
            }
        }
        drop(open);
        let never = AtomicBool::new(false);
        let open = |mixes: &Mixes| mixes.open(name, &never, &mut |_, _| {});
        let mix = match open(mixes)? {
            None => open(&mixes.candidates())?,
            chosen => chosen,
        };
        let mix = mix.ok_or(EngineError::NoMix(Some(name)))?;
        let found = NamedMix {
            name,
            mix,
            only: None,
        };
        self.keep(found.clone());
        Ok(found)
    }

    fn keep(&self, mix: NamedMix) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|known| known.name != mix.name);
        open.push(mix);
        let excess = open.len().saturating_sub(OPEN_MAX);
        open.drain(..excess);
    }
}
