//! The chooser: what each level would lead to, beside what is in force, and what each position of the dial stands for.

mod about;
mod dial;
mod table;

use ratatui::layout::{Constraint, Layout, Rect};
use sluice_proto::v1::{ApplyRequest, PlanRequest, Snapshot};
use sluice_shared::{
    dial::{DIALS, Dial},
    level::Level,
    units,
};
use tui_input::Input;

use super::super::{
    event::{Effect, Event},
    jobs::{Outcome, Work},
    keys::{Action, Mode, Page},
    levels::{Change, Fidelity, List, Measuring, Standing},
    state::{State, Then},
    update::go,
    view::{Screen, Shape, Target},
};
use crate::plans;

/// So many times as long as the present one a pass may be predicted to take before we ask.
const SLOW_FACTOR: f64 = 1.5;

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
    let facts = |snapshot: &Snapshot| {
        let model = snapshot.model.as_ref();
        let model = model.map(|model| (model.name.clone(), model.state));
        (model, snapshot.settings.clone())
    };
    let before = state.latest.as_ref().map(|(before, _)| facts(before));
    // Answers are for a model and its settings; the first are asked for when the page is entered.
    let is_other = before.is_some_and(|before| before != facts(snapshot));
    if is_other && state.page == Page::Levels {
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
        Event::Changing { plan, before } => {
            let mut change = Change::asked();
            let latest = state.latest.as_ref().map(|(latest, _)| &**latest);
            change.planned(&plan, &before, latest);
            state.levels.change = Some(change);
            let peak = units::bytes(plan.peak_bytes);
            let pass = plans::pass_time(&plan);
            state.tell(format!(
                "level {}: peak {peak}, a pass {pass}, predicted",
                plan.level
            ));
        }
        Event::Applied(applied) => {
            state.levels.converting = None;
            state.levels.tried = None;
            let mut change = state.levels.change.take().unwrap_or_else(Change::asked);
            change.applied(&applied);
            state.levels.change = Some(change);
            let elapsed = units::duration_ms(applied.elapsed_ms);
            let held = units::bytes(applied.device_bytes);
            let level = applied.plan.map_or_else(String::new, |plan| plan.level);
            state.tell(format!(
                "level {level} is in force after {elapsed}: {held} held"
            ));
            if state.page == Page::Levels {
                enter(state, effects);
            }
        }
        Event::ApplyFailed(message) => {
            state.levels.converting = None;
            let under_way = state.levels.change.take();
            let under_way = under_way.filter(|change| change.standing() == Standing::UnderWay);
            let mut change = under_way.unwrap_or_else(Change::asked);
            change.failed(message.clone());
            state.levels.change = Some(change);
            state.warn(message);
        }
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
            if let Some(measuring) = state.levels.measuring.take() {
                state.jobs.end(Work::of_measurement(&measuring), outcome);
            }
        }
        _ => {}
    }
}

/// Puts a level in force, with a budget where one is given. Asks first where that is lossy or slow.
pub(in super::super) fn choose(
    state: &mut State,
    level: Level,
    budget_bytes: Option<u64>,
    effects: &mut Vec<Effect>,
) {
    let request = Effect::Apply(Box::new(ApplyRequest {
        level: Some(level.name().to_owned()),
        budget_bytes,
        ..Default::default()
    }));
    let doubts = doubts(state, level, budget_bytes);
    if doubts.is_empty() {
        state.tell(format!("level {level} was asked for"));
        effects.push(request);
    } else {
        let within = budget_bytes.map_or_else(String::new, |bytes| {
            format!(" within {}", units::bytes(bytes))
        });
        let text = format!("Put level {level}{within} in force? {}", doubts.join(" "));
        state.ask(text, vec![request], Then::Nothing);
    }
}

