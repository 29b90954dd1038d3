//! The pickle of a dict of tensors, read as a description. Python would call what a pickle names; here the names of
//! tensors' parts are all that is known, and nothing is called.
//!
//! What is read is what Python's pickler writes for `torch.save`, in protocol 2: its opcodes for texts, numbers, tuples
//! and dicts, and the memo. Texts, tuples, depth and counts are bounded.
//!
//! Reference: Python's Lib/pickletools.py.

use std::rc::Rc;

use sluice_formats::DType;

use super::super::safetensors::{DIMENSIONS_MAX, NAME_BYTES_MAX, TENSORS_MAX};

/// Most values on the stack: the pickler writes a dict's items by the thousand.
const STACK_MAX: usize = 1 << 14;
/// Most remembered values: eight for a tensor.
const MEMO_MAX: usize = 1 << 20;
/// Most elements of a tuple: a dimension's worth for each, and a tensor's arguments.
const TUPLE_MAX: usize = DIMENSIONS_MAX;
/// Deepest tuples: shapes in a tensor's arguments, and one more.
const DEPTH_MAX: usize = 3;
/// Most dicts: the tensors' own, and each tensor's of hooks.
const DICTS_MAX: usize = TENSORS_MAX + 1024;
/// Longest name of a module or class.
const LINE_BYTES_MAX: usize = 100;

/// What a tensor lies in.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Storage {
    /// Name of its entry in the archive.
    pub(super) key: Rc<str>,
    pub(super) dtype: DType,
    pub(super) elements: u64,
}

/// A tensor as the pickle describes it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PickledTensor {
    pub(super) storage: Rc<Storage>,
    /// Elements of the storage before it.
    pub(super) offset: u64,
    /// Its elements lie in the order of this shape, without gaps.
    pub(super) shape: Vec<usize>,
}

/// What a pickle may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Global {
    RebuildTensor,
    Storage(DType),
    OrderedDict,
}

const GLOBALS: [(&str, Global); 5] = [
    ("torch._utils._rebuild_tensor_v2", Global::RebuildTensor),
    ("torch.BFloat16Storage", Global::Storage(DType::Bf16)),
    ("torch.HalfStorage", Global::Storage(DType::F16)),
    ("torch.FloatStorage", Global::Storage(DType::F32)),
    ("collections.OrderedDict", Global::OrderedDict),
];

#[derive(Debug, Clone)]
enum Value {
    None,
    Bool,
    Int(i64),
    Text(Rc<str>),
    Tuple(Rc<Tuple>),
    /// Index of a dict: tuples and the memo may have it before it has its items.
    Dict(usize),
    Global(Global),
    Storage(Rc<Storage>),
    Tensor(Rc<PickledTensor>),
}

#[derive(Debug)]
struct Tuple {
    values: Vec<Value>,
    /// Levels of tuples in it, itself included: dropping one takes stack for each.
    depth: usize,
}

impl Value {
    /// What it is, for messages.
    fn kind(&self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Bool => "a truth value",
            Self::Int(_) => "a number",
            Self::Text(_) => "a text",
            Self::Tuple(_) => "a tuple",
            Self::Dict(_) => "a dict",
            Self::Global(_) => "a function or class",
            Self::Storage(_) => "a storage",
            Self::Tensor(_) => "a tensor",
        }
    }

    fn depth(&self) -> usize {
        match self {
            Self::Tuple(tuple) => tuple.depth,
            _ => 0,
        }
    }

    fn size(&self) -> Option<usize> {
        match self {
            Self::Int(number) => usize::try_from(*number).ok(),
            _ => None,
        }
    }
}

