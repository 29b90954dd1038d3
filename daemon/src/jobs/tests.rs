//! The registry with work that does nothing but wait.

use std::sync::mpsc;

use super::*;

fn facts() -> JobDescription {
    JobDescription {
        kind: v1::JobKind::Verify,
        source: "/a.sluice".to_owned(),
        output: String::new(),
        threads: 1,
    }
}

fn verified() -> v1::job_result::Kind {
    v1::job_result::Kind::Verified(v1::VerifyResult::default())
}

/// Work that runs until it is cancelled.
fn patient(job: &Job) -> Result<v1::job_result::Kind, Failure> {
    while !job.cancel.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(Failure::JobCancelled {
        partial_path: None,
        by_shutdown: false,
    })
}

fn jobs() -> Arc<Jobs> {
    Arc::new(Jobs::new(ChangeNotifier::default()))
}

#[tokio::test]
async fn one_runs_at_a_time_and_ends_when_it_is_cancelled() {
    let jobs = jobs();
    let first = jobs.begin(facts(), patient).unwrap();
    let refused = jobs.begin(facts(), |_| Ok(verified())).unwrap_err();
    assert!(matches!(refused, Failure::JobInProgress { id: 1, .. }));
    assert_eq!(jobs.running().len(), 1);
    assert!(jobs.cancel(1).unwrap());
    jobs.idle().await;
    assert_eq!(first.to_wire().state(), v1::JobState::Cancelled);
    assert!(!jobs.cancel(1).unwrap());
    assert!(matches!(jobs.cancel(2), Err(Failure::UnknownJob { id: 2 })));
}

#[tokio::test]
async fn those_that_ended_are_remembered_up_to_a_bound() {
    let jobs = jobs();
    for _ in 0..ENDED_MAX + 3 {
        jobs.begin(facts(), |_| Ok(verified())).unwrap();
        jobs.idle().await;
    }
    let ids: Vec<_> = jobs.list().iter().map(|job| job.job_id).collect();
    assert_eq!(ids.len(), ENDED_MAX);
    assert_eq!((ids[0], ids[ENDED_MAX - 1]), (4, ENDED_MAX as u64 + 3));
}

#[tokio::test]
async fn a_job_that_is_done_has_done_all_and_others_stay_where_they_were() {
    let jobs = jobs();
    let half = |job: &Job| {
        let progress = v1::JobProgress {
            done_bytes: 4_400_000,
            total_bytes: 7_600_000,
            ..Default::default()
        };
        job.state.send_modify(|state| state.progress = progress);
    };
    let done = jobs.begin(facts(), move |job| {
        half(job);
        Ok(verified())
    });
    jobs.idle().await;
    let failed = jobs.begin(facts(), move |job| {
        half(job);
        Err(Failure::Cancelled)
    });
    jobs.idle().await;
    let bytes = |job: Result<Arc<Job>, _>| job.unwrap().to_wire().progress.unwrap().done_bytes;
    assert_eq!((bytes(done), bytes(failed)), (7_600_000, 4_400_000));
}

#[tokio::test]
async fn a_job_that_panics_has_failed() {
    let jobs = jobs();
    let job = jobs.begin(facts(), |_| panic!("a bug")).unwrap();
    jobs.idle().await;
    let job = job.to_wire();
    assert_eq!(job.state(), v1::JobState::Failed);
    assert!(
        job.error.contains("a task of the daemon failed"),
        "{}",
        job.error
    );
}

#[tokio::test]
async fn nothing_begins_once_the_daemon_is_about_to_end() {
    let jobs = jobs();
    let (sender, receiver) = mpsc::channel::<()>();
    let job = jobs
        .begin(facts(), move |job| {
            let _ = receiver.recv();
            patient(job)
        })
        .unwrap();
    jobs.close();
    let refused = jobs.begin(facts(), |_| Ok(verified())).unwrap_err();
    assert!(matches!(refused, Failure::Draining));
    drop(sender);
    jobs.idle().await;
    let error = job.to_wire().error;
    assert!(error.contains("sluiced is shutting down"), "{error}");
}
