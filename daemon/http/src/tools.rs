//! Functions that a model may call: what a request says of them, and the calls in what the model writes.
//!
//! Models write calls as they were trained to, as text. The forms that are read here are those of Hermes and Qwen, an object between
//! `<tool_call>` and `</tool_call>`, and those of Llama 3 and Mistral, an answer that is nothing but an object or a list of objects.
//! The arguments are `arguments` or `parameters`. Text that only looks like a call stays text.

use serde::{Deserialize, Deserializer, de::Error};
use serde_json::value::RawValue;
use sluice_proto::{model::TOOLS_MAX, v1};

use crate::{failure::Failure, fields::fields, values::Few};

/// The functions of a request.
#[derive(Debug, Clone)]
pub(crate) struct Tools {
    /// As they came: their keys are in the order in which the template is to show them.
    json: String,
    names: Vec<String>,
}

fields! {
    /// A function that the model may call.
    struct Tool {
        honoured type_: String = "`function`",
        honoured function: Function = "The function.",
    }
}

fields! {
    /// What is said of a function.
    struct Function {
        honoured name: String = "Its name.",
        accepted "description" = "The template shows it.",
        accepted "parameters" = "The template shows them.",
        refused "strict" unless False, "arguments are what the model writes",
    }
}

impl<'de> Deserialize<'de> for Tools {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(from)?;
        let tools: Few<Tool, TOOLS_MAX> =
            serde_json::from_str(json.get()).map_err(D::Error::custom)?;
        let names = tools
            .0
            .into_iter()
            .map(|tool| match (tool.type_.as_deref(), tool.function) {
                (Some("function") | None, Some(Function { name: Some(name) })) => Ok(name),
                (Some("function") | None, _) => Err(D::Error::custom("a function has no name")),
                (Some(other), _) => {
                    let problem =
                        format!("a tool is of type `{other}`; models here call functions alone");
                    Err(D::Error::custom(problem))
                }
            });
        Ok(Self {
            names: names.collect::<Result<_, _>>()?,
            json: json.get().to_owned(),
        })
    }
}

impl Tools {
    /// What a conversation is to have of them, and how calls of them are read; `None` where there are none.
    pub(crate) fn into_parts(self) -> Option<(String, CallReader)> {
        let reader = CallReader {
            names: self.names,
            text: String::new(),
            shown: 0,
        };
        (!reader.names.is_empty()).then_some((self.json, reader))
    }
}

/// A call that the model wrote.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    pub(crate) name: String,
    /// A JSON object.
    pub(crate) arguments: String,
}

/// Tells calls from text, while it is written.
#[derive(Debug, Clone)]
pub(crate) struct CallReader {
    /// Functions that there are.
    names: Vec<String>,
    text: String,
    /// Bytes of it that were shown.
    shown: usize,
}

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// An object that is a call.
#[derive(Deserialize)]
struct WrittenCall<'a> {
    name: String,
    #[serde(borrow, default, alias = "parameters")]
    arguments: Option<&'a RawValue>,
}

impl WrittenCall<'_> {
    fn into_call(self) -> Option<Call> {
        let arguments = self.arguments.map_or("{}", RawValue::get);
        arguments.starts_with('{').then(|| Call {
            name: self.name,
            arguments: arguments.to_owned(),
        })
    }
}

impl CallReader {
    /// Adds text; what of it is no call, whatever follows.
    pub(crate) fn add(&mut self, text: &str) -> String {
        self.text.push_str(text);
        self.show(self.certain())
    }

    /// What is left to show, and the calls, when nothing follows.
    pub(crate) fn end(&mut self) -> (String, Vec<Call>) {
        let (end, calls) = match self.bare_calls() {
            Some(calls) => (self.shown, calls),
            None => self.marked_calls(),
        };
        // Nothing is lost of a text that is none of these.
        let rest = match calls.is_empty() {
            true => self.show(self.text.len()),
            false => self.show(end).trim_end().to_owned(),
        };
        (rest, calls)
    }

    fn show(&mut self, until: usize) -> String {
        let until = until.max(self.shown);
        let shown = self.text[self.shown..until].to_owned();
        self.shown = until;
        shown
    }

    /// How much of the text is certainly no call.
    fn certain(&self) -> usize {
        let begins_so = self.text.trim_start();
        // The whole answer may be a call. Spaces alone may be before one.
        if begins_so.is_empty() || begins_so.starts_with(['{', '[']) {
            return 0;
        }
        let marked = self.text.find(OPEN);
        let begun = || {
            let part = (1..OPEN.len())
                .rev()
                .find(|len| self.text.ends_with(&OPEN[..*len]));
            self.text.len() - part.unwrap_or(0)
        };
        marked.unwrap_or_else(begun)
    }

    /// The calls of an answer that is nothing else.
    fn bare_calls(&self) -> Option<Vec<Call>> {
        let text = self.text.trim();
        let written: Vec<WrittenCall<'_>> = match text.starts_with('[') {
            true => serde_json::from_str(text).ok()?,
            false => {
                let mut calls = Vec::new();
                let mut rest = text;
                while !rest.is_empty() {
                    let mut objects = serde_json::Deserializer::from_str(rest).into_iter();
                    calls.push(objects.next()?.ok()?);
                    // Llama 3 puts a semicolon between several.
                    rest = rest[objects.byte_offset()..].trim_start_matches([';', ' ', '\n']);
                }
                calls
            }
        };
        // An answer in JSON is no call for having a name in it.
        let is_known = |call: &Call| self.names.contains(&call.name);
        let calls = written.into_iter().map(WrittenCall::into_call);
        let calls = calls.collect::<Option<Vec<_>>>()?;
        (!calls.is_empty() && calls.iter().all(is_known)).then_some(calls)
    }

