//! Levels and budgets that change while a GPU writes, and memory of a GPU that cannot be had: against the stand-in,
//! whose streams run in any order and whose every allocation may fail. Each test runs in a process of its own.

use std::{path::PathBuf, thread};

use libloading::os::unix::Library;
use sluice_checkpoint::{
    Source,
    compression::{CompressionMethod, Lossless},
};
use sluice_engine::{
    Engine, EngineError, Generate, ModelId, Outcome, PlanOptions, PlanSettings, Work,
    event::GenerationResult,
};
use sluice_ops::{OpsError, device::DeviceChoice};
use sluice_shared::{level::Level, sampling::EosPolicy};
use testkit::apart;

use crate::{
    loading::{apply, settings},
    small::{
        self, compressed,
        loaded::{engine, least_bytes},
    },
};

/// A model of random weights, compressed without loss.
struct Model {
    container: PathBuf,
    _folder: tempfile::TempDir,
}

impl Model {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        small::write(folder.path(), 2);
        let container = compressed::write_compressed(
            folder.path(),
            CompressionMethod::Lossless(Lossless::Huffman),
        );
        Self {
            container,
            _folder: folder,
        }
    }

    fn load(&self, engine: &Engine, settings: PlanSettings) -> Result<ModelId, EngineError> {
        let loaded = engine.load_now(Source::Folder(self.container.clone()), settings)?;
        Ok(loaded.id)
    }
}

