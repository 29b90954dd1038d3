//! What one daemon leaves and the next one finds.

use std::{fs, sync::mpsc};

use tempfile::TempDir;

use super::*;

fn open(folder: &TempDir) -> StateStore {
    StateStore::open(Some(folder.path())).unwrap()
}

fn default(store: &StateStore) -> Option<String> {
    store.read(|state| state.default_model.clone())
}

fn set_default(store: &StateStore, name: &str) -> Result<(), SaveError> {
    store.save(|state| state.default_model = Some(name.to_owned()))
}

fn names(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

fn operation(id: u64, state: v1::OperationState) -> v1::Operation {
    v1::Operation {
        operation_id: id,
        kind: v1::OperationKind::Compress.into(),
        state: state.into(),
        input_path: "/m/a".to_owned(),
        threads: Some(2),
        notices: vec!["a notice".to_owned()],
        created_unix_ms: 1,
        started_unix_ms: Some(2),
        elapsed_ms: 0.5,
        progress: Some(v1::OperationProgress {
            stage: v1::OperationStage::Compressing.into(),
            unit: v1::ProgressUnit::Bytes.into(),
            done: 1,
            total: Some(2),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// An operation with all that a lasting picture may have.
fn ended(id: u64) -> v1::Operation {
    v1::Operation {
        ended_unix_ms: Some(3),
        error: Some(v1::OperationError {
            grpc_code: 8,
            message: "text".to_owned(),
            reason: "NO_SPACE".to_owned(),
            hint: "hint".to_owned(),
            figures: [("free_bytes".to_owned(), "1".to_owned())].into(),
        }),
        detail: Some(v1::operation::Detail::PullPlan(v1::PullPlan {
            name: "o/m".to_owned(),
            files: 1,
            ..Default::default()
        })),
        outcome: Some(v1::operation::Outcome::Compress(v1::CompressResult {
            file_bytes: u64::MAX,
            omitted_files: vec!["b".to_owned()],
            relative_error: Some(0.25),
            ..Default::default()
        })),
        ..operation(id, v1::OperationState::Done)
    }
}

#[test]
fn what_is_saved_is_there_for_the_next_daemon() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder);
    let change = |state: &mut State| {
        state.default_model = Some("o/m".to_owned());
        state.put_model(SavedModel {
            model: "/m".to_owned(),
            level: Some("moderate".to_owned()),
            ..SavedModel::default()
        });
        state.put_path("/m");
        state.put_operation(ended(7));
        state.put_operation(operation(9, v1::OperationState::Running));
    };
    store.save(change).unwrap();
    let before = store.read(Clone::clone);
    drop(store);
    assert_eq!(open(&folder).read(Clone::clone), before);
    assert_eq!(before.last_operation_id, 9);
    assert_eq!(names(&folder), [".state.json", ".state.lock"]);
}

#[test]
fn every_outcome_is_read_as_it_was_written() {
    use v1::operation::Outcome;
    let outcomes = [
        Outcome::Load(v1::LoadResult {
            model: Some(v1::Model {
                name: "m".to_owned(),
                ..Default::default()
            }),
            plan: Some(v1::Plan {
                pass_ms: Some(1.5),
                ..Default::default()
            }),
        }),
        Outcome::Pull(v1::PullResult {
            model: Some(v1::Model::default()),
        }),
        Outcome::Apply(v1::ApplyResult {
            plan: Some(v1::Plan::default()),
            device_bytes: 3,
        }),
        Outcome::Decompress(v1::DecompressResult {
            original_bytes: 1,
            files: 2,
        }),
        Outcome::Verify(v1::VerifyResult {
            damage: vec!["a".to_owned()],
            ..Default::default()
        }),
    ];
    for outcome in outcomes {
        let picture = v1::Operation {
            outcome: Some(outcome),
            ..operation(1, v1::OperationState::Done)
        };
        let text = serde_json::to_string(&picture).unwrap();
        let read: v1::Operation = serde_json::from_str(&text).unwrap();
        assert_eq!(read, picture, "{text}");
    }
}

#[test]
fn changes_that_come_while_the_disk_is_busy_are_written_as_one() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder);
    let (send, written) = mpsc::channel();
    // The thread that writes waits here, as for a slow disk.
    let (go_on, slow) = mpsc::channel::<()>();
    store.change(
        |_| {},
        move |_| {
            let _ = slow.recv();
        },
    );
    for number in 0..100 {
        let send = send.clone();
        store.change(
            |state| state.default_model = Some(number.to_string()),
            move |result| send.send((number, result.is_ok())).unwrap(),
        );
    }
    drop(go_on);
    let told: Vec<_> = (0..100).map(|_| written.recv().unwrap()).collect();
    assert_eq!(told, Vec::from_iter((0..100).map(|number| (number, true))));
    drop(store);
    assert_eq!(default(&open(&folder)).as_deref(), Some("99"));
}

#[test]
fn a_file_that_cannot_be_read_is_set_aside() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join(".state.json");
    let broken = [
        "",
        "[",
        "{}",
        "{\"version\": 2}",
        "{\"version\": 1, \"paths\": 3}",
    ];
    for text in broken {
        fs::write(&file, text).unwrap();
        let store = open(&folder);
        assert_eq!(store.read(Clone::clone), State::default(), "{text}");
        set_default(&store, "o/m").unwrap();
    }
    // The last place is taken again, and no other.
    let aside = |number| {
        let name = format!(".state.json.unreadable-{number}");
        fs::read_to_string(folder.path().join(name)).ok()
    };
    let kept: Vec<_> = (1..=5).map(aside).collect();
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(
        kept,
        [
            text(broken[0]),
            text(broken[1]),
            text(broken[2]),
            text(broken[4]),
            None
        ]
    );
    assert_eq!(default(&open(&folder)).as_deref(), Some("o/m"));
    // A key that is not known here is passed over.
    fs::write(
        &file,
        r#"{"version": 1, "default_model": "a", "colour": "red"}"#,
    )
    .unwrap();
    assert_eq!(default(&open(&folder)).as_deref(), Some("a"));
}

