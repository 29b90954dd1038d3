//! What reacts to the mouse, and where the last frame had it.

use ratatui::layout::{Position, Rect};

use super::keys::Page;

/// Something that reacts to the mouse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HitTarget {
    /// The tab of a page.
    Page(Page),
    /// The prompt line.
    Prompt,
    /// A request of the list, by its id.
    Request(u64),
    /// A canvas, which scrolls.
    Canvas,
    /// A layer of the map, by its index.
    Layer(usize),
    /// A row of the page's list, by its index.
    Row(usize),
    /// A row of the page's second list, by its index.
    OtherRow(usize),
    /// A pass of the request, by its index.
    Pass(usize),
    /// A conversation, by its index.
    Conversation(usize),
}

/// Areas of the last frame that react to the mouse.
#[derive(Debug, Default, Clone)]
pub struct HitAreas(Vec<(Rect, HitTarget)>);

impl HitAreas {
    /// The target at a place; of several the one drawn last, which is on top.
    #[must_use]
    pub fn at(&self, column: u16, row: u16) -> Option<HitTarget> {
        let place = Position::new(column, row);
        let hit = self.0.iter().rev().find(|(area, _)| area.contains(place));
        hit.map(|(_, target)| *target)
    }

    /// Notes that an area reacts to the mouse, on top of those noted before.
    pub(super) fn push(&mut self, area: Rect, target: HitTarget) {
        self.0.push((area, target));
    }
}
