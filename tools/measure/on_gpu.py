#!/usr/bin/env python3
"""Everything that is wanted from a machine with an NVIDIA GPU, in one command:

    python3 tools/measure/on_gpu.py OUT [--minutes 60]

Checks kernels, models and memory, then times passes at every level, resident and streamed, the same passes in PyTorch (where
the Python that runs this has it), single operations, and requests. What that needs is made first, unless it is there from an
earlier run: sluiced and sluice-gpu are built (or --sluiced names one that has the other beside it), and a checkpoint of random weights in LLaDA-8B's shape is written to the
folder --work (16 GB, and 13 GB for its copies at other levels; or --model names one).

OUT/on_gpu.json has what was found, part by part, and grows with each part and each run; OUT/on_gpu.log has what was said.
Minutes are shared out among the parts; what one leaves is the others'. A part that fails stops no other. What its minutes
don't suffice for is asked to end, and tells what it found until then; so is everything when this is stopped by a signal.

Where a command may take ten minutes at most, several runs make the whole:

    … OUT --minutes 9 --parts check,standard,pytorch
    … OUT --minutes 9 --parts pytorch-offload,operations,requests
    … OUT --minutes 9 --parts moderate,aggressive,dual-cache,pytorch-dual-cache
    … OUT --minutes 9 --parts mild        also compresses the checkpoint losslessly (11 GB), which takes long; no part unless named

A try at a small size, on any GPU or what stands in for one:

    … OUT --shape "--layers 2 --hidden-size 256 --attention-heads 4 --intermediate-size 512 --vocab-size 512" --budgets 1GB --requests 10 --canvas 32
"""

import argparse
import importlib.util
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTORCH = ROOT / "tools/measure/pytorch_pass.py"
FIXTURES = ROOT / "daemon/engine/tests/fixtures"
# Parts, and how the minutes are shared out among those that are still to come.
SHARES = {
    "check": 4,
    "standard": 6,
    "pytorch": 3,
    "pytorch-offload": 4,
    "operations": 2,
    "requests": 2,
    "moderate": 4,
    "aggressive": 3,
    "dual-cache": 1,
    "pytorch-dual-cache": 2,
    "mild": 4,
}
# Of a part's minutes, after so many it begins nothing new.
BEGINS = 0.8
# What is asked to end has so long for it.
STOP_S = 15


def say(*words):
    """What nobody reads any more is no reason to end."""
    try:
        print(*words, file=sys.stderr, flush=True)
    except OSError:
        pass


class Parts:
    """Runs commands one after another, and keeps what they print."""

    def __init__(self, out, minutes, environment):
        self.end = time.monotonic() + 60 * minutes
        self.environment = environment
        self.file = out / "on_gpu.json"
        self.log = open(out / "on_gpu.log", "ab")
        self.outcomes = []
        self.found = {"machine": {}, "parts": {}}
        if self.file.exists():
            try:
                self.found = json.loads(self.file.read_text())
            except ValueError:
                # Whatever it is, nobody loses it.
                self.file.rename(self.file.with_suffix(".unreadable"))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self.stop)

    def stop(self, *_):
        say("asked to end")
        self.end = time.monotonic()

    def left_s(self):
        return self.end - time.monotonic()

    def run(self, name, command, limit_s=None, knows_minutes=False):
        """Whether it did what it was to do."""
        # It may be made shorter by a signal meanwhile.
        begun = time.monotonic()
        ends = lambda: min(self.end, begun + limit_s) if limit_s else self.end
        if ends() <= begun:
            return self.leave_out(name, "the time was up")
        command = [str(word) for word in command]
        if knows_minutes:
            command += ["--minutes", f"{BEGINS * (ends() - begun) / 60:.2f}"]
        words = f"--- {name}: {shlex.join(command)}"
        say(words)
        self.log.write(words.encode() + b"\n")
        with tempfile.TemporaryFile() as printed:
            try:
                # PyTorch finds its own libraries. Signals for this program are passed on by it alone.
                environment = None if command[0] == sys.executable else self.environment
                process = subprocess.Popen(
                    command, cwd=ROOT, env=environment, stdout=printed, stderr=subprocess.PIPE, start_new_session=True
                )
            except OSError as error:
                return self.leave_out(name, str(error))
            reader = threading.Thread(target=self.copy, args=(process.stderr,), daemon=True)
            reader.start()
            outcome = wait(process, ends)
            reader.join(STOP_S)
            printed.seek(0)
            report = parsed(printed.read())
        if outcome == "done" and isinstance(report, dict) and report.get("stopped"):
            outcome = "cut short, its time was up"
        outcome += failures(report)
        seconds = time.monotonic() - begun
        self.outcomes.append((name, f"{outcome}, {seconds:.0f} s"))
        # Beside what earlier runs found.
        runs = self.found["parts"].setdefault(name, [])
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        runs.append({"at": at, "command": command, "outcome": outcome, "seconds": round(seconds, 1), "report": report})
        self.keep()
        return outcome == "done"

    def leave_out(self, name, cause):
        self.outcomes.append((name, f"left out: {cause}"))
        return False

    def copy(self, lines):
        for line in lines:
            self.log.write(line)
            self.log.flush()
            try:
                sys.stderr.buffer.write(line)
                sys.stderr.buffer.flush()
            except OSError:
                pass

    def keep(self):
        """All that was found until now, whole or as it was before."""
        fresh = self.file.with_suffix(".fresh")
        fresh.write_text(json.dumps(self.found, indent=2) + "\n")
        fresh.replace(self.file)

    def tell(self):
        for name, outcome in self.outcomes:
            say(f"{name:<20} {outcome}")
        say(f"what was found: {self.file}")
        return 0 if all(outcome.startswith("done") for _, outcome in self.outcomes) else 1


