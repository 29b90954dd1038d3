//! What the fake says of itself, its model and its work.

use sluice_proto::v1::*;

use crate::ScriptStep;

/// The contents of a small compressed file.
pub(crate) fn contents() -> ContainerContents {
    let sum = CompressionSummary {
        compression: Compression::Huffman.into(),
        tensors: 1,
        elements: 1 << 20,
        bytes: 11 << 17,
        original_bytes: 1 << 21,
    };
    ContainerContents {
        path: "/models/m.sluice".into(),
        file_bytes: (11 << 17) + 4096,
        original_bytes: 1 << 21,
        source_hash: "0123456789abcdef".into(),
        tile_elements: 256,
        extents: 1,
        tensors: vec![ContainerTensor {
            name: "wq\x1b[2J".into(),
            shape: vec![1024, 1024],
            dtype: "bf16".into(),
            compression: sum.compression,
            extent: "wq".into(),
            bytes: sum.bytes,
            original_bytes: sum.original_bytes,
            ..Default::default()
        }],
        summaries: vec![sum],
        pruning: None,
        files: vec![ContainerFile {
            name: "config.json".into(),
            bytes: 1024,
            ..Default::default()
        }],
    }
}

pub(crate) fn snapshot() -> Snapshot {
    Snapshot {
        daemon: Some(DaemonStatus {
            version: "0.1.0".into(),
            protocol_version: sluice_proto::PROTOCOL,
            state: DaemonState::Ready.into(),
            ..Default::default()
        }),
        model: Some(model()),
        plan: Some(plan(Level::Standard)),
        settings: Some(SettingsStatus {
            options: Some(PlanOptions {
                level: Level::Standard.into(),
                budget: Some(plan_options::Budget::DefaultBudget(true)),
                ..Default::default()
            }),
            budget_bytes: 4 << 30,
            ..Default::default()
        }),
        operations: vec![job()],
        ..Default::default()
    }
}

/// An operation that runs.
pub fn operation(kind: OperationKind) -> Operation {
    Operation {
        operation_id: 5,
        kind: kind.into(),
        state: OperationState::Running.into(),
        ..Default::default()
    }
}

/// A job that is half done.
pub fn job() -> Operation {
    Operation {
        operation_id: 3,
        kind: OperationKind::Compress.into(),
        state: OperationState::Running.into(),
        input_path: "/models/m".into(),
        output_path: "/models/m.sluice".into(),
        is_cancellable: true,
        progress: Some(OperationProgress {
            stage: OperationStage::Compressing.into(),
            item: "blocks.1.ff_out.weight".into(),
            unit: ProgressUnit::Bytes.into(),
            done: 1 << 30,
            total: Some(2 << 30),
        }),
        elapsed_ms: 90_000.0,
        threads: Some(2),
        ..Default::default()
    }
}

/// What a level comes to: near the checkpoint's own weights.
pub(crate) fn fidelity(request: &MeasureFidelityRequest) -> FidelityResult {
    FidelityResult {
        level: match request.level() {
            Level::Unspecified => Level::Standard.into(),
            level => level.into(),
        },
        samples: 3,
        rows: 1_234,
        mean_kl_nats: 0.00125,
        top_agreement: 0.9875,
        source_bound_nats: 1.5,
        level_bound_nats: 1.625,
        seed: request.seed.unwrap_or(99),
    }
}

/// A plan that needs 3 of 4 GiB and streams nothing. Level `off` can only be planned.
pub fn plan(level: Level) -> Plan {
    Plan {
        model: "fake".into(),
        level: level.into(),
        budget_bytes: 4 << 30,
        workload: Some(Workload {
            canvas_length: Some(256),
            block_length: Some(32),
            batch_requests: Some(1),
        }),
        peak_bytes: 3 << 30,
        pass_ms: Some(620.0),
        is_lossless: [Level::Off, Level::Standard, Level::Mild].contains(&level),
        is_loadable: level != Level::Off,
        not_loadable_reason: match level {
            Level::Off => "level off can only be planned".into(),
            _ => String::new(),
        },
        ..Default::default()
    }
}

