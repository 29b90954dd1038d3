//! The tables of keys, one for each page and mode.

use crossterm::event::{KeyCode, KeyModifiers};

use super::{Action, Page};

/// A row of a table of keys.
#[derive(Debug)]
pub struct Binding {
    /// Keys that have this effect, each by itself.
    pub keys: &'static [(KeyCode, KeyModifiers)],
    /// The keys as the help names them.
    pub label: &'static str,
    /// The effect in a few words, for the help.
    pub help: &'static str,
    /// The action that the keys lead to.
    pub action: Action,
}

const NONE: KeyModifiers = KeyModifiers::NONE;
const CONTROL: KeyModifiers = KeyModifiers::CONTROL;
const ALT: KeyModifiers = KeyModifiers::ALT;

const fn code(code: KeyCode) -> (KeyCode, KeyModifiers) {
    (code, NONE)
}

const fn letter(letter: char) -> (KeyCode, KeyModifiers) {
    (KeyCode::Char(letter), NONE)
}

const fn control(letter: char) -> (KeyCode, KeyModifiers) {
    (KeyCode::Char(letter), CONTROL)
}

const fn bind(
    keys: &'static [(KeyCode, KeyModifiers)],
    label: &'static str,
    help: &'static str,
    action: Action,
) -> Binding {
    Binding {
        keys,
        label,
        help,
        action,
    }
}

/// Keys that move on every page; the page says what they move.
macro_rules! movement {
    (up: $help:literal) => {
        bind(
            &[code(KeyCode::Up), letter('k')],
            "Up, k",
            $help,
            Action::Up,
        )
    };
    (down: $help:literal) => {
        bind(
            &[code(KeyCode::Down), letter('j')],
            "Down, j",
            $help,
            Action::Down,
        )
    };
    (left: $help:literal) => {
        bind(
            &[code(KeyCode::Left), letter('h')],
            "Left, h",
            $help,
            Action::Left,
        )
    };
    (right: $help:literal) => {
        bind(
            &[code(KeyCode::Right), letter('l')],
            "Right, l",
            $help,
            Action::Right,
        )
    };
    (first: $help:literal) => {
        bind(
            &[code(KeyCode::Home), letter('g')],
            "Home, g",
            $help,
            Action::First,
        )
    };
    (last: $help:literal) => {
        bind(
            &[code(KeyCode::End), letter('G')],
            "End, G",
            $help,
            Action::Last,
        )
    };
    (page_up: $help:literal) => {
        bind(
            &[code(KeyCode::PageUp), control('u')],
            "PgUp",
            $help,
            Action::PageUp,
        )
    };
    (page_down: $help:literal) => {
        bind(
            &[code(KeyCode::PageDown), control('d')],
            "PgDn",
            $help,
            Action::PageDown,
        )
    };
}

/// Keys that do the same in every mode.
pub(super) static ANYWHERE: &[Binding] = &[
    bind(&[control('c')], "Ctrl-C", "quit", Action::Quit),
    bind(&[control('z')], "Ctrl-Z", "suspend", Action::Suspend),
];

/// Keys that do the same on all pages.
pub(super) static PAGES: &[Binding] = &[
    bind(
        &[letter('?'), code(KeyCode::F(1))],
        "?",
        "help",
        Action::Help,
    ),
    bind(&[letter('q')], "q", "quit", Action::Quit),
    bind(&[letter('1')], "1", "overview", Action::Go(Page::Overview)),
    bind(
        &[letter('2')],
        "2",
        "memory and layers",
        Action::Go(Page::Memory),
    ),
    bind(&[letter('3')], "3", "canvas", Action::Go(Page::Canvas)),
    bind(&[letter('4')], "4", "chat", Action::Go(Page::Chat)),
    bind(
        &[letter('5'), code(KeyCode::F(2)), letter('L')],
        "5, F2",
        "levels",
        Action::Go(Page::Levels),
    ),
    bind(
        &[letter('6')],
        "6",
        "jobs and models",
        Action::Go(Page::Jobs),
    ),
    bind(&[letter(':')], ":", "command", Action::Command),
    bind(
        &[letter('o'), code(KeyCode::F(3))],
        "o, F3",
        "options of requests",
        Action::Options,
    ),
    bind(&[letter('f')], "f", "freeze the figures", Action::Freeze),
    bind(&[letter('t')], "t", "next theme", Action::Theme),
    bind(&[letter('i')], "i", "write a prompt", Action::Write),
    bind(
        &[code(KeyCode::Esc)],
        "Esc",
        "close; twice: cancel own",
        Action::Escape,
    ),
];

