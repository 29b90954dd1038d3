//! Copies for level `mild`: matrices compressed losslessly, in a container with nothing else but a note on its origin.
//! Before a copy exists, a sample of each matrix estimates its size.
//!
//! The exponents of bf16 and f32 are dictionary-coded. That takes more bits than Huffman codes (12.0 and 10.7 of 16),
//! but multiplies three times as fast in passes with a single row: who asks for `mild` wants weights that fit, not a
//! slower model. For f16 a dictionary saves only a fiftieth, so it gets Huffman codes (13.6 of 16). Blocks of a GGUF
//! file are not compressed: they have little redundancy.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool, atomic::Ordering},
};

use rayon::prelude::*;
use sluice_codec::{
    Scheme,
    container::{
        CHUNK_ROWS, ContainerError, ContainerPlan, ContainerWriter, Hasher, PlannedTensor,
        journal_of, partial_of,
    },
    encode,
};
use sluice_formats::{DType, Format};
use sluice_machine::Workers;
use sluice_shared::level::Level;
use sluice_weights::{
    CompressionShares, SourceTensor,
    compression::{TILE, coder, compress, compressible_dtype, estimate_compressed},
};

use super::{
    VERSION, check_origin, name_of,
    write::{check_free_space, free_bytes},
};
use crate::{Checkpoint, CheckpointError, Source, TensorEntry};

/// Parts of each matrix that are sampled to estimate its size, and elements of each.
const SAMPLE_PARTS: u64 = 2;
const SAMPLE_ELEMENTS: u64 = 4096;
/// Standard deviations that are added to an estimate, so that the true size hardly ever exceeds the plan.
const SAMPLE_DEVIATIONS: f64 = 3.0;
/// Bytes of rows that are read, compressed by all threads and written in turn, or one chunk if that is more.
const BATCH_BYTES: usize = 8 << 20;
/// Bytes of plain tensors that are copied at once: a multiple of every tile's size.
const PLAIN_BYTES: u64 = 1 << 20;
/// Name of the file inside that says what the copy was made from.
pub(super) const ORIGIN: &str = "origin.json";
/// Longest such file; real ones have some hundred bytes.
const ORIGIN_BYTES_MAX: u64 = 64 << 10;
/// Ending of these copies' names.
pub(super) const EXTENSION: &str = ".sluice";

/// Estimates for each tensor how a copy of it would be compressed, from a sample of its elements.
///
/// # Errors
/// When the sample cannot be read.
pub fn with_estimated_compression(
    checkpoint: &Checkpoint,
    sources: Vec<SourceTensor>,
) -> Result<Vec<SourceTensor>, CheckpointError> {
    // A container's tensors are compressed already.
    if checkpoint.is_container() {
        return Ok(sources);
    }
    let mut estimated = sources;
    for source in &mut estimated {
        let Some((number, entry)) =
            compressible_dtype(source).zip(checkpoint.tensor(&source.spec.name))
        else {
            continue;
        };
        let shares = sample(checkpoint, entry, number)?;
        source.compressed_copy =
            shares.and_then(|shares| estimate_compressed(source, number, shares));
    }
    Ok(estimated)
}

/// Relative sizes of a tensor's codes and escapes, from evenly spaced parts; `None` if it is empty.
fn sample(
    checkpoint: &Checkpoint,
    entry: &TensorEntry,
    dtype: DType,
) -> Result<Option<CompressionShares>, CheckpointError> {
    let size = dtype.bytes() as u64;
    let all = entry.bytes / size;
    let part = SAMPLE_ELEMENTS.min(all / SAMPLE_PARTS);
    let mut bytes = vec![0; (SAMPLE_PARTS * part * size) as usize];
    if bytes.is_empty() {
        return Ok(None);
    }
    for (index, out) in (1..).zip(bytes.chunks_exact_mut((part * size) as usize)) {
        let start = (all - part) * index / (SAMPLE_PARTS + 1) * size;
        checkpoint.read_part(entry, start..start + part * size, out)?;
    }
    let count = (SAMPLE_PARTS * part) as usize;
    let Ok(compressed) = encode(dtype, 1, count, &bytes, coder(dtype).0, TILE) else {
        return Ok(None);
    };
    let count = count as f64;
    let share = |len: usize| {
        // The count of escapes is about binomial, so its standard deviation is about the root of its mean.
        let share = len as f64 / count;
        share + SAMPLE_DEVIATIONS * (share.min(1.0) / count).sqrt()
    };
    Ok(Some(CompressionShares {
        codes: share(compressed.layout.codes_len()),
        // The sample may have missed rare escapes: none found is no proof.
        escapes: share(compressed.layout.escapes_len().max(1)),
    }))
}

