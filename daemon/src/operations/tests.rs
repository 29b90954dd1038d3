//! The registry with work that does nothing but wait.

use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use super::*;
use crate::caller::{Caller, User};

fn verification() -> OperationDescription {
    OperationDescription {
        kind: v1::OperationKind::Verify,
        input_path: "/a.sluice".to_owned(),
        threads: Some(1),
        ..Default::default()
    }
}

fn load() -> OperationDescription {
    OperationDescription {
        kind: v1::OperationKind::Load,
        model: "m".to_owned(),
        ..Default::default()
    }
}

fn verified() -> Outcome {
    Outcome::Verify(v1::VerifyResult::default())
}

/// Work that runs until it is cancelled.
fn patient(_: &Operation, stop: &AtomicBool) -> Result<Outcome, Failure> {
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(Failure::JobCancelled {
        partial_path: None,
        by_shutdown: false,
    })
}

fn bytes(done: u64, total: u64) -> v1::OperationProgress {
    let stage = v1::OperationStage::Verifying;
    progress(stage, v1::ProgressUnit::Bytes, done, total)
}

fn operations() -> Arc<Operations> {
    Arc::new(Operations::new(ChangeNotifier::default()))
}

#[tokio::test]
async fn one_runs_at_a_time_and_ends_when_it_is_cancelled() {
    let operations = operations();
    let first = operations.work(verification(), patient).unwrap();
    let other = operations.work(verification(), |_, _| Ok(verified()));
    let refused = other.unwrap_err();
    assert!(matches!(
        refused,
        Failure::OperationInProgress { id: 1, .. }
    ));
    // What is not about files is not in the way.
    let load = operations.begin(load(), None).unwrap();
    assert_eq!(operations.active().len(), 2);
    assert!(first.cancel().unwrap());
    operations.idle(&v1::OperationKind::FILES).await;
    assert_eq!(first.to_wire().state(), v1::OperationState::Cancelled);
    assert!(!first.cancel().unwrap());
    let refused = load.cancel().unwrap_err();
    assert!(matches!(refused, Failure::NotCancellable { id: 2, .. }));
    let unknown = operations.find(3).unwrap_err();
    assert!(matches!(unknown, Failure::UnknownOperation { id: 3 }));
}

#[test]
fn a_bounded_number_of_a_kind_waits_or_runs() {
    let operations = operations();
    let of = |kind, uid| OperationDescription {
        kind,
        caller: Some(Caller {
            user: User::Unix { uid },
            ..Caller::DAEMON
        }),
        ..Default::default()
    };
    let changes = v1::OperationKind::CHANGES.to_vec();
    let kinds = [
        // What one user may have, then what all may have.
        (vec![v1::OperationKind::Pull], 1..=1, 3, "3 downloads"),
        (vec![v1::OperationKind::Pull], 2..=9, 1, "4 downloads"),
        (changes.clone(), 1..=1, 4, "4 changes"),
        (changes, 2..=9, 12, "16 changes"),
    ];
    let mut kept = Vec::new();
    for (kinds, users, max, words) in kinds {
        let mut next = kinds.into_iter().cycle();
        let mut uids = users.cycle();
        let mut begin = || operations.begin(of(next.next().unwrap(), uids.next().unwrap()), None);
        let mut running: Vec<_> = (0..max).map(|_| begin().unwrap()).collect();
        let refused = begin().unwrap_err();
        assert!(refused.to_string().starts_with(words), "{refused}");
        // An end makes place for another.
        running.pop();
        running.push(begin().unwrap());
        assert!(begin().is_err());
        kept.extend(running);
    }
}

#[tokio::test]
async fn a_change_counts_until_what_it_leaves_is_on_disk() {
    let operations = operations();
    let apply = || OperationDescription {
        kind: v1::OperationKind::Apply,
        ..Default::default()
    };
    let (written, is_written) = mpsc::channel::<()>();
    let write = move || {
        let _ = is_written.recv();
        None
    };
    let writes = WriteQueue::default();
    let first = operations.begin(apply(), None).unwrap();
    let slow = writes.begin(|| Ok(first.operation()), |_| Some(write));
    let slow = slow.unwrap();
    let done = || Ok(Outcome::Apply(v1::ApplyResult::default()));
    first.finish(done());
    // More of them than are remembered end meanwhile.
    for _ in 0..2 * ENDED_MAX {
        let others: Vec<_> = (1..CHANGES_OF_USER_MAX)
            .map(|_| operations.begin(apply(), None).unwrap())
            .collect();
        assert!(operations.begin(apply(), None).is_err());
        others.iter().for_each(|other| other.finish(done()));
    }
    drop(written);
    slow.saved().await;
    let all = (0..CHANGES_OF_USER_MAX).map(|_| operations.begin(apply(), None));
    assert!(Vec::from_iter(all).iter().all(Result::is_ok));
}