/// Why to ask before a level is put in force: sentences, none where all is well.
fn doubts(state: &State, level: Level, budget_bytes: Option<u64>) -> Vec<String> {
    let mut doubts = Vec::new();
    // Answers are for the tried budget alone.
    let predicted = match budget_bytes == state.levels.tried {
        true => state.levels.plan(level),
        false => None,
    };
    let present = state.present().and_then(|snapshot| snapshot.plan.as_ref());
    let is_lossless = predicted.map_or(level.is_lossless(), |plan| Some(plan.is_lossless));
    if is_lossless == Some(false) && present.is_none_or(|present| present.is_lossless) {
        let measured = match state.fidelity_of(level) {
            Some(fidelity) => format!("measured: {}", fidelity.words()),
            None => "by how much was not measured".to_owned(),
        };
        doubts.push(format!(
            "It is lossy: answers are no longer exactly those of the checkpoint's weights; {measured}."
        ));
    }
    let pass = predicted.and_then(|plan| plan.pass_ms);
    let present = present.and_then(|present| present.pass_ms);
    match (pass, present) {
        (Some(pass), Some(present)) if pass > present * SLOW_FACTOR => doubts.push(format!(
            "It is slow: a pass is predicted to take {}, {:.1} times as long as now.",
            units::duration_ms(pass),
            pass / present
        )),
        (Some(_), _) => {}
        (None, _) => doubts.push("How long a pass would take can't be predicted.".to_owned()),
    }
    doubts
}

/// Goes back to the checkpoint's own weights; asks first where that takes more memory or time.
pub(in super::super) fn restore(state: &mut State, effects: &mut Vec<Effect>) {
    let words = "the checkpoint's own weights";
    let levels = &state.levels;
    // The daemon takes the first that the present budget has room for.
    let own = [Level::Off, Level::Standard];
    let own = own.into_iter().filter(|_| levels.tried.is_none());
    let plan = own.filter_map(|level| levels.plan(level)).next();
    let plan = plan.filter(|_| levels.answers.contains_key(&Level::Off));
    let present = state.present().and_then(|snapshot| snapshot.plan.as_ref());
    let question = match (plan, present) {
        (Some(plan), Some(present)) => {
            let grows = plan.peak_bytes > present.peak_bytes;
            let slows = match (plan.pass_ms, present.pass_ms) {
                (Some(after), Some(before)) => after > before,
                _ => true,
            };
            (grows || slows).then(|| {
                format!(
                    "Go back to {words}, level {}? Memory {} → {}, a pass {} → {}, predicted.",
                    plan.level,
                    units::bytes(present.peak_bytes),
                    units::bytes(plan.peak_bytes),
                    plans::pass_time(present),
                    plans::pass_time(plan),
                )
            })
        }
        _ => Some(format!(
            "Go back to {words}? What that takes can't be predicted."
        )),
    };
    match question {
        Some(question) => state.ask(question, vec![Effect::Restore], Then::Nothing),
        None => {
            state.tell(format!("{words} were asked for"));
            effects.push(Effect::Restore);
        }
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
        (Action::Enter, List::Dial) => choose_dial(state),
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
            state.levels.dial = at.min(DIALS.len() - 1);
        }
    }
}

/// Puts the selected level in force, unless it is so or can't be.
fn choose_selected(state: &mut State, effects: &mut Vec<Effect>) {
    let level = state.level();
    let budget_bytes = state.levels.tried;
    let settings = state.present().and_then(|s| s.settings.as_ref());
    let in_force = settings.and_then(|settings| settings.level.parse().ok());
    let present = settings.map(|settings| settings.budget_bytes);
    let is_same_budget = budget_bytes.is_none() || budget_bytes == present;
    if in_force == Some(level) && is_same_budget {
        state.tell(format!("level {level} is in force already"));
    } else if let Some(problem) = state.levels.problem(level) {
        state.warn(problem);
    } else {
        choose(state, level, budget_bytes, effects);
    }
}

/// Has our requests take the selected position of the dial; asks first where answers will differ.
fn choose_dial(state: &mut State) {
    let row = &DIALS[state.levels.dial.min(DIALS.len() - 1)];
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
            state.levels.dial = row.min(DIALS.len() - 1);
        }
        _ => {}
    }
}

/// Rows of a list with its heading and its frame.
const LEVELS_ROWS: u16 = Level::ALL.len() as u16 + 3;
const DIAL_ROWS: u16 = DIALS.len() as u16 + 3;
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
