//! Fixtures as the GGUF files that programs would have made of them.

use std::{fs, path::Path};

use serde_json::{Map, Value as Json};
use sluice_checkpoint::{Checkpoint, Source};
use sluice_formats::Format;
use tempfile::TempDir;

mod rwkv7;

use super::writer::{File, Value};
use crate::checkpoints::fixture;

/// Who would have written the file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Dialect {
    LlamaCpp,
    DiffuseCpp,
}

/// How a family calls what GGUF calls so: sizes, tensors of the whole, tensors of a layer.
struct Names {
    sizes: [(&'static str, &'static str); 6],
    whole: [(&'static str, &'static str); 3],
    layers: &'static str,
    layer: &'static [(&'static str, &'static str)],
}

const LLADA: Names = Names {
    sizes: [
        ("n_layers", "block_count"),
        ("d_model", "embedding_length"),
        ("mlp_hidden_size", "feed_forward_length"),
        ("n_heads", "attention.head_count"),
        ("n_kv_heads", "attention.head_count_kv"),
        ("max_sequence_length", "context_length"),
    ],
    whole: [
        ("model.transformer.wte", "token_embd"),
        ("model.transformer.ln_f", "output_norm"),
        ("model.transformer.ff_out", "output"),
    ],
    layers: "model.transformer.blocks",
    layer: &[
        ("attn_norm", "attn_norm"),
        ("q_proj", "attn_q"),
        ("k_proj", "attn_k"),
        ("v_proj", "attn_v"),
        ("attn_out", "attn_output"),
        ("ff_norm", "ffn_norm"),
        ("ff_proj", "ffn_gate"),
        ("up_proj", "ffn_up"),
        ("ff_out", "ffn_down"),
    ],
};

const OTHERS: Names = Names {
    sizes: [
        ("num_hidden_layers", "block_count"),
        ("hidden_size", "embedding_length"),
        ("intermediate_size", "feed_forward_length"),
        ("num_attention_heads", "attention.head_count"),
        ("num_key_value_heads", "attention.head_count_kv"),
        ("max_position_embeddings", "context_length"),
    ],
    whole: [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
    ],
    layers: "model.layers",
    layer: &[
        ("input_layernorm", "attn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("self_attn.o_proj", "attn_output"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("mlp.gate", "ffn_gate_inp"),
    ],
};

/// What mixtures of experts have beside those: sizes, and the matrices of all experts of a layer, in one tensor.
const EXPERT_SIZES: [(&str, &str); 4] = [
    ("num_experts", "expert_count"),
    ("num_experts_per_tok", "expert_used_count"),
    ("moe_intermediate_size", "expert_feed_forward_length"),
    ("expert_intermediate_size", "expert_feed_forward_length"),
];
const EXPERTS: [(&str, &str); 3] = [
    ("gate_proj", "ffn_gate_exps"),
    ("up_proj", "ffn_up_exps"),
    ("down_proj", "ffn_down_exps"),
];

/// A folder with the fixture as a GGUF file and its expected outputs.
pub(crate) fn folder(name: &str, dialect: Dialect) -> TempDir {
    folder_of(name, &converted(name, dialect, Format::F32))
}

/// The same with this file.
pub(crate) fn folder_of(name: &str, file: &File) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("model.gguf"), file.bytes()).unwrap();
    for copied in ["expected.json", "expected.safetensors"] {
        fs::copy(fixture(name).join(copied), folder.path().join(copied)).unwrap();
    }
    folder
}

/// The fixture with matrices in this format where their width allows it.
pub(crate) fn converted(name: &str, dialect: Dialect, format: Format) -> File {
    converted_folder(&fixture(name), dialect, [format, format])
}

