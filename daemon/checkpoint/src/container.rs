//! Containers as checkpoints. Losslessly compressed tensors read as if they were stored uncompressed; their compressed
//! bytes can be read as well, for operations that multiply by them directly.

use std::{
    io,
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};

use sluice_codec::{
    CompressedMatrix, DecompressError, Scheme,
    container::{CHUNK_ROWS, Container, ContainerError, FileRecord, ReadAt, TensorRecord},
};
use sluice_formats::Format;
use sluice_machine::page::{Page, pages_of};
use sluice_weights::{CompressedTensor, OpenRows, open_rows};

use super::{CheckpointError, TensorEntry, file::CheckpointFile, stored_order::StoredOrder};

/// Callback that takes rows of a chunk.
pub type TakeRows<'a> = &'a mut dyn FnMut(OpenRows<'_>) -> Result<(), DecompressError>;

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadMode {
    /// Through the page cache.
    PageCache,
    /// Past the page cache, by direct I/O.
    Disk,
}

/// The files inside a container.
#[derive(Debug)]
pub(super) struct ContainerFiles {
    files: Vec<FileRecord>,
}

impl ReadAt for &CheckpointFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        self.fill_at(offset, out)
    }
}

impl ContainerFiles {
    /// Reads a container's header: its tensors, and the files inside.
    pub(super) fn read(
        file: &CheckpointFile,
        index: usize,
    ) -> Result<(Self, Vec<(String, TensorEntry)>), CheckpointError> {
        let path = &file.path;
        let container =
            Container::read(file, path.clone()).map_err(|error| refused(file, error))?;
        let header = container.header();
        let malformed = |cause: String| CheckpointError::MalformedFile {
            path: path.clone(),
            cause,
        };
        // Chunks are read whole, so plans reckon with memory for a chunk of this many rows.
        let is_odd = |record: &&TensorRecord| {
            record.scheme() != Some(Scheme::Plain) && record.chunk_rows != CHUNK_ROWS
        };
        if let Some(TensorRecord {
            name, chunk_rows, ..
        }) = header.tensors.iter().find(is_odd)
        {
            let cause = format!("tensor {name} has chunks of {chunk_rows} rows, not {CHUNK_ROWS}");
            return Err(malformed(cause));
        }
        let entry = |record: &TensorRecord| {
            let mut entry = TensorEntry {
                format: format_of(&record.dtype),
                shape: record.shape.clone(),
                file: index,
                offset: record.offset,
                bytes: record.length,
                order: StoredOrder::Rows,
                compressed: None,
            };
            // Unknown schemes were refused when the header was read.
            let scheme = record.scheme().unwrap_or(Scheme::Plain);
            if let (true, Ok(number), Some((rows, width))) =
                (scheme != Scheme::Plain, &entry.format, record.matrix())
            {
                let format = match scheme {
                    // Quantized values are exact in `f32` only; the dtype that they had before doesn't matter.
                    Scheme::Trellis | Scheme::Columns => Format::F32,
                    Scheme::Plain | Scheme::Huffman | Scheme::Dictionary => *number,
                };
                entry.format = Ok(format);
                entry.bytes = (rows * format.bytes(width)) as u64;
                let name = record.name.clone();
                let chunks = container.chunks(record).collect();
                let coded =
                    CompressedTensor::new(name, scheme, format, width, record.offset, chunks);
                entry.compressed = Some(coded.into());
            }
            (record.name.clone(), entry)
        };
        let tensors = header.tensors.iter().map(entry).collect();
        let files = header.files.clone();
        Ok((Self { files }, tensors))
    }

    /// The contents of a small file inside; `None` if there is none of this name.
    pub(super) fn small_file(
        &self,
        file: &CheckpointFile,
        name: &str,
        max: u64,
    ) -> Result<Option<Vec<u8>>, CheckpointError> {
        let Some(record) = self.files.iter().find(|record| record.name == name) else {
            return Ok(None);
        };
        let path = || format!("{name} in {}", file.path);
        if record.length > max {
            return Err(CheckpointError::TooLarge {
                path: path(),
                bytes: record.length,
                max,
            });
        }
        let mut bytes = vec![0; record.length as usize];
        file.read_at(record.offset, &mut bytes)?;
        // Configuration and tokenizer are compared with their checksums, since damage there shows in no error later.
        match sluice_codec::container::Hash::of(&bytes) == record.hash {
            true => Ok(Some(bytes)),
            false => Err(CheckpointError::MalformedFile {
                path: path(),
                cause: "it doesn't match its checksum".to_owned(),
            }),
        }
    }
}

