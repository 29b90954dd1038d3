//! Functions that a model may call: what a request says of them.

use serde::{Deserialize, Deserializer, de::Error};
use serde_json::value::RawValue;
use sluice_proto::{model::TOOLS_MAX, v1};

use crate::{calls::CallReader, failure::Failure, fields::fields, values::Few};

/// The functions of a request.
#[derive(Debug, Clone)]
pub(crate) struct Tools {
    /// As they came: their keys are in the order in which the template is to show them.
    json: String,
    names: Vec<String>,
}

fields! {
    /// A function that the model may call.
    pub(crate) struct Tool {
        honoured type_: String = "`function`",
        honoured function: Function = "the function",
    }
}

fields! {
    /// What is said of a function.
    pub(crate) struct Function {
        honoured name: String = "what calls name",
        accepted "description" = "nothing here reads it; the template shows it",
        accepted "parameters" = "nothing here reads them; the template shows them",
        accepted "strict" = "arguments are what the model writes, and nothing makes it keep to a schema",
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
        (!self.names.is_empty()).then(|| (self.json, CallReader::new(self.names)))
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

    #[test]
    fn functions_are_handed_on_as_they_came() {
        let json = r#"[{"type": "function", "function": {"name": "find", "strict": true, "parameters": {"z": 1, "a": 2}}}]"#;
        let tools: Tools = serde_json::from_str(json).unwrap();
        let (kept, _) = tools.into_parts().unwrap();
        assert_eq!(kept, json);
    }

    #[test]
    fn tools_that_are_no_functions_are_refused() {
        for json in [
            r#"[{"type": "custom", "custom": {"name": "find"}}]"#,
            r#"[{"type": "function"}]"#,
            "{}",
            "[1]",
        ] {
            assert!(serde_json::from_str::<Tools>(json).is_err(), "{json}");
        }
        let none: Tools = serde_json::from_str("[]").unwrap();
        assert!(none.into_parts().is_none());
    }
}
