//! Pruned layers beside the unpruned model with the weights of what they lack set to zero.

use std::{collections::BTreeMap, fs};

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use sluice_weights::{KeptKvHeads, KeptSizes, Shape, TensorSpec};

use super::*;
use crate::model::network::logits;

/// What a layer keeps: KV heads, or all of them, and MLP channels.
struct KeptLayer {
    heads: Option<Vec<u16>>,
    channels: Vec<usize>,
}

/// A model with pruned layers, and the same model with those weights set to zero instead.
struct Pair {
    pruned: World,
    masked: World,
}

impl Pair {
    fn new(name: &str, kept: &[KeptLayer]) -> Self {
        Self {
            pruned: world(name, kept, true, Profile::cpu(2), false),
            masked: world(name, kept, false, Profile::cpu(2), false),
        }
    }
}

/// Layers of four KV heads or two and 160 channels: pruned in both, in one, and in none.
fn kept(kv_heads: usize) -> Vec<KeptLayer> {
    let all: Vec<usize> = (0..160).collect();
    let heads: [&[u16]; 2] = match kv_heads {
        4 => [&[0, 2, 3], &[1]],
        _ => [&[1], &[0]],
    };
    let layer = |heads: Option<&[u16]>, channels: Vec<usize>| KeptLayer {
        heads: heads.map(<[u16]>::to_vec),
        channels,
    };
    vec![
        layer(Some(heads[0]), (3..104).collect()),
        layer(None, all.iter().copied().filter(|at| at % 5 > 0).collect()),
        layer(None, all.clone()),
        layer(Some(heads[1]), all),
    ]
}

/// The rows and the columns that a tensor keeps; `None`: all.
fn places(spec: &TensorSpec, shape: &Shape, kept: &[KeptLayer]) -> [Option<Vec<usize>>; 2] {
    let layer = &kept[spec.layer];
    let heads = |each: usize| {
        let heads = layer.heads.as_ref()?.iter().map(|&head| usize::from(head));
        Some(
            heads
                .flat_map(|head| head * each..(head + 1) * each)
                .collect::<Vec<_>>(),
        )
    };
    let queries = shape.attention_heads / shape.kv_heads * shape.head_dim;
    let channels = || Some(layer.channels.clone());
    match spec.part {
        TensorPart::Query => [heads(queries), None],
        TensorPart::Key | TensorPart::Value => [heads(shape.head_dim), None],
        TensorPart::AttentionOutput => [None, heads(queries)],
        TensorPart::Gate | TensorPart::Up => [channels(), None],
        TensorPart::Down => [None, channels()],
        _ => [None, None],
    }
}

/// The elements of the kept rows and columns, or all elements with zeros for the others.
fn kept_elements(
    (rows, width): (usize, usize),
    values: &[f32],
    places: &[Option<Vec<usize>>; 2],
    is_pruned: bool,
) -> Vec<f32> {
    let is_kept = |which: usize, at: usize| {
        let kept: &Option<Vec<usize>> = &places[which];
        kept.as_ref().is_none_or(|kept| kept.contains(&at))
    };
    let mut out = Vec::new();
    for (row, values) in values.chunks_exact(width).take(rows).enumerate() {
        for (column, &value) in values.iter().enumerate() {
            match is_kept(0, row) && is_kept(1, column) {
                true => out.push(value),
                false if is_pruned => {}
                false => out.push(0.0),
            }
        }
    }
    out
}

