//! The program `sluiced`: arguments in, exit code out; the library does the rest.

use std::{env, ffi::OsStr, io, process::ExitCode, sync::Arc};

use clap::CommandFactory;
use sluice_daemon::{
    access, allocator, background, check,
    cli::{Arguments, Command, Task},
    compression,
    config::Environment,
    examine, lifecycle, logging, manual, planning, synth,
};
use sluice_shared::exit;

fn main() -> ExitCode {
    allocator::settle();
    if let Some(serve) = env::args_os().nth(1).as_deref().and_then(apart) {
        // Before anything starts a thread: it may fork.
        return match serve() {
            Ok(()) => ExitCode::from(exit::OK),
            Err(_) => ExitCode::from(exit::FAILURE),
        };
    }
    let arguments = match Arguments::read(env::args_os()) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match &arguments.command {
        Some(Command::Plan(options)) => return ExitCode::from(planning::run(options)),
        Some(Command::Synth(options)) => return ExitCode::from(synth::run(options)),
        Some(Command::Compress(options)) => return ExitCode::from(compression::compress(options)),
        Some(Command::Decompress(options)) => {
            return ExitCode::from(compression::decompress(options));
        }
        Some(Command::Verify(options)) => return ExitCode::from(compression::verify(options)),
        Some(Command::Prune(options)) => return ExitCode::from(compression::prune(options)),
        Some(Command::Inspect(options)) => return ExitCode::from(compression::inspect(options)),
        Some(Command::Doctor(options)) => return ExitCode::from(examine::run(options)),
        Some(Command::Man(options)) => {
            return ExitCode::from(manual::run(options, Arguments::command()));
        }
        Some(Command::Check(options)) => return ExitCode::from(check::run(options)),
        None => {}
    }
    let environment = Environment::of_process();
    let config = match arguments.resolve(&environment) {
        Ok(config) => Arc::new(config),
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
            if let Err(error) = access::check_files(&config) {
                eprintln!("sluiced: {error}");
                return ExitCode::from(exit::CONFIG);
            }
            println!("the configuration is fine");
            return ExitCode::from(exit::OK);
        }
        Task::Serve => {}
    }
    if let Some(folder) = lifecycle::kernel_folder(&config)
        && env::var_os(lifecycle::KERNEL_FOLDER).is_none()
    {
        #[expect(
            clippy::disallowed_methods,
            reason = "NVIDIA's driver reads the folder from the environment alone"
        )]
        // SAFETY: nobody reads the environment meanwhile: this is the only thread so far.
        unsafe {
            env::set_var(lifecycle::KERNEL_FOLDER, folder);
        }
    }
    if let Some(log) = &arguments.background {
        if let Err(error) = background::begin(log) {
            eprintln!("sluiced: cannot continue in the background: {error}");
            return ExitCode::from(exit::FAILURE);
        }
        logging::start_in(log, &config.log.value, config.log_format.value);
    } else {
        logging::start(&config.log.value, config.log_format.value);
    }
    let examiner = examine::Examiner::new(arguments.of_config(), config);
    ExitCode::from(lifecycle::run(examiner, arguments.background.is_none()))
}

/// What the program is when it has started itself again, for work on strangers' files.
fn apart(argument: &OsStr) -> Option<fn() -> io::Result<()>> {
    if argument == sluice_tokenizer::process::ARGUMENT {
        return Some(sluice_tokenizer::process::serve);
    }
    #[cfg(feature = "documents")]
    if argument == sluice_documents::process::ARGUMENT {
        return Some(sluice_documents::process::serve);
    }
    None
}
