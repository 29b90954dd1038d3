//! A canvas redrawn in place while it resolves, below whatever the terminal shows already.
//!
//! No raw mode and no hidden cursor: there is nothing to restore, whatever ends the program.
//! Lines that can no longer change are left behind and scroll away like other output.

use std::fmt::Write as _;

use sluice_proto::v1::CanvasToken;

use crate::{
    canvas::{Canvas, Look, TextRun, runs, wrap},
    output::{Failure, StandardOutput},
    text::{char_width, sanitise, width},
};

/// Draws a canvas below the cursor and replaces it with each frame.
pub struct Live {
    colour: bool,
    /// Lines that were left behind and are not redrawn, as plain text.
    settled: Vec<String>,
    /// Width in columns of each line that the next frame replaces.
    drawn: Vec<usize>,
    /// Width of the terminal for which `settled` was wrapped.
    columns: usize,
}

impl Live {
    /// A canvas that is not drawn yet.
    #[must_use]
    pub fn new(colour: bool) -> Self {
        Self {
            colour,
            settled: Vec::new(),
            drawn: Vec::new(),
            columns: 0,
        }
    }

    /// Whether the cursor stands at the end of a drawn line.
    #[must_use]
    pub fn is_drawn(&self) -> bool {
        !self.drawn.is_empty()
    }

    /// Draws the canvas as it stands.
    ///
    /// # Errors
    /// When the terminal cannot be written to.
    pub fn draw(&mut self, canvas: &Canvas, out: &mut StandardOutput) -> Result<(), Failure> {
        out.raw(self.frame(canvas, size()).as_bytes())
    }

    /// Erases the lines that may still change.
    ///
    /// # Errors
    /// When the terminal cannot be written to.
    pub fn clear(&mut self, out: &mut StandardOutput) -> Result<(), Failure> {
        out.raw(self.erase(size().0).as_bytes())
    }

    /// Replaces the canvas by the final text.
    ///
    /// # Errors
    /// When the terminal cannot be written to.
    pub fn finish(&mut self, text: &str, out: &mut StandardOutput) -> Result<(), Failure> {
        out.raw(self.last_frame(text, size().0).as_bytes())
    }

    fn frame(&mut self, canvas: &Canvas, (columns, rows): (usize, usize)) -> String {
        let ids = canvas.shows_ids();
        // The final text drops special tokens, so lines that stay must not show them either.
        let shown = |token: &CanvasToken| {
            ids || !token.piece.is_empty() || Look::of(token) != Look::Committed
        };
        let mut tokens: Vec<_> = canvas.seen().cloned().collect();
        tokens.retain(shown);
        let mut lines = wrap(&runs(&tokens, ids), columns);
        let mut frame = self.erase(columns);
        // After a resize lines break elsewhere, so settled lines no longer match; then no further lines are left behind.
        if self.columns == columns || self.settled.is_empty() {
            self.columns = columns;
            let mut finished: Vec<_> = canvas.blocks.values().flatten().cloned().collect();
            finished.retain(shown);
            // Two lines stay: the last may still grow, and a word may move from it to the next.
            let settled = wrap(&runs(&finished, ids), columns).len().saturating_sub(2);
            for line in lines.iter().take(settled).skip(self.settled.len()) {
                self.paint(line, &mut frame);
                frame.push_str("\r\n");
                self.settled.push(plain(line));
            }
        }
        lines.drain(..self.left_behind(&lines, columns));
        // Tokens that take the place of others have a look that nothing else in a terminal has: a line below says what it is.
        let has_legend = canvas.may_be_edited() && rows >= LEGEND_ROWS_MIN;
        // The top of a block too tall for the screen would scroll out of reach of a redraw.
        let visible = rows.saturating_sub(1 + usize::from(has_legend)).max(1);
        let skipped = lines.len().saturating_sub(visible);
        for (index, line) in lines[skipped..].iter().enumerate() {
            if index > 0 {
                frame.push_str("\r\n");
            }
            self.paint(line, &mut frame);
            self.drawn.push(plain(line).chars().map(char_width).sum());
        }
        if has_legend {
            let legend = canvas.legend(columns);
            frame.push_str("\r\n");
            self.paint(&legend, &mut frame);
            self.drawn.push(width(&plain(&legend)));
        }
        frame.push_str(END_FRAME);
        frame
    }

