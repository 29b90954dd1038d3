"""Another level while a request runs: `python switch_level.py [LEVEL]`; it comes between two passes, and nothing is lost.

The daemon remembers the level for this model, as it does after `sluice level`; `sluice restore` forgets it."""

import sys

from client import ask, generation, optimizer, optimizer_service_pb2
from sluice.v1 import common_pb2, operation_pb2

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
planned, notices = False, 0
for response in optimizer.Apply(optimizer_service_pb2.ApplyRequest(options=common_pb2.PlanOptions(level=level))):
    # Each is a full picture of the change; a slow reader gets the latest alone.
    change = response.operation
    if change.HasField("planned_change") and not planned:
        planned = True
        plan = change.planned_change.plan
        name = common_pb2.Level.Name(plan.level).removeprefix("LEVEL_").lower()
        print(f"level {name}, {plan.peak_bytes >> 20} MiB", file=sys.stderr)
    for notice in change.notices[notices:]:
        print(notice, file=sys.stderr)
    notices = len(change.notices)
    if change.progress.unit == operation_pb2.PROGRESS_UNIT_STEPS:
        print(f"{change.progress.done} of {change.progress.total} steps", file=sys.stderr)
    if change.HasField("apply"):
        print("in force, and remembered for this model (`sluice restore` forgets it)", file=sys.stderr)
read("done")
print(f"(passes with {len(states)} states of the weights were seen)", file=sys.stderr)
