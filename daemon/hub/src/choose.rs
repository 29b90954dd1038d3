//! Selects the files of a repository that make up a model: safetensors weights with their companions, or one GGUF
//! model.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use sluice_shared::units;

use crate::{HubError, HubName, PulledFile, RemoteFile};

/// The file name of unsharded weights.
const SINGLE: &str = "model.safetensors";
/// The file name of the shard index.
const INDEX: &str = "model.safetensors.index.json";
/// Largest shard index, in bytes.
const INDEX_BYTES_MAX: u64 = 64 << 20;
/// The file name of the list of a sentence encoder's modules, each of which may have a folder.
const MODULES: &str = "modules.json";
/// Largest list of modules, in bytes.
const MODULES_BYTES_MAX: u64 = 1 << 20;
/// Most modules in it; sentence encoders have three or four.
const MODULES_MAX: usize = 16;
/// Longest name of a module's folder, in bytes.
const FOLDER_BYTES_MAX: usize = 96;
/// Name of a configuration, a module's too.
const CONFIG: &str = "config.json";
/// Largest configuration, in bytes.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Files that belong to safetensors weights where they are present, with their largest size: tokenizers of large
/// vocabularies have 35 MB.
const COMPANIONS: &[(&str, u64)] = &[
    (CONFIG, CONFIG_BYTES_MAX),
    ("generation_config.json", 1 << 20),
    ("tokenizer.json", 256 << 20),
    ("tokenizer_config.json", 64 << 20),
    ("rwkv_vocab_v20230424.txt", 64 << 20),
    ("tokenizer.model", 64 << 20),
    ("special_tokens_map.json", 1 << 20),
    ("added_tokens.json", 16 << 20),
    ("vocab.json", 64 << 20),
    ("merges.txt", 64 << 20),
    ("chat_template.jinja", 1 << 20),
    ("chat_template.json", 1 << 20),
    // How a sentence encoder makes a vector of a text's rows.
    (MODULES, MODULES_BYTES_MAX),
    ("sentence_bert_config.json", 1 << 20),
    ("config_sentence_transformers.json", 1 << 20),
    // The learned prior of a latent thought model: at most 2^28 elements in f32, and the header.
    ("prior.json", 1 << 20),
    ("prior.safetensors", (1 << 30) + (1 << 20)),
];
/// Files for people, for models of either kind.
const PAPERS: &[&str] = &["README.md", "LICENSE", "LICENSE.txt", "LICENSE.md"];
/// Largest of those, in bytes.
const PAPER_BYTES_MAX: u64 = 4 << 20;

/// The selected files.
#[derive(Debug, Clone)]
pub(crate) struct ChosenFiles {
    /// The model's name, with a label where the repository has several models.
    pub(crate) name: HubName,
    /// The files, small ones first: a mistake shows before gigabytes are downloaded.
    pub(crate) files: Vec<PulledFile>,
    /// Bytes of the weights among them.
    pub(crate) weight_bytes: u64,
}

/// What the user wants of a repository with several models.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WantedModel {
    /// A file by its name.
    pub(crate) file: Option<String>,
}

#[derive(Deserialize)]
struct ShardIndex {
    weight_map: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Module {
    /// Its folder; empty for the model's own.
    #[serde(default)]
    path: String,
}

/// The contents of files that name others, by their own name.
pub(crate) type NamingFiles = BTreeMap<&'static str, Vec<u8>>;

/// A GGUF model: one file, or several parts.
struct Gguf<'a> {
    stem: String,
    label: String,
    files: Vec<&'a RemoteFile>,
}

