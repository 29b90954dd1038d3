//! JSON for scripts: messages as serde writes the generated types; `docs/json.md` describes them. [`read`] parses events of
//! a generation.

pub mod read;

use std::fmt;

use serde::Serialize;
use sluice_proto::v1::{GenerationDone, generation_event::Event};

/// A value as one line of JSON.
#[must_use]
pub fn line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("keys are text, and nothing else fails in memory")
}

/// One event of a generation as a line of JSON.
#[must_use]
pub fn event(kind: &Event) -> String {
    #[derive(Serialize)]
    struct Line<'a> {
        #[serde(flatten)]
        kind: &'a Event,
        #[serde(skip_serializing_if = "Option::is_none")]
        tokens_per_pass: Option<f64>,
    }
    line(&Line {
        kind,
        tokens_per_pass: match kind {
            Event::Done(done) => tokens_per_pass(done),
            _ => None,
        },
    })
}

/// Mean number of positions that a pass filled; `None` where there was no pass.
#[must_use]
pub fn tokens_per_pass(done: &GenerationDone) -> Option<f64> {
    (done.passes > 0).then(|| f64::from(done.filled_positions) / f64::from(done.passes))
}

/// An enum's value by its name in JSON, which is also shown to people.
#[must_use]
pub fn word(value: impl Serialize) -> String {
    struct Word<E>(E);
    impl<E: Serialize> fmt::Display for Word<E> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.serialize(f)
        }
    }
    Word(value).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use sluice_proto::v1::{
        CanvasToken, DaemonState, DeviceStatus, FinishReason, GenerationPass, GpuStatus,
        HostStatus, Operation, OperationKind, OperationProgress, Snapshot, TokenState,
        operation::Outcome,
    };

    use super::*;

    #[test]
    fn the_last_event_has_every_key_that_scripts_read() {
        let line = event(&Event::Done(GenerationDone {
            request_id: 3,
            finish_reason: FinishReason::Eos.into(),
            token_ids: vec![5, 6],
            seed: u64::MAX,
            elapsed_ms: 1.5,
            passes: 2,
            filled_positions: 3,
            ..Default::default()
        }));
        assert_eq!(
            line,
            r#"{"event":"done","request_id":3,"finish_reason":"eos","text":null,"token_ids":[5,6],"text_tokens":0,"generated_tokens":0,"filled_positions":3,"is_truncated":false,"is_exact":false,"seed":18446744073709551615,"passes":2,"elapsed_ms":1.5,"pass_ms":0.0,"waited_ms":0.0,"phases":null,"peak_device_bytes":0,"edits":0,"tokens_per_pass":1.5}"#
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
        let line = event(&Event::PassDone(GenerationPass {
            tokens: vec![token],
            ..Default::default()
        }));
        assert!(!line.contains('\n') && !line.contains('\x1b'), "{line}");
        let read: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["tokens"][0]["piece"], "\u{fffd}\x1b\n");
        assert_eq!(read["tokens"][0]["bytes"], json!([0xc3, 0x1b, 0x0a]));
        assert_eq!(read["tokens"][0]["confidence"], Value::Null);
        assert_eq!(read["tokens"][0]["state"], "provisional");
    }

    #[test]
    fn unknown_figures_are_null() {
        let value = json!(Snapshot {
            host: Some(HostStatus::default()),
            ..Default::default()
        });
        assert_eq!(value["host"]["total_bytes"], Value::Null);
        assert_eq!(value["model"], Value::Null);
        let value = json!(DeviceStatus {
            gpu: Some(GpuStatus {
                utilization_percent: Some(0),
                ..Default::default()
            }),
            ..Default::default()
        });
        assert_eq!(value["gpu_unavailable"], Value::Null);
        let gpu = &value["gpu"];
        assert_eq!(gpu["utilization_percent"], 0);
        assert_eq!(gpu["temperature_c"], Value::Null);
        assert_eq!(gpu["other_processes_bytes"], Value::Null);
    }

    #[test]
    fn a_result_says_what_it_is_of() {
        let operation = line(&Operation {
            operation_id: 7,
            kind: OperationKind::Decompress.into(),
            progress: Some(OperationProgress {
                done: 3,
                total: Some(9),
                ..Default::default()
            }),
            notices: vec!["look".into()],
            outcome: Some(Outcome::Decompress(Default::default())),
            ..Default::default()
        });
        let operation: Value = serde_json::from_str(&operation).unwrap();
        assert_eq!(operation["kind"], "decompress");
        let progress = &operation["progress"];
        assert_eq!(
            (&progress["done"], &progress["total"]),
            (&3.into(), &9.into())
        );
        assert_eq!(operation["notices"], json!(["look"]));
        let result = json!({"original_bytes": 0, "files": 0});
        assert_eq!(operation["decompress"], result);
        // What it has not is no key.
        assert_eq!(operation.get("verify"), None);
    }

    #[test]
    fn a_value_is_named_without_its_enum() {
        assert_eq!(word(DaemonState::NoModel), "no_model");
        assert_eq!(word(TokenState::Unspecified), "unspecified");
    }
}
