//! Block diffusion: what is kept between passes, requests and turns changes no token.

use sluice_engine::{EngineError, Generate, PlanSettings, RequestError, Work};
use sluice_shared::{
    decoding::{Decoding, KvCacheReuse},
    policy::PolicyChoice,
    sampling::{EosPolicy, KvCacheMode},
};

use super::world::World;
use crate::checkpoints::fixture;

const NAMES: [&str; 2] = ["sdar-tiny", "fast-dllm-v2-tiny"];

fn world(name: &str, parallel: usize) -> World {
    World::new(&fixture(name), parallel, PlanSettings::default())
}

fn prompt(length: usize, seed: u32) -> Vec<u32> {
    (0..length as u32)
        .map(|place| (place * 7 + seed) % 240)
        .collect()
}

fn request(world: &World, prompt: Vec<u32>, length: usize) -> Generate {
    let mask = world.model.info.mask.unwrap();
    Generate {
        block_length: mask.blocks.unwrap().length,
        policy: PolicyChoice::new("dynamic", [("t", 0.5)]).unwrap(),
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

/// The answer, and the rows of each pass.
fn answer(world: &World, request: &Generate) -> (Vec<u32>, Vec<usize>) {
    let (result, passes) = world.run(std::slice::from_ref(request)).remove(0);
    (result.tokens, passes.iter().map(|pass| pass.rows).collect())
}

#[test]
fn a_turn_goes_on_from_the_blocks_of_the_one_before() {
    for name in NAMES {
        let kept = world(name, 1);
        let first = request(&kept, prompt(70, 1), 40);
        let (written, _) = answer(&kept, &first);
        let turn = [first.prompt, written, prompt(9, 3)].concat();
        let next = request(&kept, turn, 24);
        let (expected, all) = answer(&world(name, 1), &next);
        let (found, rows) = answer(&kept, &next);
        assert_eq!(found, expected, "{name}");
        assert!(rows[0] < all[0] / 2, "{name}: {} of {}", rows[0], all[0]);
        // One that shares a beginning, and one of other blocks.
        let other = [next.prompt[..45].to_vec(), prompt(30, 5)].concat();
        let other = request(&kept, other, 24);
        let (expected, all) = answer(&world(name, 1), &other);
        let (found, rows) = answer(&kept, &other);
        assert_eq!(found, expected, "{name}");
        assert!(rows[0] < all[0], "{name}: {} of {}", rows[0], all[0]);
        let longer = Generate {
            block_length: 64,
            ..other
        };
        let (expected, all) = answer(&world(name, 1), &longer);
        assert_eq!(answer(&kept, &longer), (expected, all), "{name}");
    }
}

#[test]
fn a_long_prompt_is_stored_in_pieces() {
    let world = world("sdar-tiny", 1);
    let long = request(&world, prompt(901, 1), 11);
    let (_, rows) = answer(&world, &long);
    // 512 positions, then what is left with the open block.
    assert_eq!(rows[..3], [512, 392, 4]);
    // In pieces or not, the last blocks see the same.
    let short = request(&world, prompt(901, 1)[..300].to_vec(), 11);
    let (expected, _) = answer(&world, &short);
    let fresh = self::world("sdar-tiny", 1);
    assert_eq!(answer(&fresh, &short).0, expected);
}

#[test]
fn each_gets_what_it_gets_alone() {
    for name in NAMES {
        let (alone, shared) = (world(name, 1), world(name, 4));
        let requests: Vec<_> = [(5, 33, 0.0), (64, 20, 0.7), (40, 40, 0.0), (31, 9, 1.0)]
            .into_iter()
            .map(|(length, answer, temperature)| Generate {
                temperature,
                seed: 7,
                eos: EosPolicy::Suppress,
                ..request(&alone, prompt(length, answer as u32), answer)
            })
            .collect();
        let expected: Vec<_> = (requests.iter())
            .map(|request| answer(&alone, request).0)
            .collect();
        let found = shared.run(&requests);
        let found: Vec<_> = found.into_iter().map(|(result, _)| result.tokens).collect();
        assert_eq!(found, expected, "{name}");
        for (request, tokens) in requests.iter().zip(&found) {
            assert_eq!(tokens.len(), request.canvas.len());
        }
    }
}

#[test]
fn what_a_block_diffusion_model_lacks_is_refused_by_name() {
    let world = world("sdar-tiny", 1);
    let asked = request(&world, prompt(9, 1), 16);
    let refusal = |decoding: Decoding, policy: &str| {
        let request = Generate {
            decoding,
            policy: policy.parse().unwrap(),
            ..asked.clone()
        };
        match world.engine.run(Work::Generate(request)) {
            Err(EngineError::Request(RequestError::Sampling { what, .. })) => what,
            other => panic!("{other:?}"),
        }
    };
    let blocks = asked.decoding;
    for (what, decoding, policy) in [
        ("diffusion.kv_cache", Decoding::default(), "reference"),
        (
            "diffusion.suffix_window",
            Decoding {
                suffix_window: Some(4),
                ..blocks
            },
            "reference",
        ),
        (
            "diffusion.canvas_growth",
            Decoding {
                canvas_growth: "append".parse().unwrap(),
                ..blocks
            },
            "reference",
        ),
        (
            "diffusion.speculation",
            Decoding {
                speculation: "draft".parse().unwrap(),
                ..blocks
            },
            "reference",
        ),
        ("diffusion.policy", blocks, "revoke"),
    ] {
        assert_eq!(refusal(decoding, policy), what);
    }
    let other = World::diffusion(1);
    let wrong = Generate {
        model: other.model.id,
        ..asked
    };
    assert!(other.engine.run(Work::Generate(wrong)).is_err());
}