/// A checkpoint's compressed copy, whether it exists on disk yet or not.
#[derive(Debug, Clone)]
pub struct CompressedWeights {
    source: Arc<Checkpoint>,
    folder: PathBuf,
    name: String,
    fingerprint: String,
    matrices: Vec<Matrix>,
}

/// A tensor that is compressed.
#[derive(Debug, Clone)]
struct Matrix {
    name: String,
    size: (usize, usize),
    format: Format,
    dtype: DType,
    /// Estimated size in bytes.
    bytes: u64,
}

impl Matrix {
    fn plain_bytes(&self) -> u64 {
        (self.size.0 * self.format.bytes(self.size.1)) as u64
    }
}

impl CompressedWeights {
    /// The copy with all tensors that are worth compressing by their estimate; `None` if there are none.
    ///
    /// # Errors
    /// When the source cannot be read.
    pub fn new(
        folder: &Path,
        source: &Arc<Checkpoint>,
        sources: &[SourceTensor],
    ) -> Result<Option<Self>, CheckpointError> {
        // A tied LM head is the embedding's tensor, which isn't compressed under that role.
        let mut known = HashSet::new();
        let matrices: Vec<Matrix> = sources
            .iter()
            .filter_map(|tensor| {
                // A matrix that saves too little isn't in the copy, and is read from the checkpoint.
                let compressed = tensor.compressed_copy.as_ref()?;
                let matrix = Matrix {
                    name: tensor.spec.name.clone(),
                    size: tensor.spec.size(),
                    format: tensor.format,
                    dtype: tensor.format.dtype()?,
                    bytes: compressed.file_bytes(),
                };
                known.insert(tensor.spec.name.clone()).then_some(matrix)
            })
            .collect();
        if matrices.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self {
            folder: folder.to_owned(),
            name: name_of(source),
            fingerprint: source.fingerprint()?,
            source: Arc::clone(source),
            matrices,
        }))
    }

    /// Path of its file.
    pub fn path(&self) -> PathBuf {
        let Self {
            name, fingerprint, ..
        } = self;
        let level = Level::Mild;
        self.folder
            .join(format!("{name}-{fingerprint}-{level}{EXTENSION}"))
    }

    /// Bytes of these tensors before compression.
    pub fn plain_bytes(&self) -> u64 {
        self.matrices.iter().map(Matrix::plain_bytes).sum()
    }

    /// Opens the copy, if it exists and was compared with its checksums since it changed last.
    ///
    /// # Errors
    /// When a file of this name cannot be read or isn't this copy.
    pub fn open_verified(&self) -> Result<Option<Checkpoint>, CheckpointError> {
        let copy = self.open()?;
        Ok(copy.filter(|copy| copy.is_verified(&self.folder)))
    }

    /// Opens the copy, if it exists, and compares it with its checksums, unless that was done since it changed last. A
    /// damaged one is removed. Returns `None` also if cancelled.
    ///
    /// # Errors
    /// When a file of this name cannot be read, isn't this copy, or is damaged.
    pub fn open_and_verify(
        &self,
        cancel: &AtomicBool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Option<Checkpoint>, CheckpointError> {
        let Some(copy) = self.open()? else {
            return Ok(None);
        };
        match copy.verify(Some(&self.folder), cancel, progress) {
            Ok(is_whole) => Ok(is_whole.then_some(copy)),
            Err(error) => {
                // It would be found damaged again by the next load; if it cannot be removed, writing replaces it.
                drop(fs::remove_file(self.path()));
                Err(error)
            }
        }
    }

    /// Opens the copy, if it exists.
    fn open(&self) -> Result<Option<Checkpoint>, CheckpointError> {
        let path = self.path();
        // If existence cannot be determined, opening gives the error.
        if !path.try_exists().unwrap_or(true) {
            return Ok(None);
        }
        let copy = Checkpoint::open(&Source::Folder(path.clone()))?;
        let malformed = |cause: String| CheckpointError::MalformedFile {
            path: path.display().to_string(),
            cause,
        };
        let said = said_by(&copy)?.ok_or_else(|| malformed(format!("it has no {ORIGIN}")))?;
        check_origin(&said, &self.fingerprint, Level::Mild).map_err(malformed)?;
        for Matrix {
            name, size, format, ..
        } in &self.matrices
        {
            let found = copy.check(name, &[size.0, size.1])?;
            if found != *format {
                let (found, format) = (found.name(), format.name());
                return Err(malformed(format!("tensor {name} is {found}, not {format}")));
            }
        }
        Ok(Some(copy))
    }

    /// Writes the copy on these threads, unless an intact one is there. `progress` is told how many uncompressed bytes are
    /// done. Returns `None` if cancelled. Unless all goes well, nothing is left of it; what a killed run has left complete
    /// is taken over.
    ///
    /// # Errors
    /// When a file operation fails, free space is too little, or the source changed.
    pub fn write(
        &self,
        workers: &Workers,
        cancel: &AtomicBool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<Checkpoint>, CheckpointError> {
        // Whoever looked for one may have had no time to compare it. One that is not usable is replaced.
        if let Ok(Some(copy)) = self.open_and_verify(cancel, &mut |_, _| {}) {
            return Ok(Some(copy));
        }
        let path = self.path();
        let refused = |cause| CheckpointError::WeightCache {
            path: path.clone(),
            cause,
        };
        fs::create_dir_all(&self.folder).map_err(refused)?;
        let compressed_bytes: u64 = self.matrices.iter().map(|matrix| matrix.bytes).sum();
        // What an interrupted run has written needs no more space.
        let begun_bytes = fs::metadata(partial_of(&path)).map_or(0, |file| file.len());
        let needed_bytes = compressed_bytes.saturating_sub(begun_bytes);
        check_free_space(needed_bytes, free_bytes(&self.folder).map_err(refused)?)
            .map_err(refused)?;
        let planned = |matrix: &Matrix| PlannedTensor {
            name: matrix.name.clone(),
            shape: vec![matrix.size.0, matrix.size.1],
            dtype: matrix.format.name().to_owned(),
            // One extent for all: readers of a copy find each tensor by its own offset.
            extent: ORIGIN.to_owned(),
        };
        let origin = super::origin(&self.source, &self.fingerprint, Level::Mild);
        let origin = serde_json::to_string(&origin).expect("words make JSON");
        let plan = ContainerPlan {
            tile: TILE,
            tensors: self.matrices.iter().map(planned).collect(),
            shards: Vec::new(),
            identity: format!("{VERSION} {origin}"),
            files: vec![(ORIGIN.to_owned(), origin.into_bytes())],
        };
        let mut done_bytes = 0;
        let begun = ContainerWriter::begin(&path, plan, cancel, &mut |whole| {
            done_bytes += self.matrices[whole - 1].plain_bytes();
        });
        let written = begun.map_err(Interrupt::from).and_then(|mut writer| {
            let mut work = Work {
                weights: self,
                writer: &mut writer,
                workers,
                cancel,
                done_bytes,
                progress,
            };
            let written = work.write();
            let written = match written {
                // Replaces a copy that another version has written, whose name is the same.
                Ok(()) => writer.finish(true).map(drop).map_err(Interrupt::from),
                // The writer keeps the files locked until they are removed, so that another writer of the same copy
                // begins with files of its own.
                refused => refused,
            };
            if written.is_err() {
                self.remove_unfinished();
            }
            written
        });
        match written {
            Ok(()) => {}
            Err(Interrupt::Cancelled) => return Ok(None),
            Err(Interrupt::Refused(cause)) => return Err(refused(cause)),
            Err(Interrupt::Source(error)) => return Err(error),
        }
        match self.open()? {
            Some(copy) => {
                copy.remember_written(&self.folder);
                Ok(Some(copy))
            }
            None => Err(refused(io::ErrorKind::NotFound.into())),
        }
    }

    fn remove_unfinished(&self) {
        let path = self.path();
        for path in [partial_of(&path), journal_of(&path)] {
            // The error that led here matters more.
            drop(fs::remove_file(path));
        }
    }
}

/// Why the copy could not be written.
enum Interrupt {
    Cancelled,
    Refused(io::Error),
    Source(CheckpointError),
}

impl From<ContainerError> for Interrupt {
    fn from(error: ContainerError) -> Self {
        match error {
            ContainerError::Cancelled => Self::Cancelled,
            ContainerError::Io { cause, .. } => Self::Refused(cause),
            other => Self::Refused(io::Error::other(other)),
        }
    }
}

impl From<CheckpointError> for Interrupt {
    fn from(error: CheckpointError) -> Self {
        Self::Source(error)
    }
}

/// Compresses tensor by tensor.
struct Work<'a> {
    weights: &'a CompressedWeights,
    writer: &'a mut ContainerWriter,
    workers: &'a Workers,
    cancel: &'a AtomicBool,
    done_bytes: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl Work<'_> {
    fn write(&mut self) -> Result<(), Interrupt> {
        let copy = self.weights;
        while let Some(next) = self.writer.next() {
            let matrix = &copy.matrices[next];
            let entry = copy.source.tensor(&matrix.name);
            let entry = entry.expect("it was sampled when the copy was thought of");
            self.compress(matrix, entry)?;
            (self.progress)(self.done_bytes);
        }
        // Once more at the end, before the copy gets its name.
        Ok(copy.source.check_all_unchanged()?)
    }

    fn compress(&mut self, matrix: &Matrix, entry: &TensorEntry) -> Result<(), Interrupt> {
        let (_, scheme) = coder(matrix.dtype);
        let width = matrix.size.1;
        let row_bytes = matrix.format.bytes(width);
        let chunk_bytes = CHUNK_ROWS * row_bytes;
        let batch_bytes = (BATCH_BYTES / chunk_bytes).max(1) * chunk_bytes;
        let before = self.done_bytes;
        let workers = self.workers;
        let mut hasher = Hasher::default();
        self.writer.begin_tensor(scheme)?;
        self.each_piece(entry, batch_bytes as u64, |work, bytes| {
            hasher.update(bytes);
            let mut compressed = Ok(Vec::new());
            // Workers share the machine with passes: they compress beside a generation, not instead of it.
            workers.run_beside(|busy| {
                let chunks = bytes.par_chunks(chunk_bytes);
                let compressed_rows = |chunk: &[u8]| {
                    let rows = chunk.len() / row_bytes;
                    busy.during(|| compress(matrix.dtype, rows, width, chunk))
                };
                compressed = chunks.map(compressed_rows).collect();
            });
            for chunk in compressed.map_err(|error| Interrupt::Refused(io::Error::other(error)))? {
                work.writer.chunk(&chunk.layout, &chunk.bytes)?;
            }
            work.done_bytes += bytes.len() as u64;
            (work.progress)(work.done_bytes);
            Ok(())
        })?;
        if self.writer.tensor_bytes() >= entry.bytes {
            // The sample was not typical of this tensor.
            self.writer.begin_tensor(Scheme::Plain)?;
            self.each_piece(entry, PLAIN_BYTES, |work, bytes| {
                Ok(work.writer.plain(bytes)?)
            })?;
        }
        debug_assert_eq!(self.done_bytes, before + entry.bytes);
        Ok(self.writer.end_tensor(hasher.finish())?)
    }

    /// Reads a tensor piece by piece.
    fn each_piece(
        &mut self,
        entry: &TensorEntry,
        piece_bytes: u64,
        mut each: impl FnMut(&mut Self, &[u8]) -> Result<(), Interrupt>,
    ) -> Result<(), Interrupt> {
        let source = &self.weights.source;
        // Looked at for each tensor, so that a changed source is noticed before gigabytes are read.
        source.check_unchanged(entry)?;
        let mut buffer = vec![0; entry.bytes.min(piece_bytes) as usize];
        for start in (0..entry.bytes).step_by(piece_bytes as usize) {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(Interrupt::Cancelled);
            }
            let end = (start + piece_bytes).min(entry.bytes);
            let buffer = &mut buffer[..(end - start) as usize];
            source.read_part(entry, start..end, buffer)?;
            each(self, buffer)?;
        }
        Ok(())
    }
}

/// What a copy's file says of its origin; `None` for other files.
pub(super) fn origin(path: &Path) -> Option<HashMap<String, String>> {
    let copy = Checkpoint::open(&Source::Folder(path.to_owned())).ok()?;
    said_by(&copy).ok()?
}

pub(super) fn said_by(
    copy: &Checkpoint,
) -> Result<Option<HashMap<String, String>>, CheckpointError> {
    let said = copy.small_file(ORIGIN, ORIGIN_BYTES_MAX)?;
    Ok(said.and_then(|said| serde_json::from_slice(&said).ok()))
}
