"""sluiced under Ray Serve: replicas that each own a daemon, behind one OpenAI-compatible address that routes by model.

    pip install -r deploy/ray/requirements.txt
    serve run --working-dir deploy/ray deploy/ray/serve.yaml

Ray starts, watches and scales the replicas, and gives each its GPU (CUDA_VISIBLE_DEVICES); the daemon does the rest. Every path of
the daemon's HTTP front is passed on, streams included.
"""

import asyncio
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator

import aiohttp
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field
from ray import serve

# Longest request body that is passed on; sluiced refuses larger ones itself.
BODY_BYTES_MAX = 4 << 20
# Headers that belong to one connection (RFC 9110, 7.6.1), or that are made anew.
OWN_HEADERS = {"connection", "content-length", "date", "host", "keep-alive", "server", "te", "trailer", "transfer-encoding", "upgrade"}
# Time for running requests when a replica is stopped, as the daemon's drain_seconds.
DRAIN_S = 600


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def refusal(message: str, kind: str, param: str | None, code: str) -> dict:
    """An error in the shape of OpenAI's."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


@serve.deployment
class Sluiced:
    """A replica: a daemon of its own with one model."""

    def __init__(self, model: str, sluiced: str, arguments: list[str], load_s: float) -> None:
        program = shutil.which(sluiced)
        if program is None:
            raise RuntimeError(f"there is no program {sluiced!r}: install Sluice on every node, or set `sluiced` in serve.yaml")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-ray-"))
        port = free_port()
        self.base = f"http://127.0.0.1:{port}"
        self.log = open(self.folder / "sluiced.log", "wb")
        command = [program, "--http", f"127.0.0.1:{port}", "--socket", str(self.folder / "s"), "--drain-seconds", str(DRAIN_S)]
        if model:
            command += ["--model", os.path.expanduser(model)]
        self.process = subprocess.Popen(command + arguments, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        self.load_s = load_s
        self.client: aiohttp.ClientSession | None = None
        self.is_loaded = asyncio.create_task(self.wait_until_loaded())

    async def session(self) -> aiohttp.ClientSession:
        if self.client is None:
            # A pass of a large model may take minutes, so only connecting has a limit.
            timeout = aiohttp.ClientTimeout(total=None, connect=10)
            self.client = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
        return self.client

    def ended(self) -> RuntimeError:
        lines = (self.folder / "sluiced.log").read_text(errors="replace").splitlines()[-5:]
        return RuntimeError("sluiced ended: " + "\n".join(lines))

    async def wait_until_loaded(self) -> None:
        deadline = asyncio.get_running_loop().time() + self.load_s
        while asyncio.get_running_loop().time() < deadline:
            if self.process.poll() is not None:
                raise self.ended()
            try:
                async with (await self.session()).get(f"{self.base}/health") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.1)
        raise RuntimeError(f"the model is not loaded after {self.load_s:.0f} s; raise `load_s` in serve.yaml")

    async def check_health(self) -> None:
        """Ray replaces the replica when this raises: the daemon is gone, or its model can't be loaded."""
        if self.process.poll() is not None:
            raise self.ended()
        if self.is_loaded.done():
            self.is_loaded.result()
            async with (await self.session()).get(f"{self.base}/health/live") as answer:
                answer.raise_for_status()

    async def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> AsyncIterator[bytes]:
        """The daemon's answer: first its status and headers as JSON, then its body as it comes."""
        await asyncio.shield(self.is_loaded)
        try:
            answer = await (await self.session()).request(method, self.base + path, headers=headers, data=body)
        except aiohttp.ClientConnectionError:
            # Until Ray has replaced this replica.
            gone = refusal("the daemon of this replica has ended; ask again", "server_error", None, "replica_gone")
            yield json.dumps([503, {"content-type": "application/json", "retry-after": "1"}]).encode()
            yield json.dumps(gone).encode()
            return
        async with answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in OWN_HEADERS}
            yield json.dumps([answer.status, kept]).encode()
            async for chunk in answer.content.iter_any():
                yield chunk

    async def __del__(self) -> None:
        # SIGTERM drains: what runs ends first.
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                await asyncio.to_thread(self.process.wait, DRAIN_S + 30)
            except subprocess.TimeoutExpired:
                self.process.kill()
        if self.client is not None:
            await self.client.close()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


front = FastAPI()


def refused(status: int, message: str, param: str | None, code: str) -> JSONResponse:
    return JSONResponse(refusal(message, "invalid_request_error", param, code), status)


@serve.deployment
@serve.ingress(front)
class Router:
    """Sends each request to a replica of the model that it names."""

    def __init__(self, models: dict[str, serve.handle.DeploymentHandle]) -> None:
        self.models = models

    @front.get("/v1/models")
    async def list_models(self) -> dict:
        return {"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": "sluice"} for name in self.models]}

    @front.api_route("/{path:path}", methods=["GET", "POST"])
    async def pass_on(self, request: Request, path: str):
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > BODY_BYTES_MAX:
                return refused(413, f"the body has more than {BODY_BYTES_MAX} bytes", None, "too_large")
        try:
            asked = json.loads(body) if body else {}
        except ValueError:
            return refused(400, "the body is not JSON", None, "invalid_json")
        if not isinstance(asked, dict):
            return refused(400, "the body is not a JSON object", None, "invalid_json")
        name = asked.get("model")
        if name is None and len(self.models) == 1:
            name = next(iter(self.models))
        replica = self.models.get(name) if isinstance(name, str) else None
        if replica is None:
            return refused(404, f"there is no model {name!r}; there are {', '.join(self.models)}", "model", "model_not_found")
        # The replica has one model, under whatever name the daemon gave it.
        asked.pop("model", None)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in OWN_HEADERS}
        place = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        answer = replica.options(stream=True).forward.remote(request.method, place, headers, json.dumps(asked).encode() if body else b"")
        status, kept = json.loads(await anext(answer))
        return StreamingResponse(answer, status, kept)


class Model(BaseModel):
    """What a row of `models` in serve.yaml may say."""

    path: str = ""
    replicas: int = 1
    cpus: float = 1.0
    gpus: float = 1.0
    arguments: list[str] = Field(default_factory=list)
    load_s: float = 1800.0


class Arguments(BaseModel):
    """`args` of serve.yaml."""

    sluiced: str = "sluiced"
    models: dict[str, Model]


def app(args: Arguments) -> serve.Application:
    """The application that serve.yaml names."""
    replicas = {
        name: Sluiced.options(
            name=f"sluiced-{number}",
            num_replicas=model.replicas,
            # Of them the daemon refuses what is too much; its queue and its batches know more than Ray does.
            max_ongoing_requests=256,
            ray_actor_options={"num_cpus": model.cpus, "num_gpus": model.gpus},
            graceful_shutdown_timeout_s=DRAIN_S + 60,
            health_check_period_s=5,
            health_check_timeout_s=30,
        ).bind(model.path, args.sluiced, model.arguments, model.load_s)
        for number, (name, model) in enumerate(args.models.items())
    }
    # It only passes bytes on.
    return Router.options(max_ongoing_requests=1024, ray_actor_options={"num_cpus": 0.1}).bind(replicas)
