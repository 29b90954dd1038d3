//! What cannot be run is refused by the file's own names, and where a message says what to do, it is that.

use std::{fs, path::Path};

use sluice_checkpoint::{Checkpoint, CheckpointError, Source};
use sluice_formats::Format;

use super::{
    convert::{Dialect, converted},
    writer::{File, Value},
};

fn open(path: &Path) -> Result<Checkpoint, CheckpointError> {
    Checkpoint::open(&Source::Folder(path.to_owned()))
}

/// Reads headers and configuration, and checks every tensor that the model needs.
fn check(path: &Path) -> Result<(), CheckpointError> {
    let checkpoint = open(path)?;
    let shape = checkpoint.model()?.shape;
    for spec in shape.tensors() {
        checkpoint.check(&spec.name, &spec.shape)?;
    }
    Ok(())
}

fn refusal(spoil: impl FnOnce(&mut File)) -> String {
    refusal_of("llada-tiny", spoil)
}

fn refusal_of(name: &str, spoil: impl FnOnce(&mut File)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut file = converted(name, Dialect::LlamaCpp, Format::Q8_0);
    spoil(&mut file);
    fs::write(&path, file.bytes()).unwrap();
    let error = check(&path).unwrap_err().to_string();
    let path = fs::canonicalize(&path).unwrap();
    error.replace(path.to_str().unwrap(), "FILE")
}

/// What a file is told that does not say which token a mask is.
const NO_MASK: &str = "FILE: tokenizer.ggml.mask_token_id is missing: the model fills masks, and the file does not say which \
    token they are. Write a copy that does with gguf-py's gguf-new-metadata --special-token-by-id mask ID";

#[test]
fn keys_are_refused_by_their_names_in_the_file() {
    let cases = [
        (
            refusal(|file| file.unset("llada.block_count")),
            "FILE: llada.block_count is missing",
        ),
        (
            refusal(|file| file.set("llada.block_count", "two".into())),
            "FILE: llada.block_count is a text, not a whole number of at least 0",
        ),
        (
            refusal(|file| file.set("llada.attention.head_count_kv", Value::U32(3))),
            "FILE: llada.attention.head_count_kv is 3, which does not divide the 4 attention heads",
        ),
        (
            refusal(|file| file.unset("tokenizer.ggml.mask_token_id")),
            NO_MASK,
        ),
        (
            refusal(|file| file.set("tokenizer.ggml.eos_token_id", Value::U32(9999))),
            "FILE: tokenizer.ggml.eos_token_id is 9999, not a token id below 256",
        ),
        (
            refusal(|file| file.set("llada.attention.causal", Value::Bool(true))),
            "FILE: llada.attention.causal is true, which is not supported",
        ),
        (
            refusal(|file| file.set("llada.expert_count", Value::U32(8))),
            "FILE: llada.expert_count is 8, which is not supported",
        ),
        (
            refusal(|file| file.set("llada.rope.dimension_count", Value::U32(8))),
            "FILE: llada.rope.dimension_count is 8; RoPE over part of a head is not supported (head dimension 16)",
        ),
        (
            refusal(|file| file.set("llada.attention.key_length", Value::U32(2048))),
            "FILE: llada.attention.key_length gives a head dimension of 2048; it must be even and at most 1024",
        ),
        (
            refusal(|file| file.tensor("blk.1.attn_q.weight").shape = vec![56, 64]),
            "FILE: llada.attention.head_count gives a head dimension of 16, which does not divide the 56 rows of tensor blk.1.attn_q.weight",
        ),
        (
            refusal(|file| file.set("general.alignment", Value::U32(3))),
            "FILE: general.alignment is 3, not a power of two up to 1048576",
        ),
    ];
    for (found, expected) in cases {
        assert_eq!(found, expected);
    }
}

