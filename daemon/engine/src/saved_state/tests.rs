//! States that leave the engine and come back: a text goes on as if it had never been interrupted.

use std::path::Path;

use sluice_checkpoint::Source;
use sluice_shared::{
    level::Level,
    sampling::{EosPolicy, Sampling},
};

use super::*;
use crate::{
    Engine, EngineError, EngineOptions, Generate, LoadedModel, Outcome, PlanSettings, Work,
    event::{Event, GenerationResult},
};

struct World {
    engine: Engine,
    model: Arc<LoadedModel>,
}

impl World {
    fn at(fixture: &str, level: Level) -> Self {
        let engine = Engine::start(EngineOptions {
            threads: 2,
            ..EngineOptions::default()
        })
        .unwrap();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let settings = PlanSettings {
            level,
            ..PlanSettings::default()
        };
        let source = Source::Folder(fixtures.join(fixture));
        let model = engine.load_now(source, settings).unwrap();
        Self { engine, model }
    }

    fn new() -> Self {
        Self::at("rwkv7-tiny", Level::Off)
    }

    fn request(&self, prompt: &[u32], length: usize) -> Generate {
        Generate {
            block_length: length.min(16),
            eos: EosPolicy::Suppress,
            seed: 3,
            ..Generate::greedy(self.model.id, prompt.to_vec(), length)
        }
    }

    fn run(&self, request: Generate) -> Result<GenerationResult, EngineError> {
        match self.engine.run(Work::Generate(request))? {
            Outcome::Generated(generated) => Ok(generated),
            other => panic!("asked to generate: {other:?}"),
        }
    }

    /// The answer, and the state after it.
    fn save(&self, mut request: Generate) -> (Vec<u32>, Arc<SavedState>) {
        request.state.returns_state = true;
        let mut result = self.run(request).unwrap();
        let state = result.state.take().expect("asked for");
        (result.tokens, Arc::new(*state))
    }

    /// The request after this state.
    fn after(&self, state: &Arc<SavedState>, mut request: Generate) -> Generate {
        request.prompt.splice(0..0, state.unread_token);
        request.state.start = Some(Arc::clone(state));
        request
    }

    fn refused(&self, state: SavedState) -> String {
        let request = self.after(&Arc::new(state), self.request(&[5], 2));
        self.run(request).unwrap_err().to_string()
    }
}

fn text(from: u32, len: u32) -> Vec<u32> {
    (from..from + len).map(|id| id * 37 % 240).collect()
}

fn drawn(request: Generate) -> Generate {
    Generate {
        temperature: 0.9,
        sampling: Sampling {
            top_k: Some(40),
            ..Sampling::default()
        },
        ..request
    }
}

#[test]
fn two_halves_are_the_whole() {
    for (vary, how) in [
        (std::convert::identity as fn(Generate) -> Generate, "greedy"),
        (drawn, "drawn"),
    ] {
        let whole = World::new();
        let prompt = text(3, 20);
        let expected = whole.run(vary(whole.request(&prompt, 24))).unwrap().tokens;
        for cut in [1, 9, 23] {
            let (first, state) = whole.save(vary(whole.request(&prompt, cut)));
            assert_eq!(first, expected[..cut], "{how}");
            assert_eq!(state.read_tokens as usize, prompt.len() + cut - 1);
            assert_eq!(state.unread_token, first.last().copied());
            assert!(state.is_lossless);
            // Another engine, with nothing but the state.
            let other = World::new();
            let rest = other.after(&state, vary(other.request(&[], 24 - cut)));
            assert_eq!(other.run(rest).unwrap().tokens, expected[cut..], "{how}");
        }
    }
}

#[test]
fn what_follows_a_state_is_read_and_nothing_before_it() {
    let world = World::new();
    let (prompt, more) = (text(3, 30), text(90, 7));
    let (first, state) = world.save(world.request(&prompt, 8));
    let (send, rows) = std::sync::mpsc::channel();
    let sink = Box::new(move |event| {
        let _ = match event {
            Event::Pass(report) => send.send(Ok(report.rows)),
            Event::Finished(Ok(Outcome::Generated(result))) => send.send(Err(result.tokens)),
            _ => Ok(()),
        };
    });
    let request = world.after(&state, world.request(&more, 10));
    world
        .engine
        .submit(Default::default(), Work::Generate(request), sink)
        .unwrap();
    let told: Vec<Result<usize, Vec<u32>>> = rows.iter().collect();
    // The last token of the answer, and the new text.
    assert_eq!(told[..2], [Ok(1 + more.len()), Ok(1)]);
    let whole = [&prompt[..], &first, &more].concat();
    let fresh = World::new();
    let expected = fresh.run(fresh.request(&whole, 10)).unwrap().tokens;
    assert_eq!(told.last(), Some(&Err(expected)));
    // What the state has read is not known, so nobody else goes on from it: the same tokens alone are another text.
    let alone = [state.unread_token.as_slice(), &more].concat();
    let expected = fresh.run(fresh.request(&alone, 10)).unwrap().tokens;
    let again = world.run(world.request(&alone, 10)).unwrap().tokens;
    assert_eq!(again, expected);
    // A state goes on from a state.
    let (second, next) = world.save(world.after(&state, world.request(&more, 10)));
    let read = prompt.len() + first.len() + more.len() + second.len() - 1;
    assert_eq!(next.read_tokens as usize, read);
}

