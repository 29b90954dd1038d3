//! Calls of functions in what a model writes.
//!
//! Models write calls as they were trained to, as text. The forms that are read here are those of Hermes and Qwen, an object between
//! `<tool_call>` and `</tool_call>`, and those of Llama 3 and Mistral, an answer that is nothing but an object or a list of objects.
//! The arguments are `arguments` or `parameters`. Text that only looks like a call stays text.

use std::{borrow::Cow, cell::Cell, fmt};

use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

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
    form: Form,
}

/// What an answer is, as far as its beginning tells.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    /// The beginning tells nothing yet.
    Unknown,
    /// It begins like an answer that is nothing but calls, so nothing is shown before its end.
    Bare,
    /// It is text, which calls between marks may follow.
    Text,
}

/// Bytes of an answer in which its first function is to be named.
const BEGINNING_BYTES_MAX: usize = 1 << 10;

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
    /// The call, with its arguments or, where there are none, with these.
    fn into_call(self, absent: Option<&str>) -> Option<Call> {
        let arguments = self.arguments.map(RawValue::get).or(absent)?;
        arguments.starts_with('{').then(|| Call {
            name: self.name,
            arguments: arguments.to_owned(),
        })
    }
}

impl CallReader {
    /// One that knows these functions.
    pub(crate) fn new(names: Vec<String>) -> Self {
        Self {
            names,
            text: String::new(),
            shown: 0,
            form: Form::Unknown,
        }
    }

    /// Adds text; what of it is no call, whatever follows.
    pub(crate) fn add(&mut self, text: &str) -> String {
        self.text.push_str(text);
        if self.form == Form::Unknown {
            self.form = self.begun_form();
        }
        self.show(self.certain())
    }

    /// What is left to show, and the calls, when nothing follows.
    pub(crate) fn end(&mut self) -> (String, Vec<Call>) {
        let bare = match self.form {
            Form::Unknown | Form::Bare => self.bare_calls(),
            Form::Text => None,
        };
        let (end, calls) = match bare {
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
        if self.form != Form::Text {
            return 0;
        }
        let marked = self.text[self.shown..].find(OPEN);
        let begun = || {
            let part = (1..OPEN.len())
                .rev()
                .find(|len| self.text.ends_with(&OPEN[..*len]));
            self.text.len() - part.unwrap_or(0)
        };
        marked.map_or_else(begun, |at| self.shown + at)
    }

    /// What the text's beginning tells. It is the same however the text was cut into pieces.
    fn begun_form(&self) -> Form {
        let beginning = self.text.trim_start();
        match beginning.chars().next() {
            // Spaces alone may be before a call.
            None => return Form::Unknown,
            Some('{' | '[') => {}
            Some(_) => return Form::Text,
        }
        let end = beginning.floor_char_boundary(BEGINNING_BYTES_MAX);
        let reader = BeginningReader {
            names: &self.names,
            form: &Cell::new(None),
        };
        let mut json = serde_json::Deserializer::from_str(&beginning[..end]);
        let read = reader.deserialize(&mut json);
        let goes_on = read.is_err_and(|error| error.is_eof());
        match reader.form.get() {
            Some(form) => form,
            None if goes_on && beginning.len() < BEGINNING_BYTES_MAX => Form::Unknown,
            None => Form::Text,
        }
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
        let is_known = |call: &Call| self.names.contains(&call.name);
        // Without arguments it may be an answer that has a name in it.
        let calls = written.into_iter().map(|call| call.into_call(None));
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
            call.into_call(Some("{}"))
        });
        (first, calls.collect::<Option<_>>().unwrap_or_default())
    }
}

/// Reads the beginning of an answer of JSON as far as its first object names a function, or can name none.
#[derive(Clone, Copy)]
struct BeginningReader<'a> {
    names: &'a [String],
    /// What the beginning tells, once that is known.
    form: &'a Cell<Option<Form>>,
}

impl<'de> DeserializeSeed<'de> for BeginningReader<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BeginningReader<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a call, or a list of calls")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        list.next_element_seed(self).map(drop)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            match &*key {
                "name" => {
                    let name: Cow<'de, str> = map.next_value()?;
                    let is_known = self.names.iter().any(|known| *known == name);
                    self.form.set(is_known.then_some(Form::Bare));
                    // Nothing that follows changes it.
                    return Err(A::Error::custom("its form is known"));
                }
                "type" | "id" => map.next_value::<IgnoredAny>().map(drop)?,
                _ => return Err(A::Error::custom("a call begins otherwise")),
            }
        }
        Err(A::Error::custom("a call has a name"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader() -> CallReader {
        CallReader::new(vec!["find".to_owned()])
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
            r#"{"name": "find", "age": 3}"#,
            r#"{"name": "find"}"#,
            r#"{"answer": 1} <tool_call>"#,
            "{\"name\": \"find\", \"arguments\": 1}",
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
    fn json_that_is_no_call_is_shown_once_that_is_known() {
        for (held, rest) in [
            (r#"{"answer"#, r#"": 42"#),
            ("[", "1"),
            (r#"{"type": "object", "id": 3, "nam"#, r#"": "unknown""#),
            ("  {", "no JSON"),
            (r#"[{"#, "}"),
        ] {
            let mut reader = reader();
            assert_eq!(reader.add(held), "", "{held}");
            assert_eq!(reader.add(rest), format!("{held}{rest}"));
            assert_eq!(reader.add(" more"), " more");
        }
        // Nobody waits for a name for long.
        let long = format!("{{\"id\": \"{}", "a".repeat(BEGINNING_BYTES_MAX));
        assert_eq!(reader().add(&long), long);
        let mut reader = reader();
        assert_eq!(reader.add(r#"{"name": "find", "arguments": {"a"#), "");
        assert_eq!(reader.add(r#"": 1}"#), "");
    }
}
