//! The run that the canvas page shows: which pass of it, and how.

use std::cell::Cell;

use crate::record::Recording;

/// Which pass of a request is shown, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PassReel {
    /// Number of the pass; `None`: the latest, as it comes.
    pub at: Option<u32>,
    /// While passes are played: the time at which the next one is shown.
    pub next_at_ms: Option<u64>,
    /// Text, heat map, or both.
    pub view: CanvasView,
    /// Lines scrolled back from the end; 0 follows it.
    pub scroll: usize,
    /// Lines that the last drawn picture can be scrolled back. Only drawing knows how many lines a text makes, so the view
    /// notes it here, and scrolling ends with the text.
    scrollable: Cell<Option<usize>>,
}

impl PassReel {
    /// Called before a picture is drawn.
    pub(super) fn draws(&self) {
        self.scrollable.set(Some(0));
    }

    /// Notes that a part of the picture can be scrolled back this many lines; the longest part counts.
    pub(super) fn drew(&self, scrollable: usize) {
        let most = self.scrollable.get().unwrap_or(0);
        self.scrollable.set(Some(most.max(scrollable)));
    }

    /// Scrolls back by this many lines, as far as there are any; negative scrolls forward.
    pub(super) fn scroll(&mut self, by: isize) {
        let most = self.scrollable.get().unwrap_or(usize::MAX);
        let scroll = self.scroll.min(most).saturating_add_signed(by);
        self.scroll = scroll.min(most);
    }

    /// Returns to the latest pass and follows it.
    pub(super) fn rewind(&mut self) {
        self.at = None;
        self.next_at_ms = None;
        self.scroll = 0;
    }
}

/// What the canvas page shows of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CanvasView {
    /// Both, where there is room for them.
    #[default]
    Both,
    /// The text alone.
    Text,
    /// The heat map alone: the model's confidence, token by token and pass by pass.
    Heat,
}

/// A run that was read from a file.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenedRun {
    /// The file, for the screen.
    pub name: String,
    /// The passes that the file holds.
    pub recording: Recording,
}
