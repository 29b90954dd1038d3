//! Drawing: a pure function of the state and the size of the screen.
//!
//! Every page has three shapes: panes beside each other, panes below each other, and for the smallest screens the most
//! important pane alone. Areas that react to the mouse are noted as they are drawn.

mod command;
mod foot;

pub(super) use foot::prompt_columns;
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    text::{Line, Span},
    widgets::{Paragraph, Wrap},
};
use sluice_proto::v1::{Model, ModelState, Operation, Snapshot};
use sluice_shared::units;

use super::{
    hit_areas::{HitAreas, HitTarget},
    keys::{Binding, Mode, Page, TABLES},
    pages,
    screen::{Screen, ScreenShape},
    state::{DaemonLink, DashboardState},
};
use crate::{
    canvas::wrap_text,
    formats,
    output::START_HINT,
    paint::Role,
    text::{clip, sanitise_line},
};

/// Smallest screen that is drawn on; a smaller one only says the size that is needed.
const LEAST_COLUMNS: u16 = 40;
const LEAST_ROWS: u16 = 10;

/// Draws the whole screen, and returns the areas that react to the mouse.
pub fn view(frame: &mut Frame<'_>, state: &DashboardState) -> HitAreas {
    let area = frame.area();
    if area.width < LEAST_COLUMNS || area.height < LEAST_ROWS {
        let words = format!(
            "sluice needs {LEAST_COLUMNS}x{LEAST_ROWS}, this is {}x{}",
            area.width, area.height
        );
        frame.render_widget(Paragraph::new(words).wrap(Wrap { trim: true }), area);
        return HitAreas::default();
    }
    let mut screen = Screen::new(frame, state);
    draw(&mut screen, area);
    let targets = screen.into_hit_areas();
    // Pages draw in Unicode; one pass over the finished cells translates them for terminals that only show ASCII.
    state.paint.glyphs.translate(frame.buffer_mut());
    targets
}

