//! Requests as objects: cancelled, refused, timed out, watched.

use std::time::Duration;

use rustix::process::Signal;
use sluice_proto::{
    client::CallError,
    v1::{self, generation_event::Event},
};
use tonic::{Code, Request};

use crate::support::{Daemon, checkpoints, done, long, rest, until, within};

async fn slow(arguments: &[&str]) -> Daemon {
    let arguments = [&["--threads", "1"], arguments].concat();
    Daemon::with_model(checkpoints::slow(), &arguments).await
}

#[tokio::test]
async fn a_running_request_is_cancelled_by_its_id() {
    let daemon = slow(&[]).await;
    let (id, mut stream) = daemon.running(long()).await;
    assert!(daemon.cancel(id).await.unwrap());
    let events = rest(&mut stream).await.unwrap();
    let done = done(&events);
    assert_eq!(done.finish_reason(), v1::FinishReason::Cancelled);
    assert!(
        done.token_ids.contains(&2040),
        "open positions hold the mask's id"
    );
    assert!(done.passes < 200, "{} passes", done.passes);
    assert_eq!(
        daemon.request(id).await.state(),
        v1::OperationState::Cancelled
    );

    assert!(!daemon.cancel(id).await.unwrap());
    let error = daemon.cancel(99).await.unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    let totals = daemon.snapshot().await.totals.unwrap();
    assert_eq!((totals.cancelled_requests, totals.done_requests), (1, 0));
}

#[tokio::test]
async fn a_lost_client_stops_its_work() {
    let daemon = slow(&[]).await;
    let (id, stream) = daemon.running(long()).await;
    drop(stream);
    until("the cancel", || async {
        daemon.request(id).await.state() == v1::OperationState::Cancelled
    })
    .await;
    let passes = daemon.request(id).await.request_detail().passes;
    assert!(passes < 100, "{passes} passes ran");
    // Not a word in the log that someone should look at.
    let log = daemon.log();
    assert!(!log.contains("ERROR") && !log.contains("WARN"), "{log}");
}

#[tokio::test]
async fn a_full_queue_refuses_at_once() {
    let daemon = slow(&["--queue", "1", "--parallel", "1"]).await;
    let (_, _running) = daemon.running(long()).await;
    let mut waiting = daemon
        .generation()
        .await
        .generate(long())
        .await
        .unwrap()
        .into_inner();
    let Some(Event::Queued(queued)) = crate::support::next(&mut waiting).await.unwrap() else {
        panic!("a waiting request says so");
    };
    assert_eq!(queued.ahead, 1);
    let mut hasty = Request::new(long());
    let refuse = "refuse".parse().unwrap();
    hasty.metadata_mut().insert("sluice-when-full", refuse);
    let refused = daemon.generation().await.generate(hasty).await.unwrap_err();
    let error = CallError::from(refused);
    assert_eq!(error.code, Code::ResourceExhausted);
    assert_eq!(error.reason.as_deref(), Some("QUEUE_FULL"));
    let hint = error.hint.unwrap();
    assert!(hint.contains("--queue"), "{hint}");

    let snapshot = daemon.snapshot().await;
    let queue = snapshot.queue.unwrap();
    assert_eq!((queue.capacity, queue.waiting, queue.running), (1, 1, 1));
    assert_eq!(snapshot.totals.as_ref().unwrap().refused_requests, 1);
    let states: Vec<_> = snapshot.requests().map(v1::Operation::state).collect();
    assert_eq!(
        states,
        [v1::OperationState::Running, v1::OperationState::Queued]
    );

    // A waiting request that is cancelled makes room at once.
    daemon.cancel(queued.request_id).await.unwrap();
    let events = rest(&mut waiting).await.unwrap();
    assert_eq!(done(&events).token_ids, [2040; 256]);
    assert!(daemon.generation().await.generate(long()).await.is_ok());
}

#[tokio::test]
async fn a_deadline_holds_for_the_whole_stream() {
    let daemon = slow(&[]).await;
    let mut request = Request::new(long());
    request.set_timeout(Duration::from_millis(700));
    let mut stream = daemon
        .generation()
        .await
        .generate(request)
        .await
        .unwrap()
        .into_inner();
    let error = rest(&mut stream).await.unwrap_err();
    assert_eq!(error.code, Code::DeadlineExceeded, "{error:?}");
    assert_eq!(error.reason.as_deref(), Some("DEADLINE_EXCEEDED"));
    until("the cancel", || async {
        daemon.request(2).await.state() == v1::OperationState::Cancelled
    })
    .await;
}

#[tokio::test]
async fn a_late_joiner_gets_what_it_missed() {
    let daemon = slow(&[]).await;
    let (id, mut stream) = daemon.running(long()).await;
    let watch = v1::WatchGenerationRequest { operation_id: id };
    let mut client = daemon.generation().await;
    let mut late = client.watch_generation(watch).await.unwrap().into_inner();
    let mut kinds = Vec::new();
    while kinds.len() < 3 {
        let message = within("an event", late.message()).await.unwrap().unwrap();
        kinds.push(message.event.unwrap().event.unwrap());
    }
    assert!(
        matches!(
            &kinds[..],
            [Event::Queued(_), Event::Started(_), Event::PassDone(_)]
        ),
        "{kinds:?}"
    );
    // A watcher that goes away takes nothing with it.
    drop(late);
    let before = daemon.request(id).await.request_detail().passes;
    until("more passes", || async {
        daemon.request(id).await.request_detail().passes > before + 1
    })
    .await;

    daemon.cancel(id).await.unwrap();
    rest(&mut stream).await.unwrap();
    // After the end too, from the first event to the last.
    let mut after = client.watch_generation(watch).await.unwrap().into_inner();
    let mut kinds = Vec::new();
    while let Some(message) = within("an event", after.message()).await.unwrap() {
        kinds.push(message.event.unwrap().event.unwrap());
    }
    assert!(matches!(kinds.first(), Some(Event::Queued(_))));
    assert!(matches!(kinds.last(), Some(Event::Done(_))));
    assert_eq!(
        kinds
            .iter()
            .filter(|kind| matches!(kind, Event::PassDone(_)))
            .count(),
        1
    );
}

#[tokio::test]
async fn a_reader_that_stops_reading_delays_nobody() {
    let mut daemon = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &[]).await;
    let request = || crate::support::tokens(&[1, 2, 3], 200);
    let unread = daemon.generation().await.generate(request()).await.unwrap();
    let events = crate::support::generate(&daemon, request()).await.unwrap();
    assert_eq!(done(&events).token_ids.len(), 200);
    assert_eq!(daemon.request(2).await.state(), v1::OperationState::Done);
    // The first reader still gets every small event.
    let events = rest(&mut unread.into_inner()).await.unwrap();
    let blocks = events
        .iter()
        .filter(|event| matches!(event, Event::BlockDone(_)));
    assert_eq!(blocks.count(), 200_usize.div_ceil(32));
    daemon.signal(Signal::TERM);
    assert!(daemon.ended().await.0.success());
}
