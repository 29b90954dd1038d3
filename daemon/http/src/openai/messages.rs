//! The messages of a conversation.

use sluice_proto::{model::TOOLS_MAX, v1};

use crate::{
    failure::Failure,
    fields::fields,
    limits::TEXTS_MAX,
    tools,
    values::{Few, TextOrList},
};

fields! {
    /// A message of a conversation.
    pub(crate) struct Message {
        honoured role: String = "`system`, `developer` (the same), `user`, `assistant`, `tool`",
        honoured content: TextOrList<Part, TEXTS_MAX> = "a text, or a list of text parts, which are joined by line ends",
        honoured name: String = "as far as the model's chat template shows it",
        honoured tool_calls: Few<EarlierCall, TOOLS_MAX> = "the calls of an earlier answer",
        honoured tool_call_id: String = "which of them a message of a tool answers",
        refused "refusal" unless Empty, "models here have no refusals apart from their text",
        refused "annotations" unless Empty, "models here cite nothing",
        refused "audio" unless Null, "models here read and write text",
        refused "function_call" unless Null, "it is `tool_calls` since",
    }
}

fields! {
    /// A part of a message's content.
    pub(crate) struct Part {
        honoured type_: String = "`text`",
        honoured text: String = "the text",
        accepted "prompt_cache_breakpoint" = "prefixes are kept without",
        refused "image_url" unless Null, "models here read text",
        refused "input_audio" unless Null, "models here read text",
        refused "file" unless Null, "models here read text",
        refused "refusal" unless Empty, "models here have no refusals apart from their text",
    }
}

fields! {
    /// A call of an earlier answer.
    pub(crate) struct EarlierCall {
        honoured id: String = "which call it is",
        honoured type_: String = "`function`",
        honoured function: EarlierFunction = "what was called",
        accepted "index" = "a list has an order",
    }
}

fields! {
    /// What was called.
    pub(crate) struct EarlierFunction {
        honoured name: String = "the function",
        honoured arguments: String = "a JSON object",
    }
}

impl Message {
    /// The message as the daemon takes it.
    fn into_chat(self) -> Result<v1::ChatMessage, Failure> {
        let wrong = |problem: String| Err(Failure::field("messages", problem));
        let role = match self.role.as_deref() {
            Some("system" | "developer") => v1::ChatRole::System,
            Some("user") => v1::ChatRole::User,
            Some("assistant") => v1::ChatRole::Assistant,
            Some("tool") => v1::ChatRole::Tool,
            Some(other) => {
                return wrong(format!(
                    "`{other}` is no role; there are system, developer, user, assistant and tool"
                ));
            }
            None => return wrong("a message has no role".to_owned()),
        };
        let content = match self.content {
            None => String::new(),
            Some(TextOrList::Text(text)) => text,
            Some(TextOrList::List(parts)) => {
                let texts = parts.into_iter().map(Part::into_text);
                texts.collect::<Result<Vec<_>, _>>()?.join("\n")
            }
        };
        let calls = self.tool_calls.unwrap_or_default().0.into_iter();
        Ok(v1::ChatMessage {
            role: role.into(),
            content,
            tool_calls: calls
                .map(EarlierCall::into_call)
                .collect::<Result<_, _>>()?,
            tool_call_id: self.tool_call_id.unwrap_or_default(),
            name: self.name.unwrap_or_default(),
        })
    }
}

impl EarlierCall {
    fn into_call(self) -> Result<v1::ToolCall, Failure> {
        let function = self.function.unwrap_or_default();
        let arguments = function.arguments.unwrap_or_default();
        tools::earlier_call(self.id.unwrap_or_default(), function.name, arguments)
    }
}

impl Part {
    fn into_text(self) -> Result<String, Failure> {
        match self.type_.as_deref() {
            Some("text") => Ok(self.text.unwrap_or_default()),
            other => {
                let kind = other.unwrap_or("no type");
                let problem = format!("a part is of `{kind}`, and models here read `text`");
                Err(Failure::field("messages", problem))
            }
        }
    }
}

/// The messages as the daemon takes them.
pub(crate) fn messages(messages: Vec<Message>) -> Result<Vec<v1::ChatMessage>, Failure> {
    messages.into_iter().map(Message::into_chat).collect()
}
