"""Clients over HTTP and gRPC, while one daemon is drained and one is killed: what each client got."""

import asyncio
import collections
import contextlib
import dataclasses
import functools
import json
import pathlib
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import aiohttp
import grpc

from replicas import HEADERS, HERE, Cluster, Replica

PROMPT = "Tell me a story about a kite."
# So short that 500 of them take a minute on two cores.
TOKENS = 32
SEED = 7
# From one client to the next.
PAUSE_S = 0.01
# Requests that a daemon has when it is drained or killed, and the time for them to come.
BUSY = 4
BUSY_S = 60.0
# By then all streams of a daemon that was killed have ended.
CUT_S = 5.0


def generate_stubs(folder: pathlib.Path) -> None:
    """Makes the modules of the schema importable."""
    proto = HERE.parent.parent / "proto"
    folder.mkdir()
    files = [str(path) for path in sorted(proto.glob("sluice/v1/*.proto"))]
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{proto}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    subprocess.run([*protoc, *files], check=True)
    sys.path.insert(0, str(folder))


@dataclasses.dataclass
class Answer:
    """What came of one request."""

    replica: str = ""
    text: str = ""
    error: str = ""
    is_whole: bool = False


Ask = Callable[[], Awaitable[Answer]]


async def ask_http(session: aiohttp.ClientSession) -> Answer:
    answer = Answer()
    asked = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": TOKENS, "seed": SEED, "stream": True}
    try:
        async with session.post("/v1/chat/completions", json=asked) as response:
            answer.replica = response.headers.get("sluice-replica", "")
            if response.status != 200:
                answer.error = f"HTTP {response.status}"
                return answer
            async for line in response.content:
                take_event(line.decode().strip().removeprefix("data: "), answer)
    except (aiohttp.ClientError, asyncio.TimeoutError) as error:
        answer.error = type(error).__name__
    return answer


def take_event(event: str, answer: Answer) -> None:
    """Adds what a server-sent event tells."""
    if event == "[DONE]":
        answer.is_whole = True
    elif event.startswith("{"):
        told = json.loads(event)
        if "error" in told:
            answer.error = f"event of an error, {told['error']['code']}"
        for choice in told.get("choices", []):
            answer.text += choice["delta"].get("content") or ""


async def ask_grpc(channel: grpc.aio.Channel) -> Answer:
    from sluice.v1 import generation_service_pb2 as pb
    from sluice.v1 import generation_service_pb2_grpc as rpc

    answer = Answer()
    chat = pb.Chat(messages=[pb.ChatMessage(role=pb.CHAT_ROLE_USER, content=PROMPT)])
    request = pb.GenerateRequest(chat=chat, length=TOKENS, sampling=pb.SamplingOptions(seed=SEED))
    call = rpc.GenerationServiceStub(channel).Generate(request, metadata=list(HEADERS.items()))
    try:
        answer.replica = dict(await call.initial_metadata()).get("sluice-replica", "")
        async for response in call:
            if response.event.WhichOneof("event") == "done":
                answer.text, answer.is_whole = response.event.done.text, True
    except grpc.aio.AioRpcError as error:
        answer.error = f"{error.code().name}: {error.details()}"
    return answer


@dataclasses.dataclass
class Client:
    """A client that asks, and asks once more where its answer was cut off."""

    number: int
    kind: str
    ask: Ask
    begun: float = 0.0
    ended: float = 0.0
    first: Answer = dataclasses.field(default_factory=Answer)
    second: Answer | None = None

    async def run(self) -> None:
        await asyncio.sleep(self.number * PAUSE_S)
        self.begun = time.monotonic()
        self.first = await self.ask()
        self.ended = time.monotonic()
        if not self.first.is_whole:
            self.second = await self.ask()

    def outcome(self, expected: str) -> str:
        if self.second is None:
            return judged(self.first, expected)
        return f"{judged(self.first, expected)}; asked again: {judged(self.second, expected)}"


def judged(answer: Answer, expected: str) -> str:
    if answer.error or not answer.is_whole:
        return f"cut off, {answer.error or 'without a word'}"
    return "whole" if answer.text == expected else "another text"


