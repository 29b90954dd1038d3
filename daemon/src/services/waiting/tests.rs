//! The line, with a load that the test holds in its hand.

use std::{
    collections::VecDeque,
    future::ready,
    path::Path,
    sync::Weak,
    time::{Duration, Instant},
};

use futures_util::{FutureExt, StreamExt, stream::BoxStream};
use sluice_engine::{Engine, EngineOptions, runtime::RequestTicket};
use sluice_hub::Access;
use sluice_proto::model::ModelRef;
use sluice_shared::preset::Preset;
use tonic::{Code, Status, metadata::MetadataMap};

use super::*;
use crate::{
    caller::{Caller, User},
    library::Library,
    model_name::ModelName,
    operations::{RunningOperation, progress},
    services::{call_terms::CallTerms, deadline::Deadline, requests},
    settings::ModelSettings,
};

/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(60);

/// With room for two that wait.
fn daemon() -> Arc<Daemon> {
    let options = EngineOptions {
        threads: 1,
        queue_max: 2,
        ..EngineOptions::default()
    };
    let engine = Arc::new(Engine::start(options).unwrap());
    let access = Access::new("http://127.0.0.1:1", None, true).unwrap();
    let library = Library::new(None, None, access, Arc::default());
    let (settings, preset) = (ModelSettings::default(), Preset::default());
    Arc::new(Daemon::new(engine, library, settings, "s".into(), preset))
}

/// A load that ends when the test says so.
fn load(daemon: &Daemon) -> RunningOperation {
    let name = ModelName::at(Path::new("/m/late"));
    daemon.models.load_by_hand(name)
}

/// Stands for the engine: takes requests, which it never begins with, or refuses.
#[derive(Clone, Default)]
struct Taker(Arc<Mutex<Taken>>);

#[derive(Default)]
struct Taken {
    records: Vec<Arc<RequestRecord>>,
    refusals: VecDeque<Failure>,
}

impl Taker {
    /// In the order in which they were taken.
    fn ids(&self) -> Vec<u64> {
        let taken = self.0.lock().unwrap();
        taken.records.iter().map(|record| record.id()).collect()
    }

    /// The next one that comes is not taken.
    fn refuse(&self, error: EngineError) {
        self.0.lock().unwrap().refusals.push_back(error.into());
    }

    fn take(
        &self,
        daemon: &Daemon,
        waited: Option<Arc<RequestRecord>>,
    ) -> Result<Arc<RequestRecord>, Failure> {
        let mut taken = self.0.lock().unwrap();
        if let Some(failure) = taken.refusals.pop_front() {
            return Err(failure);
        }
        let facts = RequestDescription::unknown(OperationKind::Generate);
        let record = waited.unwrap_or_else(|| daemon.requests.create(Caller::DAEMON, facts, "m"));
        daemon
            .requests
            .admit(&record, RequestTicket { id: 1, ahead: 0 }, Weak::new());
        taken.records.push(record.clone());
        Ok(record)
    }

    /// A call, to which the request belongs.
    async fn ask(
        &self,
        daemon: &Arc<Daemon>,
        deadline: Option<Deadline>,
    ) -> Result<Answers, Status> {
        let terms = CallTerms {
            caller: Caller::DAEMON,
            deadline,
            waits: true,
            is_step: false,
            message: None,
        };
        self.ask_by(daemon, terms).await
    }

    async fn ask_by(&self, daemon: &Arc<Daemon>, terms: CallTerms) -> Result<Answers, Status> {
        let taker = self.clone();
        let make = move |daemon: Arc<Daemon>, _, waited| ready(taker.take(&daemon, waited));
        let kind = (OperationKind::Generate, Ok(ModelRef::Loaded));
        let request = requests::admit(daemon, terms, kind, make).await?;
        Ok(request.events().boxed())
    }
}

/// What a request's caller gets.
type Answers = BoxStream<'static, Result<Arc<v1::GenerationEvent>, Status>>;

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("not for ever")
}

