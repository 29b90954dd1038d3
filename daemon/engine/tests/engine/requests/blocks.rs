//! Block diffusion: what is kept between passes, requests and turns changes no token.

use sluice_engine::{CanvasSlot, EngineError, Generate, PlanSettings, RequestError, Work};
use sluice_shared::{
    decoding::{Decoding, KvCacheReuse},
    policy::PolicyChoice,
    sampling::{EosPolicy, KvCacheMode, Remasking},
};

use super::world::World;
use crate::checkpoints::fixture;

const NAMES: [&str; 2] = ["sdar-tiny", "fast-dllm-v2-tiny"];
/// Reads what stands before the open block causally.
const CAUSAL: &str = "nemotron-ld-tiny";
/// Its ways to decode.
const POLICIES: [&str; 3] = ["deadline:t=0.5", "autoregressive", "verify:window=16"];

fn world(name: &str, parallel: usize) -> World {
    World::new(&fixture(name), parallel, PlanSettings::default())
}

fn prompt(length: usize, seed: u32) -> Vec<u32> {
    (0..length as u32)
        .map(|place| (place * 7 + seed) % 99)
        .collect()
}

fn request(world: &World, prompt: Vec<u32>, length: usize) -> Generate {
    let blocks = world.model.info.mask.unwrap().blocks.unwrap();
    Generate {
        block_length: blocks.length,
        causal_attention_before: blocks.causal_attention_before,
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
fn causally_read_text_is_gone_on_from_anywhere() {
    for policy in POLICIES {
        let with = |world: &World, prompt: Vec<u32>| Generate {
            policy: policy.parse().unwrap(),
            ..request(world, prompt, 24)
        };
        let kept = world(CAUSAL, 1);
        let first = with(&kept, prompt(70, 1));
        let (written, _) = answer(&kept, &first);
        let turn = [&first.prompt[..], &written[..11], &prompt(9, 3)].concat();
        let next = with(&kept, turn);
        let (expected, all) = answer(&world(CAUSAL, 1), &next);
        let (found, rows) = answer(&kept, &next);
        assert_eq!(found, expected, "{policy}");
        // All but the new words, and what the last block may have held beyond them.
        assert_eq!(all[0], 90, "{policy}");
        assert!(rows[0] < 21, "{policy}: {} rows", rows[0]);
        // Whoever decodes otherwise goes on from the same.
        let other = Generate {
            policy: "autoregressive".parse().unwrap(),
            ..next
        };
        let (expected, _) = answer(&world(CAUSAL, 1), &other);
        let (found, rows) = answer(&kept, &other);
        assert_eq!((found, rows[0]), (expected, 1), "{policy}");
    }
}

#[test]
fn drafts_change_no_token() {
    let world = world(CAUSAL, 1);
    for (temperature, eos) in [
        (0.0, EosPolicy::Keep),
        (0.0, EosPolicy::Stop),
        (0.8, EosPolicy::Keep),
        (1.0, EosPolicy::Suppress),
    ] {
        let with = |policy: &str| Generate {
            policy: policy.parse().unwrap(),
            temperature,
            eos,
            seed: 5,
            ..request(&world, prompt(33, 2), 50)
        };
        let (expected, rows) = answer(&world, &with("autoregressive"));
        assert_eq!(rows.len(), expected.len());
        for policy in ["verify", "verify:window=5,least=5", "verify:window=200"] {
            let (found, _) = answer(&world, &with(policy));
            assert_eq!(found, expected, "{policy} at {temperature}");
        }
    }
}

#[test]
fn text_is_written_from_left_to_right_or_refused() {
    let world = world(CAUSAL, 1);
    let asked = Generate {
        policy: "verify".parse().unwrap(),
        ..request(&world, prompt(9, 1), 16)
    };
    let refusal = |request: Generate| match world.engine.run(Work::Generate(request)) {
        Err(EngineError::Request(RequestError::Sampling { what, .. })) => what,
        Err(EngineError::Request(RequestError::Zero { what })) => what,
        other => panic!("{other:?}"),
    };
    let mut pinned = asked.clone();
    pinned.canvas[3] = CanvasSlot::Pinned(5);
    assert_eq!(refusal(pinned), "diffusion.pins");
    let guided = Generate {
        guidance: 1.0,
        ..asked.clone()
    };
    assert_eq!(refusal(guided), "diffusion.guidance");
    let ranked = Generate {
        remasking: Remasking::Random,
        ..asked.clone()
    };
    assert_eq!(refusal(ranked), "diffusion.remasking");
    let edited = Generate {
        policy: "edit".parse().unwrap(),
        ..asked.clone()
    };
    assert_eq!(refusal(edited), "diffusion.policy");
    let first = Generate {
        prompt: Vec::new(),
        ..asked.clone()
    };
    assert_eq!(refusal(first), "prompt");
    // Only such a model can be asked so.
    let other = self::world("sdar-tiny", 1);
    let asked = Generate {
        policy: asked.policy,
        ..request(&other, prompt(9, 1), 16)
    };
    match other.engine.run(Work::Generate(asked)) {
        Err(EngineError::Request(RequestError::Sampling { what, .. })) => {
            assert_eq!(what, "diffusion.policy");
        }
        other => panic!("{other:?}"),
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
    for (name, policy) in NAMES
        .map(|name| (name, "dynamic:t=0.5"))
        .into_iter()
        .chain(POLICIES.map(|policy| (CAUSAL, policy)))
    {
        let (alone, shared) = (world(name, 1), world(name, 4));
        let requests: Vec<_> = [(5, 33, 0.0), (64, 20, 0.7), (40, 40, 0.0), (31, 9, 1.0)]
            .into_iter()
            .map(|(length, answer, temperature)| Generate {
                temperature,
                seed: 7,
                eos: EosPolicy::Suppress,
                policy: policy.parse().unwrap(),
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
