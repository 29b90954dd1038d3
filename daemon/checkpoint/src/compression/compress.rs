//! Compresses a checkpoint folder to a container.

use std::{
    collections::HashMap,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rayon::prelude::*;
use sluice_codec::{
    CompressedMatrix, EncodeError, Encoded, Lossless, Quantizer, Scheme, TrellisTarget,
    container::{
        CHUNK_ROWS, CompressionRules, ContainerError, ContainerPlan, ContainerWriter, Glob, Hash,
        Hasher, PlannedTensor, TensorFilter, TensorRecord, TensorTreatment, extent_name,
        partial_of,
    },
    encode,
    layout::TILES,
};
use sluice_formats::DType;
use sluice_shared::mix::MixId;

use super::{
    BATCH_BYTES, CompressError, CompressOptions, CompressionMethod, Container, Progress,
    ProgressBytes, check_free_space, files::ModelFiles, identity::identity, open, pool, stop_if,
};
use crate::{Checkpoint, Source, TensorEntry, find::weight_files, weight_cache::Mixes};

/// Most elements of the sample that a tensor's step is fitted to.
const SAMPLE_ELEMENTS: u64 = 1 << 20;
/// Elements of a part of the sample. Rows differ more than parts of a row, so small parts of many rows are taken.
const SAMPLE_PART: u64 = 1024;

/// Result of a compression.
#[derive(Debug, Clone, PartialEq)]
pub struct CompressResult {
    /// Bytes of the container.
    pub bytes: u64,
    /// Bytes of the uncompressed weights.
    pub original_bytes: u64,
    /// Number of tensors that were taken over from an interrupted run.
    pub resumed: usize,
    /// Names of files in the folder that the container doesn't include.
    pub skipped_files: Vec<String>,
    /// Relative root mean square error of all trellis-quantized weights. `None` if there are none, or if an interrupted
    /// run compressed some of them, whose error isn't known.
    pub error: Option<f64>,
}

/// How the source is compared with the digests that lie beside it, before anything is made of it.
pub struct SourceCheck<'a> {
    /// The folder where it is remembered which files were compared, and are not again.
    pub remembered: Option<&'a Path>,
    /// Told how many bytes of how many were read.
    pub progress: &'a mut (dyn FnMut(ProgressBytes) + Send),
}

/// Compresses as [`compress_checked`] does, without memory of earlier comparisons.
///
/// # Errors
/// As there.
pub fn compress(
    source: &Source,
    target: &Path,
    options: &CompressOptions,
    cancel: &AtomicBool,
    progress: Progress<'_>,
) -> Result<CompressResult, CompressError> {
    let check = SourceCheck {
        remembered: None,
        progress: &mut |_| {},
    };
    compress_checked(source, target, options, check, cancel, progress)
}