/// The files that name others, and are needed for the selection, with their largest size in bytes.
pub(crate) fn naming_files(
    files: &[RemoteFile],
    name: &HubName,
    wanted: &WantedModel,
) -> Vec<(&'static str, u64)> {
    // Labels and file names select among GGUF files only.
    let is_gguf = name.label().is_some() || wanted.file.is_some();
    let is_single = find(files, SINGLE).is_some();
    let has = |file, bytes_max| find(files, file).is_some_and(|file| file.bytes <= bytes_max);
    let mut naming = Vec::new();
    if !is_gguf && !is_single && has(INDEX, INDEX_BYTES_MAX) {
        naming.push((INDEX, INDEX_BYTES_MAX));
    }
    if !is_gguf && (is_single || !naming.is_empty()) && has(MODULES, MODULES_BYTES_MAX) {
        naming.push((MODULES, MODULES_BYTES_MAX));
    }
    naming
}

/// Selects files, with those that name others where they are needed.
///
/// # Errors
/// When there is no model, or there are several and none was named.
pub(crate) fn choose(
    files: &[RemoteFile],
    name: &HubName,
    wanted: &WantedModel,
    naming: &NamingFiles,
) -> Result<ChosenFiles, HubError> {
    if name.label().is_some() || wanted.file.is_some() {
        return choose_gguf(files, name, wanted);
    }
    let index = naming.get(INDEX);
    let weights = match (find(files, SINGLE), index) {
        (Some(single), _) => vec![single.clone()],
        (None, Some(index)) => shards(files, name, index)?,
        (None, None) => return choose_gguf(files, name, wanted),
    };
    // Without a configuration no family can read the weights.
    if find(files, CONFIG).is_none() {
        return Err(missing(name, "config.json next to its weights"));
    }
    // Only known files are taken: repositories may contain anything, code and images included.
    let companions = COMPANIONS.iter().filter_map(|(file, bytes_max)| {
        let file = find(files, file)?;
        Some((file, *bytes_max))
    });
    let modules = match naming.get(MODULES) {
        Some(modules) => module_configs(files, name, modules)?,
        None => Vec::new(),
    };
    let modules = modules.into_iter().map(|file| (file, CONFIG_BYTES_MAX));
    let mut chosen = Vec::new();
    for (file, bytes_max) in companions.chain(modules) {
        // Readers hold these files in memory, so their size is bounded before they are downloaded.
        if file.bytes > bytes_max {
            let problem = format!("{} of {}", file.path, units::bytes(file.bytes));
            return Err(missing(
                name,
                &format!("{} of a likely size, but {problem}", file.path),
            ));
        }
        chosen.push(file.clone());
    }
    chosen.extend(papers(files));
    if index.is_some() {
        chosen.extend(find(files, INDEX).cloned());
    }
    Ok(finish(name.clone(), chosen, weights))
}

fn finish(name: HubName, small: Vec<RemoteFile>, weights: Vec<RemoteFile>) -> ChosenFiles {
    let weight_bytes = weights
        .iter()
        // Sizes are the hub's word, so sums saturate.
        .fold(0, |sum: u64, file| sum.saturating_add(file.bytes));
    let small = small.into_iter().map(|remote| PulledFile {
        name: remote.path.clone(),
        remote,
    });
    // Weights lie beside the configuration, from whatever folder they are.
    let weights = weights.into_iter().map(|remote| PulledFile {
        name: remote.file_name().to_owned(),
        remote,
    });
    ChosenFiles {
        name,
        files: small.chain(weights).collect(),
        weight_bytes,
    }
}

fn papers(files: &[RemoteFile]) -> impl Iterator<Item = RemoteFile> {
    let found = PAPERS.iter().filter_map(|paper| find(files, paper));
    found.filter(|file| file.bytes <= PAPER_BYTES_MAX).cloned()
}

