"""Makes the fixtures of sentence encoders, and what the references say of them.

    python tools/measure/encoder_fixtures.py daemon/engine/tests/fixtures
    python tools/measure/encoder_fixtures.py daemon/engine/tests/fixtures --minilm FOLDER

The first makes bert-tiny (random weights in f16, as transformers and sentence-transformers compute it in f32) and
model2vec-tiny (as model2vec computes it). The second writes the vectors of all-MiniLM-L6-v2, whose files FOLDER holds.
Needs torch, transformers 5.24, sentence-transformers 6.2, safetensors and model2vec 0.10.
"""

import argparse
import json
import pathlib

import numpy as np
import torch
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WIDTH, LAYERS, HEADS, POSITIONS, TOKENS_MAX = 64, 3, 4, 48, 24

TEXTS = [
    "",
    "weights",
    "A plan says which weights stay on the device and which are streamed.",
    "The café in Zürich is closed, naïve as it sounds: 東京 and Ελλάδα \U0001f642",
    " ".join(["memory runs short and something gives way before a request fails"] * 6),
    "What is the capital of France?\nParis.",
]

MINILM_TEXTS = TEXTS + [
    "How many layers does the model have?",
    "The cat sat on the mat while the rain fell quietly outside the window.",
    "def mean(values): return sum(values) / len(values)",
    "Ein Satz auf Deutsch, mit Umlauten: äöüß.",
    " ".join(f"sentence number {n} of a long document about nothing in particular." for n in range(60)),
]

CORPUS = TEXTS + [
    "Sluice runs language models that are bigger than the memory of the graphics card.",
    "A request waits in a queue until a pass has room for it, and leaves when it is done.",
    "Layers, embeddings, positions, tokens, heads, queries, keys and values are words of the field.",
    "What is read from the disk goes through a few buffers, round and round, ahead of the pass.",
    "the quick brown fox jumps over the lazy dog 0123456789",
]


def tokenizer(size, special_around):
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=SPECIAL, show_progress=False)
    # Without the scripts of one text, whose words are unknown then.
    made.train_from_iterator([text.encode("ascii", "ignore").decode() for text in CORPUS], trainer)
    if special_around:
        ids = [(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
        )
    return made


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def random_weights(model):
    """Larger than those that training begins with: attention that is nearly even would hide mistakes."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            values = torch.randn(weight.shape, generator=generator)
            scale = 0.2 if "LayerNorm" in name or name.endswith("bias") else 1.5 / weight.shape[-1] ** 0.5
            if "embeddings" in name and "LayerNorm" not in name:
                scale = 0.5
            weight.copy_((values * scale + float("LayerNorm.weight" in name)).half().float())


def bert_tiny(folder):
    folder.mkdir(parents=True, exist_ok=True)
    text_ids = tokenizer(420, True)
    text_ids.save(str(folder / "tokenizer.json"))
    vocabulary = text_ids.get_vocab_size()
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=POSITIONS,
        hidden_act="gelu",
    )
    model = BertModel(config, add_pooling_layer=False).eval()
    random_weights(model)
    fast = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]",
        model_max_length=POSITIONS,
    )
    fast.save_pretrained(folder)
    model.save_pretrained(folder)
    # transformers 5 leaves out what is the default.
    whole = json.loads((folder / "config.json").read_text())
    whole |= {"hidden_act": "gelu", "position_embedding_type": "absolute", "dtype": "float16"}
    write_json(folder / "config.json", whole)
    save_file(
        {name: weight.half().numpy() for name, weight in model.state_dict().items() if weight.is_floating_point()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    kind = "sentence_transformers.models."
    write_json(folder / "modules.json", [
        {"idx": 0, "name": "0", "path": "", "type": kind + "Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": kind + "Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": kind + "Normalize"},
    ])
    write_json(folder / "1_Pooling" / "config.json", {
        "word_embedding_dimension": WIDTH,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    })
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": TOKENS_MAX, "do_lower_case": False})

    whole = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    tensors = {"mean": whole.encode(TEXTS, batch_size=1)}
    ids = [whole.tokenizer(text, truncation=True, max_length=TOKENS_MAX)["input_ids"] for text in TEXTS]
    first = []
    with torch.no_grad():
        for index, text in enumerate(ids):
            out = model(input_ids=torch.tensor([text]), output_hidden_states=True)
            first.append(out.last_hidden_state[0, 0].numpy())
            if index in (1, 2):
                for layer, hidden in enumerate(out.hidden_states):
                    tensors[f"hidden.{index}.{layer}"] = hidden[0].numpy()
    tensors["first"] = np.stack(first)
    save_file(tensors, folder / "vectors.safetensors")
    lengths = [len(whole.tokenizer(text)["input_ids"]) for text in TEXTS]
    write_json(folder / "vectors.json", {"texts": TEXTS, "ids": ids, "lengths": lengths})


def model2vec_tiny(folder):
    from model2vec import StaticModel

    folder.mkdir(parents=True, exist_ok=True)
    text_ids = tokenizer(400, False)
    table = np.random.default_rng(3).normal(size=(text_ids.get_vocab_size(), 32)).astype(np.float32)
    model = StaticModel(vectors=table, tokenizer=text_ids, config={"model_type": "model2vec"}, normalize=True, max_length=24)
    model.save_pretrained(folder)
    for unneeded in ("README.md", "modules.json"):
        (folder / unneeded).unlink(missing_ok=True)
    text_ids.no_truncation()
    ids = [text_ids.encode(text, add_special_tokens=False).ids for text in TEXTS]
    unknown = text_ids.token_to_id("[UNK]")
    read = [[id for id in text[:24] if id != unknown] for text in ids]
    # Told to take whole texts: it cuts characters by the median length of its tokens, before it counts tokens.
    model.median_token_length = 1000
    save_file({"mean": model.encode(TEXTS, use_multiprocessing=False)}, folder / "vectors.safetensors")
    write_json(folder / "vectors.json", {"texts": TEXTS, "ids": read, "lengths": [len(text) for text in ids]})


def minilm(folder, source):
    whole = SentenceTransformer(str(source), device="cpu")
    ids = [whole.tokenizer(text, truncation=True, max_length=256)["input_ids"] for text in MINILM_TEXTS]
    save_file({"mean": whole.encode(MINILM_TEXTS, batch_size=1)}, folder / "vectors.safetensors")
    write_json(folder / "vectors.json", {
        "texts": MINILM_TEXTS,
        "ids": ids,
        "lengths": [len(whole.tokenizer(text)["input_ids"]) for text in MINILM_TEXTS],
    })


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("fixtures", type=pathlib.Path)
    arguments.add_argument("--minilm", type=pathlib.Path)
    given = arguments.parse_args()
    torch.set_grad_enabled(False)
    if given.minilm:
        folder = given.fixtures / "all-minilm-l6-v2"
        folder.mkdir(exist_ok=True)
        minilm(folder, given.minilm)
        return
    bert_tiny(given.fixtures / "bert-tiny")
    model2vec_tiny(given.fixtures / "model2vec-tiny")


main()
