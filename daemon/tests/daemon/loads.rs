//! Loads with a level, and settings of the configuration, by a real client.

use sluice_proto::v1::{self, operation::Outcome, plan_options::Budget::BudgetBytes};
use tonic::Code;

use crate::{
    plans::{load, planned, settings_of, slow, slow_checkpoint},
    support::{Daemon, apply, checkpoints, generate, level, long, rest_of, tokens, until, within},
};

/// The result of a load.
fn loaded(pictures: &[v1::Operation]) -> &v1::LoadResult {
    match pictures.last().and_then(|last| last.outcome.as_ref()) {
        Some(Outcome::Load(result)) => result,
        other => panic!("the last picture has {other:?}"),
    }
}
#[tokio::test]
async fn a_load_has_a_level_and_tells_its_plan_first() {
    let daemon = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &[]).await;
    let moderate = v1::LoadModelRequest {
        options: Some(v1::PlanOptions {
            level: v1::Level::Moderate.into(),
            ..Default::default()
        }),
        ..slow_checkpoint()
    };
    let kinds = load(&daemon, moderate).await.unwrap();
    let plan = planned(&kinds).plan.as_ref().unwrap();
    assert_eq!(
        (plan.level(), plan.is_lossless),
        (v1::Level::Moderate, false)
    );
    // The layers come with the result.
    let result = loaded(&kinds);
    assert!(plan.layers.is_empty() && !result.plan.as_ref().unwrap().layers.is_empty());
    let model = result.model.as_ref().unwrap();
    assert!(
        model
            .shape
            .as_ref()
            .unwrap()
            .formats
            .contains(&v1::Dtype::Q80.into())
    );
    assert_eq!(settings_of(&daemon).await.level(), v1::Level::Moderate);

    let impossible = v1::LoadModelRequest {
        options: Some(v1::PlanOptions {
            budget: Some(BudgetBytes(1000)),
            ..Default::default()
        }),
        ..slow_checkpoint()
    };
    let error = load(&daemon, impossible).await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("BUDGET_TOO_SMALL"));
    assert!(settings_of(&daemon).await.is_default_budget());
    generate(&daemon, tokens(&[1, 2], 8)).await.unwrap();
}

#[tokio::test]
async fn a_load_is_cancelled_and_the_model_before_serves() {
    let daemon = slow(&[]).await;
    // The one that the daemon began with has ended.
    assert!(!daemon.cancel(1).await.unwrap());

    // The load waits behind the request, so that it cannot be over before it is cancelled.
    let (id, _stream) = daemon.running(long()).await;
    let answer = daemon.models().await.load_model(slow_checkpoint()).await;
    let mut loading = answer.unwrap().into_inner();
    let first = within("a picture", loading.message()).await.unwrap();
    let operation_id = first.unwrap().operation.unwrap().operation_id;
    assert!(daemon.cancel(operation_id).await.unwrap());
    daemon.cancel(id).await.unwrap();
    let error = rest_of(loading).await.unwrap_err();
    assert_eq!(error.code, Code::Cancelled);
    assert_eq!(error.reason.as_deref(), Some("CANCELLED"));
    let list = v1::ListModelsRequest {};
    let models = daemon.models().await.list_models(list).await.unwrap();
    let models = models.into_inner().models;
    assert!(
        models
            .iter()
            .all(|model| model.state() != v1::ModelState::Failed)
    );
    generate(&daemon, tokens(&[1, 2], 8)).await.unwrap();
}

#[tokio::test]
async fn a_caller_that_goes_away_stops_neither_load_nor_change() {
    let daemon = slow(&[]).await;
    let answer = daemon
        .optimizer()
        .await
        .apply(level(v1::Level::Moderate))
        .await;
    drop(answer);
    until("the level", || async {
        settings_of(&daemon).await.level() == v1::Level::Moderate
    })
    .await;
    // Of a change that changes nothing there is an answer once the one before is written down.
    apply(&daemon, level(v1::Level::Moderate)).await.unwrap();
    let answer = daemon.models().await.load_model(slow_checkpoint()).await;
    drop(answer);
    // What it was loaded with tells the new one from the one before.
    until("the load's end", || async {
        let shape = daemon.snapshot().await.model.and_then(|model| model.shape);
        shape.is_some_and(|shape| shape.formats.contains(&v1::Dtype::Q80.into()))
    })
    .await;
    generate(&daemon, tokens(&[1, 2], 8)).await.unwrap();
}

#[tokio::test]
async fn level_and_budget_of_the_configuration_are_in_force() {
    let daemon = slow(&["--level", "moderate", "--budget", "512MiB"]).await;
    let snapshot = daemon.snapshot().await;
    let settings = snapshot.settings.unwrap();
    assert_eq!(
        (settings.level(), settings.budget_bytes),
        (v1::Level::Moderate, 512 << 20)
    );
    let plan = snapshot.plan.unwrap();
    assert_eq!(
        (plan.level(), plan.budget_bytes),
        (v1::Level::Moderate, 512 << 20)
    );
    assert!(snapshot.device.unwrap().total_bytes.is_some());
}
