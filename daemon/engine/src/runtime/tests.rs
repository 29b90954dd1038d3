//! The engine with the demonstration model: whatever the plan, and while it changes, a text is what it would have been.

mod beats;
mod changes;
mod experts;
pub(super) mod panics;
mod prior;
mod several;
mod unload;

use std::{
    path::Path,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use sluice_ops::OpsError;
use sluice_plan::{Plan, PlanError};
use sluice_shared::{level::EmbeddingPlacement, options::Budget};

use super::*;
use crate::{
    event::{Event, GenerationResult, Outcome, PassReport, TokenState},
    request::Generate,
};

struct World {
    engine: Engine,
    model: Arc<LoadedModel>,
}

fn demonstration() -> Source {
    Source::Folder(Path::new(env!("CARGO_MANIFEST_DIR")).join("../model"))
}

fn start() -> Engine {
    Engine::start(EngineOptions {
        threads: 2,
        ..EngineOptions::default()
    })
    .unwrap()
}

fn load(engine: &Engine, settings: PlanSettings) -> Result<Arc<LoadedModel>, EngineError> {
    engine.load_now(demonstration(), settings)
}

fn world(level: Level, budget_bytes: Option<u64>) -> World {
    let engine = start();
    let settings = PlanSettings {
        level,
        budget: budget_bytes.into(),
        ..PlanSettings::default()
    };
    let model = load(&engine, settings).unwrap();
    World { engine, model }
}

impl World {
    fn request(&self, length: usize) -> Generate {
        let text = self.model.tokenizer.as_ref().unwrap();
        let prompt = text.encode_chat(&[("user", "Tell me a story about Mia and a kite.")]);
        Generate {
            block_length: length.min(16),
            seed: 1,
            ..Generate::greedy(self.model.id, prompt.unwrap(), length)
        }
    }

    /// Waits until no change is under way: after one that failed, the way back is gone step by step.
    fn wait_for_switch(&self) {
        let is_switching = || {
            let in_force = self.engine.in_force();
            in_force.is_some_and(|in_force| in_force.switch.is_some())
        };
        let begun = Instant::now();
        while is_switching() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it never ends");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Submits the request; `watch` sees each pass on the engine's thread.
    fn submit(
        &self,
        request: Generate,
        mut watch: impl FnMut(&PassReport) + Send + 'static,
    ) -> mpsc::Receiver<Result<GenerationResult, EngineError>> {
        let (send, finished) = mpsc::channel();
        let sink = Box::new(move |event| match event {
            Event::Pass(report) => watch(&report),
            // A test that failed listens no more.
            Event::Finished(Ok(Outcome::Generated(generated))) => drop(send.send(Ok(generated))),
            Event::Finished(Err(error)) => drop(send.send(Err(error))),
            _ => {}
        });
        self.engine
            .submit(Default::default(), Work::Generate(request), sink)
            .unwrap();
        finished
    }

    fn generate(&self) -> GenerationResult {
        let finished = self.submit(self.request(48), |_| {});
        finished.recv().unwrap().unwrap()
    }

    fn apply(&self, change: PlanOptions) -> mpsc::Receiver<Result<Arc<Plan>, EngineError>> {
        let (send, finished) = mpsc::channel();
        let report = Box::new(move |event| {
            if let ApplyEvent::Finished(result) = event {
                // Nobody may be listening any more.
                let _ = send.send(result);
            }
        });
        self.engine.apply(change, report);
        finished
    }

    fn least_bytes(&self) -> u64 {
        self.least_bytes_of(self.engine.settings().level)
    }

    fn least_bytes_of(&self, level: Level) -> u64 {
        let workload = self.engine.in_force().unwrap().plan.workload;
        let change = PlanOptions {
            level: Some(level),
            ..budget(1)
        };
        match self.engine.plan(&change, workload).unwrap_err() {
            EngineError::Plan(PlanError::BudgetTooSmall { least_bytes, .. }) => least_bytes,
            error => panic!("{error}"),
        }
    }

    fn workload(&self) -> Workload {
        Work::Generate(self.request(48)).workload()
    }
}

fn budget(bytes: u64) -> PlanOptions {
    PlanOptions {
        budget: Some(Budget::Bytes(bytes)),
        ..PlanOptions::default()
    }
}

fn level(level: Level) -> PlanOptions {
    PlanOptions {
        level: Some(level),
        ..PlanOptions::default()
    }
}

#[test]
fn streamed_weights_give_the_resident_ones_text() {
    let resident = world(Level::Off, None);
    let expected = resident.generate();
    let all = resident.engine.in_force().unwrap().plan.peak_bytes();
    let streamed = world(Level::Standard, None);
    let least = streamed.least_bytes();
    assert!(least < all * 3 / 4, "{least} of {all}");
    for share in [0.0, 0.3, 0.7] {
        let bytes = least + ((all - least) as f64 * share) as u64;
        let plan = streamed.apply(budget(bytes)).recv().unwrap().unwrap();
        assert!(plan.streamed_bytes() > 0 && plan.peak_bytes() <= bytes);
        let generated = streamed.generate();
        assert_eq!(generated.tokens, expected.tokens, "with {bytes} bytes");
        assert!(generated.peak_device_bytes <= bytes);
        assert!(generated.is_lossless);
        let measured = streamed.engine.in_force().unwrap().passes;
        assert!(measured.streamed_bytes >= measured.passes * plan.streamed_bytes() / 2);
    }
}

/// In bf16 the CPU takes the same memory, and no plan's results are those of unrounded rows.
#[test]
fn products_of_bf16_are_never_exact() {
    let engine = Engine::start(EngineOptions {
        threads: 2,
        compute_dtype: Some(DType::Bf16),
        ..EngineOptions::default()
    });
    let engine = engine.unwrap();
    let unrounded = world(Level::Off, None);
    let expected = unrounded.engine.in_force().unwrap().plan;
    let settings = PlanSettings {
        level: Level::Off,
        ..PlanSettings::default()
    };
    let model = load(&engine, settings).unwrap();
    let rounded = World { engine, model };
    let plan = rounded.engine.in_force().unwrap().plan;
    assert_eq!(plan.peak_bytes(), expected.peak_bytes());
    assert!(unrounded.engine.has_exact_matmul(&plan));
    assert!(!rounded.engine.has_exact_matmul(&plan));
    let generated = rounded.generate();
    assert!(!generated.is_lossless);
    // Streamed weights lie otherwise in memory.
    let least = rounded.least_bytes_of(Level::Standard);
    let streamed = PlanOptions {
        level: Some(Level::Standard),
        ..budget(least)
    };
    let plan = rounded.apply(streamed).recv().unwrap().unwrap();
    assert!(plan.streamed_bytes() > 0);
    assert_eq!(rounded.generate().tokens, generated.tokens);
}

#[test]
fn the_peak_is_what_the_plan_says() {
    for level in [
        Level::Off,
        Level::Standard,
        Level::Moderate,
        Level::Aggressive,
    ] {
        let world = world(level, None);
        let plan = world
            .engine
            .plan(&PlanOptions::default(), world.workload())
            .unwrap();
        let generated = world.generate();
        let (predicted, measured) = (plan.peak_bytes(), generated.peak_device_bytes);
        let off = (measured as f64 / predicted as f64 - 1.0).abs();
        assert!(off < 0.002, "{level}: {measured} bytes, not {predicted}");
    }
}

#[test]
fn a_level_changes_while_text_is_made() {
    let world = world(Level::Off, None);
    let expected = world.generate();
    assert!(expected.is_lossless);
    let (tell, passes) = mpsc::channel();
    let finished = world.submit(world.request(48), move |report| {
        // The command is to meet the run, not its end.
        thread::sleep(Duration::from_millis(2));
        let _ = tell.send(report.clone());
    });
    let before = passes.recv().unwrap();
    let plan = world
        .apply(level(Level::Aggressive))
        .recv()
        .unwrap()
        .unwrap();
    assert_eq!(plan.level, Level::Aggressive);
    let generated = finished.recv().unwrap().unwrap();
    assert_eq!(generated.passes, expected.passes, "no pass is lost");
    assert!(!generated.is_lossless);
    let after = passes.into_iter().last().unwrap();
    assert!(after.cost.weights.weights_version > before.cost.weights.weights_version);
    for position in before.positions {
        if position.state == TokenState::Committed {
            assert_eq!(Some(generated.tokens[position.position]), position.token);
        }
    }
    world.apply(level(Level::Off)).recv().unwrap().unwrap();
    assert_eq!(world.generate().tokens, expected.tokens, "as if never left");
}

#[test]
fn a_budget_changes_while_text_is_made_and_the_text_does_not() {
    let world = world(Level::Standard, None);
    let expected = world.generate();
    let least = world.least_bytes();
    let (tell, passes) = mpsc::channel();
    let finished = world.submit(world.request(48), move |_| {
        thread::sleep(Duration::from_millis(2));
        let _ = tell.send(());
    });
    passes.recv().unwrap();
    for bytes in [least, least * 3 / 2, least] {
        let plan = world.apply(budget(bytes)).recv().unwrap().unwrap();
        assert!(plan.peak_bytes() <= bytes);
        assert!(world.engine.in_force().unwrap().plan == plan);
    }
    let generated = finished.recv().unwrap().unwrap();
    assert_eq!(generated.tokens, expected.tokens);
    assert!(generated.is_lossless);
}

#[test]
fn a_hundred_switches_leave_nothing_behind() {
    let world = world(Level::Off, None);
    let before = world.engine.memory().used_bytes;
    let least = world.least_bytes();
    for number in 0..100 {
        let change = match number % 4 {
            0 => level(Level::Aggressive),
            1 => level(Level::Moderate),
            2 => PlanOptions {
                level: Some(Level::Standard),
                budget: Some(Budget::Bytes(least * 5 / 4)),
                ..PlanOptions::default()
            },
            _ => PlanOptions {
                level: Some(Level::Off),
                budget: Some(Budget::Default),
                ..PlanOptions::default()
            },
        };
        world.apply(change).recv().unwrap().unwrap();
    }
    assert_eq!(world.engine.memory().used_bytes, before);
}

#[test]
fn a_bad_change_changes_nothing() {
    let world = world(Level::Standard, None);
    let plan = world.engine.in_force().unwrap().plan;
    for change in [budget(1000), level(Level::Mild)] {
        let error = world.apply(change).recv().unwrap().unwrap_err();
        assert!(matches!(error, EngineError::Plan(_)), "{error}");
        assert!(world.engine.in_force().unwrap().plan == plan);
        assert_eq!(world.engine.settings(), PlanSettings::default());
    }
    world.generate();
}

#[test]
fn a_long_canvas_makes_room_for_itself() {
    let world = world(Level::Standard, None);
    let short = world
        .engine
        .plan(&PlanOptions::default(), world.workload())
        .unwrap();
    // Room for the usual canvas and hardly more.
    let bytes = short.peak_bytes() + 1000;
    world.apply(budget(bytes)).recv().unwrap().unwrap();
    let finished = world.submit(world.request(400), |_| {});
    let generated = finished.recv().unwrap().unwrap();
    assert!(generated.peak_device_bytes <= bytes);
    assert!(world.engine.in_force().unwrap().plan.streamed_bytes() > 0);
}

#[test]
fn the_embedding_comes_to_the_device_and_goes_again() {
    let world = world(Level::Standard, None);
    let expected = world.generate().tokens;
    let before = world.engine.memory().used_bytes;
    for (embedding, is_more) in [
        (EmbeddingPlacement::Device, true),
        (EmbeddingPlacement::Auto, false),
    ] {
        let change = PlanOptions {
            embedding: Some(embedding),
            ..PlanOptions::default()
        };
        let plan = world.apply(change).recv().unwrap().unwrap();
        assert_eq!(plan.level, Level::Standard);
        assert_eq!(world.engine.settings().embedding, embedding);
        assert_eq!(world.engine.memory().used_bytes > before, is_more);
        assert_eq!(world.generate().tokens, expected);
    }
    assert_eq!(world.engine.memory().used_bytes, before);
}

/// Whichever reservation fails on the way to another plan, there is another way.
#[test]
fn a_long_canvas_makes_room_for_itself_whatever_can_not_be_had() {
    let world = world(Level::Standard, None);
    let request = Generate {
        block_length: 400,
        steps: 1,
        ..world.request(400)
    };
    // Room for the usual canvas and hardly more.
    let bytes = world.engine.in_force().unwrap().plan.peak_bytes() + 1000;
    let long = || world.submit(request.clone(), |_| {}).recv().unwrap();
    let expected = long().unwrap().tokens;
    let ledger = &world.engine.shared.ledger;
    for number in 1.. {
        world.apply(budget(bytes)).recv().unwrap().unwrap();
        ledger.fail_at(number);
        let result = long();
        let has_failed = ledger.has_failed();
        ledger.fail_at(0);
        assert_eq!(result.unwrap().tokens, expected, "{number}");
        assert!(world.engine.in_force().unwrap().plan.streamed_bytes() > 0);
        if !has_failed {
            assert!(number > 3, "{number}");
            break;
        }
    }
}

/// What a long canvas took from the weights is theirs again some time after its request.
#[test]
fn the_plan_goes_back_to_the_usual_canvas() {
    let world = world(Level::Standard, None);
    let usual = world.engine.in_force().unwrap().plan;
    let bytes = usual.peak_bytes() + 1000;
    world.apply(budget(bytes)).recv().unwrap().unwrap();
    let before = world.engine.in_force().unwrap().plan;
    let expected = world.generate().tokens;
    let finished = world.submit(world.request(400), |_| {});
    finished.recv().unwrap().unwrap();
    let wide = world.engine.in_force().unwrap().plan;
    assert!(wide.streamed_bytes() > 0 && wide.workload.canvas_length > 400);
    let deadline = Instant::now() + Duration::from_secs(30);
    // Its predicted time has learned from the passes meanwhile.
    let is_back = |plan: &Plan| {
        let pass = before.pass;
        Plan {
            pass,
            ..plan.clone()
        } == *before
    };
    while !is_back(&world.engine.in_force().unwrap().plan) {
        assert!(Instant::now() < deadline, "it stays wide");
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(world.generate().tokens, expected);
}

/// While another model is read, the present one serves; what was made for its ids is refused once it is gone.
#[test]
fn the_present_model_serves_until_the_next_one_is_whole() {
    let world = world(Level::Standard, None);
    let expected = world.generate().tokens;
    let (reading, is_reading) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let (send, finished) = mpsc::channel();
    let report = Box::new(move |event| match event {
        LoadEvent::Progress {
            stage: CommandStage::Loading,
            done,
            ..
        } if done > 0 => {
            let _ = reading.send(());
            // Blocks until the test continues.
            let _ = may_go_on.recv();
        }
        LoadEvent::Finished(result) => send.send(result).unwrap(),
        _ => {}
    });
    let settings = PlanSettings {
        level: Level::Moderate,
        ..PlanSettings::default()
    };
    (world.engine).load(demonstration(), settings, Arc::default(), report);
    is_reading.recv().unwrap();
    // Twice, with a change that waits for the load between them.
    assert_eq!(world.generate().tokens, expected);
    let changed = world.apply(level(Level::Aggressive));
    assert_eq!(world.generate().tokens, expected);
    assert_eq!(world.engine.settings().level, Level::Standard);
    drop(go_on);
    let new = finished.recv().unwrap().unwrap();
    assert_ne!(new.id, world.model.id);
    let plan = changed.recv().unwrap().unwrap();
    assert_eq!(plan.level, Level::Aggressive);
    let sink = Box::new(|_| {});
    let refused = world
        .engine
        .submit(Default::default(), Work::Generate(world.request(48)), sink);
    assert!(matches!(refused, Err(EngineError::ModelReplaced)));
}

/// A cancel is for one load: before its turn it ends at once, and the next one is read.
#[test]
fn a_load_that_is_cancelled_before_its_turn_is_not_begun() {
    let world = world(Level::Standard, None);
    let (send, events) = mpsc::channel();
    for is_cancelled in [true, false] {
        let cancel = Arc::new(AtomicBool::new(is_cancelled));
        let send = send.clone();
        let report = Box::new(move |event| send.send(event).unwrap());
        (world.engine).load(demonstration(), PlanSettings::default(), cancel, report);
    }
    let first = events.recv().unwrap();
    assert!(
        matches!(first, LoadEvent::Finished(Err(EngineError::LoadCancelled))),
        "{first:?}"
    );
    let is_over = |event: LoadEvent| matches!(event, LoadEvent::Finished(Ok(_)));
    while !is_over(events.recv().unwrap()) {}
}

/// A load that is stopped, by a cancel or with the engine, says so and leaves nothing.
#[test]
fn a_load_beside_ends_with_the_engine() {
    for stop in [false, true] {
        let world = world(Level::Standard, None);
        let before = world.engine.memory().used_bytes;
        let (reading, is_reading) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel::<()>();
        let (send, finished) = mpsc::channel();
        let report = Box::new(move |event| match event {
            LoadEvent::Progress { .. } => {
                let _ = reading.send(());
                let _ = may_go_on.recv();
            }
            LoadEvent::Finished(result) => send.send(result).unwrap(),
            _ => {}
        });
        let cancel = Arc::new(AtomicBool::new(false));
        let settings = PlanSettings::default();
        (world.engine).load(demonstration(), settings, cancel.clone(), report);
        is_reading.recv().unwrap();
        cancel.store(true, Ordering::Relaxed);
        drop(go_on);
        if stop {
            world.engine.stop();
        }
        let error = finished.recv().unwrap().unwrap_err();
        assert!(
            matches!(error, EngineError::LoadCancelled | EngineError::Stopped),
            "{error}"
        );
        if !stop {
            assert_eq!(world.engine.memory().used_bytes, before);
            world.generate();
        }
    }
}

fn compared(world: &World, level: Option<Level>) -> crate::event::FidelityResult {
    let text = world.model.tokenizer.as_ref().unwrap();
    let story = "Mia wanted a kite. She went to the market and found a red one.";
    let ids = text.encode(story).unwrap();
    let request = crate::request::MeasureFidelity {
        model: world.model.id,
        level,
        samples: vec![ids; 8],
        seed: 3,
    };
    match world.engine.run(Work::MeasureFidelity(request)).unwrap() {
        Outcome::Fidelity(compared) => compared,
        other => panic!("{other:?}"),
    }
}

#[test]
fn fewer_bits_are_further_from_the_source() {
    let world = world(Level::Off, None);
    let expected = world.generate();
    let plan = world.engine.in_force().unwrap().plan;
    let standard = compared(&world, None);
    assert_eq!(standard.level, Level::Off);
    assert!(standard.mean_kl < 1e-9 && standard.top_agreement == 1.0);
    assert_eq!(standard.source_bound, standard.level_bound);
    let moderate = compared(&world, Some(Level::Moderate));
    let aggressive = compared(&world, Some(Level::Aggressive));
    assert!(moderate.mean_kl > 1e-7 && aggressive.mean_kl > 10.0 * moderate.mean_kl);
    assert!(aggressive.mean_kl < 1.0, "{aggressive:?}");
    assert!(aggressive.source_bound == standard.source_bound);
    // What was in force is again.
    assert!(world.engine.in_force().unwrap().plan == plan);
    assert_eq!(world.generate().tokens, expected.tokens);
}

/// Every reservation fails once, in loads and in requests: each ends well or says what it lacked, and the next is as if
/// nothing had been.
#[test]
fn every_reservation_may_fail() {
    let world = world(Level::Standard, None);
    let short = || {
        let finished = world.submit(world.request(12), |_| {});
        finished.recv().unwrap()
    };
    let expected = short().unwrap();
    let before = world.engine.memory().used_bytes;
    let ledger = &world.engine.shared.ledger;
    let lacked = |error: EngineError| {
        assert!(
            matches!(error, EngineError::Ops(OpsError::OutOfMemory { needed_bytes, .. }) if needed_bytes > 0),
            "{error}"
        );
    };
    let mut refused = 0;
    for number in 1.. {
        ledger.fail_at(number);
        match short() {
            Ok(generated) => assert_eq!(generated.tokens, expected.tokens),
            Err(error) => {
                refused += 1;
                lacked(error);
            }
        }
        if !ledger.has_failed() {
            assert!(number > 10);
            break;
        }
        assert!(world.engine.is_alive());
    }
    assert_eq!(refused, 0, "there was another way each time");
    ledger.fail_at(0);
    assert_eq!(short().unwrap().tokens, expected.tokens);
    world.apply(level(Level::Standard)).recv().unwrap().unwrap();
    assert_eq!(world.engine.memory().used_bytes, before);
    for number in 1.. {
        ledger.fail_at(number);
        let result = load(&world.engine, PlanSettings::default());
        let has_failed = ledger.has_failed();
        ledger.fail_at(0);
        match result {
            Ok(_) if !has_failed => break,
            Ok(_) => panic!("a load without its memory"),
            Err(error) => lacked(error),
        }
        // The model before is still there.
        assert_eq!(world.engine.memory().used_bytes, before);
        assert_eq!(short().unwrap().tokens, expected.tokens);
    }
}

/// The same for what streams and what changes: staging buffers, weight groups that come and go.
#[test]
fn every_reservation_of_requests_that_share_passes_may_fail() {
    let world = world(Level::Standard, None);
    let expected: Vec<_> = (1..4)
        .map(|index| {
            let finished = world.submit(world.request(4 * index), |_| {});
            finished.recv().unwrap().unwrap().tokens
        })
        .collect();
    let ledger = &world.engine.shared.ledger;
    let mut shared = 0;
    for number in 1.. {
        ledger.fail_at(number);
        let (send, requests) = mpsc::channel();
        let all: Vec<_> = (1..4)
            .map(|index| {
                let send = send.clone();
                world.submit(world.request(4 * index), move |report| {
                    send.send(report.cost.batch_requests).unwrap();
                })
            })
            .collect();
        drop(send);
        for (finished, expected) in all.into_iter().zip(&expected) {
            let generated = finished.recv().unwrap().unwrap();
            assert_eq!(&generated.tokens, expected, "{number}");
        }
        shared += usize::from(requests.into_iter().any(|requests| requests > 1));
        if !ledger.has_failed() {
            assert!(number > 10);
            break;
        }
    }
    assert!(shared > 10);
    ledger.fail_at(0);
}

#[test]
fn every_reservation_of_a_change_may_fail() {
    let world = world(Level::Off, None);
    let short = || {
        let finished = world.submit(world.request(12), |_| {});
        finished.recv().unwrap()
    };
    let expected = short().unwrap().tokens;
    let least = world.least_bytes_of(Level::Standard);
    let to_little = PlanOptions {
        level: Some(Level::Standard),
        budget: Some(Budget::Bytes(least * 5 / 4)),
        ..PlanOptions::default()
    };
    let back = PlanOptions {
        level: Some(Level::Off),
        budget: Some(Budget::Default),
        ..PlanOptions::default()
    };
    let ledger = &world.engine.shared.ledger;
    for change in [to_little, back, level(Level::Aggressive)] {
        let start = if change == back { to_little } else { back };
        for number in 1.. {
            world.apply(start).recv().unwrap().unwrap();
            ledger.fail_at(number);
            let result = world.apply(change).recv().unwrap();
            let has_failed = ledger.has_failed();
            ledger.fail_at(0);
            if let Err(error) = &result {
                assert!(
                    matches!(error, EngineError::Ops(OpsError::OutOfMemory { .. })),
                    "{error}"
                );
                world.wait_for_switch();
            }
            let generated = short().unwrap();
            if result.is_err() || change != level(Level::Aggressive) {
                assert_eq!(generated.tokens, expected, "{change:?}, {number}");
            }
            if !has_failed {
                break;
            }
        }
        // And in requests, whatever is in force now.
        let expected = short().unwrap().tokens;
        for number in 1.. {
            ledger.fail_at(number);
            let result = short();
            let has_failed = ledger.has_failed();
            ledger.fail_at(0);
            match result {
                Ok(generated) => assert_eq!(generated.tokens, expected),
                Err(error) => {
                    assert!(
                        matches!(error, EngineError::Ops(OpsError::OutOfMemory { .. })),
                        "{error}"
                    );
                }
            }
            assert!(world.engine.is_alive() && short().is_ok());
            if !has_failed {
                break;
            }
        }
    }
}

/// A wide request meets a change that has begun: it gets its room, and the change its end.
#[test]
fn a_wide_request_and_a_change_both_get_what_they_asked_for() {
    let world = world(Level::Off, None);
    let least = world.least_bytes_of(Level::Moderate);
    let change = PlanOptions {
        level: Some(Level::Moderate),
        budget: Some(Budget::Bytes(least * 2)),
        ..PlanOptions::default()
    };
    let running = world.submit(world.request(400), |_| {});
    let plan = world.apply(change).recv().unwrap().unwrap();
    assert_eq!(plan.level, Level::Moderate);
    assert!(
        world.engine.memory().used_bytes <= least * 2,
        "the running request is in the plan"
    );
    running.recv().unwrap().unwrap();
    assert_eq!(world.engine.settings().level, Level::Moderate);
    assert_eq!(world.engine.in_force().unwrap().plan.level, Level::Moderate);
}
