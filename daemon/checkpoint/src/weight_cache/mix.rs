//! Mixes: quantized weights that the optimizer chose for a checkpoint, matrix by matrix. Each is a container in the
//! folder of converted weights, which has the matrices of the mix, a note on its origin, and a record of what was
//! chosen. What a mix lacks is the checkpoint's.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use sluice_codec::{
    Encoded, Scheme,
    container::{ContainerError, ContainerPlan, ContainerWriter, Hash, PlannedTensor, partial_of},
};
use sluice_shared::{level::Level, mix::MixId};
use sluice_weights::{MixedTensor, SourceTensor, compression::TILE};

use super::{
    Checkpoint, CheckpointError, MixChoice, MixRecord, Source, VERSION, check_origin,
    choice::unix_ms,
    compressed::{EXTENSION, ORIGIN, said_by},
    expect, name_of, origin,
    write::{check_free_space, free_bytes},
};

/// Key of the mix's name in the note on its origin.
const MIX_KEY: &str = "sluice.mix";
/// Name of the record in a mix's file.
const RECORD: &str = "sluice-mix.json";
/// Stands before the name of a mix that others are compared by.
pub(super) const CANDIDATE: &str = "c";
/// Longest record: some hundred bytes for each matrix of the largest models.
const RECORD_BYTES_MAX: u64 = 8 << 20;

/// Where measurements of a mix that others are compared by are kept.
#[must_use]
pub fn losses_of(mix: &Path) -> PathBuf {
    mix.with_extension("losses.json")
}

/// A mix that is open.
#[derive(Debug, Clone)]
pub struct OpenMix {
    /// Its name.
    pub id: MixId,
    /// Its matrices.
    pub container: Arc<Checkpoint>,
    /// What was chosen.
    pub record: Arc<MixRecord>,
}

impl OpenMix {
    /// The model's tensors, with those of the mix beside them.
    pub fn apply(&self, sources: &mut [SourceTensor]) {
        for source in sources {
            let compressed = self.container.compressed(&source.spec.name);
            source.mixed = compressed.map(|compressed| MixedTensor {
                mix: self.id.number(),
                compressed,
            });
        }
    }
}

/// A matrix that a mix is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MixMatrix {
    /// Name of the checkpoint's tensor.
    pub name: String,
    /// Rows and width.
    pub size: (usize, usize),
    /// How it is compressed.
    pub scheme: Scheme,
}

/// The mixes of a checkpoint.
#[derive(Debug, Clone)]
pub struct Mixes {
    folder: PathBuf,
    name: String,
    fingerprint: String,
    source: Arc<Checkpoint>,
    /// Stands before the mix's name in names of files.
    prefix: &'static str,
}

impl Mixes {
    /// The mixes of this checkpoint in this folder.
    ///
    /// # Errors
    /// When the checkpoint cannot be read.
    pub fn new(folder: &Path, source: &Arc<Checkpoint>) -> Result<Self, CheckpointError> {
        Ok(Self {
            folder: folder.to_owned(),
            name: name_of(source),
            fingerprint: source.fingerprint()?,
            source: Arc::clone(source),
            prefix: "",
        })
    }

    /// Mixes that an optimizer compares others by: matrices all of one rate, which nobody computes with otherwise.
    #[must_use]
    pub fn candidates(&self) -> Self {
        Self {
            prefix: CANDIDATE,
            ..self.clone()
        }
    }

    /// Path of a mix's file, whether it exists or not.
    #[must_use]
    pub fn path(&self, mix: MixId) -> PathBuf {
        self.folder.join(format!("{}{mix}{EXTENSION}", self.stem()))
    }

    fn stem(&self) -> String {
        let Self {
            name,
            fingerprint,
            prefix,
            ..
        } = self;
        format!("{name}-{fingerprint}-{}-{prefix}", Level::Optimized)
    }

