//! GGUF files, versions 2 and 3, as llama.cpp and diffuse-cpp write them: metadata, tokenizer and tensors in one file.
//!
//! Such a file is presented as the Hugging Face folder that it was made from: tensors under the names that a family
//! gives them, a `config.json`, a `tokenizer.json`. Everything behind this module sees one kind of checkpoint. Tensors
//! are used as they are stored; only rows of queries and keys are put in the order that the family's RoPE expects,
//! where the file has another. Rows are whole blocks, so that is exact.
//!
//! The format: github.com/ggml-org/ggml, docs/gguf.md. Nothing that a file says of itself is trusted: counts, lengths
//! and depths are compared with the file's size before memory is allocated.

mod config;
mod cursor;
mod dialect;
mod licence;
mod metadata;
mod model;
mod names;
mod tensor;
mod tokenizer;
mod value;

use sluice_weights::HEAD_DIM_MAX;

pub use self::licence::licence;

use self::{
    cursor::{Cursor, Source},
    dialect::Dialect,
    metadata::Metadata,
    tensor::Tensor,
};
use super::{
    CheckpointError, TensorEntry,
    file::CheckpointFile,
    stored_order::{Interleaved, StoredOrder},
};

/// The first bytes of a GGUF file.
const MAGIC: [u8; 4] = *b"GGUF";
/// Key of the alignment of tensors.
const ALIGNMENT_KEY: &str = "general.alignment";
const ALIGNMENT_DEFAULT: u64 = 32;
const ALIGNMENT_MAX: u64 = 1 << 20;
/// Key of the number of files that a model is split into.
const SPLIT_KEY: &str = "split.count";
/// Name of the tensor with RoPE's frequency factors.
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";
/// Part of the names of tensors in early versions that nothing reads.
const IGNORED: &str = "attn_rot_embd";
const TOKENS_KEY: &str = "tokenizer.ggml.tokens";

/// The header of a GGUF file.
#[derive(Debug)]
pub struct Gguf {
    metadata: Metadata,
    dialect: Dialect,
    /// Tensors in the order of the file's table.
    tensors: Vec<Tensor>,
    /// Offset where tensors begin.
    data_start: u64,
}

impl Gguf {
    /// Parses the header in these bytes.
    ///
    /// # Errors
    /// What is wrong with it, or isn't supported.
    pub fn parse(bytes: &[u8]) -> Result<Self, CheckpointError> {
        with_bytes(bytes, Self::read_from)
    }

    pub(super) fn read(file: &CheckpointFile) -> Result<Self, CheckpointError> {
        Self::read_from(&mut Cursor::new(Source {
            path: &file.path,
            len: file.len,
            read: &|offset, out| file.read_at(offset, out),
        }))
    }

    fn read_from(cursor: &mut Cursor<'_>) -> Result<Self, CheckpointError> {
        check_version(cursor)?;
        // Both counts come before the keys, so they are checked against the smallest possible entries.
        let tensors = cursor.count("tensors", tensor::ENTRY_BYTES_MIN)?;
        let keys = cursor.count("keys", Metadata::ENTRY_BYTES_MIN)?;
        let metadata = Metadata::read(cursor, keys)?;
        // A part of a split model would look like a model with missing tensors.
        if let Some(parts) = metadata.whole(SPLIT_KEY)?.filter(|&parts| parts > 1) {
            return Err(metadata.unsupported(
                format!("is one of {parts} files that a model was split into"),
                "join them with llama-gguf-split --merge",
            ));
        }
        // Before the tensor table: an unknown architecture is the better error than one of its tensors.
        let dialect = Dialect::of(&metadata)?;
        let tensors = Tensor::read_all(cursor, tensors)?;
        let alignment = metadata.whole(ALIGNMENT_KEY)?.unwrap_or(ALIGNMENT_DEFAULT);
        // As the format demands; bounded, so that a hostile value cannot overflow the start of the data.
        if !alignment.is_power_of_two() || alignment > ALIGNMENT_MAX {
            return Err(metadata.problem(
                ALIGNMENT_KEY,
                format!("is {alignment}, not a power of two up to {ALIGNMENT_MAX}"),
            ));
        }
        let gguf = Self {
            data_start: cursor.at().next_multiple_of(alignment),
            metadata,
            dialect,
            tensors,
        };
        gguf.check_places(cursor, alignment)?;
        gguf.check_names()?;
        Ok(gguf)
    }

