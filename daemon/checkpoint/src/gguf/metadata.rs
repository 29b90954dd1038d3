//! The keys and values in the header of a GGUF file.

use std::collections::BTreeMap;

use super::{
    super::CheckpointError,
    cursor::Cursor,
    value::{Numbers, Scalar, Texts, Value},
};

/// Most keys of a file; real ones have some dozens.
const KEYS_MAX: usize = 1 << 14;
/// Longest key in bytes, by the format.
const KEY_BYTES_MAX: usize = (1 << 16) - 1;
/// Most levels of nested lists; no real file has any.
const DEPTH_MAX: usize = 4;
/// Bytes of a key's length, a type and the smallest value.
const ENTRY_BYTES_MIN: u64 = 8 + 4 + 1;

/// The type of a value.
#[derive(Debug, Clone, Copy)]
enum Type {
    Scalar(Scalar),
    Text,
    List,
}

impl Type {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, CheckpointError> {
        // Numbers of ggml's `enum gguf_type`.
        Ok(match cursor.u32()? {
            0 => Self::Scalar(Scalar::U8),
            1 => Self::Scalar(Scalar::I8),
            2 => Self::Scalar(Scalar::U16),
            3 => Self::Scalar(Scalar::I16),
            4 => Self::Scalar(Scalar::U32),
            5 => Self::Scalar(Scalar::I32),
            6 => Self::Scalar(Scalar::F32),
            7 => Self::Scalar(Scalar::Bool),
            8 => Self::Text,
            9 => Self::List,
            10 => Self::Scalar(Scalar::U64),
            11 => Self::Scalar(Scalar::I64),
            12 => Self::Scalar(Scalar::F64),
            other => {
                return Err(cursor.malformed(format!("a value would have the type {other}")));
            }
        })
    }

    /// Fewest bytes of a value of this type.
    fn bytes_min(self) -> u64 {
        match self {
            Self::Scalar(scalar) => scalar.bytes() as u64,
            Self::Text => 8,
            Self::List => 4 + 8,
        }
    }
}

/// All keys of a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Metadata {
    path: String,
    values: BTreeMap<String, Value>,
}

impl Metadata {
    /// Reads `count` keys and values.
    pub(super) fn read(cursor: &mut Cursor<'_>, count: usize) -> Result<Self, CheckpointError> {
        if count > KEYS_MAX {
            return Err(cursor.malformed(format!(
                "it would have {count} keys; files have up to {KEYS_MAX}"
            )));
        }
        let mut values = BTreeMap::new();
        for _ in 0..count {
            let (key, value) = read_entry(cursor)?;
            // Readers differ in which duplicate they take, so files with duplicates are refused.
            if values.insert(key.clone(), value).is_some() {
                return Err(cursor.malformed(format!("duplicate key {key}")));
            }
        }
        Ok(Self {
            path: cursor.path().to_owned(),
            values,
        })
    }

    /// The file's path, for messages.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Fewest bytes of a key with its value.
    pub(super) const ENTRY_BYTES_MIN: u64 = ENTRY_BYTES_MIN;

    /// An error for a key.
    pub(super) fn problem(&self, key: &str, problem: impl Into<String>) -> CheckpointError {
        CheckpointError::Metadata {
            path: self.path.clone(),
            key: key.to_owned(),
            problem: problem.into(),
        }
    }

    /// An error for what isn't supported, with a hint what to do.
    pub(super) fn unsupported(
        &self,
        what: impl Into<String>,
        hint: impl Into<String>,
    ) -> CheckpointError {
        CheckpointError::Unsupported {
            path: self.path.clone(),
            what: what.into(),
            hint: hint.into(),
        }
    }

    fn read_as<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, CheckpointError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(value) => read(value)
                .map(Some)
                .ok_or_else(|| self.problem(key, format!("is {}, not {wanted}", value.kind()))),
        }
    }

    pub(super) fn whole(&self, key: &str) -> Result<Option<u64>, CheckpointError> {
        self.read_as(key, "a whole number of at least 0", |value| match value {
            Value::Unsigned(number) => Some(*number),
            // Writers use signed and unsigned types of any size.
            Value::Signed(number) => u64::try_from(*number).ok(),
            _ => None,
        })
    }

    pub(super) fn float(&self, key: &str) -> Result<Option<f64>, CheckpointError> {
        self.read_as(key, "a number", |value| match value {
            Value::Float(number) => Some(*number),
            Value::Unsigned(number) => Some(*number as f64),
            Value::Signed(number) => Some(*number as f64),
            _ => None,
        })
    }

    pub(super) fn bool(&self, key: &str) -> Result<Option<bool>, CheckpointError> {
        self.read_as(key, "true or false", |value| match value {
            Value::Bool(truth) => Some(*truth),
            _ => None,
        })
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>, CheckpointError> {
        self.read_as(key, "a text", |value| match value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    pub(super) fn texts(&self, key: &str) -> Result<Option<&Texts>, CheckpointError> {
        self.read_as(key, "a list of texts", |value| match value {
            Value::Texts(texts) => Some(texts),
            _ => None,
        })
    }

    pub(super) fn numbers(&self, key: &str) -> Result<Option<&Numbers>, CheckpointError> {
        self.read_as(key, "a list of numbers", |value| match value {
            Value::Numbers(numbers) => Some(numbers),
            _ => None,
        })
    }
}

/// Reads a key and its value.
pub(super) fn read_entry(cursor: &mut Cursor<'_>) -> Result<(String, Value), CheckpointError> {
    let key = cursor.name("key", KEY_BYTES_MAX)?;
    let kind = Type::read(cursor)?;
    Ok((key, read_value(cursor, kind, 0)?))
}

fn read_value(cursor: &mut Cursor<'_>, kind: Type, depth: usize) -> Result<Value, CheckpointError> {
    match kind {
        Type::Scalar(scalar) => {
            let bytes = cursor.bytes(scalar.bytes())?;
            Ok(scalar.value(&bytes))
        }
        Type::Text => Ok(Value::Text(lossy(cursor.text_bytes()?))),
        Type::List => {
            let kind = Type::read(cursor)?;
            // Counts are checked before memory is allocated, at every level of nesting.
            let count = cursor.count("values in a list", kind.bytes_min())?;
            read_list(cursor, kind, count, depth + 1)
        }
    }
}

fn read_list(
    cursor: &mut Cursor<'_>,
    kind: Type,
    count: usize,
    depth: usize,
) -> Result<Value, CheckpointError> {
    // Lists nest by recursion, and the stack is limited.
    if depth > DEPTH_MAX {
        return Err(cursor.malformed(format!("its lists are more than {DEPTH_MAX} deep")));
    }
    match kind {
        Type::Scalar(scalar) => {
            // No overflow: `count` was compared with the file's size, by the smallest value's bytes.
            let bytes = cursor.bytes(count * scalar.bytes())?;
            Ok(Value::Numbers(Numbers::new(scalar, bytes)))
        }
        Type::Text => {
            let mut texts = Texts::default();
            for _ in 0..count {
                texts.push(&lossy(cursor.text_bytes()?));
            }
            Ok(Value::Texts(texts))
        }
        // Nested lists are skipped but still read: what follows them must be found.
        Type::List => {
            for _ in 0..count {
                read_value(cursor, kind, depth)?;
            }
            Ok(Value::Nested)
        }
    }
}

/// Text should be UTF-8, but a description that isn't is no reason to refuse a model.
fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
