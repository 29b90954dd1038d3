//! The messages of a conversation as lines, and the places of words in them.

use std::{ops::Range, sync::Arc};

use ratatui::{
    layout::Rect,
    style::Style,
    text::{Line, Span},
};
use sluice_shared::units;

use super::{
    super::super::{
        chat::{AnswerTarget, PendingAnswer, Speaker, Turn, WordChoice},
        hit_areas::HitTarget,
        screen::{Screen, ScreenShape},
        state::DashboardState,
    },
    LIST_COLUMNS,
};
use crate::{
    canvas::{Canvas, Look, MASK_MARK, TextRun, runs, wrap},
    paint::{Paint, Role},
    text::{clip, sanitise, sanitise_line},
};

/// Indentation of a message's text.
const INDENT: &str = "  ";

/// Width of a message's text on a screen of this size.
pub(in super::super::super) fn columns(size: (u16, u16)) -> usize {
    let beside = match ScreenShape::of_size(size) {
        ScreenShape::Wide => LIST_COLUMNS,
        ScreenShape::Tall | ScreenShape::Small => 0,
    };
    text_columns(size.0.saturating_sub(beside))
}

fn text_columns(pane: u16) -> usize {
    usize::from(pane).saturating_sub(2 + INDENT.len())
}

/// Number of lines of the open conversation.
pub(in super::super::super) fn lines(state: &DashboardState) -> isize {
    let rows = sheet(state, columns(state.size) + INDENT.len()).rows;
    isize::try_from(rows).unwrap_or(isize::MAX)
}

/// The messages of a conversation, and the lines that each takes.
#[derive(Default)]
struct Sheet {
    parts: Vec<Part>,
    messages: Vec<Range<usize>>,
    rows: usize,
    /// The line of the cursor, while words are chosen.
    cursor: Option<usize>,
}

/// A message: speaker, figures, and the text below.
struct Part {
    head: Line<'static>,
    text: Text,
}

enum Text {
    /// Text that does not change, from the cache of layouts.
    Said(Arc<Vec<Vec<TextRun>>>),
    /// Text that changes with each frame.
    New(Vec<Line<'static>>),
}

impl Text {
    fn rows(&self) -> usize {
        match self {
            Self::Said(lines) => lines.len(),
            Self::New(lines) => lines.len(),
        }
    }

    fn line(&self, row: usize, paint: &Paint) -> Option<Line<'static>> {
        let mut line = match self {
            Self::Said(lines) => styled_line(lines.get(row)?.clone(), |look| paint.look(look)),
            Self::New(lines) => lines.get(row)?.clone(),
        };
        line.spans.insert(0, Span::raw(INDENT));
        Some(line)
    }
}

impl Sheet {
    /// A range of its lines. Others are not made: a long answer has more lines than the screen.
    fn lines(&self, shown: Range<usize>, paint: &Paint) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        for (part, place) in self.parts.iter().zip(&self.messages) {
            // Each message has an empty line behind it.
            for row in place.start.max(shown.start)..(place.end + 1).min(shown.end) {
                let line = match (row - place.start).checked_sub(1) {
                    None => Some(part.head.clone()),
                    Some(row) => part.text.line(row, paint),
                };
                lines.push(line.unwrap_or_default());
            }
        }
        lines
    }
}

pub(super) fn draw(screen: &mut Screen<'_, '_>, area: Rect, title: &str) {
    let state = screen.state;
    let inner = screen.pane(area, title, false);
    screen.hit_area(inner, HitTarget::Canvas);
    let sheet = sheet(state, usize::from(inner.width));
    if sheet.rows == 0 {
        let words = "no messages yet; write a prompt below";
        let line = Line::styled(
            clip(words, usize::from(inner.width)),
            screen.style(Role::Dim),
        );
        screen.lines(inner, vec![line]);
        return;
    }
    let rows = usize::from(inner.height);
    let total = sheet.rows;
    let first = first_line(&sheet, state, rows);
    for (index, message) in sheet.messages.iter().enumerate() {
        let top = message.start.max(first);
        let bottom = message.end.min(first + rows);
        if top < bottom {
            let line = |line: usize| u16::try_from(line).unwrap_or(u16::MAX);
            let y = inner.y + line(top - first);
            let place = Rect::new(inner.x, y, inner.width, line(bottom - top));
            screen.hit_area(place, HitTarget::Row(index));
        }
    }
    let lines = sheet.lines(first..(first + rows).min(total), screen.paint());
    screen.lines(inner, lines);
    if total > rows {
        let end = (first + rows).min(total);
        screen.foot(area, &format!(" lines {}-{end} of {total} ", first + 1));
    }
}

