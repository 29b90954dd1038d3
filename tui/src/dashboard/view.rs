//! Drawing: a pure function of the state and the size of the screen.
//!
//! Three shapes: two columns, one column, and for the smallest screens the canvas alone.

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Clear, Paragraph, Wrap},
};
use sluice_proto::v1::{Model, ModelState, Snapshot};
use sluice_shared::units;

use super::{
    keys::{ANYWHERE, Action, Binding, Mode, TABLES},
    levels, panels,
    state::{Link, State},
};
use crate::{
    json,
    text::{clip, sanitise_line, width},
};

/// The least screen that anything useful fits on.
const LEAST_COLUMNS: u16 = 40;
const LEAST_ROWS: u16 = 10;
/// From here on, panels stand beside the canvas, or above it.
const WIDE_COLUMNS: u16 = 100;
const TALL_ROWS: u16 = 20;
const SIDE_COLUMNS: u16 = 44;
/// What the list of requests keeps below the memory.
const REQUESTS_ROWS: u16 = 4;

/// Draws the whole screen.
pub fn view(frame: &mut Frame<'_>, state: &State, colour: bool) {
    let area = frame.area();
    if area.width < LEAST_COLUMNS || area.height < LEAST_ROWS {
        let words = format!(
            "sluice needs {LEAST_COLUMNS}x{LEAST_ROWS}, this is {}x{}",
            area.width, area.height
        );
        frame.render_widget(Paragraph::new(words).wrap(Wrap { trim: true }), area);
        return;
    }
    let paint = Paint { colour };
    let is_tall = area.height >= TALL_ROWS;
    let prompt_rows = if is_tall { 3 } else { 1 };
    let [header, body, prompt, footer] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(0),
        Constraint::Length(prompt_rows),
        Constraint::Length(1),
    ])
    .areas(area);

    draw_header(frame, header, state, paint);
    if area.width >= WIDE_COLUMNS && is_tall {
        let [side, main] =
            Layout::horizontal([Constraint::Length(SIDE_COLUMNS), Constraint::Min(0)]).areas(body);
        let inner = (
            SIDE_COLUMNS - 2,
            side.height.saturating_sub(REQUESTS_ROWS + 2),
        );
        let inner = (usize::from(inner.0), usize::from(inner.1));
        let memory = panels::memory(state, inner, paint);
        let rows = u16::try_from(memory.len()).unwrap_or(u16::MAX) + 2;
        let [top, bottom] =
            Layout::vertical([Constraint::Length(rows), Constraint::Min(REQUESTS_ROWS)])
                .areas(side);
        framed(frame, top, "Memory", false, memory);
        draw_requests(frame, bottom, state);
        panels::request(frame, main, state, paint);
    } else if is_tall {
        let facts = panels::memory_brief(state, usize::from(area.width), paint);
        let rows = u16::try_from(facts.len()).unwrap_or(u16::MAX);
        let [top, middle, bottom] = Layout::vertical([
            Constraint::Length(rows),
            Constraint::Length(5),
            Constraint::Min(0),
        ])
        .areas(body);
        frame.render_widget(Paragraph::new(facts), top);
        draw_requests(frame, middle, state);
        panels::request(frame, bottom, state, paint);
    } else {
        panels::request(frame, body, state, paint);
    }
    draw_prompt(frame, prompt, state, is_tall);
    frame.render_widget(footer_line(state, usize::from(footer.width), paint), footer);

    match state.mode {
        Mode::Help => draw_help(frame, area, state.help_line),
        Mode::Confirm => draw_question(frame, area, state),
        Mode::Levels => levels::draw(frame, area, state),
        Mode::Prompt | Mode::Requests => {}
    }
}

/// Colours by role. Words and attributes carry the meaning where colour is not wanted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Paint {
    /// Whether colour is allowed.
    pub(super) colour: bool,
}

impl Paint {
    pub(super) fn good(self) -> Style {
        self.colour(Color::Green, Modifier::empty())
    }

    pub(super) fn warning(self) -> Style {
        self.colour(Color::Yellow, Modifier::BOLD)
    }

    pub(super) fn bad(self) -> Style {
        self.colour(Color::Red, Modifier::BOLD)
    }

    fn colour(self, colour: Color, modifier: Modifier) -> Style {
        let style = Style::new().add_modifier(modifier);
        if self.colour { style.fg(colour) } else { style }
    }
}