/// The shards that the index names; each of them must be in the repository.
fn shards(files: &[RemoteFile], name: &HubName, index: &[u8]) -> Result<Vec<RemoteFile>, HubError> {
    let wrong = |problem: String| HubError::WrongResponse {
        host: name.repository(),
        problem: format!("{INDEX}: {problem}"),
    };
    let index: ShardIndex =
        serde_json::from_slice(index).map_err(|error| wrong(error.to_string()))?;
    // A set: many tensors name the same shard.
    let shards: BTreeSet<String> = index.weight_map.into_values().collect();
    if shards.is_empty() {
        return Err(wrong("names no shard".to_owned()));
    }
    let found = shards.iter().map(|shard| {
        // An index might name pickles, or files in other folders.
        let file = find(files, shard).filter(|file| file.path.ends_with(".safetensors"));
        file.cloned().ok_or_else(|| {
            missing(
                name,
                &format!(
                    "{}, which its list of shards names",
                    shard.chars().take(100).collect::<String>()
                ),
            )
        })
    });
    found.collect()
}

/// The configurations in the folders that the list of modules names. Some modules, such as Normalize, have none.
fn module_configs<'a>(
    files: &'a [RemoteFile],
    name: &HubName,
    modules: &[u8],
) -> Result<Vec<&'a RemoteFile>, HubError> {
    let wrong = |problem: String| HubError::WrongResponse {
        host: name.repository(),
        problem: format!("{MODULES}: {problem}"),
    };
    let modules: Vec<Module> =
        serde_json::from_slice(modules).map_err(|error| wrong(error.to_string()))?;
    if modules.len() > MODULES_MAX {
        let count = modules.len();
        return Err(wrong(format!("{count} modules, more than {MODULES_MAX}")));
    }
    // A set: modules may share a folder. The empty one is the model's own.
    let folders: BTreeSet<_> = modules.into_iter().map(|module| module.path).collect();
    let mut found = Vec::new();
    for folder in folders.iter().filter(|folder| !folder.is_empty()) {
        if !is_folder_name(folder) {
            let folder: String = folder.chars().take(100).collect();
            return Err(wrong(format!(
                "{folder:?} is not the name of a folder beside it"
            )));
        }
        let path = format!("{folder}/{CONFIG}");
        found.extend(files.iter().find(|file| file.path == path));
    }
    Ok(found)
}

/// Whether this names a folder in the model's own. Without a dot, it is no name of weights or of a partial file either.
fn is_folder_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    !name.is_empty()
        && name.len() <= FOLDER_BYTES_MAX
        && !name.starts_with('-')
        && name.bytes().all(is_plain)
}

fn choose_gguf(
    files: &[RemoteFile],
    name: &HubName,
    wanted: &WantedModel,
) -> Result<ChosenFiles, HubError> {
    let models = ggufs(files);
    let labels = || {
        models
            .iter()
            .map(|model| format!("{} ({})", model.label, units::bytes(model.bytes())))
            .collect()
    };
    let matches = |model: &&Gguf<'_>| match (&wanted.file, name.label()) {
        (Some(file), _) => model
            .files
            .iter()
            .any(|found| found.path == *file || found.file_name() == file),
        (None, Some(label)) => [&model.label, &model.stem]
            .iter()
            .any(|known| known.eq_ignore_ascii_case(label)),
        (None, None) => true,
    };
    let found: Vec<_> = models.iter().filter(matches).collect();
    let asked = wanted.file.as_deref().or(name.label());
    let repository = name.repository();
    match (&found[..], asked) {
        // Known from file names, before gigabytes are downloaded.
        ([model], _) if model.parts() > 1 => Err(missing(
            name,
            &format!(
                "{} in one file: it is split into {} parts, which Sluice does not read",
                model.label,
                model.parts()
            ),
        )),
        ([model], _) => {
            let name = name
                .with_label(&model.label)
                .map_err(|error| missing(name, &error.to_string()))?;
            let weights = model.files.iter().map(|file| (*file).clone()).collect();
            Ok(finish(name, papers(files).collect(), weights))
        }
        ([], Some(label)) => Err(HubError::NoLabel {
            repository,
            label: label.to_owned(),
            labels: labels(),
        }),
        // Repositories with pickles only get a hint that says so: loading one can run code, so Sluice never does.
        ([], None) => match files.iter().find(|file| is_pickle(&file.path)) {
            Some(pickle) => Err(HubError::PickleOnly {
                repository,
                file: pickle.path.clone(),
            }),
            None => Err(missing(name, "weights in safetensors or GGUF")),
        },
        _ => Err(HubError::Ambiguous {
            repository,
            labels: labels(),
        }),
    }
}

