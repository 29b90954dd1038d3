//! Names of tensors: in GGUF files, and in the engine, which has those of each family's published checkpoints.

/// The tensors of a family's models.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Names {
    /// Outside of layers: the file's name and the engine's.
    whole: &'static [[&'static str; 2]],
    /// The engine's prefix of a layer's index; the file's is `blk.`.
    layers: &'static str,
    /// In layers. Where a name of the file comes several times, the tensor is as many of the engine's, one after
    /// another.
    layer: &'static [LayerNames],
    /// What some files have though nothing uses it.
    ignored: &'static [&'static str],
}

/// Names of some of a layer's tensors: the file's and the engine's.
type LayerNames = &'static [[&'static str; 2]];

const FILE: usize = 0;
const ENGINE: usize = 1;
/// Prefix of a layer's index in files.
const LAYERS: &str = "blk.";

impl Names {
    /// The engine's names for a tensor of the file: none if such models don't have it.
    pub(super) fn engine_names(&self, file_name: &str) -> Vec<String> {
        if self.is_ignored(file_name) {
            return Vec::new();
        }
        if let Some(names) = self.whole.iter().find(|names| names[FILE] == file_name) {
            return vec![names[ENGINE].to_owned()];
        }
        let Some((layer, part)) = layer_of(file_name, LAYERS) else {
            return Vec::new();
        };
        let names = self.layer.iter().copied().flatten();
        names
            .filter(|names| names[FILE] == part)
            .map(|names| format!("{}{layer}.{}", self.layers, names[ENGINE]))
            .collect()
    }

    /// The file's name for a tensor of the engine.
    pub(super) fn file_name(&self, engine_name: &str) -> Option<String> {
        if let Some(names) = self.whole.iter().find(|names| names[ENGINE] == engine_name) {
            return Some(names[FILE].to_owned());
        }
        let (layer, part) = layer_of(engine_name, self.layers)?;
        let mut names = self.layer.iter().copied().flatten();
        let names = names.find(|names| names[ENGINE] == part)?;
        Some(format!("{LAYERS}{layer}.{}", names[FILE]))
    }

    /// Whether nothing uses a tensor of the file.
    pub(super) fn is_ignored(&self, file_name: &str) -> bool {
        self.ignored.contains(&file_name)
    }
}

/// The layer of a tensor, and its name in there.
fn layer_of<'a>(name: &'a str, layers: &str) -> Option<(usize, &'a str)> {
    let (layer, part) = name.strip_prefix(layers)?.split_once('.')?;
    let number: usize = layer.parse().ok()?;
    // Other spellings, such as "01" and "+1", are no layers: two tensors must not get the same name.
    (number.to_string() == layer).then_some((number, part))
}

pub(super) static LLADA: Names = Names {
    whole: &[
        ["token_embd.weight", "model.transformer.wte.weight"],
        ["output_norm.weight", "model.transformer.ln_f.weight"],
        ["output.weight", "model.transformer.ff_out.weight"],
    ],
    layers: "model.transformer.blocks.",
    layer: &[&[
        ["attn_norm.weight", "attn_norm.weight"],
        ["attn_q.weight", "q_proj.weight"],
        ["attn_k.weight", "k_proj.weight"],
        ["attn_v.weight", "v_proj.weight"],
        ["attn_output.weight", "attn_out.weight"],
        ["ffn_norm.weight", "ff_norm.weight"],
        ["ffn_gate.weight", "ff_proj.weight"],
        ["ffn_up.weight", "up_proj.weight"],
        ["ffn_down.weight", "ff_out.weight"],
    ]],
    ignored: &[],
};

/// Llama, Qwen2, Qwen3 and Dream.
pub(super) static HUGGING_FACE: Names = Names {
    whole: AROUND,
    layers: "model.layers.",
    layer: &[ATTENTION, MLP],
    ignored: &[],
};

/// Qwen3-MoE and LLaDA-MoE. The engine's names of experts are those of all of a layer's together, of which
/// [`fused`](super::super::fused) makes one for each.
pub(super) static MIXTURE: Names = Names {
    whole: AROUND,
    layers: "model.layers.",
    layer: &[ATTENTION, MLP, EXPERTS],
    ignored: &[],
};

const AROUND: &[[&str; 2]] = &[
    ["token_embd.weight", "model.embed_tokens.weight"],
    ["output_norm.weight", "model.norm.weight"],
    ["output.weight", "lm_head.weight"],
];

