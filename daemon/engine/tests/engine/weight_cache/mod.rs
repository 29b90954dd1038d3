//! Streaming converted weights from a copy on disk: the same tokens as with all of them in memory, a copy that is used
//! again, and an engine that lives on when one cannot be written.

mod cached;

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, mpsc},
    time::SystemTime,
};

use rustix::process::{Resource, Rlimit, setrlimit};
use sluice_checkpoint::{CheckpointError, Source, synth::SynthDType};
use sluice_engine::{
    ApplyEvent, Budget, CommandStage, Engine, EngineError, EngineOptions, Event, Generate,
    LoadedModel, Outcome, PlanOptions, PlanSettings, Work,
};
use sluice_plan::{BLOCK_DEFAULT, CANVAS_DEFAULT, Plan, Workload};
use sluice_shared::{level::Level, sampling::EosPolicy};
use sluice_weights::Shape;
use tempfile::TempDir;
use testkit::eventually;

use crate::{
    loading::{self, Loading},
    small,
};

/// Enough layers that streaming some saves more than its staging buffers take.
const LAYERS: usize = 12;

fn write_source(folder: &Path, seed: u64) {
    small::write_as(folder, small::shape(LAYERS), SynthDType::Bf16, seed);
}

/// A source in `model`, and `copies` for its copies.
fn setup() -> TempDir {
    let folder = TempDir::new().unwrap();
    small::write(folder.path(), LAYERS);
    folder
}

fn start(folder: &TempDir, keep_converted: bool) -> Engine {
    Engine::start(EngineOptions {
        threads: 2,
        weight_cache: Some(folder.path().join("copies")),
        keep_converted,
        ..EngineOptions::default()
    })
    .unwrap()
}

fn try_load(
    engine: &Engine,
    folder: &TempDir,
    settings: PlanSettings,
) -> (Loading, Result<Arc<LoadedModel>, EngineError>) {
    loading::load(engine, &folder.path().join("model"), settings)
}

fn load(engine: &Engine, folder: &TempDir, settings: PlanSettings) -> Loading {
    let (loading, result) = try_load(engine, folder, settings);
    result.unwrap();
    loading
}

fn resident(level: Level) -> PlanSettings {
    PlanSettings {
        level,
        budget: Budget::Bytes(1 << 30),
        ..PlanSettings::default()
    }
}

/// A budget under which some of this level's weights are streamed; a model must be loaded.
fn streaming(engine: &Engine, level: Level) -> PlanSettings {
    // What models are planned for when they are loaded.
    let context = engine.model().unwrap().info.context_length;
    let workload = Workload::new(CANVAS_DEFAULT.min(context), BLOCK_DEFAULT, 1);
    let plan = |budget_bytes| {
        let change = PlanOptions {
            level: Some(level),
            budget: Some(Budget::Bytes(budget_bytes)),
            ..PlanOptions::default()
        };
        engine.plan(&change, workload).unwrap()
    };
    let whole = plan(1 << 30).peak_bytes();
    let budget_bytes = whole - whole / 12;
    assert!(plan(budget_bytes).streamed_bytes() > 0);
    PlanSettings {
        level,
        budget: Budget::Bytes(budget_bytes),
        ..PlanSettings::default()
    }
}

/// A model of which some is streamed from a copy.
fn streaming_aggressive() -> (TempDir, Engine, PlanSettings) {
    let folder = setup();
    let engine = start(&folder, false);
    load(&engine, &folder, resident(Level::Aggressive));
    let settings = streaming(&engine, Level::Aggressive);
    load(&engine, &folder, settings);
    (folder, engine, settings)
}

fn request(engine: &Engine, steps: usize) -> Work {
    request_of(engine, 32, steps)
}

fn request_of(engine: &Engine, length: usize, steps: usize) -> Work {
    let model = engine.model().unwrap().id;
    Work::Generate(Generate {
        steps,
        eos: EosPolicy::Suppress,
        ..Generate::greedy(model, vec![1, 2, 3], length)
    })
}

fn tokens(engine: &Engine) -> Vec<u32> {
    match engine.run(request(engine, 16)).unwrap() {
        Outcome::Generated(generated) => generated.tokens,
        other => panic!("{other:?}"),
    }
}

