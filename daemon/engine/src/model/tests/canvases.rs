//! Canvases of random tokens behind text: requests in passes of their own and shared, and what they take beside what a dry
//! run says.

use sluice_plan::Workload;
use sluice_shared::{
    decoding::{Decoding, KvCacheReuse},
    policy::PolicyChoice,
    sampling::KvCacheMode,
};

use super::*;
use crate::{
    decode::{
        Denoiser, DiffusionRequest, PassRequest, RenoisedText, RequestMemory, SoftPredictions,
        Vocabulary,
    },
    event::PassCost,
    request::{Generate, ModelId, Work},
};

const CANVAS: usize = 16;

/// Two steps for each canvas, behind a prompt of this length.
fn request(prompt: usize, length: usize) -> Generate {
    let prompt = (0..prompt as u32).map(|place| place * 37 % 180).collect();
    Generate {
        block_length: CANVAS,
        causal_attention_before: true,
        policy: PolicyChoice::new("renoise", [("steps", 2.0)]).unwrap(),
        decoding: Decoding {
            kv_cache: KvCacheReuse {
                mode: KvCacheMode::Blocks,
                ..KvCacheReuse::default()
            },
            ..Decoding::default()
        },
        ..Generate::greedy(ModelId(1), prompt, length)
    }
}

fn workload(request: &Generate) -> Workload {
    Work::Generate(request.clone()).workload()
}

/// Runs requests that begin one pass after another, so that text and canvases share passes; what each wrote.
fn run(world: &World, requests: &[Generate]) -> Vec<Vec<u32>> {
    let shape = &world.config.shape;
    let vocabulary = Arc::new(Vocabulary {
        size: world.config.vocab_size,
        mask: world.config.mask,
        ends: Vec::new(),
    });
    let memory = |request: &Generate| {
        let (places, _) = workload(request).cached_rows();
        let shapes = KvCacheShape::each(shape, Format::F32);
        let caches = shapes
            .iter()
            .map(|shape| world.ops.kv_cache(*shape, places));
        let soft = || {
            world
                .ops
                .soft_embeddings(CANVAS, shape.hidden_size)
                .unwrap()
        };
        RequestMemory {
            kv_caches: caches.collect::<Result<_, _>>().unwrap(),
            distributions: None,
            soft: Some(Box::new(SoftPredictions {
                last: soft(),
                next: soft(),
            })),
        }
    };
    let mut running: Vec<_> = (requests.iter())
        .map(|request| {
            let text = RenoisedText::new(request, &vocabulary).unwrap();
            (text, memory(request))
        })
        .collect();
    for (text, _) in &mut running {
        text.start(&mut |_| {});
    }
    let denoiser = Denoiser {
        ops: &world.ops,
        model: &world.model,
        weights: &world.weights,
        vocabulary: &vocabulary,
    };
    let never = AtomicBool::new(false);
    for begun in 1.. {
        let mut now: Vec<_> = (running.iter_mut().take(begun))
            .filter(|(text, _)| !text.is_done())
            .collect();
        if now.is_empty() && begun > requests.len() {
            break;
        }
        let mut asked: Vec<_> = (now.iter_mut())
            .map(|(text, memory)| PassRequest {
                pass: text.passes().remove(0),
                memory: Some(memory),
            })
            .collect();
        let found = denoiser.candidates(&mut asked, &never);
        let found = found.unwrap_or_else(|_| panic!("a pass failed"));
        drop(asked);
        for ((text, _), found) in now.into_iter().zip(found) {
            text.take(&[found], &PassCost::default(), &mut |_| {});
        }
    }
    let texts = running.into_iter();
    texts.map(|(text, _)| text.generated().tokens).collect()
}

#[test]
fn requests_write_together_what_they_write_alone() {
    let world = World::new("diffusion-gemma-tiny");
    // Prompts of one chunk and of several, longer than the window and shorter; answers that end within a canvas.
    let requests: Vec<_> = [(7, 40), (70, 16), (1, 20), (30, 33)]
        .map(|(prompt, length)| request(prompt, length))
        .to_vec();
    let together = run(&world, &requests);
    for (request, found) in requests.iter().zip(&together) {
        assert_eq!(found.len(), request.canvas.len());
        assert_eq!(run(&world, std::slice::from_ref(request))[0], *found);
    }
    let other = Generate {
        seed: 1,
        ..requests[0].clone()
    };
    assert_ne!(run(&world, &[other])[0], together[0]);
}

#[test]
fn they_take_no_more_than_was_rehearsed() {
    for lengths in [
        &[(7, 16)][..],
        &[(400, 16)],
        &[(30, 40), (7, 16), (200, 20)],
    ] {
        let world = World::new("diffusion-gemma-tiny");
        let requests = lengths
            .iter()
            .map(|&(prompt, length)| request(prompt, length));
        let requests: Vec<_> = requests.collect();
        let working = world.dry_run(&together(requests.iter().map(workload)));
        world.ops.reserve(working.activation_bytes).unwrap();
        run(&world, &requests);
        let said = [
            working.activation_bytes,
            working.kv_cache_bytes,
            working.logits_bytes,
        ];
        for (taken, said) in world.taken(working.activation_bytes).into_iter().zip(said) {
            assert!(taken <= said, "{taken} of {said} for {lengths:?}");
            // Not for far more, either.
            assert!(taken * 3 >= said, "{taken} of {said} for {lengths:?}");
        }
    }
}
