//! The fields of requests: a table that says what becomes of each. Both the reader of a request and the page for users come
//! from it, so that no field is ignored that nobody decided on.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use crate::failure::Failure;

/// What becomes of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fate {
    /// It does what it says.
    Honoured,
    /// It is taken, and changes nothing.
    Accepted,
    /// It is refused, unless its value means the same as none.
    Refused(Nothing),
}

/// A value, besides `null`, that means the same as none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Nothing {
    /// There is no such value.
    Null,
    False,
    Number(f64),
    /// An empty list, object or text.
    Empty,
    Text(&'static str),
}

/// A row of a table of fields.
#[derive(Debug)]
pub(crate) struct FieldRow {
    pub(crate) name: &'static str,
    pub(crate) fate: Fate,
    /// What it does, or why it does nothing, for users.
    pub(crate) note: &'static str,
}

/// A request, or a part of one, that a table describes.
pub(crate) trait Fields: DeserializeOwned {
    /// The table, in the order in which people see it.
    const ROWS: &'static [FieldRow];
}

/// Reads a request.
///
/// # Errors
/// What is wrong, with the name of the field.
pub(crate) fn read<T: Fields>(json: &[u8]) -> Result<T, Failure> {
    let read = serde_json::from_slice(json);
    read.map_err(|error| Failure::json(&error))
}

/// Makes a type of a table: a field for each that is honoured, `None` where it is absent or `null`.
macro_rules! fields {
    (
        $(#[$docs:meta])*
        $visibility:vis struct $name:ident {
            $(honoured $field:ident: $type:ty = $note:literal,)*
            $(accepted $accepted:literal = $accepted_note:literal,)*
            $(refused $refused:literal unless $nothing:expr, $refused_note:literal,)*
        }
    ) => {
        $(#[$docs])*
        #[derive(Debug, Default)]
        $visibility struct $name {
            $(#[doc = $note] pub(crate) $field: Option<$type>,)*
        }

        impl $crate::fields::Fields for $name {
            const ROWS: &'static [$crate::fields::FieldRow] = &[
                $($crate::fields::FieldRow {
                    name: $crate::fields::key(stringify!($field)),
                    fate: $crate::fields::Fate::Honoured,
                    note: $note,
                },)*
                $($crate::fields::FieldRow {
                    name: $accepted,
                    fate: $crate::fields::Fate::Accepted,
                    note: $accepted_note,
                },)*
                $($crate::fields::FieldRow {
                    name: $refused,
                    fate: $crate::fields::Fate::Refused({
                        #[allow(unused_imports, reason = "not each table has all of them")]
                        use $crate::fields::Nothing::*;
                        $nothing
                    }),
                    note: $refused_note,
                },)*
            ];
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                struct Reader;

                impl<'de> serde::de::Visitor<'de> for Reader {
                    type Value = $name;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("an object")
                    }

                    fn visit_map<A>(self, mut map: A) -> Result<$name, A::Error>
                    where
                        A: serde::de::MapAccess<'de>,
                    {
                        #[allow(unused_mut, reason = "a table may have no field that is honoured")]
                        let mut read = $name::default();
                        while let Some(name) = map.next_key::<String>()? {
                            match name.as_str() {
                                $(name if name == $crate::fields::key(stringify!($field)) => {
                                    $crate::fields::set(&mut read.$field, name, &mut map)?;
                                })*
                                name => {
                                    let rows = <$name as $crate::fields::Fields>::ROWS;
                                    $crate::fields::pass_over(rows, name, &mut map)?;
                                }
                            }
                        }
                        Ok(read)
                    }
                }

                from.deserialize_map(Reader)
            }
        }
    };
}
pub(crate) use fields;

/// The key of a field by its name here, where a keyword of Rust's has an underscore behind it.
pub(crate) const fn key(name: &'static str) -> &'static str {
    match name.as_bytes() {
        [.., b'_'] => name.split_at(name.len() - 1).0,
        _ => name,
    }
}

/// Reads a field that is honoured.
pub(crate) fn set<'de, T: Deserialize<'de>, A: MapAccess<'de>>(
    field: &mut Option<T>,
    name: &str,
    map: &mut A,
) -> Result<(), A::Error> {
    if field.is_some() {
        return Err(A::Error::custom(format_args!("{name}: is given twice")));
    }
    let value = map.next_value();
    *field = value.map_err(|error| A::Error::custom(format_args!("{name}: {error}")))?;
    Ok(())
}

/// Goes past a field that is accepted, or that is refused and means nothing.
pub(crate) fn pass_over<'de, A: MapAccess<'de>>(
    rows: &[FieldRow],
    name: &str,
    map: &mut A,
) -> Result<(), A::Error> {
    let row = rows.iter().find(|row| row.name == name);
    let row = row.ok_or_else(|| {
        A::Error::custom(format_args!(
            "{name}: there is no such field; docs/http.md lists those that there are"
        ))
    })?;
    match row.fate {
        Fate::Refused(nothing) => match map.next_value::<Gist>()?.is(nothing) {
            true => Ok(()),
            false => Err(A::Error::custom(format_args!(
                "{name}: not supported: {}; leave it out",
                row.note
            ))),
        },
        Fate::Honoured | Fate::Accepted => map.next_value::<IgnoredAny>().map(drop),
    }
}

