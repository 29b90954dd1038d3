//! The overview page: memory, layers, requests, and the selected request's canvas.

use ratatui::{
    layout::{Constraint, Layout, Rect},
    text::Line,
};
use sluice_proto::v1::{Operation, OperationState};
use sluice_shared::units;

use super::{
    super::{
        hit_areas::HitTarget,
        keys::Mode,
        panels,
        requests::Requests,
        screen::{Screen, ScreenShape},
        state::{DaemonLink, DashboardState},
    },
    canvas, memory,
};
use crate::{
    paint::Role,
    text::{clip, sanitise_line},
};

/// Width of the side beside the canvas.
const SIDE_COLUMNS: u16 = 46;
/// Its width on very wide screens.
const BROAD_SIDE_COLUMNS: u16 = 62;
const BROAD_COLUMNS: u16 = 140;
/// Rows of the side from which on it has the map and the graph.
const MAP_FROM_ROWS: u16 = 26;
const GRAPH_FROM_ROWS: u16 = 34;
const GRAPH_ROWS: u16 = 7;
/// Rows that the list of requests always keeps.
const REQUESTS_ROWS: u16 = 5;

pub(in super::super) fn draw(screen: &mut Screen<'_, '_>, area: Rect) {
    match screen.shape {
        ScreenShape::Wide => {
            let columns = match area.width >= BROAD_COLUMNS {
                true => BROAD_SIDE_COLUMNS,
                false => SIDE_COLUMNS,
            };
            let [side, main] =
                Layout::horizontal([Constraint::Length(columns), Constraint::Min(0)]).areas(area);
            draw_side(screen, side);
            canvas::draw_request(screen, main);
        }
        ScreenShape::Tall => {
            let facts = panels::memory::in_brief(screen.state, usize::from(area.width));
            let rows = u16::try_from(facts.len()).unwrap_or(u16::MAX);
            let map_rows = panels::layers::brief_rows(screen.state, area.width).min(4);
            let [top, map, middle, bottom] = Layout::vertical([
                Constraint::Length(rows),
                Constraint::Length(map_rows),
                Constraint::Length(4),
                Constraint::Min(0),
            ])
            .areas(area);
            screen.lines(top, facts);
            panels::layers::brief(screen, map);
            draw_requests(screen, middle);
            canvas::draw_request(screen, bottom);
        }
        ScreenShape::Small => canvas::draw_request(screen, area),
    }
}

fn draw_side(screen: &mut Screen<'_, '_>, area: Rect) {
    let state = screen.state;
    let columns = area.width.saturating_sub(2);
    let map_rows = panels::layers::brief_rows(state, columns);
    // In a low window the map and the graph go first, since memory matters more.
    let map_rows = match area.height >= MAP_FROM_ROWS && map_rows > 0 {
        true => map_rows + 2,
        false => 0,
    };
    let graph_rows = match area.height >= GRAPH_FROM_ROWS {
        true => GRAPH_ROWS,
        false => 0,
    };
    let rest = map_rows + graph_rows + REQUESTS_ROWS + 2;
    let size = (columns.into(), area.height.saturating_sub(rest).into());
    let memory = panels::memory::in_full(state, size);
    let rows = u16::try_from(memory.len()).unwrap_or(u16::MAX) + 2;
    let [top, map, graph, bottom] = Layout::vertical([
        Constraint::Length(rows),
        Constraint::Length(map_rows),
        Constraint::Length(graph_rows),
        Constraint::Min(REQUESTS_ROWS),
    ])
    .areas(area);
    screen.framed(top, "Memory", false, memory);
    if map_rows > 0 {
        let inner = screen.pane(map, panels::layers::BRIEF_TITLE, false);
        panels::layers::brief(screen, inner);
    }
    if graph_rows > 0 {
        memory::draw_history(screen, graph, memory::Figure::Tokens);
    }
    draw_requests(screen, bottom);
}

/// Draws the list of requests, scrolled so that the selection is visible.
fn draw_requests(screen: &mut Screen<'_, '_>, area: Rect) {
    let state = screen.state;
    let focused = state.mode() == Mode::Page;
    let inner = screen.pane(area, &queue_title(state), focused);
    let (columns, rows) = (usize::from(inner.width), usize::from(inner.height));
    let all = state.rows();
    if all.is_empty() {
        let words = match state.filter.value().is_empty() {
            true => "none",
            false => "none that the filter lets through",
        };
        screen.lines(inner, vec![Line::styled(words, screen.style(Role::Dim))]);
        return;
    }
    let is_selected = |row: &Operation| Some(row.operation_id) == state.requests.selected;
    let selected = all.iter().position(is_selected);
    let first = selected.unwrap_or(0).saturating_sub(rows.saturating_sub(1));
    let shown = all.iter().skip(first).take(rows);
    for (row, y) in shown.zip(inner.y..) {
        let place = Rect::new(inner.x, y, inner.width, 1);
        let mark = if is_selected(row) { '▸' } else { ' ' };
        let words = clip(
            &sanitise_line(&format!("{mark} {}", request_words(row, &state.requests))),
            columns,
        );
        let role = match (is_selected(row), row.state()) {
            (true, _) if focused => Role::Selected,
            (true, _) => Role::Title,
            (false, OperationState::Failed) => Role::Bad,
            (false, _) => Role::Committed,
        };
        let line = Line::styled(words, screen.style(role));
        screen.frame.render_widget(line, place);
        screen.hit_area(place, HitTarget::Request(row.operation_id));
    }
}

/// Title of the request list: the queue in words.
fn queue_title(state: &DashboardState) -> String {
    if let DaemonLink::Replay { .. } = state.link {
        return "Runs".to_owned();
    }
    match state.snapshot().and_then(|snapshot| snapshot.queue) {
        Some(queue) => format!(
            "Requests: {} running, {} of {} waiting",
            queue.running, queue.waiting, queue.capacity
        ),
        None => "Requests".to_owned(),
    }
}

fn request_words(row: &Operation, requests: &Requests) -> String {
    let ms = match row.state() {
        OperationState::Queued => row.queued_ms,
        _ => row.elapsed_ms,
    };
    let state = match row.state() {
        OperationState::Unspecified => "ended".to_owned(),
        state => state.to_string(),
    };
    let detail = row.request_detail();
    let mut words = format!(
        "{:<4} {:<9} {}/{} blocks  {}",
        requests.name(row.operation_id),
        state,
        detail.done_blocks,
        detail.blocks,
        units::duration_ms(ms),
    );
    // The state column already says that a request was cancelled.
    if let Some(error) = &row.error
        && row.state() != OperationState::Cancelled
    {
        words += &format!("  {}", error.message);
    }
    words
}
