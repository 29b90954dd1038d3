//! The header: what a container contains, and where. A header that was read is trusted only after [`Header::check`].

use std::{collections::HashSet, ops::Range};

use serde::{Deserialize, Serialize};

use super::{
    ALIGN_BYTES, CHUNK_ELEMENTS_MAX, CHUNKS_MAX, ContainerError, EXTENT_ALIGN_BYTES,
    FILE_BYTES_MAX, FILES_BYTES_MAX,
    hash::{Hash, Hasher},
};
use sluice_formats::DType;

use crate::layout::{LayoutError, MatrixLayout, Scheme, TILES};

/// Longest name of a tensor or an extent, in bytes.
const NAME_BYTES_MAX: usize = 1024;
/// Longest name of a file, in bytes: the limit of common file systems.
const FILE_NAME_BYTES_MAX: usize = 255;
/// Most dimensions of a tensor.
const SIZES_MAX: usize = 16;

/// A container's header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Hash of all tensors' original bytes and all files: equal for the same model, however it is compressed.
    pub source_hash: Hash,
    /// Bytes of the container file.
    pub bytes: u64,
    /// Elements of a tile: 128, 256 or 512.
    pub tile: usize,
    /// Extents in file order; each is read at once.
    pub extents: Vec<Extent>,
    /// Tensors in file order.
    pub tensors: Vec<TensorRecord>,
    /// The safetensors header of each weight file that the tensors came from. `decompress` needs them to write the same
    /// files again.
    pub shards: Vec<FileRecord>,
    /// The model's other files: configuration, tokenizer.
    pub files: Vec<FileRecord>,
    /// The section with the checks of all tensors' tiles.
    pub checks: Section,
}

/// Consecutive tensors that are read together, such as those of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// The common prefix of its tensors' names, or the name of its only tensor.
    pub name: String,
    /// Offset of its first byte in the file, a multiple of [`EXTENT_ALIGN_BYTES`].
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// A tensor of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorRecord {
    /// The tensor's full name, as safetensors has it.
    pub name: String,
    /// Dimensions, outermost first. A compressed tensor is a matrix whose width is the last of them.
    pub shape: Vec<usize>,
    /// The dtype of its elements when they are decompressed, as safetensors names it, in lower case.
    #[serde(rename = "number")]
    pub dtype: String,
    /// The id of its [`Scheme`].
    pub scheme: u8,
    /// Index of its extent.
    pub extent: usize,
    /// Offset of its first byte in the file, a multiple of [`ALIGN_BYTES`].
    pub offset: u64,
    /// Length in bytes, as stored.
    pub length: u64,
    /// Rows of a chunk, which is a compressed matrix of its own; the last chunk may have fewer. 0 for a plain tensor.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub chunk_rows: usize,
    /// For each chunk, the length of its codes without padding, or of its escapes if it is dictionary-coded: the rest
    /// of its layout follows from the shape.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chunks: Vec<usize>,
    /// Hash of its stored bytes.
    pub hash: Hash,
    /// Hash of the bytes that it was compressed from.
    pub original_hash: Hash,
    /// Offset of the checks of its tiles, two bytes each. A chunk's checks begin with one for its tables.
    pub checks: u64,
}

/// A file inside a container, or the header of a weight file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// File name without a folder.
    pub name: String,
    /// Offset of its first byte in the container.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Hash of its bytes.
    pub hash: Hash,
}

/// A range of the container's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// Offset of its first byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Hash of all of its bytes.
    pub hash: Hash,
}

impl TensorRecord {
    /// The compression scheme; `None` if this version doesn't know it.
    #[must_use]
    pub fn scheme(&self) -> Option<Scheme> {
        Scheme::from_id(self.scheme)
    }

    /// The dtype, if it is one that can be compressed.
    #[must_use]
    pub fn dtype(&self) -> Option<DType> {
        dtype(&self.dtype)
    }

    /// Number of elements; `None` if the product overflows.
    #[must_use]
    pub fn elements(&self) -> Option<usize> {
        elements(&self.shape)
    }

    /// Rows and width of the matrix that it is compressed as; `None` with fewer than two dimensions.
    #[must_use]
    pub fn matrix(&self) -> Option<(usize, usize)> {
        matrix(&self.shape)
    }

