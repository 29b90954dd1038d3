//! The chooser: what each level would lead to, beside what is in force, and what each position of the dial stands for.

mod about;
mod choice;
mod dial;
mod table;

pub(in super::super) use choice::{choose, default_budget, restore};

use ratatui::layout::{Constraint, Layout, Rect};
use sluice_proto::v1::{FidelityMeasurement, PlanRequest, Snapshot};
use sluice_shared::{
    dial::{DIALS, Dial},
    level::Level,
    units,
};
use tui_input::Input;

use super::{
    super::{
        event::{Effect, Event},
        jobs::{Outcome, Work},
        keys::{Action, Mode, Page},
        levels::{Change, Fidelity, List, Measuring, Standing},
        options::NAMES,
        state::{State, Then},
        update::go,
        view::{Screen, Shape, Target},
    },
    options,
};
use crate::plans;

/// Asks what each level would lead to.
pub(super) fn enter(state: &mut State, effects: &mut Vec<Effect>) {
    if state.is_connected() {
        state.levels.answers.clear();
        let request = PlanRequest {
            budget_bytes: state.levels.tried,
            ..Default::default()
        };
        effects.push(Effect::AskPlans(Level::ALL.to_vec(), Box::new(request)));
    }
}

/// Asks what the levels would lead to within another budget, or within the present one again.
pub(in super::super) fn try_budget(
    state: &mut State,
    budget_bytes: Option<u64>,
    effects: &mut Vec<Effect>,
) {
    state.levels.tried = budget_bytes;
    state.levels.list = List::Levels;
    match state.page {
        Page::Levels => enter(state, effects),
        _ => go(state, Page::Levels, effects),
    }
}

/// Looks at what changed since the snapshot before.
pub(in super::super) fn note(state: &mut State, snapshot: &Snapshot, effects: &mut Vec<Effect>) {
    let levels = &mut state.levels;
    if let Some(change) = &mut levels.change
        && !change.note(snapshot)
    {
        levels.change = None;
    }
    levels.dials.note(snapshot);
    let pid = |snapshot: &Snapshot| snapshot.daemon.as_ref().map(|server| server.process_id);
    let facts = |snapshot: &Snapshot| {
        let model = snapshot.model.as_ref();
        let model = model.map(|model| (model.name.clone(), model.state));
        (pid(snapshot), model, snapshot.settings.clone())
    };
    let before = state.latest.as_ref().map(|(before, _)| facts(before));
    // A daemon that was started anew numbers its requests anew.
    if before
        .as_ref()
        .is_some_and(|(before, ..)| *before != pid(snapshot))
    {
        levels.measured = None;
    }
    // Answers are for a model and its settings; the first are asked for when the page is entered.
    if before.is_some_and(|before| before != facts(snapshot)) {
        choice::forget(state);
        ask_anew(state, effects);
    }
}

/// Lets go of answers that are for something else than what is there now.
fn ask_anew(state: &mut State, effects: &mut Vec<Effect>) {
    state.levels.answers.clear();
    if state.page == Page::Levels {
        enter(state, effects);
    }
}

/// Takes in what the daemon says of levels.
pub(in super::super) fn take(state: &mut State, event: Event, effects: &mut Vec<Effect>) {
    match event {
        Event::Planned { level, answer } => {
            state.levels.answers.insert(level, answer);
        }
        Event::Converting(progress) => state.levels.converting = progress,
        Event::Foreseen { serial, answer } => choice::foreseen(state, serial, answer, effects),
        Event::Changing {
            serial,
            plan,
            before,
        } => {
            let mut change = Change::asked(serial);
            let latest = state.latest.as_ref().map(|(latest, _)| &**latest);
            change.planned(&plan, &before, latest);
            state.levels.change = Some(change);
            state.levels.converting = None;
            let peak = units::bytes(plan.peak_bytes);
            let pass = plans::pass_time(&plan);
            state.tell(format!(
                "level {}: peak {peak}, a pass {pass}, predicted",
                plan.level
            ));
        }
        Event::Applied { serial, applied } => {
            state.levels.converting = None;
            state.levels.tried = None;
            let change = state.levels.change.take();
            let change = change.filter(|change| change.serial() == serial);
            let mut change = change.unwrap_or_else(|| Change::asked(serial));
            change.applied(&applied);
            state.levels.change = Some(change);
            let elapsed = units::duration_ms(applied.elapsed_ms);
            let held = units::bytes(applied.device_bytes);
            let level = applied.plan.map_or_else(String::new, |plan| plan.level);
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
                let fidelity = model.and_then(|model| Fidelity::of(&result, model));
                fidelity
                    .ok_or_else(|| "what was measured is of no model or level known here".into())
            });
            let outcome = match result {
                Ok(fidelity) => {
                    let words = fidelity.words();
                    state.tell(format!("{}: {words}", fidelity.level));
                    state.keep_fidelity(fidelity);
                    Outcome::Done(words)
                }
                Err(message) => {
                    state.warn(message.clone());
                    Outcome::Failed(message)
                }
            };
            end_measuring(state, outcome);
        }
        Event::MeasuringStopped => {
            state.tell("the measurement was cancelled");
            end_measuring(state, Outcome::Cancelled);
        }
        _ => {}
    }
}

