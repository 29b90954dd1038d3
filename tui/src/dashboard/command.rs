//! The `:` line with its table of commands, for actions without a key and those that are quicker typed.

use std::path::PathBuf;

use ratatui::{
    layout::Rect,
    text::{Line, Span},
};
use sluice_proto::v1::GenerateRequest;
use sluice_shared::{level::Level, units};
use tui_input::Input;

use super::{
    event::Effect,
    keys::{Action, Page},
    pages,
    state::DashboardState,
    update::go,
    view::Screen,
};
use crate::{
    paint::{Glyphs, Role, Theme},
    text::clip,
};

/// A row of the table of commands.
struct Command {
    name: &'static str,
    takes: &'static str,
    about: &'static str,
    run: fn(&mut DashboardState, &str, &mut Vec<Effect>) -> Result<(), String>,
}

/// All commands, in the order in which they are offered.
const COMMANDS: &[Command] = &[
    Command {
        name: "level",
        takes: "LEVEL",
        about: "put a level in force",
        run: level,
    },
    Command {
        name: "budget",
        takes: "SIZE",
        about: "change the budget, or `auto`",
        run: budget,
    },
    Command {
        name: "try",
        takes: "SIZE",
        about: "plan for another budget, or `now`",
        run: try_budget,
    },
    Command {
        name: "restore",
        takes: "",
        about: "restore the settings the model was loaded with",
        run: restore,
    },
    Command {
        name: "fidelity",
        takes: "LEVEL",
        about: "measure the fidelity of a level",
        run: fidelity,
    },
    Command {
        name: "load",
        takes: "MODEL",
        about: "load a model by its name or path",
        run: load,
    },
    Command {
        name: "unload",
        takes: "",
        about: "unload the model",
        run: unload,
    },
    Command {
        name: "pull",
        takes: "NAME",
        about: "download a model from the hub",
        run: pull,
    },
    Command {
        name: "compress",
        takes: "MODEL FILE",
        about: "compress a model into a file",
        run: compress,
    },
    Command {
        name: "decompress",
        takes: "FILE FOLDER",
        about: "decompress a file into a folder",
        run: decompress,
    },
    Command {
        name: "verify",
        takes: "FILE",
        about: "verify the checksums of a file",
        run: verify,
    },
    Command {
        name: "cancel",
        takes: "REQUEST",
        about: "cancel a request by its number",
        run: cancel,
    },
    Command {
        name: "raw",
        takes: "TEXT",
        about: "continue a text, without the chat template",
        run: raw,
    },
    Command {
        name: "new",
        takes: "",
        about: "a new conversation",
        run: |state, _, _| {
            pages::chat::begin(state);
            Ok(())
        },
    },
    Command {
        name: "save",
        takes: "FILE",
        about: "save the run on the canvas page",
        run: save,
    },
    Command {
        name: "open",
        takes: "FILE",
        about: "show a saved run",
        run: |_, text, effects| {
            effects.push(Effect::Open(PathBuf::from(text)));
            Ok(())
        },
    },
    Command {
        name: "theme",
        takes: "NAME",
        about: "terminal, dark, light or safe",
        run: theme,
    },
    Command {
        name: "glyphs",
        takes: "NAME",
        about: "braille, blocks or ascii",
        run: glyphs,
    },
    Command {
        name: "mouse",
        takes: "on|off",
        about: "whether the mouse is ours",
        run: mouse,
    },
    Command {
        name: "page",
        takes: "NAME",
        about: "go to a page",
        run: page,
    },
    Command {
        name: "quit",
        takes: "",
        about: "end the dashboard",
        run: |_, _, effects| {
            effects.push(Effect::Quit);
            Ok(())
        },
    },
];

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
        Action::Up => recall(state, -1),
        Action::Down => recall(state, 1),
        _ => {}
    }
}