#[test]
fn a_text_that_has_ended_leaves_no_token_to_read() {
    let world = World::new();
    let prompt = text(3, 12);
    // With much noise the end comes before long.
    let ends = |seed: u64| Generate {
        eos: EosPolicy::Stop,
        temperature: 8.0,
        seed,
        ..world.request(&prompt, 400)
    };
    let end = world.model.info.eos_token_ids[0];
    let ended = (0..50).map(|seed| world.save(ends(seed)));
    let (tokens, state) = ended
        .into_iter()
        .find(|(tokens, _)| tokens.last() == Some(&end))
        .expect("one in 256 tokens ends the text");
    assert_eq!(state.unread_token, None);
    assert_eq!(state.read_tokens as usize, prompt.len() + tokens.len() - 1);
    // There is no next token without another to read.
    let nothing = world.after(&state, world.request(&[], 4));
    assert!(world.run(nothing).is_err());
    let more = world.after(&state, world.request(&[7, 8], 4));
    let whole = [&prompt[..], &tokens[..tokens.len() - 1], &[7, 8]].concat();
    let fresh = World::new();
    assert_eq!(
        world.run(more).unwrap().tokens,
        fresh.run(fresh.request(&whole, 4)).unwrap().tokens
    );
}

#[test]
fn a_state_goes_from_one_level_to_another() {
    let exact = World::new();
    let (_, state) = exact.save(exact.request(&text(3, 20), 6));
    let lossy = World::at("rwkv7-tiny", Level::Moderate);
    assert_eq!(lossy.model.info.state, exact.model.info.state);
    let (_, after) = lossy.save(lossy.after(&state, lossy.request(&[], 6)));
    assert!(!after.is_lossless);
    // What was computed with other weights once is so for good.
    let (_, back) = exact.save(exact.after(&after, exact.request(&[], 6)));
    assert!(!back.is_lossless && back.values.iter().all(|value| value.is_finite()));
}

#[test]
fn what_is_no_state_of_the_model_is_refused_before_anything_runs() {
    let world = World::new();
    let (_, state) = world.save(world.request(&[1, 2, 3], 2));
    let with = |change: fn(&mut SavedState)| {
        let mut other = SavedState::clone(&state);
        change(&mut other);
        world.refused(other)
    };
    let other = with(|state| state.model.fingerprint = "0123456789abcdef".to_owned());
    assert!(
        other.starts_with("state: this is the state of another model (checkpoint 0123456789abcdef, 2 layers of 128)"),
        "{other}"
    );
    assert!(with(|state| state.model.shape.layers = 3).contains("3 layers of 128"));
    assert_eq!(
        with(|state| state.values.truncate(16_895)),
        "state: it has 16895 elements; a state of this model has 16896"
    );
    for value in [f32::NAN, f32::INFINITY] {
        let mut broken = SavedState::clone(&state);
        broken.values[700] = value;
        let refused = world.refused(broken);
        assert_eq!(refused, "state: its element 700 is no finite number");
    }
    assert_eq!(
        with(|state| state.values[7] = -3e38),
        "state: its element 7 is -3e38; elements of states are 1e6 at most"
    );
    assert!(with(|state| state.unread_token = Some(1 << 20)).contains("outside of the vocabulary"));
    // Any number of tokens may be claimed.
    let mut claimed = SavedState::clone(&state);
    claimed.read_tokens = u64::MAX;
    let (_, next) = world.save(world.after(&Arc::new(claimed), world.request(&[5], 2)));
    assert_eq!(next.read_tokens, u64::MAX);

    // The largest elements overflow nowhere on their way.
    for sign in [|_| 1.0, |at| if at % 3 == 0 { -1.0 } else { 1.0 }] as [fn(usize) -> f32; 2] {
        let mut largest = SavedState::clone(&state);
        for (at, value) in largest.values.iter_mut().enumerate() {
            *value = VALUE_MAX * sign(at);
        }
        let (_, after) = world.save(world.after(&Arc::new(largest), world.request(&[5], 8)));
        assert!(after.values.iter().all(|value| value.is_finite()));
    }

    let llama = World::at("llama-tiny", Level::Off);
    let refused = llama.refused(SavedState::clone(&state));
    assert!(
        refused.starts_with("state: only recurrent models (RWKV-7)"),
        "{refused}"
    );
    let mut request = llama.request(&[5], 2);
    request.state.returns_state = true;
    let refused = llama.run(request).unwrap_err().to_string();
    assert!(refused.starts_with("return_state: only recurrent"));
}