fn apply(engine: &Engine, settings: PlanSettings) -> mpsc::Receiver<ApplyEvent> {
    let (send, events) = mpsc::channel();
    let change = PlanOptions {
        level: Some(settings.level),
        budget: Some(settings.budget),
        ..PlanOptions::default()
    };
    engine.apply(change, Box::new(move |event| drop(send.send(event))));
    events
}

fn applied(events: &mpsc::Receiver<ApplyEvent>) -> Result<Arc<Plan>, EngineError> {
    events
        .iter()
        .find_map(|event| match event {
            ApplyEvent::Finished(result) => Some(result),
            _ => None,
        })
        .unwrap()
}

/// Names of what is in the folder for copies, and when it was written.
fn cached_files(folder: &TempDir) -> Vec<(PathBuf, SystemTime)> {
    let Ok(files) = fs::read_dir(folder.path().join("copies")) else {
        return Vec::new();
    };
    files
        .map(|file| {
            let path = file.unwrap().path();
            let modified = fs::metadata(&path).unwrap().modified().unwrap();
            (path, modified)
        })
        .collect()
}

#[test]
fn streamed_from_a_copy_is_resident_token_for_token_and_the_copy_is_used_again() {
    let folder = setup();
    let engine = start(&folder, false);
    for level in [Level::Aggressive, Level::Moderate] {
        let loading = load(&engine, &folder, resident(level));
        assert!(loading.conversion.is_empty(), "nothing is streamed");
        let before = cached_files(&folder).len();
        let expected = tokens(&engine);

        let settings = streaming(&engine, level);
        let loading = load(&engine, &folder, settings);
        assert!(loading.plans.last().unwrap().streamed_bytes() > 0);
        let &(done, total) = loading.conversion.last().unwrap();
        assert_eq!(done, total);
        let written = cached_files(&folder);
        assert_eq!(written.len(), before + 1);
        assert_eq!(tokens(&engine), expected);
        let streamed = engine.in_force().unwrap().passes.streamed_bytes;
        assert!(streamed > 0);

        let loading = load(&engine, &folder, settings);
        assert!(loading.conversion.is_empty());
        assert_eq!(cached_files(&folder), written);
        assert_eq!(tokens(&engine), expected);
        // What is resident comes from the copy, too.
        load(&engine, &folder, resident(level));
        assert_eq!(tokens(&engine), expected);
    }
}

#[test]
fn a_source_written_anew_gets_a_copy_of_its_own() {
    let (folder, engine, settings) = streaming_aggressive();
    let first = tokens(&engine);
    fs::remove_dir_all(folder.path().join("model")).unwrap();
    write_source(&folder.path().join("model"), 2);
    load(&engine, &folder, settings);
    assert_eq!(cached_files(&folder).len(), 2);
    let second = tokens(&engine);
    assert_ne!(second, first);
    load(&engine, &folder, resident(Level::Aggressive));
    assert_eq!(tokens(&engine), second);
}

#[test]
fn a_damaged_copy_is_told_and_written_anew() {
    let (folder, engine, settings) = streaming_aggressive();
    let expected = tokens(&engine);
    let (path, _) = cached_files(&folder).remove(0);
    let whole = fs::read(&path).unwrap();
    for damaged in [&whole[..whole.len() / 2], &b"garbage in its place"[..]] {
        fs::write(&path, damaged).unwrap();
        let loading = load(&engine, &folder, settings);
        let notice = &loading.notices[0];
        assert!(notice.contains(path.to_str().unwrap()), "{notice}");
        assert!(!loading.conversion.is_empty());
        assert!(fs::read(&path).unwrap() == whole);
        assert_eq!(tokens(&engine), expected);
    }
}