const ATTENTION: LayerNames = &[
    ["attn_norm.weight", "input_layernorm.weight"],
    ["attn_q.weight", "self_attn.q_proj.weight"],
    ["attn_q.bias", "self_attn.q_proj.bias"],
    ["attn_k.weight", "self_attn.k_proj.weight"],
    ["attn_k.bias", "self_attn.k_proj.bias"],
    ["attn_v.weight", "self_attn.v_proj.weight"],
    ["attn_v.bias", "self_attn.v_proj.bias"],
    ["attn_q_norm.weight", "self_attn.q_norm.weight"],
    ["attn_k_norm.weight", "self_attn.k_norm.weight"],
    ["attn_output.weight", "self_attn.o_proj.weight"],
    ["ffn_norm.weight", "post_attention_layernorm.weight"],
];

const MLP: LayerNames = &[
    ["ffn_gate.weight", "mlp.gate_proj.weight"],
    ["ffn_up.weight", "mlp.up_proj.weight"],
    ["ffn_down.weight", "mlp.down_proj.weight"],
];

const EXPERTS: LayerNames = &[
    ["ffn_gate_inp.weight", "mlp.gate.weight"],
    ["ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj.weight"],
    ["ffn_gate_exps.weight", "mlp.experts.gate_proj.weight"],
    ["ffn_up_exps.weight", "mlp.experts.up_proj.weight"],
    ["ffn_down_exps.weight", "mlp.experts.down_proj.weight"],
];

pub(super) static RWKV7: Names = Names {
    whole: &[
        ["token_embd.weight", "model.embeddings.weight"],
        ["token_embd_norm.weight", "model.layers.0.pre_norm.weight"],
        ["token_embd_norm.bias", "model.layers.0.pre_norm.bias"],
        ["output_norm.weight", "model.norm.weight"],
        ["output_norm.bias", "model.norm.bias"],
        ["output.weight", "lm_head.weight"],
    ],
    layers: "model.layers.",
    layer: &[&[
        ["attn_norm.weight", "attn_norm.weight"],
        ["attn_norm.bias", "attn_norm.bias"],
        [MIXES, "attn.x_r"],
        [MIXES, "attn.x_w"],
        [MIXES, "attn.x_k"],
        [MIXES, "attn.x_v"],
        [MIXES, "attn.x_a"],
        [MIXES, "attn.x_g"],
        ["time_mix_receptance.weight", "attn.r_proj.weight"],
        ["time_mix_w0.weight", "attn.w_lora.lora.2.bias"],
        ["time_mix_w1.weight", "attn.w_lora.lora.0.weight"],
        ["time_mix_w2.weight", "attn.w_lora.lora.2.weight"],
        ["time_mix_key.weight", "attn.k_proj.weight"],
        ["time_mix_value.weight", "attn.v_proj.weight"],
        ["time_mix_v0.weight", "attn.v_lora.lora.2.bias"],
        ["time_mix_v1.weight", "attn.v_lora.lora.0.weight"],
        ["time_mix_v2.weight", "attn.v_lora.lora.2.weight"],
        ["time_mix_a0.weight", "attn.a_lora.lora.2.bias"],
        ["time_mix_a1.weight", "attn.a_lora.lora.0.weight"],
        ["time_mix_a2.weight", "attn.a_lora.lora.2.weight"],
        ["time_mix_g1.weight", "attn.g_lora.lora.0.weight"],
        ["time_mix_g2.weight", "attn.g_lora.lora.2.weight"],
        ["time_mix_k_k.weight", "attn.k_k"],
        ["time_mix_k_a.weight", "attn.k_a"],
        ["time_mix_r_k.weight", "attn.r_k"],
        ["time_mix_ln.weight", "attn.g_norm.weight"],
        ["time_mix_ln.bias", "attn.g_norm.bias"],
        ["time_mix_output.weight", "attn.o_proj.weight"],
        ["attn_norm_2.weight", "ffn_norm.weight"],
        ["attn_norm_2.bias", "ffn_norm.bias"],
        ["channel_mix_lerp_k.weight", "ffn.x_k"],
        ["channel_mix_key.weight", "ffn.key.weight"],
        ["channel_mix_value.weight", "ffn.value.weight"],
    ]],
    // llama.cpp wants them to be there; later layers alone mix in the first one's values.
    ignored: &[
        "blk.0.time_mix_v0.weight",
        "blk.0.time_mix_v1.weight",
        "blk.0.time_mix_v2.weight",
    ],
};

/// The mixes of a time mix's inputs, in one tensor. Models without a gate have one less.
const MIXES: &str = "time_mix_lerp_fused.weight";
