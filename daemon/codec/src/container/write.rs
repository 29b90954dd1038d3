//! Writes a container tensor by tensor, under a temporary name until it is complete.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use super::{
    ALIGN_BYTES, CHUNK_ROWS, ContainerError, EXTENT_ALIGN_BYTES, HEADER_BYTES_MAX, MAGIC,
    PREFIX_BYTES, VERSION,
    error::{beside, shown},
    hash::{Hash, Hasher},
    header::{Extent, FileRecord, Header, Section, TensorRecord, dtype, matrix, varying},
    journal::{Journal, JournalRecords},
    own,
    read::stop_if,
    tiles,
};
use sluice_formats::DType;

use crate::layout::{MatrixLayout, Scheme};

/// Bytes after which written data is synced, so that neither the end nor a failure waits long for a backlog.
const SYNC_BYTES: u64 = 256 << 20;
/// Bytes that are read back at a time when a run resumes.
const PIECE_BYTES: usize = 4 << 20;

/// The contents of a container, known before anything is compressed.
#[derive(Clone, Debug)]
pub struct ContainerPlan {
    /// Elements of a tile: 128, 256 or 512.
    pub tile: usize,
    /// Tensors in the order in which they are written and lie in the file.
    pub tensors: Vec<PlannedTensor>,
    /// Name and bytes of each weight file's safetensors header.
    pub shards: Vec<(String, Vec<u8>)>,
    /// Name and bytes of the other files.
    pub files: Vec<(String, Vec<u8>)>,
    /// Identifies source and options. A run resumes an unfinished container only if its identity is equal.
    pub identity: String,
}

/// A tensor that will be written.
#[derive(Clone, Debug)]
pub struct PlannedTensor {
    /// The tensor's full name, as safetensors has it.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Its dtype, as safetensors names it, in lower case.
    pub dtype: String,
    /// Name of its extent: consecutive tensors with the same name share one.
    pub extent: String,
}

impl PlannedTensor {
    /// Number of its chunks if it is compressed.
    fn chunks(&self) -> usize {
        matrix(&self.shape).map_or(0, |(rows, _)| rows.div_ceil(CHUNK_ROWS))
    }
}

/// Size and source hash of a finished container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenContainer {
    /// Bytes of the file.
    pub bytes: u64,
    /// Hash of the model that it was made from.
    pub source_hash: Hash,
}

/// Path of the unfinished file for `target`.
#[must_use]
pub fn partial_of(target: &Path) -> PathBuf {
    beside(target, ".partial")
}

/// Path of the journal for `target`'s unfinished file.
#[must_use]
pub fn journal_of(target: &Path) -> PathBuf {
    beside(target, ".partial.journal")
}

/// A container that is being written. If it is dropped before [`ContainerWriter::finish`], the unfinished file and its
/// journal stay for the next run.
#[derive(Debug)]
pub struct ContainerWriter {
    target: PathBuf,
    partial: PathBuf,
    /// Locked while it is open.
    file: File,
    journal: Journal,
    plan: ContainerPlan,
    header: Header,
    /// Offset of the first byte after the space that is reserved for the header.
    header_space: u64,
    /// Offset of the byte after all complete tensors.
    end: u64,
    /// Checks of all complete tensors.
    checks: Vec<u16>,
    open: Option<OpenTensor>,
    unsynced_bytes: u64,
}

/// The tensor that is being written.
#[derive(Debug)]
struct OpenTensor {
    scheme: Scheme,
    offset: u64,
    end: u64,
    chunks: Vec<usize>,
    hasher: Hasher,
    /// Number of checks of the tensors before it.
    checks: usize,
}