fn draw(screen: &mut Screen<'_, '_>, area: Rect) {
    let state = screen.state;
    let is_small = screen.shape == ScreenShape::Small;
    let prompt_rows = foot::prompt_rows(state, area);
    let told = foot::message_lines(state, usize::from(area.width));
    let told_rows = u16::try_from(told.len()).unwrap_or(u16::MAX);
    let [header, tabs, body, prompt, message, footer] = Layout::vertical([
        Constraint::Length(if is_small { 1 } else { 2 }),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(prompt_rows),
        // A message takes its rows from the page, so that it hides neither the keys nor the prompt.
        Constraint::Length(told_rows),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_header(screen, header);
    draw_tabs(screen, tabs);
    let is_absent = state.latest.is_none() && matches!(state.link, DaemonLink::Lost { .. });
    match state.page {
        _ if is_absent => draw_absent(screen, body),
        Page::Overview => pages::overview::draw(screen, body),
        Page::Memory => pages::memory::draw(screen, body),
        Page::Canvas => pages::canvas::draw(screen, body),
        Page::Chat => pages::chat::draw(screen, body),
        Page::Levels => pages::levels::draw(screen, body),
        Page::Jobs => pages::jobs::draw(screen, body),
    }
    if prompt_rows > 0 {
        foot::draw_prompt(screen, prompt);
    }
    screen.lines(message, told);
    foot::draw_keys(screen, footer);
    // Overlays in the order of the stack: the one that has the keyboard is drawn last, on top.
    for mode in state.modes.clone() {
        match mode {
            Mode::Help => draw_help(screen),
            Mode::Confirm => draw_question(screen),
            Mode::Options => pages::options::draw(screen),
            Mode::Recall => pages::recall::draw(screen),
            Mode::Command => command::draw(screen, footer),
            Mode::Page | Mode::Prompt | Mode::Filter | Mode::Field | Mode::Mask => {}
        }
    }
}

/// Draws why no daemon was found yet, and what to do.
fn draw_absent(screen: &mut Screen<'_, '_>, area: Rect) {
    let DaemonLink::Lost { cause, .. } = &screen.state.link else {
        return;
    };
    let inner = screen.pane(area, "No daemon", true);
    let columns = usize::from(inner.width);
    let words = [
        cause,
        "",
        START_HINT,
        "",
        "This screen fills as soon as one answers.",
    ];
    let lines = words.iter().flat_map(|words| wrap_text(words, columns));
    screen.lines(inner, lines.map(Line::raw).collect());
}

fn draw_header(screen: &mut Screen<'_, '_>, area: Rect) {
    let state = screen.state;
    let (mut words, mut role) = connection(state);
    let opened = state.opened.as_ref();
    let saved = opened.and_then(|opened| opened.recording.canvas().started.as_ref());
    let present = state.snapshot().map(|snapshot| {
        let model = snapshot.model.as_ref();
        model.map(|model| model_words(model, &snapshot.operations))
    });
    let model = match (present, saved) {
        (Some(Some(words)), _) => Some(words),
        (_, Some(started)) => Some((format!("model {}", started.model), Role::Committed)),
        (Some(None), None) => Some((
            "no model is loaded; 6 lists models".to_owned(),
            Role::Warning,
        )),
        (None, None) => None,
    };
    // The smallest screens have one line: a model that is not ready matters more than a connection that is fine.
    if area.height < 2
        && role == Role::Good
        && let Some((model, worth @ (Role::Warning | Role::Bad | Role::Dim))) = &model
    {
        (words, role) = (model.clone(), *worth);
    }
    let room = usize::from(area.width).saturating_sub("sluice  ".len());
    let first = Line::from(vec![
        Span::styled("sluice  ", screen.style(Role::Title)),
        Span::styled(clip(&sanitise_line(&words), room), screen.style(role)),
    ]);
    let (words, role) = model.unwrap_or(("model unknown".to_owned(), Role::Dim));
    let words = clip(&sanitise_line(&words), usize::from(area.width));
    let second = Line::styled(words, screen.style(role));
    screen.lines(area, vec![first, second]);
}

/// The state of the connection in words, which is always on the screen.
fn connection(state: &DashboardState) -> (String, Role) {
    if state.latest.is_none()
        && let DaemonLink::Lost { cause, retry_at_ms } = &state.link
    {
        let seconds = retry_at_ms.saturating_sub(state.now_ms).div_ceil(1000);
        let words = format!("no daemon: looking again in {seconds} s · {cause}");
        return (words, Role::Bad);
    }
    let age = state
        .stale_ms()
        .map(|ms| format!("data from {} s ago", ms / 1000))
        .map(|age| match (&state.frozen, &state.link) {
            (Some(_), _) => format!("frozen, {age}"),
            (None, DaemonLink::Connected) => format!("stale, {age}"),
            (None, _) => age,
        });
    match &state.link {
        DaemonLink::Connecting => (format!("connecting to {}", state.socket), Role::Warning),
        DaemonLink::Connected => {
            let words = format!("connected{}", server(state.snapshot()));
            match age {
                Some(age) => (format!("{age} · {words}"), Role::Warning),
                None => (format!("{words} · {}", state.socket), Role::Good),
            }
        }
        DaemonLink::Lost { cause, retry_at_ms } => {
            let left_ms = retry_at_ms.saturating_sub(state.now_ms);
            let retry = match left_ms.div_ceil(1000) {
                0 => "retrying now".to_owned(),
                seconds => format!("retrying in {seconds} s"),
            };
            let age = age.map_or(String::new(), |age| format!(", {age}"));
            (format!("lost: {retry}{age} · {cause}"), Role::Bad)
        }
        DaemonLink::Replay { name } => (format!("replay of {name}, no daemon"), Role::Good),
    }
}

fn server(snapshot: Option<&Snapshot>) -> String {
    let Some(server) = snapshot.and_then(|snapshot| snapshot.daemon.as_ref()) else {
        return String::new();
    };
    format!(
        " · sluiced {} {} · up {}",
        server.version,
        server.state().to_string().replace('_', " "),
        units::duration_ms(server.uptime_ms as f64)
    )
}

/// The model in words. Its state comes before its description, since narrow screens cut the end.
fn model_words(model: &Model, operations: &[Operation]) -> (String, Role) {
    let (state, role) = model_state(model, operations);
    let mut words = format!("model {}{state}", model.name);
    if let Some(shape) = &model.shape {
        words += &format!(
            " · {} parameters · {}",
            units::count(shape.parameters),
            formats::weight_formats(shape)
        );
    }
    if model.is_demonstration {
        words += " · demonstration model";
    }
    (words, role)
}

fn model_state(model: &Model, operations: &[Operation]) -> (String, Role) {
    match model.state() {
        ModelState::Ready => (String::new(), Role::Committed),
        ModelState::Loading => {
            let mut words = " · loading".to_owned();
            if let Some(step) = model.progress_in(operations) {
                words += &format!(
                    " {} of {}",
                    units::bytes(step.done),
                    units::bytes(step.total.unwrap_or(0))
                );
            }
            (words, Role::Warning)
        }
        ModelState::Failed => (format!(" · failed: {}", model.error), Role::Bad),
        ModelState::Asleep => (" · asleep until a request".to_owned(), Role::Dim),
        ModelState::Available
        | ModelState::Pulling
        | ModelState::Partial
        | ModelState::Unspecified => (" · not loaded".to_owned(), Role::Dim),
    }
}

/// Draws the tabs. Narrow screens shorten the names of the pages that are not open.
fn draw_tabs(screen: &mut Screen<'_, '_>, area: Rect) {
    let open = screen.state.page;
    // A tab has four columns besides its name: a space, the digit, and a space on each side of the name.
    let left = usize::from(area.width).saturating_sub(open.name().len() + 4);
    let others = Page::ALL.len() - 1;
    let letters = (left / others).saturating_sub(4);
    let full: usize = Page::ALL.iter().map(|page| page.name().len() + 4).sum();
    let is_narrow = full > usize::from(area.width);
    let mut column = area.x;
    for (page, number) in Page::ALL.into_iter().zip(1..) {
        let is_open = page == open;
        let name = match is_narrow && !is_open {
            true => page.name().chars().take(letters).collect(),
            false => page.name().to_owned(),
        };
        let words = format!(" {number} {name} ");
        let columns = u16::try_from(words.len()).unwrap_or(u16::MAX);
        let place = Rect::new(column, area.y, columns, 1).intersection(area);
        let role = if is_open { Role::Focus } else { Role::Dim };
        let line = Line::styled(words, screen.style(role));
        screen.frame.render_widget(line, place);
        screen.hit_area(place, HitTarget::Page(page));
        column = column.saturating_add(columns);
    }
}

/// The lines of the help: the tables with their headings, without keys that do not match the filter.
pub(super) fn help_lines(state: &DashboardState) -> Vec<Line<'static>> {
    let wanted = state.help_filter.value().to_lowercase();
    let paint = &state.paint;
    let own = state.mode_below_help().tables(state.page);
    let is_own = |table: &[Binding]| own.iter().any(|own| std::ptr::eq(*own, table));
    // The tables of the present mode and page come first.
    let (here, elsewhere): (Vec<_>, Vec<_>) = TABLES.iter().partition(|(_, table)| is_own(table));
    let mut lines = Vec::new();
    for (title, table) in here.into_iter().chain(elsewhere) {
        let finds = |binding: &&Binding| {
            let words = format!("{} {} {title}", binding.label, binding.help);
            words.to_lowercase().contains(&wanted)
        };
        let found: Vec<&Binding> = table.iter().filter(finds).collect();
        if found.is_empty() {
            continue;
        }
        lines.push(Line::styled(title, paint.style(Role::Title)));
        for binding in found {
            lines.push(Line::from(vec![
                Span::styled(format!("  {:<9} ", binding.label), paint.style(Role::Title)),
                Span::raw(binding.help),
            ]));
        }
    }
    lines
}

fn draw_help(screen: &mut Screen<'_, '_>) {
    let state = screen.state;
    let mut lines = help_lines(state);
    if lines.is_empty() {
        lines.push(Line::styled(
            "no key is called that",
            screen.style(Role::Dim),
        ));
    }
    let height = screen.frame.area().height;
    let rows = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
    let hidden = rows.saturating_sub(height.saturating_sub(1));
    let title = match hidden {
        0 => "Keys".to_owned(),
        _ => "Keys (Down: more, /: find)".to_owned(),
    };
    lines.drain(..state.help_line.min(hidden.into()));
    let inner = screen.popup(52, rows.min(height.saturating_sub(1)), &title);
    screen.lines(inner, lines);
}

fn draw_question(screen: &mut Screen<'_, '_>) {
    let Some(question) = &screen.state.question else {
        return;
    };
    let columns = screen.frame.area().width.min(64);
    let room = usize::from(columns).saturating_sub(4);
    let mut lines: Vec<Line<'_>> = wrap_text(&sanitise_line(&question.text), room)
        .into_iter()
        .map(|line| Line::styled(format!(" {line}"), screen.style(Role::Title)))
        .collect();
    lines.push(Line::styled(" y yes, n no", screen.style(Role::Dim)));
    let rows = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
    let inner = screen.popup(columns, rows, "Sure?");
    screen.lines(inner, lines);
}