def end_group(process, how):
    try:
        os.killpg(process.pid, how)
    except ProcessLookupError:
        pass


def wait(process, ends):
    """Until it ends by itself, is asked to, or is made to."""
    stops = [signal.SIGTERM, signal.SIGKILL]
    next_stop, stopped = ends(), False
    while process.poll() is None:
        if not stopped:
            next_stop = ends()
        if stops and time.monotonic() >= next_stop:
            # With what it started, such as a compiler.
            end_group(process, stops.pop(0))
            next_stop, stopped = time.monotonic() + STOP_S, True
        time.sleep(0.05)
    if stopped:
        return "stopped, its time was up"
    return "done" if process.returncode == 0 else f"failed with code {process.returncode}"


def parsed(printed):
    text = printed.decode(errors="replace")
    try:
        return json.loads(text)
    except ValueError:
        return text.strip() or None


def failures(report):
    """How many a report tells, in words."""
    told = (report.get("failures"), report.get("failed")) if isinstance(report, dict) else ()
    count = sum(len(some) if isinstance(some, list) else some or 0 for some in told)
    return f", {count} FAILURES told" if count else ""


def output(*command):
    try:
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() if found.returncode == 0 else None


def machine(sluiced):
    """What the figures were made on."""
    fields = "name,driver_version,memory.total,memory.used,pcie.link.gen.max,pcie.link.width.max,clocks.max.sm,clocks.max.mem,power.limit"
    return {
        "gpus": output("nvidia-smi", f"--query-gpu={fields}", "--format=csv"),
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "sluiced": output(sluiced, "--version"),
        "commit": output("git", "rev-parse", "HEAD"),
    }


def environment():
    """This program's, with folders where cuBLAS may be besides: those of PyTorch's packages and of the toolkit."""
    found = [folder for site in sys.path for folder in Path(site or ".").glob("nvidia/*/lib")]
    found += Path("/usr/local").glob("cuda*/lib64")
    found = [str(folder) for folder in found if any(folder.glob("libcublas.so.1[123]"))]
    here = os.environ.get("LD_LIBRARY_PATH", "")
    return os.environ | {"LD_LIBRARY_PATH": ":".join(filter(None, [here, *found]))}


class Makers:
    """What parts need, made when the first of them comes, and not again."""

    def __init__(self, parts, arguments):
        self.parts, self.arguments = parts, arguments
        self.work = (arguments.work or arguments.out).resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        self.sluiced = arguments.sluiced.resolve() if arguments.sluiced else None
        self.failed = set()

    def make(self, name, there, command):
        """What is there, after making it if need be; nothing if that failed."""
        if name not in self.failed and not there.exists() and not self.parts.run(name, command):
            self.failed.add(name)
        return None if name in self.failed else there

    def build(self):
        if self.sluiced is None:
            # Cargo knows what is there.
            if not self.parts.run("build", ["cargo", "build", "-p", "sluice-daemon", "-p", "sluice-gpu", "--bins"]):
                return None
            self.sluiced = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug/sluiced"
        return self.sluiced

    def model(self):
        if self.arguments.model:
            return self.arguments.model.resolve()
        model = self.work / "model"
        return self.make("synth", model, [self.sluiced, "synth", *shlex.split(self.arguments.shape), model])

    def compressed(self):
        model, compressed = self.model(), self.work / "model.sluice"
        compress = [self.sluiced, "compress", model, "--output", compressed, "--coder", "dictionary"]
        return model and self.make("compress", compressed, compress)


