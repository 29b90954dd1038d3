//! Texts that are written by a grammar: a scripted one, since what a grammar is the engine does not know.

use std::{
    fs,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::Value;
use sluice_engine::{
    EngineError, Generate, Outcome, PlanSettings, Work,
    event::FinishReason,
    grammar::{GrammarSource, RequestGrammar, TextGrammar},
    request::Thinking,
};
use sluice_shared::sampling::EosPolicy;
use sluice_tokenizer::{TokenizerError, grammar::AllowedTokens};
use tempfile::TempDir;

use super::world::{World, texts};
use crate::checkpoints::fixture;

/// The token at each place is of its place's class, modulo seven, and the text may end after every fifth; it has to after
/// the thirtieth.
#[derive(Clone, Default)]
struct Classes {
    /// Looks in vain before each answer.
    slow: usize,
    /// The place from which on there is none.
    fails_at: Option<usize>,
    /// Texts that were begun.
    begun: Arc<AtomicUsize>,
    /// Longest wait that was asked for.
    longest: Arc<Mutex<Duration>>,
}

const CLASSES: usize = 7;
const LENGTH: usize = 30;

struct ClassText {
    grammar: Classes,
    place: usize,
    looks: usize,
    allowed: AllowedTokens,
}

impl ClassText {
    fn look(&mut self) {
        self.looks = self.grammar.slow;
        let mut mask = vec![0; 256 / 32];
        for id in (self.place % CLASSES..256).step_by(CLASSES) {
            mask[id / 32] |= 1 << (id % 32);
        }
        self.allowed = AllowedTokens {
            mask: match self.place < LENGTH {
                true => mask,
                false => Vec::new(),
            },
            may_end: self.place.is_multiple_of(5) && self.place > 0,
        };
    }
}

impl GrammarSource for Classes {
    fn begin(&self) -> Box<dyn TextGrammar> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let mut text = ClassText {
            grammar: self.clone(),
            place: 0,
            looks: 0,
            allowed: AllowedTokens::default(),
        };
        text.look();
        Box::new(text)
    }
}

impl TextGrammar for ClassText {
    fn allowed(&mut self, wait: Duration) -> Result<Option<&AllowedTokens>, TokenizerError> {
        let mut longest = self.grammar.longest.lock().unwrap();
        *longest = wait.max(*longest);
        if self.grammar.fails_at == Some(self.place) {
            let cause = "as scripted".to_owned();
            return Err(TokenizerError::Grammar { cause });
        }
        if self.looks > 0 {
            self.looks -= 1;
            return Ok(None);
        }
        Ok(Some(&self.allowed))
    }

    fn accept(&mut self, token: u32) {
        let (bit, word) = (token % 32, token as usize / 32);
        assert!(
            self.allowed.mask[word] >> bit & 1 == 1,
            "{token} is not allowed"
        );
        self.place += 1;
        self.look();
    }
}

fn by(grammar: &Classes, request: Generate) -> Generate {
    Generate {
        grammar: Some(RequestGrammar(Arc::new(grammar.clone()))),
        eos: EosPolicy::Stop,
        ..request
    }
}

/// With temperature and without, and from a prompt of several passes.
fn requests(world: &World) -> Vec<Generate> {
    // With room for all models' contexts, the shortest of which has 64 positions.
    let ask = |from: u32, len: u32, seed: u64| Generate {
        temperature: f64::from(u8::from(seed > 0)) * 1.2,
        seed,
        block_length: 7,
        thinking: world.model.info.inference.map(|_| {
            Box::new(Thinking {
                steps: 2,
                start: None,
                prior: None,
                returns_posterior: false,
            })
        }),
        ..Generate::greedy(
            world.model.id,
            (from..from + len).map(|id| id * 37 % 240).collect(),
            36,
        )
    };
    vec![ask(3, 28, 0), ask(50, 7, 4), ask(9, 20, 5), ask(100, 2, 6)]
}