    /// Bytes of the decompressed tensor; for a plain tensor its length.
    #[must_use]
    pub fn original_bytes(&self) -> u64 {
        match (self.scheme(), self.dtype(), self.elements()) {
            // A plain tensor may have a dtype whose element size isn't known here, such as i64: its stored length is
            // its size.
            (Some(Scheme::Plain), ..) => self.length,
            (_, Some(number), Some(numbers)) => (numbers as u64) * number.bytes() as u64,
            _ => self.length,
        }
    }

    /// The chunks of a compressed tensor in order, with their places in the container; a plain tensor has none. An
    /// error says what is wrong with the first invalid chunk.
    pub(super) fn chunks(&self, tile: usize) -> impl Iterator<Item = Result<Chunk, String>> {
        let (rows, width) = self.matrix().unwrap_or((0, 0));
        let mut offset = self.offset;
        self.chunks
            .iter()
            .enumerate()
            .map(move |(index, &varying)| {
                let number = self
                    .dtype()
                    .ok_or_else(|| format!("is compressed, but has the dtype {}", self.dtype))?;
                let scheme = self.scheme().unwrap_or(Scheme::Plain);
                // Hostile numbers of rows saturate; `check_compression` refuses them by the count of chunks.
                let first = index.saturating_mul(self.chunk_rows).min(rows);
                let rows = first..first.saturating_add(self.chunk_rows).min(rows);
                let layout = layout(scheme, number, rows.len(), width, tile, varying)
                    .map_err(|error| format!("cannot have its chunk {index}: {error}"))?;
                let chunk = Chunk {
                    rows,
                    offset,
                    layout,
                };
                // The caller compares the end of the last chunk with the tensor's end.
                offset = chunk
                    .end()
                    .checked_next_multiple_of(ALIGN_BYTES)
                    .ok_or("is larger than any file")?;
                Ok(chunk)
            })
    }

    /// Bytes of a tile of a plain tensor. Of a dtype that cannot be compressed, tiles are counted in bytes.
    pub(super) fn tile_bytes(&self, tile: usize) -> usize {
        tile * self.dtype().map_or(1, DType::bytes)
    }

    /// Number of checks that the tensor has, or why it is invalid: a plain tensor has one for each tile, a compressed
    /// one also one for the tables of each chunk.
    fn check_compression(&self, tile: usize) -> Result<u64, String> {
        let numbers = self.elements().ok_or("has too many elements")?;
        if self.scheme() == Some(Scheme::Plain) {
            if self.chunk_rows != 0 || !self.chunks.is_empty() {
                return Err("is not compressed, but has chunks".to_owned());
            }
            // Only dtypes that can be compressed have a known size. Others are stored as they are, whatever their
            // length.
            if let Some(number) = self.dtype()
                && numbers
                    .checked_mul(number.bytes())
                    .map(|bytes| bytes as u64)
                    != Some(self.length)
            {
                return Err(format!("has {} bytes for {numbers} elements", self.length));
            }
            return Ok(self.length.div_ceil(self.tile_bytes(tile) as u64));
        }
        let (rows, _) = self
            .matrix()
            .filter(|_| numbers > 0)
            .ok_or_else(|| format!("is compressed, but is not a matrix: {:?}", self.shape))?;
        if self.chunk_rows == 0 || rows.div_ceil(self.chunk_rows) != self.chunks.len() {
            return Err(format!(
                "has {} chunks of {} rows for {rows}",
                self.chunks.len(),
                self.chunk_rows
            ));
        }
        // A header gives chunks no offsets: each begins where the one before ends, so they can neither overlap nor
        // leave gaps.
        let (mut end, mut checks) = (self.offset, 0);
        for chunk in self.chunks(tile) {
            let chunk = chunk?;
            let numbers = chunk.layout.elements();
            // A hostile header could declare a chunk of a few bytes that decompresses to gigabytes.
            if numbers > CHUNK_ELEMENTS_MAX {
                return Err(format!(
                    "has a chunk of {numbers} elements; the maximum is {CHUNK_ELEMENTS_MAX}"
                ));
            }
            end = chunk.end();
            checks += 1 + chunk.layout.tiles() as u64;
        }
        match end.checked_sub(self.offset) {
            Some(length) if length == self.length => Ok(checks),
            _ => Err(format!(
                "has {} bytes; its shape and scheme require {}",
                self.length,
                end.saturating_sub(self.offset)
            )),
        }
    }
}

