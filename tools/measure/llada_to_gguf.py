#!/usr/bin/env python3
"""Writes a LLaDA folder as a GGUF file, so that llama.cpp's diffusion example can run the same weights.

    python3 llada_to_gguf.py DIR OUT.gguf [--type f16]

A folder of `sluiced synth` has no tokenizer. It gets one of single bytes, and a chat template that is the prompt alone:
enough to time passes with. Needs numpy, ml_dtypes, safetensors and gguf.
"""

import argparse
import json
from pathlib import Path

import gguf
import ml_dtypes  # noqa: F401, gives numpy its bf16
import numpy as np
from safetensors import safe_open

# llama.cpp's names, of a layer's tensors and of the others; `ff_out` is in both.
LAYER = {
    "attn_norm": "attn_norm", "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "attn_out": "attn_output",
    "ff_norm": "ffn_norm", "ff_proj": "ffn_gate", "up_proj": "ffn_up", "ff_out": "ffn_down",
}
OTHERS = {"wte": "token_embd", "ln_f": "output_norm", "ff_out": "output"}
NORMAL, CONTROL, UNUSED = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL, gguf.TokenType.UNUSED


def tensors(folder):
    """All tensors by name, without the prefix that LLaDA's have."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="numpy") as opened:
            for name in opened.keys():
                yield name.removeprefix("model.transformer."), opened.get_tensor(name)


def interleaved(x, heads):
    """Rows reordered from half-split pairs to neighbouring ones, which are what llama.cpp rotates."""
    return x.reshape(heads, 2, x.shape[0] // heads // 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)


def add_tokenizer(writer, folder, config):
    size = config["embedding_size"]
    names, types, merges = [f"[unused {i}]" for i in range(size)], [UNUSED] * size, []
    template = "{{ messages[0]['content'] }}"
    if (folder / "tokenizer.json").exists():
        read = json.loads((folder / "tokenizer.json").read_text())
        merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in read["model"]["merges"]]
        for name, i in read["model"]["vocab"].items():
            names[i], types[i] = name, NORMAL
        for token in read["added_tokens"]:
            names[token["id"]], types[token["id"]] = token["content"], CONTROL
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        template = settings["chat_template"]
        writer.add_bos_token_id(names.index(settings["bos_token"]))
    else:
        # Bytes as GPT-2 writes them: printable ones are themselves, the others are moved behind them.
        moved = 256
        for byte in range(256):
            plain = 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte
            names[byte], types[byte] = chr(byte if plain else moved), NORMAL
            moved += not plain
        # A file without any merge is refused.
        names[256], types[256], merges = "th", NORMAL, ["t h"]
    types[config["mask_token_id"]] = CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_mask_token_id(config["mask_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out")
    parser.add_argument("--type", choices=["f16", "f32"], default="f16")
    arguments = parser.parse_args()
    config = json.loads((arguments.folder / "config.json").read_text())
    heads = {"q_proj": config["n_heads"], "k_proj": config.get("n_kv_heads") or config["n_heads"]}

    writer = gguf.GGUFWriter(arguments.out, "llada")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if arguments.type == "f16" else gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(config["max_sequence_length"])
    writer.add_embedding_length(config["d_model"])
    writer.add_block_count(config["n_layers"])
    writer.add_feed_forward_length(config["mlp_hidden_size"])
    writer.add_head_count(heads["q_proj"])
    writer.add_head_count_kv(heads["k_proj"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["d_model"] // config["n_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["embedding_size"])
    writer.add_causal_attention(False)
    writer.add_bool("diffusion.shift_logits", False)
    add_tokenizer(writer, arguments.folder, config)

    matrix = np.float16 if arguments.type == "f16" else np.float32
    for name, x in tensors(arguments.folder):
        words = name.removesuffix(".weight").split(".")
        target = f"blk.{words[1]}.{LAYER[words[2]]}" if words[0] == "blocks" else OTHERS[words[0]]
        x = x.astype(np.float32)
        if words[-1] in heads:
            x = interleaved(x, heads[words[-1]])
        writer.add_tensor(f"{target}.weight", np.ascontiguousarray(x.astype(matrix if x.ndim == 2 else np.float32)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
