//! What is told of weights: changes of the plan in force, and how it turned out.

use serde_json::{Value, json};
use sluice_proto::{
    plan_table,
    v1::{
        Applied, ApplyPlanned, Conversion, FidelityResult, LayerState, Measured, Plan, Settings,
        Switch, SwitchTarget, UnitState, apply_response::Kind,
    },
};

/// One event of a change of level or budget.
#[must_use]
pub fn applying(kind: &Kind) -> Value {
    match kind {
        Kind::Planned(planned) => self::planned(planned),
        Kind::Conversion(conversion) => self::conversion(conversion),
        Kind::Progress(Switch { done, steps }) => {
            json!({"event": "switch", "done": done, "steps": steps})
        }
        Kind::Notice(text) => json!({"event": "notice", "text": text}),
        Kind::Applied(applied) => self::applied(applied),
    }
}

fn planned(planned: &ApplyPlanned) -> Value {
    json!({
        "event": "planned",
        "plan": planned.plan.as_ref().map(plan_table::json),
        "before": planned.before.as_ref().map(plan_table::json),
        "steps": planned.steps,
    })
}

fn conversion(conversion: &Conversion) -> Value {
    json!({
        "event": "conversion",
        "done_bytes": conversion.done_bytes,
        "total_bytes": conversion.total_bytes,
    })
}

fn applied(applied: &Applied) -> Value {
    json!({
        "event": "applied",
        "plan": applied.plan.as_ref().map(plan_table::json),
        "device_bytes": applied.device_bytes,
        "ms": applied.elapsed_ms,
    })
}

/// What a level came to, beside its plan.
#[must_use]
pub fn fidelity(result: &FidelityResult, plan: &Plan) -> Value {
    json!({
        "level": result.level,
        "samples": result.samples,
        "rows": result.rows,
        "mean_kl_nats": result.mean_kl_nats,
        "top_agreement": result.top_agreement,
        "source_bound_nats": result.source_bound_nats,
        "level_bound_nats": result.level_bound_nats,
        "seed": result.seed,
        "ms": result.elapsed_ms,
        "request_id": result.request_id,
        "peak_bytes": plan.peak_bytes,
        "pass_ms": plan.pass_ms,
    })
}

pub(super) fn switch(switch: &Switch) -> Value {
    json!({"done": switch.done, "steps": switch.steps})
}

pub(super) fn switch_target(target: &SwitchTarget) -> Value {
    json!({"level": target.level, "budget_bytes": target.budget_bytes})
}

pub(super) fn measured(measured: &Measured) -> Value {
    json!({
        "passes": measured.passes,
        "mean_pass_ms": measured.mean_pass_ms,
        "last_pass_ms": measured.last_pass_ms,
        "last_rows": measured.last_rows,
        "waited_ms": measured.waited_ms,
        "streamed_bytes": measured.streamed_bytes,
        "peak_bytes": measured.peak_bytes,
    })
}

pub(super) fn layer_state(layer: &LayerState) -> Value {
    let unit = |unit: &UnitState| {
        json!({
            "kind": unit.kind,
            "tier": unit.tier,
            "format": unit.format,
            "bytes": unit.bytes,
            "is_in_flight": unit.is_in_flight,
        })
    };
    json!({"name": layer.name, "units": layer.units.iter().map(unit).collect::<Vec<_>>()})
}

pub(super) fn settings(settings: &Settings) -> Value {
    json!({
        "level": settings.level,
        "budget_bytes": settings.budget_bytes,
        "is_default_budget": settings.is_default_budget,
        "embedding": settings.embedding,
        "auto_factor": settings.auto_factor,
        "kv": settings.kv,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_a_change_names_its_event() {
        let switch = applying(&Kind::Progress(Switch { done: 3, steps: 9 }));
        assert_eq!(
            switch.to_string(),
            r#"{"event":"switch","done":3,"steps":9}"#
        );
        let applied = applying(&Kind::Applied(Applied {
            device_bytes: 7,
            elapsed_ms: 1.5,
            ..Default::default()
        }));
        assert_eq!(
            applied.to_string(),
            r#"{"event":"applied","plan":null,"device_bytes":7,"ms":1.5}"#
        );
    }
}
