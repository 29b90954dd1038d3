//! An autoregressive model behind the engine: whatever is kept, streamed or refused, a text is what it would have been.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use sluice_checkpoint::Source;
use sluice_machine::MemoryKind;
use sluice_plan::{Plan, PlanError};
use sluice_shared::{
    level::Level,
    sampling::{Remasking, Sampling},
};

use super::*;
use crate::{
    Budget, Engine, EngineOptions, LoadEvent, LoadedModel, PlanOptions, PlanSettings, Work,
    command::ApplyEvent,
    event::{Event, GenerationResult, Outcome},
    request::{CanvasSlot, MeasureFidelity},
};

struct World {
    engine: Engine,
    model: Arc<LoadedModel>,
}

/// What a request came to, and the rows of each of its passes.
type Answer = (GenerationResult, Vec<usize>);

impl World {
    fn new(settings: PlanSettings) -> Self {
        let engine = Engine::start(EngineOptions {
            threads: 2,
            ..EngineOptions::default()
        })
        .unwrap();
        let model = engine
            .load_now(Source::Folder(fixture()), settings)
            .unwrap();
        Self { engine, model }
    }

    fn request(&self, prompt: &[u32], length: usize) -> Generate {
        Generate {
            block_length: length.min(16),
            seed: 1,
            ..Generate::greedy(self.model.id, prompt.to_vec(), length)
        }
    }

    fn run(&self, request: Generate) -> Result<Answer, EngineError> {
        let (send, finished) = mpsc::channel();
        let mut rows = Vec::new();
        let sink = Box::new(move |event| match event {
            Event::Pass(report) => rows.push(report.rows),
            Event::Finished(Ok(Outcome::Generated(generated))) => {
                send.send(Ok((generated, std::mem::take(&mut rows))))
                    .unwrap();
            }
            Event::Finished(Err(error)) => send.send(Err(error)).unwrap(),
            _ => {}
        });
        self.engine
            .submit(Default::default(), Work::Generate(request), sink)?;
        finished.recv().unwrap()
    }

    fn answer(&self, prompt: &[u32], length: usize) -> Answer {
        self.run(self.request(prompt, length)).unwrap()
    }

    fn apply(&self, change: PlanOptions) -> Result<Arc<Plan>, EngineError> {
        let (send, finished) = mpsc::channel();
        let report = Box::new(move |event| {
            if let ApplyEvent::Finished(result) = event {
                send.send(result).unwrap();
            }
        });
        self.engine.apply(change, report);
        finished.recv().unwrap()
    }

    fn plan(&self, change: &PlanOptions, request: &Generate) -> Result<Plan, EngineError> {
        let workload = Work::Generate(request.clone()).workload();
        self.engine.plan(change, workload)
    }

    fn cached_bytes(&self) -> u64 {
        let report = self.engine.memory();
        report.kinds[MemoryKind::KvCache as usize].bytes
    }
}

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama-tiny")
}

fn text(from: u32, len: u32) -> Vec<u32> {
    (from..from + len).map(|id| id * 37 % 240).collect()
}

fn budget(bytes: u64) -> PlanOptions {
    PlanOptions {
        budget: Some(Budget::Bytes(bytes)),
        ..PlanOptions::default()
    }
}

#[test]
fn a_turn_goes_on_from_the_one_before() {
    let world = World::new(PlanSettings::default());
    let prompt = text(3, 40);
    let (first, rows) = world.answer(&prompt, 10);
    assert_eq!(rows[..3], [40, 1, 1]);
    let next = [&prompt[..], &first.tokens, &text(7, 5)].concat();
    let (second, rows) = world.answer(&next, 10);
    // All but the last token of the first answer is there already.
    assert_eq!(rows[..3], [6, 1, 1]);
    assert_eq!(
        World::new(PlanSettings::default())
            .answer(&next, 10)
            .0
            .tokens,
        second.tokens
    );
    // Another conversation that begins alike copies the beginning, and leaves both.
    let branch = [&prompt[..20], &text(90, 9)].concat();
    let (third, rows) = world.answer(&branch, 4);
    assert_eq!(rows[0], 9);
    assert_eq!(
        World::new(PlanSettings::default())
            .answer(&branch, 4)
            .0
            .tokens,
        third.tokens
    );
    assert_eq!(
        world.answer(&next, 10).1[0],
        1,
        "the same again: one row tells what follows"
    );
    assert_eq!(world.answer(&branch, 4).1[0], 1);
    assert_eq!(world.answer(&text(200, 8), 2).1[0], 8, "nothing alike");
}

