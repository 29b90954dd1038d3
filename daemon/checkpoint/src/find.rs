//! Finds the files that hold a checkpoint's weights.

use std::{
    collections::BTreeSet,
    fmt, fs,
    path::{Path, PathBuf},
};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, Visitor},
};

use super::{CheckpointError, Source, file, parse_json};

/// Largest shard index in bytes; one of 65,536 tensors has 8 MB.
const INDEX_BYTES_MAX: u64 = 32 << 20;
/// Files that an index may name.
const SHARDS_MAX: usize = 4096;

#[derive(Deserialize)]
struct ShardIndex {
    weight_map: Shards,
}

/// The files that a map of tensors names, each once. The tensors are told by the files themselves.
struct Shards(BTreeSet<String>);

impl<'de> Deserialize<'de> for Shards {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ShardNames)
    }
}

struct ShardNames;

impl<'de> Visitor<'de> for ShardNames {
    type Value = Shards;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a map of tensors to files")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Shards, A::Error> {
        let mut shards = BTreeSet::new();
        while let Some((IgnoredAny, name)) = map.next_entry::<IgnoredAny, String>()? {
            shards.insert(name);
            if shards.len() > SHARDS_MAX {
                return Err(A::Error::custom(format_args!(
                    "it names more than {SHARDS_MAX} files"
                )));
            }
        }
        Ok(Shards(shards))
    }
}

/// The folder and the names of its weight files.
pub(super) fn weight_files(source: &Source) -> Result<(Source, Vec<String>), CheckpointError> {
    const SINGLE: &str = "model.safetensors";
    const INDEX: &str = "model.safetensors.index.json";

    let mut source = source.clone();
    if let Source::Folder(path) = &source {
        let metadata = fs::metadata(path).map_err(|error| CheckpointError::io(path, error))?;
        // A single file named by the user goes before anything else in its folder.
        if metadata.is_file() {
            let (folder, name) = weight_file_in_folder(path)?;
            return Ok((Source::Folder(folder), vec![name]));
        }
        if !metadata.is_dir() {
            return Err(CheckpointError::NotACheckpoint { path: path.clone() });
        }
        // A relative path would lead elsewhere after a change of the working directory.
        source = Source::Folder(fs::canonicalize(path).map_err(|e| CheckpointError::io(path, e))?);
    }
    // As transformers does: a single file takes precedence over an index.
    if file::exists(&source, SINGLE) {
        return Ok((source, vec![SINGLE.to_owned()]));
    }
    let Some(index) = file::read_small(&source, INDEX, INDEX_BYTES_MAX)? else {
        let name = only_file(&source)?;
        return Ok((source, vec![name]));
    };
    let index: ShardIndex = parse_json(&source, INDEX, &index)?;
    let names: Vec<String> = index.weight_map.0.into_iter().collect();
    for name in &names {
        // A shard must lie beside its index, whatever the index says.
        if Path::new(name)
            .file_name()
            .is_none_or(|file| file != name.as_str())
        {
            return Err(CheckpointError::ShardOutside {
                file: file::describe(&source, INDEX),
                shard: name.chars().take(200).collect(),
            });
        }
    }
    Ok((source, names))
}

/// Whether a file of this name is a GGUF file, which holds a whole model.
pub(super) fn is_gguf(name: &str) -> bool {
    name.ends_with(".gguf")
}

/// Whether a file of this name is a container, which holds a whole model.
pub(super) fn is_container(name: &str) -> bool {
    name.ends_with(".sluice")
}

/// Whether a file of this name is what PyTorch saved of a model.
pub(super) fn is_pth(name: &str) -> bool {
    name.ends_with(".pth")
}

/// The only file of a folder that is a whole model.
fn only_file(source: &Source) -> Result<String, CheckpointError> {
    let path = file::describe(source, "");
    let Source::Folder(folder) = source else {
        return Err(CheckpointError::NoWeights { path });
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| CheckpointError::io(folder, error))? {
        let entry = entry.map_err(|error| CheckpointError::io(folder, error))?;
        // A folder with several models is refused rather than guessed at.
        names.extend(
            entry
                .file_name()
                .into_string()
                .ok()
                .filter(|name| is_gguf(name) || is_container(name) || is_pth(name)),
        );
    }
    names.sort_unstable();
    match &names[..] {
        [] => Err(CheckpointError::NoWeights { path }),
        [name] => Ok(name.clone()),
        [first, ..] => Err(CheckpointError::SeveralModels {
            path,
            count: names.len(),
            first: first.clone(),
        }),
    }
}

/// Folder and name of a single file. The name stays as given: it may be a link to a file of another name, as in the
/// caches of downloaders.
fn weight_file_in_folder(path: &Path) -> Result<(PathBuf, String), CheckpointError> {
    match path.file_name().and_then(|name| name.to_str()) {
        Some(name)
            if name.ends_with(".safetensors")
                || is_gguf(name)
                || is_container(name)
                || is_pth(name) =>
        {
            let folder = match path.parent() {
                Some(folder) if folder != Path::new("") => folder,
                _ => Path::new("."),
            };
            let folder = fs::canonicalize(folder);
            let folder = folder.map_err(|error| CheckpointError::io(path, error))?;
            Ok((folder, name.to_owned()))
        }
        _ => Err(CheckpointError::NotACheckpoint {
            path: path.to_owned(),
        }),
    }
}
