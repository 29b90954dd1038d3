//! Containers of coded weights as checkpoints. What was coded without loss reads as if it lay there uncoded; its coded
//! bytes can be read as they are, too, to be multiplied from.

pub(crate) mod card;

use std::{
    io,
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};

use sluice_codec::{
    Coded, DecodeError, Layout, Number, Scheme,
    container::{
        ALIGN_BYTES, CHUNK_ROWS, Chunk, Container, ContainerError, FileRecord, ReadAt, TensorRecord,
    },
};

use super::{CheckpointError, TensorEntry, file::CheckpointFile};
use crate::{
    format::Format,
    page::{Page, pages_of},
};

/// Takes rows of a chunk.
pub(crate) type TakeRows<'a> = &'a mut dyn FnMut(OpenRows<'_>) -> Result<(), DecodeError>;

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Via {
    /// Through the system's cache.
    Cache,
    /// Past it.
    Disk,
}

/// The files inside a container.
#[derive(Debug)]
pub(super) struct Inside {
    files: Vec<FileRecord>,
}

/// A coded tensor: some rows in each chunk, a coded matrix of its own.
#[derive(Debug, PartialEq, Eq)]
pub struct CodedTensor {
    name: String,
    scheme: Scheme,
    /// What its rows are decoded to, and their bytes then.
    format: Format,
    width: usize,
    /// Its first byte in the file.
    start: u64,
    chunks: Vec<Chunk>,
    /// Whether the chunks' lengths are an estimate: nobody has coded it yet.
    is_estimate: bool,
}

/// What codes take, as far as it follows from nothing but the numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CodeShares {
    /// Bytes of codes for each number.
    pub(crate) codes: f64,
    /// Bytes of a palette's escapes for each number.
    pub(crate) escapes: f64,
}

/// Rows of a tensor in one chunk, ready to be decoded.
pub(crate) struct OpenRows<'a> {
    /// The chunk.
    pub(crate) coded: Coded<'a>,
    /// The rows, in the chunk.
    pub(crate) local: Range<usize>,
    /// The rows, in the tensor.
    pub(crate) rows: Range<usize>,
}

impl OpenRows<'_> {
    /// Some rows of the chunk as the bytes that they were, or where they were coded to a rate, as `f32`.
    pub(crate) fn decode(&self, rows: Range<usize>, out: &mut [u8]) -> Result<(), DecodeError> {
        let layout = self.coded.layout();
        if layout.scheme() != Scheme::Rate {
            return self.coded.decode_rows(rows, out);
        }
        let mut numbers = vec![0.0_f32; rows.len() * layout.width()];
        self.coded.widen_rows(rows, &mut numbers)?;
        out.copy_from_slice(bytemuck::cast_slice(&numbers));
        Ok(())
    }
}

/// Those of some rows of a tensor that a chunk of it holds.
fn open_rows<'a>(coded: Coded<'a>, chunk: &Chunk, rows: &Range<usize>) -> OpenRows<'a> {
    let here = rows.start.max(chunk.rows.start)..rows.end.min(chunk.rows.end);
    OpenRows {
        coded,
        local: here.start - chunk.rows.start..here.end - chunk.rows.start,
        rows: here,
    }
}

impl ReadAt for &CheckpointFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        self.fill_at(offset, out)
    }
}

