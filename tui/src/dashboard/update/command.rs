//! Runs the commands of the `:` line.

use std::path::PathBuf;

use sluice_proto::v1::{GenerateRequest, generate_request};
use sluice_shared::{level::Level, units};
use tui_input::Input;

use super::{
    super::{
        command::{COMMANDS, CommandVerb, choices},
        event::Effect,
        keys::{Action, Page},
        state::DashboardState,
    },
    chat, jobs, levels,
    navigation::go,
    recall, sending,
};

pub(super) fn act(state: &mut DashboardState, action: Action, effects: &mut Vec<Effect>) {
    match action {
        Action::Escape => {
            state.modes.pop();
        }
        Action::Enter => {
            state.modes.pop();
            let line = state.command.value_and_reset();
            let line = line.trim();
            if !line.is_empty() {
                state.commands.push(line);
                if let Err(problem) = run(state, line, effects) {
                    state.warn(problem);
                }
            }
        }
        Action::Complete => complete(state),
        Action::Up => earlier(state, -1),
        Action::Down => earlier(state, 1),
        _ => {}
    }
}

fn earlier(state: &mut DashboardState, by: isize) {
    let present = state.command.value().to_owned();
    if let Some(line) = state.commands.step(&present, by) {
        state.command = Input::new(line);
    }
}

/// Runs a line. A name may be abbreviated where that leaves one command.
fn run(state: &mut DashboardState, line: &str, effects: &mut Vec<Effect>) -> Result<(), String> {
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    let exact = COMMANDS.iter().find(|command| command.name == name);
    let mut starting = COMMANDS
        .iter()
        .filter(|command| command.name.starts_with(name));
    let command = match (exact, starting.next(), starting.next()) {
        (Some(command), ..) | (None, Some(command), None) => command,
        (None, Some(a), Some(b)) => {
            return Err(format!("'{name}' may be {} or {}", a.name, b.name));
        }
        (None, None, _) => {
            let names: Vec<_> = COMMANDS.iter().map(|command| command.name).collect();
            return Err(format!(
                "unknown command '{name}'; known are {}",
                names.join(", ")
            ));
        }
    };
    if command.takes.is_empty() && !rest.is_empty() {
        return Err(format!("{} takes nothing", command.name));
    }
    if !command.takes.is_empty() && rest.is_empty() {
        return Err(format!("{} takes {}", command.name, command.takes));
    }
    carry_out(state, command.verb, rest, effects)
}

/// Carries out a command with its argument.
fn carry_out(
    state: &mut DashboardState,
    verb: CommandVerb,
    text: &str,
    effects: &mut Vec<Effect>,
) -> Result<(), String> {
    match verb {
        CommandVerb::Level => level(state, text, effects)?,
        CommandVerb::Budget => budget(state, text, effects)?,
        CommandVerb::TryBudget => try_budget(state, text, effects)?,
        CommandVerb::Restore => restore(state, effects)?,
        CommandVerb::Fidelity => fidelity(state, text, effects)?,
        CommandVerb::Load => load(state, text, effects)?,
        CommandVerb::Unload => unload(state)?,
        CommandVerb::Pull => pull(state, text, effects)?,
        CommandVerb::Compress => compress(state, text, effects)?,
        CommandVerb::Decompress => decompress(state, text, effects)?,
        CommandVerb::Verify => verify(state, text, effects)?,
        CommandVerb::Cancel => cancel(state, text, effects)?,
        CommandVerb::Raw => raw(state, text, effects)?,
        CommandVerb::Search => recall::search(state, text, effects)?,
        CommandVerb::Sources => recall::sources(state)?,
        CommandVerb::Remember => recall::remember(state, text, effects)?,
        CommandVerb::Memory => recall::switch(state, text)?,
        CommandVerb::New => chat::begin(state),
        CommandVerb::Save => save(state, text, effects)?,
        CommandVerb::Open => effects.push(Effect::Open(PathBuf::from(text))),
        CommandVerb::Theme => theme(state, text)?,
        CommandVerb::Glyphs => glyphs(state, text)?,
        CommandVerb::Mouse => mouse(state, text, effects)?,
        CommandVerb::Page => page(state, text, effects)?,
        CommandVerb::Quit => effects.push(Effect::Quit),
    }
    Ok(())
}

/// Completes the name, or the argument once a name is complete.
fn complete(state: &mut DashboardState) {
    let line = state.command.value().to_owned();
    let completed = match line.split_once(' ') {
        None => {
            let mut fitting = COMMANDS.iter().filter(|c| c.name.starts_with(&line));
            fitting.next().map(|command| match command.takes {
                "" => command.name.to_owned(),
                _ => format!("{} ", command.name),
            })
        }
        Some((name, begun)) => {
            let choices = choices(state, name);
            let next = choices
                .iter()
                .find(|choice| choice.starts_with(begun) && *choice != begun);
            next.map(|choice| format!("{name} {choice}"))
        }
    };
    if let Some(line) = completed {
        state.command = Input::new(line);
    }
}

fn level(state: &mut DashboardState, text: &str, effects: &mut Vec<Effect>) -> Result<(), String> {
    state.check_connected()?;
    let level: Level = text.parse()?;
    levels::choose(state, Some(level), None, effects);
    Ok(())
}

