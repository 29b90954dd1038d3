//! Comparing files with their checksums before a model computes with them, once: files that were compared are
//! remembered by their stamps.

use std::{
    collections::HashSet,
    fs::{self, File, Metadata},
    io::{Read, Write},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError, atomic::AtomicBool},
};

use sluice_codec::container::{Container, ContainerError};

use super::{
    Checkpoint, CheckpointError, Source,
    container::refused,
    digests::{FileDigest, FolderDigests},
    file::CheckpointFile,
    file_version::FileVersion,
};

/// Name of the file with the stamps, in the folder of converted weights.
const REMEMBERED: &str = "verified";
/// Stamps that are remembered, the latest first: of some dozens of models with a hundred files each.
const REMEMBERED_MAX: usize = 4096;
/// Bytes of that file.
const REMEMBERED_BYTES_MAX: u64 = 1 << 20;
/// What a container is compared with: checksums inside.
const OWN_CHECKSUMS: &str = "container";
/// Files besides the weights that a model is made of.
const SMALL_FILES: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
];

/// The files that were found intact, by stamp, in the folder of converted weights; without one nothing is remembered.
#[derive(Debug, Clone)]
pub struct VerifiedFiles(Option<PathBuf>);

impl VerifiedFiles {
    /// Those that are remembered in this folder.
    #[must_use]
    pub fn new(folder: Option<&Path>) -> Self {
        Self(folder.map(Path::to_owned))
    }

    /// Whether a file of this description was found to have this digest, and has not changed since.
    #[must_use]
    pub fn has(&self, metadata: &Metadata, digest: &FileDigest) -> bool {
        self.has_line(&line(metadata, &digest.words()))
    }

    /// Remembers that a file of this description has this digest.
    pub fn add(&self, metadata: &Metadata, digest: &FileDigest) {
        self.add_line(line(metadata, &digest.words()));
    }

    fn has_line(&self, line: &str) -> bool {
        self.lines().iter().any(|known| known == line)
    }

    fn lines(&self) -> Vec<String> {
        let mut text = String::new();
        let Some(folder) = &self.0 else {
            return Vec::new();
        };
        // What cannot be read is compared again.
        let read = File::open(folder.join(REMEMBERED))
            .and_then(|file| file.take(REMEMBERED_BYTES_MAX).read_to_string(&mut text));
        match read {
            Ok(_) => text.lines().map(str::to_owned).collect(),
            Err(_) => Vec::new(),
        }
    }

    /// Adds a line. Where that fails, only time is lost.
    fn add_line(&self, line: String) {
        // A load and a pull may end at the same time. What another process adds meanwhile is compared again.
        static ADDING: Mutex<()> = Mutex::new(());
        let _adding = ADDING.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(folder) = &self.0 else {
            return;
        };
        let mut lines = self.lines();
        let inode = |line: &str| line.split(' ').next().map(str::to_owned);
        let own = inode(&line);
        // A file has one state at a time.
        lines.retain(|known| inode(known) != own);
        lines.insert(0, line);
        lines.truncate(REMEMBERED_MAX);
        let write = || -> std::io::Result<()> {
            fs::create_dir_all(folder)?;
            let new = folder.join(format!(".{REMEMBERED}-{}", std::process::id()));
            let mut file = File::create(&new)?;
            file.write_all(lines.join("\n").as_bytes())?;
            // Before the name: a stamp must not stand for a file that was never compared.
            file.sync_all()?;
            fs::rename(&new, folder.join(REMEMBERED))
        };
        let _ = write();
    }
}

/// A file's version, and what it was compared with.
fn line(metadata: &Metadata, compared_with: &str) -> String {
    format!("{} {compared_with}", FileVersion::from(metadata))
}

