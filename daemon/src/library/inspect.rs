//! What a checkpoint is, from its small files and headers; nothing is loaded.

use std::{collections::BTreeMap, ffi::OsStr, path::Path};

use serde::Deserialize;
use serde_json::{Map, Value};
use sluice_checkpoint::{
    Checkpoint,
    compression::{self, Container},
    family::Family,
    features::{Feature, Features},
};
use sluice_engine::{EngineError, PlanSettings, runtime::ModelOutline};
use sluice_hub::Manifest;
use sluice_plan::{BLOCK_DEFAULT, Machine, Plan, Workload};
use sluice_proto::{model::SamplingOptions, v1};
use sluice_shared::{
    level::{AdvisedLimits, Level},
    units,
};

use super::{
    licence,
    model_files::{self, TensorSummary, small_text},
};
use crate::{
    config::ModelTable,
    model_name::ModelName,
    settings::{self, SampledModel, SettingOrigin},
    translate,
};

/// Most bytes read of a tokenizer: checkpoints are untrusted.
const TOKENIZER_BYTES_MAX: u64 = 256 << 20;
/// Most bytes read of any other file.
const TEXT_BYTES_MAX: u64 = 4 << 20;

/// Figures of `config.json` and the keys that families have them under.
const FIGURES: &[(&str, &[&str])] = &[
    ("layers", &["n_layers", "num_hidden_layers"]),
    ("width", &["d_model", "hidden_size"]),
    ("heads", &["n_heads", "num_attention_heads"]),
    ("KV heads", &["n_kv_heads", "num_key_value_heads"]),
    ("MLP width", &["mlp_hidden_size", "intermediate_size"]),
    ("vocabulary", &["vocab_size"]),
    (
        "context",
        &["max_sequence_length", "max_position_embeddings"],
    ),
    ("mask token", &["mask_token_id"]),
    ("block length", &["block_size", "bd_size"]),
    ("end token", &["eos_token_id"]),
];

#[derive(Deserialize)]
struct TokenizerFile {
    model: TokenizerModel,
}

#[derive(Deserialize)]
struct TokenizerModel {
    #[serde(rename = "type")]
    kind: Option<String>,
}

/// Describes a model on disk: facts, tensors, and what each level would take. Reads files: not for async code.
pub(crate) fn inspect(
    model: &ModelName,
    wire: v1::Model,
    machine: Result<Machine, EngineError>,
    settings: PlanSettings,
    budget_bytes: u64,
    not_loadable: impl Fn(&Plan) -> Option<String>,
) -> v1::InspectModelResponse {
    let path = model.place();
    let folder = path.map(|path| match path.is_file() {
        true => path.parent().unwrap_or(path),
        false => path,
    });
    let mut answer = v1::InspectModelResponse {
        model: Some(wire),
        ..Default::default()
    };
    let container = compression::container_of(&model.source()).ok().flatten();
    // A folder with a .sluice file in it is that file.
    let container_file = (container.as_ref()).map(|container| Path::new(container.path()));
    let file = path.filter(|path| is_whole_model(path)).or(container_file);
    let groups = match (folder, file) {
        (Some(folder), None) => {
            answer.facts = facts_of(folder);
            model_files::tensor_summaries(folder)
        }
        // One file, or what lies inside the program.
        (folder, file) => {
            // An error shows in the answer as the reason why no level can be loaded.
            let checkpoint = Checkpoint::open(&model.source()).ok();
            answer.facts = facts_of_checkpoint(checkpoint.as_ref(), file.zip(folder));
            match &container {
                Some(container) => summaries_of_container(container),
                None => checkpoint.as_ref().map(summaries_of).unwrap_or_default(),
            }
        }
    };
    if let (Some(container), Some(wire)) = (&container, &mut answer.model) {
        wire.disk_bytes = container.header().bytes;
        wire.file_format = v1::FileFormat::Sluice.into();
    }
    answer.container = container.as_ref().map(translate::container::contents);
    if let (Some(_), Some(wire)) = (file, &mut answer.model) {
        let family = answer.facts.iter().find(|fact| fact.name == "family");
        wire.family = family.map(|fact| fact.value.clone()).unwrap_or_default();
        let parameters: u64 = groups.values().map(|group| group.parameters).sum();
        wire.parameters = (parameters > 0).then_some(parameters);
    }
    if let Some(wire) = &mut answer.model {
        // Of a model that the list has, it is there already.
        let own = || licence::licence(path?, answer.facts.iter().any(is_of_hub));
        wire.license = wire.license.take().or_else(own);
        let licence = wire.license.as_deref().unwrap_or("unknown");
        answer.facts.push(v1::CheckpointFact {
            name: "licence".to_owned(),
            value: licence.to_owned(),
        });
    }
    answer.tensors = groups
        .into_iter()
        .map(|(format, group)| v1::TensorSummary {
            dtype: format,
            tensors: group.tensors,
            parameters: group.parameters,
            bytes: group.bytes,
        })
        .collect();
    match levels(model, machine, settings, budget_bytes, not_loadable) {
        Ok(levels) => answer.levels = levels,
        Err(error) => answer.not_loadable_reason = error.to_string(),
    }
    answer
}

