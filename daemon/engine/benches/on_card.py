#!/usr/bin/env python3
"""Everything that is wanted from a machine with an NVIDIA card, in one command:

    python3 daemon/engine/benches/on_card.py OUT [--minutes 25] [--sluiced FILE] [--model DIR] [--mild]

Builds sluiced (unless --sluiced names one), then checks kernels, fixtures and memory, makes a checkpoint of random weights in
LLaDA-8B's shape (16 GB, unless --model names one), times passes at every level, resident and streamed, and the same passes in
PyTorch, where that is installed. --mild also codes the checkpoint without loss, which takes long, and times that.

OUT gets NAME.json and NAME.log of each part as it ends. A part that fails stops no other; when the time is up, the part that
runs is asked to stop, and the rest is left out. The last lines say what became of each.
"""

import argparse
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PYTORCH = ROOT / "daemon/engine/benches/pytorch_pass.py"
FIXTURES = ROOT / "daemon/engine/tests/fixtures"
# What a part that was told its minutes may take to come to its end, and one that is asked to stop.
GRACE_S = 60
STOP_S = 10


class Parts:
    def __init__(self, out, minutes):
        self.out, self.end = out, time.monotonic() + 60 * minutes
        self.outcomes = []

    def left_s(self):
        return self.end - time.monotonic()

    def run(self, name, command, minutes=None, knows_minutes=False):
        """Whether it did what it was to do. Its errors are shown and kept, what it prints is kept."""
        limit_s = min(self.left_s(), 60 * minutes if minutes else self.left_s())
        if limit_s <= 0:
            self.outcomes.append((name, "left out, the time was up"))
            return False
        command = [str(word) for word in command]
        if knows_minutes:
            command += ["--minutes", f"{max(limit_s - GRACE_S, limit_s / 2) / 60:.2f}"]
        print(f"--- {name}: {' '.join(command)}", file=sys.stderr, flush=True)
        begun = time.monotonic()
        with open(self.out / f"{name}.json", "wb") as found, open(self.out / f"{name}.log", "wb") as log:
            try:
                process = subprocess.Popen(command, cwd=ROOT, stdout=found, stderr=subprocess.PIPE)
            except OSError as error:
                self.outcomes.append((name, f"failed: {error}"))
                return False
            reader = threading.Thread(target=copy, args=(process.stderr, [log, sys.stderr.buffer]))
            reader.start()
            outcome = wait(process, limit_s)
            reader.join()
        took = time.monotonic() - begun
        self.outcomes.append((name, f"{outcome}, {took:.0f} s"))
        return outcome == "done"


def copy(lines, files):
    for line in lines:
        for file in files:
            file.write(line)
            file.flush()


def wait(process, limit_s):
    for stop, patience_s in ((None, limit_s), (signal.SIGTERM, STOP_S), (signal.SIGKILL, None)):
        if stop:
            process.send_signal(stop)
        try:
            code = process.wait(patience_s)
            return "stopped, the time was up" if stop else "done" if code == 0 else f"failed with code {code}"
        except subprocess.TimeoutExpired:
            continue


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--sluiced", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--mild", action="store_true")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--budgets", default="4GB,6GB,8GB,12GB")
    parser.add_argument("--canvas", default="128,512")
    parser.add_argument("--requests", default="1000")
    parser.add_argument("--passes", default="8")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    parts = Parts(out, arguments.minutes)
    sluiced = arguments.sluiced and arguments.sluiced.resolve()
    if sluiced is None:
        if not parts.run("build", ["cargo", "build", "-p", "sluice-daemon", "--bin", "sluiced"]):
            return tell(parts)
        sluiced = ROOT / "target/debug/sluiced"
    device = ["--device", arguments.device]
    check = [sluiced, "gpu", "check", *device]
    parts.run("check", [*check, "--fixtures", FIXTURES], arguments.minutes / 4, knows_minutes=True)
    requests = [*check, "--no-operations", "--requests", arguments.requests]
    parts.run("requests", requests, arguments.minutes / 10, knows_minutes=True)
    parts.run("operations", [sluiced, "gpu", "bench", *device], arguments.minutes / 6, knows_minutes=True)
    model, converted = arguments.model and arguments.model.resolve(), out / "converted"
    if model is None:
        model = out / "llada-8b"
        if not model.exists() and not parts.run("synth", [sluiced, "synth", "--preset", "llada-8b", model]):
            return tell(parts)
    canvas = ["--canvas", arguments.canvas, "--passes", arguments.passes]
    bench = [sluiced, "gpu", "bench", *device, "--only-passes", "--model", model, *canvas, "--converted", converted]
    streamed = ["--budgets", arguments.budgets, "--requests", "1,16"]
    parts.run("levels", [*bench, "--levels", "all", *streamed], arguments.minutes / 2, knows_minutes=True)
    parts.run("dual-cache", [*bench, "--cache", "dual"], arguments.minutes / 10, knows_minutes=True)
    pytorch = [sys.executable, PYTORCH, model, *canvas, *device]
    parts.run("pytorch", pytorch)
    parts.run("pytorch-dual-cache", [*pytorch, "--dual-cache"])
    parts.run("pytorch-offload", [*pytorch, "--offload", arguments.budgets])
    if arguments.mild:
        coded = out / "model.sluice"
        compress = [sluiced, "compress", model, "--output", coded, "--coder", "palette"]
        if coded.exists() or parts.run("compress", compress):
            mild = ["--levels", "mild", "--model", coded]
            bench[bench.index("--model") : bench.index("--model") + 2] = []
            parts.run("mild", [*bench, *mild, *streamed], knows_minutes=True)
    return tell(parts)


def tell(parts):
    for name, outcome in parts.outcomes:
        print(f"{name:<20} {outcome}", file=sys.stderr)
    return 0 if all(outcome.startswith("done") for _, outcome in parts.outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
