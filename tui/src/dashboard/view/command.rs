//! The `:` line, and above it the commands or arguments that complete it.

use ratatui::{
    layout::Rect,
    text::{Line, Span},
    widgets::Clear,
};

use super::super::{
    command::{COMMANDS, choices},
    screen::Screen,
};
use crate::{
    paint::Role,
    text::{clip, sanitise_line},
};

/// Draws the line at the foot of the screen, and above it the commands or arguments that complete it.
pub(super) fn draw(screen: &mut Screen<'_, '_>, area: Rect) {
    let state = screen.state;
    screen.frame.render_widget(Clear, area);
    let mark = Line::styled(":", screen.style(Role::Title));
    screen.frame.render_widget(mark, area);
    let place = Rect::new(area.x + 1, area.y, area.width.saturating_sub(1), 1);
    screen.editor(place, &state.command, "a command; Tab completes", true);

    let written = state.command.value();
    let columns = usize::from(area.width).saturating_sub(2).min(64);
    let mut lines = Vec::new();
    match written.split_once(' ') {
        None => {
            for command in COMMANDS
                .iter()
                .filter(|command| command.name.starts_with(written))
            {
                let name = format!("{} {}", command.name, command.takes);
                lines.push(Line::from(vec![
                    Span::styled(format!("{name:<20} "), screen.style(Role::Title)),
                    Span::raw(clip(command.about, columns.saturating_sub(21))),
                ]));
            }
        }
        Some((name, begun)) => {
            if let Some(command) = COMMANDS.iter().find(|command| command.name == name) {
                let words = format!("{name} {}: {}", command.takes, command.about);
                lines.push(Line::styled(clip(&words, columns), screen.style(Role::Dim)));
            }
            let choices = choices(state, name).into_iter();
            let fitting = choices.filter(|choice| choice.starts_with(begun));
            // Choices may be names from the daemon or paths, so they are made safe to show.
            lines.extend(fitting.map(|choice| Line::raw(sanitise_line(&choice))));
        }
    }
    if lines.is_empty() {
        return;
    }
    let rows = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
    let rows = rows.min(area.y);
    lines.truncate(usize::from(rows.saturating_sub(2)));
    let width = u16::try_from(columns + 2).unwrap_or(u16::MAX);
    let place = Rect::new(area.x, area.y - rows, width.min(area.width), rows);
    screen.frame.render_widget(Clear, place);
    screen.framed(place, "Commands", false, lines);
}
