//! What the engine asks of a GPU's driver, and when: against the stand-in, each test in a process of its own, since
//! requests for memory are counted for all of a process.

use std::{env, fs, ops::Range, sync::mpsc, thread, time::Duration};

use libloading::os::unix::Library;
use sluice_checkpoint::Source;
use sluice_engine::{
    Engine, EngineError, EngineOptions, Event, Generate, ModelId, Outcome, PlanOptions,
    PlanSettings, Work, request::Thinking,
};
use sluice_formats::DType;
use sluice_machine::{MemoryKind, page::PAGE_BYTES};
use sluice_ops::{
    Ops, OpsError,
    device::{Device, DeviceBuffer, DeviceChoice},
    ledger::Ledger,
    measure::measure,
};
use sluice_plan::Workload;
use sluice_shared::{decoding::Decoding, level::Level, sampling::EosPolicy};
use testkit::apart;

use crate::{checkpoints::fixture, loading::apply, small};

/// How often this process asked the driver for memory of a GPU.
fn allocations() -> u64 {
    // SAFETY: the driver was opened before, and its initializers are through.
    let driver = unsafe { Library::open(Some("libcuda.so.1"), libloading::os::unix::RTLD_NOW) };
    let driver = driver.expect("the stand-in's driver");
    // SAFETY: the stand-in has it with this type.
    unsafe {
        let count = driver.get::<unsafe extern "C" fn() -> u64>(b"standInAllocations\0");
        count.expect("the stand-in counts")()
    }
}

fn options() -> EngineOptions {
    EngineOptions {
        device: DeviceChoice::Cuda(0),
        compute_dtype: Some(DType::F32),
        threads: 1,
        ..EngineOptions::default()
    }
}

fn load(engine: &Engine) -> ModelId {
    load_fixture(engine, "llada-tiny")
}

fn load_fixture(engine: &Engine, name: &str) -> ModelId {
    let source = Source::Folder(fixture(name));
    let loaded = engine.load_now(source, PlanSettings::default());
    loaded.unwrap().id
}

/// The passes of a request of so many steps.
fn generate(engine: &Engine, model: ModelId, steps: usize) -> usize {
    let request = Generate {
        steps,
        eos: EosPolicy::Suppress,
        ..Generate::greedy(model, vec![1, 2, 3], 8)
    };
    match engine.run(Work::Generate(request)).unwrap() {
        Outcome::Generated(generated) => generated.passes,
        other => panic!("asked to generate: {other:?}"),
    }
}

/// Answers a request: its workload, and how often it asked for memory.
fn run_counted(engine: &Engine, request: Generate) -> (Workload, u64) {
    let work = Work::Generate(request);
    let workload = work.workload();
    let before = allocations();
    engine.run(work).unwrap();
    (workload, allocations() - before)
}

