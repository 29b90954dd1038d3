//! Requests that share passes: each gets what it gets by itself, whoever comes and goes beside it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
};

use sluice_engine::{
    Engine, Event, Generate, LoadedModel, Options, Outcome, Settings, Slot, Work,
    checkpoint::Source,
    event::{Finish, Generated, PassReport},
    plan::Workload,
};
use sluice_shared::{
    level::Level,
    policy::PolicyChoice,
    sampling::{EosPolicy, Remasking},
};

struct World {
    engine: Arc<Engine>,
    model: Arc<LoadedModel>,
}

impl World {
    fn new(folder: &str, parallel: usize, settings: Settings) -> Self {
        let engine = Engine::start(Options {
            threads: 2,
            parallel,
            ..Options::default()
        })
        .unwrap();
        let folder: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let model = engine.load_now(Source::Folder(folder), settings).unwrap();
        Self {
            engine: Arc::new(engine),
            model,
        }
    }

    fn diffusion(parallel: usize) -> Self {
        Self::new("../model", parallel, Settings::default())
    }

    fn causal(parallel: usize) -> Self {
        Self::new("tests/fixtures/llama-tiny", parallel, Settings::default())
    }

    /// Submits all at once; what each came to, and its passes.
    fn run(&self, requests: &[Generate]) -> Vec<(Generated, Vec<PassReport>)> {
        self.run_watched(requests, &|_, _| {})
    }

