//! Pins without a position stand where the reference's logits are highest, however the weights are held, and cost no more than
//! was planned; what has none is computed as ever.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
};

use serde_json::Value;
use sluice_checkpoint::compression::{CompressionMethod, Lossless};
use sluice_engine::{
    Budget, CanvasSlot, EngineError, Event, Generate, Outcome, PlanOptions, PlanSettings,
    RequestError, Work,
    check::fixture_forwards,
    event::{GenerationResult, PlacedText},
    request::AnywherePins,
};
use sluice_machine::Profile;
use sluice_ops::{Ops, device::Device, ledger::Ledger};
use sluice_plan::{Machine, Plan, PlanInput, WorkingMemory, Workload};
use sluice_shared::{
    decoding::{CanvasGrowth, Decoding},
    level::Level,
    options::ResolvedPlanSettings,
};
use sluice_weights::{Shape, SourceTensor};

use super::world::World;
use crate::checkpoints::{demonstration, fixture, write_container};

fn one(text: &[u32]) -> AnywherePins {
    AnywherePins {
        texts: vec![text.to_vec()],
        most: 1,
    }
}

/// What was placed, what was written, and the rows that each pass computed and its LM head read.
fn run(
    world: &World,
    request: &Generate,
) -> (Vec<PlacedText>, GenerationResult, Vec<(usize, usize)>) {
    let seen = Arc::new(Mutex::new((Vec::new(), Vec::new())));
    let events = Arc::clone(&seen);
    let (send, done) = std::sync::mpsc::channel();
    let sink = move |event| {
        let (placed, rows) = &mut *events.lock().unwrap();
        match event {
            Event::Placed(texts) => *placed = texts,
            Event::Pass(report) => rows.push((report.rows, report.lm_head_rows)),
            Event::Finished(Ok(Outcome::Generated(generated))) => send.send(generated).unwrap(),
            Event::Finished(other) => panic!("{other:?}"),
            _ => {}
        }
    };
    let work = Work::Generate(request.clone());
    (world.engine)
        .submit((world.share)(0), work, Box::new(sink))
        .unwrap();
    let generated = done.recv().unwrap();
    let (placed, rows) = std::mem::take(&mut *seen.lock().unwrap());
    (placed, generated, rows)
}

fn whole_plan(shape: &Shape, sources: &[SourceTensor]) -> Plan {
    let machine = Machine::unmeasured(Profile::cpu(2), 0);
    Plan::new(&PlanInput {
        shape,
        sources,
        choices: ResolvedPlanSettings::from(Level::Standard),
        budget_bytes: u64::MAX,
        workload: Workload::new(16, 16, 1),
        working: WorkingMemory::default(),
        machine: &machine,
    })
    .unwrap()
}

/// The mean log-probability of a text at a position, by the reference's logits: `shift` rows before the positions.
fn worth(logits: &[f32], width: usize, at: usize, text: &[u32], shift: usize) -> f64 {
    let log_probability = |(offset, &token): (usize, &u32)| {
        let row = &logits[(at + offset - shift) * width..][..width];
        let sum: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
        f64::from(row[token as usize]) - sum.ln()
    };
    text.iter().enumerate().map(log_probability).sum::<f64>() / text.len() as f64
}

