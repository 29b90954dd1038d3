//! What the engine asks of a card's driver, and when: against the stand-in, each test in a process of its own, since requests
//! for memory are counted for all of a process.

#[path = "../../cuda/tests/apart/mod.rs"]
mod apart;
#[path = "../../cuda/tests/stand_in/mod.rs"]
mod stand_in;

use std::{path::Path, sync::mpsc};

use libloading::os::unix::Library;
use sluice_engine::{
    ApplyEvent, Change, Engine, EngineError, Generate, ModelId, Options, Outcome, Settings, Work,
    checkpoint::Source,
    device::{self, Choice, Device, DeviceBuffer, Number},
    ledger::{Kind, Ledger},
    ops::Ops,
};
use sluice_shared::{level::Level, sampling::EosPolicy};

/// How often this process asked the driver for memory of a card.
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

fn options() -> Options {
    Options {
        device: Choice::Cuda(0),
        number: Some(Number::F32),
        threads: 1,
        ..Options::default()
    }
}

fn load(engine: &Engine) -> ModelId {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llada-tiny");
    let loaded = engine.load_now(Source::Folder(folder), Settings::default());
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

#[test]
fn nothing_is_timed_while_the_driver_finds_memory() {
    apart::run(
        "nothing_is_timed_while_the_driver_finds_memory",
        &[],
        || {
            let device = Device::open(Choice::Cuda(0), None, 1).unwrap().device;
            let ops = Ops::new(device, Ledger::default()).unwrap();
            let before = allocations();
            assert!(device::measure(&ops).unwrap().is_some());
            // For the bus, for weights, for what they are decoded into, for activations, and for each way of coding.
            assert_eq!(allocations() - before, 7);
        },
    );
}

#[test]
fn what_a_card_can_do_is_measured_once_and_by_the_engines_thread() {
    apart::run(
        "what_a_card_can_do_is_measured_once_and_by_the_engines_thread",
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
                let change = Change {
                    level: Some(level),
                    ..Change::default()
                };
                let (told, finished) = mpsc::channel();
                engine.apply(
                    change,
                    Box::new(move |event| {
                        if let ApplyEvent::Finished(result) = event {
                            told.send(result.map(drop)).unwrap();
                        }
                    }),
                );
                finished.recv().unwrap().unwrap();
                // Where units were replaced there may be a gap, which begins and ends in a piece.
                assert!(beside() < 4 * PIECE, "{level:?}: {} bytes", beside());
            }

            let (told, gone) = mpsc::channel();
            engine.unload(model, false, Box::new(move |gone| told.send(gone).unwrap()));
            assert!(gone.recv().unwrap());
            assert_eq!((free_bytes(), beside()), (before, 0));
        },
    );
}

#[test]
fn the_first_card_that_can_be_used_is_taken() {
    let settings = [("STAND_IN_DEVICES", "2"), ("STAND_IN_OLD_CARD", "0")];
    apart::run(
        "the_first_card_that_can_be_used_is_taken",
        &settings,
        || {
            let opened = Device::open(Choice::Auto, None, 1).unwrap();
            assert!(opened.no_card.is_none());
            let card = opened.device.gpu().expect("the second one");
            assert_eq!(card.facts().pci_bus_id, "0000:02:00.0");
            assert!(Device::open(Choice::Cuda(0), None, 1).is_err());
        },
    );
}

#[test]
fn where_no_card_can_be_used_the_first_ones_reason_is_told() {
    let settings = [("STAND_IN_DEVICES", "2"), ("STAND_IN_CAPABILITY", "7.0")];
    apart::run(
        "where_no_card_can_be_used_the_first_ones_reason_is_told",
        &settings,
        || {
            let opened = Device::open(Choice::Auto, None, 1).unwrap();
            let reason = opened.no_card.expect("none can be used").to_string();
            assert!(reason.contains("too old"), "{reason}");
        },
    );
}

#[test]
fn memory_that_a_card_refuses_is_refused_with_what_is_free() {
    apart::run(
        "memory_that_a_card_refuses_is_refused_with_what_is_free",
        &[],
        || {
            let device = Device::open(Choice::Cuda(0), None, 1).unwrap().device;
            let ledger = Ledger::default();
            let free = device.memory().free_bytes;
            let error = DeviceBuffer::<u8>::new(&device, &ledger, Kind::Weights, 1 << 40)
                .expect_err("a card has less");
            assert!(
                matches!(error, EngineError::OutOfMemory { free_bytes, .. } if free_bytes == free),
                "{error}"
            );
            assert_eq!(ledger.used_bytes(), 0);
        },
    );
}
