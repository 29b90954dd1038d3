//! Plans, levels and budgets of a running daemon.

use sluice_proto::{
    client::CallError,
    v1::{
        self, generation_event,
        model_ref::By,
        operation::{Detail, Outcome},
        plan_options::Budget::{BudgetBytes, DefaultBudget},
    },
};
use tonic::Code;

use crate::support::{
    Daemon, apply, checkpoints, done, generate, level, long, pictures, rest, tokens,
};

/// The settings that the daemon's snapshot shows.
pub(crate) async fn settings_of(daemon: &Daemon) -> v1::SettingsStatus {
    daemon.snapshot().await.settings.unwrap()
}

pub(crate) async fn slow(arguments: &[&str]) -> Daemon {
    let arguments = [&["--threads", "1"], arguments].concat();
    Daemon::with_model(checkpoints::slow(), &arguments).await
}

async fn plan(daemon: &Daemon, request: v1::PlanRequest) -> Result<v1::Plan, CallError> {
    let answer = daemon.optimizer().await.plan(request).await?;
    Ok(answer.into_inner().plan.unwrap())
}

fn budget(bytes: u64) -> v1::ApplyRequest {
    v1::ApplyRequest {
        options: Some(v1::PlanOptions {
            budget: Some(BudgetBytes(bytes)),
            ..Default::default()
        }),
        ..Default::default()
    }
}

async fn restore(daemon: &Daemon) -> Result<Vec<v1::Operation>, CallError> {
    restore_to(daemon, v1::RestoreTarget::Start).await
}

async fn restore_to(
    daemon: &Daemon,
    target: v1::RestoreTarget,
) -> Result<Vec<v1::Operation>, CallError> {
    let request = v1::RestoreRequest {
        target: target.into(),
        ..Default::default()
    };
    pictures(daemon.optimizer().await.restore(request).await).await
}

pub(crate) fn planned(pictures: &[v1::Operation]) -> &v1::PlannedChange {
    match pictures.last().and_then(|last| last.detail.as_ref()) {
        Some(Detail::PlannedChange(planned)) => planned,
        other => panic!("the last picture has {other:?}"),
    }
}

fn applied(pictures: &[v1::Operation]) -> &v1::ApplyResult {
    match pictures.last().and_then(|last| last.outcome.as_ref()) {
        Some(Outcome::Apply(applied)) => applied,
        other => panic!("the last picture has {other:?}"),
    }
}

pub(crate) async fn load(
    daemon: &Daemon,
    request: v1::LoadModelRequest,
) -> Result<Vec<v1::Operation>, CallError> {
    pictures(daemon.models().await.load_model(request).await).await
}

pub(crate) fn slow_checkpoint() -> v1::LoadModelRequest {
    v1::LoadModelRequest {
        model: By::Path(checkpoints::slow().to_str().unwrap().to_owned()).into(),
        ..Default::default()
    }
}

/// A budget within which the loaded model has to stream.
async fn streaming_budget(daemon: &Daemon) -> u64 {
    let all = plan(daemon, v1::PlanRequest::default()).await.unwrap();
    all.peak_bytes - all.resident_bytes / 3
}