#[test]
fn a_text_stands_where_the_references_logits_are_highest() {
    for (name, shift) in [("llada-tiny", 0), ("dream-tiny", 1)] {
        let folder = fixture(name);
        let expected: Value =
            serde_json::from_slice(&fs::read(folder.join("expected.json")).unwrap()).unwrap();
        let mask = expected["mask_token_id"].as_u64().unwrap() as u32;
        let ops = Ops::new(Device::cpu(2).unwrap(), Ledger::default()).unwrap();
        let plan = |shape: &Shape, sources: &[_]| Ok(Some(whole_plan(shape, sources)));
        let forwards = fixture_forwards(&folder, &ops, &plan).unwrap();
        let world = World::new(&folder, 1, PlanSettings::default());
        for (case, prompt) in [("prompt_then_masks", 12), ("half_masked", 3)] {
            let cases = expected["forward"].as_array().unwrap();
            let tokens = cases.iter().find(|one| one["name"] == case).unwrap();
            let tokens = tokens["input_ids"][0].as_array().unwrap().iter();
            let tokens: Vec<u32> = tokens.map(|id| id.as_u64().unwrap() as u32).collect();
            let forward = forwards.iter().find(|one| one.name == case).unwrap();
            let slot = |&id: &u32| match id == mask {
                true => CanvasSlot::Masked,
                false => CanvasSlot::Pinned(id),
            };
            let mut places = Vec::new();
            for text in [&[17][..], &[93], &[5, 140], &[201, 7, 64]] {
                let canvas: Vec<CanvasSlot> = tokens[prompt..].iter().map(slot).collect();
                let fits = |at: &usize| {
                    let slots = canvas.get(*at..*at + text.len());
                    slots.is_some_and(|slots| slots.iter().all(|one| *one == CanvasSlot::Masked))
                };
                let worth = |at: usize| {
                    let (logits, width) = (&forward.reference, forward.vocabulary);
                    worth(logits, width, prompt + at, text, shift)
                };
                let best = (0..canvas.len())
                    .filter(fits)
                    .max_by(|one, other| worth(*one).total_cmp(&worth(*other)));
                let length = canvas.len();
                let request = Generate {
                    canvas,
                    anywhere: vec![one(text)],
                    ..Generate::greedy(world.model.id, tokens[..prompt].to_vec(), length)
                };
                let (placed, generated, _) = run(&world, &request);
                let Some(best) = best else {
                    assert!(placed.is_empty(), "{name} {case} {text:?}");
                    continue;
                };
                assert_eq!(placed[0].position, best, "{name} {case} {text:?}");
                let far = (placed[0].log_probability - worth(best)).abs();
                assert!(far < 1e-3, "{name} {case} {text:?}: {far}");
                assert_eq!(&generated.tokens[best..best + text.len()], text);
                places.push(best);
            }
            // Not always the first or the last.
            places.dedup();
            assert!(places.len() > 1, "{name} {case}: {places:?}");
        }
    }
}

fn story(world: &World) -> Generate {
    let text = world.model.tokenizer.as_ref().unwrap();
    let ids = |words: &str| text.encode(words).unwrap();
    let prompt = text.encode_chat(&[("user", "Tell me a story.")]).unwrap();
    Generate {
        block_length: 16,
        policy: "threshold".parse().unwrap(),
        anywhere: vec![
            one(&ids(" fox")),
            AnywherePins {
                texts: vec![ids(" Mia"), ids(" the blue boat"), ids(" Tom")],
                most: 2,
            },
        ],
        ..Generate::greedy(world.model.id, prompt, 64)
    }
}

#[test]
fn places_are_the_same_wherever_weights_are_and_take_what_was_planned() {
    let folder = tempfile::tempdir().unwrap();
    let coded = folder.path().join("coded.sluice");
    let how = CompressionMethod::Lossless(Lossless::Huffman);
    write_container(&demonstration(), &coded, how, 256);
    let world = |folder: &Path, level, budget| {
        let settings = PlanSettings {
            level,
            budget,
            ..PlanSettings::default()
        };
        World::new(folder, 1, settings)
    };
    let resident = world(&demonstration(), Level::Off, Budget::default());
    let request = story(&resident);
    let (placed, generated, rows) = run(&resident, &request);
    assert_eq!(placed.len(), 3);
    // One pass over all, with all masks read; the others read a block's.
    assert_eq!(rows.len(), generated.passes);
    assert_eq!(rows[0], (request.prompt.len() + 64, 64));
    assert!(rows[1..].iter().all(|(_, read)| *read <= 16));
    let workload = Work::Generate(request.clone()).workload();
    assert_eq!(workload.lm_head_rows(), 64);
    for (source, level) in [(&demonstration(), Level::Off), (&coded, Level::Mild)] {
        let roomy = world(source, level, Budget::default());
        let usual = roomy.engine.in_force().unwrap().plan.workload;
        let plan = (roomy.engine)
            .plan(&PlanOptions::default(), workload.widest(&usual))
            .unwrap();
        for bytes in [
            plan.peak_bytes(),
            plan.peak_bytes() - plan.resident_bytes() / 3,
        ] {
            let other = world(source, level, Budget::Bytes(bytes));
            let own = Generate {
                model: other.model.id,
                ..request.clone()
            };
            let (found, same, _) = run(&other, &own);
            assert_eq!(
                (found, &same.tokens),
                (placed.clone(), &generated.tokens),
                "{level}"
            );
            assert!(same.peak_device_bytes <= bytes, "{level}");
        }
    }
}

