//! The keys: tables that the update and the help read alike.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// A page of the dashboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Page {
    /// Memory, layers, speed and requests at a glance.
    #[default]
    Overview,
    /// Memory by kind and over time, and the map of layers.
    Memory,
    /// One request in large, pass by pass.
    Canvas,
    /// Conversations.
    Chat,
    /// Levels, budgets and presets.
    Levels,
    /// Long work of the daemon, and the models.
    Jobs,
}

impl Page {
    /// All pages, in the order of their digits.
    pub const ALL: [Self; 6] = [
        Self::Overview,
        Self::Memory,
        Self::Canvas,
        Self::Chat,
        Self::Levels,
        Self::Jobs,
    ];

    /// The page's name, as tabs show it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Memory => "Memory",
            Self::Canvas => "Canvas",
            Self::Chat => "Chat",
            Self::Levels => "Levels",
            Self::Jobs => "Jobs",
        }
    }

    /// Whether the page has the prompt.
    #[must_use]
    pub fn has_prompt(self) -> bool {
        matches!(self, Self::Overview | Self::Chat)
    }

    fn bindings(self) -> &'static [Binding] {
        match self {
            Self::Overview => OVERVIEW,
            Self::Memory => MEMORY,
            Self::Canvas => CANVAS,
            Self::Chat => CHAT,
            Self::Levels => LEVELS,
            Self::Jobs => JOBS,
        }
    }
}

/// The part of the screen that has the keyboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The page itself.
    Page,
    /// Writing a prompt.
    Prompt,
    /// The help overlay.
    Help,
    /// A question that wants a yes or a no.
    Confirm,
    /// The line that takes commands.
    Command,
    /// The line that filters lists.
    Filter,
    /// The form with the options of requests.
    Options,
    /// A field of the form.
    Field,
    /// Choosing words of an answer to rewrite.
    Mask,
}

/// What a key does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// End the dashboard.
    Quit,
    /// Stop the process until it is continued.
    Suspend,
    /// Close, leave or cancel, whichever is innermost.
    Escape,
    /// Show the keys.
    Help,
    /// Show the keys, or write the character where there is text already.
    HelpIfEmpty,
    /// Go to a page.
    Go(Page),
    /// Move between the parts of a page, and its prompt.
    NextPane,
    /// Write a prompt.
    Write,
    /// Begin a new line of it.
    NewLine,
    /// Copy the answer.
    Copy,
    /// Open the line that takes commands.
    Command,
    /// Open the line that filters.
    Filter,
    /// Open the form of what requests ask for.
    Options,
    /// Freeze the figures, or resume.
    Freeze,
    /// Switch to the next theme.
    Theme,
    /// Up by one row or line.
    Up,
    /// Down by one row or line.
    Down,
    /// Left by one column, pass or word.
    Left,
    /// Right by one column, pass or word.
    Right,
    /// Up by several rows or lines.
    PageUp,
    /// Down by several rows or lines.
    PageDown,
    /// To the first row, pass or line.
    First,
    /// To the last row, pass or line.
    Last,
    /// Open, send or apply what is selected.
    Enter,
    /// Cancel what is selected; asks first.
    Cancel,
    /// Answer a question with yes.
    Yes,
    /// Answer a question with no.
    No,
    /// Complete the word.
    Complete,
    /// Play the passes of a request.
    Play,
    /// Show text, heat map, or both.
    Heat,
    /// Save the selected request.
    Save,
    /// Select the request before.
    PreviousRequest,
    /// Select the request after.
    NextRequest,
    /// Begin a new conversation.
    NewConversation,
    /// Open the conversation before.
    PreviousConversation,
    /// Open the conversation after.
    NextConversation,
    /// Forget a conversation; asks first.
    ForgetConversation,
    /// Choose words of an answer to rewrite.
    Mask,
    /// Ask for another version of the answer.
    Again,
    /// Return to the version of the answer before.
    Undo,
    /// Begin or end the chosen span.
    Mark,
    /// Set the budget.
    Budget,
    /// Measure the fidelity of the selected level.
    Measure,
    /// Return to the settings that the model was loaded with.
    Restore,
    /// Unload the model.
    Unload,
    /// Download a model.
    Pull,
    /// Reset a field to its default.
    Clear,
}

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
pub static ANYWHERE: &[Binding] = &[
    bind(&[control('c')], "Ctrl-C", "quit", Action::Quit),
    bind(&[control('z')], "Ctrl-Z", "suspend", Action::Suspend),
];