impl ContainerWriter {
    /// Begins the container `target`, or resumes where a run with the same plan stopped: what that run wrote is read
    /// again and compared with its checksums. `progress` is told the number of complete tensors.
    ///
    /// # Errors
    /// When a file operation fails, another process writes the same container, or `cancel` was set.
    pub fn begin(
        target: &Path,
        plan: ContainerPlan,
        cancel: &AtomicBool,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Self, ContainerError> {
        let partial = partial_of(target);
        // The header lies before the tensors but is written after them, so space is reserved for the longest one
        // possible.
        let longest = longest(&plan);
        let header_bytes = serde_json::to_vec(&longest)
            .expect("names and numbers make JSON")
            .len() as u64;
        let checked = longest.check_names_and_files().and_then(|()| {
            if header_bytes > HEADER_BYTES_MAX {
                return Err(format!(
                    "its header may need {header_bytes} bytes; the maximum is {HEADER_BYTES_MAX}"
                ));
            }
            Ok(())
        });
        checked.map_err(|problem| ContainerError::Malformed {
            path: shown(target),
            problem,
        })?;
        // Refused before the lock is taken: a plan that no reader would accept must not cost hours of compression.
        let file = open_locked(&partial)?;
        let journal_path = journal_of(target);
        let is_empty = file.metadata().map(|facts| facts.len() == 0);
        let is_empty = is_empty.map_err(ContainerError::io("read", &partial))?;
        // Every run writes a journal before anything else. A file without one isn't ours to overwrite.
        if !is_empty && journal_path.symlink_metadata().is_err() {
            let cause = "it was not left by an interrupted run; move it away";
            let cause = io::Error::new(io::ErrorKind::AlreadyExists, cause);
            return Err(ContainerError::io("write", &partial)(cause));
        }
        let mut header = Header {
            source_hash: Hash::default(),
            bytes: u64::MAX,
            tile: plan.tile,
            extents: Vec::new(),
            tensors: Vec::new(),
            shards: Vec::new(),
            files: Vec::new(),
            checks: Section::default(),
        };
        let room = (PREFIX_BYTES + header_bytes).next_multiple_of(EXTENT_ALIGN_BYTES);
        let mut end = room;
        let groups = [
            (&plan.shards, &mut header.shards),
            (&plan.files, &mut header.files),
        ];
        for (files, records) in groups {
            for (name, bytes) in files {
                let offset = end.next_multiple_of(ALIGN_BYTES);
                end = offset + bytes.len() as u64;
                records.push(FileRecord {
                    name: name.clone(),
                    offset,
                    length: bytes.len() as u64,
                    hash: Hash::of(bytes),
                });
            }
        }
        // The journal is read under the lock, so no other run appends to it meanwhile.
        let io = ContainerError::io("read", &journal_path);
        let found = Journal::read(&journal_path, &plan.identity).map_err(io)?;
        let mut writer = Self {
            target: target.to_owned(),
            // Keeps all of the old journal until it is known how many of its tensors are valid.
            journal: match &found {
                Some(found) => Journal::resume(&journal_path, found, found.records().count()),
                None => Journal::begin(&journal_path, &plan.identity),
            }
            .map_err(ContainerError::io("write", &journal_path))?,
            partial,
            file,
            plan,
            header,
            header_space: room,
            end,
            checks: Vec::new(),
            open: None,
            unsynced_bytes: 0,
        };
        // Only the journal's valid lines are kept: lines after them describe tensors that will be written again.
        if let Some(found) = found {
            let whole = writer.resume(&found, cancel, progress)?;
            writer.journal = Journal::resume(&journal_path, &found, whole)
                .map_err(ContainerError::io("write", &journal_path))?;
        }
        // After `resume`, which has found where complete tensors end: the file is cut off there.
        writer.wrote(Self::write_beginning)?;
        Ok(writer)
    }

    /// Writes files and shard headers, and zeros between all parts, whatever an earlier run left there.
    fn write_beginning(&self) -> io::Result<()> {
        // Cuts off what an interrupted run wrote after its last complete tensor.
        self.file.set_len(self.end)?;
        let files = self.header.shards.iter().chain(&self.header.files);
        let contents = self.plan.shards.iter().chain(&self.plan.files);
        for (record, (_, bytes)) in files.clone().zip(contents) {
            self.file.write_all_at(bytes, record.offset)?;
        }
        let files = files.map(|file| (file.offset, file.length));
        let tensors = self.header.tensors.iter();
        let tensors = tensors.map(|tensor| (tensor.offset, tensor.length));
        let mut end = 0;
        // The header's space is zeroed as well: without magic bytes, the file isn't a container yet.
        for (offset, length) in files.chain(tensors).chain([(self.end, 0)]) {
            self.file
                .write_all_at(&vec![0; (offset - end) as usize], end)?;
            end = offset + length;
        }
        Ok(())
    }

    /// Accepts tensors of an earlier run as long as they are what this run would write; returns their number.
    fn resume(
        &mut self,
        found: &JournalRecords,
        cancel: &AtomicBool,
        progress: &mut dyn FnMut(usize),
    ) -> Result<usize, ContainerError> {
        let mut count = 0;
        let length = self.file.metadata();
        let length = length
            .map_err(ContainerError::io("read", &self.partial))?
            .len();
        for record in found.records().take(self.plan.tensors.len()) {
            stop_if(cancel)?;
            let (extent, offset) = self.place();
            let planned = &self.plan.tensors[count];
            let is_planned = record.name == planned.name
                && record.shape == planned.shape
                && record.dtype == planned.dtype
                && (record.extent, record.offset) == (extent, offset)
                && record.checks == self.checks.len() as u64
                // An empty tensor may lie beyond the end of the file, which was never extended to it.
                && (record.length == 0
                    || offset
                        .checked_add(record.length)
                        .is_some_and(|end| end <= length));
            let mut checks = Vec::new();
            // Journal lines aren't synced one by one: after a crash a line may describe bytes that never reached the
            // disk. Only the bytes themselves prove that a tensor is complete.
            if !is_planned || !self.read_back(record, cancel, &mut checks)? {
                break;
            }
            self.checks.append(&mut checks);
            self.keep(record.clone());
            count += 1;
            progress(count);
        }
        Ok(count)
    }

    /// Reads a tensor back and computes its checks. Returns false if its bytes don't have the journal's hash.
    fn read_back(
        &self,
        record: &TensorRecord,
        cancel: &AtomicBool,
        checks: &mut Vec<u16>,
    ) -> Result<bool, ContainerError> {
        let mut hasher = Hasher::default();
        let mut buffer = Vec::new();
        let mut at = record.offset;
        // Everything from the tensor's first byte to its last passes through here once, in order, as the hash needs it.
        let mut take = |to: u64, checks: &mut dyn FnMut(&[u8])| {
            stop_if(cancel)?;
            buffer.resize((to - at) as usize, 0);
            let read = self.file.read_exact_at(&mut buffer, at);
            read.map_err(ContainerError::io("read", &self.partial))?;
            hasher.update(&buffer);
            checks(&buffer);
            at = to;
            Ok::<_, ContainerError>(())
        };
        let end = record.offset + record.length;
        if record.scheme() == Some(Scheme::Plain) {
            let tile_bytes = record.tile_bytes(self.plan.tile);
            let piece = PIECE_BYTES.next_multiple_of(tile_bytes) as u64;
            let mut next = record.offset;
            while next < end {
                next = end.min(next + piece);
                take(next, &mut |bytes| {
                    tiles::of_plain(bytes, tile_bytes, checks);
                })?;
            }
        } else {
            for chunk in record.chunks(self.plan.tile) {
                let Ok(chunk) = chunk else {
                    return Ok(false);
                };
                if chunk.end() > end {
                    return Ok(false);
                }
                // The hash includes the zeros between chunks.
                take(chunk.offset, &mut |_| {})?;
                take(chunk.end(), &mut |bytes| {
                    tiles::of_chunk(bytes, &chunk.layout, checks);
                })?;
            }
        }
        // The chunks must account for all of the tensor's bytes.
        Ok(at == end && hasher.finish() == record.hash)
    }

    /// Index in the plan of the tensor to write next; `None` when all are complete.
    #[must_use]
    pub fn next(&self) -> Option<usize> {
        let next = self.header.tensors.len();
        (next < self.plan.tensors.len()).then_some(next)
    }

    /// Index of the next tensor's extent, and the tensor's offset.
    fn place(&self) -> (usize, u64) {
        let extents = self.header.extents.len();
        let planned = &self.plan.tensors[self.header.tensors.len()].extent;
        match self.header.extents.last() {
            Some(extent) if extent.name == *planned => {
                (extents - 1, self.end.next_multiple_of(ALIGN_BYTES))
            }
            _ => (extents, self.end.next_multiple_of(EXTENT_ALIGN_BYTES)),
        }
    }

    /// Begins the next tensor, or begins it again with another scheme.
    ///
    /// # Errors
    /// When a file operation fails.
    ///
    /// # Panics
    /// When all tensors are complete, or this one cannot be compressed.
    pub fn begin_tensor(&mut self, scheme: Scheme) -> Result<(), ContainerError> {
        let planned = &self.plan.tensors[self.header.tensors.len()];
        let is_compressed = scheme != Scheme::Plain;
        assert!(
            !is_compressed || dtype(&planned.dtype).is_some() && matrix(&planned.shape).is_some(),
            "only matrices of numbers are coded"
        );
        let (_, offset) = self.place();
        // The caller found that compression makes this tensor longer, and stores it plain instead.
        if let Some(open) = self.open.take() {
            self.checks.truncate(open.checks);
            let end = self.end;
            // Drops what was written of the tensor: gaps between parts must be zero, and a hole reads as zeros.
            self.wrote(|writer| writer.file.set_len(end))?;
        }
        self.open = Some(OpenTensor {
            scheme,
            offset,
            end: offset,
            chunks: Vec::new(),
            hasher: Hasher::default(),
            checks: self.checks.len(),
        });
        Ok(())
    }

    /// Writes the next chunk of a compressed tensor.
    ///
    /// # Errors
    /// When a file operation fails.
    ///
    /// # Panics
    /// When it isn't the next chunk of the tensor that was begun.
    pub fn chunk(&mut self, layout: &MatrixLayout, bytes: &[u8]) -> Result<(), ContainerError> {
        let open = self.open.as_mut().expect("a tensor was begun");
        assert_eq!(layout.scheme(), open.scheme, "a tensor has one scheme");
        assert_eq!(
            layout.bytes(),
            bytes.len(),
            "a chunk is as long as its layout"
        );
        // Tiles of columns have a size of their own.
        assert!(
            layout.tile() == self.plan.tile || layout.scheme() == Scheme::Columns,
            "a container has one size of tiles"
        );
        // The hash covers the zeros between chunks, so that `verify` can hash the tensor in one go.
        let at = open.end.next_multiple_of(ALIGN_BYTES);
        open.hasher
            .update(&[0; ALIGN_BYTES as usize][..(at - open.end) as usize]);
        open.hasher.update(bytes);
        open.end = at + bytes.len() as u64;
        open.chunks.push(varying(layout));
        tiles::of_chunk(bytes, layout, &mut self.checks);
        self.write(bytes, at)
    }

    /// Writes the next bytes of a plain tensor. Each call but the last gives whole tiles.
    ///
    /// # Errors
    /// When a file operation fails.
    ///
    /// # Panics
    /// When no plain tensor was begun, or the bytes before these weren't whole tiles.
    pub fn plain(&mut self, bytes: &[u8]) -> Result<(), ContainerError> {
        let planned = &self.plan.tensors[self.header.tensors.len()];
        let tile_bytes = self.plan.tile * dtype(&planned.dtype).map_or(1, DType::bytes);
        let open = self.open.as_mut().expect("a tensor was begun");
        assert_eq!(open.scheme, Scheme::Plain, "a plain tensor was begun");
        let at = open.end;
        assert!(
            (at - open.offset).is_multiple_of(tile_bytes as u64),
            "pieces are whole tiles"
        );
        open.hasher.update(bytes);
        open.end += bytes.len() as u64;
        tiles::of_plain(bytes, tile_bytes, &mut self.checks);
        self.write(bytes, at)
    }

    /// Bytes of the current tensor so far.
    #[must_use]
    pub fn tensor_bytes(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.end - open.offset)
    }