/// Waits for something that is told of as a change.
async fn until(daemon: &Daemon, is_so: impl Fn() -> bool) {
    let mut changes = daemon.changes.subscribe();
    within(async {
        while !is_so() {
            changes.changed().await.unwrap();
        }
    })
    .await;
}

async fn next(answers: &mut Answers) -> Event {
    let event = within(answers.next()).await.unwrap().unwrap();
    event.event.clone().unwrap()
}

/// The status that a request's stream ends with.
async fn end(answers: &mut Answers) -> Status {
    loop {
        match within(answers.next()).await {
            Some(Ok(_)) => {}
            Some(Err(status)) => return status,
            None => panic!("it ended well"),
        }
    }
}

/// Its number and place, and that it is told why it waits.
async fn told(answers: &mut Answers) -> v1::GenerationQueued {
    let Event::Queued(queued) = next(answers).await else {
        panic!("it has a number first")
    };
    let Event::Notice(notice) = next(answers).await else {
        panic!("it hears why it waits")
    };
    assert_eq!(notice.text, "waiting for the model late to load");
    let Event::Loading(loading) = next(answers).await else {
        panic!("it hears how far the model is")
    };
    assert_eq!(loading.model, "late");
    queued
}

#[tokio::test]
async fn requests_wait_for_the_load_and_are_made_in_order() {
    let (daemon, taker) = (daemon(), Taker::default());
    let load = load(&daemon);
    let mut first = taker.ask(&daemon, None).await.unwrap();
    let mut second = taker.ask(&daemon, None).await.unwrap();
    let (one, two) = (told(&mut first).await, told(&mut second).await);
    assert_eq!((one.ahead, two.ahead), (0, 1));
    assert_eq!(daemon.waiting_for_model(), 2);
    let listed = daemon
        .requests
        .find(one.request_id)
        .unwrap()
        .operation()
        .to_wire();
    assert_eq!(listed.state(), v1::OperationState::Queued);

    let (loading, bytes) = (v1::OperationStage::Loading, v1::ProgressUnit::Bytes);
    load.progress(progress(loading, bytes, 3, 4));
    let Event::Loading(loading) = next(&mut first).await else {
        panic!("it hears how far the model is")
    };
    assert_eq!((loading.loaded_bytes, loading.total_bytes), (3, Some(4)));
    assert!(taker.ids().is_empty());

    // One to whom the engine says that its queue is full keeps its place.
    taker.refuse(EngineError::QueueFull { capacity: 2 });
    daemon.models.end_by_hand(&load);
    until(&daemon, || daemon.waiting_for_model() == 0).await;
    assert_eq!(taker.ids(), [one.request_id, two.request_id]);
}

#[tokio::test]
async fn who_no_longer_wants_it_leaves_the_line_at_once() {
    let (daemon, taker) = (daemon(), Taker::default());
    let _load = load(&daemon);
    let mut first = taker.ask(&daemon, None).await.unwrap();
    let mut second = taker.ask(&daemon, None).await.unwrap();
    let (one, two) = (told(&mut first).await, told(&mut second).await);

    let record = daemon.requests.find(one.request_id).unwrap();
    assert!(record.cancel());
    let Event::Done(done) = next(&mut first).await else {
        panic!("it ends")
    };
    assert_eq!(done.finish_reason(), v1::FinishReason::Cancelled);
    until(&daemon, || daemon.waiting_for_model() == 1).await;

    // Its caller goes away.
    drop(second);
    until(&daemon, || daemon.waiting_for_model() == 0).await;
    let gone = daemon.requests.find(two.request_id).unwrap();
    assert_eq!(
        gone.operation().to_wire().state(),
        v1::OperationState::Cancelled
    );

    // Its time is over.
    let mut metadata = MetadataMap::new();
    metadata.insert("grpc-timeout", "200m".parse().unwrap());
    let deadline = Deadline::of(&metadata);
    let mut hasty = taker.ask(&daemon, deadline).await.unwrap();
    assert_eq!(end(&mut hasty).await.code(), Code::DeadlineExceeded);
    until(&daemon, || daemon.waiting_for_model() == 0).await;
    assert!(taker.ids().is_empty());
}

