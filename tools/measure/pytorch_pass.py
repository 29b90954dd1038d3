#!/usr/bin/env python3
"""Times passes of a LLaDA checkpoint in PyTorch, to put beside `sluice-gpu bench --model DIR`.

    python3 pytorch_pass.py DIR [--canvas 128,512] [--passes 8] [--device cuda] [--dtype bfloat16]
    python3 pytorch_pass.py DIR --offload 4GB,8GB        beside `sluice-gpu bench --model DIR --budgets 4GB,8GB`
    python3 pytorch_pass.py DIR --dual-cache             beside `sluice-gpu bench --model DIR --kv-cache dual`

Each pass is timed with two samplers. "reference" does what LLaDA's generate.py does: the head for the whole canvas, all of its
soft-max in 64 bits. "lean" does what Sluice does: the last layer (but for keys and values) and the head for the 32 rows of a
block, choice and confidence of each. Attention is PyTorch's fused one.

With --offload, as many layers as the budget has room for stay on the GPU, beside what a pass takes and the largest tensor;
the budget is for these alone, without what the driver takes for PyTorch. Each tensor of the others is moved there right
before it is used, waited for, and let go of, as accelerate's hooks do: once from ordinary memory, once from pinned memory.
With --dual-cache, a block's first pass computes the whole canvas and keeps all keys and values, those after it compute the
block alone (Fast-dLLM's).

Needs torch and safetensors. Each figure is printed as it is found, all of them as one JSON object at the end; what fails,
for lack of memory say, is told there, and the rest goes on. After --minutes nothing new begins; a signal ends it with what
was found.
"""

import argparse
import itertools
import json
import re
import signal
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open

BLOCK = 32
WARM_UP = 2
UNITS = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class Weights:
    """Tensors by name: on the device, or in the host's memory until they are asked for."""

    def __init__(self, tensors, device, offloaded=()):
        self.tensors, self.device, self.offloaded = tensors, device, offloaded

    def __contains__(self, name):
        return name in self.tensors

    def __getitem__(self, name):
        # Waits for the copy, which nothing keeps: what it took is free again when the product is done.
        return self.tensors[name].to(self.device)

    def offloaded_bytes(self):
        return sum(size(self.tensors[name]) for name in self.offloaded)


class Kept:
    """Keys and values of all positions, of each layer."""

    def __init__(self):
        self.layers = {}

    def update(self, layer, rows, k, v):
        if layer not in self.layers or k.shape[1] == self.layers[layer][0].shape[1]:
            self.layers[layer] = (k, v)
        else:
            for kept, fresh in zip(self.layers[layer], (k, v)):
                kept[:, rows] = fresh
        return self.layers[layer]


def size(tensor):
    return tensor.numel() * tensor.element_size()


def read(folder, dtype):
    """All tensors by name, without the prefix that LLaDA's have, in the host's memory."""
    tensors = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(file, framework="pt", device="cpu") as opened:
            for name in opened.keys():
                # A copy: pages of a file come from the disk when they are first read.
                tensors[name.removeprefix("model.transformer.")] = opened.get_tensor(name).to(dtype, copy=True)
    return tensors


def place(tensors, device, budget=None, working=0, pinned=False):
    """Puts on the device what the budget has room for beside the rest's largest tensor and what a pass takes."""
    if budget is None:
        return Weights({name: tensor.to(device) for name, tensor in tensors.items()}, device)
    left = budget - working - max(map(size, tensors.values()))
    # Layers from the first to the last, then what is no layer, each where it still fits: all of the budget is used.
    groups = {}
    for name in tensors:
        layer = re.match(r"blocks\.(\d+)\.", name)
        groups.setdefault((0, int(layer[1])) if layer else (1, name), []).append(name)
    placed, offloaded = {}, []
    for group in sorted(groups):
        needed = sum(size(tensors[name]) for name in groups[group])
        fits = needed <= left
        left -= needed if fits else 0
        offloaded += [] if fits else groups[group]
        for name in groups[group]:
            if pinned and not fits and not tensors[name].is_pinned():
                # In place of the other, which nobody needs any more: memory for two of each may not be there.
                tensors[name] = tensors[name].pin_memory()
            placed[name] = tensors[name].to(device) if fits else tensors[name]
    return Weights(placed, device, offloaded)


def norm(x, weight, epsilon):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)).to(x.dtype) * weight