/// What a value comes to, without what is inside.
#[derive(Debug, PartialEq)]
enum Gist {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    Empty,
    Other,
}

impl Gist {
    fn is(&self, nothing: Nothing) -> bool {
        match (self, nothing) {
            (Self::Null, _) | (Self::Bool(false), Nothing::False) => true,
            (Self::Number(number), Nothing::Number(nothing)) => *number == nothing,
            (Self::Empty, Nothing::Empty) => true,
            (Self::Text(text), Nothing::Empty) => text.is_empty(),
            (Self::Text(text), Nothing::Text(nothing)) => text == nothing,
            _ => false,
        }
    }
}

impl<'de> Deserialize<'de> for Gist {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(GistReader)
    }
}

struct GistReader;

impl<'de> Visitor<'de> for GistReader {
    type Value = Gist;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Gist, E> {
        Ok(Gist::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Gist, E> {
        Ok(Gist::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Gist, E> {
        Ok(Gist::Number(value as f64))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Gist, E> {
        Ok(Gist::Number(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Gist, E> {
        Ok(Gist::Number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Gist, E> {
        Ok(Gist::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Gist, A::Error> {
        let mut gist = Gist::Empty;
        while list.next_element::<IgnoredAny>()?.is_some() {
            gist = Gist::Other;
        }
        Ok(gist)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Gist, A::Error> {
        let mut gist = Gist::Empty;
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            gist = Gist::Other;
        }
        Ok(gist)
    }
}

/// A table as docs/http.md has it; `prefix` leads to its fields.
#[cfg(test)]
pub(crate) fn documented(prefix: &str, rows: &[FieldRow]) -> String {
    let fate = |fate| match fate {
        Fate::Honoured => "honoured".to_owned(),
        Fate::Accepted => "accepted, no effect".to_owned(),
        Fate::Refused(Nothing::Null) => "refused".to_owned(),
        Fate::Refused(Nothing::False) => "refused, but for `false`".to_owned(),
        Fate::Refused(Nothing::Number(number)) => format!("refused, but for {number}"),
        Fate::Refused(Nothing::Empty) => "refused, unless empty".to_owned(),
        Fate::Refused(Nothing::Text(text)) => format!("refused, but for `\"{text}\"`"),
    };
    let row = |row: &FieldRow| {
        let (name, fate, note) = (row.name, fate(row.fate), row.note);
        format!("| `{prefix}{name}` | {fate} | {note} |\n")
    };
    rows.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fields! {
        struct Example {
            honoured count: u32 = "How many.",
            honoured type_: String = "Which.",
            accepted "user" = "nobody reads it",
            refused "penalty" unless Number(0.0), "there is none",
            refused "bias" unless Empty, "there is none",
        }
    }

    fn problem(json: &str) -> (Option<String>, String) {
        let failure = read::<Example>(json.as_bytes()).unwrap_err();
        (failure.field, failure.message)
    }

    #[test]
    fn fields_are_read_and_those_that_mean_nothing_passed_over() {
        let json = r#"{"count": 3, "type": "a", "user": {"x": [1]}, "penalty": 0, "bias": {}}"#;
        let read: Example = read(json.as_bytes()).unwrap();
        assert_eq!((read.count, read.type_.as_deref()), (Some(3), Some("a")));
        for nothing in [
            r#"{"count": null}"#,
            r#"{"penalty": 0.0, "bias": []}"#,
            r#"{"penalty": null, "bias": ""}"#,
        ] {
            assert!(
                super::read::<Example>(nothing.as_bytes())
                    .unwrap()
                    .count
                    .is_none()
            );
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let (field, message) = problem(r#"{"penalty": 0.5}"#);
        assert_eq!(field.as_deref(), Some("penalty"));
        assert!(message.starts_with("penalty: not supported: there is none"));
        for (json, name) in [
            (r#"{"bias": {"5": 1}}"#, "bias"),
            (r#"{"count": "many"}"#, "count"),
            (r#"{"count": -1}"#, "count"),
            (r#"{"count": 1, "count": 2}"#, "count"),
            (r#"{"unheard_of": null}"#, "unheard_of"),
        ] {
            assert_eq!(problem(json).0.as_deref(), Some(name), "{json}");
        }
        for json in ["", "[]", "{", r#"{"count": 1}}"#] {
            assert_eq!(problem(json).0, None, "{json}");
        }
    }

    #[test]
    fn what_is_nested_deeply_is_refused() {
        let lists = "[".repeat(100_000);
        for key in ["count", "user", "bias", "unheard_of"] {
            problem(&format!("{{\"{key}\": {lists}"));
        }
    }
}