#[tokio::test]
async fn a_model_that_does_not_come_ends_those_who_wait() {
    let (daemon, taker) = (daemon(), Taker::default());
    let load = load(&daemon);
    let mut answers = taker.ask(&daemon, None).await.unwrap();
    told(&mut answers).await;
    taker.refuse(EngineError::NoModel);
    daemon.models.end_by_hand(&load);
    assert_eq!(end(&mut answers).await.code(), Code::FailedPrecondition);
    assert_eq!(daemon.requests.totals().to_wire().failed_requests, 1);
}

#[tokio::test]
async fn nobody_waits_for_a_model_when_the_daemon_ends() {
    let (daemon, taker) = (daemon(), Taker::default());
    let _load = load(&daemon);
    let mut answers = taker.ask(&daemon, None).await.unwrap();
    told(&mut answers).await;
    daemon.drain();
    let status = end(&mut answers).await;
    assert_eq!(status.message(), Failure::Draining.to_string());
    within(daemon.requests.idle()).await;
    assert!(taker.ids().is_empty());
}

#[tokio::test]
async fn what_the_engine_gives_back_waits_for_the_next_model() {
    let (daemon, taker) = (daemon(), Taker::default());
    // A model serves, as far as anybody here knows.
    let mut first = taker.ask(&daemon, None).await.unwrap();
    let mut second = taker.ask(&daemon, None).await.unwrap();
    let (Event::Queued(one), Event::Queued(two)) =
        (next(&mut first).await, next(&mut second).await)
    else {
        panic!("they have numbers first")
    };
    let (one, two) = (one.request_id, two.request_id);
    assert_eq!(taker.ids(), [one, two]);

    let load = load(&daemon);
    // The order in which they come back is not the one in which they came.
    for id in [two, one] {
        daemon.requests.find(id).unwrap().give_back();
        until(&daemon, || daemon.waiting_for_model() > 0).await;
    }
    until(&daemon, || daemon.waiting_for_model() == 2).await;
    let Event::Notice(notice) = next(&mut first).await else {
        panic!("it hears what became of its model")
    };
    assert!(notice.text.starts_with("the model went"), "{}", notice.text);
    let Event::Notice(notice) = next(&mut first).await else {
        panic!("it hears what it waits for")
    };
    assert_eq!(notice.text, "waiting for the model late to load");
    assert!(!daemon.requests.find(one).unwrap().is_admitted());

    // They can be cancelled as all that wait can.
    let record = daemon.requests.find(two).unwrap();
    assert!(record.cancel());
    until(&daemon, || daemon.waiting_for_model() == 1).await;
    assert!(record.has_ended());

    daemon.models.end_by_hand(&load);
    until(&daemon, || daemon.waiting_for_model() == 0).await;
    assert_eq!(taker.ids(), [one, two, one]);
    let record = daemon.requests.find(one).unwrap();
    assert!(record.is_admitted() && !record.has_ended());
}

/// A call of this user that waits where there is no room.
fn by(user: u32) -> CallTerms {
    CallTerms {
        caller: Caller {
            user: User::Token(user.into()),
            connection: user.into(),
            ..Caller::DAEMON
        },
        deadline: None,
        waits: true,
        is_step: false,
        message: None,
    }
}

