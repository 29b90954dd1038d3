//! Logs: to standard error, or a bounded file of a daemon in the background, coloured only on a terminal, without a clock under the journal.
//!
//! A line that cannot be written, as on a full disk, is lost without a word: the subscriber would say so on standard error, and panic
//! where that is on the same disk.

use std::{
    io::{self, IsTerminal},
    path::Path,
    sync::Mutex,
};

use tracing_subscriber::fmt;

use crate::{background::BoundedLog, config::LogFilter};

/// Sends all logs of this process to standard error.
pub fn start(filter: &LogFilter) {
    let terminal = io::stderr().is_terminal();
    let builder = fmt()
        .with_env_filter(filter.to_env_filter())
        .with_writer(io::stderr)
        .with_target(false)
        .log_internal_errors(false)
        .with_ansi(terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()));
    // The journal stamps each line itself.
    if std::env::var_os("JOURNAL_STREAM").is_some() && !terminal {
        builder.without_time().init();
    } else {
        builder.init();
    }
}

/// Sends all logs of this process to a log in a file, where standard error leads already.
pub fn start_in(log: &Path, filter: &LogFilter) {
    fmt()
        .with_env_filter(filter.to_env_filter())
        .with_writer(Mutex::new(BoundedLog::at(log)))
        .with_target(false)
        .log_internal_errors(false)
        .with_ansi(false)
        .init();
}
