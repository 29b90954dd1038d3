//! Work and models, as lists show them.

use sluice_proto::v1::{Model, OperationKind};

use super::{
    super::jobs::{EndedWork, Work, WorkRow},
    DashboardState,
};

impl DashboardState {
    /// All work that runs, regardless of the filter; work that concerns the whole daemon comes first.
    #[must_use]
    pub fn running(&self) -> Vec<Work> {
        let snapshot = self.snapshot();
        let mut all: Vec<_> = snapshot
            .map_or(&[][..], |all| &all.operations)
            .iter()
            .collect();
        all.sort_by_key(|operation| match operation.kind() {
            OperationKind::Load => 0,
            OperationKind::Apply | OperationKind::Restore => 1,
            _ => 2,
        });
        let works = all.into_iter().filter(|operation| operation.is_active());
        let works = works.filter_map(Work::of);
        // Of an end, the daemon's list may tell before the next snapshot does.
        works
            .filter(|work| !self.jobs.lists(work.operation_id))
            .collect()
    }

    /// Work that runs and work that ended, if it matches the filter.
    #[must_use]
    pub fn works(&self) -> (Vec<Work>, Vec<&EndedWork>) {
        let wanted = self.filter.value().to_lowercase();
        let finds = |words: String| words.to_lowercase().contains(&wanted);
        let mut running = self.running();
        running.retain(|work| finds(format!("{} {}", work.kind, work.what)));
        let ended = self.jobs.ended.iter();
        let ended = ended.filter(|ended| finds(format!("{} {}", ended.kind, ended.what)));
        (running, ended.collect())
    }

    /// Models that match the filter.
    #[must_use]
    pub fn models(&self) -> Vec<&Model> {
        let wanted = self.filter.value().to_lowercase();
        let models = self.jobs.models.iter().flatten();
        models
            .filter(|model| {
                let state = model.state().to_string();
                let words = format!("{} {} {state}", model.name, model.family);
                words.to_lowercase().contains(&wanted)
            })
            .collect()
    }

    /// The selected model; `None` where none is listed.
    #[must_use]
    pub fn selected_model(&self) -> Option<&Model> {
        let models = self.models();
        let named = |model: &&&Model| Some(&model.name) == self.jobs.model.as_ref();
        // By name and not by index: the list may change between two answers of the daemon.
        let found = models.iter().find(named).or(models.first());
        found.copied()
    }

    /// The rows of the list of work, from top to bottom.
    #[must_use]
    pub fn work_rows(&self) -> Vec<WorkRow> {
        let (running, ended) = self.works();
        let running = running
            .into_iter()
            .map(|work| WorkRow::Running(work.operation_id));
        running
            .chain(ended.into_iter().map(|ended| WorkRow::Ended(ended.serial)))
            .collect()
    }

    /// Index of the selected row of the list of work; 0 if it is gone.
    #[must_use]
    pub fn selected_work(&self) -> usize {
        let rows = self.work_rows();
        let selected = self.jobs.selected.as_ref();
        let at = rows.iter().position(|row| Some(row) == selected);
        at.unwrap_or(0)
    }
}
