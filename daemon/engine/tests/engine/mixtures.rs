//! Mixtures of experts as files have them: all of a layer's experts in one tensor, and what is wrong with bad ones.

use std::{collections::BTreeMap, fs, path::Path};

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::Value;
use sluice_checkpoint::{Checkpoint, CheckpointError, Source};
use tempfile::TempDir;

use crate::{
    checkpoints::fixture,
    fixtures::{check_logits_in, check_tokens_in},
};

mod compressed;

/// Name, dtype, shape and elements.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

const EXPERTS: usize = 16;

/// A fixture with another configuration or other tensors.
fn changed(
    name: &str,
    config: impl FnOnce(&mut Value),
    tensors: impl FnOnce(&mut Tensors),
) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in fs::read_dir(fixture(name)).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let path = folder.path().join("config.json");
    let mut keys = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config(&mut keys);
    fs::write(path, keys.to_string()).unwrap();
    change(folder.path(), tensors);
    folder
}

/// Changes a folder's tensors.
fn change(folder: &Path, tensors: impl FnOnce(&mut Tensors)) {
    let path = folder.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let all = SafeTensors::deserialize(&bytes).unwrap().tensors();
    let all = all.into_iter().map(|(name, view)| {
        let (shape, bytes) = (view.shape().to_vec(), view.data().to_vec());
        (name, (view.dtype(), shape, bytes))
    });
    let mut all = all.collect();
    tensors(&mut all);
    let views = all.iter().map(|(name, (dtype, shape, bytes))| {
        let view = TensorView::new(*dtype, shape.clone(), bytes);
        (name, view.unwrap())
    });
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// Puts these matrices of all experts into one tensor, in each layer that has experts.
fn fuse(tensors: &mut Tensors, parts: &[&str], to: &str) {
    for layer in 0..4 {
        let mut bytes = Vec::new();
        let mut dtype = Dtype::F32;
        let mut shape = [EXPERTS, 0, 0];
        for expert in 0..EXPERTS {
            for part in parts {
                let name = format!("model.layers.{layer}.mlp.experts.{expert}.{part}.weight");
                if let Some((of_all, of_part, elements)) = tensors.remove(&name) {
                    dtype = of_all;
                    shape[1] += if expert == 0 { of_part[0] } else { 0 };
                    shape[2] = of_part[1];
                    bytes.extend(elements);
                }
            }
        }
        if !bytes.is_empty() {
            let name = format!("model.layers.{layer}.mlp.experts.{to}");
            tensors.insert(name, (dtype, shape.to_vec(), bytes));
        }
    }
}

/// As transformers 5 has them.
fn fuse_gates_and_ups(tensors: &mut Tensors) {
    fuse(tensors, &["gate_proj", "up_proj"], "gate_up_proj");
    fuse(tensors, &["down_proj"], "down_proj");
}

/// As converters of LLaDA2.0 write them.
fn fuse_each(tensors: &mut Tensors) {
    for part in ["gate_proj", "up_proj", "down_proj"] {
        fuse(tensors, &[part], part);
    }
}

#[test]
fn experts_in_one_tensor_compute_what_the_reference_does() {
    let folder = changed("qwen3-moe-tiny", |_| {}, fuse_gates_and_ups);
    check_logits_in(folder.path());
    check_tokens_in(folder.path(), 3);
    let folder = changed("llada2-tiny", |_| {}, fuse_each);
    check_logits_in(folder.path());
    check_tokens_in(folder.path(), 16);
}

/// Reads headers and configuration, and checks every tensor that the model needs.
fn check(folder: &Path) -> Result<(), CheckpointError> {
    let checkpoint = Checkpoint::open(&Source::Folder(folder.to_owned()))?;
    checkpoint
        .sources(checkpoint.model()?.shape.tensors())
        .map(drop)
}

fn refusal(
    name: &str,
    config: impl FnOnce(&mut Value),
    tensors: impl FnOnce(&mut Tensors),
) -> String {
    let folder = changed(name, config, tensors);
    let error = check(folder.path()).unwrap_err().to_string();
    let path = fs::canonicalize(folder.path()).unwrap();
    error.replace(path.to_str().unwrap(), "DIR")
}

#[test]
fn keys_of_experts_and_masks_are_refused_with_what_they_must_be() {
    for (fixture, key, value, expected) in [
        (
            "qwen3-moe-tiny",
            "num_experts_per_tok",
            17.into(),
            "num_experts_per_tok is 17, not a whole number from 1 to 16",
        ),
        (
            "llada-moe-tiny",
            "num_experts",
            0.into(),
            "num_experts is 0, not a whole number from 1 to 4096",
        ),
        (
            "sdar-moe-tiny",
            "num_experts",
            Value::Null,
            "num_experts is missing",
        ),
        (
            "llada2-tiny",
            "n_group",
            3.into(),
            "n_group is 3, which does not divide the 16 experts",
        ),
        (
            "llada2-tiny",
            "topk_group",
            5.into(),
            "topk_group is 5, not a whole number from 1 to 4",
        ),
        (
            "llada2-tiny",
            "num_experts_per_tok",
            16.into(),
            "topk_group leaves 8 experts, of which 16 are to be chosen",
        ),
        (
            "llada2-tiny",
            "block_size",
            0.into(),
            "block_size is 0, not a whole number from 1 to 4096",
        ),
        (
            "sdar-moe-tiny",
            "block_size",
            0.into(),
            "block_size is 0, not a whole number from 1 to 4096",
        ),
        (
            "fast-dllm-v2-tiny",
            "bd_size",
            0.into(),
            "bd_size is 0, not a whole number from 1 to 4096",
        ),
        (
            "llada2-tiny",
            "mask_token_id",
            Value::Null,
            "mask_token_id is missing, and the published models' 156895 is no token of this vocabulary of 256; add the id of the model's \
             mask token",
        ),
        (
            "dream-tiny",
            "mask_token_id",
            Value::Null,
            "mask_token_id is missing; add the id of the model's mask token",
        ),
        (
            "llada-moe-tiny",
            "mask_token_id",
            256.into(),
            "mask_token_id is 256, not a whole number from 0 to 255",
        ),
        (
            "sdar-moe-tiny",
            "mask_token_id",
            (-1).into(),
            "mask_token_id is -1, not a whole number from 0 to 255",
        ),
    ] {
        let found = refusal(fixture, |config| config[key] = value, |_| {});
        assert_eq!(found, format!("config.json: {expected}"), "{fixture}");
    }
}

#[test]
fn experts_that_are_missing_or_too_many_are_refused_by_the_file_s_names() {
    let up = "model.layers.1.mlp.experts.3.up_proj.weight";
    let lacks = |tensors: &mut Tensors| drop(tensors.remove(up));
    assert_eq!(
        refusal("qwen3-moe-tiny", |_| {}, lacks),
        format!("tensor {up} is missing")
    );
    let down = "model.layers.2.mlp.experts.down_proj";
    let lacks_all = |tensors: &mut Tensors| {
        fuse_gates_and_ups(tensors);
        tensors.remove(down);
    };
    assert_eq!(
        refusal("qwen3-moe-tiny", |_| {}, lacks_all),
        format!("tensor {down} is missing")
    );
    for number in [12, 20] {
        let count = |config: &mut Value| config["num_experts"] = number.into();
        assert_eq!(
            refusal("qwen3-moe-tiny", count, |_| {}),
            format!(
                "tensor model.layers.1.mlp.gate.weight has shape [16, 48]; the configuration requires [{number}, 48]"
            )
        );
        assert_eq!(
            refusal("qwen3-moe-tiny", count, fuse_gates_and_ups),
            format!(
                "tensor model.layers.1.mlp.experts.down_proj has shape [16, 48, 24]; the configuration requires [{number}, 48, 24]"
            )
        );
    }
}

#[test]
fn experts_in_both_layouts_are_refused_and_layers_may_differ() {
    let both = |tensors: &mut Tensors| {
        let name = "model.layers.1.mlp.experts.3.up_proj.weight";
        let kept = tensors[name].clone();
        fuse_gates_and_ups(tensors);
        tensors.insert(name.to_owned(), kept);
    };
    assert_eq!(
        refusal("qwen3-moe-tiny", |_| {}, both),
        "DIR/model.safetensors has model.layers.1.mlp.experts.3.up_proj.weight twice, once of them in \
         model.layers.1.mlp.experts.gate_up_proj"
    );
    let twice = |tensors: &mut Tensors| {
        let name = "model.layers.1.mlp.experts.gate_up_proj";
        let (mut like, mut fused) = (tensors.clone(), tensors.clone());
        fuse_gates_and_ups(&mut fused);
        fuse_each(&mut like);
        *tensors = like;
        tensors.insert(name.to_owned(), fused[name].clone());
    };
    assert_eq!(
        refusal("qwen3-moe-tiny", |_| {}, twice),
        "DIR/model.safetensors has model.layers.1.mlp.experts.0.gate_proj.weight twice, once of them in \
         model.layers.1.mlp.experts.gate_up_proj"
    );
    // Each matrix is there once, so it is clear which is meant.
    let some = |tensors: &mut Tensors| fuse(tensors, &["down_proj"], "down_proj");
    let folder = changed("qwen3-moe-tiny", |_| {}, some);
    check_logits_in(folder.path());
}
