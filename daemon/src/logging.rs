//! Logs: to standard error, or a bounded file of a daemon in the background, coloured only on a terminal, without a clock under the journal.
//!
//! A line that cannot be written, as on a full disk, is lost without a word: the subscriber would say so on standard error, and panic
//! where that is on the same disk.

use std::{
    io::{self, IsTerminal},
    path::Path,
    sync::Mutex,
};

use tracing_subscriber::fmt::{MakeWriter, fmt};

use crate::{
    background::BoundedLog,
    config::{LogFilter, LogFormat},
};

/// Sends all logs of this process to standard error.
pub fn start(filter: &LogFilter, format: LogFormat) {
    let terminal = io::stderr().is_terminal();
    let has_colour = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    // The journal stamps each line itself.
    let is_stamped = terminal || std::env::var_os("JOURNAL_STREAM").is_none();
    start_with(filter, format, io::stderr, (has_colour, is_stamped));
}

/// Sends all logs of this process to a log in a file, where standard error leads already.
pub fn start_in(log: &Path, filter: &LogFilter, format: LogFormat) {
    let writer = Mutex::new(BoundedLog::at(log));
    start_with(filter, format, writer, (false, true));
}

fn start_with(
    filter: &LogFilter,
    format: LogFormat,
    writer: impl for<'w> MakeWriter<'w> + Send + Sync + 'static,
    (has_colour, is_stamped): (bool, bool),
) {
    let builder = fmt()
        .with_env_filter(filter.to_env_filter())
        .with_writer(writer)
        .with_target(false)
        .log_internal_errors(false)
        .with_ansi(has_colour);
    match (format, is_stamped) {
        // With a time everywhere: programs that collect such lines expect one.
        (LogFormat::Json, _) => builder.json().flatten_event(true).init(),
        (LogFormat::Text, true) => builder.init(),
        (LogFormat::Text, false) => builder.without_time().init(),
    }
}