/// Compresses a folder's safetensors, with the files that belong to them, to a container. The file has a temporary name
/// until it is complete. An interrupted run leaves complete tensors behind, and the next run with the same options
/// resumes.
///
/// # Errors
/// A source that cannot be read or changes meanwhile, a target that exists, a file operation that failed, or `cancel`
/// set.
pub fn compress_checked(
    source: &Source,
    target: &Path,
    options: &CompressOptions,
    check: SourceCheck<'_>,
    cancel: &AtomicBool,
    progress: Progress<'_>,
) -> Result<CompressResult, CompressError> {
    if !options.replace && target.symlink_metadata().is_ok() {
        return Err(CompressError::Container(ContainerError::Exists {
            path: target.display().to_string(),
        }));
    }
    // Opened as a model is, so that every header is checked before anything is written.
    let checkpoint = Arc::new(Checkpoint::open(source)?);
    let (folder, shards) = weight_files(source)?;
    let path = || match &folder {
        Source::Folder(folder) => folder.join(&shards[0]),
        Source::Embedded(_) => shards[0].clone().into(),
    };
    if checkpoint.gguf.is_some() {
        return Err(CompressError::Gguf { path: path() });
    }
    if checkpoint.is_container() {
        return Err(CompressError::AlreadyCompressed { path: path() });
    }
    // Damaged weights would get checksums that say they are whole.
    let mut checked = |done_bytes, total_bytes| {
        (check.progress)(ProgressBytes {
            done_bytes,
            total_bytes,
        });
    };
    if !checkpoint.verify(check.remembered, cancel, &mut checked)? {
        return Err(CompressError::Cancelled);
    }
    let mix = match options.method {
        CompressionMethod::Mix(mix) => Some(mix_of(&checkpoint, mix, check.remembered, cancel)?),
        _ => None,
    };
    let pool = pool(options.threads)?;
    let files = ModelFiles::beside(&folder, &shards)?;
    let taken = files.taken.iter().map(|(name, _)| name);
    // Not even `--force` may overwrite what the container is made from.
    check_target(target, &folder, shards.iter().chain(taken))?;
    let mut tensors = in_order(&checkpoint);
    check_names(&tensors, options)?;
    let bytes =
        |tensors: &[(&str, &TensorEntry)]| tensors.iter().map(|(_, entry)| entry.bytes).sum();
    let original_bytes: u64 = bytes(&tensors);
    let rules = rules(options);
    let head = mix
        .as_ref()
        .and_then(|mix| TiedHead::of(&checkpoint, mix, &rules));
    tensors.extend(head.as_ref().map(|head| (&head.name[..], head.embedding.1)));
    let total_bytes = bytes(&tensors);
    let mut identity = identity(&checkpoint, options, &files)?;
    if head.is_some() {
        // Runs of earlier versions left it to the embedding.
        identity += ", LM head beside the embedding";
    }
    let plan = ContainerPlan {
        tile: options.tile,
        tensors: tensors
            .iter()
            .map(|(name, entry)| planned(name, entry))
            .collect(),
        shards: shard_headers(&checkpoint, shards)?,
        identity,
        files: files.taken,
    };
    // A lower bound, so a run that could fit is never refused.
    let least = tensors.iter().map(|(name, entry)| {
        least_bytes(
            rules.treatment(name, &entry.shape, &dtype_name(entry)),
            options.method,
            entry,
        )
    });
    // An unfinished file of this target is continued or overwritten.
    let unfinished = fs::metadata(partial_of(target)).map_or(0, |partial| partial.len());
    check_free_space(target, least.sum::<u64>().saturating_sub(unfinished))?;
    let done = |done_bytes| ProgressBytes {
        done_bytes,
        total_bytes,
    };
    let mut done_bytes = 0;
    let mut resumed = 0;
    // Progress begins with what an interrupted run has finished.
    let mut writer = ContainerWriter::begin(target, plan, cancel, &mut |whole| {
        let (name, entry) = tensors[whole - 1];
        done_bytes += entry.bytes;
        resumed = whole;
        progress(name, done(done_bytes));
    })?;
    // All remaining tensors are checked before the first is compressed: a NaN found after hours would mean a new run
    // with another `--keep`.
    for (name, entry) in writer.next().map_or(&[][..], |next| &tensors[next..]) {
        if rules.treatment(name, &entry.shape, &dtype_name(entry)) == TensorTreatment::Trellis {
            progress(name, done(done_bytes));
            pool.install(|| check_elements(&checkpoint, name, entry, cancel))?;
        }
    }
    let mut loss = QuantizationLoss::default();
    while let Some(next) = writer.next() {
        let (name, entry) = tensors[next];
        let before = done_bytes;
        let mut work = Work {
            checkpoint: &checkpoint,
            mixed: mix.as_ref().and_then(|mix| {
                let name = head
                    .as_ref()
                    .map_or(Some(name), |head| head.name_in_mix(name));
                Some((mix, mix.tensor(name?)?))
            }),
            name,
            entry,
            options,
            writer: &mut writer,
            loss: &mut loss,
            cancel,
            progress: &mut |bytes| progress(name, done(before + bytes)),
        };
        let treatment = rules.treatment(name, &entry.shape, &dtype_name(entry));
        pool.install(|| work.write(treatment))?;
        done_bytes += entry.bytes;
    }
    // Before the container gets its name: a source that changed meanwhile would give a mixture.
    checkpoint.check_all_unchanged()?;
    stop_if(cancel)?;
    let made = writer.finish(options.replace)?;
    Ok(CompressResult {
        bytes: made.bytes,
        original_bytes,
        resumed,
        skipped_files: files.skipped,
        error: loss.share().filter(|_| resumed == 0),
    })
}