/// Rows of a tensor that are compressed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The rows of the tensor that it holds.
    pub rows: Range<usize>,
    /// Offset of its first byte in the container.
    pub offset: u64,
    /// Byte ranges of its parts, relative to `offset`.
    pub layout: MatrixLayout,
}

impl Chunk {
    /// Offset of the byte after its last one.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.layout.bytes() as u64)
    }
}

/// The layout of a chunk. All lengths but one follow from the shape; `varying` is that one.
fn layout(
    scheme: Scheme,
    dtype: DType,
    rows: usize,
    width: usize,
    tile: usize,
    varying: usize,
) -> Result<MatrixLayout, LayoutError> {
    let (codes, escapes) = match scheme {
        // Indices take four bits per weight, so only escapes vary. A product that saturates is refused by
        // `MatrixLayout::new`.
        Scheme::Dictionary => (rows.saturating_mul(width).div_ceil(2), varying),
        _ => (varying, 0),
    };
    MatrixLayout::new(scheme, dtype, rows, width, tile, codes, escapes)
}

/// The one length of a layout that doesn't follow from the shape.
pub(super) fn varying(layout: &MatrixLayout) -> usize {
    match layout.scheme() {
        Scheme::Dictionary => layout.escapes_len(),
        _ => layout.codes_len(),
    }
}

fn is_zero(value: &usize) -> bool {
    *value == 0
}

/// The dtype of a name in lower case, if it can be compressed.
pub(super) fn dtype(name: &str) -> Option<DType> {
    match name {
        "bf16" => Some(DType::Bf16),
        "f16" => Some(DType::F16),
        "f32" => Some(DType::F32),
        _ => None,
    }
}

/// Number of elements of a shape; `None` if it overflows.
pub(super) fn elements(shape: &[usize]) -> Option<usize> {
    shape
        .iter()
        .try_fold(1usize, |numbers, &size| numbers.checked_mul(size))
}

/// Rows and width of a tensor as a matrix: all dimensions before the last make rows.
pub(super) fn matrix(shape: &[usize]) -> Option<(usize, usize)> {
    match shape {
        [rows @ .., width] if !rows.is_empty() => Some((elements(rows)?, *width)),
        _ => None,
    }
}

/// Whether a file may safely be created under this name, whoever chose it: it stays in its folder, and isn't hidden.
#[must_use]
pub fn is_file_name(name: &str) -> bool {
    (1..=FILE_NAME_BYTES_MAX).contains(&name.len())
        // This refuses `.` and `..`, too.
        && !name.starts_with('.')
        && !name.contains(['/', '\\'])
        && !name.chars().any(char::is_control)
}

fn is_tensor_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control)
}

/// A name for a message, cut and escaped: a header may contain names of any length and with control characters.
fn shown(name: &str) -> String {
    let end = name.floor_char_boundary(100);
    name[..end].escape_debug().to_string()
}

impl Header {
    /// The source hash that follows from tensors and files.
    pub(super) fn expected_source_hash(&self) -> Hash {
        let mut hasher = Hasher::default();
        // Extents and their order are a choice of the writer, so tensors are hashed in the order of names.
        let mut tensors: Vec<&TensorRecord> = self.tensors.iter().collect();
        tensors.sort_unstable_by_key(|tensor| &tensor.name);
        for tensor in tensors {
            hasher.text(&tensor.name);
            hasher.text(&tensor.dtype);
            for &size in &tensor.shape {
                hasher.update(&(size as u64).to_le_bytes());
            }
            hasher.update(&tensor.original_hash.0.to_le_bytes());
        }
        for file in self.shards.iter().chain(&self.files) {
            hasher.text(&file.name);
            hasher.update(&file.hash.0.to_le_bytes());
        }
        hasher.finish()
    }

    /// Checks that the header is consistent and that all parts lie between `start`, where it ends, and the end of the
    /// file.
    pub(super) fn check(&self, path: &str, start: u64) -> Result<(), ContainerError> {
        let malformed = |problem: String| ContainerError::Malformed {
            path: path.to_owned(),
            problem,
        };
        // All sizes below depend on the tile, so it is checked first.
        if !TILES.contains(&self.tile) {
            return Err(malformed(format!(
                "a tile of {} elements is not supported; use 128, 256 or 512",
                self.tile
            )));
        }
        self.check_names_and_files().map_err(malformed)?;
        for tensor in &self.tensors {
            if tensor.scheme().is_none() {
                return Err(ContainerError::UnknownScheme {
                    path: path.to_owned(),
                    tensor: shown(&tensor.name),
                    scheme: tensor.scheme,
                });
            }
            self.check_tensor(tensor).map_err(|problem| {
                malformed(format!("tensor {} {problem}", shown(&tensor.name)))
            })?;
        }
        self.check_positions(start).map_err(malformed)
    }

