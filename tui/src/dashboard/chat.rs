//! Conversations, of which one is open.

use sluice_proto::v1::{self, GenerateRequest, Message, generate_request::Input};

/// Conversations kept.
pub const CONVERSATIONS_MAX: usize = 32;

/// Conversations, of which one is open.
#[derive(Debug)]
pub struct Chat {
    /// At least one.
    pub conversations: Vec<Conversation>,
    /// Index of the open one.
    pub open: usize,
}

/// Turns of a user and the model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// As they are sent.
    pub messages: Vec<Message>,
}

impl Default for Chat {
    fn default() -> Self {
        Self {
            conversations: vec![Conversation::default()],
            open: 0,
        }
    }
}

impl Chat {
    /// The open conversation.
    #[must_use]
    pub fn conversation(&self) -> &Conversation {
        &self.conversations[self.open]
    }

    /// Opens a new conversation, unless the open one is still empty.
    pub(super) fn begin(&mut self) {
        if self.conversation().messages.is_empty() {
            return;
        }
        self.conversations.push(Conversation::default());
        let excess = self.conversations.len().saturating_sub(CONVERSATIONS_MAX);
        self.conversations.drain(..excess);
        self.open = self.conversations.len() - 1;
    }

    /// What is sent to continue the open conversation with a prompt.
    #[must_use]
    pub fn request(&self, prompt: &str) -> GenerateRequest {
        let mut messages = self.conversation().messages.clone();
        messages.push(Message {
            role: "user".into(),
            content: prompt.to_owned(),
        });
        GenerateRequest {
            input: Some(Input::Chat(v1::Chat { messages })),
            ..Default::default()
        }
    }
}
