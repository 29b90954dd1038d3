//! The header: what a container has, and where. What is read is believed only after [`Header::check`].

use std::{collections::HashSet, ops::Range};

use serde::{Deserialize, Serialize};

use super::{
    ALIGN_BYTES, CHUNK_ELEMENTS_MAX, CHUNKS_MAX, ContainerError, EXTENT_ALIGN_BYTES,
    FILE_BYTES_MAX, FILES_BYTES_MAX,
    hash::{Hash, Hasher},
};
use sluice_formats::DType;

use crate::layout::{LayoutError, MatrixLayout, Scheme, TILES};

/// Longest name of a tensor or an extent.
const NAME_BYTES_MAX: usize = 1024;
/// Longest name of a file, as file systems have it.
const FILE_NAME_BYTES_MAX: usize = 255;
/// Most sizes of a tensor.
const SIZES_MAX: usize = 16;

/// The whole of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Follows from all tensors' original bytes and all files: the same model has the same, however it is coded.
    pub source_hash: Hash,
    /// Bytes of the container.
    pub bytes: u64,
    /// Numbers of a tile.
    pub tile: usize,
    /// Tensors that are read together, in the order of their places.
    pub extents: Vec<Extent>,
    /// In the order of their places.
    pub tensors: Vec<TensorRecord>,
    /// Of each file of weights that the tensors came from, its own header, by which it is written again.
    pub shards: Vec<FileRecord>,
    /// Files that belong to the model: its configuration, its tokenizer.
    pub files: Vec<FileRecord>,
    /// The checks of all tensors' tiles.
    pub checks: Section,
}

/// Consecutive tensors, such as those of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// What its tensors' names have in common, or the only one's name.
    pub name: String,
    /// Its first byte, at a multiple of [`EXTENT_ALIGN_BYTES`].
    pub offset: u64,
    /// Its bytes.
    pub length: u64,
}

/// A tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorRecord {
    /// Its name.
    pub name: String,
    /// Sizes, outermost first. A coded tensor is a matrix with the last of them for width.
    pub shape: Vec<usize>,
    /// What its numbers are when they aren't coded, as safetensors call it, in small letters.
    #[serde(rename = "number")]
    pub dtype: String,
    /// The id of its scheme.
    pub scheme: u8,
    /// Which extent it is in.
    pub extent: usize,
    /// Its first byte, at a multiple of [`ALIGN_BYTES`].
    pub offset: u64,
    /// Its bytes.
    pub length: u64,
    /// Rows of a chunk, a coded matrix of its own; the last one may have fewer. 0 where nothing is coded.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub chunk_rows: usize,
    /// Of each chunk, the length of its codes, or of its escapes where it is coded by a palette, without padding: the rest
    /// of its layout follows from the shape.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chunks: Vec<usize>,
    /// Of its bytes.
    pub hash: Hash,
    /// Of the bytes that it was coded from.
    pub original_hash: Hash,
    /// Where the checks of its tiles begin, two bytes each: the first is of the tables before all tiles.
    pub checks: u64,
}

/// A file inside, or a header of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Its name.
    pub name: String,
    /// Its first byte.
    pub offset: u64,
    /// Its bytes.
    pub length: u64,
    /// Of its bytes.
    pub hash: Hash,
}

/// Some bytes of the container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// The first one.
    pub offset: u64,
    /// How many.
    pub length: u64,
    /// Of all of them.
    pub hash: Hash,
}

impl TensorRecord {
    /// How it is coded, if that is known.
    #[must_use]
    pub fn scheme(&self) -> Option<Scheme> {
        Scheme::from_id(self.scheme)
    }

    /// What its numbers are, if they are such as can be coded.
    #[must_use]
    pub fn dtype(&self) -> Option<DType> {
        dtype(&self.dtype)
    }

    /// Numbers in all; `None` if no address counts that far.
    #[must_use]
    pub fn elements(&self) -> Option<usize> {
        elements(&self.shape)
    }

    /// Rows and width of the matrix that it is coded as.
    #[must_use]
    pub fn matrix(&self) -> Option<(usize, usize)> {
        matrix(&self.shape)
    }

    /// Bytes before it was coded. Of a plain tensor, all that it has.
    #[must_use]
    pub fn original_bytes(&self) -> u64 {
        match (self.scheme(), self.dtype(), self.elements()) {
            (Some(Scheme::Plain), ..) => self.length,
            (_, Some(number), Some(numbers)) => (numbers as u64) * number.bytes() as u64,
            _ => self.length,
        }
    }

