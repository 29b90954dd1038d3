//! Levels: what is in force, and the list of what each would lead to.

use std::collections::BTreeMap;

use ratatui::{Frame, layout::Rect, text::Line};
use sluice_proto::v1::{Measured, Plan, Snapshot};
use sluice_shared::{level::Level, units};

use super::{
    state::State,
    view::{bold, dim, popup},
};
use crate::{
    canvas::{Look, Run, wrap},
    plans,
    text::{clip, sanitise, sanitise_line},
};

/// The list of levels.
#[derive(Debug, Default)]
pub struct Levels {
    /// Which of [`Level::ALL`] is selected.
    pub selected: usize,
    /// What the daemon said each would lead to, or why it can't be.
    pub answers: BTreeMap<Level, Result<Box<Plan>, String>>,
}

impl Levels {
    /// The list before any answer, the level in force selected.
    #[must_use]
    pub fn open(snapshot: Option<&Snapshot>) -> Self {
        let asked = snapshot.and_then(|snapshot| snapshot.settings.as_ref());
        let in_force = |level: &Level| asked.is_some_and(|asked| asked.level == level.name());
        Self {
            selected: Level::ALL.iter().position(in_force).unwrap_or(0),
            answers: BTreeMap::new(),
        }
    }

    /// The selected level.
    #[must_use]
    pub fn level(&self) -> Level {
        Level::ALL[self.selected]
    }

    pub(super) fn step(&mut self, by: isize) {
        let at = self.selected.saturating_add_signed(by);
        self.selected = at.min(Level::ALL.len() - 1);
    }
}

/// Level, budget, how far a switch is, and plan beside measurement, each with its name.
pub(super) fn facts(state: &State) -> Vec<(&'static str, String)> {
    let snapshot = state.snapshot.as_ref().map(|(snapshot, _)| &**snapshot);
    let mut facts = vec![("level", in_force(snapshot))];
    let switching = snapshot.and_then(plans::switching);
    let is_stepping = snapshot.and_then(|s| s.switch).is_some_and(|s| s.steps > 0);
    match (switching, &state.converting) {
        // Before the first step, how much is converted says more.
        (_, Some(words)) if !is_stepping => facts.push(("convert", words.clone())),
        (Some(words), _) => facts.push(("switching", words)),
        (None, _) => {}
    }
    if let Some(plan) = snapshot.and_then(|snapshot| snapshot.plan.as_ref()) {
        let measured = snapshot.and_then(|s| s.measured).unwrap_or_default();
        facts.push(("peak", peak(plan, &measured)));
        facts.push(("a pass", pass(plan, &measured)));
    }
    facts
}

fn in_force(snapshot: Option<&Snapshot>) -> String {
    let settings = snapshot.and_then(|snapshot| snapshot.settings.as_ref());
    let plan = snapshot.and_then(|snapshot| snapshot.plan.as_ref());
    let Some(settings) = settings else {
        return UNKNOWN.to_owned();
    };
    let level = match plan {
        Some(plan) if plan.level != settings.level => {
            format!("{} by {}", plan.level, settings.level)
        }
        _ => settings.level.clone(),
    };
    let budget = units::bytes(settings.budget_bytes);
    format!("{level}, budget {budget}")
}

const UNKNOWN: &str = "unknown";

fn peak(plan: &Plan, measured: &Measured) -> String {
    let known = measured.peak_bytes.map_or(UNKNOWN.into(), units::bytes);
    format!("{} plan, {known} measured", units::bytes(plan.peak_bytes))
}

fn pass(plan: &Plan, measured: &Measured) -> String {
    let known = |ms: Option<f64>| ms.map_or(UNKNOWN.into(), units::duration_ms);
    format!(
        "{} plan, {} measured",
        known(plan.pass_ms),
        known(measured.mean_pass_ms)
    )
}

/// Columns of the list; a narrow screen loses the last ones.
const LIST_COLUMNS: u16 = 64;
/// Rows for what is to be said of the selected level.
const ABOUT_ROWS: usize = 3;

/// The list, over everything else.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let columns = usize::from(LIST_COLUMNS.min(area.width)).saturating_sub(2);
    let snapshot = state.snapshot.as_ref().map(|(snapshot, _)| &**snapshot);
    let asked = snapshot.and_then(|snapshot| snapshot.settings.as_ref());
    let heading = row(' ', "LEVEL", "PEAK", "A PASS", "STREAMED");
    let mut lines = vec![Line::styled(clip(&heading, columns), dim())];
    for (index, level) in Level::ALL.into_iter().enumerate() {
        let is_selected = index == state.levels.selected;
        let is_now = asked.is_some_and(|asked| asked.level == level.name());
        let mark = if is_selected { '▸' } else { ' ' };
        let words = choice(mark, level, is_now, state.levels.answers.get(&level));
        let line = Line::raw(clip(&sanitise_line(&words), columns));
        lines.push(if is_selected {
            line.style(bold())
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
        Line::styled(words, dim())
    }));
    let rows = Level::ALL.len() + 1 + ABOUT_ROWS + 2;
    let rows = u16::try_from(rows).unwrap_or(u16::MAX);
    popup(
        frame,
        area,
        (LIST_COLUMNS, rows),
        "Levels, predicted",
        lines,
    );
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
