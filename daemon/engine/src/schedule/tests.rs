//! The queue, without a thread that takes from it.

use std::sync::mpsc;

use super::*;
use crate::{
    event::Event,
    request::{ModelId, Score},
};

fn work() -> Work {
    Work::Score(Score {
        model: ModelId(1),
        prompt: vec![1],
        answer: vec![2],
        draws: 1,
        guidance: 0.0,
        seed: 0,
        check_greedy: false,
        think_steps: None,
    })
}

/// No load wants anything in these tests.
enum NoStep {}

impl LoadStep for NoStep {
    fn refuse(self) {
        match self {}
    }
}

type Queue = super::Queue<NoStep>;

fn submit(queue: &Queue) -> (Result<RequestTicket, EngineError>, mpsc::Receiver<Event>) {
    let (send, receive) = mpsc::channel();
    let sink = Box::new(move |event| drop(send.send(event)));
    (queue.submit(ShareKey::default(), work(), sink), receive)
}

#[test]
fn a_full_queue_refuses_and_a_cancelled_place_is_free_again() {
    let queue = Queue::new(1);
    let (first, _events) = submit(&queue);
    assert_eq!(first.unwrap().ahead, 0);
    let Command::Run(running, _) = queue.next() else {
        panic!("a request waits")
    };
    let (second, second_events) = submit(&queue);
    assert_eq!(second.as_ref().unwrap().ahead, 1);
    let (third, _events) = submit(&queue);
    assert!(matches!(third, Err(EngineError::QueueFull { capacity: 1 })));

    queue.cancel(second.unwrap().id);
    assert!(matches!(
        second_events.recv().unwrap(),
        Event::Finished(Ok(Outcome::Cancelled))
    ));
    assert!(submit(&queue).0.is_ok());

    queue.cancel(running.id);
    assert!(running.cancel.load(Ordering::Relaxed));
}

#[test]
fn those_who_run_are_stopped_when_nobody_wants_any_of_them() {
    let queue = Queue::new(4);
    let (first, _events) = submit(&queue);
    let (second, _events) = submit(&queue);
    let (_third, _events) = submit(&queue);
    let Command::Run(_, stop) = queue.next() else {
        panic!("a request waits")
    };
    let stops = || stop.load(Ordering::Relaxed);
    let joined = queue.join(&queue.front().unwrap()).unwrap();
    assert_eq!((queue.snapshot().running, queue.snapshot().waiting), (2, 1));
    queue.cancel(first.unwrap().id);
    assert!(!stops());
    queue.cancel(second.unwrap().id);
    assert!(stops());
    queue.join(&queue.front().unwrap()).unwrap();
    assert!(!stops(), "somebody wants the one that joined");
    queue.end(joined.id);
    assert!(!stops() && queue.front().is_none());
    queue.stop();
    assert!(stops());
}

#[test]
fn one_that_was_put_back_is_the_next_again() {
    let queue = Queue::new(4);
    let (_, _events) = submit(&queue);
    let (second, events) = submit(&queue);
    drop(queue.next());
    let joined = queue.join(&queue.front().unwrap()).unwrap();
    queue.put_back(joined);
    assert_eq!(queue.snapshot().running, 1);
    let front = queue.front().unwrap();
    assert_eq!(front.id, second.as_ref().unwrap().id);
    let joined = queue.join(&front).unwrap();
    queue.cancel(second.unwrap().id);
    queue.put_back(joined);
    assert!(matches!(
        events.recv().unwrap(),
        Event::Finished(Ok(Outcome::Cancelled))
    ));
    assert!(queue.front().is_none());
}

fn submit_by(queue: &Queue, user: u64) -> RequestTicket {
    let share = ShareKey {
        user,
        connection: user,
    };
    queue.submit(share, work(), Box::new(drop)).unwrap()
}

/// A change to this budget; what it hears comes out of the channel.
fn apply(queue: &Queue, change: PlanOptions) -> (PlanOptions, mpsc::Receiver<ApplyEvent>) {
    let (send, receive) = mpsc::channel();
    let apply = ApplyCommand {
        change,
        merged: change,
        report: Box::new(move |event| drop(send.send(event))),
    };
    let Ok(merged) = queue.apply(apply) else {
        panic!("the queue is open")
    };
    (merged, receive)
}

#[test]
fn one_user_with_many_requests_does_not_keep_others_out() {
    let queue = Queue::new(16);
    let first = submit_by(&queue, 1);
    drop(queue.next());
    let many: Vec<_> = (0..12).map(|_| submit_by(&queue, 1)).collect();
    assert_eq!(many[11].ahead, 12);
    let of = |user, connection| ShareKey { user, connection };
    let refused = queue.submit(of(1, 1), work(), Box::new(drop));
    assert!(matches!(refused, Err(EngineError::QueueFull { .. })));
    // Neither another connection of the user's, nor another user.
    assert_eq!(queue.room(of(1, 1)), Room::NotForConnection);
    assert_eq!(
        [of(1, 2), of(2, 1)].map(|share| queue.room(share)),
        [Room::Free; 2]
    );
    // User 1 has just had a turn, so user 2 has the next.
    let other = submit_by(&queue, 2);
    assert_eq!(other.ahead, 1);
    queue.end(first.id);
    assert_eq!(queue.front().unwrap().id, other.id);
}

