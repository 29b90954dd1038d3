#!/usr/bin/env python3
"""Two models in one budget: what they hold beside the plan, how long a swap takes, and what a second model costs the first.

    python3 tools/measure/several_models.py target/release MODEL.gguf [REQUESTS]

The second model is the demonstration model. Requests are made one after another, each by a `sluice` of its own.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

BUDGET = "1GiB"
SECOND = "demo"


class Daemon:
    """A daemon with folders of its own."""

    def __init__(self, programs: Path, model: Path, *arguments: str) -> None:
        self.client = programs / "sluice"
        self.folder = tempfile.TemporaryDirectory()
        self.environment = {name: value for name, value in os.environ.items() if name != "SLUICE_SOCKET"}
        for name in ("RUNTIME_DIR", "STATE_HOME", "DATA_HOME", "CACHE_HOME", "CONFIG_HOME"):
            path = Path(self.folder.name) / name
            path.mkdir(0o700)
            self.environment[f"XDG_{name}"] = str(path)
        command = [programs / "sluiced", "--model", model, "--budget", BUDGET, *arguments]
        self.process = subprocess.Popen(command, env=self.environment, stderr=subprocess.DEVNULL)
        while not self.models():
            time.sleep(0.1)

    def __enter__(self) -> "Daemon":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()

    def models(self) -> list[str]:
        """Names of the models that are loaded."""
        done = subprocess.run([self.client, "ps", "--json"], env=self.environment, capture_output=True, text=True)
        models = json.loads(done.stdout)["models"] if done.returncode == 0 else []
        return [model["name"] for model in models if model["state"] == "ready"]

    def run(self, *arguments: str) -> str:
        done = subprocess.run([self.client, *arguments], env=self.environment, capture_output=True, text=True, check=True)
        return done.stdout

    def times(self, model: str, tokens: int, count: int) -> list[float]:
        """Seconds of so many requests."""
        seconds = []
        for seed in range(count):
            begun = time.monotonic()
            self.run("generate", "--model", model, "--length", str(tokens), "--seed", str(seed), "Once upon a time")
            seconds.append(time.monotonic() - begun)
        return seconds


def told(what: str, seconds: list[float]) -> None:
    """Prints median and 95th percentile."""
    p95 = sorted(seconds)[int(0.95 * (len(seconds) - 1))]
    print(f"{what}: median {statistics.median(seconds) * 1e3:.0f} ms, p95 {p95 * 1e3:.0f} ms")


def together(daemon: Daemon, count: int) -> None:
    """A model alone, beside one that nobody asks, and beside one that is asked all the time."""
    [first] = daemon.models()
    print(daemon.run("plan", SECOND, first), end="")
    alone, beside = [], []
    daemon.times(first, 32, 5)
    # In turns, so that whatever changes meanwhile changes both.
    for _ in range(2):
        alone += daemon.times(first, 32, count)
        daemon.run("load", SECOND)
        daemon.times(first, 32, 3)
        beside += daemon.times(first, 32, count)
        daemon.run("unload", SECOND)
    told("alone", alone)
    told("beside one that is idle", beside)
    daemon.run("load", SECOND)
    has_ended = threading.Event()

    def ask() -> None:
        while not has_ended.is_set():
            daemon.times(SECOND, 64, 1)

    asking = threading.Thread(target=ask)
    asking.start()
    told("beside one that is asked all the time", daemon.times(first, 32, count))
    has_ended.set()
    asking.join()
    device = json.loads(daemon.run("status", "--json"))["device"]
    print(f"held at most: {device['peak_bytes'] / 2**20:.0f} MiB")


def swapped(daemon: Daemon, count: int) -> None:
    """Requests that have their model loaded in the other one's place, and requests whose model is there."""
    [first] = daemon.models()
    daemon.times(SECOND, 1, 1)
    with_swap: dict[str, list[float]] = {first: [], SECOND: []}
    without: dict[str, list[float]] = {first: [], SECOND: []}
    for _ in range(count):
        for model in (first, SECOND):
            with_swap[model] += daemon.times(model, 1, 1)
            without[model] += daemon.times(model, 1, 1)
    for model in (first, SECOND):
        told(f"{model}, swapped in", with_swap[model])
        told(f"{model}, loaded", without[model])


def main() -> None:
    programs, model = Path(sys.argv[1]), Path(sys.argv[2])
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 60
    with Daemon(programs, model) as daemon:
        together(daemon, count)
    with Daemon(programs, model, "--loaded-models", "1") as daemon:
        swapped(daemon, max(1, count // 6))


if __name__ == "__main__":
    main()
