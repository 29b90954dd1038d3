//! Input of a conversation: a line editor on a terminal, or a pipe.

use std::{
    io::{BufRead, Read, Write},
    path::{Path, PathBuf},
    sync::mpsc as blocking,
};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::{
    Config, Context, Editor, Helper,
    completion::Completer,
    error::ReadlineError,
    highlight::Highlighter,
    hint::Hinter,
    history::FileHistory,
    validate::{ValidationContext, ValidationResult, Validator},
};
use tokio::sync::mpsc;

use super::turn::{COMMANDS, Text, complete};
use crate::{
    commands::input::{self, INPUT_BYTES_MAX},
    output::{Failure, say},
    user_folders,
};

/// Most prompts that the history keeps.
const HISTORY_MAX: usize = 500;
/// Longest prompt that the history keeps.
const HISTORY_ENTRY_BYTES_MAX: usize = 4 << 10;
/// Turns bracketed paste off, as the editor does when it ends normally.
const PASTE_OFF: &[u8] = b"\x1b[?2004l\r\n";

/// Result of waiting for input.
#[derive(Debug)]
pub(super) enum InputLine {
    /// A text, over one line or several.
    Text(Text),
    /// Ctrl-C in the editor.
    Interrupted,
    /// The end of the input, or Ctrl-D.
    End,
}

/// Reads input on a thread that is never joined: a blocking read of a terminal cannot be cancelled.
pub(super) struct Input {
    /// Tells the editor to read the next text, so that it has the terminal only then; `None` for a pipe.
    ask: Option<blocking::SyncSender<()>>,
    lines: mpsc::Receiver<Result<InputLine, Failure>>,
    /// Whether the editor is reading, with the terminal in its modes.
    is_editing: bool,
    /// The terminal's modes before the editor changed them.
    modes: Option<Termios>,
}

impl Input {
    /// Reads with a line editor on the terminal; `history` is its history file, if any.
    pub(super) fn editor(history: Option<PathBuf>) -> Result<Self, Failure> {
        let (ask, asked) = blocking::sync_channel(1);
        let modes = tcgetattr(std::io::stdin()).ok();
        let lines = spawn(move |lines| edit(&asked, &lines, history.as_deref()))?;
        Ok(Self {
            ask: Some(ask),
            lines,
            is_editing: false,
            modes,
        })
    }

    /// Reads from standard input, by single lines or several between `"""`.
    pub(super) fn pipe() -> Result<Self, Failure> {
        let lines = spawn(|lines| {
            let mut stdin = std::io::stdin().lock();
            while let Some(text) = next_text(&mut stdin).transpose() {
                let failed = text.is_err();
                if lines.blocking_send(text.map(InputLine::Text)).is_err() || failed {
                    return;
                }
            }
        })?;
        Ok(Self {
            ask: None,
            lines,
            is_editing: false,
            modes: None,
        })
    }

    /// Waits for the next text. After a cancelled wait, the next call continues the same read.
    pub(super) async fn next(&mut self) -> Result<InputLine, Failure> {
        if let Some(ask) = &self.ask
            && !self.is_editing
        {
            self.is_editing = ask.send(()).is_ok();
        }
        let line = self.lines.recv().await;
        self.is_editing = false;
        line.unwrap_or(Ok(InputLine::End))
    }
}

impl Drop for Input {
    /// The editor may still have the terminal when a signal ends the conversation.
    fn drop(&mut self) {
        if let (true, Some(modes)) = (self.is_editing, &self.modes) {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, modes);
            let mut out = std::io::stdout();
            let _ = out.write_all(PASTE_OFF).and_then(|()| out.flush());
        }
    }
}

fn spawn(
    read: impl FnOnce(mpsc::Sender<Result<InputLine, Failure>>) + Send + 'static,
) -> Result<mpsc::Receiver<Result<InputLine, Failure>>, Failure> {
    let (sender, receiver) = mpsc::channel(1);
    let reader = std::thread::Builder::new().name("stdin".into());
    match reader.spawn(move || read(sender)) {
        Ok(_) => Ok(receiver),
        Err(error) => Err(Failure::new(format!("start reading the input: {error}"))),
    }
}

/// Runs the editor on its thread: one text for each request.
fn edit(
    asked: &blocking::Receiver<()>,
    lines: &mpsc::Sender<Result<InputLine, Failure>>,
    history: Option<&Path>,
) {
    let mut editor = match editor(history) {
        Ok(editor) => editor,
        Err(failure) => return drop(lines.blocking_send(Err(failure))),
    };
    while asked.recv().is_ok() {
        let line = match editor.readline("> ") {
            Ok(text) => {
                remember(&mut editor, history, &text);
                // The validator accepted the text as complete, but sets no bound on its length.
                let text = complete(&text).unwrap_or(Text::Plain(text));
                match text.words().len() > INPUT_BYTES_MAX {
                    true => Err(Failure::new("a prompt has more than 1 MiB")),
                    false => Ok(InputLine::Text(text)),
                }
            }
            Err(ReadlineError::Eof) => Ok(InputLine::End),
            Err(ReadlineError::Interrupted) => Ok(InputLine::Interrupted),
            Err(error) => Err(Failure::new(format!("read the terminal: {error}"))),
        };
        if lines.blocking_send(line).is_err() {
            return;
        }
    }
}

