//! Events and answers as JSON objects for scripts.
//!
//! Field names are those of the schema; enums are their short names in lower case; bytes are
//! read as UTF-8, with U+FFFD where they are not. [`read`] takes events of a generation back.

mod bench;
mod jobs;
mod library;
pub mod read;
mod weights;

use serde_json::{Map, Value, json};
use sluice_proto::{
    plan_table,
    v1::{
        BlockDone, CanvasToken, Card, Device, Done, FinishReason, Host, JobKind, JobState,
        KeptWeights, LoadProgress, Model, ModelOrigin, ModelShape, ModelState, Notice, PassDone,
        Phases, Policy, Queue, Queued, RequestKind, RequestState, RequestSummary, ResolvedSetting,
        ScoreResult, Server, ServerState, Snapshot, Started, TokenState, Totals,
        generation_event::Kind,
    },
};

pub use bench::bench;
pub use jobs::{job, job_event};
pub use library::{inspection, load, pull};
pub use weights::{applying, equal_fidelity, fidelity, fidelity_measurement};
use weights::{layer_state, measured, settings, switch, switch_target};

/// One event of a generation.
#[must_use]
pub fn event(kind: &Kind) -> Value {
    match kind {
        Kind::Queued(queued) => self::queued(queued),
        Kind::Started(started) => self::started(started),
        Kind::PassDone(pass) => self::pass(pass),
        Kind::BlockDone(block) => block_done(block),
        Kind::Notice(notice) => self::notice(notice),
        Kind::Done(done) => self::done(done),
        Kind::Loading(loading) => json!({
            "event": "loading",
            "model": loading.model,
            "loaded_bytes": loading.loaded_bytes,
            "total_bytes": loading.total_bytes,
        }),
    }
}

fn queued(queued: &Queued) -> Value {
    json!({"event": "queued", "request_id": queued.request_id, "ahead": queued.ahead})
}

fn started(started: &Started) -> Value {
    json!({
        "event": "started",
        "request_id": started.request_id,
        "prompt_tokens": started.prompt_tokens,
        "length": started.length,
        "block_length": started.block_length,
        "blocks": started.blocks,
        "steps": started.steps,
        "seed": started.seed,
        "policy": started.policy.as_ref().map(policy),
        "model": started.model,
        "pinned": tokens(&started.pinned),
        "exact": started.exact,
        "prompt_text": lossy(&started.prompt_text),
        "level": started.level,
        "warnings": started.warnings,
        "estimated_ms": started.estimated_ms,
        "dial": started.dial,
        "cache": started.cache,
        "window": started.window,
        "growth": started.growth,
        "speculation": started.speculation,
        "sampling": started.sampling.iter().map(resolved).collect::<Vec<_>>(),
        "seed_drawn": started.seed_drawn,
    })
}

fn policy(policy: &Policy) -> Value {
    let mut parameters: Vec<_> = policy.parameters.iter().collect();
    parameters.sort_by_key(|(key, _)| *key);
    let parameters: Map<String, Value> = parameters
        .into_iter()
        .map(|(key, value)| (key.clone(), json!(value)))
        .collect();
    json!({"name": policy.name, "parameters": parameters})
}

fn pass(pass: &PassDone) -> Value {
    json!({
        "event": "pass",
        "request_id": pass.request_id,
        "pass": pass.passes,
        "block": pass.block,
        "pass_in_block": pass.pass_in_block,
        "tokens": tokens(&pass.tokens),
        "committed": pass.committed,
        "stable_text": lossy(&pass.stable_text),
        "rows": pass.rows,
        "head_rows": pass.head_rows,
        "pass_ms": pass.pass_ms,
        "elapsed_ms": pass.elapsed_ms,
        "device_bytes": pass.device_bytes,
        "epoch": pass.epoch,
        "exact": pass.exact,
        "waited_ms": pass.waited_ms,
        "streamed_bytes": pass.streamed_bytes,
        "requests": pass.requests,
        "level": pass.level,
        "phases": pass.phases.as_ref().map(phases),
        "switch": pass.switching.as_ref().map(switch),
    })
}