/// Quiet words.
pub(super) fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

pub(super) fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

/// A titled frame around lines; the title of what has the keyboard is reversed.
pub(super) fn framed(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &str,
    focused: bool,
    lines: Vec<Line<'_>>,
) {
    let style = match focused {
        true => bold().add_modifier(Modifier::REVERSED),
        false => bold(),
    };
    let title = Span::styled(format!(" {title} "), style);
    let block = Block::bordered().border_style(dim()).title(title);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn draw_header(frame: &mut Frame<'_>, area: Rect, state: &State, paint: Paint) {
    let (words, style) = connection(state, paint);
    let room = usize::from(area.width).saturating_sub("sluice  ".len());
    let first = Line::from(vec![
        Span::styled("sluice  ", bold()),
        Span::styled(clip(&sanitise_line(&words), room), style),
    ]);
    let model = state.snapshot.as_ref().and_then(|(s, _)| s.model.as_ref());
    let (words, style) = match model {
        Some(model) => model_words(model, paint),
        None => ("model unknown".to_owned(), dim()),
    };
    let words = clip(&sanitise_line(&words), usize::from(area.width));
    let second = Line::styled(words, style);
    frame.render_widget(Paragraph::new(vec![first, second]), area);
}

/// The connection in words; always on screen.
fn connection(state: &State, paint: Paint) -> (String, Style) {
    let age = state
        .stale_ms()
        .map(|ms| format!("data from {} s ago", ms / 1000));
    match &state.link {
        Link::Connecting => (format!("connecting to {}", state.socket), paint.warning()),
        Link::Connected => {
            let snapshot = state.snapshot.as_ref().map(|(snapshot, _)| &**snapshot);
            let words = format!("connected{}", server(snapshot));
            match age {
                Some(age) => (format!("{words}, {age}"), paint.warning()),
                None => (format!("{words} · {}", state.socket), paint.good()),
            }
        }
        Link::Lost { cause, retry_at_ms } => {
            let left_ms = retry_at_ms.saturating_sub(state.now_ms);
            let retry = match left_ms.div_ceil(1000) {
                0 => "retrying now".to_owned(),
                seconds => format!("retrying in {seconds} s"),
            };
            let age = age.map_or(String::new(), |age| format!(", {age}"));
            (format!("lost: {retry}{age} · {cause}"), paint.bad())
        }
    }
}

fn server(snapshot: Option<&Snapshot>) -> String {
    let Some(server) = snapshot.and_then(|snapshot| snapshot.server.as_ref()) else {
        return String::new();
    };
    format!(
        " · sluiced {} {} · up {}",
        server.version,
        json::server_state(server.state()).replace('_', " "),
        units::duration_ms(server.uptime_ms as f64)
    )
}

fn model_words(model: &Model, paint: Paint) -> (String, Style) {
    let mut words = format!("model {}", model.name);
    if let Some(shape) = &model.shape {
        words += &format!(
            " · {} parameters · {}",
            units::count(shape.parameters),
            shape.formats.join(" + ")
        );
    }
    if model.is_demonstration {
        words += " · demonstration model";
    }
    match model.state() {
        ModelState::Ready => (words, Style::new()),
        ModelState::Loading => {
            words += " · loading";
            if let Some(progress) = &model.progress {
                words += &format!(
                    " {} of {}",
                    units::bytes(progress.loaded_bytes),
                    units::bytes(progress.total_bytes)
                );
            }
            (words, paint.warning())
        }
        ModelState::Failed => (format!("{words} · failed: {}", model.error), paint.bad()),
        ModelState::Asleep => (words + " · asleep until a request", dim()),
        ModelState::Available
        | ModelState::Pulling
        | ModelState::Partial
        | ModelState::Unspecified => (words + " · not loaded", dim()),
    }
}

fn draw_requests(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let focused = state.mode == Mode::Requests;
    let inner = (area.width.saturating_sub(2), area.height.saturating_sub(2));
    let lines = panels::requests(state, inner.0.into(), inner.1.into());
    let title = panels::queue_title(state);
    framed(frame, area, &title, focused, lines);
}

fn draw_prompt(frame: &mut Frame<'_>, area: Rect, state: &State, has_frame: bool) {
    let focused = state.mode == Mode::Prompt;
    let columns = usize::from(area.width).saturating_sub(if has_frame { 4 } else { 2 });
    let scroll = state.input.visual_scroll(columns.saturating_sub(1));
    let value = sanitise_line(state.input.value());
    let line = if value.is_empty() {
        let invitation = if focused {
            "write a prompt; Enter sends it, ? helps"
        } else {
            "Tab leads here"
        };
        Line::styled(invitation, dim())
    } else {
        Line::raw(visible(&value, scroll, columns))
    };
    let (x, y) = if has_frame {
        framed(frame, area, "Prompt", focused, vec![Line::default()]);
        (area.x + 2, area.y + 1)
    } else {
        let mark = if focused { bold() } else { dim() };
        frame.render_widget(Line::styled("> ", mark), area);
        (area.x + 2, area.y)
    };
    let width = u16::try_from(columns).unwrap_or(u16::MAX);
    frame.render_widget(line, Rect::new(x, y, width, 1));
    if focused {
        let column = state
            .input
            .visual_cursor()
            .saturating_sub(scroll)
            .min(columns);
        frame.set_cursor_position((x + u16::try_from(column).unwrap_or(0), y));
    }
}

/// What a line editor shows of its text: `columns` from column `scroll` on.
fn visible(text: &str, scroll: usize, columns: usize) -> String {
    let mut at = 0;
    let mut shown = String::new();
    for character in text.chars() {
        let wide = crate::text::char_width(character);
        if at >= scroll && at + wide <= scroll + columns {
            shown.push(character);
        }
        at += wide;
    }
    shown
}

/// What is to be told, else the keys of the mode.
fn footer_line(state: &State, columns: usize, paint: Paint) -> Line<'static> {
    if let Some((message, _)) = &state.message {
        let words = clip(&sanitise_line(message), columns);
        return Line::styled(words, paint.warning().add_modifier(Modifier::REVERSED));
    }
    let mut spans = Vec::new();
    let mut used = 0;
    // Help and the way out are never what a narrow screen drops.
    let all = state.mode.bindings().iter().chain(ANYWHERE);
    let (first, rest): (Vec<&Binding>, Vec<&Binding>) = all.partition(|binding| {
        matches!(
            binding.action,
            Action::Help
                | Action::CloseHelp
                | Action::CloseLevels
                | Action::Quit
                | Action::Yes
                | Action::No
        )
    });
    for binding in first.into_iter().chain(rest) {
        let space = if used == 0 { "" } else { "  " };
        let columns_needed = space.len() + width(binding.label) + 1 + width(binding.help);
        if used + columns_needed > columns {
            break;
        }
        used += columns_needed;
        spans.push(Span::styled(format!("{space}{}", binding.label), bold()));
        spans.push(Span::styled(format!(" {}", binding.help), dim()));
    }
    Line::from(spans)
}

