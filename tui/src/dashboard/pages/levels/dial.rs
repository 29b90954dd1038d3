//! The dial: what its positions stand for, and what they came to.

use ratatui::{layout::Rect, text::Line};
use sluice_shared::dial::{DIALS, Dial, DialInfo};

use super::super::{
    super::{
        levels::List,
        state::State,
        view::{Screen, Shape, Target},
    },
    table::{Cell, Column, Table},
};
use crate::{paint::Role, text::wrapped};

/// Rows of what is said of the selected position, where both lists are shown.
pub(super) const ABOUT_ROWS: u16 = 5;

const fn column(heading: &'static str, columns: usize, rank: u8) -> Column {
    Column {
        heading,
        columns,
        rank,
    }
}

const COLUMNS: &[Column] = &[
    column("DIAL", 9, 0),
    column("", 4, 1),
    column("ANSWERS", 11, 4),
    column("TOK/PASS", 8, 2),
    column("TOK/S", 7, 5),
    column("REQUESTS", 8, 6),
    column("POLICY", 15, 7),
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
        rows: rows.map(|(at, info)| row(state, at, info)).collect(),
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

/// What the selected position stands for and came to.
pub(super) fn draw_about(screen: &mut Screen<'_, '_>, area: Rect) {
    let state = screen.state;
    let at = state.levels.dial.min(DIALS.len() - 1);
    let info = &DIALS[at];
    let inner = match screen.shape {
        Shape::Small => area,
        Shape::Wide | Shape::Tall => screen.pane(area, &format!("Dial {}", info.name), false),
    };
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
            "measured here: {pass:.1} tokens a pass, {second:.1} a second, over {} request{}",
            sums.requests,
            if sums.requests == 1 { "" } else { "s" }
        ),
        _ => "not measured yet: requests that name it will tell".to_owned(),
    };
    let columns = usize::from(inner.width);
    let mut lines = Vec::new();
    for (words, role) in [
        (info.summary.to_owned(), Role::Committed),
        (measured, Role::Committed),
        (flags, Role::Dim),
    ] {
        let wrapped = wrapped(&words, columns).into_iter();
        lines.extend(wrapped.map(|line| Line::styled(line, screen.style(role))));
    }
    screen.lines(inner, lines);
}