/// An LM head that is tied to the embedding, and that a mix quantizes: a tensor of its own in the file, since rows of the
/// embedding are read one by one.
struct TiedHead<'a> {
    /// The name that it has in the file.
    name: String,
    /// The embedding, whose name it has in the mix.
    embedding: (String, &'a TensorEntry),
}

impl<'a> TiedHead<'a> {
    fn of(checkpoint: &'a Checkpoint, mix: &Container, rules: &CompressionRules) -> Option<Self> {
        let shape = checkpoint.model().ok()?.shape;
        let (name, embedding) = (shape.own_lm_head_name(), shape.embedding_name());
        // Some checkpoints have a tied head's values a second time.
        let is_meant = shape.tied && checkpoint.tensor(&name).is_none();
        let entry = checkpoint.tensor(&embedding)?;
        let treatment = rules.treatment(&name, &entry.shape, &dtype_name(entry));
        (is_meant && treatment != TensorTreatment::Plain).then_some(())?;
        mix.tensor(&embedding)?;
        Some(Self {
            name,
            embedding: (embedding, entry),
        })
    }

    /// What a tensor of the file is called in the mix; `None`: it is not in it.
    fn name_in_mix<'b>(&'b self, name: &'b str) -> Option<&'b str> {
        match name {
            name if name == self.name => Some(&self.embedding.0),
            name if name == self.embedding.0 => None,
            name => Some(name),
        }
    }
}

/// A mix's file, after it was compared with its checksums.
fn mix_of(
    checkpoint: &Arc<Checkpoint>,
    mix: MixId,
    folder: Option<&Path>,
    cancel: &AtomicBool,
) -> Result<Container, CompressError> {
    let missing = CompressError::NoMix { mix };
    let Some(folder) = folder else {
        return Err(missing);
    };
    let mixes = Mixes::new(folder, checkpoint)?;
    let found = mixes.open(mix, cancel, &mut |_, _| {})?;
    stop_if(cancel)?;
    // Its parts are copied as they are stored, which the open checkpoint does not give.
    found.map_or(Err(missing), |_| open(&mixes.path(mix)))
}

/// Checks that the names that are to be compressed are those of some tensors.
fn check_names(
    tensors: &[(&str, &TensorEntry)],
    options: &CompressOptions,
) -> Result<(), CompressError> {
    if tensors
        .iter()
        .any(|(name, _)| options.tensors.is_among(name))
    {
        return Ok(());
    }
    // Examples are of tensors that could be compressed.
    let rules = CompressionRules {
        tensors: TensorFilter::default(),
        ..rules(options)
    };
    let examples = tensors.iter().filter(|(name, entry)| {
        rules.treatment(name, &entry.shape, &dtype_name(entry)) != TensorTreatment::Plain
    });
    let quoted = |names: &mut dyn Iterator<Item = &str>, word: &str| {
        let names: Vec<_> = names.map(|name| format!("'{name}'")).collect();
        names.join(word)
    };
    Err(CompressError::NoSuchTensor {
        patterns: quoted(&mut options.tensors.only.iter().map(Glob::pattern), " or "),
        names: quoted(
            &mut examples.chain(tensors).map(|(name, _)| *name).take(2),
            " and ",
        ),
    })
}

fn rules(options: &CompressOptions) -> CompressionRules {
    CompressionRules {
        tensors: options.tensors.clone(),
        is_trellis: matches!(options.method, CompressionMethod::Trellis(_)),
        all: options.all,
    }
}

/// Checks the target before hours of work: it must not be part of the source, and must be replaceable.
pub(crate) fn check_target<'a>(
    target: &Path,
    source: &Source,
    mut names: impl Iterator<Item = &'a String>,
) -> Result<(), CompressError> {
    // If it cannot be examined, the error appears when it is written to.
    let Ok(there) = fs::metadata(target) else {
        return Ok(());
    };
    let is_there = |path: PathBuf| {
        // Compared by inode, so that links and other spellings of a path don't matter.
        let found = fs::metadata(path).map(|found| (found.dev(), found.ino()));
        found.is_ok_and(|found| found == (there.dev(), there.ino()))
    };
    let problem = match source {
        _ if !there.is_file() => "it is not a regular file",
        Source::Folder(folder) if names.any(|name| is_there(folder.join(name))) => {
            "it is part of the checkpoint"
        }
        _ => return Ok(()),
    };
    let cause = io::Error::new(io::ErrorKind::InvalidInput, problem);
    Err(CompressError::io("replace", target)(cause))
}