/// What is kept in more bits is copied, too: past its end a conversation doesn't show where it went on.
#[test]
fn in_few_bits_a_turn_goes_on_as_if_all_were_read_anew() {
    for kv in [KvCacheFormat::Q5_0, KvCacheFormat::Q4_0] {
        let world = || {
            World::new(PlanSettings {
                kv_cache_format: kv,
                ..PlanSettings::default()
            })
        };
        let going_on = world();
        let prompt = text(3, 200);
        let (first, _) = going_on.answer(&prompt, 90);
        let next = [&prompt[..], &first.tokens, &text(7, 5)].concat();
        let (second, rows) = going_on.answer(&next, 20);
        assert_eq!(rows[..3], [6, 1, 1]);
        assert_eq!(world().answer(&next, 20).0.tokens, second.tokens, "{kv}");
    }
}

#[test]
fn few_are_kept_and_none_beyond_the_budget() {
    let world = World::new(PlanSettings::default());
    for start in 0..KEPT_PREFIXES_MAX as u32 + 2 {
        world.answer(&text(1 + 30 * start, 30), 3);
    }
    let of_one = world
        .plan(&PlanOptions::default(), &world.request(&text(1, 30), 3))
        .unwrap();
    let of_one = of_one.working.kv_cache_bytes;
    assert_eq!(world.cached_bytes(), KEPT_PREFIXES_MAX as u64 * of_one);
    // The first to go was the first to come.
    assert_eq!(world.answer(&text(1, 30), 3).1[0], 30);
    let plan = world.engine.in_force().unwrap().plan;
    let tight = plan.peak_bytes() + of_one * 3 / 2;
    world.apply(budget(tight)).unwrap();
    assert_eq!(world.cached_bytes(), 0);
    for start in 0..3 {
        let (generated, _) = world.answer(&text(1 + 30 * start, 30), 3);
        assert!(generated.peak_device_bytes <= tight);
        assert!(world.cached_bytes() <= of_one);
    }
}

#[test]
fn nothing_is_kept_in_room_that_another_model_was_given() {
    let world = World::new(PlanSettings::default());
    world.answer(&text(1, 30), 3);
    assert!(world.cached_bytes() > 0);
    let (send, events) = mpsc::channel();
    let (go_on, wait) = mpsc::channel::<()>();
    let report = Box::new(move |event| {
        let is_reading = matches!(event, LoadEvent::Progress { .. });
        let _ = send.send(event);
        if is_reading {
            // Until the test has seen enough; afterwards at once.
            let _ = wait.recv();
        }
    });
    let settings = PlanSettings::default();
    (world.engine).load(Source::Folder(fixture()), settings, Arc::default(), report);
    let is_reading = |event: LoadEvent| matches!(event, LoadEvent::Progress { .. });
    while !is_reading(events.recv().unwrap()) {}
    assert_eq!(world.cached_bytes(), 0, "it had to make room");
    world.answer(&text(1, 30), 3);
    assert_eq!(world.cached_bytes(), 0);
    drop(go_on);
    let is_over = |event: LoadEvent| matches!(event, LoadEvent::Finished(Ok(_)));
    while !is_over(events.recv().unwrap()) {}
}

#[test]
fn smaller_keys_and_values_make_no_room_while_larger_ones_are_held() {
    let world = World::new(PlanSettings {
        kv_cache_format: KvCacheFormat::F32,
        ..PlanSettings::default()
    });
    let request = world.request(&text(3, 500), 500);
    let smaller = PlanOptions {
        kv_cache_format: Some(KvCacheFormat::Q8_0),
        ..PlanOptions::default()
    };
    let bytes = world.plan(&smaller, &request).unwrap().peak_bytes();
    world.apply(budget(bytes)).unwrap();
    let (send, events) = mpsc::channel();
    let sink = Box::new(move |event| drop(send.send(event)));
    world
        .engine
        .submit(Default::default(), Work::Generate(request), sink)
        .unwrap();
    let mut notices = Vec::new();
    let mut take = |event| match event {
        Event::Notice(notice) => {
            notices.push(notice);
            None
        }
        Event::Finished(result) => Some(result),
        _ => None,
    };
    // The first pass is over.
    while !matches!(events.recv().unwrap(), Event::Pass(_)) {}
    let plan = world.apply(smaller).unwrap();
    assert_eq!(
        plan.working.kv_cache_format,
        Some(sluice_formats::Format::Q8_0)
    );
    assert!(plan.peak_bytes() <= bytes && plan.streamed_bytes() > 0);
    let result = events.iter().find_map(&mut take).unwrap();
    let Outcome::Generated(generated) = result.unwrap() else {
        panic!("it generates");
    };
    assert!(generated.peak_device_bytes <= bytes);
    assert_eq!(notices, [""; 0]);
    // What it held is the weights' soon after.
    let begun = Instant::now();
    while world.engine.in_force().unwrap().plan.streamed_bytes() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(30));
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_peak_is_what_the_plan_says() {
    for kv in KvCacheFormat::ALL {
        let world = World::new(PlanSettings {
            kv_cache_format: kv,
            ..PlanSettings::default()
        });
        let request = world.request(&text(3, 600), 100);
        let plan = world.plan(&PlanOptions::default(), &request).unwrap();
        let (generated, rows) = world.run(request).unwrap();
        assert_eq!(rows[..3], [512, 88, 1]);
        let (predicted, measured) = (plan.peak_bytes(), generated.peak_device_bytes);
        let off = (measured as f64 / predicted as f64 - 1.0).abs();
        assert!(off < 0.01, "{kv}: {measured} bytes, not {predicted}");
    }
}