#[test]
fn a_copy_overwritten_while_it_is_streamed_is_replaced_when_the_level_is_applied_again() {
    let (folder, engine, settings) = streaming_aggressive();
    let expected = tokens(&engine);
    let (path, _) = cached_files(&folder).remove(0);
    let whole = fs::read(&path).unwrap();
    // Garbage is written anew; the same bytes, under another time, are opened anew.
    for overwritten in [&b"garbage in its place"[..], &whole] {
        fs::write(&path, overwritten).unwrap();
        let (send, outcome) = mpsc::channel();
        let sink = Box::new(move |event| {
            if let Event::Finished(result) = event {
                send.send(result).unwrap();
            }
        });
        engine
            .submit(Default::default(), request(&engine, 16), sink)
            .unwrap();
        let error = outcome.recv().unwrap().unwrap_err();
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
        applied(&apply(&engine, settings)).unwrap();
        assert_eq!(tokens(&engine), expected);
        assert!(fs::read(&path).unwrap() == whole);
    }
}

#[test]
fn without_a_folder_nothing_converted_is_streamed() {
    let folder = setup();
    let engine = Engine::start(EngineOptions {
        threads: 2,
        ..EngineOptions::default()
    })
    .unwrap();
    load(&engine, &folder, resident(Level::Aggressive));
    let expected = tokens(&engine);
    let settings = streaming(&engine, Level::Aggressive);
    let is_refusal = |error: &EngineError| {
        let level = Level::Aggressive;
        matches!(error, EngineError::NoWeightCache { level: of, streamed_bytes: 1.. } if *of == level)
    };
    let error = applied(&apply(&engine, settings)).unwrap_err();
    assert!(is_refusal(&error), "{error}");
    assert_eq!(tokens(&engine), expected, "the model that was there serves");
    // A load takes the nearest level that needs no copy, and says so.
    let (loading, loaded) = try_load(&engine, &folder, settings);
    loaded.unwrap();
    assert_eq!(engine.settings().level, Level::Standard);
    let said = "level standard (more faithful) replaces aggressive";
    assert!(
        loading.notices.iter().any(|notice| notice.contains(said)),
        "{:?}",
        loading.notices
    );
}

#[test]
fn a_copy_is_kept_of_what_is_resident_when_that_is_wished() {
    let folder = setup();
    let engine = start(&folder, true);
    load(&engine, &folder, resident(Level::Standard));
    assert!(cached_files(&folder).is_empty(), "nothing is converted");
    let loading = load(&engine, &folder, resident(Level::Aggressive));
    assert!(!loading.conversion.is_empty());
    let expected = tokens(&engine);
    assert_eq!(cached_files(&folder).len(), 1);
    let loading = load(&engine, &folder, resident(Level::Aggressive));
    assert!(loading.conversion.is_empty());
    assert_eq!(tokens(&engine), expected);
}

#[test]
fn a_change_converts_beside_a_running_request() {
    let folder = setup();
    let engine = start(&folder, false);
    load(&engine, &folder, resident(Level::Standard));
    let settings = streaming(&engine, Level::Aggressive);

    let (send, passes) = mpsc::channel();
    let sink = Box::new(move |event| drop(send.send(event)));
    let changes = {
        engine
            .submit(Default::default(), request(&engine, 32), sink)
            .unwrap();
        assert!(matches!(passes.recv().unwrap(), Event::Started { .. }));
        apply(&engine, settings)
    };
    let converted = changes
        .iter()
        .take_while(|event| !matches!(event, ApplyEvent::Finished(_)));
    let is_converting = |event: &ApplyEvent| {
        let converting = CommandStage::Converting;
        matches!(event, ApplyEvent::Progress { stage, .. } if *stage == converting)
    };
    let converted = converted.filter(is_converting);
    assert!(converted.count() > 0);
    let outcome = passes.iter().find_map(|event| match event {
        Event::Finished(result) => Some(result.unwrap()),
        _ => None,
    });
    let Some(Outcome::Generated(generated)) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(generated.passes, 32, "no pass is lost");
    eventually("the level", || engine.settings() == settings);
    assert_eq!(cached_files(&folder).len(), 1);
    let switched = tokens(&engine);

    // From one converted level that is streamed to another.
    let other = streaming(&engine, Level::Moderate);
    applied(&apply(&engine, other)).unwrap();
    let expected = tokens(&engine);
    load(&engine, &folder, resident(Level::Moderate));
    assert_eq!(tokens(&engine), expected);
    load(&engine, &folder, resident(Level::Aggressive));
    assert_eq!(tokens(&engine), switched);
    // And from what is streamed to what all stays, weight group by weight group.
    load(&engine, &folder, settings);
    // The request's passes meet weight groups of both levels.
    let happenings = change_and_request(&engine, resident(Level::Moderate), request(&engine, 32));
    place(&happenings, |happening| {
        matches!(happening, Happening::Request(Event::Finished(Ok(_))))
    });
    eventually("the level", || {
        engine.settings() == resident(Level::Moderate)
    });
    assert_eq!(tokens(&engine), expected);
}

