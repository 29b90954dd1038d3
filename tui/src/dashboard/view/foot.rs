//! The foot of every page: the prompt, the message, and the keys.

use ratatui::{
    layout::Rect,
    text::{Line, Span},
};

use crate::{
    canvas::wrap_text,
    dashboard::{
        hit_areas::HitTarget,
        keys::{Action, Binding, Mode},
        pages,
        prompt::{Layout, ROWS_MAX},
        screen::{Screen, ScreenShape},
        state::DashboardState,
    },
    paint::Role,
    text::{clip, sanitise_line, width},
};

/// Most rows of an error.
const ERROR_ROWS: usize = 3;
/// Most rows of the prompt on the smallest screens.
const SMALL_ROWS: usize = 3;

/// Width in columns that the prompt is wrapped to, on a screen of this size.
pub(in super::super) fn prompt_columns(size: (u16, u16)) -> usize {
    let around = match ScreenShape::of_size(size) {
        ScreenShape::Wide | ScreenShape::Tall => 4,
        // The mark `> ` before the prompt.
        ScreenShape::Small => 2,
    };
    usize::from(size.0).saturating_sub(around)
}

/// Rows of the prompt with its frame; 0 on pages without a prompt.
pub(super) fn prompt_rows(state: &DashboardState, area: Rect) -> u16 {
    if !state.page.has_prompt() {
        return 0;
    }
    let size = (area.width, area.height);
    let (most, around) = match ScreenShape::of_size(size) {
        ScreenShape::Wide | ScreenShape::Tall => (ROWS_MAX, 2),
        ScreenShape::Small => (SMALL_ROWS, 0),
    };
    let rows = Layout::of(&state.prompt, prompt_columns(size)).count();
    u16::try_from(rows.min(most)).unwrap_or(1) + around
}

pub(super) fn draw_prompt(screen: &mut Screen<'_, '_>, area: Rect) {
    let state = screen.state;
    let is_focused = state.mode() == Mode::Prompt;
    screen.hit_area(area, HitTarget::Prompt);
    let invitation = match is_focused {
        true => "write a prompt; Enter sends it, Ctrl-J begins a line, ? helps, Esc leaves",
        false => "i or Enter writes a prompt",
    };
    let place = match screen.shape {
        ScreenShape::Small => {
            let role = if is_focused { Role::Title } else { Role::Dim };
            let mark = Line::styled("> ", screen.style(role));
            screen.frame.render_widget(mark, area);
            Rect::new(
                area.x + 2,
                area.y,
                area.width.saturating_sub(2),
                area.height,
            )
        }
        ScreenShape::Wide | ScreenShape::Tall => {
            let title = pages::chat::prompt_title(state);
            let inner = screen.pane(area, &title, is_focused);
            Rect::new(
                inner.x + 1,
                inner.y,
                inner.width.saturating_sub(2),
                inner.height,
            )
        }
    };
    let columns = usize::from(place.width);
    let layout = Layout::of(&state.prompt, columns);
    let (first, rows) = layout.visible(usize::from(place.height).max(1));
    let lines = match state.prompt.value().is_empty() {
        true => vec![Line::styled(
            clip(invitation, columns),
            screen.style(Role::Dim),
        )],
        false => rows.map(|row| Line::raw(row.to_owned())).collect(),
    };
    screen.lines(place, lines);
    if is_focused {
        let (row, column) = layout.cursor;
        let cell = |at: usize| u16::try_from(at).unwrap_or(u16::MAX);
        let (x, y) = (cell(column.min(columns)), cell(row - first));
        screen.frame.set_cursor_position((place.x + x, place.y + y));
    }
}

/// The message in lines of `columns`; none without a message.
pub(super) fn message_lines(state: &DashboardState, columns: usize) -> Vec<Line<'static>> {
    let Some(message) = &state.message else {
        return Vec::new();
    };
    let text = sanitise_line(&message.text);
    if !message.is_error {
        let style = state.paint.style(Role::Warning);
        return vec![Line::styled(clip(&text, columns), style)];
    }
    // An error is not cut after one line: its end often says what to do.
    let mut lines = wrap_text(&format!("error: {text}"), columns);
    if let Some(cut) = lines.get(ERROR_ROWS - 1..).map(|rest| rest.join(" ")) {
        lines.truncate(ERROR_ROWS - 1);
        lines.push(clip(&cut, columns));
    }
    let style = state.paint.style(Role::Bad);
    let lines = lines.into_iter().map(|line| Line::styled(line, style));
    lines.collect()
}

/// Draws the filter line while it is written, else the keys of the mode.
pub(super) fn draw_keys(screen: &mut Screen<'_, '_>, area: Rect) {
    let state = screen.state;
    if state.mode() == Mode::Filter {
        let mark = Line::styled("/", screen.style(Role::Title));
        screen.frame.render_widget(mark, area);
        let place = Rect::new(area.x + 1, area.y, area.width.saturating_sub(1), 1);
        screen.editor(place, state.search(), "words to look for", true);
        return;
    }
    let line = keys_line(screen, usize::from(area.width));
    screen.frame.render_widget(line, area);
}

fn keys_line(screen: &Screen<'_, '_>, columns: usize) -> Line<'static> {
    let state = screen.state;
    let mut spans = Vec::new();
    let mut used = 0;
    // Help and the way out come first, so that a narrow screen never drops them. Digits are left out: the tabs show them.
    let tables = state.mode().tables(state.page);
    let all = tables.into_iter().flatten();
    let all = all.filter(|binding| !matches!(binding.action, Action::Go(_)));
    let is_page = state.mode() == Mode::Page;
    let (first, rest): (Vec<&Binding>, Vec<&Binding>) =
        all.partition(|binding| match binding.action {
            Action::Help | Action::Quit | Action::Yes | Action::No => true,
            Action::Escape => !is_page,
            _ => false,
        });
    let mut shown = Vec::new();
    for binding in first.into_iter().chain(rest) {
        let space = if used == 0 { "" } else { "  " };
        let columns_needed = space.len() + width(binding.label) + 1 + width(binding.help);
        // One key for each action is enough; an entry that does not fit is skipped, since a shorter one may fit.
        if shown.contains(&binding.action) || used + columns_needed > columns {
            continue;
        }
        shown.push(binding.action);
        used += columns_needed;
        let label = format!("{space}{}", binding.label);
        spans.push(Span::styled(label, screen.style(Role::Title)));
        spans.push(Span::styled(
            format!(" {}", binding.help),
            screen.style(Role::Dim),
        ));
    }
    Line::from(spans)
}
