//! What people run on this repository, one module a command.

mod ci;
mod demo;
mod system;
mod units;

use std::process::ExitCode;

const HELP: &str = "\
Usage: cargo xtask COMMAND

  demo [PROMPT]          builds sluiced and sluice, and shows a text being written
  ci [--without-tests]   runs everything that CI runs, and stops at the first failure
  units                  checks the files in systemd/

`cargo demo` and `cargo ci` are short for the first two.";

fn main() -> ExitCode {
    let arguments: Vec<String> = match std::env::args_os()
        .skip(1)
        .map(|argument| argument.into_string())
        .collect()
    {
        Ok(arguments) => arguments,
        Err(argument) => return misused(&format!("{} is not UTF-8", argument.display())),
    };
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["demo"] => demo::run(demo::PROMPT),
        ["demo", prompt] if !prompt.starts_with('-') => demo::run(prompt),
        ["demo", "--", prompt] => demo::run(prompt),
        ["ci"] => ci::run(ci::Tests::Run),
        ["ci", "--without-tests"] => ci::run(ci::Tests::Leave),
        ["units"] => ci::run_units(),
        [] | ["help" | "--help" | "-h", ..] | [_, "--help" | "-h"] => {
            println!("{HELP}");
            ExitCode::SUCCESS
        }
        _ => misused("unknown command or arguments"),
    }
}

fn misused(problem: &str) -> ExitCode {
    eprintln!("xtask: {problem}\n\n{HELP}");
    ExitCode::from(64)
}
