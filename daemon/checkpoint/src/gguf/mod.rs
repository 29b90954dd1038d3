//! GGUF files, versions 2 and 3, as llama.cpp and diffuse-cpp write them: metadata, tokenizer and tensors in one file.
//!
//! Such a file is shown as the Hugging Face folder that it was made from: tensors under the names that a family gives
//! them, a `config.json`, a `tokenizer.json`. Everything behind this module sees one kind of checkpoint. Tensors are used
//! as they are stored; only the rows of queries and keys are put in the order that the family's rotation takes, where the
//! file has them in another. Rows are whole blocks, so that is exact.
//!
//! The format: github.com/ggml-org/ggml, docs/gguf.md. Nothing that a file says of itself is believed: counts, lengths and
//! depths are held to what the file has before memory is taken for them.

mod config;
mod cursor;
mod dialect;
mod interleaved;
mod metadata;
mod model;
mod tensor;
mod tokenizer;
mod value;

use sluice_weights::HEAD_DIM_MAX;

pub(super) use self::interleaved::Interleaved;
use self::{
    cursor::{Cursor, Source},
    dialect::Dialect,
    metadata::Metadata,
    tensor::Tensor,
};
use super::{CheckpointError, TensorEntry, file::CheckpointFile};

/// What such files begin with.
const MAGIC: [u8; 4] = *b"GGUF";
/// Where tensors begin, at multiples of.
const ALIGNMENT_KEY: &str = "general.alignment";
const ALIGNMENT_DEFAULT: u64 = 32;
const ALIGNMENT_MAX: u64 = 1 << 20;
/// In how many files a model lies.
const SPLIT_KEY: &str = "split.count";
/// Factors of the rotation's frequencies.
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";
/// Tensors of earlier versions that nothing reads.
const IGNORED: &str = "attn_rot_embd";
const TOKENS_KEY: &str = "tokenizer.ggml.tokens";

/// What a GGUF file says before its numbers.
#[derive(Debug)]
pub struct Gguf {
    metadata: Metadata,
    dialect: Dialect,
    /// In the order of the file's table.
    tensors: Vec<Tensor>,
    /// Where the numbers begin.
    data_start: u64,
}

impl Gguf {
    /// Reads what a file of these bytes says.
    ///
    /// # Errors
    /// What is wrong with it, or not supported.
    pub fn parse(bytes: &[u8]) -> Result<Self, CheckpointError> {
        let read = |offset: u64, out: &mut [u8]| {
            out.copy_from_slice(&bytes[offset as usize..][..out.len()]);
            Ok(())
        };
        Self::read_from(Source {
            path: "these bytes",
            len: bytes.len() as u64,
            read: &read,
        })
    }

    pub(super) fn read(file: &CheckpointFile) -> Result<Self, CheckpointError> {
        Self::read_from(Source {
            path: &file.path,
            len: file.len,
            read: &|offset, out| file.read_at(offset, out),
        })
    }

    fn read_from(source: Source<'_>) -> Result<Self, CheckpointError> {
        let path = source.path;
        let mut cursor = Cursor::new(source);
        check_version(&mut cursor)?;
        let tensors = cursor.count("tensors", tensor::ENTRY_BYTES_MIN)?;
        let keys = cursor.count("keys", Metadata::ENTRY_BYTES_MIN)?;
        let metadata = Metadata::read(&mut cursor, path, keys)?;
        if let Some(parts) = metadata.whole(SPLIT_KEY)?.filter(|&parts| parts > 1) {
            return Err(metadata.unsupported(
                format!("is one of {parts} files that a model was split into"),
                "join them with llama-gguf-split --merge",
            ));
        }
        let dialect = Dialect::of(&metadata)?;
        let tensors = Tensor::read_all(&mut cursor, tensors)?;
        let alignment = metadata.whole(ALIGNMENT_KEY)?.unwrap_or(ALIGNMENT_DEFAULT);
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
        gguf.check_places(&cursor, alignment)?;
        gguf.check_names()?;
        Ok(gguf)
    }

