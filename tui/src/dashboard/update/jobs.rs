//! Keys of the jobs page, and what the daemon tells of work and models.

use sluice_proto::v1::{ModelOrigin, ModelState, OperationKind, Snapshot};
use tui_input::Input;

use super::{
    super::{
        event::Effect,
        hit_areas::HitTarget,
        jobs::{JobsPane, WorkRow},
        keys::{Action, Mode, Page},
        state::{AfterYes, DashboardState},
    },
    navigation::list_models,
};

/// Compares a snapshot with the one before. Returns whether the daemon must be asked how work ended.
pub(super) fn note(
    state: &mut DashboardState,
    snapshot: &Snapshot,
    effects: &mut Vec<Effect>,
) -> bool {
    let Some((before, _)) = &state.latest else {
        return false;
    };
    let asks = state.jobs.compare(before, snapshot);
    let model = |snapshot: &Snapshot| {
        let model = snapshot.model.as_ref();
        model.map(|model| (model.name.clone(), model.state))
    };
    // Loads, downloads and work on files change the list of models.
    let ids = |snapshot: &Snapshot| -> Vec<u64> {
        let all = snapshot.operations.iter();
        let all = all.filter(|operation| !operation.kind().is_request());
        all.map(|operation| operation.operation_id).collect()
    };
    let is_other = model(before) != model(snapshot) || ids(before) != ids(snapshot);
    if state.page == Page::Jobs && is_other {
        list_models(state, effects);
    }
    asks
}

/// Records the progress of running work.
pub(super) fn see(state: &mut DashboardState) {
    let running = state.running();
    let now_ms = state.now_ms;
    state.jobs.see(&running, now_ms);
}

pub(super) fn act(state: &mut DashboardState, action: Action, effects: &mut Vec<Effect>) {
    match (action, state.jobs.list) {
        (Action::Up, _) => step(state, -1),
        (Action::Down, _) => step(state, 1),
        (Action::NextPane, JobsPane::Work) => state.jobs.list = JobsPane::Models,
        (Action::NextPane, JobsPane::Models) => state.jobs.list = JobsPane::Work,
        (Action::Pull, _) => {
            let partial = state.selected_model().filter(|model| {
                state.jobs.list == JobsPane::Models && model.state() == ModelState::Partial
            });
            let name = partial.map_or("", |model| &model.name);
            state.command = Input::new(format!("pull {name}"));
            state.modes.push(Mode::Command);
        }
        (Action::Unload, _) => unload(state),
        (Action::Enter, JobsPane::Work) => {
            state.jobs.list = JobsPane::Models;
            state.tell("Enter loads the selected model");
        }
        (Action::Enter, JobsPane::Models) => load_selected(state, effects),
        _ => {}
    }
}

fn step(state: &mut DashboardState, by: isize) {
    match state.jobs.list {
        JobsPane::Work => {
            let mut rows = state.work_rows();
            let at = state.selected_work().saturating_add_signed(by);
            let at = at.min(rows.len().saturating_sub(1));
            state.jobs.selected = (at < rows.len()).then(|| rows.swap_remove(at));
        }
        JobsPane::Models => {
            let models = state.models();
            let selected = state.selected_model().map(|model| &model.name);
            let at = models
                .iter()
                .position(|model| Some(&model.name) == selected);
            let at = at.unwrap_or(0).saturating_add_signed(by);
            let at = at.min(models.len().saturating_sub(1));
            state.jobs.model = models.get(at).map(|model| model.name.clone());
        }
    }
}

/// Loads the selected model, unless it is loaded or cannot be.
fn load_selected(state: &mut DashboardState, effects: &mut Vec<Effect>) {
    let Some(model) = state.selected_model() else {
        state.warn("no model is selected");
        return;
    };
    let name = model.name.clone();
    match (model.state(), model.origin()) {
        (ModelState::Ready, _) => state.tell(format!("{name} is loaded already")),
        (ModelState::Loading, _) => state.tell(format!("{name} is being loaded")),
        (ModelState::Pulling, _) => state.warn(format!("{name} is still being downloaded")),
        (ModelState::Partial, _) => {
            state.warn(format!("{name} is incomplete; p resumes the download"));
        }
        // The daemon names a model that was loaded by path itself, and cannot find it by that name.
        (_, ModelOrigin::Path) => load(state, model.path.clone(), effects),
        _ => load(state, name, effects),
    }
}

/// Loads a model by its name or path; asks first where requests run or wait.
pub(super) fn load(state: &mut DashboardState, model: String, effects: &mut Vec<Effect>) {
    let queue = state.present().and_then(|snapshot| snapshot.queue);
    let active = queue.map_or(0, |queue| queue.running.saturating_add(queue.waiting));
    if !state.is_connected() {
        state.warn("not connected; nothing is loaded");
    } else if active > 0 {
        let count = match active {
            1 => "1 request runs or waits".to_owned(),
            count => format!("{count} requests run or wait"),
        };
        let text = format!("Load {model}? {count}; requests that wait are refused.");
        state.ask(text, vec![Effect::Load(model)], AfterYes::Nothing);
    } else {
        state.tell(format!("loading {model}"));
        effects.push(Effect::Load(model));
    }
}

/// Asks whether to let the model go.
pub(super) fn unload(state: &mut DashboardState) {
    if state.is_connected() {
        let words = "Unload the model? Requests that wait are refused.";
        state.ask(words, vec![Effect::Unload], AfterYes::Nothing);
    } else {
        state.warn("not connected; the model stays");
    }
}

/// Asks whether to stop the selected work, or the load or download of the selected model.
pub(super) fn cancel(state: &mut DashboardState) {
    let operation_id = match state.jobs.list {
        JobsPane::Work => match state.work_rows().into_iter().nth(state.selected_work()) {
            Some(WorkRow::Running(operation_id)) => Some(operation_id),
            Some(WorkRow::Ended(_)) => return state.warn("that has ended already"),
            None => None,
        },
        JobsPane::Models => state
            .selected_model()
            .filter(|model| matches!(model.state(), ModelState::Loading | ModelState::Pulling))
            .and_then(|model| model.operation_id),
    };
    let Some(operation_id) = operation_id else {
        return state.warn("nothing that runs is selected");
    };
    let operations = (state.snapshot()).map_or(&[][..], |snapshot| &snapshot.operations);
    let mut all = operations.iter();
    let Some(operation) = all.find(|operation| operation.operation_id == operation_id) else {
        return state.warn("that has ended already");
    };
    let text = match operation.kind() {
        OperationKind::Apply | OperationKind::Restore => {
            return state.warn("a switch has no cancel; another level takes over from it");
        }
        OperationKind::Load => format!("Cancel the load of {}?", operation.model),
        OperationKind::Pull => {
            format!("Stop the download of {}? What came stays.", operation.model)
        }
        kind if kind.is_on_files() => format!("Cancel job {operation_id}?"),
        _ => format!("Cancel request {operation_id}?"),
    };
    state.ask(text, vec![Effect::Cancel(operation_id)], AfterYes::Nothing);
}

/// What a press of the mouse does.
pub(super) fn click(state: &mut DashboardState, target: HitTarget) {
    match target {
        HitTarget::Row(at) => {
            state.jobs.list = JobsPane::Work;
            state.jobs.selected = state.work_rows().into_iter().nth(at);
        }
        HitTarget::OtherRow(at) => {
            state.jobs.list = JobsPane::Models;
            state.jobs.model = state.models().get(at).map(|model| model.name.clone());
        }
        _ => {}
    }
}
