//! What each subcommand does.

mod apply;
mod background;
mod bench;
mod calibrate;
mod chat;
mod doctor;
mod edit;
mod embed;
mod fidelity;
mod follow;
mod generate;
mod input;
mod jobs;
mod library;
mod load;
mod logprobs;
mod memory;
mod models;
mod offline;
mod operations;
mod optimize;
mod paths;
mod plan;
mod present;
mod prune;
mod ps;
mod pull;
mod replay;
mod report;
mod requests;
mod run;
mod score;
mod states;
mod status;
mod thoughts;
mod whole_file;

use std::{
    env, fs,
    io::IsTerminal,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::{CommandFactory, error::ErrorKind};
use sluice_proto::v1;

use self::follow::{Asked, SavedFiles};

pub use self::bench::BenchFigures;
use crate::{
    cli::{Cli, Colour, Command, Screen},
    complete,
    connection::{self, DaemonConnection},
    dashboard::{self, persist},
    output::{Failure, StandardOutput},
    paint::{Glyphs, Paint},
    settings::{self, ClientSettings},
};

/// Runs the command that was asked for.
///
/// # Errors
/// What [`Failure`] lists.
pub async fn run(cli: Cli, out: &mut StandardOutput) -> Result<(), Failure> {
    let flag = cli.socket.as_deref();
    let socket = connection::socket(flag);
    let colour = cli.color.unwrap_or_default();
    out.set_colour(colour.is_allowed(variable));
    // Arguments that do not depend on the daemon are checked before it is looked for, so wrong usage is reported as such.
    match cli.command {
        None => {
            if !out.is_terminal() || !std::io::stdin().is_terminal() {
                // Without a terminal there is no dashboard: a script or pipe gets the figures once.
                return until_interrupted(async {
                    let daemon = DaemonConnection::connect(socket).await?;
                    status::run(&daemon, false, out).await
                })
                .await;
            }
            dashboard::run(setup(socket, &cli.screen, colour)?).await
        }
        Some(Command::Generate(arguments)) => {
            let request = generate::request(&arguments)?;
            let state = arguments.state.as_deref().map(states::read).transpose()?;
            let daemon = DaemonConnection::connect(socket).await?;
            let asked = Asked {
                state: state.map(Arc::new),
                returns_state: arguments.save_state.is_some(),
                ..request.into()
            };
            let files = SavedFiles {
                thoughts: arguments.save_thoughts.as_deref(),
                state: arguments.save_state.as_deref(),
            };
            follow::generate(&daemon, asked, arguments.json, files, out).await
        }
        Some(Command::Run(arguments)) => {
            let private = arguments.private || cli.screen.private;
            run::run(socket, flag, arguments, private, out).await
        }
        Some(Command::Chat(arguments)) => {
            let private = arguments.private || cli.screen.private;
            let daemon = DaemonConnection::connect(socket).await?;
            chat::run(daemon, &arguments, private, out).await
        }
        Some(Command::Edit(arguments)) => {
            let request = edit::request(&arguments)?;
            let daemon = DaemonConnection::connect(socket).await?;
            follow::generate(&daemon, request, arguments.json, SavedFiles::default(), out).await
        }
        Some(Command::Embed(arguments)) => embed::run(socket, arguments, out).await,
        Some(Command::Memory(arguments)) => memory::run(socket, arguments.command, out).await,
        Some(Command::Score(arguments)) => score::run(socket, arguments, out).await,
        Some(Command::Bench(arguments)) => bench::run(socket, &arguments, out).await,
        Some(Command::Status(arguments)) => {
            until_interrupted(async {
                let daemon = DaemonConnection::connect(socket).await?;
                status::run(&daemon, arguments.json, out).await
            })
            .await
        }
        Some(Command::Doctor(arguments)) => {
            until_interrupted(doctor::run(socket, arguments.json, out)).await
        }
        Some(Command::Ps(arguments)) => {
            until_interrupted(async {
                let daemon = DaemonConnection::connect(socket).await?;
                ps::run(&daemon, arguments.json, out).await
            })
            .await
        }
        Some(Command::List(arguments)) => {
            until_interrupted(async {
                let daemon = DaemonConnection::connect(socket).await?;
                models::run(&daemon, arguments.json, out).await
            })
            .await
        }
        Some(Command::Pull(arguments)) => pull::run(socket, &arguments, out).await,
        Some(Command::Rm(arguments)) => {
            until_interrupted(library::remove(socket, &arguments, out)).await
        }
        Some(Command::Inspect(arguments)) => {
            until_interrupted(library::inspect(socket, &arguments, out)).await
        }
        Some(Command::Calibrate(arguments)) => calibrate::run(socket, &arguments, out).await,
        Some(Command::Optimize(arguments)) => optimize::run(socket, &arguments, out).await,
        Some(Command::Quantize(arguments)) => optimize::quantize(socket, &arguments, out).await,
        Some(Command::Compress(arguments)) => jobs::compress(socket, &arguments, out).await,
        Some(Command::Prune(arguments)) => prune::run(socket, &arguments, out).await,
        Some(Command::Decompress(arguments)) => jobs::decompress(socket, &arguments, out).await,
        Some(Command::Verify(arguments)) => jobs::verify(socket, &arguments, out).await,
        Some(Command::Jobs(arguments)) => jobs::jobs(socket, &arguments, out).await,
        Some(Command::Load(arguments)) => load::run(socket, &arguments, out).await,
        Some(Command::Unload(arguments)) => {
            until_interrupted(async {
                let daemon = DaemonConnection::connect(socket).await?;
                library::unload(&daemon, arguments.model.as_deref(), arguments.json, out).await
            })
            .await
        }
        Some(Command::Stop(arguments)) if arguments.daemon => {
            background::end(socket, arguments.json, out).await
        }
        Some(Command::Stop(arguments)) => {
            until_interrupted(ps::stop(socket, &arguments, out)).await
        }
        Some(Command::Plan(arguments)) => {
            until_interrupted(plan::run(socket, &arguments, out)).await
        }
        Some(Command::Level(arguments)) => {
            let daemon = DaemonConnection::connect(socket).await?;
            apply::level(&daemon, &arguments, out).await
        }
        Some(Command::Budget(arguments)) => {
            let daemon = DaemonConnection::connect(socket).await?;
            apply::budget(&daemon, &arguments, out).await
        }
        Some(Command::Restore(arguments)) => {
            let daemon = DaemonConnection::connect(socket).await?;
            apply::restore(&daemon, &arguments, out).await
        }
        Some(Command::Fidelity(arguments)) => fidelity::run(socket, &arguments, out).await,
        Some(Command::Report(arguments)) => report::run(socket, &arguments, out).await,
        Some(Command::Requests(arguments)) => {
            until_interrupted(async {
                let daemon = DaemonConnection::connect(socket).await?;
                requests::list(&daemon, arguments.json, out).await
            })
            .await
        }
        Some(Command::Watch(arguments)) => {
            let daemon = DaemonConnection::connect(socket).await?;
            follow::watch(&daemon, arguments.id, arguments.json, out).await
        }
        Some(Command::Replay(arguments)) => {
            let screen = arguments.screen.or(&cli.screen);
            // Settings are read only for the screen, so that a broken file does not keep a run from being printed.
            let setup = || setup(socket, &screen, colour);
            replay::run(setup, &arguments, out).await
        }
        Some(Command::Cancel(arguments)) => {
            until_interrupted(async {
                let daemon = DaemonConnection::connect(socket).await?;
                let ended = operations::cancel_and_wait(&daemon, arguments.id).await?;
                ended.tell(arguments.json, out)
            })
            .await
        }
        Some(Command::Completions { shell }) => out.raw(&complete::script(shell)?),
        Some(Command::Man {
            folder: Some(folder),
            ..
        }) => manuals(&folder),
        Some(Command::Man { command, .. }) => manual(command.as_deref(), out),
    }
}

/// Runs a command that Ctrl-C simply ends. Standard input has to be read before: a blocking read here would keep the interrupt
/// from being noticed.
async fn until_interrupted(
    command: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    let mut interrupts = follow::interrupts()?;
    tokio::select! {
        result = command => result,
        _ = interrupts.recv() => {
            Err(Failure::interrupted("the daemon may still carry out the request"))
        }
    }
}

/// The dashboard's setup by flags, else settings, else the terminal.
fn setup(
    socket: PathBuf,
    flags: &Screen,
    colour: Colour,
) -> Result<dashboard::DashboardSetup, Failure> {
    if colour == Colour::Always {
        // crossterm follows NO_COLOR by itself, which `--color always` overrides.
        crossterm::style::force_color_output(true);
    }
    let settings = match settings::path(|name| env::var_os(name)) {
        Some(path) => ClientSettings::load(&path).map_err(|problem| {
            Failure::new(problem).with_hint("correct it, or move it away, and start again")
        })?,
        None => ClientSettings::default(),
    };
    let theme = flags.theme.or(settings.theme);
    let glyphs = flags.glyphs.or(settings.glyphs);
    let mouse = match flags.no_mouse {
        true => Some(false),
        false => settings.mouse,
    };
    let shapes = glyphs.unwrap_or_else(|| Glyphs::of_terminal(variable));
    let mut paint = Paint::new(
        theme.unwrap_or_default(),
        shapes,
        colour.is_allowed(variable),
    );
    for (role, style) in &settings.roles {
        paint.restyle(role, style).map_err(Failure::new)?;
    }
    Ok(dashboard::DashboardSetup {
        socket,
        paint,
        mouse: mouse.unwrap_or(true),
        persist_path: match flags.private {
            true => None,
            false => persist::path(|name| env::var_os(name)),
        },
        fixed: persist::FixedLooks {
            theme: theme.is_some(),
            glyphs: glyphs.is_some(),
            mouse: mouse.is_some(),
        },
    })
}

/// An environment variable; `None` if it is not set.
fn variable(name: &str) -> Option<String> {
    env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// The manual page of the program or of one of its commands, as roff.
fn manual(name: Option<&str>, out: &mut StandardOutput) -> Result<(), Failure> {
    let mut command = Cli::command();
    command.build();
    let page = match name {
        None => command,
        Some(name) => {
            let found = command.find_subcommand(name).cloned();
            found.ok_or_else(|| usage(&format!("no command is named '{name}'")))?
        }
    };
    let mut roff = Vec::new();
    clap_mangen::Man::new(page).render(&mut roff)?;
    out.raw(&roff)
}

/// Writes the manual pages of the program and of all commands into a folder.
fn manuals(folder: &Path) -> Result<(), Failure> {
    let written =
        fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(Cli::command(), folder));
    written.map_err(|error| Failure::new(format!("cannot write {}: {error}", folder.display())))
}

/// The failure for wrong usage that the parser cannot detect.
fn usage(message: &str) -> Failure {
    let error = Cli::command().error(ErrorKind::ValueValidation, message);
    Failure::Usage(Box::new(error))
}

/// A message of a chat.
fn message(role: v1::ChatRole, content: &str) -> v1::ChatMessage {
    v1::ChatMessage {
        role: role.into(),
        content: content.into(),
        ..Default::default()
    }
}
