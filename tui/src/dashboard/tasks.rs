//! The dashboard's calls to the daemon. Each runs in a task of its own and reports by events.

mod jobs;
mod levels;
mod memory;
mod models;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use futures_util::{Stream, StreamExt};
use sluice_proto::{
    client::when_there_is_room,
    operations::OperationResponse,
    v1::{
        ApplyRequest, GenerateRequest, GenerationEvent, ListOperationsRequest, RestoreRequest,
        UnloadModelRequest, WatchGenerationRequest, WatchSnapshotsRequest, generation_event,
    },
};
use sluice_shared::units;
use tokio::{sync::mpsc::Sender, task::JoinHandle, time::Instant};
use tonic::{Response, Status, Streaming};

use super::{
    FRAME_OF_DATA,
    event::{Effect, Event},
    files,
};
use crate::{connection::DaemonConnection, json::read::RunBounds, operations, output::Failure};

/// First wait before reconnecting; it doubles up to [`RETRY_LONGEST`].
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LONGEST: Duration = Duration::from_secs(8);
/// How long a socket that was read empty is not polled: less than a frame, so that small messages are read together.
const REST: Duration = Duration::from_millis(20);
/// Passes taken per frame: 300 a second, far more than anybody can follow.
const PASSES_A_FRAME: u32 = 20;
/// Interval of snapshots: often enough that streaming is seen moving.
const SNAPSHOT_MS: u32 = 250;

/// Tasks that run beside the screen. There is one of each kind, and a later one replaces the earlier; only requests of ours
/// run in parallel.
pub(super) struct Tasks {
    socket: PathBuf,
    events: Sender<Event>,
    connection: Option<JoinHandle<()>>,
    /// Requests of ours that wait or run, by their serial numbers.
    own: BTreeMap<u64, JoinHandle<()>>,
    watch: Option<JoinHandle<()>>,
    plans: Option<JoinHandle<()>>,
    changes: u64,
    measure: Option<JoinHandle<()>>,
}

impl Tasks {
    /// Starts to look for the daemon.
    pub(super) fn start(socket: PathBuf, events: Sender<Event>) -> Self {
        let mut tasks = Self::alone(socket.clone(), events.clone());
        tasks.connection = Some(tokio::spawn(keep_connected(socket, events)));
        tasks
    }

    /// Looks for no daemon.
    pub(super) fn alone(socket: PathBuf, events: Sender<Event>) -> Self {
        Self {
            socket,
            events,
            connection: None,
            own: BTreeMap::new(),
            watch: None,
            plans: None,
            changes: 0,
            measure: None,
        }
    }

