//! Models on disk, and downloads of them.

use serde_json::{Value, json};
use sluice_proto::{
    coded_table,
    v1::{InspectModelResponse, PullProgress, pull_model_response::Kind},
};

use super::model;

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
        "coded": facts.coded.as_ref().map(coded_table::json),
    })
}
