#!/usr/bin/env python3
"""Writes a folder of RWKV-7 with Hugging Face's names as a GGUF file, so that llama.cpp can run the same weights.

    python3 rwkv7_to_gguf.py DIR OUT.gguf [--type q8_0]

Matrices have the type; those of low rank stay in f16, as llama-quantize leaves them. A folder of `sluiced synth` has no
tokenizer and gets one of single bytes: enough to time passes with. Needs numpy, ml_dtypes, safetensors and gguf.
"""

import argparse
import ast
import json
from pathlib import Path

import gguf
import ml_dtypes  # noqa: F401, gives numpy its bf16
import numpy as np
from safetensors import safe_open

# llama.cpp's names, of tensors outside of layers and of parts of a layer's.
OTHERS = {
    "model.embeddings": "token_embd", "model.layers.0.pre_norm": "token_embd_norm", "model.norm": "output_norm",
    "lm_head": "output",
}
PARTS = {
    "attn.r_proj": "time_mix_receptance", "attn.k_proj": "time_mix_key", "attn.v_proj": "time_mix_value",
    "attn.o_proj": "time_mix_output", "attn.g_norm": "time_mix_ln", "attn.k_k": "time_mix_k_k", "attn.k_a": "time_mix_k_a",
    "attn.r_k": "time_mix_r_k", "ffn_norm": "attn_norm_2", "attn_norm": "attn_norm", "ffn.x_k": "channel_mix_lerp_k",
    "ffn.key": "channel_mix_key", "ffn.value": "channel_mix_value",
}
LOW_RANK = {"lora.0.weight": "1.weight", "lora.2.weight": "2.weight", "lora.2.bias": "0.weight"}
MIXES = ["r", "w", "k", "v", "a", "g"]
VOCABULARY = "rwkv_vocab_v20230424.txt"


def tensors(folder):
    """All tensors by name, in f32."""
    for file in sorted(folder.glob("model*.safetensors")):
        with safe_open(file, framework="numpy") as opened:
            for name in opened.keys():
                yield name, opened.get_tensor(name).astype(np.float32)


def target(name):
    """The file's name for a tensor."""
    stem, kind = name.rsplit(".", 1) if name.endswith((".weight", ".bias")) else (name, "weight")
    if stem in OTHERS:
        return f"{OTHERS[stem]}.{kind}"
    layer, part = name.removeprefix("model.layers.").split(".", 1)
    if "_lora." in part:
        letter, rest = part.removeprefix("attn.").split("_lora.")
        return f"blk.{layer}.time_mix_{letter}{LOW_RANK[rest]}"
    return f"blk.{layer}.{PARTS[part.removesuffix('.' + kind)]}.{kind}"


def add_tokenizer(writer, folder, size):
    tokens = [[i] for i in range(256)]
    if (folder / VOCABULARY).exists():
        lines = (folder / VOCABULARY).read_text().splitlines()
        tokens = [ast.literal_eval(line[line.index(" ") + 1 : line.rindex(" ")]) for line in lines]
    # As Python spells bytes, without the quotes.
    spelled = [repr(token.encode() if isinstance(token, str) else bytes(token))[2:-1] for token in tokens]
    names = ["<s>", *spelled][:size]
    types = [gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (len(names) - 1)
    rest = range(len(names), size)
    writer.add_tokenizer_model("rwkv")
    writer.add_token_list(names + [f"[PAD{i}]" for i in rest])
    writer.add_token_types(types + [gguf.TokenType.UNUSED] * len(rest))
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_chat_template("rwkv-world")


def add(writer, name, x, kind):
    """A matrix in this type, or what the width allows; anything else in f32, as llama.cpp wants it."""
    stem = name.split(".")[-2]
    is_low_rank = stem[-1] in "12" and stem.startswith("time_mix_")
    if x.ndim != 2:
        kind = "f32"
    elif is_low_rank or name.startswith("token_embd") or x.shape[1] % 32:
        kind = kind if kind == "f32" else "f16"
    if kind == "q8_0":
        blocks = gguf.quantize(x, gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    else:
        writer.add_tensor(name, np.ascontiguousarray(x.astype(np.float16 if kind == "f16" else np.float32)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out")
    parser.add_argument("--type", choices=["q8_0", "f16", "f32"], default="f16")
    arguments = parser.parse_args()
    config = json.loads((arguments.folder / "config.json").read_text())

    types = {"q8_0": gguf.LlamaFileType.MOSTLY_Q8_0, "f16": gguf.LlamaFileType.MOSTLY_F16, "f32": gguf.LlamaFileType.ALL_F32}
    writer = gguf.GGUFWriter(arguments.out, "rwkv7")
    writer.add_file_type(types[arguments.type])
    writer.add_context_length(1 << 20)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_layer_norm_eps(config["norm_eps"])
    writer.add_wkv_head_size(config["head_dim"])
    writer.add_decay_lora_rank(config["decay_low_rank_dim"])
    writer.add_iclr_lora_rank(config["a_low_rank_dim"])
    writer.add_value_residual_mix_lora_rank(config["v_low_rank_dim"])
    writer.add_gate_lora_rank(config["gate_low_rank_dim"])
    # llama.cpp wants it to be there, and doesn't use it.
    writer.add_head_count(0)
    add_tokenizer(writer, arguments.folder, config["vocab_size"])

    mixes = {}
    for name, x in tensors(arguments.folder):
        if ".attn.x_" in name:
            mixes[name] = x.reshape(-1)
            continue
        x = x if x.ndim == 2 and not name.endswith("r_k") else x.reshape(-1)
        add(writer, target(name), x, arguments.type)
        # The first layer's, which nothing uses, must be there: copies of others of their shapes.
        if name.startswith("model.layers.0.attn.a_lora."):
            add(writer, target(name).replace("time_mix_a", "time_mix_v"), x, arguments.type)
    for layer in range(config["num_hidden_layers"]):
        fused = np.stack([mixes[f"model.layers.{layer}.attn.x_{mix}"] for mix in MIXES])
        name = f"blk.{layer}.time_mix_lerp_fused.weight"
        add(writer, name, fused.reshape(len(MIXES), 1, 1, -1), arguments.type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
