//! Pruned files as models: the text of the whole model without what was removed, at each level and streamed, in fewer
//! bytes.

use std::{fs, path::Path, sync::atomic::AtomicBool};

use safetensors::{SafeTensors, tensor::TensorView};
use sluice_checkpoint::{
    Source,
    compression::SourceCheck,
    pruning::{PruneOptions, PruneResult, PruneShares, prune},
};
use sluice_shared::{level::Level, pruning::PruneScore};

use crate::{
    checkpoints::demonstration,
    containers::{least_bytes, run},
    loading::settings,
};

/// The demonstration model's elements, which are bf16.
const ELEMENT_BYTES: usize = 2;
const HEAD_DIM: usize = 64;

fn pruned(target: &Path, heads: f64, channels: f64) -> PruneResult {
    let options = PruneOptions {
        shares: PruneShares { heads, channels },
        score: PruneScore::L2,
        compensate: false,
        calibration: None,
        threads: 2,
        replace: false,
    };
    let check = SourceCheck {
        remembered: None,
        progress: &mut |_| {},
    };
    let never = AtomicBool::new(false);
    let source = Source::Folder(demonstration());
    prune(&source, target, &options, check, &never, &mut |_, _| {}).unwrap()
}

/// The demonstration model with zeros for the columns of `o` and `down` that were removed: what they multiply has no
/// effect.
fn masked(made: &PruneResult, target: &Path) {
    let mut bytes = fs::read(demonstration().join("model.safetensors")).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let place = |name: &str| {
        let tensor: TensorView<'_> = tensors.tensor(name).unwrap();
        let start = tensor.data().as_ptr() as usize - bytes.as_ptr() as usize;
        (start, tensor.shape().to_vec())
    };
    let mut columns = Vec::new();
    for (layer, removed) in made.record.layers.iter().enumerate() {
        let name = |part| format!("model.transformer.blocks.{layer}.{part}.weight");
        let heads = removed
            .removed_kv_heads
            .iter()
            .map(|&head| usize::from(head));
        let of_heads = heads.flat_map(|head| head * HEAD_DIM..(head + 1) * HEAD_DIM);
        columns.push((place(&name("attn_out")), of_heads.collect::<Vec<_>>()));
        let channels = removed.removed_channels.iter().map(|&at| at as usize);
        columns.push((place(&name("ff_out")), channels.collect()));
    }
    for ((start, shape), columns) in columns {
        assert!(start >= header);
        for row in 0..shape[0] {
            for column in &columns {
                let at = start + (row * shape[1] + column) * ELEMENT_BYTES;
                bytes[at..at + ELEMENT_BYTES].fill(0);
            }
        }
    }
    fs::create_dir(target).unwrap();
    fs::write(target.join("model.safetensors"), bytes).unwrap();
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(demonstration().join(file), target.join(file)).unwrap();
    }
}

#[test]
fn a_pruned_file_writes_what_the_masked_model_does_in_fewer_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pruned.sluice");
    let made = pruned(&file, 0.2, 0.2);
    let mask = folder.path().join("masked");
    masked(&made, &mask);
    let (expected, whole) = run(&mask, settings(Level::Standard, None)).unwrap();
    let (off, _) = run(&file, settings(Level::Off, None)).unwrap();
    assert_eq!(off.tokens, expected.tokens);
    assert!(off.is_lossless, "they are the file's own weights");
    let (standard, plan) = run(&file, settings(Level::Standard, None)).unwrap();
    assert_eq!(standard.tokens, expected.tokens);
    let saved = made.original_bytes - made.kept_bytes;
    assert_eq!(whole.resident_bytes() - plan.resident_bytes(), saved);
    assert!(standard.peak_device_bytes < expected.peak_device_bytes);
    let least = least_bytes(&file, Level::Standard);
    let (streamed, plan) = run(&file, settings(Level::Standard, Some(least))).unwrap();
    assert!(plan.streamed_bytes() > 0);
    assert_eq!(streamed.tokens, expected.tokens);
    // Channels of 416 are no whole blocks of 256: that tensor takes the next format up.
    let mut before = whole.resident_bytes();
    for level in [Level::Mild, Level::Moderate, Level::Aggressive] {
        let (generated, plan) = run(&file, settings(level, None)).unwrap();
        assert!(plan.resident_bytes() < before, "{level}");
        before = plan.resident_bytes();
        if level == Level::Mild {
            assert_eq!(generated.tokens, expected.tokens);
        }
    }
}
