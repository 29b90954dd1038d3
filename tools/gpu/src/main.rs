//! The program `sluice-gpu`: arguments in, exit code out; the library does the rest.

use std::process::ExitCode;

use clap::{Parser, error::ErrorKind};
use sluice_daemon::allocator;
use sluice_gpu::Gpu;
use sluice_shared::exit;

/// Checks an NVIDIA GPU's arithmetic, or times it.
#[derive(Debug, Parser)]
#[command(name = "sluice-gpu", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Gpu,
}

fn main() -> ExitCode {
    allocator::settle();
    match Arguments::try_parse() {
        Ok(arguments) => ExitCode::from(sluice_gpu::run(&arguments.command)),
        Err(error) => {
            // A closed pipe is no reason to fail differently.
            let _ = error.print();
            ExitCode::from(match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => exit::OK,
                _ => exit::USAGE,
            })
        }
    }
}
