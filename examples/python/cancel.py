"""Stops a request from another call: `python cancel.py`. To cancel a call of one's own, `running.cancel()` is enough."""

from client import ask, generation, generation_service_pb2, operation_service_pb2, operations

# Long, and an end token is no end: the answer is still being written when the cancel arrives.
endless = generation_service_pb2.SamplingOptions(eos_policy=generation_service_pb2.EOS_POLICY_SUPPRESS)
running = generation.Generate(ask("Tell me a story.", length=384, sampling=endless), timeout=600)
asked = False
for response in running:
    event = response.event
    match event.WhichOneof("event"):
        # Any pass, since a slow reader gets the latest alone and may never see the first.
        case "pass_done" if not asked:
            asked = True
            request = operation_service_pb2.CancelOperationRequest(operation_id=event.pass_done.request_id)
            print("was active:", operations.CancelOperation(request).was_active)
        case "done":
            reason = generation_service_pb2.FinishReason.Name(event.done.finish_reason)
            print(reason, "after", event.done.passes, "passes")