    /// Checks that tensors lie inside the file and don't overlap.
    fn check_places(&self, cursor: &Cursor<'_>, alignment: u64) -> Result<(), CheckpointError> {
        let mut places = Vec::with_capacity(self.tensors.len());
        for tensor in &self.tensors {
            let end = self
                .data_start
                .checked_add(tensor.offset)
                .and_then(|start| start.checked_add(tensor.bytes));
            match end {
                Some(end) if end <= cursor.file_len() => {}
                Some(end) => {
                    return Err(CheckpointError::WrongLength {
                        path: self.metadata.path().to_owned(),
                        expected: end,
                        found: cursor.file_len(),
                    });
                }
                None => {
                    let name = &tensor.name;
                    return Err(cursor.malformed(format!("tensor {name} lies beyond any file")));
                }
            }
            if !tensor.offset.is_multiple_of(alignment) {
                return Err(cursor.malformed(format!(
                    "tensor {} begins at {}, which is not a multiple of {alignment}",
                    tensor.name, tensor.offset
                )));
            }
            // Tensors of unsupported types count as empty here; none of them is ever read.
            places.push((tensor.offset, tensor.offset + tensor.bytes, &tensor.name));
        }
        // Sorted by offset, so overlaps are between neighbours.
        places.sort_unstable();
        for pair in places.windows(2) {
            let ((_, end, first), (start, _, second)) = (pair[0], pair[1]);
            if start < end {
                return Err(cursor.malformed(format!("tensors {first} and {second} overlap")));
            }
        }
        Ok(())
    }

    /// Refuses tensors that the family doesn't know: the model that they belong to computes with them.
    fn check_names(&self) -> Result<(), CheckpointError> {
        let is_unknown = |tensor: &&Tensor| {
            tensor.name != ROPE_FACTORS
                && !tensor.name.contains(IGNORED)
                && !self.dialect.names.is_ignored(&tensor.name)
                && self.dialect.names.engine_names(&tensor.name).is_empty()
        };
        match self.tensors.iter().find(is_unknown) {
            Some(tensor) => Err(self.metadata.unsupported(
                format!(
                    "has the tensor {}, which is not part of this architecture",
                    tensor.name
                ),
                "this version of sluiced cannot run such a model",
            )),
            None => Ok(()),
        }
    }

    /// Every tensor under its name in the engine, as a part of the file with index `file`.
    pub(super) fn entries(
        &self,
        file: usize,
    ) -> Result<Vec<(String, TensorEntry)>, CheckpointError> {
        let mut entries = Vec::new();
        for tensor in &self.tensors {
            let names = match &tensor.name[..] {
                // No weight of a layer: `Checkpoint::model` reads it under its own name.
                ROPE_FACTORS => vec![ROPE_FACTORS.to_owned()],
                name => self.dialect.names.engine_names(name),
            };
            match &names[..] {
                [] => {}
                [_] => entries.extend(names.into_iter().zip([self.entry(tensor, file)?])),
                _ => {
                    let parts = self.parts(tensor, names.len(), file)?;
                    entries.extend(names.into_iter().zip(parts));
                }
            }
        }
        Ok(entries)
    }

    fn entry(&self, tensor: &Tensor, file: usize) -> Result<TensorEntry, CheckpointError> {
        Ok(TensorEntry {
            format: tensor.format.clone(),
            shape: tensor.shape.clone(),
            file,
            offset: self.data_start + tensor.offset,
            bytes: tensor.bytes,
            order: self.order(tensor)?,
            compressed: None,
        })
    }

