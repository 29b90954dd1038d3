//! Late joiners, slow readers, and what is forgotten.

use sluice_proto::v1;
use tonic::Status;

use super::*;
use crate::operations::NOTICES_MAX;
use v1::generation_event::Event;

fn facts() -> RequestDescription {
    RequestDescription {
        kind: v1::OperationKind::Generate,
        prompt_tokens: 4,
        length: 8,
        blocks: 2,
        level: v1::Level::Unspecified,
    }
}

fn requests() -> Requests {
    let changes = ChangeNotifier::default();
    let operations = Arc::new(Operations::new(changes.clone()));
    Requests::new(operations, changes)
}

fn admitted(registry: &Requests) -> Arc<RequestRecord> {
    let record = registry.create(Caller::DAEMON, facts(), "m");
    registry.admit(&record, RequestTicket { id: 9, ahead: 1 }, Weak::new());
    record
}

fn pass(number: u32) -> Event {
    let pass = v1::GenerationPass {
        passes: number,
        ..Default::default()
    };
    Event::PassDone(pass)
}

fn block(block: u32) -> v1::GenerationBlock {
    v1::GenerationBlock {
        block,
        ..Default::default()
    }
}

fn done() -> RequestEnd {
    RequestEnd::Done(None)
}

/// Everything that a reader gets without waiting, in short.
async fn read(reader: &mut RecordReader) -> String {
    let mut words = Vec::new();
    loop {
        let next = tokio::time::timeout(std::time::Duration::from_millis(20), reader.next());
        let word = match next.await {
            Err(_) => break,
            Ok(None) => "end".to_owned(),
            Ok(Some(Err(status))) => status.message().to_owned(),
            Ok(Some(Ok(event))) => match event.event.as_ref().unwrap() {
                Event::Queued(queued) => format!("queued-{}", queued.ahead),
                Event::PassDone(pass) => format!("pass-{}", pass.passes),
                Event::BlockDone(block) => format!("block-{}", block.block),
                Event::Notice(notice) => notice.text.clone(),
                other => format!("{other:?}"),
            },
        };
        let last = word == "end";
        words.push(word);
        if last {
            break;
        }
    }
    words.join(" ")
}

#[tokio::test]
async fn a_slow_reader_misses_pictures_and_nothing_else() {
    let registry = requests();
    let record = admitted(&registry);
    let mut quick = RecordReader::new(record.clone());
    let mut slow = RecordReader::new(record.clone());
    record.start(None);
    assert_eq!(read(&mut quick).await, "queued-1");
    record.picture(pass(1), 1, 1);
    assert_eq!(read(&mut quick).await, "pass-1");
    record.picture(pass(2), 2, 2);
    record.block_done(block(0));
    record.picture(pass(3), 3, 3);
    assert_eq!(read(&mut quick).await, "block-0 pass-3");
    record.block_done(block(1));
    registry.end(&record, None, done());
    assert_eq!(read(&mut quick).await, "block-1 end");
    assert_eq!(read(&mut slow).await, "queued-1 block-0 pass-3 block-1 end");
    // A late joiner, after the end.
    let mut late = RecordReader::new(registry.find(record.id()).unwrap());
    assert_eq!(read(&mut late).await, "queued-1 block-0 pass-3 block-1 end");
}

#[tokio::test]
async fn a_failure_is_told_once_and_then_the_stream_ends() {
    let registry = requests();
    let record = admitted(&registry);
    let ending = RequestEnd::Failed(Status::internal("broken"));
    registry.end(&record, None, ending);
    let mut reader = RecordReader::new(record.clone());
    assert_eq!(read(&mut reader).await, "queued-1 broken end");
    let operation = record.operation().to_wire();
    assert_eq!(operation.error.unwrap().message, "broken");
    assert_eq!(registry.totals().to_wire().failed_requests, 1);
}