/// A folder's model with matrices rounded to the first format and stored in the second.
pub(crate) fn converted_folder(folder: &Path, dialect: Dialect, formats: [Format; 2]) -> File {
    let checkpoint = Checkpoint::open(&Source::Folder(folder.to_owned())).unwrap();
    let config = checkpoint.config().unwrap();
    let model = match config["model_type"].as_str().unwrap() {
        "llada" if config.contains_key("num_experts") => "llada-moe".to_owned(),
        "qwen3_moe" => "qwen3moe".to_owned(),
        other => other.to_lowercase(),
    };
    if model == "rwkv7" {
        return rwkv7::converted(&checkpoint, &config, formats);
    }
    let names = match &model[..] {
        "llada" => &LLADA,
        _ => &OTHERS,
    };
    let architecture = match dialect {
        Dialect::LlamaCpp => &model[..],
        Dialect::DiffuseCpp => "diffuse",
    };
    let mut file = File::new(architecture);
    let size = |key: &str| config[key].as_u64().unwrap() as u32;
    for (key, name) in names.sizes.into_iter().chain(EXPERT_SIZES) {
        // Not every mixture names the width of an MLP.
        if config.contains_key(key) {
            file.set(&format!("{architecture}.{name}"), Value::U32(size(key)));
        }
    }
    add_keys(&mut file, &config, &model, dialect);
    let heads = |part: &str| match part {
        "attn_q" => Some(size(names.sizes[3].0)),
        "attn_k" => Some(size(names.sizes[4].0)),
        _ => None,
    };
    let is_rotated = dialect == Dialect::LlamaCpp && matches!(&model[..], "llada" | "llama");
    let mut add = |from: String, to: String, heads: Option<u32>| {
        let Some((mut numbers, shape)) = elements(&checkpoint, &from) else {
            return;
        };
        if let (Some(heads), true) = (heads, is_rotated) {
            numbers = in_turn(&numbers, heads as usize, numbers.len() / shape[0]);
        }
        add_rounded(&mut file, &to, &shape, numbers, formats);
    };
    for (from, to) in names.whole {
        add(format!("{from}.weight"), format!("{to}.weight"), None);
    }
    for layer in 0..size(names.sizes[0].0) {
        for (from, to) in names.layer {
            for kind in ["weight", "bias"] {
                let from = format!("{}.{layer}.{from}.{kind}", names.layers);
                add(from, format!("blk.{layer}.{to}.{kind}"), heads(to));
            }
        }
    }
    for layer in 0..size(names.sizes[0].0) {
        add_experts(&mut file, &checkpoint, layer, formats);
    }
    add_rope_factors(&mut file, &config);
    file
}

/// Adds a layer's experts, if it has any.
fn add_experts(file: &mut File, checkpoint: &Checkpoint, layer: u32, formats: [Format; 2]) {
    for (from, to) in EXPERTS {
        let of = |expert: u32| {
            let name = format!("model.layers.{layer}.mlp.experts.{expert}.{from}.weight");
            elements(checkpoint, &name)
        };
        let experts: Vec<_> = (0..).map_while(of).collect();
        let Some((_, shape)) = experts.first() else {
            continue;
        };
        let shape = [experts.len(), shape[0], shape[1]];
        let numbers = experts.into_iter().flat_map(|(numbers, _)| numbers);
        let to = format!("blk.{layer}.{to}.weight");
        add_rounded(file, &to, &shape, numbers.collect(), formats);
    }
}

/// Elements and shape of a tensor, if there is one of this name.
fn elements(checkpoint: &Checkpoint, name: &str) -> Option<(Vec<f32>, Vec<usize>)> {
    let entry = checkpoint.tensor(name)?;
    let source = entry.format.clone().unwrap();
    let count: usize = entry.shape.iter().product();
    let mut bytes = vec![0; source.bytes(count)];
    let all = 0..bytes.len() as u64;
    checkpoint.read_part(entry, all, &mut bytes).unwrap();
    let mut numbers = vec![0.0; count];
    source.dequantize(&bytes, &mut numbers);
    Some((numbers, entry.shape.clone()))
}