#[test]
fn changes_that_have_not_begun_are_one() {
    let queue = Queue::new(4);
    let budget = |bytes| PlanOptions {
        budget: Some(sluice_shared::options::Budget::Bytes(bytes)),
        ..PlanOptions::default()
    };
    let level = PlanOptions {
        level: Some(sluice_shared::level::Level::Moderate),
        ..PlanOptions::default()
    };
    let (_, first) = apply(&queue, level);
    let superseded = |events: mpsc::Receiver<ApplyEvent>| {
        let event = events.recv().unwrap();
        matches!(event, ApplyEvent::Finished(Err(EngineError::Superseded)))
    };
    let mut last = first;
    for bytes in 0..1000 {
        let (merged, events) = apply(&queue, budget(bytes));
        assert_eq!(merged, budget(bytes).over(level));
        assert!(superseded(std::mem::replace(&mut last, events)));
    }
    let Command::Apply(begun) = queue.next() else {
        panic!("a change waits")
    };
    assert_eq!(
        (begun.change, begun.merged.level),
        (budget(999), level.level)
    );
    assert!(queue.try_next().is_none());
}

/// Lets the last change have begun just now, or [`CHANGE_INTERVAL`] ago, however long this test takes.
fn last_change_began(queue: &Queue, is_long_ago: bool) {
    let last = &mut queue.state().last_change;
    assert!(last.is_some(), "a change has begun");
    let now = Instant::now();
    *last = match is_long_ago {
        true => now.checked_sub(CHANGE_INTERVAL),
        // What lies ahead counts as now, for as long as a test may take.
        false => now.checked_add(Duration::from_secs(3600)),
    };
}

#[test]
fn changes_leave_turns_to_requests() {
    let queue = Queue::new(4);
    let change = PlanOptions::default();
    let (_, _events) = apply(&queue, change);
    let waiting = submit_by(&queue, 1);
    // The first comes before requests, as always.
    assert!(matches!(queue.next(), Command::Apply(_)));
    last_change_began(&queue, false);
    let (_, _events) = apply(&queue, change);
    let Command::Run(job, _) = queue.next() else {
        panic!("the change comes too soon after the other")
    };
    assert_eq!(job.id, waiting.id);
    // Others may join meanwhile.
    assert!(queue.take_apply().is_none());
    let joins = submit_by(&queue, 1);
    assert_eq!(queue.front().unwrap().id, joins.id);
    last_change_began(&queue, true);
    assert!(queue.front().is_none(), "the change comes first by now");
    assert!(queue.take_apply().is_some());
    last_change_began(&queue, false);
    // Where nobody waits or runs, changes need not wait.
    queue.cancel(joins.id);
    queue.end(job.id);
    let (_, _events) = apply(&queue, change);
    assert!(matches!(queue.next(), Command::Apply(_)));
}

#[test]
fn what_other_engines_ask_for_keeps_nobody_from_joining() {
    let queue = Queue::new(4);
    submit_by(&queue, 1);
    assert!(matches!(queue.next(), Command::Run(..)));
    let joins = submit_by(&queue, 1);
    assert!(queue.memory_command(MemoryCommand::Reclaim).is_ok());
    assert_eq!(queue.front().unwrap().id, joins.id);
    assert!(queue.take_memory_command().is_some());
    assert!(queue.take_memory_command().is_none());
    // Where nothing runs it comes before requests.
    assert!(queue.memory_command(MemoryCommand::Reclaim).is_ok());
    assert!(matches!(queue.next(), Command::Memory(_)));
}

#[test]
fn commands_are_bounded() {
    let queue = Queue::new(4);
    let replies: Vec<_> = (0..COMMANDS_MAX).map(|_| mpsc::channel()).collect();
    for (reply, _) in &replies {
        queue.measure(reply.clone()).unwrap();
    }
    let refused = queue.measure(mpsc::channel().0);
    assert!(matches!(refused, Err(EngineError::TooManyCommands { .. })));
    let unload = || UnloadCommand {
        model: ModelId(1),
        only_idle: false,
        report: Box::new(drop),
    };
    for _ in 0..COMMANDS_MAX {
        assert!(queue.unload(unload()).is_ok());
    }
    assert!(queue.unload(unload()).is_err());
}

#[test]
fn stopping_tells_those_who_wait() {
    let queue = Queue::new(4);
    let (_, events) = submit(&queue);
    queue.stop();
    assert!(matches!(
        events.recv().unwrap(),
        Event::Finished(Err(EngineError::Stopped))
    ));
    assert!(matches!(submit(&queue).0, Err(EngineError::Stopped)));
    assert!(matches!(queue.next(), Command::Stop));
}
