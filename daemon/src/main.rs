//! The program `sluiced`: arguments in, exit code out; the library does the rest.

use std::process::ExitCode;

use sluice_daemon::{
    cli::{Arguments, Command, Task},
    config::{self, Environment},
    gpu, life, logging, planning, synth,
};
use sluice_shared::exit;

fn main() -> ExitCode {
    let arguments = match Arguments::read(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match &arguments.command {
        Some(Command::Plan(options)) => return ExitCode::from(planning::run(options)),
        Some(Command::Synth(options)) => return ExitCode::from(synth::run(options)),
        Some(Command::Gpu(options)) => return ExitCode::from(gpu::run(options)),
        None => {}
    }
    let environment = Environment::of_process();
    let config = match config::resolve(&arguments, &environment) {
        Ok(config) => config,
        Err(error) => {
            // Nothing is set up yet that could log it better.
            eprintln!("sluiced: {error}");
            return ExitCode::from(exit::CONFIG);
        }
    };
    match arguments.task() {
        Task::PrintConfig => {
            print!("{config}");
            return ExitCode::from(exit::OK);
        }
        Task::CheckConfig => {
            println!("the configuration is fine");
            return ExitCode::from(exit::OK);
        }
        Task::Serve => {}
    }
    logging::start(&config.log.value);
    ExitCode::from(life::run(&config))
}
