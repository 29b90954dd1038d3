//! What a checkpoint is, from its small files and headers; nothing is loaded.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};
use sluice_engine::{
    EngineError, Settings,
    engine::Outline,
    plan::{Machine, Workload},
};
use sluice_hub::Manifest;
use sluice_proto::v1;
use sluice_shared::{level::Level, units};

use super::facts::{self, small_text};
use crate::models::ModelName;

/// Largest tokenizer that is looked into.
const TOKENIZER_BYTES_MAX: u64 = 256 << 20;
/// Largest of the other files.
const TEXT_BYTES_MAX: u64 = 4 << 20;

/// Figures of `config.json` and the keys that families have them under.
const FIGURES: &[(&str, &[&str])] = &[
    ("layers", &["n_layers", "num_hidden_layers"]),
    ("width", &["d_model", "hidden_size"]),
    ("heads", &["n_heads", "num_attention_heads"]),
    ("key-value heads", &["n_kv_heads", "num_key_value_heads"]),
    ("MLP width", &["mlp_hidden_size", "intermediate_size"]),
    ("vocabulary", &["vocab_size"]),
    (
        "context",
        &["max_sequence_length", "max_position_embeddings"],
    ),
    ("mask token", &["mask_token_id"]),
    ("end token", &["eos_token_id"]),
];

#[derive(Deserialize)]
struct Tokenizer {
    model: TokenizerModel,
}

#[derive(Deserialize)]
struct TokenizerModel {
    #[serde(rename = "type")]
    kind: Option<String>,
}

/// Everything that can be said of a model on disk.
pub(crate) fn inspect(
    model: &ModelName,
    wire: v1::Model,
    machine: Result<Machine, EngineError>,
    settings: Settings,
    budget_bytes: u64,
) -> v1::InspectModelResponse {
    let path = model.path.as_deref();
    let folder = path.map(|path| match path.is_file() {
        true => path.parent().unwrap_or(path),
        false => path,
    });
    let mut answer = v1::InspectModelResponse {
        model: Some(wire),
        ..Default::default()
    };
    if let Some(folder) = folder {
        answer.facts = facts_of(folder);
        answer.tensors = facts::groups(folder)
            .into_iter()
            .map(|(format, group)| v1::TensorGroup {
                format,
                tensors: group.tensors,
                parameters: group.parameters,
                bytes: group.bytes,
            })
            .collect();
    }
    match levels(model, machine, settings, budget_bytes) {
        Ok(levels) => answer.levels = levels,
        Err(error) => answer.not_loadable = error.to_string(),
    }
    answer
}

/// What each level would take, where the engine knows such models.
fn levels(
    model: &ModelName,
    machine: Result<Machine, EngineError>,
    settings: Settings,
    budget_bytes: u64,
) -> Result<Vec<v1::LevelEstimate>, EngineError> {
    let outline = Outline::of_checkpoint(&model.source(), machine?)?;
    let canvas = sluice_engine::engine::default_canvas(outline.context_length());
    let fixed = Level::ALL.into_iter().filter(|level| *level != Level::Auto);
    fixed
        .map(|level| {
            let choices = Settings { level, ..settings }.choices();
            let workload = Workload {
                canvas,
                ..Workload::default()
            };
            let plan = outline.plan(choices, u64::MAX, workload)?;
            Ok(v1::LevelEstimate {
                level: level.name().to_owned(),
                peak_bytes: plan.peak_bytes(),
                weight_bytes: plan.weight_bytes(),
                fits: plan.peak_bytes() <= budget_bytes,
            })
        })
        .collect()
}

fn facts_of(folder: &Path) -> Vec<v1::Fact> {
    let mut facts = Vec::new();
    let mut add = |name: &str, value: String| {
        if !value.is_empty() {
            facts.push(v1::Fact {
                name: name.to_owned(),
                value,
            });
        }
    };
    if let Some(config) = facts::config(folder) {
        add("family", facts::text(&config, "model_type"));
        let architectures = config.get("architectures").and_then(|value| value.get(0));
        let architecture = architectures.and_then(Value::as_str).unwrap_or_default();
        add("architecture", architecture.chars().take(100).collect());
        for (name, keys) in FIGURES {
            let found = keys.iter().find_map(|key| figure(&config, key));
            add(name, found.unwrap_or_default());
        }
    }
    add("tokenizer", tokenizer(folder));
    add("chat template", chat_template(folder));
    add("licence", licence(folder));
    if let Some(manifest) = Manifest::read(folder) {
        add(
            "hub",
            format!("{}/{}", manifest.endpoint, manifest.repository),
        );
        add(
            "revision",
            format!("{} ({})", manifest.revision, manifest.commit),
        );
    }
    facts
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
    match serde_json::from_str::<Tokenizer>(&text) {
        Ok(tokenizer) => tokenizer.model.kind.unwrap_or_else(|| "there".to_owned()),
        Err(error) => format!("can't be read: {error}"),
    }
}

fn chat_template(folder: &Path) -> String {
    let in_file = ["chat_template.jinja", "chat_template.json"]
        .into_iter()
        .find(|name| folder.join(name).is_file());
    let in_config = || {
        let text = small_text(&folder.join("tokenizer_config.json"), TEXT_BYTES_MAX)?;
        let config: Map<String, Value> = serde_json::from_str(&text).ok()?;
        config
            .get("chat_template")
            .filter(|value| !value.is_null())?;
        Some("tokenizer_config.json")
    };
    match in_file.or_else(in_config) {
        Some(file) => format!("in {file}"),
        None => "none".to_owned(),
    }
}

/// The licence that a model card names in its first lines.
fn licence(folder: &Path) -> String {
    let text = small_text(&folder.join("README.md"), TEXT_BYTES_MAX).unwrap_or_default();
    licence_of(&text).unwrap_or_default()
}

fn licence_of(card: &str) -> Option<String> {
    let mut lines = card.trim_start_matches('\u{feff}').lines();
    lines.next().filter(|line| line.trim_end() == "---")?;
    let value = |key: &str| {
        let head = lines.clone().take_while(|line| line.trim_end() != "---");
        let value = head
            .filter_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
            .next()?;
        let value = value.trim().trim_matches(['"', '\'']);
        (!value.is_empty()).then(|| value.chars().take(100).collect::<String>())
    };
    match value("license") {
        Some(license) if license == "other" => value("license_name").or(Some(license)),
        license => license,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_licence_is_read_from_the_head_of_a_card() {
        let licence = |card| licence_of(card);
        assert_eq!(
            licence("---\nlanguage: en\nlicense: mit\n---\n# A"),
            Some("mit".to_owned())
        );
        assert_eq!(
            licence("---\nlicense: other\nlicense_name: \"llama3\"\n---\n"),
            Some("llama3".to_owned())
        );
        assert_eq!(licence("# A\nlicense: mit"), None);
        assert_eq!(licence("---\na: b\n---\nlicense: mit"), None);
        assert_eq!(licence(""), None);
    }
}
