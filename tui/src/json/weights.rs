//! What is told of weights: changes of the plan in force, and how it turned out.

use serde_json::{Value, json};
use sluice_proto::{
    plan_table,
    v1::{
        Applied, ApplyPlanned, Conversion, FidelityMeasurement, FidelityResult, LayerState,
        Measured, Plan, Settings, Switch, SwitchTarget, UnitState, apply_response::Kind,
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
    let mut value = fidelity_result(result);
    value["equal_to"] = Value::Null;
    value["peak_bytes"] = json!(plan.peak_bytes);
    value["pass_ms"] = json!(plan.pass_ms);
    value
}

/// A measurement that the daemon keeps.
#[must_use]
pub fn fidelity_measurement(measurement: &FidelityMeasurement) -> Value {
    let result = measurement.result.clone().unwrap_or_default();
    let mut value = fidelity_result(&result);
    value["model"] = json!(measurement.model);
    value["parameters"] = json!(measurement.parameters);
    value["samples_hash"] = json!(format!("{:016x}", measurement.samples_hash));
    value["measured_at_s"] = json!(measurement.measured_at_s);
    value
}

fn fidelity_result(result: &FidelityResult) -> Value {
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
    })
}

/// A level whose weights have the numbers of one that was measured: the keys are those of [`fidelity`].
#[must_use]
pub fn equal_fidelity(plan: &Plan, equal: &str) -> Value {
    let mut value = fidelity(&FidelityResult::default(), plan);
    if let Some(figures) = value.as_object_mut() {
        figures
            .values_mut()
            .for_each(|figure| *figure = Value::Null);
    }
    value["level"] = json!(plan.level);
    value["equal_to"] = json!(equal);
    value["peak_bytes"] = json!(plan.peak_bytes);
    value["pass_ms"] = json!(plan.pass_ms);
    value
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
    let substitution = settings.substitution.as_ref();
    let substitution = substitution.map(|substitution| {
        json!({
            "asked": substitution.asked,
            "taken": substitution.taken,
            "reason": substitution.reason,
        })
    });
    json!({
        "loaded_with": settings.loaded_with.as_deref().map(self::settings),
        "substitution": substitution,
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
    fn a_level_that_is_not_measured_again_has_the_same_keys() {
        let plan = Plan {
            level: "mild".into(),
            peak_bytes: 7,
            ..Default::default()
        };
        let keys = |value: &Value| {
            let keys = value.as_object().unwrap().keys();
            keys.cloned().collect::<Vec<_>>()
        };
        let equal = equal_fidelity(&plan, "standard");
        let measured = fidelity(&FidelityResult::default(), &plan);
        assert_eq!(keys(&equal), keys(&measured));
        assert_eq!(equal["equal_to"], "standard");
        assert_eq!(
            (&equal["level"], &equal["peak_bytes"]),
            (&"mild".into(), &7.into())
        );
        assert!(equal["mean_kl_nats"].is_null() && measured["equal_to"].is_null());
    }

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