/// Lower bound for a tensor's size before its elements are known. Lossless compression keeps sign and mantissa, which
/// is half of a bf16 and more of others.
fn least_bytes(treatment: TensorTreatment, how: CompressionMethod, entry: &TensorEntry) -> u64 {
    match (treatment, how, dtype(entry)) {
        (
            TensorTreatment::Trellis,
            CompressionMethod::Trellis(TrellisTarget::Bits(bits)),
            Some(number),
        ) => (entry.bytes as f64 / number.bytes() as f64 * bits / 8.0) as u64,
        (TensorTreatment::Trellis, CompressionMethod::Trellis(TrellisTarget::Error(_)), _) => 0,
        // Quantized matrices have any number of bits.
        (TensorTreatment::Lossless, CompressionMethod::Mix(_), _) => 0,
        (TensorTreatment::Plain, ..) | (_, CompressionMethod::Lossless(Lossless::Plain), _) => {
            entry.bytes
        }
        _ => entry.bytes / 2,
    }
}

/// Sums of squares: the error of trellis quantization, and the weights.
#[derive(Debug, Clone, Copy, Default)]
struct QuantizationLoss {
    lost: f64,
    all: f64,
}

impl QuantizationLoss {
    fn add(&mut self, other: Self) {
        self.lost += other.lost;
        self.all += other.all;
    }

    fn share(self) -> Option<f64> {
        (self.all > 0.0).then(|| (self.lost / self.all).sqrt())
    }
}

/// Compression of one tensor.
struct Work<'a> {
    checkpoint: &'a Checkpoint,
    /// The same tensor of the mix, if that has it.
    mixed: Option<(&'a Container, &'a TensorRecord)>,
    name: &'a str,
    entry: &'a TensorEntry,
    options: &'a CompressOptions,
    writer: &'a mut ContainerWriter,
    loss: &'a mut QuantizationLoss,
    cancel: &'a AtomicBool,
    /// Called with the number of the tensor's bytes that are done.
    progress: &'a mut (dyn FnMut(u64) + Send),
}

