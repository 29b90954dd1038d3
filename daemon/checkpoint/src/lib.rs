//! Reads checkpoints as people have them: Hugging Face folders with safetensors, sharded or not, GGUF files, RWKV's
//! `.pth` files, and Sluice's containers. Headers are checked first; then each tensor is read straight to where it will live. Files are
//! not mapped: one that is truncated under a mapping would kill the process.

mod bandwidth;
pub mod calibration;
pub mod compression;
mod container;
mod digests;
mod error;
pub mod family;
pub mod features;
mod file;
mod file_version;
mod find;
mod folder;
mod fused;
pub mod gguf;
mod prior;
pub mod pruning;
mod pth;
pub mod quantize;
mod recommended;
mod rwkv_names;
pub mod safetensors;
mod sentences;
mod stored_order;
pub mod synth;
mod verified;
pub mod weight_cache;

use std::{
    collections::BTreeMap,
    ops::Range,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

use sluice_formats::Format;
use sluice_machine::page::Page;
use sluice_weights::{CompressedTensor, SourceTensor, TensorSpec};

pub use self::{
    bandwidth::{MEASURED_BYTES_MIN, disk_bandwidth, file_bandwidth},
    container::{ReadMode, TakeRows},
    digests::FileDigest,
    error::CheckpointError,
    file_version::FileVersion,
    prior::{PriorFile, PriorShape},
    recommended::RecommendedSettings,
    verified::VerifiedFiles,
    weight_cache::{CachedWeights, RemovedWeights, cached_weights, remove_cached},
};
use self::{
    container::ContainerFiles,
    file::CheckpointFile,
    find::{is_container, is_gguf, is_pth, weight_files},
    fused::FusedTensors,
    gguf::Gguf,
    rwkv_names::RwkvCheckpoint,
    safetensors::HeaderAllowance,
    stored_order::StoredOrder,
    weight_cache::FileStamp,
};

/// The place of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A Hugging Face folder, a `.safetensors` file in one, a `.gguf`, `.pth` or `.sluice` file, or a folder with one.
    Folder(PathBuf),
    /// Files embedded in the program: name and bytes.
    Embedded(&'static [(&'static str, &'static [u8])]),
}

/// Largest `config.json` and the like; published ones stay below 10 KiB.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Largest tokenizer file; that of a vocabulary of 250,000 tokens has about 35 MB.
const TOKENIZER_BYTES_MAX: u64 = 256 << 20;

/// Names of tokenizers' files, of which the first that exists counts.
const TOKENIZERS: [&str; 2] = ["tokenizer.json", "rwkv_vocab_v20230424.txt"];

/// An open checkpoint whose headers are consistent.
#[derive(Debug)]
pub struct Checkpoint {
    source: Source,
    files: Vec<CheckpointFile>,
    /// Identity of each file on disk; `None` for embedded files.
    stamps: Vec<Option<FileStamp>>,
    tensors: BTreeMap<String, TensorEntry>,
    /// Those of them that models ask for in parts: queries, keys and values, and experts.
    fused: FusedTensors,
    /// The header of the GGUF file, if it is one.
    gguf: Option<Gguf>,
    /// What RWKV's official names stand for, if its tensors have them.
    rwkv: Option<RwkvCheckpoint>,
    /// The files inside the container, if it is one.
    container_files: Option<ContainerFiles>,
}

/// A tensor as its file's header describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry {
    /// The storage format, or the header's name of an element type that isn't supported.
    pub format: Result<Format, String>,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    file: usize,
    offset: u64,
    bytes: u64,
    /// The order in which its elements are stored.
    order: StoredOrder,
    /// How it is compressed, if it is; `bytes` are then those of the decompressed tensor.
    compressed: Option<Arc<CompressedTensor>>,
}

impl TensorEntry {
    /// Whether reading it decompresses it.
    pub fn is_compressed(&self) -> bool {
        self.compressed.is_some()
    }