impl Checkpoint {
    /// Compares a container's weights with its checksums, and other checkpoints' files with the digests that lie beside
    /// them, as far as there are any, unless that was done since they changed last. What was found intact is remembered in
    /// `folder`. `progress` is told how many bytes of how many were read. Returns false if `cancel` was set before all
    /// were.
    ///
    /// # Errors
    /// Names the file, or the tensor and the tile, that are damaged.
    pub fn verify(
        &self,
        folder: Option<&Path>,
        cancel: &AtomicBool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<bool, CheckpointError> {
        let verified = VerifiedFiles::new(folder);
        match (self.is_container(), &self.files[..]) {
            (true, [file, ..]) => verify_container(file, &verified, cancel, progress),
            _ => self.verify_files(&verified, cancel, progress),
        }
    }

    /// Whether a container was compared since it changed last.
    pub(super) fn is_verified(&self, folder: &Path) -> bool {
        let line = self.files.first().and_then(own_line);
        line.is_some_and(|line| VerifiedFiles::new(Some(folder)).has_line(&line))
    }

    /// Remembers a container that was written just now, with checksums of the very bytes.
    pub(super) fn remember_written(&self, folder: &Path) {
        if let Some(line) = self.files.first().and_then(own_line) {
            VerifiedFiles::new(Some(folder)).add_line(line);
        }
    }

    fn verify_files(
        &self,
        verified: &VerifiedFiles,
        cancel: &AtomicBool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<bool, CheckpointError> {
        let Source::Folder(folder) = &self.source else {
            return Ok(true);
        };
        let digests = FolderDigests::read(folder)?;
        // Opened before anything is read, since their sizes tell how far it is.
        let mut small = Vec::new();
        for name in SMALL_FILES {
            if digests.of(name).is_some() && super::file::exists(&self.source, name) {
                small.push(CheckpointFile::open(&self.source, name)?);
            }
        }
        let known: HashSet<_> = verified.lines().into_iter().collect();
        let files = self.files.iter().chain(&small).filter_map(|file| {
            let name = Path::new(&file.path).file_name()?.to_str()?;
            let (digest, said_by) = digests.of(name)?;
            let metadata = file.metadata()?.ok()?;
            let is_known = known.contains(&line(&metadata, &digest.words()));
            (!is_known).then_some((file, metadata, digest, said_by))
        });
        let files: Vec<_> = files.collect();
        let total = files.iter().map(|(file, ..)| file.len).sum();
        let mut before = 0;
        for (file, metadata, digest, said_by) in files {
            let mut read = |done| progress(before + done, total);
            let Some(found) = digest.of_file(file, cancel, &mut read)? else {
                return Ok(false);
            };
            if found != digest {
                return Err(CheckpointError::WrongDigest {
                    path: file.path.clone(),
                    said_by,
                });
            }
            // Not what was compared, if it changed meanwhile.
            if let Some(Ok(now)) = file.metadata()
                && FileVersion::from(&now) == FileVersion::from(&metadata)
            {
                verified.add(&metadata, &digest);
            }
            before += file.len;
        }
        Ok(true)
    }
}

fn verify_container(
    file: &CheckpointFile,
    verified: &VerifiedFiles,
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<bool, CheckpointError> {
    let stamp = own_line(file);
    if stamp.as_ref().is_some_and(|stamp| verified.has_line(stamp)) {
        return Ok(true);
    }
    let container = Container::read(file, file.path.clone());
    let container = container.map_err(|error| refused(file, error))?;
    let total = container.header().bytes;
    match container.compare(cancel, &mut |done| progress(done, total)) {
        Err(ContainerError::Cancelled) => return Ok(false),
        Err(error) => return Err(refused(file, error)),
        Ok(Some(damage)) => {
            return Err(CheckpointError::MalformedFile {
                path: file.path.clone(),
                cause: format!("it is damaged: {damage}"),
            });
        }
        Ok(None) => {}
    }
    // Not what was compared, if it changed meanwhile.
    if stamp.is_some() && own_line(file) == stamp {
        stamp.into_iter().for_each(|stamp| verified.add_line(stamp));
    }
    Ok(true)
}

/// A container's line; `None` for files in the program.
fn own_line(file: &CheckpointFile) -> Option<String> {
    Some(line(&file.metadata()?.ok()?, OWN_CHECKSUMS))
}

#[cfg(test)]
mod tests;
