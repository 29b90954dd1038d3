//! The screen that pages draw on: its shape, and frames, lines and editors on it.

use ratatui::{
    Frame,
    layout::Rect,
    style::{Modifier, Style},
    symbols::border,
    text::{Line, Span},
    widgets::{Block, Clear},
};
use tui_input::Input;

use super::{
    hit_areas::{HitAreas, HitTarget},
    state::DashboardState,
};
use crate::{
    paint::{Paint, Role},
    text::{clip, sanitise_line, width},
};

/// Width from which on panes are beside each other.
const WIDE_COLUMNS: u16 = 100;
/// Height from which on more than one pane fits.
const TALL_ROWS: u16 = 20;

/// The shape of a screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScreenShape {
    /// Panes beside each other.
    Wide,
    /// Panes below each other.
    Tall,
    /// One pane alone.
    Small,
}

impl ScreenShape {
    fn of(area: Rect) -> Self {
        Self::of_size((area.width, area.height))
    }

    /// The shape for a size in columns and rows.
    pub(super) fn of_size((columns, rows): (u16, u16)) -> Self {
        match (columns >= WIDE_COLUMNS, rows >= TALL_ROWS) {
            (_, false) => Self::Small,
            (true, true) => Self::Wide,
            (false, true) => Self::Tall,
        }
    }
}

/// The screen that pages draw on.
pub(super) struct Screen<'a, 'b> {
    pub(super) frame: &'a mut Frame<'b>,
    pub(super) state: &'a DashboardState,
    pub(super) shape: ScreenShape,
    hit_areas: HitAreas,
}

impl<'a, 'b> Screen<'a, 'b> {
    /// A screen on which nothing is drawn yet.
    pub(super) fn new(frame: &'a mut Frame<'b>, state: &'a DashboardState) -> Self {
        Self {
            shape: ScreenShape::of(frame.area()),
            frame,
            state,
            hit_areas: HitAreas::default(),
        }
    }

    /// The areas that react to the mouse, once everything is drawn.
    pub(super) fn into_hit_areas(self) -> HitAreas {
        self.hit_areas
    }

    pub(super) fn paint(&self) -> &'a Paint {
        &self.state.paint
    }

    /// The style of a role in the present theme.
    pub(super) fn style(&self, role: Role) -> Style {
        self.paint().style(role)
    }

    /// Notes that an area reacts to the mouse.
    pub(super) fn hit_area(&mut self, area: Rect, target: HitTarget) {
        self.hit_areas.push(area, target);
    }

    /// Draws a frame with a title, reversed where it has the keyboard. Returns the area inside.
    pub(super) fn pane(&mut self, area: Rect, title: &str, is_focused: bool) -> Rect {
        let role = if is_focused { Role::Focus } else { Role::Title };
        let room = usize::from(area.width).saturating_sub(4);
        let title = format!(" {} ", clip(&sanitise_line(title), room));
        let block = Block::bordered()
            .border_set(border::PLAIN)
            .border_style(self.style(Role::Dim))
            // The title inherits the border's style, which is dim.
            .title(Span::styled(
                title,
                self.style(role).remove_modifier(Modifier::DIM),
            ));
        let inner = block.inner(area);
        self.frame.render_widget(block, area);
        inner
    }

    /// Draws lines as far as there are rows.
    pub(super) fn lines(&mut self, area: Rect, lines: Vec<Line<'_>>) {
        for (line, row) in lines.into_iter().zip(area.rows()) {
            self.frame.render_widget(line, row);
        }
    }

    /// Draws a frame with lines in it.
    pub(super) fn framed(
        &mut self,
        area: Rect,
        title: &str,
        is_focused: bool,
        lines: Vec<Line<'_>>,
    ) {
        let inner = self.pane(area, title, is_focused);
        self.lines(inner, lines);
    }

    /// Draws words at the right end of a frame's lower edge.
    pub(super) fn foot(&mut self, area: Rect, words: &str) {
        let room = usize::from(area.width).saturating_sub(4);
        let words = clip(words, room);
        let columns = u16::try_from(width(&words)).unwrap_or(u16::MAX);
        let place = Rect::new(
            area.right().saturating_sub(columns + 2),
            area.bottom().saturating_sub(1),
            columns,
            1,
        );
        let line = Line::styled(words, self.style(Role::Dim));
        self.frame.render_widget(line, place);
    }

    /// Draws a frame in the middle of the screen, over its content. Returns the area inside.
    pub(super) fn popup(&mut self, columns: u16, rows: u16, title: &str) -> Rect {
        let area = self.frame.area();
        // The last row stays free: it shows the keys.
        let above = area.height.saturating_sub(1);
        let (columns, rows) = (columns.min(area.width), rows.min(above));
        let place = Rect::new(
            area.x + (area.width - columns) / 2,
            area.y + (above - rows) / 2,
            columns,
            rows,
        );
        self.frame.render_widget(Clear, place);
        self.pane(place, title, true)
    }

    /// Draws an edited line, or `invitation` while it is empty; with the cursor if it has the keyboard.
    pub(super) fn editor(&mut self, area: Rect, line: &Input, invitation: &str, is_focused: bool) {
        let columns = usize::from(area.width);
        let scroll = line.visual_scroll(columns.saturating_sub(1));
        let value = sanitise_line(line.value());
        let shown = match value.is_empty() {
            true => Line::styled(clip(invitation, columns), self.style(Role::Dim)),
            false => Line::raw(visible(&value, scroll, columns)),
        };
        self.frame.render_widget(shown, area);
        if is_focused {
            let column = line.visual_cursor().saturating_sub(scroll);
            let column = u16::try_from(column.min(columns)).unwrap_or(0);
            self.frame.set_cursor_position((area.x + column, area.y));
        }
    }
}

/// The part of a text that a line editor shows: `columns` from column `scroll` on.
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
