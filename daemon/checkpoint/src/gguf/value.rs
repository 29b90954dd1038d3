//! Values of a GGUF file's keys. Lists are stored flat, so that they take no more memory than they take bytes in the
//! file, whatever it says.

/// The value of a key.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Texts(Texts),
    Numbers(Numbers),
    /// A list of lists, which nothing here needs.
    Nested,
}

impl Value {
    /// The kind of value, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Unsigned(_) | Self::Signed(_) => "a whole number",
            Self::Float(_) => "a number",
            Self::Bool(_) => "true or false",
            Self::Text(_) => "a text",
            Self::Texts(_) => "a list of texts",
            Self::Numbers(_) => "a list of numbers",
            Self::Nested => "a list of lists",
        }
    }
}

/// A list of texts, stored as one concatenation.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Texts {
    text: String,
    /// Offset of each text's end.
    ends: Vec<usize>,
}

impl Texts {
    pub(super) fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.ends.push(self.text.len());
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        // Only ends are stored: each text begins where the one before ends.
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.text[start..end])
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}

/// Numbers of one type, as stored in the file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Numbers {
    scalar: Scalar,
    bytes: Vec<u8>,
}

impl Numbers {
    /// Numbers of this type from their bytes.
    pub(super) fn new(scalar: Scalar, bytes: Vec<u8>) -> Self {
        Self { scalar, bytes }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len() / self.scalar.bytes()
    }

    /// The numbers as integers; skips fractions.
    pub(super) fn whole(&self) -> impl Iterator<Item = i64> {
        let chunks = self.bytes.chunks_exact(self.scalar.bytes());
        chunks.filter_map(|bytes| match self.scalar.value(bytes) {
            Value::Unsigned(number) => i64::try_from(number).ok(),
            Value::Signed(number) => Some(number),
            _ => None,
        })
    }

    /// The numbers as floats.
    pub(super) fn floats(&self) -> impl Iterator<Item = f64> {
        let chunks = self.bytes.chunks_exact(self.scalar.bytes());
        chunks.filter_map(|bytes| match self.scalar.value(bytes) {
            Value::Float(number) => Some(number),
            Value::Unsigned(number) => Some(number as f64),
            Value::Signed(number) => Some(number as f64),
            _ => None,
        })
    }
}

/// Types of fixed size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scalar {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    U64,
    I64,
    F64,
}

impl Scalar {
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// The value of these little-endian bytes.
    pub(super) fn value(self, bytes: &[u8]) -> Value {
        let mut wide = [0; 8];
        // Little-endian, so shorter values are zero-extended by the copy; signed ones are narrowed again below.
        wide[..bytes.len()].copy_from_slice(bytes);
        let unsigned = u64::from_le_bytes(wide);
        match self {
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => Value::Unsigned(unsigned),
            Self::I8 => Value::Signed(i64::from(unsigned as i8)),
            Self::I16 => Value::Signed(i64::from(unsigned as i16)),
            Self::I32 => Value::Signed(i64::from(unsigned as i32)),
            Self::I64 => Value::Signed(unsigned.cast_signed()),
            Self::F32 => Value::Float(f64::from(f32::from_bits(unsigned as u32))),
            Self::F64 => Value::Float(f64::from_bits(unsigned)),
            Self::Bool => Value::Bool(unsigned != 0),
        }
    }
}
