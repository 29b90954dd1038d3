//! The turns of a conversation.

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
};

use serde_json::json;
use sluice_proto::v1::{ChatMessage, ChatRole};

use super::super::message;
use crate::user_folders;

/// Prompts and answers alternately, and the system prompt. A prompt without an answer would confuse the model in every later
/// turn, so it is not kept.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    system: Option<String>,
    turns: Vec<ChatMessage>,
    /// The last prompt, if it got no answer.
    unanswered: Option<String>,
}

/// A prompt that was sent and has no answer yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PendingPrompt {
    words: String,
    /// Number of turns before it; later turns are dropped once it is answered.
    turns: usize,
}

impl Conversation {
    pub(super) fn new(system: Option<String>) -> Self {
        Self {
            system,
            ..Self::default()
        }
    }

    pub(super) fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    pub(super) fn set_system(&mut self, text: Option<String>) {
        self.system = text;
    }

    /// A prompt that follows all turns.
    pub(super) fn ask(&self, words: String) -> PendingPrompt {
        let turns = self.turns.len();
        PendingPrompt { words, turns }
    }

    /// The last prompt again; its new answer replaces the old one.
    pub(super) fn retry(&self) -> Option<PendingPrompt> {
        if let Some(words) = &self.unanswered {
            return Some(self.ask(words.clone()));
        }
        let turns = self.turns.len().checked_sub(2)?;
        let words = self.turns[turns].content.clone();
        Some(PendingPrompt { words, turns })
    }

    /// The messages to send: system prompt, earlier turns, and the prompt.
    pub(super) fn messages(&self, asked: &PendingPrompt) -> Vec<ChatMessage> {
        let system = self
            .system
            .as_deref()
            .map(|text| message(ChatRole::System, text));
        let turns = self.turns.iter().take(asked.turns).cloned();
        let own = message(ChatRole::User, &asked.words);
        system.into_iter().chain(turns).chain([own]).collect()
    }

    pub(super) fn answered(&mut self, asked: PendingPrompt, text: &str) {
        self.turns.truncate(asked.turns);
        self.turns.push(message(ChatRole::User, &asked.words));
        self.turns.push(message(ChatRole::Assistant, text));
        self.unanswered = None;
    }

    /// Takes a prompt that got no answer. Returns whether it has an earlier answer, which stays.
    pub(super) fn give_up(&mut self, asked: PendingPrompt) -> bool {
        let has_answer = asked.turns < self.turns.len();
        if !has_answer {
            self.unanswered = Some(asked.words);
        }
        has_answer
    }

    /// Drops all turns; the system prompt stays.
    pub(super) fn reset(&mut self) {
        self.turns.clear();
        self.unanswered = None;
    }

    /// Writes the turns to a new file. Returns its path.
    pub(super) fn save(&self, file: &str) -> Result<PathBuf, String> {
        let path = expand_home(file);
        let failed = |error| format!("cannot write {}: {error}", path.display());
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(failed)?;
        let written = file.write_all(self.text(&path).as_bytes());
        written.map_err(failed)?;
        Ok(path)
    }

    /// The first prompt, and prompts and answers as a text; `None` while there are none.
    pub(super) fn remembered(&self) -> Option<(&str, String)> {
        let first = self.turns.first()?;
        Some((&first.content, markdown(self.turns.iter())))
    }

    fn text(&self, path: &Path) -> String {
        let system = self
            .system
            .as_deref()
            .map(|text| message(ChatRole::System, text));
        let all = system.iter().chain(&self.turns);
        if path.extension().is_some_and(|ending| ending == "json") {
            let turns =
                all.map(|turn| json!({"role": turn.role().to_string(), "content": turn.content}));
            let turns: Vec<_> = turns.collect();
            return format!("{:#}\n", json!(turns));
        }
        markdown(all)
    }
}

fn markdown<'a>(turns: impl Iterator<Item = &'a ChatMessage>) -> String {
    let parts = turns.map(|turn| format!("## {}\n\n{}\n", turn.role(), turn.content));
    parts.collect::<Vec<_>>().join("\n")
}

/// The path with a leading `~` expanded: it was typed in the conversation, where no shell expands it.
fn expand_home(file: &str) -> PathBuf {
    match (file.strip_prefix("~/"), user_folders::home()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(messages: &[ChatMessage]) -> Vec<(ChatRole, &str)> {
        let turns = messages.iter();
        turns.map(|turn| (turn.role(), &*turn.content)).collect()
    }

    #[test]
    fn a_reset_keeps_the_instructions() {
        let mut conversation = Conversation::new(Some("be brief".into()));
        conversation.answered(conversation.ask("hi".into()), "hello");
        conversation.reset();
        assert_eq!(conversation.retry(), None);
        let asked = conversation.messages(&conversation.ask("again".into()));
        assert_eq!(
            roles(&asked),
            [(ChatRole::System, "be brief"), (ChatRole::User, "again")]
        );
    }

    #[test]
    fn a_retry_takes_the_place_of_the_answer_and_of_none_but_that() {
        let mut conversation = Conversation::default();
        assert_eq!(conversation.retry(), None);
        conversation.answered(conversation.ask("same".into()), "1");
        conversation.answered(conversation.ask("same".into()), "2");
        let expected = [
            (ChatRole::User, "same"),
            (ChatRole::Assistant, "1"),
            (ChatRole::User, "same"),
        ];
        let again = conversation.retry().unwrap();
        assert_eq!(roles(&conversation.messages(&again)), expected);
        // One that comes to nothing leaves the answer that there is.
        assert!(conversation.give_up(again));
        assert_eq!(conversation.turns.last().unwrap().content, "2");
        let again = conversation.retry().unwrap();
        conversation.answered(again, "3");
        assert_eq!(conversation.turns.len(), 4);
        assert_eq!(conversation.turns.last().unwrap().content, "3");
        // A prompt without an answer takes the place of none, whatever its words.
        let asked = conversation.ask("same".into());
        assert!(!conversation.give_up(asked));
        let again = conversation.retry().unwrap();
        assert_eq!(conversation.messages(&again).len(), 5);
        conversation.answered(again, "4");
        assert_eq!(conversation.turns.len(), 6);
    }

    #[test]
    fn a_conversation_is_saved_but_never_over_another_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut conversation = Conversation::new(Some("be brief".into()));
        conversation.answered(conversation.ask("hi".into()), "hello");
        let file = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        conversation.save(&file("a.md")).unwrap();
        let text = std::fs::read_to_string(file("a.md")).unwrap();
        assert_eq!(
            text,
            "## system\n\nbe brief\n\n## user\n\nhi\n\n## assistant\n\nhello\n"
        );
        conversation.save(&file("a.json")).unwrap();
        let text = std::fs::read_to_string(file("a.json")).unwrap();
        let turns: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(turns[2]["role"], "assistant");
        let problem = conversation.save(&file("a.md")).unwrap_err();
        assert!(
            problem.contains("a.md") && problem.contains("exists"),
            "{problem}"
        );
    }
}
