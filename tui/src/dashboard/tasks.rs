//! The dashboard's calls to the daemon, each in a task that reports by events.

use std::{path::PathBuf, time::Duration};

use futures_util::{Stream, StreamExt};
use sluice_proto::v1::{
    ApplyPlanned, ApplyRequest, CancelRequestRequest, Chat, GenerateRequest, GenerationEvent,
    Message, PlanRequest, WatchRequestRequest, WatchSnapshotsRequest, apply_response,
    generate_request::Input, generation_event::Kind,
};
use sluice_shared::{level::Level, units};
use tokio::{sync::mpsc::Sender, task::JoinHandle};
use tonic::Status;

use super::event::Event;
use crate::{connection::Daemon, output::Failure, plans};

/// First wait before a lost daemon is looked for again; it doubles up to the longest.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LONGEST: Duration = Duration::from_secs(8);

/// What runs beside the screen.
pub(super) struct Tasks {
    socket: PathBuf,
    events: Sender<Event>,
    connection: JoinHandle<()>,
    own: Option<JoinHandle<()>>,
    watch: Option<JoinHandle<()>>,
    plans: Option<JoinHandle<()>>,
    apply: Option<JoinHandle<()>>,
}

impl Tasks {
    /// Starts to look for the daemon.
    pub(super) fn start(socket: PathBuf, events: Sender<Event>) -> Self {
        let connection = tokio::spawn(keep_connected(socket.clone(), events.clone()));
        Self {
            socket,
            events,
            connection,
            own: None,
            watch: None,
            plans: None,
            apply: None,
        }
    }

    /// Sends a prompt as a conversation of one turn.
    pub(super) fn generate(&mut self, prompt: String) {
        let (socket, events) = (self.socket.clone(), self.events.clone());
        let own = tokio::spawn(async move {
            let message = match generate(socket, prompt, &events).await {
                Ok(()) => return,
                Err(failure) => words(&failure),
            };
            let _ = events.send(Event::OwnFailed(message)).await;
        });
        if let Some(earlier) = self.own.replace(own) {
            earlier.abort();
        }
    }

    /// Follows a request in the place of the one followed so far.
    pub(super) fn watch(&mut self, request_id: Option<u64>) {
        if let Some(earlier) = self.watch.take() {
            earlier.abort();
        }
        let Some(request_id) = request_id else { return };
        let (socket, events) = (self.socket.clone(), self.events.clone());
        self.watch = Some(tokio::spawn(async move {
            if let Err(failure) = watch(socket, request_id, &events).await {
                let message = words(&failure);
                let failed = Event::WatchFailed {
                    request_id,
                    message,
                };
                let _ = events.send(failed).await;
            }
        }));
    }

    /// Asks what each level would lead to, in the place of an earlier asking.
    pub(super) fn ask_plans(&mut self) {
        let (socket, events) = (self.socket.clone(), self.events.clone());
        let plans = tokio::spawn(async move {
            if let Err(failure) = ask_plans(socket, &events).await {
                let _ = events.send(Event::Told(words(&failure))).await;
            }
        });
        if let Some(earlier) = self.plans.replace(plans) {
            earlier.abort();
        }
    }

    /// Puts a level in force. The daemon lets it take over from one that is on its way.
    pub(super) fn apply(&mut self, level: Level) {
        let (socket, events) = (self.socket.clone(), self.events.clone());
        let apply = tokio::spawn(async move {
            let told = match apply(socket, level, &events).await {
                Ok(told) => told,
                Err(failure) => words(&failure),
            };
            let _ = events.send(Event::Converting(None)).await;
            let _ = events.send(Event::Told(told)).await;
        });
        if let Some(earlier) = self.apply.replace(apply) {
            earlier.abort();
        }
    }

    /// Stops a request.
    pub(super) fn cancel(&self, request_id: u64) {
        let (socket, events) = (self.socket.clone(), self.events.clone());
        tokio::spawn(async move {
            let told = match cancel(socket, request_id).await {
                Ok(true) => format!("cancelled request {request_id}"),
                Ok(false) => format!("request {request_id} had already ended"),
                Err(failure) => words(&failure),
            };
            let _ = events.send(Event::Told(told)).await;
        });
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        let others = self.own.iter().chain(&self.watch);
        let others = others.chain(&self.plans).chain(&self.apply);
        for task in others.chain([&self.connection]) {
            task.abort();
        }
    }
}