/// Keys of the prompt; every other key writes or moves in it.
pub(super) static PROMPT: &[Binding] = &[
    bind(&[code(KeyCode::Enter)], "Enter", "send", Action::Enter),
    bind(
        &[control('j'), (KeyCode::Enter, ALT)],
        "Ctrl-J",
        "new line",
        Action::NewLine,
    ),
    bind(
        &[code(KeyCode::Tab), (KeyCode::BackTab, KeyModifiers::SHIFT)],
        "Tab",
        "leave for the page",
        Action::NextPane,
    ),
    bind(&[code(KeyCode::F(1))], "F1", "help", Action::Help),
    bind(
        &[code(KeyCode::F(2))],
        "F2",
        "levels",
        Action::Go(Page::Levels),
    ),
    bind(&[code(KeyCode::F(3))], "F3", "options", Action::Options),
    bind(
        &[code(KeyCode::Up)],
        "Up",
        "a line up, or an earlier prompt",
        Action::Up,
    ),
    bind(
        &[code(KeyCode::Down)],
        "Down",
        "a line down, or a later prompt",
        Action::Down,
    ),
    bind(
        &[code(KeyCode::Esc)],
        "Esc",
        "leave; twice: cancel own",
        Action::Escape,
    ),
    bind(
        &[code(KeyCode::PageUp)],
        "PgUp",
        "scroll up",
        Action::PageUp,
    ),
    bind(
        &[code(KeyCode::PageDown)],
        "PgDn",
        "scroll down",
        Action::PageDown,
    ),
    bind(
        &[control('n')],
        "Ctrl-N",
        "new conversation",
        Action::NewConversation,
    ),
    bind(
        &[letter('?')],
        "?",
        "help, while nothing is written",
        Action::HelpIfEmpty,
    ),
    bind(
        &[(KeyCode::Char('1'), ALT)],
        "Alt-1",
        "overview",
        Action::Go(Page::Overview),
    ),
    bind(
        &[(KeyCode::Char('2'), ALT)],
        "Alt-2",
        "memory and layers",
        Action::Go(Page::Memory),
    ),
    bind(
        &[(KeyCode::Char('3'), ALT)],
        "Alt-3",
        "canvas",
        Action::Go(Page::Canvas),
    ),
    bind(
        &[(KeyCode::Char('4'), ALT)],
        "Alt-4",
        "chat",
        Action::Go(Page::Chat),
    ),
    bind(
        &[(KeyCode::Char('5'), ALT)],
        "Alt-5",
        "levels",
        Action::Go(Page::Levels),
    ),
    bind(
        &[(KeyCode::Char('6'), ALT)],
        "Alt-6",
        "jobs and models",
        Action::Go(Page::Jobs),
    ),
];

/// Keys of the overview.
pub(super) static OVERVIEW: &[Binding] = &[
    bind(
        &[
            code(KeyCode::Enter),
            code(KeyCode::Tab),
            (KeyCode::BackTab, KeyModifiers::SHIFT),
        ],
        "Enter",
        "go to the prompt",
        Action::NextPane,
    ),
    bind(&[letter('x')], "x", "cancel it, asks first", Action::Cancel),
    bind(&[letter('y')], "y", "copy the answer", Action::Copy),
    bind(
        &[letter('l')],
        "l",
        "choose a level",
        Action::Go(Page::Levels),
    ),
    bind(&[letter('/')], "/", "filter the requests", Action::Filter),
    movement!(up: "select the request above"),
    movement!(down: "select the one below"),
    movement!(page_up: "scroll the canvas up"),
    movement!(page_down: "scroll it down"),
];

/// Keys of the memory page.
pub(super) static MEMORY: &[Binding] = &[
    movement!(left: "the layer before"),
    movement!(right: "the layer after"),
    movement!(first: "the first layer"),
    movement!(last: "the last layer"),
];

