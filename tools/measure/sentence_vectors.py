"""Vectors a second of sentence-transformers on two threads, to compare with `sluice embed --json`.

    python tools/measure/sentence_vectors.py FOLDER LINES

FOLDER has all-MiniLM-L6-v2, LINES a text a line. `elapsed_ms` of `sluice embed --json - < LINES` is the same without tokenizing.
"""

import statistics
import sys
import time

import torch
from sentence_transformers import SentenceTransformer

torch.set_num_threads(2)
model = SentenceTransformer(sys.argv[1], device="cpu")
texts = open(sys.argv[2]).read().splitlines()
model.encode(texts)


def seconds(asked):
    begun = time.perf_counter()
    model.encode(asked)
    return time.perf_counter() - begun


together = statistics.median(seconds(texts) for _ in range(5))
single = statistics.median(seconds(texts[0].split(".")[0][:24]) for _ in range(15))
print(f"{len(texts) / together:.0f} vectors/s, one short text {1e3 * single:.2f} ms, with tokenizing")


def forward_seconds(asked):
    features = [model.tokenize(asked[start : start + 32]) for start in range(0, len(asked), 32)]
    begun = time.perf_counter()
    with torch.inference_mode():
        for batch in features:
            model.forward(batch)
    return time.perf_counter() - begun


together = statistics.median(forward_seconds(texts) for _ in range(5))
single = statistics.median(forward_seconds([texts[0].split(".")[0][:24]]) for _ in range(15))
print(f"{len(texts) / together:.0f} vectors/s, one short text {1e3 * single:.2f} ms, without")
