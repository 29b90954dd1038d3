//! The program `sluice`; everything it does lives in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    sluice_tui::run(std::env::args_os())
}
