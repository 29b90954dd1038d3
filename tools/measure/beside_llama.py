#!/usr/bin/env python3
"""Times Sluice beside llama.cpp, by turns, and prints a Markdown table of medians:

    python3 tools/measure/beside_llama.py --llama llama/bin --ours base=DIR --ours new=DIR \\
        --checkpoint DIR --gguf off=model-f16.gguf --gguf moderate=model-q8_0.gguf --gguf aggressive=model-q4_k_m.gguf \\
        --autoregressive SmolLM2.Q4_1.gguf --autoregressive SmolLM2.Q8_0.gguf

--llama is the folder of llama-diffusion-cli and llama-bench; each --ours names a folder with the examples plan_and_measure and
autoregressive_rates, built with `cargo build --release -p sluice-measure --examples`. docs/benchmarks.md tells how to make
llama.cpp and the models: --checkpoint is the folder of `sluiced synth`, and each --gguf is the same model as llama.cpp runs it
beside one of our levels. Without --checkpoint or --autoregressive, the table lacks their rows.

A round runs each program once for each row, every other round in reverse order. The table has medians of the rounds, and for each
of ours the median of the rounds' ratios: the time of llama.cpp divided by ours, so that above 1 ours is faster. Everything
runs on THREADS cores. Each figure is printed to stderr as it is found; --json keeps all of them.

What the rows compare:

- "pass": the median pass of a diffusion request, and llama.cpp's mean. llama-diffusion-cli prints its total divided by
  --diffusion-steps; here the total is divided by the steps that it made. It reads its weights before (--load-mode none).
- "prefill of N": a prompt of N tokens, read into an empty context. "decode": tokens written behind 512.
- "prefill of 512, -ub N": llama.cpp reads 512 tokens in batches of N. The engine has no such option, so that ours is the
  rate of a prompt of N tokens, which computes the LM head once in N rows; llama.cpp computes it once in 512.

Nothing else may run meanwhile: llama.cpp's threads wait for each other by spinning, so that it loses far more to a busy
machine than Sluice does.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

THREADS = 2
LLAMA = "llama.cpp"
# A canvas has whole blocks, and llama.cpp wants as many steps for each of them.
BLOCK, STEPS, PASSES = 32, 16, 12
PROMPT = "Once upon a time"
# Tokens of the prompt: the GGUF file of random weights has a tokenizer of bytes.
PROMPT_LEN = len(PROMPT)
DEPTH, WRITTEN = 512, 32
BATCHES = [8, 32, 128, DEPTH]
# Prompts of each length in a run, after one that isn't counted.
REPEATS = 3


def run(*command):
    """What a program prints."""
    # Random weights write bytes that are no UTF-8.
    outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "errors": "replace"}
    done = subprocess.run([str(part) for part in command], **outputs)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout[-2000:]}")
    return done.stdout


def steps_made(canvas):
    """Steps of blocks that begin behind the canvas are skipped."""
    blocks = canvas // BLOCK
    return STEPS // blocks * sum(PROMPT_LEN + block * BLOCK < canvas for block in range(blocks))


def llama_pass_ms(folder, file, canvas):
    printed = run(
        folder / "llama-diffusion-cli", "-m", file, "-p", PROMPT, "--diffusion-steps", STEPS,
        "--diffusion-block-length", BLOCK, "-ub", canvas, "-t", THREADS, "--load-mode", "none",
    )
    return float(re.search(r"total time: ([0-9.]+)ms", printed)[1]) / steps_made(canvas)


def our_pass_ms(folder, checkpoint, level, canvas):
    printed = run(folder / "plan_and_measure", checkpoint, level, "4GiB", canvas, PASSES)
    units = {"ms": 1, "s": 1000}
    passes = re.findall(r"^pass .* measured ([0-9.]+) (ms|s) ", printed, re.MULTILINE)
    return statistics.median(float(time) * units[unit] for time, unit in passes)


def llama_rates(folder, file):
    """Tokens a second by row."""

    def bench(*arguments):
        # stderr has what is no JSON.
        command = [folder / "llama-bench", "-m", file, "-t", THREADS, "-r", REPEATS, "-o", "json", *arguments]
        done = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return json.loads(done.stdout)

    def listed(lengths):
        return ",".join(map(str, lengths))

    tests = bench("-n", 0, "-p", listed(BATCHES[:-1]))
    rates = {f"prefill of {test['n_prompt']}": test["avg_ts"] for test in tests}
    for test in bench("-n", 0, "-p", DEPTH, "-ub", listed(BATCHES)):
        rates[f"prefill of {DEPTH}, -ub {test['n_ubatch']}"] = test["avg_ts"]
    [test] = bench("-p", 0, "-n", WRITTEN, "-d", DEPTH)
    rates[f"decode behind {DEPTH}"] = test["avg_ts"]
    return rates


def our_rates(folder, file):
    """Tokens a second by row."""
    # The first one warms up.
    prompts = [DEPTH, *(length for length in BATCHES for _ in range(REPEATS))]
    printed = run(folder / "autoregressive_rates", file, "off", "cpu", ",".join(map(str, prompts)), WRITTEN)
    lines = re.findall(r"^ *(\d+) +([0-9.]+) +([0-9.]+) ", printed, re.MULTILINE)[1:]
    read, written = defaultdict(list), defaultdict(list)
    for length, read_rate, written_rate in lines:
        read[int(length)].append(float(read_rate))
        written[int(length)].append(float(written_rate))
    rates = {f"decode behind {DEPTH}": statistics.mean(written[DEPTH])}
    for length in BATCHES:
        rate = statistics.mean(read[length])
        rates[f"prefill of {DEPTH}, -ub {length}"] = rate
        if length < DEPTH:
            rates[f"prefill of {length}"] = rate
    return rates


def runs(arguments):
    """Of each run of a program in a round: the program's name, and what returns its figures by row."""
    for canvas in arguments.canvas if arguments.checkpoint else []:
        for level, file in arguments.gguf:
            row = f"pass, canvas {canvas}, {file.stem}, `{level}`, ms"
            yield LLAMA, lambda c=canvas, f=file, r=row: {r: llama_pass_ms(arguments.llama, f, c)}
            for name, folder in arguments.ours:
                yield name, lambda c=canvas, l=level, d=folder, r=row: {r: our_pass_ms(d, arguments.checkpoint, l, c)}
    for file in arguments.autoregressive:

        def named(rates, file=file):
            return {f"{file.stem}, {row}, tokens/s": rate for row, rate in rates.items()}

        yield LLAMA, lambda f=file, n=named: n(llama_rates(arguments.llama, f))
        for name, folder in arguments.ours:
            yield name, lambda f=file, d=folder, n=named: n(our_rates(d, f))