type LineEditor = Editor<Assistant, FileHistory>;

fn editor(history: Option<&Path>) -> Result<LineEditor, Failure> {
    let failed = |error| Failure::new(format!("edit lines on this terminal: {error}"));
    let config = Config::builder()
        .max_history_size(HISTORY_MAX)
        .map_err(failed)?;
    let config = config.history_ignore_space(true).build();
    let mut editor = LineEditor::with_config(config).map_err(failed)?;
    editor.set_helper(Some(Assistant));
    if let Some(path) = history {
        let made = path.parent().map_or(Ok(()), user_folders::make_private);
        if let Err(error) = made {
            say(&format!(
                "note: the prompt history cannot be saved: {error}"
            ));
        }
        // Before the first conversation there is no file.
        let _ = editor.load_history(path);
    }
    Ok(editor)
}

/// Adds a text to the history and its file.
fn remember(editor: &mut LineEditor, history: Option<&Path>, text: &str) {
    if text.len() > HISTORY_ENTRY_BYTES_MAX || text.trim().is_empty() {
        return;
    }
    let is_new = editor.add_history_entry(text).unwrap_or(false);
    if let (true, Some(path)) = (is_new, history) {
        // A history that cannot be written must not end the conversation.
        let _ = editor.append_history(path);
    }
}

/// Path of the history by the environment; `None` if nothing is to be kept.
pub(super) fn history(private: bool) -> Option<PathBuf> {
    let folder = user_folders::state(|name| std::env::var_os(name));
    folder
        .filter(|_| !private)
        .map(|folder| folder.join("chat_history"))
}

/// Tells the editor when a text is complete, and completes names of commands.
struct Assistant;

impl Helper for Assistant {}
impl Highlighter for Assistant {}

impl Hinter for Assistant {
    type Hint = String;
}

impl Validator for Assistant {
    fn validate(&self, text: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match complete(text.input()) {
            Some(_) => ValidationResult::Valid(None),
            None => ValidationResult::Incomplete,
        })
    }
}

impl Completer for Assistant {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        end: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let begun = line.get(..end).filter(|begun| begun.starts_with('/'));
        let commands = COMMANDS.iter().filter_map(|(command, argument, _)| {
            let is_meant = begun.is_some_and(|begun| command.starts_with(begun));
            let space = if argument.is_empty() { "" } else { " " };
            is_meant.then(|| format!("{command}{space}"))
        });
        Ok((0, commands.collect()))
    }
}

/// The next complete text, of bounded length; `None` at the end of the input.
fn next_text(reader: &mut impl BufRead) -> Result<Option<Text>, Failure> {
    let mut text = String::new();
    let mut is_first = true;
    while let Some(line) = next_line(reader)? {
        if !is_first {
            text.push('\n');
        }
        is_first = false;
        text.push_str(&line);
        if text.len() > INPUT_BYTES_MAX {
            return Err(Failure::new("a prompt has more than 1 MiB"));
        }
        if let Some(whole) = complete(&text) {
            return Ok(Some(whole));
        }
    }
    // The end of the input ends a text of several lines that is still open.
    Ok((!is_first).then_some(Text::Plain(text)))
}

/// The next line, of bounded length; `None` at the end of the input.
fn next_line(reader: &mut impl BufRead) -> Result<Option<String>, Failure> {
    let mut bytes = Vec::new();
    let read = reader
        .take(INPUT_BYTES_MAX as u64 + 1)
        .read_until(b'\n', &mut bytes)
        .map_err(|error| Failure::new(format!("read standard input: {error}")))?;
    match read {
        0 => Ok(None),
        _ => input::read(&bytes[..], input::STANDARD_INPUT).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_read_text_by_text_to_its_end() {
        let mut reader = &b"one\n\ntwo\\\nlines\n\"\"\"a\nb\"\"\"\nlast\\"[..];
        let mut next = || next_text(&mut reader).unwrap();
        let plain = |text: &str| Some(Text::Plain(text.to_owned()));
        assert_eq!(next(), plain("one"));
        assert_eq!(next(), plain(""));
        assert_eq!(next(), plain("two\nlines"));
        assert_eq!(next(), Some(Text::Quoted("a\nb".to_owned())));
        assert_eq!(next(), plain("last\\"));
        assert_eq!(next(), None);
    }

    #[test]
    fn the_history_is_bounded_and_nobody_elses() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/chat_history");
        for session in 0..3 {
            let mut editor = editor(Some(&path)).unwrap();
            for number in 0..HISTORY_MAX - 100 {
                remember(
                    &mut editor,
                    Some(&path),
                    &format!("prompt {session} {number}"),
                );
            }
            remember(
                &mut editor,
                Some(&path),
                &"x".repeat(HISTORY_ENTRY_BYTES_MAX + 1),
            );
        }
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.ends_with("prompt 2 399\n"), "the last comes last");
        assert!(
            text.lines().count() <= HISTORY_MAX + 1,
            "{}",
            text.lines().count()
        );
        assert!(!text.contains("xxx"));
    }
}
