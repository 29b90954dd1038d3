//! The scrubber: a line that shows the position in a run and lets the mouse choose a pass.

use ratatui::{
    layout::Rect,
    text::{Line, Span},
};

use super::super::super::{hit_areas::HitTarget, screen::Screen};
use crate::{paint::Role, record::Recording, text::width};

/// Least width of the track.
const TRACK_COLUMNS: usize = 8;

/// Draws the scrubber for the pass at `index`; `None` for the latest.
pub(super) fn draw(
    screen: &mut Screen<'_, '_>,
    area: Rect,
    recording: &Recording,
    index: Option<usize>,
) {
    let latest = recording.canvas().pass.as_ref().map(|pass| pass.passes);
    let number = index.and_then(|index| recording.number(index)).or(latest);
    let (Some(number), Some(latest)) = (number, latest) else {
        let line = Line::styled("no pass yet", screen.style(Role::Dim));
        screen.frame.render_widget(line, area);
        return;
    };
    let is_playing = screen.state.reel.next_at_ms.is_some();
    let (state, role) = match (index, recording.canvas().has_ended()) {
        (Some(_), _) if is_playing => ("playing", Role::Good),
        (Some(_), _) => ("held", Role::Warning),
        (None, true) => ("ended", Role::Good),
        (None, false) => ("live", Role::Good),
    };
    let digits = latest.to_string().len();
    let words = format!("pass {number:>digits$} of {latest} ");
    let kept = match recording.is_thinned() {
        true => format!(", {} kept", recording.len()),
        false => String::new(),
    };
    // All states are equally wide, so that the track does not move.
    let state = format!(" {state:<7}{kept}");
    let room = usize::from(area.width).saturating_sub(width(&words) + width(&state) + 2);
    let mut spans = vec![Span::styled(words.clone(), screen.style(Role::Title))];
    if room >= TRACK_COLUMNS {
        let last = recording.len().saturating_sub(1);
        let at = index.unwrap_or(last);
        let knob = at * (room - 1) / last.max(1);
        spans.extend([
            Span::styled("▕", screen.style(Role::Dim)),
            Span::styled("━".repeat(knob), screen.style(Role::Good)),
            Span::styled("●", screen.style(Role::Title)),
            Span::styled("─".repeat(room - 1 - knob), screen.style(Role::Dim)),
            Span::styled("▏", screen.style(Role::Dim)),
        ]);
        let first = usize::from(area.x) + width(&words) + 1;
        for column in 0..room {
            let x = u16::try_from(first + column).unwrap_or(u16::MAX);
            let index = (column * last).div_ceil(room - 1);
            screen.hit_area(Rect::new(x, area.y, 1, 1), HitTarget::Pass(index));
        }
    }
    spans.push(Span::styled(state, screen.style(role)));
    screen.frame.render_widget(Line::from(spans), area);
}
