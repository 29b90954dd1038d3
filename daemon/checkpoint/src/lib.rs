//! Reading checkpoints as people have them: Hugging Face folders with safetensors, sharded
//! or not, and GGUF files. Headers are checked first; then each tensor is read straight to where
//! it will live. Files are not mapped: one cut short under a mapping would kill the process.

mod bandwidth;
pub mod compression;
mod container;
mod error;
pub mod family;
mod file;
mod find;
mod folder;
pub mod gguf;
mod recommended;
mod safetensors;
pub mod synth;
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
    bandwidth::disk_bandwidth,
    container::{ReadMode, TakeRows},
    error::CheckpointError,
    recommended::RecommendedSettings,
    weight_cache::{CachedWeights, RemovedWeights, cached_weights, remove_cached},
};
use self::{
    container::ContainerFiles,
    file::CheckpointFile,
    find::{is_container, is_gguf, weight_files},
    gguf::{Gguf, Interleaved},
    weight_cache::FileStamp,
};

/// Where a checkpoint is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A Hugging Face folder, a `.safetensors` file in one, a `.gguf` or `.sluice` file, or a folder with one.
    Folder(PathBuf),
    /// Files inside the program: name and bytes.
    Embedded(&'static [(&'static str, &'static [u8])]),
}

/// Largest `config.json` and the like; published ones stay below 10 KiB.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Largest tokenizer; that of a vocabulary of 250,000 is about 35 MB.
const TOKENIZER_BYTES_MAX: u64 = 256 << 20;

/// An opened checkpoint whose headers hold together.
#[derive(Debug)]
pub struct Checkpoint {
    source: Source,
    files: Vec<CheckpointFile>,
    /// Of each file, where it lies on disk.
    stamps: Vec<Option<FileStamp>>,
    tensors: BTreeMap<String, TensorEntry>,
    /// What the file says besides, where it is a GGUF file.
    gguf: Option<Gguf>,
    /// The files inside, where it is a container.
    container_files: Option<ContainerFiles>,
}

/// A tensor as its file's header tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry {
    /// `None` for element types that are no weights here, by the header's name.
    pub format: Result<Format, String>,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    file: usize,
    offset: u64,
    bytes: u64,
    /// How its rows are stored, if not in order.
    interleaved: Option<Interleaved>,
    /// How they are coded, if they are; its bytes are those that they are decoded to.
    compressed: Option<Arc<CompressedTensor>>,
}

impl TensorEntry {
    /// Whether reading it decodes it.
    pub fn is_compressed(&self) -> bool {
        self.compressed.is_some()
    }

    /// How it is coded, if it is.
    pub fn compressed(&self) -> Option<Arc<CompressedTensor>> {
        self.compressed.clone()
    }
}

impl Checkpoint {
    /// Shows others that its files are in use from now on, and when they were last.
    pub fn hold(&self) {
        self.files.iter().for_each(CheckpointFile::hold);
    }