def rotate(x, cos, sin):
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1).to(x.dtype)


def rotation(config, canvas, device):
    half = config["d_model"] // config["n_heads"] // 2
    frequencies = config["rope_theta"] ** (-torch.arange(half, device=device) / half)
    angles = torch.arange(canvas, device=device)[:, None] * frequencies
    return angles.cos(), angles.sin()


def layers(ids, rows, wanted, weights, config, angles, kept=None):
    """The wanted ones among some rows of a canvas behind all layers; with what is kept, they see all of its keys and values."""
    count, heads = config["n_layers"], config["n_heads"]
    kv_heads = config.get("n_kv_heads") or heads
    epsilon = config.get("rms_norm_eps", 1e-5)
    cos, sin = (part[rows] for part in angles)
    x = F.embedding(ids[rows], weights["wte.weight"])
    split = lambda y, count: y.view(len(y), count, -1).transpose(0, 1)
    for layer in range(count):
        part = lambda name: weights[f"blocks.{layer}.{name}.weight"]
        y = norm(x, part("attn_norm"), epsilon)
        q = rotate(split(F.linear(y, part("q_proj")), heads), cos, sin)
        k = rotate(split(F.linear(y, part("k_proj")), kv_heads), cos, sin)
        v = split(F.linear(y, part("v_proj")), kv_heads)
        if kept is not None:
            k, v = kept.update(layer, rows, k, v)
        if layer == count - 1:
            x, q = x[wanted], q[:, wanted]
        if kv_heads != heads:
            k, v = (z.repeat_interleave(heads // kv_heads, dim=0) for z in (k, v))
        y = F.scaled_dot_product_attention(q[None], k[None], v[None])[0]
        x = x + F.linear(y.transpose(0, 1).reshape(len(x), -1), part("attn_out"))
        y = norm(x, part("ff_norm"), epsilon)
        x = x + F.linear(F.silu(F.linear(y, part("ff_proj"))) * F.linear(y, part("up_proj")), part("ff_out"))
    return norm(x, weights["ln_f.weight"], epsilon)


def choose(hidden, block, weights, sampler):
    """Token and confidence of each row of the block, which stands at these of the hidden rows."""
    head = weights["ff_out.weight" if "ff_out.weight" in weights else "wte.weight"]
    if sampler == "lean":
        logits = F.linear(hidden, head).float()
        best = logits.max(dim=-1)
        return best.indices, (best.values - logits.logsumexp(dim=-1)).exp()
    logits = F.linear(hidden, head)
    tokens = logits.argmax(dim=-1)
    shares = F.softmax(logits.to(torch.float64), dim=-1)
    return tokens[block], shares.gather(-1, tokens[:, None])[:, 0][block]


class Timer:
    def __init__(self, arguments, config):
        self.arguments, self.config = arguments, config
        self.is_gpu = arguments.device.startswith("cuda")

    def wait(self):
        if self.is_gpu:
            torch.cuda.synchronize()

    def passes(self, weights, canvas, sampler, dual_cache):
        """Passes that fill a block: the last one of the canvas, or with kept keys and values the first of its second half."""
        device, config = self.arguments.device, self.config
        block = min(BLOCK, canvas)
        length = max(canvas // 2 // block * block, block) if dual_cache else block
        start = canvas - length
        mask = config["mask_token_id"]
        angles = rotation(config, canvas, device)
        seconds, computed = [], []
        if self.is_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        with torch.inference_mode():
            for timed in (False, True):
                ids = torch.arange(1, canvas + 1, device=device)
                ids[start:] = mask
                kept = Kept() if dual_cache else None
                for index in range(self.arguments.passes if timed else WARM_UP):
                    is_whole = not dual_cache or index % block == 0
                    rows = slice(0, canvas) if is_whole else slice(start, start + block)
                    within = slice(start - rows.start, start - rows.start + block)
                    self.wait()
                    begun = time.perf_counter()
                    wanted = within if sampler == "lean" else slice(None)
                    hidden = layers(ids, rows, wanted, weights, config, angles, kept)
                    tokens, confidence = choose(hidden, within, weights, sampler)
                    open_rows = ids[start : start + block] == mask
                    surest = torch.where(open_rows, confidence.float(), -1.0).argmax()
                    ids[start + surest] = tokens[surest]
                    ids.tolist()
                    if timed:
                        seconds.append(time.perf_counter() - begun)
                        computed.append(rows.stop - rows.start)
        entry = {"canvas": canvas, "sampler": sampler, "pass_s": seconds, "rows": computed}
        entry["pass_median_s"] = statistics.median(seconds)
        entry["median_s_by_rows"] = [
            {"rows": rows, "median_s": statistics.median(s for s, r in zip(seconds, computed) if r == rows)}
            for rows in sorted(set(computed))
        ]
        if self.is_gpu:
            # What tensors took, and what PyTorch had of the driver for them.
            entry["peak_bytes"] = torch.cuda.max_memory_allocated()
            entry["peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
        return entry


def bytes_of(text):
    parts = re.fullmatch(r"([0-9.]+)\s*([a-zA-Z]*)", text.strip())
    if not parts or parts[2] not in UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount such as 8GB; units are {', '.join(filter(None, UNITS))}")
    return int(float(parts[1]) * UNITS[parts[2]])


def listed(kind):
    return lambda text: [kind(part) for part in text.split(",")]


def working_bytes(config, canvas, sampler):
    """More than a pass takes besides weights: logits in 16 and 64 bits, thrice, and a few rows of the widest layer."""
    vocabulary = config.get("embedding_size") or config["vocab_size"]
    head_rows = min(BLOCK, canvas) if sampler == "lean" else canvas
    return head_rows * 26 * vocabulary + canvas * (16 * config["mlp_hidden_size"] + 32 * config["d_model"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--canvas", type=listed(int), default=[128, 512])
    parser.add_argument("--passes", type=int, default=8)
    parser.add_argument("--samplers", type=listed(str), default=["reference", "lean"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--offload", type=listed(bytes_of), default=[], metavar="BYTES,BYTES")
    parser.add_argument("--dual-cache", action="store_true")
    parser.add_argument("--minutes", type=float)
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes if arguments.minutes is not None else None
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    config = json.loads((Path(arguments.folder) / "config.json").read_text())
    timer = Timer(arguments, config)
    report = {"torch": torch.__version__, "device": arguments.device, "dtype": arguments.dtype}
    report["dual_cache"] = arguments.dual_cache
    report |= {"passes": [], "failures": [], "stopped": True}
    try:
        if timer.is_gpu:
            report["name"] = torch.cuda.get_device_name(arguments.device)
        measure(timer, end, report)
    except Stopped:
        print("asked to end", file=sys.stderr, flush=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    print(json.dumps(report, indent=2))
    return 1 if report["failures"] else 0


class Stopped(Exception):
    pass


def stop(*_):
    raise Stopped


def measure(timer, end, report):
    """All ways and passes, into the report, until the time is up."""
    arguments, config = timer.arguments, timer.config
    tensors = read(arguments.folder, getattr(torch, arguments.dtype))
    # What is pinned stays pinned, so that comes last.
    memories = (False, True) if timer.is_gpu else (False,)
    ways = [{"budget": budget, "pinned": pinned} for pinned in memories for budget in arguments.offload]
    weights = placed = None
    for way, canvas, sampler in itertools.product(ways or [{}], arguments.canvas, arguments.samplers):
        if end is not None and time.monotonic() >= end:
            print("the time was up", file=sys.stderr, flush=True)
            return
        told = {**way, "canvas": canvas, "sampler": sampler}
        # How much room a pass leaves decides what stays on the card.
        wanted = (way, working_bytes(config, canvas, sampler)) if way else way
        try:
            if weights is None or wanted != placed:
                # Before the next ones come.
                weights = None
                if timer.is_gpu:
                    torch.cuda.empty_cache()
                weights = place(tensors, arguments.device, working=wanted[1] if way else 0, **way)
                placed = wanted
            entry = timer.passes(weights, canvas, sampler, arguments.dual_cache)
            entry |= way | {"offloaded_bytes": weights.offloaded_bytes()}
        except RuntimeError as error:
            # Out of memory is one of these.
            report["failures"].append(told | {"cause": str(error)})
            print(f"FAILED {told}: {error}", file=sys.stderr, flush=True)
            continue
        report["passes"].append(entry)
        print(f"{told}: {1000 * entry['pass_median_s']:.1f} ms a pass", file=sys.stderr, flush=True)
    report["stopped"] = False


if __name__ == "__main__":
    sys.exit(main())
