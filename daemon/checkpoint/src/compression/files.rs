//! The files beside the weights: which of them go along.

use std::fs;

use sluice_codec::container::is_file_name;

use super::CompressError;
use crate::{
    CheckpointError, Source, TOKENIZER_BYTES_MAX,
    file::{describe, read_small},
};

/// Endings of files with weights of other programs, or with what was made of ours.
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

/// What all files may take together, since they wait in memory.
const FILES_BYTES_MAX: usize = 512 << 20;

/// Name and bytes of each file, and names of what was left out.
#[derive(Debug, Default)]
pub(super) struct ModelFiles {
    pub(super) taken: Vec<(String, Vec<u8>)>,
    pub(super) skipped: Vec<String>,
}

impl ModelFiles {
    /// Of a folder, the files in it that are no weights, no larger than a tokenizer, and not hidden.
    pub(super) fn beside(source: &Source, shards: &[String]) -> Result<Self, CompressError> {
        let mut files = Self::default();
        let mut taken_bytes = 0;
        for name in names(source)? {
            if shards.contains(&name) {
                continue;
            }
            let ends_with = |ending: &&str| {
                let stem = name.strip_suffix(ending);
                stem.is_some_and(|stem| stem.ends_with('.'))
            };
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
                // A folder, a pipe, or too large.
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
                names.push(name.to_string_lossy().into_owned());
            }
        }
    }
    names.sort_unstable();
    Ok(names)
}