/// Whether a fact is that a download brought the files.
fn is_of_hub(fact: &v1::CheckpointFact) -> bool {
    fact.name == "hub"
}

/// Adds what a model can be asked for and its default sampling settings to the answer, with the daemon's default limits of requests, and its invalid
/// recommendations as facts. Adds nothing for a model that cannot be read.
pub(crate) fn sampling(
    model: &ModelName,
    answer: &mut v1::InspectModelResponse,
    table: &ModelTable,
    limits: Option<AdvisedLimits>,
) {
    let Ok(checkpoint) = Checkpoint::open(&model.source()) else {
        return;
    };
    let Ok(config) = checkpoint.model() else {
        return;
    };
    let features = Features::of(&config);
    answer.features = (Feature::ALL.into_iter())
        .map(|feature| v1::ModelFeature {
            name: feature.name().to_owned(),
            refusal: (features.refusal(feature)).map_or_else(String::new, |why| why.to_string()),
        })
        .collect();
    let has_template =
        |fact: &v1::CheckpointFact| fact.name == "chat template" && fact.value != "none";
    let recommended = checkpoint.recommended();
    let subject = SampledModel {
        family: config.family.name(),
        mask: config.mask,
        can_chat: config.family == Family::Llada || answer.facts.iter().any(has_template),
        recommended: &recommended,
    };
    let sampler = subject.sampler(&SamplingOptions::default(), table);
    answer.settings.extend(sampler.settings);
    let block_limit = limits.map(|limits| limits.block_length);
    answer
        .settings
        .extend(subject.block_length(None, block_limit).1);
    if let Some(limits) = limits.filter(|_| subject.is_masked_diffusion()) {
        for (name, limit) in [("length", limits.length), ("steps", limits.steps)] {
            let limit = settings::resolved_setting(name, limit, SettingOrigin::SmallMemory);
            answer.settings.push(limit);
        }
    }
    if let Some(system) = &table.system {
        let system = settings::resolved_setting("system", system, SettingOrigin::ModelFile);
        answer.settings.push(system);
    }
    let problems = recommended.problems.into_iter();
    answer
        .facts
        .extend(problems.map(|value| v1::CheckpointFact {
            name: "warning".to_owned(),
            value,
        }));
}

/// The memory that each level would take, if the engine supports the model.
fn levels(
    model: &ModelName,
    machine: Result<Machine, EngineError>,
    settings: PlanSettings,
    budget_bytes: u64,
    not_loadable: impl Fn(&Plan) -> Option<String>,
) -> Result<Vec<v1::LevelEstimate>, EngineError> {
    let outline = ModelOutline::of_checkpoint(&model.source(), machine?)?;
    let canvas = sluice_engine::runtime::default_canvas(outline.context_length());
    let fixed = Level::ALL.into_iter().filter(|level| *level != Level::Auto);
    fixed
        .filter_map(|level| {
            let choices = PlanSettings { level, ..settings }.resolved();
            let workload = Workload::new(canvas, BLOCK_DEFAULT, 1);
            let plan = match outline.plan(choices, u64::MAX, workload) {
                Ok(plan) => plan,
                // Only models that were optimized have this level.
                Err(EngineError::NoMix(_)) => return None,
                Err(error) => return Some(Err(error)),
            };
            Some(Ok(v1::LevelEstimate {
                level: v1::Level::from(level).into(),
                peak_bytes: plan.peak_bytes(),
                weight_bytes: plan.weight_bytes(),
                fits: plan.peak_bytes() <= budget_bytes,
                not_loadable_reason: not_loadable(&plan).unwrap_or_default(),
            }))
        })
        .collect()
}

#[derive(Default)]
struct FactList(Vec<v1::CheckpointFact>);

impl FactList {
    /// Adds a fact, unless its value is empty.
    fn add(&mut self, name: &str, value: String) {
        if !value.is_empty() {
            self.0.push(v1::CheckpointFact {
                name: name.to_owned(),
                value,
            });
        }
    }

    fn add_config(&mut self, config: &Map<String, Value>) {
        self.add("family", model_files::text(config, "model_type"));
        let architectures = config.get("architectures").and_then(|value| value.get(0));
        let architecture = architectures.and_then(Value::as_str).unwrap_or_default();
        self.add("architecture", architecture.chars().take(100).collect());
        for (name, keys) in FIGURES {
            let found = keys.iter().find_map(|key| figure(config, key));
            self.add(name, found.unwrap_or_default());
        }
    }