#[test]
fn another_change_ends_a_conversion() {
    let folder = setup();
    let engine = start(&folder, false);
    load(&engine, &folder, resident(Level::Standard));
    let expected = tokens(&engine);
    let first = apply(&engine, streaming(&engine, Level::Aggressive));
    let second = apply(&engine, resident(Level::Standard));
    // One that is over before the second change comes has left a whole copy.
    let outcome = applied(&first);
    let is_whole = |path: &Path| path.extension() == Some(OsStr::new("safetensors"));
    let left = cached_files(&folder);
    assert!(
        left.iter().all(|(path, _)| is_whole(path)),
        "what is unfinished is gone before anybody hears of it: {left:?}"
    );
    assert!(
        matches!(outcome, Ok(_) | Err(EngineError::Superseded)),
        "{outcome:?}"
    );
    applied(&second).unwrap();
    assert_eq!(tokens(&engine), expected);
}

/// What happened on the engine's thread, in order.
#[derive(Debug)]
enum Happening {
    Request(Event),
    Change(ApplyEvent),
}

/// Asks for a change and then for a request; what happened until both were over.
fn change_and_request(engine: &Engine, settings: PlanSettings, work: Work) -> Vec<Happening> {
    change_and_held_request(engine, settings, work, |_| {})
}

/// The same; the engine goes on from an event of the request when `hold` returns.
fn change_and_held_request(
    engine: &Engine,
    settings: PlanSettings,
    work: Work,
    mut hold: impl FnMut(&Event) + Send + 'static,
) -> Vec<Happening> {
    let (send, happenings) = mpsc::channel();
    let (planned, is_planned) = mpsc::channel();
    let (submitted, is_submitted) = mpsc::channel();
    let change = PlanOptions {
        level: Some(settings.level),
        budget: Some(settings.budget),
        ..PlanOptions::default()
    };
    let report = send.clone();
    let report = Box::new(move |event| {
        // However late this test's thread runs: the engine meets the request while it converts.
        if matches!(event, ApplyEvent::Planned { .. }) {
            planned.send(()).unwrap();
            let () = is_submitted.recv().unwrap();
        }
        drop(report.send(Happening::Change(event)));
    });
    engine.apply(change, report);
    // A request that waits would put off a change that comes so soon after another.
    is_planned.recv().unwrap();
    let sink = Box::new(move |event| {
        hold(&event);
        drop(send.send(Happening::Request(event)));
    });
    engine.submit(Default::default(), work, sink).unwrap();
    submitted.send(()).unwrap();
    happenings.iter().collect()
}

fn place(happenings: &[Happening], is_it: impl Fn(&Happening) -> bool) -> usize {
    let place = happenings.iter().position(is_it);
    place.unwrap_or_else(|| panic!("{happenings:?}"))
}

#[test]
fn a_request_need_not_wait_for_a_conversion() {
    let folder = setup();
    let engine = start(&folder, false);
    load(&engine, &folder, resident(Level::Standard));
    let settings = streaming(&engine, Level::Aggressive);
    let happenings = change_and_request(&engine, settings, request(&engine, 32));
    let planned = place(&happenings, |happening| {
        matches!(happening, Happening::Change(ApplyEvent::Planned { .. }))
    });
    let started = place(&happenings, |happening| {
        matches!(happening, Happening::Request(Event::Started { .. }))
    });
    let finished = place(&happenings, |happening| {
        matches!(happening, Happening::Change(ApplyEvent::Finished(Ok(_))))
    });
    assert!(planned < started && started < finished, "{happenings:?}");
    assert_eq!(engine.settings(), settings);
}

