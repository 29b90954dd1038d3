#!/usr/bin/env python3
"""Answers the requests of `--example answer_requests` with the PyTorch samplers that Sluice's follow, on the CPU.

    python3 pytorch_answers.py DIR LLADA FAST_DLLM [--dtype float32] [--threads 2]

LLADA is a checkout of ML-GSAI/LLaDA, FAST_DLLM one of NVlabs/Fast-dLLM, whose model both samplers use. Needs torch,
transformers 4.49, einops, safetensors and tokenizers. A folder without a tokenizer gets made-up prompts of 192 ids instead,
64 tokens behind each, four a pass. One JSON object a sampler.
"""

import argparse
import importlib.util
import json
import os
import re
import sys
import time
from pathlib import Path

# Compiling Fast-dLLM's attention takes longer than all of this and gains nothing on a CPU.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

import torch
from safetensors.torch import load_file

BLOCK = 32
CHAT = "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
REQUESTS = Path(__file__).parent / "examples" / "answer_requests.rs"


def module(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def model_of(folder, config, dtype):
    from model.configuration_llada import LLaDAConfig
    from model.modeling_llada import LLaDAModelLM

    keys = {key: value for key, value in config.items() if key not in ("architectures", "torch_dtype")}
    model = LLaDAModelLM(LLaDAConfig(**keys | {"init_device": "cpu", "flash_attention": False}), init_params=False)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.to(dtype).eval()


def prompts_of(folder):
    if not (folder / "tokenizer.json").exists():
        return [list(range(1, 193))], 64, 4
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    requests = re.findall(r'^    "(.+)",$', REQUESTS.read_text(), re.MULTILINE)
    return [tokenizer.encode(CHAT.format(request)).ids for request in requests], 128, 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("llada", type=Path)
    parser.add_argument("fast_dllm", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    sys.path.insert(0, str(arguments.fast_dllm / "llada"))
    plain = module("llada_generate", arguments.llada / "generate.py")
    fast = module("fast_generate", arguments.fast_dllm / "llada" / "generate.py")
    config = json.loads((arguments.folder / "config.json").read_text())
    model = model_of(arguments.folder, config, getattr(torch, arguments.dtype))
    prompts, tokens, at_once = prompts_of(arguments.folder)
    # Random weights are never sure of anything: by threshold they would all go one by one.
    threshold = 0.9 if at_once == 1 else None
    settings = {"steps": tokens // at_once, "gen_length": tokens, "block_length": BLOCK, "mask_id": config["mask_token_id"]}
    samplers = {
        "LLaDA": lambda ids: plain.generate(model, ids, **settings),
        "Fast-dLLM": lambda ids: fast.generate(model, ids, threshold=threshold, **settings),
        "Fast-dLLM, prefix cache": lambda ids: fast.generate_with_prefix_cache(model, ids, threshold=threshold, **settings),
        "Fast-dLLM, dual cache": lambda ids: fast.generate_with_dual_cache(model, ids, threshold=threshold, **settings),
    }
    times, inner = [], model.forward

    def timed(*values, **named):
        start = time.perf_counter()
        result = inner(*values, **named)
        times.append(time.perf_counter() - start)
        return result

    model.forward = timed
    fast.generate(model, torch.tensor(prompts[:1]), **settings | {"steps": tokens // BLOCK})
    for name, sampler in samplers.items():
        times.clear()
        start = time.perf_counter()
        for ids in prompts:
            sampler(torch.tensor([ids]))
        seconds = time.perf_counter() - start
        print(
            json.dumps({
                "sampler": name,
                "dtype": arguments.dtype,
                "passes_per_answer": len(times) / len(prompts),
                "pass_ms": 1000 * seconds / len(times),
                "model_ms": 1000 * sum(times) / len(times),
                "tokens_per_s": tokens * len(prompts) / seconds,
            }),
            flush=True,
        )


if __name__ == "__main__":
    main()
