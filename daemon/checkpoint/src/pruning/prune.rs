//! Writes a pruned model: chooses by a first reading of all weights, and writes what stays in a second.

use std::{
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use rayon::prelude::*;
use sluice_codec::{
    Lossless, Scheme,
    container::{
        CHUNK_ROWS, CompressionRules, ContainerError, ContainerPlan, ContainerWriter, Hash, Hasher,
        PlannedTensor, TensorTreatment, extent_name,
    },
    encode,
};
use sluice_shared::{compression::TILE_ELEMENTS_DEFAULT, pruning::PruneScore};
use sluice_weights::{Shape, SourceTensor};

use super::{
    PruneShares, PruningRecord, RECORD_FILE,
    choose::{choose, most_removed},
    dtype,
    inputs::LayerInputs,
    keep::KeptParts,
    score::score,
};
use crate::{
    Checkpoint, Source, TensorEntry,
    compression::{
        CompressError, ModelFiles, Progress, ProgressBytes, PruneError, SourceCheck,
        check_free_space, check_target, container_of, dtype_name, in_order, pool, read_pieces,
        stop_if,
    },
    features::{Feature, FeatureRefusal, Features},
    find::weight_files,
};

/// Changed when the same options lead to other bytes, so that no file consists of two versions.
const REVISION: u32 = 1;
/// Bytes that are read, and compressed, at once.
const BATCH_BYTES: usize = 32 << 20;
/// Elements of a tile.
const TILE: usize = TILE_ELEMENTS_DEFAULT as usize;

/// What to prune, and by what.
#[derive(Debug, Clone, PartialEq)]
pub struct PruneOptions {
    /// Shares to remove.
    pub shares: PruneShares,
    /// What units are chosen by.
    pub score: PruneScore,
    /// Whether the weights that stay make up for those that go.
    pub compensate: bool,
    /// The model's calibration, which compensation and some scores need.
    pub calibration: Option<PathBuf>,
    /// Number of threads; 0 for one per core.
    pub threads: usize,
    /// Whether an existing target is replaced.
    pub replace: bool,
}

impl PruneOptions {
    /// The calibration, where something needs it.
    fn inputs<'a>(
        &self,
        checkpoint: &'a Checkpoint,
        shape: &'a Shape,
    ) -> Result<Option<LayerInputs<'a>>, CompressError> {
        let needs_score = self.score.needs_calibration();
        let Some(path) = (self.calibration.as_ref()).filter(|_| needs_score || self.compensate)
        else {
            return match (needs_score, self.compensate) {
                (true, _) => Err(PruneError::ScoreWithoutCalibration { score: self.score }.into()),
                (_, true) => Err(PruneError::CompensationWithoutCalibration.into()),
                _ => Ok(None),
            };
        };
        let inputs = LayerInputs::open(path, checkpoint, shape)?;
        let needs_matrices = self.compensate || self.score == PruneScore::Obs;
        match needs_matrices && !inputs.is_full() {
            true => Err(PruneError::DiagonalOnly.into()),
            false => Ok(Some(inputs)),
        }
    }
}

/// A pruned file.
#[derive(Debug, Clone, PartialEq)]
pub struct PruneResult {
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes of the uncompressed weights before.
    pub original_bytes: u64,
    /// Bytes of the uncompressed weights that are left.
    pub kept_bytes: u64,
    /// What was removed from what.
    pub record: PruningRecord,
    /// Number of tensors that were taken over from an interrupted run.
    pub resumed: usize,
    /// Names of files beside the weights that the file doesn't include.
    pub skipped_files: Vec<String>,
}

