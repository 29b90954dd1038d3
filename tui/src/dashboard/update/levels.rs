//! Keys of the levels page, and what the daemon tells of plans, changes and measurements.

mod choice;

use sluice_proto::v1::{
    FidelityMeasurement, ListMixesResponse, ModelState, Operation, Snapshot, operation,
};
use sluice_shared::{
    level::Level,
    preset::{PRESETS, Preset},
    units,
};
use tui_input::Input;

pub(super) use self::choice::{choose, default_budget, restore};
use super::{
    super::{
        event::{Effect, Event},
        hit_areas::HitTarget,
        keys::{Action, Mode, Page},
        levels::{
            ChangeStanding, LevelFidelity, LevelsPane, Optimization, POLICY_ROW, PlanChange,
            RunningMeasurement,
        },
        options::NAMES,
        state::{AfterYes, DashboardState},
    },
    navigation::{ask_plan_of, ask_plans, go},
    options,
};
use crate::plans;

/// Asks for the plans within another budget, or with `None` within the present one.
pub(super) fn try_budget(
    state: &mut DashboardState,
    budget_bytes: Option<u64>,
    effects: &mut Vec<Effect>,
) {
    state.levels.tried = budget_bytes;
    state.levels.list = LevelsPane::Levels;
    match state.page {
        Page::Levels => ask_plans(state, effects),
        _ => go(state, Page::Levels, effects),
    }
}

/// Compares a snapshot with the one before: plans are asked for again when model or settings changed.
pub(super) fn note(state: &mut DashboardState, snapshot: &Snapshot, effects: &mut Vec<Effect>) {
    let levels = &mut state.levels;
    if let Some(change) = &mut levels.change
        && !change.note(snapshot)
    {
        levels.change = None;
    }
    levels.presets.note(snapshot);
    let pid = |snapshot: &Snapshot| snapshot.daemon.as_ref().map(|server| server.process_id);
    let facts = |snapshot: &Snapshot| {
        let model = snapshot.model.as_ref();
        let model = model.map(|model| (model.name.clone(), model.state));
        (pid(snapshot), model, snapshot.settings.clone())
    };
    let before = state.latest.as_ref().map(|(before, _)| facts(before));
    let ready = |snapshot: &Snapshot| {
        let model = snapshot.model.as_ref()?;
        (model.state() == ModelState::Ready).then(|| model.name.clone())
    };
    let ready_before = state.latest.as_ref().map(|(before, _)| ready(before));
    let ready_after = ready(snapshot);
    if ready_after.is_some() && ready_before.is_some_and(|before| before != ready_after) {
        effects.push(Effect::ListMixes);
    }
    // Plans depend on the model and its settings; the first are asked for when the page is entered.
    if before.is_some_and(|before| before != facts(snapshot)) {
        choice::forget(state);
        ask_anew(state, effects);
    }
}

/// Drops plans for an earlier model or settings, and asks again if the page is open.
fn ask_anew(state: &mut DashboardState, effects: &mut Vec<Effect>) {
    state.levels.answers.clear();
    if state.page == Page::Levels {
        ask_plans(state, effects);
    }
}

/// Takes events about levels.
pub(super) fn take(state: &mut DashboardState, event: Event, effects: &mut Vec<Effect>) {
    match event {
        Event::Planned { level, answer } => {
            state.levels.answers.insert(level, answer);
        }
        Event::Converting(progress) => state.levels.converting = progress,
        Event::Predicted { serial, answer } => choice::predicted(state, serial, answer, effects),
        Event::Changing {
            serial,
            plan,
            before,
        } => {
            let mut change = PlanChange::asked(serial);
            let latest = state.latest.as_ref().map(|(latest, _)| &**latest);
            change.planned(&plan, &before, latest);
            state.levels.change = Some(change);
            state.levels.converting = None;
            let peak = units::bytes(plan.peak_bytes);
            let pass = plans::pass_time(&plan);
            state.tell(format!(
                "level {}: peak {peak}, a pass {pass}, predicted",
                plan.level()
            ));
        }
        Event::Applied {
            serial,
            applied,
            elapsed_ms,
        } => {
            state.levels.converting = None;
            // What was tried is in force now, so plans are for the present budget again.
            state.levels.tried = None;
            let change = state.levels.change.take();
            let change = change.filter(|change| change.serial() == serial);
            let mut change = change.unwrap_or_else(|| PlanChange::asked(serial));
            change.applied(&applied, elapsed_ms);
            state.levels.change = Some(change);
            let elapsed = units::duration_ms(elapsed_ms);
            let held = units::bytes(applied.device_bytes);
            let level = applied.plan.unwrap_or_default().level();
            state.tell(format!(
                "level {level} is in force after {elapsed}: {held} held"
            ));
            ask_anew(state, effects);
        }
        Event::ApplyFailed { serial, message } => failed(state, serial, message),
        Event::Measuring {
            request_id,
            done,
            total,
        } => {
            if let Some(measuring) = &mut state.levels.measuring {
                measuring.request_id = Some(request_id);
                (measuring.done, measuring.total) = (done, total);
            }
        }
        Event::Measured(result) => {
            let model = state.present_model();
            let result = result.and_then(|result| {
                let fidelity = model.and_then(|model| LevelFidelity::of(&result, model));
                fidelity.ok_or_else(|| "the measurement is of an unknown model or level".into())
            });
            match result {
                Ok(fidelity) => {
                    state.tell(format!("{}: {}", fidelity.level, fidelity.words()));
                    state.add_fidelity(fidelity);
                }
                Err(message) => state.warn(message),
            }
            state.levels.measuring = None;
        }
        Event::MeasuringStopped => {
            state.tell("the measurement was cancelled");
            state.levels.measuring = None;
        }
        _ => {}
    }
}