    /// Ends the tensor. From now on an interrupted run resumes after it.
    ///
    /// # Errors
    /// When a file operation fails.
    ///
    /// # Panics
    /// When none was begun.
    pub fn end_tensor(&mut self, original_hash: Hash) -> Result<(), ContainerError> {
        let (extent, _) = self.place();
        let open = self.open.take().expect("a tensor was begun");
        let planned = &self.plan.tensors[self.header.tensors.len()];
        let is_compressed = open.scheme != Scheme::Plain;
        let record = TensorRecord {
            name: planned.name.clone(),
            shape: planned.shape.clone(),
            dtype: planned.dtype.clone(),
            scheme: open.scheme.id(),
            extent,
            offset: open.offset,
            length: open.end - open.offset,
            chunk_rows: if is_compressed { CHUNK_ROWS } else { 0 },
            chunks: open.chunks,
            hash: open.hasher.finish(),
            original_hash,
            // Counted from the first check for now; `finish` makes it an offset.
            checks: open.checks as u64,
        };
        let journal = journal_of(&self.target);
        // From here on, an interrupted run resumes after this tensor.
        let appended = self.journal.append(&record);
        appended.map_err(ContainerError::io("write", &journal))?;
        self.keep(record);
        Ok(())
    }

    /// Adds a complete tensor to the header.
    fn keep(&mut self, record: TensorRecord) {
        self.end = record.offset + record.length;
        if record.extent == self.header.extents.len() {
            let planned = &self.plan.tensors[self.header.tensors.len()];
            self.header.extents.push(Extent {
                name: planned.extent.clone(),
                offset: record.offset,
                length: 0,
            });
        }
        let extent = self.header.extents.last_mut().expect("just put there");
        extent.length = self.end - extent.offset;
        self.header.tensors.push(record);
    }