async def check(cluster: Cluster, count: int) -> bool:
    """Clients come one after the other, while there is trouble."""
    drained, killed = cluster.replicas[1:]
    generate_stubs(cluster.folder / "stubs")
    credentials = grpc.ssl_channel_credentials(cluster.secrets.certificate.read_bytes())
    async with cluster.session() as session, contextlib.AsyncExitStack() as channels:
        expected = await ask_http(session)
        if not expected.is_whole:
            raise SystemExit(f"the first request: {expected.error}")

        # A connection each, as separate clients have; without retries, so that what happens is seen.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        clients = []
        for number in range(count):
            if number % 2:
                channel = grpc.aio.secure_channel(f"localhost:{cluster.grpc_port}", credentials, options)
                ask = functools.partial(ask_grpc, await channels.enter_async_context(channel))
                clients.append(Client(number, "gRPC", ask))
            else:
                clients.append(Client(number, "HTTP", functools.partial(ask_http, session)))
        trouble = asyncio.create_task(make_trouble(cluster, drained, killed, count * PAUSE_S / 3))
        await asyncio.gather(*(client.run() for client in clients))
        trouble_was = await trouble

    names = {drained.name: f"{drained.name} (d)", killed.name: f"{killed.name} (k)"}
    print_table(clients, expected.text, names)
    return verdict(clients, expected.text, killed.name, trouble_was)


@dataclasses.dataclass
class Trouble:
    """What a daemon that was drained ended with, and when another one was killed."""

    drained_code: int
    killed_at: float


async def make_trouble(cluster: Cluster, drained: Replica, killed: Replica, pause_s: float) -> Trouble:
    """After a pause one is drained, and stopped when it is empty; after another pause one is killed. Both have requests then."""
    await asyncio.sleep(pause_s)
    await until_busy(cluster, drained)
    draining = asyncio.create_task(asyncio.to_thread(cluster.drain, drained))
    await asyncio.sleep(pause_s)
    await until_busy(cluster, killed)
    killed_at = time.monotonic()
    killed.end(signal.SIGKILL)
    await draining
    return Trouble(await asyncio.to_thread(drained.end, signal.SIGTERM), killed_at)


async def until_busy(cluster: Cluster, replica: Replica) -> None:
    deadline = time.monotonic() + BUSY_S
    while cluster.running(replica) < BUSY:
        if time.monotonic() > deadline:
            raise SystemExit(f"{replica.name} never has {BUSY} requests at once; take more clients")
        await asyncio.sleep(0.01)


def print_table(clients: list[Client], expected: str, names: dict[str, str]) -> None:
    def row(client: Client) -> tuple[str, str, str]:
        replica = client.first.replica
        return names.get(replica, replica or "none"), client.kind, client.outcome(expected)

    print(f"{'replica':14}{'client':8}{'requests':>8}  outcome")
    for (replica, kind, outcome), number in sorted(collections.Counter(map(row, clients)).items()):
        print(f"{replica:14}{kind:8}{number:8}  {outcome}")
    print("(d) drained and stopped, (k) killed")
    for kind in ["HTTP", "gRPC"]:
        seconds = [client.ended - client.begun for client in clients if client.kind == kind and client.first.is_whole]
        percentiles = statistics.quantiles(seconds, n=20, method="inclusive")
        print(f"{kind}: {len(seconds)} whole answers, p50 {percentiles[9]:.2f} s, p95 {percentiles[18]:.2f} s, most {max(seconds):.2f} s")


def verdict(clients: list[Client], expected: str, killed: str, trouble: Trouble) -> bool:
    """What must hold: answers are lost with the killed daemon alone, with an error; all others, and all that is asked later, come."""
    lost = [client for client in clients if not client.first.is_whole]
    late = [client for client in clients if client.begun > trouble.killed_at]
    faults = {
        # A stream that breaks at its begin may name none.
        "lost on a daemon that lived": [client for client in lost if client.first.replica not in ("", killed)],
        "lost at another time than the kill": [client for client in lost if not 0 <= client.ended - trouble.killed_at < CUT_S],
        "lost though it came after the kill": [client for client in lost if client in late],
        "lost without an error": [client for client in lost if not client.first.error],
        "another text": [client for client in clients if client.first.is_whole and client.first.text != expected],
        "not whole when asked again": [client for client in lost if client.second and judged(client.second, expected) != "whole"],
    }
    print(f"{len(clients)} requests: {len(clients) - len(lost)} whole, {len(lost)} cut off; {len(late)} came after the kill")
    for fault, those in faults.items():
        if those:
            print(f"FAILED: {len(those)} {fault}")
    if not lost:
        print("FAILED: the kill cut nothing off")
    if trouble.drained_code != 0:
        print(f"FAILED: the drained daemon ended with {trouble.drained_code}")
    return not any(faults.values()) and bool(lost) and trouble.drained_code == 0