    /// The same; `watch` sees each pass with the request's place, on the engine's thread.
    fn run_watched(
        &self,
        requests: &[Generate],
        watch: &(impl Fn(usize, &PassReport) + Clone + Send + 'static),
    ) -> Vec<(Generated, Vec<PassReport>)> {
        let (send, events) = mpsc::channel();
        for (index, request) in requests.iter().enumerate() {
            let (send, watch) = (send.clone(), watch.clone());
            let sink = Box::new(move |event| {
                if let Event::Pass(report) = &event {
                    watch(index, report);
                }
                drop(send.send((index, event)));
            });
            let work = Work::Generate(request.clone());
            self.engine.submit(work, sink).unwrap();
        }
        drop(send);
        let mut passes: BTreeMap<usize, Vec<PassReport>> = BTreeMap::new();
        let mut results = BTreeMap::new();
        for (index, event) in events {
            match event {
                Event::Pass(report) => passes.entry(index).or_default().push(report),
                Event::Finished(Ok(Outcome::Generated(generated))) => {
                    results.insert(index, generated);
                }
                Event::Finished(other) => panic!("{index}: {other:?}"),
                _ => {}
            }
        }
        let passes = |index| passes.get(&index).cloned().unwrap_or_default();
        results
            .into_iter()
            .map(|(index, generated)| (generated, passes(index)))
            .collect()
    }
}

/// Different in everything that a request can choose.
fn stories(world: &World) -> Vec<Generate> {
    let text = world.model.text.as_ref().unwrap();
    let ask = |words: &str, length| {
        let prompt = text.encode_chat(&[("user", words)]).unwrap();
        Generate {
            block_length: 16,
            ..Generate::greedy(world.model.id, prompt, length)
        }
    };
    let mut pinned = ask("Tell a story that begins with: Once there was a fox.", 40);
    pinned.canvas[20] = Slot::Pinned(pinned.prompt[3]);
    vec![
        ask("Tell me a story about Mia and a kite.", 48),
        Generate {
            temperature: 0.7,
            seed: 5,
            eos: EosPolicy::Stop,
            ..ask("Tell a story with these words: boat, river, storm.", 64)
        },
        Generate {
            guidance: 0.5,
            steps: 12,
            ..ask("Who is Tom?", 32)
        },
        Generate {
            remasking: Remasking::Entropy,
            policy: PolicyChoice::new("threshold", [("t", 0.9)]).unwrap(),
            ..pinned
        },
        Generate {
            eos: EosPolicy::Suppress,
            remasking: Remasking::Random,
            seed: 9,
            ..ask("Hello!", 17)
        },
    ]
}

fn conversations(world: &World) -> Vec<Generate> {
    let ask = |from: u32, len: u32, length| {
        let prompt = (from..from + len).map(|id| id * 37 % 240).collect();
        Generate::greedy(world.model.id, prompt, length)
    };
    vec![
        ask(3, 40, 24),
        Generate {
            temperature: 0.8,
            seed: 4,
            ..ask(50, 7, 30)
        },
        ask(9, 90, 5),
        ask(100, 1, 40),
        ask(3, 40, 12),
    ]
}

fn texts(answers: &[(Generated, Vec<PassReport>)]) -> Vec<(Vec<u32>, Finish)> {
    let text = |(generated, _): &(Generated, _)| (generated.tokens.clone(), generated.finish);
    answers.iter().map(text).collect()
}

fn most_shared(answers: &[(Generated, Vec<PassReport>)]) -> usize {
    let shared =
        |(_, passes): &(_, Vec<PassReport>)| passes.iter().map(|pass| pass.cost.requests).max();
    answers.iter().filter_map(shared).max().unwrap_or(0)
}

#[test]
fn each_gets_what_it_gets_alone() {
    for (world, requests) in [
        (
            World::diffusion as fn(usize) -> World,
            stories as fn(&World) -> Vec<Generate>,
        ),
        (World::causal, conversations),
    ] {
        let alone = world(1);
        let expected = alone.run(&requests(&alone));
        assert_eq!(most_shared(&expected), 1);
        for parallel in [2, 4, 8] {
            let packed = world(parallel);
            let answers = packed.run(&requests(&packed));
            assert_eq!(texts(&answers), texts(&expected), "{parallel} at once");
            assert_eq!(most_shared(&answers), parallel.min(answers.len()));
            for ((generated, passes), (alone, _)) in answers.iter().zip(&expected) {
                assert_eq!(
                    (generated.passes, passes.len()),
                    (alone.passes, alone.passes)
                );
                assert!(generated.is_lossless);
            }
            assert_eq!(packed.engine.queue().running, 0);
        }
    }
}

#[test]
fn all_go_on_in_every_pass_and_the_first_to_come_is_the_first_to_join() {
    let world = World::causal(3);
    let requests = conversations(&world);
    let answers = world.run(&requests);
    // The third joined with the second; the fourth when the third, the shortest, had left.
    let joined = |index: usize| {
        let (_, passes): &(Generated, Vec<PassReport>) = &answers[index];
        passes[0].cost.requests
    };
    assert_eq!((joined(1), joined(2), joined(3), joined(4)), (3, 3, 3, 3));
    for (index, (generated, passes)) in answers.iter().enumerate() {
        // One pass for the prompt, and one for each token after the first: nobody was kept waiting.
        assert_eq!(generated.passes, requests[index].canvas.len(), "{index}");
        assert!(
            passes
                .windows(2)
                .all(|pair| pair[1].pass == pair[0].pass + 1)
        );
    }
}

#[test]
fn one_that_is_cancelled_leaves_the_others_alone() {
    let alone = World::diffusion(1);
    let expected = texts(&alone.run(&stories(&alone)));
    let world = World::diffusion(8);
    let engine = Arc::clone(&world.engine);
    // The tickets of an engine's first requests are 1, 2 and so on; the second's listener cancels it in its third pass.
    let (send, tickets) = mpsc::channel();
    let tickets = Arc::new(std::sync::Mutex::new(tickets));
    let sinks = stories(&world);
    let (done, results) = mpsc::channel();
    for (index, request) in sinks.into_iter().enumerate() {
        let (done, engine, tickets) = (done.clone(), Arc::clone(&engine), Arc::clone(&tickets));
        let sink = Box::new(move |event| match event {
            Event::Pass(report) if index == 1 && report.pass == 3 => {
                engine.cancel(tickets.lock().unwrap().recv().unwrap());
            }
            Event::Finished(Ok(Outcome::Generated(generated))) => {
                done.send((index, generated)).unwrap();
            }
            Event::Finished(other) => panic!("{other:?}"),
            _ => {}
        });
        let ticket = world.engine.submit(Work::Generate(request), sink).unwrap();
        if index == 1 {
            send.send(ticket).unwrap();
        }
    }
    drop(done);
    let results: BTreeMap<usize, Generated> = results.into_iter().collect();
    assert_eq!(results.len(), 5);
    for (index, generated) in results {
        if index == 1 {
            assert_eq!((generated.finish, generated.passes), (Finish::Cancelled, 3));
        } else {
            assert_eq!((generated.tokens, generated.finish), expected[index]);
        }
    }
}

#[test]
fn one_that_has_nothing_to_fill_harms_nobody() {
    let world = World::diffusion(8);
    let [first, _, third, ..] = &stories(&world)[..] else {
        panic!("there are enough")
    };
    let alone = texts(&World::diffusion(1).run(&[first.clone(), third.clone()]));
    let token = first.prompt[0];
    let filled = Generate {
        canvas: vec![Slot::Pinned(token)],
        block_length: 1,
        ..first.clone()
    };
    let answers = texts(&world.run(&[first.clone(), filled.clone(), third.clone(), filled]));
    assert_eq!([&answers[0], &answers[2]], [&alone[0], &alone[1]]);
    assert_eq!(answers[1], (vec![token], Finish::Length));
    assert_eq!(answers[3], answers[1]);
}

#[test]
fn those_that_there_is_no_room_for_wait() {
    for (folder, requests) in [
        ("../model", stories as fn(&World) -> Vec<Generate>),
        ("tests/fixtures/llama-tiny", conversations),
    ] {
        let roomy = World::new(folder, 1, Settings::default());
        let expected = texts(&roomy.run(&requests(&roomy)));
        let level = Settings {
            level: Level::Off,
            ..Settings::default()
        };
        // All weights stay, and there is room for two of the longest and no more.
        let longest = requests(&roomy)
            .into_iter()
            .map(|request| Work::Generate(request).workload())
            .max_by_key(|workload| workload.canvas * workload.requests)
            .unwrap();
        let two = Workload::new(longest.canvas, longest.block, 2 * longest.requests);
        let bytes = |workload| {
            let change = sluice_engine::Change {
                level: Some(Level::Off),
                ..Default::default()
            };
            roomy.engine.plan(&change, workload).unwrap().peak_bytes()
        };
        let usual = roomy.engine.in_force().unwrap().plan.workload;
        let budget_bytes = bytes(two.widest(&usual));
        let world = World::new(
            folder,
            8,
            Settings {
                budget_bytes: Some(budget_bytes),
                ..level
            },
        );
        let answers = world.run(&requests(&world));
        assert_eq!(texts(&answers), expected);
        assert!(most_shared(&answers) >= 2);
        for (generated, passes) in &answers {
            assert!(generated.peak_device_bytes <= budget_bytes);
            assert!(
                passes
                    .iter()
                    .all(|pass| pass.cost.device_bytes <= budget_bytes)
            );
        }
    }
}
