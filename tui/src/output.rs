//! Errors with their exit codes, and writing that survives a closed pipe.

use std::{
    error::Error as _,
    io::{self, IsTerminal, Write},
    path::Path,
};

use serde::Serialize;
use serde_json::{Value, json};
use sluice_proto::client::{CallError, ConnectError};
use sluice_shared::exit;
use tonic::{Code, Status};

use crate::{json, text::sanitise};

/// Why a command did not do what was asked.
#[derive(Debug)]
pub enum Failure {
    /// A message for the user, and an exit code for scripts.
    Reported {
        /// One of [`sluice_shared::exit`].
        code: u8,
        /// What went wrong.
        message: String,
        /// What the user can do about it.
        hint: Option<String>,
        /// The daemon's stable name of the reason, such as `QUEUE_FULL`.
        reason: Option<String>,
    },
    /// The command line is wrong; clap shows the error with the usage.
    Usage(Box<clap::Error>),
    /// The reader of our output closed the pipe, as `head` does; that is a clean end.
    PipeClosed,
}

impl Failure {
    /// An ordinary failure, without a hint.
    pub fn new(message: impl Into<String>) -> Self {
        Self::Reported {
            code: exit::FAILURE,
            message: message.into(),
            hint: None,
            reason: None,
        }
    }

    /// Ctrl-C ended the command; `rest` says what became of the work.
    #[must_use]
    pub fn interrupted(rest: &str) -> Self {
        Self::Reported {
            code: exit::INTERRUPTED,
            message: format!("interrupted; {rest}"),
            hint: None,
            reason: None,
        }
    }

    /// The same with a hint; only [`Failure::Reported`] has a place for one.
    #[must_use]
    pub fn with_hint(mut self, text: impl Into<String>) -> Self {
        if let Self::Reported { hint, .. } = &mut self {
            *hint = Some(text.into());
        }
        self
    }

    /// The same with the exit code of an interrupt: the user cancelled, and the daemon reported that as a failure.
    #[must_use]
    pub fn by_interrupt(mut self) -> Self {
        if let Self::Reported { code, .. } = &mut self
            && *code == exit::FAILURE
        {
            *code = exit::INTERRUPTED;
        }
        self
    }

    /// The failure to connect to the socket.
    #[must_use]
    pub fn unreachable(error: &ConnectError) -> Self {
        Self::Reported {
            code: exit::UNREACHABLE,
            message: error.to_string(),
            hint: Some(error.hint.clone().unwrap_or_else(|| {
                let hint = match (error.is_denied, error.is_busy) {
                    (true, _) => DENIED_HINT,
                    (_, true) => BUSY_HINT,
                    _ if error.socket.contains("://") => LISTEN_HINT,
                    _ => START_HINT,
                };
                hint.to_owned()
            })),
            reason: None,
        }
    }

    /// The failure of a call, with the daemon's message and hint where it sent any.
    #[must_use]
    pub fn from_status(status: Status, socket: &Path) -> Self {
        // Only a status that the transport made has a source; one that the daemon sent has none.
        let cause = status.source().map(|_| innermost(&status));
        let call = CallError::from(status);
        if cause.is_some() || call.is_unreachable() {
            let cause = cause.unwrap_or(call.message);
            return Self::Reported {
                code: exit::UNREACHABLE,
                message: format!("lost sluiced at {}: {cause}", socket.display()),
                hint: Some(START_HINT.to_owned()),
                reason: None,
            };
        }
        if call.is_older_daemon() {
            return Self::new("this daemon is older than the client and does not know the call")
                .with_hint("restart sluiced to bring both to one version");
        }
        if call.is_of_another_schema() {
            return Self::new(format!(
                "daemon and client are of different versions: {}",
                call.message
            ))
            .with_hint("restart sluiced to bring both to one version");
        }
        let message = match (call.message.is_empty(), call.code) {
            (false, _) => call.message,
            (true, code) => format!("the daemon gave no reason ({code})"),
        };
        Self::Reported {
            code: exit::FAILURE,
            message,
            hint: call.hint.or_else(|| match call.code {
                Code::DeadlineExceeded => Some("allow more time, or ask for fewer tokens".into()),
                _ => None,
            }),
            reason: call.reason,
        }
    }

