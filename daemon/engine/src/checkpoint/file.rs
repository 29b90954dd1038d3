//! Files of a checkpoint, on disk or inside the program, behind positioned reads.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::FileExt,
    path::PathBuf,
};

use super::{CheckpointError, Source};

/// An opened file of a checkpoint.
#[derive(Debug)]
pub(super) struct CheckpointFile {
    /// For messages.
    pub(super) path: String,
    pub(super) len: u64,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Disk(File),
    Memory(&'static [u8]),
}

impl CheckpointFile {
    pub(super) fn open(source: &Source, name: &str) -> Result<Self, CheckpointError> {
        let path = describe(source, name);
        let missing = || CheckpointError::MissingFile { path: path.clone() };
        match find(source, name)?.ok_or_else(missing)? {
            Place::Disk(disk) => {
                let file = File::open(&disk).map_err(|e| CheckpointError::io(&disk, e))?;
                let len = file
                    .metadata()
                    .map_err(|e| CheckpointError::io(&disk, e))?
                    .len();
                Ok(Self {
                    path,
                    len,
                    content: Content::Disk(file),
                })
            }
            Place::Memory(bytes) => Ok(Self {
                path,
                len: bytes.len() as u64,
                content: Content::Memory(bytes),
            }),
        }
    }

    /// Fills `out` from `offset` on.
    pub(super) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), CheckpointError> {
        let result = match &self.content {
            Content::Disk(file) => file.read_exact_at(out, offset),
            Content::Memory(bytes) => usize::try_from(offset)
                .ok()
                .and_then(|start| bytes.get(start..start.checked_add(out.len())?))
                .map(|part| out.copy_from_slice(part))
                .ok_or_else(|| io::ErrorKind::UnexpectedEof.into()),
        };
        result.map_err(|error| match error.kind() {
            // The file shrank after its header was checked.
            io::ErrorKind::UnexpectedEof => CheckpointError::WrongLength {
                path: self.path.clone(),
                expected: offset + out.len() as u64,
                found: self.len,
            },
            _ => CheckpointError::io(self.path.as_ref(), error),
        })
    }
}

/// The whole of a small file, or `None` when there is none.
pub(super) fn read_small(
    source: &Source,
    name: &str,
    max: u64,
) -> Result<Option<Vec<u8>>, CheckpointError> {
    let Some(place) = find(source, name)? else {
        return Ok(None);
    };
    let disk = match place {
        Place::Memory(bytes) => return Ok(Some(bytes.to_vec())),
        Place::Disk(disk) => disk,
    };
    let io = |error| CheckpointError::io(&disk, error);
    let mut bytes = Vec::new();
    // One byte more than allowed shows a file that is too large, even one that grows.
    let file = File::open(&disk).map_err(io)?;
    let read = file.take(max + 1).read_to_end(&mut bytes).map_err(io)?;
    if read as u64 > max {
        return Err(CheckpointError::TooLarge {
            path: describe(source, name),
            bytes: fs::metadata(&disk).map_err(io)?.len(),
            max,
        });
    }
    Ok(Some(bytes))
}

pub(super) fn exists(source: &Source, name: &str) -> bool {
    matches!(find(source, name), Ok(Some(_)))
}

/// How messages name a file.
pub(super) fn describe(source: &Source, name: &str) -> String {
    match source {
        Source::Folder(folder) if name.is_empty() => folder.display().to_string(),
        Source::Folder(folder) => folder.join(name).display().to_string(),
        Source::Embedded(_) => format!("embedded {name}"),
    }
}

enum Place {
    Disk(PathBuf),
    Memory(&'static [u8]),
}

fn find(source: &Source, name: &str) -> Result<Option<Place>, CheckpointError> {
    match source {
        Source::Embedded(files) => Ok(files
            .iter()
            .find(|(file, _)| *file == name)
            .map(|(_, bytes)| Place::Memory(bytes))),
        Source::Folder(folder) => {
            let path = folder.join(name);
            match fs::metadata(&path) {
                // Opening a pipe or a terminal would wait for somebody to write.
                Ok(metadata) if metadata.is_file() => Ok(Some(Place::Disk(path))),
                Ok(_) => Err(CheckpointError::NotACheckpoint { path }),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(CheckpointError::io(&path, error)),
            }
        }
    }
}
