//! The keys: what each does, by page and mode, from tables that the update and the help read alike.

mod tables;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use self::tables::{
    ANYWHERE, CANVAS, CHAT, COMMAND, CONFIRM, FIELD, FILTER, HELP, JOBS, LEVELS, MASK, MEMORY,
    OPTIONS, OVERVIEW, PAGES, PROMPT, RECALL,
};
pub use self::tables::{Binding, TABLES};

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
    /// Looking at what the daemon remembers.
    Recall,
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
            Self::Recall => RECALL,
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

    const MODES: [Mode; 10] = [
        Mode::Page,
        Mode::Prompt,
        Mode::Help,
        Mode::Confirm,
        Mode::Command,
        Mode::Filter,
        Mode::Options,
        Mode::Field,
        Mode::Mask,
        Mode::Recall,
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
            let action = mode.action(Page::Chat, &key(KeyCode::Char('c'), KeyModifiers::CONTROL));
            assert_eq!(action, Some(Action::Quit));
            let q = mode.action(Page::Chat, &key(KeyCode::Char('q'), KeyModifiers::NONE));
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
        let small = key(KeyCode::Char('g'), KeyModifiers::NONE);
        assert_eq!(Mode::Page.action(Page::Canvas, &small), Some(Action::First));
    }

    #[test]
    fn editing_keys_of_the_prompt_are_left_to_it() {
        for letter in ['u', 'w', 'a', 'e', 'k'] {
            let key = key(KeyCode::Char(letter), KeyModifiers::CONTROL);
            assert_eq!(Mode::Prompt.action(Page::Overview, &key), None);
        }
    }
}