    /// The exit code.
    #[must_use]
    pub fn code(&self) -> u8 {
        match self {
            Self::Reported { code, .. } => *code,
            Self::Usage(_) => exit::USAGE,
            Self::PipeClosed => exit::OK,
        }
    }

    /// The daemon's stable name of the reason, where the failure is the daemon's.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Reported { reason, .. } => reason.as_deref(),
            _ => None,
        }
    }

    /// Writes the failure to standard error, for scripts as one JSON object on one line, and returns its exit code.
    #[must_use]
    pub fn report(&self, json: bool) -> u8 {
        match self {
            Self::PipeClosed => {}
            _ if json => {
                // There is nowhere left to report a failure of standard error.
                let _ = writeln!(io::stderr(), "{}", self.to_json());
            }
            Self::Reported { message, hint, .. } => {
                say(&format!("error: {message}"));
                if let Some(hint) = hint {
                    say(&format!("hint: {hint}"));
                }
            }
            Self::Usage(error) => {
                let _ = error.print();
            }
        }
        self.code()
    }

    /// What went wrong, and what to do.
    #[must_use]
    pub fn message_and_hint(&self) -> (String, Option<String>) {
        match self {
            Self::Reported { message, hint, .. } => (message.clone(), hint.clone()),
            Self::Usage(error) => usage_words(error),
            Self::PipeClosed => (String::new(), None),
        }
    }

    /// The failure as a JSON object for scripts.
    fn to_json(&self) -> Value {
        let (message, hint) = self.message_and_hint();
        json!({
            "error": message,
            "hint": hint,
            "reason": self.reason(),
            "exit_code": self.code(),
        })
    }
}

/// The parser's message about wrong usage, and its tips as a hint.
fn usage_words(error: &clap::Error) -> (String, Option<String>) {
    let text = error.to_string();
    let mut parts = text.trim().splitn(2, "\n\n");
    let message = parts.next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let rest = parts.next().map(|rest| rest.trim().to_owned());
    (message.to_owned(), rest)
}

/// Hint where the socket belongs to another user.
const DENIED_HINT: &str = "the socket of the service is open to the group sluice: run `sudo usermod -aG sluice $USER` (to load models and change levels as well: sluice,sluice-admin) and log in again; or name your own daemon's socket with --socket";

/// Hint where none of this user's runs, and the service is open to a group that this user isn't in.
pub const CLOSED_HINT: &str = "a service is installed here, for the group sluice: run `sudo usermod -aG sluice $USER` (to load models and change levels as well: sluice,sluice-admin) and log in again; or start your own daemon by `sluice run NAME`";

/// Hint where a daemon listens and does not answer.
const BUSY_HINT: &str =
    "try again; if it stays so, look at its log (`journalctl -u sluice`), or restart it";

/// Hint where nobody listens on a port.
const LISTEN_HINT: &str = "start it with `sluiced --listen 127.0.0.1:PORT`: only one with a socket of its own is started on the way";

/// Hint where no daemon runs.
pub const START_HINT: &str = "start it with `sluiced` (or `systemctl start sluice`), or with a model by `sluice run NAME`; or name its socket with --socket or $SLUICE_SOCKET";

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::PipeClosed,
            _ => Self::new(format!("write the output: {error}")),
        }
    }
}

/// The deepest cause, which is the system's own message.
fn innermost(status: &Status) -> String {
    let mut cause = status.source();
    let mut words = status.message().to_owned();
    while let Some(error) = cause {
        words = error.to_string();
        cause = error.source();
    }
    words
}

/// Writes a line to standard error. A failure to write is ignored: the command itself goes on.
pub fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{}", sanitise(line));
}

/// The same for unimportant lines: dim where standard error is a terminal.
pub fn dim(line: &str) {
    if io::stderr().is_terminal() {
        let _ = writeln!(io::stderr(), "\x1b[2m{}\x1b[0m", sanitise(line));
    } else {
        say(line);
    }
}

/// A progress line on standard error that the next one replaces. Nothing is shown unless
/// standard error is a terminal.
pub struct ProgressLine {
    shown: bool,
    terminal: bool,
}

