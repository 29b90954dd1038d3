//! The form with the options of requests.

use ratatui::{
    layout::Rect,
    text::{Line, Span},
};

use super::super::{
    hit_areas::HitTarget,
    keys::Mode,
    options::{FIELDS, OptionField, advice, unfit},
    screen::Screen,
};
use crate::{
    canvas::{Look, TextRun, wrap},
    paint::Role,
    text::{clip, sanitise, sanitise_line},
};

/// Width of the form, and of the names in it.
const COLUMNS: u16 = 78;
const NAME_COLUMNS: usize = 20;
/// Rows for advice, on small screens and on others.
const ADVICE_ROWS_LEAST: u16 = 3;
const ADVICE_ROWS: u16 = 6;

pub(in super::super) fn draw(screen: &mut Screen<'_, '_>) {
    let options = &screen.state.options;
    let height = screen.frame.area().height;
    let fields = u16::try_from(FIELDS.len()).unwrap_or(u16::MAX);
    let inner = screen.popup(COLUMNS, fields + ADVICE_ROWS + 3, "Options of requests");
    let below = match height < 20 {
        true => ADVICE_ROWS_LEAST,
        false => ADVICE_ROWS,
    };
    // An empty line separates the fields from the advice.
    let rows = inner.height.saturating_sub(below + 1);
    let first = (options.field + 1).saturating_sub(usize::from(rows));
    let shown = FIELDS.iter().enumerate().skip(first);
    for ((index, field), y) in shown.zip(inner.y..inner.y + rows) {
        let place = Rect::new(inner.x, y, inner.width, 1);
        screen.hit_area(place, HitTarget::Row(index));
        draw_field(screen, place, index, field);
    }
    let place = Rect::new(
        inner.x,
        inner.y + rows,
        inner.width,
        inner.height.saturating_sub(rows),
    );
    draw_advice(screen, place);
}

fn draw_field(screen: &mut Screen<'_, '_>, place: Rect, index: usize, field: &OptionField) {
    let state = screen.state;
    let options = &state.options;
    let is_selected = index == options.field;
    let is_unfit = unfit(field, state.shape()).is_some();
    let mark = if is_selected { '▸' } else { ' ' };
    let role = match (is_selected, is_unfit) {
        (true, _) => Role::Selected,
        (false, true) => Role::Dim,
        (false, false) => Role::Committed,
    };
    let name = format!("{mark} {:<NAME_COLUMNS$}", field.name);
    let name = Span::styled(name, screen.style(role));
    let names = u16::try_from(NAME_COLUMNS + 2).unwrap_or(u16::MAX);
    let value = Rect::new(
        place.x + names,
        place.y,
        place.width.saturating_sub(names),
        1,
    );
    screen.lines(place, vec![Line::from(name)]);
    if is_selected && state.mode() == Mode::Field {
        let invitation = match field.choices.is_empty() {
            true => "a value; empty leaves it to the daemon",
            false => "a value; Tab offers one",
        };
        screen.editor(value, &options.line, invitation, true);
        return;
    }
    let columns = usize::from(value.width);
    let line = match options.value(field.name) {
        Some(set) => {
            let role = if is_unfit { Role::Dim } else { Role::Title };
            Line::styled(clip(&sanitise_line(set), columns), screen.style(role))
        }
        None => {
            let words = field.default.as_deref().unwrap_or("not set");
            Line::styled(clip(words, columns), screen.style(Role::Dim))
        }
    };
    screen.lines(value, vec![line]);
}

/// The error of the value, whether the loaded model accepts the field, and advice.
fn draw_advice(screen: &mut Screen<'_, '_>, area: Rect) {
    let state = screen.state;
    let options = &state.options;
    let Some(field) = FIELDS.get(options.field) else {
        return;
    };
    let columns = usize::from(area.width);
    let rule = Line::styled("─".repeat(columns), screen.style(Role::Dim));
    let mut lines = vec![rule];
    let value = match state.mode() {
        Mode::Field => options.line.value(),
        _ => options.value(field.name).unwrap_or_default(),
    };
    let problem = options.problem.clone().map(|words| (words, Role::Bad));
    let unfit = unfit(field, state.shape()).map(|words| (words.to_owned(), Role::Warning));
    let advice = advice(field, value, state.snapshot()).into_iter();
    let advice = advice.map(|words| (words, Role::Committed));
    for (words, role) in problem.into_iter().chain(unfit).chain(advice) {
        let run = TextRun {
            text: sanitise(&words),
            look: Look::Committed,
        };
        lines.extend(wrap(&[run], columns).into_iter().map(|line| {
            let words: String = line.into_iter().map(|run| run.text).collect();
            Line::styled(words, screen.style(role))
        }));
    }
    screen.lines(area, lines);
}
