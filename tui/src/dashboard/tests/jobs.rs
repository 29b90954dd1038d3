//! Jobs and models: what is listed, what is cancelled, how what ended came out.

use sluice_proto::v1::{
    FileFormat, ModelOrigin, Operation, OperationError, OperationKind, OperationProgress,
    OperationState, SwitchTarget, WeightSwitch,
};

use super::{
    super::{
        jobs::{ENDED_MAX, WorkOutcome},
        levels::RunningMeasurement,
    },
    *,
};

const GIB: u64 = 1 << 30;

fn job(operation_id: u64, kind: OperationKind, done_bytes: u64) -> Operation {
    Operation {
        operation_id,
        kind: kind.into(),
        state: OperationState::Running.into(),
        input_path: "/models/llada".into(),
        output_path: match kind {
            OperationKind::Verify => String::new(),
            _ => "/models/llada.sluice".into(),
        },
        progress: Some(OperationProgress {
            item: "model.layers.3.mlp".into(),
            done: done_bytes,
            total: Some(4 * GIB),
            ..Default::default()
        }),
        elapsed_ms: 12_000.0,
        threads: Some(4),
        ..Default::default()
    }
}

fn models() -> Vec<Model> {
    vec![
        Model {
            name: "sluice-demo".into(),
            state: ModelState::Ready.into(),
            is_demonstration: true,
            is_default: true,
            origin: ModelOrigin::Embedded.into(),
            shape: Some(ModelShape {
                family: "llada".into(),
                parameters: 12_345_678,
                weight_bytes: 24 << 20,
                formats: vec![Dtype::Bf16.into()],
                ..Default::default()
            }),
            ..Default::default()
        },
        Model {
            name: "GSAI-ML/LLaDA-8B-Instruct".into(),
            state: ModelState::Available.into(),
            path: "/models/GSAI-ML/LLaDA-8B-Instruct".into(),
            origin: ModelOrigin::Pulled.into(),
            family: "llada".into(),
            parameters: Some(8_015_581_184),
            disk_bytes: 15 * GIB,
            file_format: FileFormat::Safetensors.into(),
            ..Default::default()
        },
        Model {
            name: "a/b:Q4_K_M".into(),
            state: ModelState::Pulling.into(),
            origin: ModelOrigin::Pulled.into(),
            file_format: FileFormat::Gguf.into(),
            operation_id: Some(12),
            ..Default::default()
        },
    ]
}