/// Adds a tensor: a matrix rounded to the first format and stored in the second where its width allows it.
fn add_rounded(
    file: &mut File,
    name: &str,
    shape: &[usize],
    mut numbers: Vec<f32>,
    [rounded, stored]: [Format; 2],
) {
    let count = numbers.len();
    let exact = numbers.clone();
    // As llama.cpp has them: a router that was rounded would choose other experts.
    let is_matrix = match shape.len() {
        2 => !name.ends_with("ffn_gate_inp.weight"),
        _ => name.ends_with("_exps.weight"),
    };
    let format = match shape.last() {
        Some(&width) if is_matrix && rounded.fits(width) => {
            let mut bytes = vec![0; rounded.bytes(count)];
            quantize::store(rounded, &numbers, &mut bytes);
            rounded.dequantize(&bytes, &mut numbers);
            stored
        }
        _ => Format::F32,
    };
    let mut bytes = vec![0; format.bytes(count)];
    match format == rounded {
        // Elements that are rounded already may be rounded to others again.
        true => quantize::store(format, &exact, &mut bytes),
        false => quantize::store(format, &numbers, &mut bytes),
    }
    file.add(name, shape, format, bytes);
}

/// Keys that aren't sizes.
fn add_keys(file: &mut File, config: &Map<String, Json>, model: &str, dialect: Dialect) {
    let architecture = match dialect {
        Dialect::LlamaCpp => model,
        Dialect::DiffuseCpp => "diffuse",
    };
    let of = |name: &str| format!("{architecture}.{name}");
    let float = |key: &str| Value::F32(config[key].as_f64().unwrap() as f32);
    let id = |key: &str| Value::U32(config[key].as_u64().unwrap() as u32);
    file.set(&of("vocab_size"), id("vocab_size"));
    file.set(&of("rope.freq_base"), float("rope_theta"));
    file.set(
        &of("attention.layer_norm_rms_epsilon"),
        float("rms_norm_eps"),
    );
    if let Some(length) = config.get("head_dim").and_then(Json::as_u64) {
        file.set(&of("rope.dimension_count"), Value::U32(length as u32));
        file.set(&of("attention.key_length"), Value::U32(length as u32));
        file.set(&of("attention.value_length"), Value::U32(length as u32));
    }
    match dialect {
        Dialect::LlamaCpp => {
            file.set("tokenizer.ggml.eos_token_id", id("eos_token_id"));
            if config.contains_key("mask_token_id") {
                file.set("tokenizer.ggml.mask_token_id", id("mask_token_id"));
                file.set(&of("attention.causal"), Value::Bool(false));
                file.set("diffusion.shift_logits", Value::Bool(model == "dream"));
            }
        }
        Dialect::DiffuseCpp => {
            file.set("diffuse.mask_token_id", id("mask_token_id"));
            file.set("diffuse.model_type", model.into());
        }
    }
}

/// What llama.cpp writes instead of Llama 3's scaling.
fn add_rope_factors(file: &mut File, config: &Map<String, Json>) {
    let Some(scaling) = config.get("rope_scaling").and_then(Json::as_object) else {
        return;
    };
    let number = |map: &Map<String, Json>, key: &str| map[key].as_f64().unwrap();
    let (low, high) = (
        number(scaling, "low_freq_factor"),
        number(scaling, "high_freq_factor"),
    );
    let factor = number(scaling, "factor");
    let original = number(scaling, "original_max_position_embeddings");
    let head_dim = number(config, "head_dim");
    let factors = (0..head_dim as usize / 2).flat_map(|pair| {
        let exponent = 2.0 * pair as f64 / head_dim;
        let turns =
            original / (std::f64::consts::TAU * number(config, "rope_theta").powf(exponent));
        let factor = if turns > high {
            1.0
        } else if turns < low {
            factor
        } else {
            let kept = (turns - low) / (high - low);
            1.0 / ((1.0 - kept) / factor + kept)
        };
        (factor as f32).to_le_bytes()
    });
    let bytes: Vec<u8> = factors.collect();
    let shape = [bytes.len() / 4];
    file.add("rope_freqs.weight", &shape, Format::F32, bytes);
}

/// In each head, the rows of its halves in turn.
fn in_turn(rows: &[f32], heads: usize, width: usize) -> Vec<f32> {
    let head_rows = rows.len() / width / heads;
    let row = |head: usize, row: usize| &rows[(head * head_rows + row) * width..][..width];
    let mut out = Vec::with_capacity(rows.len());
    for head in 0..heads {
        for place in 0..head_rows / 2 {
            out.extend_from_slice(row(head, place));
            out.extend_from_slice(row(head, place + head_rows / 2));
        }
    }
    out
}
