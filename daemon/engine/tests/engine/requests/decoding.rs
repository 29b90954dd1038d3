//! What passes leave out or try: it comes to what it must, and takes what was planned.

use sluice_engine::{Budget, Generate, PlanOptions, PlanSettings, Work};
use sluice_shared::{
    decoding::{CanvasGrowth, Decoding},
    level::Level,
    sampling::EosPolicy,
};

use super::world::{World, texts, ways};
use crate::checkpoints::demonstration;

fn stories(world: &World, decoding: Decoding) -> Vec<Generate> {
    let text = world.model.tokenizer.as_ref().unwrap();
    let asked = [
        "Tell me a story about a fox.",
        "Who is Tom?",
        "Tell me a story.",
    ];
    let stories = asked
        .iter()
        .zip([0.0, 0.5, 0.0])
        .zip(["threshold", "reference", "factor"]);
    stories
        .map(|((words, guidance), policy)| Generate {
            block_length: 16,
            guidance,
            policy: policy.parse().unwrap(),
            eos: EosPolicy::Stop,
            decoding,
            ..Generate::greedy(
                world.model.id,
                text.encode_chat(&[("user", words)]).unwrap(),
                72,
            )
        })
        .collect()
}

#[test]
fn a_cache_that_is_computed_anew_in_every_pass_changes_nothing() {
    let world = World::diffusion(1);
    for window in [None, Some(10)] {
        let plain = Decoding {
            suffix_window: window,
            ..Decoding::default()
        };
        let expected = texts(&world.run(&stories(&world, plain)));
        for caching in ["prefix:refresh=1", "dual:refresh=1", "vicinity:refresh=1"] {
            let caching = caching.parse().unwrap();
            let cached = Decoding {
                kv_cache: caching,
                ..plain
            };
            let found = texts(&world.run(&stories(&world, cached)));
            assert!(found == expected, "{caching} {window:?}");
        }
    }
}

#[test]
fn what_is_guessed_ahead_changes_nothing_and_saves_passes() {
    let world = World::diffusion(1);
    let expected = world.run(&stories(&world, Decoding::default()));
    let speculation = "draft:branches=3".parse().unwrap();
    let drafted = Decoding {
        speculation,
        ..Decoding::default()
    };
    let found = world.run(&stories(&world, drafted));
    assert_eq!(texts(&found), texts(&expected));
    // Those that commit a token a pass gain the most.
    let [drafted, plain] = [found, expected].map(|answers| answers[1].0.passes);
    assert!(drafted < plain * 3 / 4, "{drafted} of {plain}");
}

/// Under a budget of just what was planned for a request, nothing gives way to it.
#[test]
#[ignore = "seconds of both cores: cargo ci"]
fn what_each_way_takes_is_planned() {
    let roomy = World::diffusion(1);
    for decoding in ways() {
        for story in stories(&roomy, decoding) {
            let change = PlanOptions {
                level: Some(Level::Off),
                ..PlanOptions::default()
            };
            let workload = Work::Generate(story.clone()).workload();
            let usual = roomy.engine.in_force().unwrap().plan.workload;
            let planned = roomy.engine.plan(&change, workload.widest(&usual)).unwrap();
            let world = World::new(
                &demonstration(),
                1,
                PlanSettings {
                    level: Level::Off,
                    budget: Budget::Bytes(planned.peak_bytes()),
                    ..PlanSettings::default()
                },
            );
            let story = Generate {
                model: world.model.id,
                ..story
            };
            let answers = world.run(&[story]);
            let (generated, passes) = &answers[0];
            assert!(generated.peak_device_bytes <= planned.peak_bytes());
            assert!(
                passes.iter().all(|pass| pass.cost.streamed_bytes == 0),
                "{decoding:?}"
            );
        }
    }
}

#[test]
fn a_canvas_that_grows_ends_where_the_text_does() {
    let world = World::diffusion(1);
    let growing = |growth| Decoding {
        canvas_growth: growth,
        ..Decoding::default()
    };
    for growth in [CanvasGrowth::Append, CanvasGrowth::Insert] {
        let answers = world.run(&stories(&world, growing(growth))[..1]);
        let (generated, passes) = &answers[0];
        assert!(generated.tokens.len() <= 72 && !passes.is_empty());
        let last = passes.last().unwrap();
        assert!(last.committed <= generated.tokens.len());
    }
}