impl ProgressLine {
    /// A line that shows nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shown: false,
            terminal: io::stderr().is_terminal(),
        }
    }

    /// Replaces the line by `line`.
    pub fn show(&mut self, line: &str) {
        if self.terminal {
            self.shown = true;
            let width = crossterm::terminal::size().map_or(80, |(columns, _)| columns);
            // A line as wide as the terminal would wrap, and `\r` would return to its second row.
            let line = crate::text::clip(&sanitise(line), usize::from(width).saturating_sub(1));
            let _ = write!(io::stderr(), "\r{line}\x1b[K");
        }
    }

    /// Erases the line.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Default for ProgressLine {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Standard output, and what kind of reader it has.
pub struct StandardOutput {
    writer: Box<dyn Write>,
    terminal: bool,
    colour: bool,
}

impl StandardOutput {
    /// The process's standard output, without colour.
    #[must_use]
    pub fn stdout() -> Self {
        Self {
            writer: Box::new(io::stdout()),
            terminal: io::stdout().is_terminal(),
            colour: false,
        }
    }

    /// Allows or forbids colour.
    pub fn set_colour(&mut self, allowed: bool) {
        self.colour = allowed;
    }

    /// Whether colour is allowed.
    #[must_use]
    pub fn has_colour(&self) -> bool {
        self.colour
    }

    /// Whether it is a terminal.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Writes a line; a terminal gets it without control characters, a pipe gets it as it is.
    ///
    /// # Errors
    /// When the reader has gone or the disk is full.
    pub fn line(&mut self, text: &str) -> Result<(), Failure> {
        let line = if self.terminal {
            format!("{}\n", sanitise(text))
        } else {
            format!("{text}\n")
        };
        self.raw(line.as_bytes())
    }

    /// Writes a value as one line of JSON.
    ///
    /// # Errors
    /// When the reader has gone or the disk is full.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        self.line(&json::line(value))
    }

    /// Writes bytes that hold control sequences of our own making.
    ///
    /// # Errors
    /// When the reader has gone or the disk is full.
    pub fn raw(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        // Standard output is flushed with each write, so that a reader of a pipe sees a text grow.
        self.writer.write_all(bytes)?;
        Ok(self.writer.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_the_daemon_keeps_its_words() {
        let failure =
            Failure::from_status(Status::invalid_argument("length: bad"), Path::new("/s"));
        assert_eq!(failure.code(), exit::FAILURE);
        let Failure::Reported { message, hint, .. } = failure else {
            panic!("told");
        };
        assert_eq!(message, "length: bad");
        assert_eq!(hint, None);
    }

    #[test]
    fn a_socket_of_others_is_not_called_absent() {
        let error = ConnectError {
            socket: "/run/sluice/sluice.sock".into(),
            cause: "Permission denied (os error 13)".into(),
            hint: None,
            is_denied: true,
            is_busy: false,
        };
        let Failure::Reported { hint, .. } = Failure::unreachable(&error) else {
            panic!("told");
        };
        assert!(hint.unwrap().contains("usermod -aG sluice"));
    }

    #[test]
    fn an_answer_of_another_schema_is_told_apart() {
        let status = Status::internal("failed to decode Protobuf message: invalid wire type");
        let Failure::Reported { message, hint, .. } = Failure::from_status(status, Path::new("/s"))
        else {
            panic!("told");
        };
        assert!(message.starts_with("daemon and client are of different versions: "));
        assert!(hint.unwrap().contains("restart sluiced"));
    }

    #[test]
    fn a_transport_that_broke_means_unreachable() {
        let broken = Status::from_error(Box::new(io::Error::other("reset")));
        let failure = Failure::from_status(broken, Path::new("/s"));
        assert_eq!(failure.code(), exit::UNREACHABLE);
    }

    #[test]
    fn an_older_daemon_is_told_apart() {
        let failure = Failure::from_status(Status::unimplemented(""), Path::new("/s"));
        assert_eq!(failure.code(), exit::FAILURE);
        assert!(format!("{failure:?}").contains("older"));
    }

    #[test]
    fn scripts_get_one_object() {
        let failure = Failure::new("no\nroom").with_hint("free space");
        assert_eq!(
            failure.to_json().to_string(),
            r#"{"error":"no\nroom","hint":"free space","reason":null,"exit_code":1}"#
        );
        let stopped = Failure::interrupted("the job goes on");
        assert_eq!(stopped.code(), exit::INTERRUPTED);
    }

    #[test]
    fn a_closed_pipe_is_a_clean_end() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(failure.code(), exit::OK);
    }
}