    /// Checks names, sizes and limits, wherever the parts are. The writer checks a planned header by it, before places
    /// are known.
    pub(super) fn check_names_and_files(&self) -> Result<(), String> {
        let mut names = HashSet::new();
        for tensor in &self.tensors {
            if !is_tensor_name(&tensor.name) {
                return Err(format!(
                    "{:?} is not a valid tensor name",
                    shown(&tensor.name)
                ));
            }
            if !names.insert(&tensor.name) {
                return Err(format!("duplicate tensor {}", shown(&tensor.name)));
            }
            if tensor.shape.len() > SIZES_MAX {
                return Err(format!(
                    "tensor {} has {} dimensions",
                    shown(&tensor.name),
                    tensor.shape.len()
                ));
            }
        }
        // The lists are in memory already, so the sum cannot overflow; the limit bounds what readers keep for each
        // chunk.
        let chunks = self.tensors.iter().map(|tensor| tensor.chunks.len());
        if chunks.sum::<usize>() > CHUNKS_MAX {
            return Err(format!("it has more than {CHUNKS_MAX} chunks"));
        }
        // Files and shards share one set of names: `decompress` writes them all to one folder.
        names.clear();
        for file in self.shards.iter().chain(&self.files) {
            if !is_file_name(&file.name) {
                return Err(format!("{:?} is not a valid file name", shown(&file.name)));
            }
            if !names.insert(&file.name) {
                return Err(format!("duplicate file {}", shown(&file.name)));
            }
            // Readers allocate the whole file.
            if file.length > FILE_BYTES_MAX {
                return Err(format!(
                    "file {} has {} bytes; the maximum is {FILE_BYTES_MAX}",
                    shown(&file.name),
                    file.length
                ));
            }
        }
        // No overflow: every length was just held to `FILE_BYTES_MAX`, and a header of 64 MiB has far fewer than 2^36
        // files.
        let all: u64 = self.files.iter().map(|file| file.length).sum();
        if all > FILES_BYTES_MAX {
            return Err(format!(
                "its files have {all} bytes; the maximum is {FILES_BYTES_MAX}"
            ));
        }
        Ok(())
    }

    fn check_tensor(&self, tensor: &TensorRecord) -> Result<(), String> {
        let checks = tensor.check_compression(self.tile)?;
        // The dtype is shown in messages, so only plain letters are accepted.
        let is_letters =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if !((1..=16).contains(&tensor.dtype.len()) && tensor.dtype.bytes().all(is_letters)) {
            return Err(format!("has an invalid dtype: {:?}", shown(&tensor.dtype)));
        }
        // Checks are two bytes each and may lie anywhere in their section: no code relies on their order.
        let end = checks.checked_mul(2);
        let end = end.and_then(|bytes| tensor.checks.checked_add(bytes));
        if !tensor.checks.is_multiple_of(2)
            || tensor.checks < self.checks.offset
            || end.is_none_or(|end| end > end_of(self.checks.offset, self.checks.length))
        {
            return Err("has checksums outside the checksum section".to_owned());
        }
        let extent = self
            .extents
            .get(tensor.extent)
            .ok_or_else(|| format!("refers to extent {}, which does not exist", tensor.extent))?;
        if tensor.offset < extent.offset
            || end_of(tensor.offset, tensor.length) > end_of(extent.offset, extent.length)
        {
            return Err(format!("lies outside its extent {}", shown(&extent.name)));
        }
        Ok(())
    }

