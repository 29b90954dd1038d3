//! What `cargo ci` and `cargo soak` are made of: steps that are taken one after the other.

use std::io;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Instant;

use crate::outcome::Outcome;
use crate::system::root;

/// A step's name, and how it is taken.
pub(crate) type Step = (&'static str, fn() -> io::Result<Outcome>);

/// Takes steps until one fails, and says how each ended.
pub(crate) fn steps(steps: impl Iterator<Item = Step>) -> ExitCode {
    let start = Instant::now();
    let mut skipped = Vec::new();
    for (name, step) in steps {
        println!("\n=== {name}");
        let begin = Instant::now();
        let outcome = step().unwrap_or_else(|error| Outcome::Failed(error.to_string()));
        let seconds = begin.elapsed().as_secs_f64();
        match outcome {
            Outcome::Passed => println!("=== {name}: passed in {seconds:.1} s"),
            Outcome::Skipped(why) => {
                println!("=== {name}: skipped: {why}");
                skipped.push(name);
            }
            Outcome::Failed(why) => {
                println!("=== {name}: FAILED after {seconds:.1} s: {why}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!("\npassed in {:.1} s", start.elapsed().as_secs_f64());
    if !skipped.is_empty() {
        println!("skipped, wholly or partly: {}", skipped.join(", "));
    }
    ExitCode::SUCCESS
}

/// Runs a command in the repository's root, its output passed through.
pub(crate) fn command(command: &mut Command) -> io::Result<Outcome> {
    let status = command.current_dir(root()).status()?;
    Ok(ended(command, status))
}

/// How a command ended, by its status.
pub(crate) fn ended(command: &Command, status: ExitStatus) -> Outcome {
    if status.success() {
        return Outcome::Passed;
    }
    let program = command.get_program().to_string_lossy().into_owned();
    let program = program.rsplit('/').next().unwrap_or_default();
    let arguments: Vec<_> = command
        .get_args()
        .map(|argument| argument.to_string_lossy())
        .collect();
    Outcome::Failed(format!(
        "`{program} {}` ended with {status}",
        arguments.join(" ")
    ))
}