    /// How it is compressed, if it is.
    pub fn compressed(&self) -> Option<Arc<CompressedTensor>> {
        self.compressed.clone()
    }
}

impl Checkpoint {
    /// Locks its files against removal and sets their access time, so that the weight cache evicts them last.
    pub fn hold(&self) {
        self.files.iter().for_each(CheckpointFile::hold);
    }

    /// Releases that lock; the files stay open.
    pub fn release(&self) {
        self.files.iter().for_each(CheckpointFile::release);
    }

    /// Opens a checkpoint and checks the headers of all its files.
    ///
    /// # Errors
    /// Names the file and what is wrong with it.
    pub fn open(source: &Source) -> Result<Self, CheckpointError> {
        let (source, names) = weight_files(source)?;
        let mut checkpoint = Self {
            source,
            files: Vec::new(),
            stamps: Vec::new(),
            tensors: BTreeMap::new(),
            fused: FusedTensors::default(),
            gguf: None,
            rwkv: None,
            container_files: None,
        };
        // A container holds a whole model by itself.
        if let (true, Some(shard)) = (
            names.len() > 1,
            names.iter().find(|name| is_container(name)),
        ) {
            return Err(CheckpointError::MalformedFile {
                path: file::describe(&checkpoint.source, shard),
                cause: "a .sluice file cannot be a shard".to_owned(),
            });
        }
        let mut allowance = HeaderAllowance::default();
        let mut has_pth = false;
        for name in names {
            let stamp = FileStamp::of(&checkpoint.source, &name);
            let file = CheckpointFile::open(&checkpoint.source, &name)?;
            // Another file may have taken the name between the stamp and the opening.
            if FileStamp::of(&checkpoint.source, &name) != stamp {
                return Err(CheckpointError::Changed { path: file.path });
            }
            let index = checkpoint.files.len();
            let entries = match is_gguf(&name) {
                true => {
                    let gguf = checkpoint.gguf.insert(Gguf::read(&file)?);
                    gguf.entries(index)?
                }
                false if is_container(&name) => {
                    let (inside, entries) = ContainerFiles::read(&file, index)?;
                    checkpoint.container_files = Some(inside);
                    entries
                }
                false if is_pth(&name) => {
                    has_pth = true;
                    pth::read_header(&file, index)?
                }
                false => safetensors::read_header(&file, index, &mut allowance)?,
            };
            for (tensor, entry) in entries {
                // It is unclear which of two tensors of one name is meant, so neither is taken.
                if checkpoint.tensors.insert(tensor.clone(), entry).is_some() {
                    return Err(CheckpointError::DuplicateTensor { tensor, file: name });
                }
            }
            checkpoint.files.push(file);
            checkpoint.stamps.push(stamp);
        }
        // Other models in such files are refused there.
        if has_pth || rwkv_names::are_official(&checkpoint.tensors) {
            let tensors = std::mem::take(&mut checkpoint.tensors);
            let (tensors, rwkv) = rwkv_names::present(tensors, &checkpoint.files[0].path)?;
            checkpoint.tensors = tensors;
            checkpoint.rwkv = Some(rwkv);
        }
        checkpoint.fused = FusedTensors::of(&checkpoint)?;
        Ok(checkpoint)
    }

