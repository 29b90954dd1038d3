//! Calls that concern levels: what they would lead to, putting them in force, and measuring them.

use futures_util::{Stream, StreamExt};
use sluice_proto::v1::{
    self, ApplyResponse, ListFidelityRequest, MeasureFidelityRequest, Plan, PlanRequest,
    SampleTexts, apply_response, measure_fidelity_request::Samples, measure_fidelity_response,
};
use sluice_shared::{level::Level, options::PlanOptions};
use tokio::sync::mpsc::Sender;
use tonic::{Code, Status};

use super::{super::event::Event, words};
use crate::{connection::DaemonConnection, output::Failure};

/// Asks what each of some levels would lead to, with these options.
pub(super) async fn ask_plans(
    daemon: DaemonConnection,
    levels: &[Level],
    options: PlanOptions,
    events: Sender<Event>,
) -> Result<(), Failure> {
    for level in levels.iter().copied() {
        let options = PlanOptions {
            level: Some(level),
            ..options
        };
        let answer = ask_plan(&daemon, options).await;
        let answer = answer.map(Box::new).map_err(|failure| words(&failure));
        let _ = events.send(Event::Planned { level, answer }).await;
    }
    Ok(())
}

/// Asks what one choice would lead to.
pub(super) async fn ask_plan(
    daemon: &DaemonConnection,
    options: PlanOptions,
) -> Result<Plan, Failure> {
    let answer = daemon.optimizer().plan(PlanRequest::from(options)).await;
    let answer = answer.map_err(|status| daemon.failure(status))?;
    let plan = answer.into_inner().plan;
    plan.ok_or_else(|| Failure::new("the daemon's answer has no plan"))
}

/// Follows a change until it is in force.
pub(super) async fn change(
    daemon: &DaemonConnection,
    serial: u64,
    mut stream: impl Stream<Item = Result<ApplyResponse, Status>> + Unpin,
    events: &Sender<Event>,
) -> Result<(), Failure> {
    use apply_response::Kind;

    while let Some(answer) = stream.next().await {
        let event = match answer.map_err(|status| daemon.failure(status))?.kind {
            Some(Kind::Planned(planned)) => Event::Changing {
                serial,
                plan: Box::new(planned.plan.unwrap_or_default()),
                before: Box::new(planned.plan_before.unwrap_or_default()),
            },
            Some(Kind::Conversion(conversion)) => {
                Event::Converting(Some((conversion.done_bytes, conversion.total_bytes)))
            }
            // The snapshots tell the same, for changes that others ask for too.
            Some(Kind::Progress(_)) => Event::Converting(None),
            Some(Kind::Notice(text)) => Event::Succeeded(text),
            Some(Kind::Applied(applied)) => {
                let applied = Box::new(applied);
                let _ = events.send(Event::Applied { serial, applied }).await;
                return Ok(());
            }
            None => continue,
        };
        let _ = events.send(event).await;
    }
    Err(Failure::new("the daemon ended the stream without a result"))
}

/// Asks for the measurements of fidelity that the daemon keeps.
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

/// What levels are compared on where nobody gives a text: the stories that the demonstration model was judged by.
const SAMPLE: &str = include_str!("../../../../daemon/model/sample.txt");

/// Measures how faithful a level is.
pub(super) async fn measure(
    daemon: DaemonConnection,
    level: Level,
    events: Sender<Event>,
) -> Result<(), Failure> {
    use measure_fidelity_response::Kind;

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
            Err(status) if status.code() == Code::Cancelled => {
                let _ = events.send(Event::MeasuringStopped).await;
                return Ok(());
            }
            answer => answer.map_err(|status| daemon.failure(status))?,
        };
        let event = match answer.kind {
            Some(Kind::Progress(progress)) => Event::Measuring {
                request_id: progress.request_id,
                done: progress.done,
                total: progress.total,
            },
            Some(Kind::Result(result)) => {
                let _ = events.send(Event::Measured(Ok(Box::new(result)))).await;
                return Ok(());
            }
            None => continue,
        };
        let _ = events.send(event).await;
    }
    Err(Failure::new("the daemon ended the stream without a result"))
}