/// The load that the snapshot's model comes by.
fn load(done: u64) -> Operation {
    Operation {
        operation_id: 11,
        kind: OperationKind::Load.into(),
        state: OperationState::Running.into(),
        progress: Some(OperationProgress {
            done,
            total: Some(15 * GIB),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The download under way.
fn pull() -> Operation {
    Operation {
        operation_id: 12,
        kind: OperationKind::Pull.into(),
        state: OperationState::Running.into(),
        progress: Some(OperationProgress {
            item: "b-Q4_K_M.gguf".into(),
            done: GIB,
            total: Some(4 * GIB),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// A snapshot with the given jobs, changed.
fn running(jobs: Vec<Operation>, change: impl FnOnce(&mut Snapshot)) -> Event {
    let Event::Snapshot(mut snapshot) = snapshot(vec![]) else {
        unreachable!("it is a snapshot");
    };
    snapshot.operations = jobs;
    change(&mut snapshot);
    Event::Snapshot(snapshot)
}

/// The page with models and nothing that runs.
fn page() -> DashboardState {
    let mut state = idle();
    press(&mut state, KeyCode::Esc);
    let effects = press(&mut state, KeyCode::Char('6'));
    assert_eq!(effects, [Effect::ListModels]);
    state
}

/// The page with something of each kind at work.
fn full() -> DashboardState {
    let mut state = page();
    let mut on_disk = models();
    on_disk[0].state = ModelState::Available.into();
    feed(&mut state, Event::Models(on_disk));
    state.levels.measuring = Some(RunningMeasurement {
        level: Level::Moderate,
        request_id: Some(9),
        done: 12,
        total: 48,
    });
    for second in 0..3 {
        let change = |snapshot: &mut Snapshot| {
            let model = snapshot.model.as_mut().expect("set");
            model.name = "GSAI-ML/LLaDA-8B-Instruct".into();
            model.state = ModelState::Loading.into();
            model.operation_id = Some(11);
            snapshot.operations.extend([load(second * GIB), pull()]);
            snapshot.weight_switch = Some(WeightSwitch {
                done_steps: 3,
                total_steps: 9,
            });
            snapshot.switch_target = Some(SwitchTarget {
                level: v1::Level::Moderate.into(),
                budget_bytes: 4 * GIB,
            });
            let mut fidelity = summary(9, OperationState::Running);
            fidelity.kind = OperationKind::MeasureFidelity.into();
            let mut score = summary(10, OperationState::Queued);
            score.kind = OperationKind::Score.into();
            snapshot.operations.extend([fidelity, score]);
        };
        let jobs = vec![job(3, OperationKind::Compress, second << 28)];
        update(&mut state, running(jobs, change), second * 1_000);
    }
    state
}

fn press_down_to(state: &mut DashboardState, row: usize) {
    for _ in 0..row {
        press(state, KeyCode::Char('j'));
    }
}

/// Two jobs of which one failed, and a load that came to its end.
fn ended() -> DashboardState {
    let mut state = page();
    feed(&mut state, Event::Models(models()[..2].to_vec()));
    let jobs = vec![
        job(3, OperationKind::Compress, GIB),
        job(4, OperationKind::Verify, 2 * GIB),
    ];
    feed(
        &mut state,
        running(jobs, |snapshot| {
            snapshot.model.as_mut().expect("set").state = ModelState::Loading.into();
        }),
    );
    let effects = feed(
        &mut state,
        running(vec![job(4, OperationKind::Verify, 3 * GIB)], |_| {}),
    );
    assert_eq!(effects, [Effect::ListModels, Effect::ListJobs]);
    let failed = Operation {
        state: OperationState::Failed.into(),
        error: Some(OperationError {
            message: "no space left on the device".into(),
            ..Default::default()
        }),
        elapsed_ms: 13_000.0,
        ..job(3, OperationKind::Compress, GIB)
    };
    let list = vec![failed, job(4, OperationKind::Verify, 3 * GIB)];
    feed(&mut state, Event::Jobs(list));
    state
}

#[test]
fn all_that_runs_is_listed() {
    pictures("jobs_running", &full());
}

#[test]
fn rates_and_what_is_left_follow_from_what_was_seen() {
    let screen = shown(&full(), SIZES[0]);
    for words in [
        "1.00 GiB/s",
        "256 MiB/s",
        " 13 % ",
        " 10 s ",
        "0.0 steps/s",
        "0.0 passes/s",
    ] {
        assert!(screen.contains(words), "{words}: {screen}");
    }
}

#[test]
fn each_kind_of_work_is_cancelled_in_its_way_after_a_question() {
    let ways = [
        ("Cancel the load?", vec![Effect::CancelLoad(11)]),
        ("", vec![]),
        ("Cancel request 9?", vec![Effect::Cancel(9)]),
        ("Cancel request 10?", vec![Effect::Cancel(10)]),
        ("Cancel job 3?", vec![Effect::CancelJob(3)]),
        (
            "Stop the download of a/b:Q4_K_M?",
            vec![Effect::CancelPull {
                name: "a/b:Q4_K_M".into(),
                operation_id: 12,
            }],
        ),
    ];
    for (row, (question, expected)) in ways.into_iter().enumerate() {
        let mut state = full();
        press_down_to(&mut state, row);
        assert_eq!(press(&mut state, KeyCode::Char('x')), []);
        if expected.is_empty() {
            // A switch has none.
            assert_eq!(state.mode(), Mode::Page);
            continue;
        }
        let text = &state.question.as_ref().expect("asked").text;
        assert!(text.contains(question), "{text}");
        assert_eq!(press(&mut state, KeyCode::Char('y')), expected);
    }
}

#[test]
fn the_selection_stays_with_its_job() {
    let mut state = page();
    let both = || {
        vec![
            job(3, OperationKind::Compress, GIB),
            job(4, OperationKind::Verify, GIB),
        ]
    };
    feed(&mut state, running(both(), |_| {}));
    press(&mut state, KeyCode::Char('j'));
    feed(
        &mut state,
        running(both().split_off(1), |snapshot| {
            snapshot.weight_switch = Some(WeightSwitch {
                done_steps: 1,
                total_steps: 2,
            });
        }),
    );
    press(&mut state, KeyCode::Char('x'));
    assert_eq!(
        press(&mut state, KeyCode::Char('y')),
        [Effect::CancelJob(4)]
    );
}

#[test]
fn what_ended_tells_how() {
    let state = ended();
    let outcomes: Vec<_> = state.jobs.ended.iter().map(|e| &e.outcome).collect();
    assert_eq!(
        outcomes,
        [
            &WorkOutcome::Done("loaded".into()),
            &WorkOutcome::Failed("no space left on the device".into()),
        ]
    );
    pictures("jobs_ended", &state);
    let mut state = state;
    press_down_to(&mut state, 1);
    press(&mut state, KeyCode::Char('x'));
    assert!(state.message.as_ref().is_some_and(|told| told.is_error));
}

#[test]
fn what_others_had_measured_or_scored_is_listed_once_it_ended() {
    let request = |id, kind: OperationKind, state| {
        let mut row = summary(id, state);
        row.kind = kind.into();
        row
    };
    let mut state = page();
    state.levels.measuring = Some(RunningMeasurement {
        level: Level::Moderate,
        request_id: Some(9),
        done: 12,
        total: 48,
    });
    let kinds = [
        OperationKind::MeasureFidelity,
        OperationKind::Score,
        OperationKind::Generate,
    ];
    let rows = |state| {
        let ids = (9..).zip([kinds[0], kinds[0], kinds[1], kinds[2]]);
        ids.map(|(id, kind)| request(id, kind, state)).collect()
    };
    feed(&mut state, snapshot(rows(OperationState::Running)));
    let stopped = request(11, OperationKind::Score, OperationState::Cancelled);
    feed(&mut state, snapshot(vec![stopped]));
    feed(&mut state, Event::MeasuringStopped);
    feed(&mut state, snapshot(vec![]));
    // The daemon was asked how the other came out.
    let done = request(10, OperationKind::MeasureFidelity, OperationState::Done);
    let effects = feed(&mut state, Event::Requests(vec![done]));
    assert_eq!(effects, [Effect::ListFidelity]);
    let ended = state.jobs.ended.iter();
    let ended: Vec<_> = ended.map(|e| (e.what.as_str(), &e.outcome)).collect();
    assert_eq!(
        ended,
        [
            ("level moderate", &WorkOutcome::Cancelled),
            ("request 11", &WorkOutcome::Cancelled),
            ("request 10", &WorkOutcome::Done("done".into())),
        ]
    );
}

#[test]
fn what_the_filter_hides_keeps_its_rate() {
    let mut state = full();
    press(&mut state, KeyCode::Char('/'));
    write(&mut state, "compress");
    let event = running(vec![job(3, OperationKind::Compress, 3 << 28)], |snapshot| {
        let model = snapshot.model.as_mut().expect("set");
        model.name = "GSAI-ML/LLaDA-8B-Instruct".into();
        model.state = ModelState::Loading.into();
        model.operation_id = Some(11);
        snapshot.operations.extend([load(3 * GIB), pull()]);
    });
    update(&mut state, event, 3_000);
    press(&mut state, KeyCode::Esc);
    let screen = shown(&state, SIZES[0]);
    assert!(screen.contains("1.00 GiB/s"), "{screen}");
}

#[test]
fn a_daemon_started_anew_cannot_tell_how_jobs_ended() {
    let mut state = page();
    feed(
        &mut state,
        running(vec![job(3, OperationKind::Compress, GIB)], |_| {}),
    );
    let effects = feed(
        &mut state,
        running(vec![], |snapshot| {
            snapshot.daemon.as_mut().expect("set").process_id = 200;
        }),
    );
    assert!(!effects.contains(&Effect::ListJobs));
    assert_eq!(state.jobs.ended[0].outcome, WorkOutcome::Unknown);
}

#[test]
fn only_so_much_of_what_ended_is_kept() {
    let mut state = page();
    for id in 0..100 {
        feed(
            &mut state,
            running(vec![job(id, OperationKind::Verify, GIB)], |_| {}),
        );
    }
    assert_eq!(state.jobs.ended.len(), ENDED_MAX);
}

#[test]
fn models_are_listed() {
    let mut state = page();
    pictures("jobs_asking", &state);
    let pulling = running(vec![], |snapshot| snapshot.operations.push(pull()));
    feed(&mut state, pulling);
    feed(&mut state, Event::Models(models()));
    press(&mut state, KeyCode::Tab);
    press(&mut state, KeyCode::Char('j'));
    pictures("models", &state);
}

#[test]
fn the_filter_holds_for_both_lists() {
    let mut state = full();
    press(&mut state, KeyCode::Char('/'));
    write(&mut state, "llada");
    pictures("jobs_filter", &state);
    write(&mut state, "-x");
    let screen = shown(&state, SIZES[0]);
    assert!(
        screen.contains("none that the filter lets through"),
        "{screen}"
    );
    press(&mut state, KeyCode::Esc);
    assert_eq!(state.models().len(), 3);
}

#[test]
fn a_model_is_loaded_at_once_where_nothing_runs_and_asked_about_else() {
    let name = "GSAI-ML/LLaDA-8B-Instruct";
    let mut state = page();
    feed(&mut state, Event::Models(models()));
    press(&mut state, KeyCode::Tab);
    assert_eq!(press(&mut state, KeyCode::Enter), []);
    let message = state.message.clone().expect("told");
    assert!(message.text.contains("loaded already"), "{message:?}");
    press(&mut state, KeyCode::Char('j'));
    let load = Effect::Load(name.into());
    assert_eq!(
        press(&mut state, KeyCode::Enter),
        [Effect::Load(name.into())]
    );
    let requests = vec![
        summary(3, OperationState::Running),
        summary(4, OperationState::Queued),
    ];
    feed(&mut state, snapshot(requests));
    assert_eq!(press(&mut state, KeyCode::Enter), []);
    let text = &state.question.as_ref().expect("asked").text;
    assert!(
        text.contains("2 requests run or wait; requests that wait are refused"),
        "{text}"
    );
    assert_eq!(press(&mut state, KeyCode::Char('y')), [load]);
    press(&mut state, KeyCode::Char('j'));
    assert_eq!(press(&mut state, KeyCode::Enter), []);
    let message = state.message.clone().expect("told");
    assert!(message.text.contains("still being downloaded"));
}

#[test]
fn unloading_asks_first() {
    let mut state = page();
    assert_eq!(press(&mut state, KeyCode::Char('u')), []);
    assert_eq!(press(&mut state, KeyCode::Char('y')), [Effect::Unload]);
}

#[test]
fn a_download_is_begun_followed_and_its_end_told() {
    let mut state = page();
    press(&mut state, KeyCode::Char('p'));
    write(&mut state, "a/b:Q4_K_M");
    let effects = press(&mut state, KeyCode::Enter);
    assert_eq!(effects, [Effect::Pull("a/b:Q4_K_M".into())]);
    feed(&mut state, Event::Models(models()));
    // The list is asked for anew from time to time, and only then.
    let polled = |state: &mut DashboardState, now_ms| {
        let outcome = update(state, snapshot(vec![]), now_ms);
        outcome.effects.contains(&Effect::ListModels)
    };
    assert!(!polled(&mut state, 500));
    assert!(polled(&mut state, 2_100));
    assert!(!polled(&mut state, 2_400));
    let mut there = models();
    there[2].state = ModelState::Available.into();
    feed(&mut state, Event::Models(there));
    assert_eq!(
        state.jobs.ended[0].outcome,
        WorkOutcome::Done("is there".into())
    );
    assert!(!polled(&mut state, 9_000));
}

#[test]
fn a_download_that_is_not_whole_is_gone_on_with() {
    let mut state = page();
    let mut partial = models();
    partial[2].state = ModelState::Partial.into();
    feed(&mut state, Event::Models(models()));
    feed(&mut state, Event::Models(partial));
    assert!(matches!(
        state.jobs.ended[0].outcome,
        WorkOutcome::Failed(_)
    ));
    press(&mut state, KeyCode::Tab);
    press_down_to(&mut state, 2);
    press(&mut state, KeyCode::Char('p'));
    assert_eq!(state.command.value(), "pull a/b:Q4_K_M");
}

#[test]
fn files_are_worked_on_by_commands() {
    let mut state = page();
    for (line, effect) in [
        ("verify /a.sluice", Effect::Verify("/a.sluice".into())),
        (
            "decompress /a.sluice /b",
            Effect::Decompress {
                file: "/a.sluice".into(),
                folder: "/b".into(),
            },
        ),
    ] {
        press(&mut state, KeyCode::Char(':'));
        write(&mut state, line);
        assert_eq!(press(&mut state, KeyCode::Enter), [effect]);
    }
    for line in ["verify a.sluice", "decompress /a.sluice"] {
        press(&mut state, KeyCode::Char(':'));
        write(&mut state, line);
        assert_eq!(press(&mut state, KeyCode::Enter), []);
        assert!(state.message.as_ref().is_some_and(|told| told.is_error));
    }
}

#[test]
fn the_mouse_selects_work_and_models() {
    use super::super::{hit_areas::HitTarget, jobs::JobsPane};

    let mut state = full();
    let (_, targets) = draw_with_targets(&state, SIZES[0]);
    let all = || (0..SIZES[0].1).flat_map(|y| (0..SIZES[0].0).map(move |x| (x, y)));
    for target in [HitTarget::OtherRow(1), HitTarget::Row(4)] {
        let hit = all().any(|(x, y)| targets.at(x, y) == Some(target));
        assert!(hit, "{target:?} can be pressed on");
        feed(&mut state, Event::Click(target));
    }
    assert_eq!(
        (state.jobs.list, state.selected_work()),
        (JobsPane::Work, 4)
    );
    let model = state.selected_model().expect("three");
    assert_eq!(model.name, "GSAI-ML/LLaDA-8B-Instruct");
}