    /// Writes checks and header, and renames the file to its target. An existing target is replaced if `replace`.
    ///
    /// # Errors
    /// When a file operation fails, or the target exists and must not be replaced.
    ///
    /// # Panics
    /// When a tensor is missing.
    pub fn finish(mut self, replace: bool) -> Result<WrittenContainer, ContainerError> {
        assert!(
            self.next().is_none() && self.open.is_none(),
            "every tensor is whole"
        );
        let checks: Vec<u8> = self.checks.iter().flat_map(|c| c.to_le_bytes()).collect();
        let offset = self.end.next_multiple_of(EXTENT_ALIGN_BYTES);
        self.header.checks = Section {
            offset,
            length: checks.len() as u64,
            hash: Hash::of(&checks),
        };
        // Checks lie after all tensors, so their offsets are known only now.
        for tensor in &mut self.header.tensors {
            tensor.checks = offset + tensor.checks * 2;
        }
        self.header.bytes = offset + checks.len() as u64;
        self.header.source_hash = self.header.expected_source_hash();
        let text = serde_json::to_vec(&self.header).expect("names and numbers make JSON");
        let header_end = PREFIX_BYTES + text.len() as u64;
        assert!(
            header_end <= self.header_space,
            "room was left for the longest header"
        );
        // A header that readers would refuse must never get its final name.
        self.header.check(&shown(&self.partial), header_end)?;
        let mut start = Vec::with_capacity(self.header_space as usize);
        start.extend_from_slice(&MAGIC);
        start.extend_from_slice(&VERSION.to_le_bytes());
        start.extend_from_slice(&(text.len() as u32).to_le_bytes());
        start.extend_from_slice(&Hash::of(&text).0.to_le_bytes());
        start.extend_from_slice(&text);
        let bytes = self.header.bytes;
        self.wrote(|writer| {
            writer.file.write_all_at(&checks, offset)?;
            // If there are no checks, the last part is padding, which nothing has written.
            writer.file.set_len(bytes)?;
            // Everything else is durable before the magic bytes say that the file is complete.
            writer.file.sync_all()?;
            writer.file.write_all_at(&start, 0)?;
            writer.file.sync_all()
        })?;
        // The rename makes the container appear at once and complete.
        let renamed = match replace {
            true => fs::rename(&self.partial, &self.target),
            false => own::rename_new(&self.partial, &self.target),
        };
        match renamed {
            Err(error) if !replace && error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(ContainerError::Exists {
                    path: shown(&self.target),
                });
            }
            renamed => renamed.map_err(ContainerError::io("write", &self.target))?,
        }
        // The rename lasts only after the folder is synced.
        let folder = match self.target.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(ContainerError::io("write", folder))?;
        // If the journal cannot be removed, the next run begins it anew.
        drop(fs::remove_file(journal_of(&self.target)));
        Ok(WrittenContainer {
            bytes,
            source_hash: self.header.source_hash,
        })
    }

    fn write(&mut self, bytes: &[u8], at: u64) -> Result<(), ContainerError> {
        self.wrote(|writer| writer.file.write_all_at(bytes, at))?;
        self.unsynced_bytes += bytes.len() as u64;
        if self.unsynced_bytes >= SYNC_BYTES {
            self.wrote(|writer| {
                writer.file.sync_data()?;
                writer.journal.sync()
            })?;
            self.unsynced_bytes = 0;
        }
        Ok(())
    }

    fn wrote(&self, write: impl FnOnce(&Self) -> io::Result<()>) -> Result<(), ContainerError> {
        write(self).map_err(ContainerError::io("write", &self.partial))
    }
}