fn recall(state: &mut DashboardState, by: isize) {
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
    (command.run)(state, rest, effects)
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

/// Arguments that completion offers for a command.
fn choices(state: &DashboardState, name: &str) -> Vec<String> {
    let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    match name {
        "level" | "fidelity" => own(&Level::ALL.map(Level::name)),
        "theme" => own(&Theme::ALL.map(Theme::name)),
        "glyphs" => own(&Glyphs::ALL.map(Glyphs::name)),
        "mouse" => own(&["on", "off"]),
        "budget" => own(&["auto", "2GiB", "4GiB", "6GiB", "8GiB", "12GiB"]),
        "try" => own(&["now", "2GiB", "4GiB", "6GiB", "8GiB", "12GiB"]),
        "page" => Page::ALL
            .iter()
            .map(|page| page.name().to_lowercase())
            .collect(),
        "save" => pages::canvas::file(state).into_iter().collect(),
        "load" | "compress" => {
            let models = state.jobs.models.iter().flatten();
            models.map(|model| model.name.clone()).collect()
        }
        "cancel" => state
            .all_rows()
            .iter()
            .filter(|row| super::requests::is_active(row))
            .map(|row| row.operation_id.to_string())
            .collect(),
        _ => Vec::new(),
    }
}

fn connected(state: &DashboardState) -> Result<(), String> {
    match state.is_connected() {
        true => Ok(()),
        false => Err("not connected".to_owned()),
    }
}

fn level(state: &mut DashboardState, text: &str, effects: &mut Vec<Effect>) -> Result<(), String> {
    connected(state)?;
    let level: Level = text.parse()?;
    pages::levels::choose(state, Some(level), None, effects);
    Ok(())
}

fn try_budget(
    state: &mut DashboardState,
    text: &str,
    effects: &mut Vec<Effect>,
) -> Result<(), String> {
    connected(state)?;
    let budget_bytes = match text {
        "now" => None,
        size => Some(units::parse_bytes(size)?),
    };
    pages::levels::try_budget(state, budget_bytes, effects);
    Ok(())
}

fn budget(state: &mut DashboardState, text: &str, effects: &mut Vec<Effect>) -> Result<(), String> {
    connected(state)?;
    match text {
        "auto" => pages::levels::default_budget(state),
        size => {
            let budget_bytes = Some(units::parse_bytes(size)?);
            pages::levels::choose(state, None, budget_bytes, effects);
        }
    }
    Ok(())
}

fn restore(state: &mut DashboardState, _: &str, effects: &mut Vec<Effect>) -> Result<(), String> {
    connected(state)?;
    pages::levels::restore(state, effects);
    Ok(())
}

fn fidelity(
    state: &mut DashboardState,
    text: &str,
    effects: &mut Vec<Effect>,
) -> Result<(), String> {
    connected(state)?;
    pages::levels::measure(state, text.parse()?, effects);
    Ok(())
}

fn load(state: &mut DashboardState, text: &str, effects: &mut Vec<Effect>) -> Result<(), String> {
    connected(state)?;
    pages::jobs::load(state, text.to_owned(), effects);
    Ok(())
}

fn pull(state: &mut DashboardState, text: &str, effects: &mut Vec<Effect>) -> Result<(), String> {
    connected(state)?;
    state.tell(format!("the hub is asked for {text}"));
    effects.push(Effect::Pull(text.to_owned()));
    Ok(())
}

fn unload(state: &mut DashboardState, _: &str, _: &mut Vec<Effect>) -> Result<(), String> {
    connected(state)?;
    pages::jobs::unload(state);
    Ok(())
}

fn compress(
    state: &mut DashboardState,
    text: &str,
    effects: &mut Vec<Effect>,
) -> Result<(), String> {
    connected(state)?;
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
    connected(state)?;
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
    connected(state)?;
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
    connected(state)?;
    let id = text
        .parse()
        .map_err(|_| format!("'{text}' is not the number of a request"))?;
    effects.push(Effect::Cancel(id));
    Ok(())
}

fn raw(state: &mut DashboardState, text: &str, effects: &mut Vec<Effect>) -> Result<(), String> {
    if super::sending::can_send(state, "nothing was sent") {
        let mut request = GenerateRequest {
            input: Some(sluice_proto::v1::generate_request::Input::RawText(
                text.to_owned(),
            )),
            ..Default::default()
        };
        state.options.apply(state.model_kind(), &mut request);
        let serial = state.requests.send();
        super::sending::submit(state, serial, request, effects);
    }
    Ok(())
}

fn save(state: &mut DashboardState, text: &str, effects: &mut Vec<Effect>) -> Result<(), String> {
    let recording = state.recording().ok_or("there is no run to save")?;
    let recording = Box::new(recording.clone());
    effects.push(Effect::Save(PathBuf::from(text), recording));
    Ok(())
}

fn theme(state: &mut DashboardState, text: &str, _: &mut Vec<Effect>) -> Result<(), String> {
    state.paint.theme = text.parse()?;
    state.chosen_looks.theme = Some(state.paint.theme);
    Ok(())
}

fn glyphs(state: &mut DashboardState, text: &str, _: &mut Vec<Effect>) -> Result<(), String> {
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

/// Draws the line at the foot of the screen, and above it the commands or arguments that complete it.
pub(super) fn draw(screen: &mut Screen<'_, '_>, area: Rect) {
    let state = screen.state;
    screen.frame.render_widget(ratatui::widgets::Clear, area);
    let mark = Line::styled(":", screen.style(Role::Title));
    screen.frame.render_widget(mark, area);
    let place = Rect::new(area.x + 1, area.y, area.width.saturating_sub(1), 1);
    screen.editor(place, &state.command, "a command; Tab completes", true);

    let written = state.command.value();
    let columns = usize::from(area.width).saturating_sub(2).min(64);
    let mut lines = Vec::new();
    match written.split_once(' ') {
        None => {
            for command in COMMANDS
                .iter()
                .filter(|command| command.name.starts_with(written))
            {
                let name = format!("{} {}", command.name, command.takes);
                lines.push(Line::from(vec![
                    Span::styled(format!("{name:<20} "), screen.style(Role::Title)),
                    Span::raw(clip(command.about, columns.saturating_sub(21))),
                ]));
            }
        }
        Some((name, begun)) => {
            if let Some(command) = COMMANDS.iter().find(|command| command.name == name) {
                let words = format!("{name} {}: {}", command.takes, command.about);
                lines.push(Line::styled(clip(&words, columns), screen.style(Role::Dim)));
            }
            let choices = choices(state, name).into_iter();
            let fitting = choices.filter(|choice| choice.starts_with(begun));
            // Choices may be names from the daemon or paths, so they are made safe to show.
            lines.extend(fitting.map(|choice| Line::raw(crate::text::sanitise_line(&choice))));
        }
    }
    if lines.is_empty() {
        return;
    }
    let rows = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
    let rows = rows.min(area.y);
    lines.truncate(usize::from(rows.saturating_sub(2)));
    let width = u16::try_from(columns + 2).unwrap_or(u16::MAX);
    let place = Rect::new(area.x, area.y - rows, width.min(area.width), rows);
    screen.frame.render_widget(ratatui::widgets::Clear, place);
    screen.framed(place, "Commands", false, lines);
}
