//! The list of presets: their settings, and the speed of requests that used them.

use ratatui::{layout::Rect, text::Line};
use sluice_shared::{
    policy::POLICIES,
    preset::{PRESETS, Preset, PresetInfo},
    units,
};

use super::super::{
    super::{
        hit_areas::HitTarget,
        levels::LevelsPane,
        screen::{Screen, ScreenShape},
        state::DashboardState,
    },
    table::{Cell, Column, Table, column},
};
use crate::{canvas::wrap_text, paint::Role};

/// Rows of the text about the selected preset, where both lists are shown.
pub(super) const ABOUT_ROWS: u16 = 6;
/// Tokens of a request whose length is not set.
const LENGTH: u32 = 128;

const COLUMNS: &[Column] = &[
    column("PRESET", 9, 0),
    column("", 4, 1),
    column("ANSWERS", 11, 4),
    column("TOK/PASS", 8, 2),
    column("TOK/S", 6, 5),
    column("REQUESTS", 8, 6),
    column("POLICY", 24, 7),
    column("KV CACHE", 16, 8),
    column("WINDOW", 6, 9),
    column("GROWTH", 6, 10),
];

pub(super) fn draw(screen: &mut Screen<'_, '_>, area: Rect, is_framed: bool) {
    let state = screen.state;
    let is_focused = state.levels.list == LevelsPane::Presets;
    let inner = match is_framed {
        true => screen.pane(area, &title(state), is_focused),
        false => area,
    };
    let rows = PRESETS.iter().enumerate();
    let table = Table {
        columns: COLUMNS,
        widest: 12,
        rows: (rows.map(|(at, info)| row(state, at, info)))
            .chain([policy_row(state)])
            .collect(),
        selected: Some(state.levels.preset),
        is_focused,
        target: HitTarget::OtherRow,
    };
    table.draw(screen, inner);
}

fn title(state: &DashboardState) -> String {
    match state.options.preset() {
        Some(preset) => format!("Presets; the next request uses {preset}"),
        None => "Presets; the next request uses the daemon's".to_owned(),
    }
}

fn row(state: &DashboardState, at: usize, info: &PresetInfo) -> Vec<Cell> {
    let next = match state.options.preset() == Some(info.preset) {
        true => Cell::styled("next", Role::Good),
        false => Cell::default(),
    };
    let answers = match info.preset {
        Preset::Exact => Cell::styled("exact", Role::Good),
        _ => Cell::styled("approximate", Role::Warning),
    };
    let sums = state.levels.presets.of(at);
    let figure = |figure: Option<f64>| match figure {
        Some(figure) => Cell::from(format!("{figure:.1}")),
        None => Cell::styled("–", Role::Dim),
    };
    vec![
        info.name.into(),
        next,
        answers,
        figure(sums.tokens_a_pass()),
        figure(sums.tokens_a_second()),
        sums.requests.to_string().into(),
        info.policy.into(),
        info.kv_cache.into(),
        info.suffix_window
            .map_or_else(|| "none".to_owned(), |window| window.to_string())
            .into(),
        info.canvas_growth.into(),
    ]
}

/// The row of the policy that the options set, which replaces the preset's.
fn policy_row(state: &DashboardState) -> Vec<Cell> {
    let mut cells = vec![Cell::from("policy")];
    cells.extend(match state.options.value("policy") {
        Some(policy) => [
            Cell::styled("next", Role::Good),
            Cell::spanning(policy, Role::Committed),
        ],
        None => [
            Cell::default(),
            Cell::spanning("the preset's; Enter chooses any other", Role::Dim),
        ],
    });
    cells
}

/// Draws what the selected preset stands for, and the speed of its requests.
pub(super) fn draw_about(screen: &mut Screen<'_, '_>, area: Rect) {
    let state = screen.state;
    let at = state.levels.preset;
    let (title, all) = match PRESETS.get(at) {
        Some(info) => (format!("Dial {}", info.name), about(state, at, info)),
        None => ("Any policy".to_owned(), about_policy(state)),
    };
    let inner = match screen.shape {
        ScreenShape::Small => area,
        ScreenShape::Wide | ScreenShape::Tall => screen.pane(area, &title, false),
    };
    let columns = usize::from(inner.width);
    let mut lines = Vec::new();
    for (words, role) in all {
        let wrapped = wrap_text(&words, columns).into_iter();
        lines.extend(wrapped.map(|line| Line::styled(line, screen.style(role))));
    }
    screen.lines(inner, lines);
}

fn about(state: &DashboardState, at: usize, info: &PresetInfo) -> Vec<(String, Role)> {
    let window = info.suffix_window.map_or_else(String::new, |window| {
        format!(", suffix window of {window} positions")
    });
    let flags = format!(
        "policy {}, KV cache {}{window}, canvas growth {}",
        info.policy, info.kv_cache, info.canvas_growth
    );
    let sums = state.levels.presets.of(at);
    let measured = match (sums.tokens_a_pass(), sums.tokens_a_second()) {
        (Some(pass), Some(second)) => format!(
            "measured: {pass:.1} tokens per pass, {second:.1} per second, over {} of all clients",
            units::several(sums.requests.into(), "request")
        ),
        _ => "not measured yet: requests with this preset measure it".to_owned(),
    };
    vec![
        (info.summary.to_owned(), Role::Committed),
        (measured, Role::Committed),
        (predicted(state, sums.tokens_a_pass()), Role::Committed),
        (flags, Role::Dim),
    ]
}

/// How long a request of ours would take: passes for its length, at what a pass is predicted to take.
fn predicted(state: &DashboardState, tokens_a_pass: Option<f64>) -> String {
    let length = state.options.value("length");
    let length = length.and_then(|length| length.parse().ok());
    let length: u32 = length.unwrap_or(LENGTH);
    let plan = state.snapshot().and_then(|snapshot| snapshot.plan.as_ref());
    let pass_ms = plan.and_then(|plan| plan.pass_ms);
    let known = tokens_a_pass.filter(|tokens| *tokens > 0.0);
    let words = match (known, pass_ms) {
        (None, _) => "not measured yet".to_owned(),
        (Some(_), None) => "unknown, since the time of a pass is unknown".to_owned(),
        (Some(tokens), Some(pass_ms)) => {
            let passes = (f64::from(length) / tokens).ceil();
            format!(
                "about {}, predicted: {passes:.0} passes of {}",
                units::duration_ms(passes * pass_ms),
                units::duration_ms(pass_ms)
            )
        }
    };
    format!("a request of {length} tokens: {words}")
}

/// What any policy is about, and the one that is set.
fn about_policy(state: &DashboardState) -> Vec<(String, Role)> {
    let set = state.options.value("policy");
    let name = set.and_then(|set| set.split(':').next());
    let known = POLICIES.iter().find(|policy| Some(policy.name) == name);
    let words = match (set, known) {
        (Some(set), Some(policy)) => format!("the next request uses {set}: {}", policy.summary),
        (Some(set), None) => format!("the next request uses {set}"),
        (None, _) => "the next request uses its preset's policy".to_owned(),
    };
    let names: Vec<_> = POLICIES.iter().map(|policy| policy.name).collect();
    let all = format!("Enter opens the options; policies are {}", names.join(", "));
    vec![(words, Role::Committed), (all, Role::Dim)]
}
