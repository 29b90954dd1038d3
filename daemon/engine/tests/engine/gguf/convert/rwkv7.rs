//! RWKV-7 as llama.cpp's converter writes it.

use serde_json::{Map, Value as Json};
use sluice_checkpoint::Checkpoint;
use sluice_formats::Format;

use super::{
    super::writer::{File, Value},
    add_rounded, elements,
};

/// Sizes in `config.json` and in GGUF.
const SIZES: [(&str, &str); 8] = [
    ("hidden_size", "embedding_length"),
    ("num_hidden_layers", "block_count"),
    ("intermediate_size", "feed_forward_length"),
    ("head_dim", "wkv.head_size"),
    ("decay_low_rank_dim", "attention.decay_lora_rank"),
    ("a_low_rank_dim", "attention.iclr_lora_rank"),
    ("v_low_rank_dim", "attention.value_residual_mix_lora_rank"),
    ("gate_low_rank_dim", "attention.gate_lora_rank"),
];

/// Parts of names, and what they become.
const PARTS: [(&str, &str); 18] = [
    ("attn.w_lora", "time_mix_w"),
    ("attn.a_lora", "time_mix_a"),
    ("attn.v_lora", "time_mix_v"),
    ("attn.g_lora", "time_mix_g"),
    (".lora.0.weight", "1.weight"),
    (".lora.2.weight", "2.weight"),
    (".lora.2.bias", "0.weight"),
    ("attn.r_proj", "time_mix_receptance"),
    ("attn.k_proj", "time_mix_key"),
    ("attn.v_proj", "time_mix_value"),
    ("attn.o_proj", "time_mix_output"),
    ("attn.g_norm", "time_mix_ln"),
    ("ffn_norm", "attn_norm_2"),
    ("ffn.x_k", "channel_mix_lerp_k.weight"),
    ("ffn.key", "channel_mix_key"),
    ("ffn.value", "channel_mix_value"),
    ("attn.r_k", "time_mix_r_k.weight"),
    ("attn.k_", "time_mix_k_"),
];

const WHOLE: [(&str, &str); 6] = [
    ("model.embeddings.weight", "token_embd.weight"),
    ("model.layers.0.pre_norm.weight", "token_embd_norm.weight"),
    ("model.layers.0.pre_norm.bias", "token_embd_norm.bias"),
    ("model.norm.weight", "output_norm.weight"),
    ("model.norm.bias", "output_norm.bias"),
    ("lm_head.weight", "output.weight"),
];

pub(super) fn converted(
    checkpoint: &Checkpoint,
    config: &Map<String, Json>,
    formats: [Format; 2],
) -> File {
    let mut file = File::new("rwkv7");
    for (key, name) in SIZES {
        let size = config[key].as_u64().unwrap() as u32;
        file.set(&format!("rwkv7.{name}"), Value::U32(size));
    }
    let epsilon = config["norm_eps"].as_f64().unwrap() as f32;
    file.set("rwkv7.attention.layer_norm_epsilon", Value::F32(epsilon));
    // Neither means anything: llama.cpp wants them to be there.
    file.set("rwkv7.context_length", Value::U32(1 << 20));
    file.set("rwkv7.attention.head_count", Value::U32(0));
    file.set("tokenizer.ggml.eos_token_id", Value::U32(0));
    for (from, to) in WHOLE {
        let (numbers, shape) = elements(checkpoint, from).unwrap();
        add_rounded(&mut file, to, &shape, numbers, formats);
    }
    let names: Vec<&str> = checkpoint.names().collect();
    for name in names {
        let Some((layer, part)) = name
            .strip_prefix("model.layers.")
            .and_then(|rest| rest.split_once('.'))
        else {
            continue;
        };
        if part.starts_with("pre_norm") || part.starts_with("attn.x_") {
            continue;
        }
        let mut part = PARTS
            .iter()
            .fold(part.to_owned(), |part, (from, to)| part.replace(from, to));
        if !part.ends_with(".weight") && !part.ends_with(".bias") {
            part += ".weight";
        }
        let (numbers, mut shape) = elements(checkpoint, name).unwrap();
        // Vectors are flat: [1, 1, n] as well as a row for each head.
        if part.contains("r_k") || shape.len() > 2 {
            shape = vec![numbers.len()];
        }
        // The first layer's own, which nothing uses, are copies of others.
        if layer == "0" && part.starts_with("time_mix_a") {
            let copy = part.replace("time_mix_a", "time_mix_v");
            let copy = format!("blk.0.{copy}");
            add_rounded(&mut file, &copy, &shape, numbers.clone(), formats);
        }
        add_rounded(
            &mut file,
            &format!("blk.{layer}.{part}"),
            &shape,
            numbers,
            formats,
        );
    }
    for layer in 0..config["num_hidden_layers"].as_u64().unwrap() {
        let mixes = ["r", "w", "k", "v", "a", "g"].map(|mix| {
            let name = format!("model.layers.{layer}.attn.x_{mix}");
            elements(checkpoint, &name).unwrap().0
        });
        let shape = [mixes.len(), 1, 1, mixes[0].len()];
        let name = format!("blk.{layer}.time_mix_lerp_fused.weight");
        add_rounded(&mut file, &name, &shape, mixes.concat(), formats);
    }
    file
}