impl Work<'_> {
    fn write(&mut self, treatment: TensorTreatment) -> Result<(), CompressError> {
        // What is to stay as it is does.
        if treatment != TensorTreatment::Plain
            && let Some((mix, tensor)) = self.mixed
            && let Some(scheme) = tensor.scheme()
        {
            return self.copy(mix, tensor, scheme);
        }
        let number = dtype(self.entry);
        let quantizer;
        let coder = match (treatment, self.options.method) {
            (TensorTreatment::Plain, _) | (_, CompressionMethod::Lossless(Lossless::Plain)) => None,
            (_, CompressionMethod::Lossless(lossless)) => Some(Coder::Lossless(lossless)),
            (TensorTreatment::Trellis, CompressionMethod::Trellis(target)) => {
                quantizer = match number {
                    Some(number) => Some(self.quantizer(number, target)?),
                    None => None,
                };
                quantizer.as_ref().map(Coder::Trellis)
            }
            // The LM head keeps its values, in the smallest lossless form: whoever gives a bit rate wants a small file.
            (TensorTreatment::Lossless, CompressionMethod::Trellis(_))
            | (_, CompressionMethod::Mix(_)) => Some(Coder::Lossless(Lossless::Huffman)),
        };
        if let (Some(coder), Some(number)) = (coder, number) {
            let original_hash = self.write_compressed(number, coder)?;
            // Weights without a pattern get longer by the overhead of a code. Then the tensor is written again, plain.
            if self.writer.tensor_bytes() < self.entry.bytes {
                return Ok(self.writer.end_tensor(original_hash)?);
            }
        }
        // Also for dtypes that no coder takes, such as integers.
        let original_hash = self.write_plain()?;
        Ok(self.writer.end_tensor(original_hash)?)
    }

    /// Copies the chunks of a mix's tensor.
    fn copy(
        &mut self,
        mix: &Container,
        tensor: &TensorRecord,
        scheme: Scheme,
    ) -> Result<(), CompressError> {
        self.writer.begin_tensor(scheme)?;
        let (mut bytes, mut done) = (Vec::new(), 0);
        for chunk in mix.chunks(tensor) {
            stop_if(self.cancel)?;
            mix.read_chunk(&chunk, &mut bytes)?;
            self.writer.chunk(&chunk.layout, &bytes)?;
            let size = dtype(self.entry).map_or(1, DType::bytes);
            done += (chunk.layout.elements() * size) as u64;
            (self.progress)(done);
        }
        Ok(self.writer.end_tensor(tensor.original_hash)?)
    }

    /// Fits a quantizer to a sample of the tensor: parts of evenly spaced rows, each part at another place in its row.
    fn quantizer(&self, dtype: DType, target: TrellisTarget) -> Result<Quantizer, CompressError> {
        let (width, size) = (self.width(), dtype.bytes() as u64);
        let rows = self.entry.bytes / size / width as u64;
        let part = SAMPLE_PART.min(width as u64);
        let count = (SAMPLE_ELEMENTS / part).min(rows);
        let mut bytes = vec![0; (count * part * size) as usize];
        let each = bytes.chunks_exact_mut((part * size) as usize);
        for (index, bytes) in (0..count).zip(each) {
            // Evenly spaced rows; within them the place moves on, so that the sample covers columns as well.
            let row = index * rows / count;
            let place = index * part % (width as u64 - part + 1);
            let start = (row * width as u64 + place) * size;
            self.checkpoint
                .read_part(self.entry, start..start + part * size, bytes)?;
        }
        let sample = upcast(dtype, part as usize, &bytes);
        // Fitted for a chunk, since each chunk has its own table, whose size counts.
        let chunk = (rows.min(CHUNK_ROWS as u64) as usize, width);
        Quantizer::fit(chunk, (part as usize, &sample), target, self.options.tile).map_err(
            |cause| CompressError::Encode {
                tensor: self.name.to_owned(),
                cause,
            },
        )
    }

    fn width(&self) -> usize {
        let &[.., width] = &self.entry.shape[..] else {
            unreachable!("only matrices are coded");
        };
        width
    }

    fn write_compressed(&mut self, dtype: DType, coder: Coder<'_>) -> Result<Hash, CompressError> {
        let width = self.width();
        self.writer.begin_tensor(coder.scheme())?;
        let row_bytes = width * dtype.bytes();
        let chunk_bytes = CHUNK_ROWS * row_bytes;
        // Whole chunks, at least one: memory is bounded whatever the matrix's size.
        let batch_bytes = (BATCH_BYTES / chunk_bytes).max(1) * chunk_bytes;
        let (tile, cancel) = (self.options.tile, self.cancel);
        let mut hasher = Hasher::default();
        let mut loss = QuantizationLoss::default();
        self.each_piece(batch_bytes, |writer, bytes| {
            // Trellis quantization of a batch takes seconds, so each chunk looks at the flag.
            let code = |chunk: &[u8]| match cancel.load(Ordering::Relaxed) {
                true => Err(Refusal::Container(ContainerError::Cancelled)),
                false => coder
                    .compress(dtype, chunk.len() / row_bytes, width, chunk, tile)
                    .map_err(Refusal::Encode),
            };
            // Hashing the original bytes takes one core while the others compress.
            let (_, compressed) = rayon::join(
                || hasher.update(bytes),
                || {
                    let chunks = bytes.par_chunks(chunk_bytes).map(code);
                    chunks.collect::<Result<Vec<_>, _>>()
                },
            );
            // Written by one thread, in order: a container's chunks lie one after another.
            for (chunk, lost) in compressed? {
                writer.chunk(&chunk.layout, &chunk.bytes)?;
                loss.add(lost);
            }
            Ok(())
        })?;
        self.loss.add(loss);
        Ok(hasher.finish())
    }

    fn write_plain(&mut self) -> Result<Hash, CompressError> {
        self.writer.begin_tensor(Scheme::Plain)?;
        // The writer takes whole tiles; this is a multiple of every tile's size.
        const { assert!(BATCH_BYTES.is_multiple_of(4096)) };
        let mut hasher = Hasher::default();
        self.each_piece(BATCH_BYTES, |writer, bytes| {
            hasher.update(bytes);
            Ok(writer.plain(bytes)?)
        })?;
        Ok(hasher.finish())
    }

    /// Reads the tensor piece by piece, with progress.
    fn each_piece(
        &mut self,
        piece_bytes: usize,
        mut each: impl FnMut(&mut ContainerWriter, &[u8]) -> Result<(), Refusal>,
    ) -> Result<(), CompressError> {
        // Borrowed one by one: the closure has writer and progress while `read_pieces` has the checkpoint.
        let (name, writer, progress) = (self.name, &mut *self.writer, &mut *self.progress);
        let mut done = 0;
        read_pieces(
            self.checkpoint,
            self.entry,
            piece_bytes,
            self.cancel,
            |bytes| {
                each(writer, bytes).map_err(|refusal| match refusal {
                    Refusal::Container(error) => error.into(),
                    Refusal::Encode(cause) => CompressError::Encode {
                        tensor: name.to_owned(),
                        cause,
                    },
                })?;
                done += bytes.len() as u64;
                progress(done);
                Ok(())
            },
        )
    }
}