/// The first line that is shown in the given rows.
fn first_line(sheet: &Sheet, state: &DashboardState, rows: usize) -> usize {
    let last = sheet.rows.saturating_sub(rows);
    let message = state.chat.selected.and_then(|at| sheet.messages.get(at));
    let first = match (sheet.cursor, message) {
        (Some(cursor), _) => cursor.saturating_sub(rows / 2),
        // As much of the selected message as fits, and always its beginning.
        (None, Some(message)) => message.end.saturating_sub(rows).min(message.start),
        (None, None) => last,
    };
    first
        .min(last)
        .saturating_add_signed(state.chat.scroll)
        .min(last)
}

fn sheet(state: &DashboardState, columns: usize) -> Sheet {
    let mut sheet = Sheet::default();
    let chat = &state.chat;
    let asked = chat.pending_here();
    for (index, turn) in chat.conversation().turns.iter().enumerate() {
        let is_selected = chat.selected == Some(index);
        let asked = asked.filter(|asked| match &asked.target {
            AnswerTarget::Again { turn } | AnswerTarget::Words { turn, .. } => *turn == index,
            AnswerTarget::Answer { .. } => false,
        });
        let choice = chat.choice.as_ref().filter(|choice| choice.turn == index);
        // A running request replaces this turn, so it is drawn even while words of the turn are chosen.
        let mut own = Message {
            sheet: &mut sheet,
            paint: &state.paint,
            columns,
            is_selected,
        };
        match (asked, choice) {
            (Some(asked), _) => own.running(state, asked, Some(turn)),
            (None, Some(choice)) => own.choosing(turn, choice),
            (None, None) => own.turn(
                turn,
                chat.layout.lines(index, &turn.text, own.text_columns()),
            ),
        }
    }
    let turns = chat.conversation().turns.len();
    if let Some(asked) = asked
        && let AnswerTarget::Answer { prompt } = &asked.target
    {
        // The prompt joins the conversation only with its answer, so until then it is drawn behind the turns.
        let mut own = Message {
            sheet: &mut sheet,
            paint: &state.paint,
            columns,
            is_selected: false,
        };
        let laid = chat.layout.lines(turns, prompt, own.text_columns());
        own.turn(&Turn::new(Speaker::User, prompt.clone()), laid);
        own.running(state, asked, None);
    }
    for (index, prompt) in (turns + 1..).zip(chat.waiting_here()) {
        let mut own = Message {
            sheet: &mut sheet,
            paint: &state.paint,
            columns,
            is_selected: false,
        };
        let laid = chat.layout.lines(index, prompt, own.text_columns());
        let words = "waits for the answer above";
        own.write("you", words, Role::Warning, Text::Said(laid));
    }
    // The last message has no empty line behind it.
    sheet.rows = sheet.rows.saturating_sub(1);
    sheet
}

/// Makes the lines of messages.
struct Message<'a> {
    sheet: &'a mut Sheet,
    paint: &'a Paint,
    columns: usize,
    is_selected: bool,
}

