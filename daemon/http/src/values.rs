//! Values of fields that have more than one form.

use std::{fmt, marker::PhantomData, str::FromStr};

use serde::{
    Deserialize, Deserializer,
    de::{
        Error, MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};

use crate::limits::{TEXTS_MAX, TOKEN_IDS_MAX};

/// A text that a command line would take, too.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Word<T>(pub(crate) T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map(Self).map_err(D::Error::custom)
    }
}

/// Whether something is done, and how: `true` is an object that says nothing.
#[derive(Debug)]
pub(crate) struct Switch<T>(pub(crate) Option<T>);

impl<'de, T: Deserialize<'de> + Default> Deserialize<'de> for Switch<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de> + Default> Visitor<'de> for Reader<T> {
            type Value = Switch<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`true`, `false` or an object")
            }

            fn visit_bool<E>(self, is_on: bool) -> Result<Self::Value, E> {
                Ok(Switch(is_on.then(T::default)))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let object = T::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Switch(Some(object)))
            }
        }

        from.deserialize_any(Reader(PhantomData))
    }
}

/// A list of so many, at most. One that is longer is refused before it has taken much more memory than its JSON.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Few<T, const MAX: usize>(pub(crate) Vec<T>);

// Derived, it would ask the same of `T`.
impl<T, const MAX: usize> Default for Few<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Few<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader<T, const MAX: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Reader<T, MAX> {
            type Value = Few<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut few = Vec::new();
                while let Some(next) = list.next_element()? {
                    if few.len() == MAX {
                        let problem = format!("a list has more than {MAX} elements");
                        return Err(A::Error::custom(problem));
                    }
                    few.push(next);
                }
                Ok(Few(few))
            }
        }

        from.deserialize_seq(Reader(PhantomData))
    }
}

/// A text, or a list of some.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Texts(pub(crate) Vec<String>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let read = TextOrList::<_, TEXTS_MAX>::deserialize(from)?;
        Ok(Self(match read {
            TextOrList::Text(text) => vec![text],
            TextOrList::List(texts) => texts,
        }))
    }
}

/// A text, or a list of something, of so many at most.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TextOrList<T, const MAX: usize> {
    Text(String),
    List(Vec<T>),
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for TextOrList<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader<T, const MAX: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Reader<T, MAX> {
            type Value = TextOrList<T, MAX>;

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
                let list = Few::<T, MAX>::deserialize(SeqAccessDeserializer::new(list))?;
                Ok(TextOrList::List(list.0))
            }
        }

        from.deserialize_any(Reader(PhantomData))
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
        match TextOrList::<PromptPart, TOKEN_IDS_MAX>::deserialize(from)? {
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
                let list = SeqAccessDeserializer::new(list);
                let ids = Few::<u32, TOKEN_IDS_MAX>::deserialize(list)?;
                Ok(PromptPart::Prompt(Prompt::Ids(ids.0)))
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
    fn a_list_has_an_end() {
        let read = |json: &str| serde_json::from_str::<Few<u8, 2>>(json);
        assert_eq!(read("[1, 2]").unwrap().0, [1, 2]);
        let refused = read("[1, 2, 3]").unwrap_err();
        assert!(
            refused.to_string().contains("more than 2 elements"),
            "{refused}"
        );
        let texts = format!("[{}\"a\"]", "\"a\",".repeat(TEXTS_MAX));
        assert!(serde_json::from_str::<Texts>(&texts).is_err());
    }

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
