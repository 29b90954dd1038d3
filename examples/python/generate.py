"""One answer: `python generate.py [PROMPT]`."""

import sys

from client import ask, generation

prompt = sys.argv[1] if len(sys.argv) > 1 else "Tell me a story."
for response in generation.Generate(ask(prompt, length=64), timeout=600):
    if response.event.WhichOneof("event") == "done":
        done = response.event.done
        print(done.text)
        print(f"({done.text_tokens} tokens, {done.passes} passes, {done.elapsed_ms / 1000:.1f} s)", file=sys.stderr)