/// All GGUF models, in the order of their names. Image projectors (`mmproj`) aren't models.
fn ggufs(files: &[RemoteFile]) -> Vec<Gguf<'_>> {
    let mut by_stem: BTreeMap<String, Vec<&RemoteFile>> = BTreeMap::new();
    for file in files {
        let Some(stem) = file.file_name().strip_suffix(".gguf") else {
            continue;
        };
        if !stem.starts_with("mmproj") {
            by_stem
                .entry(without_part(stem).to_owned())
                .or_default()
                .push(file);
        }
    }
    // Labels that two files share say nothing; both are then named in full.
    let short: Vec<_> = by_stem.keys().map(|stem| label_of(stem)).collect();
    let models = by_stem.into_iter().map(|(stem, mut files)| {
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let label = label_of(&stem);
        let is_unique = short.iter().filter(|other| **other == label).count() == 1;
        let label = if is_unique { label } else { plain(&stem) };
        Gguf { stem, label, files }
    });
    models.collect()
}

impl Gguf<'_> {
    /// Number of parts, as far as file names tell, whether all of them are present or not.
    fn parts(&self) -> usize {
        let told = self.files.iter().filter_map(|file| {
            let stem = file.file_name().strip_suffix(".gguf")?;
            let count = stem
                .strip_prefix(self.stem.as_str())?
                .rsplit_once("-of-")?
                .1;
            count.parse().ok()
        });
        told.max().unwrap_or(1).max(self.files.len())
    }

    fn bytes(&self) -> u64 {
        self.files
            .iter()
            .fold(0, |sum, file| sum.saturating_add(file.bytes))
    }
}

/// A GGUF file's label: the format at the end of its name, such as `Q4_K_M`, or else the whole name.
#[must_use]
pub fn label_of(stem: &str) -> String {
    let last = stem
        .rsplit(['-', '.'])
        .next()
        .unwrap_or(stem)
        .to_ascii_uppercase();
    // A digit must follow, or a name that ends in `Qwen` would count as a format.
    let has_digit_after = |prefix: &str| {
        let rest = last.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    let is_format = ["Q", "IQ", "TQ", "MXFP", "NVFP"]
        .into_iter()
        .any(has_digit_after)
        || ["F16", "BF16", "F32"].contains(&last.as_str());
    if is_format { last } else { plain(stem) }
}

/// Replaces characters that a name may not have.
fn plain(text: &str) -> String {
    // The result must satisfy the rule for names, or the model could not be asked for.
    let kept = text.chars().map(|character| match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' | '.' => character,
        _ => '_',
    });
    let text: String = kept.take(96).collect();
    text.replace("..", "_")
        .trim_start_matches(['.', '-'])
        .to_owned()
}

/// The name without a suffix like `-00001-of-00003`.
fn without_part(stem: &str) -> &str {
    let cut = || {
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (whole, number) = rest.rsplit_once('-')?;
        let is_number =
            |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        (is_number(number) && is_number(count)).then_some(whole)
    };
    cut().unwrap_or(stem)
}

fn is_pickle(path: &str) -> bool {
    [".bin", ".pt", ".pth", ".ckpt", ".pkl"]
        .iter()
        .any(|ending| path.ends_with(ending))
}

fn find<'a>(files: &'a [RemoteFile], path: &str) -> Option<&'a RemoteFile> {
    files
        .iter()
        .find(|file| file.is_at_root() && file.path == path)
}

fn missing(name: &HubName, missing: &str) -> HubError {
    HubError::NoModel {
        repository: name.repository(),
        missing: missing.to_owned(),
    }
}

#[cfg(test)]
mod tests;