    /// The chunks of a coded tensor, in order, each with its place in the container; of a plain one there are none. An
    /// error says what is wrong with the first that can't be.
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
                let first = index.saturating_mul(self.chunk_rows).min(rows);
                let rows = first..first.saturating_add(self.chunk_rows).min(rows);
                let layout = layout(scheme, number, rows.len(), width, tile, varying)
                    .map_err(|error| format!("cannot have its chunk {index}: {error}"))?;
                let chunk = Chunk {
                    rows,
                    offset,
                    layout,
                };
                // The last one ends where the tensor does; that is compared by who asks.
                offset = chunk
                    .end()
                    .checked_next_multiple_of(ALIGN_BYTES)
                    .ok_or("is larger than any file")?;
                Ok(chunk)
            })
    }

    /// Bytes of a tile where it is plain.
    pub(super) fn tile_bytes(&self, tile: usize) -> usize {
        tile * self.dtype().map_or(1, DType::bytes)
    }

    /// Checks that it has, if it can be at all: of a plain one, one a tile; of a coded one, one of each chunk's tables and
    /// one of each tile.
    fn check_compression(&self, tile: usize) -> Result<u64, String> {
        let numbers = self.elements().ok_or("has too many elements")?;
        if self.scheme() == Some(Scheme::Plain) {
            if self.chunk_rows != 0 || !self.chunks.is_empty() {
                return Err("is not compressed, but has chunks".to_owned());
            }
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
        let (mut end, mut checks) = (self.offset, 0);
        for chunk in self.chunks(tile) {
            let chunk = chunk?;
            let numbers = chunk.layout.elements();
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

/// Rows of a tensor that are coded together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Which rows.
    pub rows: Range<usize>,
    /// Its first byte in the container.
    pub offset: u64,
    /// Where its parts are in it.
    pub layout: MatrixLayout,
}

impl Chunk {
    /// The byte after its last.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.layout.bytes() as u64)
    }
}

/// The layout of a chunk, of whose parts only one varies.
fn layout(
    scheme: Scheme,
    dtype: DType,
    rows: usize,
    width: usize,
    tile: usize,
    varying: usize,
) -> Result<MatrixLayout, LayoutError> {
    let (codes, escapes) = match scheme {
        Scheme::Dictionary => (rows.saturating_mul(width).div_ceil(2), varying),
        _ => (varying, 0),
    };
    MatrixLayout::new(scheme, dtype, rows, width, tile, codes, escapes)
}

/// The part of a layout that varies.
pub(super) fn varying(layout: &MatrixLayout) -> usize {
    match layout.scheme() {
        Scheme::Dictionary => layout.escapes_len(),
        _ => layout.codes_len(),
    }
}

fn is_zero(value: &usize) -> bool {
    *value == 0
}

/// What these letters stand for.
pub(super) fn dtype(name: &str) -> Option<DType> {
    match name {
        "bf16" => Some(DType::Bf16),
        "f16" => Some(DType::F16),
        "f32" => Some(DType::F32),
        _ => None,
    }
}

/// Numbers of a tensor.
pub(super) fn elements(shape: &[usize]) -> Option<usize> {
    shape
        .iter()
        .try_fold(1usize, |numbers, &size| numbers.checked_mul(size))
}

/// Rows and width of a tensor as a matrix: what it has of sizes before the last makes rows.
pub(super) fn matrix(shape: &[usize]) -> Option<(usize, usize)> {
    match shape {
        [rows @ .., width] if !rows.is_empty() => Some((elements(rows)?, *width)),
        _ => None,
    }
}

/// Whether a file may be written by this name, whoever chose it: it lies in its folder, and isn't hidden.
#[must_use]
pub fn is_file_name(name: &str) -> bool {
    (1..=FILE_NAME_BYTES_MAX).contains(&name.len())
        && !name.starts_with('.')
        && !name.contains(['/', '\\'])
        && !name.chars().any(char::is_control)
}

fn is_tensor_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control)
}

/// A name in a message: what was read may be of any length and kind.
fn shown(name: &str) -> String {
    let end = name.floor_char_boundary(100);
    name[..end].escape_debug().to_string()
}

impl Header {
    /// Follows from tensors and files.
    pub(super) fn expected_source_hash(&self) -> Hash {
        let mut hasher = Hasher::default();
        // Which tensors are read together is a choice, and so is their order.
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

    /// Whether everything in it holds together and lies between `start`, where the header ends, and the end.
    pub(super) fn check(&self, path: &str, start: u64) -> Result<(), ContainerError> {
        let malformed = |problem: String| ContainerError::Malformed {
            path: path.to_owned(),
            problem,
        };
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

    /// Whether names, sizes and files are such that it can be read, wherever they are.
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
        let chunks = self.tensors.iter().map(|tensor| tensor.chunks.len());
        if chunks.sum::<usize>() > CHUNKS_MAX {
            return Err(format!("it has more than {CHUNKS_MAX} chunks"));
        }
        names.clear();
        for file in self.shards.iter().chain(&self.files) {
            if !is_file_name(&file.name) {
                return Err(format!("{:?} is not a valid file name", shown(&file.name)));
            }
            if !names.insert(&file.name) {
                return Err(format!("duplicate file {}", shown(&file.name)));
            }
            // Whoever reads it takes memory for all of it.
            if file.length > FILE_BYTES_MAX {
                return Err(format!(
                    "file {} has {} bytes; the maximum is {FILE_BYTES_MAX}",
                    shown(&file.name),
                    file.length
                ));
            }
        }
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
        let is_letters =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if !((1..=16).contains(&tensor.dtype.len()) && tensor.dtype.bytes().all(is_letters)) {
            return Err(format!("has an invalid dtype: {:?}", shown(&tensor.dtype)));
        }
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

    /// Whether parts lie one after another, and extents too.
    fn check_positions(&self, start: u64) -> Result<(), String> {
        let mut end = start;
        for (place, align, what) in self.positions() {
            if !place.start.is_multiple_of(align) {
                return Err(format!(
                    "{what} begins at {}, which is not a multiple of {align}",
                    place.start
                ));
            }
            if place.start < end || place.end == u64::MAX {
                return Err(format!("{what} overlaps the part before it"));
            }
            end = place.end;
        }
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

    /// Every part that isn't padding, what its place must be a multiple of, and what messages call it: in the only order
    /// in which they may lie.
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

/// The end of what begins here; no file goes as far as what overflows.
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
