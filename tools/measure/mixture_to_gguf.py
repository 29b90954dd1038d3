#!/usr/bin/env python3
"""Writes a Qwen3-MoE or LLaDA-MoE folder as a GGUF file, so that llama.cpp can run the same weights.

    python3 mixture_to_gguf.py DIR OUT.gguf [--type f16]

llama.cpp reads only models all of whose layers have experts. A folder without a tokenizer gets one of single bytes, as
llada_to_gguf.py makes it. Needs numpy, ml_dtypes, safetensors and gguf.
"""

import argparse
import json
from pathlib import Path

import gguf
import numpy as np

from llada_to_gguf import add_tokenizer, tensors

LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate": "ffn_gate_inp",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
OTHERS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out")
    parser.add_argument("--type", choices=["f16", "f32"], default="f16")
    arguments = parser.parse_args()
    config = json.loads((arguments.folder / "config.json").read_text())
    is_diffusion = config["model_type"] == "llada"
    of_expert = "expert_intermediate_size" if is_diffusion else "moe_intermediate_size"
    dense = config.get("dense_intermediate_size" if is_diffusion else "intermediate_size")

    writer = gguf.GGUFWriter(arguments.out, "llada-moe" if is_diffusion else "qwen3moe")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if arguments.type == "f16" else gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    if dense:
        writer.add_feed_forward_length(dense)
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config[of_expert])
    if is_diffusion:
        writer.add_causal_attention(False)
        writer.add_bool("diffusion.shift_logits", False)
    # An autoregressive model has no mask; its last id gets the same type.
    mask = config.get("mask_token_id", config["vocab_size"] - 1)
    add_tokenizer(writer, arguments.folder, {**config, "embedding_size": config["vocab_size"], "mask_token_id": mask})

    matrix = np.float16 if arguments.type == "f16" else np.float32
    experts = {}
    for name, x in tensors(arguments.folder):
        name, x = name.removesuffix(".weight"), x.astype(np.float32)
        if name in OTHERS:
            target = OTHERS[name]
        else:
            _, _, layer, part = name.split(".", 3)
            if part.startswith("mlp.experts."):
                number, kind = part.split(".")[2:]
                of_layer = experts.setdefault((layer, kind.removesuffix("_proj")), {})
                of_layer[int(number)] = x.astype(matrix)
                continue
            target = f"blk.{layer}.{LAYER[part]}"
        # A router that was rounded would choose other experts.
        exact = x.ndim < 2 or target.endswith("ffn_gate_inp")
        writer.add_tensor(f"{target}.weight", np.ascontiguousarray(x.astype(np.float32 if exact else matrix)))
    for (layer, kind), of_layer in experts.items():
        x = np.stack([of_layer[number] for number in range(len(of_layer))])
        writer.add_tensor(f"blk.{layer}.ffn_{kind}_exps.weight", x)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