    /// All mixes whose files exist; the one that was chosen last is the last one.
    #[must_use]
    pub fn all(&self) -> Vec<MixId> {
        let stem = self.stem();
        // A folder that cannot be read has none: whoever asks for one is told that there is none.
        let files = fs::read_dir(&self.folder).into_iter().flatten();
        let known = files.filter_map(|file| {
            let file = file.ok()?;
            let name = file.file_name().into_string().ok()?;
            let mix: MixId = (name.strip_prefix(&stem)?.strip_suffix(EXTENSION)?)
                .parse()
                .ok()?;
            // Of a run that was killed before it had measured the mix, the file is all that there is.
            let chosen = self.choice(mix).map(|choice| choice.chosen_unix_ms);
            let chosen = chosen.or_else(|| modified_unix_ms(&file))?;
            Some((chosen, mix))
        });
        let mut known: Vec<(u64, MixId)> = known.collect();
        known.sort();
        known.into_iter().map(|(_, mix)| mix).collect()
    }

    /// What was found out about a mix when it was chosen last; `None` where that is not known.
    #[must_use]
    pub fn choice(&self, mix: MixId) -> Option<MixChoice> {
        MixChoice::read(&self.path(mix))
    }

    /// Keeps what was found out about a mix, in the place of what an earlier choice did.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep_choice(&self, mix: MixId, choice: &MixChoice) -> io::Result<()> {
        choice.write(&self.path(mix))
    }

    /// Opens a mix, if it exists, and compares it with its checksums, unless that was done since it changed last.
    /// Returns `None` also if cancelled.
    ///
    /// # Errors
    /// When its file cannot be read, is damaged, or is another checkpoint's.
    pub fn open(
        &self,
        mix: MixId,
        cancel: &AtomicBool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Option<OpenMix>, CheckpointError> {
        // If existence cannot be determined, opening gives the error.
        if !self.path(mix).try_exists().unwrap_or(true) {
            return Ok(None);
        }
        let found = self.read(mix)?;
        let is_compared = (found.container).verify(Some(&self.folder), cancel, progress)?;
        Ok(is_compared.then_some(found))
    }

    /// What a mix's file says of its making: how it was chosen first.
    ///
    /// # Errors
    /// When the file cannot be read, or is another checkpoint's.
    pub fn record(&self, mix: MixId) -> Result<Arc<MixRecord>, CheckpointError> {
        self.read(mix).map(|found| found.record)
    }

    /// Reads what a mix's file says of itself; its weights are not compared with their checksums.
    fn read(&self, mix: MixId) -> Result<OpenMix, CheckpointError> {
        let path = self.path(mix);
        let container = Checkpoint::open(&Source::Folder(path.clone()))?;
        let malformed = |cause: String| CheckpointError::MalformedFile {
            path: path.display().to_string(),
            cause,
        };
        let said = said_by(&container)?.ok_or_else(|| malformed(format!("it has no {ORIGIN}")))?;
        check_origin(&said, &self.fingerprint, Level::Optimized).map_err(malformed)?;
        expect(&said, MIX_KEY, &mix.to_string()).map_err(malformed)?;
        let record = container.small_file(RECORD, RECORD_BYTES_MAX)?;
        let record = record.ok_or_else(|| malformed(format!("it has no {RECORD}")))?;
        let record = serde_json::from_slice(&record)
            .map_err(|error| malformed(format!("{RECORD}: {error}")))?;
        for name in container.names() {
            // A hostile shape would otherwise be multiplied by.
            let entry = container.tensor(name);
            let original = self.source.tensor(name);
            if entry.map(|entry| &entry.shape) != original.map(|entry| &entry.shape) {
                let cause = format!("tensor {name} has not the checkpoint's shape");
                return Err(malformed(cause));
            }
            let compressed = container.compressed(name);
            if compressed.is_none_or(|compressed| compressed.scheme() != Scheme::Columns) {
                return Err(malformed(format!(
                    "tensor {name} is not quantized by columns"
                )));
            }
        }
        Ok(OpenMix {
            id: mix,
            container: container.into(),
            record: Arc::new(record),
        })
    }

    /// Writes a mix. `quantize` is given a matrix by its index, and gives its chunks one after another to the writer.
    /// An interrupted run leaves whole matrices behind, which the next one with the same identity takes over. Returns
    /// `None` if cancelled.
    ///
    /// # Errors
    /// When a file operation or `quantize` fails, free space is too little, or the source changed.
    pub fn write<E: From<CheckpointError>>(
        &self,
        mix: MixId,
        (matrices, record): (&[MixMatrix], &MixRecord),
        cancel: &AtomicBool,
        quantize: &mut dyn FnMut(usize, &mut MatrixWriter) -> Result<Hash, E>,
    ) -> Result<Option<OpenMix>, E> {
        let path = self.path(mix);
        let refused = |cause| CheckpointError::WeightCache {
            path: path.clone(),
            cause,
        };
        fs::create_dir_all(&self.folder).map_err(&refused)?;
        let quantized = record.groups.iter().filter(|group| !group.is_original);
        let needed_bytes = quantized.map(|group| group.bytes).sum::<u64>();
        // What an interrupted run has written needs no more space.
        let begun_bytes = fs::metadata(partial_of(&path)).map_or(0, |file| file.len());
        check_free_space(
            needed_bytes.saturating_sub(begun_bytes),
            free_bytes(&self.folder).map_err(&refused)?,
        )
        .map_err(&refused)?;
        let plan = self.container_plan(mix, matrices, record);
        let written = ContainerWriter::begin(&path, plan, cancel, &mut |_| {}).and_then(|writer| {
            let mut writer = MatrixWriter { writer };
            while let Some(index) = writer.writer.next() {
                if cancel.load(Ordering::Relaxed) {
                    return Err(ContainerError::Cancelled);
                }
                writer.writer.begin_tensor(matrices[index].scheme)?;
                let original_hash = match quantize(index, &mut writer) {
                    Ok(hash) => hash,
                    Err(error) => return Ok(Err(error)),
                };
                writer.writer.end_tensor(original_hash)?;
            }
            // Before it gets its name: weights of a source that changed meanwhile would be a mixture.
            if let Err(error) = self.source.check_all_unchanged() {
                return Ok(Err(error.into()));
            }
            writer.writer.finish(true).map(|_| Ok(()))
        });
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(error),
            Err(ContainerError::Cancelled) => return Ok(None),
            Err(ContainerError::Io { cause, .. }) => return Err(refused(cause).into()),
            Err(other) => return Err(refused(io::Error::other(other)).into()),
        }
        let written = self.read(mix)?;
        written.container.remember_written(&self.folder);
        Ok(Some(written))
    }

    fn container_plan(
        &self,
        mix: MixId,
        matrices: &[MixMatrix],
        record: &MixRecord,
    ) -> ContainerPlan {
        let planned = |matrix: &MixMatrix| PlannedTensor {
            name: matrix.name.clone(),
            shape: vec![matrix.size.0, matrix.size.1],
            // Quantized weights are exact in `f32` alone.
            dtype: "f32".to_owned(),
            // One extent for all: readers find each tensor by its own offset.
            extent: ORIGIN.to_owned(),
        };
        let mut origin = origin(&self.source, &self.fingerprint, Level::Optimized);
        origin.insert(MIX_KEY, mix.to_string());
        let origin = serde_json::to_string(&origin).expect("words make JSON");
        let record = serde_json::to_vec(record).expect("names and numbers make JSON");
        ContainerPlan {
            tile: TILE,
            tensors: matrices.iter().map(planned).collect(),
            shards: Vec::new(),
            identity: format!("{VERSION} {origin} {:?}", Hash::of(&record)),
            files: vec![
                (ORIGIN.to_owned(), origin.into_bytes()),
                (RECORD.to_owned(), record),
            ],
        }
    }
}

/// Where the chunks of a matrix are written to, in order.
pub struct MatrixWriter {
    writer: ContainerWriter,
}

impl MatrixWriter {
    /// Writes the next chunk.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn chunk(&mut self, chunk: &Encoded) -> Result<(), CheckpointError> {
        let written = self.writer.chunk(&chunk.layout, &chunk.bytes);
        written.map_err(|error| CheckpointError::MalformedFile {
            path: "a mix".to_owned(),
            cause: error.to_string(),
        })
    }
}

fn modified_unix_ms(file: &fs::DirEntry) -> Option<u64> {
    unix_ms(file.metadata().ok()?.modified().ok()?)
}