/// Opens the unfinished file and locks it against other processes.
fn open_locked(partial: &Path) -> Result<File, ContainerError> {
    loop {
        let mut options = OpenOptions::new();
        // Never truncated on opening: the contents may be hours of work that this run can resume.
        options.read(true).write(true).create(true).truncate(false);
        let file = own::open(partial, &mut options);
        let file = file.map_err(ContainerError::io("write", partial))?;
        match file.try_lock() {
            // On file systems without locks, it is up to the user not to start two runs at once.
            Ok(()) | Err(TryLockError::Error(_)) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(ContainerError::Busy {
                    path: shown(partial),
                });
            }
        }
        // The process that held the lock may have renamed the file meanwhile: then this descriptor is the finished
        // container, and must not be written.
        let inode = file.metadata().map(|metadata| metadata.ino());
        let inode = inode.map_err(ContainerError::io("read", partial))?;
        if fs::metadata(partial).is_ok_and(|found| found.ino() == inode) {
            return Ok(file);
        }
    }
}

/// The longest header that the plan can lead to: every number takes its most digits.
fn longest(plan: &ContainerPlan) -> Header {
    let record = |(name, bytes): &(String, Vec<u8>)| FileRecord {
        name: name.clone(),
        offset: u64::MAX,
        length: bytes.len() as u64,
        hash: Hash::default(),
    };
    Header {
        source_hash: Hash::default(),
        bytes: u64::MAX,
        tile: plan.tile,
        extents: plan
            .tensors
            .chunk_by(|one, next| one.extent == next.extent)
            .map(|tensors| Extent {
                name: tensors[0].extent.clone(),
                offset: u64::MAX,
                length: u64::MAX,
            })
            .collect(),
        tensors: plan
            .tensors
            .iter()
            .map(|tensor| TensorRecord {
                name: tensor.name.clone(),
                shape: tensor.shape.clone(),
                dtype: tensor.dtype.clone(),
                scheme: u8::MAX,
                extent: plan.tensors.len(),
                offset: u64::MAX,
                length: u64::MAX,
                chunk_rows: CHUNK_ROWS,
                // Offsets are `u32`, so no codes are longer.
                chunks: vec![u32::MAX as usize; tensor.chunks()],
                hash: Hash::default(),
                original_hash: Hash::default(),
                checks: u64::MAX,
            })
            .collect(),
        shards: plan.shards.iter().map(record).collect(),
        files: plan.files.iter().map(record).collect(),
        checks: Section {
            offset: u64::MAX,
            length: u64::MAX,
            hash: Hash::default(),
        },
    }
}
