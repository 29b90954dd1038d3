//! Switches of level with everything in memory: what one converts is kept, and the next reads it.

use sluice_checkpoint::{CachedWeights, cached_weights, remove_cached};
use sluice_plan::SwitchEstimate;

use super::*;

fn cached(folder: &TempDir) -> Vec<CachedWeights> {
    cached_weights(&folder.path().join("copies"))
}

/// What a switch said of itself.
#[derive(Default)]
struct Switched {
    time: Option<SwitchEstimate>,
    converted: bool,
    notices: Vec<String>,
}

fn switch(engine: &Engine, level: Level) -> Switched {
    let mut switched = Switched::default();
    for event in apply(engine, resident(level)) {
        match event {
            ApplyEvent::Planned { estimate: time, .. } => switched.time = time,
            ApplyEvent::Notice(notice) => switched.notices.push(notice),
            ApplyEvent::Progress {
                stage: CommandStage::Converting,
                ..
            } => switched.converted = true,
            ApplyEvent::Progress { .. } => {}
            ApplyEvent::Finished(result) => {
                result.unwrap();
                return switched;
            }
        }
    }
    panic!("every change ends with a result")
}

fn start_within(folder: &TempDir, bytes_max: u64) -> Engine {
    Engine::start(EngineOptions {
        threads: 2,
        weight_cache: Some(folder.path().join("copies")),
        keep_converted: true,
        weight_cache_bytes_max: Some(bytes_max),
        ..EngineOptions::default()
    })
    .unwrap()
}

#[test]
fn the_second_switch_reads_what_the_first_converted() {
    let folder = setup();
    let engine = start(&folder, true);
    load(&engine, &folder, resident(Level::Standard));
    let standard = tokens(&engine);
    let first = switch(&engine, Level::Aggressive);
    assert!(first.converted);
    let written = cached_files(&folder);
    assert_eq!(written.len(), 1);
    let aggressive = tokens(&engine);
    assert_ne!(aggressive, standard);

    assert!(!switch(&engine, Level::Standard).converted);
    assert_eq!(tokens(&engine), standard);
    let second = switch(&engine, Level::Aggressive);
    assert!(!second.converted);
    assert_eq!(cached_files(&folder), written);
    assert_eq!(tokens(&engine), aggressive);
    // What it will take was told, and of what.
    let (first, second) = (first.time.unwrap(), second.time.unwrap());
    assert!(first.converted_weights > 5_000_000 && second.converted_weights == 0);
    assert!(first.idle_s > 0.0 && second.idle_s > 0.0 && second.busy_s > second.idle_s);
    assert!(second.read_bytes < first.read_bytes);
    drop(engine);

    // Over a restart, too, and it is what is converted in memory.
    let again = start(&folder, true);
    assert!(
        load(&again, &folder, resident(Level::Aggressive))
            .conversion
            .is_empty()
    );
    assert_eq!(tokens(&again), aggressive);
    drop(again);
    let removed = remove_cached(&folder.path().join("copies"), |_| true);
    assert_eq!((removed.files, removed.not_removed), (1, 0));
    let without = start(&folder, false);
    load(&without, &folder, resident(Level::Standard));
    assert!(!switch(&without, Level::Aggressive).converted);
    assert_eq!(tokens(&without), aggressive);
    assert!(cached(&folder).is_empty());
}

#[test]
fn what_was_kept_of_another_checkpoint_is_not_used() {
    let folder = setup();
    let engine = start(&folder, true);
    load(&engine, &folder, resident(Level::Standard));
    switch(&engine, Level::Moderate);
    let first = tokens(&engine);
    fs::remove_dir_all(folder.path().join("model")).unwrap();
    write_source(&folder.path().join("model"), 2);
    load(&engine, &folder, resident(Level::Standard));
    assert!(switch(&engine, Level::Moderate).converted);
    assert_ne!(tokens(&engine), first);
    let kept = cached(&folder);
    let source = folder.path().join("model");
    assert_eq!(kept.len(), 2);
    assert!(kept.iter().all(|kept| {
        kept.model == "model"
            && kept.level == Level::Moderate
            && kept.checkpoint.as_ref() == Some(&source)
    }));
    let in_use: Vec<_> = kept.iter().filter(|kept| kept.is_in_use).collect();
    assert_eq!(in_use.len(), 1, "the one in force is another's no more");
}

#[test]
fn what_is_kept_stays_within_its_limit() {
    let folder = setup();
    let engine = start(&folder, true);
    load(&engine, &folder, resident(Level::Standard));
    let mut sizes = [Level::Aggressive, Level::Moderate].map(|level| {
        switch(&engine, level);
        let kept = cached(&folder);
        kept.iter().find(|kept| kept.level == level).unwrap().bytes
    });
    drop(engine);
    sizes.sort_unstable();
    remove_cached(&folder.path().join("copies"), |_| true);

    // Room for either, not for both.
    let limit = sizes[1] + sizes[0] / 2;
    let engine = start_within(&folder, limit);
    let levels = || {
        cached(&folder)
            .iter()
            .map(|kept| kept.level)
            .collect::<Vec<_>>()
    };
    load(&engine, &folder, resident(Level::Standard));
    assert!(switch(&engine, Level::Aggressive).converted);
    assert_eq!(levels(), [Level::Aggressive]);
    // The present level's are in use: the other's aren't kept, and that is said once.
    let switched = switch(&engine, Level::Moderate);
    assert!(
        !switched.converted && switched.notices.len() == 1,
        "{:?}",
        switched.notices
    );
    assert_eq!(levels(), [Level::Aggressive]);
    switch(&engine, Level::Standard);
    let switched = switch(&engine, Level::Moderate);
    assert!(switched.converted);
    assert!(
        switched.notices[0].starts_with("evicted"),
        "{:?}",
        switched.notices
    );
    assert_eq!(levels(), [Level::Moderate]);
}

#[test]
fn a_folder_that_cannot_be_written_is_told_once_and_done_without() {
    let folder = setup();
    fs::write(folder.path().join("copies"), "no folder").unwrap();
    let engine = start(&folder, true);
    load(&engine, &folder, resident(Level::Standard));
    let first = switch(&engine, Level::Aggressive);
    assert_eq!(first.notices.len(), 1, "{:?}", first.notices);
    assert!(first.notices[0].contains("copies"), "{:?}", first.notices);
    switch(&engine, Level::Standard);
    assert!(switch(&engine, Level::Aggressive).notices.is_empty());
}
