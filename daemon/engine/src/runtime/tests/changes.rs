//! Changes that come while another has not begun.

use super::*;

/// A request that runs until it is told to go on, so that changes wait for it.
fn held(world: &World) -> impl FnOnce() {
    let (running, is_running) = mpsc::channel();
    let (go_on, gone_on) = mpsc::channel::<()>();
    let finished = world.submit(world.request(48), move |_| {
        if running.send(()).is_ok() {
            let _ = gone_on.recv();
        }
    });
    is_running.recv().unwrap();
    drop(is_running);
    move || {
        drop(go_on);
        finished.recv().unwrap().unwrap();
    }
}

#[test]
fn changes_that_wait_are_made_together_and_the_earlier_hears_so() {
    let world = world(Level::Off, None);
    let go_on = held(&world);
    let first = world.apply(level(Level::Moderate));
    let second = world.apply(budget(1 << 30));
    // Told at once, not when the second is made.
    assert!(matches!(
        first.recv().unwrap(),
        Err(EngineError::Superseded)
    ));
    go_on();
    let plan = second.recv().unwrap().unwrap();
    assert_eq!((plan.level, plan.budget_bytes), (Level::Moderate, 1 << 30));
    let settings = world.engine.settings();
    assert_eq!(settings.level, Level::Moderate);
    assert_eq!(settings.budget, Budget::Bytes(1 << 30));
}

#[test]
fn a_change_is_made_alone_where_no_plan_is_possible_with_those_before() {
    let world = world(Level::Off, None);
    let go_on = held(&world);
    let impossible = world.apply(budget(1));
    let second = world.apply(level(Level::Moderate));
    assert!(matches!(
        impossible.recv().unwrap(),
        Err(EngineError::Superseded)
    ));
    go_on();
    assert_eq!(second.recv().unwrap().unwrap().level, Level::Moderate);
    assert_ne!(world.engine.settings().budget, Budget::Bytes(1));
}

#[test]
fn requests_end_however_many_changes_come() {
    let world = world(Level::Off, None);
    let expected = world.generate();
    let stop = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut levels = [Level::Standard, Level::Off].into_iter().cycle();
            while !stop.load(Ordering::Relaxed) {
                drop(world.apply(level(levels.next().unwrap())));
            }
        });
        for _ in 0..3 {
            let finished = world.submit(world.request(48), |_| {});
            let generated = finished.recv_timeout(Duration::from_secs(60));
            stop.fetch_or(generated.is_err(), Ordering::Relaxed);
            // Both levels compute the same.
            assert_eq!(generated.unwrap().unwrap().tokens, expected.tokens);
        }
        stop.store(true, Ordering::Relaxed);
    });
}