    fn add_manifest(&mut self, manifest: &Manifest) {
        self.add(
            "hub",
            format!("{}/{}", manifest.endpoint, manifest.repository),
        );
        self.add(
            "revision",
            format!("{} ({})", manifest.revision, manifest.commit),
        );
    }
}

fn facts_of(folder: &Path) -> Vec<v1::CheckpointFact> {
    let mut facts = FactList::default();
    if let Some(config) = model_files::config(folder) {
        facts.add_config(&config);
    }
    facts.add("tokenizer", tokenizer(folder));
    facts.add("chat template", chat_template(folder));
    if let Some(manifest) = Manifest::read(folder) {
        facts.add_manifest(&manifest);
    }
    facts.0
}

/// Whether a file of this name is a whole model, apart from compressed ones.
pub(super) fn is_whole_model(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == "gguf" || extension == "pth")
}

/// Facts of a checkpoint. For a single file in a folder, files beside it count only if its download brought them: others may
/// be other models'.
fn facts_of_checkpoint(
    checkpoint: Option<&Checkpoint>,
    place: Option<(&Path, &Path)>,
) -> Vec<v1::CheckpointFact> {
    let mut facts = FactList::default();
    if let Some(checkpoint) = checkpoint {
        if let Ok(config) = checkpoint.config() {
            facts.add_config(&config);
        }
        let files = checkpoint.tokenizer();
        facts.add(
            "tokenizer",
            match &files {
                Ok(Some(files)) => kind_of(&files.tokenizer),
                Ok(None) => "none".to_owned(),
                Err(error) => format!("cannot be read: {error}"),
            },
        );
        let files = files.ok().flatten();
        let config = files.as_ref().and_then(|files| files.config.as_deref());
        let has_template = files.as_ref().is_some_and(|files| files.template.is_some())
            || config.is_some_and(names_template);
        let template = if has_template { "there" } else { "none" };
        facts.add("chat template", template.to_owned());
    }
    if let Some((file, folder)) = place {
        let name = file.file_name().and_then(OsStr::to_str);
        let is_of = |manifest: &Manifest| {
            let mut files = manifest.files.iter();
            files.any(|file| Some(&file.name[..]) == name)
        };
        if let Some(manifest) = Manifest::read(folder).filter(is_of) {
            facts.add_manifest(&manifest);
        }
    }
    facts.0
}

/// All tensors by the name of their format.
fn summaries_of(checkpoint: &Checkpoint) -> BTreeMap<String, TensorSummary> {
    let mut groups: BTreeMap<String, TensorSummary> = BTreeMap::new();
    for (tensor, bytes) in checkpoint.tensors() {
        let name = match &tensor.format {
            Ok(format) => format.name().to_owned(),
            Err(name) => name.clone(),
        };
        let group = groups.entry(name).or_default();
        let sizes = tensor.shape.iter().map(|size| *size as u64);
        group.tensors += 1;
        group.parameters += sizes.fold(1, u64::saturating_mul);
        group.bytes += bytes;
    }
    groups
}

/// The tensors of a .sluice file, summed by dtype and compression.
fn summaries_of_container(container: &Container) -> BTreeMap<String, TensorSummary> {
    let mut groups: BTreeMap<String, TensorSummary> = BTreeMap::new();
    for tensor in &container.header().tensors {
        let scheme = translate::container::compression(tensor);
        let group = groups.entry(format!("{} {scheme}", tensor.dtype));
        let group = group.or_default();
        group.tensors += 1;
        group.parameters += tensor.elements().unwrap_or(0) as u64;
        group.bytes += tensor.length;
    }
    groups
}

fn figure(config: &Map<String, Value>, key: &str) -> Option<String> {
    match config.get(key)? {
        Value::Number(number) => Some(match number.as_u64() {
            // Ids are names, not amounts.
            Some(count) if !key.ends_with("_id") => units::count(count),
            _ => number.to_string(),
        }),
        Value::Array(numbers) => {
            let texts: Vec<_> = numbers.iter().take(8).map(ToString::to_string).collect();
            Some(texts.join(", "))
        }
        _ => None,
    }
}

fn tokenizer(folder: &Path) -> String {
    let Some(text) = small_text(&folder.join("tokenizer.json"), TOKENIZER_BYTES_MAX) else {
        return "none".to_owned();
    };
    kind_of(text.as_bytes())
}

fn kind_of(tokenizer: &[u8]) -> String {
    match serde_json::from_slice::<TokenizerFile>(tokenizer) {
        Ok(tokenizer) => tokenizer.model.kind.unwrap_or_else(|| "there".to_owned()),
        Err(error) => format!("cannot be read: {error}"),
    }
}

