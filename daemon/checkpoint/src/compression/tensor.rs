//! Compresses one tensor after another: copied from a mix, coded chunk by chunk on all threads, or as it is.

use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;
use sluice_codec::{
    CompressedMatrix, EncodeError, Encoded, Lossless, Quantizer, Scheme, TrellisTarget,
    container::{
        CHUNK_ROWS, ContainerError, ContainerWriter, Hash, Hasher, TensorRecord, TensorTreatment,
    },
    encode,
    layout::TILES,
};
use sluice_formats::DType;

use super::{BATCH_BYTES, CompressError, CompressOptions, CompressionMethod, Container, stop_if};
use crate::{Checkpoint, TensorEntry};

/// Most elements of the sample that a tensor's step is fitted to.
const SAMPLE_ELEMENTS: u64 = 1 << 20;
/// Elements of a part of the sample. Rows differ more than parts of a row, so small parts of many rows are taken.
const SAMPLE_PART: u64 = 1024;

/// Sums of squares: the error of trellis quantization, and the weights.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct QuantizationLoss {
    lost: f64,
    all: f64,
}

impl QuantizationLoss {
    fn add(&mut self, other: Self) {
        self.lost += other.lost;
        self.all += other.all;
    }

    pub(super) fn share(self) -> Option<f64> {
        (self.all > 0.0).then(|| (self.lost / self.all).sqrt())
    }
}

/// Compression of one tensor.
pub(super) struct Work<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    /// The same tensor of the mix, if that has it.
    pub(super) mixed: Option<(&'a Container, &'a TensorRecord)>,
    pub(super) name: &'a str,
    pub(super) entry: &'a TensorEntry,
    pub(super) options: &'a CompressOptions,
    pub(super) writer: &'a mut ContainerWriter,
    pub(super) loss: &'a mut QuantizationLoss,
    pub(super) cancel: &'a AtomicBool,
    /// Called with the number of the tensor's bytes that are done.
    pub(super) progress: &'a mut (dyn FnMut(u64) + Send),
}

impl Work<'_> {
    pub(super) fn write(&mut self, treatment: TensorTreatment) -> Result<(), CompressError> {
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
pub(super) fn check_elements(
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

/// The dtype's name in safetensors, in lower case.
pub(crate) fn dtype_name(entry: &TensorEntry) -> String {
    match &entry.format {
        Ok(format) => format.name().to_owned(),
        Err(other) => other.clone(),
    }
}

/// The dtype of a tensor's elements, where they stand alone.
pub(super) fn dtype(entry: &TensorEntry) -> Option<DType> {
    entry.format.as_ref().ok()?.dtype()
}