    /// Its files are no longer in use, though they stay open.
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
            gguf: None,
            container_files: None,
        };
        // A container holds a whole model, and lies beside nothing.
        if let (true, Some(shard)) = (
            names.len() > 1,
            names.iter().find(|name| is_container(name)),
        ) {
            return Err(CheckpointError::MalformedFile {
                path: file::describe(&checkpoint.source, shard),
                cause: "a .sluice file cannot be a shard".to_owned(),
            });
        }
        for name in names {
            let stamp = FileStamp::of(&checkpoint.source, &name);
            let file = CheckpointFile::open(&checkpoint.source, &name)?;
            // Another file may have taken the name in between.
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
                false => safetensors::read_header(&file, index)?,
            };
            for (tensor, entry) in entries {
                if checkpoint.tensors.insert(tensor.clone(), entry).is_some() {
                    return Err(CheckpointError::DuplicateTensor { tensor, file: name });
                }
            }
            checkpoint.files.push(file);
            checkpoint.stamps.push(stamp);
        }
        Ok(checkpoint)
    }

    /// The tensor of exactly this name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.tensors.get(name)
    }

    /// The names of all tensors, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// All tensors, in the order of their names, each with its bytes.
    pub fn tensors(&self) -> impl Iterator<Item = (&TensorEntry, u64)> {
        self.tensors.values().map(|entry| (entry, entry.bytes))
    }

    /// How the tensor of exactly this name is coded, if it is.
    #[must_use]
    pub fn compressed(&self, name: &str) -> Option<Arc<CompressedTensor>> {
        self.tensor(name)?.compressed.clone()
    }

    /// The same tensor's bytes as they are coded; itself where it isn't.
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

    /// How messages name the file of a tensor.
    pub fn path_of(&self, entry: &TensorEntry) -> &str {
        &self.files[entry.file].path
    }

    /// Whether it is a container of coded weights.
    #[must_use]
    pub fn is_container(&self) -> bool {
        self.container_files.is_some()
    }

    /// What the file calls the tensor of this name, for messages.
    pub fn name_in_file(&self, name: &str) -> String {
        match &self.gguf {
            Some(gguf) => gguf.file_name(name),
            None => name.to_owned(),
        }
    }

    /// The format of the tensor of exactly this name and shape.
    ///
    /// # Errors
    /// When it is missing, has another shape, or isn't stored as weights.
    pub fn check(&self, name: &str, shape: &[usize]) -> Result<Format, CheckpointError> {
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
        // Norms and the like, of which no blocks are made.
        if shape.len() == 1 && format.block_len() > 1 {
            return Err(CheckpointError::WrongFormat {
                tensor: tensor(),
                found: format!("a vector of {}", format.name()),
            });
        }
        if entry.shape != shape {
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
                spec,
            })
        };
        specs.into_iter().map(source).collect()
    }

    /// Reads the bytes `part` of a tensor into `out`, which must have their number.
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
        if let Some(coded) = &entry.compressed {
            return container::decompress(coded, &self.files[entry.file], &part, out);
        }
        let (file, offset) = self.place(entry, &part);
        match entry.interleaved {
            Some(halves) => halves.read(part, out, |part, out| {
                file.read_at(entry.offset + part.start, out)
            }),
            None => file.read_at(offset, out),
        }
    }

    /// Reads the bytes `part` of a tensor past the page cache, in the whole pages that hold
    /// them, and says where in `target` they start; `None` when `cancel` was set before all
    /// were there. Where the file system has no such reads, they go through the page cache.
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
        let is_in_pieces = |halves: Interleaved| !halves.is_whole(&part);
        if entry.is_compressed() || entry.interleaved.is_some_and(is_in_pieces) {
            let out: &mut [u8] = bytemuck::cast_slice_mut(target);
            self.read_part(entry, part, &mut out[..len])?;
            return Ok(Some(0));
        }
        let (file, offset) = self.place(entry, &part);
        let start = file.read_direct(offset, len, target, cancel)?;
        if let (Some(halves), Some(start)) = (entry.interleaved, start) {
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(target);
            halves.sort(&mut bytes[start..start + len]);
        }
        Ok(start)
    }

    /// Reads these rows of a tensor that is coded, a chunk at a time, and has `take` decode them; false when `cancel` was set
    /// before all were there.
    ///
    /// # Errors
    /// When the file gives fewer bytes than its header promised, or other ones than an encoder makes.
    ///
    /// # Panics
    /// When the tensor isn't coded.
    pub fn each_chunk(
        &self,
        entry: &TensorEntry,
        rows: &Range<usize>,
        via: ReadMode,
        cancel: &AtomicBool,
        take: TakeRows<'_>,
    ) -> Result<bool, CheckpointError> {
        let coded = entry.compressed.as_ref().expect("a coded tensor");
        container::each_chunk(coded, &self.files[entry.file], rows, via, cancel, take)
    }

    /// Whether the file that holds a tensor still is what it was when it was opened. To have
    /// been deleted, or replaced by another of its name, is no change.
    ///
    /// # Errors
    /// [`CheckpointError::Changed`], or when the system can't say.
    pub fn check_unchanged(&self, entry: &TensorEntry) -> Result<(), CheckpointError> {
        self.files[entry.file].check_unchanged()
    }

    /// Tells the system that the bytes `part` of a tensor will be read at once, through the page cache: it then fetches
    /// them in large pieces, where its own guess of what comes next stays far below a disk's speed.
    ///
    /// # Panics
    /// When `part` lies outside the tensor.
    pub fn will_need(&self, entry: &TensorEntry, part: Range<u64>) {
        if let Some(coded) = &entry.compressed {
            let place = coded.range_of(&part);
            return self.files[entry.file].will_need(place.start, place.end - place.start);
        }
        let (file, offset) = self.place(entry, &part);
        file.will_need(offset, part.end - part.start);
    }

    /// Where the bytes `part` of a tensor lie.
    fn place(&self, entry: &TensorEntry, part: &Range<u64>) -> (&CheckpointFile, u64) {
        assert!(
            part.start <= part.end && part.end <= entry.bytes,
            "a part of a tensor lies inside it"
        );
        (&self.files[entry.file], entry.offset + part.start)
    }

    /// `config.json`, or what a GGUF file has in its place.
    ///
    /// # Errors
    /// When it is missing, too large or no JSON object.
    pub fn config(&self) -> Result<serde_json::Map<String, serde_json::Value>, CheckpointError> {
        if let Some(gguf) = &self.gguf {
            return gguf.config();
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
        if self.gguf.is_some() {
            return Ok(None);
        }
        let name = "generation_config.json";
        self.small_file(name, CONFIG_BYTES_MAX)?
            .map(|bytes| parse_json(&self.source, name, &bytes))
            .transpose()
    }

    /// The bytes of `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`, if they are there, or what a GGUF
    /// file has in their place. Beside one without a tokenizer they are looked for, too.
    ///
    /// # Errors
    /// When one can't be read or is too large.
    pub fn tokenizer(&self) -> Result<Option<TokenizerFiles>, CheckpointError> {
        if let Some(gguf) = &self.gguf
            && let Some(files) = gguf.tokenizer()?
        {
            return Ok(Some(files));
        }
        let Some(tokenizer) = self.small_file("tokenizer.json", TOKENIZER_BYTES_MAX)? else {
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

/// What a tokenizer is made from.
#[derive(Debug)]
pub struct TokenizerFiles {
    /// `tokenizer.json`.
    pub tokenizer: Vec<u8>,
    /// `tokenizer_config.json`.
    pub config: Option<Vec<u8>>,
    /// `chat_template.jinja`, which newer checkpoints have instead of a key of the file before.
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