/// Keys that do the same on all pages.
pub static PAGES: &[Binding] = &[
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
pub static PROMPT: &[Binding] = &[
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
pub static OVERVIEW: &[Binding] = &[
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
pub static MEMORY: &[Binding] = &[
    movement!(left: "the layer before"),
    movement!(right: "the layer after"),
    movement!(first: "the first layer"),
    movement!(last: "the last layer"),
];

/// Keys of the canvas page.
pub static CANVAS: &[Binding] = &[
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
pub static CHAT: &[Binding] = &[
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
pub static LEVELS: &[Binding] = &[
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
pub static JOBS: &[Binding] = &[
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
pub static HELP: &[Binding] = &[
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
pub static CONFIRM: &[Binding] = &[
    bind(&[letter('y')], "y", "yes", Action::Yes),
    bind(
        &[letter('n'), code(KeyCode::Esc), letter('q')],
        "n, Esc",
        "no",
        Action::No,
    ),
];

/// Keys of the line that takes commands; every other key writes.
pub static COMMAND: &[Binding] = &[
    bind(&[code(KeyCode::Enter)], "Enter", "do it", Action::Enter),
    bind(&[code(KeyCode::Tab)], "Tab", "complete", Action::Complete),
    bind(&[code(KeyCode::Up)], "Up", "an earlier command", Action::Up),
    bind(&[code(KeyCode::Down)], "Down", "a later one", Action::Down),
    bind(&[code(KeyCode::Esc)], "Esc", "leave", Action::Escape),
];

/// Keys of the line that filters; every other key writes.
pub static FILTER: &[Binding] = &[
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
pub static OPTIONS: &[Binding] = &[
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
pub static FIELD: &[Binding] = &[
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
pub static MASK: &[Binding] = &[
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

/// Every table with its heading, as the help shows them.
pub static TABLES: &[(&str, &[Binding])] = &[
    ("On every page", PAGES),
    ("Prompt", PROMPT),
    ("Overview", OVERVIEW),
    ("Memory", MEMORY),
    ("Canvas", CANVAS),
    ("Chat", CHAT),
    ("Words of an answer", MASK),
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

impl Mode {
    /// The tables that apply in a mode, the innermost first: its rows come before those of the others.
    #[must_use]
    pub fn tables(self, page: Page) -> [&'static [Binding]; 3] {
        let own = match self {
            Self::Page => return [page.bindings(), PAGES, ANYWHERE],
            Self::Prompt => PROMPT,
            Self::Help => HELP,
            Self::Confirm => CONFIRM,
            Self::Command => COMMAND,
            Self::Filter => FILTER,
            Self::Options => OPTIONS,
            Self::Field => FIELD,
            Self::Mask => MASK,
        };
        [own, ANYWHERE, &[]]
    }

    /// The action of a key; `None` if no table names it.
    #[must_use]
    pub fn action(self, page: Page, key: &KeyEvent) -> Option<Action> {
        let matches = |binding: &&Binding| {
            binding.keys.iter().any(|(code, modifiers)| {
                // Terminals differ in whether SHIFT is reported with '?' or a capital letter.
                let pressed = match code {
                    KeyCode::Char(_) => key.modifiers - KeyModifiers::SHIFT,
                    _ => key.modifiers,
                };
                *code == key.code && *modifiers == pressed
            })
        };
        let mut all = self.tables(page).into_iter().flatten();
        all.find(matches).map(|binding| binding.action)
    }

    /// Whether keys that no table names are written into a line.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(
            self,
            Self::Prompt | Self::Command | Self::Filter | Self::Field
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODES: [Mode; 9] = [
        Mode::Page,
        Mode::Prompt,
        Mode::Help,
        Mode::Confirm,
        Mode::Command,
        Mode::Filter,
        Mode::Options,
        Mode::Field,
        Mode::Mask,
    ];

    fn key(code: KeyCode, modifiers: KeyModifiers) -> KeyEvent {
        KeyEvent::new(code, modifiers)
    }

    #[test]
    fn no_table_binds_a_key_twice() {
        for (mode, page) in MODES
            .iter()
            .flat_map(|mode| Page::ALL.map(|page| (*mode, page)))
        {
            for table in mode.tables(page) {
                let keys: Vec<_> = table.iter().flat_map(|binding| binding.keys).collect();
                for (index, a) in keys.iter().enumerate() {
                    assert!(!keys[index + 1..].contains(a), "{mode:?} binds {a:?} twice");
                }
            }
        }
    }

    #[test]
    fn no_page_hides_a_key_that_all_pages_have() {
        for page in Page::ALL {
            let own: Vec<_> = page.bindings().iter().flat_map(|b| b.keys).collect();
            for binding in PAGES.iter().chain(ANYWHERE) {
                for key in binding.keys {
                    assert!(!own.contains(&key), "{page:?} hides {}", binding.label);
                }
            }
        }
    }

    #[test]
    fn every_table_is_in_the_help() {
        for mode in MODES {
            for page in Page::ALL {
                for table in mode.tables(page) {
                    let listed = TABLES
                        .iter()
                        .any(|(_, listed)| std::ptr::eq(*listed, table));
                    assert!(listed || table.is_empty(), "{mode:?} on {page:?}");
                }
            }
        }
    }

    #[test]
    fn control_c_quits_everywhere_and_q_only_where_nothing_is_written() {
        for mode in MODES {
            let action = mode.action(Page::Chat, &key(KeyCode::Char('c'), CONTROL));
            assert_eq!(action, Some(Action::Quit));
            let q = mode.action(Page::Chat, &key(KeyCode::Char('q'), NONE));
            assert_eq!(q.is_none(), mode.writes(), "{mode:?}");
        }
    }

    #[test]
    fn a_question_mark_with_shift_is_a_question_mark() {
        let shifted = key(KeyCode::Char('?'), KeyModifiers::SHIFT);
        let action = Mode::Page.action(Page::Overview, &shifted);
        assert_eq!(action, Some(Action::Help));
    }

    #[test]
    fn a_capital_letter_is_told_from_a_small_one() {
        let capital = key(KeyCode::Char('G'), KeyModifiers::SHIFT);
        assert_eq!(
            Mode::Page.action(Page::Canvas, &capital),
            Some(Action::Last)
        );
        let small = key(KeyCode::Char('g'), NONE);
        assert_eq!(Mode::Page.action(Page::Canvas, &small), Some(Action::First));
    }

    #[test]
    fn editing_keys_of_the_prompt_are_left_to_it() {
        for letter in ['u', 'w', 'a', 'e', 'k'] {
            let key = key(KeyCode::Char(letter), CONTROL);
            assert_eq!(Mode::Prompt.action(Page::Overview, &key), None);
        }
    }
}
