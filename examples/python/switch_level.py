"""Another level while a request runs: `python switch_level.py [LEVEL]`; it comes between two passes, and nothing is lost.

The daemon remembers the level for this model, as it does after `sluice level`; `sluice restore` forgets it."""

import sys

from client import ask, generation, optimizer, optimizer_pb2
from sluice.v1 import common_pb2

level = sys.argv[1] if len(sys.argv) > 1 else "moderate"
level = common_pb2.Level.Value("LEVEL_" + level.upper())
running = generation.Generate(ask("Tell me a story.", length=256), timeout=600)
states = set()


def read(until):
    """Reads events until one of this kind; the daemon goes on writing while nobody reads."""
    for response in running:
        event = response.event
        kind = event.WhichOneof("event")
        if kind == "pass_done":
            states.add(event.pass_done.weights_version)
        elif kind == "done":
            print(event.done.text)
        if kind == until:
            return


read("pass_done")
for response in optimizer.Apply(optimizer_pb2.ApplyRequest(options=common_pb2.PlanOptions(level=level))):
    match response.WhichOneof("kind"):
        case "planned":
            plan = response.planned.plan
            name = common_pb2.Level.Name(plan.level).removeprefix("LEVEL_").lower()
            print(f"level {name}, {plan.peak_bytes >> 20} MiB", file=sys.stderr)
        case "progress":
            print(f"{response.progress.done_steps} of {response.progress.total_steps} steps", file=sys.stderr)
        case "notice":
            print(response.notice, file=sys.stderr)
        case "applied":
            print("in force, and remembered for this model (`sluice restore` forgets it)", file=sys.stderr)
read("done")
print(f"(passes with {len(states)} states of the weights were seen)", file=sys.stderr)