/// Reads a tensor piece by piece.
pub(crate) fn read_pieces(
    checkpoint: &Checkpoint,
    entry: &TensorEntry,
    piece_bytes: usize,
    cancel: &AtomicBool,
    mut each: impl FnMut(&[u8]) -> Result<(), CompressError>,
) -> Result<(), CompressError> {
    let bytes = entry.bytes;
    let mut buffer = vec![0; bytes.min(piece_bytes as u64) as usize];
    let mut done = 0;
    while done < bytes {
        stop_if(cancel)?;
        let count = (bytes - done).min(piece_bytes as u64);
        let buffer = &mut buffer[..count as usize];
        checkpoint.read_part(entry, done..done + count, buffer)?;
        each(buffer)?;
        done += count;
    }
    Ok(())
}

/// Checks that a tensor has no infinities or NaN, which cannot be trellis-quantized.
fn check_elements(
    checkpoint: &Checkpoint,
    name: &str,
    entry: &TensorEntry,
    cancel: &AtomicBool,
) -> Result<(), CompressError> {
    let Some(number) = dtype(entry) else {
        return Ok(());
    };
    let mut before = 0;
    read_pieces(checkpoint, entry, BATCH_BYTES, cancel, |bytes| {
        // By bits, without upcasting: this pass should cost little more than reading.
        let numbers = bytes.par_chunks_exact(number.bytes());
        if let Some(at) = numbers.position_first(|bytes| !is_finite(number, bytes)) {
            return Err(CompressError::Encode {
                tensor: name.to_owned(),
                cause: EncodeError::NotFinite(before + at),
            });
        }
        before += bytes.len() / number.bytes();
        Ok(())
    })
}

/// Infinities and NaN have all exponent bits set, which are in the last two bytes of each dtype.
fn is_finite(dtype: DType, bytes: &[u8]) -> bool {
    let exponent = match dtype {
        DType::Bf16 | DType::F32 => 0x7f80,
        DType::F16 => 0x7c00,
    };
    let last = bytes
        .last_chunk()
        .map_or(0, |last| u16::from_le_bytes(*last));
    last & exponent != exponent
}

/// How a tensor's chunks are compressed.
#[derive(Debug, Clone, Copy)]
enum Coder<'a> {
    Lossless(Lossless),
    Trellis(&'a Quantizer),
}

impl Coder<'_> {
    fn scheme(self) -> Scheme {
        match self {
            Self::Lossless(Lossless::Plain) => Scheme::Plain,
            Self::Lossless(Lossless::Huffman) => Scheme::Huffman,
            Self::Lossless(Lossless::Dictionary) => Scheme::Dictionary,
            Self::Trellis(_) => Scheme::Trellis,
        }
    }

    /// Compresses one chunk; returns its error, too.
    fn compress(
        self,
        dtype: DType,
        rows: usize,
        width: usize,
        bytes: &[u8],
        tile: usize,
    ) -> Result<(Encoded, QuantizationLoss), EncodeError> {
        let quantizer = match self {
            Self::Lossless(lossless) => {
                let compressed = encode(dtype, rows, width, bytes, lossless, tile)?;
                return Ok((compressed, QuantizationLoss::default()));
            }
            Self::Trellis(quantizer) => quantizer,
        };
        let values = upcast(dtype, width, bytes);
        let made = quantizer.quantize(dtype, rows, width, &values)?;
        let all = values
            .iter()
            .map(|&value| f64::from(value).powi(2))
            .sum::<f64>();
        // The error is relative to the chunk's weights; sums of squares can be added up.
        let lost = made.error.powi(2) * all;
        Ok((made.encoded, QuantizationLoss { lost, all }))
    }
}