#[test]
fn architectures_and_dialects_are_refused_by_name() {
    let known = "supported are llama, qwen2, qwen3, qwen3moe, rwkv7, llada-moe, llada, dream, and diffuse with one of the last two";
    let architecture =
        |name: &'static str| refusal(|file| file.set("general.architecture", name.into()));
    assert_eq!(
        architecture("mamba"),
        format!("unsupported architecture \"mamba\"; {known}")
    );
    assert_eq!(
        architecture("diffuse"),
        "FILE: diffuse.model_type is missing: it says which model a file of diffuse-cpp holds"
    );
    // Keys of one dialect under the name of the other.
    assert_eq!(
        refusal(|file| {
            file.set("general.architecture", "diffuse".into());
            file.set("diffuse.model_type", "llada".into());
        }),
        "FILE: diffuse.embedding_length is missing"
    );
    assert_eq!(
        refusal(|file| {
            file.set("general.architecture", "diffuse".into());
            file.set("diffuse.model_type", "llada2_moe".into());
        }),
        format!("unsupported architecture \"diffuse/llada2_moe\"; {known}")
    );
    assert_eq!(
        refusal(|file| file.unset("general.architecture")),
        "FILE: general.architecture is missing"
    );
}

#[test]
fn tensors_are_refused_by_their_names_in_the_file() {
    let other_type = |kind: u32| refusal(|file| file.tensor("blk.1.ffn_up.weight").kind = kind);
    assert!(
        other_type(23).starts_with("tensor blk.1.ffn_up.weight has the unsupported format iq4_xs"),
        "{}",
        other_type(23)
    );
    assert!(other_type(35).contains("has the unsupported format tq2_0"));
    assert!(other_type(999).contains("has the unsupported format type 999"));
    assert_eq!(
        refusal(|file| file
            .tensors
            .retain(|tensor| tensor.name != "blk.0.attn_q.weight")),
        "tensor blk.0.attn_q.weight is missing"
    );
    assert_eq!(
        refusal(|file| file.tensor("blk.0.attn_v.weight").shape = vec![32, 128]),
        "tensor blk.0.attn_v.weight has shape [32, 128]; the configuration requires [64, 64]"
    );
    assert_eq!(
        refusal(|file| file.tensor("blk.0.ffn_up.weight").name = "blk.0.attn_q_norm.weight".into()),
        "FILE has the tensor blk.0.attn_q_norm.weight, which is not part of this architecture"
    );
    assert!(
        refusal(|file| {
            let norm = file.tensor("output_norm.weight");
            (norm.kind, norm.bytes) = (8, vec![0; 68]);
        })
        .contains("tensor output_norm.weight has the unsupported format a vector of q8_0")
    );
}

#[test]
fn files_of_other_versions_and_parts_of_files_are_refused() {
    assert!(refusal(|file| file.version = 1).contains("GGUF version 1; convert the model again"));
    assert!(refusal(|file| file.version = 3 << 24).contains("big-endian"));
    assert!(refusal(|file| file.version = 9).contains("unsupported GGUF version 9"));
    let part = refusal(|file| file.set("split.count", Value::U32(3)));
    assert_eq!(part, "FILE is one of 3 files that a model was split into");
}

#[test]
fn version_2_is_read_and_a_folder_with_one_file_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = converted("llada-tiny", Dialect::LlamaCpp, Format::Q8_0);
    file.version = 2;
    file.alignment = 64;
    file.set("general.alignment", Value::U32(64));
    fs::write(folder.path().join("a.gguf"), file.bytes()).unwrap();
    check(folder.path()).unwrap();

    fs::write(folder.path().join("b.gguf"), file.bytes()).unwrap();
    let error = open(folder.path()).unwrap_err().to_string();
    assert!(
        error.ends_with("holds 2 files of models, such as a.gguf; name one of them"),
        "{error}"
    );
    check(&folder.path().join("b.gguf")).unwrap();

    // As programs that download models keep them.
    fs::rename(folder.path().join("b.gguf"), folder.path().join("4d2f")).unwrap();
    std::os::unix::fs::symlink("4d2f", folder.path().join("c.gguf")).unwrap();
    check(&folder.path().join("c.gguf")).unwrap();
}