/// The fixture of a latent thought model with an end token, which it lacks.
fn latent_thought() -> TempDir {
    let folder = TempDir::new().unwrap();
    for file in fs::read_dir(fixture("ltm-tiny")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let path = folder.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["eos_token_id"] = 2.into();
    fs::write(path, config.to_string()).unwrap();
    folder
}

/// Whatever a text is written by, and however slow its grammar is, it is what it is alone; so are those that share its passes.
fn check_texts(folder: &Path) {
    let alone = World::new(folder, 1, PlanSettings::default());
    let plain = requests(&alone);
    let grammar = Classes::default();
    let constrained: Vec<_> = plain
        .iter()
        .map(|request| by(&grammar, request.clone()))
        .collect();
    let expected = [texts(&alone.run(&constrained)), texts(&alone.run(&plain))];
    let ends = &alone.model.info.eos_token_ids;
    for (tokens, reason) in &expected[0] {
        assert_eq!(*reason, FinishReason::Eos);
        let (end, text) = tokens.split_last().unwrap();
        assert!(ends.contains(end));
        assert!(text.len().is_multiple_of(5) && (5..=LENGTH).contains(&text.len()));
        for (place, &token) in text.iter().enumerate() {
            assert_eq!(token as usize % CLASSES, place % CLASSES);
        }
    }
    let begun = grammar.begun.load(Ordering::Relaxed);
    assert_eq!(begun, plain.len());
    for slow in [0, 1, 3] {
        let grammar = Classes {
            slow,
            ..Classes::default()
        };
        let together = World::new(folder, 8, PlanSettings::default());
        let mixed = plain.iter().flat_map(|request| {
            let request = Generate {
                model: together.model.id,
                ..request.clone()
            };
            [by(&grammar, request.clone()), request]
        });
        let answers = texts(&together.run(&mixed.collect::<Vec<_>>()));
        let of_each = expected[0].iter().zip(&expected[1]);
        let of_each: Vec<_> = of_each
            .flat_map(|(by, plain)| [by, plain])
            .cloned()
            .collect();
        assert_eq!(answers, of_each, "{slow} looks in vain");
        // Nobody waits long for another's grammar.
        assert!(*grammar.longest.lock().unwrap() <= Duration::from_millis(20));
    }
}

#[test]
fn a_text_is_what_it_is_alone() {
    check_texts(&fixture("llama-tiny"));
}

#[test]
fn a_text_of_a_recurrent_model_is_what_it_is_alone() {
    check_texts(&fixture("rwkv7-tiny"));
}

#[test]
fn a_text_of_a_latent_thought_model_is_what_it_is_alone() {
    check_texts(latent_thought().path());
}

#[test]
fn a_length_cuts_a_text() {
    let world = World::autoregressive(1);
    let grammar = Classes::default();
    for length in [1, 12] {
        let mut request = by(&grammar, requests(&world).remove(1));
        request.canvas.truncate(length);
        request.block_length = 1;
        let whole = texts(&world.run(&[by(&grammar, requests(&world).remove(1))]));
        let cut = texts(&world.run(&[request]));
        let length = length.min(whole[0].0.len());
        assert_eq!(cut[0].0, whole[0].0[..length]);
        assert!(whole[0].0.len() > 12 && cut[0].1 == FinishReason::Length);
    }
}

#[test]
fn a_grammar_that_fails_fails_its_request_alone() {
    let world = World::autoregressive(4);
    let plain = requests(&world);
    let expected = texts(&world.run(&plain));
    for (fails_at, slow) in [(0, 0), (1, 0), (4, 2)] {
        let grammar = Classes {
            fails_at: Some(fails_at),
            slow,
            ..Classes::default()
        };
        let failing = Work::Generate(by(&grammar, plain[0].clone()));
        let beside = std::thread::scope(|scope| {
            let beside = scope.spawn(|| texts(&world.run(&plain)));
            let error = world.engine.run(failing).unwrap_err();
            assert!(matches!(error, EngineError::Grammar(_)), "{error:?}");
            assert_eq!(error.to_string(), "the grammar: as scripted");
            beside.join().unwrap()
        });
        assert_eq!(beside, expected);
    }
}

/// Allows what the model has no token for.
struct Foreign;

impl GrammarSource for Foreign {
    fn begin(&self) -> Box<dyn TextGrammar> {
        Box::new(ForeignText(AllowedTokens {
            mask: [vec![0; 256 / 32], vec![u32::MAX]].concat(),
            may_end: false,
        }))
    }
}

struct ForeignText(AllowedTokens);

impl TextGrammar for ForeignText {
    fn allowed(&mut self, _: Duration) -> Result<Option<&AllowedTokens>, TokenizerError> {
        Ok(Some(&self.0))
    }

    fn accept(&mut self, token: u32) {
        panic!("{token} was chosen");
    }
}

#[test]
fn what_has_no_token_is_an_error_and_no_end() {
    let world = World::autoregressive(1);
    let request = Generate {
        grammar: Some(RequestGrammar(Arc::new(Foreign))),
        eos: EosPolicy::Stop,
        ..requests(&world).remove(0)
    };
    let error = world.engine.run(Work::Generate(request)).unwrap_err();
    let expected = "the grammar: the model gives no token that continues it any probability";
    assert_eq!(error.to_string(), expected);
    // The next is as if nothing had been.
    let next = world.engine.run(Work::Generate(requests(&world).remove(1)));
    assert!(matches!(next, Ok(Outcome::Generated(_))));
}

#[test]
fn what_would_not_end_is_refused_by_name() {
    let world = World::autoregressive(1);
    let masked = World::diffusion(1);
    let endless = World::new(&fixture("ltm-tiny"), 1, PlanSettings::default());
    let grammar = Classes::default();
    let problem = |world: &World, eos| {
        let request = Generate {
            eos,
            ..by(&grammar, requests(world).remove(1))
        };
        let refused = world.engine.run(Work::Generate(request));
        refused.unwrap_err().to_string()
    };
    for eos in [EosPolicy::Keep, EosPolicy::Suppress] {
        assert!(problem(&world, eos).starts_with("sampling.eos_policy: a text ends"));
    }
    assert!(problem(&endless, EosPolicy::Stop).ends_with("this model has no end token"));
    let only = "autoregressive.grammar: only autoregressive models";
    assert!(problem(&masked, EosPolicy::Stop).starts_with(only));
    assert_eq!(grammar.begun.load(Ordering::Relaxed), 0);
}
