//! Lists of what ended before the dashboard was opened, or before somebody else's eyes.

use sluice_proto::v1::{
    FidelityMeasurement, FidelityResult, Operation, OperationKind, OperationState,
};

use super::{super::jobs::WorkOutcome, *};

fn ended_job(operation_id: u64) -> Operation {
    Operation {
        operation_id,
        kind: OperationKind::Compress.into(),
        state: OperationState::Done.into(),
        input_path: "/models/m".into(),
        output_path: "/models/m.sluice".into(),
        elapsed_ms: 9_000.0,
        ..Default::default()
    }
}

fn ended_request(request_id: u64, kind: OperationKind) -> Operation {
    let mut row = summary(request_id, OperationState::Done);
    row.kind = kind.into();
    row
}

fn measurement(level: v1::Level, parameters: u64) -> FidelityMeasurement {
    FidelityMeasurement {
        model: "sluice-demo".into(),
        parameters,
        result: Some(FidelityResult {
            level: level.into(),
            mean_kl_nats: 0.0123,
            top_agreement: 0.987,
            rows: 640,
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[test]
fn a_dashboard_that_comes_later_asks_for_what_ended_and_lists_it() {
    let mut state = state();
    feed(&mut state, Event::Connected);
    let effects = feed(&mut state, snapshot(vec![]));
    let asked = [Effect::ListOperations, Effect::ListFidelity];
    assert!(
        asked.iter().all(|asked| effects.contains(asked)),
        "{effects:?}"
    );
    assert_eq!(feed(&mut state, snapshot(vec![])), [], "once is enough");

    let rows = vec![
        ended_request(1, OperationKind::Generate),
        ended_request(2, OperationKind::MeasureFidelity),
        ended_request(3, OperationKind::Generate),
    ];
    let effects = feed(&mut state, Event::Operations(rows));
    // The latest is shown, and can be watched to its end.
    assert_eq!(effects, [Effect::ListFidelity, Effect::Watch(Some(3))]);
    let ids: Vec<u64> = state.rows().iter().map(|row| row.operation_id).collect();
    assert_eq!(ids, [3, 2, 1]);
    let screen = shown(&state, SIZES[0]);
    assert!(screen.contains("3    done"), "{screen}");

    feed(&mut state, Event::Operations(vec![ended_job(7)]));
    feed(&mut state, Event::Operations(vec![ended_job(7)]));
    press(&mut state, KeyCode::Char('6'));
    let screen = shown(&state, SIZES[0]);
    assert!(screen.contains("/models/m.sluice"), "{screen}");
    let ended = state.jobs.ended.iter();
    let ended: Vec<_> = ended.map(|e| (e.what.as_str(), &e.outcome)).collect();
    let done = WorkOutcome::Done("done".into());
    assert_eq!(
        ended,
        [
            ("job 7: /models/m → /models/m.sluice", &done),
            ("request 2", &done),
        ]
    );
}

#[test]
fn a_job_of_a_new_daemon_is_not_taken_for_one_of_the_old() {
    let mut state = opened();
    feed(&mut state, Event::Operations(vec![ended_job(1)]));
    let Event::Snapshot(mut fresh) = snapshot(vec![]) else {
        unreachable!("it is a snapshot");
    };
    fresh.daemon.as_mut().expect("given").process_id = 200;
    feed(&mut state, Event::Connected);
    feed(&mut state, Event::Snapshot(fresh));
    feed(&mut state, Event::Operations(vec![ended_job(1)]));
    assert_eq!(state.jobs.ended.len(), 2);
}

#[test]
fn what_others_measured_is_known_here() {
    let mut state = choosing();
    let all = vec![
        measurement(v1::Level::Moderate, 12_345_678),
        measurement(v1::Level::Aggressive, 1),
    ];
    feed(&mut state, Event::Fidelity(all));
    let known = state.fidelity_of(Level::Moderate).expect("measured");
    assert_eq!((known.mean_kl_nats, known.rows), (0.0123, 640));
    assert_eq!(
        state.fidelity_of(Level::Aggressive),
        None,
        "another model's"
    );
    let screen = shown(&state, SIZES[0]);
    assert!(screen.contains("KL 0.0123"), "{screen}");
}