fn generate(
    engine: &Engine,
    model: ModelId,
    length: usize,
) -> Result<GenerationResult, EngineError> {
    let request = Generate {
        block_length: 4,
        steps: length,
        eos: EosPolicy::Suppress,
        ..Generate::greedy(model, vec![1, 2, 3], length)
    };
    match engine.run(Work::Generate(request))? {
        Outcome::Generated(generated) => Ok(generated),
        other => panic!("asked to generate: {other:?}"),
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn levels_change_while_a_gpu_writes_and_lose_nothing() {
    for streams in ["eager", "random:1"] {
        let name = "levels_change_while_a_gpu_writes_and_lose_nothing";
        apart::run(name, &[("STAND_IN_STREAMS", streams)], || {
            let (_model, engine, least, id) = loaded();
            let expected = generate(&engine, id, 12).unwrap();
            let to = |level, budget: Option<u64>| PlanOptions {
                level: Some(level),
                budget: Some(budget.into()),
                ..PlanOptions::default()
            };
            thread::scope(|scope| {
                let writing = scope.spawn(|| {
                    let written = (0..3).map(|_| generate(&engine, id, 12).unwrap());
                    written.collect::<Vec<_>>()
                });
                // All these have the checkpoint's own weights: decompressed, streamed compressed, or compressed where
                // they lie.
                for change in [
                    to(Level::Standard, Some(least)),
                    to(Level::Mild, None),
                    to(Level::Standard, None),
                    to(Level::Mild, Some(least)),
                    to(Level::Standard, None),
                ] {
                    let budget = change.budget.unwrap().bytes();
                    let plan = apply(&engine, change).unwrap();
                    assert!(plan.peak_bytes() <= budget.unwrap_or(u64::MAX));
                    assert_eq!(plan.streamed_bytes() > 0, budget.is_some());
                }
                for written in writing.join().unwrap() {
                    assert_eq!(written.tokens, expected.tokens);
                }
            });
            // What loses something works as well, there and back.
            for level in [Level::Moderate, Level::Aggressive] {
                apply(&engine, to(level, None)).unwrap();
                generate(&engine, id, 4).unwrap();
            }
            apply(&engine, to(Level::Standard, None)).unwrap();
            let written = generate(&engine, id, 12).unwrap();
            assert_eq!(written.tokens, expected.tokens);
        });
    }
}

/// The driver of this process.
fn driver() -> Library {
    // SAFETY: the driver was opened before, and its initializers are through.
    let driver = unsafe { Library::open(Some("libcuda.so.1"), libloading::os::unix::RTLD_NOW) };
    driver.expect("the stand-in's driver")
}

/// How often this process asked the driver for memory of a GPU.
fn allocations() -> u64 {
    // SAFETY: the stand-in has it with this type.
    unsafe {
        let count = driver().get::<unsafe extern "C" fn() -> u64>(b"standInAllocations\0");
        count.expect("the stand-in counts")()
    }
}

/// The model loaded from its container without a budget, with the least one that it could be loaded with.
fn loaded() -> (Model, Engine, u64, ModelId) {
    let (model, engine) = (Model::new(), engine(DeviceChoice::Cuda(0)));
    let least = least_bytes(&engine, &model.container);
    let id = model
        .load(&engine, settings(Level::Standard, None))
        .unwrap();
    (model, engine, least, id)
}

/// Has the driver refuse the allocation after so many more; none again for 0.
fn refuse_after(more: u64) {
    // SAFETY: the stand-in has it with this type.
    unsafe {
        let refuse = driver().get::<unsafe extern "C" fn(u64)>(b"standInRefuseAllocation\0");
        refuse.expect("the stand-in refuses")(more);
    }
}

/// A change that runs short of memory once is given up, or made otherwise: the request beside it is written as ever.
#[test]
#[ignore = "on the stand-in: cargo ci"]
fn every_allocation_of_a_change_may_fail_and_no_request_does() {
    let name = "every_allocation_of_a_change_may_fail_and_no_request_does";
    apart::run(name, &[], || {
        let (_model, engine, least, id) = loaded();
        let expected = generate(&engine, id, 8).unwrap().tokens;
        let to = |level, budget: Option<u64>| PlanOptions {
            level: Some(level),
            budget: Some(budget.into()),
            ..PlanOptions::default()
        };
        let mut refused = 0;
        for (level, budget) in [(Level::Mild, None), (Level::Standard, Some(least))] {
            for which in 1.. {
                let before = allocations();
                thread::scope(|scope| {
                    let writing = scope.spawn(|| generate(&engine, id, 8));
                    refuse_after(which);
                    refused += usize::from(apply(&engine, to(level, budget)).is_err());
                    let written = writing.join().unwrap();
                    let tokens = written.map(|written| written.tokens);
                    assert_eq!(tokens.ok().as_ref(), Some(&expected), "{level:?} {which}");
                });
                let was_reached = allocations() - before >= which;
                refuse_after(0);
                let written = generate(&engine, id, 8).unwrap();
                assert_eq!(written.tokens, expected);
                apply(&engine, to(Level::Standard, None)).unwrap();
                if !was_reached {
                    break;
                }
            }
        }
        assert!(refused > 0, "all of them passed unnoticed");
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn every_allocation_may_fail_and_the_next_request_works() {
    let name = "every_allocation_may_fail_and_the_next_request_works";
    apart::run(name, &[], || {
        let (model, engine, least, id) = loaded();
        let expected = generate(&engine, id, 8).unwrap().tokens;
        let mut refused = 0;
        for budget_bytes in [None, Some(least)] {
            let settings = settings(Level::Standard, budget_bytes);
            for which in 1.. {
                let before = allocations();
                refuse_after(which);
                let loaded = model.load(&engine, settings);
                let written = (loaded.as_ref().ok()).map(|id| generate(&engine, *id, 8));
                let was_reached = allocations() - before >= which;
                refuse_after(0);
                for error in [loaded.err(), written.and_then(Result::err)] {
                    let Some(error) = error else { continue };
                    let EngineError::Ops(OpsError::OutOfMemory {
                        needed_bytes,
                        free_bytes,
                        ..
                    }) = &error
                    else {
                        panic!("allocation {which}: {error}");
                    };
                    assert!(*needed_bytes > 0 && free_bytes.is_some(), "{error}");
                    refused += 1;
                }
                let id = model.load(&engine, settings).unwrap();
                assert_eq!(generate(&engine, id, 8).unwrap().tokens, expected);
                if !was_reached {
                    break;
                }
            }
        }
        assert!(refused > 0, "all of them passed unnoticed");
    });
}
