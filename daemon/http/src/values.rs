//! Values of fields that have more than one form.

use std::{fmt, str::FromStr};

use serde::{
    Deserialize, Deserializer,
    de::{Error, SeqAccess, Visitor, value::SeqAccessDeserializer},
};

/// A text that a command line would take, too.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Word<T>(pub(crate) T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map(Self).map_err(D::Error::custom)
    }
}

/// A text, or a list of some.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Texts(pub(crate) Vec<String>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let read = TextOrList::deserialize(from)?;
        Ok(Self(match read {
            TextOrList::Text(text) => vec![text],
            TextOrList::List(texts) => texts,
        }))
    }
}

/// A text, or a list of something.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TextOrList<T> {
    Text(String),
    List(Vec<T>),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for TextOrList<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader<T>(std::marker::PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
            type Value = TextOrList<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list")
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(TextOrList::Text(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
                Ok(TextOrList::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(TextOrList::List)
            }
        }

        from.deserialize_any(Reader(std::marker::PhantomData))
    }
}

/// What `/v1/completions` goes on from: one or several texts, or token ids.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

/// One or several [`Prompt`]s.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Prompts(pub(crate) Vec<Prompt>);

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match TextOrList::<PromptPart>::deserialize(from)? {
            TextOrList::Text(text) => Ok(Self(vec![Prompt::Text(text)])),
            TextOrList::List(parts) => prompts(parts).map(Self).map_err(D::Error::custom),
        }
    }
}

/// An element of a list of prompts, or of token ids.
#[derive(Debug)]
enum PromptPart {
    Prompt(Prompt),
    Id(u32),
}

impl<'de> Deserialize<'de> for PromptPart {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = PromptPart;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a token id, or a list of token ids")
            }

            fn visit_u64<E: Error>(self, id: u64) -> Result<PromptPart, E> {
                let id = u32::try_from(id).map_err(|_| E::custom("no token has this id"))?;
                Ok(PromptPart::Id(id))
            }

            fn visit_str<E>(self, text: &str) -> Result<PromptPart, E> {
                Ok(PromptPart::Prompt(Prompt::Text(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<PromptPart, A::Error> {
                let ids = Vec::deserialize(SeqAccessDeserializer::new(list))?;
                Ok(PromptPart::Prompt(Prompt::Ids(ids)))
            }
        }

        from.deserialize_any(Reader)
    }
}

/// The parts as prompts: ids alone are one, and don't stand beside others.
fn prompts(parts: Vec<PromptPart>) -> Result<Vec<Prompt>, &'static str> {
    let (mut prompts, mut ids) = (Vec::new(), Vec::new());
    for part in parts {
        match part {
            PromptPart::Prompt(prompt) => prompts.push(prompt),
            PromptPart::Id(id) => ids.push(id),
        }
    }
    match (prompts.is_empty(), ids.is_empty()) {
        (true, true) => Err("is an empty list"),
        (false, true) => Ok(prompts),
        (true, false) => Ok(vec![Prompt::Ids(ids)]),
        (false, false) => Err("has token ids beside texts"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_come_in_four_forms() {
        let read = |json: &str| serde_json::from_str::<Prompts>(json);
        let text = |text: &str| Prompt::Text(text.to_owned());
        for (json, prompts) in [
            (r#""a""#, vec![text("a")]),
            (r#"["a", "b"]"#, vec![text("a"), text("b")]),
            ("[1, 2]", vec![Prompt::Ids(vec![1, 2])]),
            (
                "[[1], [2, 3]]",
                vec![Prompt::Ids(vec![1]), Prompt::Ids(vec![2, 3])],
            ),
        ] {
            assert_eq!(read(json).unwrap(), Prompts(prompts));
        }
        for wrong in [
            "[]",
            r#"["a", 1]"#,
            "[-1]",
            "[4294967296]",
            "[1.5]",
            "7",
            "{}",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
