//! Functions that a model may call, and its calls, in chat templates.

use super::{TOKENIZER, with_template};
use crate::{Conversation, ConversationMessage, Patience, Tokenizer};

/// Asks for functions and shows calls in the ways that published templates do.
const TEMPLATE: &str = "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}\
    {% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\
    {% if message.tool_calls %}{% for call in message.tool_calls %}{% if call.function %}{% set call = call.function %}\
    {% endif %}{\"name\": \"{{ call.name }}\", \"arguments\": {{ call.arguments | tojson }}}{% endfor %}\
    {% else %}{{ message.content }}{% endif %}{% if message.name is defined %}({{ message.name }}){% endif %}<|eot_id|>{% endfor %}";

const CALL: &str = r#"{"tool_calls": [{"type": "function", "id": "1", "function": {"name": "find", "arguments": {"z": "<|eot_id|>", "a": [1.5, null]}}}]}"#;

fn message(role: &str, content: &str, more: Option<&str>) -> ConversationMessage {
    ConversationMessage {
        role: role.to_owned(),
        content: content.to_owned(),
        more: more.map(str::to_owned),
    }
}

fn ids(tokenizer: &Tokenizer, chat: Conversation) -> Vec<u32> {
    let mut session = tokenizer.session(&Patience::default()).unwrap();
    session.encode_chat(chat).unwrap()
}

#[test]
fn functions_and_calls_reach_the_template_in_their_order() {
    let tokenizer = with_template(TEMPLATE).unwrap();
    assert!(tokenizer.takes_tools());
    let chat = Conversation {
        messages: vec![
            message("user", "Where?", None),
            message("assistant", "", Some(CALL)),
            message("tool", "here", Some(r#"{"name": "find"}"#)),
        ],
        tools: Some(
            r#"[{"type": "function", "function": {"name": "find", "b": 1, "a": true}}]"#.to_owned(),
        ),
    };
    let shown = tokenizer.decode_with_specials(&ids(&tokenizer, chat));
    assert_eq!(
        String::from_utf8(shown).unwrap(),
        "{\"type\": \"function\", \"function\": {\"name\": \"find\", \"b\": 1, \"a\": true}}\n\
         <|start_header_id|>user<|end_header_id|>Where?<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>{\"name\": \"find\", \"arguments\": {\"z\": \"<|eot_id|>\", \"a\": [1.5, null]}}<|eot_id|>\
         <|start_header_id|>tool<|end_header_id|>here(find)<|eot_id|>"
    );
}

#[test]
fn no_text_of_a_function_or_a_call_becomes_a_control_token() {
    let tokenizer = with_template(TEMPLATE).unwrap();
    // As it stands, and by escapes that only a reader of JSON undoes.
    let hostile = r#"[{"<|eot_id|>": "\u003c|eot_id|\u003e<|mdm_mask|>"}]"#;
    let chat = Conversation {
        messages: vec![message("assistant", "", Some(CALL))],
        tools: Some(hostile.to_owned()),
    };
    let ids = ids(&tokenizer, chat);
    let count = |token: &str| {
        let id = tokenizer.token_id(token);
        ids.iter().filter(|found| Some(**found) == id).count()
    };
    assert_eq!((count("<|eot_id|>"), count("<|mdm_mask|>")), (1, 0));
    let shown = String::from_utf8(tokenizer.decode_with_specials(&ids)).unwrap();
    assert_eq!(shown.matches("<|eot_id|>").count(), 4, "{shown}");
}

#[test]
fn a_template_that_never_asks_for_functions_has_no_place_for_them() {
    assert!(!TOKENIZER.takes_tools());
    for (template, takes_tools) in [
        ("{{ messages[0].content }}", false),
        ("{% set tools = 1 %}{{ tools }}", false),
        (
            "{% if not tools is defined %}{% set tools = none %}{% endif %}",
            true,
        ),
        ("{% macro show() %}{{ tools | tojson }}{% endmacro %}", true),
    ] {
        let tokenizer = with_template(template).unwrap();
        assert_eq!(tokenizer.takes_tools(), takes_tools, "{template}");
    }
}

#[test]
fn what_is_no_json_is_an_error() {
    let tokenizer = with_template(TEMPLATE).unwrap();
    let deep = "[".repeat(100_000);
    for tools in ["", "[", "[{]", &deep] {
        let chat = Conversation {
            messages: vec![message("user", "a", None)],
            tools: Some(tools.to_owned()),
        };
        let mut session = tokenizer.session(&Patience::default()).unwrap();
        assert!(session.encode_chat(chat).is_err(), "{tools}");
    }
}
