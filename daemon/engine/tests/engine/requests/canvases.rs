//! Canvases of random tokens: each step is the reference's, requests share passes, and what such a model can't do is refused.

use std::fs;

use serde_json::Value;
use sluice_engine::{
    CanvasSlot, EngineError, Generate, MeasureFidelity, PlanSettings, RequestError, Work,
    event::TokenState, request::RecordedDraws,
};
use sluice_shared::{
    decoding::{Decoding, KvCacheReuse},
    level::KvCacheFormat,
    policy::PolicyChoice,
    sampling::{EosPolicy, KvCacheMode},
};

use super::world::{World, most_shared, texts};
use crate::checkpoints::fixture;

const NAME: &str = "diffusion-gemma-tiny";

fn world(parallel: usize) -> World {
    let settings = PlanSettings {
        kv_cache_format: KvCacheFormat::F32,
        ..PlanSettings::default()
    };
    World::new(&fixture(NAME), parallel, settings)
}

fn request(world: &World, prompt: Vec<u32>, length: usize) -> Generate {
    Generate {
        block_length: 16,
        causal_attention_before: true,
        policy: "renoise:steps=4".parse().unwrap(),
        decoding: Decoding {
            kv_cache: KvCacheReuse {
                mode: KvCacheMode::Blocks,
                ..KvCacheReuse::default()
            },
            ..Decoding::default()
        },
        ..Generate::greedy(world.model.id, prompt, length)
    }
}

fn ids(value: &Value) -> Vec<u32> {
    let ids = value.as_array().unwrap().iter();
    ids.map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Of each step the accepted rows and the most probable tokens.
#[test]
fn each_step_is_the_references() {
    let world = world(1);
    let expected = fs::read(fixture(NAME).join("expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    for case in expected["generate"].as_array().unwrap() {
        let number = |key: &str| case["params"][key].as_f64().unwrap();
        let rule = [
            ("bound", number("entropy_bound")),
            ("tmin", number("t_min")),
            ("tmax", number("t_max")),
            ("sure", number("confidence_threshold")),
            ("steps", number("max_denoising_steps")),
        ];
        let draws = case["draws"].as_array().unwrap().iter().map(ids);
        let prompt = ids(&case["prompt_ids"][0]);
        let request = Generate {
            policy: PolicyChoice::new("renoise", rule).unwrap(),
            draws: Some(RecordedDraws(draws.collect())),
            eos: match case["params"]["eos_token_id"][0].is_null() {
                true => EosPolicy::Keep,
                false => EosPolicy::Stop,
            },
            ..request(&world, prompt, number("max_new_tokens") as usize)
        };
        let (_, passes) = world.run(&[request]).remove(0);
        let steps = passes.iter().filter(|pass| pass.lm_head_rows > 0);
        let mut found = Vec::new();
        for pass in steps {
            let shown = pass.positions.iter();
            let accepted: Vec<u32> = (shown.clone().zip(0..))
                .filter(|(position, _)| position.is_fresh)
                .map(|(_, row)| row)
                .collect();
            let tokens: Vec<u32> = shown.filter_map(|position| position.token).collect();
            found.push((accepted, tokens));
        }
        let lists = |key: &str| case[key].as_array().unwrap().iter().map(ids);
        let expected = lists("step_accepted").zip(lists("step_argmax"));
        let name = &case["name"];
        for (step, ((accepted, tokens), found)) in expected.zip(&found).enumerate() {
            // Behind an end nothing is shown.
            let shown = found.1.len();
            let within = |row: &u32| (*row as usize) < shown;
            let accepted: Vec<u32> = accepted.into_iter().filter(within).collect();
            let expected = (accepted, tokens[..shown].to_vec());
            assert_eq!(found, &expected, "{name}, step {step}");
        }
        assert_eq!(Some(found.len() as u64), case["forward_calls"].as_u64());
    }
}

#[test]
fn requests_that_share_passes_write_what_they_write_alone() {
    let alone = world(1);
    let prompts = [3, 40, 200].map(|length| (0..length).map(|id| id * 37 % 180).collect());
    let requests: Vec<_> = (prompts.into_iter().zip([40, 16, 50]))
        .map(|(prompt, length)| request(&alone, prompt, length))
        .collect();
    let expected: Vec<_> = (requests.iter())
        .flat_map(|request| alone.run(std::slice::from_ref(request)))
        .collect();
    let shared = world(3);
    let requests: Vec<_> = (requests.into_iter())
        .map(|request| Generate {
            model: shared.model.id,
            ..request
        })
        .collect();
    let found = shared.run(&requests);
    assert_eq!(texts(&found), texts(&expected));
    assert_eq!(most_shared(&found), 3);
    let lengths: Vec<_> = found.iter().map(|(found, _)| found.tokens.len()).collect();
    assert_eq!(lengths, [40, 16, 50]);
    // Nothing is final before its canvas is.
    let (_, passes) = &found[0];
    let first = &passes[1].positions;
    assert!(
        first
            .iter()
            .all(|position| position.state == TokenState::Provisional)
    );
    assert_eq!(passes[1].committed, 0);
}

#[test]
fn what_such_a_model_cannot_do_is_refused() {
    let world = world(1);
    let plain = || request(&world, vec![5, 6, 7], 16);
    let refusal = |work: Work| match world.engine.run(work) {
        Err(EngineError::Request(RequestError::Sampling { what, problem })) => {
            format!("{what}: {problem}")
        }
        other => panic!("{other:?}"),
    };
    let of = |change: fn(&mut Generate)| {
        let mut request = plain();
        change(&mut request);
        refusal(Work::Generate(request))
    };
    assert_eq!(
        of(|request| request.policy = PolicyChoice::default()),
        "diffusion.policy: takes policy renoise alone, which denoises whole canvases"
    );
    assert_eq!(
        of(|request| request.canvas[3] = CanvasSlot::Pinned(9)),
        "diffusion.pins: takes policy renoise alone, which denoises whole canvases"
    );
    assert_eq!(
        of(|request| request.guidance = 1.0),
        "diffusion.guidance: takes policy renoise alone, which denoises whole canvases"
    );
    assert_eq!(
        of(|request| request.temperature = 0.5),
        "sampling.temperature: policy 'renoise' has temperatures of its own: leave this out, or set those, as in renoise:tmin=0.3,tmax=0.6"
    );
    let measure = MeasureFidelity {
        model: world.model.id,
        level: None,
        samples: vec![vec![1, 2, 3]],
        seed: 0,
    };
    assert_eq!(
        refusal(Work::MeasureFidelity(measure)),
        "fidelity: is measured on masks, which this model does not know"
    );
}