/// The tensors of the dict that these bytes describe, in its order.
///
/// # Errors
/// What is wrong with them, or isn't part of a dict of tensors.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<(String, Rc<PickledTensor>)>, String> {
    let mut reader = Reader {
        bytes,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        dicts: Vec::new(),
        items: 0,
    };
    while reader.step()? {}
    let Some(Value::Dict(dict)) = reader.stack.pop() else {
        return Err("it holds something else than a dict of tensors".to_owned());
    };
    let items = std::mem::take(&mut reader.dicts[dict]);
    let tensor = |(key, value)| match (key, value) {
        (Value::Text(name), Value::Tensor(tensor)) => Ok((name.to_string(), tensor)),
        (Value::Text(name), other) => Err(format!(
            "it holds {} under {name:?}; only dicts of tensors are read",
            other.kind()
        )),
        (other, _) => Err(format!("a tensor's name is {}", other.kind())),
    };
    items.into_iter().map(tensor).collect()
}

struct Reader<'a> {
    bytes: &'a [u8],
    stack: Vec<Value>,
    /// Heights of the stack where marks lie.
    marks: Vec<usize>,
    memo: Vec<Option<Value>>,
    dicts: Vec<Vec<(Value, Value)>>,
    /// Items of all dicts.
    items: usize,
}

impl<'a> Reader<'a> {
    /// Follows one opcode; false at the end.
    fn step(&mut self) -> Result<bool, String> {
        let [opcode] = self.take()?;
        match opcode {
            // PROTO
            0x80 => match self.take()? {
                [2] => {}
                [version] => {
                    return Err(format!(
                        "it is written in version {version} of the protocol; torch.save writes 2 unless told otherwise"
                    ));
                }
            },
            b'.' => return Ok(false),
            b'(' => {
                if self.marks.len() > STACK_MAX {
                    return Err(too_many("marks"));
                }
                self.marks.push(self.stack.len());
            }
            b'N' => self.push(Value::None)?,
            // NEWTRUE and NEWFALSE
            0x88 | 0x89 => self.push(Value::Bool)?,
            b'K' => {
                let [byte] = self.take()?;
                self.push(Value::Int(byte.into()))?;
            }
            b'M' => {
                let number = u16::from_le_bytes(self.take()?);
                self.push(Value::Int(number.into()))?;
            }
            b'J' => {
                let number = i32::from_le_bytes(self.take()?);
                self.push(Value::Int(number.into()))?;
            }
            // LONG1
            0x8A => self.long()?,
            b'X' => {
                let len = u32::from_le_bytes(self.take()?) as usize;
                if len > NAME_BYTES_MAX {
                    return Err(format!("a text has more than {NAME_BYTES_MAX} bytes"));
                }
                let text = std::str::from_utf8(self.part(len)?);
                let text = text.map_err(|_| "a text is not UTF-8".to_owned())?;
                self.push(Value::Text(text.into()))?;
            }
            b')' => self.tuple(0)?,
            b't' => {
                let count = self.marked()?;
                self.tuple(count)?;
            }
            // TUPLE1 to TUPLE3
            0x85..=0x87 => self.tuple(usize::from(opcode - 0x84))?,
            b'}' => self.new_dict()?,
            b's' => self.set_items(2)?,
            b'u' => {
                let count = self.marked()?;
                self.set_items(count)?;
            }
            b'q' => {
                let [index] = self.take()?;
                self.remember(index.into())?;
            }
            b'r' => {
                let index = u32::from_le_bytes(self.take()?);
                self.remember(index as usize)?;
            }
            b'h' => {
                let [index] = self.take()?;
                self.recall(index.into())?;
            }
            b'j' => {
                let index = u32::from_le_bytes(self.take()?);
                self.recall(index as usize)?;
            }
            b'c' => self.global()?,
            b'Q' => self.storage()?,
            b'R' => self.reduce()?,
            b'b' => self.build()?,
            other => {
                return Err(format!(
                    "opcode {other:#04x} is none that torch.save writes for a dict of tensors"
                ));
            }
        }
        Ok(true)
    }

