//! Models on disk, and downloads of them.

use serde_json::{Value, json};
use sluice_proto::{
    coded_table, plan_table,
    v1::{InspectModelResponse, PullProgress, load_model_response, pull_model_response::Kind},
};

use super::{model, progress as load_progress, resolved};

/// One event of a download.
#[must_use]
pub fn pull(kind: &Kind) -> Value {
    match kind {
        Kind::Plan(plan) => json!({
            "event": "plan",
            "name": plan.name,
            "files": plan.files,
            "total_bytes": plan.total_bytes,
            "present_bytes": plan.present_bytes,
            "weight_bytes": plan.weight_bytes,
            "folder": plan.folder,
        }),
        Kind::Progress(step) => {
            let mut value = progress(step);
            value["event"] = "progress".into();
            value
        }
        Kind::Notice(text) => json!({"event": "notice", "text": text}),
        Kind::Model(pulled) => json!({"event": "done", "model": model(pulled)}),
    }
}

/// One event of a load.
#[must_use]
pub fn load(kind: &load_model_response::Kind) -> Value {
    use load_model_response::Kind;

    let (name, mut value) = match kind {
        Kind::Plan(plan) => ("plan", plan_table::json(plan)),
        Kind::Conversion(step) => (
            "conversion",
            json!({"done_bytes": step.done_bytes, "total_bytes": step.total_bytes}),
        ),
        Kind::Progress(step) => ("progress", load_progress(step)),
        Kind::Notice(text) => ("notice", json!({"text": text})),
        Kind::Model(loaded) => ("done", json!({"model": model(loaded)})),
    };
    value["event"] = name.into();
    value
}

pub(super) fn progress(step: &PullProgress) -> Value {
    json!({
        "file": step.file,
        "done_bytes": step.done_bytes,
        "total_bytes": step.total_bytes,
    })
}

/// What a checkpoint is.
#[must_use]
pub fn inspection(facts: &InspectModelResponse) -> Value {
    let tensors = facts.tensors.iter().map(|group| {
        json!({
            "format": group.format,
            "tensors": group.tensors,
            "parameters": group.parameters,
            "bytes": group.bytes,
        })
    });
    let levels = facts.levels.iter().map(|level| {
        json!({
            "level": level.level,
            "peak_bytes": level.peak_bytes,
            "weight_bytes": level.weight_bytes,
            "fits": level.fits,
            "not_loadable": level.not_loadable,
        })
    });
    let named = facts.facts.iter();
    let named: serde_json::Map<_, _> = named
        .map(|fact| (fact.name.clone(), fact.value.clone().into()))
        .collect();
    json!({
        "model": facts.model.as_ref().map(model),
        "facts": named,
        "tensors": tensors.collect::<Vec<_>>(),
        "levels": levels.collect::<Vec<_>>(),
        "not_loadable": facts.not_loadable,
        "settings": facts.settings.iter().map(resolved).collect::<Vec<_>>(),
        "coded": facts.coded.as_ref().map(coded_table::json),
    })
}
