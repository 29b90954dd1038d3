//! A checked conversation as chat templates take it: functions and their calls as JSON.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use sluice_proto::{
    model::{Conversation, InvalidField, Role, TOOLS_MAX, Turn},
    v1,
};
use sluice_tokenizer::{Conversation as TemplateConversation, ConversationMessage};

/// The conversation for a template.
///
/// # Errors
/// When what is to be JSON is none, or the template has no place for functions and there are some.
pub(super) fn input(
    chat: &Conversation,
    takes_tools: bool,
) -> Result<TemplateConversation, InvalidField> {
    let field = match chat.tools {
        Some(_) => "chat.tools_json",
        None => "chat",
    };
    let speaks_of_tools = |turn: &Turn| turn.role == Role::Tool || !turn.tool_calls.is_empty();
    if !takes_tools && (chat.tools.is_some() || chat.turns.iter().any(speaks_of_tools)) {
        let problem = "the model's chat template has no place for functions; leave them out";
        return Err(invalid(field, problem.to_owned()));
    }
    if let Some(tools) = &chat.tools {
        check_tools(tools)?;
    }
    let messages = chat.turns.iter().map(|turn| {
        Ok(ConversationMessage {
            role: turn.role.name().to_owned(),
            content: turn.content.clone(),
            more: more(turn)?,
        })
    });
    Ok(TemplateConversation {
        messages: messages.collect::<Result<_, InvalidField>>()?,
        tools: chat.tools.clone(),
    })
}

fn invalid(field: &'static str, problem: String) -> InvalidField {
    InvalidField { field, problem }
}

/// A JSON object, of which nothing is kept.
type AnyObject = BTreeMap<String, IgnoredAny>;

/// What is handed on as it is has to be a list of objects.
fn check_tools(tools: &str) -> Result<(), InvalidField> {
    let wrong = |problem: String| invalid("chat.tools_json", problem);
    let read: Vec<AnyObject> = serde_json::from_str(tools)
        .map_err(|error| wrong(format!("is no JSON array of objects: {error}")))?;
    match read.len() {
        0..=TOOLS_MAX => Ok(()),
        more => Err(wrong(format!(
            "has {more} functions, more than {TOOLS_MAX}"
        ))),
    }
}

/// What a turn has beside role and content, as templates know it from Hugging Face's library.
fn more(turn: &Turn) -> Result<Option<String>, InvalidField> {
    let mut more = Map::new();
    for (key, text) in [("name", &turn.name), ("tool_call_id", &turn.tool_call_id)] {
        if !text.is_empty() {
            more.insert(key.to_owned(), Value::from(text.as_str()));
        }
    }
    if turn.tool_calls.is_empty() {
        return Ok((!more.is_empty()).then(|| Value::from(more).to_string()));
    }
    // Written by hand, so that the arguments stay in their order.
    let calls = turn.tool_calls.iter().map(call);
    let calls = calls.collect::<Result<Vec<_>, _>>()?.join(",");
    let others: String = more
        .into_iter()
        .map(|(key, text)| format!(",{}:{text}", Value::from(key)))
        .collect();
    Ok(Some(format!("{{\"tool_calls\":[{calls}]{others}}}")))
}

fn call(call: &v1::ToolCall) -> Result<String, InvalidField> {
    let arguments = call.arguments_json.trim();
    if let Err(error) = serde_json::from_str::<AnyObject>(arguments) {
        let name: String = call.name.chars().take(64).collect();
        let problem = format!("the arguments of a call of `{name}` are no JSON object: {error}");
        return Err(invalid("chat", problem));
    }
    let (id, name) = (json!(call.id), json!(call.name));
    Ok(format!(
        "{{\"type\":\"function\",\"id\":{id},\"function\":{{\"name\":{name},\"arguments\":{arguments}}}}}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(turns: Vec<Turn>, tools: Option<&str>) -> Conversation {
        Conversation {
            turns,
            tools: tools.map(str::to_owned),
        }
    }

    fn asking() -> Turn {
        Turn::new(Role::User, "What is the weather?".to_owned())
    }

    fn calling(arguments: &str) -> Turn {
        Turn {
            tool_calls: vec![v1::ToolCall {
                id: "a \"1\"".to_owned(),
                name: "weather".to_owned(),
                arguments_json: arguments.to_owned(),
            }],
            ..Turn::new(Role::Assistant, String::new())
        }
    }

    fn answering() -> Turn {
        Turn {
            tool_call_id: "a \"1\"".to_owned(),
            name: "weather".to_owned(),
            ..Turn::new(Role::Tool, "rain".to_owned())
        }
    }

    #[test]
    fn calls_and_answers_are_what_templates_know() {
        let turns = vec![asking(), calling(r#"{"place": "x", "at": 1}"#), answering()];
        let input = input(&chat(turns, Some("[{}]")), true).unwrap();
        let more: Vec<_> = (input.messages.iter())
            .map(|message| message.more.as_deref())
            .collect();
        assert_eq!(
            more,
            [
                None,
                Some(
                    r#"{"tool_calls":[{"type":"function","id":"a \"1\"","function":{"name":"weather","arguments":{"place": "x", "at": 1}}}]}"#
                ),
                Some(r#"{"name":"weather","tool_call_id":"a \"1\""}"#),
            ]
        );
        assert_eq!(input.tools.as_deref(), Some("[{}]"));
    }

    #[test]
    fn what_is_no_json_is_refused_and_so_are_functions_without_a_place() {
        let refused = |turns: Vec<Turn>, tools: Option<&str>, takes_tools| {
            let error = input(&chat(turns, tools), takes_tools).unwrap_err();
            (error.field, error.problem)
        };
        for tools in [
            "{}",
            "[1]",
            "[",
            "[{}] x",
            &format!("[{}{{}}]", "{},".repeat(128)),
        ] {
            assert_eq!(
                refused(vec![asking()], Some(tools), true).0,
                "chat.tools_json"
            );
        }
        for arguments in ["", "[]", "1", "{", "{}}"] {
            assert_eq!(
                refused(vec![asking(), calling(arguments)], None, true).0,
                "chat"
            );
        }
        let (field, problem) = refused(vec![asking()], Some("[{}]"), false);
        assert_eq!(field, "chat.tools_json");
        assert!(problem.contains("no place for functions"));
        assert_eq!(refused(vec![answering()], None, false).0, "chat");
        assert!(input(&chat(vec![asking()], None), false).is_ok());
    }
}
