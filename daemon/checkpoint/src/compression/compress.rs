//! A folder into a container.

use std::{
    collections::HashMap,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use rayon::prelude::*;
use sluice_codec::{
    CompressedMatrix, EncodeError, Encoded, Lossless, Quantizer, Scheme, TrellisTarget,
    container::{
        CHUNK_ROWS, CompressionRules, ContainerError, ContainerPlan, ContainerWriter, Glob, Hash,
        Hasher, PlannedTensor, TensorTreatment, extent_name, partial_of,
    },
    encode,
    layout::TILES,
};
use sluice_formats::DType;

use super::{
    BATCH_BYTES, CompressError, Progress, ProgressBytes, check_free_space, files::ModelFiles, pool,
    stop_if,
};
use crate::{Checkpoint, Source, TensorEntry, find::weight_files};

/// Changes when the same options come to lead to other bytes, so that nothing is made of two halves.
const REVISION: u32 = 2;
/// Numbers by which a tensor's rate is found, at most,
const SAMPLE_ELEMENTS: u64 = 1 << 20;
/// in parts of this many: rows differ more than parts of one.
const SAMPLE_PART: u64 = 1024;

/// What to make.
#[derive(Debug, Clone, PartialEq)]
pub struct CompressOptions {
    /// How numbers are coded.
    pub method: CompressionMethod,
    /// Numbers of a tile.
    pub tile: usize,
    /// Names of tensors that stay plain.
    pub keep: Vec<Glob>,
    /// Whether embeddings are coded, and the head to a rate where that is asked for.
    pub all: bool,
    /// Threads that code; 0: one a core.
    pub threads: usize,
    /// Whether a file that has the target's name is replaced.
    pub replace: bool,
}

/// How numbers are coded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CompressionMethod {
    /// Without loss.
    Lossless(Lossless),
    /// To a rate, each tensor alike.
    Trellis(TrellisTarget),
}

/// What was made.
#[derive(Debug, Clone, PartialEq)]
pub struct CompressResult {
    /// Bytes of the container.
    pub bytes: u64,
    /// Bytes of the weights before.
    pub original_bytes: u64,
    /// Tensors of which a run before this one was interrupted.
    pub resumed: usize,
    /// Files beside the weights that aren't in it.
    pub skipped_files: Vec<String>,
    /// Where numbers were coded to a rate, the root of their squared error, as a share of that of the numbers. Nobody knows that
    /// of tensors that a run before this one coded, so there is none then.
    pub error: Option<f64>,
}