def table(figures, names):
    """Figures are lists, of the rounds, by row and program."""
    lines = ["| | " + " | ".join([LLAMA, *names, *(f"{LLAMA} / {name}" for name in names)]) + " |"]
    lines += ["|---|" + "---:|" * (1 + 2 * len(names))]
    for row, by_program in figures.items():
        cells = [f"{statistics.median(by_program[name]):.1f}" for name in [LLAMA, *names]]
        for name in names:
            pairs = zip(by_program[LLAMA], by_program[name])
            # A rate is the inverse of a time.
            ratios = [ours / llama if row.endswith("tokens/s") else llama / ours for llama, ours in pairs]
            cells.append(f"{statistics.median(ratios):.2f}")
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def named_path(text):
    name, separator, path = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PATH")
    return name, Path(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", type=Path, required=True, metavar="DIR")
    parser.add_argument("--ours", type=named_path, action="append", required=True, metavar="NAME=DIR")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR")
    parser.add_argument("--gguf", type=named_path, action="append", default=[], metavar="LEVEL=FILE")
    parser.add_argument("--autoregressive", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--canvas", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="OUT")
    arguments = parser.parse_args()
    # Our programs take all cores that they may use.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])

    figures = defaultdict(lambda: defaultdict(list))
    order = list(runs(arguments))
    for index in range(arguments.rounds):
        for program, measure in order if index % 2 == 0 else reversed(order):
            for row, figure in measure().items():
                figures[row][program].append(figure)
                print(f"round {index + 1}: {row}: {program}: {figure:.1f}", file=sys.stderr, flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(figures, indent=2))
    print(table(figures, [name for name, _ in arguments.ours]))


if __name__ == "__main__":
    main()
