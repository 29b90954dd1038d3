"""Runs sluice_serve.py on this machine, small: two models by name, streams, daemons that are killed, and a shutdown that drains.

    python check.py --sluiced PATH [--model FILE]

The models are the demonstration model, and FILE, else the demonstration model under another name.
"""

import argparse
import asyncio
import contextlib
import os
import pathlib
import signal
import socket
import tempfile
import time

import aiohttp

# All of Ray's processes have what is set here. None is started before it is wanted, and nobody is told of it.
os.environ |= {"RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import ray
from ray import serve

from sluice_serve import Arguments, Model, app

# Enough for a machine that does something else, too.
PATIENCE_S = 300.0
CORES = 2
# Tokens of a text that takes longer than half a second.
LONG = 400
ARGUMENTS = ["--device", "cpu", "--threads", "1"]


def daemons(folder: pathlib.Path) -> list[int]:
    """The processes of the daemons that have their sockets below the folder."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes().split(b"\0")
            if b"--drain-seconds" in command and any(word.startswith(bytes(folder)) for word in command):
                found.append(int(process.name))
    return found


async def ask(session: aiohttp.ClientSession, model: str, tokens: int, is_streamed: bool) -> tuple[int, str]:
    """Status and body."""
    asked = {"model": model, "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": tokens, "seed": 7}
    async with session.post("/v1/chat/completions", json=asked | {"stream": is_streamed}) as answer:
        return answer.status, await answer.text()


def show(what: str, answer: tuple[int, str], expected: str) -> None:
    status, body = answer
    print(f"{what}: {status}, {len(body)} bytes, {expected!r} is {'there' if expected in body else 'MISSING'}", flush=True)
    if expected not in body:
        raise SystemExit(body)


async def check(session: aiohttp.ClientSession, models: list[str], folder: pathlib.Path) -> None:
    async with session.get("/v1/models") as answer:
        show("GET /v1/models", (answer.status, await answer.text()), models[-1])
    for model in models:
        show(model, await ask(session, model, 16, is_streamed=False), '"finish_reason"')
        show(f"{model}, streamed", await ask(session, model, 16, is_streamed=True), "data: [DONE]")
    show("another name", await ask(session, "another", 16, is_streamed=False), "model_not_found")

    await kill_all(session, models, folder)
    for model in models:
        show(f"{model}, afterwards", await answered(session, model), '"finish_reason"')

    [running] = await streams(session, models[:1])
    begun = time.monotonic()
    await asyncio.to_thread(serve.delete, "sluice")
    show("a stream that ran while the application was deleted", await running, "data: [DONE]")
    print(f"deleted after {time.monotonic() - begun:.1f} s; {len(daemons(folder))} daemons are left", flush=True)


async def streams(session: aiohttp.ClientSession, models: list[str]) -> list[asyncio.Task]:
    """A stream of each, all under way."""
    running = [asyncio.create_task(ask(session, model, LONG, is_streamed=True)) for model in models]
    await asyncio.sleep(0.5)
    if any(stream.done() for stream in running):
        raise SystemExit(f"a text of {LONG} tokens came within half a second, too soon for this check")
    return running


async def kill_all(session: aiohttp.ClientSession, models: list[str], folder: pathlib.Path) -> None:
    """Kills the daemons while each has a stream, and waits for those in their places."""
    running, killed = await streams(session, models), daemons(folder)
    for process in killed:
        os.kill(process, signal.SIGKILL)
    begun = time.monotonic()
    for model, end in zip(models, await asyncio.gather(*running, return_exceptions=True), strict=True):
        if not isinstance(end, aiohttp.ClientError):
            raise SystemExit(f"{model}: the stream of a killed daemon ended without an error: {end}")
        print(f"{model}, its daemon killed: {type(end).__name__}", flush=True)
    while set(killed) & set(daemons(folder)) or len(daemons(folder)) < len(models):
        if time.monotonic() - begun > PATIENCE_S:
            raise SystemExit(f"no daemons came in place of the killed ones within {PATIENCE_S:.0f} s")
        await asyncio.sleep(0.5)
    print(f"others are in their places after {time.monotonic() - begun:.1f} s", flush=True)


async def answered(session: aiohttp.ClientSession, model: str) -> tuple[int, str]:
    """What comes once a replica of the model is there."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        status, body = await ask(session, model, 16, is_streamed=False)
        if status == 200 or time.monotonic() > deadline:
            return status, body
        print(f"{model}: {status} {body[:120]}", flush=True)
        await asyncio.sleep(1)


async def call(port: int, models: list[str], folder: pathlib.Path) -> None:
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", timeout=timeout) as session:
        await check(session, models, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluiced", default="sluiced", help="the program")
    parser.add_argument("--model", default="", help="file or folder of the second model")
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    paths = {"sluice-demo": "", "second": os.path.abspath(options.model) if options.model else ""}
    models = {name: Model(path=path, cpus=0.5, gpus=0, arguments=ARGUMENTS) for name, path in paths.items()}
    with tempfile.TemporaryDirectory(prefix="sluice-ray-check-") as kept:
        folder = pathlib.Path(kept)
        # Where the daemons' folders go.
        os.environ["TMPDIR"] = kept
        ray.init(num_cpus=CORES, include_dashboard=False, object_store_memory=100_000_000, _temp_dir=kept, log_to_driver=False)
        try:
            serve.start(http_options={"host": "127.0.0.1", "port": port})
            serve.run(app(Arguments(sluiced=os.path.abspath(options.sluiced), models=models)), name="sluice", route_prefix="/")
            print(f"{len(daemons(folder))} daemons behind http://127.0.0.1:{port}", flush=True)
            asyncio.run(call(port, list(models), folder))
        finally:
            ray.shutdown()
            for process in daemons(folder):
                os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    main()