#[test]
fn other_models_with_states_are_refused_by_name() {
    let refusal = |spoil: &dyn Fn(&mut File)| refusal_of("rwkv7-tiny", spoil);
    for name in ["rwkv6", "arwkv7"] {
        let error = refusal(&|file| file.set("general.architecture", name.into()));
        let expected = format!("unsupported architecture {name:?}; supported are llama");
        assert!(error.starts_with(&expected), "{error}");
    }
    let mixes = "blk.1.time_mix_lerp_fused.weight";
    assert_eq!(
        refusal(&|file| file.tensor(mixes).shape[0] = 5),
        format!("FILE has 5 vectors in {mixes}, not 6")
    );
    assert_eq!(
        refusal(&|file| file.set("rwkv7.attention.gate_lora_rank", Value::U32(0))),
        "FILE: rwkv7.attention.gate_lora_rank is 0, not a whole number from 1 to 128"
    );
    assert_eq!(
        refusal(&|file| file.set("rwkv7.wkv.head_size", Value::U32(32))),
        "FILE: rwkv7.wkv.head_size is 32; only 64, as in all published models, is supported"
    );
    assert_eq!(
        refusal(&|file| file.set("rwkv7.token_shift_count", Value::U32(1))),
        "FILE: rwkv7.token_shift_count is 1, which is not supported"
    );
    assert_eq!(
        refusal(&|file| file.unset("rwkv7.attention.layer_norm_epsilon")),
        "FILE: rwkv7.attention.layer_norm_epsilon is missing"
    );
    assert_eq!(
        refusal(&|file| file.tensors.retain(|tensor| tensor.name != mixes)),
        format!("tensor {mixes} is missing")
    );
    assert_eq!(
        refusal(&|file| file.tensor("blk.1.time_mix_w1.weight").shape = vec![8, 256]),
        "tensor blk.1.time_mix_w1.weight has shape [8, 256]; the configuration requires [16, 128]"
    );
}

#[test]
fn bad_mixtures_are_refused_by_the_file_s_own_names() {
    let refusal = |spoil: &dyn Fn(&mut File)| refusal_of("qwen3-moe-tiny", spoil);
    let number = |name: &'static str, value: u32| {
        refusal(&|file| file.set(&format!("qwen3moe.{name}"), Value::U32(value)))
    };
    for (found, expected) in [
        (
            number("expert_used_count", 17),
            "expert_used_count is 17, not a whole number from 1 to 16",
        ),
        (
            number("expert_count", 0),
            "expert_count is 0, not a whole number from 1 to 4096",
        ),
        (
            number("expert_shared_count", 1),
            "expert_shared_count is 1, which is not supported",
        ),
        (
            number("expert_group_count", 4),
            "expert_group_count is 4, which is not supported",
        ),
        (
            number("expert_gating_func", 2),
            "expert_gating_func is 2, which is not supported",
        ),
        (
            refusal(&|file| file.unset("qwen3moe.expert_feed_forward_length")),
            "expert_feed_forward_length is missing",
        ),
        (
            refusal(&|file| file.unset("qwen3moe.feed_forward_length")),
            "feed_forward_length is missing",
        ),
    ] {
        assert_eq!(found, format!("FILE: qwen3moe.{expected}"));
    }
    for count in [12, 20] {
        assert_eq!(
            number("expert_count", count),
            format!(
                "tensor blk.1.ffn_down_exps.weight has shape [16, 48, 24]; the configuration requires [{count}, 48, 24]"
            )
        );
    }
    for name in ["blk.1.ffn_up_exps.weight", "blk.2.ffn_gate_inp.weight"] {
        assert_eq!(
            refusal(&|file| file.tensors.retain(|tensor| tensor.name != name)),
            format!("tensor {name} is missing")
        );
    }
    // One tensor for each expert, as the first files of mixtures had them.
    assert_eq!(
        refusal(
            &|file| file.tensor("blk.1.ffn_up_exps.weight").name = "blk.1.ffn_up.3.weight".into()
        ),
        "FILE has the tensor blk.1.ffn_up.3.weight, which is not part of this architecture"
    );
    // Both layouts of gate and up.
    assert_eq!(
        refusal(&|file| {
            let mut both = file.tensor("blk.1.ffn_up_exps.weight").clone();
            both.name = "blk.1.ffn_gate_up_exps.weight".into();
            file.tensors.push(both);
        }),
        "FILE has model.layers.1.mlp.experts.0.gate_proj.weight twice, once of them in blk.1.ffn_gate_up_exps.weight"
    );
    let mask = |spoil: &dyn Fn(&mut File)| refusal_of("llada-moe-tiny", spoil);
    assert_eq!(
        mask(&|file| file.unset("tokenizer.ggml.mask_token_id")),
        NO_MASK
    );
    assert_eq!(
        mask(&|file| file.set("tokenizer.ggml.mask_token_id", Value::U32(256))),
        "FILE: tokenizer.ggml.mask_token_id is 256, not a whole number from 0 to 255"
    );
}
