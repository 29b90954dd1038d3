//! Editing the prompt, a text of several lines, and laying it out on the screen.

use std::ops::Range;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use tui_input::Input;

use super::line;
use crate::text::{char_width, safe_char, sanitise};

/// Rows up to which the prompt grows; a longer one scrolls.
pub(super) const ROWS_MAX: usize = 6;
/// Longest prompt, typed or pasted.
pub(super) const BYTES_MAX: usize = 256 << 10;

/// A prompt in rows of a certain width.
pub(super) struct Layout {
    rows: Vec<Row>,
    /// Row and column of the cursor.
    pub(super) cursor: (usize, usize),
}

struct Row {
    /// Index of its first character.
    from: usize,
    text: String,
}

impl Layout {
    /// Lays a prompt out in `columns`; one of them is left free for the cursor behind a full row.
    pub(super) fn of(prompt: &Input, columns: usize) -> Self {
        let columns = columns.saturating_sub(1).max(2);
        let row = |from| Row {
            from,
            text: String::new(),
        };
        let mut rows = vec![row(0)];
        let (mut used, mut cursor) = (0, None);
        for (index, character) in prompt.value().chars().enumerate() {
            let shown = match character {
                '\t' => ' ',
                other => safe_char(other),
            };
            let wide = char_width(shown);
            if character != '\n' && used + wide > columns {
                rows.push(row(index));
                used = 0;
            }
            if index == prompt.cursor() {
                cursor = Some((rows.len() - 1, used));
            }
            if character == '\n' {
                rows.push(row(index + 1));
                used = 0;
                continue;
            }
            if let Some(row) = rows.last_mut() {
                row.text.push(shown);
            }
            used += wide;
        }
        let end = (rows.len() - 1, used);
        Self {
            rows,
            cursor: cursor.unwrap_or(end),
        }
    }

    /// How many rows there are; at least one.
    pub(super) fn count(&self) -> usize {
        self.rows.len()
    }

    /// The index of the first visible row, and at most `room` rows up to the cursor's.
    pub(super) fn visible(&self, room: usize) -> (usize, impl Iterator<Item = &str>) {
        let first = (self.cursor.0 + 1).saturating_sub(room);
        let rows = self.rows.iter().skip(first).take(room);
        (first, rows.map(|row| row.text.as_str()))
    }

    /// Index of the character in the cursor's column, `by` rows below; `None` beyond the first and the last row.
    fn below(&self, by: isize) -> Option<usize> {
        let row = self.rows.get(self.cursor.0.checked_add_signed(by)?)?;
        let mut used = 0;
        let before = row.text.chars().take_while(|character| {
            used += char_width(*character);
            used <= self.cursor.1
        });
        Some(row.from + before.count())
    }
}

/// Moves the cursor `by` rows down. Returns `false` where there is no such row.
pub(super) fn step(prompt: &mut Input, columns: usize, by: isize) -> bool {
    let Some(at) = Layout::of(prompt, columns).below(by) else {
        return false;
    };
    *prompt = prompt.clone().with_cursor(at);
    true
}

/// Begins a new line at the cursor.
pub(super) fn break_line(prompt: &mut Input) {
    insert(prompt, "\n");
}

/// Edits the prompt as an editor of several lines does. Returns whether the key was used.
pub(super) fn write(prompt: &mut Input, key: &KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Home => go(prompt, line_of(prompt).0),
        KeyCode::Char('a') if control => go(prompt, line_of(prompt).0),
        KeyCode::End => go(prompt, line_of(prompt).1),
        KeyCode::Char('e') if control => go(prompt, line_of(prompt).1),
        KeyCode::Char('k') if control => {
            let (from, to) = (prompt.cursor(), line_of(prompt).1);
            // At the end of a line, its line break is deleted.
            splice(prompt, from..to.max(from + 1), "");
        }
        KeyCode::Char(_) if !control && prompt.value().len() >= BYTES_MAX => {}
        _ => return line::write(prompt, key),
    }
    true
}

/// Inserts pasted text with its line breaks. Returns `false` if it was cut at [`BYTES_MAX`].
pub(super) fn paste(prompt: &mut Input, text: &str) -> bool {
    // Terminals send line breaks of a paste as carriage returns, as the Enter key does.
    let text = sanitise(&text.replace("\r\n", "\n").replace('\r', "\n"));
    let room = BYTES_MAX.saturating_sub(prompt.value().len());
    let end = text.floor_char_boundary(room);
    insert(prompt, &text[..end]);
    end == text.len()
}

