//! Selects the files beside the weights that a container includes.

use std::fs;

use sluice_codec::container::is_file_name;

use super::CompressError;
use crate::{
    CheckpointError, Source, TOKENIZER_BYTES_MAX,
    file::{describe, read_small},
};

/// Endings of files with weights for other programs, or with results of our own.
const WEIGHTS: [&str; 15] = [
    "safetensors",
    "gguf",
    "bin",
    "pt",
    "pth",
    "ckpt",
    "h5",
    "msgpack",
    "onnx",
    "ot",
    "npz",
    "tflite",
    "sluice",
    "partial",
    "partial.journal",
];

/// Most bytes of all files together, since they are held in memory.
const FILES_BYTES_MAX: usize = 512 << 20;

/// Included files with their bytes, and names of skipped ones.
#[derive(Debug, Default)]
pub(crate) struct ModelFiles {
    pub(crate) taken: Vec<(String, Vec<u8>)>,
    pub(crate) skipped: Vec<String>,
}

impl ModelFiles {
    /// Reads a folder's files that are no weights, no larger than a tokenizer, and not hidden.
    pub(crate) fn beside(source: &Source, shards: &[String]) -> Result<Self, CompressError> {
        let mut files = Self::default();
        let mut taken_bytes = 0;
        // Sorted by name, since the order is part of the source's hash.
        for name in names(source)? {
            if shards.contains(&name) {
                continue;
            }
            let ends_with = |ending: &&str| {
                let stem = name.strip_suffix(ending);
                stem.is_some_and(|stem| stem.ends_with('.'))
            };
            // The same rule as a reader's, so that no container is written that would be refused.
            let is_small_file = is_file_name(&name) && !WEIGHTS.iter().any(ends_with);
            match is_small_file.then(|| read_small(source, &name, TOKENIZER_BYTES_MAX)) {
                Some(Ok(Some(bytes))) => {
                    taken_bytes += bytes.len();
                    if taken_bytes > FILES_BYTES_MAX {
                        return Err(CompressError::FilesTooLarge {
                            path: describe(source, "").into(),
                            max_bytes: FILES_BYTES_MAX,
                        });
                    }
                    files.taken.push((name, bytes));
                }
                Some(Err(error @ CheckpointError::Io { .. })) => return Err(error.into()),
                // A folder, a pipe, or a file that is too large.
                _ => files.skipped.push(name),
            }
        }
        Ok(files)
    }
}

fn names(source: &Source) -> Result<Vec<String>, CompressError> {
    let mut names = Vec::new();
    match source {
        Source::Embedded(files) => names.extend(files.iter().map(|(name, _)| (*name).to_owned())),
        Source::Folder(folder) => {
            let read = || CompressError::io("read", folder);
            for entry in fs::read_dir(folder).map_err(read())? {
                let name = entry.map_err(read())?.file_name();
                // A name that isn't UTF-8 is changed here, so no file is found by it, and it counts as skipped.
                names.push(name.to_string_lossy().into_owned());
            }
        }
    }
    names.sort_unstable();
    Ok(names)
}