#[tokio::test]
async fn a_step_of_another_operation_is_forgotten_at_its_end() {
    let registry = requests();
    let other = admitted(&registry);
    registry.end(&other, None, done());
    let steps = (0..ENDED_MAX).map(|_| admitted(&registry));
    for step in steps {
        step.is_a_step();
        assert_eq!(registry.active().len(), 1);
        let mut reader = RecordReader::new(step.clone());
        registry.end(&step, None, done());
        assert_eq!(read(&mut reader).await, "queued-1 end");
        assert!(registry.find(step.id()).is_none());
    }
    assert_eq!(registry.all().len(), 1);
    assert!(registry.find(other.id()).is_some());
}

#[tokio::test]
async fn notices_are_bounded() {
    let registry = requests();
    let record = admitted(&registry);
    for _ in 0..100 {
        record.notice("n");
    }
    let words = read(&mut RecordReader::new(record)).await;
    assert_eq!(words.matches('n').count(), NOTICES_MAX);
}

#[test]
fn the_earliest_ended_are_forgotten_and_the_active_are_not() {
    let registry = requests();
    let active = admitted(&registry);
    for _ in 0..ENDED_MAX + 3 {
        let record = admitted(&registry);
        registry.end(&record, None, done());
    }
    let ids: Vec<_> = registry.all().iter().map(|record| record.id()).collect();
    assert_eq!(ids.len(), ENDED_MAX + 1);
    assert_eq!(ids[..2], [active.id(), 5]);
    // The list of operations forgets them, too.
    assert_eq!(registry.operations.all().len(), ENDED_MAX + 1);
    assert_eq!(registry.active().len(), 1);
}

#[test]
fn many_requests_push_no_load_out_of_the_list() {
    let registry = requests();
    let description = OperationDescription {
        kind: v1::OperationKind::Load,
        ..Default::default()
    };
    let load = registry.operations.begin(description, None).unwrap();
    drop(load);
    for _ in 0..2 * ENDED_MAX {
        let record = admitted(&registry);
        registry.end(&record, None, done());
    }
    assert!(registry.operations.find(1).is_ok());
    assert_eq!(registry.operations.all().len(), ENDED_MAX + 1);
}

#[test]
fn large_ended_requests_are_forgotten_sooner() {
    let registry = requests();
    for _ in 0..5 {
        let record = admitted(&registry);
        let large = v1::GenerationNotice {
            text: "x".repeat(ENDED_BYTES_MAX / 4),
            ..Default::default()
        };
        registry.end(&record, Some(Event::Notice(large)), done());
    }
    assert_eq!(registry.all().len(), 3);
}

#[test]
fn a_request_that_ends_before_it_is_admitted_is_settled() {
    let registry = requests();
    for _ in 0..ENDED_MAX + 1 {
        let record = registry.create(Caller::DAEMON, facts(), "m");
        registry.end(&record, None, done());
        registry.admit(&record, RequestTicket { id: 1, ahead: 0 }, Weak::new());
    }
    assert_eq!(registry.all().len(), ENDED_MAX);
}

#[test]
fn what_is_counted_of_a_request_is_what_it_is_counted_out_with() {
    let registry = requests();
    for _ in 0..2 * ENDED_MAX {
        let record = registry.create(Caller::DAEMON, facts(), "m");
        registry.expect(&record, 0);
        registry.end(&record, None, done());
        // Told late how many are ahead, which takes more bytes to say.
        let ticket = RequestTicket {
            id: 1,
            ahead: 1 << 20,
        };
        registry.admit(&record, ticket, Weak::new());
    }
    assert_eq!(registry.all().len(), ENDED_MAX);
}

#[tokio::test]
async fn idle_waits_for_the_last_one() {
    let registry = Arc::new(requests());
    let record = admitted(&registry);
    let waiting = tokio::spawn({
        let registry = registry.clone();
        async move { registry.idle().await }
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    registry.end(&record, None, done());
    waiting.await.unwrap();
}