/// Takes the daemon's fidelity measurements, of all clients.
pub(super) fn learn(state: &mut DashboardState, measurements: &[FidelityMeasurement]) {
    for measurement in measurements {
        let model = (measurement.model.clone(), measurement.parameters);
        let result = measurement.result.as_ref();
        if let Some(fidelity) = result.and_then(|result| LevelFidelity::of(result, model)) {
            state.add_fidelity(fidelity);
        }
    }
}

/// Takes the optimizations among the daemon's operations.
pub(super) fn learn_optimizations(
    state: &mut DashboardState,
    operations: &[Operation],
    effects: &mut Vec<Effect>,
) {
    let made = |operation: &&Operation| {
        matches!(operation.outcome, Some(operation::Outcome::Optimize(_)))
            && !operation.model.is_empty()
    };
    let latest = operations
        .iter()
        .filter(made)
        .map(|operation| operation.operation_id)
        .max();
    let mut ended: Vec<_> = operations
        .iter()
        .filter_map(|operation| Some((operation, Optimization::of(operation)?)))
        .collect();
    // The latest of each model stays.
    ended.sort_by_key(|(operation, _)| operation.operation_id);
    // What is known of earlier ones the daemon's list of mixes may have replaced since.
    ended.retain(|(operation, _)| Some(operation.operation_id) > state.levels.latest_mix);
    for (operation, known) in ended {
        let all = &mut state.levels.optimizations;
        let before = all.remove(&operation.model).map(|before| before.curve);
        all.insert(operation.model.clone(), known.with_curve(before));
    }
    if latest > state.levels.latest_mix {
        state.levels.latest_mix = latest;
        // A mix that is not put in force changes no settings, but what level `optimized` leads to.
        if state.page == Page::Levels {
            ask_plan_of(state, Level::Optimized, effects);
        }
        if state.is_connected() {
            effects.push(Effect::ListMixes);
        }
    }
}

/// Takes the mixes that the daemon keeps: also those of optimizations that it no longer remembers.
pub(super) fn learn_mixes(
    state: &mut DashboardState,
    kept: &ListMixesResponse,
    effects: &mut Vec<Effect>,
) {
    // None is loaded, so nothing is said of any.
    if kept.model.is_empty() {
        return;
    }
    let all = &mut state.levels.optimizations;
    let before = all.get(&kept.model).map(|known| known.mix);
    let known = Optimization::last_of(&kept.mixes);
    let after = known.as_ref().map(|known| known.mix);
    match known {
        Some(known) => all.insert(kept.model.clone(), known),
        None => all.remove(&kept.model),
    };
    if before != after && state.page == Page::Levels {
        ask_plan_of(state, Level::Optimized, effects);
    }
}

/// Takes the failure of a change. An earlier change that is under way goes on and stays shown: the daemon refused the later
/// one alone.
fn failed(state: &mut DashboardState, serial: u64, message: String) {
    let levels = &mut state.levels;
    let (is_later, is_under_way) = match &levels.change {
        // A newer change has replaced this one already, and its figures are the ones to show.
        Some(change) if change.serial() > serial => return,
        Some(change) => (
            change.serial() < serial,
            change.standing() == ChangeStanding::UnderWay,
        ),
        None => (true, false),
    };
    if !(is_later && is_under_way) {
        levels.converting = None;
        let change = levels.change.take().filter(|_| !is_later);
        let mut change = change.unwrap_or_else(|| PlanChange::asked(serial));
        change.failed(message.clone());
        levels.change = Some(change);
    }
    state.warn(message);
}

