//! The keys: one table for each mode, read by the update and by the help alike.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// What has the keyboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The prompt line.
    Prompt,
    /// The list of requests.
    Requests,
    /// The help overlay.
    Help,
    /// A question that wants a yes or a no.
    Confirm,
    /// The list of levels.
    Levels,
}

/// What a key does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// End the dashboard.
    Quit,
    /// Stop the process until it is continued.
    Suspend,
    /// Send the prompt.
    Send,
    /// Move between prompt and requests.
    SwitchFocus,
    /// Close, leave or cancel, whichever is innermost.
    Escape,
    /// Show the keys.
    Help,
    /// Show the keys, or write the character where there is text already.
    HelpIfEmpty,
    /// Close the help.
    CloseHelp,
    /// Select what is above, or scroll the help.
    SelectPrevious,
    /// Select what is below, or scroll the help.
    SelectNext,
    /// Show the levels.
    OpenLevels,
    /// Put the selected level in force.
    ApplyLevel,
    /// Close the levels.
    CloseLevels,
    /// Recall the prompt before.
    RecallPrevious,
    /// Recall the prompt after.
    RecallNext,
    /// Ask whether to cancel the selected request.
    AskCancel,
    /// Answer a question with yes.
    Yes,
    /// Answer a question with no.
    No,
    /// Scroll the canvas towards its start.
    ScrollUp,
    /// Scroll the canvas towards its end.
    ScrollDown,
}

/// One line of a table.
#[derive(Debug)]
pub struct Binding {
    /// Keys, any of which does it.
    pub keys: &'static [(KeyCode, KeyModifiers)],
    /// The keys as people call them.
    pub label: &'static str,
    /// What it does, in a few words.
    pub help: &'static str,
    /// What it does, for the code.
    pub action: Action,
}

const NONE: KeyModifiers = KeyModifiers::NONE;
const CONTROL: KeyModifiers = KeyModifiers::CONTROL;

macro_rules! binding {
    ([$($code:expr, $modifiers:expr);+], $label:literal, $help:literal, $action:ident) => {
        Binding {
            keys: &[$(($code, $modifiers)),+],
            label: $label,
            help: $help,
            action: Action::$action,
        }
    };
}

/// Keys that do the same in every mode.
pub const ANYWHERE: &[Binding] = &[
    binding!([KeyCode::Char('c'), CONTROL], "Ctrl-C", "quit", Quit),
    binding!([KeyCode::Char('z'), CONTROL], "Ctrl-Z", "suspend", Suspend),
    binding!(
        [KeyCode::PageUp, NONE],
        "PgUp",
        "scroll the canvas up",
        ScrollUp
    ),
    binding!(
        [KeyCode::PageDown, NONE],
        "PgDn",
        "scroll it down",
        ScrollDown
    ),
];

/// Keys of the prompt line; every other key writes or moves in it.
pub const PROMPT: &[Binding] = &[
    binding!([KeyCode::Enter, NONE], "Enter", "send the prompt", Send),
    binding!([KeyCode::Tab, NONE; KeyCode::BackTab, KeyModifiers::SHIFT], "Tab", "go to the requests", SwitchFocus),
    binding!(
        [KeyCode::Up, NONE],
        "Up",
        "recall an earlier prompt",
        RecallPrevious
    ),
    binding!(
        [KeyCode::Down, NONE],
        "Down",
        "recall a later prompt",
        RecallNext
    ),
    binding!(
        [KeyCode::Esc, NONE],
        "Esc",
        "leave, or twice: cancel own",
        Escape
    ),
    binding!([KeyCode::F(1), NONE], "F1", "help", Help),
    binding!([KeyCode::F(2), NONE], "F2", "levels", OpenLevels),
    binding!(
        [KeyCode::Char('?'), NONE],
        "?",
        "help, while the prompt is empty",
        HelpIfEmpty
    ),
];

/// Keys of the request list.
pub const REQUESTS: &[Binding] = &[
    binding!([KeyCode::Char('?'), NONE; KeyCode::F(1), NONE; KeyCode::Char('h'), NONE], "?", "help", Help),
    binding!([KeyCode::Char('q'), NONE], "q", "quit", Quit),
    binding!([KeyCode::Tab, NONE; KeyCode::BackTab, KeyModifiers::SHIFT; KeyCode::Enter, NONE; KeyCode::Char('i'), NONE], "Tab", "go to the prompt", SwitchFocus),
    binding!([KeyCode::Up, NONE; KeyCode::Char('k'), NONE], "Up, k", "select the request above", SelectPrevious),
    binding!([KeyCode::Down, NONE; KeyCode::Char('j'), NONE], "Down, j", "select the one below", SelectNext),
    binding!(
        [KeyCode::Char('x'), NONE],
        "x",
        "cancel the selected, asks first",
        AskCancel
    ),
    binding!([KeyCode::Char('l'), NONE; KeyCode::F(2), NONE], "l", "choose a level", OpenLevels),
    binding!(
        [KeyCode::Char('u'), CONTROL],
        "Ctrl-U",
        "scroll the canvas up",
        ScrollUp
    ),
    binding!(
        [KeyCode::Char('d'), CONTROL],
        "Ctrl-D",
        "scroll it down",
        ScrollDown
    ),
    binding!([KeyCode::Esc, NONE], "Esc", "twice: cancel own", Escape),
];