fn try_budget(
    state: &mut DashboardState,
    text: &str,
    effects: &mut Vec<Effect>,
) -> Result<(), String> {
    state.check_connected()?;
    let budget_bytes = match text {
        "now" => None,
        size => Some(units::parse_bytes(size)?),
    };
    levels::try_budget(state, budget_bytes, effects);
    Ok(())
}

fn budget(state: &mut DashboardState, text: &str, effects: &mut Vec<Effect>) -> Result<(), String> {
    state.check_connected()?;
    match text {
        "auto" => levels::default_budget(state),
        size => {
            let budget_bytes = Some(units::parse_bytes(size)?);
            levels::choose(state, None, budget_bytes, effects);
        }
    }
    Ok(())
}

fn restore(state: &mut DashboardState, effects: &mut Vec<Effect>) -> Result<(), String> {
    state.check_connected()?;
    levels::restore(state, effects);
    Ok(())
}

fn fidelity(
    state: &mut DashboardState,
    text: &str,
    effects: &mut Vec<Effect>,
) -> Result<(), String> {
    state.check_connected()?;
    levels::measure(state, text.parse()?, effects);
    Ok(())
}

fn load(state: &mut DashboardState, text: &str, effects: &mut Vec<Effect>) -> Result<(), String> {
    state.check_connected()?;
    jobs::load(state, text.to_owned(), effects);
    Ok(())
}

fn pull(state: &mut DashboardState, text: &str, effects: &mut Vec<Effect>) -> Result<(), String> {
    state.check_connected()?;
    state.tell(format!("the hub is asked for {text}"));
    effects.push(Effect::Pull(text.to_owned()));
    Ok(())
}

fn unload(state: &mut DashboardState) -> Result<(), String> {
    state.check_connected()?;
    jobs::unload(state);
    Ok(())
}

fn compress(
    state: &mut DashboardState,
    text: &str,
    effects: &mut Vec<Effect>,
) -> Result<(), String> {
    state.check_connected()?;
    let (name, output) = text
        .split_once(char::is_whitespace)
        .ok_or("compress takes MODEL FILE")?;
    effects.push(Effect::Compress {
        name: name.to_owned(),
        output: absolute(output)?,
    });
    Ok(())
}

fn decompress(
    state: &mut DashboardState,
    text: &str,
    effects: &mut Vec<Effect>,
) -> Result<(), String> {
    state.check_connected()?;
    let (file, folder) = text
        .split_once(char::is_whitespace)
        .ok_or("decompress takes FILE FOLDER")?;
    effects.push(Effect::Decompress {
        file: absolute(file)?,
        folder: absolute(folder)?,
    });
    Ok(())
}

fn verify(state: &mut DashboardState, text: &str, effects: &mut Vec<Effect>) -> Result<(), String> {
    state.check_connected()?;
    effects.push(Effect::Verify(absolute(text)?));
    Ok(())
}

/// The path, if it is absolute: the daemon has another working folder, and perhaps another home.
fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text.trim());
    match path.is_absolute() {
        true => Ok(path),
        false => Err("a path must be absolute: the daemon opens it".to_owned()),
    }
}

fn cancel(state: &mut DashboardState, text: &str, effects: &mut Vec<Effect>) -> Result<(), String> {
    state.check_connected()?;
    let id = text
        .parse()
        .map_err(|_| format!("'{text}' is not the number of a request"))?;
    effects.push(Effect::Cancel(id));
    Ok(())
}

fn raw(state: &mut DashboardState, text: &str, effects: &mut Vec<Effect>) -> Result<(), String> {
    if sending::can_send(state, "nothing was sent") {
        let mut request = GenerateRequest {
            input: Some(generate_request::Input::RawText(text.to_owned())),
            ..Default::default()
        };
        state.options.apply(state.model_kind(), &mut request);
        let serial = state.requests.send();
        sending::submit(state, serial, request, effects);
    }
    Ok(())
}

fn save(state: &mut DashboardState, text: &str, effects: &mut Vec<Effect>) -> Result<(), String> {
    let recording = state.recording().ok_or("there is no run to save")?;
    let recording = Box::new(recording.clone());
    effects.push(Effect::Save(PathBuf::from(text), recording));
    Ok(())
}

fn theme(state: &mut DashboardState, text: &str) -> Result<(), String> {
    state.paint.theme = text.parse()?;
    state.chosen_looks.theme = Some(state.paint.theme);
    Ok(())
}

fn glyphs(state: &mut DashboardState, text: &str) -> Result<(), String> {
    state.paint.glyphs = text.parse()?;
    state.chosen_looks.glyphs = Some(state.paint.glyphs);
    Ok(())
}

fn mouse(state: &mut DashboardState, text: &str, effects: &mut Vec<Effect>) -> Result<(), String> {
    state.mouse = match text {
        "on" => true,
        "off" => false,
        other => return Err(format!("mouse is on or off, not '{other}'")),
    };
    state.chosen_looks.mouse = Some(state.mouse);
    effects.push(Effect::Mouse(state.mouse));
    Ok(())
}

fn page(state: &mut DashboardState, text: &str, effects: &mut Vec<Effect>) -> Result<(), String> {
    let wanted = text.to_lowercase();
    let page = Page::ALL
        .into_iter()
        .find(|page| page.name().to_lowercase() == wanted);
    let page = page.ok_or_else(|| format!("no page is called '{text}'"))?;
    go(state, page, effects);
    Ok(())
}
