//! The program `sluiced`: arguments in, exit code out; the library does the rest.

use std::process::ExitCode;

use sluice_daemon::{
    cli::{Arguments, Task},
    config::{self, Environment},
    life, logging,
};
use sluice_shared::exit;

fn main() -> ExitCode {
    let arguments = match Arguments::read(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
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
