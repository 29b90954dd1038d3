"""Long prompts with a beginning in common, once spread evenly and once kept together: tokens per second."""

import asyncio
import collections
import dataclasses
import random
import time

import aiohttp

from replicas import Cluster

# The header that haproxy.cfg hashes.
PREFIX = "sluice-prefix-key"
TOKENS = 8
# As many as there are replicas.
AT_ONCE = 3


@dataclasses.dataclass
class Workload:
    """Prefixes, turns of each, and words of a prefix."""

    prefixes: int
    turns: int
    words: int


async def prefix(cluster: Cluster, workload: Workload) -> None:
    async with cluster.session() as session:
        evenly = await measure(session, workload, is_together=False)
        together = await measure(session, workload, is_together=True)
    print(f"together ÷ evenly: {together / evenly:.2f}")


async def measure(session: aiohttp.ClientSession, workload: Workload, is_together: bool) -> float:
    """Tokens of answers per second."""
    # Other texts each time, so that no replica has them from before.
    stems = [f"{is_together} {number} " + words(number, workload.words) for number in range(workload.prefixes)]
    usage: collections.Counter[str] = collections.Counter()

    async def ask(number: int, turn: int) -> None:
        headers = {PREFIX: f"prefix-{number}"} if is_together else {}
        asked = {"prompt": f"{stems[number]} Question {turn}:", "max_tokens": TOKENS, "temperature": 0}
        async with session.post("/v1/completions", json=asked, headers=headers) as answer:
            answer.raise_for_status()
            usage.update({name: count for name, count in (await answer.json())["usage"].items() if name.endswith("_tokens")})

    begun = time.monotonic()
    order = list(range(workload.prefixes))
    for turn in range(workload.turns):
        # In another order each turn, or three replicas in turn would keep prefixes together by chance.
        random.Random(turn).shuffle(order)
        for first in range(0, workload.prefixes, AT_ONCE):
            await asyncio.gather(*(ask(number, turn) for number in order[first : first + AT_ONCE]))
    seconds = time.monotonic() - begun
    rate = usage["completion_tokens"] / seconds
    how = "kept together" if is_together else "spread evenly"
    tokens = f"{usage['prompt_tokens']} tokens of prompts, {usage['completion_tokens']} of answers"
    print(f"{how}: {tokens} in {seconds:.1f} s, {rate:.2f} tokens/s")
    return rate


def words(number: int, count: int) -> str:
    return " ".join(f"word{number * 7 + place}" for place in range(count))
