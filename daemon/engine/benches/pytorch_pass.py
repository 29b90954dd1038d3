#!/usr/bin/env python3
"""Times passes of a LLaDA checkpoint in PyTorch, to put beside `sluiced gpu bench --model DIR`.

    python3 pytorch_pass.py DIR [--canvas 128,512] [--passes 8] [--device cuda] [--dtype bfloat16]

The same work as one of Sluice's passes: all layers over the whole canvas, the head for 32 rows, greedy choice and
confidence of each. Attention is PyTorch's fused one. Needs torch and safetensors; prints one JSON object.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open

BLOCK = 32


def weights(folder, device, dtype):
    """All tensors by name, without the prefix that LLaDA's have."""
    tensors = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(file, framework="pt", device=device) as opened:
            for name in opened.keys():
                tensors[name.removeprefix("model.transformer.")] = opened.get_tensor(name).to(dtype)
    return tensors


def norm(x, weight, epsilon):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)).to(x.dtype) * weight


def rotate(x, cos, sin):
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1).to(x.dtype)


def forward(ids, tensors, config, rotation):
    layers, heads = config["n_layers"], config["n_heads"]
    kv_heads = config.get("n_kv_heads") or heads
    epsilon = config.get("rms_norm_eps", 1e-5)
    x = tensors["wte.weight"][ids]
    split = lambda y, count: y.view(len(ids), count, -1).transpose(0, 1)
    for layer in range(layers):
        part = lambda name: tensors[f"blocks.{layer}.{name}.weight"]
        y = norm(x, part("attn_norm"), epsilon)
        q = rotate(split(F.linear(y, part("q_proj")), heads), *rotation)
        k = rotate(split(F.linear(y, part("k_proj")), kv_heads), *rotation)
        v = split(F.linear(y, part("v_proj")), kv_heads)
        if kv_heads != heads:
            k, v = (z.repeat_interleave(heads // kv_heads, dim=0) for z in (k, v))
        y = F.scaled_dot_product_attention(q[None], k[None], v[None])[0]
        x = x + F.linear(y.transpose(0, 1).reshape(len(ids), -1), part("attn_out"))
        y = norm(x, part("ff_norm"), epsilon)
        x = x + F.linear(F.silu(F.linear(y, part("ff_proj"))) * F.linear(y, part("up_proj")), part("ff_out"))
    head = tensors.get("ff_out.weight", tensors["wte.weight"])
    logits = F.linear(norm(x[-BLOCK:], tensors["ln_f.weight"], epsilon), head).float()
    best = logits.max(dim=-1)
    return best.indices, (best.values - logits.logsumexp(dim=-1)).exp()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--canvas", default="128,512")
    parser.add_argument("--passes", type=int, default=8)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16")
    arguments = parser.parse_args()
    config = json.loads((Path(arguments.folder) / "config.json").read_text())
    tensors = weights(arguments.folder, arguments.device, getattr(torch, arguments.dtype))
    wait = torch.cuda.synchronize if arguments.device.startswith("cuda") else lambda: None
    report = {"torch": torch.__version__, "device": arguments.device, "dtype": arguments.dtype, "passes": []}
    if arguments.device.startswith("cuda"):
        report["name"] = torch.cuda.get_device_name()
    for canvas in map(int, arguments.canvas.split(",")):
        half = config["d_model"] // config["n_heads"] // 2
        frequencies = config["rope_theta"] ** (-torch.arange(half, device=arguments.device) / half)
        angles = torch.arange(canvas, device=arguments.device)[:, None] * frequencies
        ids = torch.arange(1, canvas + 1, device=arguments.device)
        times = []
        with torch.inference_mode():
            for _ in range(arguments.passes):
                wait()
                start = time.perf_counter()
                tokens, _ = forward(ids, tensors, config, (angles.cos(), angles.sin()))
                tokens.tolist()
                times.append(time.perf_counter() - start)
        entry = {"canvas": canvas, "pass_s": times, "pass_median_s": statistics.median(times[2:] or times)}
        if arguments.device.startswith("cuda"):
            entry["peak_bytes"] = torch.cuda.max_memory_allocated()
        report["passes"].append(entry)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