    /// The parts of a tensor that is `count` of the engine's, one after another.
    fn parts(
        &self,
        tensor: &Tensor,
        count: usize,
        file: usize,
    ) -> Result<Vec<TensorEntry>, CheckpointError> {
        let (&found, rest) = tensor.shape.split_first().expect("there is a dimension");
        if found != count {
            return Err(self.metadata.unsupported(
                format!("has {found} vectors in {}, not {count}", tensor.name),
                "RWKV-7 models without a gate are not supported",
            ));
        }
        let whole = self.entry(tensor, file)?;
        let bytes = tensor.bytes / count as u64;
        let part = |index: usize| TensorEntry {
            shape: rest.to_vec(),
            offset: whole.offset + index as u64 * bytes,
            bytes,
            ..whole.clone()
        };
        Ok((0..count).map(part).collect())
    }

    fn order(&self, tensor: &Tensor) -> Result<StoredOrder, CheckpointError> {
        // Values aren't rotated, so their rows are never interleaved. Biases of queries and keys are rows of one
        // element.
        let is_rotated = [".attn_q.", ".attn_k."]
            .iter()
            .any(|part| tensor.name.contains(part));
        // Unsupported types have no known size; they are refused by name later.
        if !self.dialect.is_interleaved || !is_rotated || tensor.bytes == 0 {
            return Ok(StoredOrder::Rows);
        }
        let rows = tensor.shape[0] as u64;
        // Files omit the head dimension where it follows from the hidden size.
        let (key, head_rows) = match self.head_dim()? {
            Some(length) => ("attention.key_length", length),
            None => {
                let width = self.size("embedding_length")?;
                let key = "attention.head_count";
                (key, width / self.size(key)?.max(1))
            }
        };
        // Rows in an unknown order would give wrong results silently.
        let problem = |problem: String| Err(self.metadata.problem(&self.dialect.key(key), problem));
        if head_rows < 2 || head_rows > HEAD_DIM_MAX as u64 || !head_rows.is_multiple_of(2) {
            return problem(format!(
                "gives a head dimension of {head_rows}; it must be even and at most {HEAD_DIM_MAX}"
            ));
        }
        if !rows.is_multiple_of(head_rows) {
            return problem(format!(
                "gives a head dimension of {head_rows}, which does not divide the {rows} rows of tensor {}",
                tensor.name
            ));
        }
        Ok(StoredOrder::Interleaved(Interleaved {
            head_rows,
            row_bytes: tensor.bytes / rows,
        }))
    }

    fn size(&self, name: &str) -> Result<u64, CheckpointError> {
        let key = self.dialect.key(name);
        let size = self.metadata.whole(&key)?;
        size.ok_or_else(|| self.metadata.problem(&key, "is missing"))
    }

    /// The file's name for a tensor of the engine, for messages.
    pub(super) fn file_name(&self, engine_name: &str) -> String {
        let name = self.dialect.names.file_name(engine_name);
        name.unwrap_or_else(|| engine_name.to_owned())
    }
}

/// Reads a header from these bytes.
fn with_bytes<T>(
    bytes: &[u8],
    read_header: impl FnOnce(&mut Cursor<'_>) -> Result<T, CheckpointError>,
) -> Result<T, CheckpointError> {
    let read = |offset: u64, out: &mut [u8]| {
        out.copy_from_slice(&bytes[offset as usize..][..out.len()]);
        Ok(())
    };
    read_header(&mut Cursor::new(Source {
        path: "these bytes",
        len: bytes.len() as u64,
        read: &read,
    }))
}

fn check_version(cursor: &mut Cursor<'_>) -> Result<(), CheckpointError> {
    if cursor.array()? != MAGIC {
        return Err(cursor.malformed("it lacks the GGUF magic bytes"));
    }
    let version = cursor.u32()?;
    match version {
        2 | 3 => Ok(()),
        1 => Err(cursor.malformed("it is of GGUF version 1; convert the model again")),
        // A big-endian file's version reads as a byte-swapped number.
        _ if (2..=3).contains(&version.swap_bytes()) => {
            Err(cursor.malformed("it is written for big-endian machines; convert the model again"))
        }
        _ => Err(cursor.malformed(format!("unsupported GGUF version {version}"))),
    }
}