    /// Does what the update asks for.
    pub(super) fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Generate { serial, request } => {
                let failed = move |message| Event::OwnFailed { serial, message };
                let own = self.spawn(failed, move |daemon, events| async move {
                    generate(daemon, serial, *request, events).await
                });
                self.own.retain(|_, own| !own.is_finished());
                self.own.insert(serial, own);
            }
            Effect::DropOwn(serial) => {
                if let Some(own) = self.own.remove(&serial) {
                    // Dropping the stream is the only way to cancel a request that has no id yet.
                    own.abort();
                }
            }
            Effect::ListOperations => {
                // An empty list on failure: rows that left the snapshot stay listed, with an end that is not known.
                self.spawn(|_| Event::Operations(Vec::new()), list_operations);
            }
            Effect::Watch(request_id) => self.watch(request_id),
            Effect::AskPlans(asked, options) => {
                let plans = self.spawn(Event::Failed, move |daemon, events| async move {
                    levels::ask_plans(daemon, &asked, options, events).await
                });
                replace(&mut self.plans, plans);
            }
            Effect::AskPlan { serial, options } => {
                let failed = move |message| Event::Predicted {
                    serial,
                    answer: Err(message),
                };
                self.spawn(failed, move |daemon, events| async move {
                    let answer = levels::ask_plan(&daemon, options).await?;
                    let answer = Ok(Box::new(answer));
                    let _ = events.send(Event::Predicted { serial, answer }).await;
                    Ok(())
                });
            }
            Effect::Apply(options) => {
                self.change(move |daemon| async move {
                    let request = ApplyRequest::from(options);
                    let answer = daemon.optimizer().apply(request).await;
                    answer.map_err(|status| daemon.failure(status))
                });
            }
            Effect::Restore => self.change(|daemon| async move {
                let answer = daemon.optimizer().restore(RestoreRequest::default()).await;
                answer.map_err(|status| daemon.failure(status))
            }),
            Effect::Measure(level) => {
                let failed = |message| Event::Measured(Err(message));
                let measure = self.spawn(failed, move |daemon, events| async move {
                    levels::measure(daemon, level, events).await
                });
                replace(&mut self.measure, measure);
            }
            Effect::StopMeasuring => {
                if let Some(measure) = self.measure.take() {
                    // The daemon cancels a measurement whose caller hangs up.
                    measure.abort();
                }
                let events = self.events.clone();
                tokio::spawn(async move {
                    // The aborted task reports nothing any more, so its end is reported in its place.
                    let _ = events.send(Event::MeasuringStopped).await;
                });
            }
            Effect::Load(name) => {
                self.spawn(Event::Failed, move |daemon, events| async move {
                    models::load(daemon, name, events).await
                });
            }
            Effect::ListModels => {
                self.spawn(Event::Failed, models::list);
            }
            Effect::ListFidelity => {
                self.spawn(Event::Failed, levels::list_fidelity);
            }
            Effect::ListMixes => {
                self.spawn(Event::Failed, levels::list_mixes);
            }
            Effect::Pull(name) => {
                self.spawn(Event::Failed, move |daemon, events| async move {
                    models::pull(daemon, name, events).await
                });
            }
            Effect::Compress { name, output } => {
                self.spawn(Event::Failed, move |daemon, events| async move {
                    jobs::compress(daemon, name, output, events).await
                });
            }
            Effect::Decompress { file, folder } => {
                self.spawn(Event::Failed, move |daemon, events| async move {
                    jobs::decompress(daemon, file, folder, events).await
                });
            }
            Effect::Recall(query) => {
                self.spawn(Event::Failed, move |daemon, events| async move {
                    memory::search(daemon, query, events).await
                });
            }
            Effect::Remember { collection, text } => {
                self.spawn(Event::Failed, move |daemon, events| async move {
                    memory::remember(daemon, collection, text, events).await
                });
            }
            Effect::Verify(file) => {
                self.spawn(Event::Failed, move |daemon, events| async move {
                    jobs::verify(daemon, file, events).await
                });
            }
            Effect::Cancel(operation_id) => self.tell(move |daemon| async move {
                let (was_active, operation) = operations::cancel(&daemon, operation_id).await?;
                let name = operations::name(&operation);
                Ok(match was_active {
                    true => format!("cancelling {name}"),
                    false => format!("{name} has already finished"),
                })
            }),
            Effect::Unload => self.tell(|daemon| async move {
                let answer = daemon
                    .models()
                    .unload_model(UnloadModelRequest::default())
                    .await;
                let answer = answer.map_err(|status| daemon.failure(status))?;
                let answer = answer.into_inner();
                let freed = answer
                    .device_bytes_before
                    .saturating_sub(answer.device_bytes_after);
                Ok(format!(
                    "unloaded {}: {} freed",
                    answer.model,
                    units::bytes(freed)
                ))
            }),
            Effect::Save(path, recording) => files::save(path, recording, self.events.clone()),
            Effect::Open(path) => files::open(path, self.events.clone()),
            // These need the terminal or the persister, so the event loop carries them out itself.
            Effect::Copy(_)
            | Effect::Mouse(_)
            | Effect::Persist(_)
            | Effect::Suspend
            | Effect::Quit => {}
        }
    }

    /// Calls the daemon in a task of its own, over its own connection; `failed` makes an event of a failure.
    fn spawn<F: Future<Output = Result<(), Failure>> + Send>(
        &self,
        failed: impl FnOnce(String) -> Event + Send + 'static,
        call: impl FnOnce(DaemonConnection, Sender<Event>) -> F + Send + 'static,
    ) -> JoinHandle<()> {
        let (socket, events) = (self.socket.clone(), self.events.clone());
        tokio::spawn(async move {
            let result = match DaemonConnection::connect_at_rest(socket, REST).await {
                Ok(daemon) => call(daemon, events.clone()).await,
                Err(failure) => Err(failure),
            };
            if let Err(failure) = result {
                let _ = events.send(failed(words(&failure))).await;
            }
        })
    }

    /// The same for a unary call whose answer is shown as a message.
    fn tell<F: Future<Output = Result<String, Failure>> + Send>(
        &self,
        call: impl FnOnce(DaemonConnection) -> F + Send + 'static,
    ) {
        self.spawn(Event::Failed, move |daemon, events| async move {
            let told = call(daemon).await?;
            let _ = events.send(Event::Succeeded(told)).await;
            Ok(())
        });
    }

    /// Follows a change to its end. An earlier change is still followed: the daemon ends it when another replaces it, and the
    /// later one may yet be refused.
    fn change<R: OperationResponse, F>(
        &mut self,
        call: impl FnOnce(DaemonConnection) -> F + Send + 'static,
    ) where
        F: Future<Output = Result<Response<Streaming<R>>, Failure>> + Send,
    {
        self.changes += 1;
        let serial = self.changes;
        let failed = move |message| Event::ApplyFailed { serial, message };
        self.spawn(failed, move |daemon, events| async move {
            let stream = call(daemon.clone()).await?.into_inner();
            levels::change(&daemon, serial, stream, &events).await
        });
    }

    /// Follows a request instead of the one followed so far; `None` follows none.
    fn watch(&mut self, request_id: Option<u64>) {
        if let Some(earlier) = self.watch.take() {
            earlier.abort();
        }
        let Some(request_id) = request_id else { return };
        let failed = move |message| Event::WatchFailed {
            request_id,
            message,
        };
        self.watch = Some(self.spawn(failed, move |daemon, events| async move {
            watch(daemon, request_id, events).await
        }));
    }
}