#[tokio::test]
async fn those_that_ended_are_remembered_up_to_a_bound() {
    let operations = operations();
    for _ in 0..ENDED_MAX + 3 {
        let operation = operations.work(verification(), |_, _| Ok(verified()));
        let operation = operation.unwrap();
        operations.idle(&v1::OperationKind::FILES).await;
        // Its place is another's only once its end is on disk.
        while !operation.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let ids: Vec<_> = operations.all().iter().map(|one| one.id()).collect();
    assert_eq!(ids.len(), ENDED_MAX);
    assert_eq!((ids[0], ids[ENDED_MAX - 1]), (4, ENDED_MAX as u64 + 3));
}

#[tokio::test]
async fn an_operation_that_is_done_has_done_all_and_others_stay_where_they_were() {
    let operations = operations();
    let half = |operation: &Operation| operation.progress(bytes(4_400_000, 7_600_000));
    let done = operations.work(verification(), move |operation, _| {
        half(operation);
        Ok(verified())
    });
    operations.idle(&v1::OperationKind::FILES).await;
    let failed = operations.work(verification(), move |operation, _| {
        half(operation);
        Err(Failure::Cancelled)
    });
    operations.idle(&v1::OperationKind::FILES).await;
    let done_bytes =
        |operation: Result<Arc<Operation>, _>| operation.unwrap().to_wire().progress.unwrap().done;
    assert_eq!(
        (done_bytes(done), done_bytes(failed)),
        (7_600_000, 4_400_000)
    );
}

#[tokio::test]
async fn an_operation_that_panics_has_failed() {
    let operations = operations();
    let operation = operations.work(verification(), |_, _| panic!("a bug"));
    operations.idle(&v1::OperationKind::FILES).await;
    let operation = operation.unwrap().to_wire();
    assert_eq!(operation.state(), v1::OperationState::Failed);
    let error = operation.error.unwrap();
    assert!(
        error.message.contains("a task of the daemon failed"),
        "{}",
        error.message
    );
    assert_eq!(error.reason, "TASK_FAILED");
    assert!(!error.hint.is_empty());
}

#[tokio::test]
async fn nothing_begins_once_the_daemon_is_about_to_end() {
    let operations = operations();
    let (sender, receiver) = mpsc::channel::<()>();
    let operation = operations
        .work(verification(), move |operation, stop| {
            let _ = receiver.recv();
            patient(operation, stop)
        })
        .unwrap();
    operations.close();
    let refused = operations.begin(load(), None).unwrap_err();
    assert!(matches!(refused, Failure::Draining));
    drop(sender);
    operations.idle(&v1::OperationKind::FILES).await;
    let error = operation.to_wire().error.unwrap().message;
    assert!(error.contains("sluiced is shutting down"), "{error}");
}

#[test]
fn a_download_is_stopped_when_the_daemon_is_about_to_end() {
    let operations = operations();
    let stopped = Arc::new(AtomicBool::new(false));
    let stops = stopped.clone();
    let cancel = Box::new(move || stops.store(true, Ordering::Relaxed));
    let pull = OperationDescription {
        kind: v1::OperationKind::Pull,
        ..Default::default()
    };
    let _running = operations.begin(pull, Some(cancel)).unwrap();
    operations.close();
    assert!(stopped.load(Ordering::Relaxed));
}

#[test]
fn work_that_is_dropped_has_failed_and_its_first_end_counts() {
    let operations = operations();
    let running = operations.begin(load(), None).unwrap();
    let operation = running.operation();
    drop(running);
    let failed = operation.to_wire();
    assert_eq!(failed.state(), v1::OperationState::Failed);
    assert_eq!(failed.error.unwrap().reason, "TASK_FAILED");
    let running = operations.begin(load(), None).unwrap();
    let operation = running.operation();
    running.finish(Ok(Outcome::Load(v1::LoadResult::default())));
    drop(running);
    assert_eq!(operation.to_wire().state(), v1::OperationState::Done);
    assert!(operations.active().is_empty());
}

#[test]
fn those_who_follow_hear_of_progress_now_and_then_and_of_a_new_stage_at_once() {
    let operations = operations();
    let running = operations.begin(load(), None).unwrap();
    let mut statuses = running.subscribe();
    running.progress(bytes(1, 9));
    assert!(statuses.has_changed().unwrap());
    statuses.mark_unchanged();
    running.progress(bytes(2, 9));
    assert!(!statuses.has_changed().unwrap());
    // Whoever looks sees it all the same.
    assert_eq!(running.to_wire().progress.unwrap().done, 2);
    let loading = v1::OperationStage::Loading;
    running.progress(progress(loading, v1::ProgressUnit::Bytes, 0, 0));
    assert!(statuses.has_changed().unwrap());
    assert_eq!(running.to_wire().progress.unwrap().total, None);
    statuses.mark_unchanged();
    running.progress(v1::OperationProgress {
        item: "the next file".to_owned(),
        ..progress(loading, v1::ProgressUnit::Bytes, 0, 0)
    });
    assert!(statuses.has_changed().unwrap());
}

#[test]
fn an_operation_that_has_ended_changes_no_more() {
    let operations = operations();
    let running = operations.begin(load(), None).unwrap();
    running.progress(bytes(9, 9));
    running.finish(Ok(Outcome::Load(v1::LoadResult::default())));
    let ended = running.to_wire();
    let statuses = running.subscribe();
    running.start();
    running.progress(bytes(1, 9));
    running.notice("late");
    running.detail(Detail::PullPlan(v1::PullPlan::default()));
    running.request(|request| request.passes = 1);
    running.made_for("another");
    running.queued(3);
    assert_eq!(running.to_wire(), ended);
    assert!(!statuses.has_changed().unwrap());
}

#[test]
fn a_generation_that_ends_early_has_not_filled_all_positions() {
    let operations = operations();
    let running = operations.begin(load(), None).unwrap();
    let (computing, positions) = (v1::OperationStage::Computing, v1::ProgressUnit::Positions);
    running.progress(progress(computing, positions, 3, 64));
    running.finish(Ok(Outcome::Score(v1::ScoreResult::default())));
    assert_eq!(running.to_wire().progress.unwrap().done, 3);
}

#[test]
fn notices_are_kept_up_to_a_bound() {
    let operations = operations();
    let running = operations.begin(load(), None).unwrap();
    for number in 0..NOTICES_MAX + 3 {
        running.notice(number.to_string());
    }
    let notices = running.to_wire().notices;
    assert_eq!(notices.len(), NOTICES_MAX);
    assert_eq!(notices[NOTICES_MAX - 1], (NOTICES_MAX - 1).to_string());
}

#[tokio::test]
async fn the_next_daemon_lists_what_ended_and_what_was_interrupted_under_other_ids() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let state = StateStore::open(Some(folder.path())).unwrap();
        Arc::new(Operations::after(
            Arc::new(state),
            ChangeNotifier::default(),
        ))
    };
    let first = open();
    let done = first.work(verification(), |_, _| Ok(verified())).unwrap();
    done.ended().await;
    done.saved().await;
    let failed = first.begin(load(), None).unwrap();
    failed.notice("a notice");
    failed.finish(Err(Failure::NoModelsFolder));
    failed.operation().saved().await;
    let running = first.begin(load(), None).unwrap();
    running.operation().begin_saved().await;
    let requests = (0..3000).map(|_| {
        let request = OperationDescription {
            kind: v1::OperationKind::Generate,
            ..Default::default()
        };
        first.create(request, Box::new(|| {})).id()
    });
    let last_id = requests.max().unwrap();
    // Text keeps times to a digit less.
    let timeless = |operation: &Operation| v1::Operation {
        queued_ms: 0.0,
        elapsed_ms: 0.0,
        ..operation.to_wire()
    };
    let pictures = [timeless(&done), timeless(&failed.operation())];
    // As at a kill, nobody tells the end of what runs.
    let process = (running.operation(), first.clone());
    std::mem::forget(running);
    first.state.save(|_| {}).unwrap();
    drop((process, first));

    // The store lives on in the operation that was forgotten, and has the lock.
    let text = std::fs::read_to_string(folder.path().join(".state.json")).unwrap();
    assert!(!text.contains("generate"), "{text}");
    let again = tempfile::tempdir().unwrap();
    std::fs::write(again.path().join(".state.json"), text).unwrap();
    let state = StateStore::open(Some(again.path())).unwrap();
    let next = Arc::new(Operations::after(
        Arc::new(state),
        ChangeNotifier::default(),
    ));
    let all: Vec<_> = next.all().iter().map(|one| timeless(one)).collect();
    assert_eq!(all[..2], pictures);
    let [.., interrupted] = &all[..] else {
        panic!()
    };
    assert_eq!(interrupted.state(), v1::OperationState::Failed);
    let error = interrupted.error.as_ref().unwrap();
    assert_eq!(error.reason, "INTERRUPTED");
    assert_eq!(error.message, "interrupted: sluiced was ended");
    assert_eq!(interrupted.ended_unix_ms, None);
    assert!(!next.find(1).unwrap().is_active());
    let refused = next.find(3).unwrap().subscribe().borrow().error().cloned();
    assert_eq!(refused.unwrap().code(), tonic::Code::Aborted);
    let one = next.work(verification(), |_, _| Ok(verified())).unwrap();
    assert!(one.id() > last_id, "{} was given before", one.id());
    // A clean end leaves no gap.
    one.saved().await;
    one.ended().await;
    let id = one.id();
    next.save();
    assert_eq!(next.state.read(|state| state.last_operation_id), id);
}