/// To the byte, after a request with this workload.
fn assert_peak_is_planned(engine: &Engine, workload: Workload, number: DType) {
    let plan = engine.plan(&PlanOptions::default(), workload).unwrap();
    let planned = plan.weight_bytes() + plan.working.total_bytes();
    let in_force = engine.in_force().unwrap();
    assert_eq!(in_force.passes.peak_bytes, planned, "{number:?}");
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn nothing_is_timed_while_the_driver_finds_memory() {
    apart::run(
        "nothing_is_timed_while_the_driver_finds_memory",
        &[],
        || {
            let device = Device::open(DeviceChoice::Cuda(0), None, 1).unwrap().device;
            let ops = Ops::new(device, Ledger::default()).unwrap();
            let before = allocations();
            assert!(measure(&ops).unwrap().is_some());
            // For the bus, weights, decompressed weights, activations, and each of the four kinds of compressed weights.
            assert_eq!(allocations() - before, 8);
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn what_a_gpu_can_do_is_measured_once_and_by_the_engines_thread() {
    apart::run(
        "what_a_gpu_can_do_is_measured_once_and_by_the_engines_thread",
        &[],
        || {
            let engine = Engine::start(options()).unwrap();
            let before = engine.memory();
            let machine = engine.machine().unwrap();
            assert!(machine.rates.is_some());
            let after = engine.memory();
            assert_eq!(after.used_bytes, before.used_bytes, "given back");
            assert!(
                after.peak_bytes > before.peak_bytes,
                "in the engine's account"
            );
            let asked = allocations();
            assert_eq!(engine.machine().unwrap().rates, machine.rates);
            assert_eq!(allocations(), asked);
            // And what is loaded then computes as ever.
            let model = load(&engine);
            assert_eq!(generate(&engine, model, 4), 4);
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_pass_asks_for_no_memory() {
    apart::run("a_pass_asks_for_no_memory", &[], || {
        let engine = Engine::start(options()).unwrap();
        let model = load(&engine);
        let asked_by = |steps| {
            let before = allocations();
            assert_eq!(generate(&engine, model, steps), steps);
            allocations() - before
        };
        assert_eq!(asked_by(2), asked_by(8));
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn mixtures_take_what_was_planned_and_passes_ask_for_no_memory() {
    const NAME: &str = "mixtures_take_what_was_planned_and_passes_ask_for_no_memory";
    apart::run(NAME, &[], || {
        for number in [DType::F32, DType::Bf16] {
            let engine = Engine::start(EngineOptions {
                compute_dtype: Some(number),
                ..options()
            })
            .unwrap();
            let model = load_fixture(&engine, "llada-moe-tiny");
            let run = |prompt: u32, steps| {
                let request = Generate {
                    steps,
                    eos: EosPolicy::Suppress,
                    ..Generate::greedy(model, (prompt..prompt + 20).collect(), 8)
                };
                run_counted(&engine, request)
            };
            let (workload, asked) = run(1, 2);
            assert_peak_is_planned(&engine, workload, number);
            // Other rows go through other experts.
            assert_eq!(run(20, 8).1, asked);
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn canvases_take_what_was_planned_and_passes_ask_for_no_memory() {
    const NAME: &str = "canvases_take_what_was_planned_and_passes_ask_for_no_memory";
    apart::run(NAME, &[], || {
        for number in [DType::F32, DType::Bf16] {
            let engine = Engine::start(EngineOptions {
                compute_dtype: Some(number),
                ..options()
            })
            .unwrap();
            let model = load_fixture(&engine, "diffusion-gemma-tiny");
            let run = |prompt: u32, steps: usize| {
                let request = Generate {
                    policy: format!("renoise:steps={steps}").parse().unwrap(),
                    block_length: 16,
                    causal_attention_before: true,
                    eos: EosPolicy::Suppress,
                    decoding: Decoding {
                        kv_cache: "blocks".parse().unwrap(),
                        ..Decoding::default()
                    },
                    ..Generate::greedy(model, (prompt..prompt + 20).collect(), 32)
                };
                run_counted(&engine, request)
            };
            let (workload, asked) = run(1, 2);
            let plan = engine.plan(&PlanOptions::default(), workload).unwrap();
            let planned = plan.weight_bytes() + plan.working.total_bytes();
            let peak = engine.in_force().unwrap().passes.peak_bytes;
            // But for what the two caches are rounded up by.
            let rounding = 2 * PAGE_BYTES as u64;
            assert!(peak <= planned && planned - peak <= rounding, "{number:?}");
            assert_eq!(run(20, 5).1, asked);
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn states_take_what_was_planned_and_passes_ask_for_no_memory() {
    const NAME: &str = "states_take_what_was_planned_and_passes_ask_for_no_memory";
    apart::run(NAME, &[], || {
        let engine = Engine::start(options()).unwrap();
        let model = load_fixture(&engine, "rwkv7-tiny");
        let run = |prompt: u32, length| {
            let request = Generate {
                eos: EosPolicy::Suppress,
                ..Generate::greedy(model, (prompt..prompt + 30).collect(), length)
            };
            let work = Work::Generate(request);
            let workload = work.workload();
            let before = allocations();
            let outcome = engine.run(work).unwrap();
            assert!(matches!(outcome, Outcome::Generated(done) if done.passes == length));
            (workload, allocations() - before)
        };
        let (workload, asked) = run(1, 2);
        let plan = engine.plan(&PlanOptions::default(), workload).unwrap();
        // To the byte, but for a second state that is kept for the next answer to this prompt, if the budget has room.
        let kept_bytes = plan.working.state_bytes / 2;
        let planned = plan.weight_bytes() + plan.working.total_bytes() + kept_bytes;
        let in_force = engine.in_force().unwrap();
        assert_eq!(in_force.passes.peak_bytes, planned);
        // Other prompts, so that each begins with an empty state.
        assert_eq!(run(50, 8).1, asked);
        assert_eq!(run(100, 8).1, asked);
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn thoughts_take_what_was_planned_and_passes_ask_for_no_memory() {
    const NAME: &str = "thoughts_take_what_was_planned_and_passes_ask_for_no_memory";
    apart::run(NAME, &[], || {
        for number in [DType::F32, DType::Bf16] {
            let engine = Engine::start(EngineOptions {
                compute_dtype: Some(number),
                ..options()
            })
            .unwrap();
            let model = load_fixture(&engine, "ltm-tiny");
            let run = |prompt: u32, steps| {
                let request = Generate {
                    eos: EosPolicy::Suppress,
                    thinking: Some(Box::new(Thinking {
                        steps,
                        start: None,
                        prior: None,
                        returns_posterior: false,
                    })),
                    ..Generate::greedy(model, (prompt..prompt + 50).collect(), 2)
                };
                run_counted(&engine, request)
            };
            let (workload, asked) = run(1, 2);
            assert_peak_is_planned(&engine, workload, number);
            assert_eq!(run(50, 4).1, asked);
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn the_driver_counts_what_the_account_does_to_a_piece() {
    const PIECE: u64 = 0x4000;
    let settings = [("STAND_IN_GRANULARITY", "0x4000")];
    apart::run(
        "the_driver_counts_what_the_account_does_to_a_piece",
        &settings,
        || {
            let engine = Engine::start(options()).unwrap();
            let free_bytes = || engine.device().memory().free_bytes.unwrap();
            // Rates are measured before anything is loaded.
            engine.machine().unwrap();
            let before = free_bytes();
            let account_before = engine.memory().used_bytes;
            // How much more the driver has given than the account knows of.
            let beside = || {
                let counted = engine.memory().used_bytes - account_before;
                (before - free_bytes()).checked_sub(counted).unwrap()
            };

            let model = load(&engine);
            assert!(engine.memory().used_bytes > account_before);
            assert!(beside() < PIECE, "{} bytes", beside());
            for level in [Level::Moderate, Level::Aggressive, Level::Standard] {
                generate(&engine, model, 2);
                let change = PlanOptions {
                    level: Some(level),
                    ..PlanOptions::default()
                };
                apply(&engine, change).unwrap();
                // Where weight groups were replaced there may be a gap, which begins and ends in a piece.
                assert!(beside() < 4 * PIECE, "{level:?}: {} bytes", beside());
            }

            let (told, gone) = mpsc::channel();
            engine.unload(model, false, Box::new(move |gone| told.send(gone).unwrap()));
            assert!(gone.recv().unwrap());
            assert_eq!((free_bytes(), beside()), (before, 0));
        },
    );
}

/// As many short requests, of several lengths, one after another and now and then one that is given up: the driver has as
/// much free memory after each as after the first.
fn requests_leave_nothing(count: usize) {
    let engine = Engine::start(options()).unwrap();
    let model = load(&engine);
    let free_bytes = || engine.device().memory().free_bytes.unwrap();
    generate(&engine, model, 2);
    let (free, used) = (free_bytes(), engine.memory().used_bytes);
    for number in 0..count {
        let request = Generate {
            steps: 1 + number % 2,
            eos: EosPolicy::Suppress,
            ..Generate::greedy(model, vec![1; 1 + number % 7], 4 + number % 9)
        };
        match number % 5 {
            4 => drop(engine.passes(request, 1).unwrap()),
            _ => drop(engine.run(Work::Generate(request)).unwrap()),
        }
        let left = (free_bytes(), engine.memory().used_bytes);
        assert_eq!(left, (free, used), "after {number} requests");
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn requests_leave_the_drivers_free_memory_as_it_was() {
    apart::run(
        "requests_leave_the_drivers_free_memory_as_it_was",
        &[],
        || requests_leave_nothing(40),
    );
}

#[test]
#[ignore = "minutes, on the stand-in: cargo soak"]
fn a_thousand_requests_leave_the_drivers_free_memory_as_it_was() {
    apart::run(
        "a_thousand_requests_leave_the_drivers_free_memory_as_it_was",
        &[],
        || requests_leave_nothing(1000),
    );
}

/// What other programs hold from now on.
fn set_held(bytes: u64) {
    let file = env::var_os("STAND_IN_HELD_FILE").expect("the test sets it");
    fs::write(file, bytes.to_string()).unwrap();
}

/// Runs a request, with `meanwhile` after its second pass; what it told, and how it ended.
fn told(
    engine: &Engine,
    model: ModelId,
    meanwhile: impl Fn() + Send + 'static,
) -> (Vec<String>, Result<Outcome, EngineError>) {
    told_after(engine, model, 2..3, meanwhile)
}

/// The same, with `meanwhile` after each of these passes.
fn told_after(
    engine: &Engine,
    model: ModelId,
    passes: Range<usize>,
    meanwhile: impl Fn() + Send + 'static,
) -> (Vec<String>, Result<Outcome, EngineError>) {
    let request = Generate {
        steps: passes.end + 3,
        eos: EosPolicy::Suppress,
        ..Generate::greedy(model, vec![1, 2, 3], passes.end + 5)
    };
    let (send, events) = mpsc::channel();
    let sink = Box::new(move |event| {
        if matches!(&event, Event::Pass(pass) if passes.contains(&pass.passes)) {
            meanwhile();
            // The next look is due then.
            thread::sleep(Duration::from_millis(300));
        }
        send.send(event).unwrap();
    });
    engine
        .submit(Default::default(), Work::Generate(request), sink)
        .unwrap();
    let mut notices = Vec::new();
    for event in events {
        match event {
            Event::Notice(notice) => notices.push(notice),
            Event::Finished(result) => return (notices, result),
            _ => {}
        }
    }
    panic!("the last event is how it ended");
}

/// A model of random weights at this level, all of them on a GPU of 1 GiB.
fn load_small(engine: &Engine, level: Level) -> ModelId {
    let folder = tempfile::tempdir().unwrap();
    let settings = PlanSettings {
        level,
        ..PlanSettings::default()
    };
    let model = small::write(folder.path(), 8);
    let loaded = engine.load_now(Source::Folder(model), settings);
    // Its files are open, or read already.
    loaded.unwrap().id
}

/// Has another program take all that the engine leaves free, and so much of what is to stay free beside it.
fn take_all_and(engine: &Engine, too_much: u64) -> impl Fn() + Send + use<> {
    // Half of what the default budget leaves.
    const MARGIN: u64 = 128 << 20;
    let device = engine.device().clone();
    move || {
        let file = env::var_os("STAND_IN_HELD_FILE").expect("the test sets it");
        let held = fs::read_to_string(file).map_or(0, |held| held.parse().unwrap());
        let free = device.memory().free_bytes.unwrap();
        set_held(held + free - (MARGIN - too_much));
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn giving_way_to_others_takes_none_of_what_a_refusal_has() {
    const NAME: &str = "giving_way_to_others_takes_none_of_what_a_refusal_has";
    beside_others(NAME, Some("0x4000"), || {
        let engine = Engine::start(options()).unwrap();
        let model = load_small(&engine, Level::Standard);
        // Again and again what one weight group takes, in one request.
        let take = take_all_and(&engine, 200 << 10);
        let (notices, result) = told_after(&engine, model, 2..9, take);
        assert!(result.is_ok(), "{result:?}");
        let is_streamed = |notice: &&String| notice.ends_with("of weights");
        let plans = notices.iter().filter(is_streamed).count();
        assert!(plans > 4, "more often than a refusal may: {notices:?}");
        fs::remove_file(env::var_os("STAND_IN_HELD_FILE").unwrap()).unwrap();
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn what_can_not_give_way_to_others_fails_nobody() {
    const NAME: &str = "what_can_not_give_way_to_others_fails_nobody";
    beside_others(NAME, Some("0x4000"), || {
        let engine = Engine::start(options()).unwrap();
        // Blocks of weights cannot be streamed where no converted copies are kept.
        let model = load_small(&engine, Level::Moderate);
        let (notices, result) = told(&engine, model, take_all_and(&engine, 200 << 10));
        assert!(result.is_ok(), "{result:?}");
        let [taken, rows] = &notices[..] else {
            panic!("{notices:?}");
        };
        assert!(taken.starts_with("other processes use"), "{taken}");
        assert!(rows.contains("64 rows"), "{rows}");
        assert_eq!(engine.in_force().unwrap().plan.streamed_bytes(), 0);
        // Nor does it where they have taken it before.
        let (_, result) = told(&engine, model, || {});
        assert!(result.is_ok(), "{result:?}");
        fs::remove_file(env::var_os("STAND_IN_HELD_FILE").unwrap()).unwrap();
    });
}

/// Runs the body of the test `name` apart, on a GPU of 1 GiB in pieces of so many bytes, of which the file that
/// `STAND_IN_HELD_FILE` names says what others hold.
fn beside_others(name: &str, granularity: Option<&str>, body: impl FnOnce()) {
    let folder = env!("CARGO_TARGET_TMPDIR");
    let held = format!("{folder}/held-{name}-{}", std::process::id());
    let pieces = granularity.map(|bytes| ("STAND_IN_GRANULARITY", bytes));
    let settings = [
        ("STAND_IN_MEMORY", "0x40000000"),
        ("STAND_IN_HELD_FILE", held.as_str()),
    ];
    let settings: Vec<_> = settings.into_iter().chain(pieces).collect();
    apart::run(name, &settings, body);
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn other_programs_are_given_way_to_before_anything_is_refused() {
    const NAME: &str = "other_programs_are_given_way_to_before_anything_is_refused";
    beside_others(NAME, None, || {
        let engine = Engine::start(options()).unwrap();
        let model = load(&engine);
        let budget = |engine: &Engine| engine.in_force().unwrap().plan.budget_bytes;
        let free_bytes = engine.device().memory().free_bytes.unwrap();
        let planned = budget(&engine);
        assert!(planned < engine.device().memory().total_bytes.unwrap());

        // Another program takes nine tenths of what is free.
        let (notices, result) = told(&engine, model, move || set_held(free_bytes / 10 * 9));
        assert!(result.is_ok(), "{result:?}");
        let [taken, rows] = &notices[..] else {
            panic!("{notices:?}");
        };
        assert!(taken.starts_with("other processes use"), "{taken}");
        assert_eq!(
            rows,
            "GPU memory is short: the MLP processes 64 rows at a time"
        );
        // Another change is planned with what is left, and refused where that is too little.
        let change = PlanOptions {
            level: Some(Level::Moderate),
            ..PlanOptions::default()
        };
        let error = apply(&engine, change).unwrap_err();
        assert!(
            error.to_string().contains("budget"),
            "what plans need is told: {error}"
        );

        // All of it: what a request needs besides cannot be had.
        set_held(free_bytes);
        let (_, result) = told(&engine, model, || {});
        let error = result.unwrap_err();
        assert!(
            matches!(error, EngineError::Ops(OpsError::OutOfMemory { free_bytes: Some(_), needed_bytes, .. }) if needed_bytes > 0),
            "{error}"
        );

        set_held(0);
        let (notices, result) = told(&engine, model, || {});
        assert!(result.is_ok() && notices.is_empty(), "{notices:?}");
        apply(&engine, change).unwrap();
        assert_eq!(budget(&engine), planned);
        fs::remove_file(env::var_os("STAND_IN_HELD_FILE").unwrap()).unwrap();
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn what_the_driver_counts_otherwise_is_told_once() {
    apart::run("what_the_driver_counts_otherwise_is_told_once", &[], || {
        let engine = Engine::start(options()).unwrap();
        let model = load(&engine);
        assert!(told(&engine, model, || {}).0.is_empty());
        // In no account.
        let gpu = engine.device().gpu().unwrap();
        let _uncounted = gpu.allocate(200 << 20).unwrap();
        let (notices, result) = told(&engine, model, || {});
        assert!(result.is_ok());
        assert!(
            notices.len() == 1 && notices[0].starts_with("the GPU driver reports"),
            "{notices:?}"
        );
        assert!(told(&engine, model, || {}).0.is_empty());
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn the_first_gpu_that_can_be_used_is_taken() {
    let settings = [("STAND_IN_DEVICES", "2"), ("STAND_IN_OLD_GPU", "0")];
    apart::run("the_first_gpu_that_can_be_used_is_taken", &settings, || {
        let opened = Device::open(DeviceChoice::Auto, None, 1).unwrap();
        assert!(opened.gpu_unavailable.is_none());
        let gpu = opened.device.gpu().expect("the second one");
        assert_eq!(gpu.properties().pci_bus_id, "0000:02:00.0");
        assert!(Device::open(DeviceChoice::Cuda(0), None, 1).is_err());
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn where_no_gpu_can_be_used_the_first_ones_reason_is_told() {
    let settings = [("STAND_IN_DEVICES", "2"), ("STAND_IN_CAPABILITY", "7.0")];
    apart::run(
        "where_no_gpu_can_be_used_the_first_ones_reason_is_told",
        &settings,
        || {
            let opened = Device::open(DeviceChoice::Auto, None, 1).unwrap();
            let reason = opened
                .gpu_unavailable
                .expect("none can be used")
                .to_string();
            assert!(reason.contains("too old"), "{reason}");
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn memory_that_a_gpu_refuses_is_refused_with_what_is_free() {
    apart::run(
        "memory_that_a_gpu_refuses_is_refused_with_what_is_free",
        &[],
        || {
            let device = Device::open(DeviceChoice::Cuda(0), None, 1).unwrap().device;
            let ledger = Ledger::default();
            let free = device.memory().free_bytes;
            let error = DeviceBuffer::<u8>::new(&device, &ledger, MemoryKind::Weights, 1 << 40)
                .expect_err("a card has less");
            assert!(
                matches!(error, OpsError::OutOfMemory { free_bytes, .. } if free_bytes == free),
                "{error}"
            );
            assert_eq!(ledger.used_bytes(), 0);
        },
    );
}
