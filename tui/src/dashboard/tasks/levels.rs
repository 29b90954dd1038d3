//! Calls about levels: asking for their plans, applying them, and measuring their fidelity.

use futures_util::{Stream, StreamExt};
use sluice_proto::{
    operations::OperationResponse,
    v1::{
        self, ListFidelityRequest, ListMixesRequest, MeasureFidelityRequest, OperationStage, Plan,
        PlanRequest, SampleTexts,
        measure_fidelity_request::Samples,
        operation::{Detail, Outcome},
    },
};
use sluice_shared::{level::Level, options::PlanOptions};
use tokio::sync::mpsc::Sender;
use tonic::{Code, Status};

use super::{super::event::Event, words};
use crate::{connection::DaemonConnection, operations, output::Failure};

/// Asks for the plan of each level with these options, and reports each as it comes.
pub(super) async fn ask_plans(
    daemon: DaemonConnection,
    levels: &[Level],
    options: PlanOptions,
    events: Sender<Event>,
) -> Result<(), Failure> {
    for level in levels.iter().copied() {
        let options = PlanOptions {
            level: Some(level),
            // Other levels have none.
            mix: options.mix.filter(|_| level == Level::Optimized),
            ..options
        };
        let answer = ask_plan(&daemon, options).await;
        let answer = answer.map(Box::new).map_err(|failure| words(&failure));
        let _ = events.send(Event::Planned { level, answer }).await;
    }
    Ok(())
}

/// Asks for the plan of one choice.
pub(super) async fn ask_plan(
    daemon: &DaemonConnection,
    options: PlanOptions,
) -> Result<Plan, Failure> {
    let answer = daemon.optimizer().plan(PlanRequest::from(options)).await;
    let answer = answer.map_err(|status| daemon.failure(status))?;
    let plan = answer.into_inner().plan;
    plan.ok_or_else(|| Failure::new("the daemon's answer has no plan"))
}

/// Follows an apply or restore until its operation ends.
pub(super) async fn change<R: OperationResponse>(
    daemon: &DaemonConnection,
    serial: u64,
    mut stream: impl Stream<Item = Result<R, Status>> + Unpin,
    events: &Sender<Event>,
) -> Result<(), Failure> {
    let (mut is_planned, mut notices) = (false, 0);
    // Each picture has everything that is known so far, and some are skipped for slow readers. So the plan and the notices are
    // told by what is new in the picture, not by its position in the stream.
    while let Some(answer) = stream.next().await {
        let answer = answer.map_err(|status| daemon.failure(status))?;
        let Some(operation) = answer.into_operation() else {
            continue;
        };
        let mut told = Vec::new();
        if let (false, Some(Detail::PlannedChange(planned))) = (is_planned, &operation.detail) {
            is_planned = true;
            told.push(Event::Changing {
                serial,
                plan: Box::new(planned.plan.clone().unwrap_or_default()),
                before: Box::new(planned.plan_before.clone().unwrap_or_default()),
            });
        }
        let news = operation.notices.iter().skip(notices);
        told.extend(news.cloned().map(Event::Succeeded));
        notices = operation.notices.len();
        told.extend(operation.progress.as_ref().map(|step| {
            let converting = step.stage() == OperationStage::Converting;
            // Progress of the switch itself comes with snapshots, which also cover changes that other clients asked for.
            Event::Converting(converting.then(|| (step.done, step.total.unwrap_or(0))))
        }));
        let elapsed_ms = operation.elapsed_ms;
        let outcome = operation.outcome.map(|outcome| match outcome {
            Outcome::Apply(applied) => Event::Applied {
                serial,
                applied: Box::new(applied),
                elapsed_ms,
            },
            _ => Event::Converting(None),
        });
        let is_over = outcome.is_some();
        for event in told.into_iter().chain(outcome) {
            let _ = events.send(event).await;
        }
        if is_over {
            return Ok(());
        }
    }
    Err(operations::no_result())
}

/// Asks for the fidelity measurements that the daemon keeps.
pub(super) async fn list_fidelity(
    daemon: DaemonConnection,
    events: Sender<Event>,
) -> Result<(), Failure> {
    let answer = daemon
        .optimizer()
        .list_fidelity(ListFidelityRequest {})
        .await;
    let answer = answer.map_err(|status| daemon.failure(status))?;
    let measurements = answer.into_inner().measurements;
    let _ = events.send(Event::Fidelity(measurements)).await;
    Ok(())
}

/// Asks for the mixes that the daemon keeps of the loaded model. An older one does not tell.
pub(super) async fn list_mixes(
    daemon: DaemonConnection,
    events: Sender<Event>,
) -> Result<(), Failure> {
    let answer = daemon.optimizer().list_mixes(ListMixesRequest {}).await;
    match answer {
        Err(status) if status.code() == Code::Unimplemented => {}
        answer => {
            let answer = answer.map_err(|status| daemon.failure(status))?;
            let _ = events.send(Event::Mixes(answer.into_inner())).await;
        }
    }
    Ok(())
}

/// The text that fidelity is measured on here: the stories that the demonstration model was judged by.
const SAMPLE: &str = include_str!("../../../../daemon/model/sample.txt");

/// Measures the fidelity of a level and reports its progress.
pub(super) async fn measure(
    daemon: DaemonConnection,
    level: Level,
    events: Sender<Event>,
) -> Result<(), Failure> {
    let call = MeasureFidelityRequest {
        samples: Some(Samples::Texts(SampleTexts {
            texts: vec![SAMPLE.to_owned()],
        })),
        level: v1::Level::from(level).into(),
        ..Default::default()
    };
    let answer = daemon.optimizer().measure_fidelity(call).await;
    let mut stream = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    while let Some(answer) = stream.next().await {
        let answer = match answer {
            // Cancelled, here or by another client: that is no failure to show.
            Err(status) if status.code() == Code::Cancelled => {
                let _ = events.send(Event::MeasuringStopped).await;
                return Ok(());
            }
            answer => answer.map_err(|status| daemon.failure(status))?,
        };
        let Some(operation) = answer.operation else {
            continue;
        };
        if let Some(Outcome::Fidelity(result)) = operation.outcome {
            let _ = events.send(Event::Measured(Ok(Box::new(result)))).await;
            return Ok(());
        }
        let step = operation.progress.unwrap_or_default();
        let event = Event::Measuring {
            request_id: operation.operation_id,
            done: step.done as u32,
            total: step.total.unwrap_or(0) as u32,
        };
        let _ = events.send(event).await;
    }
    Err(operations::no_result())
}