/// Upcasts rows by the codec itself, so that both sides agree on every value.
fn upcast(dtype: DType, width: usize, bytes: &[u8]) -> Vec<f32> {
    let rows = bytes.len() / dtype.bytes() / width;
    let mut values = vec![0.0; rows * width];
    // Any size of tiles gives the same: a plain matrix has no tables.
    let plain = encode(dtype, rows, width, bytes, Lossless::Plain, TILES[0]);
    let plain = plain.expect("there are as many bytes as numbers need");
    CompressedMatrix::new(plain.layout, &plain.bytes)
        .and_then(|plain| plain.decompress_rows_f32(0..rows, &mut values))
        .expect("plain numbers are never damaged");
    values
}

/// Why a piece could not be written.
enum Refusal {
    Container(ContainerError),
    Encode(EncodeError),
}

impl From<ContainerError> for Refusal {
    fn from(error: ContainerError) -> Self {
        Self::Container(error)
    }
}

/// All tensors by extent: in the order of a pass if the model's family is known, otherwise by name. Each layer's
/// tensors are adjacent, so that they form one extent.
pub(crate) fn in_order(checkpoint: &Checkpoint) -> Vec<(&str, &TensorEntry)> {
    let model = checkpoint.model().ok();
    let specs = model.iter().flat_map(|model| model.shape.stored());
    let ranks: HashMap<String, usize> = specs
        .enumerate()
        .map(|(rank, spec)| (spec.name, rank))
        .collect();
    let rank = |name: &str| ranks.get(name).copied().unwrap_or(usize::MAX);
    let mut extents: HashMap<&str, usize> = HashMap::new();
    for name in checkpoint.tensors.keys() {
        // An extent's place is that of its first tensor; tensors that no family knows come last.
        let first = extents.entry(extent_name(name)).or_insert(usize::MAX);
        *first = rank(name).min(*first);
    }
    let mut tensors: Vec<_> = checkpoint.tensors.iter().collect();
    tensors.sort_by_cached_key(|(name, _)| {
        let extent = extent_name(name);
        // The extent's own place comes first: tensors of one extent must stay adjacent, whatever their ranks.
        (extents[extent], natural(extent), rank(name), natural(name))
    });
    let tensors = tensors.into_iter();
    tensors.map(|(name, entry)| (&name[..], entry)).collect()
}

/// Sort key that puts the tenth layer after the ninth.
fn natural(name: &str) -> Vec<(u64, String)> {
    let part = |part: &str| match part.parse() {
        Ok(number) => (number, String::new()),
        Err(_) => (u64::MAX, part.to_owned()),
    };
    name.split('.').map(part).collect()
}

fn planned(name: &str, entry: &TensorEntry) -> PlannedTensor {
    PlannedTensor {
        name: name.to_owned(),
        shape: entry.shape.clone(),
        dtype: dtype_name(entry),
        extent: extent_name(name).to_owned(),
    }
}

/// The dtype's name in safetensors, in lower case.
pub(crate) fn dtype_name(entry: &TensorEntry) -> String {
    match &entry.format {
        Ok(format) => format.name().to_owned(),
        Err(other) => other.clone(),
    }
}

/// The dtype of a tensor's elements, where they stand alone.
fn dtype(entry: &TensorEntry) -> Option<DType> {
    entry.format.as_ref().ok()?.dtype()
}

/// The headers of all weight files, up to the first tensor.
fn shard_headers(
    checkpoint: &Checkpoint,
    names: Vec<String>,
) -> Result<Vec<(String, Vec<u8>)>, CompressError> {
    let files = names.into_iter().zip(&checkpoint.files);
    let headers = files.map(|(name, file)| {
        let mut length = [0; 8];
        file.read_at(0, &mut length)?;
        // The header was checked when the checkpoint was opened, but the file may have changed since.
        let length = u64::from_le_bytes(length).min(file.len.saturating_sub(8));
        // Kept byte for byte: `decompress` must reproduce the order of keys and the padding.
        let mut header = vec![0; 8 + length as usize];
        file.read_at(0, &mut header)?;
        Ok((name, header))
    });
    headers.collect()
}
