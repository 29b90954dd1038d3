//! Writing a container: tensor by tensor, under another name until it is whole.

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

/// What is written goes to the disk this often, so that neither the end nor a failure waits long for the rest.
const SYNC_BYTES: u64 = 256 << 20;
/// Bytes that are read back together.
const PIECE_BYTES: usize = 4 << 20;

/// What a container is to have, known before anything is coded.
#[derive(Clone, Debug)]
pub struct ContainerPlan {
    /// Numbers of a tile.
    pub tile: usize,
    /// In the order in which they are given, and lie.
    pub tensors: Vec<PlannedTensor>,
    /// Name and bytes of the header of each file of weights.
    pub shards: Vec<(String, Vec<u8>)>,
    /// Name and bytes of the other files.
    pub files: Vec<(String, Vec<u8>)>,
    /// Stands for what is coded, and how: only a run of the same goes on with what one before it left.
    pub identity: String,
}

/// A tensor to come.
#[derive(Clone, Debug)]
pub struct PlannedTensor {
    /// Its name.
    pub name: String,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// What its numbers are, as safetensors call it, in small letters.
    pub dtype: String,
    /// What it is read together with: consecutive tensors of the same.
    pub extent: String,
}

impl PlannedTensor {
    /// Chunks that it has where it is coded.
    fn chunks(&self) -> usize {
        matrix(&self.shape).map_or(0, |(rows, _)| rows.div_ceil(CHUNK_ROWS))
    }
}

/// A container that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenContainer {
    /// Its bytes.
    pub bytes: u64,
    /// The hash of what it was made from.
    pub source_hash: Hash,
}

/// The unfinished file of a target.
#[must_use]
pub fn partial_of(target: &Path) -> PathBuf {
    beside(target, ".partial")
}

/// The journal of a target's unfinished file.
#[must_use]
pub fn journal_of(target: &Path) -> PathBuf {
    beside(target, ".partial.journal")
}

/// A container on its way. Dropped before its end, it leaves an unfinished file and its journal for the next run.
#[derive(Debug)]
pub struct ContainerWriter {
    target: PathBuf,
    partial: PathBuf,
    /// Locked as long as it is open.
    file: File,
    journal: Journal,
    plan: ContainerPlan,
    header: Header,
    /// The first byte after the header and what it may grow by.
    header_space: u64,
    /// The byte after all tensors that are whole.
    end: u64,
    /// Of those tensors.
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
    /// Checks of tensors before it.
    checks: usize,
}

impl ContainerWriter {
    /// Begins the container `target`, or goes on where a run of the same plan stopped: what that one wrote is read again and
    /// compared with its checksums; `progress` is told the tensors that are done.
    ///
    /// # Errors
    /// What the system refused, another process that writes the same, or `cancel` set.
    pub fn begin(
        target: &Path,
        plan: ContainerPlan,
        cancel: &AtomicBool,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Self, ContainerError> {
        let partial = partial_of(target);
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
        let file = open_locked(&partial)?;
        let journal_path = journal_of(target);
        let is_empty = file.metadata().map(|facts| facts.len() == 0);
        let is_empty = is_empty.map_err(ContainerError::io("read", &partial))?;
        // Every run has a journal before it writes anything else.
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
        let io = ContainerError::io("read", &journal_path);
        let found = Journal::read(&journal_path, &plan.identity).map_err(io)?;
        let mut writer = Self {
            target: target.to_owned(),
            // Until it is known how far the old one goes, nothing is written to it.
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
        if let Some(found) = found {
            let whole = writer.resume(&found, cancel, progress)?;
            writer.journal = Journal::resume(&journal_path, &found, whole)
                .map_err(ContainerError::io("write", &journal_path))?;
        }
        writer.wrote(Self::write_beginning)?;
        Ok(writer)
    }

    /// Writes what comes before the tensors, and zeros wherever nothing is: whatever was there before.
    fn write_beginning(&self) -> io::Result<()> {
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
        for (offset, length) in files.chain(tensors).chain([(self.end, 0)]) {
            self.file
                .write_all_at(&vec![0; (offset - end) as usize], end)?;
            end = offset + length;
        }
        Ok(())
    }

    /// Takes tensors of a run before for whole, as long as they are what this one would write; says how many.
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
                // One without bytes may lie beyond the end.
                && (record.length == 0
                    || offset
                        .checked_add(record.length)
                        .is_some_and(|end| end <= length));
            let mut checks = Vec::new();
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

    /// The checks of what was written of a tensor; false if it isn't what the journal says.
    fn read_back(
        &self,
        record: &TensorRecord,
        cancel: &AtomicBool,
        checks: &mut Vec<u16>,
    ) -> Result<bool, ContainerError> {
        let mut hasher = Hasher::default();
        let mut buffer = Vec::new();
        let mut at = record.offset;
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
                take(chunk.offset, &mut |_| {})?;
                take(chunk.end(), &mut |bytes| {
                    tiles::of_chunk(bytes, &chunk.layout, checks);
                })?;
            }
        }
        Ok(at == end && hasher.finish() == record.hash)
    }