    /// The tensor of exactly this name, if there is one.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        let part = || self.fused.parts.get(name);
        self.tensors.get(name).or_else(part)
    }

    /// All tensors by the names that models ask for: parts in the place of what has them.
    fn separate(&self) -> impl Iterator<Item = (&str, &TensorEntry)> {
        let is_whole = |(name, _): &(&String, _)| !self.fused.names.contains(*name);
        let tensors = self.tensors.iter().filter(is_whole);
        let tensors = tensors.chain(&self.fused.parts);
        tensors.map(|(name, entry)| (&name[..], entry))
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// All tensors in the order of their names, each with its size in bytes.
    pub fn tensors(&self) -> impl Iterator<Item = (&TensorEntry, u64)> {
        self.tensors.values().map(|entry| (entry, entry.bytes))
    }

    /// How the tensor of exactly this name is compressed, if it is.
    #[must_use]
    pub fn compressed(&self, name: &str) -> Option<Arc<CompressedTensor>> {
        self.tensor(name)?.compressed.clone()
    }

    /// An entry that reads the tensor's compressed bytes; the same entry if it isn't compressed.
    pub fn as_compressed(entry: &TensorEntry) -> TensorEntry {
        match &entry.compressed {
            Some(coded) => TensorEntry {
                bytes: coded.file_bytes(),
                compressed: None,
                ..entry.clone()
            },
            None => entry.clone(),
        }
    }

    /// Path of a tensor's file, for messages.
    pub fn path_of(&self, entry: &TensorEntry) -> &str {
        &self.files[entry.file].path
    }

    /// Whether it is a container of compressed weights.
    #[must_use]
    pub fn is_container(&self) -> bool {
        self.container_files.is_some()
    }

    /// The file's name for the tensor of this name, for messages.
    pub fn name_in_file(&self, name: &str) -> String {
        match (&self.gguf, &self.rwkv) {
            (Some(gguf), _) => gguf.file_name(&fused::file_name(self, name)),
            (None, Some(rwkv)) => rwkv.file_name(name),
            (None, None) => fused::file_name(self, name),
        }
    }

    /// The format of the tensor of exactly this name and shape.
    ///
    /// # Errors
    /// When it is missing, has another shape, or isn't stored as weights.
    pub fn check(&self, name: &str, shape: &[usize]) -> Result<Format, CheckpointError> {
        // Errors name the tensor as the file does: whoever reads them looks for it there.
        let tensor = || self.name_in_file(name);
        let entry = self
            .tensor(name)
            .ok_or_else(|| CheckpointError::MissingTensor { tensor: tensor() })?;
        let format = entry
            .format
            .clone()
            .map_err(|found| CheckpointError::WrongFormat {
                tensor: tensor(),
                found,
            })?;
        // Operations read vectors, such as norms, element by element: blocks aren't supported there.
        if shape.len() == 1 && format.block_len() > 1 {
            return Err(CheckpointError::WrongFormat {
                tensor: tensor(),
                found: format!("a vector of {}", format.name()),
            });
        }
        // Vectors are stored in any shape, such as [1, 1, n] or a row for each head: their elements lie in order.
        let is_same_vector = || {
            let elements = |sizes: &[usize]| sizes.iter().product::<usize>();
            shape.len() == 1 && elements(&entry.shape) == shape[0]
        };
        if entry.shape != shape && !is_same_vector() {
            return Err(CheckpointError::WrongShape {
                tensor: tensor(),
                found: entry.shape.clone(),
                expected: shape.to_vec(),
            });
        }
        Ok(format)
    }

    /// Checks every tensor that a model needs against the headers.
    ///
    /// # Errors
    /// A missing or wrong-shaped tensor, or one that isn't stored as weights.
    pub fn sources(&self, specs: Vec<TensorSpec>) -> Result<Vec<SourceTensor>, CheckpointError> {
        let source = |spec: TensorSpec| {
            Ok(SourceTensor {
                format: self.check(&spec.name, &spec.shape)?,
                compressed: self.compressed(&spec.name),
                compressed_copy: None,
                mixed: None,
                spec,
            })
        };
        specs.into_iter().map(source).collect()
    }

    /// Reads bytes `part` of a tensor into `out`, which has the same length. Compressed tensors are decompressed,
    /// elements in another order put in order.
    ///
    /// # Errors
    /// When the file gives fewer bytes than its header promised.
    ///
    /// # Panics
    /// When `part` lies outside the tensor.
    pub fn read_part(
        &self,
        entry: &TensorEntry,
        part: Range<u64>,
        out: &mut [u8],
    ) -> Result<(), CheckpointError> {
        debug_assert_eq!(part.end - part.start, out.len() as u64);
        if let Some(compressed) = &entry.compressed {
            return container::decompress(compressed, &self.files[entry.file], &part, out);
        }
        let (file, _) = self.place(entry, &part);
        entry.order.read(part, out, |part, out| {
            file.read_at(entry.offset + part.start, out)
        })
    }

    /// Reads bytes `part` of a tensor past the page cache, in the whole pages that hold them. Returns the offset of the
    /// part in `target`, or `None` if `cancel` was set before all was read. Where the file system has no direct reads,
    /// they go through the page cache.
    ///
    /// # Errors
    /// When the file gives fewer bytes than its header promised.
    ///
    /// # Panics
    /// When `part` lies outside the tensor, or `target` has too few pages for it.
    pub fn read_direct(
        &self,
        entry: &TensorEntry,
        part: Range<u64>,
        target: &mut [Page],
        cancel: &AtomicBool,
    ) -> Result<Option<usize>, CheckpointError> {
        let len = (part.end - part.start) as usize;
        // Neither can be read straight into place: both need memory of their own in between.
        if entry.is_compressed() || !entry.order.is_in_place(&part) {
            let out: &mut [u8] = bytemuck::cast_slice_mut(target);
            self.read_part(entry, part, &mut out[..len])?;
            return Ok(Some(0));
        }
        let (file, offset) = self.place(entry, &part);
        let start = file.read_direct(offset, len, target, cancel)?;
        if let Some(start) = start {
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(target);
            entry.order.sort(&mut bytes[start..start + len]);
        }
        Ok(start)
    }

    /// Reads rows of a compressed tensor, a chunk at a time, and has `take` decompress them. Returns false if `cancel`
    /// was set before all were read.
    ///
    /// # Errors
    /// When the file gives fewer bytes than its header promised, or other ones than an encoder makes.
    ///
    /// # Panics
    /// When the tensor isn't compressed.
    pub fn each_chunk(
        &self,
        entry: &TensorEntry,
        rows: &Range<usize>,
        via: ReadMode,
        cancel: &AtomicBool,
        take: TakeRows<'_>,
    ) -> Result<bool, CheckpointError> {
        let compressed = entry.compressed.as_ref().expect("a coded tensor");
        container::each_chunk(compressed, &self.files[entry.file], rows, via, cancel, take)
    }

    /// Checks that a tensor's file is still what it was when it was opened. Having been deleted, or replaced by another
    /// file of its name, is no change.
    ///
    /// # Errors
    /// [`CheckpointError::Changed`], or when the system cannot say.
    pub fn check_unchanged(&self, entry: &TensorEntry) -> Result<(), CheckpointError> {
        self.files[entry.file].check_unchanged()
    }

    /// Tells the system that bytes `part` of a tensor will be read at once through the page cache. It then reads ahead
    /// in large pieces, where its own guess stays far below the disk's speed.
    ///
    /// # Panics
    /// When `part` lies outside the tensor.
    pub fn will_need(&self, entry: &TensorEntry, part: Range<u64>) {
        if let Some(compressed) = &entry.compressed {
            // Parts of a compressed tensor lie elsewhere in the file than its decompressed bytes say.
            let place = compressed.range_of(&part);
            return self.files[entry.file].will_need(place.start, place.end - place.start);
        }
        let part = match entry.order {
            // Any row of it has elements in all of the file's.
            StoredOrder::Transposed(_) => 0..entry.bytes,
            StoredOrder::Rows | StoredOrder::Interleaved(_) => part,
        };
        let (file, offset) = self.place(entry, &part);
        file.will_need(offset, part.end - part.start);
    }

    /// The file of a tensor, and the offset of bytes `part` in it.
    fn place(&self, entry: &TensorEntry, part: &Range<u64>) -> (&CheckpointFile, u64) {
        assert!(
            part.start <= part.end && part.end <= entry.bytes,
            "a part of a tensor lies inside it"
        );
        (&self.files[entry.file], entry.offset + part.start)
    }

    /// `config.json`, or what a GGUF file, or RWKV's official names, stand for.
    ///
    /// # Errors
    /// When it is missing, too large or no JSON object.
    pub fn config(&self) -> Result<serde_json::Map<String, serde_json::Value>, CheckpointError> {
        if let Some(gguf) = &self.gguf {
            return gguf.config();
        }
        if let Some(rwkv) = &self.rwkv {
            return Ok(rwkv.config().clone());
        }
        let name = "config.json";
        let bytes = self.small_file(name, CONFIG_BYTES_MAX)?.ok_or_else(|| {
            CheckpointError::MissingFile {
                path: file::describe(&self.source, name),
            }
        })?;
        parse_json(&self.source, name, &bytes)
    }

    /// `generation_config.json`, if there is one.
    ///
    /// # Errors
    /// When it is too large or no JSON object.
    pub fn generation_config(
        &self,
    ) -> Result<Option<serde_json::Map<String, serde_json::Value>>, CheckpointError> {
        // GGUF files keep these settings in keys of their own.
        if self.gguf.is_some() {
            return Ok(None);
        }
        let name = "generation_config.json";
        self.small_file(name, CONFIG_BYTES_MAX)?
            .map(|bytes| parse_json(&self.source, name, &bytes))
            .transpose()
    }

    /// The bytes of `tokenizer.json` or RWKV's vocabulary, of `tokenizer_config.json` and of `chat_template.jinja`, if
    /// they exist, or what a GGUF file has in their place. For a GGUF file without a tokenizer they are looked for beside it.
    ///
    /// # Errors
    /// When one cannot be read or is too large.
    pub fn tokenizer(&self) -> Result<Option<TokenizerFiles>, CheckpointError> {
        if let Some(gguf) = &self.gguf
            && let Some(files) = gguf.tokenizer()?
        {
            return Ok(Some(files));
        }
        let mut tokenizer = None;
        for name in TOKENIZERS {
            if tokenizer.is_none() {
                tokenizer = self.small_file(name, TOKENIZER_BYTES_MAX)?;
            }
        }
        let Some(tokenizer) = tokenizer else {
            return Ok(None);
        };
        let config = self.small_file("tokenizer_config.json", TOKENIZER_BYTES_MAX)?;
        let template = self.small_file("chat_template.jinja", TOKENIZER_BYTES_MAX)?;
        Ok(Some(TokenizerFiles {
            tokenizer,
            config,
            template,
        }))
    }

    fn small_file(&self, name: &str, max: u64) -> Result<Option<Vec<u8>>, CheckpointError> {
        match (&self.container_files, &self.files[..]) {
            (Some(inside), [file, ..]) => inside.small_file(file, name, max),
            _ => file::read_small(&self.source, name, max),
        }
    }
}

/// The files that a tokenizer is built from.
#[derive(Debug)]
pub struct TokenizerFiles {
    /// The contents of `tokenizer.json`, or of `rwkv_vocab_v20230424.txt`.
    pub tokenizer: Vec<u8>,
    /// The contents of `tokenizer_config.json`, if it exists.
    pub config: Option<Vec<u8>>,
    /// The contents of `chat_template.jinja`, which newer checkpoints have instead of a key in `tokenizer_config.json`.
    pub template: Option<Vec<u8>>,
}

fn parse_json<T: serde::de::DeserializeOwned>(
    source: &Source,
    name: &str,
    bytes: &[u8],
) -> Result<T, CheckpointError> {
    let malformed = |cause: String| CheckpointError::MalformedFile {
        path: file::describe(source, name),
        cause,
    };
    let text = std::str::from_utf8(bytes)
        .map_err(|error| malformed(format!("not UTF-8 at byte {}", error.valid_up_to())))?;
    serde_json::from_str(text).map_err(|error| malformed(error.to_string()))
}

#[cfg(test)]
mod tests;

#[cfg(target_endian = "big")]
compile_error!("checkpoints are little-endian and are used as they lie on disk");