#[test]
fn streamed_weights_give_the_resident_ones_text() {
    let world = World::new(PlanSettings::default());
    // More than what is planned for before anybody asks, and than what goes through the layers at once: the LM head
    // is not needed in the first pass.
    let request = world.request(&text(5, 600), 20);
    let expected = world.run(request.clone()).unwrap().0.tokens;
    let error = world.plan(&budget(1), &request).unwrap_err();
    let EngineError::Plan(PlanError::BudgetTooSmall { least_bytes, .. }) = error else {
        panic!("{error}");
    };
    let all = world.plan(&PlanOptions::default(), &request).unwrap();
    for bytes in [least_bytes, least_bytes.midpoint(all.peak_bytes())] {
        assert!(
            world
                .plan(&budget(bytes), &request)
                .unwrap()
                .streamed_bytes()
                > 0
        );
        world.apply(budget(bytes)).unwrap();
        let (generated, _) = world.run(request.clone()).unwrap();
        assert_eq!(generated.tokens, expected);
        assert!(generated.peak_device_bytes <= bytes && generated.is_lossless);
    }
}

#[test]
fn keys_and_values_take_what_was_chosen_from_the_next_request_on() {
    let world = World::new(PlanSettings::default());
    let bytes = |kv: KvCacheFormat| {
        let change = PlanOptions {
            kv_cache_format: Some(kv),
            ..PlanOptions::default()
        };
        world.apply(change).unwrap();
        world.answer(&text(3, 20), 12);
        world.cached_bytes()
    };
    // A KV cache of 4 layers, 31 positions counted up to 32, 2 heads of 16, in whole pages.
    assert_eq!(bytes(KvCacheFormat::F32), 4 * 2 * 32 * 2 * 16 * 4);
    assert_eq!(bytes(KvCacheFormat::Bf16), 4 * 2 * 32 * 2 * 16 * 2);
    // Heads of 16 take a whole block of 32.
    assert_eq!(
        bytes(KvCacheFormat::Q8_0),
        (4 * 2 * 32 * 2 * 34u64).next_multiple_of(4096)
    );
    // Up to 96 positions are kept in 8 bits, too.
    for (kv, block_bytes) in [(KvCacheFormat::Q5_0, 22), (KvCacheFormat::Q4_0, 18u64)] {
        let expected = 4 * 2 * 32 * 2 * (block_bytes + 34);
        assert_eq!(bytes(kv), expected.next_multiple_of(4096));
    }
}

#[test]
fn weights_that_change_meanwhile_are_told_of_and_nothing_is_kept() {
    let world = World::new(PlanSettings::default());
    let (send, events) = mpsc::channel();
    let sink = Box::new(move |event| drop(send.send(event)));
    let request = world.request(&text(3, 20), 400);
    world
        .engine
        .submit(Default::default(), Work::Generate(request), sink)
        .unwrap();
    // A pass of the prompt, by the weights as they are.
    let mut read = loop {
        if let Event::Pass(report) = events.recv().unwrap() {
            break report.rows;
        }
    };
    let change = PlanOptions {
        level: Some(Level::Moderate),
        ..PlanOptions::default()
    };
    world.apply(change).unwrap();
    let mut told = Vec::new();
    for event in events {
        match event {
            Event::Notice(notice) => told.push(notice),
            Event::Pass(report) if report.cost.weights.is_lossless => read += report.rows,
            Event::Finished(result) => {
                let Outcome::Generated(generated) = result.unwrap() else {
                    panic!("it generates");
                };
                assert_eq!(generated.is_lossless, told.is_empty());
                break;
            }
            _ => {}
        }
    }
    // A machine in a hurry may have ended the request before the change began.
    match &told[..] {
        [notice] => {
            assert_eq!(
                *notice,
                format!(
                    "the weights changed: the KV cache of the first {read} positions was computed with the previous weights"
                )
            );
            assert_eq!(world.cached_bytes(), 0);
        }
        told => assert_eq!(told, [""; 0]),
    }
}