    /// The tensor whose turn it is, by its place in the plan; `None` when all are whole.
    #[must_use]
    pub fn next(&self) -> Option<usize> {
        let next = self.header.tensors.len();
        (next < self.plan.tensors.len()).then_some(next)
    }

    /// Which extent the next tensor is in, and where it begins.
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

    /// Begins the next tensor, or begins it again in another way.
    ///
    /// # Errors
    /// What the system refused.
    ///
    /// # Panics
    /// When all are whole, or it can't be coded.
    pub fn begin_tensor(&mut self, scheme: Scheme) -> Result<(), ContainerError> {
        let planned = &self.plan.tensors[self.header.tensors.len()];
        let is_coded = scheme != Scheme::Plain;
        assert!(
            !is_coded || dtype(&planned.dtype).is_some() && matrix(&planned.shape).is_some(),
            "only matrices of numbers are coded"
        );
        let (_, offset) = self.place();
        if let Some(open) = self.open.take() {
            self.checks.truncate(open.checks);
            let end = self.end;
            // What is written between parts from now on is zero again.
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

    /// Writes the next chunk of a coded tensor.
    ///
    /// # Errors
    /// What the system refused.
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
        assert_eq!(
            layout.tile(),
            self.plan.tile,
            "a container has one size of tiles"
        );
        let at = open.end.next_multiple_of(ALIGN_BYTES);
        open.hasher
            .update(&[0; ALIGN_BYTES as usize][..(at - open.end) as usize]);
        open.hasher.update(bytes);
        open.end = at + bytes.len() as u64;
        open.chunks.push(varying(layout));
        tiles::of_chunk(bytes, layout, &mut self.checks);
        self.write(bytes, at)
    }

    /// Writes the next bytes of a plain tensor: whole tiles, but for the last.
    ///
    /// # Errors
    /// What the system refused.
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

    /// Bytes of the tensor that was begun.
    #[must_use]
    pub fn tensor_bytes(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.end - open.offset)
    }

    /// Ends the tensor: it is whole, whatever happens to the run from now on.
    ///
    /// # Errors
    /// What the system refused.
    ///
    /// # Panics
    /// When none was begun.
    pub fn end_tensor(&mut self, original_hash: Hash) -> Result<(), ContainerError> {
        let (extent, _) = self.place();
        let open = self.open.take().expect("a tensor was begun");
        let planned = &self.plan.tensors[self.header.tensors.len()];
        let is_coded = open.scheme != Scheme::Plain;
        let record = TensorRecord {
            name: planned.name.clone(),
            shape: planned.shape.clone(),
            dtype: planned.dtype.clone(),
            scheme: open.scheme.id(),
            extent,
            offset: open.offset,
            length: open.end - open.offset,
            chunk_rows: if is_coded { CHUNK_ROWS } else { 0 },
            chunks: open.chunks,
            hash: open.hasher.finish(),
            original_hash,
            // Where they will be is known at the end.
            checks: open.checks as u64,
        };
        let journal = journal_of(&self.target);
        let appended = self.journal.append(&record);
        appended.map_err(ContainerError::io("write", &journal))?;
        self.keep(record);
        Ok(())
    }

    /// Takes a whole tensor into the header.
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

    /// Writes checks and header, and gives the file its name. A file that has that name already is replaced if `replace`.
    ///
    /// # Errors
    /// What the system refused, or a target that is there.
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
        // What couldn't be read is never called finished.
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
            // Without checks, the file ends with padding.
            writer.file.set_len(bytes)?;
            // All else is there before what says so.
            writer.file.sync_all()?;
            writer.file.write_all_at(&start, 0)?;
            writer.file.sync_all()
        })?;
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
        // The name is to last as the bytes do.
        let folder = match self.target.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(ContainerError::io("write", folder))?;
        // One that stays is begun anew by the next run.
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

/// The unfinished file, which nobody else writes.
fn open_locked(partial: &Path) -> Result<File, ContainerError> {
    loop {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = own::open(partial, &mut options);
        let file = file.map_err(ContainerError::io("write", partial))?;
        match file.try_lock() {
            // Where a file system has no locks, two runs at once are the user's to avoid.
            Ok(()) | Err(TryLockError::Error(_)) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(ContainerError::Busy {
                    path: shown(partial),
                });
            }
        }
        // Who had it locked may have given it its name since: then it is finished, and not this one.
        let inode = file.metadata().map(|metadata| metadata.ino());
        let inode = inode.map_err(ContainerError::io("read", partial))?;
        if fs::metadata(partial).is_ok_and(|found| found.ino() == inode) {
            return Ok(file);
        }
    }
}

/// The longest header that such a plan may come to.
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
                // No code is longer than what its offsets can say.
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
