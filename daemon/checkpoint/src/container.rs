//! Containers of coded weights as checkpoints. What was coded without loss reads as if it lay there uncoded; its coded
//! bytes can be read as they are, too, to be multiplied from.

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

use super::{CheckpointError, TensorEntry, file::CheckpointFile};

/// Takes rows of a chunk.
pub type TakeRows<'a> = &'a mut dyn FnMut(OpenRows<'_>) -> Result<(), DecompressError>;

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadMode {
    /// Through the system's cache.
    PageCache,
    /// Past it.
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
    /// The container's tensors, and the files inside.
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
        // Chunks are read whole: larger ones would take memory that nobody reckons with.
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
                interleaved: None,
                compressed: None,
            };
            let scheme = record.scheme().unwrap_or(Scheme::Plain);
            if let (true, Ok(number), Some((rows, width))) =
                (scheme != Scheme::Plain, &entry.format, record.matrix())
            {
                let format = match scheme {
                    // Exactly what was chosen; what it was chosen for is lost.
                    Scheme::Trellis => Format::F32,
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

    /// A small file, or `None` when there is none of this name.
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
        match sluice_codec::container::Hash::of(&bytes) == record.hash {
            true => Ok(Some(bytes)),
            false => Err(CheckpointError::MalformedFile {
                path: path(),
                cause: "it doesn't match its checksum".to_owned(),
            }),
        }
    }
}

/// Fills `out` with the bytes `part` of the tensor as it is decoded.
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
            // Rows that begin or end elsewhere.
            let mut all = vec![0; (end - start) as usize];
            open.decompress(open.local.clone(), &mut all)?;
            out.copy_from_slice(&all[(first - start) as usize..(last - start) as usize]);
            Ok(())
        },
    )?;
    Ok(())
}

/// Reads the chunks that hold these rows, one after the other into the same memory, and has `take` decode them; false when
/// `cancel` was set before all were there.
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
    if let (ReadMode::PageCache, [first, .., last]) = (via, chunks) {
        file.will_need(first.offset, last.end() - first.offset);
    }
    for chunk in chunks {
        if cancel.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let len = chunk.layout.bytes();
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
            .and_then(|coded| take(open_rows(coded, chunk, rows)))
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

/// A container's error as a checkpoint's.
fn refused(file: &CheckpointFile, error: ContainerError) -> CheckpointError {
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
            let cause = other.to_string();
            let cause = cause.strip_prefix(&path).unwrap_or(&cause);
            CheckpointError::MalformedFile {
                path,
                cause: cause.trim_start_matches([' ', ':']).to_owned(),
            }
        }
    }
}
