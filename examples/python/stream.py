"""The text as it becomes certain: `python stream.py [PROMPT]`."""

import sys

from client import ask, generation

prompt = sys.argv[1] if len(sys.argv) > 1 else "Tell me a story."
shown = 0


def show(text):
    """Writes what is new. Bytes, since a pass may end anywhere; the daemon sends whole characters."""
    global shown
    sys.stdout.buffer.write(text[shown:])
    sys.stdout.buffer.flush()
    shown = len(text)


for response in generation.Generate(ask(prompt, length=64), timeout=600):
    event = response.event
    match event.WhichOneof("event"):
        case "queued":
            print(f"request {event.queued.request_id}, {event.queued.ahead} ahead", file=sys.stderr)
        case "pass_done":
            show(event.pass_done.stable_text)
        case "done":
            text = event.done.text.encode()
            # A policy that takes tokens back holds them until a block is done, so this may be the larger part.
            show(text)
            print()