#[test]
fn the_same_seed_draws_the_same_text() {
    let world = World::new(PlanSettings::default());
    let drawn = |seed: u64| {
        let mut request = world.request(&text(3, 20), 24);
        request.temperature = 1.0;
        request.sampling = Sampling {
            top_k: Some(50),
            top_p: Some(0.95),
            min_p: Some(0.001),
            repetition_penalty: Some(1.1),
        };
        request.seed = seed;
        world.run(request).unwrap().0.tokens
    };
    let first = drawn(1);
    // Though what is kept of the prompt makes the second run another one.
    assert_eq!(drawn(1), first);
    assert_ne!(drawn(2), first);
}

/// Every reservation fails once: each request ends well or says what it lacked, and the next is as if nothing had been.
#[test]
fn every_reservation_may_fail() {
    let world = World::new(PlanSettings {
        level: Level::Standard,
        ..PlanSettings::default()
    });
    let short = || world.run(world.request(&text(3, 30), 6));
    let expected = short().unwrap().0.tokens;
    let ledger = &world.engine.shared.ledger;
    for number in 1.. {
        ledger.fail_at(number);
        let result = short();
        let has_failed = ledger.has_failed();
        ledger.fail_at(0);
        assert_eq!(
            result.unwrap().0.tokens,
            expected,
            "there is another way each time"
        );
        if !has_failed {
            assert!(number > 3);
            break;
        }
    }
}

#[test]
fn what_only_other_models_have_is_refused_by_name() {
    let world = World::new(PlanSettings::default());
    let refusal = |change: fn(&mut Generate)| {
        let mut request = world.request(&text(3, 10), 6);
        change(&mut request);
        world.run(request).unwrap_err().to_string()
    };
    assert!(
        refusal(|request| request.guidance = 1.0)
            .starts_with("diffusion.guidance: only masked diffusion models")
    );
    assert!(
        refusal(|request| request.canvas[2] = CanvasSlot::Pinned(4))
            .starts_with("diffusion.pins: ")
    );
    assert!(
        refusal(|request| request.remasking = Remasking::Random)
            .starts_with("diffusion.remasking: ")
    );
    assert!(
        refusal(|request| request.policy = "factor".parse().unwrap())
            .starts_with("diffusion.policy: ")
    );
    assert_eq!(
        refusal(|request| request.prompt.clear()),
        "prompt must be at least 1, not 0"
    );
    assert_eq!(
        refusal(|request| request.sampling.top_p = Some(2.0)),
        "sampling.top_p: must be above 0 and at most 1, not 2"
    );
    assert!(
        refusal(|request| request.stops = vec![vec![b'x'; 300]])
            .starts_with("autoregressive.stop: at most")
    );
    assert!(refusal(|request| request.prompt = text(3, 1020)).contains("context length of 1024"));
}

#[test]
fn levels_and_kept_numbers_are_compared_with_the_source() {
    let compared = |kv, level| {
        let world = World::new(PlanSettings {
            level: Level::Off,
            kv_cache_format: kv,
            ..PlanSettings::default()
        });
        let sample = |first: u32| (first..first + 200).map(|id| id * 7 % 250).collect();
        let request = MeasureFidelity {
            model: world.model.id,
            level: Some(level),
            samples: (0..6).map(sample).collect(),
            seed: 1,
        };
        match world.engine.run(Work::MeasureFidelity(request)).unwrap() {
            Outcome::Fidelity(compared) => compared,
            other => panic!("{other:?}"),
        }
    };
    let exact = compared(KvCacheFormat::F32, Level::Off);
    assert_eq!((exact.samples, exact.rows), (6, 6 * 32));
    assert!(exact.mean_kl < 1e-9 && exact.top_agreement == 1.0);
    assert_eq!(exact.source_bound, exact.level_bound);
    let halves = compared(KvCacheFormat::Bf16, Level::Off);
    let bytes = compared(KvCacheFormat::Q8_0, Level::Off);
    assert_eq!(exact.source_bound, bytes.source_bound);
    assert!(
        halves.mean_kl > 0.0 && bytes.mean_kl > halves.mean_kl,
        "{halves:?} {bytes:?}"
    );
    let five = compared(KvCacheFormat::Q5_0, Level::Off);
    let four = compared(KvCacheFormat::Q4_0, Level::Off);
    assert!(
        five.mean_kl > bytes.mean_kl && four.mean_kl > five.mean_kl,
        "{bytes:?} {five:?} {four:?}"
    );
    let aggressive = compared(KvCacheFormat::F32, Level::Aggressive);
    assert!(aggressive.mean_kl > bytes.mean_kl, "{aggressive:?}");
}
