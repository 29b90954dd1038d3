//! The chooser: what each level would lead to, beside what is in force.

use ratatui::{layout::Rect, text::Line};
use sluice_proto::v1::{ApplyRequest, Plan};
use sluice_shared::{level::Level, units};

use super::super::{
    event::{Effect, Event},
    keys::Action,
    levels::Levels,
    state::State,
    view::{Screen, Target},
};
use crate::{
    canvas::{Look, Run, wrap},
    paint::Role,
    plans,
    text::{clip, sanitise, sanitise_line},
};

/// Asks what each level would lead to.
pub(super) fn enter(state: &mut State, effects: &mut Vec<Effect>) {
    if state.is_connected() {
        let converting = state.levels.converting;
        state.levels = Levels {
            converting,
            ..Levels::open(state.snapshot())
        };
        effects.push(Effect::AskPlans(Level::ALL.to_vec(), Box::default()));
    }
}

/// Takes in what the daemon says of levels.
pub(in super::super) fn take(state: &mut State, event: Event) {
    match event {
        Event::Planned { level, answer } => {
            state.levels.answers.insert(level, answer);
        }
        Event::Converting(progress) => state.levels.converting = progress,
        Event::Changing { plan, .. } => {
            let peak = units::bytes(plan.peak_bytes);
            let pass = plans::pass_time(&plan);
            state.tell(format!(
                "level {}: peak {peak}, a pass {pass}, predicted",
                plan.level
            ));
        }
        Event::Applied(applied) => {
            state.levels.converting = None;
            let elapsed = units::duration_ms(applied.elapsed_ms);
            let held = units::bytes(applied.device_bytes);
            let level = applied.plan.map_or_else(String::new, |plan| plan.level);
            state.tell(format!(
                "level {level} is in force after {elapsed}: {held} held"
            ));
        }
        Event::ApplyFailed(message) => {
            state.levels.converting = None;
            state.warn(message);
        }
        Event::Measuring {
            request_id,
            done,
            total,
        } => {
            state.jobs.measuring = Some((request_id, done, total));
        }
        Event::Measured(_) => state.jobs.measuring = None,
        _ => {}
    }
}

/// Puts a level in force.
pub(in super::super) fn choose(state: &mut State, level: Level, effects: &mut Vec<Effect>) {
    state.levels.converting = None;
    state.tell(format!("level {level} was asked for"));
    effects.push(Effect::Apply(Box::new(ApplyRequest {
        level: Some(level.name().to_owned()),
        ..Default::default()
    })));
}

/// Asks whether to stop the measurement that runs.
pub(in super::super) fn cancel(state: &mut State) {
    state.warn("no measurement runs");
}

pub(super) fn act(state: &mut State, action: Action, effects: &mut Vec<Effect>) {
    match action {
        Action::Up => state.levels.step(-1),
        Action::Down => state.levels.step(1),
        Action::Enter if !state.is_connected() => state.warn("not connected; the level stays"),
        Action::Enter => choose(state, state.levels.level(), effects),
        _ => {}
    }
}

/// What a press of the mouse does.
pub(super) fn click(state: &mut State, target: Target, _effects: &mut Vec<Effect>) {
    if let Target::Row(row) = target {
        state.levels.selected = row.min(Level::ALL.len() - 1);
    }
}

/// Rows for what is to be said of the selected level.
const ABOUT_ROWS: usize = 3;

pub(in super::super) fn draw(screen: &mut Screen<'_, '_>, area: Rect) {
    let state = screen.state;
    let inner = screen.pane(area, "Levels, predicted", true);
    let columns = usize::from(inner.width);
    let snapshot = state.snapshot();
    let asked = snapshot.and_then(|snapshot| snapshot.settings.as_ref());
    let heading = row(' ', "LEVEL", "PEAK", "A PASS", "STREAMED");
    let mut lines = vec![Line::styled(
        clip(&heading, columns),
        screen.style(Role::Dim),
    )];
    for (index, level) in Level::ALL.into_iter().enumerate() {
        let is_selected = index == state.levels.selected;
        let is_now = asked.is_some_and(|asked| asked.level == level.name());
        let mark = if is_selected { '▸' } else { ' ' };
        let words = choice(mark, level, is_now, state.levels.answers.get(&level));
        let line = Line::raw(clip(&sanitise_line(&words), columns));
        lines.push(if is_selected {
            line.style(screen.style(Role::Selected))
        } else {
            line
        });
    }
    let level = state.levels.level();
    let about = match state.levels.answers.get(&level) {
        Some(Err(problem)) => problem.clone(),
        Some(Ok(plan)) if !plan.is_loadable => plan.not_loadable.clone(),
        _ => level.about().to_owned(),
    };
    let about = Run {
        text: sanitise(&about),
        look: Look::Committed,
    };
    let about = wrap(&[about], columns);
    let about = about.into_iter().take(ABOUT_ROWS);
    lines.extend(about.map(|line| {
        let words: String = line.into_iter().map(|run| run.text).collect();
        Line::styled(words, screen.style(Role::Dim))
    }));
    screen.lines(inner, lines);
}

fn choice(
    mark: char,
    level: Level,
    is_now: bool,
    answer: Option<&Result<Box<Plan>, String>>,
) -> String {
    let mut name = level.name().to_owned();
    if let (Level::Auto, Some(Ok(plan))) = (level, answer) {
        name += &format!(": {}", plan.level);
    } else if is_now {
        name += " (now)";
    }
    match answer {
        None => row(mark, &name, "asking", "", ""),
        Some(Err(_)) => row(mark, &name, "not so", "", ""),
        Some(Ok(plan)) => {
            let pass = plans::pass_time(plan);
            let streamed = match plan.is_loadable {
                true => plans::streamed(plan),
                false => "can't be loaded yet".into(),
            };
            row(
                mark,
                &name,
                &units::bytes(plan.peak_bytes),
                &pass,
                &streamed,
            )
        }
    }
}

fn row(mark: char, name: &str, peak: &str, pass: &str, streamed: &str) -> String {
    format!("{mark} {name:<16} {peak:<9} {pass:<9} {streamed}")
}