    fn part(&mut self, len: usize) -> Result<&'a [u8], String> {
        let (part, rest) = self
            .bytes
            .split_at_checked(len)
            .ok_or("it ends too early")?;
        self.bytes = rest;
        Ok(part)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (first, rest) = self.bytes.split_first_chunk().ok_or("it ends too early")?;
        self.bytes = rest;
        Ok(*first)
    }

    fn push(&mut self, value: Value) -> Result<(), String> {
        if self.stack.len() == STACK_MAX {
            return Err(too_many("values"));
        }
        self.stack.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Result<Value, String> {
        // What lies below a mark belongs to whoever set it.
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.len() > floor {
            true => Ok(self.stack.pop().expect("it is higher than its floor")),
            false => Err("its stack is empty".to_owned()),
        }
    }

    /// Takes the last mark away; returns how many values lie above it.
    fn marked(&mut self) -> Result<usize, String> {
        let mark = self.marks.pop().ok_or("it lacks a mark")?;
        // Values above a mark are never taken without it.
        Ok(self.stack.len() - mark)
    }

    fn long(&mut self) -> Result<(), String> {
        let [len] = self.take()?;
        let part = self.part(usize::from(len))?;
        let mut wide = match part.last() {
            Some(128..) => [0xFF; 8],
            _ => [0; 8],
        };
        let place = wide.get_mut(..part.len());
        let place = place.ok_or("a number has more than 64 bits")?;
        place.copy_from_slice(part);
        self.push(Value::Int(i64::from_le_bytes(wide)))
    }

    fn tuple(&mut self, count: usize) -> Result<(), String> {
        if count > TUPLE_MAX {
            return Err(format!("a tuple has more than {TUPLE_MAX} elements"));
        }
        let mut values = Vec::with_capacity(count);
        for _ in 0..count {
            values.push(self.pop()?);
        }
        values.reverse();
        let depth = 1 + values.iter().map(Value::depth).max().unwrap_or(0);
        if depth > DEPTH_MAX {
            return Err(format!("its tuples are more than {DEPTH_MAX} deep"));
        }
        self.push(Value::Tuple(Tuple { values, depth }.into()))
    }

    fn new_dict(&mut self) -> Result<(), String> {
        if self.dicts.len() == DICTS_MAX {
            return Err(too_many("dicts"));
        }
        self.dicts.push(Vec::new());
        self.push(Value::Dict(self.dicts.len() - 1))
    }

    /// Adds the uppermost values to the dict below them, as keys and values in turn.
    fn set_items(&mut self, count: usize) -> Result<(), String> {
        if !count.is_multiple_of(2) {
            return Err("a dict's key has no value".to_owned());
        }
        self.items += count / 2;
        if self.items > TENSORS_MAX {
            return Err(too_many("items"));
        }
        let mut items = Vec::with_capacity(count / 2);
        for _ in 0..count / 2 {
            let value = self.pop()?;
            items.push((self.pop()?, value));
        }
        match self.stack.last() {
            Some(&Value::Dict(dict)) => self.dicts[dict].extend(items.into_iter().rev()),
            _ => return Err("items are added to what is no dict".to_owned()),
        }
        Ok(())
    }

    fn remember(&mut self, index: usize) -> Result<(), String> {
        if index >= MEMO_MAX {
            return Err(too_many("remembered values"));
        }
        let value = self.stack.last().ok_or("its stack is empty")?.clone();
        if index >= self.memo.len() {
            self.memo.resize(index + 1, None);
        }
        self.memo[index] = Some(value);
        Ok(())
    }

    fn recall(&mut self, index: usize) -> Result<(), String> {
        let value = self.memo.get(index).cloned().flatten();
        self.push(value.ok_or("it recalls what it didn't remember")?)
    }

    fn line(&mut self) -> Result<String, String> {
        let end = self
            .bytes
            .iter()
            .take(LINE_BYTES_MAX + 1)
            .position(|&byte| byte == b'\n');
        let end = end.ok_or_else(|| format!("a name has more than {LINE_BYTES_MAX} bytes"))?;
        let line = String::from_utf8_lossy(self.part(end)?).into_owned();
        self.part(1)?;
        Ok(line)
    }

    fn global(&mut self) -> Result<(), String> {
        let name = format!("{}.{}", self.line()?, self.line()?);
        match GLOBALS.iter().find(|(known, _)| *known == name) {
            Some(&(_, global)) => self.push(Value::Global(global)),
            None => Err(format!(
                "it names {name:?}, which is no part of a tensor in f32, f16 or bf16; nothing of a file is ever run"
            )),
        }
    }

    /// A storage by its persistent id: ("storage", type, key, device, elements).
    fn storage(&mut self) -> Result<(), String> {
        let id = self.pop()?;
        let values = match &id {
            Value::Tuple(tuple) => &tuple.values[..],
            _ => &[],
        };
        let [
            Value::Text(kind),
            Value::Global(Global::Storage(dtype)),
            Value::Text(key),
            Value::Text(_),
            Value::Int(elements),
        ] = values
        else {
            return Err("a storage is described in an unknown way".to_owned());
        };
        let elements = u64::try_from(*elements)
            .ok()
            .filter(|_| **kind == *"storage");
        let storage = Storage {
            key: Rc::clone(key),
            dtype: *dtype,
            elements: elements.ok_or("a storage is described in an unknown way")?,
        };
        self.push(Value::Storage(storage.into()))
    }

    fn reduce(&mut self) -> Result<(), String> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        match (function, arguments) {
            (Value::Global(Global::OrderedDict), Value::Tuple(tuple))
                if tuple.values.is_empty() =>
            {
                self.new_dict()
            }
            (Value::Global(Global::RebuildTensor), Value::Tuple(tuple)) => {
                let tensor = tensor(&tuple.values)?;
                self.push(Value::Tensor(tensor.into()))
            }
            (function, _) => Err(format!(
                "it calls {} with unknown arguments",
                function.kind()
            )),
        }
    }

    /// Gives an object its attributes, which only dicts of a module's state have: versions of its parts.
    fn build(&mut self) -> Result<(), String> {
        self.pop()?;
        match self.stack.last() {
            Some(Value::Dict(_)) => Ok(()),
            _ => Err("attributes are given to what is no dict".to_owned()),
        }
    }
}