/// Limits how many messages are taken from a stream per frame. The daemon skips pictures for slow readers, so nothing is lost
/// by reading slowly, and each message read would wake the event loop.
struct Pace {
    a_frame: u32,
    taken: u32,
    begun: Instant,
}

impl Pace {
    fn new(a_frame: u32) -> Self {
        Self {
            a_frame,
            taken: 0,
            begun: Instant::now(),
        }
    }

    /// Counts one message; waits for the next frame if this frame's messages are taken.
    async fn wait_for_frame(&mut self) {
        self.taken += 1;
        if self.taken >= self.a_frame {
            tokio::time::sleep_until(self.begun + FRAME_OF_DATA).await;
            self.begun = Instant::now();
            self.taken = 0;
        }
    }
}

fn replace(place: &mut Option<JoinHandle<()>>, task: JoinHandle<()>) {
    if let Some(earlier) = place.replace(task) {
        earlier.abort();
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        let all = [&self.connection, &self.watch, &self.plans, &self.measure];
        for task in all.into_iter().flatten().chain(self.own.values()) {
            task.abort();
        }
    }
}

/// Connects to the daemon and forwards its snapshots; reconnects until the dashboard is gone.
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
    let daemon = DaemonConnection::connect_at_rest(socket.to_owned(), REST).await?;
    let call = WatchSnapshotsRequest {
        interval_ms: Some(SNAPSHOT_MS),
    };
    let answer = daemon.telemetry().watch_snapshots(call).await;
    let mut stream = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    let mut is_first = true;
    let mut pace = Pace::new(1);
    while let Some(answer) = stream.next().await {
        pace.wait_for_frame().await;
        let answer = answer.map_err(|status| daemon.failure(status))?;
        if std::mem::take(&mut is_first) {
            // Only a snapshot shows that a daemon serves: a socket may accept connections and then answer nothing.
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

async fn list_operations(daemon: DaemonConnection, events: Sender<Event>) -> Result<(), Failure> {
    let request = ListOperationsRequest::default();
    let answer = daemon.operations().list_operations(request).await;
    let answer = answer.map_err(|status| daemon.failure(status))?;
    let operations = answer.into_inner().operations;
    let _ = events.send(Event::Operations(operations)).await;
    Ok(())
}

async fn generate(
    daemon: DaemonConnection,
    serial: u64,
    request: GenerateRequest,
    events: Sender<Event>,
) -> Result<(), Failure> {
    let call = || {
        let (mut client, request) = (daemon.generation(), request.clone());
        async move { client.generate(request).await }
    };
    let answer = when_there_is_room(call).await;
    let stream = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    let stream = stream.map(|answer| answer.map(|answer| answer.event));
    let event = |request_id, kind| Event::Own {
        serial,
        request_id,
        kind,
    };
    forward(&daemon, stream, event, &events).await
}

async fn watch(
    daemon: DaemonConnection,
    request_id: u64,
    events: Sender<Event>,
) -> Result<(), Failure> {
    let call = WatchGenerationRequest {
        operation_id: request_id,
    };
    let answer = daemon.generation().watch_generation(call).await;
    let stream = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    let stream = stream.map(|answer| answer.map(|answer| answer.event));
    let event = |request_id, kind| Event::Request { request_id, kind };
    forward(&daemon, stream, event, &events).await
}

async fn forward(
    daemon: &DaemonConnection,
    mut stream: impl Stream<Item = Result<Option<GenerationEvent>, Status>> + Unpin,
    event: impl Fn(u64, Box<generation_event::Event>) -> Event,
    events: &Sender<Event>,
) -> Result<(), Failure> {
    let mut pace = Pace::new(PASSES_A_FRAME);
    // The same bounds as for saved runs: a faulty daemon must not fill the client's memory.
    let mut bounds = RunBounds::default();
    while let Some(answer) = stream.next().await {
        let answer = answer.map_err(|status| daemon.failure(status))?;
        let Some(kind) = answer.and_then(|event| event.event) else {
            continue;
        };
        let refused = |problem| Failure::new(format!("the daemon sent too much: {problem}"));
        bounds.count(&kind).map_err(refused)?;
        pace.wait_for_frame().await;
        let is_last = matches!(kind, generation_event::Event::Done(_));
        let event = event(id(&kind), Box::new(kind));
        if events.send(event).await.is_err() || is_last {
            return Ok(());
        }
    }
    Err(operations::no_result())
}

fn id(kind: &generation_event::Event) -> u64 {
    use generation_event::Event;
    match kind {
        Event::Queued(event) => event.request_id,
        Event::Started(event) => event.request_id,
        Event::PassDone(event) => event.request_id,
        Event::BlockDone(event) => event.request_id,
        Event::Notice(event) => event.request_id,
        Event::Thought(event) => event.request_id,
        Event::Placed(event) => event.request_id,
        Event::Done(event) => event.request_id,
        // A request that waits for a load has no id yet; events of one without an id are matched by their serial.
        Event::Loading(_) => 0,
    }
}

/// The failure's message without its hint, for the one line that the screen has.
fn words(failure: &Failure) -> String {
    match failure {
        Failure::Reported { message, .. } => message.clone(),
        Failure::Usage(error) => error.to_string(),
        Failure::PipeClosed => "the connection was closed".to_owned(),
    }
}
