//! The form that an answer is to have: a JSON schema, or an expression.

use serde::{Deserialize, Deserializer, de::Error};
use serde_json::value::RawValue;
use sluice_proto::v1::{self, grammar::Kind};

use crate::{extension::Extension, failure::Failure, fields::fields};

/// What any JSON object matches.
const ANY_OBJECT: &str = r#"{"type":"object"}"#;

fields! {
    /// OpenAI's `response_format`.
    pub(crate) struct ResponseFormat {
        honoured type_: String = "`text`, `json_object`, `json_schema`",
        honoured json_schema: NamedSchema = "the schema",
    }
}

fields! {
    /// A schema of `response_format`.
    pub(crate) struct NamedSchema {
        honoured schema: Box<RawValue> = "what the answer matches",
        accepted "name" = "nobody else calls it so",
        accepted "description" = "say it in the conversation",
        accepted "strict" = "an answer matches its schema in any case",
    }
}

impl ResponseFormat {
    /// The grammar that it comes to; `None` for text.
    ///
    /// # Errors
    /// When it is no form that there is.
    pub(crate) fn into_grammar(self) -> Result<Option<v1::Grammar>, Failure> {
        let wrong = |problem: &str| Err(Failure::field("response_format", problem));
        let schema = self.json_schema.and_then(|named| named.schema);
        match (self.type_.as_deref(), schema) {
            (Some("text"), None) => Ok(None),
            (Some("json_object"), None) => Ok(Some(json_schema(ANY_OBJECT))),
            (Some("json_schema"), Some(schema)) => Ok(Some(json_schema(schema.get()))),
            (Some("json_schema"), None) => wrong("json_schema has no schema"),
            (Some("text" | "json_object"), Some(_)) => {
                wrong("a schema goes with the type json_schema")
            }
            _ => wrong("there are the types text, json_object and json_schema"),
        }
    }
}

/// Ollama's `format`: `json`, or a schema.
#[derive(Debug)]
pub(crate) struct Format(Option<v1::Grammar>);

impl<'de> Deserialize<'de> for Format {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(from)?;
        match json.get() {
            r#""""# => Ok(Self(None)),
            r#""json""# => Ok(Self(Some(json_schema(ANY_OBJECT)))),
            schema if schema.starts_with('{') => Ok(Self(Some(json_schema(schema)))),
            _ => Err(D::Error::custom("is neither \"json\" nor a schema")),
        }
    }
}

impl Format {
    /// The grammar that it comes to; `None` for text.
    pub(crate) fn into_grammar(self) -> Option<v1::Grammar> {
        self.0
    }
}

fn json_schema(schema: &str) -> v1::Grammar {
    let kind = Some(Kind::JsonSchema(schema.to_owned()));
    v1::Grammar { kind }
}

/// The one grammar of a request.
///
/// # Errors
/// When it names several.
pub(crate) fn grammar(
    format: Option<v1::Grammar>,
    sluice: Option<&Extension>,
) -> Result<Option<v1::Grammar>, Failure> {
    let own = |kind: Option<Kind>| kind.map(|kind| v1::Grammar { kind: Some(kind) });
    let regex = sluice.and_then(|sluice| sluice.regex.clone());
    let lark = sluice.and_then(|sluice| sluice.lark.clone());
    let all = [
        format,
        own(regex.map(Kind::Regex)),
        own(lark.map(Kind::Lark)),
    ];
    let mut all = all.into_iter().flatten();
    let first = all.next();
    match all.next() {
        None => Ok(first),
        Some(second) => {
            let problem = "an answer has one form alone; leave the others out";
            Err(Failure::field(name(&second), problem))
        }
    }
}

/// What a grammar is called in a request; a schema's name depends on the API.
pub(crate) fn name(grammar: &v1::Grammar) -> &'static str {
    match grammar.kind {
        Some(Kind::Regex(_)) => "sluice.regex",
        Some(Kind::Lark(_)) => "sluice.lark",
        Some(Kind::JsonSchema(_)) | None => "autoregressive.grammar",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(grammar: Option<v1::Grammar>) -> Option<String> {
        match grammar?.kind {
            Some(Kind::JsonSchema(schema)) => Some(schema),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn formats_become_schemas_as_they_came() {
        let openai = |json: &str| {
            let read: ResponseFormat = serde_json::from_str(json).unwrap();
            read.into_grammar().map(schema)
        };
        let given = r#"{"type": "object", "z": 1, "a": [1.50]}"#;
        let named = format!(
            r#"{{"type": "json_schema", "json_schema": {{"name": "n", "strict": true, "schema": {given}}}}}"#
        );
        assert_eq!(openai(r#"{"type": "text"}"#), Ok(None));
        assert_eq!(
            openai(r#"{"type": "json_object"}"#),
            Ok(Some(ANY_OBJECT.to_owned()))
        );
        assert_eq!(openai(&named), Ok(Some(given.to_owned())));
        for wrong in [
            "{}",
            r#"{"type": "yaml"}"#,
            r#"{"type": "json_schema"}"#,
            r#"{"type": "json_schema", "json_schema": {"name": "n"}}"#,
            r#"{"type": "text", "json_schema": {"schema": {}}}"#,
        ] {
            assert!(openai(wrong).is_err(), "{wrong}");
        }
        let ollama = |json: &str| {
            let read: Result<Format, _> = serde_json::from_str(json);
            read.map(|format| schema(format.into_grammar()))
        };
        assert_eq!(ollama(given).unwrap().as_deref(), Some(given));
        assert_eq!(ollama(r#""json""#).unwrap().as_deref(), Some(ANY_OBJECT));
        assert_eq!(ollama(r#""""#).unwrap(), None);
        for wrong in [r#""yaml""#, "[]", "7"] {
            assert!(ollama(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_answer_has_one_form() {
        let own: Extension = serde_json::from_str(r#"{"regex": "[ab]+"}"#).unwrap();
        let regex = Kind::Regex("[ab]+".to_owned());
        let read = grammar(None, Some(&own)).unwrap();
        assert_eq!(read.unwrap().kind, Some(regex));
        let both = grammar(Some(json_schema("{}")), Some(&own)).unwrap_err();
        assert_eq!(both.field.as_deref(), Some("sluice.regex"));
    }
}
