//! Editing a single line of text.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use tui_input::{Input, InputRequest};

/// A line with its cursor.
pub type EditLine = Input;

/// Edits the line as shells do. Returns whether the key was used.
pub(super) fn write(line: &mut EditLine, key: &KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    let alt = key.modifiers.contains(KeyModifiers::ALT);
    let request = match key.code {
        KeyCode::Char('a') if control => InputRequest::GoToStart,
        KeyCode::Char('e') if control => InputRequest::GoToEnd,
        KeyCode::Char('u') if control => InputRequest::DeleteLine,
        KeyCode::Char('k') if control => InputRequest::DeleteTillEnd,
        KeyCode::Char('w') if control => InputRequest::DeletePrevWord,
        KeyCode::Backspace if alt || control => InputRequest::DeletePrevWord,
        KeyCode::Left if alt || control => InputRequest::GoToPrevWord,
        KeyCode::Right if alt || control => InputRequest::GoToNextWord,
        KeyCode::Char(character) if !control && !alt => InputRequest::InsertChar(character),
        KeyCode::Backspace => InputRequest::DeletePrevChar,
        KeyCode::Delete => InputRequest::DeleteNextChar,
        KeyCode::Left => InputRequest::GoToPrevChar,
        KeyCode::Right => InputRequest::GoToNextChar,
        KeyCode::Home => InputRequest::GoToStart,
        KeyCode::End => InputRequest::GoToEnd,
        _ => return false,
    };
    let _ = line.handle(request);
    true
}

/// Writes pasted text; line ends become spaces.
pub(super) fn paste(line: &mut EditLine, text: &str) {
    let cursor = line.cursor();
    // Made harmless before it is in the line: pasted text may hold escape sequences.
    let written = crate::text::sanitise_line(text);
    let mut value: Vec<char> = line.value().chars().collect();
    let at = cursor.min(value.len());
    let added = written.chars().count();
    value.splice(at..at, written.chars());
    *line = EditLine::new(value.into_iter().collect()).with_cursor(at + added);
}