#[tokio::test]
async fn a_plan_is_made_for_the_loaded_model_a_preset_or_a_path_and_changes_nothing() {
    let daemon = slow(&[]).await;
    let before = daemon.snapshot().await;
    let loaded = plan(&daemon, v1::PlanRequest::default()).await.unwrap();
    assert_eq!(loaded.model, "slow-checkpoint");
    let canvas_length = loaded.workload.unwrap().canvas_length();
    assert_eq!((loaded.level(), canvas_length), (v1::Level::Standard, 256));
    assert_eq!(loaded.streamed_bytes_per_pass, 0);
    assert!(loaded.is_lossless && loaded.is_loadable);
    assert!(loaded.pass_ms.unwrap() > 0.0);

    let small = v1::PlanRequest {
        options: Some(v1::PlanOptions {
            budget: Some(BudgetBytes(streaming_budget(&daemon).await)),
            ..Default::default()
        }),
        ..Default::default()
    };
    let small = plan(&daemon, small).await.unwrap();
    assert!(small.streamed_bytes_per_pass > 0 && small.peak_bytes <= small.budget_bytes);
    assert!(small.staging_buffers.unwrap().count >= 3);

    let preset = v1::PlanRequest {
        options: Some(v1::PlanOptions {
            level: v1::Level::Aggressive.into(),
            budget: Some(BudgetBytes(8 << 30)),
            ..Default::default()
        }),
        model: By::Shape("llada-8b".to_owned()).into(),
        ..Default::default()
    };
    let preset = plan(&daemon, preset).await.unwrap();
    assert_eq!(
        (preset.model.as_str(), preset.layers.len()),
        ("llada-8b", 34)
    );
    assert!(!preset.is_lossless);

    let path = checkpoints::fixture("llada-tiny")
        .to_str()
        .unwrap()
        .to_owned();
    let path = v1::PlanRequest {
        model: By::Path(path).into(),
        ..Default::default()
    };
    assert_eq!(plan(&daemon, path).await.unwrap().model, "llada-tiny");

    let after = daemon.snapshot().await;
    assert_eq!(
        after.device.unwrap().used_bytes,
        before.device.unwrap().used_bytes
    );
    assert_eq!(
        (after.weights_version, after.plan),
        (before.weights_version, before.plan)
    );
}

#[tokio::test]
async fn plans_that_can_not_be_are_explained() {
    let daemon = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &[]).await;
    let asked = v1::PlanRequest::default();
    for (request, code, reason) in [
        (
            v1::PlanRequest {
                model: By::Shape("gpt-9".to_owned()).into(),
                ..asked.clone()
            },
            Code::InvalidArgument,
            "UNKNOWN_SHAPE",
        ),
        (
            v1::PlanRequest {
                model: By::Path("here".to_owned()).into(),
                ..asked.clone()
            },
            Code::InvalidArgument,
            "INVALID_FIELD",
        ),
        (
            v1::PlanRequest {
                options: Some(v1::PlanOptions {
                    level: 99,
                    ..Default::default()
                }),
                ..asked.clone()
            },
            Code::InvalidArgument,
            "INVALID_FIELD",
        ),
        (
            v1::PlanRequest {
                workload: Some(v1::Workload {
                    canvas_length: Some(257),
                    ..Default::default()
                }),
                ..asked.clone()
            },
            Code::InvalidArgument,
            "CANVAS_TOO_LONG",
        ),
        (
            v1::PlanRequest {
                options: Some(v1::PlanOptions {
                    budget: Some(BudgetBytes(1000)),
                    ..Default::default()
                }),
                ..asked.clone()
            },
            Code::FailedPrecondition,
            "BUDGET_TOO_SMALL",
        ),
    ] {
        let error = plan(&daemon, request).await.unwrap_err();
        assert_eq!((error.code, error.reason.as_deref()), (code, Some(reason)));
    }
    // The time of compressing is estimated.
    let mild = v1::PlanRequest {
        options: Some(v1::PlanOptions {
            level: v1::Level::Mild.into(),
            budget: Some(BudgetBytes(12 << 30)),
            ..Default::default()
        }),
        model: By::Shape("llada-8b".to_owned()).into(),
        ..asked
    };
    let mild = plan(&daemon, mild).await.unwrap();
    assert!(mild.is_loadable && mild.is_estimate && mild.is_lossless);
}

