//! Rows of `sluice bench` as JSON.

use serde_json::{Map, Value, json};
use sluice_proto::v1::Level;
use sluice_shared::preset::Preset;

use super::BenchFigures;

/// A row as JSON; unknown figures are null.
pub(super) fn json(figures: &BenchFigures) -> Value {
    let started = &figures.started;
    let decoding = started.decoding();
    let diffusion = started.diffusion.as_ref();
    json!({
        "preset": decoding.preset.map(Preset::name),
        "policy": diffusion.and_then(|options| options.policy.as_ref()),
        "kv_cache": decoding.kv_cache.map(|reuse| reuse.to_string()),
        "suffix_window": decoding.suffix_window,
        "canvas_growth": decoding.canvas_growth.map(|growth| growth.to_string()),
        "speculation": decoding.speculation.map(|speculation| speculation.to_string()),
        "exact": figures.exact,
        "model": started.model,
        "level": (started.level() != Level::Unspecified).then(|| started.level()),
        "block_length": started.block_length,
        "requests": figures.requests,
        "tokens": figures.tokens,
        "ms": figures.wall_ms,
        "tokens_per_second": figures.tokens_per_second(),
        "passes": figures.passes,
        "tokens_per_pass": figures.tokens_per_pass(),
        "pass_ms_median": figures.pass_ms_median,
        "pass_ms_min": figures.pass_ms_min,
        "waited_share": figures.waited_share(),
        "phases_ms_per_pass": phases_per_pass(figures),
        "bottleneck": figures.bottleneck().map(|bottleneck| json!({
            "bound": bottleneck.bound.name(),
            "share": bottleneck.share,
            "words": bottleneck.to_string(),
        })),
        "rows_per_pass": figures.rows,
        "lm_head_rows_per_pass": figures.lm_head_rows,
        "peak_device_bytes": figures.peak_device_bytes,
        "first_text_ms": figures.first_ms,
        "same_tokens": figures.same_tokens,
    })
}

/// The phases; null without a pass, and each phase that is not known is null.
fn phases_per_pass(figures: &BenchFigures) -> Option<Value> {
    let time = &figures.time;
    let each = |ms: f64| json!(ms / figures.passes as f64);
    let mut parts: Map<String, Value> = (time.parts().into_iter())
        .map(|(name, ms)| (name.to_owned(), ms.map_or(Value::Null, each)))
        .collect();
    let copy = time.phases.map(|phases| each(phases.copy_ms));
    parts.insert("copy".into(), copy.unwrap_or_default());
    (figures.passes > 0 && time.ms > 0.0).then_some(Value::Object(parts))
}
