//! A conversation as a chat template takes it.

use minijinja::value::{Value, ValueKind};

/// Messages, and the functions that the model may call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// The messages, in their order.
    pub messages: Vec<ConversationMessage>,
    /// A JSON array that templates know as `tools`; `None`: none.
    pub tools: Option<String>,
}

/// A message of a conversation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConversationMessage {
    /// As templates know it, such as `user`.
    pub role: String,
    /// What is said.
    pub content: String,
    /// A JSON object with what the message has besides, such as `tool_calls`; `None`: nothing.
    pub more: Option<String>,
}

impl Conversation {
    /// (role, content) turns, without functions.
    #[must_use]
    pub fn of(turns: &[(&str, &str)]) -> Self {
        let messages = turns.iter().map(|&(role, content)| ConversationMessage {
            role: role.to_owned(),
            content: content.to_owned(),
            more: None,
        });
        Self {
            messages: messages.collect(),
            tools: None,
        }
    }
}

/// A conversation as values of the template's language, whose texts may be changed before it is rendered.
#[derive(Debug)]
pub(super) struct TemplateInput {
    pub(super) messages: Vec<Value>,
    /// `none` where there are none.
    pub(super) tools: Value,
}

impl TemplateInput {
    /// The values; an error where what is to be JSON isn't.
    pub(super) fn of(conversation: &Conversation) -> Result<Self, serde_json::Error> {
        let messages = conversation.messages.iter().map(|message| {
            let texts = [("role", &message.role), ("content", &message.content)];
            let mut entries: Vec<_> = texts
                .map(|(key, text)| (Value::from(key), Value::from(text.as_str())))
                .into();
            if let Some(more) = &message.more {
                entries.extend(entries_of(&serde_json::from_str(more)?));
            }
            Ok(Value::from_pairs(entries))
        });
        let tools = conversation.tools.as_deref();
        Ok(Self {
            messages: messages.collect::<Result<_, serde_json::Error>>()?,
            tools: tools.map_or(Ok(Value::from(())), serde_json::from_str)?,
        })
    }

    /// Whether one of the texts has this character.
    pub(super) fn has_char(&self, wanted: char) -> bool {
        let mut values = self.messages.iter().chain([&self.tools]);
        values.any(|value| has_char(value, wanted))
    }

    /// The same with each text changed.
    pub(super) fn with_texts(&self, change: &dyn Fn(&str) -> String) -> Self {
        let messages = self.messages.iter();
        Self {
            messages: messages.map(|value| with_texts(value, change)).collect(),
            tools: with_texts(&self.tools, change),
        }
    }
}

// How deep these go is bounded by the reader of JSON.

fn has_char(value: &Value, wanted: char) -> bool {
    match (value.as_str(), value.kind()) {
        (Some(text), _) => text.contains(wanted),
        (None, ValueKind::Map) => (entries_of(value).iter())
            .any(|(key, value)| has_char(key, wanted) || has_char(value, wanted)),
        (None, ValueKind::Seq) => elements_of(value).any(|value| has_char(&value, wanted)),
        (None, _) => false,
    }
}

fn with_texts(value: &Value, change: &dyn Fn(&str) -> String) -> Value {
    match (value.as_str(), value.kind()) {
        (Some(text), _) => Value::from(change(text)),
        (None, ValueKind::Map) => {
            let entries = entries_of(value).into_iter();
            let changed =
                entries.map(|(key, value)| (with_texts(&key, change), with_texts(&value, change)));
            Value::from_pairs(changed)
        }
        (None, ValueKind::Seq) => elements_of(value)
            .map(|value| with_texts(&value, change))
            .collect(),
        (None, _) => value.clone(),
    }
}

/// The entries of a map; none of another value.
fn entries_of(value: &Value) -> Vec<(Value, Value)> {
    let entry = |key: Value| value.get_item(&key).ok().map(|value| (key, value));
    match value.kind() {
        ValueKind::Map => elements_of(value).filter_map(entry).collect(),
        _ => Vec::new(),
    }
}

/// The elements of a list, or the keys of a map.
fn elements_of(value: &Value) -> impl Iterator<Item = Value> {
    value.try_iter().into_iter().flatten()
}