#[tokio::test]
async fn restore_goes_back_to_what_the_model_was_loaded_with() {
    let daemon = slow(&["--level", "moderate"]).await;
    let before = settings_of(&daemon).await;
    assert_eq!(before.level(), v1::Level::Moderate);
    assert_eq!(
        before.loaded_with.as_ref().unwrap().level(),
        v1::Level::Moderate
    );
    let aggressive = v1::ApplyRequest {
        options: Some(v1::PlanOptions {
            level: v1::Level::Aggressive.into(),
            budget: Some(BudgetBytes(1 << 30)),
            embedding_placement: v1::EmbeddingPlacement::Device.into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    apply(&daemon, aggressive).await.unwrap();
    let changed = settings_of(&daemon).await;
    assert_eq!(changed.loaded_with, before.loaded_with);
    let kinds = restore(&daemon).await.unwrap();
    assert_eq!(
        applied(&kinds).plan.as_ref().unwrap().level(),
        v1::Level::Moderate
    );
    assert_eq!(settings_of(&daemon).await, before);

    let kinds = restore_to(&daemon, v1::RestoreTarget::Source)
        .await
        .unwrap();
    assert_eq!(
        applied(&kinds).plan.as_ref().unwrap().level(),
        v1::Level::Off
    );
    let unknown = v1::RestoreRequest {
        target: 99,
        ..Default::default()
    };
    let error = daemon.optimizer().await.restore(unknown).await;
    assert_eq!(error.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn every_level_is_switched_to_from_a_plain_folder_and_what_can_not_be_had_is_said() {
    let cache = tempfile::TempDir::new().unwrap();
    let cache = format!("--weight-cache={}", cache.path().display());
    let daemon = slow(&[&cache]).await;
    let request = || tokens(&[1, 2, 3], 16);
    let expected = done(&generate(&daemon, request()).await.unwrap()).clone();
    for name in [
        v1::Level::Mild,
        v1::Level::Aggressive,
        v1::Level::Auto,
        v1::Level::Off,
        v1::Level::Mild,
        v1::Level::Standard,
    ] {
        let kinds = apply(&daemon, level(name)).await.unwrap();
        let plan = applied(&kinds).plan.as_ref().unwrap();
        assert!(!plan.is_estimate && (name == v1::Level::Auto || plan.level() == name));
        let found = done(&generate(&daemon, request()).await.unwrap()).clone();
        assert_eq!(found.is_exact, plan.is_lossless, "{name}");
        if plan.is_lossless {
            assert_eq!(found.token_ids, expected.token_ids, "{name}");
        }
    }

    // After `--level mild` a plain folder is loaded as well.
    apply(&daemon, level(v1::Level::Mild)).await.unwrap();
    load(&daemon, slow_checkpoint()).await.unwrap();
    assert_eq!(
        daemon.snapshot().await.plan.unwrap().level(),
        v1::Level::Mild
    );
    // And one that `off` has no room for, by another name of the same fidelity.
    let less = streaming_budget(&daemon).await;
    let off = v1::LoadModelRequest {
        options: Some(v1::PlanOptions {
            level: v1::Level::Off.into(),
            budget: Some(BudgetBytes(less)),
            ..Default::default()
        }),
        ..slow_checkpoint()
    };
    let kinds = load(&daemon, off).await.unwrap();
    // Beside it may stand that other programs were busy while rates were measured.
    let notices = &kinds.last().unwrap().notices;
    let substitutions = notices
        .iter()
        .filter(|notice| notice.contains("replaces off"));
    assert_eq!(substitutions.count(), 1, "{notices:?}");
    let settings = settings_of(&daemon).await;
    let substitution = settings.substitution.as_ref().unwrap();
    assert_eq!(
        (substitution.requested(), substitution.used()),
        (v1::Level::Off, settings.level())
    );
    assert!(daemon.log().contains("replaces off"));

    // The default budget is had back by its name.
    let all = v1::LoadModelRequest {
        options: Some(v1::PlanOptions {
            level: v1::Level::Standard.into(),
            budget: Some(DefaultBudget(true)),
            ..Default::default()
        }),
        ..slow_checkpoint()
    };
    load(&daemon, all).await.unwrap();
    let settings = settings_of(&daemon).await;
    assert!(settings.is_default_budget() && settings.substitution.is_none());
}

#[tokio::test]
#[ignore = "seconds of both cores: cargo ci"]
async fn a_budget_changes_while_a_text_is_made_and_the_text_is_the_same() {
    let daemon = slow(&[]).await;
    let expected = done(&generate(&daemon, long()).await.unwrap())
        .token_ids
        .clone();

    let less = streaming_budget(&daemon).await;
    let (_, mut stream) = daemon.running(long()).await;
    let kinds = apply(&daemon, budget(less)).await.unwrap();
    let planned = planned(&kinds);
    let after = planned.plan.as_ref().unwrap();
    assert!(after.peak_bytes <= less && after.streamed_bytes_per_pass > 0);
    assert_eq!(
        planned
            .plan_before
            .as_ref()
            .unwrap()
            .streamed_bytes_per_pass,
        0
    );
    assert!(planned.total_steps > 0);
    let applied = applied(&kinds);
    assert_eq!(applied.plan.as_ref().unwrap().peak_bytes, after.peak_bytes);
    assert!(applied.device_bytes <= less && kinds.last().unwrap().elapsed_ms > 0.0);

    let events = rest(&mut stream).await.unwrap();
    let last = done(&events);
    assert_eq!(last.token_ids, expected);
    assert!(last.is_exact, "streaming changes no weight");
    let streamed = events.iter().any(|event| match event {
        generation_event::Event::PassDone(pass) => pass.streamed_bytes > 0,
        _ => false,
    });
    assert!(streamed);

    // Its peak is under this plan alone.
    generate(&daemon, tokens(&[1, 2], 32)).await.unwrap();
    let snapshot = daemon.snapshot().await;
    let settings = snapshot.settings.unwrap();
    assert_eq!(
        (settings.budget_bytes, settings.is_default_budget()),
        (less, false)
    );
    let measured = snapshot.passes.unwrap();
    assert!(measured.count > 0 && measured.mean_ms.unwrap() > 0.0);
    assert!(measured.streamed_bytes > 0 && measured.peak_bytes.unwrap() <= less);
    let places = snapshot.layers.iter().flat_map(|layer| &layer.groups);
    assert!(places.clone().any(
        |unit| unit.tier() != v1::Tier::Device && unit.kind() != v1::WeightGroupKind::Embedding
    ));

    let default = v1::ApplyRequest {
        options: Some(v1::PlanOptions {
            budget: Some(DefaultBudget(true)),
            ..Default::default()
        }),
        ..Default::default()
    };
    let kinds = apply(&daemon, default).await.unwrap();
    assert_eq!(
        self::applied(&kinds)
            .plan
            .as_ref()
            .unwrap()
            .streamed_bytes_per_pass,
        0
    );
    assert!(settings_of(&daemon).await.is_default_budget());
}

/// What a pass took, or all of them.
fn took(ms: f64, waited_ms: f64, phases: Option<&v1::PassPhases>) -> v1::PassPhases {
    let phases = *phases.expect("the CPU is timed");
    let known = phases.attention_ms + phases.matmul_ms + phases.decompress_ms + phases.lm_head_ms;
    let all = known + phases.other_ms + waited_ms;
    assert!((all - ms).abs() < 1e-6 * ms, "{all} of {ms}: {phases:?}");
    assert!(phases.attention_ms > 0.0 && phases.matmul_ms > 0.0 && phases.lm_head_ms > 0.0);
    phases
}

#[tokio::test]
async fn passes_tell_where_their_time_went() {
    let daemon = slow(&[]).await;
    let less = streaming_budget(&daemon).await;
    for streams in [false, true] {
        if streams {
            apply(&daemon, budget(less)).await.unwrap();
        }
        let events = generate(&daemon, tokens(&[1, 2, 3], 16)).await.unwrap();
        let (mut seen_ms, mut copy_ms) = (0.0, 0.0);
        for event in &events {
            if let generation_event::Event::PassDone(pass) = event {
                seen_ms += pass.pass_ms;
                copy_ms += took(pass.pass_ms, pass.waited_ms, pass.phases.as_ref()).copy_ms;
            }
        }
        let done = done(&events);
        let all = took(done.pass_ms, done.waited_ms, done.phases.as_ref());
        // Some pictures may have been missed.
        assert!(seen_ms > 0.0 && seen_ms <= done.pass_ms * 1.000_001);
        assert!(copy_ms <= all.copy_ms * 1.000_001);
        assert_eq!(all.copy_ms > 0.0, streams);
    }
}

#[tokio::test]
async fn a_lossy_level_says_so_and_restore_is_as_if_it_had_never_been() {
    let daemon = slow(&[]).await;
    let request = || tokens(&[1, 2, 3], 96);
    let expected = done(&generate(&daemon, request()).await.unwrap()).clone();
    assert!(expected.is_exact);

    let kinds = apply(&daemon, level(v1::Level::Aggressive)).await.unwrap();
    let aggressive = applied(&kinds).clone();
    let events = generate(&daemon, request()).await.unwrap();
    assert!(!done(&events).is_exact);
    let started = events.iter().find_map(|event| match event {
        generation_event::Event::Started(started) => Some(started),
        _ => None,
    });
    let started = started.unwrap();
    assert_eq!(
        (started.level(), started.is_exact),
        (v1::Level::Aggressive, false)
    );
    assert!(
        started.warnings[0].contains("64 tokens"),
        "{:?}",
        started.warnings
    );
    assert!(started.estimated_ms.is_some());
    assert_eq!(
        (started.length, started.steps()),
        (96, 96),
        "asked for, and so done"
    );

    let kinds = restore(&daemon).await.unwrap();
    let restored = applied(&kinds);
    assert_eq!(restored.plan.as_ref().unwrap().level(), v1::Level::Standard);
    assert!(restored.device_bytes > aggressive.device_bytes);
    let again = generate(&daemon, request()).await.unwrap();
    assert_eq!(done(&again).token_ids, expected.token_ids);
    assert!(done(&again).is_exact);
}

#[tokio::test]
async fn how_long_it_takes_is_told_for_the_canvas_that_was_asked_for() {
    let daemon = slow(&[]).await;
    let expected = v1::PlanRequest {
        workload: Some(v1::Workload {
            canvas_length: Some(3 + 96),
            ..Default::default()
        }),
        ..Default::default()
    };
    let expected = plan(&daemon, expected).await.unwrap().pass_ms.unwrap();
    let usual = plan(&daemon, v1::PlanRequest::default()).await.unwrap();
    let events = generate(&daemon, tokens(&[1, 2, 3], 96)).await.unwrap();
    let told = events.iter().find_map(|event| match event {
        generation_event::Event::Started(started) => started.estimated_ms,
        _ => None,
    });
    let told = told.unwrap();
    assert!((told / 96.0 - expected).abs() < 1e-6, "{told} {expected}");
    assert!(told / 96.0 <= usual.pass_ms.unwrap(), "{told} {usual:?}");

    // Too much for the context is refused as ever, and before it is rehearsed.
    let mut wide = tokens(&[1, 2, 3], 96);
    wide.block_length = Some(97);
    let error = generate(&daemon, wide).await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("BLOCK_TOO_LONG"), "{error}");
}

#[tokio::test]
async fn what_is_streamed_at_a_lossy_level_is_converted_into_the_cache() {
    let cache = tempfile::TempDir::new().unwrap();
    let folder = cache.path().join("copies");
    let daemon = slow(&["--weight-cache", folder.to_str().unwrap()]).await;
    let moderate = v1::PlanRequest {
        options: Some(v1::PlanOptions {
            level: v1::Level::Moderate.into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let all = plan(&daemon, moderate).await.unwrap();
    let streaming = v1::ApplyRequest {
        options: Some(v1::PlanOptions {
            level: v1::Level::Moderate.into(),
            budget: Some(BudgetBytes(all.peak_bytes - all.resident_bytes / 3)),
            ..Default::default()
        }),
        ..Default::default()
    };
    let (_, mut stream) = daemon.running(long()).await;
    let kinds = apply(&daemon, streaming).await.unwrap();
    let stages = kinds.iter().filter_map(|picture| picture.progress.as_ref());
    let converting = v1::OperationStage::Converting;
    let mut converted = stages.filter(|step| step.stage() == converting);
    assert!(converted.any(|step| step.total > Some(0)));
    let plan = applied(&kinds).plan.as_ref().unwrap();
    assert!(plan.streamed_bytes_per_pass > 0 && !plan.is_lossless);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    assert!(!done(&rest(&mut stream).await.unwrap()).is_exact);
}

#[tokio::test]
async fn restore_streams_where_there_is_no_room_for_all() {
    let daemon = slow(&[]).await;
    let less = streaming_budget(&daemon).await;
    apply(&daemon, budget(less)).await.unwrap();
    let kinds = restore_to(&daemon, v1::RestoreTarget::Source)
        .await
        .unwrap();
    let plan = applied(&kinds).plan.as_ref().unwrap();
    assert_eq!(plan.level(), v1::Level::Standard);
    assert!(plan.streamed_bytes_per_pass > 0 && plan.is_lossless);
}

#[tokio::test]
async fn a_change_that_makes_no_sense_leaves_all_as_it_was() {
    let daemon = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &[]).await;
    let before = daemon.snapshot().await;
    let error = apply(&daemon, budget(1000)).await.unwrap_err();
    assert_eq!(error.code, Code::FailedPrecondition);
    assert_eq!(error.reason.as_deref(), Some("BUDGET_TOO_SMALL"));
    assert!(error.hint.unwrap().contains("sluice budget "));
    for request in [
        v1::ApplyRequest::default(),
        v1::ApplyRequest {
            options: Some(v1::PlanOptions {
                level: 99,
                ..Default::default()
            }),
            ..Default::default()
        },
        budget(0),
        budget(u64::MAX),
    ] {
        let error = apply(&daemon, request).await.unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument, "{error}");
    }
    let after = daemon.snapshot().await;
    assert_eq!(after.settings, before.settings);
    assert_eq!(
        (after.plan, after.weights_version),
        (before.plan, before.weights_version)
    );
    generate(&daemon, tokens(&[1, 2], 8)).await.unwrap();
}

#[tokio::test]
async fn without_a_model_a_change_is_refused_and_settings_stay() {
    let broken = tempfile::TempDir::new().unwrap();
    let model = broken.path().to_str().unwrap();
    let daemon = Daemon::start(&["--model", model]).await;
    daemon.model_state(v1::ModelState::Failed).await;
    let error = apply(&daemon, level(v1::Level::Moderate))
        .await
        .unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("MODEL_FAILED"), "{error}");
    assert!(error.message.ends_with("; level and budget are unchanged"));
    assert!(error.hint.unwrap().contains("--level"));
    let error = restore(&daemon).await.unwrap_err();
    assert!(error.message.ends_with("; level and budget are unchanged"));
    assert_eq!(settings_of(&daemon).await.level(), v1::Level::Standard);
}

#[tokio::test]
async fn a_request_too_large_for_the_budget_is_refused_with_the_figures() {
    let daemon = slow(&[]).await;
    let tight = v1::PlanRequest {
        options: Some(v1::PlanOptions {
            budget: Some(BudgetBytes(1)),
            ..Default::default()
        }),
        ..Default::default()
    };
    let error = plan(&daemon, tight).await.unwrap_err();
    let hint = error.hint.unwrap();
    let (_, least) = hint.split_once("sluice budget ").unwrap();
    let least = least.split_whitespace().next().unwrap();
    let least = sluice_shared::units::parse_bytes(least).unwrap();
    apply(&daemon, budget(least)).await.unwrap();
    let error = generate(&daemon, tokens(&[1; 200], 3840))
        .await
        .unwrap_err();
    assert_eq!(error.code, Code::ResourceExhausted, "{error}");
    assert_eq!(error.reason.as_deref(), Some("BUDGET_TOO_SMALL"));
    generate(&daemon, tokens(&[1, 2], 8)).await.unwrap();
}