    /// Checks that parts lie one after another without overlaps, and extents too.
    fn check_positions(&self, start: u64) -> Result<(), String> {
        let mut end = start;
        for (place, align, what) in self.positions() {
            if !place.start.is_multiple_of(align) {
                return Err(format!(
                    "{what} begins at {}, which is not a multiple of {align}",
                    place.start
                ));
            }
            // `end_of` saturates: an end of `u64::MAX` is an overflow.
            if place.start < end || place.end == u64::MAX {
                return Err(format!("{what} overlaps the part before it"));
            }
            end = place.end;
        }
        // `bytes` was compared with the file's length, so nothing can follow the last part.
        if end != self.bytes {
            return Err(format!(
                "it ends at byte {end}; its header declares {}",
                self.bytes
            ));
        }
        let files = self.shards.iter().chain(&self.files);
        let files_end = files.map(|file| end_of(file.offset, file.length)).max();
        let mut end = files_end.unwrap_or(start);
        for extent in &self.extents {
            // Tensors may only lie inside extents, so extents must not reach into files or checks.
            let what = || format!("extent {}", shown(&extent.name));
            if !is_tensor_name(&extent.name) {
                return Err(format!(
                    "{:?} is not a valid extent name",
                    shown(&extent.name)
                ));
            }
            if !extent.offset.is_multiple_of(EXTENT_ALIGN_BYTES) {
                return Err(format!("{} does not begin on a page boundary", what()));
            }
            if extent.offset < end {
                return Err(format!("{} overlaps the part before it", what()));
            }
            end = end_of(extent.offset, extent.length);
            if end > self.checks.offset {
                return Err(format!("{} overlaps the checksums", what()));
            }
        }
        Ok(())
    }

    /// Every part that isn't padding in the required order, with its alignment and its name for messages.
    pub(super) fn positions(&self) -> impl Iterator<Item = (Range<u64>, u64, String)> {
        let files = self.shards.iter().chain(&self.files).map(|file| {
            let what = format!("file {}", shown(&file.name));
            (file.offset, file.length, ALIGN_BYTES, what)
        });
        let tensors = self.tensors.iter().map(|tensor| {
            let what = format!("tensor {}", shown(&tensor.name));
            (tensor.offset, tensor.length, ALIGN_BYTES, what)
        });
        let Section { offset, length, .. } = self.checks;
        let checks = [(
            offset,
            length,
            EXTENT_ALIGN_BYTES,
            "the checksum section".to_owned(),
        )];
        let all = files.chain(tensors).chain(checks);
        all.map(|(offset, length, align, what)| (offset..end_of(offset, length), align, what))
    }
}

/// End of a range; saturates, since no file is that long.
fn end_of(offset: u64, length: u64) -> u64 {
    offset.saturating_add(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_on_disk_keeps_the_names_of_its_fields() {
        let section = Section {
            offset: 1,
            length: 2,
            hash: Hash(3),
        };
        let file = FileRecord {
            name: "config.json".to_owned(),
            offset: 4,
            length: 5,
            hash: Hash(6),
        };
        let header = Header {
            source_hash: Hash(7),
            bytes: 8,
            tile: 512,
            extents: vec![Extent {
                name: "layers.0".to_owned(),
                offset: 9,
                length: 10,
            }],
            tensors: vec![TensorRecord {
                name: "layers.0.q".to_owned(),
                shape: vec![11, 12],
                dtype: "bf16".to_owned(),
                scheme: Scheme::Dictionary.id(),
                extent: 0,
                offset: 13,
                length: 14,
                chunk_rows: 256,
                chunks: vec![15],
                hash: Hash(16),
                original_hash: Hash(17),
                checks: 18,
            }],
            shards: vec![file.clone()],
            files: vec![file],
            checks: section,
        };
        let json = concat!(
            r#"{"source_hash":"0000000000000007","bytes":8,"tile":512,"#,
            r#""extents":[{"name":"layers.0","offset":9,"length":10}],"#,
            r#""tensors":[{"name":"layers.0.q","shape":[11,12],"number":"bf16","scheme":2,"extent":0,"offset":13,"length":14,"#,
            r#""chunk_rows":256,"chunks":[15],"hash":"0000000000000010","original_hash":"0000000000000011","checks":18}],"#,
            r#""shards":[{"name":"config.json","offset":4,"length":5,"hash":"0000000000000006"}],"#,
            r#""files":[{"name":"config.json","offset":4,"length":5,"hash":"0000000000000006"}],"#,
            r#""checks":{"offset":1,"length":2,"hash":"0000000000000003"}}"#,
        );
        assert_eq!(serde_json::to_string(&header).unwrap(), json);
        assert_eq!(serde_json::from_str::<Header>(json).unwrap(), header);
    }
}