fn world(
    name: &str,
    kept: &[KeptLayer],
    is_pruned: bool,
    profile: Profile,
    is_dry_run: bool,
) -> World {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name);
    let source = Checkpoint::open(&Source::Folder(fixture.clone())).unwrap();
    let shape = source.model().unwrap().shape;
    let bytes = fs::read(fixture.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let units: Vec<_> = (kept.iter())
        .map(|layer| KeptSizes {
            kv_heads: (layer.heads.as_ref())
                .map(|heads| KeptKvHeads::new(heads, shape.kv_heads).unwrap()),
            channels: layer.channels.len(),
        })
        .collect();
    let mut specs = shape.tensors();
    let mut written = BTreeMap::new();
    for spec in &mut specs {
        let tensor = tensors.tensor(&spec.name).unwrap();
        assert_eq!(tensor.dtype(), Dtype::F32);
        let values: Vec<f32> = bytemuck::pod_collect_to_vec(tensor.data());
        let places = places(spec, &shape, kept);
        let values = kept_elements(spec.size(), &values, &places, is_pruned);
        if is_pruned {
            *spec = units[spec.layer].of_tensor(spec.clone(), &shape);
        }
        written.insert(spec.name.clone(), (spec.shape.clone(), values));
    }
    let views = written.iter().map(|(name, (shape, values))| {
        let bytes = bytemuck::cast_slice(values);
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap();
        (name, view)
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    safetensors::serialize_to_file(views, None, &file).unwrap();
    fs::copy(
        fixture.join("config.json"),
        folder.path().join("config.json"),
    )
    .unwrap();
    let checkpoint = Checkpoint::open(&Source::Folder(folder.path().to_owned())).unwrap();
    World::of(checkpoint, specs, profile, is_dry_run)
}

fn near(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let near = 3e-5 * expected.abs().max(1.0);
        assert!((found - expected).abs() <= near, "{found} for {expected}");
    }
}

impl World {
    /// The logits of these rows' texts, and of each row the most likely token.
    fn logits(&self, sequences: &mut [Sequence<'_>]) -> (Vec<f32>, Vec<usize>) {
        let (ops, weights) = (&self.ops, &self.weights);
        let hidden = self.forward(sequences);
        let x = self.model.final_norm(ops, weights, &hidden).unwrap();
        let logits = logits(ops, weights, &x).unwrap();
        let rows = logits.chunks_exact(self.config.shape.padded_vocab_size);
        let most = rows.map(|row| {
            let all = row.iter().enumerate();
            all.max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0
        });
        let most = most.collect();
        (logits, most)
    }
}

#[test]
fn a_pruned_canvas_has_the_masked_models_logits() {
    let Pair { pruned, masked } = Pair::new("llada-tiny", &kept(4));
    assert!(pruned.weights.weight_bytes() < masked.weights.weight_bytes());
    let parameters = |world: &World| world.model.info(&world.weights).parameters;
    assert_eq!(parameters(&masked), masked.config.shape.parameters());
    // Of each KV head its rows in q, k and v, and its columns in o; of each channel a row or column of three matrices.
    let gone = 64 * (4 * 16 * (1 + 3) + 3 * (59 + 32));
    assert_eq!(parameters(&masked) - parameters(&pruned), gone);
    let tokens: Vec<u32> = (0..30).map(|at| at * 37 % 250 + 3).collect();
    let places: Vec<usize> = (0..30).collect();
    let logits = |world: &World| {
        world.logits(&mut [Sequence {
            tokens: &tokens,
            positions: &places,
            wanted: &places,
            sees: VisibleKeys::Each { checks: 0 },
        }])
    };
    let (found, expected) = (logits(&pruned), logits(&masked));
    near(&found.0, &expected.0);
    assert_eq!(found.1, expected.1);
}

/// KV heads that are shared, and caches that the unpruned model has begun: as after a switch between the two.
#[test]
fn a_pruned_model_goes_on_with_the_caches_of_the_unpruned_one() {
    let Pair { pruned, masked } = Pair::new("llama-tiny", &kept(2));
    let whole = World::new("llama-tiny");
    let tokens: Vec<u32> = (0..40).map(|at| at * 31 % 250 + 3).collect();
    let places: Vec<usize> = (0..40).collect();
    let shape = KvCacheShape::of(&whole.config.shape, Format::F32);
    for begun in [0, 11] {
        let logits = |world: &World| {
            let mut cache = world.ops.kv_cache(shape, 40).unwrap();
            let mut all = (Vec::new(), Vec::new());
            let passes = [
                (&whole, 0..begun),
                (world, begun..25),
                (world, 25..39),
                (world, 39..40),
            ];
            for (world, rows) in passes.into_iter().filter(|(_, rows)| !rows.is_empty()) {
                let wanted: Vec<_> = (0..rows.len()).collect();
                let (logits, most) = world.logits(&mut [Sequence {
                    tokens: &tokens[rows.clone()],
                    positions: &places[rows],
                    wanted: &wanted,
                    sees: VisibleKeys::Before { cache: &mut cache },
                }]);
                all.0.extend(logits);
                all.1.extend(most);
            }
            all
        };
        let (found, expected) = (logits(&pruned), logits(&masked));
        near(&found.0, &expected.0);
        assert_eq!(found.1, expected.1);
    }
}

#[test]
fn a_pass_of_a_pruned_model_takes_what_was_rehearsed() {
    for (canvas, block, requests) in [(20, 8, 1), (20, 8, 3), (33, 1, 5)] {
        let world = world("llada-tiny", &kept(4), true, Profile::cpu(2), false);
        let working = world.dry_run(&Workload::new(canvas, block, requests));
        world.ops.reserve(working.activation_bytes).unwrap();
        world.denoise(&vec![(canvas, block.min(canvas)); requests]);
        let said = [working.activation_bytes, 0, working.logits_bytes];
        assert_eq!(world.taken(working.activation_bytes), said);
    }
    let prompts = [19, 19, 19];
    let workload = together(prompts.map(|len| Workload::new(len + 1, 32, 1)));
    for (profile, is_dry_run) in [
        (Profile::cpu(2), false),
        (profiles()[0], true),
        (profiles()[1], true),
    ] {
        let world = world("llama-tiny", &kept(2), true, profile, is_dry_run);
        let working = world.dry_run(&workload);
        let reserved = if is_dry_run {
            0
        } else {
            working.activation_bytes
        };
        world.ops.reserve(reserved).unwrap();
        world.continue_prompts(&prompts);
        let said = [
            working.activation_bytes,
            working.kv_cache_bytes,
            working.logits_bytes,
        ];
        let taken = world.taken(reserved);
        match profile.gpu {
            // Attention's tasks are counted for the most that queries can lead to.
            Some(_) => assert!(taken.iter().zip(said).all(|(taken, said)| *taken <= said)),
            None => assert_eq!(taken, said),
        }
    }
}