/// Takes what the daemon knows of fidelity, whoever measured it.
pub(in super::super) fn learn(state: &mut State, measurements: &[FidelityMeasurement]) {
    for measurement in measurements {
        let model = (measurement.model.clone(), measurement.parameters);
        let result = measurement.result.as_ref();
        if let Some(fidelity) = result.and_then(|result| Fidelity::of(result, model)) {
            state.keep_fidelity(fidelity);
        }
    }
}

/// Takes why a change can't be had; another that is on its way goes on.
fn failed(state: &mut State, serial: u64, message: String) {
    let levels = &mut state.levels;
    let (is_later, is_under_way) = match &levels.change {
        Some(change) if change.serial() > serial => return,
        Some(change) => (
            change.serial() < serial,
            change.standing() == Standing::UnderWay,
        ),
        None => (true, false),
    };
    if !(is_later && is_under_way) {
        levels.converting = None;
        let change = levels.change.take().filter(|_| !is_later);
        let mut change = change.unwrap_or_else(|| Change::asked(serial));
        change.failed(message.clone());
        levels.change = Some(change);
    }
    state.warn(message);
}

fn end_measuring(state: &mut State, outcome: Outcome) {
    if let Some(measuring) = state.levels.measuring.take() {
        state.levels.measured = measuring.request_id;
        state.jobs.end(Work::of_measurement(&measuring), outcome);
    }
}

/// Measures how faithful a level is, where that isn't plain.
pub(in super::super) fn measure(state: &mut State, level: Level, effects: &mut Vec<Effect>) {
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
        state.levels.measuring = Some(Measuring {
            level,
            request_id: None,
            done: 0,
            total: 0,
        });
        state.tell(format!("measuring {level}"));
        effects.push(Effect::Measure(level));
    }
}

/// Asks whether to stop the measurement that runs.
pub(in super::super) fn cancel(state: &mut State) {
    let Some(measuring) = &state.levels.measuring else {
        state.warn("no measurement runs");
        return;
    };
    let text = format!("Cancel the measurement of {}?", measuring.level);
    let stop = measuring.request_id.map(Effect::Cancel);
    let stop = stop.unwrap_or(Effect::StopMeasuring);
    state.ask(text, vec![stop], Then::Nothing);
}

pub(super) fn act(state: &mut State, action: Action, effects: &mut Vec<Effect>) {
    match (action, state.levels.list) {
        (Action::Up, _) => step(state, -1),
        (Action::Down, _) => step(state, 1),
        (Action::NextPane, List::Levels) => state.levels.list = List::Dial,
        (Action::NextPane, List::Dial) => state.levels.list = List::Levels,
        (Action::Budget, _) => {
            state.command = Input::new("try ".to_owned());
            state.modes.push(Mode::Command);
        }
        (Action::Measure, List::Levels) => measure(state, state.level(), effects),
        (Action::Measure, List::Dial) => {
            state.tell("requests measure the dial: what they came to stands here");
        }
        (Action::Enter, List::Dial) => choose_dial(state, effects),
        (Action::Enter | Action::Restore, _) if !state.is_connected() => {
            state.warn("not connected; the level stays");
        }
        (Action::Restore, _) => restore(state, effects),
        (Action::Enter, List::Levels) => choose_selected(state, effects),
        _ => {}
    }
}

