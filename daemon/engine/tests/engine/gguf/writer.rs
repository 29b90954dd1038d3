//! A small writer of GGUF files: sound ones, and ones that lie.

use sluice_formats::Format;

/// A value of a key.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    /// Any type, by its number and bytes.
    Raw(u32, Vec<u8>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// A tensor and its bytes.
#[derive(Debug, Clone)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    /// Outermost first.
    pub(crate) shape: Vec<u64>,
    /// Number of its type.
    pub(crate) kind: u32,
    pub(crate) bytes: Vec<u8>,
}

/// What a file is made of.
#[derive(Debug, Clone)]
pub(crate) struct File {
    pub(crate) version: u32,
    pub(crate) keys: Vec<(String, Value)>,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) alignment: usize,
}

impl File {
    pub(crate) fn new(architecture: &str) -> Self {
        Self {
            version: 3,
            keys: vec![("general.architecture".to_owned(), architecture.into())],
            tensors: Vec::new(),
            alignment: 32,
        }
    }

    /// Sets a key, or changes it.
    pub(crate) fn set(&mut self, key: &str, value: Value) {
        self.unset(key);
        self.keys.push((key.to_owned(), value));
    }

    pub(crate) fn unset(&mut self, key: &str) {
        self.keys.retain(|(known, _)| known != key);
    }

    /// Adds a tensor stored in a format.
    pub(crate) fn add(&mut self, name: &str, shape: &[usize], format: Format, bytes: Vec<u8>) {
        self.tensors.push(Tensor {
            name: name.to_owned(),
            shape: shape.iter().map(|&size| size as u64).collect(),
            kind: kind(format),
            bytes,
        });
    }

    pub(crate) fn tensor(&mut self, name: &str) -> &mut Tensor {
        let tensor = self.tensors.iter_mut().find(|tensor| tensor.name == name);
        tensor.expect("a tensor of this name")
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            text(&mut out, key);
            write(&mut out, value);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            text(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            for size in tensor.shape.iter().rev() {
                out.extend(size.to_le_bytes());
            }
            out.extend(tensor.kind.to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += tensor.bytes.len().next_multiple_of(self.alignment);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(&tensor.bytes);
        }
        out
    }
}

/// The number of a format's type.
pub(crate) fn kind(format: Format) -> u32 {
    match format {
        Format::F32 => 0,
        Format::F16 => 1,
        Format::Q4_0 => 2,
        Format::Q4_1 => 3,
        Format::Q5_0 => 6,
        Format::Q5_1 => 7,
        Format::Q8_0 => 8,
        Format::Q2K => 10,
        Format::Q3K => 11,
        Format::Q4K => 12,
        Format::Q5K => 13,
        Format::Q6K => 14,
        Format::Bf16 => 30,
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn list<T>(out: &mut Vec<u8>, kind: u32, values: &[T], write: impl Fn(&mut Vec<u8>, &T)) {
    out.extend(9u32.to_le_bytes());
    out.extend(kind.to_le_bytes());
    out.extend((values.len() as u64).to_le_bytes());
    values.iter().for_each(|value| write(out, value));
}

fn write(out: &mut Vec<u8>, value: &Value) {
    let mut scalar = |kind: u32, bytes: &[u8]| {
        out.extend(kind.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::U32(number) => scalar(4, &number.to_le_bytes()),
        Value::F32(number) => scalar(6, &number.to_le_bytes()),
        Value::Bool(truth) => scalar(7, &[u8::from(*truth)]),
        Value::Raw(kind, bytes) => scalar(*kind, bytes),
        Value::Text(value) => {
            out.extend(8u32.to_le_bytes());
            text(out, value);
        }
        Value::Texts(values) => list(out, 8, values, |out, value| text(out, value)),
        Value::I32s(values) => list(out, 5, values, |out, value| out.extend(value.to_le_bytes())),
        Value::F32s(values) => list(out, 6, values, |out, value| out.extend(value.to_le_bytes())),
    }
}