fn draw_help(frame: &mut Frame<'_>, area: Rect, first_line: usize) {
    let mut lines = Vec::new();
    for (title, table) in TABLES {
        lines.push(Line::styled(*title, bold()));
        for binding in *table {
            lines.push(Line::from(vec![
                Span::styled(format!("  {:<8} ", binding.label), bold()),
                Span::raw(binding.help),
            ]));
        }
    }
    let rows = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
    let hidden = rows.saturating_sub(area.height);
    let title = if hidden > 0 {
        "Keys (Down: more)"
    } else {
        "Keys"
    };
    lines.drain(..first_line.min(hidden.into()));
    popup(frame, area, (46, rows), title, lines);
}

fn draw_question(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let id = state.asked.unwrap_or_default();
    let question = format!("Cancel request {id}?  y yes, n no");
    let columns = u16::try_from(width(&question) + 4).unwrap_or(area.width);
    let line = Line::styled(format!(" {question}"), bold());
    popup(frame, area, (columns, 3), "Sure?", vec![line]);
}

/// Lines in a frame in the middle of `area`.
pub(super) fn popup(
    frame: &mut Frame<'_>,
    area: Rect,
    (columns, rows): (u16, u16),
    title: &str,
    lines: Vec<Line<'_>>,
) {
    let (columns, rows) = (columns.min(area.width), rows.min(area.height));
    let place = Rect::new(
        area.x + (area.width - columns) / 2,
        area.y + (area.height - rows) / 2,
        columns,
        rows,
    );
    frame.render_widget(Clear, place);
    framed(frame, place, title, true, lines);
}