def commands(arguments, makers):
    """Each part's command, and whether it knows `--minutes`; nothing where what it needs can't be had."""
    gpu = makers.sluiced.with_name("sluice-gpu")
    check = [gpu, "check", "--device", arguments.device]
    bench = [gpu, "bench", "--device", arguments.device]
    passes = ["--canvas", arguments.canvas, "--passes", arguments.passes]
    streamed = ["--budgets", arguments.budgets, "--requests", arguments.together]
    copies = ["--converted", makers.work / "converted"]

    def times(model, *words):
        return model and [*bench, "--only-passes", "--model", model, *passes, *copies, *words]

    def pytorch(*words):
        model = makers.model()
        device = ["--device", arguments.pytorch_device or arguments.device]
        return model and [sys.executable, PYTORCH, model, "--canvas", arguments.canvas, *device, *words]

    few = ["--samplers", "lean", "--passes", "4"]
    return {
        "check": lambda: [*check, "--fixtures", FIXTURES],
        "standard": lambda: times(makers.model(), "--levels", "standard", *streamed),
        "pytorch": lambda: pytorch("--passes", arguments.passes),
        "pytorch-offload": lambda: pytorch("--offload", arguments.budgets, *few),
        "operations": lambda: [*bench, *shlex.split(arguments.operations)],
        "requests": lambda: [*check, "--no-operations", "--requests", arguments.requests],
        "moderate": lambda: times(makers.model(), "--levels", "moderate", *streamed),
        "aggressive": lambda: times(makers.model(), "--levels", "aggressive", *streamed),
        "dual-cache": lambda: times(makers.model(), "--kv-cache", "dual"),
        "pytorch-dual-cache": lambda: pytorch("--passes", arguments.passes, "--dual-cache"),
        "mild": lambda: times(makers.compressed(), "--levels", "mild", *streamed),
    }


def names(text):
    wrong = [name for name in text.split(",") if name not in SHARES]
    if wrong:
        raise argparse.ArgumentTypeError(f"no part is called {', '.join(wrong)}; there are {', '.join(SHARES)}")
    return text.split(",")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--parts", type=names, default=[name for name in SHARES if name != "mild"], metavar="NAME,NAME")
    parser.add_argument("--work", type=Path, help="folder for what is large [default: OUT]")
    parser.add_argument("--sluiced", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--shape", default="--shape llada-8b", help="what `sluiced synth` writes, unless --model names one")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--pytorch-device", help="another device for PyTorch, such as cpu")
    parser.add_argument("--budgets", default="4GB,6GB,8GB,12GB")
    parser.add_argument("--canvas", default="128,512")
    parser.add_argument("--passes", default="8")
    parser.add_argument("--operations", default="", help="what else the bench of single operations is told")
    parser.add_argument("--requests", default="1000", help="how many must leave nothing behind")
    parser.add_argument("--together", default="1,16", help="how many share passes")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    parts = Parts(out, arguments.minutes, environment())
    makers = Makers(parts, arguments)
    if not makers.build():
        return parts.tell()
    parts.found["machine"] = machine(makers.sluiced)
    ways = commands(arguments, makers)
    # In the order in which they matter most, whatever the order in which they were named.
    chosen = [name for name in SHARES if name in arguments.parts]
    for index, name in enumerate(chosen):
        if name.startswith("pytorch") and not importlib.util.find_spec("torch"):
            parts.leave_out(name, f"{sys.executable} has no PyTorch")
            continue
        command = ways[name]()
        if not command:
            parts.leave_out(name, "it has no model")
            continue
        share = SHARES[name] / sum(SHARES[later] for later in chosen[index:])
        # At least a moment, so that it is left out where there is none.
        parts.run(name, command, max(parts.left_s() * share, 0.001), knows_minutes=True)
    return parts.tell()


if __name__ == "__main__":
    sys.exit(main())