    /// How many of `lines` were left behind and must not be drawn again.
    fn left_behind(&self, lines: &[Vec<TextRun>], columns: usize) -> usize {
        if self.columns == columns {
            return self.settled.len().min(lines.len());
        }
        // They were wrapped for another width, so the number of lines differs; they end at about the same character.
        let mut left: usize = self.settled.iter().map(|line| line.chars().count()).sum();
        let fits = |line: &&Vec<TextRun>| {
            let length = plain(line).chars().count();
            let fits = length <= left;
            left = left.saturating_sub(length);
            fits
        };
        lines.iter().take_while(fits).count()
    }

    fn last_frame(&mut self, text: &str, columns: usize) -> String {
        let run = TextRun {
            text: sanitise(text),
            look: Look::Committed,
        };
        let lines: Vec<String> = wrap(&[run], columns)
            .iter()
            .map(|line| plain(line))
            .collect();
        let mut frame = self.erase(columns);
        // Lines left behind are normally the start of the text. If a stop string or a resize made
        // them differ, the whole text is printed again rather than a torn one.
        let kept = match self.columns == columns && lines.starts_with(&self.settled) {
            true => self.settled.len(),
            false => 0,
        };
        for line in &lines[kept..] {
            frame.push_str(line);
            frame.push_str("\r\n");
        }
        frame.push_str(END_FRAME);
        self.settled.clear();
        frame
    }

    /// Moves to the first drawn line and clears from there on.
    fn erase(&mut self, columns: usize) -> String {
        // A terminal that was made narrower has folded the lines that it shows, so each takes several rows.
        let folded = |width: &usize| width.div_ceil(columns.max(1)).max(1);
        let rows: usize = self.drawn.iter().map(folded).sum();
        self.drawn.clear();
        let mut sequence = String::from(BEGIN_FRAME);
        sequence.push('\r');
        if rows > 1 {
            let _ = write!(sequence, "\x1b[{}A", rows - 1);
        }
        sequence.push_str("\x1b[J");
        sequence
    }

    fn paint(&self, line: &[TextRun], frame: &mut String) {
        for run in line {
            let sequence = run.look.sequence(self.colour);
            frame.push_str(sequence);
            frame.push_str(&run.text);
            if !sequence.is_empty() {
                frame.push_str("\x1b[0m");
            }
        }
    }
}

/// Fewer rows are for the text alone.
const LEGEND_ROWS_MIN: usize = 6;
/// Terminals that know synchronized output show a frame whole; others ignore this.
const BEGIN_FRAME: &str = "\x1b[?2026h";
const END_FRAME: &str = "\x1b[?2026l";

fn plain(line: &[TextRun]) -> String {
    line.iter().map(|run| run.text.as_str()).collect()
}