    /// Each tensor lies in the file, and none in another.
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
            places.push((tensor.offset, tensor.offset + tensor.bytes, &tensor.name));
        }
        places.sort_unstable();
        for pair in places.windows(2) {
            let ((_, end, first), (start, _, second)) = (pair[0], pair[1]);
            if start < end {
                return Err(cursor.malformed(format!("tensors {first} and {second} overlap")));
            }
        }
        Ok(())
    }

    /// A tensor that the family doesn't know would have to be computed with, too.
    fn check_names(&self) -> Result<(), CheckpointError> {
        let is_unknown = |tensor: &&Tensor| {
            tensor.name != ROPE_FACTORS
                && !tensor.name.contains(IGNORED)
                && self.dialect.engine_name(&tensor.name).is_none()
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

    /// Every tensor under its name in the engine, with its place in the file of this number.
    pub(super) fn entries(
        &self,
        file: usize,
    ) -> Result<Vec<(String, TensorEntry)>, CheckpointError> {
        let entries = self.tensors.iter().filter_map(|tensor| {
            let name = match &tensor.name[..] {
                ROPE_FACTORS => ROPE_FACTORS.to_owned(),
                name => self.dialect.engine_name(name)?,
            };
            Some(self.entry(tensor, file).map(|entry| (name, entry)))
        });
        entries.collect()
    }

    fn entry(&self, tensor: &Tensor, file: usize) -> Result<TensorEntry, CheckpointError> {
        Ok(TensorEntry {
            format: tensor.format.clone(),
            shape: tensor.shape.clone(),
            file,
            offset: self.data_start + tensor.offset,
            bytes: tensor.bytes,
            interleaved: self.interleaved(tensor)?,
            compressed: None,
        })
    }

    fn interleaved(&self, tensor: &Tensor) -> Result<Option<Interleaved>, CheckpointError> {
        let is_turned = [".attn_q.", ".attn_k."]
            .iter()
            .any(|part| tensor.name.contains(part));
        if !self.dialect.is_interleaved || !is_turned || tensor.bytes == 0 {
            return Ok(None);
        }
        let rows = tensor.shape[0] as u64;
        let (key, head_rows) = match self.head_dim()? {
            Some(length) => ("attention.key_length", length),
            None => {
                let width = self.size("embedding_length")?;
                let key = "attention.head_count";
                (key, width / self.size(key)?.max(1))
            }
        };
        // Rows whose order isn't known are never taken as they lie.
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
        Ok(Some(Interleaved {
            head_rows,
            row_bytes: tensor.bytes / rows,
        }))
    }

    fn size(&self, name: &str) -> Result<u64, CheckpointError> {
        let key = self.dialect.key(name);
        let size = self.metadata.whole(&key)?;
        size.ok_or_else(|| self.metadata.problem(&key, "is missing"))
    }

    /// What the file calls a tensor of the engine's, for messages.
    pub(super) fn file_name(&self, engine_name: &str) -> String {
        let name = self.dialect.file_name(engine_name);
        name.unwrap_or_else(|| engine_name.to_owned())
    }
}

fn check_version(cursor: &mut Cursor<'_>) -> Result<(), CheckpointError> {
    if cursor.array()? != MAGIC {
        return Err(cursor.malformed("it lacks the GGUF magic bytes"));
    }
    let version = cursor.u32()?;
    match version {
        2 | 3 => Ok(()),
        1 => Err(cursor.malformed("it is of GGUF version 1; convert the model again")),
        _ if (2..=3).contains(&version.swap_bytes()) => {
            Err(cursor.malformed("it is written for big-endian machines; convert the model again"))
        }
        _ => Err(cursor.malformed(format!("unsupported GGUF version {version}"))),
    }
}