#[test]
fn a_request_that_needs_room_gets_it_while_weights_are_converted() {
    let folder = TempDir::new().unwrap();
    let wide = Shape {
        context_length: 512,
        ..small::shape(LAYERS)
    };
    small::write_shape(folder.path(), wide);
    let engine = start(&folder, false);
    load(&engine, &folder, resident(Level::Standard));
    load(&engine, &folder, streaming(&engine, Level::Standard));
    let settings = streaming(&engine, Level::Aggressive);
    // However long the conversion takes: the request runs on beside it until the copy is there, and some passes longer.
    let work = request_of(&engine, 330, 12);
    let copies = folder.path().join("copies");
    let is_whole = |file: fs::DirEntry| file.path().extension() == Some(OsStr::new("safetensors"));
    let hold = move |event: &Event| {
        if matches!(event, Event::Pass(_)) {
            eventually("a whole copy", || {
                fs::read_dir(&copies).is_ok_and(|files| files.flatten().any(is_whole))
            });
        }
    };
    let happenings = change_and_held_request(&engine, settings, work, hold);

    let more_streamed = place(
        &happenings,
        |happening| matches!(happening, Happening::Request(Event::Notice(notice)) if notice.contains("canvas")),
    );
    let finished = place(&happenings, |happening| {
        matches!(happening, Happening::Change(ApplyEvent::Finished(Ok(_))))
    });
    assert!(more_streamed < finished, "{happenings:?}");
    let Happening::Change(ApplyEvent::Finished(Ok(plan))) = &happenings[finished] else {
        unreachable!("this is where it was found")
    };
    assert_eq!(plan.level, Level::Aggressive);
    assert!(plan.workload.canvas_length >= 333, "what runs still fits");
    place(&happenings, |happening| {
        matches!(happening, Happening::Request(Event::Finished(Ok(_))))
    });
    assert_eq!(engine.settings(), settings);
}

/// Set for the process that has the small disk.
const SMALL_DISK: &str = "SLUICE_TEST_SMALL_DISK";
const SMALL_DISK_TEST: &str =
    "weight_cache::a_full_disk_leaves_nothing_behind_and_the_engine_serves";

/// A limit on the size of files stands for a disk that fills up while the copy is written. It holds for a process, so
/// the test runs itself again in one that has it.
#[test]
fn a_full_disk_leaves_nothing_behind_and_the_engine_serves() {
    if let Some(folder) = std::env::var_os(SMALL_DISK) {
        return serve_on_a_small_disk(Path::new(&folder));
    }
    let folder = setup();
    // Without this the limit's signal would kill.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", SMALL_DISK_TEST, "--nocapture"])
        .env(SMALL_DISK, folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1 passed"), "{text}");
}

fn serve_on_a_small_disk(folder: &Path) {
    let options = EngineOptions {
        threads: 2,
        weight_cache: Some(folder.join("copies")),
        keep_converted: true,
        ..EngineOptions::default()
    };
    let engine = Engine::start(options).unwrap();
    let source = || Source::Folder(folder.join("model"));
    let try_load = |settings| engine.load_now(source(), settings);
    try_load(resident(Level::Standard)).unwrap();
    let expected = tokens(&engine);
    // Only now: the first load measures the device with a file in memory.
    let room = Some(1 << 20);
    let limit = Rlimit {
        current: room,
        maximum: room,
    };
    setrlimit(Resource::Fsize, limit).unwrap();
    let settings = streaming(&engine, Level::Aggressive);
    let check = |error: EngineError| {
        let EngineError::Checkpoint(CheckpointError::WeightCache { path, cause }) = error else {
            panic!("{error}")
        };
        assert!(path.starts_with(folder.join("copies")));
        assert_eq!(cause.kind(), std::io::ErrorKind::FileTooLarge);
        assert_eq!(fs::read_dir(folder.join("copies")).unwrap().count(), 0);
        assert_eq!(tokens(&engine), expected);
    };
    check(applied(&apply(&engine, settings)).unwrap_err());
    assert_eq!(engine.settings(), resident(Level::Standard));

    // What needn't be on disk is converted in memory.
    applied(&apply(&engine, resident(Level::Aggressive))).unwrap();
    assert_eq!(engine.settings(), resident(Level::Aggressive));
    assert_ne!(tokens(&engine), expected);
    assert_eq!(fs::read_dir(folder.join("copies")).unwrap().count(), 0);
}