#[test]
fn files_of_versions_before_are_read_once() {
    let folder = TempDir::new().unwrap();
    let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    put(".default", "o/m\n");
    put(
        ".settings.json",
        r#"{"models": [{"model": "/m/a.gguf", "level": "off", "budget": "1GiB"}]}"#,
    );
    put(".paths", "/m/a.gguf\n/m/b.gguf\n");
    // Left by a kill.
    put(".default.new", "o/");
    put(".state.json.new", "{");
    put("mine.new", "a user's");
    let store = open(&folder);
    let state = store.read(Clone::clone);
    assert_eq!(state.default_model.as_deref(), Some("o/m"));
    assert_eq!(
        state.model("/m/a.gguf").unwrap().level.as_deref(),
        Some("off")
    );
    assert_eq!(state.paths, ["/m/a.gguf", "/m/b.gguf"]);
    // Nothing is lost where nothing could be written yet.
    assert!(names(&folder).contains(&".default".to_owned()));
    set_default(&store, "o/n").unwrap();
    assert_eq!(names(&folder), [".state.json", ".state.lock", "mine.new"]);
    drop(store);
    let again = open(&folder).read(Clone::clone);
    assert_eq!(
        (again.default_model.as_deref(), again.paths.len()),
        (Some("o/n"), 2)
    );
}

#[test]
fn a_write_that_fails_is_told_and_what_it_was_for_holds_until_the_end() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder);
    set_default(&store, "o/m").unwrap();
    // No file takes the place of a folder.
    let file = folder.path().join(".state.json");
    fs::remove_file(&file).unwrap();
    fs::create_dir_all(file.join("in the way")).unwrap();
    let error = set_default(&store, "o/n").unwrap_err();
    assert!(error.to_string().contains(".state.json"), "{error}");
    assert_eq!(default(&store).as_deref(), Some("o/n"));
    // The next write has it, too.
    fs::remove_dir_all(&file).unwrap();
    store.save(|state| state.put_path("/m")).unwrap();
    drop(store);
    assert_eq!(default(&open(&folder)).as_deref(), Some("o/n"));
    // A place where no folder can be.
    let nowhere = TempDir::new().unwrap();
    fs::write(nowhere.path().join("file"), "").unwrap();
    let store = StateStore::open(Some(&nowhere.path().join("file/models"))).unwrap();
    assert!(matches!(
        set_default(&store, "o/m"),
        Err(SaveError::Io { .. })
    ));
}