fn phases(phases: &Phases) -> Value {
    json!({
        "attention_ms": phases.attention_ms,
        "multiply_ms": phases.multiply_ms,
        "decode_ms": phases.decode_ms,
        "head_ms": phases.head_ms,
        "other_ms": phases.other_ms,
        "copy_ms": phases.copy_ms,
    })
}

fn tokens(tokens: &[CanvasToken]) -> Vec<Value> {
    tokens.iter().map(token).collect()
}

/// A token; where its piece is no text by itself, such as half a character, with its bytes.
fn token(token: &CanvasToken) -> Value {
    let mut value = json!({
        "position": token.position,
        "id": token.id,
        "piece": lossy(&token.piece),
        "confidence": token.confidence,
        "state": token_state(token.state()),
        "fresh": token.fresh,
    });
    if std::str::from_utf8(&token.piece).is_err() {
        value["bytes"] = json!(token.piece);
    }
    value
}

fn block_done(block: &BlockDone) -> Value {
    json!({
        "event": "block_done",
        "request_id": block.request_id,
        "block": block.block,
        "passes": block.passes,
        "tokens": tokens(&block.tokens),
    })
}

fn notice(notice: &Notice) -> Value {
    json!({"event": "notice", "request_id": notice.request_id, "text": notice.text})
}

fn done(done: &Done) -> Value {
    json!({
        "event": "done",
        "request_id": done.request_id,
        "finish_reason": finish_reason(done.finish_reason()),
        "tokens": done.tokens,
        "text": done.text,
        "text_tokens": done.text_tokens,
        "generated_tokens": done.generated_tokens,
        "filled_positions": done.filled_positions,
        "passes": done.passes,
        "tokens_per_pass": tokens_per_pass(done),
        "ms": done.elapsed_ms,
        "peak_device_bytes": done.peak_device_bytes,
        "seed": done.seed,
        "exact": done.exact,
        "pass_ms": done.pass_ms,
        "waited_ms": done.waited_ms,
        "phases": done.phases.as_ref().map(phases),
        "cut": done.cut,
    })
}

/// A setting, and whose word it is.
fn resolved(setting: &ResolvedSetting) -> Value {
    json!({"name": setting.name, "value": setting.value, "origin": setting.origin})
}

/// Positions that a pass filled on average; unknown where there was no pass.
#[must_use]
pub fn tokens_per_pass(done: &Done) -> Option<f64> {
    (done.passes > 0).then(|| f64::from(done.filled_positions) / f64::from(done.passes))
}

/// The result of a scoring.
#[must_use]
pub fn score(result: &ScoreResult) -> Value {
    json!({
        "request_id": result.request_id,
        "log_likelihood": result.log_likelihood,
        "standard_error": result.standard_error,
        "answer_tokens": result.answer_tokens,
        "draws": result.draws,
        "is_greedy": result.is_greedy,
        "seed": result.seed,
        "ms": result.elapsed_ms,
    })
}

/// A snapshot; what is not known is null.
#[must_use]
pub fn snapshot(snapshot: &Snapshot) -> Value {
    json!({
        "server": snapshot.server.as_ref().map(server),
        "device": snapshot.device.as_ref().map(device),
        "host": snapshot.host.as_ref().map(host),
        "model": snapshot.model.as_ref().map(model),
        "queue": snapshot.queue.as_ref().map(queue),
        "requests": snapshot.requests.iter().map(request).collect::<Vec<_>>(),
        "totals": snapshot.totals.as_ref().map(totals),
        "plan": snapshot.plan.as_ref().map(plan_table::json),
        "switch": snapshot.switching.as_ref().map(switch),
        "switch_target": snapshot.switch_target.as_ref().map(switch_target),
        "epoch": snapshot.epoch,
        "measured": snapshot.measured.as_ref().map(measured),
        "layers": snapshot.layers.iter().map(layer_state).collect::<Vec<_>>(),
        "settings": snapshot.settings.as_ref().map(settings),
        "jobs": snapshot.jobs.iter().map(job).collect::<Vec<_>>(),
    })
}

fn server(server: &Server) -> Value {
    json!({
        "version": server.version,
        "protocol": server.protocol_version,
        "pid": server.pid,
        "uptime_ms": server.uptime_ms,
        "state": server_state(server.state()),
        "socket": server.socket,
    })
}