fn step(state: &mut State, by: isize) {
    let last = Level::ALL.len() - 1;
    match state.levels.list {
        List::Levels => {
            let present = state.level();
            let at = Level::ALL.iter().position(|level| *level == present);
            let at = at.unwrap_or(0).saturating_add_signed(by).min(last);
            state.levels.selected = Some(at);
        }
        List::Dial => {
            let at = state.levels.dial.saturating_add_signed(by);
            state.levels.dial = at.min(dial::POLICY_ROW);
        }
    }
}

/// Puts the selected level in force, with the budget that is tried.
fn choose_selected(state: &mut State, effects: &mut Vec<Effect>) {
    let (level, budget_bytes) = (state.level(), state.levels.tried);
    choose(state, Some(level), budget_bytes, effects);
}

/// Has our requests take the selected position of the dial, or opens the form for any policy; asks first where answers will
/// differ.
fn choose_dial(state: &mut State, effects: &mut Vec<Effect>) {
    let Some(row) = DIALS.get(state.levels.dial) else {
        let field = NAMES.iter().position(|name| *name == "policy");
        state.options.field = field.unwrap_or(0);
        return options::open(state, effects);
    };
    let present = state.options.dial();
    let gives_up = row.dial != Dial::Exact && present.is_none_or(|dial| dial == Dial::Exact);
    if present == Some(row.dial) {
        state.tell(format!("our next request takes {} already", row.name));
    } else if gives_up {
        let text = format!(
            "Answers are no longer those of the reference: {}. Have our requests take {} from the next on?",
            row.summary, row.name
        );
        state.ask(text, vec![], Then::Dial(row.dial));
    } else {
        set_dial(state, row.dial);
    }
}

/// Has our requests take a position of the dial.
pub(in super::super) fn set_dial(state: &mut State, dial: Dial) {
    match state.options.set("dial", dial.name()) {
        Ok(()) => state.tell(format!("our requests take {dial} from the next on")),
        Err(problem) => state.warn(problem),
    }
}

/// What a press of the mouse does.
pub(super) fn click(state: &mut State, target: Target) {
    match target {
        Target::Row(row) => {
            state.levels.list = List::Levels;
            state.levels.selected = Some(row.min(Level::ALL.len() - 1));
        }
        Target::OtherRow(row) => {
            state.levels.list = List::Dial;
            state.levels.dial = row.min(dial::POLICY_ROW);
        }
        _ => {}
    }
}

/// Rows of a list with its heading and its frame.
const LEVELS_ROWS: u16 = Level::ALL.len() as u16 + 3;
const DIAL_ROWS: u16 = dial::POLICY_ROW as u16 + 4;
/// From here on, both lists fit with what is to be said of each.
const BOTH_ROWS: u16 = LEVELS_ROWS + DIAL_ROWS + dial::ABOUT_ROWS + 12;

pub(in super::super) fn draw(screen: &mut Screen<'_, '_>, area: Rect) {
    let list = screen.state.levels.list;
    match (screen.shape, list) {
        (Shape::Wide, _) if area.height >= BOTH_ROWS => {
            let [levels, about, dial, about_dial] = Layout::vertical([
                Constraint::Length(LEVELS_ROWS),
                Constraint::Min(0),
                Constraint::Length(DIAL_ROWS),
                Constraint::Length(dial::ABOUT_ROWS),
            ])
            .areas(area);
            table::draw(screen, levels, true);
            about::draw(screen, about);
            dial::draw(screen, dial, true);
            dial::draw_about(screen, about_dial);
        }
        (shape, List::Levels) => {
            let is_framed = shape != Shape::Small;
            let rows = LEVELS_ROWS - if is_framed { 0 } else { 2 };
            let [levels, about] =
                Layout::vertical([Constraint::Length(rows), Constraint::Min(0)]).areas(area);
            table::draw(screen, levels, is_framed);
            about::draw(screen, about);
        }
        (shape, List::Dial) => {
            let is_framed = shape != Shape::Small;
            let rows = DIAL_ROWS - if is_framed { 0 } else { 2 };
            let [dial, about] =
                Layout::vertical([Constraint::Length(rows), Constraint::Min(0)]).areas(area);
            dial::draw(screen, dial, is_framed);
            dial::draw_about(screen, about);
        }
    }
}