/// Keys of the canvas page.
pub(super) static CANVAS: &[Binding] = &[
    bind(&[letter(' ')], "Space", "play, or hold", Action::Play),
    bind(&[letter('m')], "m", "text, heat map, both", Action::Heat),
    bind(&[letter('s')], "s", "save the run", Action::Save),
    bind(&[letter('y')], "y", "copy the answer", Action::Copy),
    movement!(left: "the pass before"),
    movement!(right: "the pass after"),
    bind(&[letter('x')], "x", "cancel it, asks first", Action::Cancel),
    movement!(first: "the first pass"),
    movement!(last: "the latest, live"),
    movement!(up: "scroll up"),
    movement!(down: "scroll down"),
    movement!(page_up: "scroll far up"),
    movement!(page_down: "scroll far down"),
    bind(
        &[letter('[')],
        "[",
        "the request before",
        Action::PreviousRequest,
    ),
    bind(
        &[letter(']')],
        "]",
        "the request after",
        Action::NextRequest,
    ),
];

/// Keys of the chat page.
pub(super) static CHAT: &[Binding] = &[
    bind(
        &[
            code(KeyCode::Enter),
            code(KeyCode::Tab),
            (KeyCode::BackTab, KeyModifiers::SHIFT),
        ],
        "Enter",
        "go to the prompt",
        Action::NextPane,
    ),
    bind(
        &[letter('e')],
        "e",
        "rewrite words of an answer",
        Action::Mask,
    ),
    bind(&[letter('r')], "r", "answer once more", Action::Again),
    bind(&[letter('y')], "y", "copy the answer", Action::Copy),
    bind(
        &[letter('n'), control('n')],
        "n",
        "new conversation",
        Action::NewConversation,
    ),
    bind(&[letter('u')], "u", "the answer before", Action::Undo),
    bind(
        &[letter('[')],
        "[",
        "the conversation before",
        Action::PreviousConversation,
    ),
    bind(
        &[letter(']')],
        "]",
        "the conversation after",
        Action::NextConversation,
    ),
    bind(&[letter('x')], "x", "cancel what runs", Action::Cancel),
    movement!(up: "select the message above"),
    movement!(down: "select the one below"),
    bind(
        &[letter('d')],
        "d",
        "forget it, asks first",
        Action::ForgetConversation,
    ),
    movement!(page_up: "scroll up"),
    movement!(page_down: "scroll down"),
];

/// Keys of the levels.
pub(super) static LEVELS: &[Binding] = &[
    bind(
        &[code(KeyCode::Enter)],
        "Enter",
        "put it in force",
        Action::Enter,
    ),
    bind(&[letter('b')], "b", "try another budget", Action::Budget),
    bind(&[letter('m')], "m", "measure its fidelity", Action::Measure),
    bind(
        &[
            code(KeyCode::Tab),
            (KeyCode::BackTab, KeyModifiers::SHIFT),
            code(KeyCode::Left),
            code(KeyCode::Right),
        ],
        "Tab",
        "levels, or presets",
        Action::NextPane,
    ),
    bind(
        &[letter('R')],
        "R",
        "restore the checkpoint's own weights",
        Action::Restore,
    ),
    bind(
        &[letter('x')],
        "x",
        "cancel the measurement",
        Action::Cancel,
    ),
    movement!(up: "select the one above"),
    movement!(down: "select the one below"),
];

/// Keys of the jobs.
pub(super) static JOBS: &[Binding] = &[
    bind(
        &[code(KeyCode::Enter)],
        "Enter",
        "load the selected model",
        Action::Enter,
    ),
    bind(
        &[letter('x')],
        "x",
        "cancel the selected job",
        Action::Cancel,
    ),
    bind(
        &[
            code(KeyCode::Tab),
            (KeyCode::BackTab, KeyModifiers::SHIFT),
            code(KeyCode::Left),
            code(KeyCode::Right),
        ],
        "Tab",
        "jobs, or models",
        Action::NextPane,
    ),
    bind(&[letter('p')], "p", "download a model", Action::Pull),
    bind(
        &[letter('u')],
        "u",
        "unload the model, asks first",
        Action::Unload,
    ),
    bind(&[letter('/')], "/", "filter", Action::Filter),
    movement!(up: "select the one above"),
    movement!(down: "select the one below"),
];

/// Keys of the help overlay.
pub(super) static HELP: &[Binding] = &[
    bind(
        &[
            code(KeyCode::Esc),
            letter('?'),
            letter('q'),
            code(KeyCode::F(1)),
            code(KeyCode::Enter),
        ],
        "Esc, ?",
        "close the help",
        Action::Escape,
    ),
    movement!(up: "scroll up"),
    movement!(down: "scroll down"),
    movement!(page_up: "scroll far up"),
    movement!(page_down: "scroll far down"),
    bind(&[letter('/')], "/", "find a key", Action::Filter),
];

