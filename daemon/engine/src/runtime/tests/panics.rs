//! Panics: of one request they end that one, of what is shared they end the engine.

use super::*;
use crate::{
    decode::{DiffusionRequest, Pass, diffusion::Diffusion},
    event::PassCost,
};

/// The seed of requests whose state machine panics when it takes a pass's candidates.
const IN_TAKE: u64 = 0xDEAD_0001;
/// The seed of requests whose passes read a token that no table has a row for, which panics among the operations.
const IN_PASS: u64 = 0xDEAD_0002;
/// The seed of requests whose samples of the prior panic in a step.
pub(super) const IN_STEP: u64 = 0xDEAD_0003;

/// A step of a sampler, in tests.
pub(in crate::runtime) fn in_step(seed: u64) {
    assert_ne!(seed, IN_STEP, "a test panics in a step");
}

/// What a batch makes of a request, in tests.
pub(in crate::runtime) fn spoiled(plain: Diffusion, seed: u64) -> Box<dyn DiffusionRequest> {
    match seed {
        IN_TAKE | IN_PASS => Box::new(Spoiled {
            canvas: vec![u32::MAX; 4096],
            plain,
            seed,
        }),
        _ => Box::new(plain),
    }
}

struct Spoiled {
    plain: Diffusion,
    seed: u64,
    canvas: Vec<u32>,
}

impl DiffusionRequest for Spoiled {
    fn start(&mut self, emit: &mut dyn FnMut(Event)) {
        self.plain.start(emit);
    }

    fn passes(&self) -> Vec<Pass<'_>> {
        let mut passes = self.plain.passes();
        if self.seed == IN_PASS {
            for pass in &mut passes {
                pass.canvas = &self.canvas[..pass.canvas.len()];
            }
        }
        passes
    }

    fn is_done(&self) -> bool {
        self.plain.is_done()
    }

    fn take(&mut self, _: &[Vec<sluice_ops::Candidate>], _: &PassCost, _: &mut dyn FnMut(Event)) {
        panic!("a test panics in a policy");
    }

    fn outcome(self: Box<Self>) -> Outcome {
        Box::new(self.plain).outcome()
    }
}

#[test]
fn a_panic_of_one_request_ends_that_one() {
    let world = world(Level::Off, None);
    let expected = world.generate();
    // All share passes, once the first has begun.
    let first = world.submit(world.request(48), |_| {
        thread::sleep(Duration::from_millis(2));
    });
    let spoiled = Generate {
        seed: IN_TAKE,
        ..world.request(48)
    };
    let panicked = world.submit(spoiled, |_| {});
    let last = world.submit(world.request(48), |_| {});
    assert!(matches!(
        panicked.recv().unwrap(),
        Err(EngineError::Panicked)
    ));
    for other in [first, last] {
        assert_eq!(other.recv().unwrap().unwrap().tokens, expected.tokens);
    }
    assert!(world.engine.is_alive());
    assert_eq!(world.generate().tokens, expected.tokens);
}

#[test]
fn a_sink_that_panics_ends_its_request_alone() {
    let world = world(Level::Off, None);
    let expected = world.generate();
    let first = world.submit(world.request(48), |_| {
        thread::sleep(Duration::from_millis(2));
    });
    // The channel hears of the panic, since what comes after it is told to the sink as well.
    let panicked = world.submit(world.request(48), |_| panic!("a test panics in a sink"));
    assert!(matches!(
        panicked.recv().unwrap(),
        Err(EngineError::Panicked)
    ));
    assert_eq!(first.recv().unwrap().unwrap().tokens, expected.tokens);
    // One that panics whatever it hears.
    let hopeless = Box::new(|_| panic!("a test panics in a sink"));
    let work = Work::Generate(world.request(48));
    world
        .engine
        .submit(ShareKey::default(), work, hopeless)
        .unwrap();
    assert_eq!(world.generate().tokens, expected.tokens);
    assert_eq!(world.engine.queue().running, 0);
    assert!(world.engine.is_alive());
}

#[test]
fn a_report_that_panics_ends_nothing_else() {
    let world = world(Level::Off, None);
    let report = Box::new(|_| panic!("a test panics in a report"));
    world.engine.apply(level(Level::Moderate), report);
    let plan = world.apply(level(Level::Aggressive)).recv().unwrap();
    assert_eq!(plan.unwrap().level, Level::Aggressive);
    assert!(world.engine.is_alive());
}

#[test]
fn a_panic_in_what_is_shared_tells_everybody_and_ends_the_engine() {
    let world = world(Level::Off, None);
    let first = world.submit(world.request(48), |_| {
        thread::sleep(Duration::from_millis(2));
    });
    let spoiled = Generate {
        seed: IN_PASS,
        ..world.request(48)
    };
    let second = world.submit(spoiled, |_| {});
    for running in [first, second] {
        let end = running.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(matches!(end, Err(EngineError::Panicked)), "{end:?}");
    }
    let begun = Instant::now();
    while world.engine.is_alive() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it goes on");
        thread::sleep(Duration::from_millis(1));
    }
    let late = world.engine.submit(
        ShareKey::default(),
        Work::Generate(world.request(48)),
        Box::new(drop),
    );
    assert!(matches!(late, Err(EngineError::Stopped)));
}