/// Fills `out` with bytes `part` of the decompressed tensor.
pub(super) fn decompress(
    compressed: &CompressedTensor,
    file: &CheckpointFile,
    part: &Range<u64>,
    out: &mut [u8],
) -> Result<(), CheckpointError> {
    let row = compressed.row_bytes() as u64;
    let never = AtomicBool::new(false);
    each_chunk(
        compressed,
        file,
        &compressed.rows_of(part),
        ReadMode::PageCache,
        &never,
        &mut |open| {
            let (start, end) = (open.rows.start as u64 * row, open.rows.end as u64 * row);
            let (first, last) = (start.max(part.start), end.min(part.end));
            let out = &mut out[(first - part.start) as usize..(last - part.start) as usize];
            if (first, last) == (start, end) {
                return open.decompress(open.local.clone(), out);
            }
            // Only some of the rows' bytes are asked for: they are decompressed beside `out`.
            let mut all = vec![0; (end - start) as usize];
            open.decompress(open.local.clone(), &mut all)?;
            out.copy_from_slice(&all[(first - start) as usize..(last - start) as usize]);
            Ok(())
        },
    )?;
    Ok(())
}

/// Reads the chunks that hold these rows, one after another into the same memory, and has `take` decompress them.
/// Returns false if `cancel` was set before all were read.
pub(super) fn each_chunk(
    tensor: &CompressedTensor,
    file: &CheckpointFile,
    rows: &Range<usize>,
    via: ReadMode,
    cancel: &AtomicBool,
    take: TakeRows<'_>,
) -> Result<bool, CheckpointError> {
    let mut pages: Vec<Page> = Vec::new();
    let chunks = tensor.chunks_of(rows);
    // Announces several chunks at once, which the system reads ahead in large pieces.
    if let (ReadMode::PageCache, [first, .., last]) = (via, chunks) {
        file.will_need(first.offset, last.end() - first.offset);
    }
    for chunk in chunks {
        if cancel.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let len = chunk.layout.bytes();
        // Used again for every chunk: memory stays at one chunk, and pages aren't mapped anew.
        pages.resize(pages_of(chunk.offset, len), bytemuck::Zeroable::zeroed());
        let start = match via {
            ReadMode::PageCache => {
                let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut pages);
                file.read_at(chunk.offset, &mut bytes[..len])?;
                0
            }
            ReadMode::Disk => match file.read_direct(chunk.offset, len, &mut pages, cancel)? {
                Some(start) => start,
                None => return Ok(false),
            },
        };
        let bytes: &[u8] = bytemuck::cast_slice(&pages);
        CompressedMatrix::new(chunk.layout.clone(), &bytes[start..start + len])
            .and_then(|compressed| take(open_rows(compressed, chunk, rows)))
            .map_err(|error| CheckpointError::damaged(&file.path, tensor.damage(chunk, &error)))?;
    }
    Ok(true)
}

fn format_of(number: &str) -> Result<Format, String> {
    match number {
        "f32" => Ok(Format::F32),
        "f16" => Ok(Format::F16),
        "bf16" => Ok(Format::Bf16),
        other => Err(other.to_owned()),
    }
}

/// Translates a container's error.
pub(super) fn refused(file: &CheckpointFile, error: ContainerError) -> CheckpointError {
    let path = file.path.clone();
    match error {
        ContainerError::Io { cause, .. } => CheckpointError::io(path.as_ref(), cause),
        ContainerError::WrongLength {
            expected, found, ..
        } => CheckpointError::WrongLength {
            path,
            expected,
            found,
        },
        ContainerError::Malformed { problem, .. } => CheckpointError::MalformedFile {
            path,
            cause: problem,
        },
        other => {
            // Both errors begin with the path; it must not appear twice.
            let cause = other.to_string();
            let cause = cause.strip_prefix(&path).unwrap_or(&cause);
            CheckpointError::MalformedFile {
                path,
                cause: cause.trim_start_matches([' ', ':']).to_owned(),
            }
        }
    }
}