fn go(prompt: &mut Input, at: usize) {
    *prompt = prompt.clone().with_cursor(at);
}

/// Indices of the first character of the cursor's line, and of what ends it.
fn line_of(prompt: &Input) -> (usize, usize) {
    let characters: Vec<char> = prompt.value().chars().collect();
    let (before, after) = characters.split_at(prompt.cursor().min(characters.len()));
    let is_end = |character: &char| *character == '\n';
    let from = before.iter().rposition(is_end).map_or(0, |end| end + 1);
    let to = after.iter().position(is_end).unwrap_or(after.len());
    (from, before.len() + to)
}

fn insert(prompt: &mut Input, text: &str) {
    let at = prompt.cursor();
    splice(prompt, at..at, text);
}

/// Replaces characters by a text and puts the cursor behind it. All at once: one insertion per character would take time
/// quadratic in the length of a paste.
fn splice(prompt: &mut Input, characters: Range<usize>, text: &str) {
    let mut value: Vec<char> = prompt.value().chars().collect();
    let from = characters.start.min(value.len());
    let to = characters.end.min(value.len());
    value.splice(from..to, text.chars());
    let cursor = from + text.chars().count();
    *prompt = Input::new(value.into_iter().collect()).with_cursor(cursor);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(layout: &Layout) -> Vec<&str> {
        layout.visible(layout.count()).1.collect()
    }

    fn press(prompt: &mut Input, code: KeyCode, modifiers: KeyModifiers) {
        assert!(write(prompt, &KeyEvent::new(code, modifiers)));
    }

    #[test]
    fn lines_are_laid_out_with_the_cursor_where_it_is() {
        let mut prompt = Input::new("one\nabcdefgh\n日本x".into());
        let layout = Layout::of(&prompt, 6);
        assert_eq!(rows(&layout), ["one", "abcde", "fgh", "日本x"]);
        assert_eq!(layout.cursor, (3, 5));
        assert!(step(&mut prompt, 6, -1));
        assert_eq!(
            Layout::of(&prompt, 6).cursor,
            (2, 3),
            "no further than it goes"
        );
        assert!(step(&mut prompt, 6, -1) && step(&mut prompt, 6, -1));
        assert_eq!(Layout::of(&prompt, 6).cursor, (0, 3));
        assert!(!step(&mut prompt, 6, -1));
        let (first, shown) = layout.visible(2);
        assert_eq!(
            (first, shown.collect::<Vec<_>>()),
            (2, vec!["fgh", "日本x"])
        );
        assert_eq!(Layout::of(&Input::default(), 6).count(), 1);
    }

    #[test]
    fn keys_move_and_delete_within_a_line() {
        let mut prompt = Input::new("one\ntwo three\nfour".into()).with_cursor(7);
        press(&mut prompt, KeyCode::Home, KeyModifiers::NONE);
        assert_eq!(prompt.cursor(), 4);
        press(&mut prompt, KeyCode::End, KeyModifiers::NONE);
        assert_eq!(prompt.cursor(), 13);
        go(&mut prompt, 7);
        press(&mut prompt, KeyCode::Char('k'), KeyModifiers::CONTROL);
        assert_eq!(prompt.value(), "one\ntwo\nfour");
        press(&mut prompt, KeyCode::Char('k'), KeyModifiers::CONTROL);
        assert_eq!(prompt.value(), "one\ntwofour");
        break_line(&mut prompt);
        assert_eq!((prompt.value(), prompt.cursor()), ("one\ntwo\nfour", 8));
        go(&mut prompt, 12);
        press(&mut prompt, KeyCode::Char('k'), KeyModifiers::CONTROL);
        assert_eq!((prompt.value(), prompt.cursor()), ("one\ntwo\nfour", 12));
    }

    #[test]
    fn a_paste_keeps_its_lines_and_is_bounded() {
        let mut prompt = Input::new("ab".into()).with_cursor(1);
        assert!(paste(&mut prompt, "1\r\n2\r3\x1b[2J"));
        assert_eq!(prompt.value(), "a1\n2\n3\u{fffd}[2Jb");
        assert_eq!(prompt.cursor(), 10);
        assert!(!paste(&mut prompt, &"é".repeat(BYTES_MAX)));
        assert!(prompt.value().len() <= BYTES_MAX && prompt.value().ends_with('b'));
        let before = prompt.value().len();
        press(&mut prompt, KeyCode::Char('x'), KeyModifiers::NONE);
        press(&mut prompt, KeyCode::Char('x'), KeyModifiers::NONE);
        assert!(prompt.value().len() <= BYTES_MAX.max(before + 1));
    }
}
