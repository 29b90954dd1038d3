"""What Python's libraries find in a set of `retrieval_sets.py`, beside the example `retrieval_quality`.

    python tools/measure/retrieval_peers.py ENCODER FOLDER SPLIT PIECES

sentence-transformers embeds whole documents, cut at what the encoder reads, and the store's own pieces (PIECES, which the example
writes); cosines are compared with all. bm25s ranks the same by words, with its defaults, stop words and stems. Titles stand
before whole documents, as in BEIR.
"""

import json
import math
import pathlib
import sys

import bm25s
import numpy
import Stemmer
import torch
from sentence_transformers import SentenceTransformer

torch.set_num_threads(2)


def lines(path):
    return [json.loads(line) for line in open(path)]


encoder, folder, split, pieces = sys.argv[1:]
folder = pathlib.Path(folder)
encoder = SentenceTransformer(encoder, device="cpu")
relevant = {}
for line in (folder / "qrels" / f"{split}.tsv").read_text().splitlines()[1:]:
    question, document, grade = line.split("\t")
    relevant.setdefault(question, {})[document] = float(grade)
questions = [question for question in lines(folder / "queries.jsonl") if question["_id"] in relevant]
asked = [question["text"] for question in questions]
vectors = encoder.encode(asked, normalize_embeddings=True)
corpus, pieces = lines(folder / "corpus.jsonl"), lines(pieces)


def scores(question, ranked):
    of = relevant[question["_id"]]
    gains = [of.get(document, 0) for document in ranked]
    discounted = lambda gains: sum(gain / math.log2(rank + 2) for rank, gain in enumerate(gains[:10]))
    recall = lambda depth: sum(gain > 0 for gain in gains[:depth]) / len(of)
    return recall(1), recall(5), discounted(gains) / discounted(sorted(of.values(), reverse=True))


def tell(name, owners, rankings):
    each = []
    for question, ranking in zip(questions, rankings):
        each.append(scores(question, list(dict.fromkeys(owners[text] for text in ranking))[:10]))
    each = numpy.array(each)
    halves = 1.96 * each.std(axis=0) / math.sqrt(len(each))
    cells = [f"{100 * mean:.1f} ± {100 * half:.1f}" for mean, half in zip(each.mean(axis=0), halves)]
    print(f"| {name} |", " | ".join(cells), "|", flush=True)


def tell_words(name, owners, texts):
    stemmer = Stemmer.Stemmer("english")
    index = bm25s.BM25()
    index.index(bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, show_progress=False), show_progress=False)
    tokens = bm25s.tokenize(asked, stopwords="en", stemmer=stemmer, show_progress=False)
    tell(name, owners, index.retrieve(tokens, k=50, show_progress=False)[0])


def tell_vectors(name, owners, texts):
    cosines = vectors @ encoder.encode(texts, normalize_embeddings=True).T
    tell(name, owners, numpy.argsort(-cosines, axis=1, kind="stable")[:, :50])


print("| | recall@1 | recall@5 | nDCG@10 |\n|---|---|---|---|")
whole = [f"{document['title']}\n{document['text']}" for document in corpus]
owners = [document["_id"] for document in corpus]
tell_words("bm25s, whole documents", owners, whole)
tell_vectors("sentence-transformers, whole documents", owners, whole)
owners = [piece["doc"] for piece in pieces]
tell_words("bm25s, the store's pieces", owners, [f"{piece['heading']}\n{piece['text']}" for piece in pieces])
tell_vectors("sentence-transformers, the store's pieces", owners, [piece["text"] for piece in pieces])