fn chat_template(folder: &Path) -> String {
    let in_file = ["chat_template.jinja", "chat_template.json"]
        .into_iter()
        .find(|name| folder.join(name).is_file());
    let in_config = || {
        let text = small_text(&folder.join("tokenizer_config.json"), TEXT_BYTES_MAX)?;
        names_template(text.as_bytes()).then_some("tokenizer_config.json")
    };
    match in_file.or_else(in_config) {
        Some(file) => format!("in {file}"),
        None => "none".to_owned(),
    }
}

/// Whether a tokenizer's configuration has a template.
fn names_template(config: &[u8]) -> bool {
    let config: Option<Map<String, Value>> = serde_json::from_slice(config).ok();
    let template = config
        .as_ref()
        .and_then(|config| config.get("chat_template"));
    template.is_some_and(|value| !value.is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with the sizes of a small model and its embedding alone.
    fn gguf() -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        let text = |bytes: &mut Vec<u8>, text: &str| {
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text.as_bytes());
        };
        let sizes = [
            ("embedding_length", 8_u32),
            ("block_count", 3),
            ("attention.head_count", 2),
            ("feed_forward_length", 16),
            ("context_length", 64),
        ];
        bytes.extend(3_u32.to_le_bytes());
        bytes.extend(1_u64.to_le_bytes());
        bytes.extend((sizes.len() as u64 + 2).to_le_bytes());
        text(&mut bytes, "general.architecture");
        bytes.extend(8_u32.to_le_bytes());
        text(&mut bytes, "llama");
        text(&mut bytes, "llama.attention.layer_norm_rms_epsilon");
        bytes.extend(6_u32.to_le_bytes());
        bytes.extend(1e-5_f32.to_le_bytes());
        for (key, size) in sizes {
            text(&mut bytes, &format!("llama.{key}"));
            bytes.extend(4_u32.to_le_bytes());
            bytes.extend(size.to_le_bytes());
        }
        text(&mut bytes, "token_embd.weight");
        bytes.extend(2_u32.to_le_bytes());
        bytes.extend(8_u64.to_le_bytes());
        bytes.extend(4_u64.to_le_bytes());
        bytes.extend(0_u32.to_le_bytes());
        bytes.extend(0_u64.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(32) + 8 * 4 * 4, 0);
        bytes
    }

    #[test]
    fn a_file_of_pytorch_is_described_by_its_tensors() {
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("engine/tests/fixtures/rwkv7-tiny/rwkv.pth");
        let answer = inspect(
            &ModelName::at(&file),
            v1::Model::default(),
            Err(EngineError::NoModel),
            PlanSettings::default(),
            0,
            |_| None,
        );
        let model = answer.model.unwrap();
        assert_eq!(
            (model.parameters, &model.family[..]),
            (Some(498_816), "rwkv7")
        );
    }

    #[test]
    fn a_gguf_file_is_described_by_itself_and_not_by_its_neighbours() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("m-F32.gguf");
        std::fs::write(&file, gguf()).unwrap();
        let config = br#"{"model_type":"llada","n_layers":9}"#;
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        let card = "---\nlicense: mit\n---\n";
        std::fs::write(folder.path().join("README.md"), card).unwrap();
        let answer = inspect(
            &ModelName::at(&file),
            v1::Model::default(),
            Err(EngineError::NoModel),
            PlanSettings::default(),
            0,
            |_| None,
        );
        let fact = |name: &str| {
            let found = answer.facts.iter().find(|fact| fact.name == name);
            found.map(|fact| fact.value.as_str())
        };
        assert_eq!((fact("family"), fact("layers")), (Some("llama"), Some("3")));
        assert_eq!(
            (fact("tokenizer"), fact("licence")),
            (Some("none"), Some("unknown"))
        );
        let model = answer.model.as_ref().unwrap();
        assert_eq!(
            (model.family.as_str(), model.parameters),
            ("llama", Some(32))
        );
        let groups: Vec<_> = answer.tensors.iter().map(|group| group.bytes).collect();
        assert_eq!(groups, [128]);
    }

    #[test]
    fn the_embedded_model_is_described_as_one_on_disk() {
        let answer = inspect(
            &ModelName::embedded(),
            v1::Model::default(),
            Err(EngineError::NoModel),
            PlanSettings::default(),
            0,
            |_| None,
        );
        let fact = |name: &str| {
            let found = answer.facts.iter().find(|fact| fact.name == name);
            found.map(|fact| fact.value.as_str())
        };
        assert_eq!(fact("family"), Some("llada"));
        assert_eq!(fact("chat template"), Some("there"));
        assert!(matches!(&answer.tensors[..], [group] if group.parameters == 3_934_976));
    }
}