fn size() -> (usize, usize) {
    match crossterm::terminal::size() {
        Ok((columns, rows)) if columns > 0 && rows > 0 => (columns.into(), rows.into()),
        _ => (80, 24),
    }
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::{
        CanvasToken, CommitPolicy, DiffusionOptions, GenerationBlock, GenerationPass,
        GenerationStarted, TokenState, generation_event::Event,
    };

    use super::*;

    fn words(words: &[&str], state: TokenState) -> Vec<CanvasToken> {
        let token = |word: &&str| CanvasToken {
            id: Some(1),
            piece: word.as_bytes().to_vec(),
            state: state.into(),
            ..Default::default()
        };
        words.iter().map(token).collect()
    }

    fn pass(block: u32, tokens: Vec<CanvasToken>) -> Event {
        Event::PassDone(GenerationPass {
            block,
            tokens,
            ..Default::default()
        })
    }

    #[test]
    fn a_frame_erases_the_one_before_it() {
        let mut live = Live::new(false);
        let mut canvas = Canvas::default();
        canvas.apply(pass(
            0,
            words(&["one ", "two ", "three"], TokenState::Provisional),
        ));
        let first = live.frame(&canvas, (8, 24));
        assert!(
            first.contains("\x1b[2;3mone two \x1b[0m\r\n\x1b[2;3mthree\x1b[0m"),
            "{first:?}"
        );
        let second = live.frame(&canvas, (8, 24));
        assert!(
            second.starts_with("\x1b[?2026h\r\x1b[1A\x1b[J"),
            "{second:?}"
        );
    }

    #[test]
    fn an_edited_token_is_told_apart_until_the_next_pass() {
        let mut live = Live::new(false);
        let mut canvas = Canvas::default();
        let mut tokens = words(&["one ", "two"], TokenState::Committed);
        (tokens[1].is_fresh, tokens[1].is_edited) = (true, true);
        canvas.apply(pass(0, tokens.clone()));
        let frame = live.frame(&canvas, (80, 24));
        assert!(frame.contains("one \x1b[7mtwo\x1b[0m"), "{frame:?}");
        // A block that is done has nothing new, whatever its last pass did.
        canvas.apply(Event::BlockDone(GenerationBlock {
            tokens,
            ..Default::default()
        }));
        let frame = live.frame(&canvas, (80, 24));
        assert!(frame.contains("one two"), "{frame:?}");
    }

    #[test]
    fn where_tokens_may_be_replaced_a_last_line_says_how_they_look() {
        let mut live = Live::new(true);
        let mut canvas = Canvas::default();
        canvas.apply(pass(0, words(&["one"], TokenState::Committed)));
        assert!(!live.frame(&canvas, (80, 24)).contains("edited"));
        let policy = CommitPolicy {
            name: "edit".into(),
            ..Default::default()
        };
        canvas.apply(Event::Started(GenerationStarted {
            diffusion: Some(DiffusionOptions {
                policy: Some(policy),
                ..Default::default()
            }),
            ..Default::default()
        }));
        let frame = live.frame(&canvas, (80, 24));
        assert!(
            frame.contains("one\r\ncommitted") && frame.contains("  \x1b[7;35medited\x1b[0m  "),
            "{frame:?}"
        );
        // The next frame goes over both lines, and the text in the end stands alone.
        let last = live.last_frame("one", 80);
        assert!(
            last.contains("\x1b[1A") && !last.contains("edited"),
            "{last:?}"
        );
        assert!(!live.frame(&canvas, (80, 5)).contains("edited"));
    }

    #[test]
    fn settled_lines_are_written_once_and_the_end_completes_them() {
        let mut live = Live::new(true);
        let mut canvas = Canvas::default();
        let text = ["aaaa ", "bbbb ", "cccc ", "dddd "];
        canvas.apply(Event::BlockDone(GenerationBlock {
            tokens: words(&text, TokenState::Committed),
            ..Default::default()
        }));
        canvas.apply(pass(1, words(&["?"], TokenState::Provisional)));
        let first = live.frame(&canvas, (5, 24));
        assert!(first.contains("aaaa"));
        assert!(!live.frame(&canvas, (5, 24)).contains("aaaa"));
        let last = live.last_frame("aaaa bbbb cccc dddd eeee", 5);
        assert!(
            !last.contains("aaaa") && last.contains("dddd \r\neeee\r\n"),
            "{last:?}"
        );
    }

    #[test]
    fn text_that_differs_from_what_was_left_behind_is_given_whole() {
        let mut live = Live::new(true);
        live.settled = vec!["old".into()];
        live.columns = 20;
        assert!(live.last_frame("new\ntext", 20).contains("new\r\ntext\r\n"));
    }

    #[test]
    fn a_block_taller_than_the_screen_shows_its_end() {
        let mut live = Live::new(false);
        let mut canvas = Canvas::default();
        canvas.apply(pass(
            0,
            words(&["a\n", "b\n", "c\n", "d"], TokenState::Committed),
        ));
        let frame = live.frame(&canvas, (10, 3));
        assert!(
            !frame.contains('b') && frame.contains("c\r\nd"),
            "{frame:?}"
        );
    }
}
