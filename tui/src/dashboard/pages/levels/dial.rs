//! The dial: what its positions stand for, and what they came to.

use ratatui::{layout::Rect, text::Line};
use sluice_shared::{
    dial::{DIALS, Dial, DialInfo},
    policy::POLICIES,
    units,
};

use super::super::{
    super::{
        levels::List,
        state::State,
        view::{Screen, Shape, Target},
    },
    table::{Cell, Column, Table, column},
};
use crate::{canvas::wrap_text, paint::Role};

/// Rows of what is said of the selected position, where both lists are shown.
pub(super) const ABOUT_ROWS: u16 = 6;
/// Below the positions stands any policy, which the form of options has.
pub(super) const POLICY_ROW: usize = DIALS.len();
/// Tokens of a request where its length isn't set.
const LENGTH: u32 = 128;

const COLUMNS: &[Column] = &[
    column("DIAL", 9, 0),
    column("", 4, 1),
    column("ANSWERS", 11, 4),
    column("TOK/PASS", 8, 2),
    column("TOK/S", 6, 5),
    column("REQUESTS", 8, 6),
    column("POLICY", 24, 7),
    column("CACHE", 16, 8),
    column("WINDOW", 6, 9),
    column("GROWTH", 6, 10),
];

pub(super) fn draw(screen: &mut Screen<'_, '_>, area: Rect, is_framed: bool) {
    let state = screen.state;
    let is_focused = state.levels.list == List::Dial;
    let inner = match is_framed {
        true => screen.pane(area, &title(state), is_focused),
        false => area,
    };
    let rows = DIALS.iter().enumerate();
    let table = Table {
        columns: COLUMNS,
        widest: 12,
        rows: (rows.map(|(at, info)| row(state, at, info)))
            .chain([policy_row(state)])
            .collect(),
        selected: Some(state.levels.dial),
        is_focused,
        target: Target::OtherRow,
    };
    table.draw(screen, inner);
}

fn title(state: &State) -> String {
    match state.options.dial() {
        Some(dial) => format!("Dial; our next request takes {dial}"),
        None => "Dial; our next request takes the daemon's own".to_owned(),
    }
}

fn row(state: &State, at: usize, info: &DialInfo) -> Vec<Cell> {
    let next = match state.options.dial() == Some(info.dial) {
        true => Cell::styled("next", Role::Good),
        false => Cell::default(),
    };
    let answers = match info.dial {
        Dial::Exact => Cell::styled("exact", Role::Good),
        _ => Cell::styled("approximate", Role::Warning),
    };
    let sums = state.levels.dials.of(at);
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
        info.caching.into(),
        info.window
            .map_or_else(|| "none".to_owned(), |window| window.to_string())
            .into(),
        info.growth.into(),
    ]
}

/// The policy that is set in the options, whatever the dial says.
fn policy_row(state: &State) -> Vec<Cell> {
    let mut cells = vec![Cell::from("policy")];
    cells.extend(match state.options.value("policy") {
        Some(policy) => [
            Cell::styled("next", Role::Good),
            Cell::spanning(policy, Role::Committed),
        ],
        None => [
            Cell::default(),
            Cell::spanning("the dial's; Enter chooses any other", Role::Dim),
        ],
    });
    cells
}

/// What the selected position stands for and came to.
pub(super) fn draw_about(screen: &mut Screen<'_, '_>, area: Rect) {
    let state = screen.state;
    let at = state.levels.dial;
    let (title, all) = match DIALS.get(at) {
        Some(info) => (format!("Dial {}", info.name), about(state, at, info)),
        None => ("Any policy".to_owned(), about_policy(state)),
    };
    let inner = match screen.shape {
        Shape::Small => area,
        Shape::Wide | Shape::Tall => screen.pane(area, &title, false),
    };
    let columns = usize::from(inner.width);
    let mut lines = Vec::new();
    for (words, role) in all {
        let wrapped = wrap_text(&words, columns).into_iter();
        lines.extend(wrapped.map(|line| Line::styled(line, screen.style(role))));
    }
    screen.lines(inner, lines);
}

fn about(state: &State, at: usize, info: &DialInfo) -> Vec<(String, Role)> {
    let window = info.window.map_or_else(String::new, |window| {
        format!(", a window of {window} positions")
    });
    let flags = format!(
        "policy {}, cache {}{window}, growth {}",
        info.policy, info.caching, info.growth
    );
    let sums = state.levels.dials.of(at);
    let measured = match (sums.tokens_a_pass(), sums.tokens_a_second()) {
        (Some(pass), Some(second)) => format!(
            "seen here: {pass:.1} tokens a pass, {second:.1} a second, over {} request{}, whoever sent them",
            sums.requests,
            if sums.requests == 1 { "" } else { "s" }
        ),
        _ => "not measured yet: requests that name it will tell".to_owned(),
    };
    vec![
        (info.summary.to_owned(), Role::Committed),
        (measured, Role::Committed),
        (predicted(state, sums.tokens_a_pass()), Role::Committed),
        (flags, Role::Dim),
    ]
}

/// How long a request of ours would take: passes for its length, at what a pass is predicted to take.
fn predicted(state: &State, tokens_a_pass: Option<f64>) -> String {
    let length = state.options.value("length");
    let length = length.and_then(|length| length.parse().ok());
    let length: u32 = length.unwrap_or(LENGTH);
    let plan = state.snapshot().and_then(|snapshot| snapshot.plan.as_ref());
    let pass_ms = plan.and_then(|plan| plan.pass_ms);
    let known = tokens_a_pass.filter(|tokens| *tokens > 0.0);
    let words = match (known, pass_ms) {
        (None, _) => "not measured yet".to_owned(),
        (Some(_), None) => "unknown, as a pass's time is".to_owned(),
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
fn about_policy(state: &State) -> Vec<(String, Role)> {
    let set = state.options.value("policy");
    let name = set.and_then(|set| set.split(':').next());
    let known = POLICIES.iter().find(|policy| Some(policy.name) == name);
    let words = match (set, known) {
        (Some(set), Some(policy)) => format!("our next request takes {set}: {}", policy.summary),
        (Some(set), None) => format!("our next request takes {set}"),
        (None, _) => "our next request takes the policy of its dial".to_owned(),
    };
    let names: Vec<_> = POLICIES.iter().map(|policy| policy.name).collect();
    let all = format!(
        "Enter opens the options at it; there are {}",
        names.join(", ")
    );
    vec![(words, Role::Committed), (all, Role::Dim)]
}
