"""What all examples share: the generated modules, a channel to the daemon, and what is said of a call that failed."""

import os
import sys
from pathlib import Path

import grpc

# Where `grpc_tools.protoc` was told to write; see README.md.
sys.path.insert(0, os.environ.get("SLUICE_STUBS", str(Path(__file__).parent / "generated")))

from sluice.v1 import generation_service_pb2, generation_service_pb2_grpc  # noqa: E402
from sluice.v1 import operation_service_pb2, operation_service_pb2_grpc  # noqa: E402
from sluice.v1 import optimizer_service_pb2, optimizer_service_pb2_grpc  # noqa: E402


def target():
    """As `sluice` does: $SLUICE_SOCKET, which may be http://127.0.0.1:PORT, else where sluiced usually listens."""
    named = os.environ.get("SLUICE_SOCKET")
    if named:
        return named.removeprefix("http://") if named.startswith("http://") else f"unix:{named}"
    if os.path.exists("/run/sluice/sluice.sock"):
        return "unix:/run/sluice/sluice.sock"
    if os.environ.get("XDG_RUNTIME_DIR"):
        return f"unix:{os.environ['XDG_RUNTIME_DIR']}/sluice/sluice.sock"
    return f"unix:{os.environ.get('TMPDIR') or '/tmp'}/sluice-{os.getuid()}/sluice.sock"


def tell(kind, error, trace):
    """A call that failed ends the program with the daemon's words; anything else is ours, and has its trace."""
    if issubclass(kind, grpc.RpcError):
        print(error.details(), file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = tell
channel = grpc.insecure_channel(target())
generation = generation_service_pb2_grpc.GenerationServiceStub(channel)
operations = operation_service_pb2_grpc.OperationServiceStub(channel)
optimizer = optimizer_service_pb2_grpc.OptimizerServiceStub(channel)


def ask(prompt, **options):
    """A request with one message of a user."""
    message = generation_service_pb2.ChatMessage(role=generation_service_pb2.CHAT_ROLE_USER, content=prompt)
    return generation_service_pb2.GenerateRequest(chat=generation_service_pb2.Chat(messages=[message]), **options)
