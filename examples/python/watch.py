"""Somebody else's request, from its first event on: `python watch.py [ID]`; without an id, the latest."""

import sys

from client import generation, generation_service_pb2, operation_service_pb2, operations
from sluice.v1 import operation_pb2

kinds = [operation_pb2.OPERATION_KIND_GENERATE]
requests = operations.ListOperations(operation_service_pb2.ListOperationsRequest(kinds=kinds)).operations
if len(sys.argv) > 1:
    request_id = int(sys.argv[1])
elif requests:
    request_id = max(request.operation_id for request in requests)
else:
    sys.exit("the daemon had no request yet")

for response in generation.WatchGeneration(generation_service_pb2.WatchGenerationRequest(operation_id=request_id)):
    event = response.event
    match event.WhichOneof("event"):
        case "started":
            print(f"request {request_id}: {event.started.length} positions, {event.started.blocks} blocks")
        case "pass_done":
            passed = event.pass_done
            print(f"pass {passed.passes}, block {passed.block}: {passed.committed_positions} committed")
        case "block_done":
            print(f"block {event.block_done.block} done after {event.block_done.passes} passes")
        case "done":
            print(event.done.text)