/// The pictures of a change from `standard` to `level` that succeeds.
pub fn switch_pictures(level: Level) -> Vec<Operation> {
    let before = Plan {
        peak_bytes: 4 << 30,
        pass_ms: Some(1800.0),
        streamed_bytes_per_pass: 2 << 30,
        ..plan(Level::Standard)
    };
    let at = |stage: OperationStage, unit: ProgressUnit, done, total| {
        Some(OperationProgress {
            stage: stage.into(),
            unit: unit.into(),
            done,
            total: Some(total),
            ..Default::default()
        })
    };
    let planned = Operation {
        detail: Some(operation::Detail::PlannedChange(PlannedChange {
            plan: Some(plan(level)),
            plan_before: Some(before),
            total_steps: 2,
        })),
        ..operation(OperationKind::Apply)
    };
    let converting = Operation {
        progress: at(
            OperationStage::Converting,
            ProgressUnit::Bytes,
            1 << 20,
            4 << 20,
        ),
        ..planned.clone()
    };
    let noticed = Operation {
        notices: vec!["a copy is written\x1b[2J".into()],
        ..converting.clone()
    };
    let switching = Operation {
        progress: at(OperationStage::Switching, ProgressUnit::Steps, 1, 2),
        ..noticed.clone()
    };
    let applied = Operation {
        state: OperationState::Done.into(),
        elapsed_ms: 2_300.0,
        outcome: Some(operation::Outcome::Apply(ApplyResult {
            plan: Some(plan(level)),
            device_bytes: 2 << 30,
        })),
        ..switching.clone()
    };
    vec![planned, converting, noticed, switching, applied]
}

pub(crate) fn model() -> Model {
    Model {
        name: "fake".into(),
        state: ModelState::Ready.into(),
        is_demonstration: true,
        license: Some("apache-2.0".into()),
        ..Default::default()
    }
}

/// A downloaded model.
pub(crate) fn on_disk() -> Model {
    Model {
        name: "o/m".into(),
        path: "/models/o/m".into(),
        state: ModelState::Available.into(),
        origin: ModelOrigin::Pulled.into(),
        disk_bytes: 3 << 30,
        file_format: FileFormat::Safetensors.into(),
        family: "llada".into(),
        parameters: Some(1_500_000_000),
        is_default: true,
        ..Default::default()
    }
}

/// The events of a short, successful request.
pub fn generation_events(text: &str) -> Vec<ScriptStep> {
    use generation_event::Event;

    let words: Vec<&str> = text.split_inclusive(' ').collect();
    let tokens = |committed: usize| -> Vec<CanvasToken> {
        let token = |(position, word): (usize, &&str)| CanvasToken {
            position: position as u32,
            id: Some(position as u32 + 10),
            piece: word.as_bytes().to_vec(),
            confidence: Some(0.5),
            state: match position < committed {
                true => TokenState::Committed.into(),
                false => TokenState::Provisional.into(),
            },
            is_fresh: position + 1 == committed,
            is_edited: false,
            logprobs: None,
        };
        words.iter().enumerate().map(token).collect()
    };
    let length = words.len() as u32;
    let mut steps = vec![
        ScriptStep::Send(Event::Queued(GenerationQueued {
            request_id: 7,
            ahead: 0,
        })),
        ScriptStep::Send(Event::Started(GenerationStarted {
            request_id: 7,
            length,
            block_length: length,
            blocks: 1,
            model: "fake".into(),
            prompt_text: b"prompt".to_vec(),
            is_exact: true,
            ..Default::default()
        })),
    ];
    for pass in 1..=length {
        steps.push(ScriptStep::Send(Event::PassDone(GenerationPass {
            request_id: 7,
            passes: pass,
            passes_in_block: pass,
            tokens: tokens(pass as usize),
            committed_positions: pass,
            elapsed_ms: f64::from(pass) * 10.0,
            ..Default::default()
        })));
    }
    steps.push(ScriptStep::Send(Event::BlockDone(GenerationBlock {
        request_id: 7,
        passes: length,
        tokens: tokens(words.len()),
        ..Default::default()
    })));
    steps.push(ScriptStep::Send(Event::Done(GenerationDone {
        request_id: 7,
        finish_reason: FinishReason::Length.into(),
        token_ids: (10..10 + length).collect(),
        text: Some(text.to_owned()),
        passes: length,
        elapsed_ms: 100.0,
        text_tokens: length,
        generated_tokens: length,
        filled_positions: length,
        is_exact: true,
        ..Default::default()
    })));
    steps
}