/// A tensor by the arguments of its function: storage, offset, shape, strides, and what training needs.
fn tensor(arguments: &[Value]) -> Result<PickledTensor, String> {
    let unknown = || "a tensor is described in an unknown way".to_owned();
    let [
        Value::Storage(storage),
        Value::Int(offset),
        Value::Tuple(shape),
        Value::Tuple(strides),
        ..,
    ] = arguments
    else {
        return Err(unknown());
    };
    let sizes = |tuple: &Tuple| {
        tuple
            .values
            .iter()
            .map(Value::size)
            .collect::<Option<Vec<_>>>()
    };
    let (shape, strides) = (
        sizes(shape).ok_or_else(unknown)?,
        sizes(strides).ok_or_else(unknown)?,
    );
    if shape.len() != strides.len() {
        return Err(unknown());
    }
    let mut expected = Some(1usize);
    for (&size, &stride) in shape.iter().zip(&strides).rev() {
        // Where there is one element only, no step is ever taken.
        if size > 1 && expected != Some(stride) {
            return Err(format!(
                "a tensor of shape {shape:?} has strides {strides:?}; only contiguous ones are read: save them with .contiguous()"
            ));
        }
        expected = expected.and_then(|expected| expected.checked_mul(size));
    }
    Ok(PickledTensor {
        storage: Rc::clone(storage),
        offset: u64::try_from(*offset).map_err(|_| unknown())?,
        shape,
    })
}

fn too_many(what: &str) -> String {
    format!("it has more {what} than any model's")
}