impl Inside {
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
                format: format_of(&record.number),
                shape: record.shape.clone(),
                file: index,
                offset: record.offset,
                bytes: record.length,
                interleaved: None,
                coded: None,
            };
            let scheme = record.scheme().unwrap_or(Scheme::Plain);
            if let (true, Ok(number), Some((rows, width))) =
                (scheme != Scheme::Plain, &entry.format, record.matrix())
            {
                let format = match scheme {
                    // Exactly what was chosen; what it was chosen for is lost.
                    Scheme::Rate => Format::F32,
                    Scheme::Plain | Scheme::Huffman | Scheme::Palette => *number,
                };
                entry.format = Ok(format);
                entry.bytes = (rows * format.bytes(width)) as u64;
                entry.coded = Some(
                    CodedTensor {
                        name: record.name.clone(),
                        scheme,
                        format,
                        width,
                        start: record.offset,
                        chunks: container.chunks(record).collect(),
                        is_estimate: false,
                    }
                    .into(),
                );
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

impl CodedTensor {
    /// A matrix as it would be coded in tiles of this size; `None` where there is no layout for it.
    pub(crate) fn estimated(
        name: &str,
        (rows, width): (usize, usize),
        format: Format,
        scheme: Scheme,
        tile: usize,
        shares: CodeShares,
    ) -> Option<Self> {
        let number = number_of(format)?;
        let mut chunks = Vec::new();
        let mut end = 0_u64;
        for start in (0..rows).step_by(CHUNK_ROWS) {
            let rows = start..(start + CHUNK_ROWS).min(rows);
            let numbers = rows.len() * width;
            let share = |share: f64| (numbers as f64 * share).ceil() as usize;
            let (codes, escapes) = match scheme {
                Scheme::Palette => (numbers.div_ceil(2), share(shares.escapes)),
                _ => (share(shares.codes), 0),
            };
            let layout = Layout::new(scheme, number, rows.len(), width, tile, codes, escapes);
            let chunk = Chunk {
                rows,
                offset: end.next_multiple_of(ALIGN_BYTES),
                layout: layout.ok()?,
            };
            end = chunk.end();
            chunks.push(chunk);
        }
        Some(Self {
            name: name.to_owned(),
            scheme,
            format,
            width,
            start: 0,
            chunks,
            is_estimate: true,
        })
    }

    /// Whether its bytes are an estimate: nobody has coded it yet.
    #[must_use]
    pub fn is_estimate(&self) -> bool {
        self.is_estimate
    }

    /// How it is coded.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Bytes of all that is coded.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.chunks.last().map_or(0, |last| last.end() - self.start)
    }

    /// Where the coded bytes of these rows lie, from the tensor's first byte on; `None` when they don't begin or end with a
    /// chunk.
    pub(crate) fn coded_bytes(&self, rows: &Range<usize>) -> Option<Range<u64>> {
        let chunks = self.chunks_of(rows);
        let (first, last) = (chunks.first()?, chunks.last()?);
        (first.rows.start == rows.start && last.rows.end == rows.end)
            .then(|| first.offset - self.start..last.end() - self.start)
    }

    /// The rows that hold these bytes of the tensor as it is decoded.
    fn rows_of(&self, part: &Range<u64>) -> Range<usize> {
        // Rows without numbers have no bytes.
        let row = (self.format.bytes(self.width) as u64).max(1);
        (part.start / row) as usize..part.end.div_ceil(row) as usize
    }

    /// Where in the file the bytes `part` of the tensor are decoded from.
    pub(super) fn place_of(&self, part: &Range<u64>) -> Range<u64> {
        let chunks = self.chunks_of(&self.rows_of(part));
        let ends = chunks.first().zip(chunks.last());
        ends.map_or(0..0, |(first, last)| first.offset..last.end())
    }

    fn chunks_of(&self, rows: &Range<usize>) -> &[Chunk] {
        let first = self
            .chunks
            .partition_point(|chunk| chunk.rows.end <= rows.start);
        let end = self
            .chunks
            .partition_point(|chunk| chunk.rows.start < rows.end);
        &self.chunks[first.min(end)..end]
    }

    /// Fills `out` with the bytes `part` of the tensor as it is decoded.
    pub(super) fn decode(
        &self,
        file: &CheckpointFile,
        part: &Range<u64>,
        out: &mut [u8],
    ) -> Result<(), CheckpointError> {
        let row = self.format.bytes(self.width) as u64;
        let never = AtomicBool::new(false);
        self.each_chunk(file, &self.rows_of(part), Via::Cache, &never, &mut |open| {
            let (start, end) = (open.rows.start as u64 * row, open.rows.end as u64 * row);
            let (first, last) = (start.max(part.start), end.min(part.end));
            let out = &mut out[(first - part.start) as usize..(last - part.start) as usize];
            if (first, last) == (start, end) {
                return open.decode(open.local.clone(), out);
            }
            // Rows that begin or end elsewhere.
            let mut all = vec![0; (end - start) as usize];
            open.decode(open.local.clone(), &mut all)?;
            out.copy_from_slice(&all[(first - start) as usize..(last - start) as usize]);
            Ok(())
        })?;
        Ok(())
    }

    /// Reads the chunks that hold these rows, one after the other into the same memory, and has `take` decode them; false when
    /// `cancel` was set before all were there.
    pub(super) fn each_chunk(
        &self,
        file: &CheckpointFile,
        rows: &Range<usize>,
        via: Via,
        cancel: &AtomicBool,
        take: TakeRows<'_>,
    ) -> Result<bool, CheckpointError> {
        let mut pages: Vec<Page> = Vec::new();
        let chunks = self.chunks_of(rows);
        if let (Via::Cache, [first, .., last]) = (via, chunks) {
            file.will_need(first.offset, last.end() - first.offset);
        }
        for chunk in chunks {
            if cancel.load(Ordering::Relaxed) {
                return Ok(false);
            }
            let len = chunk.layout.bytes();
            pages.resize(pages_of(chunk.offset, len), bytemuck::Zeroable::zeroed());
            let start = match via {
                Via::Cache => {
                    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut pages);
                    file.read_at(chunk.offset, &mut bytes[..len])?;
                    0
                }
                Via::Disk => match file.read_direct(chunk.offset, len, &mut pages, cancel)? {
                    Some(start) => start,
                    None => return Ok(false),
                },
            };
            let bytes: &[u8] = bytemuck::cast_slice(&pages);
            Coded::new(chunk.layout.clone(), &bytes[start..start + len])
                .and_then(|coded| take(open_rows(coded, chunk, rows)))
                .map_err(|error| self.damage(&file.path, chunk, &error))?;
        }
        Ok(true)
    }

    /// The chunks that hold these rows, ready to be decoded from coded bytes of some of the tensor, which begin `base` bytes
    /// behind its first; with each, which of the rows it holds, as the tensor and as the chunk count them. Opening one takes
    /// as long as decoding some ten thousand numbers.
    ///
    /// # Panics
    /// When the bytes don't hold these rows.
    pub(crate) fn open<'a>(
        &'a self,
        bytes: &'a [u8],
        base: u64,
        rows: &Range<usize>,
    ) -> impl Iterator<Item = Result<OpenRows<'a>, DecodeError>> + use<'a> {
        let rows = rows.clone();
        self.chunks_of(&rows)
            .iter()
            .map(move |chunk| Ok(open_rows(self.coded(chunk, bytes, base)?, chunk, &rows)))
    }

    /// A chunk, from coded bytes of some of the tensor, which begin `base` bytes behind its first.
    fn coded<'a>(
        &self,
        chunk: &Chunk,
        bytes: &'a [u8],
        base: u64,
    ) -> Result<Coded<'a>, DecodeError> {
        let start = (chunk.offset - self.start - base) as usize;
        Coded::new(
            chunk.layout.clone(),
            &bytes[start..start + chunk.layout.bytes()],
        )
    }

    /// Checks the coded bytes of some rows as far as widening them can fail.
    pub(crate) fn check(
        &self,
        path: &str,
        bytes: &[u8],
        base: u64,
        rows: &Range<usize>,
    ) -> Result<(), CheckpointError> {
        for chunk in self.chunks_of(rows) {
            self.coded(chunk, bytes, base)
                .and_then(|coded| coded.check_places())
                .map_err(|error| self.damage(path, chunk, &error))?;
        }
        Ok(())
    }

    /// Names the tensor, and the tile as all of the tensor's are counted.
    fn damage(&self, path: &str, chunk: &Chunk, error: &DecodeError) -> CheckpointError {
        let earlier = self
            .chunks
            .iter()
            .take_while(|other| other.offset < chunk.offset);
        let before: usize = earlier.map(|chunk| chunk.layout.tiles()).sum();
        let cause = match error {
            DecodeError::Tile(tile) => {
                format!("tile {} of tensor {} is damaged", before + tile, self.name)
            }
            other => format!("tensor {}, from tile {before} on: {other}", self.name),
        };
        CheckpointError::MalformedFile {
            path: path.to_owned(),
            cause,
        }
    }
}

/// What the codec calls numbers of this format; `None` for blocks, which are coded already.
pub(super) fn number_of(format: Format) -> Option<Number> {
    match format {
        Format::F32 => Some(Number::F32),
        Format::F16 => Some(Number::F16),
        Format::Bf16 => Some(Number::Bf16),
        _ => None,
    }
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