/// Prunes a model, and writes what is left to a container, losslessly compressed. The file has a temporary name until
/// it is complete; a later run with the same options goes on after the last complete tensor.
///
/// # Errors
/// A model that cannot be pruned, shares that leave nothing or remove nothing, a source that cannot be read or changes
/// meanwhile, a target that exists, a file operation that failed, or `cancel` set.
pub fn prune(
    source: &Source,
    target: &Path,
    options: &PruneOptions,
    check: SourceCheck<'_>,
    cancel: &AtomicBool,
    progress: Progress<'_>,
) -> Result<PruneResult, CompressError> {
    options.shares.check()?;
    if !options.replace && target.symlink_metadata().is_ok() {
        return Err(CompressError::Container(ContainerError::Exists {
            path: target.display().to_string(),
        }));
    }
    let checkpoint = Checkpoint::open(source)?;
    let (folder, shards) = weight_files(source)?;
    let path = match &folder {
        Source::Folder(folder) => folder.join(&shards[0]),
        Source::Embedded(_) => shards[0].clone().into(),
    };
    let not_prunable = |reason| PruneError::NotPrunable {
        path: path.clone(),
        reason,
    };
    if checkpoint.gguf.is_some() {
        return Err(not_prunable("is a GGUF file, whose weights are quantized").into());
    }
    let config = checkpoint.model()?;
    match Features::of(&config).refusal(Feature::Prune) {
        None => {}
        Some(FeatureRefusal::Because(reason)) if config.router.is_some() => {
            return Err(not_prunable(reason).into());
        }
        Some(_) => return Err(PruneError::WithoutAttention { path }.into()),
    }
    let shape = config.shape;
    if checkpoint.pruning(&shape)?.is_some() {
        return Err(not_prunable("was pruned already").into());
    }
    let is_quantized = |tensor: &SourceTensor| {
        let compressed = tensor.compressed.as_ref();
        compressed.is_some_and(|compressed| !compressed.scheme().is_lossless())
    };
    if checkpoint.model_sources(&shape)?.iter().any(is_quantized) {
        return Err(not_prunable("has quantized weights").into());
    }
    let inputs = options.inputs(&checkpoint, &shape)?;
    let mut checked = |done_bytes, total_bytes| {
        (check.progress)(ProgressBytes {
            done_bytes,
            total_bytes,
        });
    };
    if !checkpoint.verify(check.remembered, cancel, &mut checked)? {
        return Err(CompressError::Cancelled);
    }
    let mut files = files(source, &folder, &shards)?;
    let taken = files.taken.iter().map(|(name, _)| name);
    check_target(target, &folder, shards.iter().chain(taken))?;
    let pool = pool(options.threads)?;
    let tensors = in_order(&checkpoint);
    let original_bytes: u64 = tensors.iter().map(|(_, entry)| entry.bytes).sum();
    let mut done_bytes = 0;
    // Everything is read twice: to choose, and to write.
    let mut advance = |name: &str, bytes: u64| {
        done_bytes += bytes;
        progress(
            name,
            ProgressBytes {
                done_bytes,
                total_bytes: 2 * original_bytes,
            },
        );
    };
    let scored =
        pool.install(|| score(&checkpoint, &shape, options.score, cancel, &mut advance))?;
    let mut scores = scored.layers;
    if let Some(inputs) = inputs
        .as_ref()
        .filter(|_| options.score.needs_calibration())
    {
        let most = most_removed(&shape, options.shares);
        for (layer, scores) in scores.iter_mut().enumerate() {
            // A layer of a large model takes minutes.
            stop_if(cancel)?;
            *scores = pool.install(|| inputs.scores(layer, options.score, most))?;
        }
    }
    let record = PruningRecord {
        source_hash: scored.source_hash.to_string(),
        score: options.score,
        shares: options.shares,
        calibration_hash: inputs.as_ref().map(|inputs| inputs.hash().to_string()),
        is_compensated: options.compensate,
        kv_heads: shape.kv_heads,
        channels: shape.intermediate_size,
        layers: choose(&shape, options.shares, &scores)?,
    };
    let specs = shape.tensors();
    let kept: Vec<KeptParts> = (tensors.iter())
        .map(|(name, _)| {
            let spec = specs.iter().find(|spec| spec.name == *name);
            spec.map_or_else(KeptParts::default, |spec| {
                KeptParts::of(spec, &shape, &record.layers[spec.layer])
            })
        })
        .collect();
    files
        .taken
        .push((RECORD_FILE.to_owned(), record.to_bytes()));
    let planned: Vec<PlannedTensor> = (tensors.iter().zip(&kept))
        .map(|((name, entry), kept)| PlannedTensor {
            name: (*name).to_owned(),
            shape: kept.shape(&entry.shape),
            dtype: dtype_name(entry),
            extent: extent_name(name).to_owned(),
        })
        .collect();
    let kept_bytes = (tensors.iter().zip(&kept))
        .map(|((_, entry), kept)| kept.bytes(entry))
        .sum();
    // As for a compressed file: losslessly compressed weights take half at least.
    check_free_space(target, kept_bytes / 2)?;
    let plan = ContainerPlan {
        tile: TILE,
        tensors: planned,
        // The source's files cannot be made of what is left of them.
        shards: Vec::new(),
        identity: identity(&scored.source_hash, &files),
        files: files.taken,
    };
    let mut resumed = 0;
    let mut writer = ContainerWriter::begin(target, plan, cancel, &mut |whole| {
        let (name, entry) = tensors[whole - 1];
        resumed = whole;
        advance(name, entry.bytes);
    })?;
    while let Some(next) = writer.next() {
        let (name, entry) = tensors[next];
        let made = match (&inputs, &kept[next].columns) {
            (Some(inputs), Some(columns)) if options.compensate => {
                stop_if(cancel)?;
                let spec = specs.iter().find(|spec| spec.name == name);
                let spec = spec.expect("only the model's tensors lose columns");
                let columns: Vec<usize> = columns.iter().cloned().flatten().collect();
                Some(pool.install(|| inputs.compensated(spec, &columns))?)
            }
            _ => None,
        };
        let mut work = TensorWork {
            checkpoint: &checkpoint,
            name,
            entry,
            kept: &kept[next],
            made,
            writer: &mut writer,
            cancel,
        };
        pool.install(|| work.write())?;
        advance(name, entry.bytes);
    }
    checkpoint.check_all_unchanged()?;
    stop_if(cancel)?;
    let made = writer.finish(options.replace)?;
    Ok(PruneResult {
        bytes: made.bytes,
        original_bytes,
        kept_bytes,
        record,
        resumed,
        skipped_files: files.skipped,
    })
}