/// Looks for the daemon and passes its snapshots on, for as long as the dashboard is there.
async fn keep_connected(socket: PathBuf, events: Sender<Event>) {
    let mut wait = RETRY_FIRST;
    loop {
        let cause = match snapshots(&socket, &events, &mut wait).await {
            Ok(()) => "the daemon ended the stream".to_owned(),
            Err(failure) => words(&failure),
        };
        let retry_ms = wait.as_millis().try_into().unwrap_or(u64::MAX);
        if events.send(Event::Lost { cause, retry_ms }).await.is_err() {
            return;
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(RETRY_LONGEST);
    }
}

async fn snapshots(
    socket: &std::path::Path,
    events: &Sender<Event>,
    wait: &mut Duration,
) -> Result<(), Failure> {
    let daemon = Daemon::connect(socket.to_owned()).await?;
    let call = WatchSnapshotsRequest::default();
    let answer = daemon.telemetry().watch_snapshots(call).await;
    let mut stream = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    let mut is_first = true;
    while let Some(answer) = stream.next().await {
        let answer = answer.map_err(|status| daemon.failure(status))?;
        if std::mem::take(&mut is_first) {
            *wait = RETRY_FIRST;
            let _ = events.send(Event::Connected).await;
        }
        if let Some(snapshot) = answer.snapshot
            && events
                .send(Event::Snapshot(Box::new(snapshot)))
                .await
                .is_err()
        {
            break;
        }
    }
    Ok(())
}

async fn generate(socket: PathBuf, prompt: String, events: &Sender<Event>) -> Result<(), Failure> {
    let daemon = Daemon::connect(socket).await?;
    let request = GenerateRequest {
        input: Some(Input::Chat(Chat {
            messages: vec![Message {
                role: "user".into(),
                content: prompt,
            }],
        })),
        ..Default::default()
    };
    let answer = daemon.generation().generate(request).await;
    let stream = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    let stream = stream.map(|answer| answer.map(|answer| answer.event));
    forward(&daemon, stream, events).await
}

async fn watch(socket: PathBuf, request_id: u64, events: &Sender<Event>) -> Result<(), Failure> {
    let daemon = Daemon::connect(socket).await?;
    let call = WatchRequestRequest { request_id };
    let answer = daemon.generation().watch_request(call).await;
    let stream = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    let stream = stream.map(|answer| answer.map(|answer| answer.event));
    forward(&daemon, stream, events).await
}

async fn forward(
    daemon: &Daemon,
    mut stream: impl Stream<Item = Result<Option<GenerationEvent>, Status>> + Unpin,
    events: &Sender<Event>,
) -> Result<(), Failure> {
    while let Some(answer) = stream.next().await {
        let event = answer.map_err(|status| daemon.failure(status))?;
        let Some(kind) = event.and_then(|event| event.kind) else {
            continue;
        };
        let is_last = matches!(kind, Kind::Done(_));
        let event = Event::Request {
            request_id: id(&kind),
            kind: Box::new(kind),
        };
        if events.send(event).await.is_err() || is_last {
            return Ok(());
        }
    }
    Err(Failure::new("the daemon ended the stream without a result"))
}

async fn ask_plans(socket: PathBuf, events: &Sender<Event>) -> Result<(), Failure> {
    let daemon = Daemon::connect(socket).await?;
    let mut client = daemon.optimizer();
    for level in Level::ALL {
        let call = PlanRequest {
            level: Some(level.name().to_owned()),
            ..Default::default()
        };
        let answer = match client.plan(call).await {
            Ok(answer) => match answer.into_inner().plan {
                Some(plan) => Ok(Box::new(plan)),
                None => Err("the daemon's answer has no plan".to_owned()),
            },
            Err(status) => Err(words(&daemon.failure(status))),
        };
        let _ = events.send(Event::Planned { level, answer }).await;
    }
    Ok(())
}

/// Follows a change until it is in force, and says how it turned out.
async fn apply(socket: PathBuf, level: Level, events: &Sender<Event>) -> Result<String, Failure> {
    use apply_response::Kind;

    let daemon = Daemon::connect(socket).await?;
    let call = ApplyRequest {
        level: Some(level.name().to_owned()),
        ..Default::default()
    };
    let answer = daemon.optimizer().apply(call).await;
    let mut stream = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    while let Some(answer) = stream.next().await {
        let event = match answer.map_err(|status| daemon.failure(status))?.kind {
            Some(Kind::Planned(planned)) => Event::Told(prediction(&planned)),
            Some(Kind::Conversion(conversion)) => Event::Converting(Some(format!(
                "{} of {}",
                units::bytes(conversion.done_bytes),
                units::bytes(conversion.total_bytes)
            ))),
            // The snapshots tell the same, for changes that others ask for too.
            Some(Kind::Progress(_)) => Event::Converting(None),
            Some(Kind::Notice(text)) => Event::Told(text),
            Some(Kind::Applied(applied)) => {
                return Ok(format!(
                    "level {} is in force after {}: {} held",
                    applied.plan.map_or(level.to_string(), |plan| plan.level),
                    units::duration_ms(applied.elapsed_ms),
                    units::bytes(applied.device_bytes)
                ));
            }
            None => continue,
        };
        let _ = events.send(event).await;
    }
    Err(Failure::new("the daemon ended the stream without a result"))
}

fn prediction(planned: &ApplyPlanned) -> String {
    let plan = planned.plan.clone().unwrap_or_default();
    let pass = plans::pass_time(&plan);
    let peak = units::bytes(plan.peak_bytes);
    format!(
        "level {}: peak {peak}, a pass {pass}, predicted",
        plan.level
    )
}

async fn cancel(socket: PathBuf, request_id: u64) -> Result<bool, Failure> {
    let daemon = Daemon::connect(socket).await?;
    let call = CancelRequestRequest { request_id };
    let answer = daemon.generation().cancel_request(call).await;
    let answer = answer.map_err(|status| daemon.failure(status))?;
    Ok(answer.into_inner().was_active)
}

fn id(kind: &Kind) -> u64 {
    match kind {
        Kind::Queued(event) => event.request_id,
        Kind::Started(event) => event.request_id,
        Kind::Pass(event) => event.request_id,
        Kind::BlockDone(event) => event.request_id,
        Kind::Notice(event) => event.request_id,
        Kind::Done(event) => event.request_id,
        // It has none yet.
        Kind::Loading(_) => 0,
    }
}

/// A failure in one line.
fn words(failure: &Failure) -> String {
    match failure {
        Failure::Told { message, .. } => message.clone(),
        Failure::Usage(error) => error.to_string(),
        Failure::PipeClosed => "the connection was closed".to_owned(),
    }
}
