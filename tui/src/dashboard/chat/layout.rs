//! A conversation's texts wrapped into lines, cached between frames.

use std::{cell::RefCell, sync::Arc};

use crate::{
    canvas::{Look, TextRun, wrap},
    text::sanitise,
};

/// The lines of each text, by its place in the conversation. A running answer is drawn many times a second, while the turns
/// above it do not change.
#[derive(Debug, Default)]
pub(in super::super) struct ConversationLayout(RefCell<Vec<Option<TurnLayout>>>);

#[derive(Debug)]
struct TurnLayout {
    text: String,
    columns: usize,
    lines: Arc<Vec<Vec<TextRun>>>,
}

impl ConversationLayout {
    /// The lines of the text at a place, wrapped to `columns`. Wraps only if the text or the width changed.
    pub(in super::super) fn lines(
        &self,
        place: usize,
        text: &str,
        columns: usize,
    ) -> Arc<Vec<Vec<TextRun>>> {
        let mut kept = self.0.borrow_mut();
        if kept.len() <= place {
            kept.resize_with(place + 1, Option::default);
        }
        if let Some(turn) = &kept[place]
            && turn.columns == columns
            && turn.text == text
        {
            return Arc::clone(&turn.lines);
        }
        let run = TextRun {
            text: sanitise(text),
            look: Look::Committed,
        };
        let lines = Arc::new(wrap(&[run], columns));
        kept[place] = Some(TurnLayout {
            text: text.to_owned(),
            columns,
            lines: Arc::clone(&lines),
        });
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_laid_out_once_until_it_or_the_screen_changes() {
        let laid = ConversationLayout::default();
        let first = laid.lines(1, "one two", 5);
        assert_eq!(first.len(), 2);
        assert!(Arc::ptr_eq(&first, &laid.lines(1, "one two", 5)));
        assert_eq!(laid.lines(1, "one two", 40).len(), 1);
        assert_eq!(laid.lines(1, "one two three four", 10).len(), 2);
        assert_eq!(first.len(), 2);
    }
}
