//! Reads containers from untrusted sources: either a container is refused, or everything its header says lies inside
//! the file. Allocations never exceed what the file has bytes for.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use super::{
    ContainerError, Damage, HEADER_BYTES_MAX, MAGIC, PREFIX_BYTES, VERSION,
    error::shown,
    hash::{Hash, Hasher},
    header::{Chunk, FileRecord, Header, TensorRecord},
    tiles,
};
use crate::{
    decompress::{CompressedMatrix, DecompressError},
    layout::Scheme,
};

/// Most bytes of a plain tensor or of padding that are read at a time.
const PIECE_BYTES: usize = 4 << 20;
/// Most damaged tiles that are reported per tensor.
const TILES_NAMED_MAX: usize = 8;

/// Random access to bytes: a file, or memory.
pub trait ReadAt {
    /// Length in bytes.
    ///
    /// # Errors
    /// When the size cannot be determined.
    fn size(&self) -> io::Result<u64>;

    /// Fills `out` from `offset` on.
    ///
    /// # Errors
    /// When reading fails, or the source ends before `out` is filled.
    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()>;
}

impl ReadAt for File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, out, offset)
    }
}

impl ReadAt for &[u8] {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        usize::try_from(offset)
            .ok()
            .and_then(|start| self.get(start..start.checked_add(out.len())?))
            .map(|part| out.copy_from_slice(part))
            .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// An open container whose header is consistent.
#[derive(Debug)]
pub struct Container<R = File> {
    source: R,
    path: String,
    header: Header,
    /// Offset where the header ends and padding begins.
    header_end: u64,
}

impl Container<File> {
    /// Opens a container and checks its header.
    ///
    /// # Errors
    /// When it cannot be read, or is no valid container.
    pub fn open(path: &Path) -> Result<Self, ContainerError> {
        let file = File::open(path).map_err(ContainerError::io("open", path))?;
        // A folder opens as well, and a device has no length.
        let metadata = file.metadata().map_err(ContainerError::io("read", path))?;
        if !metadata.is_file() {
            return Err(ContainerError::NotAContainer { path: shown(path) });
        }
        Self::read(file, shown(path))
    }
}

impl<R: ReadAt> Container<R> {
    /// Reads and checks the header; `path` is for messages.
    ///
    /// # Errors
    /// When it cannot be read, or is no valid container.
    pub fn read(source: R, path: String) -> Result<Self, ContainerError> {
        let io = |cause| ContainerError::Io {
            operation: "read",
            path: path.clone(),
            cause,
        };
        let bytes = source.size().map_err(io)?;
        let not_one = || ContainerError::NotAContainer { path: path.clone() };
        if bytes < PREFIX_BYTES {
            return Err(not_one());
        }
        let mut prefix = [0; PREFIX_BYTES as usize];
        source.read_exact_at(&mut prefix, 0).map_err(io)?;
        let word = |at: usize| u32::from_le_bytes(prefix[at..at + 4].try_into().expect("four"));
        if prefix[..8] != MAGIC {
            return Err(not_one());
        }
        // Before length and checksum: another version may have other things in their places.
        if word(8) != VERSION {
            return Err(ContainerError::Version {
                path,
                found: word(8),
            });
        }
        let length = u64::from(word(12));
        let header_end = PREFIX_BYTES + length;
        // Compared before the header is allocated.
        if length > HEADER_BYTES_MAX {
            return Err(ContainerError::Malformed {
                path,
                problem: format!("its header would have {length} bytes"),
            });
        }
        if header_end > bytes {
            return Err(ContainerError::WrongLength {
                path,
                expected: header_end,
                found: bytes,
            });
        }
        let mut text = vec![0; length as usize];
        source.read_exact_at(&mut text, PREFIX_BYTES).map_err(io)?;
        if Hash::of(&text).0.to_le_bytes() != prefix[16..24] {
            return Err(ContainerError::HeaderDamaged { path });
        }
        let header = serde_json::from_slice::<Header>(&text);
        let header = header.map_err(|error| ContainerError::Malformed {
            path: path.clone(),
            problem: format!("its header: {error}"),
        })?;
        // A truncated file is reported as such, rather than by whichever part is missing first.
        if header.bytes != bytes {
            return Err(ContainerError::WrongLength {
                path,
                expected: header.bytes,
                found: bytes,
            });
        }
        header.check(&path, header_end)?;
        Ok(Self {
            source,
            path,
            header,
            header_end,
        })
    }

    /// The header, which was checked.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Path for messages.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The source that it reads from.
    #[must_use]
    pub fn source(&self) -> &R {
        &self.source
    }

