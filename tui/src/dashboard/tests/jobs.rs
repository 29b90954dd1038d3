//! Jobs and models: what is listed, what is cancelled, how what ended came out.

use sluice_proto::v1::{
    FileFormat, ModelOrigin, Operation, OperationError, OperationKind, OperationProgress,
    OperationStage, OperationState, PlannedChange, ProgressUnit,
    operation::{Detail, Outcome},
};

use super::{
    super::jobs::{ENDED_MAX, WorkOutcome},
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
            unit: ProgressUnit::Bytes.into(),
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
        model: "GSAI-ML/LLaDA-8B-Instruct".into(),
        elapsed_ms: 2_000.0,
        progress: Some(OperationProgress {
            unit: ProgressUnit::Bytes.into(),
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
        model: "a/b:Q4_K_M".into(),
        elapsed_ms: 40_000.0,
        progress: Some(OperationProgress {
            unit: ProgressUnit::Bytes.into(),
            item: "b-Q4_K_M.gguf".into(),
            done: GIB,
            total: Some(4 * GIB),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// A change of level between two of its steps.
fn switch() -> Operation {
    let change = PlannedChange {
        plan: Some(Plan {
            level: v1::Level::Moderate.into(),
            budget_bytes: 4 * GIB,
            ..Default::default()
        }),
        ..Default::default()
    };
    Operation {
        operation_id: 13,
        kind: OperationKind::Apply.into(),
        state: OperationState::Running.into(),
        detail: Some(Detail::PlannedChange(change)),
        elapsed_ms: 700.0,
        progress: Some(OperationProgress {
            stage: OperationStage::Switching.into(),
            unit: ProgressUnit::Steps.into(),
            done: 3,
            total: Some(9),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// As the daemon lists it once it ended in this state.
fn ended_as(operation: Operation, state: OperationState) -> Operation {
    Operation {
        state: state.into(),
        ..operation
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
    for second in 0..3 {
        let change = |snapshot: &mut Snapshot| {
            let model = snapshot.model.as_mut().expect("set");
            model.name = "GSAI-ML/LLaDA-8B-Instruct".into();
            model.state = ModelState::Loading.into();
            model.operation_id = Some(11);
            let started = [load(second * GIB), pull(), switch()];
            snapshot.operations.extend(started);
            let mut fidelity = summary(9, OperationState::Running);
            fidelity.kind = OperationKind::MeasureFidelity.into();
            fidelity.detail = Some(Detail::Request(v1::RequestDetail {
                level: v1::Level::Moderate.into(),
                ..Default::default()
            }));
            fidelity.progress = Some(OperationProgress {
                unit: ProgressUnit::Passes.into(),
                done: 12,
                total: Some(48),
                ..Default::default()
            });
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
        load(GIB),
    ];
    feed(&mut state, running(jobs, |_| {}));
    let effects = feed(
        &mut state,
        running(vec![job(4, OperationKind::Verify, 3 * GIB)], |_| {}),
    );
    assert_eq!(effects, [Effect::ListModels, Effect::ListOperations]);
    let failed = Operation {
        error: Some(OperationError {
            message: "no space left on the device".into(),
            ..Default::default()
        }),
        elapsed_ms: 13_000.0,
        ..ended_as(job(3, OperationKind::Compress, GIB), OperationState::Failed)
    };
    let loaded = ended_as(load(15 * GIB), OperationState::Done);
    let list = vec![failed, job(4, OperationKind::Verify, 3 * GIB), loaded];
    feed(&mut state, Event::Operations(list));
    state
}

#[test]
fn a_load_beside_a_loaded_model_is_listed_and_cancelled() {
    let mut state = page();
    let mut all = models();
    all[1].state = ModelState::Loading.into();
    all[1].operation_id = Some(11);
    feed(&mut state, Event::Models(all));
    // The snapshot's model is the one that serves.
    feed(&mut state, running(vec![load(GIB)], |_| {}));
    let screen = shown(&state, SIZES[0]);
    assert!(screen.contains("1.00 GiB of 15.0 GiB"), "{screen}");
    press(&mut state, KeyCode::Tab);
    press(&mut state, KeyCode::Char('j'));
    press(&mut state, KeyCode::Char('x'));
    assert_eq!(
        state.question.as_ref().map(|question| &*question.text),
        Some("Cancel the load of GSAI-ML/LLaDA-8B-Instruct?")
    );
    assert_eq!(press(&mut state, KeyCode::Char('y')), [Effect::Cancel(11)]);
    let effects = feed(&mut state, running(vec![], |_| {}));
    assert_eq!(effects, [Effect::ListModels, Effect::ListOperations]);
    let cancelled = ended_as(load(2 * GIB), OperationState::Cancelled);
    feed(&mut state, Event::Operations(vec![cancelled]));
    assert_eq!(state.jobs.ended[0].outcome, WorkOutcome::Cancelled);
}

#[test]
fn changes_and_measurements_of_any_client_tell_how_far_they_are_and_how_they_ended() {
    let mut state = page();
    let mut converting = switch();
    converting.progress = Some(OperationProgress {
        stage: OperationStage::Converting.into(),
        unit: ProgressUnit::Bytes.into(),
        done: GIB,
        total: Some(4 * GIB),
        ..Default::default()
    });
    feed(&mut state, running(vec![converting], |_| {}));
    let screen = shown(&state, SIZES[0]);
    let row = screen.lines().find(|line| line.contains("convert "));
    let row = row.expect("listed");
    for words in ["to moderate within 4.00 GiB", "25 %", "700 ms"] {
        assert!(row.contains(words), "{words}: {row}");
    }
    feed(&mut state, running(vec![switch()], |_| {}));
    let screen = shown(&state, SIZES[0]);
    assert!(screen.contains("3 of 9 steps"), "{screen}");
    feed(&mut state, running(vec![], |_| {}));
    let measured = Operation {
        outcome: Some(Outcome::Fidelity(v1::FidelityResult {
            mean_kl_nats: 0.0123,
            top_agreement: 0.987,
            ..Default::default()
        })),
        kind: OperationKind::MeasureFidelity.into(),
        ..summary(14, OperationState::Done)
    };
    let list = vec![ended_as(switch(), OperationState::Cancelled), measured];
    let effects = feed(&mut state, Event::Operations(list));
    assert!(effects.contains(&Effect::ListFidelity), "{effects:?}");
    let ended = state.jobs.ended.iter().map(|ended| &ended.outcome);
    assert_eq!(
        ended.collect::<Vec<_>>(),
        [
            &WorkOutcome::Done("KL 0.0123 nats, the same token in 98.7 %".into()),
            &WorkOutcome::Cancelled,
        ]
    );
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
fn each_kind_of_work_is_cancelled_after_a_question_about_it() {
    let ways = [
        ("Cancel the load of GSAI-ML/", vec![Effect::Cancel(11)]),
        ("", vec![]),
        ("Cancel job 3?", vec![Effect::Cancel(3)]),
        ("Stop the download of a/b:Q4_K_M?", vec![Effect::Cancel(12)]),
        ("Cancel request 9?", vec![Effect::Cancel(9)]),
        ("Cancel request 10?", vec![Effect::Cancel(10)]),
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
            snapshot.operations.push(switch());
        }),
    );
    press(&mut state, KeyCode::Char('x'));
    assert_eq!(press(&mut state, KeyCode::Char('y')), [Effect::Cancel(4)]);
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
fn what_was_measured_or_scored_is_listed_once_it_ended() {
    let request = |id, kind: OperationKind, state| {
        let mut row = summary(id, state);
        row.kind = kind.into();
        row
    };
    let mut state = page();
    let kinds = [
        OperationKind::MeasureFidelity,
        OperationKind::Score,
        OperationKind::Generate,
    ];
    let running = (10..).zip(kinds);
    let running = running.map(|(id, kind)| request(id, kind, OperationState::Running));
    feed(&mut state, snapshot(running.collect()));
    let effects = feed(&mut state, snapshot(vec![]));
    assert_eq!(effects, [Effect::ListOperations], "once for all");
    let list = vec![
        request(10, OperationKind::MeasureFidelity, OperationState::Done),
        request(11, OperationKind::Score, OperationState::Cancelled),
    ];
    let effects = feed(&mut state, Event::Operations(list));
    assert!(effects.contains(&Effect::ListFidelity), "{effects:?}");
    let ended = state.jobs.ended.iter();
    let ended: Vec<_> = ended.map(|e| (e.what.as_str(), &e.outcome)).collect();
    assert_eq!(
        ended,
        [
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
    assert!(!effects.contains(&Effect::ListOperations));
    assert_eq!(state.jobs.ended[0].outcome, WorkOutcome::Unknown);
}

/// The daemon's list of operations may come before the snapshot that lacks one.
#[test]
fn work_that_a_list_tells_the_end_of_is_listed_once() {
    let mut state = page();
    let work = job(7, OperationKind::Verify, 10);
    feed(&mut state, running(vec![work.clone()], |_| {}));
    let done = ended_as(work, OperationState::Cancelled);
    feed(&mut state, Event::Operations(vec![done]));
    assert_eq!((state.running().len(), state.jobs.ended.len()), (0, 1));
    feed(&mut state, running(vec![], |_| {}));
    assert_eq!((state.running().len(), state.jobs.ended.len()), (0, 1));
}

#[test]
fn the_latest_of_what_the_daemon_remembers_is_kept() {
    let mut state = page();
    let list: Vec<_> = (1..=100)
        .map(|id| {
            ended_as(
                job(id, OperationKind::Verify, 10),
                OperationState::Cancelled,
            )
        })
        .collect();
    feed(&mut state, Event::Operations(list.clone()));
    let kept = |state: &DashboardState| -> Vec<_> {
        let ended = state.jobs.ended.iter();
        ended
            .map(|ended| (ended.operation_id, ended.serial))
            .collect()
    };
    let first = kept(&state);
    assert_eq!(first[0].0, 100);
    feed(&mut state, Event::Operations(list));
    assert_eq!(kept(&state), first);
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
    // It begins, goes on and ends; the models are listed at either end, and only then.
    let effects = feed(&mut state, running(vec![pull()], |_| {}));
    assert_eq!(effects, [Effect::ListModels]);
    assert_eq!(feed(&mut state, running(vec![pull()], |_| {})), []);
    let effects = feed(&mut state, running(vec![], |_| {}));
    assert_eq!(effects, [Effect::ListModels, Effect::ListOperations]);
    let done = ended_as(pull(), OperationState::Done);
    feed(&mut state, Event::Operations(vec![done]));
    let ended = &state.jobs.ended[0];
    assert_eq!(ended.outcome, WorkOutcome::Done("is there".into()));
    assert_eq!(ended.elapsed_ms, 40_000.0);
}

#[test]
fn a_download_that_is_not_whole_is_gone_on_with() {
    let mut state = page();
    let mut partial = models();
    partial[2].state = ModelState::Partial.into();
    feed(&mut state, Event::Models(partial));
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