#[test]
fn requests_without_share_passes_with_those_that_have_some() {
    let world = World::diffusion(4);
    let placing = story(&world);
    let plain = Generate {
        anywhere: Vec::new(),
        ..placing.clone()
    };
    let (none, alone, rows) = run(&world, &plain);
    assert!(none.is_empty());
    assert_eq!(rows[0], (plain.prompt.len() + 64, 16));
    let (_, expected, _) = run(&world, &placing);
    let cached = Generate {
        decoding: Decoding {
            kv_cache: "dual".parse().unwrap(),
            suffix_window: Some(8),
            ..Decoding::default()
        },
        ..placing.clone()
    };
    let (_, expected_cached, _) = run(&world, &cached);
    let together = world.run(&[plain, placing, cached]);
    let tokens: Vec<_> = together.iter().map(|(one, _)| &one.tokens).collect();
    assert_eq!(
        tokens,
        [&alone.tokens, &expected.tokens, &expected_cached.tokens]
    );
}

#[test]
fn what_has_no_place_for_them_refuses_them() {
    let refusal = |world: &World, request: Generate| match world.engine.run(Work::Generate(request))
    {
        Err(EngineError::Request(error @ RequestError::OnlyMaskedDiffusion { .. })) => {
            error.to_string()
        }
        Err(EngineError::Request(error @ RequestError::Sampling { .. })) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let asked = |world: &World| Generate {
        anywhere: vec![one(&[5])],
        ..Generate::greedy(world.model.id, vec![1, 2, 3], 8)
    };
    let causal = World::autoregressive(1);
    assert!(refusal(&causal, asked(&causal)).starts_with("diffusion.pins: only masked diffusion"));
    let blocks = World::new(&fixture("sdar-tiny"), 1, PlanSettings::default());
    let of_blocks = Generate {
        block_length: 4,
        decoding: Decoding {
            kv_cache: "blocks".parse().unwrap(),
            ..Decoding::default()
        },
        ..asked(&blocks)
    };
    let told = refusal(&blocks, of_blocks);
    assert_eq!(
        told,
        "diffusion.pins: a block diffusion model sees nothing behind its open block"
    );
    let world = World::new(&fixture("llada-tiny"), 1, PlanSettings::default());
    for growth in [CanvasGrowth::Append, CanvasGrowth::Insert] {
        let mut growing = asked(&world);
        growing.decoding.canvas_growth = growth;
        let told = refusal(&world, growing);
        assert!(
            told.contains("a canvas that grows isn't all there"),
            "{told}"
        );
    }
    let with = |texts: Vec<Vec<u32>>| Generate {
        anywhere: vec![AnywherePins { texts, most: 1 }],
        ..asked(&world)
    };
    for (texts, problem) in [
        (vec![Vec::new()], "a text without tokens can't be pinned"),
        (
            vec![vec![5]; 33],
            "33 texts without a position exceed the limit of 32",
        ),
        (
            vec![vec![5; 65]],
            "a text without a position has 65 tokens, and the limit is 64",
        ),
        (
            vec![(0..60).collect(), (60..65).collect()],
            "texts without a position have 65 different tokens, and the limit is 64",
        ),
    ] {
        let told = refusal(&world, with(texts));
        assert_eq!(told, format!("diffusion.pins: {problem}"));
    }
}
