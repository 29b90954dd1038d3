"""Writes an autoregressive model with a tokenizer: fixture.py FROM TO. FROM is the fixture llama-tiny, whose 256 tokens become bytes."""

import json
import shutil
import sys
from pathlib import Path

# Templates that have a place for functions look like this.
TEMPLATE = """{% if tools %}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif %}{% for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}assistant:"""


def byte_names():
    """The characters by which byte-level tokenizers write bytes: printable ones as they are, the others from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{byte: chr(byte) for byte in printable},
        **{byte: chr(256 + index) for index, byte in enumerate(others)},
    }


def main(source, target):
    target.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(source / name, target / name)
    vocabulary = {name: byte for byte, name in byte_names().items()}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    (target / "tokenizer.json").write_text(json.dumps(tokenizer))
    (target / "chat_template.jinja").write_text(TEMPLATE)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
