//! Loading a model and changing its level, and what is told meanwhile.

use std::{
    path::Path,
    sync::{Arc, mpsc},
};

use sluice_checkpoint::Source;
use sluice_engine::{
    ApplyEvent, CommandStage, Engine, EngineError, LoadEvent, LoadedModel, PlanOptions,
    PlanSettings,
};
use sluice_plan::Plan;
use sluice_shared::level::Level;

/// How a load went.
#[derive(Default)]
pub(crate) struct Loading {
    pub(crate) plans: Vec<Arc<Plan>>,
    pub(crate) notices: Vec<String>,
    /// Done and in all.
    pub(crate) conversion: Vec<(u64, u64)>,
}

pub(crate) fn load(
    engine: &Engine,
    source: &Path,
    settings: PlanSettings,
) -> (Loading, Result<Arc<LoadedModel>, EngineError>) {
    let (send, events) = mpsc::channel();
    let report = Box::new(move |event| send.send(event).unwrap());
    let source = Source::Folder(source.to_owned());
    engine.load(source, settings, Arc::default(), report);
    let mut loading = Loading::default();
    for event in events {
        match event {
            LoadEvent::Planned { plan, .. } => loading.plans.push(plan),
            LoadEvent::Notice(notice) => loading.notices.push(notice),
            LoadEvent::Progress {
                stage: CommandStage::Converting,
                done,
                total,
            } => loading.conversion.push((done, total)),
            LoadEvent::Progress { .. } => {}
            LoadEvent::Finished(result) => return (loading, result),
        }
    }
    panic!("every load ends with a result")
}

pub(crate) fn settings(level: Level, budget_bytes: Option<u64>) -> PlanSettings {
    PlanSettings {
        level,
        budget: budget_bytes.into(),
        ..PlanSettings::default()
    }
}

/// Goes to a level or budget; the plan that was in force in the end.
pub(crate) fn apply(engine: &Engine, change: PlanOptions) -> Result<Arc<Plan>, EngineError> {
    let (send, events) = mpsc::channel();
    engine.apply(change, Box::new(move |event| send.send(event).unwrap()));
    for event in events {
        if let ApplyEvent::Finished(result) = event {
            return result;
        }
    }
    panic!("every change ends with a result")
}