/// Makes a container of a folder's safetensors and what belongs to them. It has another name until it is whole; a run that is
/// interrupted leaves what is done, and the next one of the same goes on with it.
///
/// # Errors
/// A source that can't be read or changes meanwhile, a target that exists, what the system refused, or `cancel` set.
pub fn compress(
    source: &Source,
    target: &Path,
    options: &CompressOptions,
    cancel: &AtomicBool,
    progress: Progress<'_>,
) -> Result<CompressResult, CompressError> {
    if !options.replace && target.symlink_metadata().is_ok() {
        return Err(CompressError::Container(ContainerError::Exists {
            path: target.display().to_string(),
        }));
    }
    let checkpoint = Checkpoint::open(source)?;
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
    let pool = pool(options.threads)?;
    let files = ModelFiles::beside(&folder, &shards)?;
    let taken = files.taken.iter().map(|(name, _)| name);
    check_target(target, &folder, shards.iter().chain(taken))?;
    let tensors = in_order(&checkpoint);
    let original_bytes = tensors.iter().map(|(_, entry)| entry.bytes).sum();
    let plan = ContainerPlan {
        tile: options.tile,
        tensors: tensors
            .iter()
            .map(|(name, entry)| planned(name, entry))
            .collect(),
        shards: shard_headers(&checkpoint, shards)?,
        identity: identity(&checkpoint, options, &files)?,
        files: files.taken,
    };
    let rules = CompressionRules {
        keep: options.keep.clone(),
        is_trellis: matches!(options.method, CompressionMethod::Trellis(_)),
        all: options.all,
    };
    let least = tensors.iter().map(|(name, entry)| {
        least_bytes(
            rules.treatment(name, &entry.shape, &dtype_name(entry)),
            options.method,
            entry,
        )
    });
    // What an unfinished file has is taken up, or written over.
    let unfinished = fs::metadata(partial_of(target)).map_or(0, |partial| partial.len());
    check_free_space(target, least.sum::<u64>().saturating_sub(unfinished))?;
    let done = |done_bytes| ProgressBytes {
        done_bytes,
        total_bytes: original_bytes,
    };
    let mut done_bytes = 0;
    let mut resumed = 0;
    let mut writer = ContainerWriter::begin(target, plan, cancel, &mut |whole| {
        let (name, entry) = tensors[whole - 1];
        done_bytes += entry.bytes;
        resumed = whole;
        progress(name, done(done_bytes));
    })?;
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

/// Found out before hours of work: what may not be replaced, or can't be.
fn check_target<'a>(
    target: &Path,
    source: &Source,
    mut names: impl Iterator<Item = &'a String>,
) -> Result<(), CompressError> {
    // What can't be looked at is told when it is written to.
    let Ok(there) = fs::metadata(target) else {
        return Ok(());
    };
    let is_there = |path: PathBuf| {
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

/// What a tensor takes at least, before anything is known of its numbers: without loss, sign and mantissa stay, which is half
/// of a bf16 and more of others.
fn least_bytes(treatment: TensorTreatment, how: CompressionMethod, entry: &TensorEntry) -> u64 {
    match (treatment, how, dtype(entry)) {
        (
            TensorTreatment::Trellis,
            CompressionMethod::Trellis(TrellisTarget::Bits(bits)),
            Some(number),
        ) => (entry.bytes as f64 / number.bytes() as f64 * bits / 8.0) as u64,
        (TensorTreatment::Trellis, CompressionMethod::Trellis(TrellisTarget::Error(_)), _) => 0,
        (TensorTreatment::Plain, ..) | (_, CompressionMethod::Lossless(Lossless::Plain), _) => {
            entry.bytes
        }
        _ => entry.bytes / 2,
    }
}

/// What numbers lose, and what there was of them: sums of squares.
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

/// One tensor on its way.
struct Work<'a> {
    checkpoint: &'a Checkpoint,
    name: &'a str,
    entry: &'a TensorEntry,
    options: &'a CompressOptions,
    writer: &'a mut ContainerWriter,
    loss: &'a mut QuantizationLoss,
    cancel: &'a AtomicBool,
    /// Is told the bytes of the tensor that are done.
    progress: &'a mut (dyn FnMut(u64) + Send),
}

impl Work<'_> {
    fn write(&mut self, treatment: TensorTreatment) -> Result<(), CompressError> {
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
            (TensorTreatment::Lossless, CompressionMethod::Trellis(_)) => {
                Some(Coder::Lossless(Lossless::Huffman))
            }
        };
        if let (Some(coder), Some(number)) = (coder, number) {
            let original_hash = self.write_compressed(number, coder)?;
            // Numbers without a pattern get longer by what belongs to a code.
            if self.writer.tensor_bytes() < self.entry.bytes {
                return Ok(self.writer.end_tensor(original_hash)?);
            }
        }
        let original_hash = self.write_plain()?;
        Ok(self.writer.end_tensor(original_hash)?)
    }

    /// What brings the whole tensor to a target, by parts of rows at equal distances. Each row's part begins elsewhere.
    fn quantizer(&self, dtype: DType, target: TrellisTarget) -> Result<Quantizer, CompressError> {
        let (width, size) = (self.width(), dtype.bytes() as u64);
        let rows = self.entry.bytes / size / width as u64;
        let part = SAMPLE_PART.min(width as u64);
        let count = (SAMPLE_ELEMENTS / part).min(rows);
        let mut bytes = vec![0; (count * part * size) as usize];
        let each = bytes.chunks_exact_mut((part * size) as usize);
        for (index, bytes) in (0..count).zip(each) {
            let row = index * rows / count;
            let place = index * part % (width as u64 - part + 1);
            let start = (row * width as u64 + place) * size;
            self.checkpoint
                .read_part(self.entry, start..start + part * size, bytes)?;
        }
        let sample = upcast(dtype, part as usize, &bytes);
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
        let batch_bytes = (BATCH_BYTES / chunk_bytes).max(1) * chunk_bytes;
        let (tile, cancel) = (self.options.tile, self.cancel);
        let mut hasher = Hasher::default();
        let mut loss = QuantizationLoss::default();
        self.each_piece(batch_bytes, |writer, bytes| {
            // To a rate, a piece takes seconds.
            let code = |chunk: &[u8]| match cancel.load(Ordering::Relaxed) {
                true => Err(Refusal::Container(ContainerError::Cancelled)),
                false => coder
                    .compress(dtype, chunk.len() / row_bytes, width, chunk, tile)
                    .map_err(Refusal::Encode),
            };
            let (_, coded) = rayon::join(
                || hasher.update(bytes),
                || {
                    let chunks = bytes.par_chunks(chunk_bytes).map(code);
                    chunks.collect::<Result<Vec<_>, _>>()
                },
            );
            for (chunk, lost) in coded? {
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
        // A multiple of all tiles.
        const { assert!(BATCH_BYTES.is_multiple_of(4096)) };
        let mut hasher = Hasher::default();
        self.each_piece(BATCH_BYTES, |writer, bytes| {
            hasher.update(bytes);
            Ok(writer.plain(bytes)?)
        })?;
        Ok(hasher.finish())
    }

    /// Reads the tensor piece by piece.
    fn each_piece(
        &mut self,
        piece_bytes: usize,
        mut each: impl FnMut(&mut ContainerWriter, &[u8]) -> Result<(), Refusal>,
    ) -> Result<(), CompressError> {
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
fn read_pieces(
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

/// Finds out before hours of work what can't be coded to a rate: a run that keeps it begins anew.
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

/// What is infinite or none has all bits of the exponent, which is in the last two bytes.
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

/// How a tensor is coded.
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

    /// One chunk, and what it lost.
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
                let coded = encode(dtype, rows, width, bytes, lossless, tile)?;
                return Ok((coded, QuantizationLoss::default()));
            }
            Self::Trellis(quantizer) => quantizer,
        };
        let values = upcast(dtype, width, bytes);
        let made = quantizer.quantize(dtype, rows, width, &values)?;
        let all = values
            .iter()
            .map(|&value| f64::from(value).powi(2))
            .sum::<f64>();
        let lost = made.error.powi(2) * all;
        Ok((made.encoded, QuantizationLoss { lost, all }))
    }
}

/// Rows of plain numbers, widened by the codec itself.
fn upcast(dtype: DType, width: usize, bytes: &[u8]) -> Vec<f32> {
    let rows = bytes.len() / dtype.bytes() / width;
    let mut values = vec![0.0; rows * width];
    let plain = encode(dtype, rows, width, bytes, Lossless::Plain, TILES[0]);
    let plain = plain.expect("there are as many bytes as numbers need");
    CompressedMatrix::new(plain.layout, &plain.bytes)
        .and_then(|plain| plain.decompress_rows_f32(0..rows, &mut values))
        .expect("plain numbers are never damaged");
    values
}

/// Why a piece wasn't written.
enum Refusal {
    Container(ContainerError),
    Encode(EncodeError),
}

impl From<ContainerError> for Refusal {
    fn from(error: ContainerError) -> Self {
        Self::Container(error)
    }
}

/// All tensors: those of a layer together, in the order in which a pass reads them where the model is one that is known,
/// otherwise by their names.
fn in_order(checkpoint: &Checkpoint) -> Vec<(&str, &TensorEntry)> {
    let model = checkpoint.model().ok();
    let specs = model.iter().flat_map(|model| model.shape.stored());
    let ranks: HashMap<String, usize> = specs
        .enumerate()
        .map(|(rank, spec)| (spec.name, rank))
        .collect();
    let rank = |name: &str| ranks.get(name).copied().unwrap_or(usize::MAX);
    let mut extents: HashMap<&str, usize> = HashMap::new();
    for name in checkpoint.tensors.keys() {
        let first = extents.entry(extent_name(name)).or_insert(usize::MAX);
        *first = rank(name).min(*first);
    }
    let mut tensors: Vec<_> = checkpoint.tensors.iter().collect();
    tensors.sort_by_cached_key(|(name, _)| {
        let extent = extent_name(name);
        (extents[extent], natural(extent), rank(name), natural(name))
    });
    let tensors = tensors.into_iter();
    tensors.map(|(name, entry)| (&name[..], entry)).collect()
}

/// A name's parts, so that the tenth layer comes after the ninth.
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

/// What safetensors calls its numbers, in small letters.
fn dtype_name(entry: &TensorEntry) -> String {
    match &entry.format {
        Ok(format) => format.name().to_owned(),
        Err(other) => other.clone(),
    }
}

/// The dtype of a tensor's elements, where they stand alone.
fn dtype(entry: &TensorEntry) -> Option<DType> {
    entry.format.as_ref().ok()?.dtype()
}

/// The beginning of each file of weights, up to the first tensor.
fn shard_headers(
    checkpoint: &Checkpoint,
    names: Vec<String>,
) -> Result<Vec<(String, Vec<u8>)>, CompressError> {
    let files = names.into_iter().zip(&checkpoint.files);
    let headers = files.map(|(name, file)| {
        let mut length = [0; 8];
        file.read_at(0, &mut length)?;
        // The header was read and checked before, and may be another by now.
        let length = u64::from_le_bytes(length).min(file.len.saturating_sub(8));
        let mut header = vec![0; 8 + length as usize];
        file.read_at(0, &mut header)?;
        Ok((name, header))
    });
    headers.collect()
}

/// What a run and one that goes on with its work have in common.
fn identity(
    checkpoint: &Checkpoint,
    options: &CompressOptions,
    files: &ModelFiles,
) -> Result<String, CompressError> {
    let mut hasher = Hasher::default();
    for (name, bytes) in &files.taken {
        hasher.update(name.as_bytes());
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    }
    let keep: Vec<&str> = options.keep.iter().map(Glob::pattern).collect();
    Ok(format!(
        "revision {REVISION}, {} and {}, {}, tiles of {}, {}, keep {keep:?}",
        checkpoint.fingerprint()?,
        hasher.finish(),
        journal_name(options.method),
        options.tile,
        if options.all {
            "all"
        } else {
            "layers and head"
        },
    ))
}

/// The name of a way to compress in the journal of an unfinished file. An interrupted run goes on only where the journal says the
/// same, so these words stay, whatever the types are called.
fn journal_name(how: CompressionMethod) -> String {
    match how {
        CompressionMethod::Lossless(Lossless::Plain) => "Lossless(Plain)".to_owned(),
        CompressionMethod::Lossless(Lossless::Huffman) => "Lossless(Huffman)".to_owned(),
        CompressionMethod::Lossless(Lossless::Dictionary) => "Lossless(Palette)".to_owned(),
        CompressionMethod::Trellis(TrellisTarget::Bits(bits)) => format!("Rate(Bits({bits:?}))"),
        CompressionMethod::Trellis(TrellisTarget::Error(error)) => {
            format!("Rate(Error({error:?}))")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_names_how_it_is_compressed_as_it_always_did() {
        for (how, name) in [
            (
                CompressionMethod::Lossless(Lossless::Plain),
                "Lossless(Plain)",
            ),
            (
                CompressionMethod::Lossless(Lossless::Huffman),
                "Lossless(Huffman)",
            ),
            (
                CompressionMethod::Lossless(Lossless::Dictionary),
                "Lossless(Palette)",
            ),
            (
                CompressionMethod::Trellis(TrellisTarget::Bits(4.5)),
                "Rate(Bits(4.5))",
            ),
            (
                CompressionMethod::Trellis(TrellisTarget::Bits(4.0)),
                "Rate(Bits(4.0))",
            ),
            (
                CompressionMethod::Trellis(TrellisTarget::Error(0.1)),
                "Rate(Error(0.1))",
            ),
        ] {
            assert_eq!(journal_name(how), name);
        }
    }
}
