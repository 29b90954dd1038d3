//! `sluice`: the terminal client of `sluiced`.
//!
//! [`cli`] is the command line, [`commands`] what each subcommand does, [`dashboard`] the
//! screen that a bare `sluice` opens, [`complete`] what shells complete. They share [`canvas`] (tokens to styled text),
//! [`live`] (a canvas redrawn in place), [`json`] (events for scripts), [`output`] (errors,
//! exit codes, writing), [`operations`] (finding and cancelling them), [`record`] (a request's passes, to be seen again), [`plans`] (figures of plans in words), [`formats`]
//! (what files and weights are), [`phases`] (where the time of passes went), [`user_folders`] (where files are), [`settings`]
//! (the user's own), [`gpu`] (what is known of a GPU), [`memory`] (what is remembered, in words), [`dates`] (of the calendar) and [`text`] (making untrusted text safe to show).

pub mod canvas;
pub mod cli;
pub mod commands;
pub mod complete;
pub mod connection;
pub mod dashboard;
pub mod dates;
pub mod formats;
pub mod gpu;
pub mod json;
pub mod live;
pub mod memory;
pub mod operations;
pub mod output;
pub mod paint;
pub mod phases;
pub mod placing;
pub mod plans;
pub mod record;
pub mod settings;
pub mod text;
pub mod thinking;
pub mod user_folders;

use std::{ffi::OsString, process::ExitCode};

use clap::{CommandFactory, Parser};
use sluice_report::renamed_flags;
use sluice_shared::exit;

use output::{Failure, StandardOutput};

/// Runs `sluice` with the given arguments, the program's name first.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<_> = arguments.into_iter().collect();
    match complete::complete(&arguments) {
        Ok(false) => {}
        Ok(true) => return ExitCode::from(exit::OK),
        Err(error) => return ExitCode::from(report_usage(&error)),
    }
    let json = wants_json(&arguments);
    let parsed = cli::Cli::try_parse_from(&arguments)
        .map_err(|error| renamed_flags::with_tip(error, &cli::Cli::command(), &arguments));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) if json && error.use_stderr() => {
            return ExitCode::from(Failure::Usage(Box::new(error)).report(json));
        }
        Err(error) => return ExitCode::from(report_usage(&error)),
    };
    // One thread is enough: the daemon does the work, this side waits and draws.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let result = match runtime {
        Ok(runtime) => {
            let result = runtime.block_on(commands::run(cli, &mut StandardOutput::stdout()));
            // A thread may still block in a read of the terminal, which cannot be cancelled; it must not delay the exit.
            runtime.shutdown_background();
            result
        }
        Err(error) => Err(Failure::new(format!("start the runtime: {error}"))),
    };
    ExitCode::from(match result {
        Ok(()) => exit::OK,
        Err(failure) => failure.report(json),
    })
}

/// Whether `--json` is given. Asked before parsing, so that errors of the parser itself are JSON, too.
fn wants_json(arguments: &[OsString]) -> bool {
    let mut flags = arguments.iter().take_while(|argument| *argument != "--");
    flags.any(|argument| argument == "--json")
}

/// Prints clap's message and returns the exit code: help that was asked for is no error.
fn report_usage(error: &clap::Error) -> u8 {
    // There is nowhere left to report a failure of this write.
    let _ = error.print();
    if error.use_stderr() {
        exit::USAGE
    } else {
        exit::OK
    }
}