    /// Where the first call begins, and the calls that are marked as such; none where one of them can't be read.
    fn marked_calls(&self) -> (usize, Vec<Call>) {
        let Some(first) = self.text.find(OPEN) else {
            return (self.text.len(), Vec::new());
        };
        let parts = self.text[first..].split(OPEN).skip(1);
        let calls = parts.map(|part| {
            // The last one may be cut short of its end.
            let inner = part.split(CLOSE).next().unwrap_or(part);
            let call: WrittenCall<'_> = serde_json::from_str(inner.trim()).ok()?;
            call.into_call()
        });
        (first, calls.collect::<Option<_>>().unwrap_or_default())
    }
}

/// A call as OpenAI's requests tell it of earlier answers.
pub(crate) fn earlier_call(
    id: String,
    name: Option<String>,
    arguments: String,
) -> Result<v1::ToolCall, Failure> {
    let name = name.ok_or_else(|| Failure::field("messages", "a tool call has no name"))?;
    // Some models write nothing where there are no arguments.
    let arguments_json = match arguments.trim() {
        "" => "{}".to_owned(),
        _ => arguments,
    };
    Ok(v1::ToolCall {
        id,
        name,
        arguments_json,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader() -> CallReader {
        let json = r#"[{"type": "function", "function": {"name": "find", "parameters": {"z": 1, "a": 2}}}]"#;
        let tools: Tools = serde_json::from_str(json).unwrap();
        let (kept, reader) = tools.into_parts().unwrap();
        assert_eq!(kept, json);
        reader
    }

    fn call(arguments: &str) -> Call {
        Call {
            name: "find".to_owned(),
            arguments: arguments.to_owned(),
        }
    }

    /// What is shown of a text, piece by piece, and its calls; the same however it is cut.
    fn read(text: &str) -> (String, Vec<Call>) {
        let mut results = Vec::new();
        for size in [1, 3, text.len().max(1)] {
            let mut reader = reader();
            let mut shown = String::new();
            let mut piece = String::new();
            for char in text.chars() {
                piece.push(char);
                if piece.len() >= size {
                    shown += &reader.add(&std::mem::take(&mut piece));
                }
            }
            shown += &reader.add(&piece);
            let (rest, calls) = reader.end();
            results.push((shown + &rest, calls));
        }
        assert!(
            results.windows(2).all(|two| two[0] == two[1]),
            "{results:?}"
        );
        results.swap_remove(0)
    }

    #[test]
    fn calls_are_read_in_the_forms_that_models_were_trained_on() {
        let hermes = "<tool_call>\n{\"name\": \"find\", \"arguments\": {\"z\": \"}\", \"a\": 1}}\n</tool_call>";
        assert_eq!(
            read(hermes),
            (String::new(), vec![call(r#"{"z": "}", "a": 1}"#)])
        );
        let (shown, calls) = read(&format!("Let me see. é\n{hermes}\n{hermes}"));
        assert_eq!(shown.trim_end(), "Let me see. é");
        assert_eq!(calls.len(), 2);
        // Cut short of its end mark, as where that is a stop.
        let cut = r#"<tool_call>{"name": "find", "arguments": {}}"#;
        assert_eq!(read(cut), (String::new(), vec![call("{}")]));
        for llama in [
            r#"{"name": "find", "parameters": {"a": 1}}"#,
            "\n {\"name\": \"find\", \"parameters\": {\"a\": 1}} ",
            r#"[{"name": "find", "arguments": {"a": 1}}]"#,
            r#"{"type": "function", "name": "find", "parameters": {"a": 1}}"#,
        ] {
            assert_eq!(read(llama).1, [call(r#"{"a": 1}"#)], "{llama}");
        }
        let two = r#"{"name": "find", "parameters": {}}; {"name": "find", "parameters": {"a": 1}}"#;
        assert_eq!(read(two).1.len(), 2);
    }

    #[test]
    fn what_only_looks_like_a_call_is_shown_whole() {
        for text in [
            "",
            "  ",
            "Nothing to call. <tool_ca",
            "a < b <tool_call",
            "<tool_call>not JSON</tool_call>",
            r#"Well <tool_call>{"name": "find"}</tool_call> and <tool_call>{"name": 1}</tool_call>"#,
            r#"{"name": "unknown", "parameters": {}}"#,
            r#"{"answer": 42}"#,
            "[1, 2, 3]",
            "[]",
            "{",
            r#"{"name": "find", "parameters": [1]}"#,
            r#"{"name": "find", "parameters": {}} and more"#,
        ] {
            assert_eq!(read(text), (text.to_owned(), Vec::new()), "{text}");
        }
    }

    #[test]
    fn text_before_a_call_is_not_held_back() {
        let mut reader = reader();
        assert_eq!(reader.add("Let me see <"), "Let me see ");
        assert_eq!(reader.add("b> <tool"), "<b> ");
        assert_eq!(reader.add("_call>{"), "");
    }

    #[test]
    fn tools_that_are_no_functions_are_refused() {
        for json in [
            r#"[{"type": "custom", "custom": {"name": "find"}}]"#,
            r#"[{"type": "function"}]"#,
            r#"[{"type": "function", "function": {"name": "find", "strict": true}}]"#,
            "{}",
            "[1]",
        ] {
            assert!(serde_json::from_str::<Tools>(json).is_err(), "{json}");
        }
        let none: Tools = serde_json::from_str("[]").unwrap();
        assert!(none.into_parts().is_none());
    }
}
