//! Letting a model go: all of its memory comes back, and the engine is as it was before the first load.

use super::*;

fn unload(world: &World, only_idle: bool) -> mpsc::Receiver<bool> {
    let (send, went) = mpsc::channel();
    let World { engine, model } = world;
    engine.unload(
        model.id,
        only_idle,
        Box::new(move |goes| send.send(goes).unwrap()),
    );
    went
}

#[test]
fn an_unloaded_model_leaves_no_byte_in_the_ledger() {
    for level in [Level::Off, Level::Aggressive] {
        let engine = start();
        let before = engine.memory();
        let settings = PlanSettings {
            level,
            ..PlanSettings::default()
        };
        let model = load(&engine, settings).unwrap();
        let world = World { engine, model };
        let tokens = world.generate().tokens;
        assert!(world.engine.memory().used_bytes > before.used_bytes + (1 << 20));

        assert!(unload(&world, false).recv().unwrap());
        let after = world.engine.memory();
        let held = |report: &ledger::LedgerReport| -> Vec<_> {
            let kinds = report.kinds.iter();
            kinds.map(|kind| (kind.kind.name(), kind.bytes)).collect()
        };
        assert_eq!(held(&after), held(&before));
        assert!(world.engine.model().is_none() && world.engine.in_force().is_none());
        assert!(
            !unload(&world, false).recv().unwrap(),
            "nothing is left to go"
        );

        // The settings are those that it had, and the text what it was.
        let model = load(&world.engine, world.engine.settings()).unwrap();
        assert_eq!(world.engine.settings().level, level);
        let world = World { model, ..world };
        assert_eq!(world.generate().tokens, tokens);
    }
}

#[test]
fn requests_are_neither_cut_nor_kept_for_a_model_that_goes() {
    let world = world(Level::Standard, None);
    let (started, passes) = mpsc::channel();
    let running = world.submit(world.request(48), move |_| {
        let _ = started.send(());
    });
    passes.recv().unwrap();
    let waiting = world.submit(world.request(48), |_| {});
    // Somebody wants the model, so idleness is over.
    let stays = unload(&world, true);
    assert!(!stays.recv().unwrap());
    assert!(
        running.recv().unwrap().is_ok(),
        "what runs comes to its end"
    );
    assert!(waiting.recv().unwrap().is_ok());

    let (started, passes) = mpsc::channel();
    let running = world.submit(world.request(48), move |_| {
        let _ = started.send(());
    });
    passes.recv().unwrap();
    let waiting = world.submit(world.request(48), |_| {});
    let goes = unload(&world, false);
    assert!(running.recv().unwrap().is_ok());
    assert!(goes.recv().unwrap());
    assert!(matches!(waiting.recv().unwrap(), Err(EngineError::NoModel)));
    assert!(unload(&world, true).recv().is_ok_and(|went| !went));
}

#[test]
fn a_model_that_came_meanwhile_stays() {
    let world = world(Level::Standard, None);
    let (send, loaded) = mpsc::channel();
    let report = Box::new(move |event| {
        if let LoadEvent::Finished(result) = event {
            send.send(result).unwrap();
        }
    });
    let settings = PlanSettings::default();
    (world.engine).load(demonstration(), settings, Arc::default(), report);
    let went = unload(&world, false);
    let next = loaded.recv().unwrap().unwrap();
    assert!(!went.recv().unwrap());
    assert_eq!(world.engine.model().map(|model| model.id), Some(next.id));
}

#[test]
fn a_change_under_way_keeps_a_model_that_nobody_asks() {
    let world = world(Level::Off, None);
    // The engine's thread is held, so that all of it waits.
    let (release, held) = mpsc::channel::<()>();
    let hold = Box::new(move |_| held.recv().unwrap());
    world.engine.unload(ModelId(0), false, hold);
    let changed = world.apply(level(Level::Aggressive));
    let went = unload(&world, true);
    release.send(()).unwrap();
    assert!(!went.recv().unwrap(), "one waits");
    changed.recv().unwrap().unwrap();

    let (planned, is_planned) = mpsc::channel();
    let (release, held) = mpsc::channel::<()>();
    let (send, changed) = mpsc::channel();
    let report = Box::new(move |event| match event {
        ApplyEvent::Planned { .. } => {
            planned.send(()).unwrap();
            held.recv().unwrap();
        }
        ApplyEvent::Finished(result) => send.send(result).unwrap(),
        _ => {}
    });
    world.engine.apply(level(Level::Off), report);
    is_planned.recv().unwrap();
    let went = unload(&world, true);
    release.send(()).unwrap();
    assert!(!went.recv().unwrap(), "one is under way");
    changed.recv().unwrap().unwrap();
    assert!(unload(&world, true).recv().unwrap());
}