/// The files beside the weights: in the folder, or in a container.
fn files(source: &Source, folder: &Source, shards: &[String]) -> Result<ModelFiles, CompressError> {
    let Some(container) = container_of(source)? else {
        return ModelFiles::beside(folder, shards);
    };
    let mut files = ModelFiles::default();
    for file in &container.header().files {
        files
            .taken
            .push((file.name.clone(), container.read_file(file)?));
    }
    Ok(files)
}

/// Identity of a run: the source, and the files with what was chosen.
fn identity(source_hash: &Hash, files: &ModelFiles) -> String {
    let mut hasher = Hasher::default();
    for (name, bytes) in &files.taken {
        hasher.update(name.as_bytes());
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    }
    format!(
        "pruned, revision {REVISION}, {source_hash} and {}, tiles of {TILE}",
        hasher.finish()
    )
}

/// What stays of one tensor, on its way to the file.
struct TensorWork<'a> {
    checkpoint: &'a Checkpoint,
    name: &'a str,
    entry: &'a TensorEntry,
    kept: &'a KeptParts,
    /// All that stays, where it was changed.
    made: Option<Vec<u8>>,
    writer: &'a mut ContainerWriter,
    cancel: &'a AtomicBool,
}

impl TensorWork<'_> {
    fn write(&mut self) -> Result<(), CompressError> {
        let shape = self.kept.shape(&self.entry.shape);
        let rules = CompressionRules::default();
        let treatment = rules.treatment(self.name, &shape, &dtype_name(self.entry));
        if let (TensorTreatment::Lossless, Some(dtype), Some(&width)) =
            (treatment, dtype(self.entry), shape.last())
        {
            self.writer.begin_tensor(Scheme::Huffman)?;
            let row_bytes = width * dtype.bytes();
            let chunk_bytes = CHUNK_ROWS * row_bytes;
            let batch_bytes = (BATCH_BYTES / chunk_bytes).max(1) * chunk_bytes;
            let name = self.name;
            let hash = self.each_batch(batch_bytes, |writer, bytes| {
                let chunks = bytes.par_chunks(chunk_bytes).map(|chunk| {
                    let rows = chunk.len() / row_bytes;
                    encode(dtype, rows, width, chunk, Lossless::Huffman, TILE)
                });
                let chunks: Result<Vec<_>, _> = chunks.collect();
                let chunks = chunks.map_err(|cause| CompressError::Encode {
                    tensor: name.to_owned(),
                    cause,
                })?;
                for chunk in chunks {
                    writer.chunk(&chunk.layout, &chunk.bytes)?;
                }
                Ok(())
            })?;
            // Weights without a pattern get longer by the overhead of a code.
            if self.writer.tensor_bytes() < self.kept.bytes(self.entry) {
                return Ok(self.writer.end_tensor(hash)?);
            }
        }
        self.writer.begin_tensor(Scheme::Plain)?;
        // The writer takes whole tiles; this is a multiple of every tile's size.
        const { assert!(BATCH_BYTES.is_multiple_of(4096)) };
        let hash = self.each_batch(BATCH_BYTES, |writer, bytes| Ok(writer.plain(bytes)?))?;
        Ok(self.writer.end_tensor(hash)?)
    }

    /// Gives what stays in batches of so many bytes, the last of them shorter, and returns the hash of all.
    fn each_batch(
        &mut self,
        batch_bytes: usize,
        mut each: impl FnMut(&mut ContainerWriter, &[u8]) -> Result<(), CompressError>,
    ) -> Result<Hash, CompressError> {
        let (kept, writer) = (self.kept, &mut *self.writer);
        let mut hasher = Hasher::default();
        let mut pending: Vec<u8> = Vec::new();
        let mut flush = |pending: &mut Vec<u8>, least: usize| {
            let mut taken = 0;
            while pending.len() - taken >= least.max(1) {
                let batch = &pending[taken..pending.len().min(taken + batch_bytes)];
                hasher.update(batch);
                each(writer, batch)?;
                taken += batch.len();
            }
            pending.drain(..taken);
            Ok::<_, CompressError>(())
        };
        if let Some(mut made) = self.made.clone() {
            flush(&mut made, 1)?;
            return Ok(hasher.finish());
        }
        let mut row = 0;
        // Tensors of which rows or columns are taken have elements of a known size; a vector's rows are its elements.
        let (width, element_bytes) = match (dtype(self.entry), &self.entry.shape[..]) {
            (Some(dtype), [_, width]) => (*width, dtype.bytes()),
            (Some(dtype), _) => (1, dtype.bytes()),
            (None, _) => (1, 1),
        };
        let row_bytes = width * element_bytes;
        let piece_bytes = (BATCH_BYTES / row_bytes).max(1) * row_bytes;
        read_pieces(
            self.checkpoint,
            self.entry,
            piece_bytes,
            self.cancel,
            |bytes| {
                kept.take(row, width, element_bytes, bytes, &mut pending);
                row += bytes.len() / row_bytes;
                flush(&mut pending, batch_bytes)
            },
        )?;
        flush(&mut pending, 1)?;
        Ok(hasher.finish())
    }
}

impl KeptParts {
    /// Bytes of what stays of a tensor.
    fn bytes(&self, entry: &TensorEntry) -> u64 {
        let elements = |shape: &[usize]| shape.iter().map(|&size| size as u64).product::<u64>();
        match elements(&entry.shape) {
            0 => entry.bytes,
            before => entry.bytes / before * elements(&self.shape(&entry.shape)),
        }
    }
}