    /// The tensor of exactly this name, if there is one.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorRecord> {
        self.header
            .tensors
            .iter()
            .find(|tensor| tensor.name == name)
    }

    /// The chunks of one of this container's compressed tensors, in order; a plain tensor has none.
    pub fn chunks(&self, tensor: &TensorRecord) -> impl Iterator<Item = Chunk> {
        let chunks = tensor.chunks(self.header.tile);
        chunks.map(|chunk| chunk.expect("checked when the header was read"))
    }

    /// Fills `out` with a tensor's stored bytes, from its byte `from` on.
    ///
    /// # Errors
    /// When a file operation fails, or the bytes lie outside of the tensor.
    pub fn read_part(
        &self,
        tensor: &TensorRecord,
        from: u64,
        out: &mut [u8],
    ) -> Result<(), ContainerError> {
        // The tensor's length was checked when the header was read; `from` and `out` are the caller's.
        let end = from.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > tensor.length) {
            return Err(ContainerError::Missing {
                path: self.path.clone(),
                what: format!("bytes beyond the end of tensor {}", tensor.name),
            });
        }
        self.read_at(tensor.offset + from, out)
    }

    /// Fills `out` with a chunk's stored bytes.
    ///
    /// # Errors
    /// When a file operation fails.
    pub fn read_chunk(&self, chunk: &Chunk, out: &mut Vec<u8>) -> Result<(), ContainerError> {
        out.resize(chunk.layout.bytes(), 0);
        self.read_at(chunk.offset, out)
    }

    /// The bytes of a file inside, after its checksum was compared; `None` if there is no such file.
    ///
    /// # Errors
    /// When a file operation fails, or the checksum differs.
    pub fn file(&self, name: &str) -> Result<Option<Vec<u8>>, ContainerError> {
        let file = self.header.files.iter().find(|file| file.name == name);
        file.map(|file| self.read_file(file)).transpose()
    }

    /// The bytes of a file or of a shard's header, after the checksum was compared.
    ///
    /// # Errors
    /// When a file operation fails, or the checksum differs.
    pub fn read_file(&self, file: &FileRecord) -> Result<Vec<u8>, ContainerError> {
        let mut bytes = vec![0; file.length as usize];
        self.read_at(file.offset, &mut bytes)?;
        match Hash::of(&bytes) == file.hash {
            true => Ok(bytes),
            false => Err(self.damaged(Damage::File {
                name: file.name.clone(),
            })),
        }
    }

    /// An error for damage of this container.
    #[must_use]
    pub fn damaged(&self, damage: Damage) -> ContainerError {
        ContainerError::Damaged {
            path: self.path.clone(),
            damage,
        }
    }

    /// Compares the stored bytes of all tensors with their hashes, in file order, and returns the first damage. As fast as
    /// the bytes are read, where [`Container::verify`] decompresses them. `progress` is told how far in the file it is.
    ///
    /// # Errors
    /// When a file operation fails, or `cancel` was set.
    pub fn compare(
        &self,
        cancel: &AtomicBool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<Damage>, ContainerError> {
        let mut tensors: Vec<_> = self.header.tensors.iter().collect();
        tensors.sort_unstable_by_key(|tensor| tensor.offset);
        for tensor in tensors {
            let mut hasher = Hasher::default();
            let mut at = tensor.offset;
            self.pieces(at, tensor.length, PIECE_BYTES, cancel, |bytes| {
                hasher.update(bytes);
                at += bytes.len() as u64;
                progress(at);
            })?;
            if hasher.finish() != tensor.hash {
                let found = self.verify_tensor(tensor, cancel, progress)?;
                let whole = || Damage::Tensor {
                    tensor: tensor.name.clone(),
                };
                return Ok(Some(found.into_iter().next().unwrap_or_else(whole)));
            }
        }
        Ok(None)
    }

    /// Compares every byte with its checksums. `progress` is told how many bytes were read. Returns all damage found,
    /// in file order.
    ///
    /// # Errors
    /// When a file operation fails, or `cancel` was set.
    pub fn verify(
        &self,
        cancel: &AtomicBool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<Damage>, ContainerError> {
        let mut found = Vec::new();
        if self.header.expected_source_hash() != self.header.source_hash {
            found.push(Damage::Source);
        }
        for file in self.header.shards.iter().chain(&self.header.files) {
            match self.read_file(file) {
                Ok(_) => {}
                // Collected rather than returned: a report should be complete.
                Err(ContainerError::Damaged { damage, .. }) => found.push(damage),
                Err(other) => return Err(other),
            }
        }
        for tensor in &self.header.tensors {
            progress(tensor.offset);
            found.extend(self.verify_tensor(tensor, cancel, progress)?);
        }
        let checks = self.header.checks;
        let mut hasher = Hasher::default();
        // The section has a hash of its own: damaged checks must not be blamed on the tensors.
        self.pieces(checks.offset, checks.length, PIECE_BYTES, cancel, |bytes| {
            hasher.update(bytes);
        })?;
        if hasher.finish() != checks.hash {
            found.push(Damage::Checks);
        }
        found.extend(self.verify_padding(cancel)?);
        progress(self.header.bytes);
        Ok(found)
    }

    /// Verifies one tensor; returns its damage.
    ///
    /// # Errors
    /// When a file operation fails, or `cancel` was set.
    pub fn verify_tensor(
        &self,
        tensor: &TensorRecord,
        cancel: &AtomicBool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<Damage>, ContainerError> {
        let mut comparison = TileComparison::new(tensor);
        let mut hasher = Hasher::default();
        let mut checks = Vec::new();
        let mut told = Vec::new();
        if tensor.scheme() == Some(Scheme::Plain) {
            let tile_bytes = tensor.tile_bytes(self.header.tile);
            // Whole tiles, so that each has its check computed from one piece.
            let piece = PIECE_BYTES.next_multiple_of(tile_bytes);
            let mut at = tensor.offset;
            self.pieces(tensor.offset, tensor.length, piece, cancel, |bytes| {
                hasher.update(bytes);
                tiles::of_plain(bytes, tile_bytes, &mut checks);
                at += bytes.len() as u64;
                progress(at);
            })?;
            self.read_checks(tensor, 0, checks.len(), &mut told)?;
            comparison.tiles(&checks, &told);
            if hasher.finish() == tensor.hash && tensor.hash != tensor.original_hash {
                comparison.meaning("its original hash does not match".to_owned());
            }
        } else {
            let mut meaning = OriginalCheck::default();
            let mut bytes = Vec::new();
            let (mut end, mut done) = (tensor.offset, 0);
            for chunk in self.chunks(tensor) {
                stop_if(cancel)?;
                // The gaps of zeros between chunks are part of the tensor's hash.
                bytes.resize((chunk.offset - end) as usize, 0);
                self.read_at(end, &mut bytes)?;
                hasher.update(&bytes);
                self.read_chunk(&chunk, &mut bytes)?;
                hasher.update(&bytes);
                end = chunk.end();
                checks.clear();
                tiles::of_chunk(&bytes, &chunk.layout, &mut checks);
                self.read_checks(tensor, done, checks.len(), &mut told)?;
                done += checks.len();
                comparison.chunk(&checks, &told);
                meaning.chunk(&chunk, &bytes);
                progress(end);
            }
            if hasher.finish() == tensor.hash
                // Only intact bytes can be blamed for their meaning; damaged ones are reported by tile.
                && let Some(cause) = meaning.problem(tensor)
            {
                comparison.meaning(cause);
            }
        }
        Ok(comparison.found(hasher.finish() == tensor.hash))
    }

    /// Reads some of a tensor's stored checks.
    fn read_checks(
        &self,
        tensor: &TensorRecord,
        first: usize,
        count: usize,
        out: &mut Vec<u16>,
    ) -> Result<(), ContainerError> {
        let mut bytes = vec![0; count * 2];
        self.read_at(tensor.checks + first as u64 * 2, &mut bytes)?;
        out.clear();
        let words = bytes.chunks_exact(2);
        out.extend(words.map(|word| u16::from_le_bytes([word[0], word[1]])));
        Ok(())
    }

    fn verify_padding(&self, cancel: &AtomicBool) -> Result<Option<Damage>, ContainerError> {
        let mut end = self.header_end;
        // Parts are in file order, so everything between two of them is padding.
        for (place, ..) in self.header.positions() {
            let mut at = end;
            let mut found = None;
            self.pieces(end, place.start - end, PIECE_BYTES, cancel, |bytes| {
                if let Some(place) = bytes.iter().position(|&byte| byte != 0) {
                    found.get_or_insert(at + place as u64);
                }
                at += bytes.len() as u64;
            })?;
            if let Some(at) = found {
                return Ok(Some(Damage::Padding { at }));
            }
            end = place.end;
        }
        Ok(None)
    }

    /// Reads a range piece by piece.
    fn pieces(
        &self,
        offset: u64,
        length: u64,
        piece: usize,
        cancel: &AtomicBool,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), ContainerError> {
        let mut buffer = vec![0; length.min(piece as u64) as usize];
        let mut done = 0;
        while done < length {
            stop_if(cancel)?;
            let count = (length - done).min(piece as u64) as usize;
            self.read_at(offset + done, &mut buffer[..count])?;
            each(&buffer[..count]);
            done += count as u64;
        }
        Ok(())
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), ContainerError> {
        let result = self.source.read_exact_at(out, offset);
        result.map_err(|cause| match cause.kind() {
            // The file was truncated after its header was checked.
            io::ErrorKind::UnexpectedEof => ContainerError::WrongLength {
                path: self.path.clone(),
                expected: self.header.bytes,
                found: self.source.size().unwrap_or(0),
            },
            _ => ContainerError::Io {
                operation: "read",
                path: self.path.clone(),
                cause,
            },
        })
    }
}

/// Returns an error if the flag is set. Relaxed ordering suffices: no other data depends on the flag.
pub(super) fn stop_if(cancel: &AtomicBool) -> Result<(), ContainerError> {
    match cancel.load(Ordering::Relaxed) {
        true => Err(ContainerError::Cancelled),
        false => Ok(()),
    }
}

/// Compares a tensor's computed checks with the stored ones.
struct TileComparison<'a> {
    tensor: &'a str,
    /// Tiles compared so far.
    tiles: usize,
    found: Vec<Damage>,
    meaning: Option<Damage>,
}

impl<'a> TileComparison<'a> {
    fn new(tensor: &'a TensorRecord) -> Self {
        Self {
            tensor: &tensor.name,
            tiles: 0,
            found: Vec::new(),
            meaning: None,
        }
    }

    fn tiles(&mut self, checks: &[u16], told: &[u16]) {
        for (check, told) in checks.iter().zip(told) {
            if check != told && self.found.len() < TILES_NAMED_MAX {
                self.found.push(Damage::Tile {
                    tensor: self.tensor.to_owned(),
                    tile: self.tiles,
                });
            }
            self.tiles += 1;
        }
    }

    fn chunk(&mut self, checks: &[u16], told: &[u16]) {
        let ((tables, checks), (told_tables, told)) = match (checks, told) {
            ([tables, checks @ ..], [told_tables, told @ ..]) => {
                ((tables, checks), (told_tables, told))
            }
            _ => return,
        };
        if tables == told_tables {
            self.tiles(checks, told);
            return;
        }
        // The positions of tiles follow from the tables, so all checks after them would differ as well.
        if self.found.len() < TILES_NAMED_MAX {
            self.found.push(Damage::Tables {
                tensor: self.tensor.to_owned(),
                tile: self.tiles,
            });
        }
        self.tiles += checks.len();
    }

    /// The stored bytes are intact, but don't decompress to the original.
    fn meaning(&mut self, cause: String) {
        self.meaning = Some(Damage::Original {
            tensor: self.tensor.to_owned(),
            cause,
        });
    }

    fn found(self, is_whole: bool) -> Vec<Damage> {
        match (is_whole, self.found.is_empty()) {
            // The tensor's hash matches, so its bytes are intact and the stored checks are damaged. `verify` reports
            // these by their own hash.
            (true, _) => self.meaning.into_iter().collect(),
            (false, false) => self.found,
            (false, true) => vec![Damage::Tensor {
                tensor: self.tensor.to_owned(),
            }],
        }
    }
}

/// Checks that chunks are what an encoder produces, and that they decompress to the original.
#[derive(Default)]
struct OriginalCheck {
    original: Hasher,
    out: Vec<u8>,
    problem: Option<String>,
}

impl OriginalCheck {
    fn chunk(&mut self, chunk: &Chunk, bytes: &[u8]) {
        if self.problem.is_none() {
            let checked = decompress(chunk, bytes, &mut self.out);
            self.problem = checked.err().map(|error| error.to_string());
            self.original.update(&self.out);
        }
    }

    fn problem(self, tensor: &TensorRecord) -> Option<String> {
        // Of lossy schemes the original bytes cannot be restored.
        let is_original = tensor.scheme().is_some_and(|scheme| !scheme.is_lossless())
            || self.original.finish() == tensor.original_hash;
        self.problem.or_else(|| {
            (!is_original).then(|| "its decompressed bytes do not match their hash".to_owned())
        })
    }
}

/// Decompresses a losslessly compressed chunk to its original bytes. Checks all of its bits, whatever the scheme.
fn decompress(chunk: &Chunk, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), DecompressError> {
    let compressed = CompressedMatrix::new(chunk.layout.clone(), bytes)?;
    compressed.check()?;
    out.clear();
    if !chunk.layout.scheme().is_lossless() {
        return Ok(());
    }
    out.resize(chunk.layout.plain_bytes(), 0);
    compressed.decompress_rows(0..chunk.layout.rows(), out)
}