fn device(device: &Device) -> Value {
    let kinds: Vec<Value> = device
        .memory
        .iter()
        .map(|kind| json!({"kind": kind.kind, "bytes": kind.bytes, "peak_bytes": kind.peak_bytes}))
        .collect();
    json!({
        "kind": device.kind,
        "name": device.name,
        "threads": device.threads,
        "memory": kinds,
        "used_bytes": device.used_bytes,
        "peak_bytes": device.peak_bytes,
        "total_bytes": device.total_bytes,
        "free_bytes": device.free_bytes,
        "default_budget_bytes": device.default_budget_bytes,
        "card": device.card.as_ref().map(card),
        "no_card": device.no_card.as_ref().map(|no_card| json!({
            "reason": no_card.reason,
            "hint": no_card.hint,
        })),
    })
}

fn card(card: &Card) -> Value {
    json!({
        "compute": card.compute,
        "capability": card.capability,
        "uuid": card.uuid,
        "pci_bus_id": card.pci_bus_id,
        "driver_version": card.driver_version,
        "cuda_version": card.cuda_version,
        "blas": card.blas,
        "multiprocessors": card.multiprocessors,
        "held_by_others_bytes": card.held_by_others_bytes,
        "bus_generation": card.bus_generation,
        "bus_generation_max": card.bus_generation_max,
        "bus_width": card.bus_width,
        "bus_width_max": card.bus_width_max,
        "clock_mhz": card.clock_mhz,
        "memory_clock_mhz": card.memory_clock_mhz,
        "temperature_c": card.temperature_c,
        "power_w": card.power_w,
        "power_limit_w": card.power_limit_w,
        "utilization_percent": card.utilization_percent,
    })
}

fn host(host: &Host) -> Value {
    json!({
        "total_bytes": host.total_bytes,
        "available_bytes": host.available_bytes,
        "resident_bytes": host.resident_bytes,
        "resident_peak_bytes": host.resident_peak_bytes,
        "resident_beyond_bytes": host.resident_beyond_bytes,
        "resident_program_bytes": host.resident_program_bytes,
    })
}

/// Weights that are kept of a model.
#[must_use]
pub fn kept(kept: &KeptWeights) -> Value {
    json!({
        "model": kept.model,
        "path": kept.path,
        "level": kept.level,
        "bytes": kept.bytes,
        "is_in_use": kept.is_in_use,
    })
}

/// A model.
#[must_use]
pub fn model(model: &Model) -> Value {
    json!({
        "name": model.name,
        "path": model.path,
        "state": model_state(model.state()),
        "error": model.error,
        "is_demonstration": model.is_demonstration,
        "shape": model.shape.as_ref().map(shape),
        "progress": model.progress.as_ref().map(progress),
        "origin": model_origin(model.origin()),
        "disk_bytes": model.disk_bytes,
        "file_format": model.file_format,
        "is_default": model.is_default,
        "family": model.family,
        "parameters": model.parameters,
        "commit": model.commit,
        "pull": model.pull.as_ref().map(library::progress),
    })
}

fn shape(shape: &ModelShape) -> Value {
    json!({
        "family": shape.family,
        "parameters": shape.parameters,
        "weight_bytes": shape.weight_bytes,
        "formats": shape.formats,
        "layers": shape.layers,
        "width": shape.width,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "mlp_width": shape.mlp_width,
        "vocabulary": shape.vocabulary,
        "embedding_rows": shape.embedding_rows,
        "context_length": shape.context_length,
        "has_tokenizer": shape.has_tokenizer,
        "mask_token_id": shape.mask_token_id,
        "eos_token_ids": shape.eos_token_ids,
    })
}

fn progress(progress: &LoadProgress) -> Value {
    json!({"loaded_bytes": progress.loaded_bytes, "total_bytes": progress.total_bytes})
}

fn queue(queue: &Queue) -> Value {
    json!({"capacity": queue.capacity, "waiting": queue.waiting, "running": queue.running})
}

