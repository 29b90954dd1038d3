//! The levels page: the plan of each level beside what is in force, and the presets.

mod about;
mod curve;
mod preset;
mod table;

use ratatui::layout::{Constraint, Layout, Rect};
use sluice_shared::level::Level;

use super::super::{
    levels::{LevelsPane, POLICY_ROW},
    screen::{Screen, ScreenShape},
};

/// Rows of each list with its heading and its frame.
const LEVELS_ROWS: u16 = Level::ALL.len() as u16 + 3;
const PRESET_ROWS: u16 = POLICY_ROW as u16 + 4;
/// Height from which on both lists fit, with what is told of each.
const BOTH_ROWS: u16 = LEVELS_ROWS + PRESET_ROWS + preset::ABOUT_ROWS + 12;

pub(in super::super) fn draw(screen: &mut Screen<'_, '_>, area: Rect) {
    let list = screen.state.levels.list;
    match (screen.shape, list) {
        (ScreenShape::Wide, _) if area.height >= BOTH_ROWS => {
            let [levels, about, preset, about_preset] = Layout::vertical([
                Constraint::Length(LEVELS_ROWS),
                Constraint::Min(0),
                Constraint::Length(PRESET_ROWS),
                Constraint::Length(preset::ABOUT_ROWS),
            ])
            .areas(area);
            table::draw(screen, levels, true);
            draw_about(screen, about);
            preset::draw(screen, preset, true);
            preset::draw_about(screen, about_preset);
        }
        (shape, LevelsPane::Levels) => {
            let is_framed = shape != ScreenShape::Small;
            let rows = LEVELS_ROWS - if is_framed { 0 } else { 2 };
            let [levels, about] =
                Layout::vertical([Constraint::Length(rows), Constraint::Min(0)]).areas(area);
            table::draw(screen, levels, is_framed);
            draw_about(screen, about);
        }
        (shape, LevelsPane::Presets) => {
            let is_framed = shape != ScreenShape::Small;
            let rows = PRESET_ROWS - if is_framed { 0 } else { 2 };
            let [preset, about] =
                Layout::vertical([Constraint::Length(rows), Constraint::Min(0)]).areas(area);
            preset::draw(screen, preset, is_framed);
            preset::draw_about(screen, about);
        }
    }
}

/// Draws what is told of the selected level, with the curve of loss where there is one and room for it.
fn draw_about(screen: &mut Screen<'_, '_>, area: Rect) {
    let (words, curve) = curve::beside(screen, area);
    about::draw(screen, words);
    if let Some(curve) = curve {
        curve::draw(screen, curve);
    }
}