impl Message<'_> {
    /// A turn that is complete.
    fn turn(&mut self, turn: &Turn, laid: Arc<Vec<Vec<TextRun>>>) {
        let (name, words) = match turn.speaker {
            Speaker::User => ("you", String::new()),
            Speaker::Assistant => ("model", figures(turn)),
        };
        self.write(name, &words, Role::Dim, Text::Said(laid));
    }

    /// An answer while words of it are chosen.
    fn choosing(&mut self, turn: &Turn, choice: &WordChoice) {
        let cursor = choice.words.get(choice.at).cloned().unwrap_or_default();
        let span = choice.span().unwrap_or_default();
        let words = match choice.from {
            None => "Space starts the span here, Enter rewrites this word",
            Some(_) => "arrows extend the span, Enter rewrites it",
        };
        let (cursor_style, span_style) = (
            self.paint.style(Role::Focus),
            self.paint.style(Role::Selected),
        );
        // Wrapping keeps looks and nothing else, so two looks that no answer has stand for the cursor and the span.
        let style = |look| match look {
            Look::Provisional => cursor_style,
            Look::Masked => span_style,
            _ => Style::new(),
        };
        let pieces = pieces(&turn.text, &span, |text, is_inside| {
            match (is_inside, choice.from) {
                (false, _) => vec![run(text, Look::Committed)],
                (true, None) => vec![run(text, Look::Provisional)],
                (true, Some(_)) => {
                    let at = cursor.start.saturating_sub(span.start)
                        ..cursor.end.saturating_sub(span.start);
                    pieces(text, &at, |text, is_cursor| {
                        let look = if is_cursor {
                            Look::Provisional
                        } else {
                            Look::Masked
                        };
                        vec![run(text, look)]
                    })
                }
            }
        });
        let columns = self.text_columns();
        let places = word_positions(&turn.text, &choice.words, columns);
        let line = places.get(choice.at).map_or(0, |(line, _)| *line);
        self.sheet.cursor = Some(self.sheet.rows + 1 + line);
        let lines = styled(wrap(&pieces, columns), style);
        self.write("model", words, Role::Warning, Text::New(lines));
    }

    /// An answer that is being generated, whole or some words of it.
    fn running(&mut self, state: &DashboardState, asked: &PendingAnswer, turn: Option<&Turn>) {
        let own = state.requests.own(asked.serial);
        let id = own.and_then(|own| own.request_id);
        let canvas = id.and_then(|id| state.requests.canvas(id));
        let words = progress(canvas);
        let started = canvas.filter(|canvas| canvas.started.is_some());
        let runs = match (started, &asked.target, turn) {
            (Some(canvas), ..) => {
                let tokens = canvas.all_tokens();
                let mut runs = runs(&tokens, canvas.shows_ids());
                // Words that stay are shown as committed, without a mark.
                for run in &mut runs {
                    if run.look == Look::Pinned {
                        run.look = Look::Committed;
                    }
                }
                runs
            }
            (None, AnswerTarget::Words { span, .. }, Some(turn)) => {
                pieces(&turn.text, span, |text, is_inside| match is_inside {
                    true => vec![run(&masked(text), Look::Masked)],
                    false => vec![run(text, Look::Committed)],
                })
            }
            (None, ..) => Vec::new(),
        };
        let look = |look| self.paint.look(look);
        let lines = match runs.is_empty() {
            true => Vec::new(),
            false => styled(wrap(&runs, self.text_columns()), look),
        };
        self.write("model", &words, Role::Warning, Text::New(lines));
    }

    fn text_columns(&self) -> usize {
        self.columns.saturating_sub(INDENT.len())
    }

    /// A message of its speaker, figures and text.
    fn write(&mut self, name: &str, words: &str, role: Role, text: Text) {
        let first = self.sheet.rows;
        let mark = if self.is_selected { "▸ " } else { INDENT };
        let of_name = match self.is_selected {
            true => self.paint.style(Role::Selected),
            false => self.paint.style(Role::Title),
        };
        let room = self.columns.saturating_sub(INDENT.len() + name.len() + 3);
        let words = clip(&sanitise_line(words), room);
        let head = Line::from(vec![
            Span::styled(format!("{mark}{name}"), of_name),
            Span::styled(format!("  {words}"), self.paint.style(role)),
        ]);
        let end = first + 1 + text.rows();
        self.sheet.messages.push(first..end);
        self.sheet.parts.push(Part { head, text });
        self.sheet.rows = end + 1;
    }
}

/// Figures of how an answer was generated.
fn figures(turn: &Turn) -> String {
    let mut words = Vec::new();
    if let Some(origin) = &turn.origin {
        if origin.is_cut {
            words.push("cut off".to_owned());
        }
        words.extend(origin.limit.map(|limit| limit.words().to_owned()));
        words.push(format!("{} tokens", units::count(origin.tokens.into())));
        words.push(format!("{} passes", units::count(origin.passes.into())));
        words.extend(origin.elapsed_ms.map(units::duration_ms));
        words.push(if origin.exact { "exact" } else { "not exact" }.to_owned());
        let memory = origin
            .memory
            .map(|pieces| format!("{pieces} pieces of memory"));
        words.extend(memory);
        words.push(format!("seed {}", origin.seed));
        words.push(format!("request {}", origin.request_id));
    }
    if turn.before.is_some() {
        words.push("u: the text before".to_owned());
    }
    words.join(" · ")
}

/// Progress of our own request.
fn progress(canvas: Option<&Canvas>) -> String {
    let Some(canvas) = canvas else {
        return "sent".to_owned();
    };
    let Some(started) = &canvas.started else {
        let ahead = canvas.queued.map_or(0, |queued| queued.ahead);
        return format!("waiting, {ahead} ahead");
    };
    match &canvas.pass {
        None => format!("first pass over {} prompt tokens", started.prompt_tokens),
        Some(pass) => format!(
            "block {}/{} · pass {}/{} · {} of {} fixed · {}",
            u64::from(pass.block) + 1,
            started.blocks,
            pass.passes,
            started.steps(),
            pass.committed_positions,
            started.length,
            units::duration_ms(pass.elapsed_ms)
        ),
    }
}

