//! Requests that share passes: each gets what it gets by itself, whoever comes and goes beside it.

use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc},
};

use sluice_engine::{
    Budget, CanvasSlot, Event, Generate, Outcome, PlanSettings, ShareKey, Work,
    event::{FinishReason, GenerationResult, PassReport},
};
use sluice_plan::Workload;
use sluice_shared::{
    level::Level,
    policy::{POLICIES, PolicyChoice},
    sampling::{EosPolicy, Remasking},
};

use super::world::{World, most_shared, texts, ways};
use crate::checkpoints::{demonstration, fixture};

/// Different in everything that a request can choose.
fn stories(world: &World) -> Vec<Generate> {
    let text = world.model.tokenizer.as_ref().unwrap();
    let ask = |words: &str, length| {
        let prompt = text.encode_chat(&[("user", words)]).unwrap();
        Generate {
            block_length: 16,
            ..Generate::greedy(world.model.id, prompt, length)
        }
    };
    let mut pinned = ask("Tell a story that begins with: Once there was a fox.", 40);
    pinned.canvas[20] = CanvasSlot::Pinned(pinned.prompt[3]);
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

/// The same story by every policy that this model has been trained for.
fn by_every_policy(world: &World) -> Vec<Generate> {
    let text = world.model.tokenizer.as_ref().unwrap();
    let prompt = text.encode_chat(&[("user", "Tell me a story.")]).unwrap();
    // Those that only other kinds of models are trained for are refused.
    const OF_OTHERS: [&str; 4] = ["edit", "autoregressive", "verify", "renoise"];
    let policies = POLICIES
        .iter()
        .filter(|policy| !OF_OTHERS.contains(&policy.name));
    let requests = policies.map(|policy| Generate {
        policy: policy.name.parse().unwrap(),
        block_length: 16,
        eos: EosPolicy::Stop,
        ..Generate::greedy(world.model.id, prompt.clone(), 32)
    });
    requests.collect()
}

/// Stories that differ in what their passes compute, and one that looks at what it has committed.
fn in_every_way(world: &World) -> Vec<Generate> {
    let mut all: Vec<_> = (ways().into_iter().zip(stories(world).into_iter().cycle()))
        .map(|(decoding, story)| Generate {
            decoding,
            canvas: vec![CanvasSlot::Masked; story.canvas.len()],
            guidance: 0.0,
            ..story
        })
        .collect();
    all.push(Generate {
        policy: "revoke".parse().unwrap(),
        ..stories(world).remove(0)
    });
    all
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

#[test]
#[ignore = "seconds of both cores: cargo ci"]
fn each_gets_what_it_gets_alone() {
    for (world, requests) in [
        (
            World::diffusion as fn(usize) -> World,
            stories as fn(&World) -> Vec<Generate>,
        ),
        (World::diffusion, by_every_policy),
        (World::diffusion, in_every_way),
        (World::autoregressive, conversations),
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
fn what_each_gets_does_not_depend_on_whose_turn_it_is() {
    let alone = World::diffusion(1);
    let requests = stories(&alone);
    let expected = alone.run(&requests);
    let shared = World {
        share: |index| ShareKey {
            user: index as u64 % 2,
            connection: index as u64 % 3,
        },
        ..World::diffusion(3)
    };
    let answers = shared.run(&stories(&shared));
    assert_eq!(texts(&answers), texts(&expected));
    assert_eq!(most_shared(&answers), 3);
}

#[test]
fn all_go_on_in_every_pass_and_the_first_to_come_is_the_first_to_join() {
    let world = World::autoregressive(3);
    let requests = conversations(&world);
    let answers = world.run(&requests);
    // The third joined with the second; the fourth when the third, the shortest, had left.
    let joined = |index: usize| {
        let (_, passes): &(GenerationResult, Vec<PassReport>) = &answers[index];
        passes[0].cost.batch_requests
    };
    assert_eq!((joined(1), joined(2), joined(3), joined(4)), (3, 3, 3, 3));
    for (index, (generated, passes)) in answers.iter().enumerate() {
        // One pass for the prompt, and one for each token after the first: nobody was kept waiting.
        assert_eq!(generated.passes, requests[index].canvas.len(), "{index}");
        assert!(
            passes
                .windows(2)
                .all(|pair| pair[1].passes == pair[0].passes + 1)
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
            Event::Pass(report) if index == 1 && report.passes == 3 => {
                engine.cancel(tickets.lock().unwrap().recv().unwrap());
            }
            Event::Finished(Ok(Outcome::Generated(generated))) => {
                done.send((index, generated)).unwrap();
            }
            Event::Finished(other) => panic!("{other:?}"),
            _ => {}
        });
        let ticket = world
            .engine
            .submit(Default::default(), Work::Generate(request), sink)
            .unwrap();
        if index == 1 {
            send.send(ticket).unwrap();
        }
    }
    drop(done);
    let results: BTreeMap<usize, GenerationResult> = results.into_iter().collect();
    assert_eq!(results.len(), 5);
    for (index, generated) in results {
        if index == 1 {
            assert_eq!(
                (generated.finish_reason, generated.passes),
                (FinishReason::Cancelled, 3)
            );
        } else {
            assert_eq!((generated.tokens, generated.finish_reason), expected[index]);
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
        canvas: vec![CanvasSlot::Pinned(token)],
        block_length: 1,
        ..first.clone()
    };
    let long = Generate {
        canvas: vec![CanvasSlot::Pinned(token); 40],
        block_length: 40,
        ..first.clone()
    };
    for one in [&filled, &long] {
        let answers = texts(&world.run(std::slice::from_ref(one)));
        assert_eq!(answers[0].0.len(), one.canvas.len(), "by itself");
    }
    // Beside it, the longer one would have more rows for the LM head than for the layers.
    world.run(&[filled.clone(), long]);
    let answers = texts(&world.run(&[first.clone(), filled.clone(), third.clone(), filled]));
    assert_eq!([&answers[0], &answers[2]], [&alone[0], &alone[1]]);
    assert_eq!(answers[1], (vec![token], FinishReason::Length));
    assert_eq!(answers[3], answers[1]);
}

#[test]
fn those_that_there_is_no_room_for_wait() {
    for (folder, requests) in [
        (demonstration(), stories as fn(&World) -> Vec<Generate>),
        (fixture("llama-tiny"), conversations),
    ] {
        let roomy = World::new(&folder, 1, PlanSettings::default());
        let expected = texts(&roomy.run(&requests(&roomy)));
        let level = PlanSettings {
            level: Level::Off,
            ..PlanSettings::default()
        };
        // All weights stay, and there is room for two of the longest and no more.
        let longest = requests(&roomy)
            .into_iter()
            .map(|request| Work::Generate(request).workload())
            .max_by_key(|workload| workload.canvas_length * workload.batch_requests)
            .unwrap();
        let two = Workload::new(
            longest.canvas_length,
            longest.block_length,
            2 * longest.batch_requests,
        );
        let bytes = |workload| {
            let change = sluice_engine::PlanOptions {
                level: Some(Level::Off),
                ..Default::default()
            };
            roomy.engine.plan(&change, workload).unwrap().peak_bytes()
        };
        let usual = roomy.engine.in_force().unwrap().plan.workload;
        let budget_bytes = bytes(two.widest(&usual));
        let world = World::new(
            &folder,
            8,
            PlanSettings {
                budget: Budget::Bytes(budget_bytes),
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