/// Keys of the help overlay.
pub const HELP: &[Binding] = &[
    binding!(
        [KeyCode::Esc, NONE; KeyCode::Char('?'), NONE; KeyCode::Char('q'), NONE; KeyCode::F(1), NONE; KeyCode::Enter, NONE],
        "Esc, ?",
        "close the help",
        CloseHelp
    ),
    binding!([KeyCode::Up, NONE; KeyCode::Char('k'), NONE], "Up, k", "scroll up", SelectPrevious),
    binding!([KeyCode::Down, NONE; KeyCode::Char('j'), NONE], "Down, j", "scroll down", SelectNext),
];

/// Keys of a question.
pub const CONFIRM: &[Binding] = &[
    binding!([KeyCode::Char('y'), NONE], "y", "yes", Yes),
    binding!([KeyCode::Char('n'), NONE; KeyCode::Esc, NONE], "n, Esc", "no", No),
];

/// Keys of the list of levels.
pub const LEVELS: &[Binding] = &[
    binding!([KeyCode::Esc, NONE; KeyCode::Char('L'), NONE; KeyCode::Char('q'), NONE; KeyCode::F(2), NONE], "Esc, L", "close the levels", CloseLevels),
    binding!(
        [KeyCode::Enter, NONE],
        "Enter",
        "put it in force",
        ApplyLevel
    ),
    binding!([KeyCode::Up, NONE; KeyCode::Char('k'), NONE], "Up, k", "select the one above", SelectPrevious),
    binding!([KeyCode::Down, NONE; KeyCode::Char('j'), NONE], "Down, j", "select the one below", SelectNext),
    binding!([KeyCode::Char('?'), NONE; KeyCode::F(1), NONE], "?", "help", Help),
];

/// Every table with its heading, as the help shows them.
pub const TABLES: &[(&str, &[Binding])] = &[
    ("In the prompt", PROMPT),
    ("In the requests", REQUESTS),
    ("In the levels", LEVELS),
    ("In a question", CONFIRM),
    ("In this help", HELP),
    ("Anywhere", ANYWHERE),
];

impl Mode {
    /// The table of this mode.
    #[must_use]
    pub fn bindings(self) -> &'static [Binding] {
        match self {
            Self::Prompt => PROMPT,
            Self::Requests => REQUESTS,
            Self::Help => HELP,
            Self::Confirm => CONFIRM,
            Self::Levels => LEVELS,
        }
    }

    /// What a key does in this mode; `None` where the tables don't name it.
    #[must_use]
    pub fn action(self, key: &KeyEvent) -> Option<Action> {
        let matches = |binding: &&Binding| {
            binding.keys.iter().any(|(code, modifiers)| {
                // Terminals differ on whether SHIFT comes with '?' or a capital letter.
                let pressed = match code {
                    KeyCode::Char(_) => key.modifiers - KeyModifiers::SHIFT,
                    _ => key.modifiers,
                };
                *code == key.code && *modifiers == pressed
            })
        };
        let mut all = self.bindings().iter().chain(ANYWHERE);
        all.find(matches).map(|binding| binding.action)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODES: [Mode; 5] = [
        Mode::Prompt,
        Mode::Requests,
        Mode::Help,
        Mode::Confirm,
        Mode::Levels,
    ];

    fn key(code: KeyCode, modifiers: KeyModifiers) -> KeyEvent {
        KeyEvent::new(code, modifiers)
    }

    #[test]
    fn no_table_binds_a_key_twice() {
        for mode in MODES {
            let all = mode.bindings().iter().chain(ANYWHERE);
            let keys: Vec<_> = all.flat_map(|binding| binding.keys).collect();
            for (index, a) in keys.iter().enumerate() {
                assert!(!keys[index + 1..].contains(a), "{mode:?} binds {a:?} twice");
            }
        }
    }

    #[test]
    fn control_c_quits_everywhere_and_q_only_outside_the_prompt() {
        for mode in MODES {
            let action = mode.action(&key(KeyCode::Char('c'), CONTROL));
            assert_eq!(action, Some(Action::Quit));
        }
        let q = key(KeyCode::Char('q'), NONE);
        assert_eq!(Mode::Requests.action(&q), Some(Action::Quit));
        assert_eq!(Mode::Prompt.action(&q), None);
        assert_eq!(Mode::Confirm.action(&q), None);
    }

    #[test]
    fn a_question_mark_with_shift_is_a_question_mark() {
        let shifted = key(KeyCode::Char('?'), KeyModifiers::SHIFT);
        assert_eq!(Mode::Requests.action(&shifted), Some(Action::Help));
    }

    #[test]
    fn a_capital_letter_is_told_from_a_small_one() {
        let capital = key(KeyCode::Char('L'), KeyModifiers::SHIFT);
        assert_eq!(Mode::Levels.action(&capital), Some(Action::CloseLevels));
        assert_eq!(Mode::Requests.action(&capital), None);
        let small = key(KeyCode::Char('l'), NONE);
        assert_eq!(Mode::Requests.action(&small), Some(Action::OpenLevels));
        assert_eq!(Mode::Prompt.action(&small), None);
    }

    #[test]
    fn editing_keys_of_the_prompt_are_left_to_it() {
        assert_eq!(Mode::Prompt.action(&key(KeyCode::Char('u'), CONTROL)), None);
        let scroll = Mode::Requests.action(&key(KeyCode::Char('u'), CONTROL));
        assert_eq!(scroll, Some(Action::ScrollUp));
    }
}
