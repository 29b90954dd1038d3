//! Engines beside each other: each gives its model's text, and together they keep to one budget.

use std::sync::atomic::AtomicUsize;

use sluice_machine::MemoryKind;
use sluice_plan::sharing::Fit;

use super::*;
use crate::command::{FitFn, LoadRoom};

/// An engine that was started for so many bytes.
fn start_with(budget_bytes: u64) -> Engine {
    let settings = PlanSettings {
        budget: Budget::Bytes(budget_bytes),
        ..PlanSettings::default()
    };
    Engine::start(EngineOptions {
        threads: 2,
        settings,
        ..EngineOptions::default()
    })
    .unwrap()
}

fn load_into(engine: Engine, level: Level) -> World {
    let settings = PlanSettings {
        level,
        ..engine.settings()
    };
    let model = load(&engine, settings).unwrap();
    World { engine, model }
}

/// The peak of the demonstration model's plan, its least budget, and what of both engines have in common.
fn sizes(level: Level) -> (u64, u64, u64) {
    let alone = world(level, None);
    let peak = alone.engine.in_force().unwrap().plan.peak_bytes();
    // While nothing runs the plan's claim is what it takes.
    let common = peak - alone.engine.taken_bytes();
    (peak, alone.least_bytes(), common)
}

fn plan_of(world: &World) -> Arc<Plan> {
    world.engine.in_force().unwrap().plan
}

#[test]
fn engines_on_one_device_give_each_models_text_within_one_budget() {
    let (peak, ..) = sizes(Level::Standard);
    let expected = world(Level::Standard, None).generate().tokens;
    let coarse = world(Level::Aggressive, None).generate().tokens;
    let first = load_into(start_with(2 * peak), Level::Standard);
    let second = load_into(first.engine.beside().unwrap(), Level::Aggressive);
    assert_ne!(first.model.id, second.model.id);
    for world in [&first, &second] {
        assert_eq!(plan_of(world).streamed_bytes(), 0);
    }
    // Both at once, more than once, so that their passes meet.
    for _ in 0..3 {
        let running = [&first, &second].map(|world| world.submit(world.request(48), |_| {}));
        let [one, two] = running.map(|finished| finished.recv().unwrap().unwrap());
        assert_eq!(one.tokens, expected);
        assert_eq!(two.tokens, coarse);
    }
    let all = first.engine.memory_of_all();
    assert!(all.peak_bytes <= 2 * peak);
    assert_sum(&[&first.engine, &second.engine]);
}

/// What all hold is what each holds, with the scratch memory of the threads once.
fn assert_sum(engines: &[&Engine]) {
    let scratch = |report: &ledger::LedgerReport| {
        let mut kinds = report.kinds.iter();
        let scratch = kinds.find(|kind| kind.kind == MemoryKind::Scratch);
        scratch.unwrap().bytes
    };
    let all = engines[0].memory_of_all();
    let own = engines.iter().map(|engine| engine.memory());
    let sum: u64 = own.map(|own| own.used_bytes - scratch(&own)).sum();
    assert_eq!(all.used_bytes, sum + scratch(&all));
}

#[test]
fn one_engine_computes_at_a_time_and_neither_starves() {
    let (peak, ..) = sizes(Level::Standard);
    let first = load_into(start_with(2 * peak), Level::Standard);
    let second = load_into(first.engine.beside().unwrap(), Level::Standard);
    let passes = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let running: Vec<_> = [&first, &second]
        .into_iter()
        .enumerate()
        .map(|(index, world)| {
            let passes = Arc::clone(&passes);
            let mut lead = 0;
            let finished = world.submit(world.request(64), move |_| {
                let own = passes[index].fetch_add(1, Ordering::SeqCst) + 1;
                let other = passes[1 - index].load(Ordering::SeqCst);
                // Only while both run: neither has begun late, or ended.
                if other > 0 && other < 32 {
                    lead = lead.max(own.saturating_sub(other));
                    assert!(lead <= 33, "{own} passes, and {other} of the other engine");
                }
            });
            (world, finished)
        })
        .collect();
    for (_, finished) in running {
        finished.recv().unwrap().unwrap();
    }
}