/// A request of the list.
#[must_use]
pub fn request(request: &RequestSummary) -> Value {
    json!({
        "request_id": request.request_id,
        "kind": request_kind(request.kind()),
        "state": request_state(request.state()),
        "prompt_tokens": request.prompt_tokens,
        "length": request.length,
        "blocks": request.blocks,
        "blocks_done": request.blocks_done,
        "passes": request.passes,
        "committed": request.committed,
        "elapsed_ms": request.elapsed_ms,
        "queued_ms": request.queued_ms,
        "error": request.error,
    })
}

fn totals(totals: &Totals) -> Value {
    json!({
        "requests_done": totals.requests_done,
        "requests_cancelled": totals.requests_cancelled,
        "requests_failed": totals.requests_failed,
        "requests_refused": totals.requests_refused,
        "passes": totals.passes,
        "tokens_committed": totals.tokens_committed,
    })
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Short names of enums, as scripts and people read them.
macro_rules! short_name {
    ($name:ident, $type:ty, $prefix:literal) => {
        #[doc = concat!("Short name of a [`", stringify!($type), "`].")]
        #[must_use]
        pub fn $name(value: $type) -> String {
            let name = value.as_str_name();
            name.strip_prefix($prefix).unwrap_or(name).to_lowercase()
        }
    };
}

short_name!(finish_reason, FinishReason, "FINISH_REASON_");
short_name!(job_kind, JobKind, "JOB_KIND_");
short_name!(job_state, JobState, "JOB_STATE_");
short_name!(token_state, TokenState, "TOKEN_STATE_");
short_name!(request_kind, RequestKind, "REQUEST_KIND_");
short_name!(request_state, RequestState, "REQUEST_STATE_");
short_name!(model_origin, ModelOrigin, "MODEL_ORIGIN_");
short_name!(model_state, ModelState, "MODEL_STATE_");
short_name!(server_state, ServerState, "SERVER_STATE_");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_event_has_every_key_that_scripts_read() {
        let value = event(&Kind::Done(Done {
            request_id: 3,
            finish_reason: FinishReason::Eos.into(),
            tokens: vec![5, 6],
            seed: u64::MAX,
            elapsed_ms: 1.5,
            ..Default::default()
        }));
        let line = value.to_string();
        assert_eq!(
            line,
            r#"{"event":"done","request_id":3,"finish_reason":"eos","tokens":[5,6],"text":null,"text_tokens":0,"generated_tokens":0,"filled_positions":0,"passes":0,"tokens_per_pass":null,"ms":1.5,"peak_device_bytes":0,"seed":18446744073709551615,"exact":false,"pass_ms":0.0,"waited_ms":0.0,"phases":null,"cut":false}"#
        );
    }

    #[test]
    fn broken_bytes_and_control_characters_stay_valid_json() {
        let token = CanvasToken {
            piece: b"\xc3\x1b\n".to_vec(),
            confidence: Some(f32::NAN),
            state: TokenState::Provisional.into(),
            ..Default::default()
        };
        let value = event(&Kind::PassDone(PassDone {
            tokens: vec![token],
            ..Default::default()
        }));
        let line = value.to_string();
        assert!(!line.contains('\n') && !line.contains('\x1b'), "{line}");
        let read: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["tokens"][0]["piece"], "\u{fffd}\x1b\n");
        assert_eq!(read["tokens"][0]["bytes"], json!([0xc3, 0x1b, 0x0a]));
        assert_eq!(read["tokens"][0]["confidence"], Value::Null);
        assert_eq!(read["tokens"][0]["state"], "provisional");
    }

    #[test]
    fn unknown_figures_are_null() {
        let value = snapshot(&Snapshot {
            host: Some(Host::default()),
            ..Default::default()
        });
        assert_eq!(value["host"]["total_bytes"], Value::Null);
        assert_eq!(value["model"], Value::Null);
        let device = Device {
            card: Some(Card {
                utilization_percent: Some(0),
                ..Default::default()
            }),
            ..Default::default()
        };
        let value = snapshot(&Snapshot {
            device: Some(device),
            ..Default::default()
        });
        assert_eq!(value["device"]["no_card"], Value::Null);
        let card = &value["device"]["card"];
        assert_eq!(card["utilization_percent"], 0);
        assert_eq!(card["temperature_c"], Value::Null);
        assert_eq!(card["held_by_others_bytes"], Value::Null);
    }
}