/// The text in runs, with the bytes of `span` in a run of their own.
fn pieces(
    text: &str,
    span: &Range<usize>,
    run: impl Fn(&str, bool) -> Vec<TextRun>,
) -> Vec<TextRun> {
    let part = |range: Range<usize>| text.get(range).unwrap_or_default();
    let end = span.end.min(text.len());
    let start = span.start.min(end);
    let mut runs = run(part(0..start), false);
    runs.extend(run(part(start..end), true));
    runs.extend(run(part(end..text.len()), false));
    runs
}

fn run(text: &str, look: Look) -> TextRun {
    TextRun {
        text: sanitise(text),
        look,
    }
}

/// A text with each character replaced by the mark of a mask.
fn masked(text: &str) -> String {
    let mark = MASK_MARK.chars().next().unwrap_or('?');
    let shape = |character: char| match character.is_whitespace() {
        true => character,
        false => mark,
    };
    text.chars().map(shape).collect()
}

fn styled(lines: Vec<Vec<TextRun>>, style: impl Fn(Look) -> Style) -> Vec<Line<'static>> {
    let line = |line| styled_line(line, &style);
    lines.into_iter().map(line).collect()
}

fn styled_line(line: Vec<TextRun>, style: impl Fn(Look) -> Style) -> Line<'static> {
    let span = |run: TextRun| Span::styled(run.text, style(run.look));
    Line::from(line.into_iter().map(span).collect::<Vec<_>>())
}

/// Line and column of the beginning of each word, in a text wrapped to `columns`.
fn word_positions(text: &str, words: &[Range<usize>], columns: usize) -> Vec<(usize, usize)> {
    // Wrapping keeps only looks. Words alternate between two looks and spaces have a third, so that the words can be
    // told apart in the wrapped lines.
    let looks = [Look::Committed, Look::Provisional];
    let mut runs = Vec::new();
    let mut end = 0;
    for (index, word) in words.iter().enumerate() {
        let between = text.get(end..word.start).unwrap_or_default();
        runs.push(run(between, Look::Masked));
        let word_text = text.get(word.clone()).unwrap_or_default();
        runs.push(run(word_text, looks[index % 2]));
        end = word.end;
    }
    let mut places = Vec::new();
    let mut last = None;
    for (number, line) in wrap(&runs, columns).into_iter().enumerate() {
        let mut column = 0;
        for run in line {
            // A word longer than a line continues in the next line with the same look.
            if run.look != Look::Masked && last != Some(run.look) {
                places.push((number, column));
                last = Some(run.look);
            }
            column += crate::text::width(&run.text);
        }
    }
    places
}

/// Index of the word nearest to the cursor, `by` lines below.
pub(in super::super::super) fn word_below(
    text: &str,
    choice: &WordChoice,
    columns: usize,
    by: isize,
) -> usize {
    let places = word_positions(text, &choice.words, columns);
    let Some((line, column)) = places.get(choice.at).copied() else {
        return choice.at;
    };
    let lines = match by < 0 {
        true => places
            .iter()
            .map(|(other, _)| *other)
            .filter(|other| *other < line)
            .max(),
        false => places
            .iter()
            .map(|(other, _)| *other)
            .filter(|other| *other > line)
            .min(),
    };
    let there = places.iter().enumerate();
    let there = there.filter(|(_, (other, _))| Some(*other) == lines);
    let nearest = there.min_by_key(|(_, (_, other))| other.abs_diff(column));
    nearest.map_or(choice.at, |(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_where_the_layout_puts_them() {
        let text = "one two  three\nabcdefghij 日本 x";
        let choice = WordChoice::of(0, text).expect("words");
        let expected = [(0, 0), (0, 4), (1, 0), (2, 0), (3, 3), (3, 5), (4, 0)];
        assert_eq!(word_positions(text, &choice.words, 8), expected);
    }

    #[test]
    fn the_cursor_goes_to_the_nearest_word_of_a_line() {
        let mut choice = WordChoice::of(0, "one two\n\nthree four").expect("words");
        let text = "one two\n\nthree four";
        choice.at = 1;
        assert_eq!(word_below(text, &choice, 20, 1), 3);
        assert_eq!(word_below(text, &choice, 20, -1), 1);
        choice.at = 2;
        assert_eq!(word_below(text, &choice, 20, -1), 0);
    }

    #[test]
    fn a_masked_text_keeps_its_shape() {
        assert_eq!(masked("né à"), "░░ ░");
    }
}