#[test]
fn the_second_streams_within_what_the_first_leaves_until_it_goes() {
    let (peak, least, common) = sizes(Level::Standard);
    let expected = world(Level::Standard, None).generate().tokens;
    let budget = peak - common + (peak + least) / 2;
    let first = load_into(start_with(budget), Level::Standard);
    let second = load_into(first.engine.beside().unwrap(), Level::Standard);
    let plan = plan_of(&second);
    assert!(plan.streamed_bytes() > 0);
    assert_eq!(plan.budget_bytes, budget - first.engine.taken_bytes());
    let running = [&first, &second].map(|world| world.submit(world.request(48), |_| {}));
    for finished in running {
        assert_eq!(finished.recv().unwrap().unwrap().tokens, expected);
    }
    assert!(first.engine.memory_of_all().peak_bytes <= budget);

    let (tell, told) = mpsc::channel();
    let report = Box::new(move |goes| tell.send(goes).unwrap());
    first.engine.unload(first.model.id, false, report);
    assert!(told.recv().unwrap());
    second.engine.reclaim_memory();
    // Behind it in the queue, so the way there has begun.
    second.generate();
    second.wait_for_switch();
    assert_eq!(plan_of(&second).streamed_bytes(), 0);
    assert_eq!(second.generate().tokens, expected);
    // The first one's budget is what the other leaves by now.
    let error = load(&first.engine, first.engine.settings());
    match error {
        Ok(_) => assert!(plan_of(&first).streamed_bytes() > 0),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn what_does_not_fit_beside_others_is_refused_with_what_they_leave() {
    let (peak, ..) = sizes(Level::Standard);
    let first = load_into(start_with(peak + 1000), Level::Standard);
    let second = first.engine.beside().unwrap();
    let error = load(&second, second.settings()).unwrap_err();
    let left = peak + 1000 - first.engine.taken_bytes();
    assert!(
        matches!(
            error,
            EngineError::Plan(PlanError::BudgetTooSmall { budget_bytes, .. }) if budget_bytes == left
        ),
        "{error}"
    );
    // A failed load takes nothing, and the other serves on.
    drop(second);
    assert_eq!(first.engine.memory_of_all().used_bytes, {
        first.engine.memory().used_bytes
    });
    first.generate();
}

/// Room that a test makes by unloading the model of another engine.
struct Unloading {
    other: World,
    asked: mpsc::Sender<Fit>,
}

impl LoadRoom for Unloading {
    fn budget(&mut self, fit: FitFn<'_>) -> Result<u64, EngineError> {
        let engine = &self.other.engine;
        let all = engine.shared_budget_bytes();
        self.asked.send(fit(all - engine.taken_bytes())?).unwrap();
        self.asked.send(fit(all)?).unwrap();
        Ok(all)
    }

    fn make(&mut self, _: &AtomicBool) -> Result<bool, EngineError> {
        let (tell, told) = mpsc::channel();
        let report = Box::new(move |goes| tell.send(goes).unwrap());
        self.other.engine.unload(self.other.model.id, true, report);
        assert!(told.recv().unwrap());
        Ok(true)
    }
}

#[test]
fn a_load_makes_room_once_nothing_else_can_fail() {
    let (peak, ..) = sizes(Level::Standard);
    let first = load_into(start_with(peak + 1000), Level::Standard);
    let second = first.engine.beside().unwrap();
    let (asked, fits) = mpsc::channel();
    let expected = first.generate().tokens;
    let nowhere = Source::Folder(Path::new("/nowhere").to_owned());
    let load = |source, other| {
        let (send, finished) = mpsc::channel();
        let report = Box::new(move |event| {
            if let LoadEvent::Finished(result) = event {
                send.send(result).unwrap();
            }
        });
        let asked = asked.clone();
        let room = Box::new(Unloading { other, asked });
        let settings = second.settings();
        second.load_beside(source, settings, Arc::default(), report, room);
        finished.recv().unwrap()
    };
    let beside = first.engine.beside().unwrap();
    let idle = World {
        engine: beside,
        model: Arc::clone(&first.model),
    };
    assert!(load(nowhere, idle).is_err());
    assert!(fits.try_recv().is_err(), "nobody was asked for room");
    first.generate();

    let model = load(demonstration(), first).unwrap();
    let fits: Vec<_> = fits.try_iter().collect();
    assert_eq!(fits, [Fit::Not, Fit::Whole]);
    let second = World {
        engine: second,
        model,
    };
    assert_eq!(plan_of(&second).streamed_bytes(), 0);
    assert_eq!(second.generate().tokens, expected);
}

/// Loads and changes of both at once, with room for hardly more than one: each ends well or is refused, and no moment has more
/// than the budget.
#[test]
fn changes_of_several_engines_at_once_keep_to_the_budget() {
    let (peak, least, common) = sizes(Level::Standard);
    let expected = world(Level::Standard, None).generate().tokens;
    let budget = peak - common + least + least / 4;
    let first = start_with(budget);
    let second = first.beside().unwrap();
    let engines = [first, second];
    thread::scope(|scope| {
        for engine in &engines {
            let expected = &expected;
            scope.spawn(move || {
                let mut texts = 0;
                for round in 0..6 {
                    let level = match round % 3 {
                        0 => Level::Standard,
                        1 => Level::Aggressive,
                        _ => Level::Moderate,
                    };
                    let settings = PlanSettings {
                        level,
                        ..engine.settings()
                    };
                    let model = match load(engine, settings) {
                        Ok(model) => model,
                        Err(
                            EngineError::Plan(PlanError::BudgetTooSmall { .. })
                            | EngineError::Ops(OpsError::OutOfMemory { .. }),
                        ) => continue,
                        Err(error) => panic!("{error}"),
                    };
                    let text = model.tokenizer.as_ref().unwrap();
                    let prompt =
                        text.encode_chat(&[("user", "Tell me a story about Mia and a kite.")]);
                    let request = Generate {
                        block_length: 16,
                        seed: 1,
                        ..Generate::greedy(model.id, prompt.unwrap(), 48)
                    };
                    match engine.run(Work::Generate(request)) {
                        Ok(Outcome::Generated(generated)) if level == Level::Standard => {
                            assert_eq!(&generated.tokens, expected);
                            texts += 1;
                        }
                        Ok(_) => {}
                        Err(EngineError::Ops(OpsError::OutOfMemory { .. })) => {}
                        Err(EngineError::Plan(PlanError::BudgetTooSmall { .. })) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                texts
            });
        }
    });
    let all = engines[0].memory_of_all();
    assert!(all.peak_bytes <= budget, "{} of {budget}", all.peak_bytes);
    assert_sum(&[&engines[0], &engines[1]]);
}

#[test]
fn an_engine_that_ends_leaves_the_others_their_turns_and_its_memory() {
    let (peak, ..) = sizes(Level::Standard);
    let first = load_into(start_with(2 * peak), Level::Standard);
    let second = load_into(first.engine.beside().unwrap(), Level::Standard);
    let (started, passes) = mpsc::channel();
    let running = second.submit(second.request(64), move |_| {
        let _ = started.send(());
    });
    passes.recv().unwrap();
    second.engine.stop();
    // It was told, whatever it came to.
    drop(running.recv());
    drop(second);
    let held = first.engine.memory().used_bytes;
    assert_eq!(first.engine.memory_of_all().used_bytes, held);
    first.generate();
}

/// What other engines ask for is done between the passes of a request, which may be long, and so is not in the way of those who
/// would join it.
#[test]
fn caches_are_given_up_while_a_request_runs() {
    let world = world(Level::Standard, None);
    let passes = Arc::new(AtomicUsize::new(0));
    let (started, first_pass) = mpsc::channel();
    let (go_on, wait) = mpsc::channel::<()>();
    let counted = Arc::clone(&passes);
    let finished = world.submit(world.request(64), move |_| {
        if counted.fetch_add(1, Ordering::SeqCst) == 0 {
            started.send(()).unwrap();
            wait.recv().unwrap();
        }
    });
    first_pass.recv().unwrap();
    let (tell, told) = mpsc::channel();
    let counted = Arc::clone(&passes);
    world.engine.drop_caches(move || {
        tell.send(counted.load(Ordering::SeqCst)).unwrap();
    });
    go_on.send(()).unwrap();
    finished.recv().unwrap().unwrap();
    assert_eq!(told.recv().unwrap(), 1);
    assert!(passes.load(Ordering::SeqCst) > 1);
}

/// An engine that computes nothing gives up what it keeps, whoever has the turn.
#[test]
fn an_idle_engine_gives_up_its_caches_during_a_pass_of_another() {
    let (peak, ..) = sizes(Level::Standard);
    let first = load_into(start_with(2 * peak), Level::Standard);
    let idle = first.engine.beside().unwrap();
    let (started, in_pass) = mpsc::channel();
    let (go_on, wait) = mpsc::channel::<()>();
    let finished = first.submit(first.request(16), move |_| {
        if started.send(()).is_ok() {
            let _ = wait.recv();
        }
    });
    in_pass.recv().unwrap();
    let (tell, told) = mpsc::channel();
    idle.drop_caches(move || tell.send(()).unwrap());
    let given_up = told.recv_timeout(Duration::from_secs(60));
    drop((in_pass, go_on));
    assert!(given_up.is_ok(), "it waits for the turn");
    finished.recv().unwrap().unwrap();
}

#[test]
fn the_last_handle_may_go_on_the_engines_own_thread() {
    let engine = Arc::new(start());
    let (send, ended) = mpsc::channel();
    let held = Arc::clone(&engine);
    let (hold, wait) = mpsc::channel::<()>();
    engine.drop_caches(move || {
        wait.recv().unwrap();
        drop(held);
        send.send(()).unwrap();
    });
    drop(engine);
    hold.send(()).unwrap();
    let ended = ended.recv_timeout(Duration::from_secs(60));
    assert!(ended.is_ok(), "it waits for itself");
}