#[test]
fn a_second_daemon_writes_once_the_first_has_ended() {
    let folder = TempDir::new().unwrap();
    let first = open(&folder);
    first.save(|state| state.put_operation(ended(1))).unwrap();
    let second = open(&folder);
    assert!(matches!(
        set_default(&second, "o/second"),
        Err(SaveError::Locked { .. })
    ));
    // The jobs are the other one's.
    assert!(second.read(|state| state.operations.is_empty()));
    first
        .save(|state| {
            state.default_model = Some("o/first".to_owned());
            state.put_model(SavedModel {
                model: "/m".to_owned(),
                ..SavedModel::default()
            });
        })
        .unwrap();
    drop(first);
    second.save(|state| state.put_path("/p")).unwrap();
    drop(second);
    let state = open(&folder).read(Clone::clone);
    assert_eq!(state.default_model.as_deref(), Some("o/second"));
    assert_eq!((state.models.len(), state.paths.len()), (1, 1));
    assert_eq!(state.operations.len(), 1);
}

#[test]
fn all_lists_are_bounded() {
    let mut state = State::default();
    for number in 0..1000 {
        let name = format!("/m/{number}");
        state.put_path(&name);
        state.put_model(SavedModel {
            model: name,
            ..SavedModel::default()
        });
        state.put_operation(ended(2 * number));
        let running = operation(2 * number + 1, v1::OperationState::Running);
        state.put_operation(running);
    }
    assert_eq!(state.paths.len(), PATHS_MAX);
    assert_eq!(state.models.len(), MODELS_MAX);
    assert_eq!(state.operations.len(), ENDED_MAX + RUNNING_MAX);
    assert_eq!(state.paths[PATHS_MAX - 1], "/m/999");
    assert!(state.model("/m/744").is_some() && state.model("/m/743").is_none());
}

fn asked(name: &str) -> SavedModel {
    SavedModel {
        model: name.to_owned(),
        level: Some("off".to_owned()),
        ..SavedModel::default()
    }
}

fn learned() -> SavedExperts {
    let figures = r#"{"shape": 7, "spread": 0.5, "turnover": 0.25}"#;
    serde_json::from_str(figures).unwrap()
}

#[test]
fn what_is_learned_leaves_the_age_of_what_was_asked_for() {
    let mut state = State::default();
    state.put_model(asked("/m/a"));
    state.put_model(asked("/m/b"));
    state.put_experts("/m/a", learned());
    assert_eq!(state.models[0].experts, Some(learned()));
    assert_eq!(state.models[0].level.as_deref(), Some("off"));
    assert_eq!(state.models[1].model, "/m/b");
}

#[test]
fn what_was_only_learned_is_forgotten_first() {
    let mut state = State::default();
    state.put_model(asked("/m/first"));
    state.put_experts("/l/a", learned());
    state.put_experts("/l/b", learned());
    for number in 3..MODELS_MAX {
        state.put_model(asked(&format!("/m/{number}")));
    }
    // The one that is in use stays longest.
    state.put_experts("/l/a", learned());
    state.put_model(asked("/m/more"));
    assert!(state.model("/l/a").is_some() && state.model("/l/b").is_none());
    state.put_model(asked("/m/last"));
    assert!(state.model("/l/a").is_none());
    // Where all places are taken by what was asked for, nothing new is learned.
    state.put_experts("/l/a", learned());
    state.put_experts("/m/first", learned());
    assert!(state.model("/l/a").is_none());
    assert_eq!(state.models[0].model, "/m/first");
    assert_eq!(state.models[0].experts, Some(learned()));
    assert_eq!(state.models.len(), MODELS_MAX);
}

#[test]
fn what_is_learned_leaves_what_another_daemon_was_asked_for() {
    let folder = TempDir::new().unwrap();
    let first = open(&folder);
    let second = open(&folder);
    second.change(|state| state.put_experts("/m", learned()), |_| {});
    first.save(|state| state.put_model(asked("/m"))).unwrap();
    drop(first);
    second.save(|state| state.put_path("/p")).unwrap();
    let both = SavedModel {
        experts: Some(learned()),
        ..asked("/m")
    };
    assert_eq!(second.read(|state| state.models.clone()), [both]);
}

#[test]
fn without_a_folder_it_lasts_as_long_as_the_daemon() {
    let store = StateStore::open(None).unwrap();
    set_default(&store, "o/m").unwrap();
    assert_eq!(default(&store).as_deref(), Some("o/m"));
}