#[tokio::test]
async fn the_line_is_bounded_and_keeps_places_for_other_users() {
    let (daemon, taker) = (daemon(), Taker::default());
    let load = load(&daemon);
    let mut waiting = Vec::new();
    let refused = loop {
        match taker.ask_by(&daemon, by(1)).await {
            Ok(answers) => waiting.push(answers),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(waiting.len(), WAITING_MAX - WAITING_MAX / 4);
    let mut other = taker.ask_by(&daemon, by(2)).await.unwrap();
    // Only one of the others is ahead: turns go round.
    let other = told(&mut other).await;
    assert_eq!(other.ahead, 1);
    daemon.models.end_by_hand(&load);
    until(&daemon, || daemon.waiting_for_model() == 0).await;
    assert_eq!(taker.ids()[1], other.request_id);
}

#[tokio::test]
async fn who_finds_the_queue_full_waits_unless_it_says_otherwise() {
    let (daemon, taker) = (daemon(), Taker::default());
    let full = || taker.refuse(EngineError::QueueFull { capacity: 2 });
    full();
    let terms = CallTerms {
        waits: false,
        ..by(1)
    };
    let refused = taker.ask_by(&daemon, terms).await.err().unwrap();
    assert_eq!(refused.code(), Code::ResourceExhausted);

    full();
    let mut answers = taker.ask_by(&daemon, by(1)).await.unwrap();
    let Event::Queued(queued) = next(&mut answers).await else {
        panic!("it has a number first")
    };
    let Event::Notice(notice) = next(&mut answers).await else {
        panic!("it hears why it waits")
    };
    assert_eq!(notice.text, "waiting for room in the queue");
    until(&daemon, || daemon.waiting_for_model() == 0).await;
    assert_eq!(taker.ids(), [queued.request_id]);
}

/// What it costs that as many wait as may, over a connection each: to join, at each change while there is no room, and to be
/// admitted.
#[tokio::test]
async fn a_full_line_costs_little() {
    const CHANGES: u32 = 1000;
    let (daemon, taker) = (daemon(), Taker::default());
    let load = load(&daemon);
    let began = Instant::now();
    let mut waiting = Vec::new();
    for user in 0..WAITING_MAX {
        waiting.push(taker.ask_by(&daemon, by(user as u32)).await.unwrap());
    }
    let joined = began.elapsed() / WAITING_MAX as u32;

    // All places for preparing are taken.
    let mut preparing = Vec::new();
    while daemon.preparing.room(by(5000).caller.share()) == Room::Free {
        let share = by(1_000_000 + preparing.len() as u32).caller.share();
        let gate = daemon.preparing.clone();
        let mut entering = Box::pin(async move { gate.enter(share).await });
        let entered = entering.as_mut().now_or_never();
        preparing.push((entering, entered));
    }
    daemon.models.end_by_hand(&load);
    let began = Instant::now();
    for _ in 0..CHANGES {
        daemon.changes.tell();
        tokio::task::yield_now().await;
    }
    let change = began.elapsed() / CHANGES;
    assert!(taker.ids().is_empty());

    let began = Instant::now();
    drop(preparing);
    until(&daemon, || daemon.waiting_for_model() == 0).await;
    let turn = began.elapsed() / WAITING_MAX as u32;
    println!("{WAITING_MAX} connections: {joined:?} to join, {change:?} a change, {turn:?} a turn");
    assert_eq!(taker.ids().len(), WAITING_MAX);
    // Far more than they take, for slow and busy machines.
    assert!(joined.as_millis() < 50 && change.as_millis() < 10 && turn.as_millis() < 50);
}

#[tokio::test]
async fn who_would_not_wait_does_not_go_before_those_who_do() {
    let (daemon, taker) = (daemon(), Taker::default());
    let impatient = CallTerms {
        waits: false,
        ..by(1)
    };
    // One of the same user is in line, and there is room for it.
    let first = u64::MAX;
    daemon
        .line
        .join(&None, first, by(1).caller.share())
        .unwrap();
    for _ in 0..3 {
        let refused = taker
            .ask_by(&daemon, impatient.clone())
            .await
            .err()
            .unwrap();
        assert_eq!(refused.code(), Code::ResourceExhausted);
    }
    assert!(taker.ids().is_empty());
    daemon.line.leave(&None, first, false);
    assert!(taker.ask_by(&daemon, impatient).await.is_ok());
}
