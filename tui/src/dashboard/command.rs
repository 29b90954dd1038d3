//! The table of commands of the `:` line, for actions without a key and those that are quicker typed.

use sluice_shared::level::Level;

use super::{keys::Page, requests::is_active, state::DashboardState};
use crate::paint::{Glyphs, Theme};

/// A row of the table of commands.
pub(super) struct Command {
    pub(super) name: &'static str,
    pub(super) takes: &'static str,
    pub(super) about: &'static str,
    pub(super) verb: CommandVerb,
}

/// What a command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommandVerb {
    Level,
    Budget,
    TryBudget,
    Restore,
    Fidelity,
    Load,
    Unload,
    Pull,
    Compress,
    Decompress,
    Verify,
    Cancel,
    Raw,
    Search,
    Sources,
    Remember,
    Memory,
    New,
    Save,
    Open,
    Theme,
    Glyphs,
    Mouse,
    Page,
    Quit,
}

/// All commands, in the order in which they are offered.
pub(super) const COMMANDS: &[Command] = &[
    Command {
        name: "level",
        takes: "LEVEL",
        about: "put a level in force",
        verb: CommandVerb::Level,
    },
    Command {
        name: "budget",
        takes: "SIZE",
        about: "change the budget, or `auto`",
        verb: CommandVerb::Budget,
    },
    Command {
        name: "try",
        takes: "SIZE",
        about: "plan for another budget, or `now`",
        verb: CommandVerb::TryBudget,
    },
    Command {
        name: "restore",
        takes: "",
        about: "restore the settings the model was loaded with",
        verb: CommandVerb::Restore,
    },
    Command {
        name: "fidelity",
        takes: "LEVEL",
        about: "measure the fidelity of a level",
        verb: CommandVerb::Fidelity,
    },
    Command {
        name: "load",
        takes: "MODEL",
        about: "load a model by its name or path",
        verb: CommandVerb::Load,
    },
    Command {
        name: "unload",
        takes: "",
        about: "unload the model",
        verb: CommandVerb::Unload,
    },
    Command {
        name: "pull",
        takes: "NAME",
        about: "download a model from the hub",
        verb: CommandVerb::Pull,
    },
    Command {
        name: "compress",
        takes: "MODEL FILE",
        about: "compress a model into a file",
        verb: CommandVerb::Compress,
    },
    Command {
        name: "decompress",
        takes: "FILE FOLDER",
        about: "decompress a file into a folder",
        verb: CommandVerb::Decompress,
    },
    Command {
        name: "verify",
        takes: "FILE",
        about: "verify the checksums of a file",
        verb: CommandVerb::Verify,
    },
    Command {
        name: "cancel",
        takes: "REQUEST",
        about: "cancel a request by its number",
        verb: CommandVerb::Cancel,
    },
    Command {
        name: "raw",
        takes: "TEXT",
        about: "continue a text, without the chat template",
        verb: CommandVerb::Raw,
    },
    Command {
        name: "search",
        takes: "WORDS",
        about: "find what the daemon remembers",
        verb: CommandVerb::Search,
    },
    Command {
        name: "sources",
        takes: "",
        about: "show what of its memory the answer had",
        verb: CommandVerb::Sources,
    },
    Command {
        name: "remember",
        takes: "TEXT",
        about: "have the daemon remember a note",
        verb: CommandVerb::Remember,
    },
    Command {
        name: "memory",
        takes: "TOKENS",
        about: "put what is remembered into prompts, or `off`",
        verb: CommandVerb::Memory,
    },
    Command {
        name: "new",
        takes: "",
        about: "a new conversation",
        verb: CommandVerb::New,
    },
    Command {
        name: "save",
        takes: "FILE",
        about: "save the run on the canvas page",
        verb: CommandVerb::Save,
    },
    Command {
        name: "open",
        takes: "FILE",
        about: "show a saved run",
        verb: CommandVerb::Open,
    },
    Command {
        name: "theme",
        takes: "NAME",
        about: "terminal, dark, light or safe",
        verb: CommandVerb::Theme,
    },
    Command {
        name: "glyphs",
        takes: "NAME",
        about: "braille, blocks or ascii",
        verb: CommandVerb::Glyphs,
    },
    Command {
        name: "mouse",
        takes: "on|off",
        about: "whether the mouse is ours",
        verb: CommandVerb::Mouse,
    },
    Command {
        name: "page",
        takes: "NAME",
        about: "go to a page",
        verb: CommandVerb::Page,
    },
    Command {
        name: "quit",
        takes: "",
        about: "end the dashboard",
        verb: CommandVerb::Quit,
    },
];

/// Arguments that completion offers for a command.
pub(super) fn choices(state: &DashboardState, name: &str) -> Vec<String> {
    let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    match name {
        "level" | "fidelity" => own(&Level::ALL.map(Level::name)),
        "theme" => own(&Theme::ALL.map(Theme::name)),
        "glyphs" => own(&Glyphs::ALL.map(Glyphs::name)),
        "mouse" => own(&["on", "off"]),
        "memory" => own(&["on", "off"]),
        "budget" => own(&["auto", "2GiB", "4GiB", "6GiB", "8GiB", "12GiB"]),
        "try" => own(&["now", "2GiB", "4GiB", "6GiB", "8GiB", "12GiB"]),
        "page" => Page::ALL
            .iter()
            .map(|page| page.name().to_lowercase())
            .collect(),
        "save" => state.run_path().into_iter().collect(),
        "load" | "compress" => {
            let models = state.jobs.models.iter().flatten();
            models.map(|model| model.name.clone()).collect()
        }
        "cancel" => state
            .all_rows()
            .iter()
            .filter(|row| is_active(row))
            .map(|row| row.operation_id.to_string())
            .collect(),
        _ => Vec::new(),
    }
}