/// Measures the fidelity of a level, unless it is lossless by definition.
pub(super) fn measure(state: &mut DashboardState, level: Level, effects: &mut Vec<Effect>) {
    if !state.is_connected() {
        state.warn("not connected; nothing is measured");
    } else if let Some(measuring) = &state.levels.measuring {
        let words = format!(
            "{} is being measured; x on this page cancels it",
            measuring.level
        );
        state.warn(words);
    } else if state.is_lossless(level) == Some(true) {
        state.tell(format!(
            "{level} gives the checkpoint's own weights: the difference is 0 by definition"
        ));
    } else {
        let level = state.comes_to(level).unwrap_or(level);
        state.levels.measuring = Some(RunningMeasurement {
            level,
            request_id: None,
            done: 0,
            total: 0,
        });
        state.tell(format!("measuring {level}"));
        effects.push(Effect::Measure(level));
    }
}

/// Asks whether to cancel the measurement that runs.
pub(super) fn cancel(state: &mut DashboardState) {
    let Some(measuring) = &state.levels.measuring else {
        state.warn("no measurement runs");
        return;
    };
    let text = format!("Cancel the measurement of {}?", measuring.level);
    let stop = measuring.request_id.map(Effect::Cancel);
    let stop = stop.unwrap_or(Effect::StopMeasuring);
    state.ask(text, vec![stop], AfterYes::Nothing);
}

pub(super) fn act(state: &mut DashboardState, action: Action, effects: &mut Vec<Effect>) {
    match (action, state.levels.list) {
        (Action::Up, _) => step(state, -1),
        (Action::Down, _) => step(state, 1),
        (Action::NextPane, LevelsPane::Levels) => state.levels.list = LevelsPane::Presets,
        (Action::NextPane, LevelsPane::Presets) => state.levels.list = LevelsPane::Levels,
        (Action::Budget, _) => {
            state.command = Input::new("try ".to_owned());
            state.modes.push(Mode::Command);
        }
        (Action::Measure, LevelsPane::Levels) => measure(state, state.level(), effects),
        (Action::Measure, LevelsPane::Presets) => {
            state.tell("requests measure the presets: their results are shown here");
        }
        (Action::Enter, LevelsPane::Presets) => choose_preset(state, effects),
        (Action::Enter | Action::Restore, _) if !state.is_connected() => {
            state.warn("not connected; the level stays");
        }
        (Action::Restore, _) => restore(state, effects),
        (Action::Enter, LevelsPane::Levels) => choose_selected(state, effects),
        _ => {}
    }
}

fn step(state: &mut DashboardState, by: isize) {
    let last = Level::ALL.len() - 1;
    match state.levels.list {
        LevelsPane::Levels => {
            let present = state.level();
            let at = Level::ALL.iter().position(|level| *level == present);
            let at = at.unwrap_or(0).saturating_add_signed(by).min(last);
            state.levels.selected = Some(at);
        }
        LevelsPane::Presets => {
            let at = state.levels.preset.saturating_add_signed(by);
            state.levels.preset = at.min(POLICY_ROW);
        }
    }
}

/// Applies the selected level, with the budget that is tried.
fn choose_selected(state: &mut DashboardState, effects: &mut Vec<Effect>) {
    let (level, budget_bytes) = (state.level(), state.levels.tried);
    choose(state, Some(level), budget_bytes, effects);
}

/// Sets the selected preset for our requests, or opens the form for any policy. Asks first if answers will no longer be the
/// reference's.
fn choose_preset(state: &mut DashboardState, effects: &mut Vec<Effect>) {
    let Some(row) = PRESETS.get(state.levels.preset) else {
        let field = NAMES.iter().position(|name| *name == "policy");
        state.options.field = field.unwrap_or(0);
        return options::open(state, effects);
    };
    let present = state.options.preset();
    let gives_up =
        row.preset != Preset::Exact && present.is_none_or(|preset| preset == Preset::Exact);
    if present == Some(row.preset) {
        state.tell(format!("our next request takes {} already", row.name));
    } else if gives_up {
        let text = format!(
            "Answers will differ from the reference: {}. Use {} from the next request on?",
            row.summary, row.name
        );
        state.ask(text, vec![], AfterYes::Preset(row.preset));
    } else {
        set_preset(state, row.preset);
    }
}

/// Sets the preset of our requests.
pub(super) fn set_preset(state: &mut DashboardState, preset: Preset) {
    match state.options.set("preset", preset.name()) {
        Ok(()) => state.tell(format!("preset {preset} applies from the next request on")),
        Err(problem) => state.warn(problem),
    }
}

/// Selects what was clicked.
pub(super) fn click(state: &mut DashboardState, target: HitTarget) {
    match target {
        HitTarget::Row(row) => {
            state.levels.list = LevelsPane::Levels;
            state.levels.selected = Some(row.min(Level::ALL.len() - 1));
        }
        HitTarget::OtherRow(row) => {
            state.levels.list = LevelsPane::Presets;
            state.levels.preset = row.min(POLICY_ROW);
        }
        _ => {}
    }
}
