//! The list of levels: the plan of each beside what is in force.

use ratatui::layout::Rect;
use sluice_proto::v1::Plan;
use sluice_shared::{level::Level, units};

use super::super::{
    super::{
        hit_areas::HitTarget,
        levels::{LevelsPane, percent},
        screen::Screen,
        state::DashboardState,
    },
    table::{Cell, Column, Table, bar, column},
};
use crate::{paint::Role, plans};

const BAR_COLUMNS: usize = 10;

/// The columns. The most important are left out last; `now` in headings stands for what is in force.
const COLUMNS: &[Column] = &[
    column("LEVEL", 14, 0),
    column("", 3, 1),
    column("PEAK", 8, 3),
    column("VS NOW", 7, 5),
    column("OF BUDGET", BAR_COLUMNS, 9),
    column("A PASS", 8, 4),
    column("VS NOW", 7, 6),
    column("STREAMED", 8, 8),
    column("VS NOW", 7, 11),
    column("WEIGHTS", 10, 2),
    column("SAME TOKEN", 10, 7),
    column("FIDELITY", 27, 10),
];

pub(super) fn draw(screen: &mut Screen<'_, '_>, area: Rect, is_framed: bool) {
    let state = screen.state;
    let is_focused = state.levels.list == LevelsPane::Levels;
    let inner = match is_framed {
        true => screen.pane(area, &title(state), is_focused),
        false => area,
    };
    let rows = Level::ALL.into_iter().map(|level| row(state, level));
    let table = Table {
        columns: COLUMNS,
        widest: 16,
        rows: rows.collect(),
        selected: Level::ALL.iter().position(|level| *level == state.level()),
        is_focused,
        target: HitTarget::Row,
    };
    table.draw(screen, inner);
}

fn title(state: &DashboardState) -> String {
    let settings = state.snapshot().and_then(|s| s.settings.as_ref());
    match (state.levels.tried, settings) {
        (Some(bytes), _) => format!(
            "Levels as if the budget were {}; :try now leads back",
            units::bytes(bytes)
        ),
        (None, Some(settings)) => format!(
            "Levels, predicted; budget {}",
            units::bytes(settings.budget_bytes)
        ),
        (None, None) => "Levels, predicted; budget unknown".to_owned(),
    }
}

fn row(state: &DashboardState, level: Level) -> Vec<Cell> {
    let mut name = level.name().to_owned();
    let is_now = state.level_in_force() == Some(level);
    let answer = state.levels.answers.get(&level);
    if let (Level::Auto, Some(Ok(plan))) = (level, answer) {
        name += &format!(": {}", plan.level());
    }
    let now = match is_now {
        true => Cell::styled("now", Role::Good),
        false => Cell::default(),
    };
    let mut cells = vec![name.into(), now];
    match answer {
        None => cells.push(Cell::styled("asking", Role::Dim)),
        Some(Err(problem)) => {
            let words = format!("refused: {problem}");
            cells.push(Cell::spanning(words, Role::Bad));
        }
        Some(Ok(plan)) => cells.extend(figures(state, level, plan)),
    }
    cells
}

fn figures(state: &DashboardState, level: Level, plan: &Plan) -> [Cell; 10] {
    let present = state.snapshot().and_then(|snapshot| snapshot.plan.as_ref());
    let share = plan.peak_bytes as f64 / plan.budget_bytes.max(1) as f64;
    let (weights, role) = match (plan.is_loadable, plan.is_lossless) {
        (false, _) => ("cannot load", Role::Bad),
        (true, true) => ("lossless", Role::Good),
        (true, false) => ("lossy", Role::Warning),
    };
    let fidelity = state.fidelity_of(level);
    let (same, words) = match fidelity {
        _ if !plan.is_loadable => (
            "–".into(),
            Cell::styled(plan.not_loadable_reason.clone(), Role::Bad),
        ),
        _ if let Some(other) = plan.equal_levels().next() => {
            let words = format!("the same weights as {other}");
            let share = match (plan.is_lossless, fidelity) {
                (true, _) => percent(1.0),
                (false, Some(known)) => percent(known.top_agreement),
                (false, None) => "–".into(),
            };
            (share, words.into())
        }
        _ if plan.is_lossless && state.rounds_to_bf16() => {
            (percent(1.0), "the checkpoint's, in bf16".into())
        }
        _ if plan.is_lossless => (percent(1.0), "exact".into()),
        Some(known) => {
            let words = format!("KL {:.4} nats", known.mean_kl_nats);
            (percent(known.top_agreement), words.into())
        }
        None => ("–".into(), "not measured; m measures".into()),
    };
    let streamed = match plan.streamed_bytes_per_pass {
        0 => "nothing".to_owned(),
        bytes => units::bytes(bytes),
    };
    let times = plan
        .pass_ms
        .zip(present.and_then(|present| present.pass_ms));
    [
        units::bytes(plan.peak_bytes).into(),
        of_present(plan, present, |plan| plan.peak_bytes).into(),
        bar(share, BAR_COLUMNS).into(),
        plans::pass_time(plan).into(),
        times.map_or_else(String::new, factor).into(),
        streamed.into(),
        of_present(plan, present, |plan| plan.streamed_bytes_per_pass).into(),
        Cell::styled(weights, role),
        same.into(),
        words,
    ]
}

/// The difference of a figure from the present plan's: `−48 %`; empty where there is nothing to compare.
fn of_present(plan: &Plan, present: Option<&Plan>, figure: fn(&Plan) -> u64) -> String {
    match (figure(plan), present.map(figure)) {
        (_, None | Some(0)) => String::new(),
        (after, Some(before)) => {
            let percent = (after as f64 / before as f64 - 1.0) * 100.0;
            match percent.round() as i64 {
                0 => "=".to_owned(),
                percent @ 1.. => format!("+{percent} %"),
                percent => format!("−{} %", percent.unsigned_abs()),
            }
        }
    }
}

fn factor((after, before): (f64, f64)) -> String {
    match after / before {
        factor if !factor.is_finite() => String::new(),
        factor if (factor - 1.0).abs() < 0.005 => "=".to_owned(),
        factor if factor < 10.0 => format!("×{factor:.2}"),
        factor => format!("×{factor:.0}"),
    }
}