/// Keys of a question.
pub(super) static CONFIRM: &[Binding] = &[
    bind(&[letter('y')], "y", "yes", Action::Yes),
    bind(
        &[letter('n'), code(KeyCode::Esc), letter('q')],
        "n, Esc",
        "no",
        Action::No,
    ),
];

/// Keys of the line that takes commands; every other key writes.
pub(super) static COMMAND: &[Binding] = &[
    bind(&[code(KeyCode::Enter)], "Enter", "do it", Action::Enter),
    bind(&[code(KeyCode::Tab)], "Tab", "complete", Action::Complete),
    bind(&[code(KeyCode::Up)], "Up", "an earlier command", Action::Up),
    bind(&[code(KeyCode::Down)], "Down", "a later one", Action::Down),
    bind(&[code(KeyCode::Esc)], "Esc", "leave", Action::Escape),
];

/// Keys of the line that filters; every other key writes.
pub(super) static FILTER: &[Binding] = &[
    bind(
        &[code(KeyCode::Enter)],
        "Enter",
        "keep the filter",
        Action::Enter,
    ),
    bind(
        &[code(KeyCode::Esc)],
        "Esc",
        "show all again",
        Action::Escape,
    ),
];

/// Keys of the form.
pub(super) static OPTIONS: &[Binding] = &[
    movement!(up: "the field above"),
    movement!(down: "the field below"),
    bind(&[code(KeyCode::Enter)], "Enter", "change it", Action::Enter),
    bind(
        &[code(KeyCode::Delete), code(KeyCode::Backspace), letter('d')],
        "Del, d",
        "back to the default",
        Action::Clear,
    ),
    bind(
        &[
            code(KeyCode::Esc),
            letter('o'),
            letter('q'),
            code(KeyCode::F(3)),
        ],
        "Esc, o",
        "close",
        Action::Escape,
    ),
    bind(
        &[letter('?'), code(KeyCode::F(1))],
        "?",
        "help",
        Action::Help,
    ),
];

/// Keys of a field of the form; every other key writes.
pub(super) static FIELD: &[Binding] = &[
    bind(&[code(KeyCode::Enter)], "Enter", "take it", Action::Enter),
    bind(
        &[code(KeyCode::Tab)],
        "Tab",
        "next choice",
        Action::Complete,
    ),
    bind(
        &[code(KeyCode::Esc)],
        "Esc",
        "leave as it was",
        Action::Escape,
    ),
];

/// Keys while words of an answer are chosen.
pub(super) static MASK: &[Binding] = &[
    bind(
        &[letter(' '), letter('v')],
        "Space",
        "start the span here",
        Action::Mark,
    ),
    bind(
        &[code(KeyCode::Enter)],
        "Enter",
        "rewrite the span",
        Action::Enter,
    ),
    movement!(left: "the word before"),
    movement!(right: "the word after"),
    movement!(up: "a line up"),
    movement!(down: "a line down"),
    bind(
        &[code(KeyCode::Esc), letter('q')],
        "Esc",
        "leave the answer as it is",
        Action::Escape,
    ),
    bind(
        &[letter('?'), code(KeyCode::F(1))],
        "?",
        "help",
        Action::Help,
    ),
];

/// Keys while pieces of what the daemon remembers are looked at.
pub(super) static RECALL: &[Binding] = &[
    movement!(up: "the piece before"),
    movement!(down: "the piece after"),
    movement!(page_up: "its text up"),
    movement!(page_down: "its text down"),
    bind(
        &[code(KeyCode::Esc), letter('q')],
        "Esc",
        "close",
        Action::Escape,
    ),
    bind(
        &[letter('?'), code(KeyCode::F(1))],
        "?",
        "help",
        Action::Help,
    ),
];

/// Every table with its heading, as the help shows them.
pub static TABLES: &[(&str, &[Binding])] = &[
    ("On every page", PAGES),
    ("Prompt", PROMPT),
    ("Overview", OVERVIEW),
    ("Memory", MEMORY),
    ("Canvas", CANVAS),
    ("Chat", CHAT),
    ("Words of an answer", MASK),
    ("What is remembered", RECALL),
    ("Levels", LEVELS),
    ("Jobs", JOBS),
    ("Options", OPTIONS),
    ("A field", FIELD),
    ("Command", COMMAND),
    ("Filter", FILTER),
    ("Question", CONFIRM),
    ("This help", HELP),
    ("Anywhere", ANYWHERE),
];
